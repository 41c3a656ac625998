"""What a run says of itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millwheel.model import MAX_TIME, MIN_TIME


class Progress(msgspec.Struct, frozen=True):
    """A picture of the run: counts since start, watermarks by computation and source, us.

    `duplicates` are deliveries that came again, `repeated` rows whose id, given by an outside client, was taken before:
    both are dropped, and counted by each subscription on which they came.
    """

    records: int
    injected: int
    rejected: int
    late: int
    duplicates: int
    repeated: int
    quarantined: int
    backdated: int
    checkpoints: int
    watermarks: Mapping[str, int]
    finished: bool
    in_quarantine: int = 0
    """Keys that are in quarantine now, those of earlier runs included."""
    rejections: Mapping[str, Mapping[str, int]] = {}
    """By source, kinds of rejected rows and how many."""
    stopped: str = ""
    """Why the run stopped before its end, unless it was told to."""
    redriven: int = 0
    """Quarantined elements that a redrive has run."""
    waits_for: str = ""
    """Why the run does not end although all input is read: the hold or quarantine that keeps the watermark."""

    @property
    def lag_us(self) -> int | None:
        """Event time, us, by which the slowest computation is behind what the sources promise; None while either is
        at an end of time."""
        of = {True: [MAX_TIME], False: [MAX_TIME]}
        for name, watermark in self.watermarks.items():
            of[name.startswith("source:")].append(watermark)
        promised, applied = min(of[True]), min(of[False])
        return promised - applied if applied > MIN_TIME and promised < MAX_TIME else None
