"""The loop of an iteration: one superstep after the other, until it ends; after a loss the policy gives a whole state.

Lives here: `iterate` and `iterate_delta`. Never here: a private door of Spark (`doors`), numpy (`columns`), a file
(`checkpoints`), and what a policy does (`policies`). The invariant: a state is released only when a newer one, or a
repaired one, is cached whole and its lineage cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from pyspark import RDD

from millwheel.spark.iteration import cells, doors
from millwheel.spark.iteration.cells import Keeping, PartitionCell
from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.doors import JobFailed
from millwheel.spark.iteration.endings import Converged, Ending, NothingChanges, Steps
from millwheel.spark.iteration.errors import CheckpointError, IterationError
from millwheel.spark.iteration.losses import Losses, LossNoticed, notice
from millwheel.spark.iteration.partitioned import Changes, Partitioned
from millwheel.spark.iteration.policies import PolicyRun, Recovery, Restart
from millwheel.spark.iteration.progress import Outcome, Recovered, Superstep, show
from millwheel.spark.iteration.states import State, States

V = TypeVar("V")
Listener = Callable[[Superstep | Recovered], None]
Deliver = Callable[[Partitioned[Part]], Any]


def iterate(
    initial: Partitioned[Part],
    step: Callable[[Partitioned[Part]], Partitioned[Part]],
    until: Converged | Steps,
    recovery: Recovery | None = None,
    *,
    deliver: Deliver | None = None,
    listener: Listener = show,
    name: str = "iteration",
    any_version: bool = False,
) -> Outcome[Any]:
    """Bulk iteration: `step` maps the whole state to the next, until the norm between two is small or a count is reached.

    A step must keep the state's keys, columns and types; one that ends in `receive` of the state itself saves a pass.
    It only describes work: it runs again for every superstep, and after a loss for the same one. `deliver(final state)` runs
    under the same protection as a superstep (a loss in it is recovered, and it runs again); reading `Outcome.state`
    later does not. `recovery` is `Restart()` unless given. `name` is part of what a checkpoint must match.

    Raises IterationError when the step is wrong or losses do not end, CompensationError, CheckpointError.
    """
    if not isinstance(until, Converged | Steps):
        raise IterationError(f"{name}: until must be Converged(...) or Steps(...), not {until!r:.80}")
    first = initial.map(partial(cells.first_bulk, initial.partitions))
    states = States(name=name, initial=initial, first=first, delta=False, column=until.column)
    policy = _policy_over(states, recovery)
    doors.ready(states.context, any_version=any_version)
    bulk = _Bulk(states=states, step=step)
    return _Iteration(states=states, work=bulk, ending=until, policy=policy, listener=listener).run(deliver)


def iterate_delta(
    solution: Partitioned[Part],
    workset: Partitioned[Part],
    step: Callable[[Partitioned[Part], Partitioned[Part]], Changes],
    recovery: Recovery | None = None,
    *,
    at_most: int = 10_000,
    deliver: Deliver | None = None,
    listener: Listener = show,
    name: str = "iteration",
    any_version: bool = False,
) -> Outcome[Any]:
    """Delta iteration: `step(solution, workset)` changes some rows of the solution; ends when nothing changes.

    The rows that a superstep changes are the next workset. Of the first workset only the keys count. A step must end in
    `solution.update(...)`. A key that no message reaches is not sent and not computed; its row is copied in memory
    when another row of its partition changes. Everything else is as for `iterate`.
    """
    ending = NothingChanges(at_most)
    first = solution.map(partial(cells.first_delta, solution.partitions), workset)
    states = States(name=name, initial=solution, first=first, delta=True)
    policy = _policy_over(states, recovery)
    doors.ready(states.context, any_version=any_version)
    delta = _Delta(states=states, step=step)
    return _Iteration(states=states, work=delta, ending=ending, policy=policy, listener=listener).run(deliver)


def _policy_over(states: States, recovery: Recovery | None) -> PolicyRun:
    if recovery is None:
        return Restart().over(states)
    if not isinstance(recovery, Recovery):
        raise IterationError(f"{states.name}: recovery must be a policy, such as Tail(path), not {recovery!r:.80}")
    return recovery.over(states)


class _Work(Protocol):
    """What a superstep computes: `described` at the driver, and `make` of each of its elements in the executors."""

    def described(self, state: State) -> RDD[Any]: ...

    def make(self, keeping: Keeping, pair: Any, /) -> PartitionCell: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bulk:
    """The user's step over the whole state."""

    states: States
    step: Callable[[Partitioned[Part]], Partitioned[Part]]

    make = staticmethod(cells.next_bulk)

    def described(self, state: State) -> RDD[Any]:
        name, partitions = self.states.name, self.states.partitions
        given = self.states.given(state)
        result = self.step(given)
        if not isinstance(result, Partitioned) or result.partitions != partitions:
            raise IterationError(f"{name}: a step must return a Partitioned of {partitions}, not {result!r}")
        return given.with_result(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """The user's step over the solution and the workset."""

    states: States
    step: Callable[[Partitioned[Part], Partitioned[Part]], Changes]

    make = staticmethod(cells.next_delta)

    def described(self, state: State) -> RDD[Any]:
        given = self.states.given(state)
        result = self.step(given, self.states.work(state))
        if not isinstance(result, Changes) or result.outcome.base is not given:
            raise IterationError(
                f"{self.states.name}: a delta step must end in update of the solution that it was given"
            )
        return result.outcome.source


class _Iteration:
    """One run."""

    def __init__(
        self, *, states: States, work: _Work, ending: Ending, policy: PolicyRun, listener: Listener
    ) -> None:  # fmt: skip
        self._states, self._work, self._ending = states, work, ending
        self._policy, self._listener = policy, listener
        self._losses = Losses(states.name)
        self._history: list[Superstep] = []
        self._recoveries: list[Recovered] = []

    def run(self, deliver: Deliver | None) -> Outcome[Any]:
        began = time.monotonic()
        try:
            state = self._losses.borne(self._policy.start)
            resumed = self._policy.newest
            state, value = self._to_the_end(state, deliver)
        finally:
            self._policy.settle()
        self._policy.forget()
        return Outcome(
            self._states.view(state), value, state.superstep, len(self._history), self._is_reached(state),
            time.monotonic() - began, resumed, tuple(self._history), tuple(self._recoveries),
        )  # fmt: skip

    def _to_the_end(self, state: State, deliver: Deliver | None) -> tuple[State, Any]:
        """The final state, and what `deliver` returned for it."""
        while True:
            self._refuse_beyond_the_end(state)
            began = time.monotonic()
            try:
                if self._is_reached(state) or state.superstep >= self._ending.limit:
                    return state, deliver(self._states.view(state)) if deliver is not None else None
                following = self._superstep(state)
            except (*JobFailed, LossNoticed) as error:
                state = self._recovered(state, error, began)
            else:
                state.rdd.unpersist()
                state = following
                self._tell(state, time.monotonic() - began)

    def _refuse_beyond_the_end(self, state: State) -> None:
        """A checkpoint may be of a run that went on for longer: its state is no result of this one."""
        if state.superstep > self._ending.limit:
            raise CheckpointError(
                f"{self._states.name}: the checkpoint is of superstep {state.superstep}, and this run ends after "
                f"{self._ending.limit}: give it another path, or remove the checkpoint"
            )

    def _is_reached(self, state: State) -> bool:
        return self._ending.reached(state, self._states.norm_of)

    def _superstep(self, state: State) -> State:
        """The state after the next superstep, with the checkpoint that belongs to it; JobFailed when Spark gives up."""
        notice(state)
        beside = self._policy.before(state)
        described = self._work.described(state)
        following = self._states.materialised(state.superstep + 1, described, self._work.make, beside)
        try:
            self._policy.after(state, following)
        except BaseException:
            following.rdd.unpersist()
            raise
        self._losses.forget()
        return following

    def _recovered(self, state: State, error: Exception, began: float) -> State:
        """A state that is whole again. Losses during the recovery itself are part of it."""
        self._policy.settle()
        self._losses.count(error)
        lost: set[int] = set()
        whole = self._losses.borne(partial(self._again, state, error, lost))
        if whole is not state:
            state.rdd.unpersist()
        how = self._policy.how if lost else "tried again"
        told = Recovered(state.superstep, tuple(sorted(lost)), whole.superstep, how, time.monotonic() - began)
        self._recoveries.append(told)
        self._listener(told)
        return whole

    def _again(self, state: State, error: Exception, lost: set[int]) -> State:
        """`state` itself when nothing of it is lost, else what the policy has for it; adds to `lost`."""
        lost |= doors.lost_after(state.rdd, error)
        if lost:
            return self._policy.restore(state, lost)
        self._losses.refuse_user_errors(error)
        return state

    def _tell(self, state: State, seconds: float) -> None:
        told = Superstep(
            state.superstep, state.changed, state.norm, seconds, self._policy.newest, state.total
        )  # fmt: skip
        self._history.append(told)
        self._listener(told)
