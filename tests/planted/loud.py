"""Bugs that a user meets on the first day: failures that are not heard, wrong words and wrong statuses.

Nothing of this changes what is computed, so that only unit tests notice.
"""

from __future__ import annotations

from typing import Any

from millwheel.cli import status
from millwheel.cli.lines import Lines
from millwheel.cli.status import Status
from millwheel.errors import MillwheelError, StoreUnavailable
from millwheel.host import stalls
from millwheel.runtime import failures
from millwheel.runtime.failures import Failures
from millwheel.testing.kit.mutations import Watch
from tests.planted import Patches, only

FAILURES = "tests/unit/runtime/test_failures.py"
LINES = "tests/unit/cli/test_lines.py"


@only(FAILURES)
def every_failure_said() -> Patches:
    """Every failure of a hook is said, and not the first of its kind."""
    return {(Failures, "_is_new"): lambda self, *kind: True}


@only(FAILURES)
def kinds_without_their_line() -> Patches:
    """An error of another line of a hook is taken for the one that was said already."""
    return {(failures, "place"): lambda error: ""}


@only(FAILURES)
def success_not_counted() -> Patches:
    """A run stops when a hook has failed for so many keys, although it has succeeded for others."""
    original = Failures._counts

    def counts(self: Failures, computation: str, hook: str, succeeded: bool, limit: int, outcome: Any) -> bool:
        return original(self, computation, hook, False, limit, outcome)

    return {(Failures, "_counts"): counts}


@only(LINES)
def rate_of_the_whole_run() -> Patches:
    """The rate that a run prints is its mean since it began."""
    return {(Lines, "_rate"): lambda self, progress, seconds: progress.injected / seconds}


@only(LINES)
def warning_without_its_word() -> Patches:
    """Only the first line of a message on standard error says that it is an error or a warning."""
    original = Lines.say

    def say(self: Lines, level: int, text: str, always: bool = False, facts: Any = None) -> None:
        first, *rest = text.split("\n")
        original(self, level, first, always, facts)
        for line in rest:
            original(self, 0, line, True)

    return {(Lines, "say"): say}


@only("tests/unit/cli/test_status.py")
def unreachable_store_is_a_mistake() -> Patches:
    """A store that cannot be reached ends the command with the status of what must be mended first."""
    original = status.status_of

    def status_of(error: MillwheelError) -> Status:
        return Status.FAILED if isinstance(error, StoreUnavailable) else original(error)

    return {(status, "status_of"): status_of}


@only("tests/unit/runtime/test_stalls.py")
def stall_said_again() -> Patches:
    """A source whose watermark stands still says why at every look."""
    return {(stalls.Stalls, "stands"): lambda self, name, watermark, now: True}


@only("tests/unit/testing/kit/test_mutations.py")
def lost_change_not_seen() -> Patches:
    """The test kit does not see that a hook changed a value which it had read and did not set."""
    return {(Watch, "check"): lambda self, key: None}
