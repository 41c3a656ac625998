"""`millwheel run`: a pipeline until its sources are finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millwheel.cli.lines import Lines
from millwheel.cli.log_format import log_format
from millwheel.cli.metrics import metrics, served
from millwheel.cli.options import Place, allowances, cache, option, place
from millwheel.cli.outcome import failed, log_facts, outcome, tell
from millwheel.errors import MillwheelError

if TYPE_CHECKING:
    from millwheel.host.progress import Progress


@click.command(short_help="Run a pipeline until its sources are finished; again to resume.")
@place
@allowances
@cache
@option("-q", "--quiet", is_flag=True, help="No progress, only warnings and errors; goes before --verbose.")
@option("-v", "--verbose", is_flag=True, help="The watermark of every computation, and more of what goes on.")
@log_format
@metrics
def run(
    place: Place, allow_quarantine: int | None, allow_rejected: int | None, quiet: bool, verbose: bool, log_format: str,
    metrics: str | None, cache: int | None,
) -> int:  # fmt: skip
    """Run a pipeline until its sources are finished, Ctrl-C or SIGTERM; run it again to resume.

    Keys in quarantine and rejected rows make the status 3 at the end of the run, unless they are allowed.
    """
    pipeline = place.pipeline()
    from millwheel import launch

    with (
        served(metrics, pipeline.name) as figures,
        Lines(quiet, verbose and not quiet, log_facts(log_format, pipeline.name, "run")) as lines,
    ):

        def report(progress: Progress, seconds: float) -> None:
            figures.update(progress, seconds)
            lines.progress(progress, seconds)

        try:
            progress = launch.run(
                pipeline, place.store, place.data, report,
                on_failure=lambda failure: tell(lines, place, failure),
                allow_quarantine=allow_quarantine, allow_rejected=allow_rejected, cache_bytes=cache,
            )  # fmt: skip
        except MillwheelError as error:
            return failed(lines, error)
        lines.end(progress)
        stopped = "stopped; run it again to resume"
        return outcome(
            lines, place, progress, "" if progress.finished else stopped, allow_quarantine or 0, allow_rejected or 0
        )
