"""Who may speak for what: a leader heeds a worker only about what it owns.

Lives here: the owners and sequencers that a leader knows, and which words of workers it therefore drops.  Never here: what
the words mean (`core.authority`).  Invariants:

* while a place is given to another owner, nobody is heard about it: the store may have changed owners already, and what the
  last one says since may be too much;
* a report counts under the newest sequencer that is known, and under no other;
* of a source with another owner nothing counts before that owner has said which partitions are open: it may have said more
  already, which was dropped, and the map does not show partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.cluster import ClusterMap
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Excused,
    IntervalSettled,
    Message,
    Open,
    RoundAnswered,
    SourceBound,
    Unsettled,
    WatermarkReport,
)
from millwheel.ids import IntervalId, Sequencer

SOURCE = "source:"


class Standing:
    """Of all workers, as of the newest map that was followed."""

    def __init__(self) -> None:
        self._owners: dict[IntervalId, str | None] = {}
        self._sources: dict[str, str | None] = {}
        """By "source:name"."""
        self._computations: dict[IntervalId, str] = {}
        self._sequencers: dict[IntervalId, Sequencer] = {}
        self._moving: set[IntervalId | str] = set()
        self._untold: set[str] = set()
        """Sources whose owners have not said yet which partitions are open."""

    def follow(self, found: ClusterMap) -> tuple[list[tuple[str, IntervalId, Sequencer]], list[tuple[str, IntervalId]]]:
        """Take a map in.  Returns intervals that have other sequencers than before, and those that are no more."""
        gone = [(name, interval) for interval, name in self._computations.items()]
        here = {placed.id for placed in found.intervals}
        anew = []
        for placed in found.intervals:
            self._owners[placed.id] = None if placed.owner is None else f"w{placed.owner}"
            if placed.sequencer > self._sequencers.get(placed.id, -1):
                self._sequencers[placed.id] = placed.sequencer
                anew.append((placed.computation, placed.id, placed.sequencer))
        self._computations = {placed.id: placed.computation for placed in found.intervals}
        sources = {
            SOURCE + source.name: None if source.owner is None else f"w{source.owner}" for source in found.sources
        }
        self._untold |= {name for name, owner in sources.items() if owner != self._sources.get(name)}
        self._sources = sources
        return anew, [(name, interval) for name, interval in gone if interval not in here]

    def suspend(self, intervals: Iterable[IntervalId], sources: Iterable[str]) -> None:
        """These are being given to other owners."""
        given = {SOURCE + name for name in sources}
        self._moving |= {*intervals, *given}
        self._untold |= given

    def resume(self) -> None:
        """The store has answered, and its map was followed."""
        self._moving.clear()

    def admit(self, peer: str, message: Message) -> Message | None:
        """What of a worker's words counts; None: nothing."""
        match message:
            case Claimed(intervals):
                return Claimed(tuple(claim for claim in intervals if self._claims(peer, *claim)))
            case WatermarkReport(owner, interval, _, sequencer):
                mine = self._speaks(peer, owner, interval)
                current = owner.startswith(SOURCE) or self._sequencers.get(interval) == sequencer
                return message if mine and current else None
            case RoundAnswered(interval, sequencer):
                mine = self._speaks(peer, "", interval)
                return message if mine and self._sequencers.get(interval) == sequencer else None
            case Unsettled(owner, interval) | Excused(owner, interval) | Concluded(owner, interval):
                return message if self._speaks(peer, owner, interval) else None
            case IntervalSettled(interval):
                return message if self._speaks(peer, "", interval) else None
            case Open(owner):
                if not self._owns(peer, owner):
                    return None
                self._untold.discard(owner)
                return message
            case SourceBound(owner):
                return message if self._speaks(peer, owner, None) else None
            case _:
                return message

    def _claims(self, peer: str, owner: str, interval: IntervalId, sequencer: Sequencer | None) -> bool:
        if not self._speaks(peer, owner, interval):
            return False
        if sequencer is None or owner.startswith(SOURCE):
            return True
        if sequencer < self._sequencers.get(interval, -1):
            return False
        self._sequencers[interval] = sequencer  # its core was restarted
        return True

    def _speaks(self, peer: str, owner: str, interval: IntervalId | None) -> bool:
        if owner.startswith(SOURCE):
            return owner not in self._untold and self._owns(peer, owner)
        return interval is not None and interval not in self._moving and self._owners.get(interval) == peer

    def _owns(self, peer: str, source: str) -> bool:
        return source not in self._moving and self._sources.get(source) == peer
