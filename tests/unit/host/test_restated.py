"""After a cut the controller hears what it needs, and nothing that was taken back since."""

from __future__ import annotations

import random

import pytest

from millwheel.core.authority import Authority
from millwheel.host.messages import (
    Claimed,
    Concluded,
    EpochBased,
    EpochOpened,
    EpochWanted,
    Excused,
    ImageWritten,
    IntervalSettled,
    Message,
    Open,
    SourceBound,
    Unsettled,
    WatermarkReport,
    WorkerJoined,
)
from millwheel.host.restated import Restated
from millwheel.ids import IntervalId, Sequencer

SENDERS = {"a": ("source:s",), "b": ("a",)}


def told(messages: list[Message], authority: Authority | None = None) -> Authority:
    """An authority that has heard these."""
    authority = authority or Authority(SENDERS, {})
    for message in messages:
        match message:
            case Claimed(intervals):
                for owner, interval, sequencer in intervals:
                    authority.expect(owner, interval, sequencer)
            case Excused(owner, interval):
                authority.excuse(owner, interval)
            case WatermarkReport(owner, interval, value):
                authority.report(owner, interval, value)
            case SourceBound(source, value):
                authority.bound(source, value)
            case Unsettled(owner, interval, receivers):
                authority.unsettled(owner, interval, receivers)
            case IntervalSettled(interval):
                authority.settle(interval)
            case Concluded(owner, interval):
                authority.retire(owner, interval)
            case Open(owner, intervals):
                for interval in authority.intervals(owner).keys() - {*intervals}:
                    authority.retire(owner, interval)
    return authority


def drawn(rng: random.Random) -> Message:
    number = rng.randrange(5)
    owner, interval = ("a", "a", "b", "source:s", "source:s")[number], IntervalId(number + 1)
    kind = rng.choice(["claim", "excuse", "conclude", "report", "bound", "unsettled", "settled"])
    if kind == "claim":
        return Claimed(((owner, interval, Sequencer(rng.randrange(9))),))
    if kind == "excuse":
        return Excused("source:s", IntervalId(rng.choice((4, 5))))
    if kind == "conclude":
        return Concluded("source:s", IntervalId(rng.choice((4, 5))))
    if kind == "bound":
        return SourceBound("source:s", rng.randrange(100))
    if kind == "unsettled":
        return Unsettled("a", IntervalId(1), ("b",))
    if kind == "settled":
        return IntervalSettled(IntervalId(1))
    return WatermarkReport(owner, interval, rng.randrange(100), Sequencer(1))


def test_who_hears_it_all_again_knows_as_much_as_who_has_heard_everything() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        claims: list[Message] = [
            Claimed(
                (
                    ("a", IntervalId(1), Sequencer(7)),
                    ("a", IntervalId(2), Sequencer(7)),
                    ("b", IntervalId(3), Sequencer(7)),
                    ("source:s", IntervalId(4), Sequencer(7)),
                )
            )
        ]
        said = claims + [drawn(rng) for _ in range(rng.randrange(30))]
        restated, highest = Restated(), dict[str, int]()
        for i, message in enumerate(said):
            if isinstance(message, WatermarkReport):  # a report only rises
                value = highest[f"{message.interval}"] = max(message.value, highest.get(f"{message.interval}", 0))
                said[i] = message = WatermarkReport(message.owner, message.interval, value, Sequencer(1))
            if isinstance(message, SourceBound):
                value = highest["bound"] = max(message.value, highest.get("bound", 0))
                said[i] = message = SourceBound(message.source, value)
            restated.note(message)
        whole, again = told(said), told(restated.all())
        for name in ("a", "b", "source:s"):
            assert {*again.intervals(name)} == {*whole.intervals(name)}, (seed, name)
            assert all(again.intervals(name)[i] >= known for i, known in whole.intervals(name).items()), (seed, name)
        assert {*again._unsettled} == {*whole._unsettled}


def test_who_joins_comes_last_and_only_when_it_has() -> None:
    restated = Restated()
    restated.note(Claimed((("a", IntervalId(1), Sequencer(7)),)))
    assert not any(isinstance(message, WorkerJoined) for message in restated.all())
    restated.note(WorkerJoined({"a": ()}))
    restated.note(Claimed((("a", IntervalId(2), Sequencer(7)),)))
    assert restated.all() == [
        Claimed((("a", IntervalId(1), Sequencer(7)), ("a", IntervalId(2), Sequencer(7)))),
        WorkerJoined({"a": ()}),
    ]


def test_of_images_those_of_the_newest_epoch_are_told_again() -> None:
    restated, one, two = Restated(), IntervalId(1), IntervalId(2)
    for message in (EpochOpened(4, {}, (), {}), ImageWritten(4, one, Sequencer(1), 0), EpochOpened(5, {}, (), {})):
        restated.note(message)
    written = ImageWritten(5, two, Sequencer(2), 0)
    restated.note(written)
    assert [said for said in restated.all() if isinstance(said, ImageWritten)] == [written]


def test_what_another_worker_speaks_for_is_not_told_again() -> None:
    restated, one = Restated(), IntervalId(1)
    for message in (Claimed((("a", one, Sequencer(1)),)), Excused("a", one), Unsettled("a", one, ("b",))):
        restated.note(message)
    restated.forget("a", one)
    assert restated.all() == [Claimed(())]


@pytest.mark.parametrize("left", [0, 1])
def test_who_has_missed_that_a_partition_has_ended_hears_of_it_with_all_the_rest(left: int) -> None:
    """It would wait for the partition for ever; also if that was the last one of its source."""
    restated, here = Restated(), ("source:s", IntervalId(4), Sequencer(1))
    others = [("source:s", IntervalId(5), Sequencer(1))] * left
    claimed = Claimed((here, *others))
    authority = told([claimed])
    restated.note(claimed)
    restated.note(Concluded("source:s", IntervalId(4)))
    told(restated.all(), authority)
    assert {*authority.intervals("source:s")} == {interval for _, interval, _ in others}


def test_when_a_source_goes_to_another_worker_all_of_it_is_forgotten_and_nothing_else() -> None:
    """Else a controller would hear of a partition from two, or of an interval from nobody."""
    restated = Restated()
    kept: list[Message] = [
        Claimed((("a", IntervalId(1), Sequencer(7)), ("source:other", IntervalId(6), Sequencer(7)))),
        WatermarkReport("a", IntervalId(1), 5, Sequencer(7)),
        SourceBound("source:other", 9),
    ]
    gone: list[Message] = [
        Claimed((("source:s", IntervalId(4), Sequencer(7)), ("source:s", IntervalId(5), Sequencer(7)))),
        WatermarkReport("source:s", IntervalId(4), 5, Sequencer(7)),
        Excused("source:s", IntervalId(5)),
        SourceBound("source:s", 9),
    ]
    for message in kept + gone:
        restated.note(message)
    restated.forget_source("source:s")
    assert restated.all() == [Open("source:other", (IntervalId(6),)), *kept]


def test_what_was_said_of_epochs_is_said_again() -> None:
    """Else an epoch that is wanted would not begin, or one that has begun would never be declared."""
    restated = Restated()
    said: list[Message] = [EpochOpened(5, {}, (), {}), EpochWanted(5), EpochBased(4)]
    for message in said:
        restated.note(message)
    assert restated.all() == [Claimed(()), *said]
