"""What a worker tells of itself, and in which order."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.host import alphabet as he
from millwheel.host.mapped import MappedOwnership
from millwheel.host.messages import InQuarantine, Led, MapChanged, WatermarksRaised
from millwheel.host.requests import NoteHotKeys, NoteStandstills
from millwheel.model import MAX_TIME
from millwheel.testing.world.calls import run
from tests.unit.host.cluster_hand import ONE, ClusterHand


@pytest.fixture
def hand() -> ClusterHand:
    made = ClusterHand()
    made.give(he.Started())
    return made


def test_a_worker_tells_what_keeps_a_watermark_that_stands(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.keep_running = True
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, WatermarksRaised({"source:text": 50, "keep": 1}, {"keep": 50})))
    for wait_us in (0, limits.STANDSTILL_US, 1):
        hand.now += wait_us
        hand.give(he.Received(hand.leader, MapChanged(99)))
    (said,) = [request for request in hand.asked if isinstance(request, NoteStandstills)]
    (told,) = said.found
    assert (told.name, told.interval, told.kind, told.timestamp) == ("keep", ONE, "running work", 1)
    assert (told.detail, told.since_us) == ("key 'k'", hand.now - limits.STANDSTILL_US - 1)
    assert [one.member for one in run(hand.store.standstills())] == ["mine"]


def test_the_store_is_told_of_hot_keys_one_after_the_other_and_the_last_word_stays(hand: ClusterHand) -> None:
    # A store that answered later than after a report got the next one beside it, and either could be written last.
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = NoteHotKeys
    ownership = hand.worker.ownership
    assert isinstance(ownership, MappedOwnership)
    for key in ("a", "b", "c"):
        for _ in range(4 * limits.HOT_KEY_BUNDLES):
            ownership._news.came(ONE, [key] * limits.HOT_KEY_LEAST_RECORDS)
        hand.now += limits.LOAD_EVERY_US
        hand.give(he.Received(hand.leader, MapChanged(99)))
    (first,), hand.held = hand.waiting, None
    hand.answer(first)
    assert [one.key for one in ownership.hot_keys()] == ["c", "b", "a"]
    assert run(hand.store.hot_keys()) == [*ownership.hot_keys()]


def test_a_leader_that_has_heard_of_keys_in_quarantine_hears_again_and_again_that_there_are_none(
    hand: ClusterHand,
) -> None:
    """A word may be lost in a cut, and what was said before would count against what is allowed."""
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    ((_, core),) = hand.worker.actors.intervals()
    assert hand.of(InQuarantine) == []
    core._quarantine.keys.add("k")
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.of(InQuarantine) == [InQuarantine(hand.mine, {ONE: 1})]
    core._quarantine.keys.clear()
    for _ in range(2):
        hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.of(InQuarantine) == 2 * [InQuarantine(hand.mine, {})]


def test_what_keeps_a_watermark_is_told_again_when_it_is_another_thing(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.keep_running = True
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    for reached in (1, MAX_TIME):  # at the end of time nothing keeps it
        hand.give(he.Received(hand.leader, WatermarksRaised({"source:text": 50, "keep": reached}, {"keep": 50})))
        for wait_us in (0, limits.STANDSTILL_US, 1):
            hand.now += wait_us
            hand.give(he.Received(hand.leader, MapChanged(99)))
    said = [request.found for request in hand.asked if isinstance(request, NoteStandstills)]
    assert [len(found) for found in said] == [1, 0]


@pytest.mark.parametrize("halted", [False, True])
def test_keys_in_quarantine_are_told_also_while_their_interval_begins_anew(hand: ClusterHand, halted: bool) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    ((_, core),) = hand.worker.actors.intervals()
    core._quarantine.keys.add("k")
    core.halted = halted  # its next core reads the same keys from the store
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.of(InQuarantine) == [InQuarantine(hand.mine, {ONE: 1})]


def test_the_store_is_told_of_hot_keys_each_time_that_they_change(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    ownership = hand.worker.ownership
    assert isinstance(ownership, MappedOwnership)
    hand.give(he.Received(hand.leader, MapChanged(99)))  # loads are measured from now on
    for key in ("a", "b", "c"):
        for _ in range(4 * limits.HOT_KEY_BUNDLES):
            ownership._news.came(ONE, [key] * limits.HOT_KEY_LEAST_RECORDS)
        hand.now += limits.LOAD_EVERY_US
        hand.give(he.Received(hand.leader, MapChanged(99)))
        assert run(hand.store.hot_keys())[0].key == key
