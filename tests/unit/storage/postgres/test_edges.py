"""What lies exactly at the edge of a key range, of a frontier or of a time is on one side of it, in both stores."""

from __future__ import annotations

import pytest

from millwheel.bundles import (
    BEFORE_TIMERS,
    Delivered,
    HoldWrites,
    LogWrite,
    OutsideBucket,
    OutsideIdWrites,
    QuarantineEntry,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber
from millwheel.model import TIMER_KINDS
from millwheel.ports import Declaration
from millwheel_storage.embedded import EmbeddedPostgres
from tests.unit.storage.postgres.test_reshapes import IN, ONE, TWO, Led, checkpoint, ids, on_both

pytestmark = pytest.mark.postgres

KEYS = {ONE: ["", "l", "lz"], TWO: ["m", "m\0", "z"]}
"""By interval; the second begins at "m"."""


def test_a_key_is_read_by_the_interval_that_begins_at_it_and_not_by_the_one_that_ends_there(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        for interval, keys in KEYS.items():
            each = [(key, kind) for key in keys for kind in TIMER_KINDS]
            await led.fold(
                interval,
                timers=TimerWrites(
                    [key for key, _ in each], ["t"] * len(each), [kind for _, kind in each], [7] * len(each)
                ),
                holds=HoldWrites([*keys], [7] * len(keys)),
                quarantined=[QuarantineEntry(key, IN, ProducerId(5), SequenceNumber(0), b"v", 1) for key in keys],
            )
        for interval, keys in KEYS.items():
            owned = await led.place(interval, owner=led.worker)
            found = await led.store.recover(interval, owned[interval])
            assert found is not None
            assert (found.holds.keys, found.quarantined) == (keys, keys)
            assert sorted(found.timers.keys) == sorted(keys * len(TIMER_KINDS))
            for kind in TIMER_KINDS:
                page = await led.store.load_timers(interval, owned[interval], kind, BEFORE_TIMERS, 9)
                assert page is not None
                assert page.keys == keys

    on_both(postgres, pipeline, test)


def test_an_id_that_is_the_frontier_is_known_and_found_alone(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        await led.fold(ONE, ids=[ids(5, 0, 2, 3), ids(6, 4, 4), ids(7, 4, 3)])
        await led.fold(ONE, ids=[ids(5, 3, 7)])
        await led.fold(ONE, ids=[ids(5, 1)])  # a frontier that comes late takes nothing back
        recovered = await led.store.recover(ONE, (await led.place(ONE, owner=led.worker))[ONE])
        assert recovered is not None
        tops = {5: (3, 7), 6: (4, 4), 7: (4, -1)}
        assert recovered.ids == [
            Delivered(IN, ProducerId(producer), SequenceNumber(frontier), SequenceNumber(top))
            for producer, (frontier, top) in tops.items()
        ]
        for producer, known in (5, {3, 7}), (6, {4}), (7, set()):
            asked = [SequenceNumber(n) for n in range(3, 9)]
            alone = [await led.store.find_ids(ONE, IN, ProducerId(producer), [n]) for n in asked]
            assert set().union(*alone) == known, producer
            assert await led.store.find_ids(ONE, IN, ProducerId(producer), asked) == known

    on_both(postgres, pipeline, test)


def test_an_outside_id_expires_at_its_time_and_not_before(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def test(led: Led) -> None:
        await led.fold(ONE, outside=[OutsideIdWrites(IN, 50, [b"x"]), OutsideIdWrites(IN, 60, [b"y"])])
        assert [await led.store.find_outside_ids(ONE, IN, now, [b"x"]) for now in (49, 50)] == [{b"x"}, set()]
        for said, left in (49, [50, 60]), (50, [60]), (60, []):
            await led.fold(ONE, outside=[OutsideIdWrites(IN, said, [])])
            await led.fold(ONE, outside=[OutsideIdWrites(IN, said, [])])
            recovered = await led.store.recover(ONE, (await led.place(ONE, owner=led.worker))[ONE])
            assert recovered is not None
            assert recovered.outside == [OutsideBucket(IN, expires, 1) for expires in left]

    on_both(postgres, pipeline, test)


@pytest.mark.parametrize("low", [ONE, TWO])
def test_a_merge_keeps_the_larger_frontier_and_the_id_that_it_is(
    postgres: EmbeddedPostgres, pipeline: str, low: IntervalId
) -> None:
    async def test(led: Led) -> None:
        for interval in (ONE, TWO):
            await led.fold(interval, ids=[ids(5, 2, 2, 3) if interval == low else ids(5, 4, 4)])
        await led.reshape([ONE, TWO])
        recovered = await led.store.recover(ONE, (await led.place(ONE, owner=led.worker))[ONE])
        assert recovered is not None
        assert recovered.ids == [Delivered(IN, ProducerId(5), SequenceNumber(4), SequenceNumber(4))]
        asked = [SequenceNumber(n) for n in range(10)]
        assert await led.store.find_ids(ONE, IN, ProducerId(5), asked) == {4}

    on_both(postgres, pipeline, test)


def test_what_is_in_quarantine_is_counted_while_the_log_has_only_what_is_not_declared(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        await led.fold(ONE, quarantined=[QuarantineEntry("a", IN, ProducerId(5), SequenceNumber(0), b"v", 1)])
        owned = await led.place(ONE, owner=led.worker)
        write = LogWrite(ONE, owned[ONE], Seq(1), 1, encode_checkpoint(checkpoint()))
        assert await led.store.commit([write])
        assert await led.store.count_quarantined() == 1
        assert await led.store.declare(Declaration(epoch=1, owners=owned, term=led.epoch))
        assert await led.store.count_quarantined() is None, "the log may have more"

    on_both(postgres, pipeline, test)


def test_what_is_in_quarantine_is_not_counted_while_a_log_counts_though_nothing_was_ever_declared(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def test(led: Led) -> None:
        owned = await led.place(ONE, owner=led.worker)
        failed = QuarantineEntry("a", IN, ProducerId(5), SequenceNumber(0), b"v", 1)
        image = checkpoint(quarantined=[failed])
        assert await led.store.commit([LogWrite(ONE, owned[ONE], Seq(1), 0, encode_checkpoint(image))])
        assert await led.store.count_quarantined() is None
        assert await led.store.recover(ONE, owned[ONE]) is not None
        assert await led.store.count_quarantined() == 1

    on_both(postgres, pipeline, test)
