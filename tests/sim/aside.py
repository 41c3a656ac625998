"""Seeds beside tests that wait for leases, JVMs and dead processes: they take what those leave of the processors.

Nothing here decides how many seeds run, or what is asked of them.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 5_400
"""For a test whose seeds run aside: others may leave little until they have ended, 36 minutes on a slow machine."""

BESIDE: Final = Path(__file__).resolve().parents[2] / "build" / "beside"
"""Is there while other tests run: `make test` makes it, and takes it away."""

LOW: Final = 10
"""A tenth of the share of others.  With the lowest one, a seed would take minutes where others keep every processor busy."""

ALLOCATIONS: Final = 20_000
"""Until the next collection of garbage.  With as many, a process has 125 MB instead of 67."""

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_TRIES: Final = 50
_PAUSE_S: Final = 0.1
"""Linux takes one change of an autogroup in a tenth of a second, of all on the machine."""


def of_each(attempt: Callable[[int], T], seeds: Sequence[int], beside: Path = BESIDE) -> list[T]:
    """`attempt` of each seed, on all cores: aside while there is `beside`, and like any other process from then on."""
    found: dict[int, T] = {}
    if beside.exists():
        for one in _on_all_cores(functools.partial(_aside, attempt, beside), seeds, low=True):
            found.update(one)
    left = [seed for seed in seeds if seed not in found]
    found.update(zip(left, _on_all_cores(attempt, left), strict=True))
    return [found[seed] for seed in seeds]


def _on_all_cores(call: Callable[[int], T], seeds: Sequence[int], low: bool = False) -> list[T]:
    if not seeds:
        return []
    pool = multiprocessing.get_context("spawn").Pool(os.cpu_count(), begin, (call, low))
    try:
        found = pool.map(call, seeds, chunksize=1)
        pool.close()
        pool.join()
    finally:
        pool.terminate()
    return found


def _aside(attempt: Callable[[int], T], beside: Path, seed: int) -> dict[int, T]:
    return {seed: attempt(seed)} if beside.exists() else {}


def begin(call: Callable[..., object], low: bool = False) -> None:
    """Prepare a process that runs `call` many times.  Whoever sends `call` has what it needs imported by now."""
    if low:
        stand_back()
    # What is imported stays, and runs leave few circles: looking for some took a fourteenth of their time.
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 20)


def stand_back() -> None:
    """Have all others go first.

    Linux shares processors between sessions before it looks at priorities within one, where it has autogroups.  So this
    process takes a session of its own, and gives that the same priority.
    """
    os.setsid()
    os.nice(LOW)
    for _ in range(_TRIES if _AUTOGROUP.exists() else 0):
        try:
            _AUTOGROUP.write_text(str(LOW))
            return
        except OSError:
            time.sleep(_PAUSE_S)
