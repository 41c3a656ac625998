"""Which keys of an interval come most often, and what share of its records they are.

Lives here: `KeyCounts`, a space-saving sketch, and `HotKeys`, the sketches of a worker.  Never here: what is done about a hot
key; a combiner spreads it (`millwheel.library.combining`).  Invariants:

* memory is bounded, whatever comes;
* a share is never said to be larger than it is among the records that were counted.

Of several bundles one is counted, with all its keys.  So records of a key are as likely to be counted as those of
another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from itertools import repeat
from operator import itemgetter

from millwheel import limits
from millwheel.cluster import HotKey
from millwheel.ids import IntervalId

_count = itemgetter(1)


class KeyCounts:
    """A space-saving sketch, fed by the bundle: counts of `room` keys or more, each too high by `floor` at most.

    A key that is not in it has come at most `floor` times, and `floor` is at most the total by `room`.  It is the summary of
    Metwally, Agrawal and El Abbadi, in the form in which summaries are merged: a bundle is counted exactly, its counts are
    added, and the smallest leave together.

    >>> counts = KeyCounts(1)
    >>> counts.add(["a"] * 6 + ["b", "c", "d"])
    >>> counts.shares()
    [('a', 555)]
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._counts: dict[str, int] = {}
        self._floor = 0
        self.total = 0
        """Records that were counted, those that have faded by their part."""

    def add(self, keys: Sequence[str]) -> None:
        """Count the keys of a bundle."""
        counts, floor = self._counts, self._floor
        self.total += len(keys)
        little = len(keys) <= limits.HOT_KEY_LITTLE
        for key, count in zip(keys, repeat(1)) if little else Counter(keys).items():
            counts[key] = counts.get(key, floor) + count
        if len(counts) > 2 * self._room:  # seldom, also when bundles hold one record each
            kept = nlargest(self._room + 1, counts.items(), key=_count)
            self._floor = kept.pop()[1]
            self._counts = dict(kept)

    def fade(self) -> None:
        """Halve all counts, so that what came long ago weighs less than what comes now."""
        self.total = (self.total + 1) // 2  # rounded so that no share becomes larger
        self._floor = (self._floor + 1) // 2
        self._counts = {key: count // 2 for key, count in self._counts.items()}

    def shares(self) -> list[tuple[str, int]]:
        """Keys and the thousandths of all records that they are at least, the largest first."""
        found = [(key, (count - self._floor) * 1_000 // max(1, self.total)) for key, count in self._counts.items()]
        found.sort(key=lambda one: (-one[1], one[0]))
        return [one for one in found[: limits.HOT_KEYS_SHOWN] if one[1] >= limits.HOT_KEY_PERMILLE]


class HotKeys:
    """The hot keys of the intervals of a worker."""

    def __init__(self) -> None:
        self._bundles: dict[IntervalId, int] = {}
        self._counts: dict[IntervalId, KeyCounts] = {}

    def came(self, interval: IntervalId, keys: Sequence[str]) -> None:
        """Records of these keys came for an interval."""
        count = self._bundles[interval] = self._bundles.get(interval, -1) + 1
        if count % limits.HOT_KEY_BUNDLES == 0:
            known = self._counts.get(interval)
            if known is None:
                known = self._counts[interval] = KeyCounts(limits.HOT_KEY_ROOM)
            known.add(keys)

    def report(self, mine: Sequence[IntervalId]) -> tuple[HotKey, ...]:
        """Those of the intervals that are owned now; counts of others are forgotten, and all of them fade."""
        owned = {*mine}
        self._bundles = {interval: count for interval, count in self._bundles.items() if interval in owned}
        self._counts = {interval: counts for interval, counts in self._counts.items() if interval in owned}
        found = []
        for interval, counts in sorted(self._counts.items()):
            if counts.total >= limits.HOT_KEY_LEAST_RECORDS:
                found += [HotKey(interval, key, permille) for key, permille in counts.shares()]
                counts.fade()
        return tuple(found)
