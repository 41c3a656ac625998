"""`millwheel run`: a pipeline until its sources are finished."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

import click

from millwheel.cli.lines import Lines
from millwheel.cli.options import Place, option, place
from millwheel.cli.status import Status, status_of
from millwheel.errors import MillwheelError
from millwheel.escapes import escaped

if TYPE_CHECKING:
    from millwheel.host.progress import Progress
    from millwheel.runtime.failures import Failure

COUNT = click.IntRange(min=0)


@click.command(short_help="Run a pipeline until its sources are finished; again to resume.")
@place
@option("--allow-quarantine", type=COUNT, metavar="N",
        help="End with status 0 when up to N keys are in quarantine; stop when the run puts more there.")  # fmt: skip
@option("--allow-rejected", type=COUNT, metavar="N",
        help="End with status 0 when up to N rows are rejected; stop at more.")  # fmt: skip
@option("-q", "--quiet", is_flag=True, help="No progress, only warnings and errors; goes before --verbose.")
@option("-v", "--verbose", is_flag=True, help="The watermark of every computation, and more of what goes on.")
def run(place: Place, allow_quarantine: int | None, allow_rejected: int | None, quiet: bool, verbose: bool) -> int:
    """Run a pipeline until its sources are finished, Ctrl-C or SIGTERM; run it again to resume.

    Keys in quarantine and rejected rows make the status 3 at the end of the run, unless they are allowed.
    """
    pipeline = place.pipeline()
    from millwheel import launch

    with Lines(quiet, verbose and not quiet) as lines:
        try:
            progress = launch.run(
                pipeline, place.store, place.data, lines.progress,
                on_failure=lambda failure: _tell(lines, place, failure),
                allow_quarantine=allow_quarantine, allow_rejected=allow_rejected,
            )  # fmt: skip
        except MillwheelError as error:
            lines.say(logging.ERROR, " ".join(str(error).split()))
            return status_of(error)
        lines.end(progress)
        return _status(lines, place, progress, allow_quarantine or 0, allow_rejected or 0)


def _status(lines: Lines, place: Place, progress: Progress, quarantined: int, rejected: int) -> Status:
    """Says what is left over, and how the run ended."""
    if progress.in_quarantine:
        many = "1 key is" if progress.in_quarantine == 1 else f"{progress.in_quarantine:,} keys are"
        lines.say(logging.WARNING, f"{many} in quarantine: see {_command(place, 'quarantine list')}")
    for source, kinds in sorted(progress.rejections.items()):
        for kind, count in sorted(kinds.items(), key=lambda pair: -pair[1]):
            lines.say(logging.WARNING, f"source {source}: {count:,} rejected: {kind}")
    if progress.stopped:
        lines.say(logging.ERROR, f"the run is stopped: {progress.stopped}")
        return Status.LEFT_OVER
    if not progress.finished:
        lines.say(logging.INFO, "stopped; run it again to resume", always=True)
        return Status.STOPPED
    return Status.LEFT_OVER if progress.in_quarantine > quarantined or progress.rejected > rejected else Status.DONE


def _tell(lines: Lines, place: Place, failure: Failure) -> None:
    """The first failure of its kind, where it was raised, and how to see more."""
    text = f"{failure}\n{failure.trace}".rstrip("\n")
    if failure.quarantined:
        look = ("quarantine show", failure.computation, escaped(failure.key)) if failure.trace else ("quarantine list",)
        text += f"\nmore of the same is only counted; see {_command(place, *look)}"
    lines.say(logging.ERROR, text)


def _command(place: Place, words: str, *arguments: str) -> str:
    """A command of ours as it is to be typed; a URL may hold a password and is not repeated."""
    more = ["--store", "URL"] if place.store else [] if place.is_default else ["--data", place.data]
    return " ".join(["millwheel", words, *map(shlex.quote, [place.path, *arguments, *more])])
