"""Queries of Nexmark in Bytewax, for `benchmarks.nexmark`: those that it has operators for.

Events lie in memory and come in order.  Rows are counted and thrown away; a recovery store takes snapshots every second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks import common
from examples.nexmark.closing import CATEGORY, STATES
from examples.nexmark.generator import events
from examples.nexmark.model import Auction, Bid, Person
from examples.nexmark.windowed import EVERY_US, WINDOW_US

BATCH: Final = 1_000
WAIT: Final = timedelta(seconds=10)
"""How far the watermark stays behind: clocks of keys go on with wall time, and would drop events otherwise."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LENGTH: Final = timedelta(microseconds=WINDOW_US)
GAP: Final = LENGTH - timedelta(microseconds=1)
"""Its sessions hold two events that are exactly a gap apart; ours and those of SQL are over by then."""


Build = Callable[[Any], Any]
"""Makes the stream of results of that of the events."""


def _moment(event: Any) -> datetime:
    return EPOCH + timedelta(microseconds=event.time)


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda event: type(event) is kind


def _queries() -> dict[str, Build]:
    import bytewax.operators as op
    from bytewax.operators import windowing as win

    def clock() -> Any:
        return win.EventClock(_moment, wait_for_system_duration=WAIT, to_system_utc=lambda _: None)

    tumbling = win.TumblingWindower(length=LENGTH, align_to=EPOCH)
    sliding = win.SlidingWindower(length=LENGTH, offset=timedelta(microseconds=EVERY_US), align_to=EPOCH)

    def bids(entered: Any) -> Any:
        return op.filter("bids", entered, _of(Bid))

    def keyed(entered: Any, name: str, kind: type, key: Callable[[Any], str]) -> Any:
        return op.key_on(f"{name}_by", op.filter(name, entered, _of(kind)), key)

    def row(bid: Bid) -> tuple[Any, ...]:
        return (bid.number, bid.auction, bid.bidder, bid.price, bid.time, bid.extra)

    def q1(entered: Any) -> Any:
        return op.map("euros", bids(entered), lambda bid: (*row(bid), bid.price * 908))

    def q2(entered: Any) -> Any:
        some = op.filter("some", bids(entered), lambda bid: bid.auction % 123 == 0)
        return op.map("rows", some, lambda bid: (bid.number, bid.auction, bid.price))

    def belong(state: Any, event: Any) -> tuple[Any, list[Any]]:
        # Its own join keeps one value of each side, and sides overtake each other within a batch.
        person, waiting = state or (None, [])
        if type(event) is Person:
            person = event
        else:
            waiting = [*waiting, event]
        if person is None:
            return (person, waiting), []
        return (person, []), [(auction.id, person) for auction in waiting if person.state in STATES]

    def q3(entered: Any) -> Any:
        offers = op.filter("category", op.filter("auctions", entered, _of(Auction)), lambda a: a.category == CATEGORY)
        sellers = keyed(entered, "persons", Person, lambda person: str(person.id))
        both = op.merge("both", op.key_on("by_seller", offers, lambda auction: str(auction.seller)), sellers)
        return op.stateful_flat_map("join", both, belong)

    def q5(entered: Any) -> Any:
        counted = win.count_window("count", bids(entered), clock(), sliding, lambda bid: str(bid.auction)).down
        by_window = op.key_on("by_window", counted, lambda each: str(each[1][0]))
        return op.stateful_map("most", by_window, lambda most, each: (max(most or 0, each[1][1]), most))

    def q7(entered: Any) -> Any:
        one = op.key_on("one", bids(entered), lambda bid: "all")
        return win.max_window("highest", one, clock(), tumbling, by=lambda bid: bid.price).down

    def q8(entered: Any) -> Any:
        new = keyed(entered, "persons", Person, lambda person: str(person.id))
        sellers = keyed(entered, "auctions", Auction, lambda auction: str(auction.seller))
        met = win.join_window("join", clock(), tumbling, new, sellers, emit_mode="final").down
        return op.filter("both", met, lambda each: None not in each[1][1])

    def counted_by_bidder(windower: Any, clock_: Callable[[], Any]) -> Build:
        return lambda entered: (
            win.count_window("count", bids(entered), clock_(), windower, lambda bid: str(bid.bidder)).down
        )

    return {
        "q0": lambda entered: op.map("rows", bids(entered), row), "q1": q1, "q2": q2, "q3": q3, "q5": q5, "q7": q7,
        "q8": q8, "q11": counted_by_bidder(win.SessionWindower(gap=GAP), clock),
        "q12": counted_by_bidder(tumbling, win.SystemClock),
    }  # fmt: skip


def run(given: dict[str, Any]) -> None:
    """Time one query."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    items = list(events(given["events"], per_second=given["per_second"]))
    rows = 0

    class Partition(StatefulSourcePartition[Any, int]):
        def __init__(self, first: int) -> None:
            self._next = first

        def next_batch(self) -> list[Any]:
            first = self._next
            if first >= len(items):
                raise StopIteration
            self._next += BATCH
            return items[first : first + BATCH]

        def snapshot(self) -> int:
            return self._next

    class Items(FixedPartitionedSource[Any, int]):
        def list_parts(self) -> list[str]:
            return ["events"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
            return Partition(resume_state or 0)

    class Counting(StatelessSinkPartition[Any]):
        def write_batch(self, batch: list[Any]) -> None:
            nonlocal rows
            rows += len(batch)

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Counting:
            return Counting()

    flow = Dataflow("nexmark")
    op.output("out", _queries()[given["query"]](op.input("entered", flow, Items())), Sink())
    seconds, cpu = common.bytewax_seconds(flow, Path(given["path"]))
    common.answer(rate=len(items) / seconds, per_core=len(items) / cpu, cpu_seconds=cpu, rows=rows)


if __name__ == "__main__":
    run(common.arguments())
