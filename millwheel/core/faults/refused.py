"""Records and timers of an interval whose sink rows the store has refused.

Lives here: the memory of them, from the refusal until the quarantine of the culprit is durable.  The checkpoint with the
refused row is void, and so is all that ran on its soft state.  An interval therefore hands this memory to its next core.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.bundles import QuarantineEntry
from millwheel.limits import REDRIVE_AGAIN_US
from millwheel.work import Cause, RecordCause, cause_of


class RefusedRows:
    """Culprits by key, with the database's answer.

    `renumbered`: after a restart, records from other intervals come under other ids.  Then the first record of a culprit's
    key on its subscription stands for the culprit: it goes to quarantine, and all that follow wait behind it.
    """

    def __init__(self, renumbered: bool = False) -> None:
        self._renumbered = renumbered
        self._by_key: dict[str, dict[Cause, str]] = {}
        self._redrives: dict[str, tuple[Cause, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, cause: Cause, answer: str) -> None:
        """A record or timer must be quarantined instead of being run."""
        self._by_key.setdefault(cause.key, {})[cause] = answer

    def untouched(self, keys: Iterable[str]) -> bool:
        """True when none of `keys` has a culprit."""
        return self._by_key.keys().isdisjoint(keys)

    def answer(self, cause: Cause) -> str | None:
        """Why a record or timer must not run; None when it may."""
        known = self._by_key.get(cause.key)
        if not known:
            return None
        return known[cause] if cause in known else next((known[other] for other in self._meant(cause)), None)

    def _meant(self, cause: Cause) -> list[Cause]:
        """Culprits that a record stands for, when ids are not what they were."""
        if not self._renumbered or not isinstance(cause, RecordCause):
            return []
        known = self._by_key.get(cause.key, {})
        return [other for other in known if isinstance(other, RecordCause) and other.subscription == cause.subscription]

    def settled(self, entries: Iterable[QuarantineEntry]) -> None:
        """The quarantine of `entries` is durable."""
        for entry in entries if self._by_key else ():
            causes = self._by_key.get(entry.key, {})
            for cause in (cause_of(entry), *self._meant(cause_of(entry))):
                causes.pop(cause, None)
            if not causes:
                self._by_key.pop(entry.key, None)

    def stop_redrive(self, cause: Cause, now: int) -> None:
        """The redrive of a key must end before this element, for a while."""
        self._redrives[cause.key] = (cause, now + REDRIVE_AGAIN_US)

    def stopped(self) -> list[str]:
        """Keys whose redrive was broken off.  Their elements before the culprit must still be redriven."""
        return sorted(self._redrives)

    def may_redrive(self, key: str, now: int) -> None:
        """A redrive of `key` was asked for.  If enough time has passed, the culprit may be tried again."""
        if key in self._redrives and now >= self._redrives[key][1]:
            del self._redrives[key]

    def before_culprit(self, key: str, entries: list[QuarantineEntry]) -> list[QuarantineEntry]:
        """The first elements of a key's FIFO that may be redriven."""
        culprit = self._redrives.get(key)
        if culprit is None:
            return entries
        causes = [cause_of(entry) for entry in entries]
        return entries[: causes.index(culprit[0])] if culprit[0] in causes else entries
