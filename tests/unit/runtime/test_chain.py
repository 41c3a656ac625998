"""Timers that hooks set while others are due: what fires in the same invocation, in which order, and what goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Context, Timer, limits
from millwheel.bundles import TimerPlace
from millwheel.model import MIN_TIME
from millwheel.runtime.chain import TimerChain
from millwheel.work import InvocationOutcome, Stall, Work
from tests.unit.api.hooks import computation_of, executor_of, out, work

Hook = Callable[[Context, Timer], None]
FAR: TimerPlace = (101, ("", ""))


def timer_work(*timers: Timer, chain: int = 100, reach: TimerPlace = FAR, **changes: Any) -> Work:
    given = work(timers=[*timers])
    given.watermark = given.wall_time = 100
    given.chain, given.reach = chain, {"watermark": reach, "wall": reach}
    for name, value in changes.items():
        setattr(given, name, value)
    return given


def fire(hook: Hook, given: Work) -> tuple[list[tuple[str, str, int]], InvocationOutcome]:
    """Run an invocation: (key, tag, timestamp) of what has fired, and the outcome."""
    fired: list[tuple[str, str, int]] = []

    def run(self: Any, context: Context, timer: Timer) -> None:
        hook(context, timer)
        fired.append((timer.key, timer.tag, timer.timestamp))

    return fired, executor_of(computation_of(timer=run)).run(given)


def ticks(context: Context, timer: Timer) -> None:
    """Every 10 until 40."""
    if timer.tag == "tick" and timer.timestamp < 40:
        context.set_timer("tick", timer.timestamp + 10)


def test_what_a_hook_sets_fires_in_its_place() -> None:
    fired, done = fire(ticks, timer_work(Timer("a", "tick", 10), Timer("b", "w", 25), Timer("a", "w", 35)))
    assert fired == [
        ("a", "tick", 10),
        ("a", "tick", 20),
        ("b", "w", 25),
        ("a", "tick", 30),
        ("a", "w", 35),
        ("a", "tick", 40),
    ]
    assert (done.timers, done.chained, done.stalls) == ({"a": {("watermark", "tick"): None}}, 3, {})


def test_nothing_fires_past_a_timer_that_was_not_given() -> None:
    fired, done = fire(ticks, timer_work(Timer("a", "tick", 10), reach=(30, ("a", "ta"))))
    assert fired == [("a", "tick", 10), ("a", "tick", 20)]
    assert done.timers == {"a": {("watermark", "tick"): 30}}


def test_when_no_more_may_fire_what_comes_later_for_the_key_goes_back() -> None:
    given = timer_work(Timer("a", "tick", 10), Timer("b", "w", 25), Timer("a", "w", 35), chain=1)
    fired, done = fire(ticks, given)
    assert fired == [("a", "tick", 10), ("a", "tick", 20), ("b", "w", 25)]
    assert done.timers == {"a": {("watermark", "tick"): 30, ("watermark", "w"): 35}}
    assert len(given.timers) + done.chained == len(fired)


@pytest.mark.parametrize("listed", [[], [Timer("b", "last", 50)]])
def test_when_there_is_no_room_for_more_what_a_hook_has_set_fires_later(
    listed: list[Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one checkpoint could have all that a chain of timers makes."""
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 250)

    def heavy(context: Context, timer: Timer) -> None:
        ticks(context, timer)
        context.produce(out, "o" * 100)

    fired, done = fire(heavy, timer_work(Timer("a", "tick", 10), *listed))
    assert fired == [("a", "tick", 10), ("a", "tick", 20)]
    pending = {key: changes for key, changes in done.timers.items() if key != "a"}
    assert done.timers["a"] == {("watermark", "tick"): 30}
    assert pending == {timer.key: {("watermark", timer.tag): timer.timestamp} for timer in listed}
    assert done.chained == 1 - len(listed)


def test_no_later_timer_of_the_key_fires_before_one_that_is_set_now_and_may_not_fire_at_all() -> None:
    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "first":
            context.set_timer("set", 15)

    given = timer_work(Timer("a", "first", 10), Timer("a", "last", 20), Timer("b", "last", 20))
    given.reach = {}
    fired, done = fire(hook, given)
    assert fired == [("a", "first", 10), ("b", "last", 20)]
    assert done.timers == {"a": {("watermark", "set"): 15, ("watermark", "last"): 20}}


def test_equal_times_fire_by_tag_those_that_are_set_now_included() -> None:
    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "m":
            for tag in ("z", "a", "q"):
                context.set_timer(tag, timer.timestamp)

    fired, _ = fire(hook, timer_work(Timer("k", "m", 10), Timer("k", "n", 10), Timer("k", "r", 10)))
    assert [tag for _, tag, _ in fired] == ["m", "a", "n", "q", "r", "z"]


def test_what_was_cancelled_or_moved_does_not_fire_for_its_old_time() -> None:
    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "first":
            context.cancel_timer("cancelled")
            context.set_timer("moved", 15)
            context.set_timer("later", 200)
            context.set_timer("own", 16)
            context.set_timer("unmade", 17)
        if timer.tag == "moved":
            context.set_timer("own", 18)
            context.cancel_timer("unmade")

    names = {"first": 10, "cancelled": 20, "moved": 30, "later": 40}
    fired, done = fire(hook, timer_work(*(Timer("k", tag, at) for tag, at in names.items())))
    assert [(tag, at) for _, tag, at in fired] == [("first", 10), ("moved", 15), ("own", 18)]
    assert done.timers == {"k": {
        ("watermark", "cancelled"): None, ("watermark", "moved"): None, ("watermark", "later"): 200,
        ("watermark", "own"): None, ("watermark", "unmade"): None,
    }}  # fmt: skip


def test_wall_timers_fire_in_the_order_of_their_own_times() -> None:
    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "w1":
            context.set_timer("w2", 20, "wall")
            context.set_timer("w9", 101, "wall")
            context.set_timer("e", 1)

    fired, done = fire(hook, timer_work(Timer("k", "w1", 10, "wall"), Timer("k", "w3", 30, "wall")))
    assert [tag for _, tag, _ in fired] == ["w1", "e", "w2", "w3"]
    assert done.timers["k"]["wall", "w9"] == 101


def test_a_hook_that_fails_leaves_its_key_to_the_quarantine_and_the_rest_pending() -> None:
    def hook(context: Context, timer: Timer) -> None:
        ticks(context, timer)
        if timer.timestamp == 20:
            raise RuntimeError("no")

    fired, done = fire(hook, timer_work(Timer("a", "tick", 10), Timer("b", "w", 25), Timer("a", "w", 35)))
    assert fired == [("a", "tick", 10), ("b", "w", 25)]
    assert [(entry.tag, entry.timestamp) for entry in done.quarantined] == [("tick", 20)]
    assert done.timers == {"a": {("watermark", "tick"): None, ("watermark", "w"): 35}}


def test_a_chain_that_gets_further_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_REARM_LIMIT", 5)

    def hook(context: Context, timer: Timer) -> None:
        context.set_timer("tick", timer.timestamp + 1)

    fired, done = fire(hook, timer_work(Timer("k", "tick", 1)))
    assert len(fired) == 100
    assert (done.quarantined, done.stalls) == ([], {})


def to_itself(context: Context, timer: Timer) -> None:
    context.set_timer(timer.tag, timer.timestamp, timer.kind)


def to_another(context: Context, timer: Timer) -> None:
    """Two that set each other, one to an earlier time."""
    context.set_timer(*(("b", 5) if timer.tag == "t" else ("t", 10)), timer.kind)


def to_a_new_one(context: Context, timer: Timer) -> None:
    context.set_timer(f"{timer.tag}x"[-3:] + str(len(timer.tag)), timer.timestamp - 1, timer.kind)


def to_the_other_kind(context: Context, timer: Timer) -> None:
    context.set_timer("t", 10, "wall" if timer.kind == "watermark" else "watermark")


@pytest.mark.parametrize("kind", ["watermark", "wall"])
@pytest.mark.parametrize("hook", [to_itself, to_another, to_a_new_one, to_the_other_kind])
def test_a_loop_has_a_bound_per_pass_and_is_quarantined(hook: Hook, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_REARM_LIMIT", 50)
    monkeypatch.setattr(limits, "TIMER_STALLED_CHAIN", 8)
    timers, stalls, total = [Timer("k", "t", 10, kind)], dict[tuple[str, str, str], Stall](), 0
    for _ in range(30):
        fired, done = fire(hook, timer_work(*timers, stalls=stalls))
        assert len(fired) <= 11
        total, stalls = total + len(fired), done.stalls
        timers = [Timer(k, tag, at, kd) for k, set_ in done.timers.items() for (kd, tag), at in set_.items() if at]  # type: ignore[arg-type]
        if done.quarantined:
            break
    (entry,) = done.quarantined
    assert "a loop" in entry.error
    assert timers == []
    assert 50 <= total <= 55


def test_whoever_is_told_of_failures_hears_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_REARM_LIMIT", 3)

    def again(self: Any, context: Context, timer: Timer) -> None:
        context.set_timer(timer.tag, timer.timestamp)

    told: list[tuple[str, str, str]] = []
    executor = executor_of(computation_of(timer=again))
    executor.on_failure = lambda hook, key, error, redriven: told.append((hook, key, str(error)))
    executor.run(timer_work(Timer("a", "t", 10)))
    ((hook, key, error),) = told
    assert (hook, key) == ("ProcessTimer", "a")
    assert error.startswith("timer 't': timers of this key have set each other 3 times")


def test_many_timers_for_one_time_are_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_REARM_LIMIT", 5)

    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "all":
            for number in range(40):
                context.set_timer(f"{number:02}", timer.timestamp)

    fired, done = fire(hook, timer_work(Timer("k", "all", 10)))
    assert (len(fired), done.quarantined) == (41, [])


def test_one_that_goes_back_keeps_what_is_known_of_it() -> None:
    stall = Stall(7, 10, MIN_TIME)

    def hook(context: Context, timer: Timer) -> None:
        if timer.tag == "a":
            context.set_timer("b", 9)

    given = timer_work(
        Timer("k", "a", 10), Timer("k", "c", 11), chain=0, reach=FAR, stalls={("k", "watermark", "c"): stall}
    )
    fired, done = fire(hook, given)
    assert [tag for _, tag, _ in fired] == ["a"]
    assert done.stalls == {("k", "watermark", "b"): Stall(1, 10, MIN_TIME), ("k", "watermark", "c"): stall}


@pytest.mark.parametrize(("kind", "at", "fires"), [
    ("watermark", 99, True), ("watermark", 100, True), ("watermark", 101, False), ("wall", 100, True), ("wall", 101, False),
])  # fmt: skip
def test_what_was_set_before_an_invocation_had_to_wait_fires_when_it_goes_on(kind: str, at: int, fires: bool) -> None:
    outcome = InvocationOutcome(timers={"a": {(kind, "t"): at}})
    found = TimerChain([], timer_work(reach=(200, ("", ""))), outcome).next(None)
    assert found == (Timer("a", "t", at, kind) if fires else None)  # type: ignore[arg-type]
    assert outcome.timers == {"a": {(kind, "t"): None if fires else at}}
