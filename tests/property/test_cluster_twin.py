"""What processes agree on: memory store and Postgres are twins, through leases that run out and intervals that change.

The clock of Postgres cannot be moved, so the ends of leases are moved against it.  Leases take hours, and a run seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
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
from millwheel.cluster import MapOrder, Placement, Reshaping
from millwheel.errors import StoreError, StoreInUse
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel.ports import ClusterStore, FoldWrite, MarkWrite, PipelineShape, PositionWrite, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import reset
from millwheel_storage.schema.shape_checks import holds_key
from millwheel_storage.testing import connected_tables, fresh_name, temporary_postgres
from tests.effort import examples

T = TypeVar("T")

HOUR_US = 3_600_000_000
SPLITS = ["a\0", "b", "d", "f", "k", "m", "p", "q", "w", "y"]
KEYS = ["", "a", "b\0", "e", "lé", "m", "o", "q", "x", "z", "\U0001f600"]
"""Some on each side of every split key."""

SHIFT_LEASES = "UPDATE {}.lease SET expires = expires - %s * interval '1 hour'"
SHIFT_LEADER = "UPDATE {}.cluster_leader SET expires = expires - %s * interval '1 hour'"

INCARNATIONS = st.integers(1, 6)
LEASES = st.sampled_from([HOUR_US, 3 * HOUR_US, 50 * HOUR_US])
STALE = st.sampled_from([False] * 7 + [True])


def checkpoint(draw: Callable[[st.SearchStrategy[Any]], Any], keys: list[str], outside: list[bytes]) -> Checkpoint:
    """State, timers, ids, acks and quarantines of some of `keys`."""
    key, number = st.sampled_from(keys), st.integers(0, 9)
    channel = st.tuples(st.just(SubscriptionId(1)), st.sampled_from([ProducerId(5), ProducerId(6)]))
    frontier = st.sampled_from([0, 0, 2, 5, MAX_TIME]).map(SequenceNumber)
    some = st.sets(number.map(SequenceNumber), max_size=3).map(sorted)
    state = draw(st.lists(st.tuples(key, st.just("c"), st.just(""), st.none() | st.just(b"v")), max_size=3))
    timed = draw(st.lists(key, max_size=2, unique=True))
    failed = draw(st.lists(key, max_size=2))
    released = draw(st.lists(key, max_size=1))
    return Checkpoint(
        format=CHECKPOINT_FORMAT,
        shape="",
        epoch=0,
        ids=[Ids(c[0], c[1], draw(frontier), draw(some)) for c in draw(st.lists(channel, max_size=2, unique=True))],
        produced=[],
        acked=[Acked(c[0], c[1], draw(some)) for c in draw(st.lists(channel, max_size=1))],
        state=StateWrites.of(state),
        timers=TimerWrites(timed, ["t"] * len(timed), ["wall"] * len(timed), [draw(st.none() | number) for _ in timed]),
        holds=HoldWrites(timed, [draw(st.none() | number) for _ in timed]),
        sinks=[],
        quarantined=[QuarantineEntry(k, SubscriptionId(1), ProducerId(5), SequenceNumber(0), b"v", 1) for k in failed],
        released=released,
        outside=[OutsideIdWrites(SubscriptionId(1), draw(st.integers(1, 2)), outside)] if outside else [],
    )


class ClusterTwins(RuleBasedStateMachine):
    """Drives both stores and compares."""

    url = ""
    loop: asyncio.AbstractEventLoop
    connection: psycopg.Connection[Any]

    def __init__(self) -> None:
        super().__init__()
        self.name = fresh_name("clustertwin")
        self.now = 10**15
        self.memory = MemoryStore(lambda: self.now)
        self.postgres = PostgresStore(self.url, self.name)
        self.made = 0
        self.seq = 0
        splits, sources = {"left": ("f", "q"), "right": ("m",)}, ("src", "other")
        self.shape = PipelineShape(self.name, splits, {"right<s": "s"}, {}, (), sources)
        self.both(lambda store: store.open_pipeline(self.shape))

    def both(self, call: Callable[[ClusterStore], Awaitable[T]]) -> T:
        """The answer of both stores, asserted to be the same; errors are answers."""
        answers = [self._answer(call, store) for store in (self.memory, self.postgres)]
        assert answers[0] == answers[1]
        return answers[0]  # type: ignore[no-any-return]

    def _answer(self, call: Callable[[ClusterStore], Awaitable[T]], store: ClusterStore) -> Any:
        async def awaited() -> T:
            try:
                return await call(store)
            finally:
                # One store speaks for all members here, and must not end the sessions of one that was leader.
                self.postgres._label.text = ""

        try:
            return self.loop.run_until_complete(awaited())
        except StoreInUse:
            return StoreInUse  # it says until when, by the one clock or the other
        except StoreError as error:
            return type(error), str(error)

    # What the tests know of the store

    @property
    def version(self) -> int:
        return self.memory.agreements.version

    @property
    def epoch(self) -> int:
        return self.memory.agreements.epoch

    def drawn_interval(self, data: st.DataObject) -> IntervalId:
        return IntervalId(data.draw(st.sampled_from([*self.memory.agreements.interval_owners])))

    def led(self) -> int:
        """Somebody leads; the epoch."""
        member = self.both(lambda store: store.join("chief", "controller", "h:9", 90 * HOUR_US, b"%d" % self.now))
        self.both(lambda store: store.renew(member.incarnation, 90 * HOUR_US))
        self.both(lambda store: store.lead(member.incarnation, HOUR_US))
        return self.epoch

    # Members

    @rule(key=st.sampled_from([b"a", b"b", b"c"]), name=st.sampled_from(["w", "v"]), lease=LEASES)
    def join(self, key: bytes, name: str, lease: int) -> None:
        member = self.both(lambda store: store.join(name, "worker", f"{name}:1", lease, key))
        again = self.both(lambda store: store.join("another", "worker", "h:2", lease, key))
        assert again == member

    @rule(incarnation=INCARNATIONS, lease=LEASES)
    def renew(self, incarnation: int, lease: int) -> None:
        renewed = self.both(lambda store: store.renew(incarnation, lease))
        assert self.both(lambda store: store.renew(incarnation, lease)) == renewed

    @rule(incarnation=INCARNATIONS)
    def leave(self, incarnation: int) -> None:
        for _ in range(2):
            self.both(lambda store: store.leave(incarnation))
        assert incarnation not in {row.incarnation for row in self.both(lambda store: store.cluster_map()).members}

    @rule(incarnation=INCARNATIONS, lease=LEASES)
    def lead(self, incarnation: int, lease: int) -> None:
        leader = self.both(lambda store: store.lead(incarnation, lease))
        assert self.both(lambda store: store.lead(incarnation, lease)) == leader
        if leader is not None:
            assert self.both(lambda store: store.cluster_map()).leader == leader

    @rule(hours=st.sampled_from([1, 1, 2, 5, -1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.now += hours * HOUR_US
        for statement in (SHIFT_LEASES, SHIFT_LEADER):
            self.connection.execute(statement.format(self.name), (hours,))
        self.both(lambda store: store.cluster_map())

    # The map

    @rule(data=st.data(), stale=STALE, early=STALE, unknown=STALE)
    def place(self, data: st.DataObject, stale: bool, early: bool, unknown: bool) -> None:
        epoch = self.led() if data.draw(st.booleans()) else self.epoch
        alive = [None, *(row.incarnation for row in self.memory.agreements.all_members() if row.alive)]
        owner = st.sampled_from(alive) | (INCARNATIONS if unknown else st.nothing())
        known = [*self.memory.agreements.interval_owners]
        intervals = data.draw(st.dictionaries(st.sampled_from([*known, IntervalId(999)] if unknown else known), owner))
        sources = data.draw(st.dictionaries(st.sampled_from(["src", "other"]), owner))
        asked = Placement(epoch - stale, self.version - early, intervals, sources)
        before = dict(self.memory.ownership)
        version: Any = self.both(lambda store: store.place(asked))
        event(f"place: {'refused' if version is None else type(version).__name__}")
        if version is None or isinstance(version, tuple):
            assert self.memory.ownership == before
        else:
            assert self.both(lambda store: store.place(asked)) == version  # the reply was lost
            assert all(self.memory.ownership[id_] > before[id_] for id_ in intervals)

    @rule(
        data=st.data(),
        key=st.sampled_from(SPLITS),
        more=st.booleans(),
        ready=st.sampled_from([True, True, True, False]),
    )
    def split(self, data: st.DataObject, key: str, more: bool, ready: bool) -> None:
        fit = [row.id for row in self.rows() if holds_key(row, key) and row.low != key]
        interval = data.draw(st.sampled_from(fit)) if fit and ready else self.drawn_interval(data)
        keys = [key, key + "\0"] if more else [key]
        self.reshape(data, [interval], keys, ready)

    @rule(data=st.data(), count=st.integers(2, 4), ready=st.sampled_from([True, True, True, False]))
    def merge(self, data: st.DataObject, count: int, ready: bool) -> None:
        several = [name for name in ("left", "right") if len(self.covered(name)[0]) > 1]
        if not several:
            return  # `assume` would throw the whole history away
        computation = data.draw(st.sampled_from(several))
        rows = [row for row in self.rows() if row.computation == computation]
        ordered = [row.id for row in sorted(rows, key=lambda row: row.low)]
        first = data.draw(st.integers(0, len(ordered) - 2))
        self.reshape(data, ordered[first : first + count] if ready else ordered[::-1], [], ready)

    def rows(self) -> list[Any]:
        return [self.memory.intervals[id_] for id_ in self.memory.agreements.interval_owners]

    def reshape(self, data: st.DataObject, intervals: list[IntervalId], keys: list[str], ready: bool) -> None:
        epoch = self.led()
        if ready:  # their owners have folded all, and have gone
            for interval in intervals:
                self.recover(interval)
            taken = Placement(epoch, self.version, dict.fromkeys(intervals), {})
            assert self.both(lambda store: store.place(taken)) is not None
        order = data.draw(st.integers(0, 4))
        asked = Reshaping(epoch - data.draw(STALE), self.version, intervals, keys, order=order)
        made = self.both(lambda store: store.reshape(asked))
        done = made is not None and isinstance(made[0], int)
        event(f"reshape: {len(intervals)} and {len(keys)}, {'done' if done else made and made[1]}")
        if made is not None and done:
            assert self.both(lambda store: store.reshape(asked)) == made
            assert order not in dict(self.both(lambda store: store.orders()))
            lows = [self.memory.intervals[id_].low for id_ in made[1]]
            assert lows == sorted(lows)
        for low, high in self.covered("left"), self.covered("right"):
            assert low[0] == ""
            assert low[1:] == high[:-1]

    def covered(self, computation: str) -> tuple[list[str], list[str]]:
        rows = sorted((row.low, row.high or "") for row in self.rows() if row.computation == computation)
        return [low for low, _ in rows], [high for _, high in rows]

    @rule(data=st.data(), source=st.sampled_from(["src", "other", "unknown"]), incarnation=INCARNATIONS)
    def partitions(self, data: st.DataObject, source: str, incarnation: int) -> None:
        opened = self.both(lambda store: store.open_source("src", {"p": b"", "q": b""}))
        wanted = [opened[0].interval] + ([IntervalId(1)] if data.draw(STALE) else [])
        taken = self.both(lambda store: store.take_partitions(source, incarnation, wanted))
        if isinstance(taken, dict):
            move = [PositionWrite(id_, sequencer, 7, data.draw(STALE), b"") for id_, sequencer in taken.items()]
            assert self.both(lambda store: store.advance(move)) == taken.keys()
        assert self.both(lambda store: store.take_partitions(source, incarnation + 50, wanted)) is None

    @rule(data=st.data(), later=st.booleans())
    def an_outsider_takes(self, data: st.DataObject, later: bool) -> None:
        interval = self.drawn_interval(data)
        taken: Any = self.both(lambda store: store.acquire([interval]))
        if taken is StoreInUse and later:
            self.the_clock_jumps(200)
            assert self.both(lambda store: store.acquire([interval])).keys() == {interval}

    @rule(value=st.integers(0, 99), early=STALE, stale=STALE)
    def led_watermarks(self, value: int, early: bool, stale: bool) -> None:
        owners = {id_: Sequencer(self.memory.ownership[id_] - stale) for id_ in self.memory.agreements.interval_owners}
        writes = [WatermarkWrite("left", value, owners), WatermarkWrite("other", 1, {})]
        self.both(lambda store: store.persist_led_watermarks(self.epoch - early, writes))
        self.both(lambda store: store.watermarks())

    @rule(kind=st.sampled_from(["move", "split", "stop"]), number=st.integers(1, 4), early=STALE, settle=st.booleans())
    def orders(self, kind: str, number: int, early: bool, settle: bool) -> None:
        self.both(lambda store: store.order(MapOrder(kind, (IntervalId(1),), to="w")))
        if settle:
            self.both(lambda store: store.settle_order(self.epoch - early, number, "no"))
        self.both(lambda store: store.orders())
        self.both(lambda store: store.refusal(number))

    @rule()
    def senders(self) -> None:
        self.both(lambda store: store.senders())

    @rule(folded=st.booleans())
    def quarantines(self, folded: bool) -> None:
        if folded:
            for interval in [*self.memory.agreements.interval_owners]:
                self.recover(interval)
        counted: Any = self.both(lambda store: store.count_quarantined())
        event(f"quarantines: {'unknown' if counted is None else min(counted, 2)}")
        assert not folded or counted == len(self.memory.folded.quarantine)

    # What owners do

    @rule(data=st.data(), stale=STALE)
    def commit(self, data: st.DataObject, stale: bool) -> None:
        self.commit_one(data, self.drawn_interval(data), stale)

    def commit_one(self, data: st.DataObject, interval: IntervalId, stale: bool) -> tuple[LogWrite, Checkpoint]:
        keys = [key for key in KEYS if holds_key(self.memory.intervals[interval], key)]
        self.made += 1
        # Any owner may have been told of an id before, and an id that is told twice is stored once.
        outside = data.draw(st.lists(st.sampled_from([b"%d" % self.made, b"%d-" % self.made]), unique=True))
        image = checkpoint(data.draw, keys or [self.memory.intervals[interval].low], outside)
        if data.draw(st.booleans()):
            first = SequenceNumber(2 * self.made)
            produced = [Produced(SubscriptionId(1), ProducerId(5), first, ["k", "l"], [b"x", b""], [1, 2])]
            image = msgspec.structs.replace(image, produced=produced)
        self.seq += 1
        sequencer = Sequencer(self.memory.ownership[interval] - stale)
        write = LogWrite(interval, sequencer, Seq(self.seq), 0, encode_checkpoint(image))
        self.both(lambda store: store.commit([write]))
        return write, image

    @rule(data=st.data())
    def commit_and_fold(self, data: st.DataObject) -> None:
        interval = self.drawn_interval(data)
        self.recover(interval)
        write, image = self.commit_one(data, interval, False)
        fold = FoldWrite(interval, write.sequencer, write.seq, [image])
        assert self.both(lambda store: store.fold(fold)) is True

    @rule(
        data=st.data(),
        mark=st.sampled_from([b"", b"\x93\x91\x93\xa1a\xc4\x011\x02\x90\xc2"]),
        ends=st.sampled_from([None, 0]),
    )
    def mark(self, data: st.DataObject, mark: bytes, ends: int | None) -> None:
        interval = self.drawn_interval(data)
        write = MarkWrite(interval, self.memory.ownership[interval], mark, ends)
        self.both(lambda store: store.mark([write]))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        interval = self.drawn_interval(data)
        self.recover(interval)
        sequences = [SequenceNumber(n) for n in range(10)]
        for producer in (ProducerId(5), ProducerId(6)):
            self.both(lambda store, p=producer: store.find_ids(interval, SubscriptionId(1), p, sequences))  # type: ignore[misc]
        asked = [b"%d" % n for n in range(self.made)]
        self.both(lambda store: store.find_outside_ids(interval, SubscriptionId(1), 0, asked))
        self.both(lambda store: store.load(interval, KEYS, timers=True))

    def recover(self, interval: IntervalId) -> None:
        sequencer = self.memory.ownership[interval]
        assert self.both(lambda store: store.recover(interval, sequencer)) is not None

    @rule()
    def compare(self) -> None:
        self.both(lambda store: store.cluster_map())
        assert self.memory.tables() == connected_tables(self.connection, self.name)

    @rule()
    def open_again(self) -> None:
        before = self.version
        self.both(lambda store: store.open_pipeline(self.shape))
        assert self.version == before

    def teardown(self) -> None:
        try:
            self.compare()
            self.the_clock_jumps(200)
            for interval in [*self.memory.agreements.interval_owners]:
                self.both(lambda store, id_=interval: store.acquire([id_]))  # type: ignore[misc]
                self.recover(interval)
            self.compare()
        finally:
            self.loop.run_until_complete(self.postgres.close())
            reset(self.url, self.name)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with temporary_postgres() as server:
        yield server


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(examples(400))
def test_memory_and_postgres_are_twins_for_a_cluster(server: EmbeddedPostgres, loop: asyncio.AbstractEventLoop) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        ClusterTwins.url, ClusterTwins.loop, ClusterTwins.connection = server.url, loop, connection
        run_state_machine_as_test(
            ClusterTwins,
            settings=settings(
                max_examples=examples(15, gate=8),
                stateful_step_count=60,
                suppress_health_check=list(HealthCheck),
            ),
        )
