"""Crash points: all that can break at the steps of a run, tried one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millwheel.testing.faults.nemesis import STORE_STEPS, Action, Planned, Seeded
from millwheel.testing.world.kernel import Violation
from tests.sim.quick import quick


def breaks(steps: list[str]) -> Iterator[tuple[int, Action]]:
    """(step number, fault) for every fault that can strike at each step."""
    for at, step in enumerate(steps):
        store: list[Action] = ["refused", "lost", "absent"] if step in STORE_STEPS else []
        for action in ("crash before", "crash after", "duplicate", *store):
            yield at, action


def strike_all(
    steps: list[str], plans: list[tuple[int, Action]], run: Callable[[int, Action], Planned | Seeded]
) -> tuple[int, int, str]:
    """(faults planned, faults that struck, what went wrong) of one run for each fault; `steps` are of the undisturbed run."""
    struck = 0
    for at, action in plans:
        try:
            struck += quick(run)(at, action).struck.total()
        except Violation as violation:
            return len(plans), struck, f"{action} at step {at} ({steps[at]}): {violation}"
    return len(plans), struck, ""
