"""Expiry: the state of a key is deleted some event time after the last write to it.

Lives here: when a key expires, and what prevents it.  An expiry is a timer of a kind of its own, under a tag of its own,
which does not hold the watermark.  Invariants:

* a key with timers, a hold or a quarantine never expires;
* no key expires before that much event time has passed, and the end of the input is not the passing of time.
"""

from __future__ import annotations

from collections.abc import Collection

from millwheel.bundles import StateWrites, TimerWrites
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import Seq
from millwheel.model import EXPIRY_KIND, MAX_TIME, MIN_TIME
from millwheel.work import Work


class Expiry:
    """The expiries of one interval: `after` is the time to live, us, or None when state is kept for ever."""

    def __init__(self, after: int | None, keyed: KeyedState, quarantine: Quarantine) -> None:
        self._after = after
        self._keyed = keyed
        self._quarantine = quarantine

    @staticmethod
    def until(watermark: int) -> int:
        """Up to when keys expire.  The end of input is not the passing of time: a finished run keeps its state."""
        return watermark if watermark < MAX_TIME else MIN_TIME

    def take_due(self, watermark: int, limit: int) -> dict[str, int]:
        """At most `limit` keys that are due, and since when; none while a timer is due."""
        first = self._keyed.timers.minimum("watermark")
        if first is not None and first <= watermark:
            return {}  # a key with such a timer would be kept, and looked at again at a watermark that may never come
        due = self._keyed.take_due(EXPIRY_KIND, self.until(watermark), limit)
        return {key: timestamp for timestamp, (key, _) in due}

    def keeps(self, key: str) -> bool:
        """True when `key` must not expire."""
        return key in self._quarantine.keys or key in self._keyed.holds.all or self._keyed.timers.pending(key)

    def drop(self, due: Collection[str], seq: Seq, watermark: int, writes: TimerWrites) -> list[str]:
        """Drop the keys that are due, in checkpoint `seq`, and return them.  Keys that must be kept are due again later."""
        expired = [key for key in due if not self.keeps(key)]
        self._keyed.forget(expired, seq)
        for key in filter(self.keeps, due) if len(expired) < len(due) else ():
            self._keyed.set_expiry(key, self._look_again(key, watermark), writes)
            self._keyed.keep(key, seq)
        return expired

    def _look_again(self, key: str, watermark: int) -> int:
        """When a key that was kept is looked at again: at its next timer, or after another time to live."""
        pending = [at for (kind, _), at in self._keyed.timers.of(key) if kind == "watermark" and at > watermark]
        return min([watermark + (self._after or 1), *pending, MAX_TIME - 1])

    def renew(self, state: StateWrites, work: Work, watermark: int, writes: TimerWrites) -> None:
        """The invocation `work` has written `state`: its keys live on."""
        if self._after is None:
            return
        newest = _newest_by_key(work)
        passed = min(watermark, MAX_TIME - 1)
        for key in sorted(state.keys()):
            self._extend(key, max(newest.get(key, MIN_TIME), passed), self._after, writes)

    def _extend(self, key: str, touched: int, after: int, writes: TimerWrites) -> None:
        known = self._keyed.timers.expiry(key)
        # Without slack, a hot key would write its expiry in every checkpoint.  A slack of an eighth saves almost all of
        # these writes, and a key still never expires before `after` has passed.
        if known is None or touched + after > known:
            self._keyed.set_expiry(key, min(touched + after + after // 8, MAX_TIME - 1), writes)


def _newest_by_key(work: Work) -> dict[str, int]:
    newest: dict[str, int] = {}
    for part in work.parts:
        for key, timestamp in zip(part.keys, part.timestamps, strict=True):
            if timestamp > newest.get(key, MIN_TIME):
                newest[key] = timestamp
    for timer in work.timers:
        if timer.kind == "watermark" and timer.timestamp > newest.get(timer.key, MIN_TIME):
            newest[timer.key] = timer.timestamp
    return newest
