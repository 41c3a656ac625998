"""Which files Spark committed.

Lives here: reading `_spark_metadata` (streaming sinks) and `_SUCCESS` (batch output).  Never here: rows,
pyspark. Invariant: a file that Spark did not commit is never named, whatever lies in the directory.

The log of a streaming sink has one file per batch, `N`: a line `v1`, then a JSON object per file.  Every k-th
is `N.compact` and holds all entries so far; older ones may then be deleted.  Spark makes each by an atomic
rename.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import msgspec

from millwheel.errors import SourceError

LOG = "_spark_metadata"
SUCCESS = "_SUCCESS"
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
_BATCH = re.compile(r"(\d+)(\.compact)?")


class Committed(msgspec.Struct, frozen=True):
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
    """Reads a streaming sink's log as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last = -1
        self._files: dict[str, Committed] = {}

    def committed(self) -> list[Committed]:
        """All files committed so far, in commit order."""
        for attempt in range(3):
            try:
                self._poll()
                break
            except FileNotFoundError:  # Spark compacted between our listing and our reading
                if attempt == 2:
                    raise
        return list(self._files.values())

    def _poll(self) -> None:
        batches = {int(m[1]): bool(m[2]) for m in map(_BATCH.fullmatch, self._names()) if m}
        newest_compact = max((number for number, compact in batches.items() if compact), default=-1)
        start = newest_compact if newest_compact > self._last else self._last + 1
        for number in sorted(number for number in batches if number >= start):
            suffix = ".compact" if number == newest_compact else ""
            self._read(self._directory / LOG / f"{number}{suffix}")
            self._last = number

    def _names(self) -> list[str]:
        return [path.name for path in (self._directory / LOG).iterdir()]

    def _read(self, log: Path) -> None:
        version, *lines = log.read_bytes().split(b"\n")
        if version.strip() != b"v1":
            raise SourceError(f"{log}: sink log version {version!r:.40}, only v1 is known; upgrade millwheel")
        for line in lines:
            if line.strip():
                self._apply(log, line)

    def _apply(self, log: Path, line: bytes) -> None:
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{log}: not an entry of a sink log: {error}: {line!r:.200}") from error
        path = relative_path(entry.path, self._directory)
        if entry.action == "delete":
            self._files.pop(path, None)
        elif entry.action == "add":
            self._files.setdefault(path, Committed(path, entry.size))
        else:
            raise SourceError(f"{log}: unknown action {entry.action!r}; upgrade millwheel")


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


def batch_files(directory: Path) -> list[Committed] | None:
    """Data files of finished batch runs: of `directory`, or of those directories right below it that are run
    outputs.

    None when nothing is finished.  In a run's directory only what Spark reads itself: no hidden or "_" names.
    """
    runs = [directory] if (directory / SUCCESS).exists() else finished_runs(directory)
    if not runs:
        return None
    return [Committed(path.relative_to(directory).as_posix()) for run in runs for path in data_files(run)]


def finished_runs(directory: Path) -> list[Path]:
    """Directories right below with `_SUCCESS`, by name."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if not is_hidden(path) and (path / SUCCESS).exists())


def is_overwritten(directory: Path, path: str) -> bool:
    """True when a data file of a batch run is gone, and its run's directory holds a finished run all the same."""
    run = directory if (directory / SUCCESS).exists() else directory / path.split("/")[0]
    return not (directory / path).exists() and (run / SUCCESS).exists()


def data_files(run: Path) -> list[Path]:
    """Files of one run, Hive partition directories included, by path."""
    found: list[Path] = []
    for path in sorted(run.iterdir()):
        if is_hidden(path):
            continue
        if path.is_dir():
            found += data_files(path) if "=" in path.name else []
        else:
            found.append(path)
    return found


def is_hidden(path: Path) -> bool:
    """True for what Spark and Hadoop leave out: temporary, metadata and checksum files."""
    return path.name.startswith((".", "_"))
