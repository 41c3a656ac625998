"""How busy the intervals of a worker are, and where each could be cut in two (§7.1).

Lives here: the time that hooks of each interval took, and a sample of the keys that came.  Never here: what is done about it,
which the master decides.  Invariant: memory is bounded, whatever comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millwheel import limits
from millwheel.host.hot_keys import HotKeys
from millwheel.host.messages import IntervalLoad
from millwheel.ids import IntervalId


class Loads:
    """The loads since the last report."""

    def __init__(self) -> None:
        self._since: int | None = None
        """Wall time of the last report, us."""
        self._busy_us: dict[IntervalId, int] = {}
        self._bundles: dict[IntervalId, int] = {}
        self._keys: dict[IntervalId, deque[str]] = {}
        self.hot = HotKeys()

    def ran(self, interval: IntervalId, elapsed_us: int) -> None:
        """Hooks of an interval took so long."""
        self._busy_us[interval] = self._busy_us.get(interval, 0) + elapsed_us

    def came(self, interval: IntervalId, keys: Sequence[str]) -> None:
        """Records of these keys came for an interval; of some of them one key is remembered."""
        self.hot.came(interval, keys)
        count = self._bundles[interval] = self._bundles.get(interval, 0) + 1
        if keys and count % limits.LOAD_SAMPLE_BUNDLES == 1:
            known = self._keys.setdefault(interval, deque(maxlen=limits.LOAD_SAMPLE_KEYS))
            known.append(keys[count // limits.LOAD_SAMPLE_BUNDLES % len(keys)])

    def report(self, now: int, mine: Sequence[IntervalId]) -> tuple[IntervalLoad, ...] | None:
        """The loads of intervals at wall time `now`, us, when it is time for that; else None.

        Who has none reports, too: it is the least busy one.
        """
        since = self._since
        if since is None or now < since:
            self._since = now
            return None
        if now - since < limits.LOAD_EVERY_US:
            return None
        found = tuple(
            IntervalLoad(interval, self._busy_us.get(interval, 0) * 1_000 // (now - since), self._median(interval))
            for interval in mine
        )
        self._since, self._busy_us = now, {}
        self._keys = {interval: keys for interval, keys in self._keys.items() if interval in mine}
        self._bundles = {interval: count for interval, count in self._bundles.items() if interval in mine}
        return found

    def _median(self, interval: IntervalId) -> str:
        """The middle of the keys that were remembered, or "" when there are too few."""
        keys = sorted(self._keys.get(interval, ()))
        return keys[len(keys) // 2] if len(keys) >= limits.LOAD_SAMPLE_KEYS // 4 else ""
