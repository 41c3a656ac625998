"""What a hook must not be able to write: it fails there, under its own key, and the store stays readable.

A checkpoint that cannot be encoded ends every run; one that cannot be read again takes the whole store with it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    ValueCell,
    subscribe,
)
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from tests.unit.runtime.drive import run_to_end

pytestmark = pytest.mark.postgres

ROWS = [(f"{'bad' if second % 2 else 'good'} {second}", second * SECOND) for second in range(40)]


class TextAsText:
    """A coder of a user's own that forgets to encode."""

    fingerprint = "careless/1"

    def encode(self, value: str, /) -> bytes:
        return value  # type: ignore[return-value]

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class Measured(msgspec.Struct, frozen=True):
    size: float


texts = Stream("texts", TextCoder())
numbers = Stream("numbers", JsonCoder(float))
careless: Stream = Stream("careless", TextAsText())
blobs = Stream("blobs", TextCoder())


class Hostile(Computation[object]):
    """Counts; under the bad key it also does what it should not."""

    act: Callable[[Any, Any, Record[Any]], None]
    count = ValueCell(JsonCoder(int), default=0)
    whole = ValueCell(JsonCoder(int), default=0)
    measured = ValueCell(JsonCoder(Measured), default=Measured(0))
    text = ValueCell(TextAsText(), default="")

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        self.count.set(self.count.get() + 1)
        if record.key == "bad":
            type(self).act(self, context, record)

    def ProcessTimer(self, context: Context, timer: Any) -> None:
        pass


def len_of(text: str) -> str:
    return f"{len(text)}"


def raise_surrogate(self: Any, context: Any, record: Record[Any]) -> None:
    raise ValueError("no \ud800 text")


def flood(self: Any, context: Any, record: Record[Any]) -> None:
    """More than a row of Postgres may have: its server would end, and the commit be tried for ever."""
    for _ in range(400):
        context.produce(blobs, "x" * 4_000_000)


Act = Callable[[Any, Any, Record[Any]], None]

ACTS: dict[str, tuple[Act, str]] = {
    "float timer": (lambda _, c, r: c.set_timer("t", r.timestamp + 0.5), "timer 't' at 1000000.5 (float)"),
    "float wall timer": (lambda _, c, r: c.set_timer("t", c.wall_time + 3.6e9, "wall"), "(float): a time is a whole"),
    "float hold": (lambda _, c, r: c.hold(r.timestamp + 0.5), "hold at 1000000.5 (float)"),
    "float production": (lambda _, c, r: c.produce(numbers, 1.0, r.timestamp + 0.5), "production on 'numbers' at"),
    "number that is none": (lambda _, c, r: c.produce(numbers, math.nan), "cannot encode nan"),
    "text for a number": (lambda _, c, r: c.produce(numbers, "x"), "cannot encode 'x'"),
    "text in a cell of int": (lambda s, c, r: s.whole.set("x"), "cannot encode 'x'"),
    "field of another type": (lambda s, c, r: s.measured.set(Measured(math.inf)), "cannot encode Measured"),
    "careless coder of a cell": (lambda s, c, r: s.text.set("x"), "as str; `encode` must give bytes"),
    "careless coder of a stream": (lambda s, c, r: c.produce(careless, "x"), "as str; `encode` must give bytes"),
    "surrogate in a message": (raise_surrogate, "no \\ud800 text"),
    "more than a checkpoint may hold": (flood, "more than 67,108,864 bytes in one call"),
}


def hostile(name: str, act: Act) -> Pipeline:
    computation: Any = type("Hostile", (Hostile,), {"act": staticmethod(act)})
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("rows", ROWS), into=texts)
    pipeline.add(
        computation, [subscribe(texts, key=lambda text: text.split()[0])], [numbers, careless, blobs], name="hostile"
    )
    pipeline.add(
        Hostile, [subscribe(numbers, key=str), subscribe(careless, key=str), subscribe(blobs, key=len_of)], name="after"
    )
    return pipeline


@pytest.mark.parametrize("name", ACTS)
def test_it_fails_alone_and_nothing_else_does(postgres: EmbeddedPostgres, pipeline: str, name: str) -> None:
    act, words = ACTS[name]
    assert run_to_end(hostile(pipeline, act), PostgresStore(postgres.url, pipeline)).quarantined == 1
    with Reader(postgres.url, pipeline) as reader:
        assert reader.quarantined() == [("hostile", "bad", 20)]
        assert words in reader.quarantine_rows("hostile", "bad")[0].error
        reader.request_redrive("hostile", "bad")
    # With the hook mended all of it is there: what was written can be read.
    run_to_end(hostile(pipeline, lambda _, context, record: None), PostgresStore(postgres.url, pipeline))
    with Reader(postgres.url, pipeline) as reader:
        assert reader.quarantined() == []
        assert {row.key: row.value for row in reader.scan_state("hostile")} == {"bad": b"20", "good": b"20"}


def test_whole_numbers_of_other_libraries_are_times(postgres: EmbeddedPostgres, pipeline: str) -> None:
    def act(self: Any, context: Any, record: Record[Any]) -> None:
        at: Any = numpy.int64(record.timestamp)
        context.produce(numbers, 1.0, at)
        context.set_timer("t", at + 1)
        context.set_timer("w", numpy.int64(context.wall_time), "wall")
        context.hold(at)
        context.release_hold()

    assert run_to_end(hostile(pipeline, act), PostgresStore(postgres.url, pipeline)).quarantined == 0
    with Reader(postgres.url, pipeline) as reader:
        assert [row.value for row in reader.scan_state("after")] == [b"20"]


@pytest.mark.parametrize("many", [list, lambda rows: lambda: iter(rows)], ids=["sequence", "function"])
def test_a_row_without_an_event_time_is_rejected(
    postgres: EmbeddedPostgres, pipeline: str, many: Callable[[Any], Any]
) -> None:
    rows = [("good", numpy.int64(1)), ("float", 1.5), ("none", None), ("good", 2)]

    async def run() -> Any:
        wired = Pipeline(pipeline)
        wired.inject(IterableSource("rows", many(rows)), into=texts)
        still: Any = type("Still", (Hostile,), {"act": staticmethod(lambda *_: None)})
        wired.add(still, [subscribe(texts, key=str)])
        store = PostgresStore(postgres.url, pipeline)
        try:
            return await EmbeddedRun(wired.graph(), store, wired.tables).run()
        finally:
            await store.close()

    progress = asyncio.run(run())
    assert (progress.injected, progress.records, progress.rejected, progress.finished) == (4, 2, 2, True)
    with Reader(postgres.url, pipeline) as reader:
        assert {row.key: row.value for row in reader.scan_state("Still")} == {"good": b"2"}
