"""Bugs of a partition that is discovered when all others have ended."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from millwheel.core.authority import Authority
from millwheel.host import worker as hosts
from millwheel.host.over import consumed
from millwheel.host.partitions import Partitions
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME
from tests.planted import Patches, clustered, cut, mutant, shared_cut


def _ended_with_the_others() -> Patches:
    original = Authority.retire

    def retire(self: Authority, name: str, interval: IntervalId) -> None:
        original(self, name, interval)
        if name.startswith("source:") and not self.intervals(name):
            self.bound(name, MAX_TIME)

    return {(Authority, "retire"): retire}


def _looked_for_no_more() -> Patches:
    original = Partitions._discover_in

    def discover(self: Partitions, name: str, known: Any) -> Generator[Any, Any, bool]:
        exhausted = yield from original(self, name, known)
        there = bool(self._owner.actors.of(f"source:{name}"))
        had = self.__dict__.setdefault("_had", set[str]())
        if there:
            had.add(name)
        return exhausted or (name in had and not there)

    return {(Partitions, "_discover_in"): discover}


@mutant
def ended_with_the_others() -> Patches:
    """A source is at the end of time when all partitions have ended that were found"""
    return _ended_with_the_others()


@clustered
def ended_with_the_others_on_a_cluster() -> Patches:
    """A leader takes a source for ended when all partitions have ended that were found"""
    return _ended_with_the_others()


@cut
def looked_for_no_more() -> Patches:
    """Nobody looks for partitions any more when all have ended that were found"""
    return _looked_for_no_more()


@shared_cut
def looked_for_no_more_on_a_cluster() -> Patches:
    """The owner of a source looks for partitions no more when all have ended that were found"""
    return _looked_for_no_more()


@mutant
def over_before_the_last() -> Patches:
    """A run is over at the end of time, though its sources may have another partition"""

    def over(worker: WorkerHost) -> bool:
        complete, worker.partitions.complete = worker.partitions.complete, True
        try:
            return consumed(worker)
        finally:
            worker.partitions.complete = complete

    return {(hosts, "consumed"): over}
