"""A hot key, with and without a combiner: half of all records have one key, and the hook takes its time.

Both runs must end with the same totals.  A hook that only adds a number is measured beside it: there a combiner costs more
than it saves, and the guide says so.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import (
    BytesCoder,
    Computation,
    Context,
    Gathering,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    ValueCell,
    subscribe,
)
from millwheel.launch import run as run_on

RECORDS: Final = common.sized("RECORDS", 30_000)
KEYS: Final = common.sized("KEYS", 1_000)
HOOK_US: Final = 200
SHARDS: Final = 8
STEP_US: Final = 1_000
ROUNDS: Final = common.sized("ROUNDS", 3)
FASTER: Final = 2.0

SALES: Final = Stream("sales", BytesCoder())
"""A shop and an amount: see `flows.value_of`."""
TOTALS: Final = Table("totals", {"shop": "text", "amount": "bigint"}, ("shop",))


def hot_key() -> Result:
    """A hot key, spread or not."""
    found: dict[str, list[dict[str, Any]]] = {}
    with common.server("hot_key") as url:
        for turn in range(ROUNDS):
            for combined in (True, False) if turn % 2 else (False, True):
                for hook_us in (HOOK_US, 0):
                    name = f"{'gathered' if combined else 'plain'}_{hook_us}"
                    sample = common.call(
                        "hot_key", url=url, name=f"round_{turn}_{name}", combined=combined, hook_us=hook_us
                    )
                    found.setdefault(name, []).append(sample)
    pairs = _pairs(found, HOOK_US)
    ratio = common.median(pairs)
    return Result(
        "hot_key", common.median([sample["rate"] for sample in found[f"gathered_{HOOK_US}"]]), "records/s",
        Reference("the same without a combiner, of each pair", common.median(pairs), "times"), ratio,
        f"at least {FASTER} times the records/s without a combiner, hook of {HOOK_US} us", ratio >= FASTER,
        {**found, "pairs": pairs, "pairs_cheap_hook": _pairs(found, 0), "records": RECORDS},
    )  # fmt: skip


def _pairs(found: dict[str, list[dict[str, Any]]], hook_us: int) -> list[float]:
    runs = zip(found[f"gathered_{hook_us}"], found[f"plain_{hook_us}"], strict=True)
    return [gathered["rate"] / plain["rate"] for gathered, plain in runs]


# --- in the subprocess --------------------------------------------------------------------------------------------


def add(one: bytes, other: bytes) -> bytes:
    """One sale of two sales of a shop."""
    return flows.value_of(int(flows.key_of(one)), flows.number_of(one) + flows.number_of(other))


class Total(Computation[bytes]):
    """The sum of each shop, and `busy_us` of work at each call."""

    amount = ValueCell(MsgpackCoder(int), default=0)
    busy_us = 0

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        """Add, and work."""
        until = time.perf_counter_ns() + self.busy_us * 1_000
        while time.perf_counter_ns() < until:
            pass
        amount = self.amount.get() + flows.number_of(record.value)
        self.amount.set(amount)
        context.upsert(TOTALS, {"shop": record.key, "amount": amount})


HOT: Final = 0


def _row(number: int) -> flows.Row:
    shop = HOT if number % 2 else 1 + flows.spread(number, KEYS)
    return flows.value_of(shop, 1), number * STEP_US


def _run(given: dict[str, Any]) -> None:
    Total.busy_us = given["hook_us"]
    pipeline = Pipeline(given["name"])
    pipeline.inject(flows.Ready("rows", [_row(number) for number in range(RECORDS)]), into=SALES)
    pipeline.sink(TOTALS)
    pipeline.add(
        Total,
        [subscribe(SALES, key=flows.key_of)],
        combiner=Gathering(add, shards=SHARDS) if given["combined"] else None,
    )
    began = time.perf_counter()
    run_on(pipeline, given["url"])
    seconds = time.perf_counter() - began
    with psycopg.connect(given["url"]) as connection:
        rows = connection.execute(f'SELECT shop, amount FROM "{given["name"]}".totals').fetchall()
    totals: dict[str, int] = dict(rows)
    hot = totals.get(f"{HOT:09d}", 0)
    if sum(totals.values()) != RECORDS or hot != RECORDS // 2:
        raise AssertionError(f"{sum(totals.values())} of {RECORDS} records were added, {hot} to the hot key")
    common.answer(rate=RECORDS / seconds, seconds=seconds)


if __name__ == "__main__":
    _run(common.arguments())
