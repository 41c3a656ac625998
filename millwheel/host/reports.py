"""Reports of watermarks that wait for a moment, so that many of them are one message an interval.

Lives here: the newest report of each interval, and when it is told.  Never here: the values, which cores report, or what is
said again after a cut (`restated`).  A controller writes watermarks once in `PERSIST_DELAY_US`, so what it hears more often
costs both ends and brings nothing.  Invariants:

* nothing else is told to the controller before the reports that came before it;
* a report is left out only for a newer one of its interval under the same label.
"""

from __future__ import annotations

from millwheel.host.messages import WatermarkReport
from millwheel.ids import IntervalId


class Reports:
    """Those that wait.  They go together, `rest_us` after the last ones or later."""

    def __init__(self, rest_us: int) -> None:
        self._rest_us = rest_us
        self._waiting: dict[tuple[str, IntervalId], WatermarkReport] = {}
        self._at = 0
        """Wall time from which more may be told, us."""

    def add(self, report: WatermarkReport) -> list[WatermarkReport]:
        """One more; returns what must be told before it, because it was reached under another label."""
        place = report.owner, report.interval
        known = self._waiting.get(place)
        before = self.all() if known is not None and known.label != report.label else []
        self._waiting[place] = report
        return before

    def due(self, now: int) -> list[WatermarkReport]:
        """Those that are told at wall time `now`, us."""
        if not self._waiting or now < self._at:
            return []
        self._at = now + self._rest_us
        return self.all()

    def all(self) -> list[WatermarkReport]:
        """All that wait, in the order in which their intervals began to."""
        waiting, self._waiting = self._waiting, {}
        return [*waiting.values()]

    def forget(self, owner: str, interval: IntervalId) -> None:
        """Nothing more is said of an interval."""
        self._waiting.pop((owner, interval), None)

    def forget_owner(self, owner: str) -> None:
        """Nothing more is said of any interval of `owner`."""
        self._waiting = {place: report for place, report in self._waiting.items() if place[0] != owner}

    def next(self) -> int | None:
        """When those that wait may be told, wall time, us; None when none waits."""
        return self._at if self._waiting else None
