"""What `ClusterStore` adds to the memory store is tested with its twin; here it is one, and needs no loop."""

from __future__ import annotations

import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    Ids,
    LogWrite,
    Produced,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import MapOrder, Placement, Reshaping, Senders
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.ports import ClusterStore, Declaration, PipelineShape
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run


def test_it_is_the_store_of_a_cluster() -> None:
    store: ClusterStore = MemoryStore(lambda: 7)
    run(store.open_pipeline(PipelineShape("demo", {"a": ("m",)}, {}, {}, (), ())))
    assert run(store.senders()) == Senders(((IntervalId(1), Sequencer(0)), (IntervalId(2), Sequencer(0))), ())
    assert run(store.expel([1])) == 0


def test_an_order_that_no_leader_would_know_is_refused() -> None:
    with pytest.raises(StoreError, match="an order is one of move, split, merge, not 'stop'"):
        run(MemoryStore().order(MapOrder("stop", (IntervalId(1),))))


ONE, TWO, THREE = IntervalId(1), IntervalId(2), IntervalId(3)
IN, OUT, SENDER = SubscriptionId(1), SubscriptionId(2), ProducerId(5)


def served(frontiers: dict[IntervalId, int]) -> tuple[MemoryStore, int]:
    """A store whose intervals have folded an id at their frontier and one above, and two productions; its leader's epoch.

    The productions of interval 1 have keys of receivers on both sides of every split.
    """
    store = MemoryStore(lambda: 7)
    run(store.open_pipeline(PipelineShape("demo", {"a": ("m",)}, {}, {}, (), ())))
    for interval, frontier in frontiers.items():
        sequencer = run(store.acquire([interval]))[interval]
        image = Checkpoint(
            format=CHECKPOINT_FORMAT, shape="", epoch=0,
            ids=[Ids(IN, SENDER, SequenceNumber(frontier), [SequenceNumber(frontier), SequenceNumber(frontier + 2)])],
            produced=[Produced(OUT, ProducerId(70 + interval), SequenceNumber(0), ["a", "z"], [b"", b""], [1, 1])],
            acked=[], state=StateWrites(), timers=TimerWrites(), holds=HoldWrites(), sinks=[], quarantined=[],
        )  # fmt: skip
        run(store.commit([LogWrite(interval, sequencer, Seq(1), 0, encode_checkpoint(image))]))
        assert run(store.recover(interval, sequencer)) is not None
    member = run(store.join("w", "worker", "w:1", 1_000, b"w")).incarnation
    leader = run(store.lead(member, 1_000))
    assert leader is not None
    return store, leader.epoch


def reshape(store: MemoryStore, epoch: int, intervals: list[IntervalId], *keys: str) -> tuple[IntervalId, ...]:
    made = run(store.reshape(Reshaping(epoch, run(store.cluster_map()).version, intervals, keys)))
    assert made is not None
    return made[1]


def recovered(store: MemoryStore, epoch: int, interval: IntervalId) -> tuple[list[tuple[int, int]], list[list[str]]]:
    """(frontier, top) of what was delivered, and keys of what is not acked."""
    placement = Placement(epoch, run(store.cluster_map()).version, {interval: 1}, {})
    assert run(store.place(placement)) is not None
    found = run(store.recover(interval, store.ownership[interval]))
    assert found is not None
    return [(known.frontier, known.top) for known in found.ids], [bundle.keys for bundle in found.productions]


def test_a_split_copies_what_was_delivered_and_divides_nothing_that_was_sent() -> None:
    store, epoch = served({ONE: 4})
    assert reshape(store, epoch, [ONE], "e") == (ONE, THREE)
    assert recovered(store, epoch, ONE) == ([(4, 6)], [["a", "z"]])
    assert recovered(store, epoch, THREE) == ([(4, 6)], [])
    assert run(store.find_ids(THREE, IN, SENDER, [SequenceNumber(n) for n in (4, 5, 6)])) == {4, 6}


@pytest.mark.parametrize(("first", "second"), [(4, 9), (9, 4)])
def test_a_merge_keeps_the_larger_frontier_and_everything_above_it(first: int, second: int) -> None:
    store, epoch = served({ONE: first, TWO: second})
    assert reshape(store, epoch, [ONE, TWO]) == (ONE,)
    assert recovered(store, epoch, ONE) == ([(9, 11)], [["a", "z"], ["a", "z"]])
    assert run(store.find_ids(ONE, IN, SENDER, [SequenceNumber(n) for n in range(12)])) == {9, 11}
    assert [row.id for row in run(store.cluster_map()).intervals] == [ONE]


def test_a_placement_goes_back_and_only_the_leader_declares() -> None:
    store = MemoryStore(lambda: 7)
    run(store.open_pipeline(PipelineShape("demo", {"a": ()}, {}, {}, (), ())))
    worker = run(store.join("w", "worker", "here:1", 100, b"w")).incarnation
    leader = run(store.lead(run(store.join("c", "controller", "here:2", 100, b"c")).incarnation, 100))
    assert leader is not None

    def place() -> dict[IntervalId, Sequencer]:
        version = run(store.cluster_map()).version
        assert run(store.place(Placement(leader.epoch, version, {ONE: worker}, {}, back=True))) is not None
        return {placed.id: placed.sequencer for placed in run(store.cluster_map()).intervals}

    def log(owners: dict[IntervalId, Sequencer], epoch: int) -> None:
        image = Checkpoint(CHECKPOINT_FORMAT, "", epoch, [], [], [], StateWrites(), TimerWrites(), HoldWrites(), [], [])
        run(store.commit([LogWrite(ONE, owners[ONE], Seq(epoch), epoch, encode_checkpoint(image))]))

    owners = place()
    log(owners, 1)
    assert not run(store.declare(Declaration(epoch=1, owners=owners, term=leader.epoch + 1)))
    assert run(store.declare(Declaration(epoch=1, owners=owners, term=leader.epoch)))
    log(owners, 2)
    assert [write.epoch for write in store.log.values()] == [1, 2]
    later = place()
    assert [write.epoch for write in store.log.values()] == [1]
    assert not run(store.declare(Declaration(epoch=2, owners=owners, term=leader.epoch)))
    assert run(store.declare(Declaration(epoch=2, owners=later, term=leader.epoch)))
    assert run(store.cluster_map()).declared == 2


def test_when_all_goes_back_a_split_folds_what_was_declared_of_a_log_that_nobody_owns() -> None:
    store, epoch = served({ONE: 4})
    owned = store.ownership[ONE]
    image = Checkpoint(
        CHECKPOINT_FORMAT,
        "",
        0,
        [],
        [],
        [],
        StateWrites.of([("a", "c", "", b"v")]),
        TimerWrites(),
        HoldWrites(),
        [],
        [],
    )
    run(store.commit([LogWrite(ONE, owned, Seq(9), 0, encode_checkpoint(image))]))
    version = run(store.cluster_map()).version
    with pytest.raises(StoreError, match="the log of interval 1 is not empty: its owner has to fold all of it"):
        run(store.reshape(Reshaping(epoch, version, [ONE], ["e"])))
    assert run(store.reshape(Reshaping(epoch, version, [ONE], ["e"], back=True))) is not None
    assert store.log == {}
    assert store.key_state["a"]["a"] == {("c", ""): b"v"}
