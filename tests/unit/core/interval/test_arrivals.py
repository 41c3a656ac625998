"""The door of an interval: a record is taken once, and bundles of one sender keep their order."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.bundles import Bundle, Delivered, Ids
from millwheel.core.ids.ended import ENDED
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals, Item
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME

SUB, SLACK = SubscriptionId(7), 1_000
INTERVAL = IntervalId(1)


def arrivals(exactly_once: bool = True) -> Arrivals:
    return Arrivals(ev.Counters(), exactly_once, {SUB: SLACK}, [])


def bundle(
    number: int,
    *sequences: int,
    sender: int = 50,
    producer: int = 55,
    frontier: int = 0,
    outside: list[bytes] | None = None,
) -> Bundle:
    count = len(sequences)
    return Bundle(
        SUB, IntervalId(sender), number, INTERVAL, ProducerId(producer), SequenceNumber(frontier),
        sequence_numbers(sequences), ["k"] * count, [b"v"] * count, [*sequences],
        outside=outside or [],
    )  # fmt: skip


def taken(items: list[Item]) -> list[tuple[int, Sequence[int] | None]]:
    return [(item.number, item.part.sequences if item.part else None) for item in items]


def test_a_record_is_taken_once() -> None:
    door, effects = arrivals(), list[ev.Effect]()
    assert taken(door.arrive(bundle(1, 1, 2), 0, effects)) == [(1, [1, 2])]
    assert taken(door.arrive(bundle(1, 1, 2), 0, effects)) == [(1, None)], "it is acked again, and runs nothing"
    assert taken(door.arrive(bundle(2, 2, 3), 0, effects)) == [(2, [3])]
    assert door._counters.duplicates == 3
    assert effects == []


def test_without_deduplication_everything_runs() -> None:
    door = arrivals(exactly_once=False)
    for _ in range(2):
        assert taken(door.arrive(bundle(1, 1), 0, [])) == [(1, [1])]
    assert door.checkpointed([], 0) == ([], [])


def asking() -> tuple[Arrivals, list[ev.Effect]]:
    """After a restart: what an earlier owner took above its frontier, the store alone knows."""
    door = arrivals()
    door.begin([Delivered(SUB, ProducerId(55), SequenceNumber(1), SequenceNumber(9))], None, 0)
    effects: list[ev.Effect] = []
    assert door.arrive(bundle(1, 4, 5), 0, effects) == []
    (asked,) = effects
    assert isinstance(asked, ev.LookupIds)
    assert (asked.sender, asked.sequences) == (50, [4, 5])
    return door, effects


def test_what_may_have_been_taken_before_waits_for_the_store() -> None:
    door, _ = asking()
    assert not door.quiet()
    assert taken(door.found(ev.IdsFound(IntervalId(50), {4}, set()), 0, [])) == [(1, [5])]
    assert door.quiet()


def test_bundles_of_a_sender_keep_their_order_while_one_waits() -> None:
    door, _ = asking()
    assert door.arrive(bundle(2, 20), 0, []) == [], "surely new, and still behind"
    assert door.arrive(bundle(3, 21, producer=ProducerId(56)), 0, []) == [], "of another producer, and still behind"
    assert taken(door.arrive(bundle(1, 22, sender=IntervalId(51), producer=ProducerId(57)), 0, [])) == [(1, [22])], (
        "another sender does not wait"
    )
    assert (door.oldest(), door.size_bytes() > 0) == (4, True)
    assert taken(door.found(ev.IdsFound(IntervalId(50), set(), set()), 0, [])) == [(1, [4, 5]), (2, [20]), (3, [21])]
    assert (door.oldest(), door.size_bytes()) == (MAX_TIME, 0)


def test_a_queue_stops_at_the_next_bundle_that_needs_an_answer() -> None:
    door, effects = asking()
    door.arrive(bundle(2, 6), 0, effects)
    door.arrive(bundle(3, 20), 0, effects)
    effects.clear()
    assert taken(door.found(ev.IdsFound(IntervalId(50), {4, 5}, set()), 0, effects)) == [(1, None)]
    assert [asked.sequences for asked in effects if isinstance(asked, ev.LookupIds)] == [[6]]
    assert taken(door.found(ev.IdsFound(IntervalId(50), set(), set()), 0, effects)) == [(2, [6]), (3, [20])]


def test_a_record_with_a_known_outside_id_is_dropped_and_still_checkpointed() -> None:
    door = arrivals()
    (first,) = door.arrive(bundle(1, 1, outside=[b"x"]), 0, [])
    (again,) = door.arrive(bundle(2, 2, 3, outside=[b"x", b"y"]), 0, [])
    assert again.part is not None
    assert (again.part.sequences, again.dropped) == ([3], [2])
    assert door._counters.repeated == 1
    ids, outside = door.checkpointed([first, again], 0)
    assert [sorted(it.sequences) for it in ids] == [[1], [2, 3]]
    assert [it.ids for it in outside] == [[b"x"], [b"y"]]


def test_a_frontier_is_recorded_once_and_the_newest_only() -> None:
    door = arrivals()
    (item,) = door.arrive(bundle(1, 5, frontier=SequenceNumber(3)), 0, [])
    door.arrive(bundle(0, frontier=SequenceNumber(5)), 0, [])
    assert door.recordable(0)
    assert door.checkpointed([item], 0)[0] == [Ids(SUB, ProducerId(55), SequenceNumber(5), sequence_numbers([5]))]
    assert not door.recordable(0)
    assert door.checkpointed([], 0, idle=True)[0] == []
    door.arrive(bundle(0, frontier=SequenceNumber(4)), 0, [])
    assert not door.recordable(0), "older than what is known"


def test_the_end_of_a_partition_is_acked_at_once() -> None:
    effects: list[ev.Effect] = []
    assert arrivals().arrive(bundle(6, frontier=ENDED), 0, effects) == []
    assert effects == [ev.Ack(IntervalId(50), 6)]


def test_channels_that_nobody_sends_on_any_more_are_closed() -> None:
    door = arrivals()
    door.begin(
        [
            Delivered(SUB, ProducerId(55), SequenceNumber(1), SequenceNumber(9)),
            Delivered(SUB, ProducerId(56), SequenceNumber(1), SequenceNumber(9)),
        ],
        {(SUB, ProducerId(56))},
        100,
    )
    assert door.checkpointed([], 0, idle=True)[0] == [Ids(SUB, ProducerId(55), ENDED, [])]
