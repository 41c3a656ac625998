"""Records a second of the two-stage keyed count, beside Bytewax running the same two stages.

Each run is a process of its own.  The clock runs from the call that starts the pipeline to its return: millwheel has
then committed and folded everything.  Rows lie in memory before it starts, on both sides.
"""

from __future__ import annotations

import cProfile
import pstats
import random
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import Snapshots
from millwheel.launch import run as run_on
from millwheel_storage.postgres.reader import Reader

KEYS: Final = common.sized("KEYS", 10_000)
RECORDS: Final = common.sized("RECORDS", 400_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
BYTEWAX_BATCH: Final = 1_000

REPEAT_EVERY: Final = 101
"""Prime, so that no key loses all its rows."""

STEP_US: Final = 1_000
"""Event time between two records."""


def throughput() -> Result:
    """Benchmark 1."""
    ours, theirs = _rounds("throughput", [("millwheel", KEYS), ("bytewax", KEYS)])
    value, reference = common.median(_rates(ours)), common.median(_rates(theirs))
    return Result(
        "throughput", value, "records/s",
        Reference("Bytewax 0.21.1, stateful_map twice, recovery store, snapshots every second", reference, "records/s"),
        value / reference, "at least 1.0 times Bytewax", value >= reference,
        {"millwheel": ours, "bytewax": theirs, "records": RECORDS, "keys": KEYS},
    )  # fmt: skip


def throughput_snapshots() -> Result:
    """The same with barrier snapshots every second, on both sides, beside checkpoints of each bundle."""
    snapshots, logged, theirs = _rounds(
        "throughput_snapshots", [("snapshots", KEYS), ("millwheel", KEYS), ("bytewax", KEYS)]
    )
    value, reference = common.median(_rates(snapshots)), common.median(_rates(logged))
    beside = common.median(_rates(theirs))
    return Result(
        "throughput_snapshots", value, "records/s",
        Reference("the same under Checkpoints()", reference, "records/s"),
        value / reference, "at least 1.5 times checkpoints, and 2.0 times Bytewax",
        value >= 1.5 * reference and value >= 2.0 * beside,
        {"snapshots": snapshots, "checkpoints": logged, "bytewax": theirs, "records": RECORDS, "keys": KEYS},
    )  # fmt: skip


def throughput_new_keys() -> Result:
    """Benchmark 2: every record is a new key."""
    fresh, few = _rounds("throughput_new_keys", [("millwheel", RECORDS), ("millwheel", KEYS)])
    value, reference = common.median(_rates(fresh)), common.median(_rates(few))
    return Result(
        "throughput_new_keys", value, "records/s",
        Reference(f"the same with {KEYS} keys", reference, "records/s"),
        value / reference, "at least 0.4 times the same with 10,000 keys", value >= 0.4 * reference,
        {"new_keys": fresh, "few_keys": few, "records": RECORDS},
    )  # fmt: skip


def throughput_opaque_ids() -> Result:
    """Benchmark 2: ids that a client chose, so that no order helps deduplication; one row in a hundred comes again."""
    opaque, dense = _rounds("throughput_opaque_ids", [("opaque", KEYS), ("millwheel", KEYS)])
    value, reference = common.median(_rates(opaque)), common.median(_rates(dense))
    return Result(
        "throughput_opaque_ids", value, "records/s",
        Reference("the same rows with row numbers as their ids", reference, "records/s"),
        value / reference, "at least 0.4 times the same with row numbers", value >= 0.4 * reference,
        {"opaque": opaque, "dense": dense, "records": RECORDS},
    )  # fmt: skip


def _rounds(name: str, variants: list[tuple[str, int]]) -> list[list[dict[str, Any]]]:
    """Every variant in turn, `ROUNDS` times."""
    found: list[list[dict[str, Any]]] = [[] for _ in variants]
    with common.server(name) as url:
        for turn in range(ROUNDS):
            for place, (system, keys) in enumerate(variants):
                with common.work("bytewax") as path:
                    found[place].append(
                        common.call(
                            "throughput",
                            system=system,
                            keys=keys,
                            records=RECORDS,
                            url=url,
                            name=f"round_{turn}_{place}",
                            path=str(path),
                        )
                    )
    return found


def _rates(samples: list[dict[str, Any]]) -> list[float]:
    return [sample["rate"] for sample in samples]


# --- in the subprocess --------------------------------------------------------------------------------------------


def _millwheel(given: dict[str, Any]) -> None:
    records, keys = given["records"], given["keys"]
    opaque = given["system"] == "opaque"
    rows = [(flows.value_of(flows.spread(n, keys), n), n * STEP_US) for n in range(records)]
    if opaque:
        rows = _with_ids(rows)
    source = flows.Ready("rows", rows)
    source.record_id = flows.id_of if opaque else None
    durability = Snapshots(every_ms=1_000) if given["system"] == "snapshots" else None
    pipeline = flows.two_stages(given["name"], source, durability=durability)
    profile = cProfile.Profile() if given.get("profile") else None
    cpu, began = time.process_time(), time.perf_counter()
    if profile is not None:
        profile.enable()
    progress = run_on(pipeline, given["url"])
    if profile is not None:
        profile.disable()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    repeated = len(rows) // REPEAT_EVERY if opaque else 0
    if progress.repeated != repeated:
        raise AssertionError(f"{progress.repeated} rows were dropped for their ids; {repeated} came again")
    _check(given, keys, records - repeated)
    common.answer(
        rate=records / seconds, seconds=seconds, cpu_seconds=cpu, checkpoints=progress.checkpoints,
        resident_mb=_peak_mb(),
    )  # fmt: skip


def _with_ids(rows: list[flows.Row]) -> list[flows.Row]:
    """Rows with a random id each, but one in a hundred comes again, as a client sends it that got no answer."""
    dice = random.Random(7)
    made = [(flows.with_id(value, dice.getrandbits(128)), time) for value, time in rows]
    for n in range(REPEAT_EVERY - 1, len(made), REPEAT_EVERY):
        made[n] = (made[n - REPEAT_EVERY // 2][0], made[n][1])
    return made


def _check(given: dict[str, Any], keys: int, records: int) -> None:
    """Every record was counted once, in both stages, and the log is folded."""
    with Reader(given["url"], given["name"]) as reader:
        for stage in ("first", "second"):
            counts = [flows.First.count.coder.decode(row.value) for row in reader.scan_state(stage)]
            if len(counts) != min(keys, records) or sum(counts) != records:
                raise AssertionError(f"{stage}: {len(counts)} keys, {sum(counts)} records; {records} were given")
        for row in reader.intervals():
            if reader._log(row.id):
                raise AssertionError("the log is not folded")


def _bytewax(given: dict[str, Any]) -> None:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    records, keys = given["records"], given["keys"]
    items = []
    for n in range(records):
        value = flows.value_of(flows.spread(n, keys), n)
        items.append((flows.key_of(value), value))  # keyed beforehand: Bytewax is spared its key_on
    emitted = 0

    class Partition(StatefulSourcePartition[Any, int]):
        def __init__(self, first: int) -> None:
            self._next = first

        def next_batch(self) -> list[Any]:
            first = self._next
            if first >= records:
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

    class Counting(StatelessSinkPartition[Any]):
        def write_batch(self, batch: list[Any]) -> None:
            nonlocal emitted
            emitted += len(batch)

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Counting:
            return Counting()

    def first(state: int | None, value: bytes) -> tuple[int, bytes]:
        return (state or 0) + 1, value

    def second(state: int | None, value: bytes) -> tuple[int, int]:
        count = (state or 0) + 1
        return count, count

    flow = Dataflow("counts")
    entered = op.input("entered", flow, Items())
    counted = op.stateful_map("first", entered, first)
    op.output("out", op.stateful_map("second", counted, second), Sink())
    seconds, cpu = common.bytewax_seconds(flow, Path(given["path"]))
    if emitted != records:
        raise AssertionError(f"Bytewax emitted {emitted} of {records}")
    common.answer(rate=records / seconds, seconds=seconds, cpu_seconds=cpu, resident_mb=_peak_mb())


def _peak_mb() -> float:
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    _given = common.arguments()
    (_bytewax if _given["system"] == "bytewax" else _millwheel)(_given)
