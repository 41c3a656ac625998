"""What a worker says, and what it says again to whoever decides next."""

from __future__ import annotations

import msgspec

from millwheel.host import alphabet as he
from millwheel.host.messages import Claimed, IntervalLoad, LoadReport, Message, SourceBound, WatermarkReport
from millwheel.host.voice import Voice
from millwheel.ids import IntervalId, Sequencer

CLAIM = Claimed((("keep", IntervalId(1), Sequencer(7)),))
BOUND = SourceBound("source:text", 5)


def said(voice: Voice) -> list[tuple[str, Message]]:
    return [(effect.peer, effect.message) for effect in voice._out if isinstance(effect, he.Tell)]


def test_what_is_said_while_nobody_decides_is_said_to_the_next_who_does() -> None:
    voice = Voice("w1", None)
    voice.inform(CLAIM)
    voice.inform(BOUND)
    assert said(voice) == []
    voice.obey("c2")
    assert msgspec.structs.asdict(CLAIM)["intervals"] in [m.intervals for p, m in said(voice) if isinstance(m, Claimed)]
    assert ("c2", BOUND) in said(voice)
    assert voice.controller == "c2"


def test_an_answer_is_said_once() -> None:
    voice = Voice("w1", "c1")
    report = LoadReport((IntervalLoad(IntervalId(1), 5, ""),))
    voice.answer(report)
    assert said(voice) == [("c1", report)]
    voice.obey("c2")
    assert said(voice).count(("c1", report)) == 1
    assert ("c2", report) not in said(voice)


def test_nobody_hears_of_a_source_that_another_worker_speaks_for() -> None:
    voice = Voice("w1", "c1")
    voice.inform(BOUND)
    voice.forget_source("text")
    voice._out.clear()
    voice.obey("c2")
    assert BOUND not in [message for _, message in said(voice)]


def test_all_workers_hear_an_announcement_this_one_too() -> None:
    voice = Voice("w1", "c1")
    voice._peers = (*voice.peers, "w2")
    voice.announce(BOUND)
    assert said(voice) == [("w1", BOUND), ("w2", BOUND)]


def test_a_worker_wakes_after_a_delay_from_now() -> None:
    voice = Voice("w1", None)
    voice.now = 40
    voice.wake(2)
    assert voice._out == [he.WakeAt(42)]


def report(value: int) -> WatermarkReport:
    return WatermarkReport("keep", IntervalId(1), value, Sequencer(7))


def gathering() -> Voice:
    voice = Voice("w1", "c1")
    voice.gather_reports(5_000)
    voice.now = 10_000
    voice.report(report(1))
    voice._report_when_due()
    assert said(voice) == [("c1", report(1))]
    voice._out.clear()
    return voice


def test_a_report_is_told_at_once_where_reports_are_not_gathered() -> None:
    voice = Voice("w1", "c1")
    voice.report(report(1))
    assert said(voice) == [("c1", report(1))]


def test_gathered_reports_wake_the_worker_and_the_newest_is_told() -> None:
    voice = gathering()
    for value in (2, 3):
        voice.report(report(value))
        voice._report_when_due()
    assert said(voice) == []
    assert voice._out[-1] == he.WakeAt(15_000)
    voice.now = 15_000
    voice._report_when_due()
    assert said(voice) == [("c1", report(3))]


def test_gathered_reports_are_told_before_anything_else() -> None:
    voice = gathering()
    voice.report(report(2))
    voice.inform(CLAIM)
    voice.report(report(3))
    voice.answer(BOUND)
    assert said(voice) == [("c1", report(2)), ("c1", CLAIM), ("c1", report(3)), ("c1", BOUND)]


def test_whoever_decides_next_hears_the_newest_report_once() -> None:
    voice = gathering()
    voice.report(report(2))
    voice.obey("c2")
    assert [message for _, message in said(voice)].count(report(2)) == 1
    voice.now += 5_000
    voice._report_when_due()
    assert [message for _, message in said(voice)].count(report(2)) == 1


def test_while_nobody_decides_no_report_waits_and_none_is_lost() -> None:
    voice = gathering()
    voice.obey(None)
    voice.report(report(2))
    voice._report_when_due()
    assert said(voice) == []
    voice.obey("c2")
    assert ("c2", report(2)) in said(voice)


def test_of_an_interval_that_is_gone_no_gathered_report_is_told() -> None:
    voice = gathering()
    voice.report(report(2))
    voice.hush("keep", IntervalId(1))
    voice.now += 5_000
    voice._report_when_due()
    assert said(voice) == []
    voice.inform(Claimed((("source:text", IntervalId(4), Sequencer(7)),)))
    voice.report(WatermarkReport("source:text", IntervalId(4), 5, Sequencer(7)))
    voice.forget_source("text")
    voice.obey("c2")
    assert not [message for _, message in said(voice) if isinstance(message, WatermarkReport)]


def test_of_a_source_that_another_worker_speaks_for_no_gathered_report_is_told_when_its_time_comes() -> None:
    voice = gathering()
    voice.report(WatermarkReport("source:text", IntervalId(4), 5, Sequencer(7)))
    voice.forget_source("text")
    voice.now += 5_000
    voice._report_when_due()
    assert said(voice) == []
