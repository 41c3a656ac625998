"""The law of folding: however a log is cut into folds, the tables hold what its checkpoints say, one after the other (I4).

The second account is the simulator's (`testing.checks.folded_tables`), which knows no merge.  Here the checkpoints are drawn,
so that one may hold what the core brings together only now and then: an ack of its own production, a release and the next
failure of the key, the end of a key and its next write.
"""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    Checkpoint,
    HoldWrites,
    Ids,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    decode_checkpoint,
    encode_checkpoint,
)
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.graph import Graph
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME, TIMER_KINDS
from millwheel.ports import IntervalRow
from millwheel.testing.checks.folded_tables import FoldedTables
from millwheel.testing.checks.truth import Durable
from millwheel_storage.fold import fold
from millwheel_storage.memory import MemoryStore
from tests.effort import examples

KEYS = st.sampled_from(["a", "b"])
ROW = IntervalRow(IntervalId(1), "c", "", None)
SLOTS = st.sampled_from([("value", ""), ("map", "x"), ("map", "y")])
VALUES = st.sampled_from([b"", b"x", b"y", None])


class Log:
    """Draws checkpoints that an interval may have, in order: what is acked was produced, what is redriven waits."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self._produced = 0
        self._unacked: list[int] = []
        self._lines: dict[str, int] = {}
        self._sequence = 0

    def next(self) -> Checkpoint:
        """The next one."""
        draw, count = self._draw, self._draw(st.integers(0, 2))
        produced = (
            [
                Produced(
                    SubscriptionId(1),
                    ProducerId(7),
                    SequenceNumber(self._produced),
                    ["k"] * count,
                    [b"v"] * count,
                    [5] * count,
                )
            ]
            if count
            else []
        )
        self._unacked += range(self._produced, self._produced + count)
        self._produced += count
        acked = draw(st.sets(st.sampled_from(self._unacked))) if self._unacked else set[int]()
        self._unacked = [sequence for sequence in self._unacked if sequence not in acked]
        cells = draw(st.dictionaries(st.tuples(KEYS, SLOTS), VALUES, min_size=1, max_size=4))
        kinds, times = st.sampled_from(TIMER_KINDS), st.none() | st.integers(0, 9)
        timers = draw(st.dictionaries(st.tuples(KEYS, st.sampled_from(["t", "u"]), kinds), times, max_size=3))
        holds = draw(st.dictionaries(KEYS, times, max_size=2))
        redriven, released, quarantined = self._line()
        acks = [Acked(SubscriptionId(1), ProducerId(7), sequence_numbers(sorted(acked)))] if acked else []
        return Checkpoint(
            CHECKPOINT_FORMAT, "", 0, [self._ids()], produced, acks,
            StateWrites.of((key, *slot, value) for (key, slot), value in cells.items()),
            TimerWrites(
                [key for key, _, _ in timers], [tag for _, tag, _ in timers], [kind for _, _, kind in timers],
                [*timers.values()],
            ),
            HoldWrites([*holds], [*holds.values()]), [], quarantined,
            draw(st.lists(KEYS, max_size=1)), redriven, released,
        )  # fmt: skip

    def _ids(self) -> Ids:
        known = self._draw(st.sets(st.integers(self._sequence, self._sequence + 3), max_size=3))
        self._sequence = max([self._sequence, *(sequence + 1 for sequence in known)])
        frontier = self._draw(st.sampled_from([0, 0, self._sequence // 2, self._sequence]))
        return Ids(SubscriptionId(2), ProducerId(9), SequenceNumber(frontier), sorted(sequence_numbers(known)))

    def _line(self) -> tuple[list[tuple[str, int]], list[str], list[QuarantineEntry]]:
        """Elements that leave the line of a key, its end if that is empty, and others that come behind it."""
        redriven, released, entries = [], [], []
        for key in ("a", "b"):
            waits = self._lines.get(key, 0)
            gone = self._draw(st.integers(0, waits))
            redriven += [(key, gone)] if gone else []
            ended = key in self._lines and gone == waits and self._draw(st.booleans())
            released += [key] if ended else []
            more = self._draw(st.integers(0, 2))
            self._lines[key] = waits - gone + more
            if ended and not more:
                del self._lines[key]
            entries += [
                QuarantineEntry(key, SubscriptionId(1), ProducerId(3), SequenceNumber(self._next()), b"", 4)
                for _ in range(more)
            ]
        return redriven, released, entries

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


def fail(message: str, word: str = "") -> Any:
    raise AssertionError(message)


# Without shrinking: a failure names the table and the key, and a planted bug is to be noticed soon.
@settings(max_examples=examples(100, gate=60), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_tables_hold_what_the_checkpoints_say_one_after_the_other(data: st.DataObject) -> None:
    log, store, tables = Log(data), MemoryStore(), FoldedTables(Graph("law", {}, {}, {}, ()), fail)
    tables.keys["c"] = Durable({}, {}, {}, {})
    images = [log.next() for _ in range(6)]
    while images:
        cut = data.draw(st.sampled_from([len(images), *range(1, len(images) + 1)]))
        some, images = images[:cut], images[cut:]
        later = [acked for image in images for acked in image.acked]
        store.folded.apply(ROW, fold(some, later), {})
        tables.folded(store, ROW, some, later)


@settings(max_examples=examples(100, gate=60), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_the_one_image_of_an_epoch_is_folded_as_all_of_its_images(data: st.DataObject) -> None:
    log, one_by_one, at_once = Log(data), MemoryStore(), MemoryStore()
    for _ in range(data.draw(st.integers(1, 4))):
        epoch = EpochImage()
        for image in [log.next() for _ in range(data.draw(st.integers(1, 4)))]:
            one_by_one.folded.apply(ROW, fold([image]), {})
            epoch.add(image)
        at_once.folded.apply(ROW, fold([decode_checkpoint(encode_checkpoint(epoch.image(1)))]), {})
        assert at_once.folded.rows() == one_by_one.folded.rows()


def test_a_retired_producer_leaves_nothing() -> None:
    store, tables = MemoryStore(), FoldedTables(Graph("law", {}, {}, {}, ()), fail)
    tables.keys["c"] = Durable({}, {}, {}, {})
    for frontier in (1, MAX_TIME):
        taken = sequence_numbers([3]) if frontier == 1 else []
        ids = Ids(SubscriptionId(2), ProducerId(9), SequenceNumber(frontier), taken)
        image = Checkpoint(
            CHECKPOINT_FORMAT, "", 0, [ids], [], [], StateWrites([]),
            TimerWrites(), HoldWrites(), [], [],
        )  # fmt: skip
        store.folded.apply(ROW, fold([image]), {})
        tables.folded(store, ROW, [image])
    assert store.folded.delivered[IntervalId(1)] == {} == store.folded.frontiers[IntervalId(1)]
