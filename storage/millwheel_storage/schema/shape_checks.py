"""What a store checks before the first write of the shape alone: names, formats, split keys, sink tables.

Never here: I/O, or what the store holds already (`evolution`).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.errors import IncompatibleStore, WiringError
from millwheel.ports import IntervalRow, PipelineShape
from millwheel_storage.sink_rows import check_table

STORE_FORMAT: Final = 16
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


def no_schema(schema: str, user: str) -> str:
    """What to tell a role that may make none."""
    return (
        f"there is no schema {schema!r}, and this role may make none: let somebody who may run "
        f'CREATE SCHEMA "{schema}" AUTHORIZATION "{user}"'
    )


def no_tables(schema: str, user: str) -> str:
    """The same of tables, in a schema that somebody else has made."""
    return (
        f"schema {schema!r} is there, and this role may make no tables in it: let its owner run "
        f'ALTER SCHEMA "{schema}" OWNER TO "{user}"'
    )


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


def ranges(splits: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """The key ranges [low, high) that n split keys make: n + 1 of them, covering everything.

    >>> ranges(("m",))
    [('', 'm'), ('m', None)]
    """
    return list(zip(("", *splits), (*splits, None), strict=True))


def holds_key(row: IntervalRow, key: str) -> bool:
    """Whether `key` lies in [low, high)."""
    return row.low <= key and (row.high is None or key < row.high)
