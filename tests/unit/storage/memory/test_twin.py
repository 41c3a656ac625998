"""The memory store never waits, and refuses what Postgres refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from millwheel.bundles import LogWrite, QuarantineEntry, SinkRow, encode_checkpoint
from millwheel.errors import IncompatibleStore, RowRefused, StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, SubscriptionId
from millwheel.ports import FoldWrite, PipelineShape, SinkTable, Store
from millwheel.work import Wanted
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.samples import image

T = TypeVar("T")

SINK = SinkTable("out", {"k": "text", "n": "bigint"}, ("k",))
SHAPE = PipelineShape("demo", {"a": ("m",)}, {"a<s": "s"}, {"stream:s": "bytes"}, (SINK,), ())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """One step is all that a coroutine of this store takes."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    result: T = stopped.value.value
    return result


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    run(store.open_pipeline(SHAPE))
    return store


def test_it_is_a_store(store: MemoryStore) -> None:
    port: Store = store
    assert run(port.acquire([IntervalId(2), IntervalId(1)])) == {1: 1, 2: 2}
    assert run(port.acquire([IntervalId(1)])) == {1: 3}


def test_it_needs_no_database_driver() -> None:
    code = "print({name.split('.')[0] for name in sys.modules} & {'psycopg', 'sqlalchemy'})"
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; import millwheel_storage.memory; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_a_stale_owner_changes_nothing(store: MemoryStore) -> None:
    old = run(store.acquire([IntervalId(1)]))[IntervalId(1)]
    run(store.acquire([IntervalId(1)]))
    assert run(store.commit([LogWrite(IntervalId(1), old, Seq(1), 0, b"x", (SinkRow("out", b'{"k": "a"}'),))])) == set()
    assert run(store.fold(FoldWrite(IntervalId(1), old, Seq(1), []))) is False
    assert run(store.recover(IntervalId(1), old)) is None
    assert store.tables()["checkpoint_log"] == []
    assert store.sinks == {"out": {}}


def test_a_refused_row_stops_its_interval_from_its_checkpoint_on(store: MemoryStore) -> None:
    owned = run(store.acquire([IntervalId(1), IntervalId(2)]))
    good = LogWrite(IntervalId(1), owned[IntervalId(1)], Seq(1), 0, b"x", (SinkRow("out", b'{"k": "a"}'),))
    bad = LogWrite(IntervalId(2), owned[IntervalId(2)], Seq(7), 0, b"x", (SinkRow("out", b'{"k": "a", "n": "1"}'),))
    coroutine = store.commit(
        [
            LogWrite(IntervalId(2), owned[IntervalId(2)], Seq(8), 0, b"x"),
            good,
            bad,
            LogWrite(IntervalId(2), owned[IntervalId(2)], Seq(6), 0, b"x"),
        ]
    )
    with pytest.raises(RowRefused, match="bigint") as caught:
        coroutine.send(None)
    assert (caught.value.interval, caught.value.seq) == (2, 7)
    assert [row[:3] for row in store.tables()["checkpoint_log"]] == [(1, 1, 1), (2, 2, 6)]
    assert store.sinks["out"] == {("a",): {"k": "a", "n": None}}


def test_an_interval_is_taken_anew_by_its_owner_only(store: MemoryStore) -> None:
    owned = run(store.acquire([IntervalId(1), IntervalId(2)]))
    taken = run(store.reacquire(IntervalId(1), owned[IntervalId(1)]))
    assert taken is not None
    assert taken > owned[IntervalId(2)]
    assert run(store.reacquire(IntervalId(1), owned[IntervalId(1)])) is None
    assert run(store.commit([LogWrite(IntervalId(1), owned[IntervalId(1)], Seq(1), 0, b"x")])) == set()
    assert run(store.commit([LogWrite(IntervalId(1), taken, Seq(1), 0, b"x")])) == {(1, 1)}


def test_a_log_of_another_format_is_refused(store: MemoryStore) -> None:
    owned = run(store.acquire([IntervalId(1)]))
    run(store.commit([LogWrite(IntervalId(1), owned[IntervalId(1)], Seq(1), 0, b"\x90")]))
    with pytest.raises(IncompatibleStore):
        store.recover(IntervalId(1), owned[IntervalId(1)]).send(None)


def test_an_unknown_interval_is_an_error(store: MemoryStore) -> None:
    with pytest.raises(StoreError, match="interval 9"):
        store.acquire([IntervalId(9)]).send(None)


FIRST = msgspec.structs.replace(
    image([]), quarantined=[QuarantineEntry("k", SubscriptionId(1), ProducerId(7), SequenceNumber(0), b"", 5)]
)
RELEASED = msgspec.structs.replace(image([]), redriven=[("k", 1)], released=["k"])


@pytest.mark.parametrize("asks_again", [True, False])
@pytest.mark.parametrize("recovers", [True, False])
def test_a_release_answers_only_requests_that_were_there_before_it(
    store: MemoryStore, recovers: bool, asks_again: bool
) -> None:
    first, images = IntervalId(1), [FIRST, RELEASED, FIRST]
    sequencer = run(store.acquire([first]))[first]
    for number, one in enumerate(images, start=1):
        run(store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))]))
        if number == 1 or (number == 3 and asks_again):
            store.request_redrive("a", "k")
    if recovers:
        assert run(store.recover(first, run(store.acquire([first]))[first])) is not None
    else:
        assert run(store.fold(FoldWrite(first, sequencer, Seq(3), images)))
    assert run(store.redrive_requests(("", ""), 9)) == ([("a", "k")] if asks_again else [])


def test_slots_are_read_one_by_one_or_all_of_a_cell(store: MemoryStore) -> None:
    slots = {("total", ""): b"1", ("seen", "x"): b"2", ("seen", "y"): b"3", ("left", "x"): b"4"}
    store.folded.key_state["a"] = {"k": slots, "other": {("total", ""): b"5"}}
    wanted: list[Wanted] = [("k", "total", ""), ("k", "seen", None), ("k", "left", "y"), ("none", "total", "")]
    found = run(store.load_slots(IntervalId(1), wanted))
    assert sorted(found) == [("k", "seen", "x", b"2"), ("k", "seen", "y", b"3"), ("k", "total", "", b"1")]
    assert run(store.load_slots(IntervalId(1), [("other", "total", None)])) == [("other", "total", "", b"5")]
