"""Mistakes in chains of the library, which a type checker must find, and correct code, in which it must find nothing.

As `tests/unit/api/mistakes.py`: a line that ends in `# wrong:` and a name must be reported, and no other line may be.
"""

# pyright: strict

from __future__ import annotations

import msgspec

from millwheel import MsgpackCoder, Pipeline, Stream, TextCoder
from millwheel.library import (
    Fixed,
    Flow,
    Interval,
    Joined,
    Match,
    Pane,
    Running,
    Sessions,
    Sliding,
    count,
    maximum,
    mean,
    minutes,
    seconds,
    sum_of,
    top,
)


class Tap(msgspec.Struct, frozen=True):
    user: str
    cents: int


class Order(msgspec.Struct, frozen=True):
    buyer: str
    id: str


taps = Stream("taps", MsgpackCoder(Tap))
orders = Stream("orders", MsgpackCoder(Order))
sums = Stream("sums", MsgpackCoder(Pane[int]))
means = Stream("means", MsgpackCoder(Pane[float | None]))
tops = Stream("tops", MsgpackCoder(Pane[list[Tap]]))
best = Stream("best", MsgpackCoder(Running[Tap, int | None]))
names = Stream("names", TextCoder())
both = Stream("both", MsgpackCoder(Match[Tap, Order]))
maybe = Stream("maybe", MsgpackCoder(Match[Tap, Order | None]))
three = Stream("three", MsgpackCoder(Joined[tuple[Tap, Order, Tap]]))


def write(pipeline: Pipeline) -> None:
    flow = Flow(pipeline)
    tapped = flow.read(taps).filter(lambda tap: tap.cents > 0).key_by(lambda tap: tap.user)
    ordered = flow.read(orders).key_by(lambda order: order.buyer)
    wide = tapped.window(Sliding(minutes=10, every=minutes(1)), lateness=minutes(2))
    wide.aggregate(count()).to(sums)
    wide.aggregate(sum_of(lambda tap: tap.cents)).map(lambda pane: f"{pane.key} {pane.value + 1}").to(names)
    wide.aggregate(mean(lambda tap: tap.cents)).to(means)
    wide.aggregate(top(3, lambda tap: tap.cents, Tap)).to(tops)
    tapped.running(maximum(lambda tap: tap.cents)).to(best)
    tapped.join(ordered, Sessions(minutes=5)).to(both)
    tapped.join(ordered, Interval(after=seconds(5)), "left").to(maybe)
    flow.join_all((tapped, ordered, tapped), Fixed(minutes=1)).to(three)

    flow.read(taps).filter(lambda tap: tap.cent > 0)  # wrong: attribute in a filter
    flow.read(taps).map(lambda tap: tap.cents).filter(lambda cents: cents.user)  # wrong: attribute behind a map
    flow.read(taps).key_by(lambda tap: tap.cents)  # wrong: key of a chain that is no text
    wide.aggregate(sum_of(lambda tap: tap.cent))  # wrong: attribute in an aggregation
    wide.aggregate(sum_of(lambda tap: tap.user))  # wrong: sum of a text
    wide.aggregate(count()).to(names)  # wrong: panes into a stream of texts
    wide.aggregate(mean(lambda tap: tap.cents)).to(sums)  # wrong: a mean into a stream of whole numbers
    wide.aggregate(count()).map(lambda pane: pane.value.user)  # wrong: attribute of a pane's value
    tapped.window(5)  # wrong: windows that are none
    tapped.join(ordered, Fixed(minutes=1), "left").to(both)  # wrong: rows without a partner into a stream of pairs
    ordered.join(tapped, Fixed(minutes=1)).to(both)  # wrong: the sides of a join turned
    tapped.join(ordered, Fixed(minutes=1), "full")  # wrong: a join of no kind
    tapped.join(ordered, 5)  # wrong: a join within nothing
    tapped.running(maximum(lambda tap: tap.cents)).map(lambda row: row.result + 1)  # wrong: a result that may be None
    flow.join_all((tapped, ordered, ordered), Fixed(minutes=1)).to(three)  # wrong: the third input of a join
