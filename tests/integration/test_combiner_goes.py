"""A computation loses its combiner on a store that has run with one: each record counts once, wherever the old run ended."""

from __future__ import annotations

import asyncio
import copy

import pytest

from millwheel.committed import check
from millwheel.errors import IncompatibleStore
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.handed_over import fold_all
from tests.integration.test_combiner_later import (
    DURABILITIES,
    TRUTH,
    Shops,
    Touchy,
    closed,
    counted,
    each_leg_came_once,
    ends_as_it_must,
    gathering,
    kills,
    looped,
    run_on,
    shops,
    small_steps,
)
from tests.unit.runtime.mortal import run_killed

__all__ = ["small_steps"]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("then", DURABILITIES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [*range(4, 160, 48), 3, 21, 45])
def test_each_record_counts_once_wherever_the_run_with_it_ends(at: int, durability: str, then: str) -> None:
    """Every second time it came later itself; every third time, the first run without it is killed as well."""

    async def main() -> None:
        store = MemoryStore()
        if at % 2:
            await run_killed(shops("shops", None, durability, Touchy), store, *kills(at * 5 % 70))
        await run_killed(shops("shops", gathering(), durability, Touchy), store, *kills(at))
        if at % 3 == 0:
            await run_killed(shops("shops", None, then, Touchy), store, *kills(at * 7 % 140))
        await run_on(shops("shops", None, then, Touchy), store)
        assert {place for place in store.quarantine if place[0] != "Relay"} == {("Total", "bad")}
        store.request_redrive("Total", "bad")
        await run_on(shops("shops", None, then), store)
        assert not store.quarantine
        assert counted(store.key_state["Total"]) == TRUTH
        assert "Total.parts" not in store.key_state
        assert not store.by_low("Total.parts")
        assert store.tables()["production"] == []

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [15, 25, 40, 55])
def test_in_a_loop_too(at: int, durability: str) -> None:
    """Under snapshots it is refused when a combiner at the head of the loop has logged; then checkpoints come first."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(looped(durability, True), store, *kills(at))
        before, then = store.tables(), durability
        if logged(store):
            assert durability == "snapshots"
            with pytest.raises(IncompatibleStore, match=r"once more with Checkpoints\(\)"):
                await run_on(looped(durability, False), store)
            assert store.tables() == before
            await run_killed(looped("checkpoints", True), store, *kills(60))
            then = "checkpoints"
        await run_on(looped(then, False), store)
        each_leg_came_once(store)

    asyncio.run(main())


def logged(store: MemoryStore) -> bool:
    """Whether a producer has sent on the subscriptions of both: of a combiner that has logged, and sent on."""
    trial = copy.deepcopy(store)
    fold_all(trial)
    both = (trial.folded.producers(trial.subscriptions[f"Round{sub}"]) for sub in (".parts<hops", "<Round.parts"))
    return bool(set.intersection(*both))


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Shops:
    return Shops(postgres.url, pipeline)


@pytest.mark.postgres
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(("durability", "at"), [("checkpoints", 33), ("checkpoints", 66), ("snapshots", 26)])
def test_on_postgres_too(place: Shops, durability: str, at: int) -> None:
    async def main() -> None:
        store = place.store()
        await closed(store, run_killed(shops(place.name, gathering(), durability, Touchy), store, *kills(at)))
        told = check(shops(place.name, None, durability), place.url)
        assert told.changes == ["computation 'Total' has no combiner any more, and takes over what 'Total.parts' has"]
        assert not told.refusals
        await ends_as_it_must(place, durability, None)

    asyncio.run(main())
