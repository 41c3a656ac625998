"""Whose turn it is, what is missing, and how far silence carries the watermark."""

from __future__ import annotations

import pytest

from millwheel.core.interval.events import RowsRead
from millwheel.core.source.feed import Feed
from millwheel.ids import IntervalId, ProducerId
from millwheel.model import MIN_TIME
from millwheel.ports import SourcePosition

IDLE = 100
DISORDER = 7


def position(name: str, interval: IntervalId, finished: bool = False) -> SourcePosition:
    return SourcePosition(name, interval, ProducerId(10 + interval), 3, finished, b"")


def rows(progressed: bool = False, finished: bool = False, watermark: int = MIN_TIME) -> RowsRead:
    return RowsRead({}, int(progressed), 0, b"", watermark, finished, progressed)


def ordered(*positions: SourcePosition) -> Feed:
    return Feed(True, None, 0, positions)


def end(feed: Feed, interval: IntervalId) -> int | None:
    assert feed.read(interval, rows(progressed=True, finished=True), 0, 0)[1] is None
    return feed.read(interval, rows(finished=True), 0, 0)[1]


# Turns


def test_partitions_of_an_ordered_source_are_read_one_after_the_other() -> None:
    feed = ordered()
    assert [feed.open(IntervalId(interval), 0) for interval in (1, 2, 3)] == [False, True, True]
    assert feed.read(IntervalId(1), rows(), 0, 0)[1] is None
    assert end(feed, IntervalId(1)) == 2
    assert feed.open(IntervalId(4), 0)
    assert [end(feed, IntervalId(2)), end(feed, IntervalId(3)), end(feed, IntervalId(4))] == [3, 4, None]
    assert not feed.open(IntervalId(5), 0)


def test_those_of_another_source_are_read_side_by_side() -> None:
    feed = Feed(False, None, 0, ())
    assert [feed.open(IntervalId(interval), 0) for interval in (1, 2)] == [False, False]
    assert [end(feed, IntervalId(1)), end(feed, IntervalId(2))] == [None, None]


def test_a_partition_that_comes_back_has_its_old_turn() -> None:
    feed = ordered(position("a", IntervalId(1)), position("b", IntervalId(2)), position("c", IntervalId(3)))
    assert [feed.open(IntervalId(interval), 0) for interval in (2, 3)] == [False, True]
    assert not feed.open(IntervalId(1), 0)
    assert end(feed, IntervalId(2)) is None  # 1 is older than 3
    assert end(feed, IntervalId(1)) == 3


def test_one_that_comes_back_behind_an_older_one_waits() -> None:
    feed = ordered(position("a", IntervalId(1)), position("b", IntervalId(2)), position("c", IntervalId(3)))
    assert [feed.open(IntervalId(interval), 0) for interval in (1, 3, 2)] == [False, True, True]
    assert [end(feed, IntervalId(1)), end(feed, IntervalId(2)), end(feed, IntervalId(3))] == [2, 3, None]


def test_one_that_no_run_has_met_and_that_comes_before_one_that_was_begun_keeps_both_in_sight() -> None:
    """It is out of order: neither waits, so the watermark waits for both."""
    feed = ordered(position("b", IntervalId(2)))
    assert [feed.open(IntervalId(interval), 0) for interval in (5, 2)] == [False, False]
    assert feed.open(IntervalId(6), 0)
    assert [end(feed, IntervalId(2)), end(feed, IntervalId(5))] == [None, 6]


# What is missing


def test_what_was_begun_and_is_not_met_is_missing() -> None:
    feed = ordered(
        position("a", IntervalId(1)), position("b", IntervalId(2), finished=True), position("c", IntervalId(3))
    )
    assert [one.partition for one in feed.missing()] == ["a", "c"]
    feed.meet(["c", "new"])
    assert feed.missing() == [position("a", IntervalId(1))]
    feed.meet(["a"])
    assert feed.missing() == []


# Silence


def silent_for(feed: Feed, asked_at: int, watermark: int = MIN_TIME, interval: int = 1) -> int:
    """The watermark that a read gives which finds nothing."""
    found, _ = feed.read(IntervalId(interval), rows(watermark=watermark), asked_at, asked_at + 5)
    return found.watermark


@pytest.fixture
def feed() -> Feed:
    feed = Feed(False, IDLE, DISORDER, ())
    feed.open(IntervalId(1), 1_000)
    return feed


def test_a_partition_is_silent_when_its_time_has_passed_since_its_last_row(feed: Feed) -> None:
    feed.read(IntervalId(1), rows(progressed=True), 1_010, 1_020)
    assert silent_for(feed, 1_020 + IDLE - 1) == MIN_TIME
    assert silent_for(feed, 1_020 + IDLE) == 1_020 + IDLE - DISORDER
    assert silent_for(feed, 1_500, watermark=9_999) == 9_999
    back, _ = feed.read(IntervalId(1), rows(progressed=True, watermark=5), 1_600, 1_610)
    assert back.watermark == 5
    assert silent_for(feed, 1_650) == MIN_TIME


def test_one_that_never_had_a_row_is_silent_from_the_first_look_on(feed: Feed) -> None:
    assert silent_for(feed, 5_000) == MIN_TIME
    assert silent_for(feed, 5_005 + IDLE) == 5_005 + IDLE - DISORDER


def test_who_is_idle_at_once_is_not_while_rows_come() -> None:
    feed = Feed(False, 0, DISORDER, ())
    feed.open(IntervalId(1), 1_000)
    found = rows(progressed=True)
    feed.read(IntervalId(1), found, 1_000, 1_000)
    assert (found.watermark, feed.bound(3, 1_000)) == (MIN_TIME, 3)


def test_without_a_word_of_it_silence_says_nothing() -> None:
    feed = Feed(False, None, DISORDER, ())
    feed.open(IntervalId(1), 0)
    assert [silent_for(feed, at) for at in (0, 10**9)] == [MIN_TIME, MIN_TIME]
    assert feed.bound(3, 10**9) == 3


def test_those_to_come_are_bounded_by_the_clock_while_all_that_are_there_are_silent(feed: Feed) -> None:
    feed.open(IntervalId(2), 1_000)
    silent_for(feed, 1_000)
    silent_for(feed, 1_000, interval=IntervalId(2))
    silent_for(feed, 1_200)
    assert feed.bound(3, 1_200) == 3  # 2 has not looked
    silent_for(feed, 1_200, interval=IntervalId(2))
    assert feed.bound(3, 1_200) == 1_200 - DISORDER
    assert feed.bound(5_000, 1_200) == 5_000
    feed.open(IntervalId(3), 1_250)
    assert feed.bound(3, 1_300) == 3  # somebody has come
    end(feed, IntervalId(3))
    assert feed.bound(3, 1_400) == 1_400 - DISORDER  # and gone


def test_a_source_whose_every_partition_was_finished_earlier_is_silent_in_the_end() -> None:
    feed = Feed(False, IDLE, DISORDER, ())
    assert feed.bound(3, 10**9) == 3
    feed.stir(1_200)
    feed.stir(1_900)
    assert feed.bound(3, 1_200 + IDLE - 1) == 3
    assert feed.bound(3, 1_200 + IDLE) == 1_200 + IDLE - DISORDER


def test_a_row_ends_the_silence_of_the_source(feed: Feed) -> None:
    silent_for(feed, 1_000)
    silent_for(feed, 1_200)
    feed.read(IntervalId(1), rows(progressed=True), 1_400, 1_410)
    assert feed.bound(3, 1_450) == 3
    feed.read(IntervalId(1), rows(finished=True), 1_420, 1_420)
    assert feed.bound(3, 1_410 + IDLE - 1) == 3
    assert feed.bound(3, 1_410 + IDLE) == 1_410 + IDLE - DISORDER


def test_one_that_waits_for_its_turn_is_not_silent() -> None:
    feed = Feed(True, IDLE, 0, ())
    feed.open(IntervalId(1), 0)
    feed.open(IntervalId(2), 0)
    silent_for(feed, 0)
    silent_for(feed, IDLE + 10)
    assert feed.bound(3, IDLE + 10) == 3


def test_a_source_without_partitions_says_what_it_says() -> None:
    assert Feed(False, IDLE, 0, ()).bound(3, 10**9) == 3
