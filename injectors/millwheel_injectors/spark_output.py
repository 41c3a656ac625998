"""What a PySpark job wrote, batch or streaming, exactly as committed.

Lives here: `SparkOutputSource`.  Never here: pyspark (files are all it needs), reading rows. Invariant: a
partition is a committed file; its name is the file's path in the output directory, and it never changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, overload

import msgspec
from typing_extensions import TypeVar, Unpack

from millwheel.errors import SourceError
from millwheel.limits import ASKED_FILES, LISTED_FILES, OPENED_FILES, OUTSIDE_SLACK_US, SPARK_LOG_ATTEMPTS
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import RecordId, Source, SourcePartition, SourcePosition, WallClock
from millwheel.search import Find, GiveWay, Search, Step, Unknown, alone, sign
from millwheel_injectors.arguments import (
    check_growing,
    check_later,
    check_lengths_us,
    check_names,
    check_path,
    check_switches,
    check_type,
)
from millwheel_injectors.files import AnyPath, wall_clock
from millwheel_injectors.formats import (
    Format,
    JsonLines,
    MalformedError,
    Parsed,
    Parser,
    checked_format,
    convert_each,
)
from millwheel_injectors.identity import inspect_file
from millwheel_injectors.parquet import ParquetPartition, ParquetReading
from millwheel_injectors.partition import Reading, TextPartition
from millwheel_injectors.rejects import Reject, open_rejects, raw_text
from millwheel_injectors.row_columns import field_types
from millwheel_injectors.spark_log import (
    LOG,
    CommittedFile,
    SinkLog,
    batch_runs,
    data_files,
    partition_values,
    refuse_other_tables,
)
from millwheel_injectors.streams import COMPRESSED
from millwheel_injectors.times import EventTime, check_event_time, field_time
from millwheel_injectors.watermarks import BoundedDisorder, FileCreation, Frontier, Policy, checked_policy

OutputPartition: TypeAlias = ParquetPartition | TextPartition


T = TypeVar("T", default=Any)

logger = logging.getLogger("millwheel")


class SparkOptions(TypedDict, total=False):
    """Keyword arguments of `SparkOutputSource` that do not depend on the type of its values."""

    columns: Sequence[str] | None
    tail: bool
    ordered: bool
    later_files_not_before: int | Callable[[], int] | None
    rejects: AnyPath | None
    id_slack: int
    idle_after_us: int | None
    clock: WallClock


class SparkOutputSource(Source[T]):
    """Rows that Spark committed below `directory`: Parquet or JSON (or text and CSV, with `format`).

    A streaming sink's directory is read through its `_spark_metadata`; a batch output only once it has `_SUCCESS`.
    `directory` may also hold several batch outputs, one directory per run.  `event_time` is a column name or a function of a
    value, as in `FileSource`.  A timestamp column is int us in values.  One without a zone is taken as UTC.  Values are of
    `type` (a `msgspec.Struct` or dataclass whose fields name columns) or dicts, of all columns or of `columns` (Parquet).
    Directories like `day=2026-01-01` are columns. With `tail` the source waits for what Spark commits later.

    `record_id` is as in `FileSource`, or the name of a column that values have.

    `ordered` says that the files, in commit and then path order, are in event time order within the bound.
    The other arguments are those of `FileSource`.
    """

    kind = "an output of Spark"

    @overload
    def __init__(
        self: SparkOutputSource[dict[str, Any]],
        name: str,
        directory: AnyPath,
        event_time: str | EventTime[dict[str, Any]],
        watermark: Policy | None = None,
        *,
        type: None = None,
        format: None = None,
        record_id: str | RecordId[dict[str, Any]] | None = None,
        **options: Unpack[SparkOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        directory: AnyPath,
        event_time: str | EventTime[T],
        watermark: Policy | None = None,
        *,
        type: type[T],
        format: Format[T] | None = None,
        record_id: str | RecordId[T] | None = None,
        **options: Unpack[SparkOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        directory: AnyPath,
        event_time: str | EventTime[T],
        watermark: Policy | None = None,
        *,
        type: None = None,
        format: Format[T],
        record_id: str | RecordId[T] | None = None,
        **options: Unpack[SparkOptions],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        directory: AnyPath,
        event_time: str | EventTime,
        watermark: Policy | None = None,
        *,
        type: Any = None,
        columns: Sequence[str] | None = None,
        format: Format | None = None,
        tail: bool = False,
        ordered: bool = False,
        later_files_not_before: int | Callable[[], int] | None = None,
        rejects: AnyPath | None = None,
        record_id: str | RecordId | None = None,
        id_slack: int = OUTSIDE_SLACK_US,
        idle_after_us: int | None = None,
        clock: WallClock = wall_clock,
    ) -> None:
        check_path(name, "directory", directory)
        check_path(name, "rejects", rejects)
        check_switches(name, tail=tail, ordered=ordered)
        check_growing(name, tail, idle_after_us=idle_after_us, later_files_not_before=later_files_not_before)
        check_lengths_us(name, idle_after_us=idle_after_us, id_slack=id_slack)
        check_later(name, later_files_not_before)
        check_names(f"source {name}: columns={{}}", columns)
        if type is not None:
            check_type(f"source {name}: type={type!r:.80}", type)
        if format is not None:
            checked_format(name, format)
        self.name = name
        self.record_id = _record_id(name, record_id, type, columns)
        self.id_slack = id_slack
        self.ordered = ordered
        self.idle_after_us = idle_after_us
        policy = checked_policy(name, watermark)
        check_event_time(name, event_time)
        if isinstance(policy, FileCreation):
            raise ValueError(f"source {name}: Spark writes files after their events; use BoundedDisorder or Exact")
        self.disorder_us = policy.bound_us if isinstance(policy, BoundedDisorder) else 0
        self._directory = Path(directory)
        self._type = type
        self._format = format
        self._tail = self.grows = tail
        self._later = later_files_not_before
        self._rejects = kept = open_rejects(rejects, name)
        self._parquet = ParquetReading(type, columns, event_time, policy, kept)
        self._text = Reading(
            format or JsonLines(Any if type is None else type),
            field_time(event_time) if isinstance(event_time, str) else event_time,
            policy,
            kept,
            clock,
        )
        self._log: SinkLog | None = None
        self._waits_for = ""
        """The log of a batch that is missing, as the last look has found it."""
        self._frontier = Frontier()
        self._bound: int | None = None
        """What `later_files_not_before` said before the last look began."""
        self._listed = False
        self._begun: set[str] = set()
        self._released: set[str] = set()

    def recall(self, positions: Iterable[SourcePosition]) -> None:
        """Before the first search: what earlier runs have begun, so that it is not read again by another name.

        This process may have had the source before, and lost it, or all has gone back: what it was given then is given again.
        """
        if self._log is not None:
            self._log.rewind()
        self._begun = {position.partition for position in positions if not position.finished}

    def signs(self, position: SourcePosition) -> list[bytes]:
        """Its path; and in a batch output its run, however runs are told apart."""
        path = position.partition
        runs = [] if self._log is not None else [sign("run", ""), sign("run", path.split("/")[0])]
        return [*super().signs(position), *runs]

    def release(self, name: str) -> None:
        """Forget a finished file when the next search begins."""
        self._released.add(name)

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """Committed files not in `known`, in commit order, then by path, as if no run had finished any."""
        if self._log is not None:
            self._log.rewind()
        return alone(self.search({*known}))

    def search(self, known: set[str]) -> Search:
        """Committed files not in `known`, in commit order, then by path.  Raises `SourceError` for a file that is gone or
        overwritten."""
        self._bound = self._later() if callable(self._later) else self._later
        if not self._listed:
            self._rejects.open()
        released, self._released = self._released, set()
        known -= released
        files = yield from self._look(known)
        self._rejects.check_not(self._directory / file.path for file in files)
        self._frontier.value()
        found: list[SourcePartition] = []
        for file in files:
            found.append(self._partition(file))
            if len(found) % OPENED_FILES == 0:
                yield GiveWay()
        if self._log is not None:
            self._log.keep()
        return found

    def _look(self, known: set[str]) -> Generator[Step, Any, list[CommittedFile]]:
        """Files that are not finished."""
        refuse_other_tables(self._directory)
        if self._log is None and (self._directory / LOG).is_dir():
            self._log = SinkLog(self._directory)
        if self._log is None:
            return (yield from self._look_at_runs(known))
        self._listed = True
        for attempt in range(SPARK_LOG_ATTEMPTS):
            try:
                files = yield from self._unfinished(self._log.committed(), known)
                self._mind_the_gap(self._log.missing)
                return files
            except FileNotFoundError:  # Spark compacted, and deleted what we were reading
                if attempt == SPARK_LOG_ATTEMPTS - 1:
                    raise
        return []

    def _mind_the_gap(self, missing: str) -> None:
        """Spark logs one batch after the other: where one is missing, somebody has not copied it yet, or has removed it."""
        if missing and not self._tail:
            raise SourceError(f"{missing}: is missing, and later batches are there: restore it")
        if missing and missing != self._waits_for:
            logger.warning("source %s: %s is missing, and later batches wait for it: restore it", self.name, missing)
        self._waits_for = missing

    def _look_at_runs(self, known: set[str]) -> Generator[Step, Any, list[CommittedFile]]:
        runs = batch_runs(self._directory)
        for run in runs:
            refuse_other_tables(run)
        if not runs and not self._tail and not self._directory.exists():
            raise SourceError(
                f"source {self.name}: no directory at {self._directory}; check the path, or tail to wait for it"
            )
        if not runs and not self._tail:
            raise SourceError(
                f"source {self.name}: {self._directory} has neither {LOG} nor _SUCCESS: Spark has not "
                "finished writing it, or failed; run the job again, or pass tail=True to wait for it"
            )
        self._listed = self._listed or bool(runs)
        files: list[CommittedFile] = []
        for run in runs:
            below = "" if run == self._directory else f"{run.name}/"
            left = yield from self._unfinished((CommittedFile(path) for path in data_files(run, below)), known)
            if left:
                yield from self._refuse_overwritten(run, known)
            files += sorted(left, key=lambda file: file.path.split("/"))
        return files

    def _unfinished(self, files: Iterable[CommittedFile], known: set[str]) -> Generator[Step, Any, list[CommittedFile]]:
        left: dict[str, CommittedFile] = {}
        batch: dict[bytes, CommittedFile] = {}
        for number, file in enumerate(files, 1):
            if file.path not in known:
                batch[sign("name", file.path)] = file
            if number % LISTED_FILES == 0:
                yield GiveWay()
            if len(batch) == ASKED_FILES:
                unknown = yield Unknown([*batch])
                left.update((file.path, file) for known_by, file in batch.items() if known_by in unknown)
                batch = {}
        unknown = (yield Unknown([*batch])) if batch else set()
        left.update((file.path, file) for known_by, file in batch.items() if known_by in unknown)
        return [*left.values()]

    def _refuse_overwritten(self, run: Path, known: set[str]) -> Generator[Step, Any, None]:
        """Spark names files anew at every write: their rows would come twice.  A run that has new files is looked at."""
        name = "" if run == self._directory else run.name
        finished: list[SourcePosition] = yield Find([sign("run", name)])
        begun = {path for path in known | self._begun if not name or path.startswith(f"{name}/")}
        for number, path in enumerate(sorted({position.partition for position in finished} | begun), 1):
            if not (self._directory / path).exists():
                raise SourceError(
                    f"{self._directory / path}: was read before, and the output was overwritten; restore it, or reset the "
                    "pipeline, and write each run into a directory of its own"
                )
            if number % LISTED_FILES == 0:
                yield GiveWay()

    def _partition(self, file: CommittedFile) -> OutputPartition:
        place = self._directory / file.path
        try:
            size = os.stat(place).st_size
        except FileNotFoundError as error:
            raise SourceError(f"{place}: committed by Spark, but gone; restore it") from error
        if file.size is not None and size != file.size:
            raise SourceError(f"{place}: rewritten: {size} bytes, but Spark committed {file.size}; restore it")
        partition = self._open(file.path, place)
        self._frontier.add(file.path, partition)
        return partition

    def _open(self, path: str, place: Path) -> OutputPartition:
        constants = partition_values(path)
        if self._format is None and place.suffix == ".parquet":
            return ParquetPartition(path, place, self._parquet, constants)
        if self._format is None and ".json" not in place.suffixes:
            raise SourceError(f"{place}: neither Parquet nor JSON; pass format= for other text files")
        if place.suffix in COMPRESSED:
            raise SourceError(f"{place}: compressed with {place.suffix[1:]}, and only gzip is read: write it again")
        reading = self._text
        if constants:
            if not isinstance(reading.format, JsonLines):
                raise SourceError(f"{place}: partition directories are understood for Parquet and JSON only")
            type_ = reading.format.type if self._type is None else self._type
            reading = msgspec.structs.replace(reading, format=WithConstants(reading.format, constants, type_))
        return TextPartition(path, inspect_file(place, path).identity(), reading, lambda: place)

    def reject(self, partition: str, row: int, reason: str, value: Any) -> None:
        """Keep a row that the pipeline could not take (no key, not encodable) with the malformed ones."""
        self._rejects.add(partition, [Reject(row, reason, raw_text(value))])

    def rejections(self) -> Mapping[str, int]:
        """Rejected rows since the process began, by kind."""
        return self._rejects.kinds.counts

    def complete(self) -> bool:
        """True when all files were listed and none will be added."""
        return not self._tail and self._listed

    def pending_watermark(self) -> int:
        """Bound on the rows of files that are not committed yet, us."""
        if self.complete():
            return MAX_TIME
        if self._bound is not None:
            return self._bound
        if self.ordered:
            return self._frontier.value()
        return MIN_TIME


def _record_id(
    source: str, record_id: str | RecordId[T] | None, type_: Any, columns: Sequence[str] | None
) -> RecordId | None:
    """A column's name as a function of structs or dicts."""
    if not isinstance(record_id, str):
        if record_id is not None and not callable(record_id):
            raise ValueError(
                f"source {source}: record_id={record_id!r:.80}: give the name of a column or a function of a value"
            )
        return record_id
    known = list(field_types(type_)) if type_ is not None else columns
    if known is not None and record_id not in known:
        raise ValueError(f"source {source}: values have no column {record_id!r} for record_id, but {', '.join(known)}")
    return itemgetter(record_id) if type_ is None else attrgetter(record_id)


class WithConstants:
    """JSON rows with the columns that Spark moved from the rows into directory names."""

    def __init__(self, inner: JsonLines, constants: Mapping[str, str | None], type: Any) -> None:
        self.head_lines = inner.head_lines
        self._constants = constants
        self._type = type

    def parser(self) -> Parser:
        """A parser for one file."""
        return _ConstantsParser(self._constants, self._type)


class _ConstantsParser:
    memory: Any = None

    def __init__(self, constants: Mapping[str, str | None], type: Any) -> None:
        self._inner = JsonLines(dict[str, Any]).parser()
        self._constants = constants
        self._type = type

    def parse(self, lines: list[bytes], row: int, limit: int, final: bool) -> Parsed:
        parsed = self._inner.parse(lines, row, limit, final)
        for value in parsed.values:
            value.update(self._constants)
        if self._type is Any:
            return parsed
        rows, values = parsed.rows, parsed.values
        by_row = dict(zip(rows, values, strict=True))
        typed = convert_each([parsed.raws[index] for index in rows], lambda index: self._typed(by_row[rows[index]]))
        return merge(parsed, typed)

    def _typed(self, value: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(value, self._type, strict=False)
        except msgspec.MsgspecError as error:
            raise MalformedError(str(error)) from error


def merge(outer: Parsed, inner: Parsed) -> Parsed:
    """`outer`, whose values went through a second step that made `inner`, numbered by them."""
    rejects = outer.rejects + [reject._replace(row=outer.rows[reject.row]) for reject in inner.rejects]
    rows = [outer.rows[index] for index in inner.rows]
    ordered = sorted(rejects, key=lambda reject: reject.row)
    return Parsed(outer.lines, outer.raws, rows, inner.values, ordered)
