"""Questions about a pipeline, answered from what its store has committed: the Python side of every query command.

Lives here: `Committed`, which decodes what the storage's reader finds, and `reset`.  Never here: soft state, printing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Self, overload

import msgspec
from typing_extensions import TypeVar

from millwheel.api.computation import cells_of
from millwheel.api.pipeline import Pipeline
from millwheel.api.state import Cell, decoded_state
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.cluster import Standstill
from millwheel.coders import Coder
from millwheel.errors import StoreError, WiringError
from millwheel.graph import ComputationSpec
from millwheel.host.keepers import keepers
from millwheel.host.skews import too_far_ahead
from millwheel.host.stalls import NOTHING_YET, why_it_waits
from millwheel.ids import SubscriptionId
from millwheel.launch import DEFAULT_DATA, checked_pipeline, open_store
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.ports import QuarantineRow, SourcePosition
from millwheel.shape import PUBLISH_PREFIX
from millwheel.stored_values import unreadable
from millwheel.work import QUARANTINE_HOLD
from millwheel_storage.postgres.overlays import StateRow
from millwheel_storage.postgres.planned import Report
from millwheel_storage.postgres.planned import check as check_store
from millwheel_storage.postgres.reader import PublishedRow, Reader
from millwheel_storage.postgres.reader import reset as reset_schema

T = TypeVar("T", default=Any)


class Published(msgspec.Struct, Generic[T], frozen=True):
    """A record of a published stream: its place in the stream (dense, from 1), event time us, decoded value.

    `missed` counts the records right before it that were replaced before they were read.
    """

    position: int
    timestamp: int
    value: T
    missed: int = 0


class Held(msgspec.Struct, frozen=True):
    """One thing that a computation's low watermark waits for: `kind`, its time (us), and what it is."""

    kind: str
    timestamp: int
    what: str
    since: int | None = None
    """Since when it keeps the watermark, us of wall time; None where that is not known."""

    def __str__(self) -> str:
        since = "" if self.since is None else f"\tsince {format_time(self.since)}"
        return f"{self.kind}\t{format_time(self.timestamp)}\t{self.what}{since}"


def _when(held: Held) -> int:
    return held.timestamp


class Committed:
    """A pipeline's committed state, also while it runs elsewhere.  Use it as a context manager.

    `store` and `data` are as for `millwheel.launch.run`.  Names that the pipeline does not have are a `WiringError`, a
    pipeline that never ran is a `StoreError`.

        with Committed(pipeline) as committed:
            committed.state("Count", "to")  # {"seen": 2}
    """

    def __init__(self, pipeline: Pipeline, store: str | None = None, data: str | Path = DEFAULT_DATA) -> None:
        self._pipeline = checked_pipeline(pipeline, "Committed")
        self._graph = pipeline.graph()
        self._place = (store, data)
        self._stack = contextlib.ExitStack()
        self._reader: Reader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader = None
        self._stack.close()

    @property
    def reader(self) -> Reader:
        """The same questions with values as bytes, and more of them: timers, holds, sources, table sizes.

        Opened, and an embedded Postgres started, when it is needed first.
        """
        if self._reader is None:
            with contextlib.ExitStack() as stack:
                url = stack.enter_context(open_store(*self._place, create=False))
                self._reader = stack.enter_context(Reader(url, self._pipeline.name))
                self._stack = stack.pop_all()
        return self._reader

    # --- state ------------------------------------------------------------------------------------------------

    def state(self, computation: str, key: str) -> dict[str, Any]:
        """Cell name to value of one key: the value, a list or a dict; cells that are not set are absent."""
        return decoded_state(self.cells(computation), _slots(self.reader.get_state(computation, key)))

    def states(self, computation: str, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """(key, `state`) of every key that begins with `prefix`, in key order; streamed, so any number will do."""
        declared = self.cells(computation)
        last: str | None = None
        rows: list[StateRow] = []
        for row in self.reader.scan_state(computation, prefix):
            if row.key != last and last is not None:
                yield last, decoded_state(declared, _slots(rows))
                rows = []
            last = row.key
            rows.append(row)
        if last is not None:
            yield last, decoded_state(declared, _slots(rows))

    def cells(self, computation: str) -> Mapping[str, Cell]:
        """The cells that the code declares, by name; raises `WiringError` for a computation that the pipeline has not."""
        return cells_of(type(self._spec(computation).factory()))

    def _spec(self, computation: str) -> ComputationSpec:
        spec = self._graph.computations.get(computation)
        if spec is None:
            known = sorted(name for name in self._graph.computations if not name.startswith(PUBLISH_PREFIX))
            raise WiringError(f"no computation {computation!r}; there are {known}")
        return spec

    # --- time -------------------------------------------------------------------------------------------------

    def explain(self, computation: str, limit: int = 10) -> list[Held]:
        """What `computation`'s low watermark waits for: its senders, then what is oldest of its own.

        On a cluster the first of them is what keeps it where it stands, wherever that is upstream, as its worker says:
        source, interval, key, and the record, timer or hold, with `since`; and what nobody serves there.  Where no worker
        says so, the first of them is what is stored of it: the oldest timer, hold or production there, or its partition.
        Sources that wait because they are too far ahead come next.
        Watermarks of everything that bounds its input and its own; the edges that close a loop at it; sources that feed it,
        are not read to their end and are left out of the pipeline; of other sources the first `limit` partitions that are
        not read to their end; its first `limit` timers, its first `limit` holds, those
        of quarantines among them, and each of its intervals' oldest production that the receiver has not taken.
        """
        self._spec(computation)
        watermarks = self.reader.watermarks()
        left_out = self._left_out(computation)
        found = self._keeping(computation, watermarks)
        for name, text in too_far_ahead(self._graph, watermarks).items():
            found.append(Held("paused", watermarks[f"source:{name}"], text))
        found += [
            Held("watermark", watermarks.get(name, MIN_TIME), name)
            for name in (*sorted(self._graph.bounds(computation)), computation)
        ]
        found += self._back_edges(computation, watermarks)
        found += [Held("left out", watermarks.get(f"source:{name}", MIN_TIME), f"source {name}") for name in left_out]
        for name in self._graph.senders(computation):
            found += self._unfinished(name.removeprefix("source:"), limit) if name.startswith("source:") else []
        return found + self._own(computation, limit)

    def _own(self, computation: str, limit: int | None, by_wall_time: bool = True) -> list[Held]:
        """Its first timers, its first holds, and the oldest production of each of its intervals."""
        asleep = self.reader.quarantined_keys(computation)  # whose timers do not fire
        timers = [timer for timer in self.reader.timers(computation) if timer.key not in asleep]
        timers = [timer for timer in timers if by_wall_time or timer.kind == "watermark"]
        found = [
            Held("timer", timer.timestamp, f"key {timer.key!r} tag {timer.tag!r} ({timer.kind})")
            for timer in timers[:limit]
        ]
        kept = self._spec(computation).settings.quarantine_holds
        holds = {key: at for key, at in self.reader.holds(computation).items() if kept or key not in asleep}
        found += [_hold(*hold) for hold in sorted(holds.items(), key=lambda hold: hold[1])[:limit]]
        return found + [
            Held(oldest.kind, oldest.timestamp, f"interval {oldest.interval} key {oldest.key!r}")
            for oldest in self.reader.oldest_productions()
            if oldest.computation == computation
        ]

    def _keeping(self, computation: str, watermarks: Mapping[str, int]) -> list[Held]:
        """What workers of a cluster say that keeps it, and what has no owner there; of others what the store has."""
        if watermarks.get(computation, MIN_TIME) == MAX_TIME:
            return []
        loops = {loop.name: loop.members for loop in self._graph.loops}
        names = keepers(computation, watermarks, self._bounds_of, loops)
        standing = [
            one
            for one in self.reader.standstills()
            if one.standstill.name in names
            and one.standstill.timestamp <= watermarks.get(one.standstill.name, MIN_TIME)
        ]
        said = [
            Held(
                one.standstill.kind, one.standstill.timestamp,
                f"{one.standstill.detail} in {_place(one.standstill)}, at {one.member}".lstrip(), one.standstill.since_us,
            )
            for one in standing
        ]  # fmt: skip
        sources = {
            name for name in self._graph.senders(computation) if name.startswith("source:")
        }  # they are shown anyway
        silent = {*names} - {one.standstill.name for one in standing} - sources - {computation}
        near = self._graph.bounds(computation)
        stored = [held for name in silent for held in self._stored(name, watermarks.get(name, MIN_TIME), name in near)]
        idle = [*self._unserved(names, watermarks), *self._waiting(computation, watermarks)]
        return [*sorted(said, key=_when), *idle, *sorted(stored, key=_when)]

    def _stored(self, name: str, watermark: int, near: bool) -> list[Held]:
        """What the store has of what keeps the watermark of a computation or a source; `near` when that is shown anyway."""
        if name.startswith("source:"):
            return self._unfinished(name.removeprefix("source:"), 1)
        oldest = min(self._own(name, None, by_wall_time=False), key=_when, default=None)
        if oldest is None or oldest.timestamp > watermark:  # it is in memory only
            return [] if near else [Held("watermark", watermark, name)]
        return [msgspec.structs.replace(oldest, what=f"{oldest.what} in {name}")]

    def _bounds_of(self, name: str) -> set[str]:
        return set() if name.startswith("source:") else self._graph.bounds(name)

    def _unserved(self, names: list[str], watermarks: Mapping[str, int]) -> list[Held]:
        """What no live member has, of a pipeline whose map gives something to members."""
        found = self.reader.overview()
        alive = {lease.member.incarnation for lease in found.members if (lease.left_us or 0) > 0}
        places = [(f"source:{s.placed.name}", f"source {s.placed.name}", s.placed.owner) for s in found.sources]
        places += [(i.placed.computation, f"interval {i.placed.id}", i.placed.owner) for i in found.intervals]
        if all(owner is None for *_, owner in places):
            return []  # it runs in one process, or not at all
        return [
            Held("unserved", watermarks.get(name, MIN_TIME), f"{what} of {name}, which no live worker has")
            for name, what, owner in places
            if name in names and owner not in alive and watermarks.get(name, MIN_TIME) < MAX_TIME
        ]

    def _waiting(self, computation: str, watermarks: Mapping[str, int]) -> list[Held]:
        """Intervals of it, and of all upstream, that have not begun.  Sources upstream may wait for them as well."""
        upstream, ahead = set[str](), [computation]
        while ahead:
            name = ahead.pop()
            if name not in upstream:
                upstream.add(name)
                ahead += self._bounds_of(name)
        return [
            Held(
                "behind", watermarks.get(row.computation, MIN_TIME),
                f"interval {row.id} of {row.computation}, until receivers have taken what was sent before it was cut off",
            )
            for row in self.reader.waiting_intervals() if row.computation in upstream
        ]  # fmt: skip

    def _back_edges(self, computation: str, watermarks: Mapping[str, int]) -> list[Held]:
        """Edges that close a loop at it.  Who sends on them does not bound its input, but the floor of the loop does."""
        loop = self._graph.loop_of(computation)
        edges = loop.back_edges if loop is not None else ()
        streams = {s.stream for s in self._spec(computation).inputs}
        return [
            Held(
                "back edge", watermarks.get(loop.name, MIN_TIME),
                f"stream {stream} from {sender}, for which the floor of the loop stands",
            )
            for sender, receiver in edges if loop is not None and receiver == computation
            for stream in self._spec(sender).outputs if stream in streams
        ]  # fmt: skip

    def _left_out(self, computation: str) -> list[str]:
        """Sources that feed it and are not read to their end, and that the pipeline does not have."""
        inputs, reached = {s.stream for s in self._spec(computation).inputs}, self.reader.watermarks()
        return [
            name
            for name, stream in sorted(self.reader.shape().streams.items())
            if stream in inputs and name not in self._graph.sources and self.reader.has_opened(name)
            if reached.get(f"source:{name}", MIN_TIME) < MAX_TIME
        ]

    def _unfinished(self, name: str, limit: int) -> list[Held]:
        """Partitions of a source; their time is the source's, what each of them promises is not stored."""
        reached = self.reader.watermarks().get(f"source:{name}", MIN_TIME)
        source = self._graph.sources[name].source
        if reached == MAX_TIME:
            return []
        unfinished = [position for position in self.reader.sources(name) if not position.finished]
        if not unfinished:
            why = why_it_waits(source) if self.reader.has_opened(name) else NOTHING_YET
            return [Held("source", reached, f"source {name}: {why}")]
        # Of partitions that have given rows each has promised more than the beginning of time, as a rule.
        later = reached == MIN_TIME and source.grows and not source.ordered and all(it.position for it in unfinished)
        first = [Held("source", reached, f"source {name}: {why_it_waits(source)}")] if later else []
        return first + [
            Held(
                "partition", reached,
                f"{source.title(position)} of source {name}, read to row {position.position}; {why_it_waits(source, 'it')}",
            )
            for position in unfinished[:limit]
        ]  # fmt: skip

    # --- sources ----------------------------------------------------------------------------------------------

    def sources(self) -> list[tuple[str, str, int, bool]]:
        """(source, partition, rows read and acked, finished) of all that was ever opened, sources that the pipeline
        no longer has included; a partition by its title, a file's path for example, where the pipeline has the source."""
        return [
            (name, self._title(name, position), position.position, position.finished)
            for name in sorted({*self._graph.sources, *self.reader.shape().streams})
            for position in self.reader.partitions(name)
        ]

    def _title(self, source: str, position: SourcePosition) -> str:
        spec = self._graph.sources.get(source)
        return position.partition if spec is None else spec.source.title(position)

    def drop_source(self, source: str, partition: str = "") -> list[str]:
        """Give up what `source`, or one `partition` of it, was not read to the end of; there is no way back.

        Nothing waits for it any more, and should it come back it is not read.  A whole source must have been taken out
        of the pipeline first (`WiringError`).  A run that reads it is fenced; others take note when they start again.
        Returns the titles of the partitions that are given up; `StoreError` when there is none of that name.
        """
        if not partition and source in self._graph.sources:
            raise WiringError(f"source {source!r} is in the pipeline: take it out first, or name one of its partitions")
        known = {position.partition: self._title(source, position) for position in self.reader.sources(source)}
        wanted = [name for name, title in known.items() if partition in (name, title)]
        if partition and not wanted:
            finished = {
                title for at in self.reader.partitions(source) for title in (at.partition, self._title(source, at))
            }
            why = "was read to its end" if partition in finished else "is no partition of it: see millwheel source list"
            raise StoreError(f"nothing of source {source!r} is given up, because {partition!r} {why}")
        return [known[name] for name in self.reader.drop_source(source, wanted if partition else None)]

    # --- quarantine -------------------------------------------------------------------------------------------

    def quarantined(self) -> list[tuple[str, str, int]]:
        """(computation, key, number of elements that wait) of every quarantined key."""
        return self.reader.quarantined()

    def quarantine(self, computation: str, key: str) -> list[QuarantineRow]:
        """The elements that wait for a key, in order; the first one carries the error."""
        return self.reader.quarantine_rows(computation, key)

    def input_coders(self) -> dict[SubscriptionId, Coder[Any]]:
        """The coder of the stream of each subscription, for those that the code and the store have under one name."""
        numbers = self.reader.subscriptions()
        streams = {name: stream for name, stream in self._graph.shape().subscriptions.items() if name in numbers}
        return {numbers[name]: self._graph.streams[stream].coder for name, stream in streams.items()}

    def redrive(self, computation: str, key: str) -> None:
        """Ask the running pipeline, or the next run, to run a key's quarantine; `StoreError` when there is none."""
        self.reader.request_redrive(computation, key)

    def redrive_all(self, computation: str | None = None) -> int:
        """The same for every key in quarantine, of one computation or of all; how many there are now."""
        names = [*self._graph.computations] if computation is None else [self._spec(computation).name]
        stored = self.reader.computations()
        return sum(self.reader.request_redrives(name) for name in names if name in stored)

    # --- tables and streams -----------------------------------------------------------------------------------

    def rows(self, table: str | Table[Any], limit: int | None = None) -> list[Mapping[str, Any]]:
        """Rows of a sink table by primary key, as column name to value."""
        return self.reader.sink_rows(table if isinstance(table, str) else table.name, limit)

    @overload
    def tail(self, stream: Stream[T], count: int = 10) -> list[Published[T]]: ...
    @overload
    def tail(self, stream: str, count: int = 10) -> list[Published[Any]]: ...
    def tail(self, stream: str | Stream[Any], count: int = 10) -> list[Published[Any]]:
        """The last `count` records of a published stream, oldest first; see `Pipeline.publish`."""
        return list(self._tail(stream, count, follow=False))

    @overload
    def follow(self, stream: Stream[T], count: int = 10) -> Iterator[Published[T]]: ...
    @overload
    def follow(self, stream: str, count: int = 10) -> Iterator[Published[Any]]: ...
    def follow(self, stream: str | Stream[Any], count: int = 10) -> Iterator[Published[Any]]:
        """The last `count` records of a published stream and then, without an end, those that are committed later."""
        return self._tail(stream, count, follow=True)

    def _tail(self, stream: str | Stream[Any], count: int, follow: bool) -> Iterator[Published[Any]]:
        name = stream if isinstance(stream, str) else stream.name
        if name not in self._graph.streams:
            raise WiringError(f"no stream {name!r}; there are {sorted(self._graph.streams)}")
        end = self.reader.tail_end(name)
        start = max(0, end - count)
        for row in self.reader.follow(name, start) if follow else self._until(name, start, end):
            # What came before the first one was not asked for.
            missed = row.missed if row.position - row.missed > start + 1 else 0
            yield Published(row.position, row.timestamp, self._graph.streams[name].coder.decode(row.value), missed)

    def _until(self, stream: str, after: int, end: int) -> Iterator[PublishedRow]:
        rows = self.reader.tail(stream, after)
        while rows and after < end:
            for row in rows:
                after = row.position
                if after <= end:
                    yield row
            rows = self.reader.tail(stream, after)


def check(pipeline: Pipeline, store: str | None = None, data: str | Path = DEFAULT_DATA) -> Report:
    """What a start of `pipeline` would change in its store, for what it would be refused, and what it could not read.

    Every stored value of every cell is read; nothing is written.  A directory without a store is a `StoreError`, a store of
    a later version of millwheel an `IncompatibleStore`.
    """
    graph = checked_pipeline(pipeline, "check").graph()
    with open_store(store, data, create=False) as url:
        found = check_store(url, graph.shape())
        if not found.exists:
            return found
        with Reader(url, pipeline.name) as reader:
            return msgspec.structs.replace(found, unreadable=unreadable(pipeline, reader))


def reset(pipeline: Pipeline, store: str | None = None, data: str | Path = DEFAULT_DATA) -> bool:
    """Drop everything the store holds of `pipeline`, its sink tables too; False when there was nothing.

    The pipeline must not run.  There is no way back.  A directory without a store is a `StoreError`.
    """
    name = checked_pipeline(pipeline, "reset").name
    with open_store(store, data, create=False) as url:
        return reset_schema(url, name)


def _place(one: Standstill) -> str:
    return f"interval {one.interval} of {one.name}" if one.interval else one.name


def _hold(name: str, at: int) -> Held:
    key = name.removesuffix(QUARANTINE_HOLD)
    return Held("hold" if key == name else "quarantine", at, f"key {key!r}")


def _slots(rows: list[StateRow]) -> dict[tuple[str, str], bytes]:
    return {(row.cell, row.entry): row.value for row in rows}
