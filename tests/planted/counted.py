"""Bugs of what is counted: rows and records of cores that are gone, and what a run leaves in quarantine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from millwheel.cluster import ClusterMap
from millwheel.core.interval.counters import Counters
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.row_counts import RowCounter, RowCounts
from millwheel.host.actors import Actors
from millwheel.host.left_overs import LeftOvers
from millwheel.host.news import News
from millwheel.host.requests import CountQuarantined
from millwheel.host.tally import Tally
from tests.planted import Patches, only

LEFT_OVERS = "tests/unit/host/test_left_overs.py"


@only("tests/unit/host/test_tally.py")
def counted_by_the_next_core_too() -> Patches:
    """What a core has counted that is gone is counted by the next core of its interval once more."""

    def take(self: Tally, owner: str, core: Any) -> None:
        if isinstance(core, InjectorCore):
            self.by_source[owner] = self.by_source.get(owner, RowCounts()) + core.rows.end()
        else:
            self.by_computation.setdefault(owner, Counters()).add(core.counters)

    return {(Tally, "take"): take}


@only("tests/unit/runtime/test_going_back.py")
def forgotten_when_all_goes_back() -> Patches:
    """A run that goes back to a snapshot forgets what it has counted."""
    return {(Actors, "add_up"): lambda self: None}


@only("tests/unit/runtime/test_going_back.py")
def rows_that_are_read_again_count_twice() -> Patches:
    """Rows that are read again, because all has gone back to a snapshot, count twice."""

    def end(self: RowCounter) -> RowCounts:
        read, self.read = self.read, RowCounts()
        return read

    return {(RowCounter, "end"): end}


@only(LEFT_OVERS)
def nobody_left_to_ask() -> Patches:
    """A leader whose workers have all gone says that no key is in quarantine."""

    def count(self: LeftOvers, found: ClusterMap) -> Generator[Any, Any, int | None]:
        yield from ()
        return self.keys(found) if any(m.role == "worker" and m.alive for m in found.members) else 0

    return {(LeftOvers, "_count"): count}


@only(LEFT_OVERS)
def dead_workers_are_asked() -> Patches:
    """A leader counts the keys in quarantine that dead workers have told of."""

    def count(self: LeftOvers, found: ClusterMap) -> Generator[Any, Any, int | None]:
        yield from ()
        return self.keys(found)

    return {(LeftOvers, "_count"): count}


@only(LEFT_OVERS)
def known_from_before_a_worker_came() -> Patches:
    """What the store knew of keys in quarantine before a worker came is said when that one has gone."""

    def count(self: LeftOvers, found: ClusterMap) -> Generator[Any, Any, int | None]:
        if any(member.role == "worker" and member.alive for member in found.members):
            return self.keys(found)
        if self._stored is None:
            self._stored = yield CountQuarantined()
        return self._stored

    return {(LeftOvers, "_count"): count}


@only(LEFT_OVERS)
def log_is_not_waited_for() -> Patches:
    """A leader takes it for an answer that the store does not know yet how many keys are in quarantine."""
    original = LeftOvers._count

    def count(self: LeftOvers, found: ClusterMap) -> Generator[Any, Any, int | None]:
        return (yield from original(self, found)) or 0

    return {(LeftOvers, "_count"): count}


@only("tests/unit/host/test_news.py")
def none_are_left_is_not_said() -> Patches:
    """A worker does not say that no key of its intervals is in quarantine any more."""
    original = News.tell

    def tell(self: News, mine: Any, sources: Any) -> None:
        if not self.in_quarantine():
            self._quarantined = False
        original(self, mine, sources)

    return {(News, "tell"): tell}
