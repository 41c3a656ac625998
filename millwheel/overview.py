"""A cluster from outside: what its store says of it, and orders to its leader.  The Python side of `millwheel status`.

Lives here: `ClusterOffice`, which looks and orders, and the values that it gives.  Never here: printing, or a decision.
Invariant: looking changes nothing, and works while nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import msgspec

from millwheel import limits
from millwheel.api.pipeline import Pipeline
from millwheel.cluster import ClusterMap, MapOrder
from millwheel.errors import InvariantError, StoreError
from millwheel.host.lags import Origins, lag_us, origins_of
from millwheel.host.skews import too_far_ahead
from millwheel.launch import DEFAULT_DATA, checked_pipeline, open_store
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader


class SeenMember(msgspec.Struct, frozen=True):
    """A process of the cluster."""

    name: str
    host: str
    """Its name on channels, for example w3; it tells two processes of one name apart."""
    role: str
    address: str
    alive: bool
    leads: bool


class SeenHotKey(msgspec.Struct, frozen=True):
    """A key, and the share of its interval's records that it is at least, 0 to 1."""

    key: str
    share: float


class SeenInterval(msgspec.Struct, frozen=True):
    """A key interval [low, high), its owner's name, and its backlog: checkpoints that are not folded yet."""

    id: int
    computation: str
    low: str
    high: str | None
    owner: str | None
    backlog: int
    hot: tuple[SeenHotKey, ...] = ()
    """The keys that it gets most, if any is a large share of its records."""


class SeenSource(msgspec.Struct, frozen=True):
    """A source, its owner's name, and how much is durably read: rows and partitions that are open."""

    name: str
    owner: str | None
    rows: int
    open_partitions: int
    paused: str = ""
    """Why nothing of it is read: it has run too far ahead (`Pipeline.inject`, max_ahead)."""


class ClusterPicture(msgspec.Struct, frozen=True):
    """A cluster as of about one moment.  Watermarks are us, by computation or "source:name"."""

    version: int
    members: tuple[SeenMember, ...]
    intervals: tuple[SeenInterval, ...]
    sources: tuple[SeenSource, ...]
    watermarks: dict[str, int]
    seen_at: float
    """By the monotonic clock of whoever looked, s."""
    embedded: bool = False
    """`millwheel run` has the pipeline now: it owns all, and is no member."""
    origins: Origins = {}
    """By computation: the sources whose records come to it."""

    @property
    def lag_us(self) -> int | None:
        """Event time by which the slowest computation is behind the promises of its sources; None at the ends of time."""
        return lag_us(self.watermarks, self.origins)

    def rows_a_second(self, earlier: ClusterPicture | None) -> dict[str, float]:
        """By source, rows that became durable since an earlier look."""
        if earlier is None or self.seen_at <= earlier.seen_at:
            return {}
        before, seconds = {s.name: s.rows for s in earlier.sources}, self.seen_at - earlier.seen_at
        # What is read to its end is not counted any more, so the number may fall.
        return {s.name: max(0, s.rows - before.get(s.name, 0)) / seconds for s in self.sources}


class ClusterOffice:
    """Looks at a pipeline's cluster and orders changes of its map.  Use as a context manager, outside of an event loop."""

    def __init__(self, pipeline: Pipeline, store: str | None = None, data: str | Path = DEFAULT_DATA) -> None:
        self._pipeline = checked_pipeline(pipeline, "ClusterOffice")
        self._place = (store, data)
        self._stack = contextlib.ExitStack()
        self._parts: tuple[asyncio.Runner, PostgresStore, Reader] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(open_store(*self._place, create=False))
            reader = stack.enter_context(Reader(url, self._pipeline.name))  # says if the pipeline never ran
            runner = stack.enter_context(asyncio.Runner())
            store = PostgresStore(url, self._pipeline.name)
            stack.callback(lambda: runner.run(store.close()))
            self._parts = runner, store, reader
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts = None
        self._stack.close()

    def _opened(self) -> tuple[asyncio.Runner, PostgresStore, Reader]:
        if self._parts is None:
            raise InvariantError("a ClusterOffice is used as a context manager")
        return self._parts

    def look(self) -> ClusterPicture:
        """The cluster now."""
        runner, store, reader = self._opened()
        found: ClusterMap = runner.run(store.cluster_map())
        names = {member.incarnation: member.name for member in found.members}
        backlog = reader.log_lengths()
        hot: dict[int, list[SeenHotKey]] = {}
        for one in runner.run(store.hot_keys()):
            hot.setdefault(one.interval, []).append(SeenHotKey(one.key, one.permille / 1_000))
        leader = found.leader.incarnation if found.leader is not None else None

        def owner(incarnation: int | None) -> str | None:
            return None if incarnation is None else names.get(incarnation, f"member {incarnation}")

        members = tuple(
            SeenMember(m.name, f"{m.role[0]}{m.incarnation}", m.role, m.address, m.alive, m.incarnation == leader)
            for m in found.members
        )
        intervals = tuple(
            SeenInterval(
                i.id, i.computation, i.low, i.high, owner(i.owner), backlog.get(i.id, 0), tuple(hot.get(i.id, ()))
            )
            for i in sorted(found.intervals, key=lambda i: (i.computation, i.low))
        )
        watermarks = reader.watermarks()
        ahead = too_far_ahead(self._pipeline.graph(), watermarks)
        sources, rows = [], reader.rows_read()
        for source in found.sources:
            still_open = sum(not position.finished for position in reader.sources(source.name))
            why = ahead.get(source.name, "")
            sources.append(SeenSource(source.name, owner(source.owner), rows.get(source.name, 0), still_open, why))
        return ClusterPicture(
            found.version, members, intervals, tuple(sources), watermarks, time.monotonic(), reader.is_run_embedded(),
            origins_of(self._pipeline.graph()),
        )  # fmt: skip

    # --- orders -----------------------------------------------------------------------------------------------

    def move(self, intervals: Iterable[int], to: str, wait_s: float = limits.ORDER_WAIT_S) -> None:
        """Give intervals to the worker that is called `to`.  Raises `StoreError` with the leader's reason when it refuses."""
        self._order(MapOrder("move", self._known(intervals), to=to), wait_s)

    def split(self, interval: int, keys: Iterable[str], wait_s: float = limits.ORDER_WAIT_S) -> None:
        """Cut an interval in pieces; each key begins one, and a worker takes each."""
        self._order(MapOrder("split", self._known([interval]), split_keys=tuple(keys)), wait_s)

    def merge(self, intervals: Iterable[int], wait_s: float = limits.ORDER_WAIT_S) -> None:
        """Make one interval of neighbours of one computation."""
        known = self._known(intervals)
        if len(known) < 2:
            raise StoreError(
                "merge makes one interval of two or more neighbours: name all of them, see millwheel status"
            )
        self._order(MapOrder("merge", known), wait_s)

    def _known(self, intervals: Iterable[int]) -> tuple[Any, ...]:
        """The ids of the map."""
        runner, store, _ = self._opened()
        wanted = [*intervals]
        known = {int(placed.id): placed.id for placed in runner.run(store.cluster_map()).intervals}
        twice = sorted(number for number in {*wanted} if wanted.count(number) > 1)
        if twice:
            raise StoreError(f"interval {twice[0]} is named twice")
        missing = [number for number in wanted if number not in known]
        if missing:
            raise StoreError(f"there is no interval {missing[0]}: see millwheel status; there are {sorted(known)}")
        return tuple(known[number] for number in wanted)

    def _order(self, order: MapOrder, wait_s: float) -> None:
        runner, store, _ = self._opened()
        if not any(member.role == "controller" and member.alive for member in runner.run(store.cluster_map()).members):
            raise StoreError(
                f"no controller of {self._pipeline.name!r} runs, and orders are for the one that leads: start the cluster "
                "(millwheel up, or millwheel controller), and give the order then"
            )
        refusal = runner.run(_settled(store, order, wait_s))
        if refusal is None:
            raise StoreError(
                f"no leader has carried the order out in {wait_s:g} s; it stays, and is carried out when there is one: "
                "see millwheel status"
            )
        if refusal:
            raise StoreError(f"the leader refuses: {refusal}")


async def _settled(store: PostgresStore, order: MapOrder, wait_s: float) -> str | None:
    """Give an order; what became of it, or None when nothing did in time."""
    number = await store.order(order)
    until = time.monotonic() + wait_s
    while (refusal := await store.refusal(number)) is None and time.monotonic() < until:
        await asyncio.sleep(limits.ORDER_LOOK_S)
    return refusal
