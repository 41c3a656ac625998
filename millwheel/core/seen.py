"""Which keys an interval may have had before: those that it surely has not need not be asked of the store.

Lives here: `SeenKeys`, a Bloom filter.  Invariant: what the store has of an interval's keys is of keys that hooks were
called for, and before each such call its keys pass through here; so if the tables had nothing when the interval was taken
over, a key that is not in the filter has nothing in them.  If they had something, every key may be stored.

A key costs 0.3 to 0.5 us here, and a question to the store 4 us of Postgres' time and the wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec
from bitarray import bitarray

from millwheel import limits

_HASH_BITS: Final = 32
_ONE: Final = bitarray("1")


class Page(msgspec.Struct, gc=False):
    """Room for some keys: 2 ** `bits` bits."""

    bits: int
    room: int
    places: bitarray

    def add(self, hashes: Sequence[int]) -> None:
        """A key has two places: the low bits of its hash, and the high ones."""
        mask, shift = (1 << self.bits) - 1, _HASH_BITS - self.bits
        self.places[[value & mask for value in hashes]] = 1
        self.places[[value >> shift for value in hashes]] = 1
        self.room -= len(hashes)

    def maybe(self, hashes: Sequence[int]) -> list[int]:
        """Positions of those that may have been added."""
        mask, shift = (1 << self.bits) - 1, _HASH_BITS - self.bits
        found = self.places[[value & mask for value in hashes]].search(_ONE)
        return [place for place in found if self.places[hashes[place] >> shift]]


class SeenKeys:
    """The keys that have passed; with a store that was not `blank` all have."""

    def __init__(self, blank: bool) -> None:
        self._pages: list[Page] | None = [] if blank else None

    def add(self, keys: Sequence[str]) -> list[str]:
        """Note `keys`, which are distinct; returns those that may have passed before, in the same order."""
        if self._pages is None:
            return [*keys]
        hashes = [*map(crc32, map(str.encode, keys))]
        known: set[int] = set()
        for page in self._pages:
            known.update(page.maybe(hashes))
        if not self._pages or self._pages[-1].room < len(keys):
            if len(self._pages) == limits.SEEN_PAGES:
                self._pages = None
                return [*keys]
            self._pages.append(_page(limits.SEEN_FIRST_BITS + limits.SEEN_GROWTH_BITS * len(self._pages)))
        self._pages[-1].add(hashes)
        return [keys[place] for place in sorted(known)]


def _page(bits: int) -> Page:
    places = bitarray(1 << bits)
    places.setall(0)
    return Page(bits, (1 << bits) // limits.SEEN_BITS_A_KEY, places)
