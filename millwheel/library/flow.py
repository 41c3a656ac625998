"""The chain: a way to write a graph of named computations that reads like the pipeline.

    flow = Flow(pipeline)
    requests = flow.read(REQUESTS)
    (requests.filter(is_page)
             .key_by(lambda request: request.page)
             .window(Sliding(minutes=10, every=minutes(1)), lateness=minutes(2))
             .aggregate(count())
             .to(PAGE_COUNTS))

Lives here: chains, and the names of their steps.  Never here: what a step does.  Invariants: a keyed step is one computation,
and stateless steps are none.  The user gives its name, or the name consists of the stream in which the step ends and of what
it does.  So no edit of the rest of the pipeline gives its state to another step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from zlib import crc32

import msgspec

from millwheel.api.computation import Computation
from millwheel.api.given import check_key_version, check_stream
from millwheel.api.pipeline import Pipeline
from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.errors import InvariantError, WiringError
from millwheel.graph import Graph
from millwheel.library.daily import Addressed
from millwheel.library.durations import Duration, duration
from millwheel.library.expected import check_coder, check_function, check_keyed
from millwheel.library.keyed import KeyedChain
from millwheel.library.matches import FieldsCoder, Joined
from millwheel.library.sinks import parts
from millwheel.library.stateless import Stateless, spread
from millwheel.library.steps import Filter, FlatMap, Map, Step, Steps, changes_values, fans_out
from millwheel.library.window_join import join_all_in_windows
from millwheel.library.windows import Aligned, Sessions
from millwheel.library.wiring import Emit, Inlet, Inputs, Operation, Port, Wiring, coder_of, emitter, known, no_results
from millwheel.limits import FILE_AGE_US, FILE_ROWS, PUBLISH_RECORDS
from millwheel.source import Source

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")
V = TypeVar("V")


class Flow:
    """Where chains begin: on streams of `pipeline`, to which their steps are added."""

    def __init__(self, pipeline: Pipeline) -> None:
        if not isinstance(pipeline, Pipeline):
            raise WiringError(f"a flow needs a Pipeline, got {pipeline!r:.80}")
        self.pipeline = pipeline
        self._results: list[_Result] = []
        self._waiting: list[str] = []
        pipeline.check_before(self._check)
        pipeline.check_after(self._check_loops)

    def _check(self) -> None:
        """A keyed step whose results go nowhere was forgotten: nothing of it would run."""
        for result in self._results:
            if not result.written:
                raise WiringError(f"the results of {result.title!r} go nowhere: end its chain in a stream, .to(...)")

    def _check_loops(self, graph: Graph) -> None:
        """The watermark of a loop is not beyond the time of a result that waits in it: both would wait for ever."""
        for name in self._waiting:
            if graph.loop_of(name) is not None:
                raise WiringError(
                    f"{name!r} is in a loop: its results come when the watermark is beyond their time, and the watermark of "
                    "a loop waits for all that is to come in it; put it behind the loop"
                )

    def read(self, stream: Stream[T]) -> Chain[T]:
        """The values of a stream."""
        check_stream(stream, "read(...)")
        return Chain(self, _Streams((Inlet(stream, ()),)), ())

    def inject(
        self,
        source: Source[T],
        into: Stream[T],
        *,
        max_ahead: Duration | None = None,
        of: type[Computation[Any]] | str | Stream[Any] | Source[Any] | None = None,
        percentile: float | None = None,
    ) -> Chain[T]:
        """The values of a stream that is fed from `source`; the other arguments are those of `Pipeline.inject`."""
        self.pipeline.inject(source, into=into, max_ahead=max_ahead, of=of, percentile=percentile)
        return self.read(into)

    @overload
    def join_all(
        self, chains: tuple[KeyedChain[T], KeyedChain[U]], within: Aligned | Sessions, *, outer: Literal[False] = False,
        lateness: Duration = 0, name: str | None = None,
    ) -> Chain[Joined[tuple[T, U]]]: ...  # fmt: skip
    @overload
    def join_all(
        self, chains: tuple[KeyedChain[T], KeyedChain[U], KeyedChain[V]], within: Aligned | Sessions, *,
        outer: Literal[False] = False, lateness: Duration = 0, name: str | None = None,
    ) -> Chain[Joined[tuple[T, U, V]]]: ...  # fmt: skip
    @overload
    def join_all(
        self, chains: tuple[KeyedChain[T], KeyedChain[U], KeyedChain[V]], within: Aligned | Sessions, *, outer: Literal[True],
        lateness: Duration = 0, name: str | None = None,
    ) -> Chain[Joined[tuple[T | None, U | None, V | None]]]: ...  # fmt: skip
    @overload
    def join_all(
        self, chains: Sequence[KeyedChain[Any]], within: Aligned | Sessions, *, outer: bool = False, lateness: Duration = 0,
        name: str | None = None,
    ) -> Chain[Joined[tuple[Any, ...]]]: ...  # fmt: skip
    def join_all(
        self, chains: Sequence[KeyedChain[Any]], within: Aligned | Sessions, *, outer: bool = False, lateness: Duration = 0,
        name: str | None = None,
    ) -> Chain[Joined[Any]]:  # fmt: skip
        """Rows with one value of each of several chains, all of one key and in one window.

        With `outer` a window in which some have no value gives, when it is over, rows with None for those.
        """
        if not isinstance(chains, list | tuple):
            raise WiringError(f"join_all(...) needs a list of chains, got {chains!r:.80}")
        for chain in chains:
            check_keyed(chain, "join_all")
        needed = frozenset(() if outer else range(len(chains)))
        late = duration(lateness, "the allowed lateness")
        operation = join_all_in_windows(within, needed, late, [chain.coder for chain in chains])
        return self.apply(operation, [port for n, chain in enumerate(chains) for port in chain.ports(n)], name)

    def apply(self, operation: Operation[R], ports: Sequence[Port], name: str | None = None) -> Chain[R]:
        """A step that reads `ports`; it is added to the pipeline when its results get a stream."""
        result = _Result(self, operation, tuple(ports), name)
        self._results.append(result)
        return Chain(self, result, ())

    def end(self, operation: Operation[None], ports: Sequence[Port], name: str) -> None:
        """A step that reads `ports` and has no results: a sink."""
        self.add(operation, Inputs(ports), [], no_results, name)

    def add(
        self, operation: Operation[R], inputs: Inputs, outputs: list[Stream[Any]], emit: Emit[R], name: str
    ) -> None:
        """The computation of a step."""
        wiring = Wiring(inputs, emit)
        if operation.waits:
            self._waiting.append(name)
        for table in operation.tables:
            self.pipeline.sink(table)
        self.pipeline.add(
            lambda: operation.make(wiring),
            inputs=inputs.subscriptions(),
            outputs=[*outputs, *operation.side_outputs],
            name=name,
            strict_timestamps=operation.strict_timestamps,
            **operation.settings,
        )


class _Streams:
    """Values that lie in streams."""

    def __init__(self, feeds: tuple[Inlet, ...]) -> None:
        self.feeds = feeds

    def streams(self) -> tuple[Inlet, ...]:
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

    @property
    def title(self) -> str:
        """The name of the step; of one without a name, what it does."""
        return self._name or self._operation.kind

    def streams(self) -> tuple[Inlet, ...]:
        """For a step that reads these results: a stream of the name of this one, unless there is one already."""
        if self.stream is None:
            if self._name is None:
                raise WiringError(
                    f"{self._operation.kind} needs a name, for its results go on to another step: "
                    "give it name=..., or end it in a stream by .to(...) and go on from there"
                )
            self.write(Stream(f"{self._name}.out", known(self._operation.output)), ())
        if self.stream is None:
            raise InvariantError("there is no stream")
        return (Inlet(self.stream, ()),)

    def write(self, stream: Stream[Any], steps: Steps) -> None:
        """Add the computation: its results go through `steps` to `stream`."""
        if self.written:
            raise WiringError(
                f"the results of {self.title!r} already go through steps to a stream: "
                "end it in a stream of its own by .to(...), and go on from there"
            )
        self.written = True
        if not steps:
            self.stream = stream
        operation, inputs = self._operation, Inputs(self._ports)
        self._name = self._name or f"{stream.name}.{operation.kind}"
        self._flow.add(operation, inputs, [stream], emitter(stream, steps), self._name)


class Chain(Generic[T]):
    """Values of type `T` that come from somewhere, through stateless steps.

    Functions that are given to it must be pure: a value may go through them more than once.
    """

    def __init__(self, flow: Flow, origin: _Streams | _Result, steps: Steps) -> None:
        self.flow = flow
        self._origin = origin
        self._steps = steps

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A keyed step that was asked of values without a key."""
            if name in ("coder", "ports"):  # asked by a join
                raise WiringError("values by key are expected: call .key_by(...) on each chain that is joined")
            if not name.startswith("_") and hasattr(KeyedChain, name):
                raise WiringError(f"{name}(...) is a step of values by key: call .key_by(...) before it")
            raise AttributeError(f"a chain has no {name!r}", name=name, obj=self)

    def _then(self, step: Step) -> Chain[Any]:
        return Chain(self.flow, self._origin, (*self._steps, step))

    def filter(self, keep: Callable[[T], bool]) -> Chain[T]:
        """Those values for which `keep` is true."""
        check_function(keep, "filter")
        return self._then(Filter(keep))

    def map(self, function: Callable[[T], U], coder: Coder[U] | None = None) -> Chain[U]:
        """What `function` makes of each value; a step that stores such values, a join for example, needs their coder."""
        check_function(function, "map")
        check_coder(coder, "map")
        return self._then(Map(function, coder))

    def flat_map(self, function: Callable[[T], Iterable[U]]) -> Chain[U]:
        """All that `function` makes of each value; it must end in a stream before values are keyed."""
        check_function(function, "flat_map")
        return self._then(FlatMap(function))

    def branch(self, keep: Callable[[T], bool]) -> tuple[Chain[T], Chain[T]]:
        """Those values for which `keep` is true, and the others."""
        return self.filter(keep), self.filter(lambda value: not keep(value))

    def union(self, *others: Chain[T]) -> Chain[T]:
        """The values of this chain and of others."""
        for chain in others:
            if not isinstance(chain, Chain):
                raise WiringError(f"union(...) needs chains, got {chain!r:.80}")
        return Chain(self.flow, _Streams(tuple(feed for chain in (self, *others) for feed in chain.feeds())), ())

    def feeds(self) -> tuple[Inlet, ...]:
        """Streams and the steps behind them, for a step that reads this chain."""
        return tuple(Inlet(stream, (*steps, *self._steps)) for stream, steps in self._origin.streams())

    def key_by(
        self, key: Callable[[T], str | None], split_keys: Sequence[str] = (), *, key_version: str = ""
    ) -> KeyedChain[T]:
        """Values by key; None: not for the step that follows.

        Keyed steps are cut into intervals at `split_keys`, so that several workers can share each; see `Pipeline.add`.  A
        `key` that gives a value another key than it did has another `key_version`; see `subscribe`.
        """
        check_function(key, "key_by")
        check_key_version(key_version, "key_by")
        if fans_out(self._steps):
            raise WiringError(
                "flat_map gives many values of one, each with its key: end it in a stream, .to(...), and key that"
            )
        return KeyedChain(self.flow, self.feeds(), key, split_keys, key_version)

    def fan_out(
        self, keys: Callable[[T], Iterable[str]], name: str, split_keys: Sequence[str] = ()
    ) -> KeyedChain[Addressed[T]]:
        """Each value once under every one of its keys; this is a computation, `name`.  `split_keys` as for `key_by`."""
        coder: Coder[Any] = FieldsCoder(Addressed, {"value": known(coder_of(self.feeds()))})
        sent = self.flat_map(lambda value: (Addressed(key, value) for key in dict.fromkeys(keys(value))))
        return sent.to(Stream(f"{name}.out", coder), name).key_by(lambda addressed: addressed.key, split_keys)

    def to_files(
        self, name: str, row_type: type[T], *, shards: int = 1, rows: int = FILE_ROWS, every: Duration = FILE_AGE_US
    ) -> None:
        """Values as rows of files, which `millwheel_storage.part_files` makes of the tables `<name>_rows` and `_parts`.

        A file has up to `rows` of them, and is sealed at the latest `every` of wall time, us, after its first one.  With
        more `shards` more rows a second can be written, into more files.
        """
        ports = self.key_by(
            lambda value: f"{crc32(msgspec.json.encode(value)) % shards}" if shards > 1 else "0",
            key_version=f"{shards} shards" if shards > 1 else "",
        ).ports()
        self.flow.end(parts(name, row_type, rows, duration(every, "the age of a file")), ports, f"{name}.parts")

    def publish(self, stream: Stream[T], keep: int = PUBLISH_RECORDS) -> Chain[T]:
        """As `to`, and `millwheel tail` shows the last `keep` values; see `Pipeline.publish`.

        Values that are in `stream` already, for example of `flow.read(stream)`, are not written again.
        """
        check_stream(stream, "publish(...)")
        chain = self if self._lies_in(stream) else self.to(stream)
        self.flow.pipeline.publish(stream, keep)
        return chain

    def _lies_in(self, stream: Stream[T]) -> bool:
        """Whether these are all values of `stream`, as they are."""
        return not self._unwritten() and [(it.stream.name, it.steps) for it in self.feeds()] == [(stream.name, ())]

    def _unwritten(self) -> bool:
        return isinstance(self._origin, _Result) and not self._origin.written

    def to(self, stream: Stream[T], name: str | None = None) -> Chain[T]:
        """Write the values to `stream`; what comes back reads it.

        `name` is for steps without a keyed one before them, which are a computation here.
        """
        check_stream(stream, "to(...)")
        if isinstance(self._origin, _Result) and not self._origin.written:
            self._origin.write(stream, self._steps)
        else:
            self._stage(stream, name)
        return self.flow.read(stream)

    def _stage(self, stream: Stream[T], name: str | None) -> None:
        feeds = self.feeds()
        if any(feed.stream.name == stream.name and not changes_values(feed.steps) for feed in feeds):
            raise WiringError(
                f"to({stream.name!r}): values of {stream.name!r} would come back to it for ever: "
                "give another stream, or .publish(...) the values where they are"
            )
        steps: dict[str, list[Steps]] = {}
        for feed in feeds:
            steps.setdefault(feed.stream.name, []).append(feed.steps)
        ports = [
            Port(Inlet(feed.stream, ()), spread(feed.stream)) for feed in {f.stream.name: f for f in feeds}.values()
        ]
        operation = Operation(kind="steps", make=lambda wiring: Stateless(wiring, steps), output=stream.coder)
        _Result(self.flow, operation, tuple(ports), name).write(stream, ())
