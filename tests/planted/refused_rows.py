"""Bugs of sink rows that the database refuses."""

from __future__ import annotations

from typing import Any

from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.checkpoint import Checkpointer
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.ids import IntervalId, Sequencer
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, mutant


@mutant
def no_resend() -> Patches:
    """A restarted interval is not sent again what it has lost."""
    patches: Patches = {}
    for core in (IntervalCore, InjectorCore):

        def handle(self: Any, event: ev.Event, now: int, original: Any = core.handle) -> list[ev.Effect]:
            return [] if isinstance(event, ev.Resend) else original(self, event, now)

        patches[core, "handle"] = handle
    return patches


@mutant
def culprit_forgotten() -> Patches:
    """The culprit of a refused row is run again, and again."""
    return {(RefusedRows, "answer"): lambda self, cause: None}


@mutant
def culprits_key_goes_on() -> Patches:
    """Only the culprit is quarantined, its key's later records run before it."""
    original = Checkpointer.image

    def image(self: Checkpointer, *arguments: Any) -> Any:
        refused = {entry.key for entry in self._quarantine._diverted if entry.error}
        made = original(self, *arguments)
        self._quarantine.keys -= refused
        return made

    return {(Checkpointer, "image"): image}


@mutant
def numbers_from_one() -> Patches:
    """Every owner of an interval numbers its bundles from one: an ack for the last owner acks the next one's."""
    original = Outbox.__init__

    def init(self: Outbox, *given: Any, **more: Any) -> None:
        original(self, *given, **more)
        self._next_number = 1

    return {(Outbox, "__init__"): init}


@mutant
def restart_steals() -> Patches:
    """An interval with a refused row is taken back from whoever has taken it over meanwhile."""

    async def reacquire(self: MemoryStore, interval: IntervalId, sequencer: Sequencer) -> int | None:
        return (await self.acquire([interval]))[interval]

    return {(MemoryStore, "reacquire"): reacquire}
