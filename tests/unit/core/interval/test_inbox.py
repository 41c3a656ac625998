"""The inbox: in the order of arrival, cut where an invocation is full, and the ack goes with the end of a bundle."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from millwheel import limits
from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval.arrivals import Item, oldest_of, size_of
from millwheel.core.interval.inbox import Inbox
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME
from millwheel.work import BundlePart, Work

FREE = Suspects()


def item(number: int, *sequences: int, size: int = 1, key: str = "k") -> Item:
    """A bundle whose records have the event time of their sequence."""
    count = len(sequences)
    part = BundlePart(
        SubscriptionId(1),
        ProducerId(2),
        SequenceNumber(0),
        sequence_numbers(sequences),
        [key] * count,
        [b"v" * size] * count,
        [*sequences],
    )
    return Item(part, IntervalId(9), number, oldest_of(part), size_of(part))


def inbox(*items: Item) -> Inbox:
    made = Inbox()
    for it in items:
        made.put(it)
    return made


def taken(items: list[Item]) -> list[tuple[int, Sequence[int]]]:
    return [(it.number, it.part.sequences if it.part else []) for it in items]


def test_bundles_are_taken_in_order_until_the_invocation_is_full() -> None:
    waiting = inbox(item(1, 1, 2), item(2, 3), item(3, 4, 5))
    assert taken(waiting.take(3, FREE)) == [(1, [1, 2]), (2, [3])]
    assert taken(waiting.take(3, FREE)) == [(3, [4, 5])]
    assert not waiting
    assert waiting.size_bytes == 0


def test_records_that_wait_are_counted() -> None:
    nothing = Item(None, IntervalId(9), 8, MAX_TIME, 0)
    waiting = inbox(item(7, 1, 2, 3, 4, 5), nothing, item(9, 6))
    assert waiting.records == 6
    head = waiting.take(2, FREE)
    assert waiting.records == 4
    waiting.put_back(head)
    assert waiting.records == 6
    while waiting:
        waiting.take(2, FREE)
    assert waiting.records == 0


def test_a_bundle_that_is_cut_is_acked_with_its_end() -> None:
    waiting = inbox(item(7, 1, 2, 3, 4, 5))
    assert taken(waiting.take(2, FREE)) == [(0, [1, 2])]
    assert taken(waiting.take(2, FREE)) == [(0, [3, 4])]
    assert taken(waiting.take(2, FREE)) == [(7, [5])]
    assert waiting.size_bytes == 0


def test_what_is_put_back_comes_first_and_as_it_was() -> None:
    waiting = inbox(item(1, 0, 1, 2), item(2, 3), item(3, 4))
    size = waiting.size_bytes
    taken = waiting.take(4, FREE)
    waiting.put_back(taken)
    assert (waiting.size_bytes, waiting.oldest()) == (size, 0)
    again = waiting.take(2, FREE) + waiting.take(9, FREE)
    assert [(it.part.sequences if it.part else [], it.number) for it in again] == [
        ([0, 1], 0), ([2], 1), ([3], 2), ([4], 3),
    ]  # fmt: skip


def test_an_item_of_duplicates_only_takes_no_room() -> None:
    waiting = inbox(Item(None, IntervalId(9), 1, MAX_TIME, 0), item(2, 1))
    assert taken(waiting.take(1, FREE)) == [(1, []), (2, [1])]


def test_bytes_bound_an_invocation_but_one_record_always_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORK_LIMIT_BYTES", 2 * (limits.RECORD_OVERHEAD_BYTES + 10))
    waiting = inbox(item(1, 1, 2, 3, size=10), item(2, 4, size=10_000), item(3, 5, 6, size=10_000))
    assert taken(waiting.take(9, FREE)) == [(0, [1, 2])]
    assert taken(waiting.take(9, FREE)) == [(1, [3]), (2, [4])]
    assert taken(waiting.take(9, FREE)) == [(0, [5])]
    assert taken(waiting.take(9, FREE)) == [(3, [6])]


def test_what_waits_holds_back_by_its_oldest_record() -> None:
    waiting = inbox(item(1, 30), item(2, 10, 20), item(3, 40))
    assert (waiting.oldest(), waiting.first_oldest().number) == (10, 2)
    first = waiting.first()
    assert first is not None
    assert first.number == 1
    waiting.take(3, FREE)
    assert waiting.oldest() == 40
    assert inbox().oldest() == MAX_TIME


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_taken_or_put_back_what_waits_is_a_list_of_records(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of arrival, whatever their event times are; a bundle is acked with its last record."""
    monkeypatch.setattr(limits, "WHOLE_BUNDLES_RECORDS", 6)
    dice, waiting, number = random.Random(seed), Inbox(), 0
    model: list[tuple[int, int]] = []
    """(event time, number of the bundle that is acked with this record, or 0)."""
    for _ in range(60):
        if dice.random() < 0.5:
            number += 1
            times = [dice.randrange(100) for _ in range(dice.randrange(1, 6))]
            made = item(number, *range(len(times)))
            assert made.part is not None
            part = msgspec.structs.replace(made.part, timestamps=times)
            waiting.put(msgspec.structs.replace(made, part=part, oldest=min(times)))
            model += [(at, 0) for at in times[:-1]] + [(times[-1], number)]
        else:
            most = dice.randrange(1, 9)
            items = waiting.take(most, FREE)
            parts = [(it, it.part) for it in items if it.part is not None]
            found = [(at, 0) for it, part in parts for at in part.timestamps]
            assert [it.oldest for it, _ in parts] == [min(part.timestamps) for _, part in parts]
            assert [at for at, _ in found] == [at for at, _ in model[: len(found)]]
            assert bool(found) == bool(model)
            assert [it.number for it in items if it.number] == [acked for _, acked in model[: len(found)] if acked]
            if dice.random() < 0.3:
                waiting.put_back(items)
            else:
                del model[: len(found)]
        assert waiting.oldest() == min((at for at, _ in model), default=MAX_TIME)
        assert waiting.records == len(model)
        assert waiting.size_bytes == (1 + limits.RECORD_OVERHEAD_BYTES) * len(model)


def suspecting(key: str, *timestamps: int) -> Suspects:
    """After a process that died while it ran these records."""
    count = len(timestamps)
    parts = [
        BundlePart(
            SubscriptionId(1),
            ProducerId(2),
            SequenceNumber(0),
            sequence_numbers(timestamps),
            [key] * count,
            [b"v"] * count,
            [*timestamps],
        )
    ]
    mark = Suspects(1).begin(Work(parts, [], {}, {}, {}, 0, 0))
    assert mark is not None
    return Suspects(2, mark)


def test_a_suspect_runs_by_itself() -> None:
    waiting = inbox(item(1, 1, 2, 3), item(2, 4))
    suspects = suspecting("k", 2)
    assert taken(waiting.take(9, suspects)) == [(0, [1])]
    assert taken(waiting.take(9, suspects)) == [(0, [2])]
    assert taken(waiting.take(9, FREE)) == [(1, [3]), (2, [4])]


def test_a_suspect_does_not_join_what_was_taken_before_it() -> None:
    waiting = inbox(item(1, 1), item(2, 2))
    assert taken(waiting.take(9, suspecting("k", 2))) == [(1, [1])]
    assert taken(waiting.take(9, suspecting("k", 2))) == [(2, [2])]


def test_a_large_invocation_ends_where_a_bundle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once bundles are cut at one place, they stay whole after that."""
    monkeypatch.setattr(limits, "WHOLE_BUNDLES_RECORDS", 2)
    waiting = inbox(item(1, 1, 2, 3), item(2, 4, 5, 6, 7), item(3, 8, 9, 10, 11), item(4, 12, 13, 14, 15, 16))
    assert taken(waiting.take(1, FREE)) == [(0, [1])]
    assert taken(waiting.take(4, FREE)) == [(1, [2, 3])]
    assert taken(waiting.take(4, FREE)) == [(2, [4, 5, 6, 7])]
    assert taken(waiting.take(5, FREE)) == [(3, [8, 9, 10, 11])]
    assert taken(waiting.take(3, FREE)) == [(0, [12, 13, 14])]
    assert waiting.size_bytes == 2 * (1 + limits.RECORD_OVERHEAD_BYTES)
