"""What a store must know of a pipeline, as plain values.  Never here: user code, decisions."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

PUBLISH_PREFIX: Final = "published:"
"""The computation behind `Pipeline.publish` is named this and the stream; no name of a user's holds a colon."""

PUBLISHED_TABLE: Final = "millwheel_published"
"""The sink table of published streams; the prefix is reserved."""

BEFORE_KEY: Final = "#"
"""What a `Gathering` has put before a key ends with it."""

GATHERED_TIME: Final = struct.Struct(">q")
"""What a `Gathering` has merged lies in its state behind the time of the oldest (us), as its stream has it."""


class SinkTable(msgspec.Struct, frozen=True):
    """A user's sink table: column name to SQL type, one of `rows.SQL_TYPES`, and the columns of its primary key."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]


HANDED_BACK: Final = "#"
"""Behind the entry of a window: what one shard of a `Combiner` had of it when that went.  Also the tag of the timer at which
the operator takes it over.  It comes before the others of the library."""

BEFORE_SHARD: Final = "#"
"""What a `Combiner` has put behind a key begins with it, and ends with the number of the shard."""

ACCUMULATORS: Final = "accumulators"
"""The cell in which each of the two steps of a `Combiner`, and the one step without it, has what was aggregated by window."""


class CombinedBy(msgspec.Struct, frozen=True):
    """A computation's combiner: the computation `parts` that merges what comes for it, and what stands before or behind a
    key in the first of its shards.  A `Gathering` has a prefix, and a `Combiner` of the library a suffix."""

    parts: str
    prefix: str
    suffix: str = ""
    senders: tuple[str, ...] = ()
    """What sends to `parts`: computations, and sources as "source:name".  Only of a `Combiner`."""

    @property
    def merged(self) -> str:
        """The stream from the one to the other."""
        return f"{self.parts}.out" if self.suffix else self.parts


class PipelineShape(msgspec.Struct, frozen=True):
    """What the store must know, and check against what it already holds, before the first write.

    `computations` maps a name to its interval split keys (ascending; n keys make n + 1 intervals); `subscriptions`
    maps a subscription name ("computation<stream" with "#n" for repeats) to its stream; `coders` maps "stream:x" and
    "cell:computation.x" to coder fingerprints; `sources` are the injectors' names, `streams` maps each of these to the
    stream that it feeds (one that an earlier version stored has none).
    """

    name: str
    computations: Mapping[str, tuple[str, ...]]
    subscriptions: Mapping[str, str]
    coders: Mapping[str, str]
    sinks: tuple[SinkTable, ...]
    sources: tuple[str, ...]
    streams: Mapping[str, str] = {}
    schemas: Mapping[str, Any] = {}
    """What `coders` have in common with a description (`millwheel.schemas`) has one here, by the same names."""
    reads: Mapping[str, tuple[str, ...]] = {}
    """Fingerprints of earlier coders whose bytes the coders read, by the same names."""
    formerly: Mapping[str, str] = {}
    """Earlier names, as they are declared: of "computation:x" that of a computation, of "cell:computation.x" of a cell."""
    dropped: tuple[str, ...] = ()
    """Cells that are declared to go, as "computation.x"."""
    places: Mapping[str, str] = {}
    """Under which name a store keeps the values of "computation.x", where it is not x.  Only stores know."""
    retired: tuple[str, ...] = ()
    """Places, as "computation.place", of cells that have gone: they are not used again."""
    combiners: Mapping[str, CombinedBy] = {}
    """By computation: its combiner, which reads what it would read itself."""
    key_versions: Mapping[str, str] = {}
    """Of subscriptions whose key extractor has one: which it is."""
    kinds: Mapping[str, str] = {}
    """Of sources that say so: what they read (`Source.kind`)."""
    gone: tuple[str, ...] = ()
    """Computations that are declared to go, and inputs of others, as "computation<stream"."""
    snapshots: bool = False
    """Whether it becomes durable by epochs.  Whoever does not would not be in the cut, so all of a cluster do, or nobody."""
