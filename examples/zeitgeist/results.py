"""OUT, the directory of an example's results: what a run makes in it, and of what.

`run.json` is there before anything else is, and says which log, which example and which store the rest is of.  The
same again goes on where it was; anything else is refused, so that results are never taken for those of another log.
What lies in OUT and is not in `MADE` is the user's, and never touched; nor is any of these names when there is no
`run.json` beside it.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Final

import msgspec
from psycopg import sql

from examples.zeitgeist.logfile import LogFile
from millwheel import Pipeline
from millwheel.committed import reset
from millwheel.errors import MillwheelError, StoreError, StoreUnavailable
from millwheel.launch import open_store
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.blocking import reachable
from millwheel_storage.postgres.connection import store_place
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.schema.shape_checks import schema_name
from millwheel_storage.statements import opening

FINISHED: Final = "finished"
PARSED: Final = "parsed"
STORE: Final = "store"
ANOMALIES: Final = "anomalies.jsonl"
REPORT: Final = "report.html"
RUN: Final = "run.json"

PARTIAL: Final = ".partial"
"""Ends the name of a file that is being written."""

REMOVED: Final = ".removed"
"""Ends the name of a directory that is being removed."""

FILES: Final = (FINISHED, ANOMALIES, ANOMALIES + PARTIAL, REPORT)
DIRECTORIES: Final = (STORE, STORE + REMOVED, PARSED, PARSED + REMOVED)
MADE: Final = FILES + DIRECTORIES
"""Everything that a run makes in OUT, besides `run.json`."""

EMBEDDED: Final = "the embedded Postgres in OUT"

FRESH: Final = "FRESH=1 (--fresh)"

MARK: Final = "the run "
MARK_OF: Final = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s"
"""The comment on a pipeline's schema."""


class ReportRun(msgspec.Struct, frozen=True):
    """What results are made of and where: the pipeline's name, its log, its store (without a password)."""

    name: str
    log: LogFile
    store: str
    id: str = ""
    """Drawn anew for each run that starts from nothing; a store of the user's own bears it."""


def claim(out: Path, name: str, log: LogFile, store: str | None, fresh: bool = False) -> None:
    """Make `out` the place of the results of `log`, or go on with them; `MillwheelError` if it has others.

    `fresh` drops what an earlier run has made, in `out` and in the store.
    """
    run = ReportRun(name, log, EMBEDDED if store is None else store_place(store), secrets.token_hex(8))
    _keep_clear(out, Path(log.path))
    try:
        earlier = _earlier(out)
        if fresh:
            _drop(out, name, store)
        elif earlier is not None:
            _check_same(out, earlier, run)
            return
        elif store is not None and _is_stored(store, name):
            raise _of_another(out, name)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / RUN, msgspec.json.encode(run))
    except OSError as error:
        raise MillwheelError(f"cannot put results into {out}: {error}; give another OUT (--out)") from error


def check_store(out: Path, name: str, store: str) -> None:
    """Refuse a store of the user's own whose run of this pipeline is another OUT's; an empty one gets the mark of this.

    Another OUT may have dropped what this one has put there: its rows would be taken for those of this log.
    """
    run, schema = msgspec.json.decode((out / RUN).read_bytes(), type=ReportRun), schema_name(name)
    place = sql.Identifier(schema)
    with reachable(store) as connection:
        connection.execute(opening.LOCK_SCHEMA, (schema,))
        if connection.execute(opening.SCHEMA_TABLES, (schema,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(place))
            connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(place, sql.Literal(MARK + run.id)))
        elif connection.execute(MARK_OF, (schema,)).fetchone() != (MARK + run.id,):
            raise _of_another(out, name)


def _of_another(out: Path, name: str) -> MillwheelError:
    return MillwheelError(
        f"the store already holds a run of {name!r}, and not the one of {out}: give its OUT (--out), or drop it with {FRESH}"
    )


def release(out: Path) -> None:
    """Give up a claim whose log turned out to be none, so that the mended log finds `out` free."""
    _remove(out / PARSED)
    _remove(out / RUN)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_bytes(data)
    partial.rename(path)


def _keep_clear(out: Path, log: Path) -> None:
    made = [(out / name).resolve() for name in (*MADE, RUN)]
    if any(log.resolve().is_relative_to(path) for path in made):
        raise MillwheelError(f"the log {log} is among the results that it is to make: give another OUT (--out)")


def _earlier(out: Path) -> ReportRun | None:
    """The run that made what is in `out`; None when nothing of the kind is there."""
    try:
        return msgspec.json.decode((out / RUN).read_bytes(), type=ReportRun)
    except FileNotFoundError:
        pass
    except msgspec.DecodeError as error:
        raise MillwheelError(f"{out / RUN} was not written by an example: give another OUT (--out)") from error
    for path in (out / name for name in MADE):
        if path.exists():
            raise MillwheelError(f"{path} was not made by a run of this example (no {RUN}): give another OUT (--out)")
    return None


def _check_same(out: Path, earlier: ReportRun, now: ReportRun) -> None:
    if earlier.name != now.name:
        wrong = f"{out} holds the results of another example, {earlier.name!r}"
    elif not earlier.log.is_same(now.log):
        wrong = _another_log(out, earlier.log, now.log)
    elif earlier.store != now.store:
        wrong = f"the results in {out} were made with another store ({earlier.store}; now {now.store})"
    else:
        return
    raise MillwheelError(f"{wrong}: give another OUT (--out), or drop those results with {FRESH}")


def _another_log(out: Path, earlier: LogFile, now: LogFile) -> str:
    if earlier.path != now.path:
        return f"{out} holds the results of {earlier.path}, and this is another log, {now.path}"
    sizes = f"it had {earlier.size_bytes:,} bytes, and has {now.size_bytes:,}"
    return f"{now.path} has changed since {out} was made from it: {sizes}"


def _drop(out: Path, name: str, store: str | None) -> None:
    """Remove what an earlier run has made, except `run.json`, which is replaced.

    Killed in the middle, what is left is still the earlier run's: it goes on where it was, or starts over.
    """
    _remove(out / FINISHED)
    _stop_postgres(out)
    if store is not None:
        reset(Pipeline(name), store)
    for made in (STORE, PARSED, *FILES):
        _remove(out / made)


def _stop_postgres(out: Path) -> None:
    """Stop the Postgres that a killed run has left behind; one that is in use is no one's to remove."""
    postgres = EmbeddedPostgres(out / STORE / "postgres")
    if postgres.pid is not None:
        with open_store(None, out / STORE):
            pass
    if postgres.pid is not None:
        raise MillwheelError(f"a run is going on in {out}: stop it first, or give another OUT (--out)")


def _remove(path: Path) -> None:
    """Remove a directory as a whole: half of one could be taken for all of it."""
    doomed = path.with_name(path.name + REMOVED)
    if path.name in DIRECTORIES and doomed.is_dir():
        shutil.rmtree(doomed)
    if path.is_dir() and not path.is_symlink():
        path.rename(doomed)
        shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)


def _is_stored(store: str, name: str) -> bool:
    try:
        Reader(store, name).close()
    except StoreUnavailable:
        raise
    except StoreError:
        return False
    return True
