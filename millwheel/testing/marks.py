"""Marks of a simulated process: what is durable before it may run, and who runs alone, as `runtime.marks` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.core import events as ev
from millwheel.runtime.alone import Alone
from millwheel.runtime.marks import mark_writes
from millwheel.testing.actor import Actor
from millwheel.work import Work

if TYPE_CHECKING:
    from millwheel.testing.process import Process


class Marks:
    """One request at a time, like the loop of the embedded runtime."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._alone: Alone[Actor] = Alone()
        self._waiting: list[tuple[Actor, ev.Mark | ev.Unmark]] = []
        self._busy = False

    def perform(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        """The effect of a core."""
        probes = self._process.world.kernel.probes
        if type(mark) is ev.Mark:
            probes["suspect runs alone" if mark.alone else "invocation marked"] += 1
            if mark.alone and not self._alone.enter(actor, mark.suspicion):
                probes["suspect waits for another one"] += 1
                return
        self._submit(actor, mark)

    def keeps(self, actor: Actor, work: Work) -> bool:
        """Whether an invocation waits until the suspect that runs alone is done."""
        kept = self._alone.keeps(actor, work)
        self._process.world.kernel.probes["invocation waits for a suspect"] += kept
        return kept

    def _submit(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        self._waiting.append((actor, mark))
        self._write()

    def _write(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        batch, self._waiting = self._waiting, []
        writes = mark_writes((a.interval, a.sequencer, mark) for a, mark in batch if not a.core.halted)
        store = self._process.world.store
        self._process.calls.request("mark", lambda: store.mark(writes), lambda kept: self._written(batch, kept))

    def _written(self, batch: list[tuple[Actor, ev.Mark | ev.Unmark]], kept: set[int]) -> None:
        self._busy = False
        for actor, mark in batch:
            if actor.interval not in kept:
                self._process.mail.post(actor, ev.Fenced(), "marked")
            elif type(mark) is ev.Mark:
                self._process.mail.post(actor, ev.Marked(), "marked")
            else:
                self.leave(actor)
        self._write()

    def leave(self, actor: Actor) -> None:
        """The suspect that ran alone is done, or void."""
        kept, after = self._alone.leave(actor)
        for other, work in kept:
            self._process.mail.post(other, work, "invoke")
        if after is not None:
            self._submit(after[0], ev.Mark(after[1], alone=True))
