"""An invocation whose records make too much for one checkpoint is put back, and fewer of them run: nobody can tell."""

from __future__ import annotations

from collections import Counter

import pytest

from millwheel import limits
from tests.effort import some
from tests.sim.harness import simulate_seed
from tests.sim.quick import quick


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_when_hooks_often_make_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTCOME_LIMIT_BYTES", 60)
    probes: Counter[str] = Counter()
    for seed in some((610, 600, 601), (602, *range(603, 610), 611)):
        probes.update(quick(simulate_seed)(seed).probes)
    assert probes["invocation was put back"] > 100
