"""An interval with more timers than memory: what is near fires, what is far holds the watermark and is read in time."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.bundles import KeyRows
from millwheel.core.interval import events as ev
from millwheel.ids import Seq
from millwheel.limits import ENTRY_OVERHEAD_BYTES
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME
from tests.unit.core.bench import Bench, outcome, recovered, timer_writes, wrote


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_PAGE_ROWS", 2)
    monkeypatch.setattr(limits, "TIMERS_IN_MEMORY", 2)


def watermark_timers(*rows: tuple[str, int]) -> list[tuple[str, str, str, int]]:
    return [(key, "t", "watermark", at) for key, at in rows]


def test_far_timers_hold_the_watermark_until_their_page_is_here() -> None:
    bench = Bench(recovered(timers=watermark_timers(("a", 10), ("b", 20)), more=["watermark"]))
    assert not bench.of(ev.LoadTimers)
    assert bench(ev.WatermarkMoved(9)).reported() == [9]
    bench(ev.WatermarkMoved(100))
    (asked,) = bench.of(ev.LoadTimers)
    assert (asked.kind, asked.after, asked.limit) == ("watermark", (20, ("b", "t")), 2)
    assert [timer.key for timer in bench.load().timers] == ["a", "b"]
    bench.invoked()
    assert bench(ev.CommitDone(Seq(1))).reported() == [20]  # not 100: what comes after (20, b) is not known
    assert bench.core.blame()[0] == ("timer", 20, "not in memory yet")
    assert not bench.core.quiet()
    bench(ev.TimersLoaded("watermark", timer_writes(*watermark_timers(("c", 20), ("d", 30))), True))
    assert [asked.after for asked in bench.of(ev.LoadTimers)] == [(30, ("d", "t"))]
    assert [timer.key for timer in bench.load().timers] == ["c", "d"]
    bench.invoked()
    bench(ev.CommitDone(Seq(2)))
    assert bench.reported() == [30]
    assert bench(ev.TimersLoaded("watermark", timer_writes(), False)).reported() == [100]


def test_far_wall_timers_are_read_by_the_wall_clock_wherever_the_watermark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_PAGE_ROWS", 8)  # so few that have fired are no reason to read more
    near = [("a", "t", "wall", 10), ("b", "t", "wall", 20)]
    bench = Bench(recovered(timers=near, more=["wall"]))
    bench(ev.WatermarkMoved(9))
    assert not bench.of(ev.LoadTimers)
    bench.now = 100
    bench(ev.AlarmRang())
    (asked,) = bench.of(ev.LoadTimers)
    assert (asked.kind, asked.after) == ("wall", (20, ("b", "t")))
    assert [timer.key for timer in bench.load().timers] == ["a", "b"]


def test_a_page_that_is_on_its_way_does_not_bring_back_what_was_cancelled() -> None:
    bench = Bench(recovered(timers=watermark_timers(("a", 10)), more=["watermark"]))
    bench(ev.WatermarkMoved(10))  # the next page is asked for, and read: "b" is in it
    bench.load()
    bench.invoked()
    (load,) = bench.arrive(1, {0: ("b", 12)}).of(ev.Load)
    assert load.timers
    bench.load([KeyRows("b", {}, {("watermark", "t"): 20, ("watermark", "u"): 21})])
    bench.invoked(outcome(timers={"b": {("watermark", "t"): None}}))
    bench(ev.TimersLoaded("watermark", timer_writes(*watermark_timers(("b", 20)), ("b", "u", "watermark", 21)), False))
    bench(ev.WatermarkMoved(50))
    assert [(timer.key, timer.tag) for timer in bench.load().timers] == [("b", "u")]


def test_a_key_stays_in_memory_while_a_page_is_on_its_way_that_may_be_older_than_its_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench(recovered(timers=watermark_timers(("a", 10)), more=["watermark"]), cache_limit_bytes=1)
    assert bench(ev.WatermarkMoved(10)).of(ev.LoadTimers)  # it is read: "b" is in it
    bench.load()
    bench.invoked()
    (first,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    bench.arrive(1, {0: ("b", 12)})
    bench.load([KeyRows("b", {}, {("watermark", "t"): 20})])
    bench.invoked(outcome(timers={"b": {("watermark", "t"): None}}))
    bench(ev.CommitDone(Seq(2)))
    (second,) = bench(ev.FoldDone(first.upto)).of(ev.Fold)
    bench(ev.FoldDone(second.upto))
    bench(ev.TimersLoaded("watermark", timer_writes(*watermark_timers(("b", 20))), False))
    assert not bench(ev.WatermarkMoved(50)).of(ev.Load) + bench.of(ev.Invoke), "it was cancelled, and folded"
    assert bench.core.reported == 50


def test_a_timer_that_fires_is_not_brought_back_by_loading_its_key() -> None:
    bench = Bench(recovered(timers=watermark_timers(("a", 10)), more=["watermark"]))
    bench(ev.WatermarkMoved(10))
    rows = [KeyRows("a", {}, {("watermark", "t"): 10, ("watermark", "later"): 40})]
    assert [timer.tag for timer in bench.load(rows).timers] == ["t"]
    bench.invoked()
    bench(ev.TimersLoaded("watermark", timer_writes(("a", "later", "watermark", 40)), False))
    bench(ev.WatermarkMoved(39))
    assert not bench.of(ev.Invoke)
    bench(ev.WatermarkMoved(40))
    assert [timer.tag for timer in bench.load().timers] == ["later"]


def test_a_far_wall_timer_sets_the_alarm() -> None:
    bench = Bench(recovered(timers=[("a", "t", "wall", 10), ("b", "t", "wall", 20)], more=["wall"]))
    assert [alarm.at for alarm in bench.of(ev.SetAlarm)] == [10]
    bench.now = 10
    bench(ev.AlarmRang())
    bench.load()
    bench(ev.TimersLoaded("wall", timer_writes(("c", "t", "wall", 25)), True))
    bench.invoked()
    bench(ev.CommitDone(Seq(1)))
    bench.now = 20
    bench(ev.AlarmRang())
    assert [alarm.at for alarm in bench.of(ev.SetAlarm)] == [25]


def expiring(*rows: tuple[str, int]) -> list[tuple[str, str, str, int]]:
    return [(key, EXPIRY_TAG, EXPIRY_KIND, at) for key, at in rows]


def test_a_key_whose_timer_is_due_with_its_expiry_goes_when_the_timer_has_fired() -> None:
    timers = [*expiring(("k", 10)), ("k", "t", "watermark", 50)]
    bench = Bench(recovered(timers=timers), expire_after=100)
    bench(ev.WatermarkMoved(1_000))
    assert [timer.tag for timer in bench.load().timers] == ["t"]
    images = bench.invoked().images()
    for _ in range(3):
        if bench.of(ev.Load):
            images += bench(ev.Loaded([])).images()
    assert [key for image in images for key in image.forgotten] == ["k"]


def test_a_key_with_a_far_timer_does_not_expire() -> None:
    bench = Bench(
        recovered(timers=[*watermark_timers(("x", 500)), *expiring(("a", 10), ("b", 11))], more=["watermark"]),
        expire_after=100,
    )
    (load,) = bench(ev.WatermarkMoved(50)).of(ev.Load)
    assert load.keys == ["a", "b"]
    assert load.timers
    bench(ev.Loaded([KeyRows("a", {("c", ""): b"1"}, {("watermark", "t"): 900, (EXPIRY_KIND, EXPIRY_TAG): 10})]))
    (image,) = bench.images()
    assert image.forgotten == ["b"]
    assert (image.timers.keys, image.timers.kinds, image.timers.timestamps) == (["a"], [EXPIRY_KIND], [150])
    bench(ev.CommitDone(Seq(1)))
    assert bench.core.counters.expired == 1


def test_a_key_that_may_expire_stays_in_memory_until_that_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    stored = [*watermark_timers(("x", 5_000)), *expiring(("b", 12))]
    bench = Bench(recovered(timers=stored, more=["watermark"]), cache_limit_bytes=1, expire_after=10)
    done = wrote("a", b"1")
    done.timers = {"a": {("watermark", "t"): 9_000}}
    bench.run(1, {0: ("a", 1)}, done)
    (fold,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    (load,) = bench(ev.WatermarkMoved(50)).of(ev.Load)
    assert load.keys == ["b"]
    bench(ev.FoldDone(fold.upto))  # "a" could leave now, but it is looked at as soon as "b" is here
    bench(ev.Loaded([KeyRows("b", {("c", ""): b"1"}, {(EXPIRY_KIND, EXPIRY_TAG): 12})]))
    (image,) = bench.images()
    assert image.forgotten == ["b"], "the other one has a timer"
    bench.arrive(2, {1: ("a", 60)})
    assert bench.load([KeyRows("a", {("c", ""): b"1"}, {})]).values["c"]["a"] == b"1"


def test_timers_of_a_key_that_is_being_loaded_without_them_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All timers were there when it was asked for.  A page that is read later is ignored about a key in memory."""
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench(recovered(timers=watermark_timers(("x", 10), ("y", 20), ("a", 30))), cache_limit_bytes=1)
    bench.run(1, {0: ("z", 1)}, wrote("z", b"1"))
    (fold,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    (load,) = bench.arrive(2, {1: ("a", 5)}).of(ev.Load)
    assert not load.timers
    bench(ev.FoldDone(fold.upto))
    bench(ev.Loaded([KeyRows("a", {("c", ""): b"1"}, {})])).invoked()
    bench(ev.WatermarkMoved(100))
    assert [timer.key for timer in bench.load().timers] == ["x", "y", "a"]


def test_expiries_that_are_far_are_read_in_time_and_hold_nothing() -> None:
    bench = Bench(recovered(timers=expiring(("a", 10), ("b", 11)), more=[EXPIRY_KIND]), expire_after=100)
    assert bench(ev.WatermarkMoved(9)).reported() == [9]
    bench(ev.WatermarkMoved(12))
    assert bench.reported() == [12]
    (asked,) = bench.of(ev.LoadTimers)
    assert asked.kind == EXPIRY_KIND
    bench(ev.Loaded([]))
    assert bench.images()[0].forgotten == ["a", "b"]
    cache = bench.core._keyed._cache
    assert [*cache.last_read] == ["a", "b"]
    assert cache.size_bytes == 2 * ENTRY_OVERHEAD_BYTES, "each is counted once, until its end is folded"
    bench(ev.TimersLoaded(EXPIRY_KIND, timer_writes(*expiring(("c", 12))), False))
    assert bench.images()[0].forgotten == ["c"]
    assert not bench(ev.WatermarkMoved(MAX_TIME)).of(ev.LoadTimers)


def test_what_does_not_fit_leaves_memory_when_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench(cache_limit_bytes=1)
    for number, key in enumerate("abcde"):
        done = wrote(key, b"1")
        done.timers = {key: {("watermark", "t"): 10 * (number + 1)}}
        bench.run(number + 1, {number: (key, 1)}, done)
        (fold,) = bench(ev.CommitDone(Seq(number + 1))).of(ev.Fold)
        bench(ev.FoldDone(fold.upto))
    assert len(bench.core._keyed._timers) == 2
    bench(ev.WatermarkMoved(1_000))
    assert [asked.after for asked in bench.of(ev.LoadTimers)] == [(20, ("b", "t"))]
    assert [timer.key for timer in bench.load().timers] == ["a", "b"]
    bench.invoked()
    bench(ev.CommitDone(Seq(6)))
    assert bench.core.reported == 20


def test_a_page_of_a_fenced_owner_ends_it() -> None:
    bench = Bench(recovered(timers=watermark_timers(("a", 10)), more=["watermark"]))
    bench(ev.WatermarkMoved(10))
    assert bench(ev.WriteFenced()).of(ev.Halt)
    assert bench(ev.TimersLoaded("watermark", timer_writes(), False)).effects == []


@pytest.mark.parametrize("what", ["moved", "cancelled", "fired"])
def test_a_key_stays_in_memory_until_its_timers_are_folded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench(cache_limit_bytes=1)
    bench.run(1, {0: ("a", 1)}, outcome(timers={"a": {("watermark", "t"): 100}}))
    (fold,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    if what == "fired":
        assert bench(ev.WatermarkMoved(100)).load().timers
        bench.invoked()
    else:
        bench.run(2, {1: ("a", 2)}, outcome(timers={"a": {("watermark", "t"): 200 if what == "moved" else None}}))
    bench(ev.CommitDone(Seq(2)))
    bench(ev.FoldDone(fold.upto))  # the tables say 100
    assert not bench.arrive(3, {2: ("a", 3)}).of(ev.Load)
