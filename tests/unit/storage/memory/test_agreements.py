"""Leases, leaders and decisions of the memory store, by a clock that the test moves."""

from __future__ import annotations

import pytest

from millwheel.bundles import LogWrite
from millwheel.cluster import (
    HotKey,
    Leader,
    MapOrder,
    Member,
    PlacedInterval,
    PlacedSource,
    Placement,
    StandsAt,
    Standstill,
)
from millwheel.errors import StoreError, StoreInUse
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import PipelineShape, PositionWrite, WatermarkWrite
from millwheel_storage.memory import MemoryStore
from tests.unit.storage.memory.stepping import run

SHAPE = PipelineShape("demo", {"a": ("m",), "b": ()}, {}, {}, (), ("src",))
LEASE_US = 5_000_000


class Cluster:
    """A store, and a clock of its database."""

    def __init__(self) -> None:
        self.now = 1_000
        self.store = MemoryStore(lambda: self.now)
        run(self.store.open_pipeline(SHAPE))

    def join(self, name: str, role: str = "worker") -> int:
        return run(self.store.join(name, role, f"{name}:1", LEASE_US, name.encode())).incarnation

    def place(
        self, epoch: int, intervals: dict[IntervalId, int | None], sources: dict[str, int | None] | None = None
    ) -> int:
        version = run(self.store.place(Placement(epoch, self.version, intervals, sources or {})))
        assert version == self.version
        return version

    @property
    def version(self) -> int:
        return run(self.store.cluster_map()).version


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_process_that_asks_twice_is_one_member(cluster: Cluster) -> None:
    first = run(cluster.store.join("one", "worker", "h:1", LEASE_US, b"k"))
    assert first == Member(1, "one", "worker", "h:1")
    cluster.now += 1_000_000
    assert run(cluster.store.join("one", "worker", "h:1", LEASE_US, b"k")) == first
    assert run(cluster.store.join("one", "worker", "h:1", LEASE_US, b"other")).incarnation == 3
    cluster.now += LEASE_US - 1_000_000
    assert not run(cluster.store.join("one", "worker", "h:1", LEASE_US, b"k")).alive


def test_a_lease_that_has_run_out_is_never_valid_again(cluster: Cluster) -> None:
    one, other = cluster.join("one"), cluster.join("other")
    cluster.now += LEASE_US - 1
    assert run(cluster.store.renew(one, LEASE_US))
    cluster.now += 1
    assert not run(cluster.store.renew(other, LEASE_US))
    cluster.now -= LEASE_US
    assert not run(cluster.store.renew(other, LEASE_US))
    assert [member.alive for member in run(cluster.store.cluster_map()).members] == [True, False]
    assert not run(cluster.store.renew(99, LEASE_US))


def test_one_leads_until_its_lease_runs_out_and_each_has_an_epoch_of_its_own(cluster: Cluster) -> None:
    one, other = cluster.join("one", "controller"), cluster.join("other", "controller")
    assert run(cluster.store.lead(one, LEASE_US)) == Leader(one, 1, "one:1")
    assert run(cluster.store.lead(other, LEASE_US)) is None
    cluster.now += 2_000_000
    assert run(cluster.store.renew(one, LEASE_US))
    assert run(cluster.store.renew(other, 3 * LEASE_US))
    assert run(cluster.store.lead(one, LEASE_US)) == Leader(one, 1, "one:1")
    cluster.now += LEASE_US
    assert run(cluster.store.cluster_map()).leader is None
    assert run(cluster.store.lead(one, LEASE_US)) is None  # it is no member any more
    assert run(cluster.store.lead(other, LEASE_US)) == Leader(other, 2, "other:1")
    assert run(cluster.store.cluster_map()).leader == Leader(other, 2, "other:1")
    run(cluster.store.leave(other))
    third = cluster.join("third", "controller")
    assert run(cluster.store.lead(third, LEASE_US)) == Leader(third, 3, "third:1")


def test_who_stays_the_leader_keeps_its_epoch_also_after_its_lease_as_leader(cluster: Cluster) -> None:
    one = cluster.join("one", "controller")
    assert run(cluster.store.renew(one, 10 * LEASE_US))
    assert run(cluster.store.lead(one, LEASE_US)) == Leader(one, 1, "one:1")
    cluster.now += 2 * LEASE_US
    assert run(cluster.store.cluster_map()).leader is None
    assert run(cluster.store.lead(one, LEASE_US)) == Leader(one, 1, "one:1")


def test_a_placement_fences_earlier_owners_and_bumps_the_version(cluster: Cluster) -> None:
    old = run(cluster.store.acquire([IntervalId(1), IntervalId(2), IntervalId(3)]))
    store, worker = cluster.store, cluster.join("w")
    leader = cluster.join("c", "controller")
    assert run(store.lead(leader, LEASE_US)) is not None
    (opened,) = run(store.open_source("src", {"p": b""}))
    before = cluster.version
    assert cluster.place(1, {IntervalId(3): worker, IntervalId(1): worker}, {"src": worker}) == before + 1
    agreed = run(store.cluster_map())
    assert agreed.intervals == (
        PlacedInterval(IntervalId(1), "a", "", "m", worker, Sequencer(5)),
        PlacedInterval(IntervalId(2), "a", "m", None, None, old[IntervalId(2)]),
        PlacedInterval(IntervalId(3), "b", "", None, worker, Sequencer(6)),
    )
    assert agreed.sources == (PlacedSource("src", worker),)
    writes = [LogWrite(id_, sequencer, Seq(1), 0, b"x") for id_, sequencer in old.items()]
    assert run(store.commit(writes)) == {(2, 1)}
    taken = run(store.take_partitions("src", worker, [opened.interval]))
    assert taken == {opened.interval: 8}  # 7 went to the partition with its source
    assert run(store.advance([PositionWrite(opened.interval, Sequencer(8), 3, False, b"")])) == {opened.interval}
    cluster.place(1, {IntervalId(1): worker}, {"src": None})
    assert run(store.take_partitions("src", worker, [opened.interval])) is None
    assert run(store.advance([PositionWrite(opened.interval, Sequencer(8), 4, False, b"")])) == set()


def test_a_placement_is_refused_whole(cluster: Cluster) -> None:
    store, worker = cluster.store, cluster.join("w")
    leader = cluster.join("c", "controller")
    assert run(store.lead(leader, LEASE_US)) is not None
    version, owned = cluster.version, dict(store.ownership)
    assert run(store.place(Placement(2, version, {IntervalId(1): worker}, {}))) is None
    assert run(store.place(Placement(1, version - 1, {IntervalId(1): worker}, {}))) is None
    assert run(store.place(Placement(1, version, {IntervalId(1): worker, IntervalId(2): 77}, {}))) is None
    with pytest.raises(StoreError, match="9 is no interval and no source of the map"):
        run(store.place(Placement(1, version, {IntervalId(1): worker, IntervalId(9): worker}, {})))
    with pytest.raises(StoreError, match="'nowhere' is no interval and no source"):
        run(store.place(Placement(1, version, {IntervalId(1): worker}, {"nowhere": worker})))
    cluster.now += LEASE_US
    assert run(store.place(Placement(1, version, {IntervalId(1): worker}, {}))) is None
    assert (cluster.version, store.ownership) == (version, owned)
    assert run(store.place(Placement(1, version, {IntervalId(1): None}, {}))) == version + 1  # nobody is always there


def test_a_decision_whose_reply_was_lost_is_applied_once(cluster: Cluster) -> None:
    store, worker = cluster.store, cluster.join("w")
    assert run(store.lead(worker, LEASE_US)) is not None
    asked = Placement(1, cluster.version, {IntervalId(1): worker}, {})
    version = run(store.place(asked))
    owned = dict(store.ownership)
    assert run(store.place(asked)) == version
    assert store.ownership == owned
    assert run(store.place(Placement(1, asked.version, {IntervalId(2): worker}, {}))) is None
    cluster.place(1, {IntervalId(2): worker})
    assert run(store.place(asked)) is None


def test_whoever_has_left_joins_again_with_the_same_key_as_another_member(cluster: Cluster) -> None:
    one = run(cluster.store.join("w", "worker", "w:1", LEASE_US, b"key"))
    assert run(cluster.store.join("w", "worker", "w:1", LEASE_US, b"key")) == one
    run(cluster.store.leave(one.incarnation))
    again = run(cluster.store.join("w", "worker", "w:1", LEASE_US, b"key"))
    assert again.incarnation > one.incarnation
    assert run(cluster.store.cluster_map()).members == (again,)


def test_what_a_member_that_leaves_owned_is_nobodys(cluster: Cluster) -> None:
    store, worker, other = cluster.store, cluster.join("w"), cluster.join("o")
    assert run(store.lead(worker, LEASE_US)) is not None
    (opened,) = run(store.open_source("src", {"p": b""}))
    version = cluster.place(1, {IntervalId(1): worker, IntervalId(2): other}, {"src": worker})
    taken = run(store.take_partitions("src", worker, [opened.interval]))
    assert taken is not None
    before = dict(store.ownership)
    for _ in range(2):
        run(store.leave(worker))
        assert cluster.version == version + 1
    agreed = run(store.cluster_map())
    assert [interval.owner for interval in agreed.intervals] == [None, other, None]
    assert (agreed.sources[0].owner, agreed.leader) == (None, None)
    assert [member.incarnation for member in agreed.members] == [other]
    assert run(store.still_owned(before)) == {2, 3}
    assert not run(store.renew(worker, LEASE_US))
    assert run(store.lead(worker, LEASE_US)) is None


def test_whoever_is_no_member_takes_intervals_when_no_member_is_alive(cluster: Cluster) -> None:
    store, worker = cluster.store, cluster.join("w")
    assert run(store.lead(worker, LEASE_US)) is not None
    version = cluster.place(1, {IntervalId(1): worker, IntervalId(2): worker})
    with pytest.raises(StoreInUse, match=r"worker 'w' \(1\) at w:1, whose lease lasts until 1970-01-01 00:00:05 UTC"):
        run(store.acquire([IntervalId(1)]))
    cluster.now += LEASE_US
    assert run(store.acquire([IntervalId(1)])) == {1: store.ownership[IntervalId(1)]}
    assert [interval.owner for interval in run(store.cluster_map()).intervals] == [None, worker, None]
    assert cluster.version == version + 1


def test_partitions_are_taken_by_the_owner_of_their_source(cluster: Cluster) -> None:
    store, worker = cluster.store, cluster.join("w")
    assert run(store.lead(worker, LEASE_US)) is not None
    (opened,) = run(store.open_source("src", {"p": b""}))
    assert run(store.take_partitions("src", worker, [opened.interval])) is None
    assert run(store.take_partitions("unknown", worker, [])) is None
    cluster.place(1, {}, {"src": worker})
    with pytest.raises(StoreError, match="interval 1 is no partition of source 'src'"):
        run(store.take_partitions("src", worker, [IntervalId(1)]))


def test_watermarks_of_an_earlier_leader_are_refused(cluster: Cluster) -> None:
    owned = run(cluster.store.acquire([IntervalId(1)]))
    store, one = cluster.store, cluster.join("one", "controller")
    assert run(store.lead(one, LEASE_US)) is not None
    write = WatermarkWrite("a", 7, owned)
    assert run(store.persist_led_watermarks(1, [write])) == {"a"}
    assert run(store.persist_led_watermarks(1, [WatermarkWrite("a", 8, {IntervalId(1): Sequencer(99)})])) == set()
    run(store.leave(one))
    other = cluster.join("other", "controller")
    assert run(store.lead(other, LEASE_US)) is not None
    assert run(store.persist_led_watermarks(1, [WatermarkWrite("a", 9, owned)])) is None
    assert run(store.watermarks()) == {"a": 7}


def test_a_pipeline_that_changes_changes_the_map(cluster: Cluster) -> None:
    worker = cluster.join("w")
    assert run(cluster.store.lead(worker, LEASE_US)) is not None
    version = cluster.place(1, {IntervalId(1): worker})
    run(cluster.store.open_pipeline(SHAPE))
    assert cluster.version == version
    changed = PipelineShape("demo", {"a": ("m",), "b": (), "c": ()}, {}, {}, (), ("src", "new"))
    with pytest.raises(StoreInUse, match="computation 'c' is new; source 'new' is new"):
        run(cluster.store.open_pipeline(changed))
    assert cluster.version == version
    cluster.now += LEASE_US
    run(cluster.store.open_pipeline(changed))
    agreed = run(cluster.store.cluster_map())
    assert (agreed.version, len(agreed.intervals)) == (version + 1, 4)
    assert agreed.intervals[0].owner == worker
    assert [source.name for source in agreed.sources] == ["new", "src"]


def test_standstills_are_those_that_members_have_said_last(cluster: Cluster) -> None:
    one, two = cluster.join("w"), cluster.join("v")
    held = Standstill("Count", IntervalId(1), "hold", 40, "key", 7)
    run(cluster.store.note_standstills(two, [held]))
    run(cluster.store.note_standstills(one, [held, held]))
    assert run(cluster.store.standstills()) == [StandsAt("w", held), StandsAt("w", held), StandsAt("v", held)]
    run(cluster.store.note_standstills(one, []))
    assert run(cluster.store.standstills()) == [StandsAt("v", held)]
    cluster.now += LEASE_US
    assert run(cluster.store.standstills()) == [], "nobody knows what a dead worker has"
    run(cluster.store.leave(two))
    run(cluster.store.note_standstills(two, [held]))
    assert run(cluster.store.standstills()) == []


def test_hot_keys_are_those_that_members_have_said_last(cluster: Cluster) -> None:
    one, two = cluster.join("w"), cluster.join("v")
    first, second = IntervalId(1), IntervalId(2)
    run(cluster.store.note_hot_keys(one, [HotKey(second, "z", 90), HotKey(second, "y", 500)]))
    run(cluster.store.note_hot_keys(two, [HotKey(first, "a", 100)]))
    assert run(cluster.store.hot_keys()) == [
        HotKey(first, "a", 100), HotKey(second, "y", 500), HotKey(second, "z", 90),
    ]  # fmt: skip
    run(cluster.store.note_hot_keys(one, []))
    run(cluster.store.leave(two))
    run(cluster.store.note_hot_keys(two, [HotKey(first, "a", 100)]))
    assert run(cluster.store.hot_keys()) == []


def test_a_lease_that_was_found_to_be_over_stays_so_when_the_clock_is_set_back(cluster: Cluster) -> None:
    one = cluster.join("one")
    cluster.now += LEASE_US
    assert not run(cluster.store.renew(one, LEASE_US))
    cluster.now -= LEASE_US
    assert not run(cluster.store.renew(one, LEASE_US))
    assert run(cluster.store.lead(one, LEASE_US)) is None


@pytest.mark.parametrize("answer", ["", "no such worker"])
def test_an_order_is_open_until_it_is_settled_and_one_that_was_carried_out_is_not_open(
    cluster: Cluster, answer: str
) -> None:
    led = run(cluster.store.lead(cluster.join("one", "controller"), LEASE_US))
    assert led is not None
    one, other = (run(cluster.store.order(MapOrder("move", (IntervalId(1),), to=name))) for name in ("a", "b"))
    assert (run(cluster.store.refusal(one)), run(cluster.store.refusal(other))) == (None, None)
    assert not run(cluster.store.settle_order(led.epoch - 1, one, answer))
    assert run(cluster.store.refusal(one)) is None
    assert run(cluster.store.settle_order(led.epoch, one, answer))
    assert (run(cluster.store.refusal(one)), run(cluster.store.refusal(other))) == (answer, None)
    assert [number for number, _ in run(cluster.store.orders())] == [other]
    with pytest.raises(StoreError, match="no order 99"):
        run(cluster.store.refusal(99))
