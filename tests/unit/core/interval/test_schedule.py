"""What runs next: one kind of work at a time, and in which order."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.bundles import QuarantineEntry
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Item
from millwheel.core.interval.inbox import Inbox
from millwheel.core.interval.schedule import Schedule, ScheduledWork
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import SequenceNumber, sequence_numbers
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME, Timer
from millwheel.work import BundlePart, InvocationOutcome, TimerCause, Work
from tests.unit.core.bench import IN, PRODUCER, SENDER, timer_writes


class Waiting:
    """Everything that a schedule takes from, with one thing of each kind: a FIFO's element of `bad`, a timer of `t`, an
    expiry of `e`, a record of `r`."""

    def __init__(self, limit: int = 4) -> None:
        self.inbox, self.keyed, suspects = Inbox(), KeyedState(1_000), Suspects()
        self.timers = self.keyed._timers
        self.suspects = suspects
        self.refused = RefusedRows()
        self.quarantine = Quarantine(
            keys=["bad"], refused=self.refused, suspects=suspects, keyed=self.keyed, keeps_hold=False
        )
        expiry = Expiry(5, self.keyed, self.quarantine)
        self.schedule = Schedule(
            limit=limit,
            inbox=self.inbox,
            keyed=self.keyed,
            expiry=expiry,
            quarantine=self.quarantine,
            suspects=suspects,
        )
        self.timers.set("t", "watermark", "u", 10)
        self.timers.set("e", EXPIRY_KIND, EXPIRY_TAG, 10)
        self.record("r")

    def record(self, *keys: str) -> None:
        count = len(keys)
        part = BundlePart(
            IN,
            PRODUCER,
            SequenceNumber(0),
            sequence_numbers(range(count)),
            list(keys),
            [b"v"] * count,
            [20] * count,
        )
        self.inbox.put(Item(part, SENDER, 1, 20, 1))

    def redrive(self) -> None:
        self.quarantine.ask(["bad"], 0)
        assert self.quarantine.next() == ["bad"]
        self.quarantine.fetched([QuarantineEntry("bad", IN, PRODUCER, SequenceNumber(0), b"v", 3)], more=False)

    def turn(self, watermark: int) -> ScheduledWork:
        return self.turn_at(watermark, 0)

    def turn_at(self, watermark: int, now: int) -> ScheduledWork:
        turn = self.schedule.take(watermark, now)
        assert turn is not None
        return turn


def kinds(turn: ScheduledWork) -> list[str]:
    work = turn.work
    found = {"redrive": work.redrive, "timers": work.timers, "expiry": turn.expiring, "records": work.parts}
    return [kind for kind, what in found.items() if what]


def test_redrives_go_before_timers_before_expiry_before_records_and_never_together() -> None:
    waiting = Waiting()
    waiting.redrive()
    assert [kinds(waiting.turn(10)) for _ in range(4)] == [["redrive"], ["timers"], ["expiry"], ["records"]]
    assert waiting.schedule.take(10, 0) is None


def test_nothing_looks_due_only_when_nothing_would_be_taken() -> None:
    waiting = Waiting()
    for kind in ("timers", "expiry", "records"):
        assert not waiting.schedule.nothing(10, 0)
        assert kinds(waiting.turn(10)) == [kind]
    assert waiting.schedule.nothing(10, 0)
    assert waiting.schedule.take(10, 0) is None
    waiting.timers.set("w", "wall", "u", 7)
    assert waiting.schedule.nothing(10, 6)
    assert not waiting.schedule.nothing(10, 7)
    assert kinds(waiting.turn_at(10, 7)) == ["timers"]
    assert waiting.schedule.nothing(10, 7)


@pytest.mark.parametrize("waits", ["asked", "fetched", "released"])
def test_a_redrive_is_not_nothing(waits: str) -> None:
    waiting = Waiting()
    while waiting.schedule.take(10, 0) is not None:
        pass
    assert waiting.schedule.nothing(10, 0)
    waiting.quarantine.ask(["good" if waits == "released" else "bad"], 0)
    if waits == "fetched":
        assert waiting.quarantine.next() == ["bad"]
    assert not waiting.schedule.nothing(10, 0)


def test_what_is_not_due_leaves_its_turn_to_records() -> None:
    waiting = Waiting()
    assert kinds(waiting.turn(9)) == ["records"]
    assert waiting.schedule.take(9, 0) is None


def test_the_end_of_the_input_fires_timers_and_expires_nothing() -> None:
    waiting = Waiting()
    assert [kinds(waiting.turn(MAX_TIME)) for _ in range(2)] == [["timers"], ["records"]]
    assert waiting.schedule.take(MAX_TIME, 0) is None


def test_a_turn_is_as_old_as_the_oldest_that_may_come_of_it() -> None:
    waiting = Waiting()
    waiting.timers.set("w", "wall", "u", 0)
    assert waiting.turn(10).oldest() == 10
    assert waiting.turn(10).oldest() == MAX_TIME, "an expiry produces nothing"
    assert waiting.turn(10).oldest() == 20
    waiting.timers.set("w", "wall", "u", 0)
    assert waiting.turn(7).oldest() == 7, "a wall timer produces at the watermark it was started under"


def test_a_redriven_wall_timer_is_as_old_as_what_its_hook_may_produce() -> None:
    """Otherwise the watermark passes its records before they are out, and their receivers close windows early."""
    waiting = Waiting()
    waiting.quarantine.ask(["bad"], 0)
    assert waiting.quarantine.next() == ["bad"]
    wall = QuarantineEntry.of_timer(Timer("bad", "u", 3, "wall"))
    waiting.quarantine.fetched([wall], more=False)
    turn = waiting.schedule.take(7, 5, promised=9)
    assert turn is not None
    assert [(entry.is_timer, entry.kind) for entry in turn.work.redrive] == [(True, "wall")]
    assert turn.oldest() == 9


@pytest.mark.parametrize("redriven", [True, False])
def test_hooks_of_timers_know_what_their_loop_has_promised(redriven: bool) -> None:
    waiting = Waiting()
    waiting.timers.set("w", "wall", "u", 0)
    if redriven:
        waiting.redrive()
    turn = waiting.schedule.take(7, 5, promised=9)
    assert turn is not None
    assert (kinds(turn), turn.work.promised) == (["redrive" if redriven else "timers"], 9)


def test_slow_hooks_get_less_and_quick_ones_get_back_what_they_had() -> None:
    waiting = Waiting()
    waiting.record(*"abcdefgh")
    work, done = Work([], [], {}, {}, {}, MIN_TIME, 0), InvocationOutcome(processed=4)
    waiting.schedule.pace(work, done, 1_000_000)
    taken = []
    for _ in range(4):
        taken.append(sum(len(part.keys) for part in waiting.turn(0).work.parts))
        waiting.schedule.pace(work, done, 1)
    assert taken == [1, 2, 4, 2]


def test_one_page_of_timers_is_asked_for_at_a_time() -> None:
    waiting = Waiting()
    page = timer_writes(("k", "u", "watermark", 30))
    waiting.timers.add_page("watermark", page, True, ())
    effects: list[ev.Effect] = []
    for _ in range(2):
        waiting.timers.pop_due("watermark", 30, 10)
        waiting.schedule.page_timers(effects, 30, 0)
    assert [type(effect) for effect in effects] == [ev.LoadTimers]
    waiting.schedule.page_arrived(ev.TimersLoaded("watermark", timer_writes(("k", "v", "watermark", 40)), False))
    assert not waiting.schedule.paging
    assert waiting.timers.minimum("watermark") == 40


def test_slow_timers_get_as_many_as_fit_in_their_time() -> None:
    waiting = Waiting(limit=8)
    work = Work([], [], {}, {}, {}, MIN_TIME, 0)
    work.timers = [Timer("t", f"{number}", 0, "watermark") for number in range(6)]
    waiting.schedule.pace(work, InvocationOutcome(processed=2), 2 * limits.INVOCATION_TARGET_US)
    assert waiting.schedule.limit == 4, "of eight hooks, half were in time"


def test_pages_of_all_kinds_are_asked_for_one_after_the_other() -> None:
    waiting = Waiting()
    kinds_of_pages = ("watermark", "wall", EXPIRY_KIND)
    for kind in kinds_of_pages:
        waiting.timers.add_page(kind, timer_writes(("k", "u", kind, 3)), True, ())
        waiting.timers.pop_due(kind, 30, 10)
    asked: list[str] = []
    for _ in kinds_of_pages:
        effects: list[ev.Effect] = []
        waiting.schedule.page_timers(effects, 30, 30)
        (page,) = [effect for effect in effects if isinstance(effect, ev.LoadTimers)]
        asked.append(page.kind)
        waiting.schedule.page_arrived(ev.TimersLoaded(page.kind, timer_writes(), False))
    assert asked == [*kinds_of_pages]


def test_records_that_wait_get_a_turn_though_timers_are_always_due() -> None:
    waiting = Waiting()
    turns = []
    for number in range(2 * limits.TIMER_INVOCATIONS + 2):
        waiting.timers.set("t", "watermark", "u", number)
        waiting.timers.set("w", "wall", "u", 0)
        turns += kinds(waiting.turn(100))
        if turns[-1] == "records":
            waiting.record("r")
    assert turns == (["timers"] * limits.TIMER_INVOCATIONS + ["records"]) * 2


def test_timers_that_ran_while_no_record_waited_owe_nothing() -> None:
    waiting = Waiting()
    assert kinds(waiting.turn(0)) == ["records"]
    for number in range(limits.TIMER_INVOCATIONS):
        waiting.timers.set("t", "watermark", "u", number)
        waiting.turn(100)
    waiting.timers.set("t", "watermark", "u", 100)
    waiting.timers.set("e", "watermark", "u", 100)
    waiting.turn(100)
    waiting.record("r")
    waiting.timers.set("t", "watermark", "u", 100)
    assert waiting.schedule.take(100, 0) is not None


@pytest.mark.parametrize("limit", [1, 3, 4])
@pytest.mark.parametrize("of_event_time", range(6))
@pytest.mark.parametrize("of_wall_time", range(6))
def test_a_turn_has_no_more_timers_than_its_limit_of_both_times_together(
    limit: int, of_event_time: int, of_wall_time: int
) -> None:
    waiting = Waiting(limit=limit)
    due = [("watermark", f"e{number}") for number in range(of_event_time)] + [("watermark", "u")]
    due += [("wall", f"w{number}") for number in range(of_wall_time)]
    for kind, tag in due:
        waiting.timers.set("t", kind, tag, 5)
    fired = list[str]()
    while len(fired) < len(due):
        now = [timer.tag for timer in waiting.turn_at(10, 10).work.timers]
        if now:  # else records had waited for too long
            assert len(now) == min(limit, len(due) - len(fired))
        fired += now
    assert fired == [tag for _, tag in due]


def test_a_chain_may_reach_up_to_what_is_not_taken() -> None:
    waiting = Waiting(limit=3)
    for number in range(4):
        waiting.timers.set("t", "watermark", f"{number}", number)
    work = waiting.turn(5).work
    assert ([timer.tag for timer in work.timers], work.chain) == (["0", "1", "2"], 0)
    work = waiting.turn(5).work
    assert (work.chain, work.reach) == (2, {"watermark": (6, ("", "")), "wall": (1, ("", ""))})
    waiting.timers.set("t", "watermark", "4", 5)
    waiting.timers.set("t", "watermark", "5", 5)
    waiting.timers.add_page("watermark", timer_writes(("k", "u", "watermark", 3)), True, ())
    work = waiting.turn(5).work
    assert ([timer.tag for timer in work.timers], work.reach["watermark"]) == (["u"], (3, ("k", "u")))


def test_nothing_chains_while_there_is_something_that_must_not_run() -> None:
    waiting = Waiting()
    waiting.refused.add(TimerCause("other", "watermark", "u", 3), "it is too large")
    work = waiting.turn(15).work
    assert (len(work.timers), work.chain, work.reach) == (1, 0, {})


def test_nothing_chains_while_someone_at_fault_is_looked_for() -> None:
    waiting = Waiting()
    waiting.suspects.__init__(1)  # type: ignore[misc]  # a process that did not end in order
    work = waiting.turn(10).work
    assert (len(work.timers), work.chain, work.reach) == (1, 0, {})


def test_without_room_there_are_timers_only_as_long_as_one_of_wall_time_is_to_come() -> None:
    waiting = Waiting()
    schedule, timers = waiting.schedule, waiting.timers
    timers.set("w", "wall", "look", 5)
    schedule.full = True
    assert kinds(waiting.turn(10)) == ["timers"]
    assert kinds(waiting.turn(10)) == ["expiry"]
    assert schedule.take(10, 0) is None
    assert schedule.nothing(10, 0)
    assert kinds(waiting.turn_at(10, 5)) == ["timers"]  # the last one: nobody else makes room
    assert kinds(waiting.turn_at(10, 5)) == ["records"]


def test_records_that_have_no_room_are_not_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nothing would run."""
    monkeypatch.setattr(limits, "TIMER_INVOCATIONS", 1)
    waiting = Waiting(limit=1)
    for number in range(3):
        waiting.timers.set(f"w{number}", "wall", "look", number)
    waiting.schedule.full = True
    assert [kinds(waiting.turn_at(0, 10)) for _ in range(3)] == [["timers"]] * 3
    assert kinds(waiting.turn_at(0, 10)) == ["records"]
