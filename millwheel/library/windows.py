"""Which windows a record belongs to, by its event time.

Lives here: fixed, sliding, session and global windows as frozen values; `calendars` has those of the calendar.  Never here:
state, triggers.  Invariant: a window is [start, end).  Except for sessions, a record's time alone says its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Final, NamedTuple

from millwheel.errors import WiringError
from millwheel.library.durations import Duration, duration, total
from millwheel.model import MAX_TIME, MIN_TIME


class Window(NamedTuple):
    """The span [start, end) of event time, us."""

    start: int
    end: int

    @property
    def last(self) -> int:
        """The last microsecond in it: the time of its panes."""
        return self.end - 1


class Aligned:
    """Windows that are the same for all keys: a record's time says which."""

    meaning: str
    """What is stored under a window's start; state of another meaning is refused."""

    def starts(self, timestamp: int) -> Sequence[int]:
        """Starts of the windows that `timestamp` lies in, ascending."""
        raise NotImplementedError

    def end(self, start: int) -> int:
        """The end of the window that begins at `start`."""
        raise NotImplementedError

    def of(self, timestamp: int) -> list[Window]:
        """The windows that `timestamp` lies in.

        >>> Fixed(seconds=10).of(12_000_000)
        [Window(start=10000000, end=20000000)]
        """
        return [Window(start, self.end(start)) for start in self.starts(timestamp)]


class Fixed(Aligned):
    """Windows of one size, one after the other: [offset + n * size, offset + (n + 1) * size).

    ```text
    |--- 1 ---|--- 2 ---|--- 3 ---|
    ```
    """

    def __init__(
        self, size: Duration | None = None, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0,
        offset: Duration = 0,
    ) -> None:  # fmt: skip
        self.size = total("a fixed window", size, seconds=seconds, minutes=minutes, hours=hours, days=days)
        self.offset = duration(offset, "the offset of fixed windows") % self.size
        self.meaning = f"fixed {self.size}+{self.offset}"

    def starts(self, timestamp: int) -> tuple[int]:
        """One."""
        return (timestamp - (timestamp - self.offset) % self.size,)

    def end(self, start: int) -> int:
        """A size later."""
        return start + self.size


class Sliding(Aligned):
    """Windows of one size of which one begins `every` so often: they overlap, and a record lies in size / every.

    ```text
    |-------- 1 --------|
         |-------- 2 --------|
              |-------- 3 --------|
    ```
    """

    def __init__(
        self, size: Duration | None = None, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0,
        every: Duration, offset: Duration = 0,
    ) -> None:  # fmt: skip
        self.size = total("a sliding window", size, seconds=seconds, minutes=minutes, hours=hours, days=days)
        self.every = total("the step of sliding windows", every)
        if self.every > self.size:
            raise WiringError(f"sliding windows of {self.size} us every {self.every} us would leave records out")
        self.offset = duration(offset, "the offset of sliding windows") % self.every
        self.meaning = f"sliding {self.size}/{self.every}+{self.offset}"

    @property
    def slice_us(self) -> int:
        """The longest span that no window begins or ends in: windows are made of such slices."""
        return gcd(self.size, self.every)

    def starts(self, timestamp: int) -> range:
        """One for each window that has begun and is not over."""
        last = timestamp - (timestamp - self.offset) % self.every
        number = (last + self.size - timestamp - 1) // self.every + 1
        return range(last - (number - 1) * self.every, last + 1, self.every)

    def end(self, start: int) -> int:
        """A size later."""
        return start + self.size


GLOBAL: Final = Window(MIN_TIME + 1, MAX_TIME - 1)
"""All of time."""


class Global(Aligned):
    """One window for all of time: it ends with the input, so give it a trigger.  Its state stays until then."""

    meaning = "global"

    def starts(self, timestamp: int) -> tuple[int]:
        """The one."""
        return (GLOBAL.start,)

    def end(self, start: int) -> int:
        """The end of time."""
        return GLOBAL.end


class Sessions:
    """Bursts of records of one key: a window ends when no record has come for `gap` of event time.

    Each record brings a window [time, time + gap); windows of a key that overlap become one, so a late record may join
    two sessions.  `gap` may be a function of the key.

    ```text
    |- 1 -|      |---- 2 ----|   |- 3 -|
     . .          .  . .   .      . .
    ```
    """

    def __init__(
        self, gap: Duration | Callable[[str], int] | None = None, *, seconds: float = 0, minutes: float = 0, hours: float = 0,
        days: float = 0,
    ) -> None:  # fmt: skip
        self._of_key = gap if callable(gap) else None
        length = None if callable(gap) else gap
        self._gap = (
            0
            if self._of_key
            else total("the gap of sessions", length, seconds=seconds, minutes=minutes, hours=hours, days=days)
        )
        self.meaning = "sessions"

    def gap(self, key: str) -> int:
        """The gap of a key, us."""
        if self._of_key is None:
            return self._gap
        return total(f"the gap of sessions of key {key!r:.80}", self._of_key(key))


class Validity:
    """How long a record is the newest of its key: [its time, the time of the next one).

    ```text
    |-- 1 --|- 2 -|------ 3 ------ …
    .       .     .
    ```
    """

    meaning = "validity"


class Wall:
    """Windows of one size of the clock on the wall: a record lies in the one in which it is taken, whatever its time."""

    def __init__(
        self, size: Duration | None = None, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        self.size = total("a window of wall time", size, seconds=seconds, minutes=minutes, hours=hours, days=days)
        self.meaning = f"wall {self.size}"

    def start(self, wall_time: int) -> int:
        """Of the window that `wall_time`, us, is in."""
        return wall_time - wall_time % self.size


Windows = Aligned | Sessions | Validity | Wall
