"""How long tests look that could look for ever: the same examples every time for a gate, new ones and more for a search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "gate")
_FACTOR: Final = {"gate": 1, "search": 10}


def examples(count: int) -> int:
    """`count` for the gate, ten times as many for a search.

    >>> examples(7) // 7 in (1, 10)
    True
    """
    return count * _FACTOR[PROFILE]


def share(faults: Sequence[T], stride: int) -> Sequence[T]:
    """One fault in `stride` for a gate, all for a search.

    With a prime, every kind of fault and of step has its turn.
    """
    return faults if PROFILE == "search" else faults[::stride]
