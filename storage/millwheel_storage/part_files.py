"""Files of the parts that `Chain.to_files` has sealed: JSON lines or Parquet, each row in one file, exactly once.

    python -m millwheel_storage.part_files postgresql://… PIPELINE NAME DIRECTORY --follow
    python -m millwheel_storage.part_files .millwheel PIPELINE NAME DIRECTORY --follow

Lives here: the way from a sealed part to a file.  Invariants: a file has its name only when its content is final and on
disk.  Its name and content depend on the part alone.  After that, one transaction deletes the part from the tables.  A crash
before it makes the same file once more.  Two writers never have the same part, because its row is locked.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, Literal

import click
import psycopg
from psycopg import sql

from millwheel.errors import MillwheelError, StoreError
from millwheel.limits import PART_FILES_REST_S
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.blocking import check_owner
from millwheel_storage.postgres.connection import CLIENT_ENCODING, store_place
from millwheel_storage.schema.shape_checks import schema_name

Format = Literal["jsonl", "parquet"]


class PartFiles:
    """Writes the files of the sink `name` of a pipeline into `directory`, which must be on one file system.

    `store` is a postgresql:// URL; `columns` are those of a Parquet file, name to SQL type as for `Table`: text, bigint,
    integer, double precision, boolean, timestamptz and date.
    """

    def __init__(
        self, store: str, pipeline: str, name: str, directory: str | Path, columns: dict[str, str] | None = None
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._name = name
        self._directory = Path(directory)
        schema = schema_name(pipeline)
        self._rows = sql.Identifier(schema, f"{name}_rows")
        self._parts = sql.Identifier(schema, f"{name}_parts")
        self.suffix: Format = "jsonl" if columns is None else "parquet"
        self._columns = columns

    def write(self) -> list[Path]:
        """Write a file for every part that is sealed now.  Returns the paths."""
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with psycopg.connect(self._store, client_encoding=CLIENT_ENCODING) as connection:
                connection.execute("SELECT set_config('search_path', %s, true)", (f'"{schema_name(self._pipeline)}"',))
                check_owner(connection, self._pipeline)
                connection.commit()
                return list(self._files(connection))
        except psycopg.errors.UndefinedTable:
            raise StoreError(
                f"pipeline {self._pipeline!r} has no sink {self._name!r}; its first start makes the tables"
            ) from None

    def follow(self) -> Iterator[Path]:
        """The same without an end."""
        while True:
            yield from self.write()
            time.sleep(PART_FILES_REST_S)

    def _files(self, connection: psycopg.Connection) -> Iterator[Path]:
        found = sql.SQL("SELECT shard, part, rows FROM {} ORDER BY shard, part LIMIT 1 FOR UPDATE SKIP LOCKED")
        while True:
            with connection.transaction():
                sealed = connection.execute(found.format(self._parts)).fetchone()
                if sealed is None:
                    return
                path = self._file(connection, *sealed)
                for table in (self._rows, self._parts):
                    gone = sql.SQL("DELETE FROM {} WHERE shard = %s AND part = %s").format(table)
                    connection.execute(gone, sealed[:2])
            yield path

    def _file(self, connection: psycopg.Connection, shard: str, part: int, rows: int) -> Path:
        wanted = sql.SQL("SELECT value FROM {} WHERE shard = %s AND part = %s ORDER BY place").format(self._rows)
        values = [value for (value,) in connection.execute(wanted, (shard, part))]
        path = self._directory / f"{self._name}-{shard}-{part:08d}.{self.suffix}"
        if len(values) != rows:
            raise StoreError(
                f"part {part} of shard {shard} of {self._name!r} has {len(values)} rows, sealed were {rows}"
            )
        self._put(path, values)
        return path

    def _put(self, path: Path, values: list[str]) -> None:
        """Make the file under another name, and rename it when it is on disk."""
        draft = path.with_name(f".{path.name}.draft")
        if self._columns is None:
            _write_lines(draft, values)
        else:
            _write_parquet(draft, values, self._columns)
        if path.exists() and not _same(path, draft):
            raise StoreError(f"{path} is there with other rows, of a pipeline that was reset since: move it away")
        draft.replace(path)
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_lines(path: Path, rows: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(row + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def _write_parquet(path: Path, rows: list[str], columns: dict[str, str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = {
        "text": pa.string(), "bigint": pa.int64(), "integer": pa.int32(), "double precision": pa.float64(),
        "boolean": pa.bool_(), "timestamptz": pa.timestamp("us", tz="UTC"), "date": pa.date32(),
    }  # fmt: skip
    parsed = [json.loads(row) for row in rows]
    _check_columns(parsed, columns)
    for name, kind in columns.items():
        if kind not in types:
            raise StoreError(
                f"column {name!r} is given as {kind!r}; a column of a Parquet file is one of {', '.join(types)}"
            )
    made = {
        name: pa.array([_PARSE.get(kind, _itself)(row.get(name)) for row in parsed], type=types[kind])
        for name, kind in columns.items()
    }
    with path.open("wb") as file:
        parquet.write_table(pa.table(made), file)
        file.flush()
        os.fsync(file.fileno())


def _check_columns(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Refuse a column with a mistyped name: it would be null, and what it was meant to hold would be deleted."""
    fields = {name for row in rows for name in row}
    unknown, left = [name for name in columns if name not in fields], sorted(fields - columns.keys())
    if unknown and left:
        raise StoreError(f"the rows have no column {unknown[0]!r}; they have {left}, which no column is given for")


def _same(path: Path, draft: Path) -> bool:
    """Whether two files have the same rows; another version of pyarrow may write other bytes."""
    if path.suffix == ".jsonl":
        return path.read_bytes() == draft.read_bytes()
    from pyarrow import parquet

    return bool(parquet.read_table(path).equals(parquet.read_table(draft)))


def _itself(value: Any) -> Any:
    return value


_PARSE: Final[dict[str, Callable[[Any], Any]]] = {
    "timestamptz": lambda text: text and datetime.fromisoformat(text),
    "date": lambda text: text and date.fromisoformat(text),
}


@click.command()
@click.argument("store")
@click.argument("pipeline")
@click.argument("name")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--column", "columns", multiple=True, metavar="NAME:TYPE", help="A column of Parquet files.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C.")
def main(store: str, pipeline: str, name: str, directory: str, columns: tuple[str, ...], follow: bool) -> None:
    """Write the files of the sink NAME of PIPELINE into DIRECTORY, and print their paths.

    STORE is a postgresql:// URL, or the directory of an embedded Postgres, such as .millwheel.
    """
    pairs = [column.partition(":") for column in columns]
    try:
        with _url(store) as url:
            files = PartFiles(url, pipeline, name, directory, {name: kind for name, _, kind in pairs} or None)
            for path in files.follow() if follow else files.write():
                click.echo(path)
    except (MillwheelError, psycopg.OperationalError) as error:
        raise click.ClickException(f"{error}".strip()) from error


@contextmanager
def _url(store: str) -> Iterator[str]:
    """Of the store; an embedded one runs meanwhile."""
    if not Path(store).is_dir():
        store_place(store)
        yield store
        return
    embedded = EmbeddedPostgres(Path(store) / "postgres")
    if not embedded.exists:
        raise StoreError(f"there is no store in {store}: run the pipeline first")
    with embedded:
        yield embedded.url


if __name__ == "__main__":
    main()
