"""Routes: what an earlier version of the pipeline has left, and for whom."""

from __future__ import annotations

import msgspec

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.bundles import Bundle, HoldWrites, RecoveredInterval, TimerWrites
from millwheel.cluster import Senders
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MIN_TIME
from millwheel.ports import SourcePosition
from millwheel.testing.world.calls import run
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

words = Stream("words", TextCoder())
longer = Stream("longer", TextCoder())


class Pass(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def pipeline(outputs: list[Stream[str]]) -> Pipeline:
    made = Pipeline("versions")
    made.inject(IterableSource("text", []), into=words)
    made.add(Pass, [subscribe(words, lambda word: word)], outputs, name="First")
    made.add(Pass, [subscribe(words, lambda word: word), subscribe(longer, lambda word: word)], name="Second")
    made.inject(IterableSource("more", []), into=longer)
    return made


def test_receivers_of_what_is_left_on_a_stream_that_is_no_output_any_more_wait_for_it() -> None:
    graph = pipeline([]).graph()
    opened = run(MemoryStore().open_pipeline(graph.shape()))
    routes = Routes(graph)
    row = next(row for row in routes.open(opened) if row.computation == "First")
    config = routes.config(row, Sequencer(7))
    (number,) = (opened.subscriptions[s.name] for s in graph.subscriptions("longer"))
    left = Bundle(
        number, row.id, 1, IntervalId(0), ProducerId(3), SequenceNumber(0), sequence_numbers([0]), ["k"], [b"v"], [1]
    )
    assert routes.unsettled(config, _recovered([left])) == {"Second"}
    assert routes.unsettled(config, _recovered([])) == set()
    nobodys = msgspec.structs.replace(left, subscription=SubscriptionId(999))
    assert routes.unsettled(config, _recovered([nobodys])) == set(), "there is no such subscription any more"


def test_a_partition_of_which_nobody_knows_the_stream_may_send_on_any() -> None:
    graph = pipeline([]).graph()
    routes = Routes(graph)
    opened = run(MemoryStore().open_pipeline(graph.shape()))
    routes.open(opened)
    known, unknown = (SourcePosition("p", IntervalId(9), ProducerId(n), 0, False, b"") for n in (41, 42))
    routes.expect_partitions([("more", known), ("an earlier version's", unknown)])
    of_more = {opened.subscriptions[s.name] for s in graph.subscriptions("longer")}
    assert {number for number, producer in routes.live if producer == 41} == of_more
    assert {number for number, producer in routes.live if producer == 42} == {*opened.subscriptions.values()}


def test_a_partition_of_a_source_that_is_left_out_may_send_on_the_stream_that_it_was_opened_for() -> None:
    store = MemoryStore()
    run(store.open_pipeline(pipeline([longer]).graph().shape()))
    run(store.open_source("more", {"p": b""}))
    less = Pipeline("versions")
    less.inject(IterableSource("text", []), into=words)
    less.add(Pass, [subscribe(words, str)], [longer], name="First")
    less.add(Pass, [subscribe(words, str), subscribe(longer, str)], name="Second")
    graph = less.graph()
    routes = Routes(graph)
    opened = run(store.open_pipeline(graph.shape()))
    routes.open(opened)
    assert routes.left_out == {"more": "longer"}
    routes.expect_partitions(run(store.unfinished_partitions()))
    of_longer = {opened.subscriptions[s.name] for s in graph.subscriptions("longer")}
    assert {number for number, _ in routes.live} == of_longer != {*opened.subscriptions.values()}


def test_an_interval_is_told_how_many_send_to_its_receivers_sources_apart() -> None:
    made = Pipeline("crowd")
    made.inject(IterableSource("text", []), into=words)
    made.add(Pass, [subscribe(words, lambda word: word)], [longer], name="First", split_keys=["g", "p"])
    made.add(Pass, [subscribe(words, lambda word: word)], [longer], name="Other")
    made.add(Pass, [subscribe(longer, lambda word: word)], name="Second", split_keys=["m"])
    graph = made.graph()
    opened = run(MemoryStore().open_pipeline(graph.shape()))
    routes = Routes(graph)
    (row, *_) = routes.open(opened)
    crowds = routes.config(row, Sequencer(7)).crowds
    assert crowds == {number: 4 if name.startswith("Second") else 0 for name, number in opened.subscriptions.items()}


def _recovered(productions: list[Bundle]) -> RecoveredInterval:
    return RecoveredInterval([], productions, TimerWrites([], [], [], []), HoldWrites([], []), [], MIN_TIME)


def test_back_edges_are_known_by_the_intervals_at_their_ends_whoever_owns_these() -> None:
    made, back = Pipeline("loop"), Stream("back", TextCoder())
    made.inject(IterableSource("text", []), into=words)
    made.add(
        Pass, [subscribe(words, lambda word: word), subscribe(back, lambda word: word)], [longer], name="Head",
        split_keys=("m",),
    )  # fmt: skip
    made.add(Pass, [subscribe(longer, lambda word: word)], [back], name="Tail")
    graph = made.graph()
    routes = Routes(graph)
    rows = routes.open(run(MemoryStore().open_pipeline(graph.shape())))
    head, other = (row.id for row in rows if row.computation == "Head")
    (tail,) = (row.id for row in rows if row.computation == "Tail")
    partition = IntervalId(max(head, other, tail) + 1)
    back_edges = [(a, b) for a in (head, other, tail, partition) for b in (head, other, tail) if routes.is_back(a, b)]
    own_logs = [(head, head), (head, other), (other, head), (other, other), (tail, tail)]
    assert sorted(back_edges) == sorted([*own_logs, (tail, head), (tail, other)])


def test_what_has_ended_is_expected_no_more_and_its_copies_are_none_that_the_next_core_takes() -> None:
    routes = Routes(pipeline([]).graph())
    ended, other = (SubscriptionId(1), ProducerId(3)), (SubscriptionId(1), ProducerId(4))
    routes.live |= {ended, other}
    routes.ended(ended)
    assert routes.live == {other}
    routes.ended(ended)
    assert routes.live == {other}


def test_an_owner_may_send_on_outputs_of_its_computation_and_an_earlier_one_on_what_it_has_left() -> None:
    """On a channel that is not known to live, records are taken for copies: they would be lost."""
    graph = pipeline([longer]).graph()
    routes = Routes(graph)
    opened = run(MemoryStore().open_pipeline(graph.shape()))
    rows = {row.computation: row.id for row in routes.open(opened)}
    (of_longer,) = (opened.subscriptions[s.name] for s in graph.subscriptions("longer"))
    owners = ((rows["First"], Sequencer(7)), (rows["Second"], Sequencer(8)), (IntervalId(99), Sequencer(9)))
    left = (of_longer, ProducerId(3))
    partition = SourcePosition("p", IntervalId(9), ProducerId(41), 0, False, b"")
    living = routes.living(Senders(owners, (left,)), [("more", partition)])
    assert living == {(of_longer, ProducerId(7)), left, (of_longer, ProducerId(41))}
    assert routes.live == set(), "whoever asks decides what to do with it"
