"""Planted bugs in the order of timers, and in the share that timers get."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.interval.schedule import Schedule
from millwheel.core.keys.timers import TimerQueue
from millwheel.model import EXPIRY_KIND, MIN_TIME, Timer
from millwheel.runtime.chain import TimerChain
from millwheel.work import Stall, Work
from tests.planted import Patches, mutant, only


@mutant
def due_settings_fire_last() -> Patches:
    """A timer that is set while others are due fires after them."""
    return {(TimerChain, "add"): lambda self, key, timers: None}


@mutant
def passes_the_queue() -> Patches:
    """A chain of timers fires past one of its key that is still in the queue."""
    return {(TimerQueue, "reach"): lambda self, kind, until: (until + 1, ("", ""))}


@only("tests/unit/core/interval/test_schedule.py")
def walls_are_not_seen() -> Patches:
    """After an event, nothing looks due though a wall timer is: it waits for a record, or for another timer."""
    original = TimerQueue.may_be_due
    return {
        (TimerQueue, "may_be_due"): lambda self, watermark, now, expiry: original(self, watermark, MIN_TIME, expiry)
    }


@mutant
def keeps_nothing_back() -> Patches:
    """A timer that goes back to the queue does not keep back what comes later for its key."""
    original = TimerChain.next

    def next_(self: TimerChain, listed: Timer | None) -> Timer | None:
        before = {*self.closed}
        found = original(self, listed)
        self.closed.intersection_update(before)
        return found

    return {(TimerChain, "next"): next_}


@mutant
def chained_stays() -> Patches:
    """A timer that fired in the invocation that moved it stays pending for its old time."""
    original = TimerChain.next

    def next_(self: TimerChain, listed: Timer | None) -> Timer | None:
        found = original(self, listed)
        if found is not None:
            del self._outcome.timers[found.key][found.kind, found.tag]
        return found

    return {(TimerChain, "next"): next_}


@mutant
def chains_are_loops() -> Patches:
    """Timers that get further are counted as if they did not."""
    original = TimerChain.add

    def add(self: TimerChain, key: str, timers: Any) -> None:
        self.stall = self.stall or Stall(0, MIN_TIME, MIN_TIME)
        original(self, key, timers)

    def stall(self: TimerChain, kind: str, at: int) -> Stall:
        assert self.stall is not None
        return Stall(self.stall.firings + 1, MIN_TIME, MIN_TIME)

    return {(TimerChain, "add"): add, (TimerChain, "_stall"): stall}


@mutant
def loops_for_ever() -> Patches:
    """Timers that set each other to the same time are never quarantined."""
    return {(TimerChain, "_loops"): lambda self, name, at: False}


@mutant
def loops_forgotten() -> Patches:
    """How long timers have set each other is forgotten with each invocation."""
    original = Schedule._timer_work

    def timer_work(self: Schedule, *arguments: Any) -> Any:
        self._keyed._timers.stalls.clear()
        return original(self, *arguments)

    return {(Schedule, "_timer_work"): timer_work}


@mutant
def no_share_for_records() -> Patches:
    """Timers that are due go before records however long these have waited."""
    return {(Schedule, "_records_are_owed"): lambda self: False}


@only(
    "tests/sim/test_regressions.py::test_a_timer_that_is_redriven_before_the_next_owner_has_heard_of_the_watermark_is_not_early"
)
def redriven_early() -> Patches:
    """A timer is redriven under a watermark that has not reached it."""
    original = Schedule._redrive_work

    def redrive_work(self: Schedule, redrive: list[Any], watermark: int, now: int) -> Work:
        work = original(self, redrive, watermark, now)
        return msgspec.structs.replace(work, watermark=watermark)

    return {(Schedule, "_redrive_work"): redrive_work}


@only("tests/unit/core/keys/test_timers.py")
def reach_past_what_is_pending() -> Patches:
    """What a hook sets fires at once, although a timer that was not taken comes before it."""

    def reach(self: TimerQueue, kind: str, until: int) -> Any:
        after = (until + 1, ("", ""))
        return min(after, self._ends.get(kind, after))

    return {(TimerQueue, "reach"): reach}


@only("tests/unit/core/keys/test_timers.py")
def expiries_stay_in_memory() -> Patches:
    """The far expiry of a key stays when its state leaves memory."""

    def forget_far(self: TimerQueue, key: str, kind: str, tag: str, timestamp: int) -> None:
        if kind != EXPIRY_KIND and self._is_far(key, kind, tag, timestamp):
            self.remove(key, kind, tag)

    return {(TimerQueue, "_forget_far"): forget_far}
