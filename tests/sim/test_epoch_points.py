"""Every crash point of one whole epoch, and of the recovery to it, with and without a cycle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millwheel.testing.faults.nemesis import Action, Planned
from tests import effort
from tests.sim import ci
from tests.sim.breaks import breaks, strike_all
from tests.sim.cores import Answers, on_all_cores
from tests.sim.epoch_points import RUNS, DiedOnce

AGAIN = ", after a death"
NAMES = [*RUNS, *(name + AGAIN for name in RUNS)]
GATE_STRIDE = 37


def plans(name: str) -> tuple[list[str], list[tuple[int, Action]]]:
    """The steps of the undisturbed run, and the faults to try: in the first epoch, or in the one that follows the death.

    With a cycle, a head must have had a log.
    """
    undisturbed = planned(name)
    kernel = RUNS[name.removesuffix(AGAIN)](undisturbed)
    declared = [at for at, step in enumerate(undisturbed.steps) if step == "declare"]
    looped = "loop" in name
    assert bool(kernel.probes["cut with a log"]) == looped
    assert bool(kernel.probes["productions resent after restart"]) == (looped and name.endswith(AGAIN))
    first, last = (declared[0], declared[1]) if name.endswith(AGAIN) else (-1, declared[0])
    found = [(at, action) for at, action in breaks(undisturbed.steps) if first < at <= last]
    return undisturbed.steps, [*effort.share(found, GATE_STRIDE)]


def planned(name: str, at: int = -1, action: Action = "") -> Planned:
    return DiedOnce(at, action) if name.endswith(AGAIN) else Planned(at, action)


def tried_all_of(name: str) -> tuple[int, int, str]:
    """(faults planned, faults that struck, what went wrong) in a run."""

    def ran(at: int, action: Action) -> Planned:
        nemesis = planned(name, at, action)
        RUNS[name.removesuffix(AGAIN)](nemesis)
        return nemesis

    return strike_all(*plans(name), ran)


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, tried_all_of)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_every_break_at_every_step_of_an_epoch_ends_as_it_must(name: str, answers: Answers) -> None:
    wanted, tried, wrong = answers[name].get()
    assert not wrong, wrong
    assert tried == wanted, "a fault that was planned did not strike"
    assert tried >= (100 if effort.PROFILE == "search" else 3)
    ci.publish("crash_points", {name: tried}, more=True)
