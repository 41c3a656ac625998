"""PageRank as a bulk iteration; rank of pages without links goes to all. The ranks of all pages add up to 1.

Two compensations. `spread`, the paper's: the lost mass evenly over the lost pages. It keeps the total and costs one pass. It
puts the lost pages about as far from the fixpoint as they were at the start. Convergence is linear, so it saves few
supersteps or none. `relax` solves the lost pages' equations with the surviving ranks held fixed: then they are about as good
as the survivors are, and the iteration goes on where it was. It brings the lost pages' links to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from examples.graphs.graph import Adjacency, Floats, Ints
from millwheel.spark.iteration import Converged, Loss, Optimistic, Outcome, Part, Partitioned, Recovery, Rows, iterate
from millwheel.spark.iteration import partition_of as home_of

DAMPING = 0.85
INNER_LIMIT = 200
INNER_SHARE = 1e-10


@dataclass(frozen=True, slots=True)
class PageRank:
    """`links` of `pages` pages; stops when no rank moves by `below` any more (1 / (100 pages) unless given)."""

    links: Partitioned[Adjacency]
    pages: int
    below: float | None = None

    def initial(self) -> Partitioned[Part]:
        """Every page the same rank."""
        return self.links.map(partial(_even, 1.0 / self.pages))

    def step(self, ranks: Partitioned[Part]) -> Partitioned[Part]:
        """Every page shares its rank among its links."""
        return ranks.receive(ranks.send(shares, self.links), partial(gathered, self.pages))

    def run(self, recovery: Recovery | None = None, **options: Any) -> Outcome[Any]:
        """Iterate."""
        until = Converged(self.below or 1.0 / (100 * self.pages), "rank")
        return iterate(self.initial(), self.step, until, recovery, name="pagerank", **options)

    def optimistic(self, how: str = "spread") -> Optimistic:
        """The policy, with the compensation of that name."""
        known: dict[str, Callable[[Loss], Partitioned[Part]]] = {"spread": self.spread, "relax": self.relax}
        return Optimistic(known[how], check=not_negative, conserved="rank")

    def spread(self, loss: Loss) -> Partitioned[Part]:
        """The lost rank evenly over the lost pages."""
        lost = frozenset(loss.lost)
        pages = sum(loss.rows[number] for number in loss.lost)
        return loss.initial.map(partial(_filled, lost, lost_rank(loss) / max(pages, 1)))

    def relax(self, loss: Loss) -> Partitioned[Part]:
        """The lost pages' ranks from those that link to them, the surviving ranks held fixed; same total as `spread`."""
        lost = frozenset(loss.lost)
        into = loss.survivors.send(partial(_shares_into, lost), self.links)
        given = [part for part in loss.initial.receive(into, partial(_boundary, lost)).collect() if part.number in lost]
        links = [part for part in self.links.map(partial(_only, lost)).collect() if part is not None]
        solved = _solved(given, links, self.pages, lost_rank(loss))
        return loss.initial.map(partial(_from, solved))


def shares(part: Part, links: Adjacency) -> Rows:
    """What each page gives to those that it links to, added up by target; pages without links give to all."""
    per_link = part["rank"] / np.maximum(links.degree, 1)
    sums = np.bincount(links.slot, weights=np.repeat(per_link, links.degree), minlength=len(links.reached))
    return Rows(links.reached, {"rank": sums}, {"dangling": float(part["rank"][links.degree == 0].sum())})


def gathered(pages: int, part: Part, rows: Rows) -> Part:
    """The new ranks of a partition's pages."""
    sums = np.bincount(part.places(rows.keys), weights=_ranks(rows), minlength=len(part))
    return part.having(rank=DAMPING * (sums + rows.totals["dangling"] / pages) + (1.0 - DAMPING) / pages)


def lost_rank(loss: Loss) -> float:
    """All ranks add up to 1; what the survivors do not have was lost."""
    return 1.0 - sum(total for number, total in loss.totals.items() if number not in loss.lost)


def not_negative(part: Part, initial: Part) -> str | None:
    """What a compensated partition must not hold."""
    wrong = np.flatnonzero(~(part["rank"] >= 0.0))
    return f"key {part.keys[wrong[0]]} has rank {part['rank'][wrong[0]]}" if len(wrong) else None


def exact(vertices: Ints, source: Ints, target: Ints, rounds: int = 400) -> Floats:
    """Ranks by plain power iteration, far beyond any threshold used here: 0.85^400 is 10^-28."""
    n = len(vertices)
    one, other = np.searchsorted(vertices, source), np.searchsorted(vertices, target)
    degree = np.bincount(one, minlength=n)
    rank = np.full(n, 1.0 / n)
    for _ in range(rounds):
        sums = np.bincount(other, weights=(rank / np.maximum(degree, 1))[one], minlength=n)
        rank = DAMPING * (sums + rank[degree == 0].sum() / n) + (1.0 - DAMPING) / n
    return rank


def _ranks(rows: Rows) -> Floats:
    found: Floats = rows["rank"] if len(rows) else np.empty(0)
    return found


def _even(rank: float, links: Adjacency) -> Part:
    return Part(links.number, links.keys, {"rank": np.full(len(links.keys), rank)})


def _none_of(part: Part) -> Part:
    return part.take(np.empty(0, np.intp))


def _filled(lost: frozenset[int], rank: float, part: Part) -> Part:
    return part.having(rank=np.full(len(part), rank)) if part.number in lost else _none_of(part)


def _shares_into(lost: frozenset[int], part: Part, links: Adjacency) -> Rows:
    if part.number in lost:
        return Rows(np.empty(0, np.int64), {"rank": np.empty(0)})
    rows = shares(part, links)
    return rows.take(np.isin(home_of(rows.keys, links.partitions), sorted(lost)))


def _boundary(lost: frozenset[int], part: Part, rows: Rows) -> Part:
    """Of a lost partition: what the survivors give to each page."""
    if part.number not in lost:
        return _none_of(part)
    sums = np.bincount(part.places(rows.keys), weights=_ranks(rows), minlength=len(part))
    dangling = rows.totals.get("dangling", 0.0)
    return part.having(rank=part["rank"], given=sums, dangling=np.full(len(part), dangling))


def _only(lost: frozenset[int], links: Adjacency) -> Adjacency | None:
    return links if links.number in lost else None


def _from(solved: dict[int, Floats], part: Part) -> Part:
    return part.having(rank=solved[part.number]) if part.number in solved else _none_of(part)


def _solved(given: list[Part], links: list[Adjacency], pages: int, mass: float) -> dict[int, Floats]:
    """Jacobi on the equations of the lost pages alone, scaled to the lost mass; ranks by partition."""
    keys = np.concatenate([part.keys for part in given])
    order = np.argsort(keys)
    source = np.concatenate([np.repeat(part.keys, part.degree) for part in links])
    target = np.concatenate([part.target for part in links])
    degree = np.concatenate([part.degree for part in links])
    inside = np.isin(target, keys)
    one = order[np.searchsorted(keys, source[inside], sorter=order)]
    other = order[np.searchsorted(keys, target[inside], sorter=order)]
    boundary = np.concatenate([part["given"] for part in given])
    dangling = next((float(part["dangling"][0]) for part in given if len(part)), 0.0)
    rank = np.full(len(keys), mass / max(len(keys), 1))
    for _ in range(INNER_LIMIT):
        sums = np.bincount(other, weights=(rank / np.maximum(degree, 1))[one], minlength=len(keys)) + boundary
        following = DAMPING * (sums + (dangling + rank[degree == 0].sum()) / pages) + (1.0 - DAMPING) / pages
        moved = float(np.abs(following - rank).max(initial=0.0))
        rank = following
        if moved < INNER_SHARE * mass:
            break
    rank *= mass / rank.sum()
    bounds = np.cumsum([len(part) for part in given])[:-1]
    return {part.number: ranks for part, ranks in zip(given, np.split(rank, bounds), strict=True)}
