"""How long property tests look: the same examples every time for a gate, new and more of them for a search."""

from __future__ import annotations

import os
from typing import Final

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "gate")
_FACTOR: Final = {"gate": 1, "search": 10}


def examples(count: int) -> int:
    """`count` for the gate, ten times as many for a search.

    >>> examples(7) // 7 in (1, 10)
    True
    """
    return count * _FACTOR[PROFILE]
