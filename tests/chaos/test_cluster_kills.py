"""A cluster under half a minute of kills and a storm of orders: the short form of `make chaos`."""

from __future__ import annotations

import pytest

from tests.chaos.cluster import KINDS, chaos, plan_of

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow]


def test_a_plan_is_drawn_from_its_seed() -> None:
    plan = plan_of(7, 10, 2.5, 4.0)
    assert plan == plan_of(7, 10, 2.5, 4.0)
    assert plan != plan_of(8, 10, 2.5, 4.0)
    assert {blow.kind for blow in plan} == KINDS.keys()
    assert 0 < plan[0].at <= plan[-1].at < 600


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [3])
def test_nothing_is_lost_or_doubled_and_no_watermark_goes_back(seed: int) -> None:
    said: list[str] = []
    found = chaos(0.5, seed, workers=2, controllers=1, every_s=5.0, log=said.append)
    assert not any(found.values()), "\n".join(said)
    assert "'storm of orders': 1" in said[-2], "the plan's storm gave no order"
