"""The three policies that write checkpoints; they differ in when a partition's file is written.

Lives here: when. Never here: what a checkpoint looks like on disk (`checkpoints`), and what runs in the executors (`cells`).
The invariant: a checkpoint counts only when its manifest is there.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from millwheel.spark.iteration import cells, checkpoints, doors
from millwheel.spark.iteration.checkpoints import PartFile, SuperstepCheckpoint
from millwheel.spark.iteration.doors import JobFailed
from millwheel.spark.iteration.errors import CheckpointError
from millwheel.spark.iteration.losses import reason
from millwheel.spark.iteration.policies.policy import PolicyRun
from millwheel.spark.iteration.states import NOTHING, Beside, State, States

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Checkpointed(ABC):
    path: str | os.PathLike[str]
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be 1 or more supersteps, not {self.every!r}")
        place = os.fspath(self.path)
        if "://" in place:
            raise ValueError(f"path {place!r}: a checkpoint is a directory that driver and executors share, not a URL")
        # Executors have working directories of their own.
        object.__setattr__(self, "path", os.path.abspath(place))

    @abstractmethod
    def over(self, states: States) -> CheckpointedRun:
        """This policy in one run; the engine asks for it."""


@dataclass(frozen=True, slots=True)
class Blocking(_Checkpointed):
    """Write the state after each `every`-th superstep; the next waits until it is written."""

    def over(self, states: States) -> BlockingRun:
        """This policy in one run; the engine asks for it."""
        return BlockingRun(states, path=str(self.path), every=self.every)


@dataclass(frozen=True, slots=True)
class Tail(_Checkpointed):
    """In each `every`-th superstep, the pass that produces a partition also writes it."""

    def over(self, states: States) -> TailRun:
        """This policy in one run; the engine asks for it."""
        return TailRun(states, path=str(self.path), every=self.every)


@dataclass(frozen=True, slots=True)
class Head(_Checkpointed):
    """The pass of a superstep that reads each `every`-th state also writes it; the manifest comes beside the one after."""

    def over(self, states: States) -> HeadRun:
        """This policy in one run; the engine asks for it."""
        return HeadRun(states, path=str(self.path), every=self.every)


class CheckpointedRun(PolicyRun):
    """Goes back to the newest checkpoint of this iteration, or to the initial state when there is none."""

    def __init__(self, states: States, *, path: str, every: int) -> None:
        super().__init__(states)
        self._path, self._every = path, every
        self._newest: SuperstepCheckpoint | None = None

    @property
    def newest(self) -> int | None:
        """The superstep of the newest complete checkpoint, or None."""
        return self._newest.superstep if self._newest is not None else None

    def start(self) -> State:
        """The newest checkpoint's state; CheckpointError when another job wrote it."""
        self._newest = checkpoints.newest(self._path, self.states.description)
        if self._newest is None:
            return self.states.begun()
        try:
            return self.states.restored(self._newest)
        except JobFailed as error:
            if doors.is_loss(error):
                raise
            raise CheckpointError(f"{self.states.name}: {self._newest.folder}: {reason(error)}") from error

    def restore(self, state: State, lost: AbstractSet[int]) -> State:
        """The newest checkpoint's state."""
        self.settle()
        return self.start()

    def forget(self) -> None:
        """Remove the checkpoints, and the path if nothing else is in it."""
        checkpoints.remove(self._path)

    def _is_due(self, superstep: int) -> bool:
        return superstep % self._every == 0

    def _folder(self, superstep: int) -> str:
        return checkpoints.folder_of(self._path, superstep)

    def _commit(self, superstep: int, files: Sequence[PartFile | None]) -> None:
        known = [file for file in files if file is not None]
        if len(known) != self.states.partitions:
            raise AssertionError(f"superstep {superstep}: {len(known)} files of {self.states.partitions} partitions")
        self._newest = checkpoints.commit(self._path, superstep, self.states.description, known)


class BlockingRun(CheckpointedRun):
    """Writes a state in a job of its own when it is cached."""

    how = "blocking"

    def after(self, state: State, following: State) -> None:
        """Write the new state from where it lies."""
        if self._is_due(following.superstep):
            write = partial(cells.written, self._folder(following.superstep))
            self._commit(following.superstep, following.rdd.mapPartitions(write).collect())


class TailRun(CheckpointedRun):
    """Has each task write the cell that it has made."""

    how = "tail"

    def before(self, state: State) -> Beside:
        """The pass writes the new cells."""
        number = state.superstep + 1
        return Beside(folder=self._folder(number)) if self._is_due(number) else NOTHING

    def after(self, state: State, following: State) -> None:
        """All cells are written: the checkpoint may exist."""
        if self._is_due(following.superstep):
            self._commit(following.superstep, [header.file for header in following.headers.values()])


class HeadRun(CheckpointedRun):
    """Has each task write the cell that it reads, and completes the checkpoint while the next superstep runs."""

    how = "head"

    def __init__(self, states: States, *, path: str, every: int) -> None:
        super().__init__(states, path=path, every=every)
        self._committing: _Committing | None = None

    def before(self, state: State) -> Beside:
        """The pass writes the cells that it reads, once the checkpoint before is complete."""
        self.settle()
        return Beside(head=self._folder(state.superstep)) if self._is_written(state) else NOTHING

    def after(self, state: State, following: State) -> None:
        """Where a task died between caching and reporting, nobody knows of its file, and the checkpoint is given up."""
        if not self._is_written(state):
            return
        files = [header.before for header in following.headers.values()]
        if None in files:
            _log.info("head checkpoint of superstep %d is given up: a task died before it reported", state.superstep)
        else:
            self._committing = _Committing(partial(self._commit, state.superstep, files))

    def settle(self) -> None:
        """Wait for the checkpoint that is being completed; raises what completing it raised."""
        if self._committing is not None:
            committing, self._committing = self._committing, None
            committing.wait()

    def _is_written(self, state: State) -> bool:
        """The initial state needs no checkpoint."""
        return state.superstep > 0 and self._is_due(state.superstep)


class _Committing:
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
