"""How long tests look that could look for ever: the same examples every time for a gate, new ones and more for a search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "gate")
REMARK: Final = "remark"
"""The name under which a test that passes says something for the end of the output: by `record_property`."""
_FACTOR: Final = {"gate": 1, "search": 10}


def examples(count: int, gate: int = 0) -> int:
    """`count` for the gate, or `gate` where an example is dear; ten times `count` for a search.

    >>> examples(7) // 7 in (1, 10)
    True
    >>> examples(7, gate=2) in (2, 70)
    True
    """
    return gate if gate and PROFILE == "gate" else count * _FACTOR[PROFILE]


def share(faults: Sequence[T], stride: int) -> Sequence[T]:
    """One fault in `stride` for a gate, all for a search.

    With a prime, every kind of fault and of step has its turn.
    """
    return faults if PROFILE == "search" else faults[::stride]


def some(gate: Sequence[T], others: Sequence[T]) -> Sequence[T]:
    """`gate` for a gate, the others too for a search: seeds that reach together, at little cost, all that they must reach.

    >>> some([1], [2, 3]) in ([1], [1, 2, 3])
    True
    """
    return [*gate, *others] if PROFILE == "search" else gate
