"""Who has said hello: a receiver that has not, since its channel was cut, is sent nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.host.messages import Hello
from millwheel.host.receivers import Receivers
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import IntervalRow


def row(number: int, low: str = "", high: str | None = None) -> IntervalRow:
    return IntervalRow(IntervalId(number), "c", low, high)


def sequencer(receivers: Receivers, interval: IntervalId) -> int | None:
    place = receivers.place(row(interval))
    return None if place is None else place[1]


def test_nothing_is_sent_before_a_hello() -> None:
    receivers = Receivers()
    assert sequencer(receivers, IntervalId(1)) is None
    assert receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 1))
    assert sequencer(receivers, IntervalId(1)) == 100


def test_a_copy_and_an_older_hello_change_nothing() -> None:
    receivers = Receivers()
    receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 2))
    for late in (
        Hello(IntervalId(1), Sequencer(100), 2),
        Hello(IntervalId(1), Sequencer(100), 1),
        Hello(IntervalId(1), Sequencer(99), 7),
    ):
        assert not receivers.greet("w1", late)
    assert sequencer(receivers, IntervalId(1)) == 100
    assert receivers.greet("w1", Hello(IntervalId(1), Sequencer(101), 1)), "a new owner counts from one"
    assert sequencer(receivers, IntervalId(1)) == 101


def test_after_a_cut_everybody_says_it_again() -> None:
    receivers = Receivers()
    receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 1))
    receivers.greet("w1", Hello(IntervalId(2), Sequencer(200), 1))
    receivers.cut("w1")
    assert (sequencer(receivers, IntervalId(1)), sequencer(receivers, IntervalId(2)), receivers.unreached) == (
        None,
        None,
        {1, 2},
    )
    assert not receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 1)), (
        "that one was lost with the channel, or is a copy"
    )
    assert sequencer(receivers, IntervalId(1)) is None
    assert receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 2))
    assert (sequencer(receivers, IntervalId(1)), sequencer(receivers, IntervalId(2))) == (100, None)


def test_a_cut_is_of_one_worker_and_a_new_owner_is_found_where_it_is() -> None:
    receivers = Receivers()
    receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 1))
    receivers.greet("w2", Hello(IntervalId(2), Sequencer(200), 1))
    receivers.cut("w1")
    assert (receivers.place(row(1)), receivers.place(row(2))) == (None, ("w2", 200))
    assert not receivers.greet("w2", Hello(IntervalId(1), Sequencer(99), 8)), "an earlier owner that has woken up"
    assert receivers.greet("w2", Hello(IntervalId(1), Sequencer(101), 1))
    assert receivers.place(row(1)) == ("w2", 101)
    receivers.cut("w1")
    assert receivers.place(row(1)) == ("w2", 101), "the worker that had it is gone, and has it no more"


def test_a_receiver_with_other_keys_than_the_sender_knows_is_sent_nothing() -> None:
    receivers = Receivers()
    receivers.greet("w1", Hello(IntervalId(1), Sequencer(100), 1, "", "m"))
    assert receivers.place(row(1)) is None, "it was split, and the sender has not heard of that"
    assert receivers.place(row(1, "", "m")) == ("w1", 100)


INTERVALS, WORKERS = (1, 2, 3), ("w1", "w2")


@given(st.lists(st.one_of(st.sampled_from(WORKERS), st.tuples(st.sampled_from(WORKERS), st.sampled_from(INTERVALS)))))
def test_whatever_is_cut_and_said_a_receiver_is_reached_exactly_since_its_last_hello(
    steps: list[str | tuple[str, int]],
) -> None:
    """Each cut is of one worker, and each hello is newer than all before it."""
    receivers, last, reached = Receivers(), dict[int, str](), dict[int, str]()
    for round_, step in enumerate(steps):
        if isinstance(step, str):
            receivers.cut(step)
            reached = {number: peer for number, peer in reached.items() if peer != step}
        else:
            peer, number = step
            assert receivers.greet(peer, Hello(IntervalId(number), Sequencer(100), round_))
            last[number] = reached[number] = peer
        places = {number: receivers.place(row(number)) for number in INTERVALS}
        assert places == {number: (reached[number], 100) if number in reached else None for number in INTERVALS}
        assert receivers.unreached == last.keys() - reached.keys()
