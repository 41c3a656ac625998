"""Seeds run aside: whoever waits for a processor gets it before them, until the others have ended."""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sim import aside

AUTOGROUP = Path("/proc/self/autogroup")


class Standing(NamedTuple):
    """What a process has of the processors, in its session and against others."""

    seed: int
    nice: int
    session: int
    group: str


def standing(beside: Path, seed: int) -> Standing:
    """Of the process that runs this; with seed 10, the other tests end."""
    if seed == 10:
        beside.unlink(missing_ok=True)
    return Standing(seed, os.nice(0), os.getsid(0), AUTOGROUP.read_text() if AUTOGROUP.exists() else "")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    path = tmp_path / "beside"
    path.touch()
    return path


def test_beside_others_a_process_has_a_low_priority_within_its_session_and_its_session_has_it_too(beside: Path) -> None:
    for one in aside.of_each(functools.partial(standing, beside), range(6), beside):
        assert one.nice == os.nice(0) + aside.LOW
        assert one.session != os.getsid(0), "the tests beside it would be as low"
        assert not one.group or one.group.endswith(f" nice {aside.LOW}\n")


def test_those_beside_keep_theirs(beside: Path) -> None:
    before = standing(beside, 0)
    aside.of_each(functools.partial(standing, beside), range(2), beside)
    assert standing(beside, 0) == before


def test_without_others_a_process_is_like_any_other(beside: Path) -> None:
    beside.unlink()
    here = standing(beside, 0)
    assert aside.of_each(functools.partial(standing, beside), range(3), beside) == [
        here._replace(seed=seed) for seed in range(3)
    ]


def test_each_seed_runs_once_and_the_rest_is_like_any_other_when_the_others_have_ended(beside: Path) -> None:
    found = aside.of_each(functools.partial(standing, beside), range(40), beside)
    assert [one.seed for one in found] == [*range(40)]
    assert found[0].nice == found[10].nice == os.nice(0) + aside.LOW
    assert found[-1].nice == os.nice(0)


def test_what_a_seed_raises_is_raised(beside: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        aside.of_each(one_through, range(3), beside)


def one_through(seed: int) -> float:
    return 1 / seed


def test_what_a_process_has_imported_is_not_looked_through_for_garbage(beside: Path) -> None:
    for frozen, threshold in aside.of_each(collected, range(2), beside):
        assert frozen > 10_000
        assert threshold == aside.ALLOCATIONS


def collected(_: int) -> tuple[int, int]:
    return gc.get_freeze_count(), gc.get_threshold()[0]
