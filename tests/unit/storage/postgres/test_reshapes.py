"""Splits and merges, orders, and who may still send: both stores give the same answers and keep the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import limits
from millwheel.bundles import (
    BEFORE_TIMERS,
    CHECKPOINT_FORMAT,
    Acked,
    Checkpoint,
    Delivered,
    HoldWrites,
    Ids,
    LogWrite,
    OutsideBucket,
    OutsideIdWrites,
    Produced,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import MapOrder, Placement, Reshaping, Senders
from millwheel.core.faults.suspects import Suspicion, read_mark
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.ports import ClusterStore, Declaration, FoldWrite, MarkWrite, PipelineShape
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.statements import opening, ordering
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.litter import litter

pytestmark = pytest.mark.postgres

LEASE_US = 3_600_000_000
ONE, TWO, THREE, FOUR = map(IntervalId, (1, 2, 3, 4))
IN, OUT, BESIDE = SubscriptionId(1), SubscriptionId(2), SubscriptionId(3)
"""`BESIDE` has the same producers and times as `IN`: nothing of it may count for that one."""


class Led:
    """A store with a leader and a worker."""

    def __init__(self, store: ClusterStore, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

    async def open(self) -> None:
        shape = PipelineShape(
            self.pipeline, {"a": ("m",), "b": ()}, {"a<s": "s", "b<t": "t", "b<u": "u"}, {}, (), ("src",)
        )
        await self.store.open_pipeline(shape)
        self.worker = (await self.store.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        leader = await self.store.lead(self.worker, LEASE_US)
        assert leader is not None
        self.epoch = leader.epoch

    async def version(self) -> int:
        return (await self.store.cluster_map()).version

    async def place(self, *intervals: IntervalId, owner: int | None = None) -> dict[IntervalId, Sequencer]:
        """The intervals' new sequencers."""
        placement = Placement(self.epoch, await self.version(), dict.fromkeys(intervals, owner), {})
        assert await self.store.place(placement) is not None
        return {row.id: row.sequencer for row in (await self.store.cluster_map()).intervals if row.id in intervals}

    async def reshape(self, intervals: list[IntervalId], keys: tuple[str, ...] = ()) -> tuple[IntervalId, ...]:
        """The intervals that are there now; asked for twice, as after a reply that was lost."""
        decision = Reshaping(self.epoch, await self.version(), intervals, keys)
        made = await self.store.reshape(decision)
        assert made is not None
        assert await self.store.reshape(decision) == made
        assert made[0] == decision.version + 1 == await self.version()
        return made[1]

    async def fold(self, interval: IntervalId, **changes: Any) -> None:
        """Give the interval these rows, by an owner that goes again."""
        sequencer = (await self.place(interval, owner=self.worker))[interval]
        assert await self.store.recover(interval, sequencer) is not None
        image = checkpoint(**changes)
        assert await self.store.commit([LogWrite(interval, sequencer, Seq(1), 0, encode_checkpoint(image))])
        assert await self.store.fold(FoldWrite(interval, sequencer, Seq(1), [image]))
        assert await self.store.mark([MarkWrite(interval, sequencer, b"", 0)])
        await self.place(interval)


def checkpoint(**changes: Any) -> Checkpoint:
    parts: dict[str, Any] = {"ids": [], "produced": [], "acked": [], "sinks": [], "quarantined": []}
    by_key: dict[str, Any] = {"state": StateWrites(), "timers": TimerWrites(), "holds": HoldWrites()}
    return Checkpoint(format=CHECKPOINT_FORMAT, shape="", epoch=0, **{**parts, **by_key, **changes})


def ids(producer: int, frontier: int, *sequences: int, of: SubscriptionId = IN) -> Ids:
    return Ids(of, ProducerId(producer), SequenceNumber(frontier), [SequenceNumber(n) for n in sequences])


def produced(producer: int, first: int, *keys: str) -> Produced:
    count = len(keys)
    return Produced(OUT, ProducerId(producer), SequenceNumber(first), [*keys], [b"v"] * count, [1] * count)


Test = Callable[[Led], Coroutine[Any, Any, None]]


def on_both(postgres: EmbeddedPostgres, pipeline: str, test: Test) -> None:
    """Run it on each store; their tables are the same afterwards."""

    async def main() -> None:
        tables = []
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            led = Led(store, pipeline)
            await led.open()
            await test(led)
        tables = [memory.tables(), postgres_tables(postgres.url, pipeline)]
        assert tables[0] == tables[1]
        assert litter(postgres.url, pipeline) == {}
        await stored.close()

    asyncio.run(main())


def test_what_was_delivered_to_an_interval_was_delivered_to_all_that_it_is_split_into(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        state = StateWrites.of([(key, "c", "", key.encode()) for key in "abcde"])
        timers = TimerWrites([*"abe"], [""] * 3, ["watermark"] * 3, [7, 8, 9])
        await led.fold(
            ONE,
            ids=[ids(5, 3, 4, 9), ids(6, 0, 1), ids(5, 2, 7, of=BESIDE)],
            produced=[produced(77, 0, "a", "e", "x")],
            state=state,
            timers=timers,
            outside=[
                OutsideIdWrites(IN, 50, [b"x", b"y"]), OutsideIdWrites(IN, 60, [b"z"]), OutsideIdWrites(BESIDE, 50, [b"o"]),
            ],
        )  # fmt: skip
        before = dict(led.store.ownership) if isinstance(led.store, MemoryStore) else None
        made = await led.reshape([ONE], ("c", "e"))
        assert made == (ONE, FOUR, IntervalId(5))
        agreed = await led.store.cluster_map()
        rows = {row.id: (row.computation, row.low, row.high, row.owner) for row in agreed.intervals}
        assert rows[ONE] == ("a", "", "c", None)
        assert rows[FOUR] == ("a", "c", "e", None)
        assert rows[IntervalId(5)] == ("a", "e", "m", None)
        assert before is None or before[ONE] < agreed.intervals[0].sequencer
        owned = await led.place(*made, owner=led.worker)
        found = {id_: await led.store.recover(id_, owned[id_]) for id_ in made}
        for recovered in found.values():
            assert recovered is not None
            assert recovered.ids == [
                Delivered(IN, ProducerId(5), SequenceNumber(3), SequenceNumber(9)),
                Delivered(IN, ProducerId(6), SequenceNumber(0), SequenceNumber(1)),
                Delivered(BESIDE, ProducerId(5), SequenceNumber(2), SequenceNumber(7)),
            ]
            assert recovered.outside == [
                OutsideBucket(IN, 50, 2), OutsideBucket(IN, 60, 1), OutsideBucket(BESIDE, 50, 1),
            ]  # fmt: skip
        for id_ in made:
            sequences = [SequenceNumber(n) for n in (3, 4, 9)]
            assert await led.store.find_ids(id_, IN, ProducerId(5), sequences) == {4, 9}
            assert await led.store.find_outside_ids(id_, IN, 0, [b"x", b"q", b"o"]) == {b"x"}
        # The sender's frontier rests on all that a producer has sent, so all of it stays with one sender.
        sent = [[bundle.keys for bundle in found[id_].productions] for id_ in made]  # type: ignore[union-attr]
        assert sent == [[["a", "e", "x"]], [], []]
        due = [found[id_].timers.keys for id_ in made]  # type: ignore[union-attr]
        assert due == [["a", "b"], [], ["e"]]
        assert [row.key for row in await led.store.load(FOUR, ["c", "d"])] == ["c", "d"]

    on_both(postgres, pipeline, test)


def test_what_is_cut_off_is_behind_what_the_whole_had_sent_until_all_of_that_is_acked(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        five, six = IntervalId(5), IntervalId(6)

        async def behind() -> set[IntervalId]:
            known = [row.id for row in (await led.store.cluster_map()).intervals]
            return await led.store.behind_others(known)

        await led.fold(ONE, produced=[produced(77, 0, "a", "x")])
        await led.fold(TWO, produced=[produced(78, 0, "b")])
        assert await behind() == set()
        assert await led.reshape([ONE], ("c",)) == (ONE, FOUR)
        assert await behind() == {FOUR}
        assert await led.store.behind_others([TWO, ONE]) == set()
        await led.fold(FOUR, produced=[produced(79, 0, "c")])
        assert await led.reshape([FOUR], ("d",)) == (FOUR, five)
        assert await behind() == {FOUR, five}
        assert await led.reshape([ONE, FOUR]) == (ONE,)  # what it was behind is its own now
        assert await behind() == {five}
        assert await led.reshape([five], ("e",)) == (five, six)
        await led.fold(ONE, acked=[Acked(OUT, ProducerId(77), [SequenceNumber(0), SequenceNumber(1)])])
        assert await behind() == {five, six}  # of the second whole
        await led.fold(ONE, acked=[Acked(OUT, ProducerId(79), [SequenceNumber(0)])])
        assert await behind() == set()

    on_both(postgres, pipeline, test)


def test_a_merge_unites_what_was_delivered_and_what_is_not_acked(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        outside = [OutsideIdWrites(IN, 50, [b"x", b"y"]), OutsideIdWrites(BESIDE, 50, [b"y"])]
        known = [ids(5, 0, 1, 2), ids(6, 4, 9), ids(5, 0, 1, of=BESIDE)]
        await led.fold(ONE, ids=known, produced=[produced(77, 0, "a")], outside=outside)
        outside = [
            OutsideIdWrites(IN, 50, [b"y", b"z"]), OutsideIdWrites(IN, 70, [b"w"]), OutsideIdWrites(BESIDE, 50, [b"z"]),
        ]  # fmt: skip
        await led.fold(
            TWO, ids=[ids(5, 2, 3), ids(6, 3), ids(7, 0, 8)], produced=[produced(78, 0, "b", "c")], outside=outside
        )
        assert await led.reshape([ONE, TWO]) == (ONE,)
        agreed = await led.store.cluster_map()
        assert [(row.id, row.low, row.high) for row in agreed.intervals] == [(ONE, "", None), (THREE, "", None)]
        owned = await led.place(ONE, owner=led.worker)
        recovered = await led.store.recover(ONE, owned[ONE])
        assert recovered is not None
        assert [(found.producer, found.frontier, found.top) for found in recovered.ids] == [
            (5, 2, 3), (6, 4, 9), (7, 0, 8), (5, 0, 1),
        ]  # fmt: skip
        assert await led.store.find_ids(ONE, IN, ProducerId(5), [SequenceNumber(n) for n in (2, 3, 4)]) == {2, 3}
        assert [(bundle.producer, bundle.keys) for bundle in recovered.productions] == [(77, ["a"]), (78, ["b", "c"])]
        assert recovered.outside == [
            OutsideBucket(IN, 50, 3), OutsideBucket(IN, 70, 1), OutsideBucket(BESIDE, 50, 2),
        ]  # fmt: skip
        asked = [b"w", b"x", b"y", b"z", b"q"]
        assert await led.store.find_outside_ids(ONE, IN, 0, asked) == {b"w", b"x", b"y", b"z"}
        # A worker that was to have the one that is gone is fenced, and goes on with the others.
        gone = Sequencer(owned[ONE] - 1)
        assert await led.store.recover(TWO, gone) is None
        assert await led.store.load_timers(TWO, gone, "watermark", BEFORE_TIMERS, 1) is None
        assert not await led.store.fold(FoldWrite(TWO, gone, Seq(1), [checkpoint()]))
        # And apart again, and together: nothing multiplies.
        await led.store.mark([MarkWrite(ONE, owned[ONE], b"", 0)])
        await led.place(ONE)
        apart = await led.reshape([ONE], ("k", "p"))
        assert apart == (ONE, FOUR, IntervalId(5))
        assert await led.reshape([*apart]) == (ONE,)
        owned = await led.place(ONE, owner=led.worker)
        again = await led.store.recover(ONE, owned[ONE])
        assert again == recovered

    on_both(postgres, pipeline, test)


def test_a_merge_of_several_intervals_has_the_largest_frontier_whichever_has_it(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        parts = await led.reshape([ONE], ("c", "e"))
        for part, frontiers in zip(parts, [(9, 2, 4), (4, 9, 2), (2, 4, 9)], strict=True):
            known = [ids(5 + number, frontier, frontier) for number, frontier in enumerate(frontiers)]
            await led.fold(part, ids=[*known, ids(8, 0, part)])
        assert await led.reshape([*parts]) == (ONE,)
        owned = await led.place(ONE, owner=led.worker)
        recovered = await led.store.recover(ONE, owned[ONE])
        assert recovered is not None
        assert [(found.producer, found.frontier, found.top) for found in recovered.ids] == [
            *((producer, 9, 9) for producer in (5, 6, 7)), (8, 0, parts[-1]),
        ]  # fmt: skip
        sequences = [SequenceNumber(part) for part in range(9)]
        assert await led.store.find_ids(ONE, IN, ProducerId(8), sequences) == {SequenceNumber(part) for part in parts}

    on_both(postgres, pipeline, test)


def test_marks_of_suspects_are_not_lost(postgres: EmbeddedPostgres, pipeline: str) -> None:
    marks = [Suspicion([("a", b"1", 2)]), Suspicion([], [("z", b"2")])]

    async def test(led: Led) -> None:
        encoded = [msgspec.msgpack.encode(mark) for mark in marks]
        for interval, mark in zip((ONE, TWO), encoded, strict=True):
            owned = await led.place(interval, owner=led.worker)
            for _ in range(interval):
                assert await led.store.recover(interval, owned[interval]) is not None
            assert await led.store.mark([MarkWrite(interval, owned[interval], mark)])
            await led.place(interval)
        for number, intervals in ((1, [ONE, TWO]), (2, [ONE])):
            made = await led.reshape(intervals, () if number == 1 else ("k",))
            for id_ in made:
                owned = await led.place(id_, owner=led.worker)
                found = await led.store.recover(id_, owned[id_])
                assert found is not None
                assert found.ends == number + 1
                assert read_mark(found.suspicion).deaths == [("a", b"1", 2), ("z", b"2", 0)]
                await led.place(id_)

    on_both(postgres, pipeline, test)


def test_a_reshaping_is_refused_whole(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        (opened,) = await led.store.open_source("src", {"p": b""})
        owned = await led.place(TWO, owner=led.worker)
        version = await led.version()

        async def refused(match: str, intervals: list[IntervalId], *keys: str) -> None:
            with pytest.raises(StoreError, match=match):
                await led.store.reshape(Reshaping(led.epoch, version, intervals, keys))

        await refused("interval 2 is owned by member 1", [TWO], "x")
        await refused("interval 2 is owned by member 1", [ONE, TWO])
        await refused(f"interval {opened.interval} is no interval of the map", [opened.interval], "x")
        await refused("interval 99 is no interval of the map", [IntervalId(99)], "x")
        await refused("intervals 1 and 3 are not neighbours", [ONE, THREE])
        await refused("not ascending and inside of interval 1", [ONE], "m")
        await refused("a split names one interval and keys", [ONE])
        assert await led.store.reshape(Reshaping(led.epoch + 1, version, [ONE], ["c"])) is None
        assert await led.store.reshape(Reshaping(led.epoch, version - 1, [ONE], ["c"])) is None
        assert await led.store.recover(TWO, owned[TWO]) is not None
        payload = encode_checkpoint(checkpoint())
        assert await led.store.commit([LogWrite(TWO, owned[TWO], Seq(1), 0, payload)])
        await led.place(TWO)
        version = await led.version()
        await refused("the log of interval 2 is not empty", [ONE, TWO])
        assert await led.version() == version

    on_both(postgres, pipeline, test)


def test_a_decision_is_known_again_only_while_the_map_is_as_it_has_left_it(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Whoever asks again after a reply that was lost goes on from the version that the answer names."""

    async def test(led: Led) -> None:
        split = Reshaping(led.epoch, await led.version(), [ONE], ["c"])
        assert await led.store.reshape(split) is not None
        other = (await led.store.join("v", "worker", "v:1", LEASE_US, b"v")).incarnation
        placement = Placement(led.epoch, await led.version(), {TWO: other}, {})
        assert await led.store.reshape(split) == (split.version + 1, (ONE, FOUR))
        assert await led.store.place(placement) == placement.version + 1
        assert await led.store.reshape(split) is None
        await led.store.leave(other)
        assert await led.store.place(placement) is None
        merge = Reshaping(led.epoch, await led.version(), [ONE, FOUR, TWO], [])
        assert await led.store.reshape(merge) is not None
        other = (await led.store.join("u", "worker", "u:1", LEASE_US, b"u")).incarnation
        await led.store.leave(other)
        assert await led.store.reshape(merge) is None

    on_both(postgres, pipeline, test)


@pytest.mark.parametrize("way", ["split", "merge"])
def test_when_all_goes_back_logs_are_folded_to_the_declared_epoch_and_no_further(
    postgres: EmbeddedPostgres, pipeline: str, way: str
) -> None:
    async def test(led: Led) -> None:
        owners = await led.place(ONE, TWO, owner=led.worker)
        for epoch, value in (1, b"1"), (2, b"2"):
            for id_, key in (ONE, "a"), (TWO, "z"):
                state = StateWrites.of([(key, "", "", value)])
                image = encode_checkpoint(checkpoint(state=state))
                assert await led.store.commit([LogWrite(id_, owners[id_], Seq(epoch), epoch, image)])
            if epoch == 1:
                assert await led.store.declare(Declaration(epoch=1, owners=owners, term=led.epoch))
        await led.place(ONE, TWO)
        named, keys = ([ONE], ("b",)) if way == "split" else ([ONE, TWO], ())
        decision = Reshaping(led.epoch, await led.version(), named, keys, back=True)
        made = await led.store.reshape(decision)
        assert made is not None
        assert await led.store.reshape(decision) == made  # its reply was lost
        again = await led.place(*made[1], owner=led.worker)
        assert all([await led.store.recover(id_, sequencer) is not None for id_, sequencer in again.items()])
        found = await led.store.load(ONE, ["a", *(["z"] if way == "merge" else [])])
        assert [row.cells for row in found] == [{("", ""): b"1"}] * len(found)
        assert len(found) == len(named)

    on_both(postgres, pipeline, test)


def test_when_all_goes_back_new_owners_find_nothing_of_an_epoch_that_was_not_declared(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Its number comes again."""

    async def test(led: Led) -> None:
        owners = await led.place(ONE, TWO, owner=led.worker)
        image = encode_checkpoint(checkpoint(state=StateWrites.of([("a", "", "", b"1")])))
        assert await led.store.commit([LogWrite(ONE, owners[ONE], Seq(1), 1, image)])
        owned = dict.fromkeys((ONE, TWO), led.worker)
        version = await led.version()
        assert await led.store.place(Placement(led.epoch, version, owned, {}, back=True)) == version + 1
        again = {row.id: row.sequencer for row in (await led.store.cluster_map()).intervals if row.owner}
        assert await led.store.declare(Declaration(epoch=1, owners=again, term=led.epoch))
        assert await led.store.recover(ONE, again[ONE]) is not None
        assert await led.store.load(ONE, ["a"]) == []

    on_both(postgres, pipeline, test)


def test_whoever_leaves_is_fenced_and_the_map_is_another_one(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        member = (await led.store.join("v", "worker", "v:1", LEASE_US, b"v")).incarnation
        version = await led.version()
        placement = Placement(led.epoch, version, {ONE: member}, {"src": member})
        assert await led.store.place(placement) == version + 1
        (opened,) = await led.store.open_source("src", {"p": b""})
        taken = await led.store.take_partitions("src", member, [opened.interval])
        assert taken is not None
        owned = {row.id: row.sequencer for row in (await led.store.cluster_map()).intervals if row.owner} | taken
        assert owned.keys() == {ONE, opened.interval}
        await led.store.leave(member)
        assert await led.store.still_owned(owned) == set()
        assert await led.version() == version + 2

    on_both(postgres, pipeline, test)


def test_an_owner_that_knew_an_interval_before_its_split_reads_its_new_keys(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        timers = TimerWrites([*"abe"], [""] * 3, ["watermark"] * 3, [7, 8, 9])
        await led.fold(ONE, timers=timers)
        assert await led.reshape([ONE], ("b",)) == (ONE, FOUR)
        owned = await led.place(ONE, owner=led.worker)
        recovered = await led.store.recover(ONE, owned[ONE])
        assert recovered is not None
        assert recovered.timers.keys == ["a"]

    on_both(postgres, pipeline, test)


def test_an_old_owner_is_fenced_by_a_split_also_when_its_number_is_the_current_one(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        old = await led.place(ONE)
        await led.reshape([ONE], ("b",))
        assert await led.store.still_owned(old) == set()
        assert await led.store.recover(ONE, old[ONE]) is None

    on_both(postgres, pipeline, test)


# Who may still send


def test_senders_are_the_owners_their_predecessors_in_the_log_and_whatever_is_not_acked(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        await led.fold(ONE, produced=[produced(77, 0, "a", "b"), produced(78, 5, "c")])
        await led.fold(TWO, produced=[produced(79, 0, "a")], acked=[Acked(OUT, ProducerId(79), sequence_numbers([0]))])
        await led.fold(THREE, produced=[Produced(IN, ProducerId(77), SequenceNumber(9), ["k"], [b""], [1])])
        owned = await led.place(ONE, THREE, owner=led.worker)
        logged = {}
        for interval in (ONE, THREE):
            for seq in (1, 2, 3):
                payload = encode_checkpoint(checkpoint(produced=[produced(owned[interval], seq, "x")]))
                assert await led.store.commit([LogWrite(interval, owned[interval], Seq(seq), 0, payload)])
            logged[interval] = owned[interval]
            owned |= await led.place(interval, owner=led.worker)
        await led.store.open_source("src", {"p": b""})
        current = {row.id: row.sequencer for row in (await led.store.cluster_map()).intervals}
        found = await led.store.senders()
        assert found == Senders(
            tuple(sorted({*logged.items(), *current.items()})),
            ((IN, ProducerId(77)), (OUT, ProducerId(77)), (OUT, ProducerId(78))),
        )
        assert len(found.owners) == 5

    on_both(postgres, pipeline, test)


def test_who_may_still_send_is_found_without_reading_what_they_sent(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        led = Led(PostgresStore(postgres.url, pipeline), pipeline)
        await led.open()
        await led.store.close()

    asyncio.run(main())
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(opening.CONFIGURE, (pipeline, "15000", "60000", "10000"))  # as sessions of the store
        for table in ("production", "checkpoint_log"):
            for low in (0, 50_000):
                connection.execute(FILL[table].encode(), (low, low + 50_000))
                statement = ordering.SENDING_CHANNELS if table == "production" else ordering.SENDING_OWNERS
                assert pages(connection, statement) < 100
            connection.execute(f"VACUUM ANALYZE {table}".encode())
            assert pages(connection, statement) < 100


FILL = {
    "production": "INSERT INTO production SELECT 1, 1, n / 25000, n, 'k', 'v', n FROM generate_series(%s, %s - 1) n",
    "checkpoint_log": "INSERT INTO checkpoint_log SELECT 1, n / 25000, n, 0, 'x' FROM generate_series(%s, %s - 1) n",
}


def pages(connection: psycopg.Connection[Any], statement: str) -> int:
    row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


# Orders


def test_an_order_is_open_until_the_leader_has_settled_it(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        store = led.store
        move, split = MapOrder("move", (ONE, TWO), to="w"), MapOrder("split", (ONE,), split_keys=("k",))
        assert (await store.order(move), await store.order(split), await store.order(move)) == (1, 2, 1)
        assert await store.orders() == [(1, move), (2, split)]
        assert await store.refusal(1) is None
        assert await store.settle_order(led.epoch + 1, 1, "") is False
        assert await store.settle_order(led.epoch, 1, "") is True
        assert await store.settle_order(led.epoch, 1, "again") is True
        assert await store.settle_order(led.epoch, 2, "key 'k' is outside") is True
        assert await store.settle_order(led.epoch, 7, "nobody's") is True
        assert await store.orders() == []
        assert (await store.refusal(1), await store.refusal(2)) == ("", "key 'k' is outside")
        with pytest.raises(StoreError, match="there is no order 7"):
            await store.refusal(7)
        assert await store.order(move) == 3
        with pytest.raises(StoreError, match="an order is one of move, split, merge"):
            await store.order(MapOrder("stop", (ONE,)))

    on_both(postgres, pipeline, test)


def test_an_order_is_settled_by_the_transaction_that_carries_it_out(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        store = led.store
        split = MapOrder("split", (ONE,), split_keys=("k",))
        number = await store.order(split)
        version = (await store.cluster_map()).version
        asked = Reshaping(led.epoch, version, (ONE,), ("k",), order=number)
        assert await store.reshape(msgspec.structs.replace(asked, epoch=led.epoch + 1)) is None
        assert await store.reshape(msgspec.structs.replace(asked, version=version + 1)) is None
        with pytest.raises(StoreError, match="ascending"):
            await store.reshape(msgspec.structs.replace(asked, split_keys=("k", "c")))
        assert await store.refusal(number) is None
        made = await store.reshape(asked)
        assert made is not None
        assert await store.refusal(number) == ""
        assert await store.reshape(asked) == made
        assert await store.orders() == []

    on_both(postgres, pipeline, test)


def test_settled_orders_are_forgotten_after_a_while_and_open_ones_never(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        store, kept = led.store, limits.SETTLED_ORDERS
        open_one = MapOrder("move", (ONE,), to="nobody")
        assert await store.order(open_one) == 1
        for number in range(2, kept + 4):
            assert await store.order(MapOrder("move", (ONE,), to=f"w{number}")) == number
            assert await store.settle_order(led.epoch, number, "no")
        assert await store.orders() == [(1, open_one)]
        with pytest.raises(StoreError, match="there is no order 3"):
            await store.refusal(3)
        assert await store.refusal(4) == "no"
        # A leader of the past forgets nothing.
        assert not await store.settle_order(led.epoch - 1, kept + 50, "no")
        assert await store.refusal(4) == "no"

    on_both(postgres, pipeline, test)
