"""Seeds in which intervals share little memory: keys leave whenever a share shrinks, and not only after folds."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import Pipeline, limits
from millwheel.core.interval.machine import IntervalCore
from millwheel.host.cache_shares import CacheShares
from millwheel.testing.world.kernel import Kernel
from tests.effort import some
from tests.sim.cuts import simulate_cuts
from tests.sim.fleets import simulate_cluster
from tests.sim.harness import simulate_seed
from tests.sim.quick import quick

WHOLE_BYTES = 600
"""Two keys."""


@pytest.fixture(autouse=True)
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how much state of an interval shrank when it got a share, each time."""
    monkeypatch.setattr(limits, "CACHE_LEAST_BYTES", WHOLE_BYTES)
    begin, allow, add = CacheShares.__init__, IntervalCore.allow, Pipeline.add
    shrank: list[int] = []

    def begun(self: CacheShares, actors: Any, whole_bytes: int) -> None:
        begin(self, actors, WHOLE_BYTES)

    def allowed(self: IntervalCore, cache_bytes: int) -> None:
        before = self.cache_bytes
        allow(self, cache_bytes)
        shrank.extend([before - self.cache_bytes] if self.cache_bytes < before else [])

    def added(self: Pipeline, *given: Any, **settings: Any) -> None:
        add(self, *given, **{**settings, "cache_limit_bytes": None})

    monkeypatch.setattr(CacheShares, "__init__", begun)
    monkeypatch.setattr("millwheel.host.cache_shares.CACHE_LOOK_US", 20_000)
    monkeypatch.setattr(IntervalCore, "allow", allowed)
    monkeypatch.setattr(Pipeline, "add", added)
    return shrank


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("simulate", [simulate_seed, simulate_cluster, simulate_cuts])
def test_every_invariant_is_kept_while_shares_change(simulate: Any, evicted: list[int]) -> None:
    for seed in some((0, 1), range(2, 12)):
        kernel: Kernel = quick(simulate)(seed)
        assert kernel.events > 0
    assert evicted, "keys left when shares shrank"
