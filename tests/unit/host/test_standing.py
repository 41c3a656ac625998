"""A leader heeds a worker about what it owns, and about nothing else."""

from __future__ import annotations

from typing import get_args

import pytest

from millwheel.cluster import ClusterMap, PlacedInterval, PlacedSource
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Drained,
    EpochBased,
    EpochOpened,
    EpochWanted,
    Excused,
    ForController,
    HandedOver,
    ImageWritten,
    InQuarantine,
    IntervalSettled,
    LoadReport,
    Message,
    Open,
    RoundAnswered,
    SourceBound,
    Unsettled,
    WatermarkReport,
    WorkerJoined,
)
from millwheel.host.standing import Standing
from millwheel.ids import IntervalId, Sequencer

ONE, TWO = IntervalId(1), IntervalId(2)


def found(owner: int | None, sequencer: int, source: int | None = 7) -> ClusterMap:
    placed = PlacedInterval(ONE, "c", "", None, owner, Sequencer(sequencer))
    return ClusterMap(1, None, (), (placed,), (PlacedSource("s", source),))


def report(sequencer: int) -> WatermarkReport:
    return WatermarkReport("c", ONE, 100, Sequencer(sequencer))


def test_reports_count_from_the_owner_and_under_the_newest_sequencer() -> None:
    standing = Standing()
    assert standing.follow(found(7, 5)) == ([("c", ONE, 5)], [])
    assert standing.admit("w7", report(5)) == report(5)
    assert standing.admit("w8", report(5)) is None
    assert standing.admit("w7", report(4)) is None
    assert standing.follow(found(8, 9))[0] == [("c", ONE, 9)]
    assert standing.admit("w7", report(5)) is None, "it has not heard that it was superseded"
    assert standing.admit("w8", report(9)) == report(9)


def test_nobody_is_heard_about_what_is_being_placed() -> None:
    standing = Standing()
    standing.follow(found(7, 5))
    standing.suspend([ONE], ["s"])
    assert standing.admit("w7", report(5)) is None
    assert standing.admit("w7", SourceBound("source:s", 3)) is None
    standing.follow(found(7, 5))
    standing.resume()
    assert standing.admit("w7", report(5)) is not None


def test_while_a_source_is_being_placed_its_last_owner_cannot_say_either_which_partitions_are_open() -> None:
    # Else all that it says behind that would count, and the store may have given the source to another one.
    standing = opened()
    standing.suspend([], ["s"])
    assert standing.admit("w7", Open("source:s", (TWO,))) is None
    assert standing.admit("w7", SourceBound("source:s", 3)) is None
    standing.follow(found(7, 5))
    standing.resume()
    assert standing.admit("w7", SourceBound("source:s", 3)) is None, "it was placed in vain, and has to say all again"
    assert standing.admit("w7", Open("source:s", (TWO,))) is not None
    assert standing.admit("w7", SourceBound("source:s", 3)) is not None


def opened(owner: int = 7) -> Standing:
    """The owner of the source has said which partitions are open."""
    standing = Standing()
    standing.follow(found(7, 5, source=owner))
    standing.admit(f"w{owner}", Open("source:s", ()))
    return standing


TWO_CLAIMED = Claimed((("source:s", TWO, Sequencer(3)),))


@pytest.mark.parametrize("before", ["placed", "moved", "placed in vain"])
def test_the_owner_of_a_source_is_not_heard_before_it_has_said_which_partitions_are_open(before: str) -> None:
    # What it had said of a partition was dropped, because the leader did not know that it owns the source.  What it said next
    # was heard, and the watermark went past the rows of that partition.
    standing, speaker = (Standing() if before == "placed" else opened(8 if before == "moved" else 7)), "w7"
    if before == "placed in vain":
        standing.suspend([], ["s"])
    assert standing.admit(speaker, TWO_CLAIMED) in (None, Claimed(()))
    standing.follow(found(7, 5))
    standing.resume()
    for message in (TWO_CLAIMED, WatermarkReport("source:s", TWO, 9, Sequencer(3)), SourceBound("source:s", 3)):
        assert standing.admit(speaker, message) in (None, Claimed(()))
    assert standing.admit("w9", Open("source:s", ())) is None
    assert standing.admit(speaker, SourceBound("source:s", 3)) is None
    assert standing.admit(speaker, Open("source:s", (TWO,))) == Open("source:s", (TWO,))
    assert standing.admit(speaker, TWO_CLAIMED) == TWO_CLAIMED
    assert standing.admit(speaker, SourceBound("source:s", 3)) is not None
    standing.follow(found(7, 5))
    assert standing.admit(speaker, SourceBound("source:s", 4)) is not None, "nothing has changed"


def test_a_core_that_was_restarted_reports_under_the_sequencer_that_its_owner_claims() -> None:
    standing = opened()
    claim = Claimed((("c", ONE, Sequencer(6)), ("c", TWO, Sequencer(6)), ("source:s", TWO, Sequencer(6))))
    admitted = standing.admit("w7", claim)
    assert isinstance(admitted, Claimed)
    assert admitted.intervals == (claim.intervals[0], claim.intervals[2])
    assert standing.admit("w7", report(5)) is None
    assert standing.admit("w7", report(6)) is not None
    assert standing.follow(found(7, 5))[0] == [], "a map that was read before that changes nothing"


def test_words_about_a_source_count_from_its_owner() -> None:
    standing = Standing()
    standing.follow(found(7, 5, source=8))
    assert standing.admit("w7", Open("source:s", ())) is None
    assert standing.admit("w8", Open("source:s", ())) is not None


SAID: tuple[tuple[Message, int], ...] = (
    (Claimed((("c", ONE, Sequencer(5)),)), 7),
    (report(5), 7),
    (RoundAnswered(ONE, Sequencer(5), 1, 9), 7),
    (Unsettled("c", ONE, ("d",)), 7),
    (IntervalSettled(ONE), 7),
    (Excused("source:s", TWO), 8),
    (Concluded("source:s", TWO), 8),
    (Open("source:s", ()), 8),
    (SourceBound("source:s", 3), 8),
    (WatermarkReport("source:s", TWO, 100, Sequencer(3)), 8),
)
"""What a leader hears about the interval of w7 and the source of w8, and whose word it is."""


@pytest.mark.parametrize(("message", "owner"), SAID, ids=lambda given: type(given).__name__)
def test_each_word_counts_from_the_owner_and_from_nobody_else(message: Message, owner: int) -> None:
    standing = Standing()
    standing.follow(found(7, 5, source=8))
    standing.admit("w8", Open("source:s", ()))
    for speaker in (7, 8, 9):
        heard = standing.admit(f"w{speaker}", message)
        assert (heard in (None, Claimed(()))) == (speaker != owner)


def test_every_word_about_an_owner_is_tried_here() -> None:
    of_all = {
        WorkerJoined,
        HandedOver,
        LoadReport,
        Drained,
        InQuarantine,
        EpochBased,
        EpochOpened,
        ImageWritten,
        EpochWanted,
    }
    assert {type(message) for message, _ in SAID} == {*get_args(ForController)} - of_all


def test_an_answer_to_a_round_counts_under_the_newest_sequencer() -> None:
    standing = Standing()
    standing.follow(found(7, 5))
    assert standing.admit("w7", RoundAnswered(ONE, Sequencer(4), 1, 9)) is None
    standing.admit("w7", Claimed((("c", ONE, Sequencer(6)),)))
    assert standing.admit("w7", RoundAnswered(ONE, Sequencer(5), 1, 9)) is None
    assert standing.admit("w7", RoundAnswered(ONE, Sequencer(6), 1, 9)) is not None


def test_an_interval_that_was_united_with_another_one_is_no_more() -> None:
    standing = Standing()
    standing.follow(found(7, 5))
    assert standing.follow(ClusterMap(2, None, (), (), ())) == ([], [("c", ONE)])


def test_a_claim_that_was_overtaken_by_a_newer_one_counts_for_nothing() -> None:
    standing = Standing()
    standing.follow(found(7, 5))
    standing.admit("w7", Claimed((("c", ONE, Sequencer(6)),)))
    assert standing.admit("w7", Claimed((("c", ONE, Sequencer(5)),))) == Claimed(())
    assert standing.admit("w7", report(5)) is None
