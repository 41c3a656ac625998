"""While a little commits, the little that comes waits, and then runs together."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.core.interval import events as ev
from millwheel.ids import Seq
from millwheel.work import Work
from tests.unit.core.bench import Bench, outcome, produced


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than four records are little."""
    monkeypatch.setattr(limits, "NAGLE_RECORDS", 4)


def keys_of(work: Work) -> list[str]:
    """Of the records of an invocation."""
    return [key for part in work.parts for key in part.keys]


def invoked(bench: Bench) -> list[list[str]]:
    """The keys of each invocation that the last event began."""
    if bench.of(ev.Load):
        bench(ev.Loaded([]))
    return [keys_of(effect.work) for effect in bench.of(ev.Invoke)]


def one(key: str, number: int) -> dict[int, tuple[str, int]]:
    """A bundle of one record."""
    return {number: (key, 5)}


def test_what_comes_while_a_little_commits_runs_together_when_that_is_durable() -> None:
    bench = Bench()
    bench.run(1, one("a", 0))
    assert invoked(bench.arrive(2, one("b", 1))) == []
    assert invoked(bench.arrive(3, one("c", 2))) == []
    assert invoked(bench(ev.CommitDone(Seq(1)))) == [["b", "c"]]


def test_alone_in_its_process_nothing_waits_for_a_commit() -> None:
    bench = Bench(gathers=False)
    bench.run(1, one("a", 0))
    assert invoked(bench.arrive(2, one("b", 1))) == [["b"]]


def test_what_is_not_little_any_more_runs_beside_the_commit() -> None:
    bench = Bench()
    bench.run(1, one("a", 0))
    assert invoked(bench.arrive(2, dict.fromkeys((1, 2, 3), ("b", 5)))) == []
    assert invoked(bench.arrive(3, one("c", 4))) == [["b", "b", "b", "c"]]


def test_nothing_waits_for_a_commit_of_much() -> None:
    bench = Bench()
    bench.run(1, dict.fromkeys(range(4), ("a", 5)), outcome(processed=4))
    assert invoked(bench.arrive(2, one("b", 4))) == [["b"]]


def test_nothing_waits_for_a_commit_of_much_that_timers_did() -> None:
    bench = Bench()
    bench.run(1, one("a", 0), outcome(processed=1, chained=3))
    assert invoked(bench.arrive(2, one("b", 1))) == [["b"]]


def test_commits_are_little_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(limits, "NAGLE_RECORDS", 0)
    for number in range(4):
        bench.run(number + 1, one("a", number), outcome(processed=1))
    monkeypatch.setattr(limits, "NAGLE_RECORDS", 4)
    assert invoked(bench.arrive(5, one("b", 4))) == [["b"]]


def test_slow_hooks_do_not_wait_for_commits() -> None:
    bench = Bench()
    bench.arrive(1, one("a", 0))
    bench.load()
    bench(ev.Invoked(outcome(processed=1), 2 * limits.INVOCATION_TARGET_US))
    assert invoked(bench.arrive(2, one("b", 1))) == [["b"]]


def test_timers_alone_do_not_wait_for_commits() -> None:
    bench = Bench()
    bench.run(1, one("a", 0), outcome(timers={"a": {("watermark", "t"): 7}}))
    assert bench(ev.WatermarkMoved(8)).of(ev.Invoke)


def test_weak_productions_leave_before_their_commit_so_nothing_waits_for_it() -> None:
    bench = Bench(productions="weak")
    bench.arrive(1, one("a", 0))
    bench.load()
    bench.invoked()
    assert invoked(bench.arrive(2, one("b", 1))) == [["b"]]


def test_what_is_weak_and_sends_to_nobody_waits_for_its_commit_as_what_is_strong_does() -> None:
    bench = Bench(productions="weak", outputs=())
    bench.run(1, one("a", 0))
    assert invoked(bench.arrive(2, one("b", 1))) == []
    assert invoked(bench.arrive(3, one("c", 2))) == []
    assert invoked(bench(ev.CommitDone(Seq(1)))) == [["b", "c"]]


def test_an_ack_that_comes_meanwhile_moves_the_watermark_and_runs_nothing() -> None:
    bench = Bench()
    bench.run(1, one("a", 0), produced(("x", 5)))
    sent = bench(ev.CommitDone(Seq(1))).sent()
    bench(ev.WatermarkMoved(9))
    bench.run(2, {1: ("b", 7)})
    bench.arrive(3, {2: ("c", 8)})
    bench(ev.AckArrived(sent[0].number))
    assert bench.reported() == [7]
    assert not bench.of(ev.Invoke)


@pytest.mark.parametrize("running", [True, False])
def test_what_waits_in_any_case_is_looked_at_when_that_is_over(running: bool) -> None:
    bench = Bench()
    if running:
        bench.arrive(1, one("a", 0))
        bench.load()
    else:
        bench.run(1, one("a", 0))
    bench.arrive(2, one("b", 1))
    assert bench.effects == []
    if running:
        bench.invoked()
    assert invoked(bench(ev.CommitDone(Seq(1)))) == [["b"]]
