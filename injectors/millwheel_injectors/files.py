"""Text files on disk, complete or growing (§5.2).

Lives here: `FileSource`: which files there are, in which order, and what the source promises of those to
come. Never here: reading rows (`partition.py`), telling files apart (`identity.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, overload

from typing_extensions import TypeVar, Unpack

from millwheel.errors import SourceError
from millwheel.limits import (
    ASKED_FILES,
    ASKED_NAMES,
    FILE_QUIET_US,
    LISTED_FILES,
    OPENED_FILES,
    OUTSIDE_SLACK_US,
    RENAMED_DELAY_S,
    RENAMED_LOOKS,
)
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import RecordId, Source, SourcePartition, SourcePosition, WallClock
from millwheel.search import BlockingCall, Find, GiveWay, MoreSigns, Search, Step, Unknown, alone
from millwheel_injectors.arguments import (
    check_functions,
    check_growing,
    check_later,
    check_lengths_us,
    check_path,
    check_switches,
)
from millwheel_injectors.formats import Format, checked_format, value_type
from millwheel_injectors.identity import (
    Catalog,
    FoundFile,
    Identity,
    Listed,
    below_its_root,
    each_once,
    is_twin,
    likeness,
    names_for,
    rewritten_message,
    signs_of,
)
from millwheel_injectors.listing import list_files, prefixes
from millwheel_injectors.paced import PacedTextPartition, check_pace
from millwheel_injectors.partition import Reading, TextPartition, decode_state
from millwheel_injectors.rejects import Reject, open_rejects, raw_text
from millwheel_injectors.streams import read_head
from millwheel_injectors.times import EventTime, named_time
from millwheel_injectors.watermarks import BoundedDisorder, Exact, FileCreation, Frontier, Policy, checked_policy

AnyPath: TypeAlias = str | os.PathLike[str]


def wall_clock() -> int:
    """Wall time, int microseconds."""
    return time.time_ns() // 1_000


def modification_time(path: Path) -> int:
    """A `sort_key` for rotated logs: the file written last comes last."""
    return path.stat().st_mtime_ns


T = TypeVar("T", default=Any)


def _is_path(given: object) -> bool:
    return isinstance(given, str | os.PathLike) and given != ""


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
    pace: float | None


class FileSource(Source[T]):
    """Rows of text files, plain or gzip.

    `paths` is a file, a directory (the files in it) or a glob pattern, or several of them.  With `tail` files may
    grow and appear, and a last line without a newline is not a row yet; without it the files are complete.

    `event_time` is the name of a field, or a function of a value.  It gives int microseconds since 1970, a datetime with a
    zone, or ISO 8601 text with one.  Anything else makes the row malformed, for example a float or a time without a zone.
    None stands for the wall time of reading.  Then a row has another time when it is read again after a crash, and results
    that depend on event time differ from run to run.

    `ordered` says that the files, in `sort_key` order (default: by path), are in event time order within the bound.  They are
    then read one after the other.  A tailed file is finished when it was not written for `quiet_us`.  If the source is
    ordered or its watermark is `FileCreation`, a later file must exist as well, and the default of `quiet_us` is 5 s.
    `later_files_not_before`, us or a function that gives them, bounds the event times in files not there yet.  Malformed rows
    go to the file `rejects`, or to the log.

    `record_id` gives the id, text or bytes, by which an outside client knows a value.  Of several rows with one id, only the
    first is delivered, whichever files and runs they are in.  This holds for at least `id_slack` us of wall time.  A row that
    is sent again must have the same content, so that it gets the same key.

    After `idle_after_us` of silence the runtime may advance the watermark to wall time minus the bound.

    `pace` replays complete files at so many us of event time in each us of wall time, on a clock that starts with the run at
    the first row.  A row comes no earlier than that clock reaches the newest event time up to the row.
    """

    kind = "files"

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
        event_time: str | EventTime[T] | None = None,
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
        event_time: str | EventTime | None = None,
        watermark: Policy | None = None,
        *,
        tail: bool = False,
        ordered: bool | None = None,
        sort_key: Callable[[Path], Any] | None = None,
        quiet_us: int | None = None,
        later_files_not_before: int | Callable[[], int] | None = None,
        rejects: AnyPath | None = None,
        record_id: RecordId | None = None,
        id_slack: int = OUTSIDE_SLACK_US,
        idle_after_us: int | None = None,
        clock: WallClock = wall_clock,
        pace: float | None = None,
    ) -> None:
        patterns = [paths] if isinstance(paths, str | os.PathLike) else paths
        if not isinstance(patterns, Iterable) or not patterns or not all(map(_is_path, patterns)):
            raise ValueError(f"source {name}: paths={paths!r}: give a path, a glob pattern or a list of them")
        check_functions(name, "a value", record_id=record_id)
        check_functions(name, "a path", sort_key=sort_key)
        check_switches(name, tail=tail, ordered=ordered is True if ordered is None else ordered)
        check_lengths_us(name, quiet_us=quiet_us, idle_after_us=idle_after_us, id_slack=id_slack)
        check_later(name, later_files_not_before)
        check_path(name, "rejects", rejects)
        self.name = name
        self.record_id = record_id
        self.id_slack = id_slack
        self.idle_after_us = idle_after_us
        self._patterns = [Path(path) for path in patterns]
        self._tail = self.grows = tail
        policy = checked_policy(name, watermark)
        if tail and isinstance(policy, Exact):
            raise ValueError(
                f"source {name}: Exact() needs complete files; use BoundedDisorder or FileCreation to tail"
            )
        check_pace(name, pace, tail, event_time, idle_after_us)
        check_growing(
            name, tail, quiet_us=quiet_us, idle_after_us=idle_after_us, later_files_not_before=later_files_not_before
        )
        self.pace = pace
        self._policy = policy
        self.disorder_us = policy.bound_us if isinstance(policy, BoundedDisorder) else 0
        self._by_nature = ordered is None
        self.ordered = self._one_log() if ordered is None else ordered
        self._sort_key = sort_key
        self._quiet_us = quiet_us
        self._later = later_files_not_before
        form = checked_format(name, format)
        self._rejects = open_rejects(rejects, name)
        time = named_time(name, event_time, value_type(form))
        self._reading = Reading(form, time, policy, self._rejects, clock, tail)
        self._catalog = Catalog(form.head_lines, final=not tail)
        self._places: dict[str, Path] = {}
        self._keys: dict[str, Any] = {}
        """By which files are in order; those that the last search found and that are not finished."""
        self._newest: Any = None
        """The largest key of any file, finished ones included, as the last search that is over has found it.  Files are read
        while a search goes on, so what it has found so far does not count."""
        self._reached: Any = None
        """The same of the search that is under way."""
        self._released: set[str] = set()
        self._partitions: dict[str, TextPartition] = {}
        self._frontier = Frontier()
        self._bound: int | None = None
        """What `later_files_not_before` said before the last look began."""
        self._scanned_us: int | None = None

    def _one_log(self) -> bool:
        """A single log that is tailed, and what follows it under its path, is ordered by nature.

        What a path will be that is not there yet, nobody knows: perhaps a directory.
        """
        return self._tail and len(self._patterns) == 1 and self._patterns[0].is_file()

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """Before the first search: what earlier runs have begun and not finished, so that files keep their names."""
        for position in positions:
            if position.state and not position.finished:
                self._catalog.remember(position.partition, decode_state(position.state).identity)

    def signs(self, position: SourcePosition) -> list[bytes]:
        """Of a finished file: its place, untouched and as such, its inode, and its beginning when that is long."""
        return signs_of(decode_state(position.state).identity) if position.state else super().signs(position)

    def release(self, name: str) -> None:
        """Forget a finished file when the next search begins; one that is under way may have met it before."""
        self._released.add(name)

    def title(self, position: SourcePosition) -> str:
        """The file's path when it was seen last, below the source's root."""
        return decode_state(position.state).identity.path if position.state else position.partition

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """Partitions not in `known`, in order, as if no run had finished any."""
        return alone(self.search({*known}))

    def search(self, known: set[str]) -> Search:
        """Partitions not in `known`, in order.  Raises `SourceError` for a rewritten file, or a wrong reject file."""
        started = self._reading.clock()
        self._bound = self._later() if callable(self._later) else self._later
        if self._scanned_us is None:
            self._rejects.open()
        if self._by_nature and not self.ordered:
            self.ordered = self._one_log()
        self._forget_released(known)
        finished = yield from self._recognised(started)
        self._frontier.value()
        self._partitions = {name: p for name, p in self._partitions.items() if not p.finished()}
        self._scanned_us = started
        order = sorted(self._keys, key=lambda name: self._keys[name])
        return [self._partition(name) for name in order if name not in known and name not in finished]

    def _forget_released(self, known: set[str]) -> None:
        released, self._released = self._released, set()
        known -= released
        for name in released:
            self._catalog.forget(name)
            self._places.pop(name, None)

    def _recognised(self, started: int) -> Generator[Step, Any, set[str]]:
        """The names of those that are finished.  What is refused is looked at again, unless nothing can be renamed."""
        for _ in range(RENAMED_LOOKS if self._tail else 0):
            try:
                return (yield from self._recognise((yield from self._look(started))))
            except SourceError:
                yield BlockingCall(lambda: time.sleep(RENAMED_DELAY_S))
        return (yield from self._recognise((yield from self._look(started))))

    def _look(self, started: int) -> Generator[Step, Any, list[FoundFile]]:
        """Files that are not finished, or that somebody has touched since, and how they begin."""
        self._reached = None
        left: list[Listed] = []
        batch: dict[bytes, Listed] = {}
        for number, listed in enumerate(self._list(), 1):
            batch[listed.sign()] = listed
            if number % LISTED_FILES == 0:
                yield GiveWay()
            if len(batch) == ASKED_FILES:
                left += yield from self._unfinished(batch)
                batch = {}
        left += yield from self._unfinished(batch)
        self._rejects.check_not(Path(listed.place) for listed in left)
        files = []
        for number, listed in enumerate(left, 1):
            file = self._catalog.look(listed)
            if file is not None and not (self._tail and is_twin(file)):
                files.append(file)
            if number % OPENED_FILES == 0:
                yield GiveWay()
        self._catalog.keep(files)
        return each_once(files)

    def _unfinished(self, batch: Mapping[bytes, Listed]) -> Generator[Step, Any, list[Listed]]:
        unknown = (yield Unknown([*batch])) if batch else set()
        self._reach(listed for sign, listed in batch.items() if sign not in unknown)
        return [listed for sign, listed in batch.items() if sign in unknown]

    def _reach(self, files: Iterable[Listed]) -> None:
        """Files after which another one is not the last."""
        if self._tail:
            keys = [key for file in files if (key := self._key(Path(file.place), file.path)) is not None]
            self._reached = max([*keys, self._reached] if self._reached is not None else keys, default=None)

    def _recognise(self, files: list[FoundFile]) -> Generator[Step, Any, set[str]]:
        """Give every file its name; the names of those that are finished."""
        catalog = self._catalog
        strangers = catalog.strangers(files)
        stored = yield from self._stored(strangers)
        for position in stored.values():
            if not position.finished and position.state:  # another process has begun it meanwhile
                catalog.remember(position.partition, decode_state(position.state).identity)
        done = {name: finished_identity(at) for name, at in stored.items() if at.finished and at.state}
        found, new = catalog.match(files, done, self._held, self._is_listed)
        taken = {*stored, *catalog.names()}
        asked = {file.place for file in strangers}
        for file in new:
            base = catalog.base(file)
            if base is not None and base in stored and not stored[base].state and stored[base].finished:
                found[base] = file  # by an early version, which did not always store what it had read
                continue
            name = yield from self._new_name(file, taken, file.place in asked)
            if name is not None:
                taken.add(name)
                catalog.remember(name, file.identity())
                found[name] = file
        touched = {name: file for name, file in found.items() if name in stored and name not in catalog.names()}
        if touched:
            yield MoreSigns({stored[name].interval: [*file.signs(), file.look()] for name, file in touched.items()})
        self._place({name: file for name, file in found.items() if name not in touched}, touched.values())
        return {*touched}

    def _stored(self, files: list[FoundFile]) -> Generator[Step, Any, dict[str, SourcePosition]]:
        """Partitions that may be these files, or have the names that they would get."""
        stored: dict[str, SourcePosition] = {}
        for first in range(0, len(files), ASKED_FILES):
            part = files[first : first + ASKED_FILES]
            signs = {sign for file in part for sign in file.signs()}
            bases = ((file, base) for file in part if (base := self._catalog.base(file)) is not None)
            names = {name for file, base in bases for name in islice(names_for(file, base), ASKED_NAMES)}
            found: list[SourcePosition] = yield Find(sorted(signs), sorted(names))
            stored.update((position.partition, position) for position in found)
        return stored

    def _new_name(self, file: FoundFile, taken: set[str], asked: bool) -> Generator[Step, Any, str | None]:
        base = self._catalog.base(file)
        if base is None:
            return None
        for number, name in enumerate(names_for(file, base)):
            if not asked or number >= ASKED_NAMES:
                taken |= {position.partition for position in (yield Find(names=[name]))}
            if name not in taken:
                break
        return name

    def _place(self, found: Mapping[str, FoundFile], finished: Iterable[FoundFile]) -> None:
        self._reach(Listed(str(f.place), f.path, f.inode, f.size, f.mtime_ns) for f in (*found.values(), *finished))
        self._places.update({name: file.place for name, file in found.items()})
        for name in found.keys() & self._partitions.keys():
            self._partitions[name].meet(found[name])
        keys = {name: self._key(file.place, file.path) for name, file in found.items()}
        self._keys = {name: key for name, key in keys.items() if key is not None}
        self._newest = self._reached

    def _key(self, place: Path, path: str) -> Any:
        """Its place in the order; None when it is gone."""
        try:
            return below_its_root(path) if self._sort_key is None else (self._sort_key(place), path)
        except FileNotFoundError:
            return None

    def _list(self) -> Iterator[Listed]:
        """Every file there is; none twice."""
        listed: set[str] = set()
        for pattern, prefix in zip(self._patterns, prefixes(self._patterns), strict=True):
            empty = True
            for file in list_files(pattern, prefix):
                empty = False
                if file.place in listed:
                    continue
                if len(self._patterns) > 1:
                    listed.add(file.place)
                yield file
            if empty and not self._tail:
                raise SourceError(f"source {self.name}: no file at {pattern}; check the path, or tail to wait for it")

    def _is_listed(self, identity: Identity) -> bool:
        """It is asked of the few files that may be finished ones by their paths alone.

        Another file may have the inode by now.
        """
        looks = (self._catalog.look(listed) for listed in self._list() if listed.inode == identity.inode)
        return any(file is not None and identity.fits(file.head) for file in looks)

    def _held(self, name: str) -> bool:
        partition = self._partitions.get(name)
        return partition is not None and partition.is_open()

    def _partition(self, name: str) -> TextPartition:
        kind = TextPartition if self.pace is None else PacedTextPartition
        partition = kind(name, self._catalog.identity(name), self._reading, lambda: self._locate(name), self._sealed)
        self._partitions[name] = partition
        self._frontier.add(name, partition)
        return partition

    def _locate(self, name: str) -> Path:
        """Where the partition's file is now."""
        place, identity = self._places[name], self._catalog.identity(name)
        if not self._is_at(name, place):
            moved = self._moved(identity)
            for _ in range(RENAMED_LOOKS if self._tail and moved is None else 0):
                time.sleep(RENAMED_DELAY_S)  # a directory that renames meanwhile may leave a file out
                moved = moved or self._moved(identity)
            if moved is None and place.exists():
                raise SourceError(rewritten_message(place, identity))
            if moved is None:
                raise SourceError(f"{place}: partition {name}'s file is gone before it was read to its end; restore it")
            identity.path, identity.inode = moved.path, moved.inode
            self._places[name] = moved.place
        return self._places[name]

    def _moved(self, identity: Identity) -> FoundFile | None:
        """A file that was renamed since the last search; or, with a look into each, one that was copied or compressed."""
        renamed = (file for file in self._list() if file.inode == identity.inode)
        for listed in chain(renamed, self._list()):  # an inode may be another file's by now
            file = self._catalog.look(listed)
            if file is not None and identity.fits(file.head) and likeness(identity, file) is not None:
                return file
        return None

    def _is_at(self, name: str, place: Path) -> bool:
        """Another file may have its path and its inode by now."""
        identity = self._catalog.identity(name)
        try:
            return place.stat().st_ino == identity.inode and identity.fits(read_head(place))
        except FileNotFoundError:
            return False

    def _sealed(self, name: str, modified_us: int) -> bool:
        """True when a tailed file that is read to its end will not grow any more."""
        needs_later = self.ordered or isinstance(self._policy, FileCreation)
        quiet_us = FILE_QUIET_US if self._quiet_us is None and needs_later else self._quiet_us
        if quiet_us is None or self._reading.clock() - modified_us < quiet_us:
            return False
        return not needs_later or name not in self._keys or self._keys[name] != self._newest

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """Keep a row that the pipeline could not take (no key, not encodable) with the malformed ones."""
        self._rejects.add(partition, [Reject(row, reason, raw_text(value))], self._catalog.path(partition))

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
        if self._bound is not None:
            return self._bound
        if self._scanned_us is None:
            return MIN_TIME
        if isinstance(self._policy, FileCreation):
            return self._scanned_us - self._policy.slack_us
        if self.ordered:
            return self._frontier.value()
        return MIN_TIME


def finished_identity(position: SourcePosition) -> Identity:
    """What the store remembers of a file that was read to its end."""
    identity = decode_state(position.state).identity
    identity.finished = True
    return identity
