"""Credit that the intervals of a worker give to the sources of each worker.

Lives here: one window for each interval and sending worker.  Never here: how much a window promises (`credit`).
Invariant: a window that is opened anew has a larger round, so no promise of an earlier one counts.
"""

from __future__ import annotations

from millwheel.host.credit import CreditWindow
from millwheel.host.messages import Credit
from millwheel.ids import IntervalId, Sequencer


class Grants:
    """Windows by interval, and by the address of the worker that sends."""

    def __init__(self) -> None:
        self._windows: dict[IntervalId, dict[str, CreditWindow]] = {}
        self._low: set[IntervalId] = set()
        """Those with a window that may need a new promise."""

    def open(self, interval: IntervalId, peer: str) -> int:
        """An interval says hello to a worker.  Returns the round of the hello."""
        windows = self._windows.setdefault(interval, {})
        before = windows.get(peer)
        window = windows[peer] = CreditWindow(before.round + 1 if before else 0)
        self._low.add(interval)
        return window.round

    def received(self, interval: IntervalId, peer: str, size: int) -> None:
        """So many bytes have come from the sources of a worker."""
        window = self._windows[interval][peer]
        window.received += size
        if window.low():
            self._low.add(interval)

    def low(self, interval: IntervalId) -> bool:
        """Whether any sender to an interval may need a new promise."""
        return interval in self._low

    def due(self, interval: IntervalId, sequencer: Sequencer, waiting_bytes: int) -> list[tuple[str, Credit]]:
        """Promises that are to be made now, and to whom, while `waiting_bytes` wait to run at the interval."""
        promises, windows = [], self._windows[interval]
        for peer, window in windows.items():
            upto = window.grant(waiting_bytes)
            if upto is not None:
                promises.append((peer, Credit(interval, sequencer, window.round, upto)))
        if not any(window.low() for window in windows.values()):
            self._low.discard(interval)
        return promises

    def part(self, peer: str) -> None:
        """A worker is gone for good."""
        for windows in self._windows.values():
            windows.pop(peer, None)

    def drop(self, interval: IntervalId) -> None:
        """An interval is not this worker's any more."""
        self._windows.pop(interval, None)
        self._low.discard(interval)
