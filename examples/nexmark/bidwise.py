"""Queries that look at one bid at a time: 0, 1, 2 and 13.

Lives here: their pipelines and SQL.  Each is one stage: the stateless steps run inside the step that writes the rows.
"""

from __future__ import annotations

from typing import Final

from examples.nexmark.model import Bid, Event, bids
from examples.nexmark.query import NexmarkQuery, table
from examples.nexmark.sink import Row
from millwheel.library import Chain

BID: Final = {"auction": "bigint", "bidder": "bigint", "price": "bigint", "time": "bigint", "extra": "text"}

SIDE_KEYS: Final = 1_000
"""The side input has a row for each auction number modulo this."""


def side_input() -> dict[int, str]:
    """A small table that does not change: key to text."""
    return {key: f"side {key * 7_919 % SIDE_KEYS}" for key in range(SIDE_KEYS)}


def by_auction(bid: Bid) -> str:
    """The key of most queries."""
    return str(bid.auction)


def _row(bid: Bid) -> Row:
    return {
        "number": bid.number, "auction": bid.auction, "bidder": bid.bidder, "price": bid.price, "time": bid.time,
        "extra": bid.extra, "at": bid.time,
    }  # fmt: skip


Q0_TABLE = table("q0", {"number": "bigint", **BID}, ("number",))


def _q0(events: Chain[Event]) -> None:
    bids(events).key_by(by_auction).upsert_to(Q0_TABLE, lambda bid: [_row(bid)])


Q0 = NexmarkQuery(Q0_TABLE, _q0, "SELECT number, auction, bidder, price, time, extra FROM bid")

Q1_TABLE = table("q1", {"number": "bigint", **BID, "price": "numeric"}, ("number",))


def _euros(bid: Bid) -> str:
    """0.908 of the price; in thousandths it is an int, so that nothing is rounded."""
    whole, rest = divmod(bid.price * 908, 1_000)
    return f"{whole}.{rest:03}"


def _q1(events: Chain[Event]) -> None:
    bids(events).key_by(by_auction).upsert_to(Q1_TABLE, lambda bid: [{**_row(bid), "price": _euros(bid)}])


Q1 = NexmarkQuery(Q1_TABLE, _q1, "SELECT number, auction, bidder, 0.908 * price, time, extra FROM bid")

Q2_TABLE = table("q2", {"number": "bigint", "auction": "bigint", "price": "bigint"}, ("number",))


def _q2_row(bid: Bid) -> list[Row]:
    return [{"number": bid.number, "auction": bid.auction, "price": bid.price, "at": bid.time}]


def _q2(events: Chain[Event]) -> None:
    bids(events).filter(lambda bid: bid.auction % 123 == 0).key_by(by_auction).upsert_to(Q2_TABLE, _q2_row)


Q2 = NexmarkQuery(Q2_TABLE, _q2, "SELECT number, auction, price FROM bid WHERE auction % 123 = 0")

Q13_TABLE = table("q13", {"number": "bigint", **BID, "value": "text"}, ("number",))


def _q13(events: Chain[Event]) -> None:
    side = side_input()
    bids(events).key_by(by_auction).upsert_to(
        Q13_TABLE, lambda bid: [{**_row(bid), "value": side[bid.auction % SIDE_KEYS]}]
    )


Q13 = NexmarkQuery(
    Q13_TABLE,
    _q13,
    f"""SELECT number, auction, bidder, price, time, extra, value
        FROM bid JOIN side_input ON side_input.key = auction % {SIDE_KEYS}""",
)

QUERIES: Final = (Q0, Q1, Q2, Q13)
