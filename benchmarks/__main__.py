"""`python -m benchmarks [NAME ...]`: run benchmarks, write their JSON and plots; status 1 when one could not run.

A name is that of a benchmark or of a group; without any it is the group `streaming`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Final

from benchmarks import (
    authority,
    cache,
    channels,
    cluster,
    cluster_split,
    common,
    expiry,
    files,
    hosted,
    hot_key,
    iteration,
    latency,
    many_workers,
    nexmark,
    others,
    plots,
    redrive,
    repeats,
    restart,
    snapshots,
    snapshots_state,
    straggler,
    throughput,
    windows,
)
from benchmarks.common import Result

GROUPS: Final[dict[str, dict[str, Callable[[], Result]]]] = {
    "streaming": {
        "throughput": throughput.throughput,
        "throughput_snapshots": throughput.throughput_snapshots,
        "snapshot_overhead": snapshots.snapshot_overhead,
        "snapshot_image": snapshots_state.snapshot_image,
        "snapshot_epoch": snapshots_state.snapshot_epoch,
        "snapshot_restart": snapshots_state.snapshot_restart,
        "throughput_new_keys": throughput.throughput_new_keys,
        "throughput_opaque_ids": throughput.throughput_opaque_ids,
        "latency": latency.latency,
        "latency_weak": latency.latency_weak,
        "restart": restart.restart,
        "expiry": expiry.expiry,
        "files": files.files,
        "redrive": redrive.redrive,
        "straggler": straggler.straggler,
        "cache": cache.cache,
        "repeats": repeats.repeats,
        "hot_key": hot_key.hot_key,
        "zeitgeist": others.zeitgeist,
        "channels": channels.channels,
        "simulator": others.simulator,
    },
    "iterations": {
        "iteration_memory": iteration.iteration_memory,  # first: a leak shows best where there is nothing else
        "iteration_ranking": iteration.iteration_ranking,  # not timed either: what is, runs on a warm Spark
        "iteration_forms": iteration.iteration_forms,
        "iteration_overhead_bulk": iteration.iteration_overhead_bulk,
        "iteration_overhead_delta": iteration.iteration_overhead_delta,
        "iteration_recovery_bulk": iteration.iteration_recovery_bulk,
        "iteration_recovery_delta": iteration.iteration_recovery_delta,
    },
    "library": {
        "windows_by_hand": windows.windows_by_hand,
        "windows_sliding": windows.windows_sliding,
        "windows_bytewax": windows.windows_bytewax,
        "windows_state": windows.windows_state,
        "nexmark": nexmark.nexmark,
    },
    "clusters": {
        "cluster_throughput": cluster.cluster_throughput,
        "cluster_latency": cluster.cluster_latency,
        "cluster_latency_weak": cluster.cluster_latency_weak,
        "cluster_lag": cluster.cluster_lag,
        "cluster_worker_death": cluster.cluster_worker_death,
        "snapshots_worker_death": cluster.snapshots_worker_death,
        "snapshot_workers": snapshots.snapshot_workers,
        "cluster_executor_death": hosted.cluster_executor_death,
        "cluster_failover": cluster.cluster_failover,
        "cluster_split_gap": cluster_split.cluster_split_gap,
        "cluster_straggler": cluster.cluster_straggler,
        "authority": authority.authority,
        "many_workers": many_workers.many_workers,
    },
}
BENCHMARKS: Final = {name: run for group in GROUPS.values() for name, run in group.items()}

STOLEN_MUCH: Final = 0.02


def main(names: list[str]) -> int:
    """Run what is named, each benchmark once."""
    unknown = [name for name in names if name not in BENCHMARKS and name not in GROUPS]
    if unknown:
        print(f"benchmarks: {unknown} unknown; there are {', '.join([*GROUPS, *BENCHMARKS])}", file=sys.stderr)
        return 2
    broken = 0
    wanted = dict.fromkeys(one for name in names or ["streaming"] for one in GROUPS.get(name, [name]))
    for name in wanted:
        if BENCHMARKS[name].__module__ != iteration.__name__:
            iteration.close()
        began, machine = time.perf_counter(), common.Machine()
        try:
            result = BENCHMARKS[name]()
        except Exception as error:
            traceback.print_exc()
            broken += 1
            result = Result(name, None, "", None, None, "", False, {}, f"{type(error).__name__}: {error}")
        result.versions, result.seconds = common.versions(), time.perf_counter() - began
        result.machine = machine.since()
        result.met = result.met and not common.shortened()
        common.save(result)
        plots.plot(result)
        print(_line(result), flush=True)
    iteration.close()
    plots.summary(common.OUT)
    return 1 if broken else 0


def _line(result: Result) -> str:
    value = "-" if result.value is None else f"{result.value:,.4g} {result.unit}"
    beside = (
        "" if result.reference is None or result.ratio is None else f", {result.ratio:.2f} x {result.reference.what}"
    )
    reason = f" ({result.reason})" if result.reason else ""
    stolen = result.machine.get("stolen", 0.0)
    if stolen > STOLEN_MUCH:
        reason += f" [the host took {stolen:.0%} of the processors' time]"
    return f"{result.name}: {value}{beside}; target: {result.target}: {'met' if result.met else 'NOT MET'}{reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
