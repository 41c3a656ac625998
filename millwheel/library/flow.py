"""The chain: a way to write a graph of named computations that reads like the pipeline.

    flow = Flow(pipeline)
    requests = flow.read(REQUESTS)
    (requests.filter(is_page)
             .key_by(lambda request: request.page)
             .window(Sliding(minutes=10, every=minutes(1)), lateness=minutes(2))
             .aggregate(count())
             .to(PAGE_COUNTS))

Lives here: chains, and the names that their steps get.  Never here: what a step does.  Invariants: a keyed step is one
computation, and stateless steps are none; its name is given by the user, or is that of the stream that it ends in and of
what it does, so no edit of the rest of the pipeline gives its state to another step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from millwheel.api.pipeline import Pipeline
from millwheel.api.stream import Stream
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation
from millwheel.library.combining import Combiner, combined
from millwheel.library.durations import Duration
from millwheel.library.firing import Firing, Panes
from millwheel.library.panes import Pane, PaneTime
from millwheel.library.stateless import Stateless, spread
from millwheel.library.steps import Filter, FlatMap, Map, Step, Steps, fans_out
from millwheel.library.triggers import AtWatermark, Trigger
from millwheel.library.windowed import aggregate
from millwheel.library.windows import Windows
from millwheel.library.wiring import Feed, Inputs, KeyOf, Operation, Port, Wiring, emitter
from millwheel.source import Source

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
R = TypeVar("R")


class Flow:
    """Where chains begin: on streams of `pipeline`, to which their steps are added."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def read(self, stream: Stream[T]) -> Chain[T]:
        """The values of a stream."""
        return Chain(self, _Streams((Feed(stream, ()),)), ())

    def inject(self, source: Source[T], into: Stream[T]) -> Chain[T]:
        """The values of a stream that is fed from `source`."""
        self.pipeline.inject(source, into=into)
        return self.read(into)

    def apply(self, operation: Operation[R], ports: Sequence[Port], name: str | None = None) -> Chain[R]:
        """A step that reads `ports`; it is added to the pipeline when its results get a stream."""
        return Chain(self, _Result(self, operation, tuple(ports), name), ())


class _Streams:
    """Values that lie in streams."""

    def __init__(self, feeds: tuple[Feed, ...]) -> None:
        self.feeds = feeds

    def streams(self) -> tuple[Feed, ...]:
        """They do already."""
        return self.feeds


class _Result:
    """Values that a keyed step will produce, on one stream."""

    def __init__(self, flow: Flow, operation: Operation[Any], ports: tuple[Port, ...], name: str | None) -> None:
        self._flow = flow
        self._operation = operation
        self._ports = ports
        self._name = name
        self.stream: Stream[Any] | None = None
        """Where the results are, as the step gives them."""
        self.written = False

    def streams(self) -> tuple[Feed, ...]:
        """For a step that reads these results: a stream of the name of this one, unless there is one already."""
        if self.stream is None:
            if self._name is None:
                raise WiringError(
                    f"{self._operation.kind} needs a name, for its results go on to another step: "
                    "give it name=..., or end it in a stream by .to(...) and go on from there"
                )
            self.write(Stream(f"{self._name}.out", self._operation.output), ())
        assert self.stream is not None
        return (Feed(self.stream, ()),)

    def write(self, stream: Stream[Any], steps: Steps) -> None:
        """Add the computation: its results go through `steps` to `stream`."""
        if self.written:
            raise WiringError(
                f"the results of {self._name or self._operation.kind!r} already go through steps to a stream: "
                "end it in a stream of its own by .to(...), and go on from there"
            )
        self.written = True
        if not steps:
            self.stream = stream
        operation, inputs = self._operation, Inputs(self._ports)
        self._name = self._name or f"{stream.name}.{operation.kind}"
        wiring: Wiring[Any] = Wiring(inputs, emitter(stream, steps))
        for table in operation.tables:
            self._flow.pipeline.sink(table)
        self._flow.pipeline.add(
            lambda: operation.make(wiring),
            inputs=inputs.subscriptions(),
            outputs=[stream, *operation.side_outputs],
            name=self._name,
            strict_timestamps=operation.strict_timestamps,
            **operation.settings,
        )


class Chain(Generic[T]):
    """Values of type `T` that come from somewhere, through stateless steps.

    Functions that are given to it must be pure: a value may go through them more than once.
    """

    def __init__(self, flow: Flow, origin: _Streams | _Result, steps: Steps) -> None:
        self.flow = flow
        self._origin = origin
        self._steps = steps

    def _then(self, step: Step) -> Chain[Any]:
        return Chain(self.flow, self._origin, (*self._steps, step))

    def filter(self, keep: Callable[[T], bool]) -> Chain[T]:
        """Those values for which `keep` is true."""
        return self._then(Filter(keep))

    def map(self, function: Callable[[T], U]) -> Chain[U]:
        """What `function` makes of each value."""
        return self._then(Map(function))

    def flat_map(self, function: Callable[[T], Iterable[U]]) -> Chain[U]:
        """All that `function` makes of each value; it must end in a stream before values are keyed."""
        return self._then(FlatMap(function))

    def union(self, *others: Chain[T]) -> Chain[T]:
        """The values of this chain and of others."""
        return Chain(self.flow, _Streams(tuple(feed for chain in (self, *others) for feed in chain.feeds())), ())

    def feeds(self) -> tuple[Feed, ...]:
        """Streams and the steps behind them, for a step that reads this chain."""
        return tuple(Feed(stream, (*steps, *self._steps)) for stream, steps in self._origin.streams())

    def key_by(self, key: Callable[[T], str | None]) -> KeyedChain[T]:
        """Values by key; None: not for the step that follows."""
        if fans_out(self._steps):
            raise WiringError(
                "flat_map gives many values of one, each with its key: end it in a stream, .to(...), and key that"
            )
        return KeyedChain(self.flow, self.feeds(), key)

    def to(self, stream: Stream[T], name: str | None = None) -> Chain[T]:
        """Write the values to `stream`; what comes back reads it.

        `name` is for steps without a keyed one before them, which are a computation here.
        """
        if isinstance(self._origin, _Result) and not self._origin.written:
            self._origin.write(stream, self._steps)
        else:
            self._stage(stream, name)
        return self.flow.read(stream)

    def _stage(self, stream: Stream[T], name: str | None) -> None:
        feeds = self.feeds()
        steps: dict[str, list[Steps]] = {}
        for feed in feeds:
            steps.setdefault(feed.stream.name, []).append(feed.steps)
        ports = [
            Port(Feed(feed.stream, ()), spread(feed.stream)) for feed in {f.stream.name: f for f in feeds}.values()
        ]
        operation = Operation(kind="steps", make=lambda wiring: Stateless(wiring, steps), output=stream.coder)
        _Result(self.flow, operation, tuple(ports), name).write(stream, ())


class KeyedChain(Generic[T]):
    """Values by key: what keyed steps are made of."""

    def __init__(self, flow: Flow, feeds: tuple[Feed, ...], key: KeyOf) -> None:
        self.flow = flow
        self._feeds = feeds
        self._key = key

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
