"""Bugs of what user code keeps beyond its hook."""

from __future__ import annotations

from millwheel.api.frame import Frame
from millwheel.runtime import executor
from tests.planted import Patches, only

KEPT = "tests/unit/api/test_kept.py"


@only(KEPT)
def kept_context_goes_on() -> Patches:
    """A context that user code has kept serves the next hook."""
    return {(executor, "getrefcount"): lambda context: 0, (executor.Executor, "_succeed"): lambda self: None}


@only(KEPT)
def cell_in_any_thread() -> Patches:
    """A cell that is used in another thread writes under the key of whichever hook runs."""
    return {(Frame, "here"): lambda self: self.key}


@only(KEPT)
def cell_between_hooks() -> Patches:
    """A cell that is used between two invocations has the key of the last hook."""
    original = Frame.abandon

    def abandon(self: Frame) -> None:
        key, thread = self.key, self.thread
        original(self)
        self.key, self.thread = key, thread

    return {(Frame, "abandon"): abandon}
