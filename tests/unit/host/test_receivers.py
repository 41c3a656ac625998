"""Who has said hello: a receiver that has not, since its channel was cut, is sent nothing."""

from __future__ import annotations

from millwheel.host.messages import Hello
from millwheel.host.receivers import Receivers


def test_nothing_is_sent_before_a_hello() -> None:
    receivers = Receivers()
    assert receivers.sequencer(1) is None
    assert receivers.greet(Hello(1, 100, 1))
    assert receivers.sequencer(1) == 100


def test_a_copy_and_an_older_hello_change_nothing() -> None:
    receivers = Receivers()
    receivers.greet(Hello(1, 100, 2))
    for late in (Hello(1, 100, 2), Hello(1, 100, 1), Hello(1, 99, 7)):
        assert not receivers.greet(late)
    assert receivers.sequencer(1) == 100
    assert receivers.greet(Hello(1, 101, 1)), "a new owner counts from one"
    assert receivers.sequencer(1) == 101


def test_after_a_cut_everybody_says_it_again() -> None:
    receivers = Receivers()
    receivers.greet(Hello(1, 100, 1))
    receivers.greet(Hello(2, 200, 1))
    receivers.cut()
    assert (receivers.sequencer(1), receivers.sequencer(2), receivers.unreached) == (None, None, {1, 2})
    assert not receivers.greet(Hello(1, 100, 1)), "that one was lost with the channel, or is a copy"
    assert receivers.sequencer(1) is None
    assert receivers.greet(Hello(1, 100, 2))
    assert (receivers.sequencer(1), receivers.sequencer(2)) == (100, None)
