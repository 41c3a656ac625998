"""Folding checkpoints gives what applying each of them in order gives."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    Checkpoint,
    HoldWrites,
    Ids,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
)
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel_storage.fold import fifo_rows, fold, quarantine_row
from millwheel_storage.productions import bundles, pack_ids, unpack_ids


def checkpoint(
    state: StateWrites | None = None,
    timers: TimerWrites | None = None,
    holds: HoldWrites | None = None,
    ids: list[Ids] | None = None,
    produced: list[Produced] | None = None,
    acked: list[Acked] | None = None,
    quarantined: list[QuarantineEntry] | None = None,
    forgotten: list[str] | None = None,
    redriven: list[tuple[str, int]] | None = None,
    released: list[str] | None = None,
) -> Checkpoint:
    return Checkpoint(
        CHECKPOINT_FORMAT,
        "",
        0,
        ids or [],
        produced or [],
        acked or [],
        state or StateWrites(),
        timers or TimerWrites(),
        holds or HoldWrites(),
        [],
        quarantined or [],
        forgotten or [],
        redriven or [],
        released or [],
    )


def cell(key: str, value: bytes | None) -> StateWrites:
    return StateWrites.of([(key, "count", "", value)])


def entry(key: str, value: bytes) -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(1), ProducerId(2), SequenceNumber(3), value, 4)


def test_the_last_write_of_a_cell_wins() -> None:
    folded = fold([checkpoint(cell("a", b"1")), checkpoint(cell("a", b"2")), checkpoint(cell("b", None))])
    assert [*folded.state_rows()] == [("a", "count", "", b"2"), ("b", "count", "", None)]


def test_forgetting_comes_before_the_own_writes_and_after_the_earlier_ones() -> None:
    timers = TimerWrites(["a"], ["t"], ["watermark"], [5])
    first = checkpoint(cell("a", b"1"), timers, HoldWrites(["a"], [7]))
    folded = fold([first, checkpoint(StateWrites.of([("a", "other", "", b"2")]), forgotten=["a"])])
    assert folded.forgotten == {"a"}
    assert [*folded.state_rows()] == [("a", "other", "", b"2")]
    assert folded.timers == {}
    assert folded.holds == {}


def test_a_production_acked_within_the_run_never_reaches_the_table() -> None:
    produced = Produced(SubscriptionId(1), ProducerId(9), SequenceNumber(10), ["a", "b"], [b"x", b"y"], [1, 2])
    folded = fold(
        [
            checkpoint(produced=[produced]),
            checkpoint(acked=[Acked(SubscriptionId(1), ProducerId(9), sequence_numbers([10, 3]))]),
        ]
    )
    assert folded.productions == {(1, 9): {11: ("b", b"y", 2)}}
    assert folded.acked == {(1, 9): [3]}


def test_a_production_that_a_later_checkpoint_acks_need_not_be_stored() -> None:
    produced = Produced(SubscriptionId(1), ProducerId(9), SequenceNumber(10), ["a", "b"], [b"x", b"y"], [1, 2])
    folded = fold(
        [checkpoint(produced=[produced])],
        [
            Acked(SubscriptionId(1), ProducerId(9), sequence_numbers([10, 12])),
            Acked(SubscriptionId(2), ProducerId(9), sequence_numbers([11])),
        ],
    )
    assert folded.productions == {(1, 9): {11: ("b", b"y", 2)}}
    assert folded.acked == {}, "the later checkpoint's own fold says so"


def test_a_production_and_its_ack_in_one_checkpoint_cancel() -> None:
    image = checkpoint(
        produced=[Produced(SubscriptionId(1), ProducerId(9), SequenceNumber(0), ["a"], [b"x"], [1])],
        acked=[Acked(SubscriptionId(1), ProducerId(9), sequence_numbers([0]))],
    )
    assert fold([image]).productions == {(1, 9): {}}
    assert fold([image]).acked == {}


def test_ids_below_the_frontier_are_not_kept() -> None:
    folded = fold(
        [
            checkpoint(ids=[Ids(SubscriptionId(1), ProducerId(9), SequenceNumber(0), sequence_numbers([4, 2, 3]))]),
            checkpoint(
                ids=[
                    Ids(SubscriptionId(1), ProducerId(9), SequenceNumber(3), sequence_numbers([7])),
                    Ids(SubscriptionId(2), ProducerId(9), SequenceNumber(0), []),
                ]
            ),
        ]
    )
    assert folded.new_ids() == {(1, 9): [3, 4, 7]}, "the frontier is the first that is not below it"
    assert folded.frontiers == {(1, 9): 3, (2, 9): 0}


def test_ids_of_outside_clients_are_gathered_by_bucket_and_the_newest_end_counts() -> None:
    one = SubscriptionId(1)
    writes = [(50, [b"a"]), (40, []), (50, [b"b"]), (60, [b"c"]), (50, [])]
    images = [msgspec.structs.replace(checkpoint(), outside=[OutsideIdWrites(one, *write)]) for write in writes]
    folded = fold(images)
    assert folded.outside == {(one, 50): [b"a", b"b"], (one, 60): [b"c"]}
    assert folded.expired == {one: 50}


def test_a_quarantine_is_a_fifo() -> None:
    a, b, c = (entry("k", value) for value in (b"a", b"b", b"c"))
    log = [checkpoint(quarantined=[b]), checkpoint(redriven=[("k", 2)]), checkpoint(quarantined=[c])]
    assert fifo_rows([a], log, "k") == [c]
    assert fifo_rows([a], [*log, checkpoint(released=["k"])], "k") == []
    assert fifo_rows([a], [checkpoint(released=["k"]), checkpoint(quarantined=[c])], "k") == [c]


@given(st.sets(st.integers(0, 2**62), min_size=1))
def test_packed_ids_come_back(ids: set[int]) -> None:
    assert unpack_ids(pack_ids(sorted(sequence_numbers(ids)))) == sorted(ids)


def test_dense_ids_take_a_byte_each() -> None:
    assert len(pack_ids(sequence_numbers(range(2**40, 2**40 + 1000)))) < 1_020


def test_bundles_are_split_by_channel_and_size() -> None:
    places = [(1, 9, n) for n in range(5)] + [(1, 10, 0), (2, 10, 0)]
    rows = [(SubscriptionId(s), ProducerId(p), SequenceNumber(n), "k", b"v", n) for s, p, n in places]
    made = bundles(rows, 2)
    assert [(b.subscription, b.producer, b.sequences) for b in made] == [
        (1, 9, [0, 1]),
        (1, 9, [2, 3]),
        (1, 9, [4]),
        (1, 10, [0]),
        (2, 10, [0]),
    ]


def test_what_had_left_a_line_before_it_ended_does_not_count_for_the_next_one() -> None:
    entries = [
        QuarantineEntry("k", SubscriptionId(1), ProducerId(2), SequenceNumber(n), b"", 5, error="") for n in range(3)
    ]
    images = [
        checkpoint(quarantined=entries[1:2]),
        checkpoint(redriven=[("k", 2)], released=["k"]),
        checkpoint(quarantined=entries[2:]),
    ]
    assert fifo_rows(entries[:1], images, "k") == entries[2:]


def test_a_frontier_never_goes_back() -> None:
    runs = [Ids(SubscriptionId(1), ProducerId(2), SequenceNumber(at), []) for at in (3, 7, 5)]
    assert fold(checkpoint(ids=[run]) for run in runs).frontiers == {(1, 2): 7}


def test_a_row_of_the_quarantine_shows_what_its_element_has_under_the_same_names() -> None:
    entry = QuarantineEntry("k", SubscriptionId(1), ProducerId(2), SequenceNumber(3), b"v", 4, "t", "wall", "why")
    assert len({*msgspec.structs.astuple(entry)}) == len(entry.__struct_fields__)
    row = msgspec.structs.asdict(quarantine_row("count", 5, entry))
    assert row == {"computation": "count", "order": 5, **msgspec.structs.asdict(entry)}
