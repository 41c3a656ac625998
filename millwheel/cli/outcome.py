"""How a run ended, and which hooks failed in it, as `millwheel run`, `worker` and `controller` say it."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

from millwheel.cli.lines import Lines
from millwheel.cli.options import Place
from millwheel.cli.status import Status, status_of
from millwheel.errors import MillwheelError, PipelineFailed
from millwheel.escapes import escaped
from millwheel.wording import counted

if TYPE_CHECKING:
    from millwheel.cluster import RunEnding
    from millwheel.host.progress import Progress
    from millwheel.runtime.failures import Failure


def outcome(
    lines: Lines, place: Place, progress: Progress, stopped: str, quarantined: int = 0, rejected: int = 0
) -> Status:
    """Says what is left over, and how the run ended; `stopped` is what to say when it was told to, or ""."""
    _tell_of_quarantine(lines, place, progress.in_quarantine)
    for source, kinds in sorted(progress.rejections.items()):
        for kind, count in sorted(kinds.items(), key=lambda pair: -pair[1]):
            lines.say(logging.WARNING, f"source {source}: {count:,} rejected: {kind}")
    ending = progress.ending
    if ending is not None:
        _tell_of_rejected(lines, ending)
    if progress.stopped:
        lines.say(logging.ERROR, f"the run is stopped: {progress.stopped}")
        return Status.LEFT_OVER
    if stopped:
        lines.say(logging.INFO, stopped, always=True)
        return Status.STOPPED
    if ending is not None:
        return Status.LEFT_OVER if ending.too_much else Status.DONE
    return Status.LEFT_OVER if progress.in_quarantine > quarantined or progress.rejected > rejected else Status.DONE


def failed(lines: Lines, error: MillwheelError) -> Status:
    """Says the error that has ended the run, on one line; what user code has raised has its traceback below."""
    trace = "\n" + error.trace.rstrip("\n") if isinstance(error, PipelineFailed) else ""
    lines.say(logging.ERROR, " ".join(str(error).split()) + trace)
    return status_of(error)


def outcome_of_all(lines: Lines, place: Place, ending: RunEnding) -> Status:
    """The same of a controller, which has judged what all workers have left over."""
    _tell_of_quarantine(lines, place, ending.quarantined)
    _tell_of_rejected(lines, ending)
    if ending.stopped:
        lines.say(logging.ERROR, f"the run is stopped: {ending.stopped}")
    return Status.LEFT_OVER if ending.too_much else Status.DONE


def _tell_of_quarantine(lines: Lines, place: Place, keys: int) -> None:
    if keys:
        lines.say(
            logging.WARNING,
            f"{counted(keys, 'key is', 'keys are')} in quarantine: see {_command(place, 'quarantine list')}",
        )


def _tell_of_rejected(lines: Lines, ending: RunEnding) -> None:
    if ending.rejected:
        lines.say(logging.WARNING, f"{counted(ending.rejected, 'row was', 'rows were')} rejected in all")


def tell(lines: Lines, place: Place, failure: Failure) -> None:
    """The first failure of its kind, where it was raised, and how to see more."""
    text = f"{failure}\n{failure.trace}".rstrip("\n")
    if failure.quarantined:
        look = ("quarantine show", failure.computation, escaped(failure.key)) if failure.trace else ("quarantine list",)
        text += f"\nmore of the same is only counted; see {_command(place, *look)}"
    facts = {"computation": failure.computation, "hook": failure.hook, "key": failure.key}
    lines.say(logging.ERROR, text, facts=facts)


def log_facts(form: str, pipeline: str, role: str, member: str = "") -> dict[str, str] | None:
    """What each line of the log says of this process, or None when the log is for people."""
    facts = {"pipeline": pipeline, "role": role, **({"member": member} if member else {})}
    return facts if form == "json" else None


def _command(place: Place, words: str, *arguments: str) -> str:
    """A command of ours as it is to be typed."""
    return " ".join(["millwheel", words, *map(shlex.quote, [place.path, *arguments, *place.options()])])
