"""Connections of who is no process of a pipeline: plain blocking psycopg, because whoever reads has nothing else to do.

Lives here: connecting, and whether what is found is a store that this version can read.  Never here: what is asked of it, and
connections that come back by themselves (`connection`).
"""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.cluster import Member
from millwheel.errors import IncompatibleStore, InvariantError, StoreError
from millwheel_storage.decisions import Alive, check_unused
from millwheel_storage.postgres.connection import CLIENT_ENCODING, not_connected, translated
from millwheel_storage.schema.shape_checks import STORE_FORMAT, check_formats, schema_name
from millwheel_storage.statements import opening, placing


class ReaderConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose errors, also while an answer comes, are those of millwheel."""

    def wait(self, *args: Any, **options: Any) -> Any:
        """As psycopg's, with errors of millwheel's."""
        try:
            return super().wait(*args, **options)
        except psycopg.Error as error:
            raise translated(error) from error


def reachable(url: str, autocommit: bool = False) -> ReaderConnection:
    """A blocking connection; `StoreUnavailable` if there is no Postgres at `url`, a `StoreError` if it refuses us."""
    try:
        connection = ReaderConnection.connect(url, autocommit=True, client_encoding=CLIENT_ENCODING)
    except psycopg.OperationalError as error:
        raise not_connected(error) from error
    try:
        connection.execute(opening.SETTLE)
    except BaseException:
        connection.close()
        raise
    connection.autocommit = autocommit
    return connection


def no_pipeline(connection: ReaderConnection, pipeline: str) -> StoreError:
    """The error of a store that holds nothing of `pipeline`: where that store is, and what it holds instead."""
    others = ", ".join(repr(row[0]) for row in connection.execute(opening.PIPELINES))
    instead = f"; it has the schemas of {others}" if others else ""
    place = f"database {connection.info.dbname!r} at {connection.info.host}"
    return StoreError(f"there is no pipeline {pipeline!r} in {place}{instead}; run it first, or name another store")


def connected(url: str, pipeline: str) -> ReaderConnection:
    """A connection whose search path is the schema of a pipeline, which has run and which this version can read.

    Raises `StoreError` for any other schema, `IncompatibleStore` for tables that another version of millwheel has made.
    """
    connection, schema = reachable(url, autocommit=True), schema_name(pipeline)
    if not connection.execute(opening.SCHEMA_TABLES, (schema,)).fetchone():
        with connection:
            raise no_pipeline(connection, pipeline)
    try:
        connection.execute("SELECT set_config('search_path', %s, false)", (f'"{schema}"',))
        _check_readable(connection, pipeline)
    except BaseException:
        connection.close()
        raise
    return connection


def check_owner(connection: psycopg.Connection[Any], pipeline: str) -> None:
    """Raises `StoreError` when the first schema of the search path is another pipeline's: "a-b" and "a_b" have one."""
    row = connection.execute(opening.READ_META).fetchone()
    owner = pipeline if row is None else msgspec.json.decode(row[1], type=_Named).name
    if owner != pipeline:
        raise StoreError(
            f"schema {schema_name(pipeline)!r} is that of pipeline {owner!r}, not of {pipeline!r}: rename one of "
            "them, or give it another database"
        )


class _Named(msgspec.Struct):
    """What every version's shape has."""

    name: str


def keep_members_out(connection: ReaderConnection, pipeline: str) -> None:
    """Nobody joins the cluster of the pipeline until the transaction ends.  Raises `StoreInUse` while a member lives."""
    connection.execute("SELECT set_config('search_path', %s, true)", (f'"{schema_name(pipeline)}"',))
    connection.execute(placing.LOCK_CLUSTER)
    living = connection.execute(placing.LIVING_MEMBERS).fetchall()
    check_unused(pipeline, [Alive(Member(*member), until) for *member, until in living])


def _check_readable(connection: ReaderConnection, pipeline: str) -> None:
    """Whether the tables that the search path names first have the format of this version.

    Raises `StoreError` when they are not millwheel's, `IncompatibleStore` when another version of it has made them.
    """
    schema = schema_name(pipeline)
    tables = {row[0] for row in connection.execute(opening.SCHEMA_TABLES, (schema,))}
    if not {"migration", "meta"} <= tables:
        raise StoreError(f"schema {schema!r} is not a millwheel pipeline's; use another pipeline name")
    row = connection.execute(opening.APPLIED_MIGRATION).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    check_formats(row[0], CHECKPOINT_FORMAT)
    if row[0] < STORE_FORMAT:
        raise IncompatibleStore(
            f"the store of {pipeline!r} has format {row[0]}, this version reads {STORE_FORMAT}: start the pipeline once with "
            "this version, which brings the tables up to date; `millwheel check` says what that changes"
        )
    check_owner(connection, pipeline)
