"""The three kinds of events of the auction site.

Lives here: the values and their stream.  Never here: how they are made, or what is asked of them.
"""

from __future__ import annotations

from typing import TypeGuard, cast

import msgspec

from millwheel import SECOND, MsgpackCoder, Stream
from millwheel.library import Chain

DISORDER_US = 2 * SECOND
"""How far an event may come behind the newest one; the source declares it."""

LATENESS_US = 5 * SECOND
"""How much later than declared an event may come and still count."""


class Person(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Somebody registers.  `number` is unique among all events, `time` in us."""

    number: int
    time: int
    id: int
    name: str
    email: str
    city: str
    state: str


class Auction(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A seller offers an item until `expires`, us; prices in cents."""

    number: int
    time: int
    id: int
    item: str
    description: str
    initial: int
    reserve: int
    expires: int
    seller: int
    category: int


class Bid(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Somebody bids `price` cents."""

    number: int
    time: int
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str


Event = Person | Auction | Bid

EVENTS = Stream("events", MsgpackCoder[Event](Event))


def _is_bid(event: Event) -> TypeGuard[Bid]:
    return type(event) is Bid


def _is_auction(event: Event) -> TypeGuard[Auction]:
    return type(event) is Auction


def _is_person(event: Event) -> TypeGuard[Person]:
    return type(event) is Person


def bids(events: Chain[Event]) -> Chain[Bid]:
    """The bids alone."""
    return cast(Chain[Bid], events.filter(_is_bid))


def auctions(events: Chain[Event]) -> Chain[Auction]:
    """The auctions alone."""
    return cast(Chain[Auction], events.filter(_is_auction))


def persons(events: Chain[Event]) -> Chain[Person]:
    """The persons alone."""
    return cast(Chain[Person], events.filter(_is_person))
