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

`WatermarkPace` converts event time into invocations: it measures how far the watermark gets in an invocation.  `Samples` are
what is looked at: nobody looks at all keys of a large cache for each one that has to leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from millwheel import limits
from millwheel.limits import EVICTION_SAMPLE_KEYS, GAPS_OVERDUE, PACE_SMOOTHED
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


class Samples:
    """Samples of keys from all over a cache, because keys that came together are due together."""

    def __init__(self) -> None:
        self._phase = 0
        """Where the next one goes on."""
        self._listed: list[str] = []
        """Keys of a large cache in which it goes on: some of them are gone."""

    def of(self, there: Collection[str]) -> Iterator[list[str]]:
        """Samples of the keys that are `there`.  The next call goes on with keys that this one has not taken.

        To list millions of keys takes longer than to look at those that one eviction may look at.  So the list of a large
        cache serves until all of it was taken.
        """
        keys = self._listed or [*there]
        self._listed = keys if len(keys) > limits.EVICTION_SCAN else []
        stride = max(1, len(keys) // EVICTION_SAMPLE_KEYS)
        while True:
            self._phase = (self._phase + 1) % stride
            if self._phase == 0:
                self._listed = []
            yield keys[self._phase :: stride]


def invocations_until_records(now: int, ages: Sequence[int], before: Sequence[int | None]) -> list[int]:
    """Invocations until each key is expected by its records.

    It was read `ages` invocations ago, and before that, if at all, in the invocation `before`.
    """
    gaps = [0 if last is None else now - age - last for age, last in zip(ages, before, strict=True)]
    return [
        (gap - age if gap > age else 0) if gap and age <= GAPS_OVERDUE * gap else age
        for age, gap in zip(ages, gaps, strict=True)
    ]
