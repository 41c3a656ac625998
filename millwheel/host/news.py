"""What a worker of a cluster tells of itself: how busy it is, hot keys, quarantines, and what keeps a watermark there.

Lives here: what is told, to the leader or to the store, and when.  Never here: what is done about it.  Invariant: of what the
store is told, one word goes after the other, so that the last one stays, and a store that is slow has one to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from millwheel.cluster import HotKey, PlacedInterval, Standstill
from millwheel.host.loads import Loads
from millwheel.host.messages import InQuarantine, LoadReport
from millwheel.host.procedures import Steps
from millwheel.host.requests import NoteHotKeys, NoteStandstills
from millwheel.host.standstills import Standstills, held_by
from millwheel.ids import IntervalId
from millwheel.model import MIN_TIME

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost


class News:
    """Of the member `incarnation`, which is a worker."""

    def __init__(self, worker: WorkerHost, incarnation: int) -> None:
        self._worker = worker
        self._incarnation = incarnation
        self._loads = Loads()
        self.hot_keys: tuple[HotKey, ...] = ()
        """As of the last report of loads."""
        self._hot_told: tuple[HotKey, ...] = ()
        self._hot_noting = False
        self._stands = Standstills()
        self._noting = False
        self._quarantined = False
        """A leader was told of keys in quarantine.  It is told that there are none again and again: a word may be lost."""

    def ran(self, interval: IntervalId, elapsed_us: int) -> None:
        """Hooks of an interval took so long."""
        self._loads.ran(interval, elapsed_us)

    def came(self, interval: IntervalId, keys: Sequence[str]) -> None:
        """Records of these keys came for an interval."""
        self._loads.came(interval, keys)

    def tell(self, mine: Collection[PlacedInterval], sources: Iterable[str]) -> None:
        """Tell what has changed, of the intervals and sources that are this worker's."""
        worker = self._worker
        intervals = sorted(placed.id for placed in mine)
        loads = self._loads.report(worker.now, intervals)
        if loads is not None:
            worker.answer(LoadReport(loads))
            self.hot_keys = self._loads.hot.report(intervals)
            if self.hot_keys != self._hot_told and not self._hot_noting:  # mostly there are none
                self._hot_noting = True
                worker.begin(self._note_hot())
        quarantined = self.in_quarantine()
        if quarantined or self._quarantined:  # mostly there are none
            self._quarantined = True
            worker.answer(InQuarantine(self._incarnation, quarantined))
        if self._stands.look(self._standing(mine, sources), worker.now) and not self._noting:
            self._noting = True
            worker.begin(self._note_standstills())

    def in_quarantine(self) -> dict[IntervalId, int]:
        """Keys in quarantine, by interval."""
        cores = [(actor.interval, core) for actor, core in self._worker.actors.intervals()]
        return {interval: core.quarantined_keys for interval, core in cores if core.quarantined_keys}

    def _note_hot(self) -> Steps:
        while self._hot_told != self.hot_keys:
            self._hot_told = self.hot_keys
            yield NoteHotKeys(self._incarnation, self._hot_told)
        self._hot_noting = False

    def _standing(self, mine: Iterable[PlacedInterval], sources: Iterable[str]) -> list[Standstill]:
        """What keeps watermarks here, as far as this worker has heard of them."""
        worker, found = self._worker, list[Standstill]()
        for name in sorted({placed.computation for placed in mine}):
            found += held_by(worker.actors, name, worker.values.get(name, MIN_TIME))
        for name in sorted(sources):
            found += worker.partitions.held_by(name)
        return found

    def _note_standstills(self) -> Steps:
        said = None
        while said != self._stands.told:
            said = self._stands.told
            yield NoteStandstills(self._incarnation, said)
        self._noting = False
