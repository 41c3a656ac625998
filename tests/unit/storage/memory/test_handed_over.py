"""A computation gets a combiner: whatever was on its way to it goes to the combiner, and nobody from before writes.

That both stores do the same to all of their tables is in `tests/unit/storage/postgres/test_handover.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    Ids,
    LogWrite,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import Placement
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.ports import FoldWrite, PipelineShape, PositionWrite, WatermarkWrite
from millwheel_storage.decode import decode_image
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run
from tests.unit.storage.samples import gathering, shops

TOTAL, MERGED = SubscriptionId(2), SubscriptionId(3)
SENDER, RECEIVER, SOURCE = IntervalId(1), IntervalId(3), IntervalId(5)
"""Intervals of "Also" and of "Total", and the partition."""


def begun() -> MemoryStore:
    store = MemoryStore(lambda: 7)
    run(store.open_pipeline(shops()))
    run(store.open_source("src", {"one": b""}))
    return store


def checkpoint(**changes: Any) -> bytes:
    nothing: dict[str, Any] = {"ids": [], "produced": [], "acked": [], "sinks": [], "quarantined": []}
    image = Checkpoint(
        format=CHECKPOINT_FORMAT, shape="", epoch=0, state=StateWrites(), timers=TimerWrites(), holds=HoldWrites(),
        **{**nothing, **changes},
    )  # fmt: skip
    return encode_checkpoint(image)


def commit(
    store: MemoryStore, owned: dict[IntervalId, Sequencer], interval: IntervalId, seq: int, **changes: Any
) -> bool:
    write = LogWrite(interval, owned[interval], Seq(seq), 0, checkpoint(**changes))
    return bool(run(store.commit([write])))


def parts(store: MemoryStore) -> list[IntervalId]:
    return [id_ for _, id_ in store.by_low("Total.parts")]


def test_what_only_the_logs_have_is_handed_over_as_well() -> None:
    store = begun()
    owned = run(store.acquire([SENDER, RECEIVER]))
    sent = Produced(TOTAL, ProducerId(90), SequenceNumber(0), ["a"], [b"v"], [7])
    assert commit(store, owned, SENDER, 1, produced=[sent])
    known = Ids(TOTAL, ProducerId(5), SequenceNumber(2), [SequenceNumber(2), SequenceNumber(4)])
    waiting = QuarantineEntry("a", TOTAL, ProducerId(5), SequenceNumber(1), b"v", 4, "", "", "e")
    assert commit(store, owned, RECEIVER, 1, ids=[known], quarantined=[waiting])
    run(store.open_pipeline(shops(combiner=gathering())))
    assert not store.log
    assert [row[:5] for row in store.tables()["production"]] == [(SENDER, TOTAL, 90, 0, "000#a")]
    taken = [SequenceNumber(n) for n in range(6)]
    for part in parts(store):
        assert run(store.find_ids(part, TOTAL, ProducerId(5), taken)) == {2, 4}
        assert store.folded.frontiers[part] == {(TOTAL, ProducerId(5)): 2}
    assert not run(store.find_ids(RECEIVER, TOTAL, ProducerId(5), taken))
    assert [entry.subscription for entry in store.quarantine["Total", "a"]] == [MERGED]


@pytest.mark.parametrize(
    "versions",
    [
        [shops(combiner=gathering())],
        [shops(combiner=gathering()), shops(combiner=gathering(5))],
        [shops(combiner=gathering()), shops()],
        [shops(combiner=gathering()), shops(split_keys=["c", "m", "x"])],
        [shops(split_keys=["c", "m", "x"])],
        [shops(split_keys=[]), shops(split_keys=["m", "x"])],
    ],
    ids=["a combiner comes", "gets shards", "goes", "goes for more intervals", "intervals are cut", "merged and cut"],
)
def test_what_intervals_were_given_together_each_of_them_goes_on_with_alone(versions: list[PipelineShape]) -> None:
    """One that takes a record says nothing about the record that another one has yet to take."""
    store = begun()
    owned = run(store.acquire([RECEIVER]))
    assert commit(store, owned, RECEIVER, 1, **taken(2, b"x", TOTAL))
    for version in versions:
        opened = run(store.open_pipeline(version))
    combined = "Total.parts<sales" in opened.subscriptions
    subscription = opened.subscriptions["Total.parts<sales" if combined else "Total<sales"]
    intervals = [id_ for _, id_ in store.by_low("Total.parts" if combined else "Total")]
    owned = run(store.acquire(intervals))
    for number, interval in enumerate(intervals, 3):
        before = known_by_others(store, interval)
        more = checkpoint(**taken(number, b"more", subscription))
        assert run(store.commit([LogWrite(interval, owned[interval], Seq(1), 0, more)]))
        assert run(store.fold(FoldWrite(interval, owned[interval], Seq(1), [decode_image(more)])))
        assert known_by_others(store, interval) == before


def taken(number: int, id_: bytes, subscription: SubscriptionId) -> dict[str, Any]:
    """What a checkpoint says that has taken a record of another interval, and one of a client."""
    frontier, some = SequenceNumber(number), [SequenceNumber(number + 1)]
    return {
        "ids": [Ids(subscription, ProducerId(5), frontier, some), Ids(subscription, ProducerId(6), frontier, some)],
        "outside": [OutsideIdWrites(subscription, 50, [id_])],
    }


def known_by_others(store: MemoryStore, interval: IntervalId) -> dict[str, list[Any]]:
    kept = ("delivered", "delivered_frontier", "opaque_id", "opaque_bucket")
    return {name: [row for row in store.tables()[name] if row[0] != interval] for name in kept}


def test_nobody_from_before_writes() -> None:
    store = begun()
    owned = run(store.acquire([SENDER, RECEIVER, SOURCE]))
    run(store.open_pipeline(shops(combiner=gathering())))
    assert not commit(store, owned, SENDER, 1)
    assert not commit(store, owned, RECEIVER, 1)
    assert run(store.advance([PositionWrite(SOURCE, owned[SOURCE], 10, False, b"")])) == set()
    assert run(store.still_owned(owned)) == set()


def test_a_member_whose_lease_has_run_out_owns_nothing() -> None:
    now = [7]
    store = MemoryStore(lambda: now[0])
    run(store.open_pipeline(shops()))
    member = run(store.join("w", "worker", "w:1", 100, b"w")).incarnation
    leader = run(store.lead(member, 100))
    assert leader is not None
    found = run(store.cluster_map())
    placed = dict.fromkeys((row.id for row in found.intervals), member)
    assert run(store.place(Placement(leader.epoch, found.version, placed, {"src": member}))) is not None
    now[0] += 100
    run(store.open_pipeline(shops(combiner=gathering())))
    found = run(store.cluster_map())
    assert {row.owner for row in found.intervals} == {None}
    assert {source.owner for source in found.sources} == {None}


def test_the_combiner_begins_at_the_watermark_that_its_computation_has_reached() -> None:
    store = begun()
    owned = run(store.acquire([RECEIVER]))
    writes = [WatermarkWrite("Total", 77, owned), WatermarkWrite("loop:Total", 78, owned)]
    run(store.persist_watermarks(writes))
    run(store.open_pipeline(shops(combiner=gathering())))
    assert store.watermark == {"Total": 77, "Total.parts": 77, "loop:Total": 78, "loop:Total.parts": 78}


def test_a_second_opening_hands_nothing_over() -> None:
    store = begun()
    first = run(store.open_pipeline(shops(combiner=gathering())))
    owned = run(store.acquire([SENDER, *parts(store)]))
    assert run(store.open_pipeline(shops(combiner=gathering()))) == first
    assert run(store.still_owned(owned)) == set(owned)


@pytest.mark.parametrize(("intervals", "sources"), [([RECEIVER], ["src"]), ([], ["src"]), ([RECEIVER], [])])
def test_nobody_owns_anything_when_a_combiner_comes(intervals: list[IntervalId], sources: list[str]) -> None:
    now = 7
    store = MemoryStore(lambda: now)
    run(store.open_pipeline(shops()))
    member = run(store.join("w", "worker", "w:1", 10, b"w")).incarnation
    leader = run(store.lead(member, 10))
    assert leader is not None
    version = run(store.cluster_map()).version
    asked = Placement(leader.epoch, version, dict.fromkeys(intervals, member), dict.fromkeys(sources, member))
    assert run(store.place(asked)) == version + 1
    now += 10
    run(store.open_pipeline(shops(combiner=gathering())))
    found = run(store.cluster_map())
    assert {row.owner for row in found.intervals} | {row.owner for row in found.sources} == {None}
    assert found.version == version + 3, "new intervals, and new owners"
