"""What a controller has said: nothing goes back, and who begins later hears the newest of it."""

from __future__ import annotations

from millwheel.host.heard import Heard
from millwheel.host.messages import RoundAsked
from millwheel.model import MIN_TIME


def test_the_first_word_is_told_from_later_ones() -> None:
    heard = Heard()
    assert [heard.published({}), heard.published({"a": 1}), heard.published({})] == [True, False, False]


def test_a_published_watermark_does_not_go_back() -> None:
    heard = Heard()
    for value in (5, 9, 7):
        heard.published({"a": value})
    heard.published({"b": 3})
    assert heard.values == {"a": 9, "b": 3}


def test_what_was_told_in_front_of_a_barrier_is_told_from_what_came_behind_it() -> None:
    heard = Heard()
    heard.published({"a": 5}, 3)
    assert heard.before(4) == {"a": 5}
    heard.published({"a": 9, "b": 1}, 4)
    assert heard.before(4) == {"a": 5}
    heard.published({"a": 6}, 3)  # by a controller that leads since
    assert (heard.before(4), heard.before(5)) == ({"a": 6}, {"a": 9, "b": 1})


def test_what_is_stored_is_covered_when_all_of_it_or_more_is_published() -> None:
    heard = Heard()
    assert heard.covers({})
    heard.published({"a": 5, "b": 9})
    assert heard.covers({"a": 5, "b": 3})
    assert not heard.covers({"a": 5, "b": 10})
    assert not heard.covers({"c": 1})


def test_an_input_watermark_rises_once_and_does_not_go_back() -> None:
    heard = Heard()
    assert heard.input_of("a") == MIN_TIME
    assert heard.rose({"a": 5, "b": MIN_TIME}) == {"a": 5}
    assert heard.rose({"a": 5, "b": 2}) == {"b": 2}, "a copy is no news"
    assert heard.rose({"a": 4}) == {}
    assert (heard.input_of("a"), heard.input_of("b")) == (5, 2)
    assert heard.values == {}, "what comes in is not what has come out"


def test_the_newest_round_of_each_loop_is_known() -> None:
    heard = Heard()
    assert heard.asked("x") is None
    for asked in (RoundAsked(1, "x", 10), RoundAsked(3, "x", 30), RoundAsked(2, "x", 20), RoundAsked(1, "y", 10)):
        heard.round(asked)
    assert (heard.asked("x"), heard.asked("y")) == (RoundAsked(3, "x", 30), RoundAsked(1, "y", 10))
