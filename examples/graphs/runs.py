"""What the command, the tests and the benchmarks share: policies by name, and a final state as plain rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millwheel.spark.iteration import Blocking, Head, Optimistic, Part, Partitioned, Recovery, Restart, Tail

POLICIES = ("restart", "blocking", "tail", "head", "optimistic")

Rows = dict[int, Any]


def chosen(name: str, path: Path, every: int, optimistic: Optimistic) -> Recovery:
    """The policy of that name."""
    if name == "optimistic":
        return optimistic
    if name == "restart":
        return Restart()
    checkpointed: dict[str, Callable[[Path, int], Recovery]] = {"blocking": Blocking, "tail": Tail, "head": Head}
    return checkpointed[name](path, every)


def rows_of(state: Partitioned[Part]) -> Rows:
    """The final state as a plain mapping from key to value (its only column)."""
    found: Rows = {}
    for part in state.collect():
        (column,) = part.columns.values()
        found.update(zip(part.keys.tolist(), column.tolist(), strict=True))
    return found


def places(rows: Rows) -> NDArray[np.int64]:
    """The place of each key, in the order of the keys, when the highest value comes first; equal values by key."""
    keys = sorted(rows)
    order = np.lexsort((np.arange(len(keys)), -np.array([rows[key] for key in keys])))
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys))
    return found
