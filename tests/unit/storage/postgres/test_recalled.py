"""A combiner of the library comes, and goes: both stores do the same to their tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from millwheel import JsonCoder, MsgpackCoder, Pipeline, Stream, subscribe
from millwheel.bundles import OF_TIMER, HoldWrites, OutsideIdWrites, Produced, QuarantineEntry, StateWrites, TimerWrites
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel.library import Combiner, Fixed, Flow, Pane, count
from millwheel.model import MAX_TIME, MIN_TIME, Timer
from millwheel.ports import PipelineShape, WatermarkWrite
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.schema.recalls import taken_at
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.litter import litter
from tests.unit.storage.postgres.test_dropped import request
from tests.unit.storage.postgres.test_handover import Story, ids, produced
from tests.unit.storage.samples import Total, sales

panes = Stream("panes", MsgpackCoder(Pane[int]))


def views(
    of: str, combiner: Combiner | None = None, split_keys: tuple[str, ...] = ("m",), also: Sequence[str] = ()
) -> PipelineShape:
    """Intervals 1 and 2 are of "Also", 3 and 4 of "views"; subscription 1 is that of the one, and 2 that of the other.

    `also` names more sources.
    """
    pipeline = Pipeline(of)
    for name in ("src", *also):
        pipeline.inject(IterableSource(name, []), into=sales)
    pipeline.add(Total, [subscribe(sales, str)], name="Also", split_keys=["k"])
    keyed = Flow(pipeline).read(sales).key_by(str, split_keys)
    keyed.window(Fixed(minutes=1)).aggregate(count(), name="views", combiner=combiner).to(panes)
    return pipeline.graph().shape()


ALSO, VIEWS, MERGED = 1, 2, 3
"""Subscriptions."""


def waits(key: str, error: str = "", subscription: int = VIEWS, value: bytes = b"v") -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(subscription), ProducerId(5), SequenceNumber(1), value, 4, "", "", error)


def timer(key: str, error: str = "") -> QuarantineEntry:
    return QuarantineEntry.of_timer(Timer(key, "e0", 3, "watermark"), error)


def pane(key: str, start: int, value: bytes) -> bytes:
    return msgspec.msgpack.encode([key, start, start + 10, value, 0, "on time", 0, True])


class Viewed(Story):
    """What the pipeline has done without a combiner."""

    async def tell(self) -> None:
        opened = await self.store.open_pipeline(views(self.name))
        assert opened.subscriptions == {"Also<sales": ALSO, "views<sales": VIEWS}
        await self.store.open_source("src", {"one": b"{}"})
        self.owned = await self.store.acquire([*map(IntervalId, (1, 2, 3, 4, 5))])
        for interval in (1, 2, 3, 4):
            await self.store.recover(IntervalId(interval), self.owned[IntervalId(interval)])
        await self.commit(1, 1, produced=[produced(VIEWS, 90, "a", "z"), produced(ALSO, 90, "k")])
        state = StateWrites.of([("a", "accumulators", "0", b"1"), ("b", "progress", "0", b"2")])
        await self.commit(
            3, 1, ids=[ids(VIEWS, 5, 1, 1, 4)], state=state, timers=TimerWrites(["a"], ["e0"], ["watermark"], [9]),
            quarantined=[
                waits("a", "bang"), timer("a"), waits("a"), timer("c", "tick"), waits("c"), waits("é", "only"),
                timer("t", "alone"),
            ],
            outside=[OutsideIdWrites(SubscriptionId(VIEWS), 50, [b"x"])],
        )  # fmt: skip
        await self.commit(4, 1, ids=[ids(VIEWS, 5, 3, 9)])
        owners = {IntervalId(3): self.owned[IntervalId(3)]}
        await self.store.persist_watermarks([WatermarkWrite("views", 4, owners), WatermarkWrite("source:src", 6, {})])


def both(postgres: EmbeddedPostgres, pipeline: str) -> tuple[MemoryStore, PostgresStore]:
    return MemoryStore(), PostgresStore(postgres.url, pipeline)


pytestmark = pytest.mark.postgres


def test_both_stores_give_it_what_is_on_its_way(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            story = Viewed(store, pipeline)
            await story.tell()
            opened = await store.open_pipeline(views(pipeline, Combiner(3)))
            assert opened.subscriptions == {"Also<sales": 1, "views.parts<sales": 2, "views<views.parts.out": 3}
            assert await story.commit(3, 9) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        parts = [id_ for id_, row in memory.intervals.items() if row.computation == "views.parts"]
        assert [row[:5] for row in tables["production"]] == [
            (1, 1, 90, 0, "k"), (1, 2, 90, 0, "a#0"), (1, 2, 90, 1, "z#0"),
        ]  # fmt: skip
        assert tables["delivered"] == [(part, 2, 5, n) for part in parts for n in (4, 9)]
        assert tables["opaque_bucket"] == [(part, 2, 50, 1) for part in parts]
        waiting = {place: [(e.subscription, e.error) for e in fifo] for place, fifo in memory.quarantine.items()}
        assert waiting == {
            ("views.parts", "a#0"): [(2, "bang"), (2, "")], ("views", "a"): [(OF_TIMER, "bang")],
            ("views.parts", "c#0"): [(2, "tick")], ("views", "c"): [(OF_TIMER, "tick")],
            ("views.parts", "é#0"): [(2, "only")], ("views", "t"): [(OF_TIMER, "alone")],
        }  # fmt: skip
        with Reader(postgres.url, pipeline) as reader:
            for (computation, key), fifo in waiting.items():
                assert [row.error for row in reader.quarantine_rows(computation, key)] == [why for _, why in fifo]
        assert [row[:4] for row in tables["key_state"]] == [
            ("views", "a", "accumulators", "0"),
            ("views", "b", "progress", "0"),
        ]
        assert tables["timer"] == [("views", "a", "watermark", "e0", 9)]
        assert ("views.parts", 6) in tables["watermark"], "as far as the aggregation may have been told"
        await stored.close()

    asyncio.run(main())


def test_who_asked_for_what_moves_has_to_ask_again(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """A request stays with what stays in quarantine.  One for a key of which all has moved would wait for ever."""

    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            story = Viewed(store, pipeline)
            await story.tell()
            for interval, sequencer in (await store.acquire([*map(IntervalId, (3, 4))])).items():
                await store.recover(interval, sequencer)
            for key in ("a", "é", "t"):
                request(story, postgres.url, "views", key)
            await store.open_pipeline(views(pipeline, Combiner(3)))
            assert await store.redrive_requests(("", ""), 9) == [("views", "a"), ("views", "t")]
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        await stored.close()

    asyncio.run(main())


@pytest.mark.parametrize(("views_at", "source_at", "oldest", "begins"), [
    (4, 9, 7, 7), (4, 6, 7, 6), (8, 9, 7, 8), (4, None, 7, 4), (None, None, 7, None), (None, 9, 7, 7), (4, 6, None, 6),
    (-9, -4, -6, -6),
])  # fmt: skip
def test_where_the_first_step_begins(
    postgres: EmbeddedPostgres, pipeline: str, views_at: int | None, source_at: int | None, oldest: int | None,
    begins: int | None,
) -> None:  # fmt: skip
    """As far as its senders have promised, and not beyond what is on its way; and never before where the only step was."""

    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            await store.open_pipeline(views(pipeline))
            story.owned = await store.acquire([*map(IntervalId, (1, 2, 3, 4))])
            await store.recover(IntervalId(1), story.owned[IntervalId(1)])
            if oldest is not None:
                rows = msgspec.structs.replace(produced(VIEWS, 90, "a", "b"), timestamps=[oldest, oldest + 13])
                await story.commit(1, 1, produced=[rows])
            told = {"views": views_at, "source:src": source_at}
            await store.persist_watermarks(
                [WatermarkWrite(name, at, {}) for name, at in told.items() if at is not None]
            )
            await store.open_pipeline(views(pipeline, Combiner(3)))
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        assert memory.watermark.get("views.parts") == begins
        await stored.close()

    asyncio.run(main())


@pytest.mark.parametrize(("told", "begins"), [
    ({"source:src": 9, "source:slow": 6}, 6), ({"source:src": 6, "source:slow": 9}, 6), ({"source:src": 9}, 4),
])  # fmt: skip
def test_the_first_step_begins_at_what_its_slowest_sender_has_promised(
    postgres: EmbeddedPostgres, pipeline: str, told: dict[str, int], begins: int
) -> None:
    """Any later, and records of that sender would be late."""

    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            await store.open_pipeline(views(pipeline, also=["slow"]))
            writes = [WatermarkWrite(name, at, {}) for name, at in {"views": 4, **told}.items()]
            await store.persist_watermarks(writes)
            await store.open_pipeline(views(pipeline, Combiner(3), also=["slow"]))
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert memory.watermark["views.parts"] == begins
        await stored.close()

    asyncio.run(main())


def relayed(of: str, combiner: Combiner | None = None) -> PipelineShape:
    """As `views`, of a stream on which "Also", intervals 1 and 2, sends."""
    pipeline, again = Pipeline(of), Stream("again", JsonCoder(str))
    pipeline.inject(IterableSource("src", []), into=sales)
    pipeline.add(Total, [subscribe(sales, str)], [again], name="Also", split_keys=["k"])
    keyed = Flow(pipeline).read(again).key_by(str)
    keyed.window(Fixed(minutes=1)).aggregate(count(), name="views", combiner=combiner).to(panes)
    return pipeline.graph().shape()


def test_what_a_sender_has_sent_late_does_not_hold_the_first_step_back(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            opened = await store.open_pipeline(relayed(pipeline))
            story.owned = await store.acquire([row.id for row in opened.intervals])
            await store.recover(IntervalId(1), story.owned[IntervalId(1)])
            await story.commit(1, 1, produced=[produced(opened.subscriptions["views<again"], 90, "a")])
            await store.persist_watermarks([WatermarkWrite(name, at, {}) for name, at in (("Also", 9), ("views", 4))])
            await store.open_pipeline(relayed(pipeline, Combiner(3)))
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        assert memory.watermark["views.parts"] == 9
        await stored.close()

    asyncio.run(main())


class Aggregated(Viewed):
    """What the same pipeline has done with a combiner, whose intervals are `parts`."""

    async def tell(self) -> None:
        await super().tell()
        opened = await self.store.open_pipeline(views(self.name, Combiner(3)))
        self.parts = [row.id for row in opened.intervals if row.computation == "views.parts"]
        self.owned = await self.store.acquire([row.id for row in opened.intervals])
        for interval in self.owned:
            await self.store.recover(interval, self.owned[interval])
        first, second = self.parts
        state = [
            ("a#2", "accumulators", "0", b"a2"), ("a#11", "accumulators", "-7", b"a11"), ("a#2", "progress", "0", b"no"),
            ("#3#0", "accumulators", "0", b"hash"), ("k\0\\3#1", "accumulators", "5", b"odd"),
        ]  # fmt: skip
        lost = Produced(SubscriptionId(MERGED), ProducerId(70), SequenceNumber(0), ["a", "b", "a"], [
            pane("a#0", 0, b"taken"), pane("b#1", 20, b"b"), pane("a#1", 30, b"a1"),
        ], [9, 29, 39])  # fmt: skip
        await self.commit(
            first, 1, state=StateWrites.of(state), timers=TimerWrites(["a#2"], ["e0"], ["watermark"], [9]),
            holds=HoldWrites(["a#2"], [3]), produced=[lost, produced(VIEWS, 71, "l#2")], ids=[ids(VIEWS, 8, 1, 2)],
        )  # fmt: skip
        await self.commit(
            second, 1, quarantined=[timer("q#1", "bang"), waits("q#1"), waits("q#0", "zero")],
            outside=[OutsideIdWrites(SubscriptionId(VIEWS), 50, [b"w"])], ids=[ids(VIEWS, 8, 2, 3)],
        )  # fmt: skip
        stopped = [waits("d", "why", MERGED, pane("d#0", 40, b"d")), timer("d")]
        only = [waits("f", "why", MERGED, pane("f#0", 50, b"f"))]
        await self.commit(3, 1, ids=[ids(MERGED, 70, 0, 0), ids(MERGED, 72, 3)], quarantined=[*stopped, *only])
        # Both have run, and only one of the two intervals has heard so.
        run = [pane("g#0", 60, b"run"), pane("n#0", 60, b"run")]
        both_run = Produced(SubscriptionId(MERGED), ProducerId(74), SequenceNumber(0), ["g", "n"], run, [69, 69])
        at_frontier = Produced(
            SubscriptionId(MERGED), ProducerId(72), SequenceNumber(3), ["h"], [pane("h#0", 70, b"h")], [79]
        )
        await self.commit(first, 2, produced=[both_run, at_frontier])
        await self.commit(3, 2, ids=[ids(MERGED, 74, 1)])
        await self.commit(4, 1, ids=[ids(MERGED, 74, 0, 1)])


def test_both_stores_take_back_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = both(postgres, pipeline)
        for store in (memory, stored):
            story = Aggregated(store, pipeline)
            await story.tell()
            opened = await store.open_pipeline(views(pipeline))
            assert opened.subscriptions == {"Also<sales": 1, "views<sales": 2}
            assert await store.open_pipeline(views(pipeline)) == opened  # the first reply was lost
            for interval in (1, 3, story.parts[0]):
                assert await story.commit(interval, 9) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        assert [row[:5] for row in tables["production"] if row[1] == VIEWS] == [
            (1, 2, 90, 0, "a"), (1, 2, 90, 1, "z"), (3, 2, 71, 0, "l"),
        ]  # fmt: skip
        found = {
            (key, entry.partition("/")[0]): value
            for of, key, cell, entry, value in tables["key_state"]
            if cell != "progress"
        }
        assert found == {
            ("a", "0"): b"1", ("a", "0#2"): b"a2", ("a", "-7#11"): b"a11", ("#3", "0#0"): b"hash", ("k\0\\3", "5#1"): b"odd",
            ("b", "20#70.1"): b"b", ("a", "30#70.2"): b"a1", ("d", "40#5.1"): b"d", ("f", "50#5.1"): b"f",
            ("h", "70#72.3"): b"h",
        }  # fmt: skip
        assert {row[0] for row in tables["key_state"]} == {"views"}
        assert tables["timer"] == sorted(
            [
                ("views", "a", "watermark", "e0", 9),
                *(("views", key, "watermark", "#", 6) for key in ("a", "#3", "k\0\\3", "b", "d", "f", "h")),
            ]
        )
        assert tables["hold"] == []
        for interval in (3, 4):
            mine = [row[2:] for row in tables["delivered"] if row[:2] == (interval, VIEWS)]
            assert mine == [(5, 4), (5, 9), (8, 2), (8, 3)]
        assert not [row for row in tables["delivered_frontier"] if row[1] == MERGED]
        assert tables["opaque_bucket"] == [(3, 2, 50, 2), (4, 2, 50, 2)]
        waiting = {place: [(e.subscription, e.error) for e in fifo] for place, fifo in memory.quarantine.items()}
        assert waiting == {
            ("views", "a"): [(OF_TIMER, "bang"), (2, "bang"), (2, "")], ("views", "c"): [(OF_TIMER, "tick"), (2, "tick")],
            ("views", "d"): [(OF_TIMER, "why")], ("views", "é"): [(2, "only")], ("views", "t"): [(OF_TIMER, "alone")],
            ("views", "q"): [(2, "zero"), (2, "bang")],
        }  # fmt: skip
        with Reader(postgres.url, pipeline) as reader:
            for (computation, key), fifo in waiting.items():
                assert [row.error for row in reader.quarantine_rows(computation, key)] == [why for _, why in fifo]
        assert {name for name, _ in tables["watermark"]} == {"views", "source:src"}
        assert not memory.by_low("views.parts")
        await stored.close()

    asyncio.run(main())


def test_when_it_is_taken_over() -> None:
    assert [taken_at(at) for at in (MIN_TIME, 5, MAX_TIME)] == [MIN_TIME + 1, 5, MAX_TIME - 1]
