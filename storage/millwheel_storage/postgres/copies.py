"""Savepoints: named copies of all that a pipeline has stored, which Postgres makes and puts back.

Lives here: how a copy is taken, found, put back and dropped.  Never here: a second format of what is stored.  It uses plain
blocking psycopg, as the reader does.

A copy is one snapshot of the database, so it is what a process would find that starts after a crash at that moment.  The
proofs of recovery cover it: state, timers, unacked productions, delivered ids, positions and sink rows fit together at every
moment, under either durability.  Invariant: what is put back has new sequencers, so whoever wrote before cannot write after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import psycopg

from millwheel.errors import IncompatibleStore, InvariantError, StoreError, WiringError
from millwheel_storage.postgres.blocking import ReaderConnection, check_owner, keep_members_out, no_pipeline, reachable
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import STORE_FORMAT, schema_name
from millwheel_storage.statements import keeping, opening

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,19}")
_NOT_KEPT: Final = frozenset(
    {
        "cluster",
        "cluster_leader",
        "cluster_member",
        "hot_key",
        "interval_owner",
        "lease",
        "map_order",
        "migration",
        "source_owner",
        "standstill",
    }
)
"""Tables about processes that live, and the format of the others."""
_FOUND_WITH: Final = {"meta", "migration", "checkpoint_log"}


class About(msgspec.Struct, frozen=True):
    """What a savepoint says of itself."""

    pipeline: str
    made_us: int
    store_format: int


class Savepoint(msgspec.Struct, frozen=True):
    """A savepoint: when it was made, by the database's clock, us since the epoch, its size, and its store format."""

    name: str
    made_us: int
    size_bytes: int
    store_format: int


class Savepoints:
    """The savepoints of one pipeline.  Errors are `StoreError`s that name the savepoint, `StoreUnavailable` among them."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url = url
        self._pipeline = pipeline
        self._schema = schema_name(pipeline)

    def create(self, name: str) -> Savepoint:
        """Copy all that is stored now.  The pipeline may run: it waits for nothing, and the copy is of one moment."""
        kept = self._place(name)
        with reachable(self._url, autocommit=True) as connection:
            tables = self._tables(connection)
            if connection.execute(opening.FIND_SCHEMA, (kept,)).fetchone() is not None:
                raise StoreError(
                    f"there is a savepoint {name!r} of {self._pipeline!r} already; drop it, or choose another"
                )
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.transaction():
                # Before the snapshot: a restore that truncates these tables is over, or waits.
                connection.execute(keeping.lock(self._schema, tables, "ACCESS SHARE"))
                if self._tables(connection) != tables:
                    raise StoreError(f"the tables of {self._pipeline!r} have just changed; make the savepoint again")
                made = self._copy(connection, kept, tables)
        return msgspec.structs.replace(self._found(name), made_us=made.made_us)

    def _copy(self, connection: ReaderConnection, kept: str, tables: list[str]) -> About:
        ((moment,),) = connection.execute(keeping.NOW).fetchall()
        about = About(self._pipeline, moment, self._format(connection))
        try:
            for statement in keeping.make_schema(kept, msgspec.json.encode(about).decode()):
                connection.execute(statement)
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.UniqueViolation | psycopg.errors.DuplicateSchema):
                raise StoreError(f"another process has just made savepoint {kept!r}") from None
            if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise StoreError(f"a savepoint is a schema, and this role may make none: {error.__cause__}") from None
            raise
        for table in tables:
            if table not in _NOT_KEPT:
                connection.execute(keeping.copy(table, self._schema, kept))
        return about

    def found(self) -> list[Savepoint]:
        """All savepoints of the pipeline, by name."""
        prefix = self._schema + "@"
        with reachable(self._url, autocommit=True) as connection:
            rows = connection.execute(keeping.FIND_SAVEPOINTS, (prefix,)).fetchall()
        found = []
        for schema, text, size in rows:
            about = _about(text)
            if about is not None and about.pipeline == self._pipeline:
                found.append(Savepoint(schema.removeprefix(prefix), about.made_us, size, about.store_format))
        return found

    def restore(self, name: str) -> Savepoint:
        """Put back what was stored when the savepoint was made.  All that came after it is gone.  The savepoint stays.

        Refuses while live members of a cluster use the store (`StoreInUse`).  An embedded run that is still there is fenced.
        """
        kept, savepoint = self._place(name), self._found(name)
        with reachable(self._url) as connection:
            connection.execute(opening.LOCK_SCHEMA, (self._schema,))
            tables = self._tables(connection)
            now = self._format(connection)
            if savepoint.store_format != now:
                raise IncompatibleStore(
                    f"savepoint {name!r} has format {savepoint.store_format} and the store has format {now}: only the "
                    "version of millwheel that made it can put it back, into a store of its own format"
                )
            with self._in_time(connection):
                keep_members_out(connection, self._pipeline)
            self._put_back(connection, name, kept, tables)
        return savepoint

    def _put_back(self, connection: ReaderConnection, name: str, kept: str, tables: list[str]) -> None:
        here = dict(connection.execute(keeping.COLUMNS, (self._schema,)).fetchall())
        there = self._kept_from_dropping(connection, name, kept)
        for table, columns in there.items():
            if lost := [column for column in columns if column not in here.get(table, ())]:
                raise StoreError(
                    f"savepoint {name!r} has rows for table {table!r}, which "
                    + ("is not there any more" if table not in here else f"has no columns {lost} any more")
                    + ": run the version of the pipeline that has it once, and restore then"
                )
        with self._in_time(connection):
            connection.execute(keeping.lock(self._schema, tables, "ACCESS EXCLUSIVE"))
        gone = [table for table in tables if table not in _NOT_KEPT]
        connection.execute(keeping.empty(self._schema, [table for table in gone if table in RESERVED_NAMES]))
        for table in gone:
            if table not in RESERVED_NAMES:
                connection.execute(keeping.clear(self._schema, table))
        generated = dict(connection.execute(keeping.GENERATED, (self._schema,)).fetchall())
        for table, columns in there.items():
            written = [column for column in columns if column not in generated.get(table, ())]
            connection.execute(keeping.put_back(table, written, kept, self._schema))
        self._go_on(connection)
        connection.execute(keeping.FENCE_ALL)
        for statement in keeping.FORGET_OWNERS:
            connection.execute(statement)

    def _go_on(self, connection: ReaderConnection) -> None:
        """No number is given out that what was put back has.  After a reset, sequences have begun again."""
        for table, column, sequence in connection.execute(keeping.FILLED, (self._schema,)).fetchall():
            connection.execute(keeping.fill_on(self._schema, table, column, sequence))
        for sequence, largest in keeping.NUMBERED.items():
            connection.execute(keeping.go_on(self._schema, sequence, largest))

    def _kept_from_dropping(self, connection: ReaderConnection, name: str, kept: str) -> dict[str, list[str]]:
        """The columns of the savepoint by table, which stay until the transaction ends."""
        there = dict(connection.execute(keeping.COLUMNS, (kept,)).fetchall())
        gone = StoreError(f"savepoint {name!r} was dropped meanwhile; nothing was changed")
        if not there:
            raise gone
        try:
            with self._in_time(connection):
                connection.execute(keeping.lock(kept, sorted(there), "ACCESS SHARE"))
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
                raise gone from None
            raise
        return there

    @contextmanager
    def _in_time(self, connection: ReaderConnection) -> Iterator[None]:
        """What is done in it does not wait for somebody who keeps the tables."""
        connection.execute(keeping.ONE_AT_A_TIME)
        try:
            yield
        except StoreError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise StoreError(
                f"somebody uses the tables of {self._pipeline!r}: stop what runs, and restore then"
            ) from None

    def drop(self, name: str) -> None:
        """Remove a savepoint.  The pipeline keeps what it has."""
        kept = self._place(name)
        self._found(name)
        with reachable(self._url) as connection:
            connection.execute(keeping.drop(kept))

    # --- parts of these -------------------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise WiringError(f"savepoint {name!r}: use up to 20 of a-z, 0-9, _ and -, a letter first")
        return f"{self._schema}@{name}"

    def _found(self, name: str) -> Savepoint:
        found = {savepoint.name: savepoint for savepoint in self.found()}
        if name not in found:
            others = f"there are {sorted(found)}" if found else "make one with millwheel savepoint create"
            raise StoreError(f"there is no savepoint {name!r} of {self._pipeline!r}; {others}")
        return found[name]

    def _tables(self, connection: ReaderConnection) -> list[str]:
        tables = [row[0] for row in connection.execute(keeping.TABLES, (self._schema,))]
        if not tables:
            raise no_pipeline(connection, self._pipeline)
        if not {*tables} >= _FOUND_WITH:
            raise StoreError(f"schema {self._schema!r} is not a millwheel pipeline's; it was not touched")
        return tables

    def _format(self, connection: ReaderConnection) -> int:
        connection.execute("SELECT set_config('search_path', %s, true)", (f'"{self._schema}"',))
        check_owner(connection, self._pipeline)
        row = connection.execute(opening.APPLIED_MIGRATION).fetchone()
        if row is None:
            raise InvariantError("an aggregate has one row")
        if row[0] != STORE_FORMAT:
            raise IncompatibleStore(
                f"the store has format {row[0]}, this version of millwheel knows {STORE_FORMAT}: run the pipeline once with "
                "this version, which brings an older store up to date"
            )
        return int(row[0])


def _about(text: str | None) -> About | None:
    """What a schema says of itself; None for one that somebody else has made."""
    try:
        return msgspec.json.decode(text or "", type=About)
    except msgspec.DecodeError:
        return None
