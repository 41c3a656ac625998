"""Small pipelines for tests of the store: their shapes, a checkpoint, and a sink row."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel import Computation, Context, Gathering, JsonCoder, Pipeline, Record, Stream, subscribe
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    SinkRow,
    StateWrites,
    TimerWrites,
)
from millwheel.ports import PipelineShape, SinkTable
from millwheel_injectors import IterableSource

SINK = SinkTable(
    "out",
    {"k": "text", "n": "bigint", "x": "double precision", "at": "timestamptz", "ok": "boolean", "j": "jsonb"},
    ("k",),
)


def shape(name: str, **changes: object) -> PipelineShape:
    base = PipelineShape(name, {"a": ("m",)}, {"a<s": "s"}, {"stream:s": "bytes"}, (SINK,), ("text",), {"text": "s"})
    return msgspec.structs.replace(base, **changes)


def image(keys: list[str], value: bytes | None = b"v") -> Checkpoint:
    state = StateWrites.of((key, "", "", value) for key in keys)
    return Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])


def row(**values: object) -> SinkRow:
    return SinkRow("out", msgspec.json.encode(values))


sales = Stream("sales", JsonCoder(str))


class Total(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def shops(of: str = "p", combiner: Gathering[str] | None = None, **settings: Any) -> PipelineShape:
    """Three intervals of computations send to the two of `Total`, and a source does."""
    pipeline = Pipeline(of)
    pipeline.inject(IterableSource("src", []), into=sales)
    settings = {"split_keys": ["m"], "inputs": [subscribe(sales, str)], **settings}
    pipeline.add(Total, **{"name": "Total", "combiner": combiner, **settings})
    pipeline.add(Total, [subscribe(sales, str)], name="Also", split_keys=["k"])
    return pipeline.graph().shape()


def gathering(shards: int = 3) -> Gathering[str]:
    return Gathering(min, shards=shards)
