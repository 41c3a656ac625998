"""What opening a store in memory changes, and what it refuses before it changes anything."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.bundles import HoldWrites, LogWrite, QuarantineEntry, StateWrites, TimerWrites, encode_checkpoint
from millwheel.errors import IncompatibleStore, StoreInUse, WiringError
from millwheel.ids import IntervalId, Seq
from millwheel.model import Timer
from millwheel.ports import PipelineShape, SinkTable, WatermarkWrite
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run
from tests.unit.storage.samples import SINK, image, shape

ONE = IntervalId(1)
CELLS = {"stream:s": "bytes", "cell:a.total": "int"}


def opened(**changes: object) -> MemoryStore:
    store = MemoryStore(lambda: 7)
    run(store.open_pipeline(shape("p", **changes)))
    return store


def logged(store: MemoryStore) -> None:
    """The cell "total" of key "a" has a value, which only the log has."""
    owned = run(store.acquire([ONE]))
    checkpoint = msgspec.structs.replace(image([]), state=StateWrites.of([("a", "total", "", b"7")]))
    run(store.commit([LogWrite(ONE, owned[ONE], Seq(1), 0, encode_checkpoint(checkpoint))]))


def folded(store: MemoryStore) -> None:
    logged(store)
    run(store.recover(ONE, store.ownership[ONE]))


def test_intervals_and_subscriptions_keep_their_numbers() -> None:
    store = opened()
    first = run(store.open_pipeline(shape("p")))
    more = shape("p", computations={"0": (), "a": ("m",)}, subscriptions={"0<s": "s", "a<s": "s"})
    again = run(store.open_pipeline(more))
    assert [row for row in again.intervals if row.computation == "a"] == [*first.intervals]
    assert [(row.id, row.computation) for row in again.intervals] == [(1, "a"), (2, "a"), (3, "0")]
    assert again.subscriptions == {"a<s": 1, "0<s": 2}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"coders": {"stream:s": "json"}}, IncompatibleStore),
        ({"computations": {"b": ()}}, IncompatibleStore),
        ({"streams": {"text": "other"}}, IncompatibleStore),
        ({"subscriptions": {}}, IncompatibleStore),
        ({"sinks": (SinkTable("timer", {"k": "text"}, ("k",)),)}, WiringError),
    ],
)
def test_a_shape_that_is_refused_changes_nothing(changes: dict[str, object], error: type[Exception]) -> None:
    store = opened()
    before = store.tables()
    with pytest.raises(error):
        store.open_pipeline(shape("p", **changes)).send(None)
    assert store.tables() == before
    assert store.shape is not None
    assert store.shape.coders == shape("p").coders
    assert run(store.open_pipeline(shape("p"))).subscriptions == {"a<s": 1}


def test_another_version_waits_until_nobody_lives() -> None:
    store = opened()
    member = run(store.join("w", "worker", "w:1", 100, b"w"))
    more = shape("p", computations={"a": ("m",), "b": ()})
    with pytest.raises(StoreInUse, match="computation 'b' is new"):
        store.open_pipeline(more).send(None)
    assert len(store.intervals) == 2
    run(store.open_pipeline(shape("p")))
    run(store.leave(member.incarnation))
    assert len(run(store.open_pipeline(more)).intervals) == 3


def test_rows_have_a_column_that_came_later() -> None:
    store = opened()
    store.sinks["out"][("x",)] = {"k": "x", "n": 7}
    wider = msgspec.structs.replace(SINK, columns={**SINK.columns, "late": "text"})
    run(store.open_pipeline(shape("p", sinks=(wider, SinkTable("other", {"k": "text"}, ("k",))))))
    (row,) = store.sinks["out"].values()
    assert row == {**dict.fromkeys(wider.columns), "k": "x", "n": 7}
    assert store.sinks["other"] == {}


def test_a_computation_goes_on_under_another_name() -> None:
    store = opened(coders=CELLS)
    folded(store)
    write = WatermarkWrite("a", 9, {ONE: store.ownership[ONE]})
    assert run(store.persist_watermarks([write])) == {"a"}
    new = shape(
        "p", computations={"new": ("m",)}, subscriptions={"new<s": "s"},
        coders={"stream:s": "bytes", "cell:new.total": "int"}, formerly={"computation:new": "a"},
    )  # fmt: skip
    found = run(store.open_pipeline(new))
    assert [(row.id, row.computation) for row in found.intervals] == [(1, "new"), (2, "new")]
    assert found.subscriptions == {"new<s": 1}
    assert store.watermark == {"new": 9}
    assert store.key_state["new"] == {"a": {("total", ""): b"7"}}
    assert "a" not in store.key_state


def test_timers_holds_and_quarantine_go_with_it_to_its_other_name() -> None:
    store = opened()
    owned = run(store.acquire([ONE]))
    timers, holds = TimerWrites(), HoldWrites()
    timers.add("a", "end", "watermark", 5)
    holds.add("a", 4)
    checkpoint = msgspec.structs.replace(
        image([]), timers=timers, holds=holds, quarantined=[QuarantineEntry.of_timer(Timer("b", "end", 6), "broke")]
    )
    run(store.commit([LogWrite(ONE, owned[ONE], Seq(1), 0, encode_checkpoint(checkpoint))]))
    run(store.recover(ONE, owned[ONE]))
    new = shape("p", computations={"new": ("m",)}, subscriptions={"new<s": "s"}, formerly={"computation:new": "a"})
    run(store.open_pipeline(new))
    recovered = run(store.recover(ONE, run(store.acquire([ONE]))[ONE]))
    assert recovered is not None
    assert (recovered.timers, recovered.holds, recovered.quarantined) == (timers, holds, ["b"])


def test_under_its_other_name_it_has_its_own_watermark_or_none() -> None:
    """One of whoever had that name before is not its own."""
    for own in (None, 5):
        store = opened()
        owners = run(store.acquire([ONE]))
        marks = {"new": 9} if own is None else {"new": 9, "a": own}
        run(store.persist_watermarks([WatermarkWrite(name, value, owners) for name, value in marks.items()]))
        formerly = {"computation:new": "a"}
        run(
            store.open_pipeline(
                shape("p", computations={"new": ("m",)}, subscriptions={"new<s": "s"}, formerly=formerly)
            )
        )
        assert store.watermark == ({} if own is None else {"new": own})


def test_only_keys_that_hold_a_cell_keep_it_from_going() -> None:
    store = opened(coders=CELLS | {"cell:a.other": "int"})
    folded(store)
    run(store.open_pipeline(shape("p", coders=CELLS)))
    with pytest.raises(IncompatibleStore, match="1 key holds it"):
        store.open_pipeline(shape("p")).send(None)


@pytest.mark.parametrize("only_logged", [False, True])
def test_a_computation_under_another_name_loses_no_cell_in_silence(only_logged: bool) -> None:
    store = opened(coders=CELLS)
    (logged if only_logged else folded)(store)
    new = shape("p", computations={"new": ("m",)}, subscriptions={"new<s": "s"}, formerly={"computation:new": "a"})
    with pytest.raises(IncompatibleStore, match=r"total' is not in the code any more, and 1 key holds it"):
        store.open_pipeline(new).send(None)


def test_a_subscription_gets_a_number_that_no_other_has_while_some_are_gone() -> None:
    both = {"a<s": "s", "a<t": "t"}
    store = opened(subscriptions=both)
    run(store.open_pipeline(shape("p", gone=("a<s",), subscriptions={"a<t": "t"})))
    more = {"a<t": "t", "a<u": "u"}
    found = run(store.open_pipeline(shape("p", subscriptions=more))).subscriptions
    assert found["a<t"] == 2
    assert found["a<u"] not in (0, 2)


@pytest.mark.parametrize("only_logged", [False, True])
def test_a_cell_that_a_key_holds_may_not_be_missing(only_logged: bool) -> None:
    store = opened(coders=CELLS)
    (logged if only_logged else folded)(store)
    with pytest.raises(IncompatibleStore, match=r"cell 'a.total' is not in the code any more, and 1 key holds it"):
        store.open_pipeline(shape("p")).send(None)


def test_a_dropped_cell_of_which_the_log_has_values_goes_at_the_next_start() -> None:
    store = opened(coders=CELLS)
    logged(store)
    without = shape("p", dropped=("a.total",))
    for step in range(2):
        run(store.open_pipeline(without))
        assert store.shape is not None
        assert ("cell:a.total" in store.shape.coders) is (step == 0)
        run(store.recover(ONE, store.ownership[ONE]))
        assert store.key_state["a"] == ({"a": {("total", ""): b"7"}} if step == 0 else {})


def test_what_feeds_a_stream_is_told_once_it_was_opened() -> None:
    store = opened()
    assert not run(store.open_pipeline(shape("p"))).fed
    run(store.open_source("text", {"one": b""}))
    assert run(store.open_pipeline(shape("p"))).fed == {"text": "s"}


def test_another_pipeline_is_refused() -> None:
    store = opened()
    with pytest.raises(IncompatibleStore, match="the store belongs to pipeline 'p', not to 'q'"):
        store.open_pipeline(PipelineShape("q", {}, {}, {}, (), ())).send(None)
