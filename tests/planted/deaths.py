"""Bugs of records that kill the process: marks, suspects, and what runs alone."""

from __future__ import annotations

from typing import Any

from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.host.alone import Alone
from millwheel.host.marks import Marks
from tests.planted import Patches, mutant


@mutant
def nothing_is_marked() -> Patches:
    """What runs after a death is not marked: the same record kills every process."""
    return {(Suspects, "begin"): lambda self, work: None}


@mutant
def marked_too_late() -> Patches:
    """A hook runs while its mark is still on the way."""

    class Early(ev.Marked, frozen=True):
        pass

    def perform(self: Marks, actor: Any, mark: Any) -> None:
        self._submit(actor, mark)
        if isinstance(mark, ev.Mark):
            self._tell(actor, Early())

    original = IntervalCore.handle

    def handle(self: IntervalCore, event: ev.Event, now: int) -> list[ev.Effect]:
        return [] if type(event) is ev.Marked else original(self, event, now)

    return {(Marks, "perform"): perform, (IntervalCore, "handle"): handle}


@mutant
def deaths_not_counted() -> Patches:
    """What was alone when the process died stays a suspect, however often."""
    original = Suspects._suspect

    def suspect(self: Suspects, found: Any) -> None:
        found.alone = False
        original(self, found)

    return {(Suspects, "_suspect"): suspect}


@mutant
def not_alone() -> Patches:
    """Other invocations run beside a suspect."""
    return {(Alone, "keeps"): lambda self, actor, work: False}


@mutant
def condemned_runs() -> Patches:
    """What has killed often enough is run again."""
    return {(Suspects, "answer"): lambda self, entry: None}
