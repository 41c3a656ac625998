"""Optimistic recovery: the user's function gives the lost partitions new content, and the iteration goes on.

Lives here: what that function gets, what it must return, and how that is checked at the driver. Never here: what is
checked in the executors (`cells.repaired`). The invariant: a repaired state is used only when it is whole, and the total
of the conserved column is what it was at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

from millwheel.limits import ITERATION_CONSERVED_SHARE
from millwheel.spark.iteration import cells, doors
from millwheel.spark.iteration.cells import PartitionCell
from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.doors import JobFailed
from millwheel.spark.iteration.errors import CompensationError
from millwheel.spark.iteration.losses import reason
from millwheel.spark.iteration.partitioned import Partitioned, numbered_partitions
from millwheel.spark.iteration.policies.policy import PolicyRun
from millwheel.spark.iteration.states import Beside, State, States, whole


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What a compensation function gets.

    `superstep` is the last completed one. `survivors` is the state after it, in which every lost partition is empty.
    `initial` is the whole state with which the iteration began. `lost` has the numbers of the lost partitions, ascending. For
    every partition, lost or not, `rows` is how many rows it had, and `totals` is the sum of its conserved column, or 0 if
    none is conserved. The driver knows both, so asking for them costs no pass over the data. In a delta iteration the state
    is the solution, and `pending` is the surviving workset. In others `pending` is None.

    A function that runs in the executors may refer to a `Loss`: its plain fields travel, its data is None there.
    """

    superstep: int
    survivors: Partitioned[Part]
    initial: Partitioned[Part]
    lost: tuple[int, ...]
    rows: Mapping[int, int]
    totals: Mapping[int, float]
    pending: Partitioned[Part] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Loss, (self.superstep, None, None, self.lost, self.rows, self.totals, None)


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """What the compensation of a delta iteration returns.

    `solution` has all rows of the lost partitions; every other partition is empty. `wake` has, in any partition, the keys
    that must be in the next workset, so that the fixpoint is that of an undisturbed run. Their values are taken from the
    repaired solution, so columns of `wake` are not looked at. What survives of the workset stays in it.
    """

    solution: Partitioned[Part]
    wake: Partitioned[Part]


Compensate: TypeAlias = Callable[[Loss], Partitioned[Part]] | Callable[[Loss], Repair]


@dataclass(frozen=True, slots=True)
class Optimistic:
    """Write nothing; after a loss, `compensate` gives the lost partitions content, and the iteration goes on.

    `check(part, initial part)` returns None, or says what is wrong and names the key. `conserved` names a column whose total
    over all partitions must be what it was at the start, to one part in 10^9.
    """

    compensate: Callable[[Loss], Any]
    check: Callable[[Part, Part], str | None] | None = None
    conserved: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.compensate):
            raise ValueError(f"compensate must be a function of a Loss, not {self.compensate!r:.80}")

    def over(self, states: States) -> OptimisticRun:
        """This policy in one run; the engine asks for it."""
        return OptimisticRun(states, self)


class OptimisticRun(PolicyRun):
    """Writes nothing, and asks the user's function after a loss."""

    how = "optimistic"

    def __init__(self, states: States, policy: Optimistic) -> None:
        super().__init__(states)
        self._policy = policy
        self._beside = Beside(conserved=policy.conserved)

    def start(self) -> State:
        """The initial state; its columns are learnt here, so that a recovery need not."""
        _ = self.states.model
        return self.states.begun(self._beside)

    def before(self, state: State) -> Beside:
        """The pass adds up the conserved column."""
        return self._beside

    def restore(self, state: State, lost: AbstractSet[int]) -> State:
        """Survivors read in place, the lost partitions from the user's function, checked and cached."""
        rescued = self._rescued(state, lost)
        given = self._policy.compensate(self._loss(state, lost, rescued))
        repair = partial(cells.repaired, frozenset(lost), self._policy.check)
        repaired = self._materialised(state, rescued.map(repair, *self._parts_of(given, state)))
        self._check_conserved(repaired)
        return repaired

    def _rescued(self, state: State, lost: AbstractSet[int]) -> Partitioned[PartitionCell]:
        """The surviving cells where they are, and an empty one for each that is lost."""
        surviving = sorted(set(range(self.states.partitions)) - lost)
        columns, delta = self.states.model.columns, self.states.delta
        empty = [cells.empty_cell(number, columns, delta) for number in sorted(lost)]
        pieces = doors.alike(self.states.context.parallelize(empty, len(empty)))
        if surviving:
            pieces = pieces.union(doors.only(state.rdd, surviving))
        return numbered_partitions(pieces.map(_numbered), self.states.partitions)

    def _loss(self, state: State, lost: AbstractSet[int], rescued: Partitioned[PartitionCell]) -> Loss:
        return Loss(
            superstep=state.superstep,
            survivors=rescued.map(cells.given_in),
            initial=self.states.initial,
            lost=tuple(sorted(lost)),
            rows={number: header.rows for number, header in state.headers.items()},
            totals={number: header.total for number, header in state.headers.items()},
            pending=rescued.map(cells.given_work_in) if self.states.delta else None,
        )

    def _parts_of(self, given: Any, state: State) -> list[Partitioned[Part]]:
        """What `cells.repaired` reads: the given content, the initial state, in a delta iteration also the keys to wake."""
        if self.states.delta and isinstance(given, Repair):
            return [given.solution, self.states.initial, given.wake]
        if not self.states.delta and isinstance(given, Partitioned):
            return [given, self.states.initial]
        expected = Repair if self.states.delta else Partitioned
        raise CompensationError(
            f"{self.states.name}: compensation after superstep {state.superstep} must return a {expected.__name__}, "
            f"not {type(given).__name__}"
        )

    def _materialised(self, state: State, repaired: Partitioned[PartitionCell]) -> State:
        try:
            return self.states.materialised(state.superstep, repaired.source_of_values(), whole, self._beside)
        except JobFailed as error:
            if doors.is_loss(error):
                raise
            raise CompensationError(
                f"{self.states.name}: after superstep {state.superstep}: {reason(error)}"
            ) from error

    def _check_conserved(self, repaired: State) -> None:
        wanted = self._initial_total
        # Asked so that a total that is not a number is refused.
        if not abs(repaired.total - wanted) <= ITERATION_CONSERVED_SHARE * max(abs(wanted), 1e-300):
            raise CompensationError(
                f"{self.states.name}: after compensation the total of column {self._policy.conserved!r} is "
                f"{repaired.total!r}, and was {wanted!r} at the start"
            )

    @cached_property
    def _initial_total(self) -> float:
        """The total of the conserved column at the start; 0 if there is none, as in every state."""
        if self._policy.conserved is None:
            return 0.0
        return self.states.initial.total(partial(cells.total_of, self._policy.conserved))


def _numbered(cell: PartitionCell) -> tuple[int, PartitionCell]:
    return cell.part.number, cell
