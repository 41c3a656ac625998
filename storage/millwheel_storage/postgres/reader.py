"""Committed state, read from outside: for the command line and for Python.

Lives here: read-only views in one snapshot each, and what an operator does (redrive, drop a source, reset).  Never here:
fenced writes, the connection (`blocking`), or what the unfolded log does to rows (`overlays`).  A view is the folded rows
with that log laid over them.  So it shows exactly what is committed, also while the pipeline runs.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import Any

import msgspec
from psycopg import sql
from psycopg.rows import dict_row

from millwheel.bundles import Checkpoint
from millwheel.cluster import Overview, StandsAt
from millwheel.errors import InvariantError, StoreError, StoreUnavailable
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.limits import STORE_RECONNECT_LIMIT_US, TAIL_CHUNK_ROWS
from millwheel.model import MAX_TIME
from millwheel.ports import IntervalRow, PipelineShape, QuarantineRow, SourcePosition
from millwheel.shape import PUBLISH_PREFIX
from millwheel_storage.decode import decode_image, quarantine_entry
from millwheel_storage.fold import Folded, fifo_rows, fold, quarantine_row
from millwheel_storage.postgres import orders, overseen
from millwheel_storage.postgres.blocking import check_owner, connected, keep_members_out, reachable
from millwheel_storage.postgres.membership import session_name_of_a_run
from millwheel_storage.postgres.overlays import (
    Oldest,
    StateRow,
    TimerRow,
    named,
    overlay_fifos,
    overlay_holds,
    overlay_productions,
    overlay_timers,
    united,
    with_log,
)
from millwheel_storage.schema.evolution import places_of
from millwheel_storage.schema.shape_checks import schema_name
from millwheel_storage.statements import advancing, joining, loading, opening, ordering, quarantining, viewing


class PublishedRow(msgspec.Struct, frozen=True):
    """One record of a published stream; `value` is behind the stream's coder, `timestamp` in us.

    `missed` counts records between it and the position that was asked for that the table no longer holds.
    """

    position: int
    timestamp: int
    value: bytes
    missed: int = 0


class Reader:
    """Views of one pipeline's committed state.  Use as a context manager; not for several threads at once."""

    def __init__(self, url: str, pipeline: str) -> None:
        self.schema = schema_name(pipeline)
        self._url = url
        self._pipeline = pipeline
        self._connection = connected(self._url, self._pipeline)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()

    # Shape

    def shape(self) -> PipelineShape:
        """The shape under which the store was opened last."""
        row = self._connection.execute(opening.READ_META).fetchone()
        if row is None:
            raise StoreError(f"schema {self.schema!r} was never opened by a pipeline")
        return msgspec.json.decode(row[1], type=PipelineShape)

    def intervals(self) -> list[IntervalRow]:
        """Every key interval, and every source partition's, by id."""
        names = {number: name for name, number in self._numbers("computation").items()}
        rows = self._connection.execute(opening.READ_INTERVALS, (list(names),)).fetchall()
        return [
            IntervalRow(number, names[computation], low.decode(), None if high is None else high.decode())
            for number, computation, low, high in rows
        ]

    def waiting_intervals(self) -> list[IntervalRow]:
        """Intervals that take nothing yet: what was sent for their keys, before they were cut off, is not taken yet."""
        with self._snapshot():
            found = {row.id: row for row in self.intervals()}
            behind = self._connection.execute(opening.BEHIND_OTHERS, (list(found),)).fetchall()
        return [found[number] for (number,) in sorted(behind)]

    def computations(self) -> dict[str, int]:
        """Computation names and their durable numbers."""
        return self._numbers("computation")

    def subscriptions(self) -> dict[str, SubscriptionId]:
        """Subscription names and their durable numbers."""
        return {name: SubscriptionId(number) for name, number in self._numbers("subscription").items()}

    def _numbers(self, kind: str) -> dict[str, int]:
        rows = self._connection.execute(opening.READ_NAMES).fetchall()
        return {name: number for stored, name, number in rows if stored == kind}

    def _computation(self, computation: str) -> int:
        numbers = self._numbers("computation")
        if computation not in numbers:
            raise StoreError(f"computation {computation!r} is not in the store; it has {sorted(numbers)}")
        return numbers[computation]

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All reads inside see the same moment.  Otherwise a fold in between could hide a log row and its effect."""
        with self._connection.transaction():
            self._connection.execute(opening.SNAPSHOT)
            yield

    def _log(self, interval: IntervalId) -> list[Checkpoint]:
        rows = self._connection.execute(loading.READ_LOG, (interval,)).fetchall()
        return [decode_image(payload) for _, _, payload in rows]

    def _unfolded(self, computation: str) -> list[Folded]:
        """The log of each interval of a computation, folded in memory; their keys are disjoint."""
        return [fold(self._log(row.id)) for row in self.intervals() if row.computation == computation]

    # State

    def get_state(self, computation: str, key: str) -> list[StateRow]:
        """The cells of one key, by cell and entry."""
        number = self._computation(computation)
        with self._snapshot():
            rows = self._connection.execute(viewing.READ_KEY, (number, key.encode())).fetchall()
            stored = [StateRow(key, cell, entry.decode(), value) for _, cell, entry, value in rows]
            written, forgotten = united(self._unfolded(computation), key)
            names = self._cell_names(computation)
        return named(names, with_log(key, [] if key in forgotten else stored, written.get(key, {})))

    def scan_state(self, computation: str, prefix: str = "") -> Iterator[StateRow]:
        """All cells of all keys that start with `prefix`, in key order; streamed, so any size will do."""
        number = self._computation(computation)
        with self._snapshot():
            written, forgotten = united(self._unfolded(computation), prefix)
            names = self._cell_names(computation)
            pending = deque(sorted(written))
            for key, stored in self._stored_keys(number, prefix):
                while pending and pending[0] < key:
                    yield from named(names, with_log(pending[0], [], written[pending.popleft()]))
                if pending and pending[0] == key:
                    pending.popleft()
                yield from named(names, with_log(key, [] if key in forgotten else stored, written.get(key, {})))
            for key in pending:
                yield from named(names, with_log(key, [], written[key]))

    def _cell_names(self, computation: str) -> dict[str, str]:
        """Names of cells whose values are stored under another one."""
        return {place: cell for cell, place in places_of(self.shape()).get(computation, {}).items()}

    def _stored_keys(self, number: int, prefix: str) -> Iterator[tuple[str, list[StateRow]]]:
        last: str | None = None
        rows: list[StateRow] = []
        with self._connection.cursor(name="millwheel_scan") as cursor:
            cursor.itersize = 10_000
            low, high = prefix_range(prefix)
            cursor.execute(viewing.SCAN_STATE, {"computation": number, "low": low, "high": high})
            for raw, cell, entry, value in cursor:
                key = raw.decode()
                if key != last and last is not None:
                    yield last, rows
                    rows = []
                last = key
                rows.append(StateRow(key, cell, entry.decode(), value))
        if last is not None:
            yield last, rows

    def timers(self, computation: str, key: str | None = None) -> list[TimerRow]:
        """Timers that are set, of one key or of all, by timestamp."""
        number = self._computation(computation)
        with self._snapshot():
            rows = self._connection.execute(viewing.READ_TIMERS, {"computation": number}).fetchall()
            found = {(k.decode(), kind, tag.decode()): time for k, kind, tag, time in rows}
            for part in self._unfolded(computation):
                overlay_timers(found, part)
        timers = [TimerRow(*place, time) for place, time in found.items() if key in (None, place[0])]
        return sorted(timers, key=lambda row: (row.timestamp, row.key, row.kind, row.tag))

    def holds(self, computation: str) -> dict[str, int]:
        """Watermark holds by key."""
        number = self._computation(computation)
        with self._snapshot():
            rows = self._connection.execute(viewing.READ_HOLDS, {"computation": number}).fetchall()
            found = {key.decode(): time for key, time in rows}
            for part in self._unfolded(computation):
                overlay_holds(found, part)
        return found

    def watermarks(self) -> dict[str, int]:
        """Persisted low watermarks by computation or source."""
        return dict(self._connection.execute(advancing.READ_WATERMARKS).fetchall())

    def is_run_embedded(self) -> bool:
        """An embedded run has sessions now."""
        name = session_name_of_a_run(self.schema)
        return self._connection.execute(joining.SESSION_LIVES, (name,)).fetchone() == (True,)

    def sources(self, source: str) -> list[SourcePosition]:
        """Durable progress of every partition of a source that is not finished (or was, in an early version)."""
        rows = self._connection.execute(advancing.READ_OPEN_SOURCES, {"source": source}).fetchall()
        return [SourcePosition(*row) for row in rows]

    def partitions(self, source: str) -> list[SourcePosition]:
        """Durable progress of every partition that a source has ever opened."""
        rows = self._connection.execute(advancing.READ_ALL_SOURCES, {"source": source}).fetchall()
        return [SourcePosition(*row) for row in rows]

    def has_opened(self, source: str) -> bool:
        """Whether a source has ever opened a partition."""
        row = self._connection.execute(advancing.HAS_OPENED, {"source": source}).fetchone()
        return row is not None and bool(row[0])

    def rows_read(self) -> dict[str, int]:
        """By source, rows that are durably read, of finished partitions too."""
        return dict(self._connection.execute(advancing.ROWS_READ).fetchall())

    def log_lengths(self) -> dict[IntervalId, int]:
        """By interval, checkpoints that are not folded into the tables yet; an interval without any is absent."""
        rows = self._connection.execute(viewing.LOG_LENGTHS).fetchall()
        return {IntervalId(interval): count for interval, count in rows}

    def oldest_productions(self) -> list[Oldest]:
        """Per interval, the oldest production that its receiver has not acked."""
        found = []
        with self._snapshot():
            for row in self.intervals():
                oldest = self._oldest_production(row)
                if oldest is not None:
                    found.append(oldest)
        return found

    def _oldest_production(self, row: IntervalRow) -> Oldest | None:
        rows = self._connection.execute(viewing.PENDING_PRODUCTIONS, (row.id,)).fetchall()
        pending = {(s, p, n): (time, key.decode()) for s, p, n, key, time in rows}
        overlay_productions(pending, fold(self._log(row.id)))
        if not pending:
            return None
        time, key = min(pending.values())
        return Oldest(row.id, row.computation, "production", key, time)

    # Published streams

    def published(self) -> list[str]:
        """Streams that the pipeline publishes."""
        found = (name for name in self.shape().computations if name.startswith(PUBLISH_PREFIX))
        return sorted(name.removeprefix(PUBLISH_PREFIX) for name in found)

    def tail(self, stream: str, after: int, limit: int = TAIL_CHUNK_ROWS) -> list[PublishedRow]:
        """At most `limit` committed records of a published stream with a position above `after`, in order.

        Positions are dense and start at 1.  To go on, ask again with the last position that was seen.  `missed` then says how
        many records were replaced in the meantime.  Raises `StoreError` when the stream is not published.
        """
        self._check_published(stream)
        found = []
        for position, timestamp, value in self._connection.execute(viewing.TAIL, (stream, after, limit)):
            found.append(PublishedRow(position, timestamp, value, position - after - 1))
            after = position
        return found

    def follow(self, stream: str, after: int, poll_s: float = 0.2) -> Iterator[PublishedRow]:
        """`tail` without an end: waits for what comes next, and for a Postgres that restarts.

        Raises `StoreError` when the stream has gone back, with a savepoint for example.
        """
        while True:
            try:
                rows = self.tail(stream, after)
                if not rows:
                    self._check_not_back(stream, after)
            except StoreUnavailable:
                self._reconnect()
                continue
            for row in rows:
                after = row.position
                yield row
            if len(rows) < TAIL_CHUNK_ROWS:
                sleep(poll_s)

    def _check_not_back(self, stream: str, after: int) -> None:
        """What comes would have positions that were read already, so nobody would see it."""
        end = self.tail_end(stream)
        if end < after:
            raise StoreError(
                f"stream {stream!r} was read to position {after} and ends at {end} now: a savepoint was put back, or the "
                "pipeline was reset; follow it anew"
            )

    def _reconnect(self) -> None:
        self._connection.close()
        deadline = monotonic() + STORE_RECONNECT_LIMIT_US / 1_000_000
        while True:
            try:
                self._connection = connected(self._url, self._pipeline)
                return
            except StoreUnavailable:
                if monotonic() > deadline:
                    raise
                sleep(0.2)

    def tail_end(self, stream: str) -> int:
        """Position of a published stream's newest record; 0 when there is none.  `StoreError` as for `tail`."""
        self._check_published(stream)
        row = self._connection.execute(viewing.TAIL_END, (stream,)).fetchone()
        if row is None:
            raise InvariantError("there is no row")
        return int(row[0])

    def _check_published(self, stream: str) -> None:
        published = self.published()
        if stream not in published:
            raise StoreError(
                f"stream {stream!r} is not published (published are {published}): call pipeline.publish({stream}) "
                "where the pipeline is made and run it; records from then on are kept"
            )

    # Quarantine and operations

    def quarantined(self) -> list[tuple[str, str, int]]:
        """(computation, key, length of its FIFO) of every quarantined key."""
        found = []
        for name in sorted(self._numbers("computation")):
            found += [(name, *fifo) for fifo in sorted(self._waiting(name).items())]
        return found

    def _waiting(self, computation: str) -> dict[str, int]:
        """Length of every FIFO of a computation that is not empty, by key."""
        number = self._computation(computation)
        with self._snapshot():
            rows = self._connection.execute(quarantining.COUNT_QUARANTINE, (number,)).fetchall()
            counts = {key.decode(): count for key, count in rows}
            for part in self._unfolded(computation):
                overlay_fifos(counts, part)
        return {key: count for key, count in counts.items() if count > 0}

    def quarantined_keys(self, computation: str) -> set[str]:
        """Keys of a computation that are in quarantine, or were and are not released yet."""
        number = self._computation(computation)
        with self._snapshot():
            place = {"computation": number, "low": b"", "high": None}
            keys = {key.decode() for (key,) in self._connection.execute(loading.LOAD_QUARANTINED, place)}
            for part in self._unfolded(computation):
                keys |= part.quarantine.keys()
        return keys

    def quarantine_rows(self, computation: str, key: str) -> list[QuarantineRow]:
        """A key's whole FIFO, in order."""
        number = self._computation(computation)
        with self._snapshot():
            cursor = self._connection.execute(quarantining.READ_QUARANTINE, (number, key.encode(), None))
            entries = [quarantine_entry(row) for row in cursor.fetchall()]
            for row in self.intervals():
                if row.computation == computation:
                    entries = fifo_rows(entries, self._log(row.id), key)
        return [quarantine_row(computation, place, entry) for place, entry in enumerate(entries)]

    def request_redrive(self, computation: str, key: str) -> None:
        """Ask the key's owner to drain its FIFO; `StoreError` when the key is not quarantined."""
        if not self.quarantine_rows(computation, key):
            raise StoreError(f"key {key!r} of {computation!r} is not in quarantine")
        self._request(computation, [key])

    def request_redrives(self, computation: str) -> int:
        """Ask the same for every key of a computation that is in quarantine now.  Returns their number."""
        keys = sorted(self._waiting(computation))
        self._request(computation, keys)
        return len(keys)

    def _request(self, computation: str, keys: list[str]) -> None:
        asked = {"computation": self._computation(computation), "keys": [key.encode() for key in keys]}
        self._connection.execute(quarantining.REQUEST_REDRIVES, asked)

    def drop_source(self, source: str, partitions: Sequence[str] | None = None) -> list[str]:
        """Give a source up: its unfinished partitions become finished, as if they had been read to their ends.

        With `partitions`, only those are given up.  Without, the watermark of the source also moves to the end of time.  A
        run that reads one of them is fenced.  Returns the partitions that were not finished.  Raises `StoreError` for a
        source that never opened a partition.
        """
        if not self.has_opened(source):
            raise StoreError(f"source {source!r} has opened nothing in this store")
        wanted = {"source": source, "partitions": None if partitions is None else list(partitions)}
        with self._connection.transaction():
            taken = [row[0] for row in self._connection.execute(advancing.TAKE_UNFINISHED, wanted)]
            ended = [row[0] for row in self._connection.execute(advancing.END_PARTITIONS, (taken,))]
            if partitions is None:
                self._connection.execute(advancing.END_SOURCE, (f"source:{source}", MAX_TIME))
        return sorted(ended)

    def standstills(self) -> list[StandsAt]:
        """What keeps watermarks that stand, as the workers of a cluster have said last."""
        return orders.said_of_standstills(self._connection.execute(ordering.READ_STANDSTILLS).fetchall())

    def overview(self) -> Overview:
        """Members, the map with what waits in each interval, and watermarks, in one cheap read."""
        return overseen.overview(self._connection)

    def table_bytes(self) -> dict[str, int]:
        """Size of every table of the pipeline with its indexes, bytes."""
        return dict(self._connection.execute(viewing.TABLE_BYTES, (self.schema,)).fetchall())

    def sink_rows(self, table: str, limit: int | None = None) -> list[Mapping[str, Any]]:
        """Rows of a sink table by primary key, as column name to value."""
        declared = {sink.name: sink for sink in self.shape().sinks}
        if table not in declared:
            raise StoreError(f"there is no sink table {table!r}; the pipeline has {sorted(declared)}")
        query = sql.SQL("SELECT * FROM {} ORDER BY {} LIMIT %s").format(
            sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, declared[table].key))
        )
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return list(cursor.execute(query, (limit,)).fetchall())


def reset(url: str, pipeline: str) -> bool:
    """Drop everything that a pipeline stored, its sink tables too; False when there was nothing.

    Refuses a schema that is not millwheel's, and one that live members of a cluster use (`StoreInUse`).  An embedded run must
    have ended.
    """
    schema = schema_name(pipeline)
    with reachable(url) as connection:
        connection.execute(opening.LOCK_SCHEMA, (schema,))
        tables = {row[0] for row in connection.execute(opening.SCHEMA_TABLES, (schema,))}
        if not tables:
            return False
        if not {"meta", "migration", "checkpoint_log"} <= tables:
            raise StoreError(f"schema {schema!r} is not a millwheel pipeline's; it was not touched")
        connection.execute("SELECT set_config('search_path', %s, true)", (f'"{schema}"',))
        check_owner(connection, pipeline)
        if {"cluster", "lease"} <= tables:
            keep_members_out(connection, pipeline)
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    return True


def prefix_range(prefix: str) -> tuple[bytes, bytes | None]:
    """The range [low, high) of encoded keys that start with `prefix`; high None means unbounded.

    >>> prefix_range("ab")
    (b'ab', b'ac')
    """
    low = prefix.encode()
    return low, low[:-1] + bytes([low[-1] + 1]) if low else None
