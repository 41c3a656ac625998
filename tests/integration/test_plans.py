"""Every statement of loads and folds finds its rows by an index, whatever Postgres believes about the tables.

A table is filled, ten of its rows are asked for, and the pages that the statement looks at are counted: a few for each
row, however many rows there are.  Figures and plans grow old in use, so each statement is tried without any figures, with
those of a table that had a few rows, that had lost all of its rows, and that was as full as now, each with a plan made
now and with one kept from then.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from millwheel.ports import PipelineShape
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.schema.shape_checks import schema_name
from millwheel_storage.statements import (
    advancing,
    committing,
    folding,
    loading,
    opening,
    outside_ids,
    quarantining,
    viewing,
)
from millwheel_storage.testing import fresh_name

pytestmark = pytest.mark.postgres

SUBJECTS: Final = (advancing, committing, folding, loading, opening, outside_ids, quarantining, viewing)
STATEMENTS: Final = {name: value for subject in SUBJECTS for name, value in vars(subject).items() if name.isupper()}
ROWS: Final = 20_000
FILLED: Final = {"none": 0, "few": 5, "emptied": 100, "full": ROWS}
"""Figures by their time, and how many rows there were then."""
ASKED: Final = range(5_000, 5_000 + 10 * 37, 37)
"""The rows that a statement is about; not neighbours, so that each costs pages of its own."""
PAGES: Final = 20 * len(ASKED)
"""Down an index, its leaf and the row, and the same for each index that a new row goes into.  The smallest of the full
tables has more."""

FILL: Final = """
INSERT INTO checkpoint_log SELECT 1, 7, n, 0, repeat('x', 100)::bytea FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO key_state SELECT 1, ('k' || n)::bytea, 'c', '', repeat('x', 100)::bytea FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO key_state
    SELECT 1, ('m' || mod(n, 10))::bytea, 'm', ('e' || n)::bytea, repeat('x', 100)::bytea
    FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO timer
    SELECT 1, ('k' || n)::bytea, 'low_watermark', repeat('t', 60)::bytea, n FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO hold SELECT 1, ('k' || repeat('-', 60) || n)::bytea, n FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO production
    SELECT 1, 1, 5, n, 'k', repeat('x', 100)::bytea, n FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO delivered
    SELECT 1, 1, 5, 10 * n, 10 * n + 9, repeat('x', 100)::bytea FROM generate_series(%(low)s, %(high)s) n;
INSERT INTO opaque_id
    SELECT 1, (repeat('i', 60) || n)::bytea FROM generate_series(%(low)s, %(high)s) n;
"""


def keys(prefix: str = "k") -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in ASKED]


HOLDERS: Final = keys("k" + 60 * "-")
NEW: Final = [key + b"-new" for key in keys()]
TAGS: Final = [60 * b"t" for _ in ASKED]
VALUES: Final = [b"v" for _ in ASKED]
KINDS: Final = ["low_watermark" for _ in ASKED]
CASES: Final[dict[str, Any]] = {
    "COMMIT": ([1] * 10, [7] * 10, [ROWS + n for n in ASKED], [0] * 10, VALUES, [1]),
    "FOLD_LOG": (1, 7, len(ASKED)),
    "LOAD_KEYS": (keys(), 1, 256),
    "LOAD_SLOTS": ([b"m5"] * 10, ["m"] * 10, [f"e{n}".encode() for n in ASKED], 1),
    "LOAD_KEY_TIMERS": (keys(), 1),
    "LOAD_TIMERS": {"computation": 1, "kind": "low_watermark", "timestamp": ASKED[0], "key": b"", "tag": b""}
    | {"low": b"", "high": None, "limit": len(ASKED)},
    "FORGET_STATE": (1, keys()),
    "FORGET_TIMERS": (keys(), 1),
    "FORGET_HOLDS": (1, HOLDERS),
    "ADD_VALUES": (1, "c", NEW, VALUES),
    "SET_VALUES": (1, "c", keys(), VALUES),
    "SET_ENTRIES": (1, "m", [b"m5"] * 10, VALUES, [f"e{n}".encode() for n in ASKED]),
    "CLEAR_STATE": (keys(), [b""] * 10, 1, "c"),
    "FOLD_TIMERS": (1, keys(), KINDS, TAGS, [*ASKED]),
    "CLEAR_TIMERS": (keys(), KINDS, TAGS, 1),
    "FOLD_HOLDS": (1, HOLDERS, [*ASKED]),
    "FOLD_ACKS": ([*ASKED], [*ASKED], 1, 1, 5),
    "FIND_IDS": (1, 1, 5, 10 * (ROWS - 10), 10 * ROWS),
    "FOLD_FRONTIERS": (1, [1] * 10, [*range(9, 4_000, 400)], [7] * 10),
    "DROP_FRONTIERS": ([1] * 10, [*range(9, 4_000, 400)], 1),
    "COLLECT_IDS": ([1], [5], [100], 1),
    "FIND_OUTSIDE_IDS": ([f"{60 * 'i'}{n}".encode() for n in ASKED], 1, 1, 0),
    "EXPIRE_OUTSIDE_IDS": (1, 1, 100, len(ASKED), len(ASKED)),
}
"""By name: parameters that ask for as many rows as `ASKED` has."""

AS_PREPARED: Final = re.compile(r"%b|%s|%\((\w+)\)s")
Connection = psycopg.Connection[tuple[Any, ...]]


class Plans:
    """A store whose figures are from another time, and each statement as that time would run it."""

    def __init__(self, url: str, pipeline: str, figures: str, kept: bool) -> None:
        self._connection: Connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor)
        self._connection.execute(opening.CONFIGURE, (f'"{schema_name(pipeline)}"', "0", "0", "0"))
        self._execute(f"SET plan_cache_mode = force_{'generic' if kept else 'custom'}_plan")
        names = self._execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
        tables = [table for (table,) in names]
        for table in tables:
            self._execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        self._execute("UPDATE ownership SET sequencer = 7")
        self._execute(f"INSERT INTO delivered_frontier SELECT 1, 1, n, 0 FROM generate_series(5, 2 * {ROWS}) n")
        self._execute("INSERT INTO opaque_bucket (interval_id, subscription, expires, count) VALUES (1, 1, 50, 1)")
        filled = FILLED[figures]
        self._fill(1, filled)
        if figures == "emptied":
            for table in ("checkpoint_log", "key_state", "timer", "hold", "production", "delivered", "opaque_id"):
                self._execute(f"DELETE FROM {table}")
            filled = 0
        if figures != "none":
            self._execute(f"VACUUM ANALYZE {', '.join(tables)}")
        for name in CASES:
            self._execute(f"PREPARE {name.lower()} AS {self._numbered(STATEMENTS[name])}")
            self.pages(name)
        self._fill(filled + 1, ROWS)

    def _execute(self, statement: str, parameters: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), parameters)

    def _fill(self, low: int, high: int) -> None:
        for statement in FILL.strip().split(";")[:-1]:
            self._execute(statement, {"low": low, "high": high})

    @staticmethod
    def _numbered(statement: str) -> str:
        numbers: dict[Any, int] = {}
        places = itertools.count()
        return AS_PREPARED.sub(
            lambda match: f"${numbers.setdefault(match[1] or next(places), len(numbers) + 1)}", statement
        )

    def pages(self, name: str) -> int:
        """How many pages the statement looks at; what it writes is undone."""
        given = CASES[name]
        if isinstance(given, dict):
            order = dict.fromkeys(AS_PREPARED.findall(STATEMENTS[name]))
            given = [given[parameter] for parameter in order]
        values = sql.SQL(", ").join(map(sql.Literal, given)).as_bytes(self._connection)
        with self._connection.transaction(force_rollback=True):
            explained = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE %s(%s)" % (name.lower().encode(), values)
            ((answer,),) = self._connection.execute(explained).fetchall()
        plan = answer[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def close(self) -> None:
        self._connection.close()


async def create(url: str, pipeline: str) -> None:
    store = PostgresStore(url, pipeline)
    await store.open_pipeline(PipelineShape(pipeline, {"a": ()}, {"a<s": "s"}, {}, (), ()))
    await store.close()


@pytest.fixture(scope="module")
def plans(postgres: EmbeddedPostgres) -> Iterator[Callable[[str, bool], Plans]]:
    made: dict[tuple[str, bool], Plans] = {}

    def of(figures: str, kept: bool) -> Plans:
        if (figures, kept) not in made:
            pipeline = fresh_name("plans")
            asyncio.run(create(postgres.url, pipeline))
            made[figures, kept] = Plans(postgres.url, pipeline, figures, kept)
        return made[figures, kept]

    yield of
    for each in made.values():
        each.close()


@pytest.mark.parametrize("kept", [False, True], ids=["made now", "kept"])
@pytest.mark.parametrize("figures", FILLED)
@pytest.mark.parametrize("name", CASES)
def test_what_a_statement_reads_grows_with_what_it_is_asked_for(
    plans: Callable[[str, bool], Plans], name: str, figures: str, kept: bool
) -> None:
    assert 2 < plans(figures, kept).pages(name) <= PAGES  # an index without what it is asked for is two pages
