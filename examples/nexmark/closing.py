"""Queries about auctions that have closed, and about who belongs to whom: 3, 4, 6, 9 and 20.

Lives here: their operators, pipelines and SQL.  An auction closes when no bid of its time can come any more.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from examples.nexmark.bidwise import by_auction
from examples.nexmark.model import LATENESS_US, Auction, Bid, Event, Person, auctions, bids, persons
from examples.nexmark.query import NexmarkQuery, table
from examples.nexmark.sink import Row, upsert
from millwheel import Context, ListCell, MapCell, MsgpackCoder, Record, Timer, ValueCell
from millwheel.library import Chain, EveryRecords, Global, Operation, Operator, Pane, Repeat, mean

# --- the winning bid of each auction: 9, and the ground of 4 and 6 -------------------------------------------------


class Closed(msgspec.Struct, frozen=True, array_like=True):
    """An auction that is over, and the best bid of its time."""

    auction: Auction
    bid: Bid


def better(left: Bid, right: Bid) -> Bid:
    """The higher one; of equal ones the earlier."""
    return min(left, right, key=lambda bid: (-bid.price, bid.time, bid.number))


class Close(Operator[Closed]):
    """Per auction: the auction, its best bid so far, and bids that came before it."""

    auction = ValueCell[Auction | None](MsgpackCoder[Auction | None](Auction | None), default=None)
    best = ValueCell[Bid | None](MsgpackCoder[Bid | None](Bid | None), default=None)
    early = ListCell[Bid](MsgpackCoder(Bid))

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """A bid counts if it is of the auction's time; which that is, only the auction says."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            if isinstance(value, Bid):
                self._bid(context, value)
                continue
            self.auction.set(value)
            context.set_timer("over", value.expires + LATENESS_US + 1)
            for bid in self.early:
                self._offer(value, bid)
            self.early.clear()

    def _bid(self, context: Context, bid: Bid) -> None:
        auction = self.auction.get()
        if auction is not None:
            self._offer(auction, bid)
        elif bid.time + LATENESS_US >= context.watermark:
            self.early.append(bid)
            context.set_timer("over", bid.time + LATENESS_US + 1)

    def _offer(self, auction: Auction, bid: Bid) -> None:
        if auction.time <= bid.time <= auction.expires:
            best = self.best.get()
            self.best.set(bid if best is None else better(best, bid))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """No bid of its time comes any more: it is sold, if anybody bid."""
        auction, best = self.auction.get(), self.best.get()
        if auction is not None and best is not None:
            self.emit(context, Closed(auction, best), None)
        self.auction.clear()
        self.best.clear()
        self.early.clear()


CLOSE: Final = Operation(kind="close", make=Close, output=MsgpackCoder(Closed))

SOLD: Final = """
    SELECT DISTINCT ON (auction.id) auction.id AS id, category, seller, expires, bid.number AS number, price, bidder
    FROM auction JOIN bid ON bid.auction = auction.id AND bid.time BETWEEN auction.time AND expires
    ORDER BY auction.id, price DESC, bid.time, bid.number"""


def _closed(events: Chain[Event], name: str) -> Chain[Closed]:
    offered = auctions(events).key_by(lambda auction: str(auction.id))
    return events.flow.apply(CLOSE, [*offered.ports(0), *bids(events).key_by(by_auction).ports(1)], name)


Q9_TABLE = table(
    "q9",
    {
        "id": "bigint",
        "category": "bigint",
        "seller": "bigint",
        "number": "bigint",
        "price": "bigint",
        "bidder": "bigint",
    },
    ("id",),
)


def _q9_rows(closed: Closed) -> list[Row]:
    auction, bid = closed.auction, closed.bid
    return [
        {
            "id": auction.id, "category": auction.category, "seller": auction.seller, "number": bid.number,
            "price": bid.price, "bidder": bid.bidder, "at": auction.expires,
        }
    ]  # fmt: skip


def _q9(events: Chain[Event]) -> None:
    upsert(_closed(events, "q9.close").key_by(lambda closed: str(closed.auction.id)), Q9_TABLE, _q9_rows)


Q9 = NexmarkQuery(Q9_TABLE, _q9, f"SELECT id, category, seller, number, price, bidder FROM ({SOLD}) sold")

# --- 4: average price of a category -------------------------------------------------------------------------------

Q4_TABLE = table("q4", {"category": "bigint", "average": "double precision"}, ("category",))


class Sale(msgspec.Struct, frozen=True, array_like=True):
    """What a category's average is of."""

    category: int
    price: int


def _q4_rows(pane: Pane[float | None]) -> list[Row]:
    return [{"category": int(pane.key), "average": pane.value, "at": None}]


def _q4(events: Chain[Event]) -> None:
    averages = (
        _closed(events, "q4.close")
        .key_by(lambda closed: str(closed.auction.category))
        .window(Global(), Repeat(EveryRecords(1)))
        .aggregate(mean(lambda closed: closed.bid.price), name="q4.average")
    )
    upsert(averages.key_by(lambda pane: pane.key), Q4_TABLE, _q4_rows)


Q4 = NexmarkQuery(Q4_TABLE, _q4, f"SELECT category, sum(price)::float8 / count(*) FROM ({SOLD}) sold GROUP BY category")

# --- 6: average of a seller's last ten sales ----------------------------------------------------------------------

LAST: Final = 10


class Average(msgspec.Struct, frozen=True, array_like=True):
    """Of the last sales of a seller, up to that of `auction`."""

    seller: int
    auction: int
    average: float
    at: int


class LastSales(Operator[Average]):
    """Per seller: the prices of the last sales, and sales whose turn has not come."""

    prices = ValueCell[list[int]](MsgpackCoder(list[int]), default=[])
    waiting = MapCell[Closed](MsgpackCoder(Closed))

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Auctions close each under a key of its own, so the order in which they come here is not that of their ends."""
        for _, closed in self.inputs.take(context.stream, record.key, record.value):
            turn = f"{closed.auction.expires:020}/{closed.auction.id:020}"
            self.waiting.set(turn, closed)
            context.set_timer(turn, record.timestamp + 1)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """All that ended before has come."""
        closed = self.waiting.get(timer.tag)
        assert closed is not None
        self.waiting.delete(timer.tag)
        prices = [*self.prices.get(), closed.bid.price][-LAST:]
        self.prices.set(prices)
        auction = closed.auction
        self.emit(context, Average(auction.seller, auction.id, sum(prices) / len(prices), auction.expires), None)


LAST_SALES: Final = Operation(kind="last", make=LastSales, output=MsgpackCoder(Average))

Q6_TABLE = table("q6", {"seller": "bigint", "auction": "bigint", "average": "double precision"}, ("auction",))


def _q6(events: Chain[Event]) -> None:
    averages = (
        _closed(events, "q6.close").key_by(lambda closed: str(closed.auction.seller)).apply(LAST_SALES, "q6.last")
    )
    upsert(
        averages.key_by(lambda average: str(average.auction)),
        Q6_TABLE,
        lambda average: [msgspec.structs.asdict(average)],
    )


Q6 = NexmarkQuery(
    Q6_TABLE,
    _q6,
    f"""SELECT seller, id, sum(price) OVER last::float8 / count(*) OVER last FROM ({SOLD}) sold
        WINDOW last AS (PARTITION BY seller ORDER BY expires, id ROWS BETWEEN {LAST - 1} PRECEDING AND CURRENT ROW)""",
)

# --- 3 and 20: what belongs to a person, or to an auction ---------------------------------------------------------


class Belong(Operator[Any]):
    """Joins the one value of input 0 with each of input 1, whichever comes first."""

    one: ValueCell[Any]
    waiting: ListCell[Any]

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Only values of input 1 that came too soon have to wait."""
        for number, value in self.inputs.take(context.stream, record.key, record.value):
            if number == 0:
                self.one.set(value)
                for other in self.waiting:
                    self.emit(context, (value, other), None)
                self.waiting.clear()
            elif (one := self.one.get()) is not None:
                self.emit(context, (one, value), None)
            else:
                self.waiting.append(value)


def _belong(one: Any, many: Any) -> Operation[Any]:
    cells = {"one": ValueCell(MsgpackCoder(one | None), default=None), "waiting": ListCell(MsgpackCoder(many))}
    made: Any = type("Belong", (Belong,), cells)
    return Operation(kind="belong", make=made, output=MsgpackCoder(tuple[one, many]))


OF_SELLER: Operation[tuple[Person, Auction]] = _belong(Person, Auction)
OF_AUCTION: Operation[tuple[Auction, Bid]] = _belong(Auction, Bid)

CATEGORY: Final = 10
STATES: Final = ("OR", "ID", "CA")

Q3_TABLE = table("q3", {"name": "text", "city": "text", "state": "text", "id": "bigint"}, ("id",))


def _q3_rows(found: tuple[Person, Auction]) -> list[Row]:
    person, auction = found
    at = max(person.time, auction.time)
    return [{"name": person.name, "city": person.city, "state": person.state, "id": auction.id, "at": at}]


def _q3(events: Chain[Event]) -> None:
    sellers = persons(events).key_by(lambda person: str(person.id))
    offers = (
        auctions(events).filter(lambda auction: auction.category == CATEGORY).key_by(lambda found: str(found.seller))
    )
    joined = events.flow.apply(OF_SELLER, [*sellers.ports(0), *offers.ports(1)], "q3.join")
    near = joined.filter(lambda found: found[0].state in STATES)
    upsert(near.key_by(lambda found: str(found[1].id)), Q3_TABLE, _q3_rows)


Q3 = NexmarkQuery(
    Q3_TABLE,
    _q3,
    f"""SELECT name, city, state, auction.id FROM auction JOIN person ON seller = person.id
        WHERE category = {CATEGORY} AND state IN {STATES}""",
)

Q20_TABLE = table(
    "q20",
    {
        "number": "bigint",
        "auction": "bigint",
        "bidder": "bigint",
        "price": "bigint",
        "item": "text",
        "seller": "bigint",
    },
    ("number",),
)


def _q20_rows(found: tuple[Auction, Bid]) -> list[Row]:
    auction, bid = found
    return [
        {
            "number": bid.number, "auction": auction.id, "bidder": bid.bidder, "price": bid.price,
            "item": auction.item, "seller": auction.seller, "at": max(auction.time, bid.time),
        }
    ]  # fmt: skip


def _q20(events: Chain[Event]) -> None:
    offered = auctions(events).key_by(lambda auction: str(auction.id))
    joined = events.flow.apply(OF_AUCTION, [*offered.ports(0), *bids(events).key_by(by_auction).ports(1)], "q20.join")
    wanted = joined.filter(lambda found: found[0].category == CATEGORY)
    upsert(wanted.key_by(lambda found: str(found[0].id)), Q20_TABLE, _q20_rows)


Q20 = NexmarkQuery(
    Q20_TABLE,
    _q20,
    f"""SELECT bid.number, auction, bidder, price, item, seller FROM bid JOIN auction ON bid.auction = auction.id
        WHERE category = {CATEGORY}""",
)

QUERIES: Final = (Q3, Q4, Q6, Q9, Q20)
