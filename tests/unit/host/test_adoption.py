"""How a core begins: with what is stored, what an earlier one has left, and what is known of its loop."""

from __future__ import annotations

from millwheel import Pipeline, Stream, TextCoder, subscribe
from millwheel.host import alphabet as he
from millwheel.host.messages import IntervalSettled, Led, RoundAnswered, RoundAsked, Unsettled, WatermarksRaised
from millwheel.host.requests import BehindOthers
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME
from millwheel.testing.world.calls import run
from millwheel_injectors import IterableSource
from tests.unit.host.cluster_hand import ONE, ClusterHand, Keep
from tests.unit.host.test_worker import Hand, started, words


def test_an_interval_of_a_loop_begins_with_the_floor_that_is_persisted_and_answers_what_was_asked_before() -> None:
    hand = Hand(outputs=[words])
    hand.store.watermark["loop:Keep"] = 50
    hand.give(he.Received("controller", RoundAsked(7, "loop:Keep", 90)))
    hand.give(he.Received("controller", WatermarksRaised({"loop:Keep": 50}, {})))
    assert hand.of(RoundAnswered) == []
    hand.give(he.Started())
    ((actor, core),) = hand.worker.actors.intervals()
    assert (core.config.loop, core.config.promised) == ("loop:Keep", 50)
    answer = RoundAnswered(actor.interval, actor.sequencer, 7, MAX_TIME)
    assert hand.of(RoundAnswered) == [answer]
    hand.give(he.Received("controller", RoundAsked(7, "loop:Keep", 90)))
    assert hand.of(RoundAnswered) == [answer], "a copy is answered by a copy"
    hand.give(he.Received("controller", RoundAsked(6, "loop:Keep", 80)))
    assert hand.of(RoundAnswered) == []


def test_only_who_is_in_the_loop_that_is_asked_answers() -> None:
    """Two loops, and a computation that is in none."""
    pipeline = Pipeline("loops")
    streams = {name: Stream(name, TextCoder()) for name in ("words", "round", "others")}
    pipeline.inject(IterableSource("text", []), into=streams["words"])
    for name in ("round", "others"):
        reads = [subscribe(streams["words"], str), subscribe(streams[name], str)]
        pipeline.add(Keep, reads, [streams[name]], name=name, split_keys=("m",))
    pipeline.add(Keep, [subscribe(streams["words"], str)], name="none")
    hand = ClusterHand(pipeline)
    hand.give(he.Started())
    placed = run(hand.store.cluster_map()).intervals
    for one in placed:
        hand.place(one.id, owner=hand.mine)
    for number, name in enumerate(("round", "others", "none", "round"), 1):
        hand.told.clear()
        hand.give(he.Received(hand.leader, RoundAsked(number, f"loop:{name}", 90)))
        answered = sorted(said.interval for said in hand.of(RoundAnswered))
        assert answered == sorted(one.id for one in placed if one.computation == name != "none")


def test_productions_of_an_earlier_version_are_told_while_they_are_left_and_once_when_they_are_not() -> None:
    hand, _ = started()
    ((actor, _),) = hand.worker.actors.intervals()
    hand.told.clear()
    adoption = hand.worker.adoption
    adoption.settle(actor, set())
    assert hand.worker.handle(he.TurnEnded(), 1_000) == [], "nothing was left"
    hand.worker._out.clear()
    adoption.settle(actor, {"b", "a"})
    adoption.say_settled(actor)
    adoption.settle(actor, set())
    adoption.settle(actor, set())
    said = [effect.message for effect in hand.worker._out if isinstance(effect, he.Tell)]
    assert said == [Unsettled("Keep", actor.interval, ("a", "b")), IntervalSettled(actor.interval)]


def test_an_interval_of_a_cluster_says_that_nothing_is_left_because_an_earlier_owner_may_have_said_otherwise() -> None:
    hand = ClusterHand()
    hand.give(he.Started())
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.told.clear()
    hand.place(ONE, owner=hand.mine)
    assert [said.interval for said in hand.of(IntervalSettled)] == [ONE]


def test_a_little_waits_for_the_commit_of_a_little_in_a_cluster_and_not_in_a_process_that_is_alone() -> None:
    hand, _ = started()
    ((_, alone),) = hand.worker.actors.intervals()
    cluster = ClusterHand()
    cluster.give(he.Started())
    cluster.give(he.Received(cluster.leader, Led(cluster.epoch)))
    cluster.place(ONE, owner=cluster.mine)
    ((_, member),) = cluster.worker.actors.intervals()
    assert (alone.config.gathers, member.config.gathers) == (False, True)


def test_what_a_core_has_left_goes_to_the_next_one_of_its_interval_and_to_no_other() -> None:
    hand, _ = started()
    ((actor, core),) = hand.worker.actors.intervals()
    left = core.give_up()
    other = IntervalId(actor.interval + 1)
    again = Hand()
    again.worker = WorkerHost(graph=again.worker.graph, inherited={actor.interval: left, other: left})
    again.give(he.Started())
    assert again.worker.adoption.left == {other: left}, "this worker may get that interval later"
    ((_, following),) = again.worker.actors.intervals()
    assert following.counters is left.counters


def test_no_hook_runs_before_it_is_told_what_hooks_before_it_may_have_seen() -> None:
    hand = Hand()
    hand.store.watermark = {"source:text": 70, "Keep": 20, "source:other": 90}
    hand.give(he.Started())
    assert not hand.worker.actors.all, "its controller has told nothing"
    hand.give(he.Received("controller", WatermarksRaised({"source:text": 60}, {"Keep": 60})))
    answer_pauses(hand)
    assert not hand.worker.actors.all, "that is of the time before"
    hand.give(he.Received("controller", WatermarksRaised({"source:text": 70}, {"Keep": 70})))
    answer_pauses(hand)
    ((_, core),) = hand.worker.actors.intervals()
    assert core._watermark.input == 70


def answer_pauses(hand: Hand) -> None:
    waiting, hand.waiting = hand.waiting, []
    for ask in waiting:
        hand.give(he.Answered(ask.token, None))


def test_an_interval_that_moves_waits_for_what_its_last_owner_may_have_heard() -> None:
    hand = ClusterHand()
    hand.give(he.Started())
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    (source,) = hand.worker.graph.sources
    hand.store.watermark[f"source:{source}"] = 70
    hand.place(ONE, owner=hand.mine)
    hand.pass_time()
    assert not hand.worker.actors.all
    ((owner, _),) = hand.worker.graph.computations.items()
    hand.give(he.Received(hand.leader, WatermarksRaised({f"source:{source}": 70}, {owner: 70})))
    hand.pass_time()
    ((_, core),) = hand.worker.actors.intervals()
    assert core._watermark.input == 70


def test_an_interval_that_is_placed_elsewhere_while_it_waits_is_not_waited_for() -> None:
    hand = ClusterHand()
    hand.give(he.Started())
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    (source,) = hand.worker.graph.sources
    hand.store.watermark[f"source:{source}"] = 70
    hand.place(ONE, owner=hand.mine)
    hand.place(ONE, owner=hand.other)
    for _ in range(3):
        hand.pass_time()
    assert not hand.worker.actors.all
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, WatermarksRaised({f"source:{source}": 70}, {})))
    hand.pass_time()
    assert [*hand.worker.actors.all] == [ONE]


def test_a_core_begins_with_few_records_where_hooks_may_be_slow_and_with_as_many_as_it_takes_elsewhere() -> None:
    limited = Hand()
    limited.worker = WorkerHost(graph=limited.worker.graph, first_records=3)
    limited.give(he.Started())
    ((_, few),) = limited.worker.actors.intervals()
    ((_, many),) = started()[0].worker.actors.intervals()
    assert few._schedule.limit == 3
    assert many._schedule.limit > 3


def test_nobody_waits_for_those_behind_others_in_a_loop_or_under_snapshots_where_these_would_wait_in_turn() -> None:
    """Under snapshots acks are durable with an epoch, and an epoch needs all intervals: the wait would never end."""
    hand, loop = Hand(), Hand(outputs=[words])
    for one in (hand, loop):
        one.give(he.Started())
    places = {ONE: "Keep"}
    assert [*loop.worker.adoption.behind(places)] == []
    assert next(hand.worker.adoption.behind(places)) == BehindOthers((ONE,))
    hand.worker.epochs.enabled = True
    assert [*hand.worker.adoption.behind(places)] == []
