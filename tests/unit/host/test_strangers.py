"""Words of workers that nobody has introduced yet."""

from __future__ import annotations

from millwheel.host.messages import Hello
from millwheel.host.strangers import Strangers
from millwheel.ids import IntervalId, Sequencer


def hello(round_: int) -> Hello:
    return Hello(IntervalId(1), Sequencer(7), round_, "", None)


def test_words_come_in_order_and_once() -> None:
    strangers = Strangers()
    strangers.keep("w7", hello(0))
    strangers.keep("w8", hello(5))
    strangers.keep("w7", hello(1))
    assert strangers.known("w7") == [hello(0), hello(1)]
    assert strangers.known("w7") == []
    assert strangers.known("w8") == [hello(5)]


def test_words_outlive_one_look_at_the_map_and_not_two() -> None:
    strangers = Strangers()
    strangers.forget()
    strangers.keep("w7", hello(0))
    strangers.forget()
    strangers.keep("w8", hello(0))
    strangers.forget()
    assert strangers.known("w7") == []
    assert strangers.known("w8") == [hello(0)], "it spoke after the look before"


def test_one_that_was_known_and_speaks_again_as_a_stranger_has_both_looks() -> None:
    strangers = Strangers()
    strangers.keep("w7", hello(0))
    strangers.forget()
    strangers.known("w7")
    strangers.forget()
    strangers.keep("w7", hello(1))
    strangers.forget()
    assert strangers.known("w7") == [hello(1)]
