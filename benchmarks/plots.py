"""One picture per benchmark, of its samples.  matplotlib is optional: without it there are only the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Result


def plot(result: Result) -> None:
    """Write `<name>.png` beside the JSON."""
    figure = _figure()
    if figure is None:
        return
    axes = figure.add_subplot()
    samples = result.samples
    if "histogram_ms" in samples:
        axes.plot(samples["histogram_ms"], [share / 100 for share in range(1, 101)], label=result.name)
        axes.axvline(samples["raw_p50_ms"], color="grey", linestyle="--", label="raw commit, p50")
        axes.set(xscale="log", xlabel="scheduled arrival to outside consumer, ms", ylabel="share of records")
    elif "resident_mb" in samples:
        axes.plot(samples["at_s"], samples["resident_mb"], label="resident memory")
        axes.set(xlabel="s", ylabel="MB", ylim=(0, None))
    else:
        _dots(axes, result)
    axes.set_title(f"{result.name}: {result.target}", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    figure.savefig(common.OUT / f"{result.name}.png", dpi=100)


def _dots(axes: Any, result: Result) -> None:
    for label, runs in result.samples.items():
        if not isinstance(runs, list):
            continue
        values = [run.get("rate", run.get("seconds")) if isinstance(run, dict) else run for run in runs]
        if values and all(isinstance(value, int | float) for value in values):
            axes.plot(range(1, len(values) + 1), values, "o-", label=label)
    axes.set(xlabel="run", ylabel=result.unit, ylim=(0, None))


def summary(folder: Path) -> None:
    """All ratios in one picture, from the JSON files that are there."""
    figure = _figure()
    if figure is None:
        return
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    shown = [one for one in found if one.get("ratio") is not None]
    if not shown:
        return
    axes = figure.add_subplot()
    colours = ["tab:green" if one["met"] else "tab:red" for one in shown]
    axes.barh([one["name"] for one in shown], [one["ratio"] for one in shown], color=colours)
    for place, one in enumerate(shown):
        axes.text(
            one["ratio"], place, f" {one['ratio']:.2f}: {one['value']:.4g} {one['unit']}", va="center", fontsize=7
        )
    axes.set(xlabel="ratio to what was measured beside it; green: target met")
    axes.margins(x=0.3)
    figure.savefig(folder / "summary.png", dpi=100)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(7, 4), layout="constrained")
