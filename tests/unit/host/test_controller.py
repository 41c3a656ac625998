"""A controller by hand: nobody hears of a watermark before it is durable."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.errors import RowRefused
from millwheel.host import alphabet as he
from millwheel.host.controller import ControllerHost
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Disowned,
    EpochBased,
    EpochDeclared,
    EpochOpened,
    EpochRefused,
    EpochStarted,
    EpochWanted,
    Excused,
    Hello,
    ImageWritten,
    IntervalSettled,
    Message,
    Open,
    RoundAnswered,
    RoundAsked,
    SourceBound,
    Unsettled,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.requests import DeclareEpoch, PersistWatermarks, ReadWatermarks
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import WatermarkWrite

ONE, OWNER = IntervalId(1), Sequencer(7)
JOINED = WorkerJoined({"a": ("source:s",), "b": ("a",)})


class Hand:
    """What the controller wants of the store, and what it has told its worker."""

    def __init__(self, snapshot_every_us: int = 0) -> None:
        self.host = ControllerHost(["worker"], snapshot_every_us=snapshot_every_us)
        self.asked: list[he.Ask] = []
        self.told: list[Message] = []

    def give(self, event: he.HostEvent) -> None:
        for effect in self.host.handle(event, 1_000):
            match effect:
                case he.Ask():
                    self.asked.append(effect)
                case he.Tell(peer, message):
                    assert peer == "worker"
                    self.told.append(message)
                case _:
                    raise AssertionError(f"a controller wants {effect}")

    def hear(self, *messages: Message) -> None:
        for message in messages:
            self.give(he.Received("worker", message))

    def answer(self, answer: Any) -> Any:
        """Answer the oldest wish."""
        ask = self.asked.pop(0)
        self.give(he.Answered(ask.token, answer))
        return ask.wish

    def take_told(self) -> list[Message]:
        told, self.told = self.told, []
        return told


def begun(**persisted: int) -> Hand:
    """A controller that knows what is persisted, of one worker that has interval 1 of "a"."""
    hand = Hand()
    hand.hear(Claimed((("a", ONE, OWNER),)), JOINED)
    assert isinstance(hand.answer(persisted), ReadWatermarks)
    hand.take_told()
    return hand


def report(value: int, label: int = 0) -> WatermarkReport:
    return WatermarkReport("a", ONE, value, OWNER, label)


def persist(hand: Hand) -> Any:
    """The turn ends, and what was reported is to be persisted."""
    hand.give(he.TurnEnded())
    return hand.asked[0].wish


def test_what_is_persisted_is_read_once_and_told_to_everybody() -> None:
    hand = Hand()
    hand.hear(JOINED, JOINED)
    assert len(hand.asked) == 1
    hand.answer({"source:s": 40, "a": 30})
    assert hand.take_told() == [WatermarksRaised({"source:s": 40, "a": 30}, {"a": 40, "b": 30})]


def test_what_was_said_before_that_is_not_lost() -> None:
    hand = Hand()
    hand.hear(Claimed((("a", ONE, OWNER),)), JOINED, report(50))
    hand.answer({})
    assert persist(hand) == PersistWatermarks([WatermarkWrite("a", 50, {ONE: OWNER})])


def test_partitions_that_are_open_are_waited_for_also_if_nobody_has_claimed_them() -> None:
    hand = begun()
    hand.hear(Open("source:s", (IntervalId(2), IntervalId(3))), Claimed((("source:s", IntervalId(3), OWNER),)))
    hand.hear(WatermarkReport("source:s", IntervalId(3), 50, OWNER), SourceBound("source:s", 60))
    hand.give(he.TurnEnded())
    assert hand.asked == []
    hand.hear(WatermarkReport("source:s", IntervalId(2), 40, OWNER))
    wish = persist(hand)
    assert isinstance(wish, PersistWatermarks)
    assert [(write.name, write.value) for write in wish.writes] == [("source:s", 40)]


def test_a_watermark_is_told_when_it_is_durable_and_not_before() -> None:
    hand = begun()
    hand.hear(report(50))
    assert persist(hand) == PersistWatermarks([WatermarkWrite("a", 50, {ONE: OWNER})])
    assert hand.take_told() == []
    assert not hand.host.idle()
    hand.answer({"a"})
    assert hand.take_told() == [WatermarksRaised({"a": 50}, {"b": 50})]
    hand.answer(None)  # it pauses before the next one
    assert hand.host.idle()


def test_what_rises_meanwhile_is_persisted_next() -> None:
    hand = begun()
    hand.hear(report(50))
    persist(hand)
    hand.hear(report(60))
    hand.give(he.TurnEnded())
    assert len(hand.asked) == 1, "one write at a time"
    hand.answer({"a"})
    hand.take_told()
    assert isinstance(hand.answer(None), he.Pause)
    assert hand.asked[0].wish == PersistWatermarks([WatermarkWrite("a", 60, {ONE: OWNER})])


def test_a_refused_watermark_is_told_to_nobody_and_is_tried_again() -> None:
    hand = begun()
    hand.hear(report(50))
    persist(hand)
    hand.answer(set())
    told = hand.take_told()
    assert Disowned(((ONE, OWNER),)) in told
    assert not any(isinstance(message, WatermarksRaised) and message.values for message in told)
    hand.hear(Claimed((("a", ONE, Sequencer(8)),)))
    hand.answer(None)
    assert hand.asked[0].wish == PersistWatermarks([WatermarkWrite("a", 50, {ONE: Sequencer(8)})])


def test_nothing_that_rose_is_nothing_to_persist() -> None:
    hand = begun(a=50)
    hand.hear(report(50))
    hand.give(he.TurnEnded())
    assert hand.asked == []
    assert hand.host.idle()


def test_a_source_counts_when_its_first_search_is_over() -> None:
    hand = begun()
    hand.hear(Claimed((("source:s", IntervalId(9), OWNER),)), WatermarkReport("source:s", IntervalId(9), 70, OWNER))
    hand.give(he.TurnEnded())
    assert hand.asked == []
    hand.hear(SourceBound("source:s", MAX_TIME))
    assert persist(hand).writes[0].value == 70
    hand.answer({"source:s"})
    hand.hear(Concluded("source:s", IntervalId(9)))
    hand.answer(None)
    assert hand.asked[0].wish.writes[0].value == MAX_TIME  # type: ignore[union-attr]


def test_who_was_cut_off_hears_everything_again() -> None:
    hand = begun(a=50)
    hand.give(he.ChannelOpened("worker"))
    assert hand.take_told() == [WatermarksRaised({"a": 50}, {"a": MIN_TIME, "b": 50})]


def under_snapshots() -> Hand:
    """A controller whose epoch 5 has begun."""
    hand = Hand(1_000)
    hand.hear(Claimed((("a", ONE, OWNER),)), JOINED)
    hand.answer({})
    hand.hear(EpochBased(4), EpochWanted(4))
    hand.answer(None)
    assert EpochStarted(5) in hand.take_told()
    return hand


def test_who_was_cut_off_hears_of_the_epoch_again() -> None:
    hand = under_snapshots()
    hand.give(he.ChannelOpened("worker"))
    assert [it for it in hand.take_told() if not isinstance(it, WatermarksRaised)] == [
        EpochDeclared(4),
        EpochStarted(5),
    ]


def test_what_was_reported_before_a_barrier_is_told_and_stored_with_its_epoch() -> None:
    hand = under_snapshots()
    hand.hear(report(50, label=4), report(60, label=5), report(70, label=5))
    assert hand.take_told() == [WatermarksRaised({"a": 50}, {"b": 50}, 4)]
    hand.hear(EpochOpened(5, {ONE: OWNER}, ()), ImageWritten(5, ONE, OWNER, 0))
    (declare,) = [ask.wish for ask in hand.asked if isinstance(ask.wish, DeclareEpoch)]
    assert declare.declaration.watermarks == {"a": 50}
    hand.give(he.TurnEnded())
    assert hand.take_told() == [WatermarksRaised({"a": 70}, {"b": 70}, 5)]


def test_productions_of_an_earlier_version_keep_their_receivers() -> None:
    hand = begun(**{"source:s": 40, "a": 50})
    hand.hear(Unsettled("c", IntervalId(3), ("b",)))
    hand.give(he.ChannelOpened("worker"))
    assert hand.take_told() == [WatermarksRaised({"source:s": 40, "a": 50}, {"a": 40, "b": MIN_TIME})]
    hand.hear(IntervalSettled(IntervalId(3)))
    assert hand.take_told() == [WatermarksRaised({}, {"b": 50})]


def test_what_is_not_for_a_controller_is_an_error() -> None:
    with pytest.raises(AssertionError, match="a controller was told Hello"):
        begun().hear(Hello(ONE, OWNER, 1))
    with pytest.raises(AssertionError, match="a controller got Due"):
        begun().give(he.Due(ONE, OWNER, None))  # type: ignore[arg-type]


def test_a_worker_that_joins_again_has_the_loops_asked_again() -> None:
    # Its channel was cut: questions and answers may be lost.
    hand, asked = begun(), list[bool]()
    rounds = hand.host._rounds
    assert rounds is not None
    rounds.again = lambda: asked.append(True)  # type: ignore[method-assign]
    hand.hear(Claimed((("a", ONE, OWNER),)), report(50))
    assert asked == []
    hand.hear(JOINED)
    assert asked == [True]


def test_the_intervals_of_a_loop_are_asked_at_once_when_one_of_them_has_a_new_owner_or_settles() -> None:
    """Nobody waits for the pause between two rounds."""
    hand = Hand()
    senders = {"a": ("source:s", "loop:a"), "b": ("a",)}
    owned = (("a", ONE, OWNER), ("b", IntervalId(2), OWNER))
    hand.hear(Claimed(owned), WorkerJoined(senders, {"loop:a": ("a", "b")}))
    hand.answer({"source:s": 40})

    def asked() -> list[tuple[str, int]]:
        return [(m.loop, m.bound) for m in hand.take_told() if isinstance(m, RoundAsked)]

    assert {*asked()} == {("loop:a", 40)}
    hand.hear(Claimed(owned))
    assert asked() == [], "they are asked already"
    hand.hear(Claimed((("b", IntervalId(2), Sequencer(OWNER + 1)),)))
    assert asked() == [("loop:a", 40)]
    hand.hear(Unsettled("gone", IntervalId(3), ("a",)))
    assert asked() == []
    hand.hear(Claimed((("a", IntervalId(4), OWNER),)))
    assert asked() == [], "nothing is promised from outside"
    hand.hear(IntervalSettled(IntervalId(3)))
    assert asked() == [("loop:a", 40)]


def test_it_is_idle_before_any_worker_has_joined_and_not_while_something_waits_to_be_persisted() -> None:
    assert Hand().host.idle()
    hand = begun()
    assert hand.host.idle()
    hand.hear(report(50))
    assert not hand.host.idle()


def test_a_partition_that_is_excused_holds_no_watermark_until_it_is_expected_again() -> None:
    two = IntervalId(2)
    hand = begun()
    hand.hear(Claimed((("a", two, OWNER),)), report(50), Excused("a", two))
    assert [(write.name, write.value) for write in persist(hand).writes] == [("a", 50)]
    hand.answer({"a"})
    hand.hear(Claimed((("a", two, OWNER),)), report(60))
    hand.answer(None)
    assert hand.asked == [], "it is behind again"


@pytest.mark.parametrize("event", [he.TurnEnded(), he.Rested(), he.Tick()])
def test_what_has_risen_is_persisted_whatever_wakes_the_controller(event: he.HostEvent) -> None:
    hand = begun()
    hand.hear(report(50))
    assert hand.asked == []
    hand.give(event)
    assert [ask.wish for ask in hand.asked] == [PersistWatermarks([WatermarkWrite("a", 50, {ONE: OWNER})])]


def test_a_partition_that_is_not_open_any_more_holds_nothing_and_others_stay_where_they_are() -> None:
    hand, two = begun(), IntervalId(2)
    hand.hear(Open("source:s", (two, IntervalId(3))), SourceBound("source:s", 60))
    hand.hear(WatermarkReport("source:s", IntervalId(3), 50, OWNER))
    hand.give(he.TurnEnded())
    assert hand.asked == []
    hand.hear(Open("source:s", (IntervalId(3),)))
    assert [(write.name, write.value) for write in persist(hand).writes] == [("source:s", 50)]


def test_when_the_store_refuses_rows_of_an_epoch_workers_hear_which_ones() -> None:
    hand = under_snapshots()
    hand.hear(EpochOpened(5, {ONE: OWNER}, ()), ImageWritten(5, ONE, OWNER, 7))
    (token,) = [ask.token for ask in hand.asked if isinstance(ask.wish, DeclareEpoch)]
    hand.take_told()
    hand.give(he.Declined(token, RowRefused("no", ONE, Seq(7), ((0, "no"),))))
    assert hand.take_told() == [EpochRefused(5, ONE, Seq(7), ((0, "no"),))]


def looped(snapshot_every_us: int = 0) -> Hand:
    """A controller of a loop of "a" and "b", and of nothing that its source has promised."""
    hand = Hand(snapshot_every_us)
    hand.hear(
        Claimed((("a", ONE, OWNER), ("b", IntervalId(2), OWNER), ("source:s", IntervalId(9), OWNER))),
        WorkerJoined({"a": ("source:s", "loop:a"), "b": ("a",)}, {"loop:a": ("a", "b")}),
    )
    hand.answer({})
    hand.take_told()
    return hand


@pytest.mark.parametrize("snapshot_every_us", [0, 1_000])
def test_a_loop_is_asked_as_soon_as_its_source_has_promised_more_and_has_a_floor_after_two_answers(
    snapshot_every_us: int,
) -> None:
    hand = looped(snapshot_every_us)
    hand.hear(SourceBound("source:s", MAX_TIME), WatermarkReport("source:s", IntervalId(9), 40, OWNER))
    hand.give(he.TurnEnded())
    if not snapshot_every_us:
        assert [type(message) for message in hand.take_told()] == []
        hand.answer({"source:s"})
        hand.answer(None)  # the pause of the writer, or of the round
    for last in (False, True):
        (asked, *_) = [message for message in hand.take_told() if isinstance(message, RoundAsked)]
        assert asked.bound == 40
        for interval in (ONE, IntervalId(2)):
            hand.hear(RoundAnswered(interval, OWNER, asked.round, MAX_TIME))
        if not last:
            while hand.asked and not any(isinstance(message, RoundAsked) for message in hand.told):
                assert isinstance(hand.answer(None), he.Pause)
    authority = hand.host._authority
    assert authority is not None
    assert authority.changes() == {"loop:a": 40}


def test_a_share_of_a_source_is_heeded() -> None:
    hand = Hand()
    hand.hear(WorkerJoined({"a": ("source:s",)}, {}, {"source:s": 500_000}), SourceBound("source:s", MAX_TIME))
    hand.hear(Open("source:s", (IntervalId(2), IntervalId(3))))
    hand.hear(*(WatermarkReport("source:s", IntervalId(one), value, OWNER) for one, value in ((2, 10), (3, 90))))
    hand.answer({})
    assert [(write.name, write.value) for write in persist(hand).writes] == [("source:s", 90)]
