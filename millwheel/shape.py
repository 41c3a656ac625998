"""What a store must know of a pipeline, as plain values.  Never here: user code, decisions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class SinkTable(msgspec.Struct, frozen=True):
    """A user's sink table: column name to SQL type ("text", "bigint", "double precision", "boolean", "timestamptz",
    "jsonb"), and the columns of its primary key."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]


class PipelineShape(msgspec.Struct, frozen=True):
    """What the store must know, and check against what it already holds, before the first write.

    `computations` maps a name to its interval split keys (ascending; n keys make n + 1 intervals); `subscriptions`
    maps a subscription name ("computation<stream" with "#n" for repeats) to its stream; `coders` maps "stream:x" and
    "cell:computation.x" to coder fingerprints; `sources` are the injectors' names.
    """

    name: str
    computations: Mapping[str, tuple[str, ...]]
    subscriptions: Mapping[str, str]
    coders: Mapping[str, str]
    sinks: tuple[SinkTable, ...]
    sources: tuple[str, ...]
