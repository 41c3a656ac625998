"""The pipeline as plain values, and the checks that make a wiring mistake an error at start.

Lives here: specifications and validation.  Never here: user code being run, I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from millwheel import limits
from millwheel.baselines import Baseline
from millwheel.coders import Coder, reads_of, schema_of
from millwheel.errors import InvariantError, WiringError
from millwheel.ids import SubscriptionId
from millwheel.intervals import check_split_keys, is_text
from millwheel.loops import Loop, loops_of
from millwheel.shape import CombinedBy, PipelineShape, SinkTable
from millwheel.source import Source

KeyExtractor = Callable[[Any], str | None]


Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one computation.

    `productions`: "strong" (checkpointed before they are sent) or "weak" (sent first; for idempotent computations).
    `exactly_once`: deduplicate deliveries by record id.  `expire_after`: event time, us, after a key's last state write
    at which its state is dropped.  `cache_limit_bytes`: state of one interval in memory; None: a share of what the process
    has for that.  `split_keys`: ascending keys at which the key space is cut into intervals.
    `strict_timestamps`: refuse a production older than its input, timer or hold.  `quarantine_holds`: a quarantined
    key keeps holding the low watermark, at its oldest waiting element, timer or own hold; otherwise none of them counts.
    `first_failures`: the run is stopped when a hook has failed for so many keys and succeeded for none; None: never.
    """

    productions: Literal["strong", "weak"] = "strong"
    exactly_once: bool = True
    expire_after: Positive | None = None
    split_keys: tuple[str, ...] = ()
    cache_limit_bytes: Positive | None = None
    strict_timestamps: bool = True
    hook_attempts: Positive = limits.HOOK_ATTEMPTS
    quarantine_holds: bool = False
    first_failures: Positive | None = limits.FIRST_FAILURES
    work_limit_records: Positive = limits.WORK_LIMIT_RECORDS
    straggler_delay_us: Annotated[int, msgspec.Meta(ge=0)] = limits.STRAGGLER_DELAY_US


class StreamSpec(msgspec.Struct, frozen=True):
    """A named edge set and the coder of its values."""

    name: str
    coder: Coder[Any]


class SubscriptionSpec(msgspec.Struct, frozen=True):
    """One subscriber of a stream: `name` is durable, `key` extracts the key from a value (None: not for me)."""

    name: str
    stream: str
    computation: str
    key: KeyExtractor
    key_version: str = ""
    """Another one says that `key` gives other keys than it did."""


class Evolution(msgspec.Struct, frozen=True):
    """What a computation says of its earlier versions: its name, the cells' names, and the cells that go.

    `schemas` and `reads` are by cell what its coder says: a description of its bytes, and fingerprints that it reads.
    """

    formerly: str | None = None
    cells: Mapping[str, str] = {}
    dropped: tuple[str, ...] = ()
    schemas: Mapping[str, Any] = {}
    reads: Mapping[str, tuple[str, ...]] = {}


class ComputationSpec(msgspec.Struct, frozen=True):
    """One computation: its user class, what it reads and may publish, its state cells' coders."""

    name: str
    factory: Callable[[], Any]
    inputs: tuple[SubscriptionSpec, ...]
    outputs: tuple[str, ...]
    settings: Settings
    cells: Mapping[str, str]
    encoded: bool = False
    """Its hooks get values as the stream's coder encoded them."""
    evolution: Evolution = Evolution()
    combined_by: CombinedBy | None = None
    """The computation before it that merges the values of its keys."""


class Skew(msgspec.Struct, frozen=True):
    """How far a source may run ahead of a chosen low watermark (§8.4): `max_ahead_us` of event time.

    `of` says whose: "computation:name", "stream:name" for the lowest of all that sends on it, or "source:name".
    """

    max_ahead_us: int
    of: str


class SourceSpec(msgspec.Struct, frozen=True):
    """An injector: the source that feeds a stream."""

    name: str
    stream: str
    source: Source[Any]
    skew: Skew | None = None
    """A bound on how far it may run ahead; None: it is read as fast as it is taken."""
    percentile: float | None = None
    """The share of its open partitions that its watermark waits for; None: all of them."""


class Graph(msgspec.Struct, frozen=True):
    """A whole pipeline, checked."""

    name: str
    streams: Mapping[str, StreamSpec]
    computations: Mapping[str, ComputationSpec]
    sources: Mapping[str, SourceSpec]
    sinks: tuple[SinkTable, ...]
    loops: tuple[Loop, ...] = ()
    """Where computations send to each other in a circle; `check_graph` finds them."""
    snapshot_every_us: int = 0
    """An epoch begins so often, and all is durable by epochs; 0: by the log."""
    baseline: Baseline = Baseline.NONE
    """For comparisons: the epochs are not those of snapshots."""
    gone: tuple[str, ...] = ()
    """Computations that an earlier version had and that are declared to go, and inputs, as "computation<stream"."""

    @property
    def durable(self) -> bool:
        """Whether anything of a run outlives its processes; false only for a comparison."""
        return self.baseline is not Baseline.FORGETS

    def subscriptions(self, stream: str) -> list[SubscriptionSpec]:
        """Every subscription of `stream`, in wiring order."""
        return [s for c in self.computations.values() for s in c.inputs if s.stream == stream]

    def senders(self, computation: str) -> set[str]:
        """Names of what sends to `computation`: computations, and sources as "source:name"."""
        streams = {s.stream for s in self.computations[computation].inputs}
        sources = {f"source:{s.name}" for s in self.sources.values() if s.stream in streams}
        return sources | {c.name for c in self.computations.values() if streams & set(c.outputs)}

    def feeders(self, stream: str) -> set[str]:
        """Names of what sends on a stream: computations, and sources as "source:name"."""
        sources = {f"source:{s.name}" for s in self.sources.values() if s.stream == stream}
        return sources | {c.name for c in self.computations.values() if stream in c.outputs}

    def skew_marks(self, skew: Skew) -> set[str]:
        """The names whose watermarks a source must not run too far ahead of."""
        kind, _, name = skew.of.partition(":")
        return self.feeders(name) if kind == "stream" else {name} if kind == "computation" else {skew.of}

    def waited_for(self, source: str) -> set[str]:
        """Sources, as "source:name", of which the watermark that `source` must not run ahead of may wait for rows."""
        found: set[str] = set()
        ahead = {f"source:{source}"}
        while ahead:
            name = ahead.pop()
            spec = self.sources.get(name.removeprefix("source:")) if name.startswith("source:") else None
            if spec is None:
                onward = self.senders(name)
            else:
                onward = self.skew_marks(spec.skew) if spec.skew is not None else set()
            ahead |= onward - found
            found |= onward
        return {name for name in found if name.startswith("source:")}

    def bounds(self, computation: str) -> set[str]:
        """Names of what bounds the input watermark of `computation`: what sends to it on regular edges, and the floor of a
        loop ("loop:name") in the place of those that send on back edges."""
        senders, loop = self.senders(computation), self.loop_of(computation)
        if loop is None or computation not in loop.heads:
            return senders
        back = {sender for sender, receiver in loop.back_edges if receiver == computation}
        return senders - back | {loop.name}

    def loop_of(self, computation: str) -> Loop | None:
        """The loop that a computation is in, if any."""
        return next((loop for loop in self.loops if computation in loop.members), None)

    def back_subscriptions(self, computation: str) -> list[SubscriptionSpec]:
        """Subscriptions to which `computation` sends on back edges."""
        loop = self.loop_of(computation)
        to = {receiver for sender, receiver in loop.back_edges if sender == computation} if loop is not None else ()
        outputs = self.computations[computation].outputs
        return [s for name in sorted(to) for s in self.computations[name].inputs if s.stream in outputs]

    def is_back(self, sender: str, receiver: str) -> bool:
        """Whether what `sender` sends to `receiver` goes on a back edge: also what it has logged, and sends to itself."""
        loop = self.loop_of(sender)
        return sender == receiver or (loop is not None and (sender, receiver) in loop.back_edges)

    def back_inputs(self, computation: str) -> list[SubscriptionSpec]:
        """Subscriptions on which `computation` receives on back edges."""
        loop = self.loop_of(computation)
        senders = {sender for sender, to in loop.back_edges if to == computation} if loop is not None else ()
        streams = {stream for name in senders for stream in self.computations[name].outputs}
        return [s for s in self.computations[computation].inputs if s.stream in streams]

    def slack(self, stream: str) -> int | None:
        """How long ids that outside clients gave to rows of `stream` are remembered, us; None when rows have none."""
        found = [s.source for s in self.sources.values() if s.stream == stream and s.source.record_id is not None]
        return found[0].id_slack if found else None

    def slacks(self, computation: str, subscriptions: Mapping[str, SubscriptionId]) -> dict[SubscriptionId, int]:
        """`slack` of the computation's inputs that have one, by subscription number."""
        found = ((subscriptions[s.name], self.slack(s.stream)) for s in self.computations[computation].inputs)
        return {number: slack for number, slack in found if slack is not None}

    def order(self) -> list[str]:
        """Computations, senders before receivers, without regard to back edges."""
        remaining = {name: self.bounds(name) & set(self.computations) for name in self.computations}
        done: list[str] = []
        while remaining:
            ready = sorted(name for name, senders in remaining.items() if senders <= set(done))
            if not ready:
                raise InvariantError(f"the computations {sorted(remaining)} wait for each other")
            done += ready
            for name in ready:
                del remaining[name]
        return done

    def shape(self) -> PipelineShape:
        """What the store must check before the first write."""
        streams, computations = self.streams.values(), self.computations.values()
        coders = {f"stream:{s.name}": s.coder.fingerprint for s in streams}
        schemas = {f"stream:{s.name}": schema_of(s.coder) for s in streams if schema_of(s.coder)}
        reads = {f"stream:{s.name}": reads_of(s.coder) for s in streams if reads_of(s.coder)}
        formerly = {f"computation:{c.name}": c.evolution.formerly for c in computations if c.evolution.formerly}
        for c in computations:
            coders |= {f"cell:{c.name}.{cell}": fp for cell, fp in c.cells.items()}
            schemas |= {f"cell:{c.name}.{cell}": schema for cell, schema in c.evolution.schemas.items()}
            reads |= {f"cell:{c.name}.{cell}": read for cell, read in c.evolution.reads.items()}
            formerly |= {f"cell:{c.name}.{cell}": old for cell, old in c.evolution.cells.items()}
        return PipelineShape(
            name=self.name,
            computations={c.name: c.settings.split_keys for c in self.computations.values()},
            subscriptions={s.name: s.stream for c in self.computations.values() for s in c.inputs},
            coders=coders,
            sinks=self.sinks,
            sources=tuple(self.sources),
            streams={source.name: source.stream for source in self.sources.values()},
            kinds={source.name: source.source.kind for source in self.sources.values() if source.source.kind},
            schemas=schemas,
            reads=reads,
            formerly=formerly,
            dropped=tuple(f"{c.name}.{cell}" for c in computations for cell in c.evolution.dropped),
            combiners={c.name: self._combiner(c.combined_by) for c in computations if c.combined_by is not None},
            key_versions={s.name: s.key_version for c in computations for s in c.inputs if s.key_version},
            gone=self.gone,
            snapshots=self.snapshot_every_us > 0,
        )

    def _combiner(self, combiner: CombinedBy) -> CombinedBy:
        """As the store knows it."""
        senders = tuple(sorted(self.senders(combiner.parts))) if combiner.suffix else ()
        return msgspec.structs.replace(combiner, senders=senders)


def check_name(kind: str, name: str) -> None:
    """Names stand in tables, messages and commands: short, no separators of ours."""
    if not isinstance(name, str):
        raise WiringError(f"{kind} name {name!r:.80} is {type(name).__name__}, not str")
    if not is_text(name):
        raise WiringError(f"{kind} name {name!r:.80} is not valid Unicode")
    if not name or len(name.encode()) > 100 or any(c in name for c in "<#: \t\n\0/"):
        raise WiringError(f"{kind} name {name!r}: use 1 to 100 bytes without blanks, '/', '<', '#' or ':'")


def check_graph(graph: Graph) -> Graph:
    """Every check that needs the whole graph; returns it."""
    if not graph.computations:
        raise WiringError(f"pipeline {graph.name!r} has no computation: call pipeline.add(...)")
    for computation in graph.computations.values():
        _check_computation(graph, computation)
        former = computation.evolution.formerly
        if former in graph.computations:
            raise WiringError(f"computation {computation.name!r} was formerly {former!r}, which the pipeline still has")
        if former in graph.gone:
            raise WiringError(
                f"computation {computation.name!r} was formerly {former!r}, which is dropped: say one of both"
            )
    _check_gone(graph)
    for source in graph.sources.values():
        if not graph.subscriptions(source.stream):
            raise WiringError(f"source {source.name!r} injects into {source.stream!r}, to which nobody subscribes")
        _check_skew(graph, source)
    _check_ids(graph)
    graph = msgspec.structs.replace(graph, loops=_loops(graph))
    for loop in graph.loops:
        _check_loop(graph, loop)
    _check_baseline(graph)
    return graph


def _check_gone(graph: Graph) -> None:
    for name in graph.gone:
        computation, _, stream = name.partition("<")
        if not stream and computation in graph.computations:
            raise WiringError(
                f"computation {computation!r} is dropped, and the pipeline still has it: leave out one of both"
            )
        inputs = graph.computations[computation].inputs if computation in graph.computations else ()
        if stream and not inputs:
            raise WiringError(f"an input of computation {computation!r} is dropped, and there is no such computation")
        if stream in {s.stream for s in inputs}:
            raise WiringError(
                f"computation {computation!r} still reads stream {stream!r}, which is dropped as its input"
            )


def _check_baseline(graph: Graph) -> None:
    if graph.baseline is not Baseline.NONE and graph.loops:
        raise WiringError(f"pipeline {graph.name!r}: its durability is for comparisons, and has no loops")
    if graph.baseline is Baseline.FORGETS and graph.sinks:
        raise WiringError(f"pipeline {graph.name!r}: under its durability, rows of sinks would never be seen")


def _check_skew(graph: Graph, source: SourceSpec) -> None:
    if source.skew is None:
        return
    kind, _, name = source.skew.of.partition(":")
    known = {"computation": graph.computations, "stream": graph.streams, "source": graph.sources}[kind]
    if name not in known or not graph.skew_marks(source.skew):
        raise WiringError(
            f"source {source.name!r} must not run ahead of {kind} {name!r}, which the pipeline does not have or nothing "
            f"feeds; there are {sorted(known)}"
        )
    if source.skew.of == f"source:{source.name}":
        raise WiringError(f"source {source.name!r} must not run ahead of itself: name another source, or a computation")


def _check_loop(graph: Graph, loop: Loop) -> None:
    members = [*loop.members]
    if not set[str]().union(*map(graph.senders, members)).difference(members):
        raise WiringError(
            f"pipeline {graph.name!r}: the computations {members} send to each other in a circle, and nothing from outside "
            "sends to them: inject a source into one of their streams"
        )
    weak = [name for name in members if graph.computations[name].settings.productions == "weak"]
    if weak:
        raise WiringError(
            f"computation {weak[0]!r} has weak productions and is in the loop {members}: a checkpoint would wait for what "
            "comes round to it, until the straggler delay is over; use strong productions in a loop"
        )


def _loops(graph: Graph) -> tuple[Loop, ...]:
    receivers = {
        spec.name: {s.computation for stream in spec.outputs for s in graph.subscriptions(stream)}
        for spec in graph.computations.values()
    }
    fed = {s.computation for source in graph.sources.values() for s in graph.subscriptions(source.stream)}
    return loops_of(receivers, fed)


def _check_ids(graph: Graph) -> None:
    owners: dict[str, str] = {}
    for spec in graph.sources.values():
        if spec.source.record_id is None:
            continue
        other = owners.setdefault(spec.stream, spec.name)
        if other != spec.name:
            raise WiringError(
                f"sources {other!r} and {spec.name!r} both give record ids to stream {spec.stream!r}, where an id of one "
                "could not be told from the same id of the other: inject them into streams of their own"
            )
        if (graph.slack(spec.stream) or 0) <= 0:
            raise WiringError(f"source {spec.name!r}: id_slack must be a positive number of us")


def _check_settings(computation: ComputationSpec) -> None:
    try:
        msgspec.convert(msgspec.structs.asdict(computation.settings), Settings)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        if choices := get_args(get_type_hints(Settings).get(where.rstrip("`"))) if "enum" in reason else ():
            reason = f"{reason}; use {' or '.join(map(repr, choices))}"
        raise WiringError(f"computation {computation.name!r}: setting {where.rstrip('`')}: {reason}") from None


def _check_computation(graph: Graph, computation: ComputationSpec) -> None:
    _check_settings(computation)
    check_split_keys(computation.settings.split_keys, computation.name)
    if not computation.inputs:
        raise WiringError(f"computation {computation.name!r} subscribes to no stream: give inputs=[...]")
    fed = {s.stream for s in graph.sources.values()} | {o for c in graph.computations.values() for o in c.outputs}
    for subscription in computation.inputs:
        if subscription.stream not in fed:
            raise WiringError(
                f"computation {computation.name!r} subscribes to stream {subscription.stream!r}, which no injector "
                f"and no computation feeds; fed streams: {sorted(fed)}"
            )


def declare_stream(streams: dict[str, StreamSpec], spec: StreamSpec, by: str) -> None:
    """Add a stream as `by` uses it; the same name with another coder is a mismatch of producer and consumer."""
    check_name("stream", spec.name)
    known = streams.setdefault(spec.name, spec)
    if known.coder.fingerprint != spec.coder.fingerprint:
        raise WiringError(
            f"stream {spec.name!r}: {by} uses coder {spec.coder.fingerprint!r}, but it is already declared with "
            f"{known.coder.fingerprint!r}; producer and consumer must use the same coder"
        )


def subscription_names(computation: str, streams: Sequence[str]) -> list[str]:
    """Durable names of a computation's subscriptions: "c<s", repeats as "c<s#2".

    >>> subscription_names("c", ["s", "t", "s"])
    ['c<s', 'c<t', 'c<s#2']
    """
    seen: dict[str, int] = {}
    names = []
    for stream in streams:
        seen[stream] = seen.get(stream, 0) + 1
        names.append(f"{computation}<{stream}" + (f"#{seen[stream]}" if seen[stream] > 1 else ""))
    return names
