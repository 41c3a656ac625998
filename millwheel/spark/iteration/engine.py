"""The loop: supersteps, convergence, and what each recovery policy does when a partition is gone.

Lives here: `iterate` and `iterate_delta`. Never here: a private door of Spark (`doors`), numpy (`columns`), a file
(`checkpoints`). The invariants: the state of a superstep is released only when a newer one, or a repaired one, is
cached whole and its lineage cut; a checkpoint counts only when its manifest is there; user code that fails is never
mistaken for a loss.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from pyspark import RDD

from millwheel.spark.iteration import cells, checkpoints, doors
from millwheel.spark.iteration.cells import Cell, Header, Keeping, Model
from millwheel.spark.iteration.checkpoints import Checkpoint, PartFile
from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.doors import JobFailed
from millwheel.spark.iteration.errors import CompensationError, IterationError
from millwheel.spark.iteration.partitioned import Changes, Partitioned, numbered_partitions
from millwheel.spark.iteration.policies import Blocking, Head, Loss, Optimistic, Recovery, Repair, Restart, Tail
from millwheel.spark.iteration.progress import Outcome, Recovered, Superstep, show

V = TypeVar("V")
Listener = Callable[[Superstep | Recovered], None]

TRIES_IN_A_ROW: Final = 8
"""Losses without a completed superstep between them, after which the cluster is taken to be unfit for the work."""
CONSERVED_SHARE: Final = 1e-9
"""By how much of itself the total of a conserved column may differ after a compensation."""

_log = logging.getLogger(__name__)
_python_error = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Warning)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Converged:
    """Stop when the infinity norm between two states is below `below`, in `column` or in all; or after `at_most`."""

    below: float
    column: str | None = None
    at_most: int = 10_000

    def __post_init__(self) -> None:
        if not self.below >= 0 or self.at_most < 0:
            raise ValueError(f"below and at_most must be 0 or more, not {self.below!r} and {self.at_most!r}")


@dataclass(frozen=True, slots=True)
class Steps:
    """Stop after `count` supersteps."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be 0 or more supersteps, not {self.count!r}")


@dataclass(frozen=True, slots=True)
class _State:
    """The state after a superstep, cached."""

    superstep: int
    rdd: RDD[Cell]
    headers: dict[int, Header]

    @property
    def norm(self) -> float:
        return float(np.max([header.norm for header in self.headers.values()]))  # NaN if any is

    @property
    def active(self) -> int:
        return sum(header.active for header in self.headers.values())

    @property
    def changed(self) -> int:
        return sum(header.changed for header in self.headers.values())

    @property
    def total(self) -> float:
        return sum(header.total for header in self.headers.values())


def iterate(
    initial: Partitioned[Part],
    step: Callable[[Partitioned[Part]], Partitioned[Part]],
    until: Converged | Steps,
    recovery: Recovery | None = None,
    *,
    deliver: Callable[[Partitioned[Part]], Any] | None = None,
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

    def compute(state: _State) -> RDD[Any]:
        given = Partitioned(state.rdd, initial.partitions, cells.part_in)
        result = step(given)
        if not isinstance(result, Partitioned) or result.partitions != initial.partitions:
            raise IterationError(f"{name}: a step must return a Partitioned of {initial.partitions}, not {result!r}")
        return given.with_result(result)

    first = initial.map(partial(cells.first_bulk, initial.partitions))
    job = _Iteration(name, initial, first, compute, cells.next_bulk, recovery or Restart(), listener, delta=False)
    job.column = until.column if isinstance(until, Converged) else None
    job.limit = until.count if isinstance(until, Steps) else until.at_most
    if isinstance(until, Converged):
        job.reached = lambda state: job.norm_of(state) < until.below
    else:
        job.reached = lambda state: state.superstep >= until.count
    doors.ready(initial.source.ctx, any_version=any_version)
    return job.run(deliver)


def iterate_delta(
    solution: Partitioned[Part],
    workset: Partitioned[Part],
    step: Callable[[Partitioned[Part], Partitioned[Part]], Changes],
    recovery: Recovery | None = None,
    *,
    at_most: int = 10_000,
    deliver: Callable[[Partitioned[Part]], Any] | None = None,
    listener: Listener = show,
    name: str = "iteration",
    any_version: bool = False,
) -> Outcome[Any]:
    """Delta iteration: `step(solution, workset)` changes some rows of the solution; ends when nothing changes.

    The rows that a superstep changes are the next workset. Of the first workset only the keys count. A step must end in
    `solution.update(...)`. A key that no message reaches is not sent and not computed; its row is copied in memory
    when another row of its partition changes. Everything else is as for `iterate`.
    """

    def compute(state: _State) -> RDD[Any]:
        given = Partitioned(state.rdd, solution.partitions, cells.part_in)
        result = step(given, Partitioned(state.rdd, solution.partitions, cells.work_in))
        if not isinstance(result, Changes) or result.outcome.base is not given:
            raise IterationError(f"{name}: a delta step must end in update of the solution that it was given")
        return result.outcome.source

    first = solution.map(partial(cells.first_delta, solution.partitions), workset)
    job = _Iteration(name, solution, first, compute, cells.next_delta, recovery or Restart(), listener, delta=True)
    job.limit = at_most
    job.reached = lambda state: state.active == 0
    doors.ready(solution.source.ctx, any_version=any_version)
    return job.run(deliver)


class _Iteration:
    """One run. `compute` describes a superstep, `make` turns its result into a cell (in the executors)."""

    def __init__(
        self,
        name: str,
        initial: Partitioned[Part],
        first: Partitioned[Cell],
        compute: Callable[[_State], RDD[Any]],
        make: Callable[[Keeping, Any], Cell],
        recovery: Recovery,
        listener: Listener,
        *,
        delta: bool,
    ) -> None:
        self.limit = 0
        self.column: str | None = None
        self.reached: Callable[[_State], bool] = lambda state: False
        if not isinstance(recovery, Recovery):
            raise IterationError(f"{name}: recovery must be a policy, such as Tail(path), not {recovery!r:.80}")
        self._name, self._initial, self._first, self._delta = name, initial, first, delta
        self._compute, self._make, self._recovery, self._listener = compute, make, recovery, listener
        self._context = initial.source.ctx
        self._headers = self._context.accumulator({}, cells.HeaderParam())
        self._conserved = recovery.conserved if isinstance(recovery, Optimistic) else None
        self._tickets = 0
        self._history: list[Superstep] = []
        self._recoveries: list[Recovered] = []
        self._checkpoint: Checkpoint | None = None
        self._committer: _Committer | None = None
        self._known: frozenset[str] = frozenset()
        self._model = Model()
        self._job: dict[str, Any] = {}
        self._initial_total = 0.0
        self._failures = 0

    # --- the loop ---

    def run(self, deliver: Callable[[Partitioned[Part]], Any] | None) -> Outcome[Any]:
        began = time.monotonic()
        state = self._protected(self._begin)
        resumed = state.superstep if self._checkpoint is not None else None
        while True:
            before = time.monotonic()
            try:
                if self.reached(state) or state.superstep >= self.limit:
                    value = deliver(self._view(state)) if deliver is not None else None
                    break
                following = self._superstep(state)
            except (*JobFailed, _LossNoticed) as error:
                state = self._recover(state, error, before)
                continue
            self._failures = 0
            state.rdd.unpersist()
            state = following
            self._tell(state, time.monotonic() - before)
        self._settle()
        if isinstance(self._recovery, Blocking | Tail | Head):
            checkpoints.remove(str(self._recovery.path))
        return Outcome(
            self._view(state), value, state.superstep, len(self._history), self.reached(state),
            time.monotonic() - began, resumed, tuple(self._history), tuple(self._recoveries),
        )  # fmt: skip

    def _superstep(self, state: _State) -> _State:
        """One superstep and the checkpoint that belongs to it; raises JobFailed when Spark gives up."""
        self._notice(state)
        self._settle()
        number = state.superstep + 1
        tail = isinstance(self._recovery, Tail) and self._is_due(number)
        head = isinstance(self._recovery, Head) and state.superstep > 0 and self._is_due(state.superstep)
        following = self._materialised(
            number, self._compute(state), self._make,
            folder=self._folder(number) if tail else None, head=self._folder(state.superstep) if head else None,
        )  # fmt: skip
        if tail:
            self._commit(number, [header.file for header in following.headers.values() if header.file is not None])
        if head:
            self._complete_head(state.superstep, [header.before for header in following.headers.values()])
        if isinstance(self._recovery, Blocking) and self._is_due(number):
            try:
                files = _written(following.rdd, self._folder(number))
            except JobFailed:
                following.rdd.unpersist()
                raise
            self._commit(number, files)
        return following

    def _begin(self) -> _State:
        """The state to start from: the newest checkpoint's if the policy writes any and there is one, or the initial one."""
        if not self._job:
            self._describe()
        if isinstance(self._recovery, Blocking | Tail | Head):
            self._checkpoint = checkpoints.newest(str(self._recovery.path), self._job)
            if self._checkpoint is not None:
                return self._restored(self._checkpoint)
        return self._materialised(0, self._first.source_of_values(), _whole)

    def _describe(self) -> None:
        """Learn the columns of the state, and what a checkpoint must have been written by to be ours."""
        models = self._initial.map(cells.model_of).collect()
        self._model = Model(models[0].columns)
        digest = zlib.crc32(np.array([model.digest for model in models], dtype=np.int64).tobytes())
        shown = {name: f"{column.dtype.str}{list(column.shape[1:])}" for name, column in self._model.columns.items()}
        self._job = {
            "name": self._name, "kind": "delta" if self._delta else "bulk", "partitions": self._initial.partitions,
            "columns": shown, "initial state": f"{digest:08x}",
        }  # fmt: skip

    def _materialised(
        self,
        superstep: int,
        source: RDD[Any],
        make: Callable[[Keeping, Any], Cell],
        folder: str | None = None,
        head: str | None = None,
    ) -> _State:
        """Compute, cache and cut off a state; its figures come with the tasks' results."""
        self._tickets += 1
        keeping = Keeping(self._tickets, self._headers, self.column, self._conserved, folder, head)
        finish = partial(cells.finished, keeping, partial(make, keeping))
        rdd = doors.kept(source.mapPartitions(finish, preservesPartitioning=True))
        rdd.localCheckpoint()
        try:
            doors.materialise(rdd)
            headers = {
                number: header for (ticket, number), header in self._headers.value.items() if ticket == keeping.ticket
            }
            missing = set(range(self._initial.partitions)) - headers.keys()
            if missing:  # a task that died between caching its block and reporting; its successor found the block
                read = doors.only(rdd, missing).map(cells.header_in).collect()
                headers |= {header.number: header for header in read}
        except BaseException:
            rdd.unpersist()
            raise
        self._headers.value = {}
        self._known = doors.executors(self._context)
        return _State(superstep, rdd, headers)

    def norm_of(self, state: _State) -> float:
        """The norm of a superstep; what is not a number can never be small, so it ends the iteration."""
        norm = state.norm
        if np.isnan(norm):
            found = state.rdd.map(partial(cells.not_a_number_in, self.column)).collect()
            where = next((place for place in found if place is not None), "an infinite value came and went")
            raise IterationError(
                f"{self._name}: after superstep {state.superstep} the norm is not a number ({where}): mend the step, name "
                "another column in Converged(column=...), or count with Steps(...)"
            )
        return norm

    # --- checkpoints ---

    def _is_due(self, superstep: int) -> bool:
        return isinstance(self._recovery, Blocking | Tail | Head) and superstep % self._recovery.every == 0

    def _folder(self, superstep: int) -> str:
        assert isinstance(self._recovery, Blocking | Tail | Head)
        return checkpoints.folder_of(str(self._recovery.path), superstep)

    def _commit(self, superstep: int, files: list[PartFile]) -> None:
        assert isinstance(self._recovery, Blocking | Tail | Head)
        if len(files) != self._initial.partitions:
            raise AssertionError(f"superstep {superstep}: {len(files)} files of {self._initial.partitions} partitions")
        self._checkpoint = checkpoints.commit(str(self._recovery.path), superstep, self._job, files)

    def _complete_head(self, superstep: int, files: list[PartFile | None]) -> None:
        """Where a task died between caching and reporting, nobody knows of its file, and the checkpoint is given up."""
        known = [file for file in files if file is not None]
        if len(known) == self._initial.partitions:
            self._committer = _Committer(partial(self._commit, superstep, known))
        else:
            _log.info("head checkpoint of superstep %d is given up: a task died before it reported", superstep)

    def _settle(self) -> None:
        """Wait for the head checkpoint that is being completed."""
        if self._committer is not None:
            committer, self._committer = self._committer, None
            committer.wait()

    def _restored(self, checkpoint: Checkpoint) -> _State:
        files = [(file.number, file) for file in checkpoint.files]
        placed = numbered_partitions(self._context.parallelize(files, len(files)), len(files))
        read = placed.map(cells.reading(checkpoint.folder))
        return self._materialised(checkpoint.superstep, read.source_of_values(), _whole)

    # --- loss ---

    def _notice(self, state: _State) -> None:
        """Before a superstep: when an executor has gone since the last, see at once whether it took partitions along."""
        if self._known - doors.executors(self._context) and doors.lost_after(state.rdd, None):
            raise _LossNoticed

    def _recover(self, state: _State, error: Exception, began: float) -> _State:
        """A state that is whole again. Losses during the recovery itself are part of it."""
        after = state.superstep
        lost: set[int] = set()

        def again() -> _State:
            nonlocal error
            now = doors.lost_after(state.rdd, error)
            lost.update(now)
            if not now and not lost:
                if not doors.is_loss(error):
                    raise self._explained(error) from error
                return state
            if isinstance(self._recovery, Optimistic):
                return self._compensated(state, now, self._recovery)
            return self._begin()

        self._settle()
        self._failures += 1
        if self._failures > TRIES_IN_A_ROW:
            raise self._unfit(error) from error
        recovered = self._protected(again)
        if recovered is not state:
            state.rdd.unpersist()
        how = type(self._recovery).__name__.lower() if lost else "tried again"
        told = Recovered(after, tuple(sorted(lost)), recovered.superstep, how, time.monotonic() - began)
        self._recoveries.append(told)
        self._listener(told)
        return recovered

    def _protected(self, produce: Callable[[], _State]) -> _State:
        """Produce a state; a loss on the way means to try again."""
        while True:
            try:
                return produce()
            except JobFailed as error:
                self._failures += 1
                if not doors.is_loss(error):
                    raise self._explained(error) from error
                if self._failures > TRIES_IN_A_ROW:
                    raise self._unfit(error) from error
                _log.info("%s: lost an executor while recovering; trying again", self._name)

    def _compensated(self, state: _State, lost: set[int], policy: Optimistic) -> _State:
        """Survivors read in place, the lost partitions from the user's function, checked and cached."""
        partitions = self._initial.partitions
        surviving = sorted(set(range(partitions)) - lost)
        empty = [cells.empty_cell(number, self._model.columns, self._delta) for number in sorted(lost)]
        pieces = doors.alike(self._context.parallelize(empty, len(empty)))
        if surviving:
            pieces = pieces.union(doors.only(state.rdd, surviving))
        rescued: Partitioned[Cell] = numbered_partitions(pieces.map(_numbered), partitions)
        loss = Loss(
            state.superstep, rescued.map(cells.part_in), self._initial,
            tuple(sorted(lost)), {number: header.rows for number, header in state.headers.items()},
            {number: header.total for number, header in state.headers.items()},
            rescued.map(cells.work_in) if self._delta else None,
        )  # fmt: skip
        given = policy.compensate(loss)
        expected = Repair if self._delta else Partitioned
        if not isinstance(given, expected):
            raise CompensationError(
                f"{self._name}: compensation after superstep {state.superstep} must return a {expected.__name__}, "
                f"not {type(given).__name__}"
            )
        beside = [given.solution, self._initial, given.wake] if isinstance(given, Repair) else [given, self._initial]
        whole = rescued.map(partial(cells.repaired, frozenset(lost), policy.check), *beside)
        try:
            repaired = self._materialised(state.superstep, whole.source_of_values(), _whole)
        except JobFailed as error:
            if doors.is_loss(error):
                raise
            raise CompensationError(f"{self._name}: after superstep {state.superstep}: {_reason(error)}") from error
        self._check_conserved(repaired, policy)
        return repaired

    def _check_conserved(self, repaired: _State, policy: Optimistic) -> None:
        if policy.conserved is None:
            return
        wanted = self._initial.total(partial(_sum_of, policy.conserved))
        if abs(repaired.total - wanted) > CONSERVED_SHARE * max(abs(wanted), 1e-300):
            raise CompensationError(
                f"{self._name}: after compensation the total of column {policy.conserved!r} is {repaired.total!r}, "
                f"and was {wanted!r} at the start"
            )

    # --- words ---

    def _view(self, state: _State) -> Partitioned[Part]:
        return Partitioned(state.rdd, self._initial.partitions, cells.part_in)

    def _tell(self, state: _State, seconds: float) -> None:
        newest = self._checkpoint.superstep if self._checkpoint is not None else None
        told = Superstep(state.superstep, state.changed, state.norm, seconds, newest, state.total)
        self._history.append(told)
        self._listener(told)

    def _explained(self, error: Exception) -> IterationError:
        return IterationError(f"{self._name}: {_reason(error)}")

    def _unfit(self, error: Exception) -> IterationError:
        return IterationError(
            f"{self._name}: {TRIES_IN_A_ROW} losses in a row without one completed superstep; look at the executors' "
            f"memory and logs. The last: {_reason(error)}"
        )


class _LossNoticed(Exception):
    """Partitions are gone, and no job had to fail to learn it."""

    def __init__(self) -> None:
        super().__init__(doors.BLOCK_LOST)


class _Committer:
    """Completes a head checkpoint (manifest, removal of the one before) while the next superstep runs."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="head-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Raises what committing raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._commit()
        except Exception as error:
            self._error = error


def _written(rdd: RDD[Cell], folder: str) -> list[PartFile]:
    """Write a cached state from where it is."""
    return list(rdd.mapPartitions(partial(cells.written, folder)).collect())


def _whole(keeping: Keeping, cell: Cell) -> Cell:
    return cell


def _numbered(cell: Cell) -> tuple[int, Cell]:
    return cell.part.number, cell


def _sum_of(column: str, part: Part) -> float:
    return float(part[column].sum())


def _reason(error: BaseException) -> str:
    """The Python error inside a failed job, if there is one; else the first line of Spark's."""
    found = _python_error.findall(str(error))
    return ": ".join(found[-1]) if found else next(iter(str(error).splitlines()), repr(error))
