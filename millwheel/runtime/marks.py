"""Marks: what is about to run is durable before it runs, when it may kill the process (`core.suspects`).

Lives here: the writing of marks, one group at a time, and who has the process for itself meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millwheel.core import events as ev
from millwheel.ports import MarkWrite, Store
from millwheel.runtime.actor import Actor
from millwheel.runtime.alone import Alone
from millwheel.runtime.mailbox import Mailbox
from millwheel.runtime.retry import until_answered
from millwheel.work import Work


class Marks:
    """The effects `Mark` and `Unmark`, and the invocations that wait for a suspect."""

    def __init__(self, store: Store, mail: Mailbox) -> None:
        self._store = store
        self._mail = mail
        self._alone: Alone[Actor] = Alone()
        self._waiting: list[tuple[Actor, ev.Mark | ev.Unmark]] = []
        self._ready = asyncio.Event()

    def perform(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        """The effect of a core."""
        if type(mark) is ev.Mark and mark.alone and not self._alone.enter(actor, mark.suspicion):
            return  # `leave` will submit it
        self._submit(actor, mark)

    def keeps(self, actor: Actor, work: Work) -> bool:
        """Whether an invocation waits until the suspect that runs alone is done."""
        return self._alone.keeps(actor, work)

    def leave(self, actor: Actor) -> None:
        """The suspect that ran alone is done, or void: the next one, or everything that had to wait."""
        kept, after = self._alone.leave(actor)
        self._mail.events.extend(kept)
        if after is not None:
            self._submit(after[0], ev.Mark(after[1], alone=True))
        self._mail.wake.set()

    def _submit(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        self._waiting.append((actor, mark))
        self._ready.set()

    async def loop(self) -> None:
        """The endless service that writes them."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                batch, self._waiting = self._waiting, []
                writes = mark_writes((a.interval, a.sequencer, mark) for a, mark in batch if not a.core.halted)
                kept = await until_answered("mark", lambda writes=writes: self._store.mark(writes))  # type: ignore[misc]
                for actor, mark in batch:
                    if actor.interval not in kept:
                        self._mail.post(actor, ev.Fenced())
                    elif type(mark) is ev.Mark:
                        self._mail.post(actor, ev.Marked())
                    else:
                        self.leave(actor)


def mark_writes(marks: Iterable[tuple[int, int, ev.Mark | ev.Unmark]]) -> list[MarkWrite]:
    """The newest of each interval's marks: (interval, sequencer, mark)."""
    writes: dict[int, MarkWrite] = {}
    for interval, sequencer, mark in marks:
        before = writes.get(interval)
        ends = 1 if type(mark) is ev.Unmark and mark.trusted else before.ends if before else None
        writes[interval] = MarkWrite(interval, sequencer, mark.suspicion, ends)
    return [*writes.values()]
