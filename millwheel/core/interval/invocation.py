"""The invocation of user code that is under way in one interval, at most one.

Lives here: what must have happened before hooks run, and what they wait for while they run.  Before they run, their keys
are in memory, what is quarantined is taken out, and the mark is durable.  Never here: what runs next (`schedule`), what the
hooks have changed (`checkpoint`).  Invariant: a hook finds all that is known of its key in memory, or asks for it and runs
again.  So nothing of these keys leaves memory before the invocation is over.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

from millwheel.bundles import KeyRows, StateRow
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.suspects import Suspects
from millwheel.core.ids.seen import SeenKeys
from millwheel.core.interval import events as ev
from millwheel.core.interval.schedule import ScheduledWork
from millwheel.core.keys.eviction import WatermarkPace
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.model import MAX_TIME
from millwheel.work import Wanted, Work


class Invocation:
    """Scheduled work from when it is taken until its outcome is there."""

    def __init__(
        self,
        *,
        keyed: KeyedState,
        expiry: Expiry,
        quarantine: Quarantine,
        suspects: Suspects,
        seen: SeenKeys,
    ) -> None:
        self._keyed = keyed
        self._expiry = expiry
        self._quarantine = quarantine
        self._suspects = suspects
        self._seen = seen
        self._pace = WatermarkPace()
        self._scheduled: ScheduledWork | None = None
        self._running: Work | None = None
        """What user code was given: the scheduled work without what was diverted."""
        self._keys: dict[str, int] = {}
        """The keys of the scheduled work, and the number of the invocation."""
        self._expiring: dict[str, int] = {}
        """Keys that may expire in this invocation and must be loaded before."""
        self._missing: list[str] = []
        """Those that were not in memory, in order."""
        self._touched = False
        """All of its keys were in memory when it was taken, and it was noted that they are read."""
        self._wanted: list[Wanted] = []
        """State that a hook waits for."""
        self.oldest = MAX_TIME
        """The smallest event time that may come of it."""

    def __bool__(self) -> bool:
        return self._scheduled is not None

    @property
    def work(self) -> Work:
        """What was taken, with what is diverted from it."""
        if self._scheduled is None:
            raise InvariantError("Invoked without work")
        return self._scheduled.work

    # --- before hooks run -------------------------------------------------------------------------------------

    def begin(self, scheduled: ScheduledWork, effects: list[ev.Effect]) -> bool:
        """Take scheduled work.  Returns true when no hook has anything to do in it, so that it is over."""
        self._scheduled, self.oldest = scheduled, scheduled.oldest()
        # A key with timers must not expire.  When not all timers are in memory, the key is loaded to find out.
        number = self._keyed.next_invocation()
        self._keys = keys_of(scheduled.work, number)
        complete = self._keyed.timers.complete
        self._expiring = {key: number for key in scheduled.expiring if not complete or self._expiry.keeps(key)}
        self._missing = sorted(self._keyed.missing(self._expiring) if self._expiring else self._keyed.read(self._keys))
        self._touched = not (self._expiring or self._missing)
        self._pace.read(
            0 if scheduled.work.timers else len(self._keys) - len(self._missing), len(scheduled.work.timers)
        )
        if self._missing:
            asked = self._seen.add(self._missing)
            if asked:
                effects.append(ev.Load(asked, not complete))
                return False
        return self.loaded([], effects)

    def loaded(self, rows: list[KeyRows], effects: list[ev.Effect]) -> bool:
        """An answer to `Load`: all that the store has of the missing keys.  Returns the same as `begin`."""
        if self._scheduled is None:
            raise InvariantError("Loaded without work")
        self._keyed.load(self._missing, rows, self._expiring)
        self._missing = []
        return self._run(self._scheduled.work, effects)

    def _run(self, work: Work, effects: list[ev.Effect]) -> bool:
        """All that hooks need is in memory."""
        keys = self._keys
        if not keys:
            return True
        if not self._touched:
            self._keyed.touch(keys)
        work.holds = self._keyed.holds_of(keys)
        if self._quarantine.guards():
            work = self._quarantine.divert(work)
        self._running = work
        mark = self._suspects.begin(work)
        effects.append(ev.Invoke(work) if mark is None else ev.Mark(mark, self._suspects.alone))
        return False

    def marked(self, effects: list[ev.Effect]) -> None:
        """The mark is durable."""
        if self._running is None:
            raise InvariantError("Marked without a mark")
        effects.append(ev.Invoke(self._running))

    # --- while they run ---------------------------------------------------------------------------------------

    def want(self, lacking: list[Wanted], effects: list[ev.Effect]) -> None:
        """Hooks wait for state of keys that are in memory in part."""
        self._wanted = lacking
        effects.append(ev.LoadSlots(lacking))

    def filled(self, rows: list[StateRow], effects: list[ev.Effect]) -> None:
        """An answer to `LoadSlots`."""
        if self._running is None:
            raise InvariantError("SlotsLoaded without work")
        self._keyed.fill(self._wanted, rows)
        self._wanted = []
        effects.append(ev.Invoke(self._running))

    def trim(self, watermark: int) -> None:
        """Evict keys that a fold has made clean, if memory is over its limit.  `watermark` is the input's."""
        by_records = self._pace.by_records
        self._pace.note(watermark, self._keyed.invocation)
        busy = self._keys | self._scheduled.expiring if self._scheduled else {}
        suspended: Container[str] = busy if self._running is not None and self._running.suspended is not None else ()
        self._keyed.trim(
            busy,
            suspended,
            by_records=by_records,
            next_timers=self._next_timers,
            sheds_timers=not self._missing,  # the answer is for what is near now
        )

    def _next_timers(self, keys: Sequence[str]) -> list[float]:
        return self._pace.invocations_until(self._keyed.timers.next_of(keys, MAX_TIME))

    # --- after that -------------------------------------------------------------------------------------------

    def end(self) -> tuple[ScheduledWork, int]:
        """The invocation is over.  Returns the scheduled work, and the smallest event time that may have come of it."""
        if self._scheduled is None:
            raise InvariantError("Invoked without work")
        scheduled, oldest = self._scheduled, self.oldest
        self._scheduled, self._running, self.oldest = None, None, MAX_TIME
        return scheduled, oldest


def keys_of(work: Work, invocation: int) -> dict[str, int]:
    """The keys of `work` in the order of appearance.  The order of a set would differ from process to process."""
    keys = dict.fromkeys(chain.from_iterable([part.keys for part in work.parts]), invocation)
    keys.update((timer.key, invocation) for timer in work.timers)
    keys.update((entry.key, invocation) for entry in work.redrive)
    return keys
