"""Orders to a cluster that nobody leads: refused at once where nobody could take them, and waited for where somebody may."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from millwheel import limits
from millwheel.errors import StoreError
from millwheel.overview import ClusterOffice
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import run_to_end, text_lines, word_count

pytestmark = pytest.mark.postgres

ORDERS: dict[str, Callable[[ClusterOffice], None]] = {
    "split": lambda office: office.split(1, ["m"], wait_s=0.2),
    "move": lambda office: office.move([1], "w", wait_s=0.2),
    "merge": lambda office: office.merge([1, 2], wait_s=0.2),
}


@pytest.mark.parametrize("member", [None, "worker", "controller", "dead controller"])
def test_an_order_that_nobody_takes_is_refused_at_once(
    member: str | None, postgres: EmbeddedPostgres, pipeline: str
) -> None:
    store, words = PostgresStore(postgres.url, pipeline), word_count(pipeline, text_lines(20, seed=4))
    run_to_end(words, store)
    if member is not None:
        asyncio.run(join(PostgresStore(postgres.url, pipeline), member))
    says = (
        "no leader has carried the order out in 0.2 s; it stays"
        if member == "controller"
        else "no controller of .* runs"
    )
    with ClusterOffice(words, postgres.url) as office:
        for order in ORDERS.values():
            began = time.monotonic()
            with pytest.raises(StoreError, match=says):
                order(office)
            assert time.monotonic() - began < limits.ORDER_WAIT_S / 2
    assert bool(asyncio.run(left(PostgresStore(postgres.url, pipeline)))) == (member == "controller")


async def join(store: PostgresStore, member: str) -> None:
    dead = member.startswith("dead")
    await store.join("m", member.split()[-1], "m:1", 1 if dead else 60_000_000, b"m")
    await store.close()


async def left(store: PostgresStore) -> list[int]:
    """Orders that are kept."""
    found = [number for number, _ in await store.orders()]
    await store.close()
    return found
