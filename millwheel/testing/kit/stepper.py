"""The user's test kit: step a pipeline by hand, or run it under faults.

Lives here: `Stepper` and `simulate`.  Both run the shipping core, executor and commit code on the memory store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from millwheel.api.pipeline import Pipeline
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.errors import WiringError
from millwheel.model import MAX_TIME, MIN_TIME, SECOND, format_time, whole_time
from millwheel.testing.checks.ending import check_end
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import ROUGH, Faults, Nemesis, Planned, Seeded
from millwheel.testing.kit.scripted import ManualSource, Script, ScriptedSource
from millwheel.testing.kit.view import Results, inputs_of, tapped
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.process import Process
from millwheel.testing.world.simulator import Simulation, Unending
from millwheel_storage.memory import MemoryStore

T = TypeVar("T")

STEP_LIMIT_EVENTS: Final = 1_000_000
"""In one second of wall time.  A pipeline that rests has ten, so that days may pass."""
LONG_REST_US: Final = 100_000
START_US: Final = 1_700_000_000 * SECOND


class HookFailed(AssertionError):
    """User code raised on every attempt.  The message has its traceback."""


class RowRejected(AssertionError):
    """A row has no key or cannot be encoded.  In production it is counted and written to the source's reject file."""


class NeverEnds(AssertionError):
    """The pipeline keeps its own watermark from the end of time.  In production such a run would wait for ever."""


class _Instant(Planned):
    """No faults, and everything takes no time."""

    def delay_us(self, step: str) -> int:
        """None."""
        return 0

    def rest_us(self, wanted_us: int) -> int:
        """The clock stands still between the calls of a test, so what is short is left out."""
        return wanted_us if wanted_us >= LONG_REST_US else 0


class Stepper(Results):
    """A pipeline whose records, watermark and clock a test moves by hand.  Each call runs until nothing is left to do.

    The pipeline's own sources are not read; `send` takes their place.  Wall time stands still between the calls.  A hook that
    raises makes the call raise `HookFailed`.  With `quarantine=True` it stops its key instead, as in production.  A hook that
    changes a value which it has read, and does not set it, fails too, because in production that change would be lost.

    >>> from millwheel import Computation, JsonCoder, Pipeline, Stream, TextCoder, ValueCell, subscribe
    >>> words = Stream("words", TextCoder())
    >>> class Count(Computation[str]):
    ...     seen = ValueCell(JsonCoder(int), default=0)
    ...     def ProcessRecord(self, context, record):
    ...         self.seen.set(self.seen.get() + 1)
    >>> pipeline = Pipeline("demo")
    >>> pipeline.add(Count, inputs=[subscribe(words, key=str)])
    >>> stepper = Stepper(pipeline)
    >>> stepper.send(words, "to", 1)
    >>> stepper.state("Count", "to")
    {'seen': 1}
    """

    def __init__(self, pipeline: Pipeline, wall_time_us: int = START_US, quarantine: bool = False) -> None:
        self._quarantine = quarantine
        self.watches_values = True
        self.echoes: Echoes | None = None
        self.kernel = Kernel(0, wall_time_us)
        self.nemesis: Nemesis = _Instant()
        self._sources = {stream: ManualSource(f"manual-{stream}") for stream in inputs_of(pipeline)}
        self.graph = tapped(pipeline, self._sources)
        self.tables: Mapping[str, Table] = pipeline.tables
        self.store = WatchedStore(MemoryStore(), self.graph, self.kernel)
        super().__init__(self.graph, self.store.inner)
        self._launch()

    @property
    def clock(self) -> int:
        """Wall time, us."""
        return self.kernel.now

    def watermark(self, computation: str) -> int:
        """Low watermark of a computation, us."""
        self._check(computation)
        return self._process.worker.values.get(computation, MIN_TIME)

    @overload
    def send(self, stream: Stream[T], value: T, timestamp: int) -> None: ...
    @overload
    def send(self, stream: str, value: Any, timestamp: int) -> None: ...
    def send(self, stream: Stream[Any] | str, value: Any, timestamp: int) -> None:
        """Send one record, event time in us, on a stream that comes from outside, and run everything that follows from it.

        Raises `RowRejected` for a value without a key, which an injector would reject and count.
        """
        name = stream if isinstance(stream, str) else stream.name
        if name not in self._sources:
            raise WiringError(f"stream {name!r} does not come from outside; these do: {sorted(self._sources)}")
        source = self._sources[name]
        if source.promise >= MAX_TIME:
            raise WiringError(f"stream {name!r} has ended: after finish() nothing can be sent; make another Stepper")
        self.graph.streams[name].coder.encode(value)
        source.rows.append((value, whole_time(timestamp, "record")))
        self._settle()
        if source.rejected:
            reasons, source.rejected = source.rejected, []
            raise RowRejected(f"stream {name!r} rejects {reasons[0]}")

    def advance_watermark(self, timestamp: int) -> None:
        """Promise that no record before `timestamp` (us) is sent from now on; timers that are due fire."""
        promised = whole_time(timestamp, "watermark")
        for source in self._sources.values():
            source.promise = max(source.promise, promised)
        self._settle()

    def finish(self) -> None:
        """The end of all input: the watermark goes to the end of time."""
        self.advance_watermark(MAX_TIME)

    def advance_clock(self, by_us: int) -> None:
        """Let wall time pass; wall timers that are due fire."""
        if type(by_us) is not int:
            raise ValueError(f"advance_clock({by_us!r:.80}): give whole microseconds")
        if by_us < 0:
            raise ValueError(f"the clock of a test does not go back: {by_us} us")
        self._settle(until_us=self.kernel.now + by_us)

    def redrive(self, computation: str, key: str) -> None:
        """Drain the quarantine of a key, as `millwheel quarantine redrive` does; a second of wall time passes."""
        self._check(computation)
        self.store.inner.request_redrive(computation, key)
        self.advance_clock(SECOND)

    def restart(self) -> None:
        """Kill the process and recover everything from the store."""
        self._process.die()
        self._launch()

    def _launch(self) -> None:
        self._process = Process(self, 1, self.graph)
        self._process.endless = True
        self._process.start()
        self._settle()

    def _settle(self, until_us: int | None = None) -> None:
        """Run everything that is due by `until_us`, by default now."""
        until = self.kernel.now if until_us is None else until_us
        self._process.unpark()
        self._run(until)
        values: dict[str, int] = {}
        while self.graph.loops and values != self._process.worker.values:
            # A loop that waits is asked now and then, and the clock stands still: ask as often as that raises anything.
            values = dict(self._process.worker.values)
            self._process.join_again()
            self._run(until)
        self.kernel.now = until
        if not self._quarantine:
            _raise_failure(self.store)

    def _run(self, until: int) -> None:
        began, events = self.kernel.now, 0
        while (due := self.kernel.next_time()) is not None and due <= until:
            if due >= began + SECOND:
                began, events = due, 0
            events += 1
            if events > STEP_LIMIT_EVENTS:
                raise Violation("the pipeline never comes to rest", self.kernel.story())
            self.kernel.step()

    def story(self, word: str = "", limit: int = 60) -> str:
        """The last lines of what happened, those with `word` (a key, say) in them."""
        return self.kernel.story(word, limit)

    def crashed(self, process: Process) -> None:
        """Nothing crashes here."""
        raise Violation("the process died", self.kernel.story())

    def overtaken(self, process: Process) -> None:
        """Nothing overtakes here."""

    def ended(self, process: Process) -> None:
        """It never ends by itself."""


class Outcome(Results):
    """What `simulate` found: the results, and what happened on the way."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation.graph, simulation.store.inner)
        self.faults = dict(sorted(simulation.nemesis.struck.items()))
        """Faults that took effect, by kind."""
        self.restarts = len(simulation.processes) - 1
        """Processes that took over from another one."""
        self.trace_hash = simulation.kernel.trace_hash()
        """Equal for equal runs."""
        self._kernel = simulation.kernel

    def story(self, word: str = "", limit: int = 60) -> str:
        """The last lines of what happened, those with `word` (a key, say) in them."""
        return self._kernel.story(word, limit)


def simulate(
    pipeline: Pipeline,
    inputs: Mapping[str, Iterable[tuple[Any, int]]],
    seed: int = 0,
    faults: Faults = ROUGH,
    quarantine: bool = False,
) -> Outcome:
    """Run a pipeline to the end of its `inputs` under crashes, lost replies, duplicates and reordering.

    `inputs` maps the name of each stream from outside to its (value, event time us) pairs; rows arrive in their order,
    over ten virtual seconds.  The same seed gives the same run.  Compare the outcome with that of `faults=NO_FAULTS`.
    Raises `HookFailed` when a hook raised to its last attempt, unless `quarantine` says that this is meant; `NeverEnds`
    when a hold is never released; and `Violation` when the framework breaks one of its own promises: a bug of ours,
    please report it with the seed.
    """
    named = inputs_of(pipeline)
    if not isinstance(inputs, Mapping) or {*inputs} != {*named}:
        what = [*inputs] if isinstance(inputs, Mapping) else inputs
        raise WiringError(
            f"inputs must name exactly the streams from outside, {named}, and what is given is {what!r:.200}"
        )
    if not isinstance(faults, Faults):
        raise WiringError(f"faults={faults!r:.80}: give Faults(...), for example NO_FAULTS or Faults(crash=0.01)")
    kernel = Kernel(seed, START_US)
    sources = {name: ScriptedSource(f"scripted-{name}", [_script(kernel, rows)]) for name, rows in inputs.items()}
    graph = tapped(pipeline, sources)
    store = WatchedStore(MemoryStore(), graph, kernel)
    simulation = Simulation(
        graph=graph,
        tables=pipeline.tables,
        kernel=kernel,
        nemesis=Seeded(faults, kernel.rng),
        store=store,
        faults_until_us=12 * SECOND,
    )
    simulation.watches_values = True
    try:
        simulation.run()
    except Unending as error:
        held = simulation.held()
        if held:
            raise NeverEnds(f"the run does not end: {held}; release it in a timer or a later record") from None
        raise error
    check_end(store)
    if not quarantine:
        _raise_failure(store)
    return Outcome(simulation)


def _raise_failure(store: WatchedStore) -> None:
    failures, store.truth.failures = store.truth.failures, []
    for computation, entry in failures:
        what = f"timer {entry.tag!r}" if entry.is_timer else "a record"
        raise HookFailed(
            f"{computation} failed on {what} of key {entry.key!r} at {format_time(entry.timestamp)}; in production that "
            f"key would wait in quarantine (quarantine=True to test that):\n{entry.error}"
        )


def _script(kernel: Kernel, rows: Iterable[tuple[Any, int]]) -> Script:
    listed = list(rows)
    for row in listed:
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise WiringError(f"inputs are pairs of a value and an event time, us, and one is {row!r:.80}")
    arrivals = sorted(kernel.now + kernel.rng.randrange(10 * SECOND) for _ in listed)
    return Script("rows", listed, arrivals)
