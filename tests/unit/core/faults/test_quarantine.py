"""Quarantine: a key's later elements wait behind the one that failed, and it is released when its FIFO is empty."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from millwheel.bundles import HoldWrites, QuarantineEntry
from millwheel.core.faults.quarantine import Quarantine, quarantine_hold
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId
from millwheel.model import Timer
from millwheel.work import BundlePart, InvocationOutcome, Work, cause_of


def work(
    *keys: str, timers: tuple[Timer, ...] = (), redrive: tuple[QuarantineEntry, ...] = (), watermark: int = 0
) -> Work:
    """Records of `keys`, whose event times are 10, 20, ..."""
    times = [10 * (n + 1) for n in range(len(keys))]
    part = BundlePart(
        SubscriptionId(7), ProducerId(55), SequenceNumber(0), [*range(len(keys))], [*keys], [b"v"] * len(keys), times
    )
    return Work([part], [*timers], {}, {}, {}, watermark, 0, redrive=[*redrive])


def element(key: str, number: int = 0) -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(7), ProducerId(55), SequenceNumber(number), b"v", 10 * (number + 1))


class Interval:
    """The parts that a quarantine shares with its interval."""

    def __init__(self, *keys: str, keeps_hold: bool = True) -> None:
        self.keyed, self.refused = KeyedState(1_000), RefusedRows()
        self.timers, self.holds = self.keyed._timers, self.keyed._holds
        self.quarantine = Quarantine(
            keys=keys,
            refused=self.refused,
            suspects=Suspects(),
            keyed=self.keyed,
            keeps_hold=keeps_hold,
        )
        self.quarantine.start()
        self.writes = HoldWrites([], [])

    def redrive(self, key: str, entries: list[QuarantineEntry], more: bool = False) -> list[QuarantineEntry]:
        """Ask for a key, and read its FIFO; what runs next."""
        self.quarantine.ask([key], 0)
        assert self.quarantine.next() == [key]
        self.quarantine.fetched(entries, more)
        return self.quarantine.take_fetched()

    def ran(self, seq: Seq, entries: list[QuarantineEntry], done: int) -> None:
        key = entries[0].key
        self.quarantine.redriven(seq, work(redrive=(*entries,)), InvocationOutcome(redriven={key: done}))


def kept(found: Work) -> list[str]:
    return [key for part in found.parts for key in part.keys]


def test_what_arrives_for_a_key_in_quarantine_goes_behind_the_rest() -> None:
    quarantine = Interval("bad").quarantine
    assert kept(quarantine.divert(work("a", "bad", "b", "bad"))) == ["a", "b"]
    assert [(e.key, e.sequence) for e in quarantine.take_diverted()] == [("bad", 1), ("bad", 3)]
    assert quarantine.take_diverted() == []


def test_a_culprit_takes_what_follows_it_of_its_key_along() -> None:
    interval = Interval()
    interval.refused.add(cause_of(element("bad", 1)), "the table says no")
    assert kept(interval.quarantine.divert(work("bad", "bad", "bad", "a"))) == ["bad", "a"]
    assert interval.quarantine.stopping([]) == {"bad"}
    assert [(e.sequence, e.error) for e in interval.quarantine.take_diverted()] == [(1, "the table says no"), (2, "")]


def test_timers_of_a_key_in_quarantine_sleep() -> None:
    interval = Interval()
    interval.timers.set("bad", "watermark", "t", 5)
    interval.quarantine.put([element("bad")], Seq(1), work(), interval.writes)
    assert interval.timers.pop_due("watermark", 100, 9) == []
    interval.ran(Seq(2), interval_fifo(interval), 1)
    assert interval.timers.pop_due("watermark", 100, 9) == [(5, ("bad", "t"))]


def interval_fifo(interval: Interval) -> list[QuarantineEntry]:
    """The FIFO of `bad`, once it is folded, as it is redriven."""
    interval.quarantine.folded(Seq(1))
    return interval.redrive("bad", [element("bad")])


def test_a_quarantine_holds_at_the_oldest_that_waits_and_lets_go_with_its_release() -> None:
    interval = Interval()
    name = quarantine_hold("bad")
    for seq, number in ((1, 4), (2, 2), (3, 8)):
        interval.quarantine.put([element("bad", number)], Seq(seq), work(), interval.writes)
    assert interval.holds.counting(name) == 30
    assert interval.quarantine.take_opened() == 1
    interval.quarantine.folded(Seq(3))
    entries = interval.redrive("bad", [element("bad", n) for n in (4, 2, 8)])
    interval.ran(Seq(4), entries, 3)
    assert interval.quarantine.take_released(Seq(4), interval.writes) == ["bad"]
    assert name not in interval.holds.all


def test_a_quarantine_holds_at_sleeping_timers_of_event_time_and_at_what_is_redriven() -> None:
    interval = Interval("other")  # whose elements were put when the setting said nothing of holds
    interval.timers.set("bad", "watermark", "t", 7)
    interval.timers.set("bad", "wall", "t", 3)
    interval.quarantine.put([element("bad", 4)], Seq(1), work(), interval.writes)
    assert interval.holds.counting(quarantine_hold("bad")) == 7
    again = work(redrive=(element("other", 4), element("other", 8)))
    interval.quarantine.put([], Seq(2), again, interval.writes)
    assert interval.holds.counting(quarantine_hold("other")) == 50
    assert dict(zip(interval.writes.keys, interval.writes.timestamps, strict=True)) == {
        quarantine_hold("bad"): 7, quarantine_hold("other"): 50,
    }  # fmt: skip


def test_without_that_setting_the_watermark_does_not_wait() -> None:
    interval = Interval(keeps_hold=False)
    interval.holds.set("bad", 5)
    interval.quarantine.put([element("bad")], Seq(1), work(), interval.writes)
    assert dict(interval.holds.all) == {"bad": 5}
    assert interval.holds.first() is None, "its own hold sleeps with it"


def test_a_fifo_is_read_when_what_went_into_it_is_folded() -> None:
    interval = Interval()
    interval.quarantine.put([element("bad")], Seq(3), work(), interval.writes)
    interval.quarantine.ask(["bad"], 0)
    assert (interval.quarantine.next(), interval.quarantine.waits_for_fold()) == ([], True)
    interval.quarantine.folded(Seq(3))
    assert (interval.quarantine.next(), interval.quarantine.waits_for_fold()) == (["bad"], False)


@pytest.mark.parametrize(("more", "released"), [(False, ["bad"]), (True, [])])
def test_a_key_is_released_when_all_of_its_fifo_has_run(more: bool, released: list[str]) -> None:
    interval = Interval("bad")
    interval.ran(Seq(1), interval.redrive("bad", [element("bad")], more), 1)
    assert [*interval.quarantine.released] == released
    assert interval.quarantine.busy() is more, "the rest is read next"


def test_a_key_whose_element_fails_again_stays_and_is_not_tried_again_by_itself() -> None:
    interval = Interval("bad")
    entries = interval.redrive("bad", [element("bad", 0), element("bad", 1)])
    interval.ran(Seq(1), entries, 1)
    assert interval.quarantine.keys == {"bad"}
    assert not interval.quarantine.busy()


def test_no_key_is_released_while_an_element_is_on_its_way_into_its_fifo() -> None:
    interval = Interval("bad")
    entries = interval.redrive("bad", [element("bad")])
    interval.quarantine.divert(work("bad"))
    interval.ran(Seq(1), entries, 1)
    assert (interval.quarantine.keys, interval.quarantine.busy()) == ({"bad"}, True)


def test_a_request_for_a_key_that_is_in_no_quarantine_is_answered_once() -> None:
    interval = Interval()
    interval.quarantine.ask(["free"], 0)
    assert interval.quarantine.take_released(Seq(5), interval.writes) == ["free"]
    interval.quarantine.ask(["free"], 0)
    assert interval.quarantine.take_released(Seq(6), interval.writes) == [], "its release is on the way to the tables"
    interval.quarantine.folded(Seq(5))
    interval.quarantine.ask(["free"], 0)
    assert interval.quarantine.take_released(Seq(7), interval.writes) == ["free"], "and somebody has asked again"


def test_while_anything_is_suspected_the_lines_of_keys_are_read_one_by_one() -> None:
    interval = Interval("a", "b", "c")
    interval.quarantine.ask(["c", "b", "a"], 0)
    with patch.object(Suspects, "some", new=True):
        assert interval.quarantine.next() == ["c"], "whoever asked first; it runs alone"
        interval.quarantine.fetched([], more=False)
    assert interval.quarantine.next() == ["a", "b"]


@pytest.mark.parametrize("folded", range(5, 10))
def test_a_key_is_released_once_until_its_release_is_folded_whatever_is_folded_before(folded: int) -> None:
    interval = Interval()
    interval.quarantine.ask(["free"], 0)
    assert interval.quarantine.take_released(Seq(8), interval.writes) == ["free"]
    interval.quarantine.folded(Seq(folded))
    interval.quarantine.ask(["free"], 0)
    assert interval.quarantine.take_released(Seq(10), interval.writes) == (["free"] if folded >= 8 else [])
