"""The central low-watermark authority (§4.5, §6.2).

Lives here: minima over intervals and over senders.  Invariants:

* with a share, a few partitions of a source that are behind do not hold it, and what they still bring is late;
* a value is persisted before it is broadcast, and values never go back;
* values of different stages are never combined here: an interval reports against the watermark that it has applied;
* the floor of a loop stands among the values, under the loop's name.  It comes of a round (`loop_rounds`), and is written
  only while the owners who answered that round are the owners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from millwheel.core.loop_rounds import Floor
from millwheel.core.lowest import LowestReports
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME


class Authority:
    """Watermarks of computations and sources, and who must hear of them."""

    def __init__(
        self,
        senders: Mapping[str, Iterable[str]],
        persisted: Mapping[str, int],
        loops: Mapping[str, Collection[str]] | None = None,
        shares: Mapping[str, int] | None = None,
    ) -> None:
        self.loops = loops or {}
        """By name: the computations of each loop."""
        self._shares = shares or {}
        """By name of a source: the millionths of its open partitions that its watermark waits for; else all of them."""
        self._floors: dict[str, Floor] = {}
        """By name of a loop: what its newest round says."""
        self._senders = {name: tuple(of) for name, of in senders.items()}
        self._intervals: defaultdict[str, LowestReports[IntervalId]] = defaultdict(LowestReports)
        """By name: what each interval has reported.  A report costs the same with a thousand intervals and with a million."""
        self._values: dict[str, int] = dict(persisted)
        self._bounds: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._owners: dict[str, dict[IntervalId, Sequencer]] = {}
        """By name: the sequencers under which this process reports.  Partitions at the end of time are left out."""
        self._unsettled: dict[IntervalId, tuple[str, set[str]]] = {}
        """Intervals with productions of an earlier version of the pipeline: their computation, and who receives these."""

    def expect(self, name: str, interval: IntervalId, sequencer: Sequencer | None = None) -> None:
        """`name` (a computation or "source:x") has this interval, which holds the watermark until it reports.

        It reports under `sequencer`, which is None when nobody in this process owns it.
        """
        if sequencer is not None:
            self._owners.setdefault(name, {})[interval] = sequencer
        known = self._intervals[name]
        if interval not in known:
            known.set(interval, MIN_TIME)

    def unsettled(self, name: str, interval: IntervalId, receivers: Iterable[str]) -> None:
        """An interval of `name` has productions for `receivers`, to which this version of `name` does not send: until it
        settles, `name` counts among their senders."""
        self._unsettled[interval] = name, set(receivers)

    def settle(self, interval: IntervalId) -> dict[str, int]:
        """An interval has settled.  Returns the computations whose input watermark rose."""
        before = {name: self.input_of(name) for name in self._senders}
        self._unsettled.pop(interval, None)
        return {name: self.input_of(name) for name in before if self.input_of(name) > before[name]}

    def excuse(self, name: str, interval: IntervalId) -> None:
        """This interval does not count until it is expected again: other intervals of `name` hold older records."""
        self._intervals[name].remove(interval)

    def retire(self, name: str, interval: IntervalId) -> None:
        """A partition of a source has ended.  It holds nothing any more and is forgotten."""
        self._intervals[name].remove(interval)
        self._owners.get(name, {}).pop(interval, None)
        self._dirty.add(name)

    def hold(self, name: str, interval: IntervalId) -> None:
        """An interval has another owner: it holds the watermark where it is, until that owner has reported."""
        self._intervals[name].set(interval, MIN_TIME)

    def bound(self, name: str, value: int) -> None:
        """A source's bound on partitions that it has not discovered.  Without partitions it is the source's watermark."""
        self._bounds[name] = max(value, self._bounds.get(name, MIN_TIME))
        self._dirty.add(name)

    def report(self, name: str, interval: IntervalId, value: int) -> None:
        """An interval's low watermark."""
        if self._intervals[name].rise(interval, value):
            self._dirty.add(name)
            if value >= MAX_TIME and name.startswith("source:"):
                self._owners.get(name, {}).pop(interval, None)

    def floor(self, loop: str, floor: Floor) -> None:
        """A round of a loop has said something."""
        self._floors[loop] = floor
        self._dirty.add(loop)

    def outside(self, loop: str) -> int:
        """What everything that sends into a loop from outside has promised, us."""
        members = self.loops[loop]
        senders = {name for member in members for name in self._senders_of(member)}
        return min((self.value(name) for name in senders.difference(members, self.loops)), default=MIN_TIME)

    def owners_of_loop(self, loop: str) -> dict[IntervalId, Sequencer]:
        """The intervals of a loop and their owners' sequencers; empty while any of them has none."""
        owners: dict[IntervalId, Sequencer] = {}
        for member in self.loops[loop]:
            known = self._owners.get(member, {})
            if not known or known.keys() != self._intervals[member].values().keys():
                return {}
            owners |= known
        return owners

    def changed(self) -> bool:
        """True when `changes` has something to look at."""
        return bool(self._dirty)

    def changes(self) -> dict[str, int]:
        """Values that rose since the last call: persist them, then call `adopt`."""
        changed = {}
        for name in sorted(self._dirty):
            if name.startswith("source:") and name not in self._bounds:
                continue  # its first discovery is not over: partitions that nobody expects yet may be older
            value = self._computed(name)
            if value > self._values.get(name, MIN_TIME):
                changed[name] = value
        self._dirty.clear()
        return changed

    def _computed(self, name: str) -> int:
        if name in self.loops:
            floor = self._floors.get(name)
            return MIN_TIME if floor is None else floor.value
        least = self._intervals[name].minimum()
        value = self._bounds.get(name, MIN_TIME) if least is None else least
        if name in self._shares:
            value = max(value, self._percentile(name, self._shares[name]))
        return min(value, self._bounds.get(name, value))

    def _percentile(self, name: str, millionths: int) -> int:
        """What such a share of the partitions has reached that are not at the end of time (§7.2).

        Those that are at it do not count: a source is not at its end while one partition is not.
        """
        still_open = sorted(value for value in self.intervals(name).values() if value < MAX_TIME)
        return still_open[len(still_open) * (1_000_000 - millionths) // 1_000_000] if still_open else MIN_TIME

    def owners(self, name: str) -> dict[IntervalId, Sequencer]:
        """What the value of `name` rests on: its intervals, and the sequencers of their reports (§7.2).

        The value of a source rests on its partitions, except those whose end is durable.  It also rests on the intervals
        that the source feeds, because what it knows of partitions to come has no interval of its own.  The floor of a loop
        rests on the owners who answered.
        """
        if name in self.loops:
            return dict(self._floors[name].owners)
        owners = dict(self._owners.get(name, {}))
        for receiver, senders in self._senders.items() if name.startswith("source:") else ():
            owners |= self._owners.get(receiver, {}) if name in senders else {}
        return owners

    def refused(self, name: str) -> None:
        """The value of `name` was not persisted: it is among the next changes.  A floor waits for the next round instead."""
        if self._floors.pop(name, None) is None:
            self._dirty.add(name)

    def adopt(self, changed: Mapping[str, int]) -> dict[str, int]:
        """Persisted values become visible; returns the computations whose input watermark rose."""
        fed = [name for name in self._senders if not changed.keys().isdisjoint(self._senders_of(name))]
        before = {name: self.input_of(name) for name in fed}
        for name, value in changed.items():
            self._values[name] = max(value, self._values.get(name, MIN_TIME))
        return {name: self.input_of(name) for name in before if self.input_of(name) > before[name]}

    def input_of(self, computation: str) -> int:
        """Input low watermark: the minimum over everything that sends to the computation."""
        values = self._values
        return min([values.get(sender, MIN_TIME) for sender in self._senders_of(computation)], default=MIN_TIME)

    def _senders_of(self, computation: str) -> Collection[str]:
        """Everything that bounds its input: of an earlier version of the pipeline too."""
        if not self._unsettled:
            return self._senders[computation]
        unsettled = [name for name, receivers in self._unsettled.values() if computation in receivers]
        return [*self._senders[computation], *unsettled]

    def inputs(self) -> dict[str, int]:
        """Input low watermarks of all computations."""
        return {name: self.input_of(name) for name in self._senders}

    def values(self) -> dict[str, int]:
        """The published watermarks of computations and sources."""
        return dict(self._values)

    def value(self, name: str) -> int:
        """The published watermark of a computation or source."""
        return self._values.get(name, MIN_TIME)

    def intervals(self, name: str) -> dict[IntervalId, int]:
        """Last reported value per interval."""
        return self._intervals[name].values()
