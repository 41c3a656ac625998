"""A worker of a cluster by hand: the map changes, and it follows."""

from __future__ import annotations

import pytest

from millwheel import Pipeline, Stream, TextCoder, limits, subscribe
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    Produced,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import Placement, Reshaping, RunEnding
from millwheel.core.interval import events as ev
from millwheel.errors import Fenced
from millwheel.host import alphabet as he
from millwheel.host.mapped import MappedOwnership
from millwheel.host.messages import (
    Claimed,
    Credit,
    Delivery,
    Disowned,
    Drained,
    HandedOver,
    HandOver,
    Hello,
    Led,
    LoadReport,
    MapChanged,
    Open,
    Receipt,
    RunEnded,
    WatermarkReport,
    WatermarksRaised,
)
from millwheel.host.progress import progress_of
from millwheel.host.requests import (
    BehindOthers,
    CommitGroup,
    Reacquire,
    ReadMap,
    ReadSenders,
    Recover,
    StoreCall,
    TakePartitions,
    WriteMarks,
)
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from millwheel_injectors import IterableSource
from tests.unit.host.cluster_hand import LEASE_US, ONE, TWO, ClusterHand, Keep, words


@pytest.fixture
def hand() -> ClusterHand:
    made = ClusterHand()
    made.give(he.Started())
    return made


def test_a_worker_takes_what_the_map_gives_to_it_and_says_hello_to_all(hand: ClusterHand) -> None:
    assert hand.owned() == set()
    hand.place(ONE, owner=hand.mine)
    assert hand.owned() == {ONE}
    peers = {peer for peer, message in hand.told if isinstance(message, Hello)}
    assert peers == {f"w{hand.mine}", f"w{hand.other}"}
    (hello, _) = hand.of(Hello)
    assert (hello.interval, hello.low, hello.high) == (ONE, "", "m")


def test_the_leader_is_told_that_all_is_done_and_again_after_a_while_because_words_may_be_lost(
    hand: ClusterHand,
) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(
        he.Received(hand.leader, WatermarksRaised({"source:text": MAX_TIME, "keep": MAX_TIME}, {"keep": MAX_TIME}))
    )
    version = run(hand.store.cluster_map()).version
    hand.give(he.Received(hand.leader, MapChanged(version + 1)))  # it looks once more, when all that it owns has begun
    for wait_us, words_now in ((0, 1), (1, 0), (limits.CLUSTER_LOOK_US - 1, 1)):
        hand.now += wait_us
        hand.wakes.clear()
        hand.give(he.Rested())
        assert hand.of(Drained) == [Drained(hand.mine, version, {})] * words_now
        assert (hand.now + limits.CLUSTER_LOOK_US in hand.wakes) == bool(words_now), "nothing else may happen"


def test_an_interval_that_another_worker_gets_is_dropped_and_the_others_go_on(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.place(ONE, owner=hand.other)
    assert hand.owned() == {TWO}


def went_and_came_back(hand: ClusterHand) -> None:
    """Another worker has had an interval between two looks of this one at the map."""
    hand.decide(ONE, owner=hand.other)
    hand.give(he.Received(hand.leader, MapChanged(hand.decide(ONE, owner=hand.mine))))


def test_an_interval_that_another_worker_has_had_between_two_looks_gets_a_new_core(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    before = hand.worker.actors.all[ONE]
    went_and_came_back(hand)
    after = hand.worker.actors.all[ONE]
    assert (before.core.halted, after.core.halted) == (True, False)
    assert after.sequencer > before.sequencer


def test_an_interval_that_another_worker_has_had_while_it_was_recovered_here_is_recovered_again(
    hand: ClusterHand,
) -> None:
    hand.held = Recover
    hand.place(ONE, owner=hand.mine)
    (recovery,), hand.held, hand.waiting = hand.waiting, None, []
    assert isinstance(recovery.wish, Recover)
    outdated = run(recovery.wish.call(hand.store))
    went_and_came_back(hand)
    hand.give(he.Answered(recovery.token, outdated))
    placed = {row.id: row.sequencer for row in run(hand.store.cluster_map()).intervals}
    assert hand.worker.actors.all[ONE].sequencer == placed[ONE]


def test_an_interval_that_was_cut_off_starts_when_receivers_have_what_was_sent_before(hand: ClusterHand) -> None:
    hand.held = BehindOthers
    hand.place(ONE, owner=hand.mine)
    for _ in range(2):
        (asked,), hand.waiting = hand.waiting, []
        assert asked.wish == BehindOthers((ONE,))
        hand.give(he.Answered(asked.token, {ONE}))
        assert (hand.owned(), hand.of(Hello), hand.worker.ownership.served()) == (set(), [], False)
        hand.pass_time()
    (asked,), hand.waiting = hand.waiting, []
    hand.give(he.Answered(asked.token, set()))
    assert hand.owned() == {ONE}


def test_an_interval_that_was_cut_off_and_waits_for_long_says_so_once(hand: ClusterHand) -> None:
    hand.held = BehindOthers
    hand.place(ONE, owner=hand.mine)
    for said in (0, 1, 1):
        (asked,), hand.waiting = hand.waiting, []
        hand.give(he.Answered(asked.token, {ONE}))
        assert sum("which other split keys cut off" in text for text in hand.noted) == said
        hand.now += limits.BEHIND_NOTE_US
        hand.pass_time()


def test_an_interval_that_was_cut_off_and_has_another_owner_by_now_is_not_waited_for(hand: ClusterHand) -> None:
    hand.held = BehindOthers
    hand.place(ONE, owner=hand.mine)
    (asked,), hand.waiting = hand.waiting, []
    hand.give(he.Answered(asked.token, {ONE}))
    hand.place(ONE, owner=hand.other)
    hand.pass_time()
    assert (hand.owned(), hand.waiting) == (set(), [])


def test_a_map_that_changes_while_it_is_read_is_read_again(hand: ClusterHand) -> None:
    hand.held = ReadMap
    hand.give(he.Received(hand.leader, MapChanged(98)))
    hand.give(he.Received(hand.leader, MapChanged(99)))
    (reading,), hand.held, hand.waiting = hand.waiting, None, []
    hand.asked.clear()
    hand.answer(reading)
    assert [type(call) for call in hand.asked].count(ReadMap) == 1


@pytest.mark.parametrize(
    "first", [MapChanged(98), HandOver((), ("text",), acked=False), HandOver((TWO,), (), acked=True)]
)
def test_a_map_that_comes_after_a_newer_one_changes_nothing(hand: ClusterHand, first: MapChanged | HandOver) -> None:
    """The map is read for word of a change, and before anything is handed over that is not there."""
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = ReadMap
    hand.give(he.Received(hand.leader, first))
    (reading,), hand.waiting = hand.waiting, []
    old = run(hand.store.cluster_map())
    hand.decide(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, HandOver((), ("text",), acked=False)))
    hand.held = None
    for newer in hand.waiting:
        hand.answer(newer)
    assert hand.owned() == {ONE}
    hand.give(he.Answered(reading.token, old))
    assert hand.owned() == {ONE}


def test_a_worker_that_has_left_is_no_peer_any_more(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    assert f"w{hand.other}" in hand.worker.peers
    run(hand.store.leave(hand.other))
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert f"w{hand.other}" not in hand.worker.peers


def test_a_fenced_write_costs_the_one_interval(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    found = run(hand.store.cluster_map())
    run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.other}, {})))
    actor = hand.worker.actors.all[ONE]
    hand.give(he.Told(ONE, actor.sequencer, ev.WriteFenced()))
    assert hand.owned() == {TWO}


def test_who_hears_that_a_watermark_was_refused_looks_at_the_map(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    found = run(hand.store.cluster_map())
    run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.other}, {})))
    hand.give(he.Received(hand.leader, Disowned(((ONE, hand.worker.actors.all[ONE].sequencer),))))
    assert hand.owned() == {TWO}


def test_a_process_that_is_no_member_any_more_ends(hand: ClusterHand) -> None:
    hand.now += LEASE_US
    with pytest.raises(Fenced, match="is not a member of this cluster any more"):
        hand.give(he.Received(hand.leader, MapChanged(99)))


@pytest.mark.parametrize(
    "how", ["placed elsewhere", "fenced", "handed over", "handed over and back", "begun anew", "ended"]
)
def test_what_a_worker_has_counted_stays_when_an_interval_goes(hand: ClusterHand, how: str) -> None:
    # It was counted in cores, and a worker leaves at the end of a run when it has none left: its last line said 0 records.
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    actor = hand.worker.actors.all[ONE]
    hand.deliver(actor.sequencer + 1, f"w{hand.other}")
    hand.give(he.TurnEnded())
    assert progress_of(hand.worker).records == 1
    match how:
        case "placed elsewhere":
            hand.place(ONE, owner=hand.other)
        case "fenced":
            found = run(hand.store.cluster_map())
            run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.other}, {})))
            hand.give(he.Told(ONE, actor.sequencer, ev.WriteFenced()))
        case "begun anew":
            hand.worker.restarts.give_up(actor)
            hand.give(he.Received(hand.leader, MapChanged(99)))
        case "ended":
            hand.give(he.Received(hand.leader, RunEnded(RunEnding())))
            while hand.owned():
                hand.pass_time()
        case _:
            hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
            while hand.owned() != {TWO}:
                hand.pass_time()
    if how == "handed over and back":
        hand.now += limits.HAND_OVER_LIMIT_US
        hand.give(he.Received(hand.leader, MapChanged(99)))
        assert hand.owned() == {ONE, TWO}
        assert progress_of(hand.worker).records == 1
        hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
        hand.give(he.TurnEnded())
        assert progress_of(hand.worker).records == 2
        return
    assert progress_of(hand.worker).records == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_no_core_is_made_twice_under_one_sequencer(hand: ClusterHand, restarted: bool) -> None:
    hand.place(ONE, owner=hand.mine)
    if restarted:  # it took too long to let go, and the map has the sequencer of the second core by then
        hand.held = WriteMarks
        hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
        hand.now += limits.HAND_OVER_LIMIT_US
        (last_words,), hand.held, hand.waiting = hand.waiting, None, []
        hand.answer(last_words)
        assert hand.of(HandedOver) == [HandedOver((), ())]
    first = hand.worker.actors.all[ONE].sequencer
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.of(HandedOver) == [HandedOver((ONE,), ())]
    assert hand.owned() == set()
    for _ in range(3):
        hand.give(he.Received(hand.leader, MapChanged(99)))
        assert hand.owned() == set(), "the leader has its time to place it elsewhere"
    hand.now += limits.HAND_OVER_LIMIT_US
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.worker.actors.all[ONE].sequencer > first
    assert any(isinstance(request, Reacquire) for request in hand.asked)


def test_what_the_map_has_given_and_the_worker_does_not_know_yet_is_handed_over_for_good(hand: ClusterHand) -> None:
    # It said at once that it had let go, then read the map and took it: it ran while the leader merged the interval.
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    found = run(hand.store.cluster_map())
    version = run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.mine}, {})))
    assert version is not None
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), True)))
    while not (said := hand.of(HandedOver)):
        hand.pass_time()
    assert said == [HandedOver((ONE,), ())]
    hand.give(he.Received(hand.leader, MapChanged(version)))
    assert hand.owned() == set()


def test_a_source_that_was_handed_over_is_not_taken_again_before_the_leader_has_had_its_time(hand: ClusterHand) -> None:
    def served() -> bool:
        return "text" in ownership_of(hand)._sources

    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    found = run(hand.store.cluster_map())
    version = run(hand.store.place(Placement(hand.epoch, found.version, {}, {"text": hand.mine})))
    assert version is not None
    hand.give(he.Received(hand.leader, MapChanged(version)))
    assert served()
    hand.give(he.Received(hand.leader, MapChanged(97)))
    assert ownership_of(hand).served()
    hand.give(he.Received(hand.leader, HandOver((), ("text",), False)))
    while not (said := hand.of(HandedOver)):
        hand.pass_time()
    assert said == [HandedOver((), ("text",))]
    assert not ownership_of(hand).served(), "the map gives to it what it has let go of"
    hand.give(he.Received(hand.leader, MapChanged(98)))
    assert not served(), "it would be read by two"
    hand.now += limits.HAND_OVER_LIMIT_US
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert served()


def ownership_of(hand: ClusterHand) -> MappedOwnership:
    assert isinstance(hand.worker.ownership, MappedOwnership)
    return hand.worker.ownership


def test_an_interval_that_is_being_handed_over_takes_nothing_in_and_its_worker_is_not_done(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert ownership_of(hand).served()
    hand.keep_running = True
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.worker.closed == {ONE}
    assert not ownership_of(hand).served()


def test_the_last_words_are_about_all_that_is_let_go(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = WriteMarks
    hand.give(he.Received(hand.leader, HandOver((ONE, TWO), (), acked=False)))
    (last_words,), hand.held, hand.waiting = hand.waiting, None, []
    assert isinstance(last_words.wish, WriteMarks)
    orderly = {(write.interval, write.mark, write.ends) for write in last_words.wish.writes}
    assert orderly == {(ONE, b"", 0), (TWO, b"", 0)}, "nothing is under suspicion, and no end was unclean"
    hand.answer(last_words)
    assert hand.of(HandedOver) == [HandedOver((ONE, TWO), ())]


def test_who_is_asked_twice_to_let_go_of_an_interval_does_so_once(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    sequencer, hand.keep_running = hand.worker.actors.all[ONE].sequencer, True
    hand.deliver(sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.of(HandedOver) == []
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.of(HandedOver) == [HandedOver((), ())], "nothing is gone yet"
    hand.give(he.Returned(ONE, sequencer, InvocationOutcome(processed=1), 0))
    while hand.owned():
        hand.pass_time()
    assert hand.of(HandedOver) == [HandedOver((ONE,), ())]


@pytest.mark.parametrize("asked", [Recover, ReadSenders])
@pytest.mark.parametrize("too_late", [False, True])
def test_nothing_is_gone_that_is_about_to_be_served(hand: ClusterHand, asked: type[StoreCall], too_late: bool) -> None:
    """The leader would place it, and this worker would serve it as well until it is fenced."""
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = asked
    hand.place(ONE, owner=hand.mine)
    for _ in range(2):
        hand.give(he.Received(hand.leader, HandOver((ONE, TWO), (), acked=False)))
    assert (hand.of(HandedOver), hand.owned()) == ([HandedOver((TWO,), ())], set())
    if too_late:
        hand.now += limits.HAND_OVER_LIMIT_US
        hand.pass_time()
        assert hand.of(HandedOver) == [HandedOver((TWO,), ())]
    waiting, hand.held, hand.waiting = hand.waiting, None, []
    for ask in waiting:
        hand.answer(ask)
    if too_late:
        assert hand.owned() == {ONE}, "who asks again finds it here"
        hand.give(he.Received(hand.leader, HandOver((ONE, TWO), (), acked=False)))
    while hand.owned():
        hand.pass_time()
    assert hand.of(HandedOver)[-1] == HandedOver((ONE, TWO), ())


def test_an_interval_is_handed_over_as_soon_as_its_hooks_return_although_much_waits(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    sequencer, hand.keep_running = hand.worker.actors.all[ONE].sequencer, True
    hand.deliver(sequencer + 1, f"w{hand.other}")
    hand.deliver(sequencer + 1, f"w{hand.other}", 1)
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=True)))
    hand.keep_running = False
    hand.give(he.Returned(ONE, sequencer, InvocationOutcome(processed=1), 0))
    while hand.owned():
        hand.pass_time()
    assert (hand.ran, hand.of(HandedOver)) == ([], [HandedOver((ONE,), ())])


def test_an_interval_that_has_work_again_while_its_last_words_are_written_is_not_let_go() -> None:
    """Its successors would find a log, or nothing of what it was about to write.  In a loop it goes on."""
    pipeline, again = Pipeline("hand"), Stream("again", TextCoder())
    pipeline.inject(IterableSource("text", []), into=words)
    pipeline.add(Keep, [subscribe(words, str), subscribe(again, str)], [again], name="keep", split_keys=("m",))
    hand = ClusterHand(pipeline)
    hand.give(he.Started())
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    sequencer, hand.held = hand.worker.actors.all[ONE].sequencer, WriteMarks
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=True)))
    (words_asked,), hand.held, hand.waiting = hand.waiting, CommitGroup, []
    hand.give(he.Told(ONE, sequencer, ev.RedriveAsked(["k"])))  # an earlier owner has emptied its line
    hand.give(he.TurnEnded())
    hand.answer(words_asked)
    hand.pass_time()
    assert (hand.of(HandedOver), hand.owned()) == ([], {ONE})
    (commit,), hand.held, hand.waiting = hand.waiting, None, []
    hand.answer(commit)
    while hand.owned():
        hand.pass_time()
    assert hand.of(HandedOver) == [HandedOver((ONE,), ())]


def asked_for_while_it_starts(hand: ClusterHand, acked: bool) -> int:
    """An interval whose core starts only after the leader has asked for it.  Returns the core's sequencer."""
    hand.held = Recover
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked)))
    (recovery,), hand.held, hand.waiting = hand.waiting, None, []
    hand.answer(recovery)
    return hand.worker.actors.all[ONE].sequencer


@pytest.mark.parametrize("acked", [False, True])
def test_a_core_that_starts_while_its_interval_is_asked_for_takes_nothing_in_and_is_let_go(
    hand: ClusterHand, acked: bool
) -> None:
    """It was open, had something to do at each look as long as records came, and the operator's order was refused."""
    sequencer = asked_for_while_it_starts(hand, acked)
    while hand.owned():
        hand.deliver(sequencer + 1, f"w{hand.other}")
        hand.pass_time()
    assert (hand.ran, hand.of(HandedOver)) == ([], [HandedOver((ONE,), ())])


def test_a_core_that_starts_while_its_interval_is_asked_for_and_stays_begins_anew_because_its_hello_has_been_said(
    hand: ClusterHand,
) -> None:
    sequencer = asked_for_while_it_starts(hand, acked=False)
    hand.held = WriteMarks
    hand.pass_time()
    hand.deliver(sequencer + 1, f"w{hand.other}")
    (last_words,), hand.held, hand.waiting = hand.waiting, None, []
    hand.now += limits.HAND_OVER_LIMIT_US
    hand.answer(last_words)
    assert (hand.ran, hand.of(HandedOver)) == ([], [HandedOver((), ())])
    assert hand.worker.actors.all[ONE].sequencer > sequencer
    hand.deliver(sequencer + 1, f"w{hand.other}")  # after its next hello
    assert hand.ran == [ONE]


def test_an_interval_that_goes_and_comes_back_during_a_hand_over_takes_nothing_in_before_it_has_begun_anew(
    hand: ClusterHand,
) -> None:
    """What it would take in after it was closed once more would come behind what it had turned away."""
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    sequencer, hand.keep_running = hand.worker.actors.all[ONE].sequencer, True
    hand.deliver(sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, HandOver((ONE, TWO), (), acked=False)))
    hand.place(TWO, owner=hand.other)
    hand.pass_time()
    hand.place(TWO, owner=hand.mine)
    back = hand.worker.actors.all[TWO].sequencer
    assert TWO in hand.worker.closed
    hand.give(he.Returned(ONE, sequencer, InvocationOutcome(processed=1), 0))
    while ONE in hand.owned():
        hand.pass_time()
    assert hand.worker.actors.all[TWO].sequencer > back
    assert TWO not in hand.worker.closed


def test_who_is_no_known_worker_is_not_heard(hand: ClusterHand) -> None:
    """When it is met it hears a hello, and sends again what it has sent."""
    hand.place(ONE, owner=hand.mine)
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, "w99")
    assert hand.ran == []
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    assert hand.ran == [ONE]


def test_what_a_core_has_left_is_forgotten_when_its_interval_is_another_workers(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert ownership_of(hand)._kept.keys() == {ONE}
    hand.place(ONE, owner=hand.other)
    assert ownership_of(hand)._kept == {}, "its next core here begins with what that worker has stored"


def test_another_leader_is_told_at_once_that_all_is_done(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    for leader in (hand.leader, "c9", "c9"):
        hand.worker.obey(leader)
        hand.worker._out.clear()
        ownership_of(hand).rested()
        told = [effect.peer for effect in hand.worker._out if isinstance(effect, he.Tell)]
        hand.told += [(peer, MapChanged(0)) for peer in told]
    assert [peer for peer, message in hand.told if message == MapChanged(0)] == [hand.leader, "c9"]


def test_a_core_that_is_void_already_is_not_begun_anew_because_a_hand_over_took_too_long(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.worker.actors.all[ONE].core.halted = True
    ownership_of(hand)._keep([ONE, TWO], [])
    assert hand.worker.restarts.under_way == {TWO}


def test_a_source_that_is_taken_is_said_to_be_open_and_one_that_is_dropped_is_not_waited_for(hand: ClusterHand) -> None:
    found = run(hand.store.cluster_map())
    version = run(hand.store.place(Placement(hand.epoch, found.version, {}, {"text": hand.mine})))
    assert version is not None
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, MapChanged(version)))
    assert Open("source:text", ()) in hand.of(Open)
    assert not hand.worker.partitions.complete
    version = run(hand.store.place(Placement(hand.epoch, version, {}, {"text": hand.other})))
    assert version is not None
    hand.give(he.Received(hand.leader, MapChanged(version)))
    assert hand.worker.partitions.complete, "whoever has it by now waits for it"


def place_source(hand: ClusterHand, owner: int) -> None:
    found = run(hand.store.cluster_map())
    version = run(hand.store.place(Placement(hand.epoch, found.version, {}, {"text": owner})))
    assert version is not None
    hand.give(he.Received(hand.leader, MapChanged(version)))


def found_partition(hand: ClusterHand) -> None:
    """A search has found the one partition that there is."""
    (search,) = [ask for ask in hand.pauses if isinstance(ask.wish, he.Discover)]
    hand.pauses.remove(search)
    hand.give(he.Answered(search.token, he.Discovery((("rows", b""),), True, MAX_TIME, hand.now)))


def test_a_source_that_another_worker_has_got_meanwhile_is_taken_again_when_it_comes_back(hand: ClusterHand) -> None:
    run(hand.store.open_source("text", {"rows": b""}))
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = TakePartitions
    place_source(hand, hand.mine)
    found_partition(hand)
    found = run(hand.store.cluster_map())
    run(hand.store.place(Placement(hand.epoch, found.version, {}, {"text": hand.other})))  # nobody has said so yet
    (late,), hand.held, hand.waiting = hand.waiting, None, []
    hand.answer(late)
    assert not hand.worker.actors.partitions()
    hand.asked.clear()
    place_source(hand, hand.mine)
    found_partition(hand)
    assert [ask for ask in hand.asked if isinstance(ask, TakePartitions)]


def test_the_leader_is_told_how_long_hooks_have_taken_and_of_a_key_in_the_middle(
    hand: ClusterHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOAD_SAMPLE_KEYS", 4)  # one is enough
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.TurnEnded())
    sequencer = hand.worker.actors.all[ONE].sequencer
    hand.keep_running = True
    hand.deliver(sequencer + 1, f"w{hand.other}")
    hand.give(he.Returned(ONE, sequencer, InvocationOutcome(processed=1), limits.LOAD_EVERY_US // 2))
    hand.now += limits.LOAD_EVERY_US - limits.HAND_OVER_LOOK_US
    hand.pass_time()
    (report, *_) = hand.of(LoadReport)
    told = [(load.interval, load.permille, load.median) for load in report.loads if load.interval == ONE]
    assert told == [(ONE, 500, "k")], "it would be split at the key in the middle"


def begun(hand: ClusterHand) -> None:
    """The partition goes on where it was."""
    (resume,) = [ask for ask in hand.pauses if isinstance(ask.wish, he.Resume)]
    hand.pauses.remove(resume)
    hand.give(he.Answered(resume.token, MIN_TIME))


def test_a_source_is_taken_again_when_somebody_has_given_up_a_partition_that_is_read(hand: ClusterHand) -> None:
    """The map says nothing of it.  The watermark of the source was refused for ever, and nobody said why."""
    run(hand.store.open_source("text", {"rows": b""}))
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    place_source(hand, hand.mine)
    found_partition(hand)
    begun(hand)
    ((actor, _),) = hand.worker.actors.partitions()
    claimed = Disowned(((actor.interval, actor.sequencer),))
    hand.give(he.Received(hand.leader, claimed))
    assert hand.worker.actors.partitions() == [(actor, actor.core)], "the store says that it is its own"
    hand.asked.clear()
    run(hand.store.take_partitions("text", hand.mine, [actor.interval]))  # as `millwheel source drop` does
    hand.give(he.Received(hand.leader, claimed))
    assert not hand.worker.actors.partitions()
    hand.now += limits.CLUSTER_LOOK_US
    hand.give(he.Received(hand.leader, MapChanged(run(hand.store.cluster_map()).version + 1)))
    found_partition(hand)
    assert [ask for ask in hand.asked if isinstance(ask, TakePartitions)]
    begun(hand)
    ((again, _),) = hand.worker.actors.partitions()
    assert again.sequencer > actor.sequencer


def test_a_partition_that_waits_for_credit_is_not_read_when_its_source_is_another_workers(hand: ClusterHand) -> None:
    run(hand.store.open_source("text", {"rows": b""}))
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    place_source(hand, hand.mine)
    found_partition(hand)
    begun(hand)
    hand.place(ONE, TWO, owner=hand.other)
    place_source(hand, hand.other)
    read = list[he.HostEffect]()
    for placed in run(hand.store.cluster_map()).intervals:
        hello = Hello(placed.id, placed.sequencer, 0, placed.low, placed.high)
        for said in (hello, Credit(placed.id, placed.sequencer, 0, 1_000)):
            read += hand.worker.handle(he.Received(f"w{hand.other}", said), hand.now)
    assert not [effect for effect in read if isinstance(effect, he.ReadRows)]


def test_a_partition_that_waits_for_credit_is_not_read_while_its_source_is_handed_over(
    hand: ClusterHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else is still under way.  With each row that is read, the hand-over would take longer."""
    monkeypatch.setattr(MappedOwnership, "_busy", lambda *_: True)
    run(hand.store.open_source("text", {"rows": b""}))
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    place_source(hand, hand.mine)
    found_partition(hand)
    begun(hand)
    hand.place(ONE, TWO, owner=hand.other)
    hand.give(he.Received(hand.leader, HandOver((), ("text",), False)))
    read = list[he.HostEffect]()
    for placed in run(hand.store.cluster_map()).intervals:
        hello = Hello(placed.id, placed.sequencer, 0, placed.low, placed.high)
        for said in (hello, Credit(placed.id, placed.sequencer, 0, 1_000)):
            read += hand.worker.handle(he.Received(f"w{hand.other}", said), hand.now)
    assert not [effect for effect in read if isinstance(effect, he.ReadRows)]


sums = Stream("sums", TextCoder())


def relayed(listed: bool) -> Pipeline:
    """words -> first -> sums -> last, or `first` does not list `sums` any more."""
    pipeline = Pipeline("hand")
    pipeline.inject(IterableSource("text", []), into=words)
    pipeline.inject(IterableSource("more", []), into=sums)
    pipeline.add(Keep, [subscribe(words, lambda word: word)], [sums] if listed else [], name="first")
    pipeline.add(Keep, [subscribe(sums, lambda word: word)], name="last")
    return pipeline


def left_over(hand: ClusterHand, interval: IntervalId, elsewhere: bool = False) -> None:
    """The earlier version of a computation has sent to both ends of the keys, and nobody has acked it."""
    numbers = run(hand.store.open_pipeline(relayed(True).graph().shape())).subscriptions
    subscription = numbers["last<sums"]
    hand.place(interval, owner=hand.other)
    (placed,) = [placed for placed in run(hand.store.cluster_map()).intervals if placed.id == interval]
    producer = ProducerId(placed.sequencer)
    made = Produced(subscription, producer, SequenceNumber(0), ["a", "z"], [b"v", b"v"], [7, 7])
    other = [Produced(numbers["first<words"], producer, SequenceNumber(0), ["a"], [b"v"], [7])] if elsewhere else []
    image = Checkpoint(
        format=CHECKPOINT_FORMAT, shape="", epoch=0, ids=[], produced=[made, *other], acked=[], state=StateWrites(),
        timers=TimerWrites(), holds=HoldWrites(), sinks=[], quarantined=[],
    )  # fmt: skip
    assert run(hand.store.commit([LogWrite(interval, placed.sequencer, Seq(1), 0, encode_checkpoint(image))]))


def deliveries(hand: ClusterHand) -> dict[IntervalId, list[str]]:
    """What was sent to the other worker, after its intervals of `last` have said hello."""
    hand.told.clear()
    for placed in run(hand.store.cluster_map()).intervals:
        if placed.computation == "last":
            hello = Hello(placed.id, placed.sequencer, 0, placed.low, placed.high)
            hand.give(he.Received(f"w{hand.other}", hello))
    found: dict[IntervalId, list[str]] = {}
    for delivery in hand.of(Delivery):
        found.setdefault(delivery.bundle.target, []).extend(delivery.bundle.keys)
    return found


def test_what_an_earlier_version_has_left_on_a_stream_is_grouped_anew_too_when_its_receiver_is_split() -> None:
    hand = ClusterHand(relayed(False))
    first, last = sorted(i.id for i in run(hand.store.cluster_map()).intervals)
    left_over(hand, first, elsewhere=True)
    run(hand.store.open_pipeline(relayed(False).graph().shape()))
    hand.give(he.Started())
    hand.place(first, owner=hand.mine)
    hand.place(last, owner=hand.other)
    assert deliveries(hand) == {last: ["a", "z"]}
    hand.place(last, owner=None)
    version = run(hand.store.cluster_map()).version
    changed = run(hand.store.reshape(Reshaping(hand.epoch, version, (last,), ("m",))))
    assert changed is not None
    hand.give(he.Received(hand.leader, MapChanged(changed[0])))
    low, high = (i.id for i in run(hand.store.cluster_map()).intervals if i.computation == "last")
    hand.place(low, high, owner=hand.other)
    assert deliveries(hand) == {low: ["a"], high: ["z"]}


@pytest.mark.parametrize("acked", [False, True])
def test_an_interval_that_is_going_to_be_split_is_kept_until_all_that_it_has_sent_is_acked(acked: bool) -> None:
    """Else only one of its successors sends it again, and what the other one sends overtakes it."""
    hand = ClusterHand(relayed(False))
    first, last = sorted(i.id for i in run(hand.store.cluster_map()).intervals)
    left_over(hand, first)
    run(hand.store.open_pipeline(relayed(False).graph().shape()))
    hand.give(he.Started())
    hand.place(first, owner=hand.mine)
    hand.place(last, owner=hand.other)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, HandOver((first,), (), acked)))
    for _ in range(20):
        hand.pass_time()
    assert hand.of(HandedOver) == ([] if acked else [HandedOver((first,), ())])
    if acked:
        (placed,) = [placed for placed in run(hand.store.cluster_map()).intervals if placed.id == last]
        hand.told.clear()
        hand.give(he.Received(f"w{hand.other}", Hello(last, placed.sequencer, 0)))
        (sent,) = hand.of(Delivery)
        hand.give(he.Received(f"w{hand.other}", Receipt(last, first, sent.bundle.number)))
        for _ in range(20):
            hand.pass_time()
        assert hand.of(HandedOver) == [HandedOver((first,), ())]


def test_messages_may_go_to_all_who_live_also_to_controllers_that_stand_by(hand: ClusterHand) -> None:
    """Whoever leads next finds its channel open."""
    standby = run(hand.store.join("standby", "controller", "here:4", LEASE_US, b"4")).incarnation
    hand.give(he.Received(hand.leader, MapChanged(98)))
    there = {hand.leader: "here:3", f"c{standby}": "here:4"}
    assert hand.reached == {f"w{hand.other}": "here:other", **there}
    run(hand.store.leave(hand.other))
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.reached == there


def test_whoever_leads_by_the_map_hears_of_all_that_is_served_here_once_and_the_next_leader_too(
    hand: ClusterHand,
) -> None:
    """Else the watermark would pass an interval of which it does not know."""
    assert hand.worker.controller == hand.leader
    hand.place(ONE, owner=hand.mine)
    claim = ("keep", ONE, hand.worker.actors.all[ONE].sequencer)
    assert [told.intervals for told in hand.of(Claimed) if told.intervals] == [(claim,)]
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.of(Claimed) == [], "it is the same leader"
    standby = run(hand.store.join("standby", "controller", "here:4", LEASE_US, b"4")).incarnation
    run(hand.store.leave(hand.led.incarnation))
    assert run(hand.store.lead(standby, LEASE_US))
    hand.told.clear()
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.worker.controller == f"c{standby}"
    assert [(peer, message) for peer, message in hand.told if isinstance(message, Claimed)] == [
        (f"c{standby}", Claimed((claim,)))
    ]


def test_an_interval_that_was_lost_and_is_placed_here_again_is_taken_at_once(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    before = hand.worker.actors.all[ONE].sequencer
    hand.decide(ONE, owner=hand.other)
    hand.decide(ONE, owner=hand.mine)  # and nobody has said so
    hand.give(he.Told(ONE, before, ev.WriteFenced()))
    assert hand.worker.actors.all[ONE].sequencer > before


def test_an_interval_that_is_lost_while_it_is_asked_for_is_let_go_without_last_words(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = ReadMap
    hand.decide(ONE, owner=hand.other)
    hand.give(he.Told(ONE, hand.worker.actors.all[ONE].sequencer, ev.WriteFenced()))
    hand.asked.clear()
    hand.give(he.Received(hand.leader, HandOver((ONE, TWO), (), acked=False)))
    (last_words,) = [ask for ask in hand.asked if isinstance(ask, WriteMarks)]
    assert [write.interval for write in last_words.writes] == [TWO]
    assert hand.of(HandedOver) == [HandedOver((ONE, TWO), ())]


def test_what_is_here_by_the_map_that_was_read_is_let_go_without_a_look_at_it(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.asked.clear()
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.of(HandedOver) == [HandedOver((ONE,), ())]
    assert not [ask for ask in hand.asked if isinstance(ask, ReadMap)]


def test_a_source_that_is_being_handed_over_is_not_said_to_be_gone(
    hand: ClusterHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be read by two."""
    place_source(hand, hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    with monkeypatch.context() as under_way:
        under_way.setattr(MappedOwnership, "_busy", lambda own, intervals, sources, acked: bool(sources))
        for _ in range(2):
            hand.give(he.Received(hand.leader, HandOver((), ("text",), acked=False)))
        assert hand.of(HandedOver) == [HandedOver((), ())]
    hand.pauses = [ask for ask in hand.pauses if isinstance(ask.wish, he.Pause)]  # the search goes on
    hand.pass_time()
    assert hand.of(HandedOver) == [HandedOver((), ("text",))]


def test_a_worker_ends_at_once_when_the_run_was_stopped_before_its_end(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.keep_running = True
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, RunEnded(RunEnding(stopped="too many rows were rejected"))))
    assert (hand.over, hand.worker.stopped) == (True, "too many rows were rejected")


def test_a_worker_that_leaves_takes_nothing_in_any_more_and_waits_for_what_runs(hand: ClusterHand) -> None:
    """What it would take in could keep it there for ever."""
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.keep_running = True
    sequencer = hand.worker.actors.all[ONE].sequencer
    hand.deliver(sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, RunEnded(RunEnding())))
    assert hand.worker.closed == {ONE, TWO}
    for sequence in (1, 2, 3):
        hand.deliver(sequencer + 1, f"w{hand.other}", sequence)
        hand.pass_time()
    assert (hand.owned(), hand.over) == ({ONE, TWO}, False)
    hand.keep_running = False
    hand.give(he.Returned(ONE, sequencer, InvocationOutcome(processed=1), 0))
    for _ in range(20):
        hand.pass_time()
    assert (hand.ran, hand.over) == ([], True)
    assert not any(member.alive for member in run(hand.store.cluster_map()).members if member.name == "mine")


def test_a_worker_that_has_let_go_of_all_is_done_as_soon_as_that_is_another_workers(hand: ClusterHand) -> None:
    """Until then the map gives it something that it does not serve.  A run would never end that has moved anything."""
    hand.place(ONE, owner=hand.mine)
    place_source(hand, hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, HandOver((ONE,), ("text",), acked=False)))
    assert hand.of(HandedOver) == [HandedOver((ONE,), ("text",))]
    hand.place(ONE, owner=hand.other)
    assert not ownership_of(hand).served()
    place_source(hand, hand.other)
    assert ownership_of(hand).served()


def test_a_split_disturbs_who_sends_to_it_and_nobody_else() -> None:
    """Whoever sends to it groups anew what is unacked, also if it sends elsewhere too; a source begins anew for that."""
    hand = ClusterHand(relayed(True))
    hand.give(he.Started())
    first, last = sorted(i.id for i in run(hand.store.cluster_map()).intervals)
    hand.place(first, owner=hand.mine)
    version = run(hand.store.cluster_map()).version
    owners = {"text": hand.mine, "more": hand.mine}
    assert run(hand.store.place(Placement(hand.epoch, version, {}, owners)))
    hand.give(he.Received(hand.leader, MapChanged(98)))
    before, sequencer = {**ownership_of(hand)._sources}, hand.worker.actors.all[first].sequencer
    version = run(hand.store.cluster_map()).version
    assert run(hand.store.reshape(Reshaping(hand.epoch, version, (last,), ("m",))))
    hand.give(he.Received(hand.leader, MapChanged(99)))
    after = ownership_of(hand)._sources
    assert after["text"] is before["text"]
    assert after["more"] is not before["more"]
    assert hand.worker.actors.all[first].sequencer > sequencer


def test_a_source_that_this_worker_has_read_to_its_end_is_complete_and_the_search_of_another_one_goes_on(
    hand: ClusterHand,
) -> None:
    """Else the run would never end."""
    run(hand.store.open_source("text", {"rows": b""}))
    place_source(hand, hand.mine)
    assert not hand.worker.partitions.complete
    found_partition(hand)
    begun(hand)
    assert hand.worker.partitions.complete


@pytest.mark.parametrize("took_us", [0, 60_000_000])
def test_a_search_is_repeated_after_a_while_and_after_a_longer_one_if_it_takes_long(
    hand: ClusterHand, took_us: int
) -> None:
    """A search that took a minute was repeated after a second, for ever: nothing had been measured but the pause's begin."""
    place_source(hand, hand.mine)
    for took in (0, took_us, took_us):
        (search,) = [ask for ask in hand.pauses if isinstance(ask.wish, he.Discover)]
        hand.pauses = []
        hand.now += took
        hand.give(he.Answered(search.token, he.Discovery((), False, 5, hand.now)))
        (pause,) = [ask for ask in hand.pauses if isinstance(ask.wish, he.Pause)]
        assert isinstance(pause.wish, he.Pause)
        assert pause.wish.delay_us == max(limits.DISCOVER_DELAY_US, limits.DISCOVER_REST * took)
        hand.now += pause.wish.delay_us
        hand.give(he.Answered(pause.token, None))
    assert not hand.worker.partitions.complete


def test_a_source_is_let_go_when_what_was_read_of_it_is_acked_and_another_one_does_not_matter() -> None:
    """Its next owner would read again what is under way: with a position that is behind, it comes twice."""
    hand = ClusterHand(relayed(True))
    hand.give(he.Started())
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    run(hand.store.open_source("text", {"rows": b""}))
    place_source(hand, hand.mine)
    found_partition(hand)
    begun(hand)
    ((_, core),) = hand.worker.actors.partitions()
    core.settled = lambda: False  # type: ignore[method-assign]
    assert ownership_of(hand)._busy([], ["text"], False)
    assert not ownership_of(hand)._busy([], ["more"], False)
    for both in (["text", "more"], ["more", "text"]):
        assert ownership_of(hand)._busy([], both, False), both
    del core.settled
    assert not ownership_of(hand)._busy([], ["text"], False)


def test_receipts_that_wait_for_others_are_said_when_their_interval_goes(hand: ClusterHand) -> None:
    """The worker may leave before their time has come, and the sender would send all of it again."""
    hand.place(ONE, owner=hand.mine)
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    for _ in range(3):
        hand.give(he.TurnEnded())
    assert hand.of(Receipt) == []
    hand.place(ONE, owner=hand.other)
    assert [said.interval for said in hand.of(Receipt)] == [ONE]


@pytest.mark.parametrize("anybodys", [False, True])
def test_an_interval_that_is_not_its_own_by_now_does_not_begin_anew_for_a_split(anybodys: bool) -> None:
    """It is let go, and what a restart would store is refused."""
    hand = ClusterHand(relayed(True))
    hand.give(he.Started())
    first, last = sorted(i.id for i in run(hand.store.cluster_map()).intervals)
    hand.place(first, owner=hand.mine)
    before = hand.worker.actors.all[first]
    hand.decide(first, owner=hand.other if anybodys else None)
    version = run(hand.store.cluster_map()).version
    assert run(hand.store.reshape(Reshaping(hand.epoch, version, (last,), ("m",))))
    hand.asked.clear()
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert (before.core.halted, hand.owned(), hand.worker.restarts.under_way) == (True, set(), set())
    assert not [ask for ask in hand.asked if isinstance(ask, Reacquire)]


def test_a_worker_that_leaves_takes_nothing_although_the_leader_asks_for_something(hand: ClusterHand) -> None:
    """The map that it would read for that may give it something, and it would have to begin."""
    hand.place(TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = ReadMap
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    hand.decide(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, RunEnded(RunEnding())))
    reading, hand.held, hand.waiting = hand.waiting, None, []
    for ask in reading:
        hand.answer(ask)
    assert ONE not in hand.owned()


def test_a_report_is_for_a_leader_that_is_there(hand: ClusterHand) -> None:
    """Who leads next hears all of them."""
    hand.place(ONE, owner=hand.mine)
    hand.worker.obey(None)
    hand.worker._out.clear()
    actor = hand.worker.actors.all[ONE]
    for label, value in ((0, 5), (1, MAX_TIME)):  # the first one has to be said before the second one
        hand.worker.report(WatermarkReport(actor.owner, ONE, value, actor.sequencer, label))
    assert not [effect for effect in hand.worker._out if isinstance(effect, he.Tell)]
    hand.now += limits.REPORT_REST_US
    hand.give(he.TurnEnded())
    assert hand.of(WatermarkReport) == []
    hand.worker.obey(hand.leader)
    told = [effect for effect in hand.worker._out if isinstance(effect, he.Tell)]
    assert [tell.message.value for tell in told if isinstance(tell.message, WatermarkReport)] == [MAX_TIME]


def test_what_an_interval_has_kept_in_memory_is_for_the_others_as_soon_as_it_is_gone(
    hand: ClusterHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.TurnEnded())
    shares = list[int]()
    monkeypatch.setattr(hand.worker.actors.all[TWO].core, "allow", shares.append)
    hand.give(he.TurnEnded())
    assert shares == [], "nobody has come or gone"
    hand.place(ONE, owner=hand.other)
    hand.give(he.TurnEnded())
    assert shares == [hand.worker.shares.whole_bytes]


def test_a_worker_that_leaves_does_not_wait_for_acks(hand: ClusterHand) -> None:
    """Whoever would ack may have left: all that counts was acked before the run was said to be over."""
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    core = hand.worker.actors.all[ONE].core

    def settled(acked: bool = True) -> bool:
        return not acked

    core.settled = settled  # type: ignore[method-assign]
    hand.give(he.Received(hand.leader, RunEnded(RunEnding())))
    for _ in range(20):
        hand.pass_time()
    assert hand.over


def test_a_change_of_the_map_that_is_known_by_now_is_not_read_again(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.asked.clear()
    hand.give(he.Received(hand.leader, MapChanged(run(hand.store.cluster_map()).version)))
    assert ReadMap() not in hand.asked
