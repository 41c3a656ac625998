"""Credit: how many bytes the sources may send to an interval (back-pressure).

Lives here: both ends of the count.  Both count totals from the receiver's `Hello`, so a lost or repeated message does no
harm.  Invariants: a receiver never promises more than its limit beyond what it has received.  A sender that has used up its
credit gets more as soon as the receiver has worked something off.
"""

from __future__ import annotations

import msgspec

from millwheel import limits
from millwheel.ids import Sequencer


class CreditWindow(msgspec.Struct):
    """The receiver's end, for one interval and one sending host."""

    round: int
    """How often its `Hello` was said."""
    received: int = 0
    promised: int = 0

    def low(self) -> bool:
        """Whether little is left of what was promised."""
        return self.promised - self.received < limits.INBOX_LIMIT_BYTES // 4

    def grant(self, waiting_bytes: int) -> int | None:
        """The new promise when the sender needs one: while `waiting_bytes` wait to run at the interval."""
        if not self.low():
            return None
        limit = limits.INBOX_LIMIT_BYTES
        upto = self.received + limit - waiting_bytes
        if upto - self.promised < limit // 8:
            return None
        self.promised = upto
        return upto


class Account(msgspec.Struct):
    """The sender's end, for one receiving interval."""

    sequencer: Sequencer
    round: int
    sent: int = 0
    upto: int = 0

    def promise(self, sequencer: Sequencer, round_: int, upto: int) -> None:
        """The receiver takes this much in all."""
        if (sequencer, round_) == (self.sequencer, self.round):
            self.upto = max(self.upto, upto)

    def left(self) -> bool:
        """Whether the receiver takes more."""
        return self.sent < self.upto
