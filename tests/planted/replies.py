"""Bugs of what a core is told: answers that were meant for an earlier core of its interval, or for another question."""

from __future__ import annotations

from typing import Any

from millwheel.core.interval import events as ev
from millwheel.errors import RowRefused
from millwheel.host.requests import CommitGroup
from millwheel.host.worker import WorkerHost
from tests.planted import Patches, clustered, mutant, only


def _commit_telling(done: bool, fenced: bool) -> Any:
    """A worker that tells the newest core of an interval of a void core's writes: of those that are durable, or are not."""

    def commit(self: WorkerHost, group: Any) -> Any:
        left, durable = group.writes, set()
        while left:
            try:
                durable = yield CommitGroup(left)
                break
            except RowRefused as refusal:
                (sequencer,) = {write.sequencer for write in left if write.interval == refusal.interval}
                if self.actors.current(refusal.interval, sequencer) is not None:
                    self._set_aside(refusal)
                left = [write for write in left if write.interval != refusal.interval]
        self._lanes.done(group)
        for write in group.writes:
            kept = (write.interval, write.seq) in durable
            newest = done if kept else fenced
            actor = (
                self.actors.all.get(write.interval) if newest else self.actors.current(write.interval, write.sequencer)
            )
            if actor is not None:
                self.tell(actor, ev.CommitDone(write.seq) if kept else ev.WriteFenced())

    return commit


@only("tests/unit/host/test_void_cores.py")
def next_core_told_done() -> Patches:
    """The next core of an interval is told that a void core's checkpoint is durable."""
    return {(WorkerHost, "_commit"): _commit_telling(True, False)}


@mutant
def next_core_told_fenced() -> Patches:
    """The next core of an interval is told that a void core's checkpoint was refused."""
    return {(WorkerHost, "_commit"): _commit_telling(False, True)}


@clustered
def next_core_gets_answers() -> Patches:
    """What the store answers a void core reaches the next core of its interval."""

    def give(self: WorkerHost, interval: Any, sequencer: Any, event: ev.Event) -> None:
        actor = self.actors.all.get(interval)
        if actor is not None and not actor.core.halted:
            self.handle_core(actor, event)

    return {(WorkerHost, "_give"): give}


@mutant
def told_twice() -> Patches:
    """A core is told twice that a checkpoint is durable."""
    original = WorkerHost.tell

    def tell(self: WorkerHost, actor: Any, event: ev.Event) -> None:
        original(self, actor, event)
        if isinstance(event, ev.CommitDone):
            original(self, actor, event)

    return {(WorkerHost, "tell"): tell}
