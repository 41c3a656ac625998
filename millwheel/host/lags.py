"""How far a pipeline is behind its sources in event time.

Lives here: that number, of a run and of a cluster that is looked at.  Never here: watermarks.  Invariant: a computation is
compared with the sources that it has records of, and with no other one.
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.graph import Graph
from millwheel.model import MAX_TIME, MIN_TIME

SOURCE = "source:"
"""How the name of a source begins among watermarks."""

Origins = Mapping[str, frozenset[str]]
"""By computation: the sources whose records come to it, also through others, as "source:name"."""


def origins_of(graph: Graph) -> Origins:
    """Those of every computation."""
    found: dict[str, frozenset[str]] = {}
    for name in graph.computations:
        seen, waiting = {name}, [name]
        while waiting:
            for sender in graph.senders(waiting.pop()) - seen:
                seen.add(sender)
                waiting += [] if sender.startswith(SOURCE) else [sender]
        found[name] = frozenset(one for one in seen if one.startswith(SOURCE))
    return found


def lag_us(watermarks: Mapping[str, int], origins: Origins) -> int | None:
    """Event time, us, by which the slowest computation is behind the promises of its sources.

    One that has no `origins` is compared with all.  None while no computation has a source that goes on, and while one that
    has is at the beginning of time.

    >>> origins = {"x": frozenset({"source:a"}), "y": frozenset({"source:b"})}
    >>> lag_us({"source:a": 100, "source:b": 900, "x": 90, "y": 300}, origins)
    600
    """
    sources = frozenset(name for name in watermarks if name.startswith(SOURCE))
    lags: list[int] = []
    for name, applied in watermarks.items():
        if name not in sources:
            promised = min((watermarks.get(one, MIN_TIME) for one in origins.get(name, sources)), default=MAX_TIME)
            if promised < MAX_TIME and applied <= MIN_TIME:
                return None
            lags += [promised - applied] if promised < MAX_TIME else []
    return max(lags, default=None)
