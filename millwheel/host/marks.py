"""Marks: what may end the process is named in the store before it runs (`core.faults.suspects`).

Lives here: the writing of marks, one group at a time, and which suspect runs alone.  Never here: the choice of the
invocations that are marked, which a core makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor
from millwheel.host.alone import Alone
from millwheel.host.procedures import Steps
from millwheel.host.requests import WriteMarks
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import MarkWrite
from millwheel.work import Work


class Marks:
    """The effects `Mark` and `Unmark`, and the invocations that wait for a suspect.

    `begin` starts a procedure, `tell` gives a core an event, `invoke` lets an invocation run.
    """

    def __init__(
        self,
        begin: Callable[[Steps], None],
        tell: Callable[[Actor, ev.Event], None],
        invoke: Callable[[Actor, Work], None],
    ) -> None:
        self._begin = begin
        self._tell = tell
        self._invoke = invoke
        self._alone: Alone[Actor] = Alone()
        self._waiting: list[tuple[Actor, ev.Mark | ev.Unmark]] = []
        self._writing = False

    def perform(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        """The effect of a core."""
        if type(mark) is ev.Mark and mark.alone and not self._alone.enter(actor, mark.suspicion):
            return  # `leave` will submit it
        self._submit(actor, mark)

    def keeps(self, actor: Actor, work: Work) -> bool:
        """Whether an invocation waits until the suspect that runs alone is done."""
        return self._alone.keeps(actor, work)

    def leave(self, actor: Actor) -> None:
        """The suspect that ran alone is done, or void.  Let the next one run, or everything that had to wait."""
        kept, after = self._alone.leave(actor)
        for other, work in kept:
            self._invoke(other, work)
        if after is not None:
            self._submit(after[0], ev.Mark(after[1], alone=True))

    def idle(self) -> bool:
        """True when nothing waits to be written."""
        return not self._waiting and not self._writing

    def _submit(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        self._waiting.append((actor, mark))

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting and not self._writing:
            self._writing = True
            self._begin(self._write())

    def _write(self) -> Steps:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            writes = mark_writes((a.interval, a.sequencer, mark) for a, mark in batch if not a.core.halted)
            kept = (yield WriteMarks(writes)) if writes else set()
            for actor, mark in batch:
                if actor.interval not in kept:
                    self._tell(actor, ev.WriteFenced())
                elif type(mark) is ev.Mark:
                    self._tell(actor, ev.Marked())
                else:
                    self.leave(actor)
        self._writing = False


def mark_writes(marks: Iterable[tuple[IntervalId, Sequencer, ev.Mark | ev.Unmark]]) -> list[MarkWrite]:
    """The newest of each interval's marks: (interval, sequencer, mark)."""
    writes: dict[IntervalId, MarkWrite] = {}
    for interval, sequencer, mark in marks:
        before = writes.get(interval)
        ends = 1 if type(mark) is ev.Unmark and mark.trusted else before.ends if before else None
        writes[interval] = MarkWrite(interval, sequencer, mark.suspicion, ends)
    return [*writes.values()]
