"""A few kills at random moments, while a ledger with a loop runs under snapshots: the short form of `make chaos-loops`."""

from __future__ import annotations

import pytest

from tests.chaos.loop_kills import embedded, with_workers

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


def test_killed_embedded() -> None:
    said: list[str] = []
    assert not any(embedded(3, 1, (0.0, 0.8), said.append).values()), "\n".join(said)


@pytest.mark.long
def test_workers_and_a_controller_killed() -> None:
    said: list[str] = []
    assert not any(with_workers(4, 1, 3.0, said.append).values()), "\n".join(said)
