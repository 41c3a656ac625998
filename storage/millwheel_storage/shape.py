"""What a store checks before the first write: names, formats, coders, and what the stored shape already
holds.

Lives here: the comparison both stores make in `open_pipeline`.  Never here: I/O. An answer is always
"compatible" or an `IncompatibleStore` that says what differs and what to do; additions are compatible,
removals and other coders are not.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.errors import IncompatibleStore, WiringError
from millwheel.ports import IntervalRow, PipelineShape
from millwheel.shape import PUBLISH_PREFIX
from millwheel_storage.sinks import check_table

STORE_FORMAT: Final = 5
"""Version of the tables; a store of a later version is refused, one of an earlier version is migrated."""

SOURCE_PREFIX: Final = "source:"
"""A source partition is an interval of the computation "source:<name>", so that sequencers fence injectors
too."""

_PIPELINE: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_RESERVED_SCHEMAS: Final = frozenset({"public", "information_schema"})


def schema_name(pipeline: str) -> str:
    """The schema of a pipeline: its name, with "-" as "_".

    >>> schema_name("zeitgeist-2")
    'zeitgeist_2'
    """
    schema = pipeline.replace("-", "_")
    if not _PIPELINE.fullmatch(pipeline) or schema in _RESERVED_SCHEMAS or schema.startswith("pg_"):
        raise WiringError(
            f"pipeline name {pipeline!r}: use up to 40 of a-z, 0-9, _ and -, a letter first, no schema of Postgres"
        )
    return schema


def check_formats(store_format: int, payload_format: int) -> None:
    """Refuse what a later version wrote; see `STORE_FORMAT` and `CHECKPOINT_FORMAT`."""
    if store_format > STORE_FORMAT:
        raise IncompatibleStore(
            f"the store has format {store_format}, this version knows {STORE_FORMAT}; upgrade millwheel"
        )
    if payload_format != CHECKPOINT_FORMAT:
        raise IncompatibleStore(
            f"the store holds checkpoints of format {payload_format}, this version writes {CHECKPOINT_FORMAT}"
        )


def check_shape(shape: PipelineShape, reserved: frozenset[str]) -> None:
    """Refuse a shape that no store could hold: bad names, unordered split keys, bad sink tables."""
    schema_name(shape.name)
    for computation, splits in shape.computations.items():
        if computation.startswith(SOURCE_PREFIX):
            raise WiringError(f"computation {computation!r}: names starting with {SOURCE_PREFIX!r} are for injectors")
        if "" in splits or any(low >= high for low, high in pairwise(splits)):
            raise WiringError(f"computation {computation!r}: split keys {splits!r} are not ascending and non-empty")
    for table in shape.sinks:
        check_table(table, reserved)


def check_compatible(stored: PipelineShape, shape: PipelineShape) -> None:
    """Refuse to open a store written under `stored` with `shape`."""
    if stored.name != shape.name:
        raise IncompatibleStore(f"the store belongs to pipeline {stored.name!r}, not to {shape.name!r}")
    for what, old, new in (
        ("computation", stored.computations, shape.computations),
        ("subscription", stored.subscriptions, shape.subscriptions),
    ):
        # A stream that is no longer published takes nobody's state with it.
        gone = sorted(name for name in set(old) - set(new) if not name.startswith(PUBLISH_PREFIX))
        if gone:
            raise IncompatibleStore(
                f"the store holds work of {what} {gone[0]!r}, which the pipeline no longer has; reset it"
            )
    for name, splits in stored.computations.items():
        if shape.computations.get(name, splits) != splits:
            raise IncompatibleStore(
                f"computation {name!r} is cut into intervals at {list(splits)}, the pipeline now says "
                f"{list(shape.computations[name])}: split keys are fixed when the store is made; put them back, or reset it"
            )
    for name, stream in stored.streams.items():
        if shape.streams.get(name, stream) != stream:
            raise IncompatibleStore(
                f"source {name!r} has fed stream {stream!r}, the pipeline now injects it into {shape.streams[name]!r}, "
                "which would never get the rows that were read before; name the source otherwise, or reset the store"
            )
    for name, fingerprint in stored.coders.items():
        if shape.coders.get(name, fingerprint) != fingerprint:
            raise IncompatibleStore(
                f"{name} is stored with coder {fingerprint!r}, the pipeline now says {shape.coders[name]!r}; "
                "use the old coder, another name, or reset the store"
            )


def merged_shape(stored: PipelineShape, shape: PipelineShape) -> PipelineShape:
    """What to remember: the new shape, with coders and sources of names that have gone (they may come back)."""
    return PipelineShape(
        name=shape.name,
        computations=shape.computations,
        subscriptions=shape.subscriptions,
        coders={**stored.coders, **shape.coders},
        sinks=shape.sinks,
        sources=shape.sources,
        streams={**stored.streams, **shape.streams},
    )


def ranges(splits: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """The key ranges [low, high) that n split keys make: n + 1 of them, covering everything.

    >>> ranges(("m",))
    [('', 'm'), ('m', None)]
    """
    return list(zip(("", *splits), (*splits, None), strict=True))


def holds_key(row: IntervalRow, key: str) -> bool:
    """Whether `key` lies in [low, high)."""
    return row.low <= key and (row.high is None or key < row.high)
