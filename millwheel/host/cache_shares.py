"""How much memory each interval of a process has for state of keys.

Lives here: the shares of what all of them have together.  Never here: how much memory there is, which the shell says, or
which keys leave (`core.keys.cache`).  Invariants:

* an interval whose computation has a limit of its own has that, and no share;
* the shares add up to more than the whole only while what is in memory, and what it may grow by, fits into the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from millwheel.core.interval.machine import IntervalCore
from millwheel.host.actors import Actors
from millwheel.limits import CACHE_GROWTH_SHARE, CACHE_LOOK_US


class CacheShares:
    """Of the intervals of one worker.  They have `whole_bytes` together."""

    def __init__(self, actors: Actors, whole_bytes: int) -> None:
        self._actors = actors
        self.whole_bytes = whole_bytes
        self._look_at = 0

    def changed(self) -> None:
        """Intervals have come or gone.  While many come, shares are made once, at the end of the turn."""
        self._look_at = 0

    def look(self, now: int) -> None:
        """A turn has ended: make the shares anew if the last ones are old."""
        if now >= self._look_at:
            self._look_at = now + CACHE_LOOK_US
            self._make()

    def _make(self) -> None:
        sharing = self._sharing()
        wanted = [core.cache_bytes for core in sharing]
        for core, share in zip(sharing, shares(wanted, self.whole_bytes), strict=True):
            core.allow(share)

    def _sharing(self) -> list[IntervalCore]:
        return [core for _, core in self._actors.intervals() if core.config.settings.cache_limit_bytes is None]

    @property
    def used_bytes(self) -> int:
        """What all intervals have in memory, those with a limit of their own included."""
        return sum(core.cache_bytes for _, core in self._actors.intervals())


def shares(sizes: Sequence[int], whole: int) -> list[int]:
    """What each may have that has one of `sizes` now.

    While all fit, each may have whatever nobody has.  Then the largest give way to those that have less, until all that do
    not get what they want have the same.

    >>> shares([100, 20], 1600)
    [1480, 1400]
    >>> shares([1500, 20, 80], 1600)
    [1368, 86, 146]
    """
    if not sizes:
        return []
    growth = whole // (CACHE_GROWTH_SHARE * len(sizes))
    wanted = [size + growth for size in sizes]
    free = whole - sum(wanted)
    if free >= 0:
        return [max(1, want + free) for want in wanted]
    ascending = sorted(wanted)
    # With so many of them satisfied, the others have an equal part of the rest.
    for satisfied, taken in enumerate(accumulate(ascending, initial=0)):
        level = (whole - taken) // (len(wanted) - satisfied)
        if level <= ascending[satisfied]:
            break
    return [max(1, min(want, level)) for want in wanted]
