"""Chains of values by key, and by key and window: what keyed steps are made of.

Lives here: which operation a method of the chain stands for.  Never here: what the operation does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation
from millwheel.library.combining import Combiner, combined
from millwheel.library.durations import Duration, duration
from millwheel.library.firing import Firing, Panes
from millwheel.library.interval_join import Interval, join_in_interval
from millwheel.library.matches import How, Match
from millwheel.library.panes import Pane, PaneTime
from millwheel.library.temporal import join_as_of
from millwheel.library.triggers import AtWatermark, Trigger
from millwheel.library.window_join import join_in_windows
from millwheel.library.windowed import aggregate
from millwheel.library.windows import Aligned, Windows
from millwheel.library.wiring import Feed, KeyOf, Operation, Port, coder_of

if TYPE_CHECKING:
    from millwheel.library.flow import Chain, Flow

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
R = TypeVar("R")


class KeyedChain(Generic[T]):
    """Values by key: what keyed steps are made of."""

    def __init__(self, flow: Flow, feeds: tuple[Feed, ...], key: KeyOf) -> None:
        self.flow = flow
        self._feeds = feeds
        self._key = key

    @property
    def coder(self) -> Coder[T]:
        """The coder of the values; raises `WiringError` when nobody has said which."""
        coder = coder_of(self._feeds)
        if coder is None:
            raise WiringError(
                "this step stores values, and does not know their coder: give it to the last map, map(..., coder=...), "
                "or end the chain in a stream by .to(...) and go on from there"
            )
        return coder

    def ports(self, number: int = 0) -> list[Port]:
        """This as input `number` of an operator."""
        return [Port(feed, self._key, number) for feed in self._feeds]

    def apply(self, operation: Operation[R], name: str | None = None) -> Chain[R]:
        """A keyed step of your own."""
        return self.flow.apply(operation, self.ports(), name)

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
        return WindowedChain(self, windows, Firing(trigger or AtWatermark(), lateness, panes, time))

    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Interval, how: Literal["inner"] = "inner", *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, U]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Interval, how: Literal["left"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T, U | None]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Interval, how: Literal["right"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T | None, U]]: ...  # fmt: skip
    @overload
    def join(
        self, other: KeyedChain[U], within: Aligned | Interval, how: Literal["outer"], *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Match[T | None, U | None]]: ...  # fmt: skip
    def join(
        self, other: KeyedChain[U], within: Aligned | Interval, how: How = "inner", *,
        lateness: Duration = 0, name: str | None = None, dropped: Stream[T] | None = None,
        other_dropped: Stream[U] | None = None,
    ) -> Chain[Any]:  # fmt: skip
        """Rows of values of one key, here and in `other`, that lie in one window or near each other.

        A row has the later time of its two values, and comes at once.  Of `how` other than "inner" there are rows with
        None for the partner that did not come, when the watermark says that it cannot: their time is the last one at
        which it might have had.  Records more than `lateness`, us, behind the watermark go to the streams `dropped`.
        """
        late = duration(lateness, "the allowed lateness")
        coders: list[Coder[Any]] = [self.coder, other.coder]
        streams = (dropped, other_dropped)
        if isinstance(within, Interval):
            operation = join_in_interval(within, how, late, coders, streams)
        else:
            operation = join_in_windows(within, how, late, coders, streams)
        return self.flow.apply(operation, [*self.ports(0), *other.ports(1)], name)

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
        late = duration(lateness, "the allowed lateness")
        operation = join_as_of(how, late, [self.coder, versions.coder], dropped)
        return self.flow.apply(operation, [*self.ports(0), *versions.ports(1)], name)


class WindowedChain(Generic[T]):
    """Values by key and window."""

    def __init__(self, keyed: KeyedChain[T], windows: Windows, firing: Firing) -> None:
        self._keyed = keyed
        self._windows = windows
        self._firing = firing

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
        if combiner is None:
            return self._keyed.apply(aggregate(self._windows, self._firing, aggregation, dropped), name)
        return combined(self._keyed, self._windows, self._firing, aggregation, name, dropped, combiner)
