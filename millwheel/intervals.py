"""Key intervals: lexicographic ranges that partition the key space of one computation (§4.1, §7.1).

Lives here: the range algebra and routing by key.  Invariant: a `Ranges` covers the key space exactly once.
Keys compare by code point, which for UTF-8 is also the order of their bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from millwheel.errors import WiringError
from millwheel.ids import IntervalId


def is_text(text: str) -> bool:
    """Whether it has UTF-8, as half of a surrogate pair has not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_split_keys(split_keys: Sequence[str], owner: str) -> None:
    """Split keys must be keys, non-empty and strictly ascending; raises `WiringError` naming `owner`."""
    for key in split_keys:
        if not is_text(key):
            raise WiringError(f"computation {owner!r}: split key {key!r:.60} is not valid Unicode, as keys are")
    for left, right in zip(("", *split_keys), split_keys, strict=False):
        if left >= right:
            raise WiringError(
                f"computation {owner!r}: split keys must be non-empty and strictly ascending, "
                f"but {right!r} follows {left!r}"
            )


class Ranges:
    """The interval map of one computation: which interval id owns a key.

    >>> ranges = Ranges([("", 1), ("m", 2)])
    >>> ranges.owner("apple"), ranges.owner("m")
    (1, 2)
    """

    def __init__(self, lows: Iterable[tuple[str, IntervalId]]) -> None:
        ordered = sorted(lows)
        self.lows = [low for low, _ in ordered]
        self.ids = [id_ for _, id_ in ordered]
        if not ordered or self.lows[0] != "" or len(set(self.lows)) != len(self.lows):
            raise ValueError(f"intervals must cover the key space exactly once, got lows {self.lows!r}")

    def owner(self, key: str) -> IntervalId:
        """The id of the interval that `key` falls into."""
        return self.ids[bisect_right(self.lows, key) - 1]

    def group(self, keys: Sequence[str]) -> dict[IntervalId, list[int]]:
        """Interval id to the positions in `keys` that it owns, in order."""
        groups: dict[IntervalId, list[int]] = {}
        lows, ids = self.lows, self.ids
        for position, key in enumerate(keys):
            groups.setdefault(ids[bisect_right(lows, key) - 1], []).append(position)
        return groups
