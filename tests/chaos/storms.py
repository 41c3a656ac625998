"""Storms of orders: splits, moves and merges of a cluster's intervals in quick succession, whatever else happens to it.

Lives here: which orders are given, and what became of them.  Never here: whether the result is right (`cluster`).  An order
may be refused, because the map has changed since somebody looked at it, and it may find no leader: both are counted.
"""

from __future__ import annotations

import random
import runpy
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from millwheel.errors import StoreError
from millwheel.overview import ClusterOffice, ClusterPicture, SeenInterval

MOST_INTERVALS = 8
"""Of a computation: from then on it is merged, and not split."""
WAIT_S = 1.0
"""For an order to be carried out; it stays when it is not."""


class Storms:
    """Orders for the pipeline that `path` defines, in the store at `url`; `keys` are all of its keys."""

    def __init__(self, path: Path, url: str, keys: Sequence[str], log: Callable[[str], None]) -> None:
        self.became: Counter[str] = Counter()
        """How many orders of each kind were carried out, and how many were refused, or left for the next leader."""
        self._path = path
        self._url = url
        self._keys = keys
        self._log = log

    def blow(self, seed: str, seconds: float) -> bool:
        """Give orders for so long; whether any was given.  Not in an event loop."""
        dice, before = random.Random(seed), self.became.total()
        pipeline = runpy.run_path(str(self._path))["pipeline"]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                with ClusterOffice(pipeline, self._url) as office:
                    while time.monotonic() < until:
                        self._order(dice, office)
            except (StoreError, psycopg.Error):  # the database is away
                time.sleep(0.2)
        return self.became.total() > before

    def _order(self, dice: random.Random, office: ClusterOffice) -> None:
        kind, intervals, told = drawn(dice, office.look(), self._keys)
        try:
            match kind:
                case "move":
                    office.move(intervals, told, WAIT_S)
                case "split":
                    office.split(intervals[0], [told], WAIT_S)
                case "merge":
                    office.merge(intervals, WAIT_S)
                case _:
                    time.sleep(0.1)
                    return
            became: str = kind
        except StoreError as error:
            became = "refused" if "refuses" in str(error) else "left" if "no leader" in str(error) else ""
            if not became:
                raise
        self.became[became] += 1
        self._log(f"{kind} of {intervals} {told}" + (f": {became}" if became != kind else ""))


def drawn(dice: random.Random, picture: ClusterPicture, keys: Sequence[str]) -> tuple[str, list[int], str]:
    """(kind, intervals, to which worker or at which key) of the next order; a kind of "" when there is nothing to order."""
    computations: dict[str, list[SeenInterval]] = defaultdict(list)
    for one in picture.intervals:
        computations[one.computation].append(one)
    workers = sorted(member.name for member in picture.members if member.role == "worker" and member.alive)
    if not computations or not workers:
        return "", [], ""
    intervals = sorted(computations[dice.choice(sorted(computations))], key=lambda one: one.low)
    kind = dice.choice(("move", "split", "merge"))
    if kind == "split" and len(intervals) >= MOST_INTERVALS:
        kind = "merge"
    if kind == "move":
        return (
            kind,
            [int(one.id) for one in dice.sample(intervals, dice.randint(1, len(intervals)))],
            dice.choice(workers),
        )
    if kind == "merge" and len(intervals) > 1:
        first = dice.randrange(len(intervals) - 1)
        return kind, [int(one.id) for one in intervals[first : first + 2]], ""
    cut = dice.choice(intervals)
    inside = [key for key in keys if key > cut.low and (cut.high is None or key < cut.high)]
    return ("split", [int(cut.id)], dice.choice(inside)) if inside else ("", [], "")
