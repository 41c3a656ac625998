"""What hooks need before they run: their keys in memory, what is in quarantine taken out, and a mark that is durable."""

from __future__ import annotations

from collections.abc import Container

import pytest

from millwheel.bundles import HoldWrites, KeyRows, QuarantineEntry, RecoveredInterval, TimerWrites
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.ids.seen import SeenKeys
from millwheel.core.interval import events as ev
from millwheel.core.interval.invocation import Invocation, keys_of
from millwheel.core.interval.schedule import ScheduledWork
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME, MIN_TIME, Timer
from millwheel.work import BundlePart, InvocationOutcome, Suspended, Work
from tests.unit.core.bench import timer_writes


def records(*keys: str) -> Work:
    """Records of `keys`, whose event times are 10, 20, ..."""
    count = len(keys)
    part = BundlePart(
        SubscriptionId(1),
        ProducerId(2),
        SequenceNumber(0),
        sequence_numbers(range(count)),
        [*keys],
        [b"v"] * count,
        [10 * (n + 1) for n in range(count)],
    )
    return Work([part] if keys else [], [], {}, {}, {}, 5, 6)


class Interval:
    """The parts that an invocation shares with its interval."""

    def __init__(
        self,
        *,
        quarantined: tuple[str, ...] = (),
        ends: int = 0,
        blank: bool = False,
        limit_bytes: int = 1 << 20,
        more_timers: tuple[str, ...] = (),
    ) -> None:
        self.keyed = KeyedState(limit_bytes)
        page = timer_writes(("x", "t", "wall", 5)) if more_timers else TimerWrites()
        self.keyed.restore(RecoveredInterval([], [], page, HoldWrites(["a"], [3]), [], MIN_TIME, [], [*more_timers]))
        suspects = Suspects(ends)
        self.quarantine = Quarantine(
            keys=quarantined, refused=RefusedRows(), suspects=suspects, keyed=self.keyed, keeps_hold=False
        )
        self.quarantine.start()
        self.invocation = Invocation(
            keyed=self.keyed,
            expiry=Expiry(50, self.keyed, self.quarantine),
            quarantine=self.quarantine,
            suspects=suspects,
            seen=SeenKeys(blank),
        )
        self.effects: list[ev.Effect] = []

    def begin(self, work: Work, **scheduled: dict[str, int]) -> bool:
        self.effects.clear()
        soft = self.keyed.work(5, 6)
        work.values, work.entries, work.partial = soft.values, soft.entries, soft.partial
        return self.invocation.begin(ScheduledWork(work, **scheduled), self.effects)  # type: ignore[arg-type]

    def load(self, *rows: KeyRows) -> bool:
        self.effects.clear()
        return self.invocation.loaded([*rows], self.effects)

    def invoked(self) -> Work:
        (effect,) = self.effects
        assert isinstance(effect, ev.Invoke)
        return effect.work


def row(key: str) -> KeyRows:
    return KeyRows(key, {("c", ""): b"1"})


def test_keys_that_are_not_in_memory_are_loaded_once_each_and_in_order() -> None:
    interval = Interval()
    assert not interval.begin(records("b", "a", "b"))
    assert interval.effects == [ev.Load(["a", "b"], False)]
    assert not interval.load(row("a"))
    work = interval.invoked()
    assert (work.values, work.holds) == ({"c": {"a": b"1"}}, {"a": 3})


def test_what_is_in_memory_runs_at_once() -> None:
    interval = Interval()
    interval.begin(records("a"))
    interval.load(row("a"))
    interval.invocation.end()
    assert not interval.begin(records("a"))
    assert interval.invoked().parts[0].keys == ["a"]


def test_of_a_blank_store_nothing_is_asked_but_keys_that_have_passed() -> None:
    interval = Interval(blank=True)
    assert not interval.begin(records("new"))
    assert interval.invoked().parts[0].keys == ["new"]


def test_while_there_are_timers_in_the_store_a_key_is_loaded_with_its_own() -> None:
    interval = Interval(more_timers=("wall",))
    interval.begin(records("a"))
    assert interval.effects == [ev.Load(["a"], True)]
    interval.load(KeyRows("a", {}, {("wall", "far"): 70}))
    assert [*interval.keyed.timers.of("a")] == [(("wall", "far"), 70)]


def test_an_invocation_without_keys_is_over_at_once() -> None:
    interval = Interval()
    assert interval.begin(records())
    assert interval.effects == []
    assert interval.begin(records(), expiring={"e": 5}), "nothing keeps it, and no hook has a say"


def test_a_key_that_expires_is_loaded_when_it_may_have_timers_in_the_store() -> None:
    interval = Interval(more_timers=("wall",))
    assert not interval.begin(records(), expiring={"e": 5})
    assert interval.effects == [ev.Load(["e"], True)]
    assert interval.load(KeyRows("e", {}, {("wall", "far"): 70}))
    assert interval.keyed.timers.pending("e"), "so that it is kept"


def test_a_key_that_is_kept_is_loaded_before_its_next_expiry_is_written() -> None:
    interval = Interval()
    assert not interval.begin(records(), expiring={"a": 5, "e": 5})  # "a" has a hold
    assert interval.effects == [ev.Load(["a"], False)]


def test_hooks_do_not_get_what_is_in_quarantine() -> None:
    interval = Interval(quarantined=("bad",))
    interval.begin(records("bad", "a"))
    interval.load()
    assert interval.invoked().parts[0].keys == ["a"]
    scheduled, _ = interval.invocation.end()
    assert scheduled.work.parts[0].keys == ["bad", "a"], "the checkpoint has all that was taken"
    assert [entry.key for entry in interval.quarantine.take_diverted()] == ["bad"]


def test_after_an_unclean_end_hooks_run_when_the_mark_is_durable() -> None:
    interval = Interval(ends=1)
    interval.begin(records("a"))
    interval.load(row("a"))
    (mark,) = interval.effects
    assert isinstance(mark, ev.Mark)
    assert not mark.alone
    interval.effects.clear()
    interval.invocation.marked(interval.effects)
    assert interval.invoked().parts[0].keys == ["a"]


def test_hooks_that_ask_for_state_run_again_when_it_is_there() -> None:
    interval = Interval()
    interval.begin(records("a"))
    interval.load(KeyRows("a", {("c", "x"): b"1"}, more=True))
    first = interval.invoked()
    interval.effects.clear()
    interval.invocation.want([("a", "c", "y")], interval.effects)
    assert interval.effects == [ev.LoadSlots([("a", "c", "y")])]
    interval.effects.clear()
    interval.invocation.filled([("a", "c", "y", b"2")], interval.effects)
    assert interval.invoked() is first
    assert first.entries == {"c": {"a": {"x": b"1", "y": b"2"}}}


def test_all_that_hooks_ask_for_is_loaded_and_then_known_whether_the_store_has_it_or_not() -> None:
    interval = Interval()
    interval.begin(records("a", "b"))
    interval.load(*(KeyRows(key, {("c", "x"): b"1"}, more=True) for key in ("a", "b")))
    work = interval.invoked()
    for wanted, stored in (
        ([("a", "c", "y"), ("b", "c", "y"), ("b", "c", "z")], [("b", "c", "z", b"3"), ("a", "c", "y", b"2")]),
        ([("b", "c", "q"), ("a", "c", "q")], []),
    ):
        interval.effects.clear()
        interval.invocation.want([*wanted], interval.effects)
        assert interval.effects == [ev.LoadSlots([*wanted])]
        interval.effects.clear()
        interval.invocation.filled([*stored], interval.effects)
        assert interval.invoked() is work
    assert work.entries == {"c": {"a": {"x": b"1", "y": b"2"}, "b": {"x": b"1", "z": b"3"}}}
    absent = {(key, entry) for key in "ab" for entry in "yzq" if not work.partial[key].lacks("c", entry)}
    assert absent == {("b", "y"), ("b", "q"), ("a", "q")}, "of (a, z) nobody has asked"


def test_the_oldest_time_of_an_invocation_counts_until_it_ends() -> None:
    interval = Interval()
    work = records("a")
    work.timers = [Timer("a", "t", 7)]
    interval.begin(work)
    assert (bool(interval.invocation), interval.invocation.oldest) == (True, 7)
    interval.load()
    assert interval.invocation.end()[1] == 7
    assert (bool(interval.invocation), interval.invocation.oldest) == (False, MAX_TIME)


def test_keys_of_the_invocation_stay_in_memory_until_it_is_over() -> None:
    interval = Interval(limit_bytes=0)
    interval.begin(records("a"))
    interval.load(row("a"))
    interval.invocation.trim(5)
    assert interval.keyed.missing({"a": 1}) == []
    interval.invocation.end()
    interval.begin(records("b"))
    interval.load()
    interval.invocation.trim(5)
    assert interval.keyed.missing({"a": 1}) == ["a"]


def test_an_answer_without_a_question_is_an_error() -> None:
    invocation, effects = Interval().invocation, list[ev.Effect]()
    with pytest.raises(InvariantError, match="Loaded without work"):
        invocation.loaded([], effects)
    with pytest.raises(InvariantError, match="Marked without a mark"):
        invocation.marked(effects)
    with pytest.raises(InvariantError, match="SlotsLoaded without work"):
        invocation.filled([], effects)
    with pytest.raises(InvariantError, match="Invoked without work"):
        invocation.end()


def test_keys_come_in_the_order_of_appearance() -> None:
    work = records("b", "a", "b")
    work.timers = [Timer("c", "t", 1), Timer("a", "t", 1)]
    work.redrive = [QuarantineEntry("d", SubscriptionId(1), ProducerId(2), SequenceNumber(0), b"", 0)]
    assert [*keys_of(work, 4).items()] == [("b", 4), ("a", 4), ("c", 4), ("d", 4)]


def test_what_hooks_wrote_is_there_for_the_next_invocation() -> None:
    interval = Interval()
    interval.begin(records("a"))
    interval.load()
    work, outcome = interval.invoked(), InvocationOutcome(values={"c": {"a": b"9"}})
    interval.invocation.end()
    interval.keyed.apply(work, outcome, Seq(1), TimerWrites(), HoldWrites())
    interval.begin(records("a"))
    assert interval.invoked().values == {"c": {"a": b"9"}}


def test_what_was_loaded_for_a_hook_that_waits_for_more_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    interval, whole = Interval(), list[bool]()

    def trim(busy: Container[str], suspended: Container[str], **_: object) -> None:
        assert "a" in busy
        whole.append("a" in suspended)

    monkeypatch.setattr(interval.keyed, "trim", trim)
    interval.begin(records("a"))
    interval.load()
    interval.invocation.trim(5)
    interval.invoked().suspended = Suspended(InvocationOutcome(), {}, {}, [], [])
    interval.invocation.trim(5)
    assert whole == [False, True], "a hook that has not begun may ask for all that it needs"
