"""Exit statuses.

Lives here: their only table in code; docs/guide-command-line.md prints the same one, and a test compares them.
"""

from __future__ import annotations

from enum import IntEnum

from millwheel.errors import Fenced, HookExited, HooksFail, MillwheelError, StoreUnavailable


class Status(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LEFT_OVER = 3
    BROKEN_HOOKS = 4
    TAKEN_OVER = 5
    NO_STORE = 6
    HOOK_EXITED = 7
    STOPPED = 130

    @property
    def meaning(self) -> str:
        """One sentence, for the docs."""
        return MEANINGS[self]


MEANINGS = {
    Status.DONE: "All is well: the answer is printed, or the run has finished.",
    Status.FAILED: "An error that is named on standard error; the same command fails again until something is changed.",
    Status.USAGE: "Wrong usage: an unknown command, option or value.",
    Status.LEFT_OVER: "The run has ended and left keys in quarantine or rejected rows, more than were allowed.",
    Status.BROKEN_HOOKS: "The run was stopped because a hook had failed for every key that it had met.",
    Status.TAKEN_OVER: "Another run has taken the pipeline over; starting this one again would take it back.",
    Status.NO_STORE: "The store cannot be reached or is too busy; the same command may succeed later.",
    Status.HOOK_EXITED: "A hook has called `sys.exit`, or raised what is no `Exception`; start it again: after some such "
    "ends its key is quarantined.",
    Status.STOPPED: "Stopped by Ctrl-C or SIGTERM; what is committed is kept.",
}


def status_of(error: MillwheelError) -> Status:
    """The status of a command that ended with `error`."""
    match error:
        case Fenced():
            return Status.TAKEN_OVER
        case HooksFail():
            return Status.BROKEN_HOOKS
        case HookExited():
            return Status.HOOK_EXITED
        case StoreUnavailable():
            return Status.NO_STORE
        case _:
            return Status.FAILED
