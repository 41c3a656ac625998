"""Text files on disk, complete or growing (§5.2).

Lives here: `FileSource`: which files there are, in which order, and what the source promises of those to
come. Never here: reading rows (`partition.py`), telling files apart (`identity.py`).
"""

from __future__ import annotations

import glob
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, overload

from typing_extensions import TypeVar, Unpack

from millwheel.errors import SourceError
from millwheel.limits import OPAQUE_SLACK_US
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.ports import RecordId, Source, SourcePartition, SourcePosition, WallClock
from millwheel_injectors.formats import Format, TextLines
from millwheel_injectors.identity import Catalog, FoundFile
from millwheel_injectors.partition import Reading, TextPartition, decode_state
from millwheel_injectors.rejects import Reject, open_rejects, raw_text
from millwheel_injectors.times import EventTime
from millwheel_injectors.watermarks import BoundedDisorder, Exact, FileCreation, Frontier, Policy

AnyPath: TypeAlias = str | os.PathLike[str]

QUIET_US: Final = 5 * SECOND
"""A file followed by a later one is finished when it was not written for so long: writers switch within
seconds."""


def wall_clock() -> int:
    """Wall time, int microseconds."""
    return time.time_ns() // 1_000


def modification_time(path: Path) -> int:
    """A `sort_key` for rotated logs: the file written last comes last."""
    return path.stat().st_mtime_ns


T = TypeVar("T", default=Any)


class FileOptions(TypedDict, total=False):
    """Keyword arguments of `FileSource` that do not depend on the type of its values."""

    tail: bool
    ordered: bool | None
    sort_key: Callable[[Path], Any] | None
    quiet_us: int | None
    later_files_not_before: int | Callable[[], int] | None
    rejects: AnyPath | None
    id_slack: int
    idle_after_us: int | None
    clock: WallClock


class FileSource(Source[T]):
    """Rows of text files, plain or gzip.

    `paths` is a file, a directory (the files in it) or a glob pattern, or several of them.  `event_time`
    gives the event time, us, of a value (None: the wall time of reading).  With `tail` files may grow and
    appear, and a last line without a newline is not a row yet; without it the files are complete.

    `ordered` says that the files, in `sort_key` order (default: by path), are in event time order within the
    bound; they are then read one after the other.  A tailed file is finished when it was not written for
    `quiet_us` and, if the source is ordered or its watermark is `FileCreation`, a later file exists (there
    the default is 5 s). `later_files_not_before` bounds the event times in files not there yet.  Malformed
    rows go to the file `rejects`, or to the log.

    `record_id` gives the id by which an outside client knows a value (text or bytes): of several rows with one id, in
    whichever file and whichever run, only the first is delivered, for `id_slack` us of wall time at least.  A row that is
    sent again must have the same content, so that it gets the same key.

    After `idle_after_us` of silence the runtime may advance
    the watermark to wall time minus the bound.
    """

    @overload
    def __init__(
        self: FileSource[str],
        name: str,
        paths: AnyPath | Sequence[AnyPath],
        format: None = None,
        event_time: EventTime[str] | None = None,
        watermark: Policy | None = None,
        *,
        record_id: RecordId[str] | None = None,
        **options: Unpack[FileOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        paths: AnyPath | Sequence[AnyPath],
        format: Format[T],
        event_time: EventTime[T] | None = None,
        watermark: Policy | None = None,
        *,
        record_id: RecordId[T] | None = None,
        **options: Unpack[FileOptions],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        paths: AnyPath | Sequence[AnyPath],
        format: Format[Any] | None = None,
        event_time: EventTime | None = None,
        watermark: Policy | None = None,
        *,
        tail: bool = False,
        ordered: bool | None = None,
        sort_key: Callable[[Path], Any] | None = None,
        quiet_us: int | None = None,
        later_files_not_before: int | Callable[[], int] | None = None,
        rejects: AnyPath | None = None,
        record_id: RecordId | None = None,
        id_slack: int = OPAQUE_SLACK_US,
        idle_after_us: int | None = None,
        clock: WallClock = wall_clock,
    ) -> None:
        self.name = name
        self.record_id = record_id
        self.id_slack = id_slack
        self.idle_after_us = idle_after_us
        self._patterns = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        self._tail = tail
        policy = BoundedDisorder() if watermark is None else watermark
        if tail and isinstance(policy, Exact):
            raise ValueError(
                f"source {name}: Exact() needs complete files; use BoundedDisorder or FileCreation to tail"
            )
        self._policy = policy
        self.disorder_us = policy.bound_us if isinstance(policy, BoundedDisorder) else 0
        self._by_nature = ordered is None
        self.ordered = self._one_log(filter(Path.is_file, self._patterns)) if ordered is None else ordered
        self._sort_key = sort_key
        self._quiet_us = quiet_us
        self._later = later_files_not_before
        form = format or TextLines()
        self._rejects = open_rejects(rejects, name)
        self._reading = Reading(form, event_time, policy, self._rejects, clock, tail)
        self._catalog = Catalog(form.head_lines, final=not tail)
        self._lock = threading.RLock()
        self._places: dict[str, Path] = {}
        self._order: list[str] = []
        self._partitions: dict[str, TextPartition] = {}
        self._frontier = Frontier()
        self._scanned_us: int | None = None

    def _one_log(self, files: Iterable[Path]) -> bool:
        """A single log that is tailed, and what follows it under its path, is ordered by nature.

        What a path will be that is not there yet, nobody knows: perhaps a directory.
        """
        return self._tail and len(self._patterns) == 1 and self._patterns[0] in files

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """Before the first `discover`: what the store knows of this source, so that files keep their
        names."""
        for position in positions:
            if not position.state:
                continue
            identity = decode_state(position.state).identity
            identity.finished = position.finished
            self._catalog.remember(position.partition, identity)

    def title(self, position: SourcePosition) -> str:
        """The file's path when it was seen last, below the source's root."""
        return decode_state(position.state).identity.path if position.state else position.partition

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """Partitions not in `known`, in order.  Raises `SourceError` for a rewritten file, or a wrong reject file."""
        if self._scanned_us is None:
            self._rejects.open()
        self._scan()
        skip = set(known)
        return [self._partition(name) for name in self._order if name not in skip]

    def _scan(self) -> None:
        with self._lock:
            started = self._reading.clock()
            found = self._catalog.match(self._list(), self._held)
            if self._by_nature and not self.ordered:
                self.ordered = self._one_log(file.place for file in found.values())
            order = sorted(found, key=lambda name: self._key(found[name]))
            self._places.update({name: file.place for name, file in found.items()})
            self._partitions = {name: p for name, p in self._partitions.items() if not p.finished()}
            self._frontier.value()
            self._order = order
            self._scanned_us = started

    def _key(self, file: FoundFile) -> Any:
        return file.path if self._sort_key is None else (self._sort_key(file.place), file.path)

    def _list(self) -> Iterator[tuple[Path, str]]:
        """Every file there is, with its path relative to the source's root; none twice."""
        listed: set[Path] = set()
        for pattern in self._patterns:
            files = expand(pattern)
            self._rejects.check_not(files)
            if not files and not self._tail:
                raise SourceError(f"source {self.name}: no file at {pattern}; check the path, or tail to wait for it")
            for place in files:
                if place not in listed:
                    listed.add(place)
                    yield place, place.relative_to(root_of(pattern)).as_posix()

    def _held(self, name: str) -> bool:
        partition = self._partitions.get(name)
        return partition is not None and partition.is_open()

    def _partition(self, name: str) -> TextPartition:
        partition = TextPartition(
            name, self._catalog.identity(name), self._reading, lambda: self._locate(name), self._sealed
        )
        self._partitions[name] = partition
        self._frontier.add(name, partition)
        return partition

    def _locate(self, name: str) -> Path:
        """Where the partition's file is now."""
        if not self._is_at(name, self._places[name]):
            self._scan()
            if name not in self._order:
                raise SourceError(
                    f"{self._places[name]}: partition {name}'s file is gone before it was read to its end; restore it"
                )
        return self._places[name]

    def _is_at(self, name: str, place: Path) -> bool:
        try:
            return place.stat().st_ino == self._catalog.identity(name).inode
        except FileNotFoundError:
            return False

    def _sealed(self, name: str, modified_us: int) -> bool:
        """True when a tailed file that is read to its end will not grow any more."""
        needs_later = self.ordered or isinstance(self._policy, FileCreation)
        quiet_us = QUIET_US if self._quiet_us is None and needs_later else self._quiet_us
        if quiet_us is None or self._reading.clock() - modified_us < quiet_us:
            return False
        return not needs_later or name not in self._order or name != self._order[-1]

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """Keep a row that the pipeline could not take (no key, not encodable) with the malformed ones."""
        self._rejects.add(partition, [Reject(row, reason, raw_text(value))])

    def rejections(self) -> Mapping[str, int]:
        """Rejected rows since the process began, by kind."""
        return self._rejects.kinds.counts

    def complete(self) -> bool:
        """True when all files were listed and none will be added."""
        return not self._tail and self._scanned_us is not None

    def pending_watermark(self) -> int:
        """Bound on the rows of files that are not discovered yet, us."""
        if self.complete():
            return MAX_TIME
        if self._later is not None:
            return self._later() if callable(self._later) else self._later
        if self._scanned_us is None:
            return MIN_TIME
        if isinstance(self._policy, FileCreation):
            return self._scanned_us - self._policy.slack_us
        if self.ordered:
            return self._frontier.value()
        return MIN_TIME


def root_of(pattern: Path) -> Path:
    """The directory below which a pattern's paths are told: up to its first wildcard, or a file's own."""
    if pattern.is_dir():
        return pattern
    parts = pattern.parts
    fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:fixed])


def expand(pattern: Path) -> list[Path]:
    """The files of one pattern, hidden ones left out, by path."""
    if pattern.is_dir():
        found: Iterable[Path] = pattern.iterdir()
    elif pattern.exists() or not glob.has_magic(str(pattern)):
        found = [pattern]
    else:
        found = map(Path, glob.glob(str(pattern), recursive=True))
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))
