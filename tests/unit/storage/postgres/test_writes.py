"""A fold writes each key once, and keeps up with the log."""

from __future__ import annotations

import asyncio
import time
from itertools import combinations, pairwise

import msgspec
import pytest

from millwheel.bundles import (
    HoldWrites,
    LogWrite,
    QuarantineEntry,
    encode_checkpoint,
)
from millwheel.errors import (
    StoreError,
)
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.writes import _runs
from tests.unit.storage.samples import image, shape

pytestmark = pytest.mark.postgres


def test_a_key_that_is_stored_is_not_inserted_as_new(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """And then nothing of that fold is applied: a recovery, which trusts nobody, folds the log."""

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        images = [image(["a"]), image(["a", "b"])]
        for number, one in enumerate(images, 1):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), images[:1], (), {"a"}))
        with pytest.raises(StoreError, match="duplicate key"):
            await store.fold(FoldWrite(first, sequencer, Seq(2), images[1:], (), {"a", "b"}))
        assert [row.key for row in await store.load(first, ["a", "b"])] == ["a"]
        assert await store.recover(first, sequencer) is not None
        assert [row.key for row in await store.load(first, ["a", "b"])] == ["a", "b"]
        await store.close()

    asyncio.run(main())


def test_a_key_that_ends_in_the_fold_in_which_its_hold_was_released_leaves_no_hold(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Of what was written before its end in that fold nothing is left, and so not the release either."""

    async def main() -> list[str]:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        held, released = (msgspec.structs.replace(image(["a"]), holds=HoldWrites(["a"], [at])) for at in (5, None))
        images = [held, released, msgspec.structs.replace(image([]), forgotten=["a"])]
        for number, one in enumerate(images, 1):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), images[:1]))
        assert await store.fold(FoldWrite(first, sequencer, Seq(3), images[1:]))
        recovered = await store.recover(first, sequencer)
        await store.close()
        assert recovered is not None
        return recovered.holds.keys

    assert asyncio.run(main()) == []


def test_what_left_a_line_that_ended_and_began_again_in_one_fold_is_gone(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    def element(sequence: int) -> QuarantineEntry:
        return QuarantineEntry("a", SubscriptionId(1), ProducerId(2), SequenceNumber(sequence), b"v", 1, error="no")

    async def main() -> list[int]:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        images = [
            msgspec.structs.replace(image([]), quarantined=[element(0)]),
            msgspec.structs.replace(
                image([]), redriven=[("a", 1)], released=["a"], quarantined=[element(1), element(2)]
            ),
            msgspec.structs.replace(image([]), redriven=[("a", 1)], quarantined=[element(3)]),
        ]
        for number, one in enumerate(images, 1):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), images[:1]))
        assert await store.fold(FoldWrite(first, sequencer, Seq(3), images[1:]))
        found = await store.quarantined(first, ["a"], 9)
        await store.close()
        return [entry.sequence for entry in found]

    assert asyncio.run(main()) == [2, 3]


def test_a_fold_is_fast_enough_to_keep_up(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """A floor far below the measured 100,000 rows/s: it fails when somebody folds row by row."""

    async def main() -> float:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        best = 0.0
        for seq in range(1, 6):
            one = image([f"a{seq}-{n}" for n in range(5_000)])
            await store.commit([LogWrite(first, sequencer, Seq(seq), 0, encode_checkpoint(one))])
            started = time.perf_counter()
            assert await store.fold(FoldWrite(first, sequencer, Seq(seq), [one]))
            best = max(best, 5_000 / (time.perf_counter() - started))
        await store.close()
        return best

    assert asyncio.run(main()) > 20_000


@pytest.mark.parametrize("count", range(1, 8))
def test_numbers_are_written_as_runs_that_hold_just_them(count: int) -> None:
    """What is acked is deleted by such runs: a number in a gap is what a receiver still waits for."""
    for numbers in combinations(sequence_numbers(range(3, 10)), count):
        runs = [*zip(*_runs(numbers), strict=True)]
        assert [number for low, high in runs for number in range(low, high + 1)] == [*numbers]
        assert all(low > before + 1 for (_, before), (low, _) in pairwise(runs)), "two runs might be one"
