"""What a worker says, and what it says again to whoever decides next."""

from __future__ import annotations

import msgspec

from millwheel.host import alphabet as he
from millwheel.host.messages import Claimed, IntervalLoad, LoadReport, Message, SourceBound
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
