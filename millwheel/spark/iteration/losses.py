"""How a run tells a lost executor from an error of user code, and how many losses in a row it bears.

Lives here: the count of losses, and the errors that end a run. Never here: how a state is made whole again (`policies`).
The invariant: user code that fails is never mistaken for a loss.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TypeVar

from millwheel.limits import ITERATION_LOSSES_IN_A_ROW
from millwheel.spark.iteration import doors
from millwheel.spark.iteration.doors import JobFailed
from millwheel.spark.iteration.errors import IterationError
from millwheel.spark.iteration.states import State

T = TypeVar("T")

_log = logging.getLogger(__name__)
_python_error = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Warning)): (.+)$", re.MULTILINE)


class LossNoticed(Exception):
    """Partitions are gone, and no job had to fail to learn it."""

    def __init__(self) -> None:
        super().__init__(doors.BLOCK_LOST)


def notice(state: State) -> None:
    """Before a superstep: when an executor has gone, see at once whether it took partitions along; then LossNoticed."""
    gone = state.executors - doors.executors(state.rdd.ctx)
    if gone and doors.lost_after(state.rdd, None):
        raise LossNoticed


def reason(error: BaseException) -> str:
    """The Python error inside a failed job, if there is one; else the first line of Spark's."""
    found = _python_error.findall(str(error))
    return ": ".join(found[-1]) if found else next(iter(str(error).splitlines()), repr(error))


class Losses:
    """Counts the losses of a run that no completed superstep lies between."""

    def __init__(self, name: str) -> None:
        self._name, self._in_a_row = name, 0

    def forget(self) -> None:
        """A superstep was completed."""
        self._in_a_row = 0

    def count(self, error: Exception) -> None:
        """One more; IterationError when the cluster is unfit for the work."""
        self._in_a_row += 1
        if self._in_a_row > ITERATION_LOSSES_IN_A_ROW:
            raise IterationError(
                f"{self._name}: {ITERATION_LOSSES_IN_A_ROW} losses in a row without one completed superstep; look at the "
                f"executors' memory and logs. The last: {reason(error)}"
            ) from error

    def refuse_user_errors(self, error: Exception) -> None:
        """IterationError, with the Python error's text, unless a job failed for a loss."""
        if not doors.is_loss(error):
            raise IterationError(f"{self._name}: {reason(error)}") from error

    def borne(self, produce: Callable[[], T]) -> T:
        """What `produce` returns; a loss on the way means to try again."""
        while True:
            try:
                return produce()
            except JobFailed as error:
                self.refuse_user_errors(error)
                self.count(error)
                _log.info("%s: lost an executor while recovering; trying again", self._name)
