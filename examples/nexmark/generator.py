"""Events as Nexmark draws them, and the orders in which they arrive.

Lives here: the seeded generator, and `arrivals`.  Of 50 events one is a person, three are auctions and 46 are bids.  Half of
the bids are for the newest hundredth auction, and three quarters of them by the newest hundredth bidder.  Three quarters of
the auctions are by the newest hundredth seller.  Invariant: the same arguments give the same events.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from examples.nexmark.model import DISORDER_US, LATENESS_US, Auction, Bid, Event, Person
from millwheel import DAY, SECOND

CYCLE: Final = 50
PERSONS: Final = 1
AUCTIONS: Final = 3

FIRST_ID: Final = 1_000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
HOT_EVERY: Final = 100
"""Hot ids are the multiples of this."""
ACTIVE: Final = 1_000
"""Bidders and sellers that are not hot are drawn from the newest ones."""
IN_FLIGHT: Final = 100
"""And auctions that are not hot from these."""
LATE_SHARE: Final = 0.01

EVENTS_PER_SECOND: Final = 100
"""Of event time, so that a few thousand events fill several windows."""

START_US: Final = 20_000 * DAY - 12 * SECOND
"""12 seconds before a midnight, UTC: the queries by day have two of them."""

NAMES: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
SURNAMES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CITIES: Final = ("Phoenix", "Palo Alto", "San Mateo", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")


class _Dice(random.Random):
    def price(self) -> int:
        """From 1 to 1,000,000 dollars, in cents; each order of magnitude is as likely."""
        return round(10 ** (self.random() * 6) * 100)

    def text(self, length: int) -> str:
        """Letters, to give an event the size that Nexmark gives it."""
        return "".join(self.choices("abcdefghijklmnopqrstuvwxyz ", k=length))

    def newest(self, last: int, hot: float, among: int) -> int:
        """An index up to `last`: with a chance of `hot` the newest of each hundred, else one of the newest `among`."""
        if self.random() < hot:
            return last - last % HOT_EVERY
        return self.randint(max(0, last - among + 1), last)


def events(count: int, seed: int = 1, per_second: int = EVENTS_PER_SECOND, start_us: int = START_US) -> Iterator[Event]:
    """`count` events in order of event time, at most one of each microsecond.

    >>> [type(event).__name__ for event in events(5)]
    ['Person', 'Auction', 'Auction', 'Auction', 'Bid']
    """
    dice = _Dice(seed)
    for number in range(count):
        time = start_us + number * SECOND // per_second
        cycle, place = divmod(number, CYCLE)
        persons = cycle * PERSONS + min(place, PERSONS)
        auctions = cycle * AUCTIONS + min(max(place - PERSONS, 0), AUCTIONS)
        if place < PERSONS:
            yield _person(dice, number, time, persons)
        elif place < PERSONS + AUCTIONS:
            yield _auction(dice, number, time, auctions, persons)
        else:
            yield _bid(dice, number, time, auctions, persons)


def _person(dice: _Dice, number: int, time: int, index: int) -> Person:
    name = f"{dice.choice(NAMES)} {dice.choice(SURNAMES)}"
    email = f"{dice.text(7)}@{dice.text(5)}.com"
    return Person(number, time, FIRST_ID + index, name, email, dice.choice(CITIES), dice.choice(STATES))


def _auction(dice: _Dice, number: int, time: int, index: int, persons: int) -> Auction:
    initial = dice.price()
    return Auction(
        number, time, FIRST_ID + index, dice.text(20), dice.text(100), initial, initial + dice.price(),
        time + dice.randint(1, 20 * SECOND), FIRST_ID + dice.newest(persons - 1, 0.75, ACTIVE),
        FIRST_CATEGORY + dice.randrange(CATEGORIES),
    )  # fmt: skip


def _bid(dice: _Dice, number: int, time: int, auctions: int, persons: int) -> Bid:
    channel = dice.choice(HOT_CHANNELS) if dice.random() < 0.5 else f"channel-{dice.randrange(100)}"
    return Bid(
        number, time, FIRST_ID + dice.newest(auctions - 1, 0.5, IN_FLIGHT),
        FIRST_ID + dice.newest(persons - 1, 0.75, ACTIVE), dice.price(), channel,
        f"https://www.nexmark.com/{dice.text(5)}/item.htm?query=1", dice.text(12),
    )  # fmt: skip


def arrivals(made: list[Event], order: str, seed: int = 1) -> list[Event]:
    """`made` in the order in which they come.

    `"ordered"`: by event time.  `"shuffled"`: up to `DISORDER_US` behind the newest.  `"late"`: and one of a hundred by up to
    `LATENESS_US` more than that.  `"doubled"`: as late, and each comes a second time, somewhat later.
    """
    if order == "ordered":
        return made
    dice = random.Random(seed)
    placed = [(event.time + _delay(dice, order), event) for event in made]
    if order == "doubled":
        placed += [(place + dice.randint(0, DISORDER_US), event) for place, event in placed]
    return [event for _, event in sorted(placed, key=lambda entry: entry[0])]


def _delay(dice: random.Random, order: str) -> int:
    if order != "shuffled" and dice.random() < LATE_SHARE:
        return dice.randint(DISORDER_US, DISORDER_US + LATENESS_US)
    return dice.randint(0, DISORDER_US)
