"""A recovery reads what is pending, and neither keys nor ids."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Coroutine, Generator
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel.bundles import (
    Delivered,
    HoldWrites,
    Ids,
    LogWrite,
    Produced,
    QuarantineEntry,
    SinkRow,
    encode_checkpoint,
)
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.samples import image, shape

pytestmark = pytest.mark.postgres


def gone(**key: object) -> SinkRow:
    return SinkRow("out", msgspec.json.encode(key), deleted=True)


def test_one_shot_keys_leave_no_rows_and_recovery_does_not_read_keys(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        for seq in range(1, 21, 2):
            keys = [f"a{seq}-{n}" for n in range(2_000)]
            kept, gone = image(keys), image([])
            kept.ids[:] = [
                Ids(
                    SubscriptionId(1),
                    ProducerId(5),
                    SequenceNumber(seq * 2_000),
                    sequence_numbers(range(seq * 2_000, seq * 2_000 + 2_000)),
                )
            ]
            kept.produced[:] = [
                Produced(SubscriptionId(1), ProducerId(sequencer), SequenceNumber(seq * 10), ["k"], [b"v"], [1])
            ]
            gone.forgotten[:] = keys
            for number, one in ((seq, kept), (seq + 1, gone)):
                await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
                assert await store.fold(FoldWrite(first, sequencer, Seq(number), [one]))
        tables = postgres_tables(postgres.url, pipeline)
        assert tables["key_state"] == []
        assert tables["checkpoint_log"] == []
        assert len(tables["delivered"]) == 2_000
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute(f'SELECT count(*) FROM "{pipeline}".delivered').fetchone() == (1,)
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert [len(bundle.keys) for bundle in recovered.productions] == [10]
        await store.close()

    asyncio.run(main())


def test_what_lies_at_a_split_key_is_that_of_the_interval_which_begins_there(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> list[tuple[list[str], list[str], list[str]]]:
        store = PostgresStore(postgres.url, pipeline)
        ids = [row.id for row in (await store.open_pipeline(shape(pipeline))).intervals]
        owned, found = await store.acquire(ids), []
        one = msgspec.structs.replace(image(["m"]), holds=HoldWrites(["m"], [5]))
        one.timers.add("m", "t", "watermark", 7)
        one.quarantined[:] = [QuarantineEntry("m", SubscriptionId(1), ProducerId(2), SequenceNumber(0), b"v", 1)]
        await store.commit([LogWrite(ids[1], owned[ids[1]], Seq(1), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(ids[1], owned[ids[1]], Seq(1), [one]))
        for interval in ids:
            recovered = await store.recover(interval, owned[interval])
            assert recovered is not None
            found.append((recovered.holds.keys, recovered.timers.keys, recovered.quarantined))
        await store.close()
        return found

    assert asyncio.run(main()) == [([], [], []), (["m"], ["m"], ["m"])]


def test_ids_at_the_ends_of_what_one_fold_has_stored_are_found(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> list[set[SequenceNumber]]:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        one, channel = image([]), (SubscriptionId(1), ProducerId(5))
        one.ids[:] = [Ids(*channel, SequenceNumber(0), sequence_numbers([3, 4, 6]))]
        await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), [one]))
        found = [
            await store.find_ids(first, *channel, sequence_numbers(asked)) for asked in ([2], [2, 3], [5], [6], [6, 7])
        ]
        await store.close()
        return found

    assert asyncio.run(main()) == [set(), {3}, set(), {6}, {6}]


def test_recovery_does_not_read_ids_and_one_is_found_among_a_million(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        for number in range(1, 26):  # 40,000 ids a fold, every third of the producer's
            one = image([])
            one.ids[:] = [
                Ids(
                    SubscriptionId(1),
                    ProducerId(5),
                    SequenceNumber(0),
                    sequence_numbers(range(number * 120_000, (number + 1) * 120_000, 3)),
                )
            ]
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
            assert await store.fold(FoldWrite(first, sequencer, Seq(number), [one]))
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert recovered.ids == [
            Delivered(SubscriptionId(1), ProducerId(5), SequenceNumber(0), SequenceNumber(26 * 120_000 - 3))
        ]
        asked = [119_997, 120_000, 600_000, 600_001, 26 * 120_000 - 3]
        assert await store.find_ids(first, SubscriptionId(1), ProducerId(5), sequence_numbers(asked)) == {
            120_000,
            600_000,
            26 * 120_000 - 3,
        }
        assert await store.find_ids(first, SubscriptionId(1), ProducerId(6), sequence_numbers(asked)) == set()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["state", "a timer", "state in the log", "state that is gone"])
def test_a_store_is_blank_until_a_key_has_something(postgres: EmbeddedPostgres, pipeline: str, what: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first, other = [row.id for row in (await store.open_pipeline(shape(pipeline))).intervals]
        for number in range(2):  # nothing of keys in the log and in the tables
            sequencer = (await store.acquire([first]))[first]
            recovered = await store.recover(first, sequencer)
            assert recovered is not None
            assert recovered.blank
            nothing = image([])
            nothing.ids[:] = [Ids(SubscriptionId(1), ProducerId(5), SequenceNumber(0), sequence_numbers([number]))]
            await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(nothing))])
        one, gone = image(["a"] if what != "a timer" else []), image([])
        if what == "a timer":
            one.timers.add("a", "", "wall", 7)
        gone.forgotten[:] = ["a"]
        for number, each in enumerate([one, gone] if what == "state that is gone" else [one], 2):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(each))])
            if what != "state in the log":
                images = [nothing, each] if number == 2 else [each]
                assert await store.fold(FoldWrite(first, sequencer, Seq(number), images))
        for interval in (first, other):
            recovered = await store.recover(interval, (await store.acquire([interval]))[interval])
            assert recovered is not None
            assert not recovered.blank
        await store.close()

    asyncio.run(main())


class CancelledAt:
    """Work that is cancelled where it waits for the `at`-th time."""

    def __init__(self, work: Coroutine[Any, Any, object], at: int) -> None:
        self._work = work
        self._at = at

    def __await__(self) -> Generator[Any, None, object]:
        steps = self._work.__await__()
        waits = 0
        try:
            awaited = next(steps)
            while True:
                waits += 1
                if waits == self._at:
                    awaited = steps.throw(asyncio.CancelledError())
                else:
                    yield awaited
                    awaited = steps.send(None)
        except StopIteration as end:
            return end.value


def test_a_recovery_that_is_cancelled_anywhere_leaves_nothing_open(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """What it leaves to the garbage collector complains there, long after, in whatever runs then."""

    async def main() -> int:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(image(["a"])))])
        sequencer = (await store.acquire([first]))[first]
        at = 0
        while True:
            at += 1
            try:
                recovered = await CancelledAt(store.recover(first, sequencer), at)
            except asyncio.CancelledError:
                continue
            assert recovered is not None
            await store.close()
            return at

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
        told.clear()  # what earlier tests have left
        assert asyncio.run(main()) > 10  # it waits at least for one answer to each statement
        gc.collect()
    assert not [str(each.message) for each in told]
