"""Failures of user code: the first of each kind is reported, and a hook that only fails stops the run.

Lives here: what is one kind of failure, and whether a hook has failed for all of its keys.  Never here: quarantine, which
the core does; printing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from millwheel import limits
from millwheel.errors import HooksFail
from millwheel.escapes import escaped, harmless
from millwheel.graph import ComputationSpec
from millwheel.rejected import kind_of
from millwheel.traces import place, shortened
from millwheel.wording import counted
from millwheel.work import InvocationOutcome, Work

logger = logging.getLogger("millwheel")


SINK: Final = "sink"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of its kind: what failed for which key, and the traceback, shortened to the user's frames."""

    computation: str
    hook: str
    """ProcessRecord or ProcessTimer, or `SINK` when the database refused a row."""
    key: str
    error: str
    """Type and message, one line."""
    trace: str
    redriven: bool = False
    """It had failed before, and failed again in a redrive."""
    quarantined: bool = True
    """Its key goes to quarantine; otherwise the run stops, and the record comes again."""

    def __str__(self) -> str:
        if self.hook == SINK:
            return f"{self.computation}: the database refused a row, and its key goes to quarantine: {self.error}"
        what = "failed again" if self.redriven else "failed"
        rest = ", and the key goes to quarantine" if self.quarantined and not self.redriven else ""
        return f"{self.computation}.{self.hook} {what} for key '{escaped(self.key)}'{rest}: {self.error}"


OnFailure = Callable[[Failure], None]
"""Called for the first failure of each kind."""


def log_failure(failure: Failure) -> None:
    """To the log, with the traceback."""
    logger.error("%s\n%s", failure, failure.trace)


def hooks_fail(spec: ComputationSpec, hook: str, quarantined: int) -> HooksFail:
    """The end of a run whose hook only fails.  What was run last is not committed and comes again."""
    rest = f"; {counted(quarantined, 'key is', 'keys are')} in quarantine already, for a redrive" if quarantined else ""
    return HooksFail(
        f"{spec.name}.{hook} has failed for the first {spec.settings.first_failures} keys, all that it was called for: "
        f"the run is stopped, mend the hook and run again{rest} (first_failures of pipeline.add sets the number)"
    )


class Failures:
    """Those of one run."""

    def __init__(self, say: OnFailure = log_failure) -> None:
        self._say = say
        self._unsaid: list[Failure] = []
        """Of the invocation that runs."""
        self._kinds: set[tuple[str, ...]] = set()
        self._failing: dict[tuple[str, str], set[str]] = {}
        """By computation and hook, keys that have failed, as long as none has succeeded."""
        self._sound: set[tuple[str, str]] = set()
        """Computations and hooks that have succeeded once."""

    def of(self, computation: str) -> Callable[[str, str, BaseException, bool], None]:
        """What its executor calls for a failure."""
        return partial(self._failed, computation)

    def _failed(self, computation: str, hook: str, key: str, error: BaseException, redriven: bool) -> None:
        """A hook has failed on its last attempt."""
        if self._is_new(computation, hook, type(error).__name__, place(error)):
            text = harmless(f"{type(error).__name__}: {error}".split("\n")[0][: limits.FAILURE_LINE_CHARS])
            self._unsaid.append(
                Failure(
                    computation=computation, hook=hook, key=key, error=text,
                    trace=shortened(error)[-limits.TRACEBACK_LIMIT_CHARS :], redriven=redriven,
                )
            )  # fmt: skip

    def refused(self, computation: str, answer: str) -> None:
        """The database has refused a row of a sink table."""
        if self._is_new(computation, "sink", kind_of(answer)):
            text = harmless(answer.split("\n")[0][: limits.FAILURE_LINE_CHARS])
            self._say(Failure(computation=computation, hook=SINK, key="", error=text, trace=""))

    def _is_new(self, *kind: str) -> bool:
        if kind in self._kinds or len(self._kinds) >= limits.FAILURE_KINDS:
            return False
        self._kinds.add(kind)
        return True

    def settle(self, spec: ComputationSpec, work: Work, outcome: InvocationOutcome) -> str:
        """Report new failures after an invocation.  Returns the hook that stops the run, if there is one."""
        broken = self._broken(spec, work, outcome)
        unsaid, self._unsaid = self._unsaid, []
        for failure in unsaid:
            self._say(msgspec.structs.replace(failure, quarantined=not broken))
        return broken

    def _broken(self, spec: ComputationSpec, work: Work, outcome: InvocationOutcome) -> str:
        """The hook that has failed for so many keys, and succeeded for none."""
        limit = spec.settings.first_failures
        if limit is None or outcome.lacking or work.redrive:
            return ""
        failed = [entry for entry in outcome.quarantined if not entry.is_timer]
        records = sum(len(part.keys) for part in work.parts)
        if records and self._counts(spec.name, "ProcessRecord", records > len(failed), limit, outcome):
            return "ProcessRecord"
        timers = {timer.key for timer in work.timers} - {entry.key for entry in outcome.quarantined}
        if work.timers and self._counts(spec.name, "ProcessTimer", bool(timers), limit, outcome):
            return "ProcessTimer"
        return ""

    def _counts(self, computation: str, hook: str, succeeded: bool, limit: int, outcome: InvocationOutcome) -> bool:
        name = (computation, hook)
        if name in self._sound:
            return False
        if succeeded:
            self._sound.add(name)
            self._failing.pop(name, None)
            return False
        is_record = hook == "ProcessRecord"
        failing = self._failing.setdefault(name, set())
        failing |= {e.key for e in outcome.quarantined if e.error and e.is_timer != is_record}
        return len(failing) >= limit
