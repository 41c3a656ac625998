"""What happens to one partition, without a Spark: figures, the delta merge, and the compensation contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import Accumulator

from millwheel.spark.iteration import ColumnsError, Part, partition_of
from millwheel.spark.iteration.cells import (
    Header,
    HeaderParam,
    Keeping,
    PartitionCell,
    empty_cell,
    finished,
    first_bulk,
    first_delta,
    given_in,
    model_of,
    next_bulk,
    next_delta,
    read_cell,
    repaired,
)


def part(keys: list[int], labels: list[int], number: int = 0) -> Part:
    return Part(number, np.array(keys, dtype=np.int64), {"label": np.array(labels, dtype=np.int64)})


def cell_of(part: Part, work: Part | None = None) -> PartitionCell:
    return PartitionCell(part, work, Header(part.number, len(part), 0, 0.0, 0))


@pytest.fixture
def keeping() -> Keeping:
    return Keeping(1, Accumulator(999_001, {}, HeaderParam()), "label", None)


def test_a_delta_superstep_merges_and_its_changes_are_the_next_workset(keeping: Keeping) -> None:
    cell = next_delta(keeping, (cell_of(part([1, 2, 3], [1, 2, 3])), part([2], [0])))
    assert cell.part["label"].tolist() == [1, 0, 3]
    assert cell.work is not None
    assert cell.work.keys.tolist() == [2]
    assert (cell.header.active, cell.header.norm, cell.header.rows) == (1, 2.0, 3)


@pytest.mark.parametrize(("keys", "says"), [([4], "no key 4"), ([1, 9], "no key 9")])
def test_a_delta_step_that_changes_what_is_not_there_is_refused(keeping: Keeping, keys: list[int], says: str) -> None:
    with pytest.raises(ColumnsError, match=says):
        next_delta(keeping, (cell_of(part([1, 2], [1, 2])), part(keys, [0] * len(keys))))


@pytest.mark.parametrize("keys", [[], [2]])
def test_changes_of_another_partition_are_refused(keeping: Keeping, keys: list[int]) -> None:
    with pytest.raises(ColumnsError, match="changes of partition 1 stand where those of 0 belong"):
        next_delta(keeping, (cell_of(part([1, 2], [1, 2])), part(keys, keys, number=1)))


def test_changes_without_rows_have_the_columns_of_the_solution(keeping: Keeping) -> None:
    none = Part(0, np.empty(0, np.int64))
    cell = next_delta(keeping, (cell_of(part([1, 2], [1, 2])), none))
    assert cell.work is not None
    assert (len(cell.work), cell.work["label"].dtype.name) == (0, "int64")
    assert (cell.header.changed, cell.header.norm) == (0, 0.0), "nothing has moved"


def test_what_a_step_was_given_may_be_written_to_again_once_it_is_a_state(keeping: Keeping) -> None:
    cell = cell_of(part([1, 2], [1, 2]))
    made = next_bulk(keeping, (cell, given_in(cell)))
    made.part["label"][0] = 5
    changed = next_delta(keeping, (cell, given_in(cell).take(np.array([1]))))
    changed.part["label"][0] = 5


def test_a_bulk_step_that_drops_a_key_is_refused(keeping: Keeping) -> None:
    with pytest.raises(ColumnsError, match="the step's result: partition 0: key 2 is missing"):
        next_bulk(keeping, (cell_of(part([1, 2], [1, 2])), part([1], [1])))


def test_the_first_workset_takes_its_values_from_the_solution() -> None:
    cell = first_delta(1, part([1, 2], [7, 8]), part([2], [99]))
    assert cell.work is not None
    assert cell.work["label"].tolist() == [8]


@pytest.mark.parametrize("first", [partial(first_bulk, 3), lambda strange: first_delta(3, strange, strange)])
def test_a_state_whose_keys_are_not_where_messages_go_is_refused(first: Callable[[Part], object]) -> None:
    keys = np.arange(20)
    home = keys[partition_of(keys, 3) == 1]
    first(Part(1, home))
    with pytest.raises(ColumnsError, match=f"^partition 2: key {home[0]} belongs to partition 1$"):
        first(Part(2, home))


def test_what_an_iteration_begins_with_is_known_by_its_keys_its_columns_and_its_values() -> None:
    begins = [
        part([1, 2], [7, 8]), part([1, 3], [7, 8]), part([1, 2], [7, 9]),
        Part(0, np.array([1, 2]), {"rank": np.array([7, 8])}), Part(0, np.array([1, 2])),
    ]  # fmt: skip
    models = [model_of(cell_of(begin)) for begin in (*begins, begins[0])]
    assert len({(model.digest, *model.columns) for model in models}) == len(begins)
    assert len({model.digest for model in models[:3]}) == 3
    assert models[0].digest == models[-1].digest
    columns = {"rank": np.array([7, 8]), "label": np.array([1, 2])}
    one, other = (Part(0, np.array([1, 2]), dict(given)) for given in (columns.items(), reversed(columns.items())))
    assert model_of(cell_of(one)).digest == model_of(cell_of(other)).digest, "columns have no order"


def test_figures_are_reported_once_a_partition(keeping: Keeping) -> None:
    def make(element: Any) -> PartitionCell:
        return next_bulk(keeping, element)

    list(finished(keeping, make, [(cell_of(part([1], [1])), part([1], [5]))]))
    list(finished(keeping, make, [(cell_of(part([1], [1])), part([1], [5]))]))
    assert {key: header.norm for key, header in keeping.headers.value.items()} == {(1, 0): 4.0}


def test_a_head_checkpoint_has_what_the_superstep_read_and_names_it(keeping: Keeping, tmp_path: Path) -> None:
    heading = replace(keeping, head=str(tmp_path))
    before = cell_of(part([1, 2], [3, 4]), part([2], [4]))
    (made,) = finished(heading, lambda element: next_delta(heading, element), [(before, part([1], [0]))])
    assert made.part["label"].tolist() == [0, 4]
    file = keeping.headers.value[(1, 0)].before
    assert file is not None
    found = read_cell(str(tmp_path), file)
    # What changed before it is not known, so it looks as unsettled as a first state: no ending may be reached by it.
    assert (found.header.changed, found.header.norm) == (2, np.inf)
    assert found.work is not None
    assert (found.part["label"].tolist(), found.work.keys.tolist()) == ([3, 4], [2])


def test_a_head_checkpoint_that_cannot_be_written_fails_the_superstep(keeping: Keeping, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    heading = replace(keeping, head=str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        list(
            finished(heading, lambda element: next_bulk(heading, element), [(cell_of(part([1], [1])), part([1], [5]))])
        )


# The compensation contract: partition 0 survived, partition 1 is lost.

INITIAL = part([4, 6], [4, 6], number=1)
LOST = empty_cell(1, {"label": np.empty(0, np.int64)}, delta=True)


def no_label_above_key(given: Part, initial: Part) -> str | None:
    wrong = np.flatnonzero(given["label"] > given.keys)
    return f"key {given.keys[wrong[0]]} is too high" if len(wrong) else None


def test_a_repaired_partition_is_woken_where_asked() -> None:
    cell = repaired(frozenset({1}), None, LOST, INITIAL, INITIAL, Part(1, np.array([6])))
    assert cell.part["label"].tolist() == [4, 6]
    assert cell.work is not None
    assert (cell.work.keys.tolist(), cell.work["label"].tolist(), cell.header.norm) == ([6], [6], np.inf)


def test_a_survivor_keeps_its_rows_and_its_workset_and_wakes_more() -> None:
    cell = first_delta(1, part([1, 2, 3], [1, 1, 1]), part([3], [0]))
    found = repaired(frozenset({1}), None, cell, part([], []), part([1, 2, 3], [1, 2, 3]), Part(0, np.array([1])))
    assert found.part["label"].tolist() == [1, 1, 1]
    assert found.work is not None
    assert found.work.keys.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("given", "wake", "says"),
    [
        (part([4], [4], number=1), [], "what compensation gave: partition 1: key 6 is missing"),
        (part([4, 7], [4, 7], number=1), [], "key 7 is not one of it"),
        (part([4, 6], [4, 9], number=1), [], "what compensation gave: partition 1: key 6 is too high"),
        (part([4, 6], [4, 6], number=0), [], "what compensation gave: partition 0 stands where 1 belongs"),
        (INITIAL, [5], "no key 5"),
    ],
)
def test_wrong_content_for_a_lost_partition_is_refused(given: Part, wake: list[int], says: str) -> None:
    with pytest.raises(ColumnsError, match=says):
        repaired(frozenset({1}), no_label_above_key, LOST, given, INITIAL, Part(1, np.array(wake, dtype=np.int64)))


def test_content_for_a_partition_that_was_not_lost_is_refused() -> None:
    cell = first_delta(1, part([1, 2], [1, 1]), part([], []))
    with pytest.raises(ColumnsError, match=r"partition 0 was not lost.*key 2 first"):
        repaired(frozenset({1}), None, cell, part([2], [2]), part([1, 2], [1, 2]), Part(0, np.empty(0, np.int64)))
