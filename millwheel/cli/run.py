"""`millwheel run`: a pipeline until its sources are finished."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from millwheel.cli.options import Place, place
from millwheel.cli.status import Status
from millwheel.model import SECOND, format_time

if TYPE_CHECKING:
    from millwheel.runtime.progress import Progress


@click.command(short_help="Run a pipeline until its sources are finished; again to resume.")
@place
def run(place: Place) -> int:
    """Run a pipeline until its sources are finished, Ctrl-C or SIGTERM; run it again to resume."""
    from millwheel import launch

    progress = launch.run(place.pipeline(), place.store, place.data, _show)
    _show(progress, 0.0)
    if not progress.finished:
        print("millwheel: stopped; run it again to resume", file=sys.stderr)
        return Status.STOPPED
    return Status.DONE


def _show(progress: Progress, seconds: float) -> None:
    rate = f" {progress.injected / seconds:,.0f}/s" if seconds else ""
    watermark = format_time(min(progress.watermarks.values()))
    lag = "" if progress.lag_us is None else f", lag {max(0, progress.lag_us) / SECOND:,.1f} s"
    extras = {
        "late": progress.late, "rejected": progress.rejected, "repeated": progress.repeated,
        "quarantined keys": progress.quarantined, "redriven": progress.redriven,
    }  # fmt: skip
    noted = "".join(f" {name} {count:,}" for name, count in extras.items() if count)
    print(
        f"millwheel: {progress.injected:,} rows in{rate}, {progress.records:,} records, "
        f"watermark {watermark}{lag}{noted}",
        flush=True,
    )
    if progress.waits_for:
        where = "quarantine list" if progress.waits_for.startswith("the quarantine") else "explain"
        print(f"millwheel: all input is read; waiting for {progress.waits_for}: see millwheel {where}", flush=True)
