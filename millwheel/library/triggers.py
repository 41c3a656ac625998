"""When a window gives a pane.

Lives here: triggers as frozen values, and nothing that acts on them: `firing` does.

    AtWatermark()                                        one pane, when the watermark says that the window is complete
    AtWatermark(early=EveryRecords(100))                 and one for each hundred records before that
    AtWatermark(early=EveryWall(minutes=1))              and one a minute, by the clock on the wall, while records come
    AtWatermark(late=EveryWall(minutes=5))               late records are gathered for five minutes (default: one by one)
    Repeat(EveryRecords(1))                              a pane for each record, whatever the watermark
    Once(EveryRecords(10))                               one pane with the first ten records; the rest is dropped
"""

from __future__ import annotations

import msgspec

from millwheel.errors import WiringError
from millwheel.library.durations import Duration, duration, total


class EveryRecords(msgspec.Struct, frozen=True):
    """When `records` have come to the window since its last pane."""

    records: int

    def __post_init__(self) -> None:
        if type(self.records) is not int or self.records < 1:
            raise WiringError(f"EveryRecords({self.records!r}): give a number of records, at least 1")


class EveryWall:
    """`period` of wall time after the first record that no pane has had; `aligned`: at whole periods of the clock."""

    def __init__(
        self, period: Duration | None = None, *, seconds: float = 0, minutes: float = 0, hours: float = 0,
        aligned: bool = False, offset: Duration = 0,
    ) -> None:  # fmt: skip
        self.period = total("the period of EveryWall", period, seconds=seconds, minutes=minutes, hours=hours)
        self.aligned = aligned
        self.offset = duration(offset, "the offset of EveryWall")

    def due(self, wall_time: int) -> int:
        """When the pane is due of which the first record came at `wall_time`, us."""
        if not self.aligned:
            return wall_time + self.period
        return wall_time - (wall_time - self.offset) % self.period + self.period


Every = EveryRecords | EveryWall


def _check_every(given: object, what: str, or_none: bool = False) -> None:
    """What is neither would never be due: no pane would come, and nothing would say so."""
    if not isinstance(given, EveryRecords | EveryWall) and not (given is None and or_none):
        wanted = "EveryRecords(...), EveryWall(...) or None" if or_none else "EveryRecords(...) or EveryWall(...)"
        raise WiringError(f"{what}={given!r:.80}): give {wanted}")


class AtWatermark(msgspec.Struct, frozen=True):
    """A pane when the watermark passes the window's end, also when nothing is new since an early one.

    `early` gives panes before, `late` after that, for records within the allowed lateness; without `late` these are
    dropped.
    """

    early: Every | None = None
    late: Every | None = EveryRecords(1)

    def __post_init__(self) -> None:
        _check_every(self.early, "AtWatermark(early", or_none=True)
        _check_every(self.late, "AtWatermark(late", or_none=True)


class Repeat(msgspec.Struct, frozen=True):
    """Panes whenever `every` says so, before and after the window's end, and what is left when the window is over."""

    every: Every

    def __post_init__(self) -> None:
        _check_every(self.every, "Repeat(every")


class Once(msgspec.Struct, frozen=True):
    """One pane, when `every` says so or the window is over; later records are dropped."""

    every: Every

    def __post_init__(self) -> None:
        _check_every(self.every, "Once(every")


Trigger = AtWatermark | Repeat | Once
