"""Records that clients push, in virtual time: processes crash, are overtaken and stopped, and each record counts once.

The source, its partition and its queue are those that ship.  Clients bring records over streams that break, to whichever
process lets them in, and bring again what they have not been answered for.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, MapCell, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.core.source import injector
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Faults, Planned, Seeded
from millwheel.testing.kit.view import Results
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel.transport.push_queue import PushAccount, Pushed, PushQueue
from millwheel_injectors import BoundedDisorder, PushSource
from millwheel_injectors.pushed import EndedPush, PushPartition
from millwheel_injectors.watermarks import Gauge
from millwheel_storage.memory import MemoryStore

START_US = 1_000 * SECOND
RECORDS = 60
TICK_US = 30_000
KEYS = 4
FAULTS = Faults(crash=0.004, zombie=0.002, refused=0.02, unknown=0.05, duplicate=0.05, slow=0.005, cut=0.002)

orders: Stream[Any] = Stream("orders", JsonCoder(dict[str, Any]))


class Ledger(Computation[dict[str, Any]]):
    """What was counted, and which records."""

    count = ValueCell(JsonCoder(int), default=0)
    ids = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[dict[str, Any]]) -> None:
        self.count.set(self.count.get() + 1)
        name = record.value["id"]
        self.ids.set(name, self.ids.get(name, 0) + 1)


class Client:
    """A program that pushes; `name` begins the ids of its records."""

    def __init__(self, world: PushWorld, name: str) -> None:
        self._world = world
        self._records = [f"{name}{number}" for number in range(RECORDS)]
        self._stream: tuple[PushQueue, PushAccount] | None = None
        self._done_before = 0
        """Records that were done when the stream began."""
        self._sent = 0
        self.done = 0
        self.breaks = 0

    def tick(self) -> None:
        """Hear what is new, and go on."""
        self._hear()
        rng = self._world.kernel.rng
        queues = self._world.queues()
        if not queues:
            return
        newest = (
            queues[-1] if rng.random() < 0.9 else rng.choice(queues)
        )  # a process that was overtaken lets clients in
        if self._stream is None or (newest is not self._stream[0] and rng.random() < 0.5) or rng.random() < 0.05:
            self._begin(newest)
        elif self._sent < len(self._records):
            self._send(rng.choice((1, 2, 5)))

    def _hear(self) -> None:
        if self._stream is not None:
            self.done = max(self.done, self._done_before + self._stream[1].kept)

    def _begin(self, queue: PushQueue) -> None:
        if self._stream is not None:
            self._stream[0].leave(self._stream[1])
            self.breaks += 1
        self._stream = (queue, queue.join(lambda: None))
        self._done_before, again = self.done, self._sent - self.done
        self._sent = self.done
        self._send(again)

    def _send(self, count: int) -> None:
        assert self._stream is not None
        names = self._records[self._sent : self._sent + count]
        values = [json.dumps({"id": name, "key": f"k{int(name[1:]) % KEYS}"}).encode() for name in names]
        times = [START_US + int(name[1:]) for name in names]
        self._stream[0].put(self._stream[1], Pushed([name.encode() for name in names], values, times))
        self._sent += len(names)


class PushWorld:
    """A simulation whose processes let clients in."""

    def __init__(self, seed: int, quiet: bool = False) -> None:
        self.kernel = Kernel(seed, START_US)
        self.clients = [Client(self, name) for name in "ab"]
        self.sources: list[PushSource[Any]] = []
        graph = self._graph()
        self.sources.clear()
        self.store = WatchedStore(MemoryStore(), graph, self.kernel)
        self.simulation = Simulation(
            graph=graph,
            tables={},
            kernel=self.kernel,
            nemesis=Planned() if quiet else Seeded(FAULTS, self.kernel.rng),
            store=self.store,
            faults_until_us=6 * SECOND,
        )
        self.simulation.version = lambda: (self._graph(), None)  # a process has a source of its own
        self.kernel.at(self.kernel.now + TICK_US, self._tick)

    def _graph(self) -> Any:
        source = PushSource(orders, "127.0.0.1:0", watermark=BoundedDisorder(SECOND))
        self.sources.append(source)
        pipeline = Pipeline("pushed")
        pipeline.inject(source, into=orders)
        pipeline.add(Ledger, [subscribe(orders, key=lambda value: value["key"])], split_keys=["k2"])
        return pipeline.graph()

    def queues(self) -> list[PushQueue]:
        """Of processes that have let clients in, the oldest first, whether they are still there or not."""
        return [source._open.queue for source in self.sources if source._open is not None and not source._open.closed]

    def _tick(self) -> None:
        for client in self.clients:
            client.tick()
        self.kernel.at(self.kernel.now + TICK_US, self._tick)

    def run(self) -> None:
        self.simulation.run()
        results = Results(self.simulation.graph, self.store.inner)
        found: dict[str, int] = {}
        for number in range(KEYS):
            ledger = results.state("Ledger", f"k{number}")
            count, ids = ledger.get("count", 0), ledger.get("ids", {})  # a key may have lost all of its records
            if count != len(ids):
                raise Violation(f"I1: k{number} counted {count} records of {len(ids)}", "")
            found |= ids
        missing = {record for client in self.clients for record in client._records} - found.keys()
        doubled = [record for record, times in found.items() if times != 1]
        if missing or doubled:
            raise Violation(f"I1, I2: missing {sorted(missing)}, doubled {sorted(doubled)}", "")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from a counter.  Nobody looks for long whether clients have brought something: they have to say so."""
    numbers = itertools.count(1)
    monkeypatch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):016x}")
    monkeypatch.setattr(injector, "ANNOUNCED_POLL_US", 5 * SECOND)


def ending(world: PushWorld, monkeypatch: pytest.MonkeyPatch) -> PushWorld:
    def finished(partition: PushPartition[Any]) -> bool:
        return all(client.done == RECORDS for client in world.clients) and not partition.queue._waiting

    monkeypatch.setattr(PushPartition, "finished", finished)
    return world


def test_without_faults_every_record_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ending(PushWorld(0, quiet=True), monkeypatch)
    world.run()
    assert world.simulation.crashes == 0


def test_through_crashes_and_processes_that_were_overtaken_every_record_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 36: a process that was overtaken ended a partition after the next one had claimed it, and before that one asked
    which partitions are not finished; nobody ended the claim."""
    crashes = breaks = dropped = 0
    for seed in range(40):
        world = ending(PushWorld(seed), monkeypatch)
        world.run()
        crashes += world.simulation.crashes
        breaks += sum(client.breaks for client in world.clients)
        dropped += len(world.sources)
    assert crashes > 40
    assert breaks > 200
    assert dropped > 80, "processes"


def answered_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client hears of a record that is not durable yet."""
    really = PushPartition.read

    def read(partition: PushPartition[Any], limit: int) -> Any:
        batch = really(partition, limit)
        partition.queue.keep(partition._next_row)
        return batch

    monkeypatch.setattr(PushPartition, "read", read)


def numbers_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process goes on with the partition of the one before, from the stored position."""

    def discover(source: PushSource[Any], known: Any) -> list[Any]:
        if source._open is None:
            source._open = PushPartition(source, Gauge(source._policy))
            source._open.name = "pushed"
        return [] if "pushed" in set(known) else [source._open]

    def resume(partition: PushPartition[Any], position: int, state: bytes) -> None:
        partition._next_row = partition.queue._next_row = position

    monkeypatch.setattr(PushSource, "discover", discover)
    monkeypatch.setattr(PushPartition, "resume", resume)


def ids_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is brought again gets another id."""
    numbers = itertools.count()
    really = PushPartition.read

    def read(partition: PushPartition[Any], limit: int) -> Any:
        batch = really(partition, limit)
        if batch is not None:
            batch = msgspec.structs.replace(batch, outside=[str(next(numbers)) for _ in batch.rows])
        return batch

    monkeypatch.setattr(PushPartition, "read", read)


MISTAKES: list[Callable[[pytest.MonkeyPatch], None]] = [answered_when_read, numbers_used_again, ids_left_out]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    found = []
    for seed in range(40):
        with monkeypatch.context() as patched:
            try:
                ending(PushWorld(seed), patched).run()
            except Violation as violation:
                found.append(str(violation))
                break
    assert found


def test_an_ended_partition_gives_nothing() -> None:
    partition: EndedPush[Any] = EndedPush("pushed-1")
    assert (partition.read(10), partition.finished()) == (None, True)
