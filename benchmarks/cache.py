"""Loads of a windowed workload whose state is four times the cache, beside the same with a least-recently-used cache.

Every record opens a window of its own: a key that is written once, and read once more when its timer fires, which deletes it.
Windows are of many lengths, from the shortest to a hundred times that, as many between one and ten as between ten and
a hundred.  Both sides are the whole pipeline on Postgres; the order in which keys leave the cache is the only difference,
and the other one is here, not in the code that ships.  Loads count until the last record has run: the end of input makes
all windows due at once.  A second workload is one where the past does tell the future, sessions of keys of which some are
met far more often: there the cache must not be worse.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import Computation, Context, MsgpackCoder, Pipeline, Record, Timer, ValueCell, subscribe
from millwheel.core.keys.cache import StateCache
from millwheel.ids import IntervalId
from millwheel.launch import run as run_on
from millwheel.limits import ENTRY_OVERHEAD_BYTES, SLOT_OVERHEAD_BYTES
from millwheel_storage.postgres import PostgresStore

WINDOWS: Final = common.sized("RECORDS", 200_000)
SESSIONS: Final = common.sized("RECORDS", 200_000)
SESSION_KEYS: Final = 100_000
STEP_US: Final = 1_000
SHORTEST_US: Final = 2_000_000
DECADES: Final = 2
ALIVE: Final = 43_000
"""Windows that are open at a time, on average: their mean length, 21.5 times the shortest, by their distance."""
STATE_TO_CACHE: Final = 4
GAP_US: Final = 20_000_000
"""A session ends when its key has not been met for so long."""
STATE_BYTES: Final = 200
CUT: Final = 0.6
"""Loads at most, as a share of those of the other order."""
ROUNDS: Final = common.sized("ROUNDS", 2)
MOST_RECORDS: Final = 128
"""Of an invocation: with more, what is dirty would be most of so small a cache."""


def cache() -> Result:
    """Benchmark 9."""
    found: dict[str, list[dict[str, Any]]] = {}
    with common.server("cache") as url:
        for turn in range(ROUNDS):
            for workload in ("windows", "sessions"):
                for order in ("next_use", "lru"):
                    sample = common.call(
                        "cache", url=url, name=f"{workload}_{order}_{turn}", workload=workload, order=order
                    )
                    found.setdefault(f"{workload}_{order}", []).append(sample)
    loads = {side: common.median([sample["loads"] for sample in samples]) for side, samples in found.items()}
    value, reference = loads["windows_next_use"], loads["windows_lru"]
    sessions = loads["sessions_next_use"] / loads["sessions_lru"]
    return Result(
        "cache", value, "keys loaded",
        Reference("the same, what was read longest ago evicted first", reference, "keys loaded"), value / reference,
        f"windows: at least {1 - CUT:.0%} fewer loads", value <= CUT * reference,
        {**found, "sessions_ratio": sessions, "windows": WINDOWS},
    )  # fmt: skip


# --- in the subprocess --------------------------------------------------------------------------------------------


class Counted(Computation[bytes]):
    """Keys that were loaded, now and when the last record ran."""

    loads = 0
    at_last = 0
    left = 0

    def ran(self) -> None:
        """One more record."""
        Counted.left -= 1
        if not Counted.left:
            Counted.at_last = Counted.loads


class Window(Counted):
    """One record and one timer a key."""

    state = ValueCell(MsgpackCoder(bytes), default=b"")

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.ran()
        self.state.set(b"." * STATE_BYTES)
        context.set_timer("end", record.timestamp + flows.number_of(record.value))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        if len(self.state.get()) != STATE_BYTES:
            raise AssertionError("a window has lost its state")
        self.state.clear()


class Session(Counted):
    """Each record moves the timer of its key away."""

    state = ValueCell(MsgpackCoder(bytes), default=b"")

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.ran()
        self.state.set(self.state.get() or b"." * STATE_BYTES)
        context.set_timer("end", record.timestamp + GAP_US)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.state.clear()


def _rows(workload: str) -> list[flows.Row]:
    dice = random.Random(7)
    if workload == "windows":
        lengths = [int(SHORTEST_US * 10 ** (DECADES * dice.random())) for _ in range(WINDOWS)]
        return [(flows.value_of(n, length), n * STEP_US) for n, length in enumerate(lengths)]
    keys = [int(SESSION_KEYS ** dice.random()) for _ in range(SESSIONS)]  # a rank is met as often as it is low
    return [(flows.value_of(key, n), n * STEP_US) for n, key in enumerate(keys)]


def _pipeline(given: dict[str, Any]) -> None:
    load = PostgresStore.load
    Counted.left = WINDOWS if given["workload"] == "windows" else SESSIONS

    async def counted(self: PostgresStore, interval: IntervalId, keys: Any, timers: bool) -> Any:
        Counted.loads += len(keys)
        return await load(self, interval, keys, timers)

    PostgresStore.load = counted  # type: ignore[method-assign, assignment]
    if given["order"] == "lru":
        StateCache._next_uses = _read_longest_ago  # type: ignore[method-assign]
    computation = Window if given["workload"] == "windows" else Session
    a_key = ENTRY_OVERHEAD_BYTES + SLOT_OVERHEAD_BYTES + STATE_BYTES + 3
    pipeline = Pipeline(given["name"])
    pipeline.inject(flows.Ready("rows", _rows(given["workload"])), into=flows.ENTERED)
    pipeline.add(
        computation, [subscribe(flows.ENTERED, key=flows.key_of)], name="keyed",
        cache_limit_bytes=ALIVE * a_key // STATE_TO_CACHE, work_limit_records=MOST_RECORDS,
    )  # fmt: skip
    began = time.perf_counter()
    progress = run_on(pipeline, given["url"])
    if progress.quarantined or progress.records != (WINDOWS if computation is Window else SESSIONS):
        raise AssertionError(f"{progress.records} records, {progress.quarantined} keys in quarantine")
    common.answer(
        loads=Counted.at_last,
        drained=Counted.loads,
        seconds=time.perf_counter() - began,
        checkpoints=progress.checkpoints,
    )


def _read_longest_ago(self: StateCache, keys: Sequence[str], next_timers: Any) -> list[tuple[float, int]]:
    """The other order."""
    return [(self._invocation - self.last_read[key], 0) for key in keys]


if __name__ == "__main__":
    _pipeline(common.arguments())
