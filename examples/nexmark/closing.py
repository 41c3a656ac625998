"""Queries about auctions that have closed, and about who belongs to whom: 3, 4, 6, 9 and 20.

Lives here: their pipelines and SQL.  An auction closes when no bid of its time can come any more.
"""

from __future__ import annotations

from typing import Final

from examples.nexmark.bidwise import by_auction
from examples.nexmark.model import LATENESS_US, Auction, Bid, Event, Person, auctions, bids, persons
from examples.nexmark.query import NexmarkQuery, table
from examples.nexmark.sink import Row
from millwheel import MsgpackCoder
from millwheel.library import Aggregation, Chain, EveryRecords, Global, Match, Pane, Repeat, Running, aggregation, mean

# --- the winning bid of each auction: 9, and the ground of 4 and 6 -------------------------------------------------


def better(left: Bid, right: Bid) -> Bid:
    """The higher one; of equal ones the earlier."""
    return min(left, right, key=lambda bid: (-bid.price, bid.time, bid.number))


def _best(left: Bid | None, right: Bid | None) -> Bid | None:
    return left or right if left is None or right is None else better(left, right)


BEST: Final[Aggregation[Bid, Bid | None, Bid | None]] = aggregation(
    "best bid", lambda: None, _best, _best, lambda bid: bid, MsgpackCoder[Bid | None](Bid | None), Bid | None
)

Closed = Match[Auction, Bid | None]
"""An auction that is over, and the best bid of its time; an inner join gives none without a bid."""


def sold(closed: Closed) -> Bid:
    """The winning bid."""
    assert closed.right is not None
    return closed.right


SOLD: Final = """
    SELECT DISTINCT ON (auction.id) auction.id AS id, category, seller, expires, bid.number AS number, price, bidder
    FROM auction JOIN bid ON bid.auction = auction.id AND bid.time BETWEEN auction.time AND expires
    ORDER BY auction.id, price DESC, bid.time, bid.number"""


def _closed(events: Chain[Event], name: str) -> Chain[Closed]:
    """Each auction with the best of the bids from its beginning to its end, which every auction has of its own."""
    offered = auctions(events).key_by(lambda auction: str(auction.id))
    return offered.join_aggregate(
        bids(events).key_by(by_auction), lambda auction: auction.expires - auction.time, BEST, single=True,
        lateness=LATENESS_US, name=name,
    )  # fmt: skip


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
    auction, bid = closed.left, sold(closed)
    return [
        {
            "id": auction.id, "category": auction.category, "seller": auction.seller, "number": bid.number,
            "price": bid.price, "bidder": bid.bidder, "at": auction.expires,
        }
    ]  # fmt: skip


def _q9(events: Chain[Event]) -> None:
    _closed(events, "q9.close").key_by(lambda closed: closed.key).upsert_to(Q9_TABLE, _q9_rows)


Q9 = NexmarkQuery(Q9_TABLE, _q9, f"SELECT id, category, seller, number, price, bidder FROM ({SOLD}) sold")

# --- 4: average price of a category -------------------------------------------------------------------------------

Q4_TABLE = table("q4", {"category": "bigint", "average": "double precision"}, ("category",))


def _q4_rows(pane: Pane[float | None]) -> list[Row]:
    return [{"category": int(pane.key), "average": pane.value, "at": None}]


def _q4(events: Chain[Event]) -> None:
    averages = (
        _closed(events, "q4.close")
        .key_by(lambda closed: str(closed.left.category))
        .window(Global(), Repeat(EveryRecords(1)))
        .aggregate(mean(lambda closed: sold(closed).price), name="q4.average")
    )
    averages.key_by(lambda pane: pane.key).upsert_to(Q4_TABLE, _q4_rows)


Q4 = NexmarkQuery(Q4_TABLE, _q4, f"SELECT category, sum(price)::float8 / count(*) FROM ({SOLD}) sold GROUP BY category")

# --- 6: average of a seller's last ten sales ----------------------------------------------------------------------

LAST: Final = 10


Q6_TABLE = table("q6", {"seller": "bigint", "auction": "bigint", "average": "double precision"}, ("auction",))


def _q6_rows(sale: Running[Closed, float | None]) -> list[Row]:
    auction = sale.value.left
    return [{"seller": auction.seller, "auction": auction.id, "average": sale.result, "at": auction.expires}]


def _q6(events: Chain[Event]) -> None:
    averages = (
        _closed(events, "q6.close")
        .key_by(lambda closed: str(closed.left.seller))
        .running(
            mean(lambda closed: sold(closed).price), last=LAST, order=lambda closed: closed.left.id, name="q6.last"
        )
    )
    averages.key_by(lambda sale: sale.value.key).upsert_to(Q6_TABLE, _q6_rows)


Q6 = NexmarkQuery(
    Q6_TABLE,
    _q6,
    f"""SELECT seller, id, sum(price) OVER last::float8 / count(*) OVER last FROM ({SOLD}) sold
        WINDOW last AS (PARTITION BY seller ORDER BY expires, id ROWS BETWEEN {LAST - 1} PRECEDING AND CURRENT ROW)""",
)

# --- 3 and 20: what belongs to a person, or to an auction ---------------------------------------------------------


CATEGORY: Final = 10
STATES: Final = ("OR", "ID", "CA")

Q3_TABLE = table("q3", {"name": "text", "city": "text", "state": "text", "id": "bigint"}, ("id",))


def _q3_rows(found: Match[Auction, Person]) -> list[Row]:
    auction, person = found.left, found.right
    at = max(person.time, auction.time)
    return [{"name": person.name, "city": person.city, "state": person.state, "id": auction.id, "at": at}]


def _q3(events: Chain[Event]) -> None:
    sellers = persons(events).key_by(lambda person: str(person.id))
    offers = auctions(events).filter(lambda auction: auction.category == CATEGORY)
    joined = offers.key_by(lambda auction: str(auction.seller)).join_one(sellers, name="q3.join")
    near = joined.filter(lambda found: found.right.state in STATES)
    near.key_by(lambda found: str(found.left.id)).upsert_to(Q3_TABLE, _q3_rows)


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


def _q20_rows(found: Match[Bid, Auction]) -> list[Row]:
    bid, auction = found.left, found.right
    return [
        {
            "number": bid.number, "auction": auction.id, "bidder": bid.bidder, "price": bid.price,
            "item": auction.item, "seller": auction.seller, "at": max(auction.time, bid.time),
        }
    ]  # fmt: skip


def _q20(events: Chain[Event]) -> None:
    offered = auctions(events).key_by(lambda auction: str(auction.id))
    joined = bids(events).key_by(by_auction).join_one(offered, name="q20.join")
    wanted = joined.filter(lambda found: found.right.category == CATEGORY)
    wanted.key_by(lambda found: found.key).upsert_to(Q20_TABLE, _q20_rows)


Q20 = NexmarkQuery(
    Q20_TABLE,
    _q20,
    f"""SELECT bid.number, auction, bidder, price, item, seller FROM bid JOIN auction ON bid.auction = auction.id
        WHERE category = {CATEGORY}""",
)

QUERIES: Final = (Q3, Q4, Q6, Q9, Q20)
