"""A small pipeline for tests of the store: its shape, a checkpoint, and a sink row."""

from __future__ import annotations

import msgspec

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    SinkRow,
    StateWrites,
    TimerWrites,
)
from millwheel.ports import PipelineShape, SinkTable

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
