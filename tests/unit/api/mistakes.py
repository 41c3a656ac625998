"""What type checkers must find, and what they must leave alone: `test_types.py` runs them on this file.

A line that ends in `# wrong:` and a name must be reported, and no other line may be.  It is never run.
"""

# pyright: strict

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    TextCoder,
    Timer,
    ValueCell,
    subscribe,
)
from millwheel.testing import Stepper
from millwheel_injectors import Csv, FileSource, IterableSource, JsonLines, SparkOutputSource, TextLines


class Click(msgspec.Struct, frozen=True):
    user: str
    at: int


@dataclass(frozen=True)
class Purchase:
    user: str
    cents: int


class Total(TypedDict):
    user: str
    seen: int


@dataclass
class Sum:
    user: str
    cents: int


class Last(msgspec.Struct):
    user: str
    at: int


clicks = Stream("clicks", MsgpackCoder(Click))
purchases = Stream("purchases", JsonCoder(Purchase))
numbers = Stream("numbers", JsonCoder(int))
texts = Stream("texts", TextCoder())
pairs = Stream("pairs", JsonCoder(tuple[str, int]))
anything = Stream("anything", JsonCoder(dict[str, Any]))
bare: Stream = Stream("bare", JsonCoder(int))

totals = Table("totals", Total, ("user",))
sums = Table("sums", Sum, ("user",))
lasts = Table("lasts", Last, key=("user",), types={"at": "integer"})
loose = Table("loose", {"user": "text", "seen": "bigint"}, ("user",))


class Visit(Computation[Click]):
    seen = ValueCell(JsonCoder(int), default=0)
    pages = ListCell(TextCoder())
    prices = MapCell(JsonCoder(float))

    def ProcessRecord(self, context: Context, record: Record[Click]) -> None:
        context.produce(numbers, record.value.at)
        context.produce(numbers, record.value.user)  # wrong: production of another type
        context.produce(clicks, record.value, record.timestamp)
        context.produce(clicks, Purchase("ann", 5))  # wrong: production of another class
        context.produce(pairs, ("ann", 5))
        context.produce(pairs, (5, "ann"))  # wrong: production of a turned pair
        context.produce(bare, "whatever")
        self.seen.set(self.seen.get() + 1)
        self.seen.set("one")  # wrong: cell of another type
        self.pages.append("home")
        self.pages.append(5)  # wrong: element of another type
        self.prices.set("ann", 5)
        self.prices.set("ann", "dear")  # wrong: entry of another type
        record.value.user.upper()
        record.value.usr.upper()  # wrong: attribute of a record's value

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        row: Total = {"user": timer.key, "seen": 2}
        context.upsert(totals, row)
        context.upsert(totals, {"user": timer.key, "seen": 1})
        context.upsert(totals, {"user": timer.key, "sen": 1})  # wrong: column of a dict
        context.upsert(totals, {"user": timer.key, "seen": "1"})  # wrong: value of a column of a dict
        context.upsert(totals, {"user": timer.key})  # wrong: missing column of a dict
        context.upsert(totals, {**row, "seen": 3})
        context.upsert(sums, Sum(timer.key, cents=1))
        context.upsert(sums, Sum(timer.key, cent=1))  # wrong: column of a dataclass
        context.upsert(sums, Last(timer.key, 1))  # wrong: row of another table
        context.upsert(lasts, Last(user=timer.key, at=1))
        context.upsert(lasts, Last(user=timer.key, at="1"))  # wrong: value of a column of a struct
        context.upsert(loose, {"user": timer.key, "seen": 1, "whatever": None})
        context.upsert(loose, 5)  # wrong: no row


class Shop(Computation[Click | Purchase]):
    def ProcessRecord(self, context: Context, record: Record[Click | Purchase]) -> None:
        pass


class Generic(Computation):
    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        pass


class AnyRecord(Computation[object]):
    def ProcessRecord(self, context: Context, record: Record[object]) -> None:
        pass


class Scaled(Computation[Click]):
    def __init__(self, factor: int) -> None:
        self.factor = factor


def user_of(click: Click) -> str:
    return click.user


def wire(pipeline: Pipeline) -> None:
    by_user = subscribe(clicks, key=lambda click: click.user)
    pipeline.add(Visit, inputs=[by_user], outputs=[numbers, clicks])
    pipeline.add(Visit, [subscribe(clicks, key=user_of)], [numbers], name="again", expire_after=5)
    pipeline.add(Visit, [subscribe(clicks, key=lambda click: click.user if click.at else None)])
    pipeline.add(Visit, [subscribe(clicks, key=lambda click: click.at)])  # wrong: key that is no text
    pipeline.add(Visit, [subscribe(clicks, key=lambda click: click.usr)])  # wrong: attribute in a key
    pipeline.add(Visit, [subscribe(numbers, key=user_of)])  # wrong: key of another type
    pipeline.add(Visit, [subscribe(numbers, key=str)])  # wrong: input of another type
    pipeline.add(Visit, [by_user, subscribe(numbers, key=str)])  # wrong: one input of another type
    pipeline.add(Visit, [subscribe(purchases, key=lambda bought: bought.user)])  # wrong: input of another class
    pipeline.add(Visit, [by_user], [5])  # wrong: output that is no stream
    pipeline.add(Shop, [subscribe(clicks, key=user_of), subscribe(purchases, key=lambda bought: bought.user)])
    pipeline.add(Shop, [by_user])
    pipeline.add(Generic, [by_user, subscribe(numbers, key=str), subscribe(pairs, key=lambda pair: pair[0])])
    pipeline.add(AnyRecord, [by_user, subscribe(numbers, key=str), subscribe(pairs, key=lambda pair: pair[0])])
    pipeline.add(lambda: Scaled(2), [by_user])
    pipeline.add(lambda: Scaled(2), [subscribe(numbers, key=str)])  # wrong: input of a factory's computation
    pipeline.add(Scaled, [by_user])  # wrong: constructor that needs an argument
    pipeline.publish(clicks, keep=5)
    pipeline.sink(totals)
    pipeline.sink(loose)


def feed(pipeline: Pipeline) -> None:
    pipeline.inject(IterableSource("some", [(Click("ann", 1), 1)]), into=clicks)
    pipeline.inject(IterableSource("made", lambda: [(Click("ann", 1), 1)]), into=clicks)
    pipeline.inject(IterableSource("ints", [(5, 1)]), into=clicks)  # wrong: rows into a stream of another type
    pipeline.inject(IterableSource("text", [(Click("ann", 1), "2026-08-01T12:00Z")]), into=clicks)
    pipeline.inject(IterableSource("zone", [(Click("ann", 1), datetime(2026, 8, 1, tzinfo=UTC))]), into=clicks)
    IterableSource("float", [(Click("ann", 1), 1.5)])  # wrong: float as event time
    IterableSource("order", [(1, Click("ann", 1))])  # wrong: event time before the value
    pipeline.inject(FileSource("lines", "a.log"), into=texts)
    pipeline.inject(FileSource("lines", "a.log", event_time=lambda line: int(line.split()[0])), into=texts)
    pipeline.inject(FileSource("lines", "a.log", event_time=int, tail=True, ordered=True), into=texts)
    pipeline.inject(FileSource("lines", "a.log", TextLines("latin-1"), record_id=lambda line: line[:8]), into=texts)
    pipeline.inject(FileSource("lines", "a.log"), into=clicks)  # wrong: lines into a stream of structs
    pipeline.inject(FileSource("json", "a", JsonLines(Click), lambda click: click.at), into=clicks)
    FileSource("json", "a", JsonLines(Click), lambda click: click.tim)  # wrong: event_time
    pipeline.inject(FileSource("json", "a", JsonLines(Click), event_time="at"), into=clicks)
    FileSource("json", "a", JsonLines(Click), lambda click: click.at / 1e6)  # wrong: float from event_time
    FileSource("lines", "a.log", event_time="at")  # wrong: field of a line
    pipeline.inject(FileSource("json", "a", JsonLines(Click)), into=purchases)  # wrong: JSON of another type
    pipeline.inject(FileSource("json", "a", JsonLines()), into=purchases)
    pipeline.inject(FileSource("csv", "a", Csv(Purchase, header=True), quiet_us=5), into=purchases)
    pipeline.inject(FileSource("csv", "a", Csv(Purchase, header=True)), into=texts)  # wrong: records of another type
    pipeline.inject(SparkOutputSource("spark", "out", "at", type=Click, tail=True), into=clicks)
    pipeline.inject(SparkOutputSource("spark", "out", lambda row: row["at"]), into=anything)
    pipeline.inject(SparkOutputSource("spark", "out", lambda click: click.at, type=Click), into=clicks)
    SparkOutputSource("spark", "out", lambda click: click.tim, type=Click)  # wrong: event_time of Spark's rows
    pipeline.inject(SparkOutputSource("spark", "out", "at", type=Click), into=texts)  # wrong: Spark's rows
    FileSource("csv", "a", Csv(Purchase), event_time=lambda bought: bought.cents, record_id=lambda bought: bought.user)
    FileSource("csv", "a", Csv(Purchase), event_time=lambda bought: bought.cent)  # wrong: event_time of a record
    FileSource("csv", "a", Csv(Purchase), record_id=lambda bought: bought.cents)  # wrong: record_id that is no text


def step(stepper: Stepper) -> None:
    stepper.send(clicks, Click("ann", 1), 1)
    stepper.send(clicks, 5, 1)  # wrong: record sent in a test
    stepper.send("clicks", Click("ann", 1), 1)
    [out.value.user for out in stepper.outputs(clicks)]
    [out.value.usr for out in stepper.outputs(clicks)]  # wrong: attribute of an output in a test
