"""A cluster that all workers have left: whether its run is over.

Lives here: how a leader without workers finds out that it waits for nobody.
Never here: how a run with workers ends (`master`).
Invariants:

* the store alone says that a run is over: a watermark at the end of time covers all that is before it, acks included;
* whoever comes within `limits.DESERTED_US` finds a leader, which may be needed for sources that the store has not seen.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from millwheel import limits
from millwheel.cluster import ClusterMap
from millwheel.host import alphabet as he
from millwheel.host.requests import ListUnfinished, ReadWatermarks
from millwheel.model import MAX_TIME


class Deserted:
    """How long nobody has worked, of one leader.  Call `over` with every map that it reads."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._is_finished = False

    def over(self, found: ClusterMap, now: int) -> Generator[he.Wish, Any, bool]:
        """Whether the run is over, of a map that was read at wall time `now`, us.  True only for a map without workers."""
        if any(member.role == "worker" and member.alive for member in found.members):
            self._since, self._is_finished = None, False
            return False
        if self._since is None or now < self._since:
            self._since = now
        if self._is_finished:
            return True
        if now - self._since >= limits.DESERTED_US:
            # Asked again from then on: the last worker may have been killed, and a later one may have finished its work.
            self._since = now
            watermarks: dict[str, int] = yield ReadWatermarks()
            unfinished = yield ListUnfinished()
            # The next map decides: a worker may have come meanwhile.
            self._is_finished = is_finished(found, watermarks) and not unfinished
        return False


def is_finished(found: ClusterMap, watermarks: Mapping[str, int]) -> bool:
    """Whether all that the map names is at the end of time.  A map that names nothing was not begun."""
    names = {i.computation for i in found.intervals} | {f"source:{source.name}" for source in found.sources}
    return bool(names) and all(watermarks.get(name) == MAX_TIME for name in names)
