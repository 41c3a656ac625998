"""Wiring: streams, computations, injectors and sinks become a checked graph (§4.3).

pipeline = Pipeline("wordcount")
pipeline.inject(source, into=lines)
pipeline.add(Count, inputs=[subscribe(words, key=str)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

import msgspec

from millwheel import limits
from millwheel.api.computation import Computation, cells_of
from millwheel.api.gathering import Gathering, gatherer
from millwheel.api.given import (
    check_computation,
    check_inputs,
    check_key_version,
    check_outputs,
    check_percentile,
    check_source,
    check_split_list,
    check_stream,
    check_table,
    evolution_of,
    runs_later,
)
from millwheel.api.publish import TABLE as PUBLISHED
from millwheel.api.publish import Publisher, check_keep
from millwheel.api.skew import skew_of
from millwheel.api.snapshots import Checkpoints, Forgotten, Snapshots, baseline_of, snapshot_every_us
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.api.typed import Factory, Input, Inputs
from millwheel.errors import WiringError
from millwheel.graph import (
    ComputationSpec,
    Graph,
    Settings,
    SourceSpec,
    StreamSpec,
    SubscriptionSpec,
    check_graph,
    check_name,
    declare_stream,
    subscription_names,
)
from millwheel.shape import PUBLISH_PREFIX, CombinedBy
from millwheel.source import Source

T = TypeVar("T")
V = TypeVar("V")


def subscribe(stream: Stream[T], key: Callable[[T], str | None], *, key_version: str = "") -> Input[T]:
    """Subscribe to `stream` with this key extractor: value to str, or None for "not for me" (§4.3).

    When a new version of `key` gives a value another key, say so by another `key_version`, a text of up to 100 bytes.  Then a
    row that is read again does not count under both keys, whichever interval each of them is in.
    """
    check_stream(stream, "subscribe")
    if not callable(key):
        raise WiringError(f"the key extractor of a subscription to {stream.name!r} is {key!r:.80}, not a function")
    if runs_later(key):
        raise WiringError(
            f"the key extractor of a subscription to {stream.name!r} is async or yields: make it a plain function"
        )
    check_key_version(key_version, f"subscription to {stream.name!r}")
    found: Input[T] = Input(stream, key, key_version)
    return found


class Pipeline:
    """A named graph of computations.  Everything about it is checked in `graph()`, before anything runs."""

    def __init__(self, name: str, *, durability: Checkpoints | Snapshots | Forgotten | None = None) -> None:
        check_name("pipeline", name)
        self.name = name
        durability = Checkpoints() if durability is None else durability
        self._snapshot_every_us = snapshot_every_us(durability)
        self.baseline = baseline_of(durability)
        """Whether it is for a comparison only; commands refuse it then."""
        self._streams: dict[str, StreamSpec] = {}
        self._computations: dict[str, ComputationSpec] = {}
        self._sources: dict[str, SourceSpec] = {}
        self._tables: dict[str, Table[Any]] = {}
        self._gone: dict[str, None] = {}
        self._checks: list[Callable[[], None]] = []
        self._graph_checks: list[Callable[[Graph], None]] = []

    def check_before(self, check: Callable[[], None]) -> None:
        """Call `check` before anybody uses the pipeline: it raises `WiringError` for what only its owner can see."""
        self._checks.append(check)

    def check_after(self, check: Callable[[Graph], None]) -> None:
        """The same with the graph, which is checked by then."""
        self._graph_checks.append(check)

    def declared(self) -> tuple[dict[str, StreamSpec], dict[str, ComputationSpec]]:
        """The streams and computations so far, by name, before the graph is checked; a copy."""
        for check in self._checks:
            check()
        return dict(self._streams), dict(self._computations)

    def inject(
        self,
        source: Source[T],
        into: Stream[T],
        *,
        max_ahead: timedelta | int | None = None,
        of: type[Computation[Any]] | str | Stream[Any] | Source[Any] | None = None,
        percentile: float | None = None,
    ) -> None:
        """Feed `into` from `source` (§5.2).

        With `max_ahead` (us, or a timedelta) a partition of the source is not read while its own promise is further ahead of
        the low watermark of `of` in event time (skew control, §8.4): a computation or its name, a stream for the lowest of
        all that sends on it, or another source.  One read may go beyond the bound.  `WiringError` for only one of the two.

            pipeline.inject(fast, into=clicks, max_ahead=timedelta(hours=1), of=Join)

        With `percentile`, from 0.5 to below 1, the watermark of the source is what such a share of its open partitions has
        reached (§7.2).  The others do not hold it, and their rows that are behind it are late.  At 0.99 a hundred partitions
        must be open before one of them is left behind.
        """
        check_source(source)
        check_percentile(percentile, source.name)
        check_stream(into, f"inject(into=...) of source {source.name!r}")
        if source.name in self._sources:
            raise WiringError(f"source {source.name!r} is injected twice: give each source a name of its own")
        self._declare(into, f"source {source.name!r}")
        skew = skew_of(source.name, max_ahead, of)
        self._sources[source.name] = SourceSpec(source.name, into.name, source, skew, percentile)

    def add(
        self,
        computation: Factory[Computation[V]],
        inputs: Inputs[V],
        outputs: Iterable[Stream[Any]] = (),
        *,
        name: str | None = None,
        formerly: str | None = None,
        productions: Literal["strong", "weak"] = "strong",
        exactly_once: bool = True,
        expire_after: int | None = None,
        split_keys: Sequence[str] = (),
        cache_limit_bytes: int | None = None,
        strict_timestamps: bool = True,
        hook_attempts: int = limits.HOOK_ATTEMPTS,
        quarantine_holds: bool = False,
        first_failures: int | None = limits.FIRST_FAILURES,
        work_limit_records: int = limits.WORK_LIMIT_RECORDS,
        straggler_delay_us: int = limits.STRAGGLER_DELAY_US,
        combiner: Gathering[V] | CombinedBy | None = None,
    ) -> None:
        """Add a computation: a class, or a factory without arguments.  See `Settings` for the keyword arguments.

        With a `combiner` a computation `name`.parts comes before it, which merges the values of a hot key in several places.
        The library says by `CombinedBy` that it has added that one itself.

        `formerly` is the name that it had in an earlier version.  Everything that the store holds under that name
        becomes its own.
        """
        class_ = check_computation(computation)
        name = class_.__name__ if name is None else name
        check_name("computation", name)
        check_split_list(split_keys, name)
        settings = Settings(
            productions=productions, exactly_once=exactly_once, expire_after=expire_after,
            split_keys=tuple(split_keys), cache_limit_bytes=cache_limit_bytes, strict_timestamps=strict_timestamps,
            hook_attempts=hook_attempts, quarantine_holds=quarantine_holds, work_limit_records=work_limit_records,
            straggler_delay_us=straggler_delay_us, first_failures=first_failures,
        )  # fmt: skip
        if name in self._computations:
            raise WiringError(f"computation {name!r} is added twice: give one of them name=...")
        given: Sequence[Input[Any]] = check_inputs(inputs, name)
        combined_by = None
        if isinstance(combiner, CombinedBy):
            combined_by = combiner
        elif combiner is not None:
            given = [self._gather(name, combiner, given)]
            combined_by = combiner.combined_by(name)
        spec = self._spec(name, class_, computation, given, check_outputs(outputs, name), settings)
        self._computations[name] = msgspec.structs.replace(
            spec, evolution=evolution_of(class_, name, formerly), combined_by=combined_by
        )

    def _gather(self, name: str, combiner: Gathering[V], inputs: Sequence[Input[Any]]) -> Input[Any]:
        """Put a combiner before the computation `name`, and give what that one then reads."""
        if not isinstance(combiner, Gathering) or len(inputs) != 1:
            raise WiringError(
                f"computation {name!r}: combiner=Gathering(...) merges the values of one input; there are {len(inputs)}, "
                f"and the combiner is {combiner!r:.80}"
            )
        (given,), coder, parts = inputs, inputs[0].stream.coder, combiner.combined_by(name).parts
        merged = Stream(parts, coder)
        make = gatherer(combiner, given.key, coder, merged)
        spread = Input[Any](given.stream, combiner.spread(given.key, coder), given.key_version)
        self.add(make, [spread], [merged], name=parts, split_keys=combiner.split_keys())
        return Input(merged, given.key)

    def _spec(
        self,
        name: str,
        class_: type[Computation[Any]],
        factory: Callable[[], Any],
        inputs: Sequence[Input[Any]],
        outputs: tuple[Stream[Any], ...],
        settings: Settings,
    ) -> ComputationSpec:
        for stream in [i.stream for i in inputs] + list(outputs):
            self._declare(stream, f"computation {name!r}")
        names = subscription_names(name, [i.stream.name for i in inputs])
        subscriptions = tuple(
            SubscriptionSpec(sub, i.stream.name, name, i.key, i.key_version)
            for sub, i in zip(names, inputs, strict=True)
        )
        cells = {cell: declared.fingerprint for cell, declared in cells_of(class_).items()}
        return ComputationSpec(
            name, factory, subscriptions, tuple(dict.fromkeys(o.name for o in outputs)), settings, cells
        )

    def publish(self, stream: Stream[Any], keep: int = limits.PUBLISH_RECORDS) -> None:
        """Keep the last `keep` records of `stream` in the store, for `millwheel tail` and `Committed.tail`.

        They are kept exactly once and in order, by a computation that reads the stream under one key.  So each record of the
        stream costs one more delivery and one row.  Without this call a later run stops it, and what is kept stays.
        """
        check_stream(stream, "publish")
        check_keep(stream, keep)
        name = PUBLISH_PREFIX + stream.name
        if name in self._computations:
            raise WiringError(f"stream {stream.name!r} is published twice")
        one_key: Input[Any] = Input(stream, lambda _: stream.name)
        spec = self._spec(name, Publisher, lambda: Publisher(stream.name, keep), [one_key], (), Settings())
        self._computations[name] = msgspec.structs.replace(spec, encoded=True)
        self._tables[PUBLISHED.name] = PUBLISHED

    def drop(self, computation: str, input: Stream[Any] | str | None = None) -> None:
        """A computation that an earlier version had is gone, or one `input` of a computation that stays.

        The first start deletes what the store holds of it: state, timers, what waits in quarantine, and what is on its way to
        it.  There is no way back.  What it has sent itself is delivered, and rows of sink tables stay.  The line may be taken
        out after that start, and does nothing where the store has no such computation or input.  `WiringError` when the
        pipeline still has it.

            pipeline.drop("Sessions")
            pipeline.drop("Alerts", input=clicks)
        """
        check_name("computation", computation)
        if input is None:
            self._gone[computation] = None
            return
        stream = input.name if isinstance(input, Stream) else input
        check_name("stream", stream)
        self._gone[f"{computation}<{stream}"] = None

    def sink(self, table: Table[Any]) -> None:
        """Declare a table for `context.upsert`."""
        check_table(table)
        if table.name.lower().startswith("millwheel_"):
            raise WiringError(f"sink table {table.name!r}: names that begin with 'millwheel_' are reserved; rename it")
        if table.name in self._tables:
            raise WiringError(f"sink table {table.name!r} is declared twice")
        self._tables[table.name] = table

    @property
    def tables(self) -> dict[str, Table[Any]]:
        """Declared sink tables by name."""
        return dict(self._tables)

    def graph(self) -> Graph:
        """The checked graph; raises `WiringError` naming the culprit."""
        for check in self._checks:
            check()
        return self.checked(
            Graph(
                self.name, self._streams, self._computations, self._sources,
                tuple(table.spec() for table in self._tables.values()), snapshot_every_us=self._snapshot_every_us,
                baseline=self.baseline, gone=tuple(self._gone),
            )
        )  # fmt: skip

    def checked(self, graph: Graph) -> Graph:
        """A graph of this pipeline when nothing is wrong with it, perhaps with other sources; raises `WiringError`."""
        found = check_graph(graph)
        for check in self._graph_checks:
            check(found)
        return found

    def _declare(self, stream: Stream[Any], by: str) -> None:
        declare_stream(self._streams, StreamSpec(stream.name, stream.coder), by)
