"""When a key is read next, as far as anyone can know: what leaves a cache first (§8.3, figure 16).

Lives here: the guess.  Never here: what may leave at all (`cache`).  The best choice is the key whose next use is furthest
away.  A least-recently-used cache guesses that from the past, and is wrong about windows: a key that was just written is read
last, and the one that was written first is due next, and gone.

* A key with a timer is read when that is due, at the latest.
* Where keys are mostly read again by their timers, as windows are, nothing else is expected of them: what has fired is over.
* Where they are mostly read again by their records, as sessions are, a key that was read twice is expected after the same
  gap again, in invocations of its interval.  If no gap is known, or twice the gap has passed, it is expected after as
  many invocations as have passed: what was read longest ago goes.
* Of keys about which nothing is known those go first that were read longest ago.

Event time and invocations meet in `WatermarkPace`: how far the watermark gets in an invocation.
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
        """The watermark in this invocation.  Its ends, before and after all time, say nothing."""
        if self._watermark > MIN_TIME and watermark < MAX_TIME and invocation > self._invocation:
            rate = (watermark - self._watermark) / (invocation - self._invocation)
            self._rate += (rate - self._rate) * (PACE_SMOOTHED if self._rate else 1)
        if invocation > self._invocation or self._watermark == MIN_TIME:
            self._watermark, self._invocation = watermark, invocation
        self._returned //= 2
        self._fired //= 2

    def invocations_until(self, timestamps: Iterable[int]) -> list[float]:
        """Invocations until the watermark is at each of `timestamps`; while its pace is unknown, far away, and in order."""
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
