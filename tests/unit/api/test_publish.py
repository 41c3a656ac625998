"""Published streams: positions, the ring, what is refused when the pipeline is made."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    TextCoder,
    ValueCell,
    subscribe,
)
from millwheel.errors import WiringError
from millwheel.testing import Stepper, simulate

words = Stream("words", TextCoder())
lengths = Stream("lengths", JsonCoder(int))


class Measure(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)
        context.produce(lengths, len(record.value))


def make(keep: int = 3) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.add(Measure, [subscribe(words, str)], [lengths])
    pipeline.publish(words, keep)
    pipeline.publish(lengths)
    return pipeline


def kept(rows: list[dict[str, Any]], stream: str) -> list[tuple[int, int, int, bytes]]:
    """(position, slot, timestamp, value) of a stream's rows, by position."""
    own = [row for row in rows if row["stream"] == stream]
    return sorted((row["position"], row["slot"], row["timestamp"], base64.b64decode(row["value"])) for row in own)


def test_the_last_records_are_in_their_slots_as_the_coder_wrote_them() -> None:
    stepper = Stepper(make())
    for i, text in enumerate(["to", "be", "or", "not", "é\0"]):
        stepper.send(words, text, 10 * i)
        stepper.restart()
    rows = stepper.rows("millwheel_published")
    assert kept(rows, "words") == [(3, 0, 20, b"or"), (4, 1, 30, b"not"), (5, 2, 40, "é\0".encode())]
    assert [(at, value) for *_, at, value in kept(rows, "lengths")] == [
        (0, b"2"),
        (10, b"2"),
        (20, b"2"),
        (30, b"3"),
        (40, b"2"),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_under_faults_each_record_has_one_position(seed: int) -> None:
    rows = [(f"w{i}", i) for i in range(40)]
    rough = simulate(make(keep=1_000), {"words": rows}, seed)
    found = kept(rough.rows("millwheel_published"), "words")
    assert [position for position, *_ in found] == list(range(1, 41))
    assert [value for *_, value in found] == [text.encode() for text, _ in rows]


def test_what_cannot_be_published_is_refused() -> None:
    pipeline = make()
    with pytest.raises(WiringError, match="'words' is published twice"):
        pipeline.publish(words)
    for keep in (0, -1, True, 1.5, "many"):
        with pytest.raises(WiringError, match="keep is a number of records"):
            pipeline.publish(Stream("more", TextCoder()), keep)  # type: ignore[arg-type]
    other = Pipeline("other")
    other.add(Measure, [subscribe(words, str)], [lengths])
    with pytest.raises(WiringError, match="coder"):
        other.publish(Stream("words", JsonCoder(str)))
    with pytest.raises(WiringError, match="'millwheel_' are reserved"):
        pipeline.sink(Table("Millwheel_published", {"k": "text"}, ("k",)))
    with pytest.raises(WiringError, match="name"):
        pipeline.add(Measure, [subscribe(words, str)], name="published:more")
