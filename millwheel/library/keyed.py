"""Chains of values by key, and by key and window: what keyed steps are made of.

Lives here: which operation a method of the chain stands for.  Never here: what the operation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from millwheel.api.given import check_table
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.api.typed import Row
from millwheel.coders import Coder
from millwheel.errors import WiringError
from millwheel.library.aggregate_join import join_aggregate
from millwheel.library.aggregations import Aggregation
from millwheel.library.combining import Combiner, combined
from millwheel.library.daily import deduplicate, distinct_until_changed, throttle
from millwheel.library.durations import Duration, duration
from millwheel.library.expected import (
    check_aggregation,
    check_coder,
    check_function,
    check_keyed,
    check_trigger,
    check_windows,
    not_of_windows,
)
from millwheel.library.firing import Firing, Panes
from millwheel.library.interval_join import Interval, join_in_interval
from millwheel.library.lookups import Enriched, LookUp, enrich
from millwheel.library.matches import How, Match
from millwheel.library.one_join import join_one
from millwheel.library.panes import Pane, PaneTime
from millwheel.library.running import Running, running
from millwheel.library.services import Reply, Service, ask
from millwheel.library.sinks import append, latest, upserts
from millwheel.library.temporal import join_as_of
from millwheel.library.triggers import AtWatermark, Trigger
from millwheel.library.window_join import join_in_windows
from millwheel.library.windowed import aggregate
from millwheel.library.windows import Aligned, Fixed, Sessions, Windows
from millwheel.library.wiring import Inlet, KeyOf, Operation, Port, coder_of, known

if TYPE_CHECKING:
    from millwheel.library.flow import Chain, Flow

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")


def _one_id(value: Any) -> str:
    return "one"


def _itself(value: T) -> T:
    return value


class KeyedChain(Generic[T]):
    """Values by key: what keyed steps are made of."""

    def __init__(
        self, flow: Flow, feeds: tuple[Inlet, ...], key: KeyOf, split_keys: Sequence[str] = (), key_version: str = ""
    ) -> None:
        self.flow = flow
        self._feeds = feeds
        self._key = key
        self.split_keys = tuple(split_keys)
        self._key_version = key_version

    @property
    def coder(self) -> Coder[T]:
        """The coder of the values; raises `WiringError` when nobody has said which."""
        return known(coder_of(self._feeds))

    def ports(self, number: int = 0) -> list[Port]:
        """This as input `number` of an operator."""
        return [Port(feed, self._key, number, self._key_version) for feed in self._feeds]

    def apply(self, operation: Operation[R], name: str | None = None) -> Chain[R]:
        """A keyed step of your own."""
        return self.read_by(operation, self.ports(), name)

    def end(self, operation: Operation[None], name: str) -> None:
        """A sink of your own."""
        self.flow.end(self._split(operation), self.ports(), name)

    def read_by(self, operation: Operation[R], ports: list[Port], name: str | None) -> Chain[R]:
        """A step that reads this chain, and perhaps others."""
        return self.flow.apply(self._split(operation), ports, name)

    def _split(self, operation: Operation[R]) -> Operation[R]:
        """The operation with the split keys that were given with the key."""
        if not self.split_keys:
            return operation
        return replace(operation, settings={**operation.settings, "split_keys": self.split_keys})

    def deduplicate(
        self, within: Duration, id_of: Callable[[T], str] | None = None, name: str | None = None
    ) -> Chain[T]:
        """Of values of one key with one id, the first to arrive of those less than `within`, us, apart in event time.

        Without `id_of` all values of a key have one id.  An id is forgotten when the watermark is `within` beyond it.
        """
        check_function(id_of, "deduplicate")
        operation = deduplicate(
            id_of or _one_id, duration(within, "the time within which an id comes again"), self._output
        )
        return self.apply(operation, name)

    def throttle(
        self, records: int, per: Duration, dropped: Stream[T] | None = None, name: str | None = None
    ) -> Chain[T]:
        """Of each key the first `records` to arrive in each fixed span of event time `per`, us; the rest goes to `dropped`,
        as do those that come when their span is over."""
        return self.apply(throttle(records, Fixed(per), dropped, self._output), name)

    @overload
    def distinct_until_changed(self, *, forget_after: Duration | None = None, name: str | None = None) -> Chain[T]: ...
    @overload
    def distinct_until_changed(
        self, of: Callable[[T], U], coder: Coder[U], *, forget_after: Duration | None = None, name: str | None = None
    ) -> Chain[T]: ...
    def distinct_until_changed(
        self, of: Callable[[T], Any] | None = None, coder: Coder[Any] | None = None, *,
        forget_after: Duration | None = None, name: str | None = None,
    ) -> Chain[T]:  # fmt: skip
        """Values which differ, or what `of` makes of them does, from the one of their key that arrived before.

        The last one of a key is kept, for ever or until the watermark is `forget_after`, us, beyond it.
        """
        check_function(of, "distinct_until_changed")
        check_coder(coder, "distinct_until_changed")
        forget = None if forget_after is None else duration(forget_after, "the time after which a key is forgotten")
        return self.apply(distinct_until_changed(of or _itself, coder or self.coder, forget, self._output), name)

    def look_up(self, lookup: LookUp[R], name: str | None = None) -> Chain[Enriched[T, R | None]]:
        """Each value with the row of its key, and how old the row was when it was used."""
        if not isinstance(lookup, LookUp):
            raise WiringError(
                f"look_up(...) needs a LookUp, got {lookup!r:.80}; for example LookUp(query, Row, minutes(5))"
            )
        return self.apply(enrich(lookup, coder_of(self._feeds)), name)

    def call(self, service: Service[R], name: str | None = None) -> Chain[Reply[T, R]]:
        """Each value with what a service outside has answered; one question of a key after the other, by event time."""
        if not isinstance(service, Service):
            raise WiringError(f"call(...) needs a Service, got {service!r:.80}; for example Service(client, Score)")
        return self.apply(ask(service, self.coder), name)

    def append_to(self, table: str, columns: Mapping[str, str], row: Callable[[T], Mapping[str, Any]]) -> None:
        """A row of `table` for each value: `columns`, name to SQL type, as `row` fills them, and `key` and `number`.

        `number` counts the values of a key from 0, in the order in which they arrived.
        """
        if not isinstance(columns, Mapping):
            raise WiringError(f"append_to(...): columns={columns!r:.80}: give column names and SQL types")
        check_function(row, "append_to")
        self.end(append(table, columns, row), f"{table}.append")

    def latest_to(self, table: Table[V], row: Callable[[T], Row[V]]) -> None:
        """The newest value of each key, by event time, as a row of `table`, whose primary key must follow from the key."""
        check_table(table)
        check_function(row, "latest_to")
        self.end(latest(table, row), f"{table.name}.latest")

    def upsert_to(self, table: Table[V], rows: Callable[[T], Iterable[Row[V]]]) -> None:
        """The rows of `table` that `rows` makes of each value; one replaces an earlier one of its primary key.

        Nothing is stored.  So the rows of one primary key must all come of values of one key, and in an order that counts.
        """
        check_table(table)
        check_function(rows, "upsert_to")
        self.end(upserts(table, rows), f"{table.name}.upsert")

    @property
    def _output(self) -> Coder[T] | None:
        return coder_of(self._feeds)

    def window(
        self,
        windows: Windows,
        trigger: Trigger | None = None,
        lateness: Duration = 0,
        panes: Panes = "accumulating",
        time: PaneTime = "end",
    ) -> WindowedChain[T]:
        """Values by key and window of event time.

        `trigger` says when a window gives a pane, by default when the watermark passes its end; `lateness`, us, how far
        the watermark may be beyond that for a late record still to count; `panes`, whether each holds all records or
        only those since the last; `time`, the panes' event time.
        """
        check_windows(windows)
        check_trigger(trigger)
        late = duration(lateness, "the allowed lateness")
        return WindowedChain(self, windows, Firing(trigger or AtWatermark(), late, panes, time))

    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Sessions | Interval, how: Literal["inner"] = "inner", *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, U]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Sessions | Interval, how: Literal["left"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, U | None]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Sessions | Interval, how: Literal["right"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T | None, U]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Sessions | Interval, how: Literal["outer"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T | None, U | None]]: ...  # fmt: skip
    def join(
        self, other: KeyedChain[U], within: Aligned | Sessions | Interval, how: How = "inner", *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Any]:  # fmt: skip
        """Rows of values of one key, here and in `other`, that lie in one window or near each other.

        A row has the later time of its two values, and comes at once; in sessions it comes at the end.  Of `how` other
        than "inner" there are rows with None for the partner that did not come, when the watermark says that it cannot:
        their time is the last one at which it might have had.  Records more than `lateness`, us, behind the watermark go
        to the streams `dropped`.
        """
        check_keyed(other, "join")
        late = duration(lateness, "the allowed lateness")
        coders: list[Coder[Any]] = [self.coder, other.coder]
        streams = (dropped, other_dropped)
        if isinstance(within, Interval):
            operation = join_in_interval(within, how, late, coders, streams)
        else:
            operation = join_in_windows(within, how, late, coders, streams)
        return self.read_by(operation, [*self.ports(0), *other.ports(1)], name)

    @overload
    def join_as_of(
        self, versions: KeyedChain[U], how: Literal["inner"] = "inner", *, lateness: Duration = 0,
        name: str | None = None, dropped: Stream[T] | None = None,
    ) -> Chain[Match[T, U]]: ...  # fmt: skip
    @overload
    def join_as_of(
        self, versions: KeyedChain[U], how: Literal["left"], *, lateness: Duration = 0,
        name: str | None = None, dropped: Stream[T] | None = None,
    ) -> Chain[Match[T, U | None]]: ...  # fmt: skip
    def join_as_of(
        self, versions: KeyedChain[U], how: Literal["inner", "left"] = "inner", *, lateness: Duration = 0,
        name: str | None = None, dropped: Stream[T] | None = None,
    ) -> Chain[Any]:  # fmt: skip
        """Each value with the version that held at its time: the newest of `versions`, of its key, that is not newer.

        A row has the value's time, and comes when the watermark and `lateness`, us, are beyond it.  With "left" values
        older than every version have None.  Of two versions of one time the one that arrives later counts.
        """
        check_keyed(versions, "join_as_of")
        late = duration(lateness, "the allowed lateness")
        operation = join_as_of(how, late, [self.coder, versions.coder], dropped)
        return self.read_by(operation, [*self.ports(0), *versions.ports(1)], name)

    def join_one(
        self, ones: KeyedChain[U], *, forget_after: Duration | None = None, name: str | None = None
    ) -> Chain[Match[T, U]]:
        """Each value with the one value that `ones` has of its key, whichever comes first, whatever their times.

        A row has the later time of its two values and comes at once.  A value that comes before its partner waits for it.
        A second value of `ones` counts from its arrival on.  The one value of a key, and what waits for one, is kept for
        ever, or until the watermark is `forget_after`, us, beyond the key's last record.
        """
        check_keyed(ones, "join_one")
        forget = None if forget_after is None else duration(forget_after, "the time after which a key is forgotten")
        operation = join_one([self.coder, ones.coder], forget)
        return self.read_by(operation, [*self.ports(0), *ones.ports(1)], name)

    @overload
    def join_aggregate(
        self, other: KeyedChain[U], within: Interval | Callable[[T], Duration], aggregation: Aggregation[U, A, R],
        how: Literal["inner"] = "inner", *, single: bool = False, lateness: Duration = 0, name: str | None = None,
        dropped: Stream[T] | None = None, other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, R]]: ...  # fmt: skip
    @overload
    def join_aggregate(
        self, other: KeyedChain[U], within: Interval | Callable[[T], Duration], aggregation: Aggregation[U, A, R],
        how: Literal["left"], *, single: bool = False, lateness: Duration = 0, name: str | None = None,
        dropped: Stream[T] | None = None, other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, R]]: ...  # fmt: skip
    def join_aggregate(
        self, other: KeyedChain[U], within: Interval | Callable[[T], Duration], aggregation: Aggregation[U, A, R],
        how: Literal["inner", "left"] = "inner", *, single: bool = False, lateness: Duration = 0, name: str | None = None,
        dropped: Stream[T] | None = None, other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, R]]:  # fmt: skip
        """Each value with the aggregate of those of `other`, of its key, that are near it in event time.

        `within` is an interval, or a function of the value that says how much newer, us, its partners may be at most.  A
        row comes when the watermark and `lateness`, us, say that no partner can come any more, and has the last time at
        which one might have had.  With "left" values without a partner have the aggregate of no record.

        `single` says that a key has one value at most: then a partner that comes after it is not stored by itself.
        Records more than the lateness behind the watermark go to the streams `dropped`.
        """
        check_aggregation(aggregation)
        check_keyed(other, "join_aggregate")
        if not isinstance(within, Interval) and not callable(within):
            raise WiringError(f"join_aggregate(...): within={within!r:.80}: give an Interval, or a function of a value")
        late = duration(lateness, "the allowed lateness")
        coders: list[Coder[Any]] = [self.coder, other.coder]
        operation = join_aggregate(within, aggregation, how, single, late, coders, (dropped, other_dropped))
        return self.read_by(operation, [*self.ports(0), *other.ports(1)], name)

    def running(
        self, aggregation: Aggregation[T, A, R], *, last: int | None = None, order: Callable[[T], Any] | None = None,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
    ) -> Chain[Running[T, R]]:  # fmt: skip
        """Each value with the aggregate of those of its key up to it, in order of event time, or of the `last` so many.

        A row has the value's time, and comes when the watermark and `lateness`, us, are beyond it.  Values of one time have
        their turn in the order of what `order` makes of them, by default of their encoding.  The accumulator of a key is
        kept until the end of the input.
        """
        check_aggregation(aggregation)
        check_function(order, "running")
        if last is not None and type(last) is not int:
            raise WiringError(f"running(...): last={last!r:.80}: give a number of values, at least 1")
        late = duration(lateness, "the allowed lateness")
        return self.apply(running(aggregation, last, order, late, self.coder, dropped), name)


class WindowedChain(Generic[T]):
    """Values by key and window."""

    def __init__(self, keyed: KeyedChain[T], windows: Windows, firing: Firing) -> None:
        self._keyed = keyed
        self._windows = windows
        self._firing = firing

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What is asked of values in windows, and is a step of something else."""
            raise not_of_windows(self, name, hasattr(KeyedChain, name))

    def aggregate(
        self,
        aggregation: Aggregation[T, A, R],
        name: str | None = None,
        dropped: Stream[T] | None = None,
        combiner: Combiner | None = None,
    ) -> Chain[Pane[R]]:
        """One result per pane.  Records that come when their window is over go to `dropped`, if it is given.

        With a `combiner` the records of one key are first gathered under several, for a key that is too hot for one.
        """
        check_aggregation(aggregation)
        if combiner is None:
            return self._keyed.apply(aggregate(self._windows, self._firing, aggregation, dropped), name)
        return combined(self._keyed, self._windows, self._firing, aggregation, name, dropped, combiner)
