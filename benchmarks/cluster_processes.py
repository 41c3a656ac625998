"""The processes of the clusters that are measured, and their pipelines.

Lives here: what runs in the subprocesses, and how they are started.  Never here: figures (`cluster`).  Each process makes its
pipeline from the same arguments, as each process of a cluster imports the same module.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks import common, flows, latency, straggler
from millwheel import (
    BytesCoder,
    Computation,
    Context,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.launch import run as run_on
from millwheel.overview import ClusterOffice, ClusterPicture
from millwheel.processes import ProcessPlan, run_controller, run_worker

LEAD_S: Final = float(common.sized("LEAD_S", 8))
"""From the start of the processes until the first row is due: all have joined, and everything has its owner, by then."""
KILLED_INTERVALS: Final = 8
SECOND_US: Final = 1_000_000
PASSED: Final = Stream("passed", BytesCoder())


class Last(Computation[bytes]):
    """The end of a chain that only passes on."""

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        pass


class Pass(Computation[bytes]):
    """Its middle."""

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        context.produce(PASSED, record.value)


class Held(Computation[bytes]):
    """Counts, and shows a row for each record but the first of each key."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        count, number = self.count.get() + 1, flows.number_of(record.value)
        self.count.set(count)
        if number >= 0:
            context.upsert(flows.SEEN, {"number": number, "count": count})


# --- pipelines ----------------------------------------------------------------------------------------------------


def counted(given: dict[str, Any]) -> Pipeline:
    """The keyed count in two stages, rows in memory, each stage cut in two; nothing is read before it begins."""
    keys, begin = given["keys"], given["begin"]
    rows = [
        (flows.value_of(flows.spread(n, keys), n), n * 1_000) for n in range(given["records"] if given["reads"] else 0)
    ]
    source = flows.Rows("bench", rows.__getitem__, given["records"], due=lambda number: begin)
    return flows.two_stages(given["name"], source, split_keys=[f"{keys // 2:09d}"])


def live(given: dict[str, Any]) -> Pipeline:
    """What `latency` measures."""
    return flows.two_stages(given["name"], latency.live_rows(given), shown=True, **given["settings"])


def chained(given: dict[str, Any]) -> Pipeline:
    """Three stages whose event time is the schedule of the rows."""
    begin, rate = given["begin"], given["rate"]
    source = flows.Rows(
        "live",
        lambda number: (flows.value_of(number % 997, number), number * SECOND_US // rate),
        given["records"],
        due=lambda number: begin + number / rate,
    )
    pipeline = Pipeline(given["name"])
    pipeline.inject(source, into=flows.ENTERED)
    pipeline.add(flows.First, [subscribe(flows.ENTERED, key=flows.key_of)], [flows.COUNTED], name="first")
    pipeline.add(Pass, [subscribe(flows.COUNTED, key=flows.key_of)], [PASSED], name="second")
    pipeline.add(Last, [subscribe(PASSED, key=flows.key_of)], name="third")
    return pipeline


def steady(given: dict[str, Any]) -> flows.Rows:
    """Every key once, as soon as it can be read, then rows at a steady rate from `begin` on, numbered from 0."""
    keys, begin, rate = given["keys"], given["begin"], given["rate"]
    return flows.Rows(
        "live",
        lambda number: (flows.value_of(flows.spread(number, keys), number - keys), number * 1_000),
        keys + given["records"],
        due=lambda number: 0.0 if number < keys else begin + (number - keys) / rate,
    )


def whole(given: dict[str, Any]) -> Pipeline:
    """Two stages of one interval each."""
    return flows.two_stages(given["name"], steady(given), shown=True)


def kept(given: dict[str, Any]) -> Pipeline:
    """One stage in eight intervals."""
    keys, source = given["keys"], steady(given)
    every_ms = given.get("every_ms")
    pipeline = Pipeline(given["name"], durability=Snapshots(every_ms) if every_ms else None)
    pipeline.inject(source, into=flows.ENTERED)
    pipeline.sink(flows.SEEN)
    splits = [f"{keys * n // KILLED_INTERVALS:09d}" for n in range(1, KILLED_INTERVALS)]
    pipeline.add(Held, [subscribe(flows.ENTERED, key=flows.key_of)], name="kept", split_keys=splits)
    return pipeline


PIPELINES: Final[dict[str, Callable[[dict[str, Any]], Pipeline]]] = {
    "counted": counted, "live": live, "chained": chained, "kept": kept, "whole": whole,
    "straggler": straggler.wired,
}  # fmt: skip


# --- in the benchmark ---------------------------------------------------------------------------------------------


class Members:
    """A cluster that a benchmark has started."""

    def __init__(self, workers: int, controllers: int = 1, **given: Any) -> None:
        self.given = given
        names = [("controller", f"c{n + 1}") for n in range(controllers)] + [
            ("worker", f"w{n + 1}") for n in range(workers)
        ]
        self.processes = {
            name: common.start("cluster_processes", role=role, member=name, **given) for role, name in names
        }

    @property
    def workers_first(self) -> list[subprocess.Popen[bytes]]:
        """All processes; a worker answers first."""
        return [self.processes[name] for name in sorted(self.processes, reverse=True)]

    def office(self) -> ClusterOffice:
        """Looks at it; there must have been a process that opened the store."""
        return ClusterOffice(PIPELINES[self.given["pipeline"]]({**self.given, "reads": False}), self.given["url"])

    def kill(self, name: str) -> float:
        """Signal 9; when that was, monotonic clock, s."""
        self.processes[name].kill()
        return time.monotonic()

    def end(self) -> None:
        """Kill all that still run."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


def owned(picture: ClusterPicture) -> bool:
    """Everything has an owner."""
    owners = [*(one.owner for one in picture.intervals), *(one.owner for one in picture.sources)]
    return bool(owners) and None not in owners


# --- in the subprocesses ------------------------------------------------------------------------------------------


def _member(given: dict[str, Any]) -> None:
    role = given["role"]
    pipeline = PIPELINES[given["pipeline"]](given)
    plan = ProcessPlan(
        pipeline=pipeline, url=given["url"], name=given["member"], lease_us=given.get("lease_us", limits.LEASE_US)
    )
    if role == "controller":
        run_controller(plan)
        common.answer()
        return
    progress, _ = run_worker(plan)
    common.answer(
        ended=time.monotonic(), checkpoints=progress.checkpoints, records=progress.records, cpu_s=time.process_time()
    )


def _embedded(given: dict[str, Any]) -> None:
    progress = run_on(PIPELINES[given["pipeline"]](given), given["url"])
    common.answer(
        ended=time.monotonic(), checkpoints=progress.checkpoints, records=progress.records, cpu_s=time.process_time()
    )


if __name__ == "__main__":
    _given = common.arguments()
    (_embedded if _given["role"] == "embedded" else _member)(_given)
