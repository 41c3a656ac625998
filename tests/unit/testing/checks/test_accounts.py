"""The second account of an interval tells what keeps records from running."""

from __future__ import annotations

from millwheel import limits
from millwheel.core.interval.arrivals import Item
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.model import Timer
from millwheel.testing.checks.accounts import Owned
from millwheel.testing.checks.truth import Durable
from millwheel.work import InvocationOutcome, TimerCause, Work

WAITS = Item(None, IntervalId(2), 1, 0, 0)
WALL = Timer("k", "t", 5, "wall")
WATERMARK = Timer("k", "t", 5, "watermark")
MOST = limits.TIMER_INVOCATIONS + 1
"""The first one finds that records wait."""


def account() -> Owned:
    return Owned(IntervalId(1), Sequencer(1), Durable(), {}, {})


def timers_run(owned: Owned, times: int, timer: Timer = WALL, full: bool = False) -> bool:
    """Invocations of a timer that sets itself anew, while records wait; whether all of them may run before these."""
    allowed = True
    for number in range(times):
        work = Work([], [timer], {}, {}, {}, 0, 5)
        allowed = owned.ran_next(work, WAITS) and allowed
        owned.returned("k", {(timer.kind, "t"): 5}, TimerCause("k", timer.kind, "t", 5))
        owned.finish(Seq(number + 1), work, InvocationOutcome(full=full), 0, None)
    return allowed


def test_timers_run_so_often_before_records_and_not_once_more() -> None:
    assert timers_run(account(), MOST)
    assert not timers_run(account(), MOST + 1)


def test_records_that_wait_for_room_wait_for_a_wall_timer() -> None:
    assert timers_run(account(), 2 * MOST, full=True)
    assert not timers_run(account(), MOST + 2, WATERMARK, full=True)


def test_records_have_waited_anew_since_there_is_room() -> None:
    owned = account()
    assert timers_run(owned, MOST, full=True)
    assert timers_run(owned, MOST)
    assert not timers_run(owned, 1)
