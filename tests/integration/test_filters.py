"""Filters at work on real traffic: 1% of a stream comes again, long after its ids have left memory.

Each test counts what the store is asked for.  Without filters that would be every id, and every key.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.bundles import Bundle
from millwheel.core.ids.dedup import Channel, DeliveredIds
from millwheel.core.source import injector
from millwheel.host import alphabet as he
from millwheel.host.messages import Delivery, Receipt
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId
from millwheel.ports import Batch, SourcePartition
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import Host
from millwheel_injectors import IterableSource
from millwheel_injectors.iterables import IterablePartition
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from tests.unit.runtime.drive import run_to_end

pytestmark = pytest.mark.postgres

RECORDS = 30_000
KEYS = 50
EVERY = 50
"""One record of the second half in so many is an old one: 1% of the stream."""
PAUSE_S = 1.5
numbers = Stream("numbers", MsgpackCoder(int))
again = Stream("again", MsgpackCoder(int))


class Pass(Computation[int]):
    """Passes on."""

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        context.produce(again, record.value)


class Sum(Computation[int]):
    """How many, and their sum: one extra and one missing record do not cancel out."""

    count = ValueCell(JsonCoder(int), default=0)
    sum = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.count.set(self.count.get() + 1)
        self.sum.set(self.sum.get() + record.value)


class AskedStore(PostgresStore):
    """Postgres, and what it was asked for."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url, name)
        self.asked = 0
        self.found = 0

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        return self._count(sequences, await super().find_ids(interval, subscription, producer, sequences))

    async def find_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        return self._count(ids, await super().find_outside_ids(interval, subscription, now, ids))

    def _count(self, asked: Sequence[Any], found: set[Any]) -> set[Any]:
        self.asked += len(asked)
        self.found += len(found)
        return found


@pytest.fixture(autouse=True)
def soon_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bundles, folds after a few of them, and sealing at once: ids are old within a second."""
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 100)
    monkeypatch.setattr(limits, "FOLD_TRIGGER_IDS", 500)
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 4)
    monkeypatch.setattr(limits, "ID_BUCKET_US", 20_000)


class Halves(IterableSource[int]):
    """Rows of which the second half comes when the ids of the first one have had the time to be folded and sealed."""

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [HalvedPartition(self._rows, self._policy)] if super().discover(known) else []


class HalvedPartition(IterablePartition):
    """Nothing for a while when the first half was read."""

    goes_on_at = 0.0

    def read(self, limit: int) -> Batch | None:
        if self._row == RECORDS // 2:
            self.goes_on_at = self.goes_on_at or monotonic() + PAUSE_S
            if monotonic() < self.goes_on_at:
                return None
        return super().read(limit)


def summed(name: str, source: IterableSource[int]) -> Pipeline:
    """`Sum` has two intervals, so that the record ids that each gets have gaps: dense ones are exact for ever."""
    pipeline = Pipeline(name)
    pipeline.inject(source, into=numbers)
    pipeline.add(Pass, [subscribe(numbers, key=lambda n: str(n % KEYS))], [again])
    pipeline.add(Sum, [subscribe(again, key=lambda n: str(n % KEYS))], split_keys=("3",))
    return pipeline


def check(url: str, name: str, values: set[int]) -> None:
    """Each of `values` counts once."""
    with Reader(url, name) as reader:
        cells = {(row.key, row.cell): msgspec.json.decode(row.value) for row in reader.scan_state("Sum")}
    for key in map(str, range(KEYS)):
        mine = [value for value in values if str(value % KEYS) == key]
        assert (cells[key, "count"], cells[key, "sum"]) == (len(mine), sum(mine))


def test_of_outside_ids_the_store_is_asked_for_repeats_and_little_else(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    half = RECORDS // 2
    values = [n - half if n >= half and n % EVERY == 0 else n for n in range(RECORDS)]
    new = len({*values})
    repeats = RECORDS - new
    store = AskedStore(postgres.url, pipeline)
    source = Halves("numbers", [(value, n) for n, value in enumerate(values)], record_id=lambda n: f"id {n}")
    progress = run_to_end(summed(pipeline, source), store)
    assert progress.repeated == repeats == RECORDS // 100
    check(postgres.url, pipeline, {*values})
    assert store.found >= 0.9 * repeats, "the repeats are not old: the filters had nothing to do"
    in_vain = store.asked - store.found
    print(f"{in_vain} of {new} new ids asked for: {1 - in_vain / new:.2%} of look-ups spared")
    assert in_vain <= 0.02 * new


class Lossy(EmbeddedRun):
    """1% of the bundles are delivered again, long after; the first ack is lost until nearly all has come.

    So no frontier moves, and only filters and the store know what was consumed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._delivered: list[he.Tell] = []
        self.sent = 0
        """Records between the computations that were delivered once."""
        self.repeated = 0
        """Records that were delivered again."""
        self.most_filters = 0
        self._kept: dict[int, he.Tell] = {}

    def _perform(self, host: Host, effect: he.HostEffect) -> None:
        if isinstance(effect, he.Tell) and isinstance(effect.message, Receipt):
            sender = effect.message.sender
            if sender in self._senders() and sender not in self._kept and not self._nearly_all():
                self._kept[sender] = effect
                return
        super()._perform(host, effect)
        if isinstance(effect, he.Tell) and isinstance(effect.message, Delivery) and effect.message.bundle.sequences:
            self._saw(host, effect, effect.message.bundle)
        if self._kept and self._nearly_all():
            for kept in self._kept.values():
                super()._perform(host, kept)
            self._kept = {}

    def _senders(self) -> set[int]:
        """Intervals of computations: an injector reads no further than some rows behind the first that is not acked."""
        return {actor.interval for actor, _ in self.worker.actors.intervals()}

    def _saw(self, host: Host, tell: he.Tell, bundle: Bundle) -> None:
        if bundle.sender not in self._senders():
            return
        self._delivered.append(_copy(tell))
        self.sent += len(bundle.sequences)
        if len(self._delivered) % 100 == 0:
            self._again(host, _copy(self._delivered[len(self._delivered) // 4]))

    def _again(self, host: Host, old: he.Tell) -> None:
        assert isinstance(old.message, Delivery)
        self.repeated += len(old.message.bundle.sequences)
        filters = [core._arrivals.ids.filters() for _, core in self.worker.actors.intervals()]
        self.most_filters = max(self.most_filters, *filters)
        super()._perform(host, old)

    def _nearly_all(self) -> bool:
        return self.sent >= 0.9 * RECORDS


def _copy(tell: he.Tell) -> he.Tell:
    assert isinstance(tell.message, Delivery)
    message = msgspec.structs.replace(tell.message, bundle=copy.copy(tell.message.bundle))
    return he.Tell(tell.peer, message)


def test_of_record_ids_the_store_is_asked_for_repeats_alone(postgres: EmbeddedPostgres, pipeline: str) -> None:
    questions = positive = 0
    maybe = DeliveredIds._maybe

    def counted(self: DeliveredIds, channel: Channel, block: int) -> bool:
        nonlocal questions, positive
        found = maybe(self, channel, block)
        questions, positive = questions + 1, positive + found
        return found

    async def run() -> Lossy:
        made = summed(pipeline, IterableSource("numbers", [(n, n) for n in range(RECORDS)]))
        store = AskedStore(postgres.url, pipeline)
        lossy = Lossy(made.graph(), store, made.tables)
        try:
            with patch.object(DeliveredIds, "_maybe", counted):
                assert (await asyncio.wait_for(lossy.run(), 60)).finished
        finally:
            await store.close()
        print(f"{lossy.repeated} records again, {lossy.most_filters} filters, {questions} questions, {positive} maybe")
        print(f"the store was asked for {store.asked} ids and had {store.found}")
        assert store.found == store.asked > 0
        return lossy

    lossy = asyncio.run(run())
    assert lossy.most_filters
    assert questions
    check(postgres.url, pipeline, {*range(RECORDS)})
