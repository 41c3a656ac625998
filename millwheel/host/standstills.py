"""Watermarks that stand: what keeps each at a worker, and since when.

Lives here: `Standstills`, which remembers what it found the last time, and what is told of it.  Never here: what an interval
holds (`core.interval.watermark`), or which source waits for what (`partitions`).  Invariants:

* a watermark that moves costs nothing: only what has stood for `limits.STANDSTILL_US` is told, and it is told once;
* memory is bounded by the number of computations and sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

import msgspec

from millwheel import limits
from millwheel.cluster import Standstill
from millwheel.core.interval.machine import IntervalCore
from millwheel.host.actors import Actors
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME


class Standstills:
    """What one worker has found, by looking again and again."""

    def __init__(self) -> None:
        self._since: dict[Standstill, int] = {}
        self.told: tuple[Standstill, ...] = ()
        """What was told last."""

    def look(self, found: Iterable[Standstill], now: int) -> bool:
        """What keeps watermarks at wall time `now`, us.  Returns true when `told` is another one by that."""
        self._since = {one: self._since.get(one, now) for one in found}
        stands = tuple(
            msgspec.structs.replace(one, since_us=since)
            for one, since in self._since.items()
            if now - since >= limits.STANDSTILL_US
        )
        changed, self.told = stands != self.told, stands
        return changed


def held_by(actors: Actors, name: str, watermark: int) -> list[Standstill]:
    """What keeps a computation at its published watermark, us: of a few of its intervals here, the oldest thing of each.

    An interval that only waits for what is sent to it keeps nothing.
    """
    if watermark >= MAX_TIME:
        return []
    cores = [(actor.interval, actor.core) for actor in actors.of(name) if isinstance(actor.core, IntervalCore)]
    here = [(core.reported, interval, core) for interval, core in cores if core.reported <= watermark]
    found = []
    for _, interval, core in nsmallest(limits.STANDSTILL_INTERVALS, here, key=lambda one: one[:2]):
        kind, timestamp, detail = core.blame()[0]
        if kind != "input watermark":
            found.append(standstill(name, interval, kind, timestamp, detail))
    return found


def standstill(name: str, interval: IntervalId, kind: str, timestamp: int, detail: str) -> Standstill:
    """With no more of the detail than somebody reads."""
    if len(detail) > limits.STANDSTILL_TEXT:
        detail = detail[: limits.STANDSTILL_TEXT - 1] + "…"
    return Standstill(name, interval, kind, timestamp, detail)
