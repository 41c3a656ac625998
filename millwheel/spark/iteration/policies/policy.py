"""What every recovery policy does in a run, and the one that does nothing.

A policy is a frozen value that the user makes, and that may serve many runs. `over(states)` gives its `PolicyRun`: the
object that carries it out in one run and owns what it has to remember. The engine calls, and decides nothing itself:

    start()                     the state that the run begins with
    before(state)               before each superstep: what its pass is to do beside making the next state
    after(state, following)     after each superstep, when the following state is cached
    restore(state, lost)        after a loss: a state that is whole
    settle()                    wait for what is still being written
    forget()                    the iteration has ended and needs no recovery any more
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar

from millwheel.spark.iteration.states import NOTHING, Beside, State, States


class PolicyRun(ABC):
    """A policy in one run. All methods are called from the driver's thread, one at a time."""

    how: ClassVar[str]
    """The policy's name in what is told of a recovery."""

    def __init__(self, states: States) -> None:
        self.states = states

    @property
    def newest(self) -> int | None:
        """The superstep of the newest complete checkpoint, or None."""
        return None

    @abstractmethod
    def start(self) -> State:
        """The state that the run begins with. It runs again when a loss comes in between."""

    def before(self, state: State) -> Beside:
        """What the pass of the superstep after `state` does beside making the next state."""
        return NOTHING

    def after(self, state: State, following: State) -> None:
        """The superstep has made `following`, and `state` is still cached.

        A job that fails here (`doors.JobFailed`) makes the superstep fail: the engine drops `following`.
        """
        return

    @abstractmethod
    def restore(self, state: State, lost: AbstractSet[int]) -> State:
        """A whole state in place of `state`, whose partitions `lost` are gone (at least one).

        It runs again, with all that is lost by then, when a loss comes in between.
        """

    def settle(self) -> None:
        """Wait for what is still being written; raises what writing it raised."""
        return

    def forget(self) -> None:
        """The iteration has ended: what was written for its recovery goes."""
        return


@dataclass(frozen=True, slots=True)
class Restart:
    """Write nothing; after a loss, begin again from the initial data."""

    def over(self, states: States) -> RestartRun:
        """This policy in one run; the engine asks for it."""
        return RestartRun(states)


class RestartRun(PolicyRun):
    """Keeps nothing."""

    how = "restart"

    def start(self) -> State:
        """The initial state."""
        return self.states.begun()

    def restore(self, state: State, lost: AbstractSet[int]) -> State:
        """The initial state."""
        return self.states.begun()
