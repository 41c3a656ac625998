"""Restart, which keeps nothing, and what holds for every policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millwheel.spark.iteration import Blocking, Head, Optimistic, Recovery, Restart, Tail
from millwheel.spark.iteration.states import NOTHING

pytestmark = [pytest.mark.spark]


def policies(path: Path) -> list[Recovery]:
    return [Restart(), Blocking(path), Tail(path), Head(path), Optimistic(lambda loss: loss.initial)]


def test_restart_writes_nothing_and_begins_again(walk: Callable[..., Any]) -> None:
    one = walk(Restart())
    state = one.after(2)
    assert (one.asked, one.policy.newest) == ([NOTHING, NOTHING], None)
    again = one.policy.restore(state, {1})
    assert (again.superstep, one.grown(again)) == (0, 0.0)


def test_a_policy_serves_many_runs_which_share_nothing(walk: Callable[..., Any], tmp_path: Path) -> None:
    for policy in policies(tmp_path):
        one, other = (walk(policy, name=name).policy for name in ("one", "other"))
        assert one is not other
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
        assert hash(policy) == hash(policy)


def test_a_run_is_named_after_its_policy(walk: Callable[..., Any], tmp_path: Path) -> None:
    for policy in policies(tmp_path):
        assert walk(policy).policy.how == type(policy).__name__.lower()
