"""What runs next in one interval.

Lives here: the choice, how much of it is run at once, and the timers that must be in memory for it.  Never here: running
it.  Invariants:

* redriven elements run first, then timers that are due, then keys that expire, then records.  No two of these run together,
  so no hook sees a key that is being dropped;
* waiting records run after `limits.TIMER_INVOCATIONS` invocations of timers;
* a computation that has no room gets no records while a wall timer is to come, for its hook may make room;
* what is taken from here runs or goes to quarantine, and is not due a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from millwheel import limits
from millwheel.bundles import QuarantineEntry
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Item
from millwheel.core.interval.inbox import Inbox
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.model import EXPIRY_KIND, MAX_TIME, MIN_TIME, Timer, TimerKind
from millwheel.work import InvocationOutcome, Work


class ScheduledWork(msgspec.Struct, gc=False):
    """What runs in one invocation: work for hooks, the bundles it came with, and keys that expire, with their times."""

    work: Work
    items: list[Item] = []
    expiring: dict[str, int] = {}

    def oldest(self) -> int:
        """The smallest event time that may come of it, or MAX_TIME."""
        # A wall timer may produce records as old as the watermark under which it was started.
        since = max(self.work.watermark, self.work.promised)
        times = [t.timestamp if t.kind == "watermark" else since for t in self.work.timers]
        times += [since for entry in self.work.redrive if entry.is_timer and entry.kind == "wall"]
        return min([MAX_TIME, *times, *(item.oldest for item in self.items)])


class Schedule:
    """Takes from the inbox, the timers and the quarantine of its interval, at most `limit` records for an invocation."""

    def __init__(
        self,
        *,
        limit: int,
        inbox: Inbox,
        keyed: KeyedState,
        expiry: Expiry,
        quarantine: Quarantine,
        suspects: Suspects,
    ) -> None:
        self._most = limit
        self.limit = limit
        """Records or timers of the next invocation."""
        self._inbox = inbox
        self._keyed = keyed
        self._expiry = expiry
        self._quarantine = quarantine
        self._suspects = suspects
        self._timer_invocations = 0
        """Of timers, since records had one."""
        self.paging = False
        """A page of timers is on its way."""
        self.full = False
        """The computation has no room for records, as its last invocation has left it."""

    # --- what is next ------------------------------------------------------------------------------------------

    def nothing(self, watermark: int, now: int) -> bool:
        """True when `take` would find nothing, which is so after most events."""
        if self._has_records() or self._quarantine.wants_work:
            return False
        if self._keyed.timers.may_be_due(watermark, now, self._expiry.until(watermark)):
            return False
        self._timer_invocations = 0
        return True

    def take(self, watermark: int, now: int, promised: int = MIN_TIME) -> ScheduledWork | None:
        """What runs next; None when there is nothing.  `promised` is for wall timers (`Work`)."""
        redrive = self._quarantine.take_fetched()
        if redrive:
            return self._promised(self._redrive_work(redrive, watermark, now), promised)
        if not self._records_are_owed():
            timers = self._take_timers(watermark, now)
            if timers:
                self._timer_invocations += 1
                return self._promised(self._timer_work(timers, watermark, now), promised)
        expiring = self._expiry.take_due(watermark, self._most)
        if expiring:
            return ScheduledWork(self._keyed.work(watermark, now), expiring=expiring)
        self._timer_invocations = 0
        items = self._inbox.take(self._suspects.limit(self.limit), self._suspects) if self._has_records() else []
        if items or self._quarantine.released:
            work = self._keyed.work(watermark, now)
            work.parts = [item.part for item in items if item.part is not None and item.part.keys]
            return ScheduledWork(work, items)
        return None

    def _has_records(self) -> bool:
        """Whether records wait that may run now."""
        return bool(self._inbox) and not (self.full and self._keyed.timers.minimum("wall") is not None)

    def _promised(self, work: Work, promised: int) -> ScheduledWork:
        work.promised = promised
        return ScheduledWork(work)

    def _redrive_work(self, redrive: list[QuarantineEntry], watermark: int, now: int) -> Work:
        """Timers that wait here were due once: also if the clock was set back since, or if a new owner of the interval
        has not been told how far its input is."""
        timers = [entry for entry in redrive if entry.is_timer]
        watermark = max([watermark, *(entry.timestamp for entry in timers if entry.kind == "watermark")])
        work = self._keyed.work(watermark, max([now, *(entry.timestamp for entry in timers if entry.kind == "wall")]))
        work.redrive = redrive
        return work

    def _records_are_owed(self) -> bool:
        """Whether records must run now, after many invocations of timers: timers that set timers could go on for ever."""
        if not self._has_records():
            self._timer_invocations = 0
        return self._timer_invocations >= limits.TIMER_INVOCATIONS

    def _timer_work(self, timers: list[Timer], watermark: int, now: int) -> Work:
        work = self._keyed.work(watermark, now)
        work.timers = timers
        self._keyed.take_stalls(work)
        room = min(limits.TIMER_CHAIN, self.limit - len(timers))
        if room > 0 and not (self._suspects.watching or self._suspects.some or self._quarantine.has_culprits()):
            # While a culprit is looked for, the mark must name all that runs.  So no chained timers run.
            work.chain = room
            work.reach = {
                "watermark": self._keyed.timers.reach("watermark", watermark), "wall": self._keyed.timers.reach("wall", now),
            }  # fmt: skip
        return work

    def _take_timers(self, watermark: int, now: int) -> list[Timer]:
        limit, some = self._suspects.limit(self.limit), self._suspects.some
        due = self._pop_due("watermark", watermark, limit, some)
        # If anything is suspected, either list may be one suspect, which must run alone.
        return due if due and some else due + self._pop_due("wall", now, limit - len(due), some)

    def _pop_due(self, kind: TimerKind, until: int, limit: int, some: bool) -> list[Timer]:
        alone = partial(self._suspects.suspects_timer, kind) if some else None
        return [Timer(k, tag, at, kind) for at, (k, tag) in self._keyed.take_due(kind, until, limit, alone)]

    def pace(self, work: Work, outcome: InvocationOutcome, elapsed_us: int) -> None:
        """Give slow hooks fewer records at a time, because commits, other keys and Ctrl-C wait for the invocation."""
        done = max(1, outcome.processed + len(work.timers) + outcome.chained)
        if elapsed_us > limits.INVOCATION_TARGET_US:
            self.limit = max(1, min(self.limit, done * limits.INVOCATION_TARGET_US // elapsed_us))
        elif 2 * outcome.written_bytes <= limits.OUTCOME_LIMIT_BYTES:
            self.limit = min(self._most, self.limit * 2)

    def put_back(self, items: Sequence[Item], fits: int) -> None:
        """These were too much for one invocation.  So many of their records fit, and they run next."""
        self._inbox.put_back(items)
        self.limit = min(self.limit, fits)

    def begin_slowly(self, records: int) -> None:
        """The next invocation has at most so many records.  Later ones have as many as their pace allows."""
        self.limit = min(self.limit, records)

    # --- timers that are not in memory ------------------------------------------------------------------------

    def page_timers(self, effects: list[ev.Effect], watermark: int, now: int) -> None:
        """Have more timers read when those that are near run out."""
        if self.paging or self._keyed.timers.complete:
            return
        for kind, until in (("watermark", watermark), ("wall", now), (EXPIRY_KIND, self._expiry.until(watermark))):
            after = self._keyed.timers.wanted(kind, until)
            if after is not None:
                self.paging = True
                effects.append(ev.LoadTimers(kind, after, limits.TIMER_PAGE_ROWS))
                return

    def page_arrived(self, page: ev.TimersLoaded) -> None:
        """An answer to `page_timers`."""
        self.paging = False
        self._keyed.add_page(page.kind, page.timers, page.more)
