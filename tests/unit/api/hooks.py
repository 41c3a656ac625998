"""Calls hooks of a computation the way a run does, without a store: for tests of the API and the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millwheel import Computation, Context, Pipeline, Record, Stream, Table, TextCoder, Timer, subscribe
from millwheel.bundles import QuarantineEntry
from millwheel.core.keys.cache import StateCache
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.runtime.executor import Executor
from millwheel.work import BundlePart, InvocationOutcome, Work
from millwheel_injectors import IterableSource

IN, OTHER, OUT = SubscriptionId(1), 2, SubscriptionId(3)

texts = Stream("texts", TextCoder())
out = Stream("out", TextCoder())
undeclared = Stream("undeclared", TextCoder())
table = Table("rows", {"k": "text", "n": "bigint"}, ("k",))

Hook = Callable[[Any, Context, Record[str]], None]
OnTimer = Callable[[Any, Context, Timer], None]


class Sink(Computation[str]):
    """Whoever listens to `out`; its key is the value or, of a very long one, its begin, and "nobody" is not for it."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def executor_of(computation: Callable[[], Computation[str]], **settings: Any) -> Executor:
    """An executor of `computation`, which reads `texts` and may publish `out` and fill `table`."""
    pipeline = Pipeline("p")
    pipeline.inject(IterableSource("source", [("x", 1)]), into=texts)
    pipeline.add(computation, [subscribe(texts, str)], [out], name="it", **settings)
    pipeline.add(
        Sink,
        [subscribe(out, lambda text: None if text == "nobody" else text[:9] if len(text) > 10_000 else text)],
        name="sink",
    )
    pipeline.sink(table)
    graph = pipeline.graph()
    return Executor(
        spec=graph.computations["it"],
        graph=graph,
        subscriptions={"it<texts": IN, "sink<out": OUT},
        tables=pipeline.tables,
    )


def computation_of(
    record: Hook | None = None, timer: OnTimer | None = None, cells: Mapping[str, Any] | None = None
) -> type[Computation[str]]:
    """A computation with these hooks and cells."""
    body: dict[str, Any] = {"ProcessRecord": record or Sink.ProcessRecord, **(cells or {})}
    if timer is not None:
        body["ProcessTimer"] = timer
    made = type("It", (Computation,), body)
    return made


def part(*rows: tuple[str, int]) -> BundlePart:
    """Records of (text, timestamp), each under its text as key; a "key=value" text has that key."""
    keys = [text.split("=")[0] for text, _ in rows]
    return BundlePart(
        IN,
        ProducerId(5),
        SequenceNumber(0),
        sequence_numbers(range(len(rows))),
        keys,
        [text.encode() for text, _ in rows],
        [at for _, at in rows],
    )


def work(
    *parts: BundlePart,
    timers: list[Timer] | None = None,
    cache: StateCache | None = None,
    holds: Mapping[str, int] | None = None,
    watermark: int = 0,
    redrive: list[QuarantineEntry] | None = None,
) -> Work:
    """An invocation on the state in `cache`."""
    state = cache or StateCache(0)
    return Work(
        [*parts], timers or [], state.values, state.entries, holds or {}, watermark, 1_000, redrive or [], state.partial,
        changes=state.changes,
    )  # fmt: skip


def run(record: Hook, *rows: tuple[str, int], **settings: Any) -> InvocationOutcome:
    """What `record` does to `rows`."""
    return executor_of(computation_of(record), **settings).run(work(part(*rows)))
