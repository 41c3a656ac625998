"""A guess when each key is read next: it decides which keys leave the cache first (§8.3, figure 16).

Lives here: the guess.  Never here: which keys may leave at all (`cache`).  The best key to evict is the one whose next use is
furthest away.  A least-recently-used cache guesses this from the past, and is wrong about windows.  There, the key that was
written first is due next, and would have been evicted.

* A key with a timer is read when the timer is due, at the latest.
* Where keys are mostly read again by their timers, as windows are, nothing else is expected of them.
* Where they are mostly read again by their records, as sessions are, a key that was read twice is expected after the same
  gap again.  The gap is counted in invocations of its interval.  If no gap is known, or twice the gap has passed, it is
  expected after as many invocations as have passed.  So the key that was read longest ago leaves first.
* Of keys about which nothing is known, those that were read longest ago leave first.

`WatermarkPace` converts event time into invocations: it measures how far the watermark gets in an invocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from millwheel.limits import GAPS_OVERDUE, PACE_SMOOTHED
from millwheel.model import MAX_TIME, MIN_TIME

NEVER: Final = float("inf")


class WatermarkPace:
    """Event time that passes in an invocation, us, and what keys are read again by."""

    def __init__(self) -> None:
        self._returned = 0
        self._fired = 0
        self._watermark = MIN_TIME
        self._invocation = 0
        self._rate = 0.0

    def read(self, returned: int, fired: int) -> None:
        """An invocation reads keys that were in memory, for records of theirs, or keys whose timers are due."""
        self._returned += returned
        self._fired += fired

    @property
    def by_records(self) -> bool:
        """Whether lately more keys were read again by their records than by their timers."""
        return self._returned > self._fired

    def note(self, watermark: int, invocation: int) -> None:
        """Note the watermark in this invocation.  The values before and after all time are ignored."""
        if self._watermark > MIN_TIME and watermark < MAX_TIME and invocation > self._invocation:
            rate = (watermark - self._watermark) / (invocation - self._invocation)
            self._rate += (rate - self._rate) * (PACE_SMOOTHED if self._rate else 1)
        if invocation > self._invocation or self._watermark == MIN_TIME:
            self._watermark, self._invocation = watermark, invocation
        self._returned //= 2
        self._fired //= 2

    def invocations_until(self, timestamps: Iterable[int]) -> list[float]:
        """Invocations until the watermark is at each of `timestamps`.  While the pace is unknown, they are large."""
        watermark, rate = self._watermark, self._rate or 1.0
        return [
            NEVER if timestamp >= MAX_TIME else (timestamp - watermark) / rate if timestamp > watermark else 0.0
            for timestamp in timestamps
        ]


def invocations_until_records(now: int, ages: Sequence[int], before: Sequence[int | None]) -> list[int]:
    """Invocations until each key is expected by its records.

    It was read `ages` invocations ago, and before that, if at all, in the invocation `before`.
    """
    gaps = [0 if last is None else now - age - last for age, last in zip(ages, before, strict=True)]
    return [
        (gap - age if gap > age else 0) if gap and age <= GAPS_OVERDUE * gap else age
        for age, gap in zip(ages, gaps, strict=True)
    ]
