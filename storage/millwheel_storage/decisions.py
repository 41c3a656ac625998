"""Decisions of a leader, as both stores see them: how a decision that is asked for again is recognised.

Never here: I/O, or rows.
"""

from __future__ import annotations

import hashlib

import msgspec

from millwheel.cluster import Placement


def digest(placement: Placement) -> bytes:
    """A short name of a decision.  It holds the version of the map, so two decisions never have the same.

    >>> one, other = Placement(1, 7, {2: 5, 1: 5}, {}), Placement(1, 7, {1: 5, 2: 5}, {})
    >>> digest(one) == digest(other)
    True
    """
    what = ("place", placement.epoch, placement.version, sorted(placement.intervals.items()))
    return hashlib.sha256(msgspec.msgpack.encode((*what, sorted(placement.sources.items())))).digest()
