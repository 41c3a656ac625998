"""Group commit of a simulated process, and checkpoints whose sink rows are refused, as `runtime.embedded` does it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millwheel.bundles import LogWrite, decode_checkpoint
from millwheel.core import events as ev
from millwheel.core.interval import IntervalCore
from millwheel.errors import RowRefused
from millwheel.testing.actor import Actor

if TYPE_CHECKING:
    from millwheel.testing.process import Process

COMMIT_LANES: Final = 2


class Commits:
    """Two groups at a time, no interval in both: every order that the lanes of the runtime can give, and more."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._probes = process.world.kernel.probes
        self._committing: list[list[LogWrite]] = []
        self.waiting: deque[LogWrite] = deque()
        """In the order of submission."""

    def submit(self, actor: Actor, write: LogWrite) -> None:
        """The effect of a core."""
        weak = isinstance(actor.core, IntervalCore) and actor.core.config.settings.productions == "weak"
        if weak and decode_checkpoint(write.payload).produced:
            self._probes["weak straggler checkpointed"] += 1
        self.waiting.append(write)
        self._commit()

    def _commit(self) -> None:
        busy = {write.interval for group in self._committing for write in group}
        batch = [write for write in self.waiting if write.interval not in busy]
        if len(self._committing) == COMMIT_LANES or not batch:
            return
        self._probes["two groups commit"] += bool(self._committing)
        self._committing.append(batch)
        self.waiting = deque(write for write in self.waiting if write.interval in busy)
        self._commit_group(batch, batch)

    def _commit_group(self, batch: list[LogWrite], group: list[LogWrite]) -> None:
        """Commit `group`, what is left of `batch`."""
        self._process.calls.request(
            "commit",
            lambda: self._process.world.store.commit(group),
            lambda kept: self._committed(batch, kept),
            lambda refusal: self._set_aside(batch, group, refusal),
        )

    def _set_aside(self, batch: list[LogWrite], group: list[LogWrite], refusal: RowRefused) -> None:
        """A sink row was refused: the interval's core is void, the others' checkpoints are tried again."""
        process, actor = self._process, self._process.actors[refusal.interval]
        self._probes["sink row refused"] += 1
        said = f"row refused in #{refusal.seq} {refusal.rows}"
        process.world.kernel.trace(f"p{process.number} i{refusal.interval} {said}")
        self.waiting = deque(write for write in self.waiting if write.interval != refusal.interval)
        process.handle(actor, ev.Refused(refusal.seq, refusal.rows))
        process.marks.leave(actor)
        group = [write for write in group if write.interval != refusal.interval]
        if group:
            self._commit_group(batch, group)
        else:
            self._committed(batch, set())

    def _committed(self, batch: list[LogWrite], durable: set[tuple[int, int]]) -> None:
        self._committing.remove(batch)
        for write in batch:
            actor = self._process.actors[write.interval]
            if actor.sequencer != write.sequencer or actor.core.halted:
                continue  # of a core that is void
            kept = (write.interval, write.seq) in durable
            if not kept:
                self._probes["fenced commit refused"] += 1
            event = ev.Committed(write.seq) if kept else ev.Fenced()
            self._process.mail.post(actor, event, "committed", ("committed", write.interval))
        self._commit()
