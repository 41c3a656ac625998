"""The minimum of very many values that mostly rise: what intervals have reported to the authority.

Lives here: the values in pages of numbers, and which intervals have a value in which stretch of values.  Invariants: the
pages are the truth; every value has an entry in its stretch, or among those of the opened stretches; an entry may be stale.

What costs time with half a million intervals is memory that no cache holds.  So values lie in arrays, eight bytes each, and
not in a dictionary of objects.  A value enters the end of its stretch, which costs the same however many there are.  Only
the lowest stretch is sorted, when all below it are used up; it has some hundred entries.
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
        self._pages: dict[int, array[int]] = {}
        self._present = 0
        self._shift = _SECOND
        """A stretch is what has the same value without that many bits."""
        self._stretches: dict[int, array[int]] = {}
        self._order: list[int] = []
        """A heap of the numbers of stretches."""
        self._bound = _ABSENT
        """The end of the last stretch that was opened."""
        self._run: array[int] = array("q")
        """Its values, the least one last; `_names` has their intervals."""
        self._names: array[int] = array("q")
        self._since: list[tuple[int, int]] = []
        """A heap of the values up to the bound that came since."""
        self._entries = 0
        self._most = limits.MINIMA_SAMPLE

    def __len__(self) -> int:
        return self._present

    def __contains__(self, name: K) -> bool:
        page = self._pages.get(name >> _BITS)
        return page is not None and page[name & _MASK] != _ABSENT

    def values(self) -> dict[K, int]:
        """All of them.  This reads every page."""
        return {
            cast("K", number << _BITS | at): value
            for number, page in self._pages.items() for at, value in enumerate(page) if value != _ABSENT
        }  # fmt: skip

    def set(self, name: K, value: int) -> None:
        """Add or move `name`."""
        page = self._page(name)
        self._present += page[name & _MASK] == _ABSENT
        page[name & _MASK] = value
        self._enter(name, value)

    def rise(self, name: K, value: int) -> bool:
        """Move `name` up, or add it.  Returns False when `value` is not above its value (or the beginning of time)."""
        page = self._pages.get(name >> _BITS)
        if page is None:
            page = self._page(name)
        at = name & _MASK
        known = page[at]
        if value <= known or value <= MIN_TIME:
            return False
        if known == _ABSENT:
            self._present += 1
        page[at] = value
        stretch = self._stretches.get(value >> self._shift) if value > self._bound else None
        if stretch is None or self._entries >= self._most:
            self._enter(name, value)
        else:  # nearly always, and without a call
            stretch.append(name)
            self._entries += 1
        return True

    def remove(self, name: K) -> None:
        """Forget `name`; unknown names are fine."""
        if name in self:
            self._pages[name >> _BITS][name & _MASK] = _ABSENT
            self._present -= 1

    def minimum(self) -> int | None:
        """The smallest value, or None when there is none."""
        pages, run, names, since = self._pages, self._run, self._names, self._since
        while self._present:
            while run and pages[names[-1] >> _BITS][names[-1] & _MASK] != run[-1]:
                run.pop()
                names.pop()
            while since and pages[since[0][1] >> _BITS][since[0][1] & _MASK] != since[0][0]:
                heappop(since)
            if run:
                return min(run[-1], since[0][0]) if since else run[-1]
            if since:
                return since[0][0]
            self._open()
            run, names = self._run, self._names
        return None

    def _page(self, name: int) -> array[int]:
        number = name >> _BITS
        if number not in self._pages:
            self._pages[number] = array("q", (_ABSENT,)) * (_MASK + 1)
        return self._pages[number]

    def _enter(self, name: int, value: int) -> None:
        if value <= self._bound:
            heappush(self._since, (value, name))
        else:
            number = value >> self._shift
            stretch = self._stretches.get(number)
            if stretch is None:
                stretch = self._stretches[number] = array("q")
                heappush(self._order, number)
            stretch.append(name)
        self._entries += 1
        if self._entries > self._most:
            self._begin_anew()

    def _open(self) -> None:
        """The next stretch, in order."""
        number = heappop(self._order)
        self._bound = bound = ((number + 1) << self._shift) - 1
        names, pages = self._stretches.pop(number), self._pages
        self._entries -= len(names)
        values = [pages[name >> _BITS][name & _MASK] for name in names]
        least = [at for at, value in enumerate(values) if _ABSENT < value <= bound]
        least.sort(key=values.__getitem__, reverse=True)
        self._run = array("q", [values[at] for at in least])
        self._names = array("q", [names[at] for at in least])

    def _begin_anew(self) -> None:
        """Drop what is stale, and let a stretch have as many values as it should."""
        values = self.values()
        sample = list(values.values())[:: len(values) // limits.MINIMA_SAMPLE + 1]
        known = sorted(value for value in sample if MIN_TIME < value < MAX_TIME)
        if known:
            spread = known[len(known) * 9 // 10] - known[len(known) // 10]
            self._shift = (spread * limits.MINIMA_STRETCH // len(values)).bit_length()
        self._pages = {number: page for number, page in self._pages.items() if max(page) != _ABSENT}
        self._stretches, self._order, self._bound = {}, [], _ABSENT
        self._run, self._names, self._since = array("q"), array("q"), []
        self._entries, self._most = 0, 4 * len(values) + limits.MINIMA_SAMPLE
        for name, value in values.items():
            self._enter(name, value)
