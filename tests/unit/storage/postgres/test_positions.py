"""What a source has read, on a real server: it is not what another one has, and what is not finished has no signs."""

from __future__ import annotations

import asyncio
from itertools import product

import msgspec
import psycopg
import pytest

from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import PipelineShape, PositionWrite, SourcePosition, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.statements import opening
from tests.unit.storage.postgres.sharing_processes import Cluster, run, waits
from tests.unit.storage.samples import shape

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_sources_whose_partitions_have_the_same_names_and_signs_know_their_own(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    shape = PipelineShape(pipeline, {"a": ()}, {}, {}, (), ("one", "two"))

    async def main() -> None:
        await store.open_pipeline(shape)
        (mine,) = await store.open_source("one", {"p": b"1"})
        assert await store.find_partitions("two", [], ["p"]) == []
        (other,) = await store.open_source("two", {"p": b"2"})
        for source, position in (("one", mine), ("two", other)):
            assert await store.find_partitions(source, [], ["p", "q"]) == [position]
        owned = await store.acquire([mine.interval, other.interval])
        await finish(mine, owned[mine.interval], b"sign", b"both")
        assert await store.find_partitions("two", [b"sign"], []) == []
        assert await store.unknown_signs("two", [b"sign"]) == {b"sign"}
        assert await store.unknown_signs("one", [b"sign", b"more"]) == {b"more"}
        await finish(other, owned[other.interval], b"sign", b"both")
        for source, position in (("one", mine), ("two", other)):
            (found,) = await store.find_partitions(source, [b"sign"], [])
            assert await store.find_partitions(source, [b"sign", b"both"], ["p"]) == [found], "it is found once"
            assert (found.interval, found.rejected) == (position.interval, 3)
        assert await store.source_partitions("one") == []

    async def finish(position: SourcePosition, sequencer: Sequencer, *signs: bytes) -> None:
        write = PositionWrite(position.interval, sequencer, 9, True, b"end", signs, 3)
        assert await store.advance([msgspec.structs.replace(write, sequencer=Sequencer(sequencer + 9))]) == set()
        assert await store.advance([write]) == {position.interval}
        late = msgspec.structs.replace(write, sequencer=Sequencer(sequencer + 9), signs=(b"another's",))
        assert await store.advance([late]) == set()
        assert await store.unknown_signs("one", [b"another's"]) == {b"another's"}

    async def whole() -> None:
        try:
            await main()
        finally:
            await store.close()

    asyncio.run(whole())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
@pytest.mark.parametrize("signed", [(), ("p",), ("q",), ("p", "q")])
def test_a_partition_that_has_ended_is_not_listed_any_more_whether_it_has_signs_or_not(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore], signed: tuple[str, ...]
) -> None:
    """It would be read at each start, for ever."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> list[SourcePosition]:
        await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {}, {}, (), ("src",)))
        opened = await store.open_source("src", {"p": b"", "q": b""})
        owned = await store.acquire([position.interval for position in opened])
        writes = [
            PositionWrite(p.interval, owned[p.interval], 9, True, b"", (b"sign",) if p.partition in signed else (), 0)
            for p in opened
        ]
        assert await store.advance(writes) == owned.keys()
        found = await store.source_partitions("src")
        await store.close()
        return found

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_of_writes_together_each_counts_by_its_own_owner_and_its_own_end(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    """What has ended is known by its signs also when another one of the group was fenced: else it is read again."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    groups = [*product(("fenced", "ended", "open"), repeat=3)]
    names = [[f"{'-'.join(group)} {place}" for place in range(3)] for group in groups]

    async def main() -> None:
        await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {}, {}, (), ("src",)))
        opened = await store.open_source("src", {name: b"" for group in names for name in group})
        at = {position.partition: position.interval for position in opened}
        before, now = await store.acquire([*at.values()]), await store.acquire([*at.values()])
        left: dict[str, int] = {}
        for fates, group in zip(groups, names, strict=True):
            fate = dict(zip(group, fates, strict=True))
            writes = [
                PositionWrite(
                    at[name], (before if of == "fenced" else now)[at[name]], 9, of != "open", b"", (name.encode(),), 0
                )
                for name, of in fate.items()
            ]
            assert await store.advance(writes) == {at[name] for name, of in fate.items() if of != "fenced"}, fates
            signs = {name: name.encode() for name in group}
            unknown = {sign for name, sign in signs.items() if fate[name] != "ended"}
            assert await store.unknown_signs("src", [*signs.values()]) == unknown, fates
            left |= {name: 9 if of == "open" else 0 for name, of in fate.items() if of != "ended"}
        assert {it.partition: it.position for it in await store.source_partitions("src")} == left
        await store.close()

    asyncio.run(main())


def test_signs_that_come_before_the_end_do_not_count_as_those_of_the_end(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """A search may find the file of a partition that another process still reads."""
    store = PostgresStore(postgres.url, pipeline)

    async def main() -> list[SourcePosition]:
        await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {}, {}, (), ("src",)))
        (opened,) = await store.open_source("src", {"p": b""})
        await store.add_signs("src", {opened.interval: [b"early"], IntervalId(99): [b"nobody's"]})
        assert await store.unknown_signs("src", [b"early", b"nobody's"]) == {b"early", b"nobody's"}
        with psycopg.connect(postgres.url, autocommit=True) as connection:  # as `millwheel source end` does
            connection.execute(f'UPDATE "{pipeline}".source SET finished = true')
        found = await store.source_partitions("src")
        await store.close()
        return found

    assert [position.partition for position in asyncio.run(main())] == ["p"], "the next start adds its signs"


def test_two_processes_that_open_sources_at_once_give_them_two_numbers(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """A number is the next one after those that are there: one that is not committed yet is waited for."""
    cluster = Cluster(postgres.url, pipeline)

    async def main() -> None:
        store = await cluster.process()
        async with cluster.holding(opening.LOCK_SCHEMA, pipeline) as other:
            await other.execute(opening.ADD_NAME, {"kind": "computation", "name": "source:other"})
            opened = asyncio.create_task(store.open_source("src", {"p": b""}))
            assert await waits(opened)
        assert [position.partition for position in await opened] == ["p"]
        numbers = await cluster.execute("SELECT number FROM name WHERE kind = 'computation'")
        assert len({*numbers}) == len(numbers)

    run(cluster, main())


def test_a_watermark_that_is_stored_never_goes_back(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> dict[str, int]:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        for value in (7, 9, 8):
            assert await store.persist_watermarks([WatermarkWrite("a", value, owned)]) == {"a"}
        found = await store.watermarks()
        await store.close()
        return found

    assert asyncio.run(main()) == {"a": 9}
