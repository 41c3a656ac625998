"""What a cluster's run leaves over, keys in quarantine and rejected rows, and whether that is too much.

Lives here: what workers have said of their quarantines, and the judgement of the leader.  Never here: the counting, which
intervals and the store do.  Invariants:

* one process judges what all workers have; no worker judges what it has itself;
* a key is counted for the worker that owns its interval, whatever earlier owners have said;
* a rejected row is counted with the position behind it, in one transaction, so it counts once, whoever read it;
* when no worker is left, the store is asked for both, and while it does not know all, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from millwheel.cluster import ClusterMap, RunEnding
from millwheel.host.alphabet import Wish
from millwheel.host.over import Tolerance
from millwheel.host.requests import CountQuarantined, CountRejected
from millwheel.ids import IntervalId
from millwheel.wording import counted, is_allowed


class LeftOvers:
    """Of one term of a leader."""

    def __init__(self, allowed: Tolerance) -> None:
        self._allowed = allowed
        self._said: dict[int, Mapping[IntervalId, int]] = {}
        self._stored: int | None = None
        """What the store knows of keys.  Nothing changes there until a worker comes."""

    def said(self, incarnation: int, keys: Mapping[IntervalId, int]) -> None:
        """A worker has said how many keys of its intervals are in quarantine."""
        self._said[incarnation] = keys

    def keys(self, found: ClusterMap) -> int:
        """Keys that are in quarantine, as their owners have said."""
        owned = [(placed.owner, placed.id) for placed in found.intervals if placed.owner is not None]
        return sum(self._said.get(owner, {}).get(interval, 0) for owner, interval in owned)

    def _count(self, found: ClusterMap) -> Generator[Wish, Any, int | None]:
        """Keys that are in quarantine; None: nobody is there to say so, and the store does not know it yet."""
        if any(member.role == "worker" and member.alive for member in found.members):
            self._stored = None
            return self.keys(found)
        if self._stored is None:
            self._stored = yield CountQuarantined()
        return self._stored

    def judged(self, found: ClusterMap) -> Generator[Wish, Any, RunEnding | None]:
        """How a run has ended of which `found` is the last map; None: a worker has to come before that is known."""
        keys, allowed = (yield from self._count(found)), self._allowed
        if keys is None:
            return None
        rejected: int = yield CountRejected()
        return RunEnding(keys, rejected, keys > (allowed.quarantined or 0) or rejected > (allowed.rejected or 0))

    def excess(self, found: ClusterMap) -> Generator[Wish, Any, RunEnding | None]:
        """How the run is ended before its time; None: it goes on."""
        keys, rejected, allowed = 0, 0, self._allowed
        if allowed.quarantined is not None:
            keys = (yield from self._count(found)) or 0
        if allowed.rejected is not None:
            rejected = yield CountRejected()
        for count, limit, is_what, are_what in (
            (keys, allowed.quarantined, "key is in quarantine", "keys are in quarantine"),
            (rejected, allowed.rejected, "row is rejected", "rows are rejected"),
        ):
            if limit is not None and count > limit:
                return RunEnding(keys, rejected, True, f"{counted(count, is_what, are_what)}, {is_allowed(limit)}")
        return None
