"""Which of many names may have been added before.  The store need not be asked about names that were surely not added.

Lives here: `NameFilter`, the only filter of this project's own, and the two ways to hash names for it.  Never here: what a
name stands for.  Invariant: a name that was added is found; whether another one is found too is a matter of chance.

pybloom-live tests and adds one name in 8 to 10 us.  That is good where a name stands for a block of 1,024 ids (`dedup`),
and pybloom-live is used there.  It is too slow where each record has a name of its own.  Here a bundle of thousands of
names is hashed, tested and added together, in 0.3 to 2 us for each name, because all but the hash is done to whole columns.
The figures are in `docs/adr/0026-one-filter-class.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

import msgspec
from bitarray import bitarray

from millwheel import limits

_HASHES: Final = 8
_LANE_BYTES: Final = 4
_SUM_BITS: Final = 32
_BIG_ENDIAN: Final = array("I", [1]).tobytes()[0] != 1
_ONE: Final = bitarray("1")


class Hashes(ABC):
    """The hashes of the names of a bundle, from which their places in filters of any size come."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._places: dict[int, list[list[int]]] = {}

    def places(self, bits: int) -> list[list[int]]:
        """Of each hash function, the place of every name in a filter of 2 ** `bits` bits."""
        if bits not in self._places:
            self._places[bits] = self._cut(bits)
        return self._places[bits]

    @abstractmethod
    def _cut(self, bits: int) -> list[list[int]]: ...


class Digests(Hashes):
    """Eight hash functions, 2 us for each name.  For names where each one that is found by chance costs a wait."""

    def __init__(self, names: Sequence[bytes]) -> None:
        super().__init__(len(names))
        size = _HASHES * _LANE_BYTES
        digests = b"".join([blake2b(name, digest_size=size).digest() for name in names])
        self._lanes = int.from_bytes(digests, "little")

    def _cut(self, bits: int) -> list[list[int]]:
        size = _HASHES * self.count
        mask = int.from_bytes(((1 << bits) - 1).to_bytes(_LANE_BYTES, "little") * size, "little")
        lanes = array("I")
        lanes.frombytes((self._lanes & mask).to_bytes(_LANE_BYTES * size, "little"))
        if lanes.itemsize != _LANE_BYTES or _BIG_ENDIAN:
            raise AssertionError("array('I') is not 32 bits, lowest byte first, on this machine")
        return [lanes[i::_HASHES].tolist() for i in range(_HASHES)]


class Sums(Hashes):
    """Two hash functions, 0.3 us for each name.  For names about which a question is cheap.

    They are the low bits of a CRC and the high ones.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(len(names))
        self._sums = [*map(crc32, map(str.encode, names))]

    def _cut(self, bits: int) -> list[list[int]]:
        mask, shift = (1 << bits) - 1, _SUM_BITS - bits
        return [[value & mask for value in self._sums], [value >> shift for value in self._sums]]


class Page(msgspec.Struct, gc=False):
    """Room for some names: 2 ** `bits` bits."""

    bits: int
    room: int
    places: bitarray

    def hits(self, hashes: Hashes) -> bitarray:
        """A bit for each name, set for those that may have been added."""
        first, *rest = hashes.places(self.bits)
        hits = self.places[first]
        for places in rest:
            if not hits.any():
                break
            hits &= self.places[places]
        return hits


class NameFilter:
    """Pages that grow, as it is not known how many names will come.

    The first has room for `expected` names, each further one for `growth` times as many names as all before it together.
    A page takes `bits_a_name` bits for each name that it has room for, rounded up to a power of two.  One filter is always
    given the same kind of hashes.

    >>> filter = Filter(expected=100, bits_a_name=24, growth=2)
    >>> filter.add(Digests([b"a", b"b"]))
    >>> filter.maybe(Digests([b"c", b"b", b"d"]))
    [1]
    """

    def __init__(self, expected: int, bits_a_name: int, growth: int) -> None:
        self._expected = expected
        self._bits_a_name = bits_a_name
        self._growth = growth
        self._pages: list[Page] = []
        self.count = 0
        """Names that were added, with repetitions."""

    def add(self, hashes: Hashes) -> None:
        """Add the names of `hashes`."""
        if not self.has_room(hashes.count):
            self._pages.append(self._page(max(self._growth * self.count, hashes.count)))
        page = self._pages[-1]
        for places in hashes.places(page.bits):
            page.places[places] = 1
        page.room -= hashes.count
        self.count += hashes.count

    def maybe(self, hashes: Hashes) -> list[int]:
        """Ascending positions of the names that may have been added; all others were not."""
        if not self._pages:
            return []
        found = self._pages[0].hits(hashes)
        for page in self._pages[1:]:
            found |= page.hits(hashes)
        return [*found.search(_ONE)]

    def has_room(self, count: int) -> bool:
        """True when `count` names more need no further page."""
        return bool(self._pages) and self._pages[-1].room >= count

    def pages(self) -> int:
        """How many pages there are: each costs a test for each name."""
        return len(self._pages)

    def size_bytes(self) -> int:
        """Memory of the bits."""
        return sum(len(page.places) // 8 for page in self._pages)

    def _page(self, names: int) -> Page:
        if not self._pages:
            names = max(names, self._expected)
        bits = max(3, (names * self._bits_a_name - 1).bit_length())
        places = bitarray(1 << bits)
        places.setall(0)
        return Page(bits, max(1, (1 << bits) // self._bits_a_name), places)


def filter_of_ids(expected: int = 0) -> NameFilter:
    """A filter of outside clients' ids, which are added as `Digests`."""
    return NameFilter(max(expected, limits.OUTSIDE_FILTER_IDS), limits.OUTSIDE_FILTER_BITS, growth=2)


def filter_of_keys() -> NameFilter:
    """A filter of the keys of an interval, which are added as `Sums`."""
    return NameFilter(limits.SEEN_FIRST_KEYS, limits.SEEN_BITS_A_KEY, limits.SEEN_GROWTH)
