from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import QuarantineEntry, RecoveredInterval
from millwheel.core.faults.suspects import Suspects, Suspicion, read_mark, unite_marks
from millwheel.core.interval import events as ev
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import Timer
from millwheel.work import BundlePart, Work
from tests.unit.core.bench import IN, PRODUCER, Bench, failed, outcome, recovered, wrote


def work(*keys: str, producer: ProducerId = PRODUCER, first: int = 0, timers: tuple[Timer, ...] = ()) -> Work:
    part = BundlePart(
        IN,
        producer,
        SequenceNumber(0),
        sequence_numbers(range(first, first + len(keys))),
        [*keys],
        [b"v"] * len(keys),
        [5] * len(keys),
    )
    return Work([part], [*timers], {}, {}, {}, 0, 0)


def mark(suspects: Suspects, work: Work) -> bytes:
    found = suspects.begin(work)
    assert found is not None
    return found


def after(mark: bytes, ends: int = 1) -> Suspects:
    """What the next process knows."""
    return Suspects(ends, mark)


def unclean(mark: bytes = b"", ends: int = 1, **changes: Any) -> RecoveredInterval:
    return msgspec.structs.replace(recovered(**changes), ends=ends, suspicion=mark)


def killed_alone(times: int, work: Work) -> bytes:
    found = mark(after(b""), work)
    for _ in range(times):
        found = mark(after(found), work)
    return found


def run_all(bench: Bench) -> list[tuple[bool, Work]]:
    """Everything that waits, each marked and run; whether it ran alone, and what it was."""
    ran = []
    while len(bench.of(ev.Load)) + len(bench.of(ev.Mark)):
        if not bench.of(ev.Mark):
            bench(ev.Loaded([]))
        (marked,) = bench.of(ev.Mark)
        bench(ev.Marked())
        (invoke,) = bench.of(ev.Invoke)
        ran.append((marked.alone, invoke.work))
        bench.invoked()
    return ran


def test_after_an_orderly_end_nothing_is_marked() -> None:
    suspects = Suspects(0, b"")
    assert suspects.begin(work("a")) is None
    assert suspects.done() is None
    assert suspects.limit(4_096) == 4_096


def test_after_any_other_end_what_runs_is_marked_first_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARKED_INVOCATIONS", 2)
    suspects = after(b"")
    assert suspects.limit(4_096) == limits.MARKED_RECORDS
    assert [key for key, _ in read_mark(mark(suspects, work("a", "b"))).running] == ["a", "b"]
    assert suspects.done() is None, "the next mark overwrites it"
    assert [key for key, _ in read_mark(mark(suspects, work("c"))).running] == ["c"]
    assert suspects.done() is not None, "the last one is taken back"
    assert suspects.begin(work("d")) is None
    assert suspects.done() is None


def test_the_window_widens_with_every_end_that_was_not_enough() -> None:
    def window(ends: int) -> int:
        suspects = after(b"", ends)
        return next(n for n in range(10**6) if suspects.begin(work("a")) is None)

    assert [window(ends) // limits.MARKED_INVOCATIONS for ends in (1, 2, 3, 4, 5, 9)] == [1, 4, 16, 64, 64, 64]


def test_what_was_marked_runs_alone_and_is_cleared_when_it_has_run() -> None:
    suspects = after(mark(after(b""), work("a", "b")))
    assert suspects.room(work("x", "a", "x").parts[0], 10, begun=False) == 1
    assert suspects.room(work("a", "x").parts[0], 10, begun=False) == 1
    assert suspects.room(work("a", "x").parts[0], 10, begun=True) == 0
    assert suspects.room(work("x", "x").parts[0], 10, begun=False) == 10
    assert read_mark(mark(suspects, work("a"))).alone
    cleared = suspects.done()
    assert cleared is not None
    assert [(key, deaths) for key, _, deaths in read_mark(cleared).deaths] == [("b", 0)]
    assert read_mark(cleared).running == []
    assert not suspects.suspects(work("a").parts[0], 0)


def test_a_record_is_known_again_whoever_sends_it_and_as_which() -> None:
    suspects = after(mark(after(b""), work("a")))
    suspects.begin(work("a", producer=ProducerId(PRODUCER + 9), first=77))
    assert suspects.alone


def test_another_record_of_a_suspects_key_is_no_suspect() -> None:
    suspects = after(mark(after(b""), work("a")))
    other = msgspec.structs.replace(work("a", "a", "a").parts[0], timestamps=[6, 7, 5])
    assert suspects.room(other, 10, begun=False) == 2, "they run together, up to the suspect"
    suspects.begin(Work([other], [], {}, {}, {}, 0, 0))
    assert not suspects.alone


@pytest.mark.parametrize("times", [limits.DEATHS_LIMIT - 1, limits.DEATHS_LIMIT])
def test_only_what_was_alone_when_the_process_died_often_enough_is_condemned(times: int) -> None:
    suspects = after(killed_alone(times, work("a")))
    entry = QuarantineEntry("a", IN, PRODUCER, SequenceNumber(0), b"v", 5)
    assert bool(suspects) == (times == limits.DEATHS_LIMIT)
    assert (suspects.answer(entry) is not None) == bool(suspects)
    assert suspects.answer(QuarantineEntry("a", IN, PRODUCER, SequenceNumber(0), b"other", 5)) is None


@pytest.mark.parametrize("suspected", ["a", "b", "c", "ab", "bc", "abc"])
@pytest.mark.parametrize("ran", ["a", "b", "d", "ab", "ba", "da", "ad", "abc"])
def test_only_a_suspect_that_ran_with_nothing_else_ran_alone_and_is_cleared(suspected: str, ran: str) -> None:
    """Of several that ended the process together nobody knows which did, and when they have not, they may yet alone."""
    suspects = after(mark(Suspects(1), work(*suspected)))
    marked = read_mark(mark(suspects, work(*ran)))
    alone = len(ran) == 1 and ran in suspected
    assert (suspects.alone, marked.alone) == (alone, alone)
    suspects.done()
    left = {key for key, _ in suspects._suspected}
    assert left == {*suspected} - ({ran} if alone else set())


def test_a_mark_that_was_read_twice_counts_once() -> None:
    found = mark(after(mark(after(b""), work("a"))), work("a"))
    for ends in (1, 2, 3, 4):  # processes that died before they had marked anything
        assert not after(found, ends)
    assert [deaths for _, _, deaths in read_mark(after(found).encoded()).deaths] == [1]


def test_a_timer_is_one_too() -> None:
    timer = Timer("a", "t", 7)
    suspects = after(killed_alone(limits.DEATHS_LIMIT, work(timers=(timer,))))
    assert (
        suspects.answer(
            QuarantineEntry("a", SubscriptionId(-1), ProducerId(0), SequenceNumber(0), b"", 7, "t", "watermark")
        )
        is not None
    )
    assert (
        suspects.answer(
            QuarantineEntry("a", SubscriptionId(-1), ProducerId(0), SequenceNumber(0), b"", 8, "t", "watermark")
        )
        is None
    )


def test_the_condemned_outlive_the_window_and_the_suspects_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARKED_INVOCATIONS", 1)
    condemned = Suspicion([("a", b"digest", 3), ("b", b"digest", 1)])
    suspects = Suspects(1, b"")
    suspects._suspect(condemned)
    suspects._index()
    mark(suspects, work("x"))
    left = suspects.done()
    assert left is not None
    assert [key for key, _, _ in read_mark(left).deaths] == ["a"]


# --- in the interval ----------------------------------------------------------------------------------------------


def test_the_hook_waits_for_its_mark() -> None:
    bench = Bench(unclean())
    bench.arrive(1, {0: ("k", 5)})
    bench(ev.Loaded([]))
    assert [mark.alone for mark in bench.of(ev.Mark)] == [False]
    assert not bench.of(ev.Invoke)
    assert bench(ev.Marked()).of(ev.Invoke)
    bench.invoked(wrote("k", b"1"))
    assert bench.of(ev.Commit)


def test_suspects_run_one_by_one_in_their_order() -> None:
    rows = {0: ("x", 5), 1: ("a", 5), 2: ("b", 5), 3: ("x", 6), 4: ("y", 6)}
    first = Bench(unclean())
    first.arrive(1, {1: ("a", 5), 2: ("b", 5)})
    (found,) = first(ev.Loaded([])).of(ev.Mark)
    bench = Bench(unclean(found.suspicion, ends=2))
    bench.arrive(1, rows)
    ran = [(alone, [s for part in work.parts for s in part.sequences]) for alone, work in run_all(bench)]
    assert ran == [(False, [0]), (True, [1]), (True, [2]), (False, [3, 4])]


def test_only_a_timer_that_is_suspected_runs_alone() -> None:
    found = mark(after(b""), work("committed", "t4", timers=(Timer("t2", "u", 11),)))
    timers = [(f"t{n}", "u", "watermark", 10 + n // 2) for n in range(5)]
    bench = Bench(unclean(found, ends=2, timers=timers))
    bench(ev.WatermarkMoved(20))
    ran = [(alone, [timer.key for timer in work.timers]) for alone, work in run_all(bench)]
    assert ran == [(False, ["t0", "t1"]), (True, ["t2"]), (False, ["t3", "t4"])]


def test_suspected_timers_of_both_kinds_run_one_by_one() -> None:
    found = mark(after(b""), work(timers=(Timer("e", "u", 10), Timer("w", "u", 5, "wall"))))
    timers = [("e", "u", "watermark", 10), ("w", "u", "wall", 5), ("v", "u", "wall", 6)]
    bench = Bench(unclean(found, ends=2, timers=timers))
    bench.now = 100
    bench(ev.WatermarkMoved(20))
    ran = [(alone, [timer.key for timer in it.timers]) for alone, it in run_all(bench)]
    assert ran == [(True, ["e"]), (True, ["w"]), (False, ["v"])]


def test_the_condemned_goes_to_quarantine_with_what_comes_after_it() -> None:
    condemned = after(killed_alone(3, _as_arrived())).encoded()
    bench = Bench(unclean(condemned, ends=5))
    bench.arrive(1, {0: ("k", 5), 1: ("k", 6), 2: ("j", 6)})
    bench(ev.Loaded([]))
    bench(ev.Marked())
    (invoke,) = bench.of(ev.Invoke)
    assert [part.sequences for part in invoke.work.parts] == [[2]]
    (image,) = bench.invoked().images()
    assert [(e.key, e.sequence, "ended 3 times" in e.error) for e in image.quarantined] == [
        ("k", 0, True), ("k", 1, False),
    ]  # fmt: skip


def test_the_condemned_is_not_redriven_and_what_is_before_it_is() -> None:
    condemned = after(killed_alone(3, _as_arrived())).encoded()
    bench = Bench(unclean(condemned, ends=5, quarantined=["k"]))
    before = failed("k", 4, SequenceNumber(9)).quarantined[0]
    culprit = QuarantineEntry("k", IN, PRODUCER, SequenceNumber(0), b"v0", 5)
    bench(ev.RedriveAsked(["k"]))
    bench(ev.QuarantineFetched([before, culprit]))
    bench(ev.Loaded([]))
    (invoke,) = bench(ev.Marked()).of(ev.Invoke)
    assert invoke.work.redrive == [before]
    bench(ev.Invoked(outcome(redriven={"k": 1})))
    for event in (ev.CommitDone(Seq(1)), ev.FoldDone(Seq(1)), ev.RedriveAsked(["k"])):
        bench(event)
    bench(ev.QuarantineFetched([culprit]))
    assert not bench.of(ev.Load)
    assert not bench.of(ev.Mark)
    assert not bench.of(ev.Invoke)


def test_a_process_that_serves_for_long_is_trusted() -> None:
    bench = Bench(unclean(ends=3))
    bench.core.suspects._left = 0
    bench.now = limits.TRUST_US
    assert [mark.trusted for mark in bench(ev.AlarmRang()).of(ev.Unmark)] == [True]
    assert not bench(ev.AlarmRang()).of(ev.Unmark)


def test_a_process_that_still_marks_is_not_trusted_however_long_it_serves() -> None:
    bench = Bench(unclean(ends=3))
    bench.now = limits.TRUST_US
    assert not bench(ev.AlarmRang()).of(ev.Unmark)
    bench.core.suspects._left = 0
    assert [mark.trusted for mark in bench(ev.AlarmRang()).of(ev.Unmark)] == [True]


def test_when_the_hooks_of_the_last_marked_invocation_return_the_store_is_told_that_nothing_runs() -> None:
    """Else whatever ends the process later is laid on them."""
    bench = Bench(unclean(ends=1))
    bench.core.suspects._left = 1
    bench.arrive(0, {0: ("k", 5)})
    bench(ev.Loaded([]))
    (mark,) = bench.of(ev.Mark)
    assert read_mark(mark.suspicion).running
    assert not bench.of(ev.Unmark)
    bench(ev.Marked())
    (unmark,) = bench(ev.Invoked(outcome())).of(ev.Unmark)
    assert not read_mark(unmark.suspicion).running
    assert not unmark.trusted


def _as_arrived() -> Work:
    return Work(
        [BundlePart(IN, PRODUCER, SequenceNumber(0), sequence_numbers([0]), ["k"], [b"v0"], [5])],
        [],
        {},
        {},
        {},
        0,
        0,
    )


def test_a_united_mark_suspects_what_each_of_its_marks_does() -> None:
    one = mark(Suspects(1), work("a", "b"))
    other = mark(Suspects(1), work("z"))
    united = after(unite_marks([one, b"", other]))
    for suspects in (after(one), after(other)):
        assert suspects.some
        assert suspects._suspected.items() <= united._suspected.items()
    assert len(united._suspected) == 3
    assert unite_marks([b"", b""]) == b""


def test_a_united_mark_keeps_the_most_deaths_of_a_unit() -> None:
    alone = after(mark(Suspects(1), work("a")))
    unit = next(iter(alone._suspected))
    twice = Suspicion([(*unit, 1)])
    encoded = [msgspec.msgpack.encode(found) for found in (Suspicion([(*unit, 0)]), twice, Suspicion([], [unit], True))]
    assert read_mark(unite_marks(encoded)).deaths == [(*unit, 1)]
    most = msgspec.msgpack.encode(Suspicion([(*unit, 2)]))
    for marks in ([*encoded, most], [most, *encoded]):
        assert read_mark(unite_marks(marks)).deaths == [(*unit, 2)]
