"""One controller with 2,000 simulated workers: what the master and the authority cost where there are many.

The controller is the shipping state machine, and its store a real Postgres with 2,000 members and 4,000 intervals.  Workers
are only what they say: each reports its two intervals every `REPORT_S`, with a later watermark each time, and its loads in
every fifth round.  Messages are not encoded; `channels` measures that.  What counts is the controller's processor time for
one round of reports, until the watermark that they make is stored and told to every worker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict, deque
from typing import Any, Final

from benchmarks import common
from benchmarks.common import Reference, Result
from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, subscribe
from millwheel.cluster import ClusterMap
from millwheel.host import alphabet as he
from millwheel.host.leading import ClusterController
from millwheel.host.messages import IntervalLoad, LoadReport, WatermarkReport, WatermarksRaised, WorkerJoined
from millwheel.host.requests import StoreCall
from millwheel.model import MIN_TIME
from millwheel_injectors import IterableSource
from millwheel_storage.postgres import PostgresStore

WORKERS: Final = common.sized("WORKERS", 2_000)
INTERVALS: Final = 2 * WORKERS
ROUNDS: Final = common.sized("ROUNDS", 20)
REPORT_S: Final = 1.0
LEASE_US: Final = 3_600_000_000
NUMBERS: Final = Stream("numbers", JsonCoder(int))


class Keep(Computation[int]):
    """What all the intervals are of."""

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        """Nothing ever comes."""


def many_workers() -> Result:
    """The share of one processor that the controller needs."""
    with common.server("many_workers") as url:
        found = asyncio.run(_measure(url))
    value = found["cpu_ms_a_round"] / 1_000 / REPORT_S
    return Result(
        "many_workers", value, "of a processor",
        Reference("store calls of the controller, p50", found["store_ms"]["PersistLedWatermarks"], "ms a stored watermark"),
        None, f"none; {WORKERS:,} workers with {INTERVALS:,} intervals, reports every {REPORT_S:g} s", True, found,
    )  # fmt: skip


class Driver:
    """Performs a controller's effects: store calls for real, messages to workers by counting them."""

    def __init__(self, store: PostgresStore, incarnation: int) -> None:
        self.host = ClusterController(incarnation, LEASE_US)
        self.told = 0
        self.raised = MIN_TIME
        self.store_ms: dict[str, list[float]] = defaultdict(list)
        self.host_s = 0.0
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def give(self, *events: he.HostEvent) -> None:
        """Events, and then the end of a turn."""
        began = time.process_time()
        effects: deque[he.HostEffect] = deque()
        for event in (*events, he.TurnEnded()):
            effects += self.host.handle(event, time.time_ns() // 1_000)
        self.host_s += time.process_time() - began
        for effect in effects:
            if isinstance(effect, he.Ask):
                task = asyncio.create_task(self._answer(effect))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(effect, he.Tell):
                self.told += 1
                if isinstance(effect.message, WatermarksRaised):
                    self.raised = max(self.raised, effect.message.values.get("Keep", MIN_TIME))

    async def _answer(self, asked: he.Ask) -> None:
        wish, answer = asked.wish, None
        if isinstance(wish, StoreCall):
            began = time.perf_counter()
            answer = await wish.call(self._store)
            self.store_ms[type(wish).__name__].append((time.perf_counter() - began) * 1_000)
        elif isinstance(wish, he.Pause):
            await asyncio.sleep(wish.delay_us / 1e6)
        self.give(he.Answered(asked.token, answer))

    async def until(self, what: str, true: Any, limit_s: float = 300.0) -> None:
        """Wait."""
        end = time.monotonic() + limit_s
        while not true():
            failed = [task for task in self._tasks if task.done() and task.exception()]
            if failed or time.monotonic() > end:
                raise RuntimeError(f"the controller did not get to: {what}")
            await asyncio.sleep(0.001)


async def _measure(url: str) -> dict[str, Any]:
    wired = Pipeline("many")
    wired.inject(IterableSource("source", [(1, 1)]), into=NUMBERS)
    wired.add(Keep, [subscribe(NUMBERS, str)], split_keys=tuple(f"{n:06d}" for n in range(1, INTERVALS)))
    store = PostgresStore(url, "many")
    try:
        await store.open_pipeline(wired.graph().shape())
        me = await store.join("controller", "controller", "127.0.0.1:1", LEASE_US, secrets.token_bytes(16))
        for number in range(WORKERS):
            await store.join(f"w{number}", "worker", f"127.0.0.1:{number + 2}", LEASE_US, secrets.token_bytes(16))
        return await _led(Driver(store, me.incarnation), store, wired)
    finally:
        await store.close()


async def _led(driver: Driver, store: PostgresStore, wired: Pipeline) -> dict[str, Any]:
    began = time.monotonic()
    driver.give(he.Started())
    placed: list[ClusterMap] = []

    async def look() -> bool:
        placed[:] = [await store.cluster_map()]
        return all(interval.owner is not None for interval in placed[0].intervals)

    while not await look():
        await asyncio.sleep(0.1)
        if time.monotonic() - began > 300:
            raise RuntimeError("the intervals were not placed")
    placing_s = time.monotonic() - began
    intervals = placed[0].intervals
    driver.give(he.Received(f"w{intervals[0].owner}", WorkerJoined({"Keep": ()})))
    await asyncio.sleep(1)
    rounds: list[float] = []
    latency: list[float] = []
    told = driver.told
    loads: dict[int | None, list[IntervalLoad]] = defaultdict(list)
    for one in intervals:
        loads[one.owner].append(IntervalLoad(one.id, 10, ""))
    for at in range(1, ROUNDS + 1):
        began, before = time.monotonic(), driver.host_s
        reports = [
            he.Received(f"w{one.owner}", WatermarkReport("Keep", one.id, at * 1_000_000, one.sequencer))
            for one in intervals
        ]
        for first in range(0, len(reports), 100):
            driver.give(*reports[first : first + 100])
            await asyncio.sleep(0)
        if at % 5 == 0:
            driver.give(*(he.Received(f"w{owner}", LoadReport(tuple(of))) for owner, of in loads.items()))
        await driver.until("a stored watermark", lambda at=at: driver.raised >= at * 1_000_000)
        rounds.append((driver.host_s - before) * 1_000)
        latency.append((time.monotonic() - began) * 1_000)
        await asyncio.sleep(max(0.0, REPORT_S - (time.monotonic() - began)))
    return {
        "workers": WORKERS, "intervals": INTERVALS, "placing_s": placing_s, "cpu_ms_a_round": common.median(rounds),
        "cpu_us_a_report": common.median(rounds) * 1_000 / INTERVALS, "until_told_ms": common.median(latency),
        "messages_a_round": (driver.told - told) / ROUNDS,
        "store_ms": {name: common.median(values) for name, values in sorted(driver.store_ms.items())},
    }  # fmt: skip
