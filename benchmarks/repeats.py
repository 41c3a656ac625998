"""Old ids sent again: 1% of 500,000 records carry the id of one long before, beside the same stream without repeats.

The ids are those of outside clients, so no order tells old from new: what is not in a filter in memory is new, the rest is
asked of the store.  The filters do their work if little else than the repeats is asked for.  All repeats are in the second
half of the stream, so that their ids have long left memory.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.launch import run as run_on
from millwheel_storage.postgres import PostgresStore

RECORDS: Final = common.sized("RECORDS", 500_000)
EVERY: Final = 50
"""One record of the second half in so many carries an old id."""
AGO: Final = RECORDS // 2
"""Records between an id and its repeat: more than twice of what is not folded, so that only the store knows."""
KEYS: Final = 10_000
STEP_US: Final = 1_000
ROUNDS: Final = common.sized("ROUNDS", 3)
ASKED: Final = 0.02
SLOWER: Final = 0.9


def repeats() -> Result:
    """Benchmark 10."""
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    with common.server("repeats") as url:
        for turn in range(ROUNDS):
            for again in (True, False) if turn % 2 else (False, True):
                found[again].append(common.call("repeats", url=url, name=f"round_{turn}_{again}".lower(), again=again))
    asked = common.median([sample["asked_share"] for sample in found[True]])
    pairs = [one["rate"] / other["rate"] for one, other in zip(found[True], found[False], strict=True)]
    rate = common.median(pairs)
    return Result(
        "repeats", asked * 100, "% of new ids asked of the store",
        Reference("records/s to those of the same stream without repeats, of each pair", rate, "times"), None,
        f"at most {ASKED:.0%} asked, at least {SLOWER} times the records/s without repeats",
        asked <= ASKED and rate >= SLOWER,
        {"repeats": found[True], "without": found[False], "pairs": pairs, "records": RECORDS},
    )  # fmt: skip


# --- in the subprocess --------------------------------------------------------------------------------------------


def _rows(again: bool) -> list[flows.Row]:
    dice = random.Random(7)
    rows = [
        (flows.with_id(flows.value_of(flows.spread(n, KEYS), n), dice.getrandbits(128)), n * STEP_US)
        for n in range(RECORDS)
    ]
    if again:
        for n in range(AGO, RECORDS, EVERY):
            rows[n] = (rows[n - AGO][0], rows[n][1])
    return rows


def _pipeline(given: dict[str, Any]) -> None:
    asked = missed = 0
    find = PostgresStore.find_outside_ids

    async def counted(
        self: PostgresStore, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Any
    ) -> set[bytes]:
        nonlocal asked, missed
        found = await find(self, interval, subscription, now, ids)
        asked, missed = asked + len(ids), missed + len(ids) - len(found)
        return found

    PostgresStore.find_outside_ids = counted  # type: ignore[method-assign]
    rows = _rows(given["again"])
    new = len({flows.id_of(value) for value, _ in rows})
    source = flows.Ready("rows", rows)
    source.record_id = flows.id_of
    began = time.perf_counter()
    progress = run_on(flows.two_stages(given["name"], source), given["url"])
    seconds = time.perf_counter() - began
    old = RECORDS - new
    if progress.repeated != old or (given["again"] and asked < old // 2):
        raise AssertionError(f"{progress.repeated} of {old} repeats were dropped, {asked} ids asked for")
    # Without filters every id would be asked for.  What was asked for and is not there, or not yet, is new.
    common.answer(rate=RECORDS / seconds, seconds=seconds, asked=asked, repeats=old, asked_share=missed / new)


if __name__ == "__main__":
    _pipeline(common.arguments())
