"""Iterations on Spark: what a superstep costs in three forms, what checkpoints cost, and what a kill costs.

Lives here: one function a benchmark, and what is made of its figures.  Never here: what is measured (`iteration_process`).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import Reference, Result
from benchmarks.iteration_process import TIGHT

_helper: subprocess.Popen[bytes] | None = None


def _asked(what: str) -> dict[str, Any]:
    """What the process with the Spark measured; it is started by the first who asks, and after one that broke it."""
    global _helper
    if _helper is None:
        _helper = common.start("iteration_process", stdin=subprocess.PIPE)
    assert _helper.stdin is not None
    assert _helper.stdout is not None
    _helper.stdin.write(what.encode() + b"\n")
    _helper.stdin.flush()
    line = _helper.stdout.readline()
    if not line:
        status, _helper = _helper.wait(), None
        raise RuntimeError(f"benchmarks.iteration {what} ended with status {status}")
    found: dict[str, Any] = json.loads(line)
    return found


def close() -> None:
    """End the process with the Spark, if there is one."""
    global _helper
    if _helper is not None:
        _helper.communicate()
        _helper = None


def iteration_forms() -> Result:
    """One PageRank superstep on Hollins as columns, as key-value pairs, and as DataFrames."""
    found = _asked("forms")
    value, pairs, frames = (common.median(found[name]) for name in ("columns", "pairs", "frames"))
    return Result(
        "iteration_forms", value, "s a superstep",
        Reference("the faster of pair RDDs and DataFrames", min(pairs, frames), "s"),
        value / min(pairs, frames), "columns in an RDD faster than pair RDDs and DataFrames", value < min(pairs, frames),
        found,
    )  # fmt: skip


def iteration_overhead_bulk() -> Result:
    """PageRank without a failure: what each policy adds to a superstep."""
    return _overhead("bulk")


def iteration_overhead_delta() -> Result:
    """Connected components of a chain of cliques without a failure: what each policy adds to a superstep."""
    return _overhead("delta")


def _overhead(kind: str) -> Result:
    found = _asked(f"overhead_{kind}")
    work = found.pop("optimistic_work_s")
    plain = np.array(found.pop("restart"))
    ratios = {name: np.array(times) / plain - 1 for name, times in found.items()}
    shares = {name: common.median(ratio.tolist()) for name, ratio in ratios.items()}
    # Of a median of normal samples. A sum over a column is lost in that, so what Optimistic does is timed by itself too.
    errors = {name: float(1.25 * ratio.std() / len(ratio) ** 0.5) for name, ratio in ratios.items()}
    done = work / common.median(plain.tolist())
    met = max(shares["head"], shares["tail"]) < shares["blocking"]
    met = met and done < 0.01 and shares["optimistic"] < 0.01 + 2 * errors["optimistic"]
    target = "Head and Tail below Blocking, Optimistic below 1% (its own work, and the difference within two errors)"
    if kind == "bulk":
        met, target = met and shares["tail"] <= 0.12, target + ", Tail at most 12%"
    return Result(
        f"iteration_overhead_{kind}", shares["tail"], "of a superstep added by Tail, a checkpoint in every superstep",
        Reference("Blocking", shares["blocking"], "of a superstep"), shares["tail"] / shares["blocking"], target, met,
        {"restart": plain.tolist(), **found, "added": shares, "standard_error": errors, "optimistic_work": done},
        ", ".join(f"{name} {share:+.1%} ± {errors[name]:.1%}" for name, share in shares.items())
        + f"; work of Optimistic {done:.3%}",
    )  # fmt: skip


def iteration_ranking() -> Result:
    """PageRank on Hollins, Optimistic (lost rank spread evenly), killed at several supersteps."""
    found = _asked("ranking")
    value = min(one["near"] for one in found["kills"])
    stopped = found["calm"][0]["supersteps"]
    reason = f"threshold 1/(100 N) is reached after {stopped} supersteps; later kills are of a run to {TIGHT}"
    return Result(
        "iteration_ranking", value, "of pages within 10 places, worst kill",
        Reference("undisturbed run against the exact ranking", min(one["near"] for one in found["calm"]), "of pages"),
        None, "at least 95% of pages within 10 places of the undisturbed ranking", value >= 0.95, found, reason,
    )  # fmt: skip


def iteration_recovery_bulk() -> Result:
    """PageRank on Hollins, killed half way: Optimistic against Restart."""
    found = _asked("recovery_bulk")
    return _recovery("bulk", found, "relax", 0.17, 0.36)


def iteration_recovery_delta() -> Result:
    """Connected components of a chain of cliques, killed half way: Optimistic against Restart."""
    return _recovery("delta", _asked("recovery_delta"), "optimistic", 0.24, None)


def _recovery(kind: str, found: dict[str, Any], ours: str, seconds: float, supersteps: float | None) -> Result:
    def saved(name: str, figure: str) -> float:
        own, other = (common.median([one[figure] for one in found[which]]) for which in (name, "restart"))
        return 1 - own / other

    names = [name for name in found if name != "restart"]
    share = {name: {figure: saved(name, figure) for figure in ("seconds", "supersteps")} for name in names}
    met = share[ours]["seconds"] >= seconds and (supersteps is None or share[ours]["supersteps"] >= supersteps)
    met = met and all(one["right"] for runs in found.values() for one in runs)
    target = f"seconds after the kill at least {seconds:.0%} fewer than Restart"
    target += "" if supersteps is None else f", supersteps at least {supersteps:.0%} fewer"
    told = "; ".join(
        f"{n}: {s['seconds']:.0%} of seconds, {s['supersteps']:.0%} of supersteps saved" for n, s in share.items()
    )
    return Result(
        f"iteration_recovery_{kind}", common.median([one["seconds"] for one in found[ours]]), "s from the kill to the end",
        Reference("Restart", common.median([one["seconds"] for one in found["restart"]]), "s"), 1 - share[ours]["seconds"],
        target, met, {**found, "saved": share}, told,
    )  # fmt: skip


def iteration_memory() -> Result:
    """200 supersteps: memory of the driver, Python and JVM."""
    found = _asked("memory")
    heap, python = found["heap_mb"], found["python_mb"]
    half = len(heap) // 2
    growth = max(heap[half:]) / max(heap[:half])
    grown = max(python[half:]) / max(python[:half])
    return Result(
        "iteration_memory", heap[-1], "MB of JVM heap in use after a collection",
        Reference("first half's peak", max(heap[:half]), "MB"),
        growth, "peak of the second 100 supersteps at most 1.15 of the first 100's, Python and JVM",
        growth <= 1.15 and grown <= 1.15, found,
    )  # fmt: skip
