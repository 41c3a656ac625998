"""Queries over windows: 5, 7, 8, 11 and 12.

Lives here: their pipelines and SQL.
"""

from __future__ import annotations

from typing import Any, Final

from examples.nexmark.bidwise import by_auction
from examples.nexmark.model import LATENESS_US, Auction, Bid, Event, Person, auctions, bids, persons
from examples.nexmark.query import NexmarkQuery, table
from examples.nexmark.sink import Key, Row, replace
from millwheel import DAY, SECOND, MsgpackCoder
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Chain,
    EveryRecords,
    Fixed,
    Match,
    Pane,
    Sessions,
    Sliding,
    Wall,
    aggregation,
    count,
)

WINDOW_US: Final = 10 * SECOND
EVERY_US: Final = 2 * SECOND


def over(pane: Pane[Any]) -> int:
    """When no pane of its window can come any more, us."""
    return pane.end + LATENESS_US


def by_start(pane: Pane[Any]) -> str:
    """All keys of one window meet."""
    return str(pane.start)


def everything(value: Any) -> str:
    """The one key of what is asked of all."""
    return "all"


# --- 5: hot items -------------------------------------------------------------------------------------------------

Most = tuple[int, list[str]]
"""The largest count, and the auctions that have it."""


def _more(most: Most, other: Most) -> Most:
    if other[0] == most[0]:
        return most[0], sorted({*most[1], *other[1]})
    return max(most, other, key=lambda each: each[0])


HOTTEST: Aggregation[Pane[int], Most, Most] = aggregation(
    "hottest", lambda: (0, []), lambda most, pane: _more(most, (pane.value, [pane.key])), _more, lambda most: most,
    MsgpackCoder[Most](Most), Most,
)  # fmt: skip
"""A later pane of an auction has a larger count, so no pane need be taken back."""

Q5_TABLE = table("q5", {"window_start": "bigint", "auction": "bigint", "bids": "bigint"}, ("window_start", "auction"))


def _q5_rows(pane: Pane[Most]) -> list[Row]:
    # Its window is the step in which the counted one ends.
    start, (most, hot) = pane.end - WINDOW_US, pane.value
    return [{"window_start": start, "auction": int(auction), "bids": most, "at": pane.end} for auction in hot]


def _q5(events: Chain[Event]) -> None:
    counts = (
        bids(events)
        .key_by(by_auction)
        .window(Sliding(WINDOW_US, every=EVERY_US), lateness=LATENESS_US)
        .aggregate(count(), name="q5.counts")
    )
    hottest = (
        counts.key_by(everything).window(Fixed(EVERY_US), lateness=LATENESS_US).aggregate(HOTTEST, name="q5.hottest")
    )
    replace(hottest.key_by(by_start), Q5_TABLE, _q5_rows, over)


Q5 = NexmarkQuery(
    Q5_TABLE,
    _q5,
    f"""WITH counts AS (
            SELECT window_start, auction, count(*) AS bids
            FROM bid, generate_series(time - time % {EVERY_US} - {WINDOW_US - EVERY_US}, time, {EVERY_US}) window_start
            GROUP BY window_start, auction)
        SELECT window_start, auction, bids FROM counts
        WHERE (window_start, bids) IN (SELECT window_start, max(bids) FROM counts GROUP BY window_start)""",
)

# --- 7: highest bid -----------------------------------------------------------------------------------------------


def _highest(left: list[Bid], right: list[Bid]) -> list[Bid]:
    if not left or not right:
        return left or right
    if left[0].price == right[0].price:
        return left + right
    return max(left, right, key=lambda each: each[0].price)


HIGHEST: Aggregation[Bid, list[Bid], list[Bid]] = aggregation(
    "highest", list, lambda best, bid: _highest(best, [bid]), _highest, lambda best: best,
    MsgpackCoder[list[Bid]](list[Bid]), list[Bid],
)  # fmt: skip

Q7_TABLE = table(
    "q7",
    {
        "window_end": "bigint",
        "number": "bigint",
        "auction": "bigint",
        "bidder": "bigint",
        "price": "bigint",
        "time": "bigint",
    },
    ("window_end", "number"),
)


def _q7_rows(pane: Pane[list[Bid]]) -> list[Row]:
    return [
        {
            "window_end": pane.end, "number": bid.number, "auction": bid.auction, "bidder": bid.bidder,
            "price": bid.price, "time": bid.time, "at": pane.end,
        }
        for bid in pane.value
    ]  # fmt: skip


def _q7(events: Chain[Event]) -> None:
    highest = (
        bids(events)
        .key_by(everything)
        .window(Fixed(WINDOW_US), lateness=LATENESS_US)
        .aggregate(HIGHEST, name="q7.highest")
    )
    replace(highest.key_by(by_start), Q7_TABLE, _q7_rows, over)


Q7 = NexmarkQuery(
    Q7_TABLE,
    _q7,
    f"""WITH ended AS (SELECT *, time - time % {WINDOW_US} + {WINDOW_US} AS window_end FROM bid)
        SELECT window_end, number, auction, bidder, price, time FROM ended
        WHERE (window_end, price) IN (SELECT window_end, max(price) FROM ended GROUP BY window_end)""",
)

# --- 8: new users who sell ----------------------------------------------------------------------------------------


Q8_TABLE = table("q8", {"id": "bigint", "name": "text", "window_start": "bigint"}, ("id", "window_start"))


def _q8_rows(found: Match[Person, Auction]) -> list[Row]:
    # Each of the person's auctions in the window gives this row.
    return [{"id": found.left.id, "name": found.left.name, "window_start": found.start, "at": found.start}]


def _q8(events: Chain[Event]) -> None:
    new = persons(events).key_by(lambda person: str(person.id))
    sellers = auctions(events).key_by(lambda auction: str(auction.seller))
    met = new.join(sellers, Fixed(WINDOW_US), lateness=LATENESS_US, name="q8.join")
    met.key_by(lambda found: found.key).upsert_to(Q8_TABLE, _q8_rows)


Q8 = NexmarkQuery(
    Q8_TABLE,
    _q8,
    f"""SELECT DISTINCT person.id, name, person.time - person.time % {WINDOW_US} FROM person JOIN auction
        ON seller = person.id AND person.time / {WINDOW_US} = auction.time / {WINDOW_US}""",
)

# --- 11: sessions of bidders --------------------------------------------------------------------------------------

Q11_TABLE = table(
    "q11",
    {"bidder": "bigint", "session_start": "bigint", "session_end": "bigint", "bids": "bigint"},
    ("bidder", "session_start", "session_end"),
)


def _overlaps(pane: Pane[int], key: Key) -> bool:
    _, start, end = key
    return int(start) < pane.end and pane.start < int(end)


def _q11_rows(pane: Pane[int]) -> list[Row]:
    return [
        {
            "bidder": int(pane.key), "session_start": pane.start, "session_end": pane.end, "bids": pane.value,
            "at": pane.end,
        }
    ]  # fmt: skip


def _q11(events: Chain[Event]) -> None:
    sessions = (
        bids(events)
        .key_by(lambda bid: str(bid.bidder))
        .window(Sessions(WINDOW_US), AtWatermark(early=EveryRecords(1)), lateness=LATENESS_US)
        .aggregate(count(), name="q11.sessions")
    )
    # A bid that joins a row's session to a longer one gives a pane at once, whose time is the end of the longer one: a
    # row can be taken back until then, and no session of this site lasts a day.
    replace(sessions.key_by(lambda pane: pane.key), Q11_TABLE, _q11_rows, lambda pane: over(pane) + DAY, _overlaps)


Q11 = NexmarkQuery(
    Q11_TABLE,
    _q11,
    f"""WITH told AS (
            SELECT bidder, time, coalesce(time - lag(time) OVER one >= {WINDOW_US}, true) AS first
            FROM bid WINDOW one AS (PARTITION BY bidder ORDER BY time)),
        numbered AS (SELECT *, count(*) FILTER (WHERE first) OVER (PARTITION BY bidder ORDER BY time) AS session FROM told)
        SELECT bidder, min(time), max(time) + {WINDOW_US}, count(*) FROM numbered GROUP BY bidder, session""",
)

# --- 12: windows of wall time -------------------------------------------------------------------------------------

Q12_TABLE = table("q12", {"bidder": "bigint", "window_start": "bigint", "bids": "bigint"}, ("bidder", "window_start"))


def _q12_rows(pane: Pane[int]) -> list[Row]:
    return [{"bidder": int(pane.key), "window_start": pane.start, "bids": pane.value, "at": pane.end}]


def _q12(events: Chain[Event]) -> None:
    windows = (
        bids(events).key_by(lambda bid: str(bid.bidder)).window(Wall(WINDOW_US)).aggregate(count(), name="q12.counts")
    )
    windows.key_by(lambda pane: pane.key).upsert_to(Q12_TABLE, _q12_rows)


Q12 = NexmarkQuery(
    Q12_TABLE,
    _q12,
    "SELECT bidder, count(*) FROM bid GROUP BY bidder",
    found="SELECT bidder, sum(bids)::bigint FROM q12 GROUP BY bidder",
)
"""Which window a bid falls in is by the clock, so what is compared is that each bid is in one."""

QUERIES: Final = (Q5, Q7, Q8, Q11, Q12)
