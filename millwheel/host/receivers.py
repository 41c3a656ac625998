"""Receiving intervals, as the worker of a sender knows them.

Lives here: which receivers have said hello, and where they are.  Never here: bundles.  Invariant: nothing is sent to a
receiver that has not said hello since its channel was cut, because it would overtake what was lost.
"""

from __future__ import annotations

from millwheel.host.messages import Hello
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import IntervalRow


class Receivers:
    """The newest hello of each interval, and the worker that said it."""

    def __init__(self) -> None:
        self._hellos: dict[IntervalId, tuple[str, Hello]] = {}
        self.unreached: set[int] = set()
        """Those that have to say it again."""

    def greet(self, peer: str, hello: Hello) -> bool:
        """Hear a hello; false for a copy of one that was heard already, and for one of an earlier owner."""
        known = self._hellos.get(hello.interval)
        if known is not None and (hello.sequencer, hello.round) <= (known[1].sequencer, known[1].round):
            return False
        self._hellos[hello.interval] = (peer, hello)
        self.unreached.discard(hello.interval)
        return True

    def cut(self, peer: str) -> None:
        """The channel to a worker was cut, or the worker is gone: its intervals have to say hello again."""
        self.unreached |= {interval for interval, (where, _) in self._hellos.items() if where == peer}

    def place(self, row: IntervalRow) -> tuple[str, Sequencer] | None:
        """The worker that serves an interval, and the sequencer; None when nothing may be sent to it now.

        `row` says for which keys the sender sends to it.
        """
        known = self._hellos.get(row.id)
        if known is None or row.id in self.unreached:
            return None
        peer, hello = known
        return (peer, hello.sequencer) if (hello.low, hello.high) == (row.low, row.high) else None
