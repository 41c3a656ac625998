"""Windows of the library: beside the same written by hand, sliding beside fixed, beside Bytewax, and what they leave behind.

Each run is a process of its own.  The clock runs from the call that starts the pipeline to its return, as in `throughput`;
then the windows' counts are summed and no per-key table has a row, or the run fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from benchmarks.expiry import PER_KEY_TABLES
from millwheel import Computation, Context, MapCell, MsgpackCoder, Pipeline, Record, Stream, Timer, subscribe
from millwheel.launch import run as run_on
from millwheel.library import Fixed, Flow, Pane, Sessions, Sliding, count, minutes, seconds
from millwheel.library.windows import Windows

RECORDS: Final = common.sized("RECORDS", 400_000)
KEYS: Final = common.sized("KEYS", 10_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
STEP_US: Final = 1_000
"""Event time between two records: each key has one every 10 s, six in a window of a minute."""

FEW_KEYS: Final = 100
LONG_STEP_US: Final = 10_000
"""For the sliding windows: each of the few keys has one record every second, sixty in a pane of a minute."""

MINUTE_US: Final = 60_000_000
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
BYTEWAX_BATCH: Final = 1_000
BYTEWAX_WAIT: Final = timedelta(seconds=10)
"""How far Bytewax's watermark stays behind: its keys' clocks go on with wall time, and would drop records otherwise."""

PANES: Final = Stream("panes", MsgpackCoder[Pane[int]](Pane[int]))

WINDOWS: Final[dict[str, tuple[Windows, int, int, int]]] = {
    "fixed": (Fixed(minutes=1), 0, KEYS, STEP_US),
    "fixed_late": (Fixed(minutes=1), seconds(30), KEYS, STEP_US),
    "sessions": (Sessions(seconds=5), 0, KEYS, STEP_US),
    "long": (Fixed(hours=1), 0, FEW_KEYS, LONG_STEP_US),
    "sliding": (Sliding(hours=1, every=minutes(1)), 0, FEW_KEYS, LONG_STEP_US),
}
"""What the library runs: windows, lateness in us, keys, event time between two records in us."""


def windows_by_hand() -> Result:
    """Benchmark 11."""
    ours, by_hand = _rounds("windows_by_hand", ["fixed", "by_hand"])
    value, reference = _rate(ours), _rate(by_hand)
    return Result(
        "windows_by_hand", value, "records/s",
        Reference("the same count by hand, with a map and timers", reference, "records/s"),
        value / reference, "at least 0.85 times the same by hand", value >= 0.85 * reference,
        {"library": ours, "by_hand": by_hand, "records": RECORDS, "keys": KEYS},
    )  # fmt: skip


def windows_sliding() -> Result:
    """Benchmark 12: an hour that slides by a minute, beside the hour that does not."""
    sliding, fixed = _rounds("windows_sliding", ["sliding", "long"])
    value, reference = 1e6 / _rate(sliding), 1e6 / _rate(fixed)
    return Result(
        "windows_sliding", value, "us/record",
        Reference("fixed windows of the same length", reference, "us/record"),
        value / reference, "at most 1.5 times the cost per record of fixed windows", value <= 1.5 * reference,
        {"sliding": sliding, "fixed": fixed, "records": RECORDS, "keys": FEW_KEYS},
    )  # fmt: skip


def windows_bytewax() -> Result:
    """Benchmark 13."""
    ours, theirs = _rounds("windows_bytewax", ["fixed", "bytewax"])
    value, reference = _rate(ours), _rate(theirs)
    return Result(
        "windows_bytewax", value, "records/s",
        Reference("Bytewax 0.21.1, fold_window, recovery store, snapshots every second", reference, "records/s"),
        value / reference, "at least 1.5 times Bytewax", value >= 1.5 * reference,
        {"millwheel": ours, "bytewax": theirs, "records": RECORDS, "keys": KEYS},
    )  # fmt: skip


def windows_state() -> Result:
    """Benchmark 14: rows in Postgres when the last window has closed."""
    kinds = ["fixed", "fixed_late", "sessions", "sliding"]
    found = _rounds("windows_state", kinds, rounds=1)
    left = {kind: runs[0]["left"] for kind, runs in zip(kinds, found, strict=True)}
    rows = sum(sum(tables.values()) for tables in left.values())
    return Result(
        "windows_state", rows, "rows left", None, None, "no row in any per-key table", rows == 0,
        {"left": left, "panes": {kind: runs[0]["panes"] for kind, runs in zip(kinds, found, strict=True)}},
    )  # fmt: skip


def _rounds(name: str, systems: list[str], rounds: int = ROUNDS) -> list[list[dict[str, Any]]]:
    """Every system in turn, `rounds` times; who begins changes."""
    found: list[list[dict[str, Any]]] = [[] for _ in systems]
    with common.server(name) as url:
        for turn in range(rounds):
            order = list(enumerate(systems))
            for place, system in order if turn % 2 == 0 else reversed(order):
                with common.work("bytewax") as path:
                    found[place].append(
                        common.call("windows", system=system, url=url, name=f"round_{turn}_{place}", path=str(path))
                    )
    return found


def _rate(samples: list[dict[str, Any]]) -> float:
    return common.median([sample["rate"] for sample in samples])


# --- in the subprocess --------------------------------------------------------------------------------------------


class ByHand(Computation[bytes]):
    """What a user would write without the library: a count per window, and a timer at its end."""

    counts = MapCell(MsgpackCoder(int))

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        start = record.timestamp - record.timestamp % MINUTE_US
        entry = str(start)
        count = self.counts.get(entry)
        if count is None:
            count = 0
            context.set_timer(entry, start + MINUTE_US - 1)
        self.counts.set(entry, count + 1)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        start = int(timer.tag)
        context.produce(
            PANES, Pane(context.key, start, start + MINUTE_US, self.counts.get(timer.tag, 0)), timer.timestamp
        )
        self.counts.delete(timer.tag)


class Received(Computation[Pane[int]]):
    """Reads the panes, on each side: sums them in the process that measures, which nothing kills."""

    panes = 0
    records = 0

    def ProcessRecord(self, context: Context, record: Record[Pane[int]]) -> None:
        Received.panes += 1
        Received.records += record.value.value


def _pipeline(given: dict[str, Any]) -> tuple[Pipeline, int]:
    """The pipeline of a system, and in how many of its windows a record lies."""
    system = given["system"]
    windows, lateness, keys, step = WINDOWS["fixed" if system == "by_hand" else system]
    rows = [(flows.value_of(flows.spread(n, keys), n), n * step) for n in range(RECORDS)]
    pipeline = Pipeline(given["name"])
    source = flows.Ready("rows", rows)
    if system == "by_hand":
        pipeline.inject(source, into=flows.ENTERED)
        pipeline.add(ByHand, [subscribe(flows.ENTERED, key=flows.key_of)], [PANES], name="by_hand")
    else:
        entered = Flow(pipeline).inject(source, into=flows.ENTERED)
        entered.key_by(flows.key_of).window(windows, lateness=lateness).aggregate(count()).to(PANES)
    pipeline.add(Received, [subscribe(PANES, key=lambda pane: pane.key)], name="received")
    return pipeline, windows.size // windows.every if isinstance(windows, Sliding) else 1


def _millwheel(given: dict[str, Any]) -> None:
    pipeline, overlapping = _pipeline(given)
    elapsed, cpu = _timed(lambda: run_on(pipeline, given["url"]))
    if Received.records != RECORDS * overlapping:
        raise AssertionError(f"the windows hold {Received.records} records, not {RECORDS} times {overlapping}")
    left = _left(given)
    if any(left.values()):
        raise AssertionError(f"every window has closed, and {left} rows are left")
    common.answer(rate=RECORDS / elapsed, seconds=elapsed, cpu_seconds=cpu, panes=Received.panes, left=left)


def _left(given: dict[str, Any]) -> dict[str, int]:
    """Rows of each per-key table."""
    found = {}
    with psycopg.connect(given["url"]) as connection:
        for table in PER_KEY_TABLES:
            row = connection.execute(f"SELECT count(*) FROM {given['name']}.{table}").fetchone()
            found[table] = row[0] if row else -1
    return found


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of wall time and of this process."""
    cpu, began = time.process_time(), time.perf_counter()
    run()
    return time.perf_counter() - began, time.process_time() - cpu


def _bytewax(given: dict[str, Any]) -> None:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators.windowing import EventClock, TumblingWindower, fold_window
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    items = []
    for n in range(RECORDS):
        value = flows.value_of(flows.spread(n, KEYS), n)
        moment = START + timedelta(microseconds=n * STEP_US)
        items.append((flows.key_of(value), (moment, value)))  # keyed and dated beforehand
    panes = counted = 0

    class Partition(StatefulSourcePartition[Any, int]):
        def __init__(self, first: int) -> None:
            self._next = first

        def next_batch(self) -> list[Any]:
            first = self._next
            if first >= RECORDS:
                raise StopIteration
            self._next += BYTEWAX_BATCH
            return items[first : first + BYTEWAX_BATCH]

        def snapshot(self) -> int:
            return self._next

    class Items(FixedPartitionedSource[Any, int]):
        def list_parts(self) -> list[str]:
            return ["rows"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
            return Partition(resume_state or 0)

    class Summing(StatelessSinkPartition[Any]):
        def write_batch(self, batch: list[Any]) -> None:
            nonlocal panes, counted
            panes += len(batch)
            counted += sum(number for _, (_, number) in batch)

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Summing:
            return Summing()

    flow = Dataflow("windows")
    entered = op.input("entered", flow, Items())
    # No wake-ups by wall time: the data's times are long past, so every key would ask to be woken at once, always.
    clock: Any = EventClock(lambda item: item[0], wait_for_system_duration=BYTEWAX_WAIT, to_system_utc=lambda _: None)
    windower = TumblingWindower(length=timedelta(minutes=1), align_to=START)
    folded = fold_window(
        "count", entered, clock, windower, int, lambda number, _: number + 1, lambda a, b: a + b, ordered=False
    )
    op.output("out", folded.down, Sink())
    elapsed, cpu = common.bytewax_seconds(flow, Path(given["path"]))
    if counted != RECORDS:
        raise AssertionError(f"Bytewax counted {counted} of {RECORDS}")
    common.answer(rate=RECORDS / elapsed, seconds=elapsed, cpu_seconds=cpu, panes=panes)


if __name__ == "__main__":
    _given = common.arguments()
    (_bytewax if _given["system"] == "bytewax" else _millwheel)(_given)
