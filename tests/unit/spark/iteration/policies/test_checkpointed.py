"""Blocking, tail and head checkpoints, each policy alone on a real Spark: what is written when, and what comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millwheel.spark.iteration import Blocking, CheckpointError, Head, Tail
from millwheel.spark.iteration.states import NOTHING

pytestmark = [pytest.mark.spark]

ALL = pytest.mark.parametrize("kind", [Blocking, Tail, Head])


def complete(path: Path) -> list[int]:
    """The supersteps of which there is a checkpoint with a manifest."""
    return sorted(int(found.parent.name.removeprefix("step-")) for found in path.glob("step-*/manifest.json"))


@pytest.mark.parametrize(
    ("kind", "newest"),
    [(Blocking, [None, 2, 2, 4, 4]), (Tail, [None, 2, 2, 4, 4]), (Head, [None, None, 2, 2, 4])],
)
def test_each_second_state_is_written(
    walk: Callable[..., Any], tmp_path: Path, kind: type, newest: list[int | None]
) -> None:
    one = walk(kind(tmp_path, every=2))
    state, found = one.policy.start(), []
    for _ in range(5):
        state = one.superstep(state)
        one.policy.settle()
        found.append(one.policy.newest)
        assert complete(tmp_path) == [number for number in found[-1:] if number is not None]  # the older ones are gone
    assert found == newest


@pytest.mark.parametrize(
    ("kind", "role", "steps"), [(Blocking, None, []), (Tail, "folder", [2, 4]), (Head, "head", [2])]
)
def test_the_pass_itself_writes_for_tail_and_head(
    walk: Callable[..., Any], tmp_path: Path, kind: type, role: str | None, steps: list[int]
) -> None:
    one = walk(kind(tmp_path, every=2))
    one.after(4)
    written = [beside for beside in one.asked if beside != NOTHING]
    assert [getattr(beside, str(role)) for beside in written] == [str(tmp_path / f"step-{n:08d}") for n in steps]


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        (Blocking, False),
        (Tail, True),
        (Head, False),
        pytest.param(Blocking, True, marks=pytest.mark.long),
        pytest.param(Tail, False, marks=pytest.mark.long),
        pytest.param(Head, True, marks=pytest.mark.long),
    ],
)
def test_the_newest_checkpoint_comes_back(walk: Callable[..., Any], tmp_path: Path, kind: type, delta: bool) -> None:
    one = walk(kind(tmp_path, every=2), delta=delta)
    state = one.after(3)
    back = one.policy.restore(state, {0, 2})
    assert (back.superstep, one.grown(back), one.policy.newest) == (2, 2.0, 2)
    assert back.active == state.active == (30 if delta else 0)
    again = one.superstep(back)
    assert (again.superstep, one.grown(again)) == (3, 3.0)


@ALL
def test_without_a_checkpoint_it_begins_again(walk: Callable[..., Any], tmp_path: Path, kind: type) -> None:
    one = walk(kind(tmp_path, every=5))
    back = one.policy.restore(one.after(2), {1})
    assert (back.superstep, one.grown(back), one.policy.newest) == (0, 0.0, None)


@ALL
def test_another_run_of_the_same_iteration_goes_on(walk: Callable[..., Any], tmp_path: Path, kind: type) -> None:
    first = walk(kind(tmp_path))
    first.after(3)
    first.policy.settle()  # as after a kill a moment later
    second = walk(kind(tmp_path))
    state = second.policy.start()
    assert state.superstep == second.policy.newest == (2 if kind is Head else 3)
    assert second.grown(state) == state.superstep
    with pytest.raises(CheckpointError, match="was written by another job"):
        walk(kind(tmp_path), name="stranger").policy.start()


def test_a_checkpoint_of_another_first_workset_is_refused(walk: Callable[..., Any], tmp_path: Path) -> None:
    first = walk(Tail(tmp_path), delta=True)
    first.after(2)
    with pytest.raises(CheckpointError, match=r"first workset .* there, .* here"):
        walk(Tail(tmp_path), delta=True, work=range(3)).policy.start()
    assert walk(Tail(tmp_path), delta=True).policy.start().superstep == 2


def test_a_damaged_checkpoint_is_named(walk: Callable[..., Any], tmp_path: Path) -> None:
    walk(Tail(tmp_path)).after(2)
    part = min(tmp_path.glob("step-00000002/part-*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=f"{part.name} is damaged.*restore the file, or remove the checkpoint"):
        walk(Tail(tmp_path)).policy.start()


@ALL
def test_what_has_ended_leaves_no_files(walk: Callable[..., Any], tmp_path: Path, kind: type) -> None:
    one = walk(kind(tmp_path / "here"))
    one.after(2)
    one.policy.settle()
    assert complete(tmp_path / "here")
    one.policy.forget()
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("kind", [Blocking, Tail])
def test_a_checkpoint_without_every_partition_is_a_mistake_of_ours(
    walk: Callable[..., Any], tmp_path: Path, kind: type
) -> None:
    one = walk(kind(tmp_path))
    state = one.after(1)
    following = one.states.materialised(2, *described(one, state), one.policy.before(state))
    if kind is Tail:
        following = replace(following, headers={**following.headers, 0: replace(following.headers[0], file=None)})
    else:
        following = replace(following, rdd=following.rdd.filter(lambda cell: cell.part.number != 0))
    with pytest.raises(AssertionError, match="superstep 2: 2 files of 3 partitions"):
        one.policy.after(state, following)
    assert complete(tmp_path) == [1]


def test_a_head_checkpoint_that_lacks_a_file_is_given_up(walk: Callable[..., Any], tmp_path: Path) -> None:
    """A task died between caching its partition and reporting, and the next one found the block in the cache."""
    one = walk(Head(tmp_path))
    state = one.after(2)
    following = one.states.materialised(3, *described(one, state), one.policy.before(state))
    assert following.headers[0].before is not None
    lacking = {**following.headers, 0: replace(following.headers[0], before=None)}
    one.policy.after(state, replace(following, headers=lacking))
    one.policy.settle()
    assert (one.policy.newest, complete(tmp_path)) == (1, [1])


@pytest.mark.parametrize("then", ["settle", "before", "restore"])
def test_what_completing_a_head_checkpoint_raised_is_raised(
    walk: Callable[..., Any], tmp_path: Path, then: str
) -> None:
    one = walk(Head(tmp_path, every=2))
    state = one.after(2)
    following = one.states.materialised(3, *described(one, state), one.policy.before(state))
    shutil.rmtree(tmp_path)  # the executors write to another place
    one.policy.after(state, following)
    calls = {"settle": [], "before": [following], "restore": [following, {0}]}
    with pytest.raises(CheckpointError, match="the driver does not see it"):
        getattr(one.policy, then)(*calls[then])
    one.policy.settle()  # it is raised once


def described(one: Any, state: Any) -> tuple[Any, Any]:
    """A pass that changes nothing, as `States.materialised` wants it."""
    from millwheel.spark.iteration import cells

    view = one.states.view(state)
    return view.with_result(view.map(lambda part: part)), cells.next_bulk
