"""The minimum of very many values that mostly rise: what intervals have reported to the authority.

Lives here: the values, and which intervals have a value in which stretch of values.  Invariants: `_values` is the truth;
every value has an entry in its stretch, in the run, or among what came since the run was sorted; an entry may be stale.

What costs time with half a million intervals is memory that no cache holds.  So values lie in one array, eight bytes each.
An entry is one number, which has the place of its value below and the value above, so that entries are sorted without
a look at the values.  An entry comes to the end of its stretch, which costs the same however many there are.  Only the
lowest stretch is sorted, when all below it are used up.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar, cast

from millwheel import limits
from millwheel.model import MAX_TIME, MIN_TIME

K = TypeVar("K", bound=int)

_ABSENT: Final = MIN_TIME - 1
_BITS: Final = 9
_MASK: Final = (1 << _BITS) - 1
_PLACE_BITS: Final = 28
_PLACE: Final = (1 << _PLACE_BITS) - 1
_LONGEST: Final = 63 - _PLACE_BITS
"""An entry has 63 bits, and leaves so many to a value within its stretch: a stretch has at most 9 hours."""
_SECOND: Final = 20
"""2 to the 20 microseconds: how long a stretch is until values tell."""


class LowestReports(Generic[K]):
    """Mapping of interval to value with a cheap minimum.  Ids should be dense: a page has 512 of them.

    >>> reported = LowestReports[int]()
    >>> reported.set(1, 5); reported.set(2, 3); reported.set(2, 9)
    >>> reported.minimum(), reported.rise(1, 4), reported.rise(1, 6)
    (5, False, True)
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        """By the names' upper bits: the place of the page's first value."""
        self._values = array("q")
        self._present = 0
        self._shift = _SECOND
        """A stretch is what has the same value without that many bits."""
        self._stretches: dict[int, array[int]] = {}
        self._order: list[int] = []
        """A heap of the numbers of stretches."""
        self._begin = _ABSENT
        self._bound = _ABSENT
        """The first and the last value of the last stretch that was opened."""
        self._run: list[int] = []
        """Its entries, the least one last."""
        self._since: list[tuple[int, int]] = []
        """A heap of the values up to the bound that came since, with their places."""
        self._entries = 0
        self._most = limits.MINIMA_SAMPLE

    def __len__(self) -> int:
        return self._present

    def __contains__(self, name: K) -> bool:
        page = self._pages.get(name >> _BITS)
        return page is not None and self._values[page | name & _MASK] != _ABSENT

    def values(self) -> dict[K, int]:
        """All of them.  This reads every page."""
        return {
            cast("K", number << _BITS | at): value
            for number, page in self._pages.items()
            for at, value in enumerate(self._values[page : page + _MASK + 1]) if value != _ABSENT
        }  # fmt: skip

    def set(self, name: K, value: int) -> None:
        """Add or move `name`."""
        place = self._page(name) | name & _MASK
        self._present += self._values[place] == _ABSENT
        self._values[place] = value
        self._enter(place, value)

    def rise(self, name: K, value: int) -> bool:
        """Move `name` up, or add it.  Returns False when `value` is not above its value (or the beginning of time)."""
        page = self._pages.get(name >> _BITS)
        if page is None:
            page = self._page(name)
        place = page | name & _MASK
        known = self._values[place]
        if value <= known or value <= MIN_TIME:
            return False
        if known == _ABSENT:
            self._present += 1
        self._values[place] = value
        shift = self._shift
        number = value >> shift
        stretch = self._stretches.get(number) if value > self._bound else None
        if stretch is None or self._entries >= self._most:
            self._enter(place, value)
        else:  # nearly always, and without a call
            stretch.append((value - (number << shift)) << _PLACE_BITS | place)
            self._entries += 1
        return True

    def remove(self, name: K) -> None:
        """Forget `name`; unknown names are fine."""
        if name in self:
            self._values[self._pages[name >> _BITS] | name & _MASK] = _ABSENT
            self._present -= 1

    def minimum(self) -> int | None:
        """The smallest value, or None when there is none."""
        values, since = self._values, self._since
        while self._present:
            run, begin = self._run, self._begin
            while since and values[since[0][1]] != since[0][0]:
                heappop(since)
            while run:
                value = begin + (run[-1] >> _PLACE_BITS)
                if values[run[-1] & _PLACE] == value:
                    return min(value, since[0][0]) if since else value
                run.pop()
            if since:
                return since[0][0]
            self._open()
        return None

    def _page(self, name: int) -> int:
        number = name >> _BITS
        if number not in self._pages:
            self._pages[number] = len(self._values)
            self._values.extend((_ABSENT,) * (_MASK + 1))
            if len(self._values) > _PLACE:
                raise MemoryError(f"the authority has room for the watermarks of {_PLACE:,} intervals")
        return self._pages[number]

    def _enter(self, place: int, value: int) -> None:
        if value <= self._bound:
            heappush(self._since, (value, place))
        else:
            number = value >> self._shift
            stretch = self._stretches.get(number)
            if stretch is None:
                stretch = self._stretches[number] = array("q")
                heappush(self._order, number)
            stretch.append((value - (number << self._shift)) << _PLACE_BITS | place)
        self._entries += 1
        if self._entries > self._most:
            self._begin_anew()

    def _open(self) -> None:
        """The next stretch, in order."""
        number = heappop(self._order)
        self._begin = number << self._shift
        self._bound = ((number + 1) << self._shift) - 1
        stretch = self._stretches.pop(number)
        self._entries -= len(stretch)
        self._run = sorted(stretch, reverse=True)

    def _begin_anew(self) -> None:
        """Drop what is stale, and let a stretch have as many values as it should."""
        values = self.values()
        sample = list(values.values())[:: len(values) // limits.MINIMA_SAMPLE + 1]
        known = sorted(value for value in sample if MIN_TIME < value < MAX_TIME)
        if known:
            spread = known[len(known) * 9 // 10] - known[len(known) // 10]
            self._shift = min((spread * limits.MINIMA_STRETCH // len(values)).bit_length(), _LONGEST)
        self._pages, self._values, self._stretches, self._order = {}, array("q"), {}, []
        self._begin, self._bound, self._run, self._since = _ABSENT, _ABSENT, [], []
        self._entries, self._most = 0, 4 * len(values) + limits.MINIMA_SAMPLE
        for name, value in values.items():
            place = self._page(name) | name & _MASK
            self._values[place] = value
            self._enter(place, value)
