"""Which files Spark committed.

Lives here: reading `_spark_metadata` (streaming sinks) and `_SUCCESS` (batch output).  Never here: rows,
pyspark. Invariant: a file that Spark did not commit is never named, whatever lies in the directory.

The log of a streaming sink has one file per batch, `N`: a line `v1`, then a JSON object per file.  Every k-th
is `N.compact` and holds all entries so far; older ones may then be deleted.  Spark makes each by an atomic
rename.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from millwheel.errors import SourceError

LOG = "_spark_metadata"
SUCCESS = "_SUCCESS"
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

HIDDEN = (".", "_")

TABLE_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Directories in which tables of other formats say which of their files count."""

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
_BATCH = re.compile(r"(\d+)(\.compact)?")


class CommittedFile(msgspec.Struct, frozen=True):
    """A committed data file: its path relative to the output directory, and its size (None for batch
    output)."""

    path: str
    size: int | None = None


class _Entry(msgspec.Struct):
    """One line of the log."""

    path: str
    size: int
    action: str = "add"


class SinkLog:
    """Reads a streaming sink's log as it grows; remembers how far it came, not which files there were."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last = -1
        self._lasted = -1
        """`_last`, once `keep` says so."""
        self.missing = ""
        """The log of a batch that is not there, though there are some of later ones: these are not read."""

    def committed(self) -> Iterator[CommittedFile]:
        """Files committed since `keep` was called last, in commit order; those that Spark deleted again are left out."""
        for attempt in range(3):
            try:
                logs = self._logs()
                deleted = {entry.path for log in logs for entry in self._entries(log) if entry.action == "delete"}
                break
            except FileNotFoundError:  # Spark compacted between our listing and our reading
                if attempt == 2:
                    raise
        for log in logs:
            for entry in self._entries(log):
                if entry.action == "add" and entry.path not in deleted:
                    yield CommittedFile(relative_path(entry.path, self._directory), entry.size)

    def keep(self) -> None:
        """What the last `committed` gave is known: the next one goes on behind it."""
        self._last = self._lasted

    def rewind(self) -> None:
        """Begin anew."""
        self._last = -1

    def _logs(self) -> list[Path]:
        """The batches that are not known, the newest compact one for all before it."""
        batches = {int(m[1]): bool(m[2]) for m in map(_BATCH.fullmatch, self._names()) if m}
        newest_compact = max((number for number, compact in batches.items() if compact), default=-1)
        start = newest_compact if newest_compact > self._last else self._last + 1
        later = sorted(number for number in batches if number >= start)
        wanted = [number for place, number in enumerate(later, start) if number == place]
        self.missing = str(self._directory / LOG / str(start + len(wanted))) if len(wanted) < len(later) else ""
        self._lasted = max(wanted, default=self._last)
        suffixes = {newest_compact: ".compact"}
        return [self._directory / LOG / f"{number}{suffixes.get(number, '')}" for number in wanted]

    def _names(self) -> list[str]:
        return [path.name for path in (self._directory / LOG).iterdir()]

    def _entries(self, log: Path) -> Iterator[_Entry]:
        with open(log, "rb") as lines:
            version = next(lines, b"").strip()
            if version != b"v1":
                raise SourceError(f"{log}: sink log version {version!r:.40}, only v1 is known; upgrade millwheel")
            for line in lines:
                if line.strip():
                    yield self._entry(log, line)

    def _entry(self, log: Path, line: bytes) -> _Entry:
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{log}: not an entry of a sink log: {error}: {line!r:.200}") from error
        if entry.action not in ("add", "delete"):
            raise SourceError(f"{log}: unknown action {entry.action!r}; upgrade millwheel")
        return entry


def relative_path(uri: str, output: Path) -> str:
    """A logged URI's path below the output directory, which may have been moved since.

    Then it is the file's name and the Hive partition directories before it, but for those that led to the old place.

    >>> relative_path("file:/out/day=2026-01-01/part-0.parquet", Path("/out"))
    'day=2026-01-01/part-0.parquet'
    """
    place = Path(unquote(_SCHEME.sub("", uri, count=1)))
    for root in (output.absolute, output.resolve):  # the second one asks the disk
        if place.is_relative_to(root()):
            return place.relative_to(root()).as_posix()
    *directories, name = place.parts
    kept = [name]
    while directories and "=" in directories[-1]:
        kept.insert(0, directories.pop())
    candidates = ["/".join(kept[index:]) for index in range(len(kept))]
    return next((path for path in candidates if (output / path).exists()), candidates[0])


def partition_values(path: str) -> dict[str, str | None]:
    """Column values that stand in the names of Hive partition directories.

    >>> partition_values("day=2026-01-01/hour=7/part-0.parquet")
    {'day': '2026-01-01', 'hour': '7'}
    """
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NULL_VALUE else unquote(value) for name, value in pairs}


def refuse_other_tables(directory: Path) -> None:
    """Raises `SourceError` for a table whose files count only as far as a log says that is not read here."""
    for log, kind in TABLE_LOGS.items():
        if (directory / log).is_dir():
            raise SourceError(
                f"{directory} is a {kind} table, and {log}, which says what of it counts, is not read here: let Spark write "
                "Parquet or JSON into a directory of its own"
            )


def batch_runs(directory: Path) -> list[Path]:
    """Finished batch runs: `directory`, or those directories right below it that are run outputs."""
    return [directory] if (directory / SUCCESS).exists() else finished_runs(directory)


def finished_runs(directory: Path) -> list[Path]:
    """Directories right below with `_SUCCESS`, by name."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if not is_hidden(path) and (path / SUCCESS).exists())


def data_files(run: Path, below: str = "") -> Iterator[str]:
    """Files of one run, Hive partition directories included, directory by directory; only what Spark reads itself.

    Each is `below` and its path in the run.  In any order: there may be very many.
    """
    directories = []
    with os.scandir(run) as entries:
        for entry in entries:
            if entry.name.startswith(HIDDEN):
                continue
            if entry.is_dir():
                directories += [entry.name] if "=" in entry.name else []
            else:
                yield below + entry.name
    for name in sorted(directories):
        yield from data_files(run / name, f"{below}{name}/")


def is_hidden(path: Path) -> bool:
    """True for what Spark and Hadoop leave out: temporary, metadata and checksum files."""
    return path.name.startswith(HIDDEN)
