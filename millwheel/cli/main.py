"""One call of the command: from its arguments to its exit status.

Lives here: what becomes of an error.  Invariant: an error that has a name is one line on standard error, after
which only what user code raised has a traceback.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import shell_complete

from millwheel.cli.completion import COMPLETE
from millwheel.cli.lines import WORDS
from millwheel.cli.root import root
from millwheel.cli.status import Status, status_of
from millwheel.errors import MillwheelError, PipelineFailed
from millwheel.escapes import harmless
from millwheel.terminal import let_go_of_closed_terminal

NAME = "millwheel"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to an output says that takes no more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    if COMPLETE in os.environ:
        return shell_complete(root, {}, NAME, COMPLETE, os.environ[COMPLETE])
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what breaks a channel is in our own log
    _speak()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _called(given)
    except OSError as error:
        if error.errno == errno.EIO and let_go_of_closed_terminal():
            return Status.STOPPED  # a write found that out before the signal came
        if error.filename is not None or error.errno not in FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer
        _complain(f"the output cannot be written: {error.strerror}")
        return Status.FAILED


def _called(given: list[str]) -> int:
    """The exit status, unless an output takes no more."""
    try:
        with root.make_context(NAME, given) as context:
            return int(root.invoke(context) or Status.DONE)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Status.USAGE
    except click.UsageError as error:
        return _misused(error)
    except MillwheelError as error:
        _complain(str(error))
        if isinstance(error, PipelineFailed):
            click.echo("\n".join(map(harmless, error.trace.rstrip("\n").split("\n"))), err=True)
        return status_of(error)
    except KeyboardInterrupt:
        _complain("stopped")
        return Status.STOPPED
    except BrokenPipeError:  # whoever read our output has seen enough, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.DONE


class _Line(logging.Formatter):
    """A warning that comes while no run prints lines, for example of a Postgres that does not start yet."""

    def format(self, record: logging.LogRecord) -> str:
        if not record.name.startswith(NAME):
            return super().format(record)
        return f"{NAME}: {WORDS.get(record.levelno, '')}{harmless(' '.join(record.getMessage().split()))}"


def _speak() -> None:
    """Warnings are lines as errors are, and what is said has a place to go to, whatever was closed before the start."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # until the process ends
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Line())


def _misused(error: click.UsageError) -> int:
    about = error.ctx.command_path if error.ctx is not None else NAME
    _complain(f"{error.format_message().rstrip('.')}. See '{about} --help'.".replace("?.", "?"))
    return Status.USAGE


def _complain(text: str) -> None:
    click.echo(f"{NAME}: {harmless(' '.join(text.split()))}", err=True)
