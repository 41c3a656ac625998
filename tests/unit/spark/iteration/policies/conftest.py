"""A small Spark, and a policy that is walked from superstep to superstep without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from pyspark import SparkContext

from examples.graphs.cluster import spark
from examples.graphs.runs import rows_of
from millwheel.spark.iteration import Part, Recovery, cells, from_columns
from millwheel.spark.iteration.policies import PolicyRun
from millwheel.spark.iteration.states import Beside, State, States

PARTITIONS = 3
KEYS = 30


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    with spark(0) as made:
        yield made


@dataclass
class Walk:
    """A policy in one run over 30 rows, each of which is one more after every superstep."""

    context: SparkContext
    recovery: Recovery
    delta: bool = False
    name: str = "walk"
    work: Sequence[int] = range(KEYS)
    """Keys of the first workset."""
    asked: list[Beside] = field(default_factory=list)

    def __post_init__(self) -> None:
        initial = from_columns(self.context, PARTITIONS, np.arange(KEYS), x=np.arange(KEYS) * 1.0)
        work = from_columns(self.context, PARTITIONS, np.array(self.work))
        first = (
            initial.map(partial(cells.first_delta, PARTITIONS), work)
            if self.delta
            else initial.map(partial(cells.first_bulk, PARTITIONS))
        )
        self.states = States(name=self.name, initial=initial, first=first, delta=self.delta)
        self.policy: PolicyRun = self.recovery.over(self.states)

    def superstep(self, state: State) -> State:
        """What the engine does in a superstep."""
        beside = self.policy.before(state)
        self.asked.append(beside)
        view = self.states.view(state)
        make = cells.next_delta if self.delta else cells.next_bulk
        following = self.states.materialised(state.superstep + 1, view.with_result(view.map(more)), make, beside)
        self.policy.after(state, following)
        state.rdd.unpersist()
        return following

    def after(self, supersteps: int) -> State:
        """The state after so many supersteps from the start."""
        state = self.policy.start()
        for _ in range(supersteps):
            state = self.superstep(state)
        return state

    def grown(self, state: State) -> float:
        """By how much every row has grown; it must be the same for all."""
        (found,) = {value - key for key, value in rows_of(self.states.view(state)).items()}
        return float(found)


def more(part: Part) -> Part:
    return part.having(x=part["x"] + 1)


@pytest.fixture
def walk(context: SparkContext) -> partial[Walk]:
    """`walk(policy)` and `walk(policy, delta=True)` are walks."""
    return partial(Walk, context)
