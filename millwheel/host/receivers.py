"""Receiving intervals, as the worker of a sender knows them.

Lives here: which receivers have said hello.  Never here: bundles.  Invariant: nothing is sent to a receiver that has not said
hello since its channel was cut, because it would overtake what was lost.
"""

from __future__ import annotations

from millwheel.host.messages import Hello


class Receivers:
    """The newest hello of each interval."""

    def __init__(self) -> None:
        self._hellos: dict[int, Hello] = {}
        self.unreached: set[int] = set()
        """Those that have to say it again."""

    def greet(self, hello: Hello) -> bool:
        """Hear a hello; false for a copy of one that was heard already."""
        known = self._hellos.get(hello.interval)
        if known is not None and (hello.sequencer, hello.round) <= (known.sequencer, known.round):
            return False
        self._hellos[hello.interval] = hello
        self.unreached.discard(hello.interval)
        return True

    def cut(self) -> None:
        """The channel was cut: everybody has to say hello again."""
        self.unreached |= {*self._hellos}

    def sequencer(self, interval: int) -> int | None:
        """The sequencer under which an interval is served, or None when nothing may be sent to it now."""
        hello = self._hellos.get(interval)
        return None if hello is None or interval in self.unreached else hello.sequencer
