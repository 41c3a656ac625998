"""A partition that is discovered when all others of a run are at their end.

Lives here: when it comes.  Never here: its rows, which a workload draws.  Until it comes nobody knows of it, but its source
says that it is not complete.  A watermark at the end of time, or a run that ends, would be wrong at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.kit.scripted import Script

NEVER = MAX_TIME
"""When it can be discovered, until the others are at their end."""
LOOK_US = SECOND // 20
SPREAD_US = SECOND // 5
"""In what time its rows arrive, once it is there."""

When = Literal["read", "finished", "quiet", "over"]
"""The others have been read to their ends, the store says that they are finished, it has said so for a while, or all
watermarks are at the end of time."""

WHEN: tuple[When, ...] = ("quiet", "finished", "read")
"""Those of a partition of which its source makes a promise: it holds the watermarks."""
QUIET_US = SECOND
"""That while: all that the others have sent has run by then, in most runs."""


def let_it_come(store: WatchedStore, last: Script, others: Sequence[Script], when: When, since_us: int = 0) -> None:
    """Look again and again whether the others are at their end; then the last one appears."""
    kernel = store.truth.kernel
    ended = _all_read(others) if when == "read" else _all_finished(store, others)
    ended = ended and (when != "over" or _all_over(store))
    since_us = (since_us or kernel.now) if ended else 0
    if ended and (when != "quiet" or kernel.now >= since_us + QUIET_US):
        kernel.probes["partition discovered when all others had ended"] += 1
        last.appears_at = kernel.now + kernel.rng.choice((0, SECOND if when == "over" else SPREAD_US))
        last.arrivals = sorted(last.appears_at + kernel.rng.randrange(SPREAD_US) for _ in last.rows)
    else:
        kernel.at(kernel.now + LOOK_US, let_it_come, store, last, others, when, since_us)


def _all_read(others: Sequence[Script]) -> bool:
    return all(script.read_to >= len(script.rows) for script in others)


def _all_finished(store: WatchedStore, others: Sequence[Script]) -> bool:
    finished = {position.partition for position in store.inner.sources.values() if position.finished}
    return finished >= {script.name for script in others}


def _all_over(store: WatchedStore) -> bool:
    return all(store.inner.watermark.get(name, MIN_TIME) >= MAX_TIME for name in store.truth.graph.computations)
