"""Links as they arrive, drawn from a seed."""

from __future__ import annotations

import random
from typing import Final

import msgspec

ROOT_PAGE: Final = "p0"
START_US: Final = 1_700_000_000_000_000
STEP_US: Final = 1_000
"""Between two links."""
OF_THE_ROOT: Final = 200
"""One link in so many begins at the root, so that most of the pages are reached in the end."""


class PageLink(msgspec.Struct, frozen=True):
    """One page links to another."""

    page: str
    to: str


def arriving(count: int, seed: int = 1) -> list[tuple[PageLink, int]]:
    """`count` links among half as many pages, with the event time (us) of each.

    At about half of the links, most pages begin to hang together: within few links many of them are reached at once.
    """
    dice, pages = random.Random(f"links {seed}"), max(2, count // 2)
    found = []
    for number in range(count):
        page = ROOT_PAGE if number % OF_THE_ROOT == 0 else f"p{dice.randrange(pages)}"
        found.append((PageLink(page, f"p{dice.randrange(pages)}"), START_US + number * STEP_US))
    return found
