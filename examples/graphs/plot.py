"""One picture of runs: how far each superstep was from the last, over the seconds, and where a recovery came between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from millwheel.spark.iteration import Outcome


def draw(path: Path, title: str, runs: Mapping[str, Outcome[Any]]) -> None:
    """Write the picture; without matplotlib (`pip install matplotlib`), say so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("graphs: no picture, matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (name, run) in enumerate(runs.items()):
        _draw_one(left, right, name, run, f"C{place}")
    norms = [event.norm for run in runs.values() for event in run.history if 0 < event.norm < np.inf]
    left.set(xlabel="executed supersteps", ylabel="norm between two states")
    if norms and max(norms) > 100 * min(norms):
        left.set_yscale("log")
    right.set(xlabel="executed supersteps", ylabel="rows that changed", ylim=(0, None))
    left.legend(fontsize=8)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"picture: {path}", flush=True)


def _draw_one(left: Any, right: Any, name: str, run: Outcome[Any], colour: str) -> None:
    executed = np.arange(1, len(run.history) + 1)
    norms = np.array([event.norm if np.isfinite(event.norm) else np.nan for event in run.history])
    label = f"{name}: {run.seconds:.1f} s, {run.executed} supersteps"
    left.plot(executed, np.where(norms > 0, norms, np.nan), ".-", color=colour, label=label)
    right.plot(executed, [event.changed for event in run.history], ".-", color=colour)
    numbers = [event.number for event in run.history]
    done = 0
    for recovery in run.recoveries:
        done = numbers.index(recovery.after, done) + 1 if recovery.after in numbers[done:] else done
        for axes in (left, right):
            axes.axvline(done + 0.5, color=colour, linestyle="--", linewidth=1)
        left.annotate(
            f"{len(recovery.lost)} partitions lost\n{recovery.how}", (done + 0.5, 0.97), xycoords=("data", "axes fraction"),
            fontsize=7, va="top",
        )  # fmt: skip
