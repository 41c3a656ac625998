"""A combiner of a computation of the user spreads a hot key, and each value counts once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import (
    SECOND,
    Computation,
    Context,
    Gathering,
    JsonCoder,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.errors import WiringError
from millwheel.testing import Stepper, simulate
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.effort import examples
from tests.unit.runtime.drive import Tap, run_to_end, until


class Sale(msgspec.Struct, frozen=True):
    shop: str
    cents: int
    number: int = 0


sales = Stream("sales", MsgpackCoder(Sale))
totals = Stream("totals", MsgpackCoder(Sale))


def add(left: Sale, right: Sale) -> Sale:
    return Sale(left.shop, left.cents + right.cents)


class Total(Computation[Sale]):
    """Knows how many records it had, and says the sum with each of them."""

    cents = ValueCell(JsonCoder(int), default=0)
    calls = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        assert record.key == record.value.shop
        self.cents.set(self.cents.get() + record.value.cents)
        self.calls.set(self.calls.get() + 1)
        context.produce(totals, Sale(record.key, record.value.cents))


def shops(combiner: Gathering[Sale] | None = None, **settings: Any) -> Pipeline:
    pipeline = Pipeline("shops")
    pipeline.inject(IterableSource("till", []), into=sales)
    pipeline.add(Total, [subscribe(sales, lambda sale: sale.shop)], [totals], combiner=combiner, **settings)
    return pipeline


def test_a_combiner_reads_what_its_computation_read_in_an_interval_for_each_shard() -> None:
    gathering = Gathering(add, shards=4)
    pipeline = Pipeline("shops")
    pipeline.inject(IterableSource("till", []), into=sales)
    pipeline.add(
        Total, [subscribe(sales, lambda sale: sale.shop, key_version="2")], [totals, totals], combiner=gathering,
        split_keys=["m"], hook_attempts=5,
    )  # fmt: skip
    graph = pipeline.graph()
    parts, whole = graph.computations["Total.parts"], graph.computations["Total"]
    assert [(of.stream, of.key_version) for of in parts.inputs] == [("sales", "2")]
    assert parts.settings.split_keys == gathering.split_keys()
    assert (whole.settings.split_keys, whole.settings.hook_attempts) == (("m",), 5)
    assert [of.stream for of in whole.inputs] == [*parts.outputs] == ["Total.parts"]
    assert whole.outputs == ("totals",), "one stream, however often it is named"
    assert (whole.combined_by, parts.combined_by) == (gathering.combined_by("Total"), None)
    sale = Sale("m", 1)
    assert whole.inputs[0].key(sale) == "m"
    assert parts.inputs[0].key(sale) != "m"


ROWS = [(Sale("hot" if n % 2 else f"s{n % 7}", n, n), (n * 37 % 50) * SECOND) for n in range(150)]


def sums(results: Any) -> dict[str, int]:
    found: Counter[str] = Counter()
    for output in results.outputs(totals):
        found[output.value.shop] += output.value.cents
    return {shop: cents for shop, cents in found.items() if cents}


@pytest.mark.parametrize(("seed", "within"), [(0, None), (1, timedelta(seconds=10))])
def test_each_value_counts_once_whatever_fails(seed: int, within: timedelta | None) -> None:
    rough = simulate(shops(Gathering(add, shards=3, within=within)), {"sales": ROWS}, seed=seed)
    wanted: Counter[str] = Counter()
    for sale, _ in ROWS:
        wanted[sale.shop] += sale.cents
    assert sums(rough) == {shop: cents for shop, cents in wanted.items() if cents}


def test_a_hot_key_is_gathered_under_several_and_the_hook_sees_few_records() -> None:
    stepper = Stepper(shops(Gathering(add, shards=4)))
    for number in range(100):
        stepper.send(sales, Sale("hot", 5, number), 7 * SECOND + number)
    assert sorted(stepper.states("Total.parts")) == ["000#hot", "001#hot", "002#hot", "003#hot"]
    assert stepper.states("Total") == {}
    stepper.advance_clock(SECOND)
    stepper.finish()
    assert stepper.states("Total") == {"hot": {"cents": 500, "calls": 4}}
    assert stepper.states("Total.parts") == {}
    assert min(output.timestamp for output in stepper.outputs(totals)) == 7 * SECOND


def test_a_value_that_is_not_for_the_computation_is_not_gathered_for_it() -> None:
    pipeline = Pipeline("shops")
    pipeline.inject(IterableSource("till", []), into=sales)
    pipeline.add(Total, [subscribe(sales, lambda sale: sale.shop or None)], [totals], combiner=Gathering(add, shards=2))
    stepper = Stepper(pipeline)
    for shop in ("", "hot", ""):
        stepper.send(sales, Sale(shop, 5), SECOND)
    assert [key.partition("#")[2] for key in stepper.states("Total.parts")] == ["hot"]
    stepper.advance_clock(SECOND)
    stepper.finish()
    assert stepper.states("Total") == {"hot": {"cents": 5, "calls": 1}}


def test_only_values_of_the_same_stretch_of_time_are_merged_and_the_watermark_waits_for_them() -> None:
    stepper = Stepper(shops(Gathering(add, shards=2, by=lambda sale: 0, within=10 * SECOND)))
    for second in (12, 3, 9, 18):
        stepper.send(sales, Sale("hot", second), second * SECOND)
    stepper.advance_watermark(15 * SECOND)
    assert stepper.outputs(totals) == []
    stepper.advance_clock(SECOND)
    stepper.finish()
    found = sorted((output.timestamp // SECOND, output.value.cents) for output in stepper.outputs(totals))
    assert found == [(3, 12), (12, 30)]


class Basket(msgspec.Struct, frozen=True):
    shop: str
    numbers: list[int]


baskets = Stream("baskets", MsgpackCoder(Basket))
gathered = Stream("gathered", MsgpackCoder(Basket))


class Pass(Computation[Basket]):
    def ProcessRecord(self, context: Context, record: Record[Basket]) -> None:
        context.produce(gathered, record.value)


WITHIN = 10
"""us"""


@settings(max_examples=examples(40, gate=20))
@given(
    st.lists(
        st.tuples(st.sampled_from("aab"), st.integers(0, 35), st.sampled_from(["", "", "clock", "watermark"])),
        min_size=2, max_size=25,
    ),
    st.booleans(),
)  # fmt: skip
def test_each_value_is_in_one_merged_value_of_its_stretch_of_time_at_the_time_of_the_oldest(
    rows: list[tuple[str, int, str]], within: bool
) -> None:
    """And the watermark waits for all that is gathered."""
    combiner: Gathering[Basket] = Gathering(
        lambda left, right: Basket(left.shop, left.numbers + right.numbers),
        shards=2, by=lambda basket: 0, every=SECOND, within=timedelta(microseconds=WITHIN) if within else None,
    )  # fmt: skip
    pipeline = Pipeline("baskets")
    pipeline.inject(IterableSource("till", []), into=baskets)
    pipeline.add(Pass, [subscribe(baskets, lambda basket: basket.shop)], [gathered], combiner=combiner)
    stepper = Stepper(pipeline)
    promised = 0
    stepper.advance_watermark(0)
    for number, (shop, time, then) in enumerate(rows):
        stepper.send(baskets, Basket(shop, [number]), max(time, promised))
        rows[number] = (shop, max(time, promised), then)
        if then == "clock":
            stepper.advance_clock(SECOND)
        elif then == "watermark":
            promised = max(promised, time)
            stepper.advance_watermark(promised)
        out = {n for it in stepper.outputs(gathered) for n in it.value.numbers}
        waits = [at for n, (_, at, _) in enumerate(rows[: number + 1]) if n not in out]
        assert stepper.watermark("Pass.parts") == min([promised, *waits])
        assert not waits or then != "clock"
    stepper.advance_clock(SECOND)
    stepper.finish()
    found = [(it.value, it.timestamp) for it in stepper.outputs(gathered)]
    assert sorted(n for basket, _ in found for n in basket.numbers) == [*range(len(rows))]
    for basket, timestamp in found:
        times = [rows[n][1] for n in basket.numbers]
        assert {rows[n][0] for n in basket.numbers} == {basket.shop}
        assert timestamp == min(times)
        assert not within or len({time // WITHIN for time in times}) == 1
    assert stepper.states("Pass.parts") == {}


class Summed(Computation[Sale]):
    cents = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        self.cents.set(self.cents.get() + record.value.cents)


@pytest.mark.parametrize("now", [{"hot": "new hot", "cold": "new cold"}, {"hot": "cold", "cold": "hot"}])
@pytest.mark.parametrize("then", ["it is given first", "more comes first"])
def test_what_was_gathered_under_other_keys_counts_under_those_of_now(now: Mapping[str, str], then: str) -> None:
    store = MemoryStore()
    rows = [(Sale("hot", 1), 1), (Sale("cold", 8), 2), (Sale("hot", 2), 3), (Sale("hot", 16), 4), (Sale("cold", 32), 5)]

    def version(number: int, rows: list[tuple[Sale, int]]) -> tuple[Pipeline, Tap]:
        tap = Tap("till", rows)
        pipeline = Pipeline("shops")
        pipeline.inject(tap, into=sales)
        given = subscribe(sales, (lambda sale: sale.shop, lambda sale: now[sale.shop])[number], key_version=str(number))
        pipeline.add(Summed, [given], combiner=Gathering(add, shards=2, by=lambda sale: 0, every=SECOND))
        return pipeline, tap

    before, _ = version(0, rows[:3])
    asyncio.run(until(before, store, lambda run: run.progress().records == 3, clock=lambda: 1))
    if then == "more comes first":
        more, _ = version(1, rows)
        asyncio.run(until(more, store, lambda run: run.progress().records >= 2, clock=lambda: 1))
    after, tap = version(1, rows)
    tap.closed = True
    assert run_to_end(after, store).in_quarantine == 0
    cents = {key: int(value) for _, key, cell, _, value in store.tables()["key_state"] if cell == "cents"}
    assert cents == {now["hot"]: 19, now["cold"]: 40}


def test_a_merge_that_loses_the_key_is_an_error_of_the_hook() -> None:
    stepper = Stepper(shops(Gathering(lambda left, right: Sale("other", 0), shards=2, by=lambda sale: 0)))
    stepper.send(sales, Sale("hot", 1), SECOND)
    with pytest.raises(Exception, match="it must keep the key"):
        stepper.send(sales, Sale("hot", 2), SECOND)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Gathering(None),  # type: ignore[arg-type]
        lambda: Gathering(add, by=5),  # type: ignore[arg-type]
        lambda: Gathering(add, shards=1),
        lambda: Gathering(add, shards=1_000),
        lambda: Gathering(add, every=0),
        lambda: Gathering(add, within=timedelta(days=1_000)),
        lambda: shops(Gathering(add), name=None, split_keys="abc"),
    ],
)
def test_what_a_gathering_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(WiringError):
        wrong()


@pytest.mark.parametrize("shards", [2, limits.MERGE_SHARDS])
@pytest.mark.parametrize("time", [1, limits.MERGE_LONGEST_US])
def test_what_a_gathering_may_be_at_the_least_and_the_most_is_taken(shards: int, time: int) -> None:
    made = Gathering(add, shards=shards, every=time, within=time)
    assert len({*made.split_keys()}) == shards - 1
    assert [*made.split_keys()] == sorted(made.split_keys())


def test_two_inputs_cannot_be_gathered() -> None:
    pipeline = Pipeline("two")
    inputs = [subscribe(sales, lambda sale: sale.shop), subscribe(totals, lambda sale: sale.shop)]
    with pytest.raises(WiringError, match="one input"):
        pipeline.add(Total, inputs, combiner=Gathering(add))
