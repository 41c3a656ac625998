"""The low watermark of one interval (§4.5): min(input watermark, oldest work).

Lives here: both watermarks, and everything that is pending work.  Never here: the minimum over the senders (`authority`).
Invariants: no reported watermark is ahead of pending work; neither watermark goes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.core.channel.alignment import Alignment
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.durability import Durability
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.interval.inbox import Inbox
from millwheel.core.interval.invocation import Invocation
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.model import MAX_TIME
from millwheel.work import QUARANTINE_HOLD, BundlePart, Work


class LowWatermark:
    """`input` is what the senders have reported, `reported` what this interval has."""

    def __init__(
        self,
        *,
        input_watermark: int,
        reported: int,
        arrivals: Arrivals,
        inbox: Inbox,
        invocation: Invocation,
        durability: Durability,
        outbox: Outbox,
        keyed: KeyedState,
        alignment: Alignment,
    ) -> None:
        self.input = input_watermark
        self.reported = reported
        self._arrivals = arrivals
        self._inbox = inbox
        self._invocation = invocation
        self._durability = durability
        self._outbox = outbox
        self._timers = keyed.timers
        self._holds = keyed.holds
        self._alignment = alignment
        self._later: list[tuple[int, int]] = []
        """(label, value): values that rest on reports made after a barrier that this interval has not passed."""

    def move(self, value: int, label: int = 0) -> None:
        """The input's watermark has risen, by reports under labels up to `label`.

        Timers that fire are in the cut of the epoch that runs.  So a value of a later epoch waits: after a recovery, records
        before it would come again.
        """
        if label > self._alignment.label:
            self._later.append((label, value))
        else:
            self.input = max(self.input, value)

    def passed(self) -> None:
        """This interval has passed a barrier."""
        later, self._later = self._later, []
        for label, value in later:
            self.move(value, label)

    def report(self, effects: list[ev.Effect]) -> None:
        """Tell the authority when this interval has come further."""
        if self.input <= self.reported:
            return
        value = min(self.input, self.oldest_work())
        if value > self.reported:
            self.reported = value
            effects.append(ev.ReportWatermark(value))

    def oldest_work(self) -> int:
        """The smallest event time of anything that is still to be done, or MAX_TIME."""
        timer = self._timers.minimum("watermark")
        return min(
            self._inbox.oldest(),
            self._arrivals.oldest(),
            self._alignment.oldest(MAX_TIME),
            self._invocation.oldest,
            self._durability.oldest(),
            self._outbox.oldest(),
            MAX_TIME if timer is None else timer,
            self._holds.minimum(),
        )

    def blame(self) -> list[tuple[str, int, str]]:
        """What holds it: (kind, timestamp, detail) of the oldest of each kind, the oldest first."""
        found: list[tuple[str, int, str]] = [("input watermark", self.input, "")]
        if self._inbox:
            oldest = self._inbox.first_oldest()
            found.append(("waiting record", oldest.oldest, _oldest_key(oldest.part)))
        if self._arrivals.oldest() < MAX_TIME:
            found.append(("record", self._arrivals.oldest(), "of which the store is asked whether it came before"))
        if self._alignment.oldest(MAX_TIME) < MAX_TIME:
            found.append(("record", self._alignment.oldest(MAX_TIME), "that waits for the barriers of other senders"))
        if self._invocation:
            found.append(("running work", self._invocation.oldest, _running(self._invocation.work)))
        if self._durability:
            found.append(("uncommitted checkpoint", self._durability.oldest(), ""))
        bundle = self._outbox.first_oldest()
        if bundle is not None:
            sent = f"key {bundle.oldest_key()!r} to interval {bundle.target}"
            found.append(("unacked production", bundle.oldest(), sent))
        timer, at = self._timers.first("watermark"), self._timers.minimum("watermark")
        if at is not None:
            found.append(("timer", at, f"key {timer[0]!r} tag {timer[1]!r}" if timer else "not in memory yet"))
        hold = self._holds.first()
        if hold is not None:
            found.append(_blamed_hold(hold, self._holds.minimum()))
        return sorted(found, key=lambda blamed: blamed[1])


def _oldest_key(part: BundlePart | None) -> str:
    return f"key {_at_oldest(part.keys, part.timestamps)!r}" if part and part.keys else ""


def _at_oldest(keys: Sequence[str], timestamps: Sequence[int]) -> str:
    return keys[timestamps.index(min(timestamps))]


def _running(work: Work) -> str:
    """The key of the oldest record or timer that hooks have."""
    found = [(min(part.timestamps), _at_oldest(part.keys, part.timestamps)) for part in work.parts if part.keys]
    found += [(timer.timestamp, timer.key) for timer in work.timers if timer.kind == "watermark"]
    return f"key {min(found)[1]!r}" if found else ""


def _blamed_hold(name: str, at: int) -> tuple[str, int, str]:
    key = name.removesuffix(QUARANTINE_HOLD)
    return ("hold" if key == name else "quarantine", at, f"key {key!r}")
