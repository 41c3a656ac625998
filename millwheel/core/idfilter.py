"""A Bloom filter for ids that outside clients chose: asked for, and filled with, a bundle at a time.

Lives here: `IdFilter` and the hashing for it.  pybloom-live does the same for one key in 8 to 10 us; here thousands of
ids are hashed, tested against several filters and added in 2 us each, because all but the hash itself is done to whole
columns.  Invariant: an id that was added is found; another one is found too with a chance of 1 in 20,000 at most, when
limits are as shipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from bitarray import bitarray

from millwheel import limits

HASHES: Final = 8
_LANE_BYTES: Final = 4


class Hashes:
    """The hashes of some ids, from which their places in filters of any size come."""

    def __init__(self, ids: Sequence[bytes]) -> None:
        self.count = len(ids)
        size = HASHES * _LANE_BYTES
        digests = b"".join([blake2b(id_, digest_size=size).digest() for id_ in ids])
        self._lanes = int.from_bytes(digests, "little")
        self._places: dict[int, list[list[int]]] = {}

    def places(self, bits: int) -> list[list[int]]:
        """Of each hash function, the place of every id in a filter of 2 ** `bits` bits."""
        if bits not in self._places:
            size = HASHES * self.count
            mask = int.from_bytes(((1 << bits) - 1).to_bytes(_LANE_BYTES, "little") * size, "little")
            lanes = array("I")
            lanes.frombytes((self._lanes & mask).to_bytes(_LANE_BYTES * size, "little"))
            if lanes.itemsize != _LANE_BYTES or _BIG_ENDIAN:
                raise AssertionError("array('I') is not 32 bits, lowest byte first, on this machine")
            self._places[bits] = [lanes[i::HASHES].tolist() for i in range(HASHES)]
        return self._places[bits]


_BIG_ENDIAN: Final = array("I", [1]).tobytes()[0] != 1


class Page(msgspec.Struct, gc=False):
    """Room for some ids: 2 ** `bits` bits."""

    bits: int
    room: int
    places: bitarray


class IdFilter:
    """Pages that double in size: how many ids will come is not known."""

    def __init__(self, expected: int = 0) -> None:
        self._pages = [_page(max(expected, limits.OPAQUE_FILTER_IDS))]
        self.count = 0

    def add(self, hashes: Hashes) -> None:
        """Add the ids of `hashes`."""
        page = self._pages[-1]
        if page.room < hashes.count and self.count:
            page = _page(max(2 * self.count, hashes.count))
            self._pages.append(page)
        for places in hashes.places(page.bits):
            page.places[places] = 1
        page.room -= hashes.count
        self.count += hashes.count

    def maybe(self, hashes: Hashes) -> list[int]:
        """Positions of the ids that may have been added; all others were not."""
        found: list[int] = []
        for page in self._pages:
            first, *rest = hashes.places(page.bits)
            hits = page.places[first]
            for places in rest:
                if not hits.any():
                    break
                hits &= page.places[places]
            found += hits.search(bitarray("1"))
        return found

    def size_bytes(self) -> int:
        """Memory of the bits."""
        return sum(len(page.places) // 8 for page in self._pages)


def _page(ids: int) -> Page:
    bits = max(3, (ids * limits.OPAQUE_FILTER_BITS - 1).bit_length())
    places = bitarray(1 << bits)
    places.setall(0)
    return Page(bits, max(1, (1 << bits) // limits.OPAQUE_FILTER_BITS), places)
