"""Queries that gather statistics: 15, 16, 17, 18 and 19.

Lives here: their aggregations, pipelines and SQL.  What is distinct is found under keys of its own, never in a set under one
key.  Each bidder and each auction of a day has a window, and their results are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from examples.nexmark.bidwise import by_auction
from examples.nexmark.model import LATENESS_US, Bid, Event, bids
from examples.nexmark.query import NexmarkQuery, table
from examples.nexmark.sink import Row
from millwheel import DAY, MINUTE, Context, MapCell, MsgpackCoder, Record, Timer, ValueCell
from millwheel.library import (
    Aggregation,
    Chain,
    EveryRecords,
    Fixed,
    Global,
    Operation,
    Operator,
    Pane,
    Repeat,
    aggregation,
    last,
    top,
)

LOW: Final = 10_000
HIGH: Final = 1_000_000
"""Prices below `LOW` are of rank 1, those from `HIGH` on of rank 3."""


def rank(bid: Bid) -> int:
    """0, 1 or 2."""
    return (bid.price >= LOW) + (bid.price >= HIGH)


# --- 15 and 16: of a day, and of a channel and day ----------------------------------------------------------------

Ranks = list[int]
"""Bids of each rank, and the minute of the last one, us."""


def _plus(ranks: Ranks, bid: Bid) -> Ranks:
    ranks[rank(bid)] += 1
    ranks[3] = max(ranks[3], bid.time - bid.time % MINUTE)
    return ranks


def _merged(left: Ranks, right: Ranks) -> Ranks:
    return [left[0] + right[0], left[1] + right[1], left[2] + right[2], max(left[3], right[3])]


RANKS: Aggregation[Bid, Ranks, Ranks] = aggregation(
    "ranks", lambda: [0, 0, 0, 0], _plus, _merged, lambda ranks: ranks, MsgpackCoder(Ranks), Ranks
)

COUNTS: Final = (
    "bids", "bids1", "bids2", "bids3", "bidders", "bidders1", "bidders2", "bidders3", "auctions", "auctions1",
    "auctions2", "auctions3",
)  # fmt: skip


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Of one group and day: the `COUNTS`, and the minute of the last bid, us."""

    group: str
    day: int
    counts: list[int]
    minute: int


def _counts(kind: str, ranks: Ranks) -> list[int]:
    """What one bidder, or one auction, adds to the `COUNTS`."""
    bids = ranks[:3]
    seen = [1, *(int(number > 0) for number in bids)]
    return [sum(bids), *bids, *seen, 0, 0, 0, 0] if kind == "bidder" else [0] * 8 + seen


class AddUp(Operator[Totals]):
    """Per group and day: the sum of the newest panes of its bidders and auctions, given at the end of the day.

    The library has no such step.  A pane that takes the place of an earlier one must be subtracted first, and its
    aggregations add records that stay.
    """

    parts = MapCell[Ranks](MsgpackCoder(Ranks))
    total = ValueCell[list[int]](MsgpackCoder(list[int]), default=[0] * len(COUNTS))
    minute = ValueCell[int](MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """A late bid gives another pane of its bidder, which takes the place of the one before."""
        for _, pane in self.inputs.take(context.stream, record.key, record.value):
            kind = pane.key.partition(" ")[0]
            before = self.parts.get(pane.key)
            old = [0] * len(COUNTS) if before is None else _counts(kind, before)
            new = _counts(kind, pane.value)
            self.parts.set(pane.key, pane.value)
            self.total.set([had - less + more for had, less, more in zip(self.total.get(), old, new, strict=True)])
            self.minute.set(max(self.minute.get(), pane.value[3]))
            context.set_timer(str(pane.start), pane.end + LATENESS_US + 1)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The day is over, for late bids too."""
        group = context.key.rpartition(" ")[0]
        self.emit(context, Totals(group, int(timer.tag), self.total.get(), self.minute.get()), None)
        for entry, _ in list(self.parts.items()):
            self.parts.delete(entry)
        self.total.clear()
        self.minute.clear()


ADD_UP: Final = Operation(kind="totals", make=AddUp, output=MsgpackCoder(Totals))


def _totals(events: Chain[Event], name: str, group: Callable[[Bid], str]) -> Chain[Totals]:
    def panes(kind: str, of: Callable[[Bid], int]) -> Chain[Pane[Ranks]]:
        keyed = bids(events).key_by(lambda bid: f"{kind} {of(bid)} {group(bid)}")
        return keyed.window(Fixed(DAY), lateness=LATENESS_US).aggregate(RANKS, name=f"{name}.{kind}s")

    both = panes("bidder", lambda bid: bid.bidder).union(panes("auction", lambda bid: bid.auction))
    return both.key_by(lambda pane: f"{pane.key.split(' ', 2)[2]} {pane.start}").apply(ADD_UP, f"{name}.totals")


def _statistics(columns: str, by: str) -> str:
    ranks = ("true", f"price < {LOW}", f"price >= {LOW} AND price < {HIGH}", f"price >= {HIGH}")
    counted = [
        f"count({of}) FILTER (WHERE {which})" for of in ("*", "DISTINCT bidder", "DISTINCT auction") for which in ranks
    ]
    return f"SELECT {columns}, {', '.join(counted)} FROM bid GROUP BY {by}"


Q15_TABLE = table("q15", {"day": "bigint", **dict.fromkeys(COUNTS, "bigint")}, ("day",))


def _row(totals: Totals) -> Row:
    return {**dict(zip(COUNTS, totals.counts, strict=True)), "day": totals.day, "at": totals.day + DAY}


def _q15(events: Chain[Event]) -> None:
    totals = _totals(events, "q15", lambda bid: "all")
    totals.key_by(lambda found: str(found.day)).upsert_to(Q15_TABLE, lambda found: [_row(found)])


Q15 = NexmarkQuery(Q15_TABLE, _q15, _statistics(f"time / {DAY} * {DAY}", f"time / {DAY}"))

Q16_TABLE = table(
    "q16",
    {"channel": "text", "day": "bigint", "minute": "bigint", **dict.fromkeys(COUNTS, "bigint")},
    ("channel", "day"),
)


def _q16(events: Chain[Event]) -> None:
    totals = _totals(events, "q16", lambda bid: bid.channel)
    totals.key_by(lambda found: found.group).upsert_to(
        Q16_TABLE, lambda found: [{**_row(found), "channel": found.group, "minute": found.minute}]
    )


Q16 = NexmarkQuery(
    Q16_TABLE,
    _q16,
    _statistics(
        f"channel, time / {DAY} * {DAY}, max(time) / {MINUTE} * {MINUTE}",
        f"channel, time / {DAY}",
    ),
)

# --- 17: of an auction and day ------------------------------------------------------------------------------------


class Prices(msgspec.Struct, array_like=True):
    """Of the bids for one auction."""

    ranks: list[int]
    low: int
    high: int
    total: int


def _with(prices: Prices, bid: Bid) -> Prices:
    prices.ranks[rank(bid)] += 1
    prices.low = min(prices.low or bid.price, bid.price)
    prices.high = max(prices.high, bid.price)
    prices.total += bid.price
    return prices


def _of_both(left: Prices, right: Prices) -> Prices:
    low = min(left.low or right.low, right.low or left.low)
    ranks = [mine + theirs for mine, theirs in zip(left.ranks, right.ranks, strict=True)]
    return Prices(ranks, low, max(left.high, right.high), left.total + right.total)


PRICES: Aggregation[Bid, Prices, Prices] = aggregation(
    "prices", lambda: Prices([0, 0, 0], 0, 0, 0), _with, _of_both, lambda prices: prices, MsgpackCoder(Prices), Prices
)

Q17_TABLE = table(
    "q17",
    {
        **dict.fromkeys(("auction", "day", *COUNTS[:4], "low", "high"), "bigint"), "average": "double precision",
        "total": "bigint",
    },
    ("auction", "day"),
)  # fmt: skip


def _q17_rows(pane: Pane[Prices]) -> list[Row]:
    prices, bids = pane.value, sum(pane.value.ranks)
    return [
        {
            "auction": int(pane.key), "day": pane.start, "bids": bids, "bids1": prices.ranks[0], "bids2": prices.ranks[1],
            "bids3": prices.ranks[2], "low": prices.low, "high": prices.high, "average": prices.total / bids,
            "total": prices.total, "at": pane.end,
        }
    ]  # fmt: skip


def _q17(events: Chain[Event]) -> None:
    prices = (
        bids(events).key_by(by_auction).window(Fixed(DAY), lateness=LATENESS_US).aggregate(PRICES, name="q17.prices")
    )
    prices.key_by(lambda pane: pane.key).upsert_to(Q17_TABLE, _q17_rows)


Q17 = NexmarkQuery(
    Q17_TABLE,
    _q17,
    f"""SELECT auction, time / {DAY} * {DAY}, count(*), count(*) FILTER (WHERE price < {LOW}),
            count(*) FILTER (WHERE price >= {LOW} AND price < {HIGH}), count(*) FILTER (WHERE price >= {HIGH}),
            min(price), max(price), sum(price)::float8 / count(*), sum(price)::bigint
        FROM bid GROUP BY auction, time / {DAY}""",
)

# --- 18 and 19: the last bid of a bidder for an auction, and its highest ones ---------------------------------------

Q18_TABLE = table(
    "q18", dict.fromkeys(("bidder", "auction", "number", "price", "time"), "bigint"), ("bidder", "auction")
)


def _q18_rows(pane: Pane[Bid | None]) -> list[Row]:
    bid = pane.value
    assert bid is not None
    return [
        {
            "bidder": bid.bidder, "auction": bid.auction, "number": bid.number, "price": bid.price, "time": bid.time,
            "at": bid.time,
        }
    ]  # fmt: skip


def _q18(events: Chain[Event]) -> None:
    newest = (
        bids(events)
        .key_by(lambda bid: f"{bid.bidder}/{bid.auction}")
        .window(Global(), Repeat(EveryRecords(1)))
        .aggregate(last(Bid), name="q18.last")
    )
    newest.key_by(lambda pane: pane.key).upsert_to(Q18_TABLE, _q18_rows)


Q18 = NexmarkQuery(
    Q18_TABLE,
    _q18,
    """SELECT DISTINCT ON (bidder, auction) bidder, auction, number, price, time FROM bid
       ORDER BY bidder, auction, time DESC, number DESC""",
)

TOP: Final = 10

Q19_TABLE = table(
    "q19",
    dict.fromkeys(("auction", "place", "number", "bidder", "price", "time"), "bigint"),
    ("auction", "place"),
)


def _q19_rows(pane: Pane[list[Bid]]) -> list[Row]:
    return [
        {
            "auction": bid.auction, "place": place, "number": bid.number, "bidder": bid.bidder, "price": bid.price,
            "time": bid.time, "at": bid.time,
        }
        for place, bid in enumerate(pane.value, 1)
    ]  # fmt: skip


def _q19(events: Chain[Event]) -> None:
    highest = (
        bids(events)
        .key_by(by_auction)
        .window(Global(), Repeat(EveryRecords(1)))
        .aggregate(top(TOP, lambda bid: (bid.price, -bid.number), Bid), name="q19.top")
    )
    highest.key_by(lambda pane: pane.key).upsert_to(Q19_TABLE, _q19_rows)


Q19 = NexmarkQuery(
    Q19_TABLE,
    _q19,
    f"""SELECT auction, place, number, bidder, price, time FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, number) AS place FROM bid) placed
        WHERE place <= {TOP}""",
)

QUERIES: Final = (Q15, Q16, Q17, Q18, Q19)
