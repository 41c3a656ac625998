"""Graphs as arrays, and one partition of a graph as an `Adjacency`.

Lives here: reading edge lists, seeded generators, and the arithmetic on one partition's links that the algorithms share.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark import SparkContext

from millwheel.spark.iteration import Part, Partitioned, Rows, from_elements, partition_of

DATA = Path(__file__).resolve().parent / "data"
HOLLINS = DATA / "hollins-web-2004.dat.gz"
ATHLETES = DATA / "facebook-athletes-2017.csv.gz"

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedGraph:
    """`vertices`: ascending ids, shape (n,). Link i goes from `source[i]` to `target[i]` and costs `weight[i]`."""

    vertices: Ints
    source: Ints
    target: Ints
    weight: Floats

    @staticmethod
    def of(source: Ints, target: Ints, weight: Floats | None = None) -> WeightedGraph:
        """From links alone: the vertices are their ends."""
        vertices = np.union1d(source, target)
        return WeightedGraph(vertices, source, target, np.ones(len(source)) if weight is None else weight)

    def undirected(self) -> WeightedGraph:
        """Each link in both directions."""
        return WeightedGraph(
            self.vertices,
            np.concatenate([self.source, self.target]),
            np.concatenate([self.target, self.source]),
            np.concatenate([self.weight, self.weight]),
        )


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The links that leave the vertices of one partition.

    `keys`: the vertices, ascending. Vertex i has `degree[i]` links; they are the elements `start[i]` to
    `start[i] + degree[i]` of `target` and `weight`. `reached` are the distinct targets, in the order in which they are
    sent, and link j leads to `reached[slot[j]]`.
    """

    number: int
    partitions: int
    keys: Ints
    degree: Ints
    start: Ints
    target: Ints
    weight: Floats
    reached: Ints
    slot: NDArray[np.intp]

    def links_of(self, places: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """For the vertices at these places: (index of each of their links, which of the given places it belongs to)."""
        degree = self.degree[places]
        owner = np.repeat(np.arange(len(places)), degree)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(degree) - degree, degree)
        return self.start[places][owner] + within, owner

    def leading_to(self, lost: frozenset[int]) -> Ints:
        """The vertices with a link into one of the partitions `lost`."""
        into = np.isin(partition_of(self.target, self.partitions), sorted(lost))
        owner = np.repeat(np.arange(len(self.keys)), self.degree)
        return self.keys[np.unique(owner[into])]


def load(path: Path) -> WeightedGraph:
    """An edge list: two ids a line, by comma or space, gzipped or not; a first line without numbers is a header."""
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is cut off or no text: {error}") from error
    pairs = [line.replace(",", " ").split()[:2] for line in text.splitlines() if line.strip()]
    if pairs and not pairs[0][0].lstrip("-").isdigit():
        del pairs[0]
    try:
        links = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except ValueError as error:
        raise ValueError(f"{path} is not an edge list of two integers a line: {error}") from error
    if not len(links):
        raise ValueError(f"{path} holds no link")
    return WeightedGraph.of(links[:, 0], links[:, 1])


def cliques(count: int, size: int) -> WeightedGraph:
    """A chain of cliques: each is complete, and its last vertex is linked to the next one's first. Undirected, one component.

    A long thin graph: labels need some two supersteps a clique to pass through it.
    """
    first = np.arange(count, dtype=np.int64)[:, None] * size
    one, other = np.triu_indices(size, k=1)
    source = np.concatenate([(first + one).ravel(), first[:-1, 0] + size - 1])
    target = np.concatenate([(first + other).ravel(), first[1:, 0]])
    return WeightedGraph.of(source, target).undirected()


def scale_free(vertices: int, links: int, seed: int) -> WeightedGraph:
    """`links` random links whose ends follow a power law (exponent about 2.5), with whole weights from 1 to 10."""
    random = np.random.default_rng(seed)
    pull = (np.arange(1, vertices + 1) ** -0.66).cumsum()
    names = random.permutation(vertices).astype(np.int64)
    target = names[np.searchsorted(pull, random.random(links) * pull[-1])]
    source = random.integers(0, vertices, links)
    weight = random.integers(1, 11, links).astype(np.float64)
    return WeightedGraph(np.arange(vertices, dtype=np.int64), source, target, weight)


def partitioned(context: SparkContext, graph: WeightedGraph, partitions: int) -> Partitioned[Adjacency]:
    """The graph's links by the partition of their source, cached; Spark computes them again when they are lost."""
    home = partition_of(graph.vertices, partitions)
    leaving = partition_of(graph.source, partitions)
    parts = []
    for number in range(partitions):
        mine = leaving == number
        parts.append(_adjacency(number, partitions, graph, graph.vertices[home == number], mine))
    return from_elements(context, parts).kept()


def _adjacency(number: int, partitions: int, graph: WeightedGraph, keys: Ints, mine: NDArray[np.bool_]) -> Adjacency:
    source, target, weight = graph.source[mine], graph.target[mine], graph.weight[mine]
    order = np.argsort(source, kind="stable")
    source, target, weight = source[order], target[order], weight[order]
    degree = np.bincount(np.searchsorted(keys, source), minlength=len(keys)).astype(np.int64)
    reached, slot = np.unique(target, return_inverse=True)
    # In the order of their partitions, so that splitting them by partition finds them sorted.
    sending = np.argsort(partition_of(reached, partitions), kind="stable")
    rank = np.empty(len(sending), dtype=np.intp)
    rank[sending] = np.arange(len(sending))
    start = np.cumsum(degree) - degree
    return Adjacency(number, partitions, keys, degree, start, target, weight, reached[sending], rank[slot])


def vertices_of(links: Partitioned[Adjacency], column: str, values: Any) -> Partitioned[Part]:
    """A state with one column over the graph's vertices: `values(keys)` gives its rows."""
    return links.map(_Column(column, values))


def lower(column: str, part: Part, rows: Rows) -> Part:
    """The rows of `part` for which a message brings a smaller value: one min for each key, then a comparison."""
    if not len(rows):
        return part.take(np.empty(0, np.intp))
    places = part.places(rows.keys)
    least = part[column].copy()
    np.minimum.at(least, places, rows[column])
    better = np.flatnonzero(least < part[column])
    return part.take(better).having(**{column: least[better]})


def to_reached(links: Adjacency, links_index: NDArray[np.intp], values: NDArray[Any], column: str) -> Rows:
    """One row for each vertex reached by the given links, with the least of the values sent to it."""
    slots = links.slot[links_index]
    order = np.lexsort((values, slots))
    slots, values = slots[order], values[order]
    first = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1]))) if len(slots) else np.empty(0, np.intp)
    return Rows(links.reached[slots[first]], {column: values[first]})


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    values: Any

    def __call__(self, links: Adjacency) -> Part:
        return Part(links.number, links.keys, {self.name: self.values(links.keys)})
