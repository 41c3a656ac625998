"""What a worker has told the controller and would tell it again: a cut may have lost any of it.

Lives here: the newest message on each subject.  Never here: sending.  Invariant: a controller that hears `all` and nothing
else knows as much as one that has heard every message.
"""

from __future__ import annotations

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
from millwheel.ids import IntervalId, Sequencer


class Restated:
    """The words of one worker."""

    def __init__(self) -> None:
        self._settling: dict[IntervalId, Unsettled | IntervalSettled] = {}
        self._owners: set[str] = set()
        """Who has ever had an interval."""
        self._claims: dict[tuple[str, IntervalId], Sequencer | None] = {}
        self._excuses: dict[IntervalId, Excused] = {}
        self._reports: dict[tuple[str, IntervalId], WatermarkReport] = {}
        self._bounds: dict[str, SourceBound] = {}
        self._joined: WorkerJoined | None = None
        self._based: EpochBased | None = None
        self._opened: EpochOpened | None = None
        self._wanted: EpochWanted | None = None
        self._images: dict[IntervalId, ImageWritten] = {}
        """Of the last epoch that was opened."""

    def note(self, message: Message) -> None:
        """This is being told."""
        match message:
            case WatermarkReport(owner, interval):
                self._reports[owner, interval] = message
                self._excuses.pop(interval, None)
            case Claimed(intervals):
                for owner, interval, sequencer in intervals:
                    self._owners.add(owner)
                    self._claims[owner, interval] = sequencer
                    self._excuses.pop(interval, None)
            case Concluded(owner, interval):
                self._claims.pop((owner, interval), None)
                self._reports.pop((owner, interval), None)
                self._excuses.pop(interval, None)
            case Excused(owner, interval):
                self._excuses[interval] = message
                self._reports.pop((owner, interval), None)
            case Unsettled(_, interval) | IntervalSettled(interval):
                self._settling[interval] = message
            case SourceBound(source):
                self._bounds[source] = message
            case WorkerJoined():
                self._joined = message
            case EpochBased():
                self._based = message
            case EpochOpened():
                self._opened = message
                self._images = {i: said for i, said in self._images.items() if said.epoch == message.epoch}
            case ImageWritten():
                self._images[message.interval] = message
            case EpochWanted():
                self._wanted = message
            case Open(owner):
                self._owners.add(owner)
            case _:
                raise AssertionError(f"a worker tells the controller no {type(message).__name__}")

    def forget(self, owner: str, interval: IntervalId) -> None:
        """Another worker speaks for the interval now."""
        self._settling.pop(interval, None)
        self._claims.pop((owner, interval), None)
        self._excuses.pop(interval, None)
        self._reports.pop((owner, interval), None)

    def forget_source(self, source: str) -> None:
        """Another worker speaks for "source:name" now."""
        for owner, interval in [place for place in self._claims if place[0] == source]:
            self.forget(owner, interval)
        self._owners.discard(source)
        self._bounds.pop(source, None)

    def all(self) -> list[Message]:
        """All messages once more.  `Joined` comes last, because the controller begins with what it has heard by then."""
        claims = tuple((owner, interval, sequencer) for (owner, interval), sequencer in self._claims.items())
        found: list[Message] = [*self._settling.values()]
        for owner in sorted(self._owners):
            if owner.startswith("source:"):  # what was lost may have been that one of its partitions has ended
                found.append(Open(owner, tuple(interval for of, interval in self._claims if of == owner)))
        found += [Claimed(claims), *self._excuses.values()]
        found += [*self._reports.values(), *self._bounds.values(), *self._images.values()]
        found += [said for said in (self._opened, self._wanted, self._based) if said is not None]
        return [*found, self._joined] if self._joined is not None else found
