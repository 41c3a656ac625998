"""The door of an interval: a record is taken once, and bundles of one sender keep their order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import Bundle, Delivered, Ids, OutsideBucket
from millwheel.core.durability.epoch_image import EpochImage
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


def test_where_ids_are_not_stored_those_of_earlier_owners_records_are_until_their_frontier_has_passed_them() -> None:
    """These come under the same id after a crash; and the store keeps no id that nobody needs."""
    door = Arrivals(ev.Counters(), True, {}, [], durable_ids=False)
    (own,) = door.arrive(bundle(1, 0), 0, [])
    (left,) = door.arrive(msgspec.structs.replace(bundle(2, 3, producer=40), inherited=True), 0, [])
    ids, _ = door.checkpointed([own, left], 0)
    assert ids == [Ids(SUB, ProducerId(40), SequenceNumber(0), sequence_numbers([3]))]
    for producer in (55, 40):
        door.arrive(bundle(0, producer=producer, frontier=ENDED), 0, [])
    assert door.recordable(0)
    assert door.checkpointed([], 0, idle=True)[0] == [Ids(SUB, ProducerId(40), ENDED, [])]


class Sent:
    """One sender, its bundles, and what of its ids an earlier owner took: the store knows that, and the door does not."""

    def __init__(self, dice: random.Random, sender: int) -> None:
        self.sender, self.next = sender, 1
        self.bundles: list[Bundle] = []
        self.stored = {sequence for sequence in range(1, 10) if dice.random() < 0.5}

    def send(self, dice: random.Random) -> Bundle:
        """Something new, or a copy."""
        if self.bundles and dice.random() < 0.4:
            return dice.choice(self.bundles)
        first, self.next = self.next, self.next + dice.randrange(1, 4)
        made = bundle(len(self.bundles) + 1, *range(first, self.next), sender=self.sender, producer=self.sender + 5)
        self.bundles.append(msgspec.structs.replace(made, epoch=dice.randrange(3)))
        return self.bundles[-1]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_copied_asked_for_and_sealed_each_record_runs_once_and_in_order(seed: int) -> None:
    dice, now = random.Random(seed), 0
    senders = {sender: Sent(dice, sender) for sender in (50, 60)}
    door, effects = arrivals(), list[ev.Effect]()
    zero, top = SequenceNumber(0), SequenceNumber(9)
    door.begin([Delivered(SUB, ProducerId(sender + 5), zero, top) for sender in senders], None, 0)
    arrived: dict[int, list[Bundle]] = {sender: [] for sender in senders}
    ran: dict[int, list[int]] = {sender: [] for sender in senders}
    unfolded: list[Ids] = []

    def take(items: list[Item]) -> None:
        for item in items:
            expected = arrived[item.sender].pop(0)
            assert (item.number, item.epoch) == (expected.number, expected.epoch if item.part else 0)
            ran[item.sender] += item.part.sequences if item.part else []
        unfolded.extend(door.checkpointed(items, now)[0])

    def answer() -> None:
        asked = effects.pop(0)
        assert isinstance(asked, ev.LookupIds)
        take(
            door.found(
                ev.IdsFound(asked.sender, set[int](senders[asked.sender].stored.intersection(asked.sequences)), set()),
                now,
                effects,
            )
        )

    for _ in range(150):
        match dice.randrange(5):
            case 0 | 1 | 2:
                made = senders[dice.choice([*senders])].send(dice)
                arrived[made.sender].append(made)
                take(door.arrive(made, now, effects))
            case 3 if effects:
                answer()
            case _:
                door.folded([msgspec.structs.replace(EpochImage().image(0), ids=unfolded)])
                for ids in unfolded:
                    senders[ids.producer - 5].stored.update(ids.sequences)
                unfolded.clear()
                now += limits.ID_BUCKET_US
                door.ids.seal(now)
    while effects:
        answer()
    earlier = random.Random(seed)
    for sender, sent in senders.items():
        before = Sent(earlier, sender).stored
        assert ran[sender] == [sequence for sequence in range(1, sent.next) if sequence not in before]
    assert door.quiet()


def test_what_comes_on_a_channel_counts_while_something_is_expected_on_it() -> None:
    door, channel = arrivals(), (SUB, ProducerId(55))
    door.begin([], (), 100)
    assert door.doubts(channel)
    door.hear_of_channels(ev.ChannelsExpected((channel,)))
    assert not door.doubts(channel)
    assert taken(door.arrive(bundle(1, 1), 0, [])) == [(1, [1])]
    door.hear_of_channels(ev.ChannelsEnded(((SUB, ProducerId(56)),)))
    assert not door.doubts((SUB, ProducerId(56)))
    for late in (56, 57):  # of an ended producer, and of one of whom nobody has said anything
        assert not door.arrive(bundle(1, 1, producer=late), 0, [])  # and no ack, which would say that it was consumed


def test_records_that_wait_for_an_answer_while_their_producer_is_retired_are_not_acked() -> None:
    # Their sender was superseded, and its productions were weak.  By the ack it could ack its input, which nobody had run.
    door, effects = arrivals(), list[ev.Effect]()
    door.begin([Delivered(SUB, ProducerId(1), SequenceNumber(0), SequenceNumber(9))], [(SUB, ProducerId(1))], 100)
    assert not door.arrive(bundle(1, 5, producer=1), 0, effects)
    assert not door.arrive(bundle(2, 12, producer=1), 0, effects)
    door.arrive(bundle(0, producer=1, frontier=ENDED), 0, effects)
    assert not door.found(ev.IdsFound(IntervalId(50), set()), 0, effects)
    assert not door.waiting


def test_a_frontier_that_is_told_again_is_not_recorded_again() -> None:
    """Senders tell frontiers again after each cut of a channel, and each record is a row in the log."""
    door = arrivals()
    note = bundle(0, frontier=SequenceNumber(5))
    door.arrive(note, 0, [])
    assert [ids.frontier for ids in door.checkpointed([], 0, idle=True)[0]] == [5]
    door.arrive(note, 0, [])
    assert not door.recordable(0)
    assert door.quiet()


def test_an_outside_id_that_is_folded_while_the_store_is_asked_about_it_is_known_when_the_answer_comes() -> None:
    """The store had looked before the fold: neither its answer nor the tables of then have the id."""
    door = Arrivals(ev.Counters(), True, {SUB: SLACK}, [OutsideBucket(SUB, 2_000, 3)])
    effects: list[ev.Effect] = []
    assert door.arrive(bundle(1, 1, outside=[b"x"]), 0, effects) == []
    assert door.arrive(bundle(1, 1, sender=51, producer=56, outside=[b"x"]), 0, effects) == []
    assert len([effect for effect in effects if isinstance(effect, ev.LookupIds)]) == 2
    first = door.found(ev.IdsFound(IntervalId(50), set(), set()), 0, [])
    assert taken(first) == [(1, [1])]
    ids, outside = door.checkpointed(first, 0)
    door.folded([msgspec.structs.replace(EpochImage().image(0), ids=ids, outside=outside)])
    (second,) = door.found(ev.IdsFound(IntervalId(51), set(), set()), 0, [])
    assert (second.part and second.part.sequences, second.dropped) == ([], [1])


def test_what_fills_the_filters_is_read_one_page_after_the_other() -> None:
    door = Arrivals(ev.Counters(), True, {SUB: SLACK}, [OutsideBucket(SUB, 2_000, 3)])
    effects: list[ev.Effect] = []
    for _ in range(2):
        door.read(effects)
    assert [type(effect) for effect in effects] == [ev.ReadOutsideIds]
    door.was_read(ev.OutsideIdsRead(SUB, 2_000, [b"%d" % n for n in range(limits.OUTSIDE_READ_IDS)]))
    for _ in range(2):
        door.read(effects)
    assert [effect.after for effect in effects if isinstance(effect, ev.ReadOutsideIds)] == [
        b"",
        b"%d" % (limits.OUTSIDE_READ_IDS - 1),
    ]


def test_a_frontier_of_ids_that_are_stored_is_recorded_with_a_record_that_comes_after_them() -> None:
    """Of a partition that went on under snapshots: its ids from before are deleted by the frontier alone."""
    door = Arrivals(ev.Counters(), True, {}, [], durable_ids=False)
    door.begin([Delivered(SUB, ProducerId(55), SequenceNumber(1), SequenceNumber(9))], None, 0)
    (item,) = door.arrive(bundle(1, 20, frontier=12), 0, [])
    assert door.checkpointed([item], 0)[0] == [Ids(SUB, ProducerId(55), SequenceNumber(12), [])]
    assert not door.recordable(0)


def test_where_ids_are_not_stored_a_frontier_is_recorded_with_whatever_runs_next() -> None:
    """An interval that is never idle would keep the ids of earlier owners for ever."""
    door = Arrivals(ev.Counters(), True, {}, [], durable_ids=False)
    door.begin([Delivered(SUB, ProducerId(40), SequenceNumber(1), SequenceNumber(9))], None, 0)
    (own,) = door.arrive(bundle(1, 0), 0, [])
    door.arrive(bundle(0, producer=40, frontier=7), 0, [])
    assert door.checkpointed([own], 0)[0] == [Ids(SUB, ProducerId(40), SequenceNumber(7), [])]
    assert not door.recordable(0)


def test_outside_ids_that_are_folded_leave_memory() -> None:
    door = arrivals()
    items = door.arrive(bundle(1, 1, outside=[b"x"]), 0, [])
    ids, outside = door.checkpointed(items, 0)
    assert door.outside.size() == 1
    door.folded([msgspec.structs.replace(EpochImage().image(0), ids=ids, outside=outside)])
    assert door.outside.size() == 0


def test_a_frontier_is_recorded_with_the_ids_that_are_stored_next() -> None:
    door = arrivals()
    (item,) = door.arrive(bundle(1, 5), 0, [])
    door.arrive(bundle(0, producer=56, frontier=SequenceNumber(4)), 0, [])
    ids, _ = door.checkpointed([item], 0)
    assert [(each.producer, each.frontier) for each in ids] == [(55, 0), (56, 4)]
    assert not door.recordable(0)
