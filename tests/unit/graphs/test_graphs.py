"""The examples' arithmetic on partitions, without Spark: a step over all partitions against plain numpy."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from examples.graphs import components, pagerank, paths
from examples.graphs.graph import (
    ATHLETES,
    HOLLINS,
    Adjacency,
    WeightedGraph,
    _adjacency,
    cliques,
    load,
    lower,
    scale_free,
)
from examples.graphs.kmeans import blobs, means, nearest_of, sums
from examples.graphs.runs import places
from millwheel.spark.iteration import Part, Rows, partition_of
from millwheel.spark.iteration.columns import joined, split

PARTITIONS = 3


def cut(graph: WeightedGraph) -> list[Adjacency]:
    home, leaving = partition_of(graph.vertices, PARTITIONS), partition_of(graph.source, PARTITIONS)
    return [_adjacency(n, PARTITIONS, graph, graph.vertices[home == n], leaving == n) for n in range(PARTITIONS)]


def exchanged(sent: list[Rows]) -> list[Rows]:
    pieces = [split(rows, PARTITIONS) for rows in sent]
    return [joined(piece[number] for piece in pieces) for number in range(PARTITIONS)]


@pytest.mark.parametrize(
    ("path", "vertices", "links"), [(HOLLINS, 6012, 23_875), (ATHLETES, 13_866, 86_858)], ids=["hollins", "athletes"]
)
def test_the_carried_graphs_are_what_their_readme_says(path: Path, vertices: int, links: int) -> None:
    graph = load(path)
    assert (len(graph.vertices), len(graph.source)) == (vertices, links)


@pytest.mark.parametrize("text", ["1 2\n2 3\n", "a,b\n1,2\n2,3\n", "start end\n1 2\n\n2 3"])
def test_edge_lists_in_several_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "plain").write_text(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    for name in ("plain", "packed"):
        graph = load(tmp_path / name)
        assert graph.vertices.tolist() == [1, 2, 3]
        assert graph.target.tolist() == [2, 3]


def test_a_file_that_is_no_edge_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("1 2\n3 x\n")
    with pytest.raises(ValueError, match="wrong is not an edge list"):
        load(tmp_path / "wrong")
    (tmp_path / "empty").write_text("FromNodeId\tToNodeId\n")
    with pytest.raises(ValueError, match="empty holds no link"):
        load(tmp_path / "empty")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1 2\n" * 1_000)[:-9])
    with pytest.raises(ValueError, match=r"cut\.gz is cut off"):
        load(tmp_path / "cut.gz")


def test_generators_are_seeded_and_of_the_size_asked_for() -> None:
    one, other = scale_free(500, 3000, seed=4), scale_free(500, 3000, seed=4)
    assert np.array_equal(one.target, other.target)
    assert (len(one.vertices), len(one.source)) == (500, 3000)
    assert np.sort(np.bincount(one.target, minlength=500))[-5:].sum() > 5 * 5 * 3000 / 500  # hubs
    chain = cliques(4, 5)
    assert (len(chain.vertices), len(chain.source)) == (20, 2 * (4 * 10 + 3))


def test_a_pagerank_step_over_partitions_is_that_of_plain_numpy_and_keeps_the_total() -> None:
    graph = scale_free(400, 1500, seed=1)
    links = cut(graph)
    n = len(graph.vertices)
    parts = [Part(part.number, part.keys, {"rank": np.full(len(part.keys), 1 / n)}) for part in links]
    for _ in range(60):
        arrived = exchanged([pagerank.shares(part, own) for part, own in zip(parts, links, strict=True)])
        parts = [pagerank.gathered(n, part, rows) for part, rows in zip(parts, arrived, strict=True)]
    found = {int(k): float(r) for part in parts for k, r in zip(part.keys, part["rank"], strict=True)}
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    exact = pagerank.exact(graph.vertices, graph.source, graph.target)
    assert np.abs(exact - np.array([found[int(key)] for key in graph.vertices])).sum() < 1e-4


def test_relax_finds_the_lost_ranks_when_the_survivors_are_exact() -> None:
    graph = scale_free(400, 1500, seed=2)
    links, n = cut(graph), 400
    exact = pagerank.exact(graph.vertices, graph.source, graph.target)
    parts = [Part(own.number, own.keys, {"rank": exact[own.keys]}) for own in links]
    lost = frozenset({1})
    sent = [
        pagerank._shares_into(lost, part.take(np.arange(0)) if part.number in lost else part, own)
        for part, own in zip(parts, links, strict=True)
    ]
    initial = Part(1, links[1].keys, {"rank": np.full(len(links[1].keys), 1 / n)})
    given = pagerank._boundary(lost, initial, exchanged(sent)[1])
    solved = pagerank._solved([given], [links[1]], n, float(parts[1]["rank"].sum()))
    assert np.abs(solved[1] - parts[1]["rank"]).max() < 1e-9


def test_labels_and_distances_go_along_every_link_of_a_changed_vertex() -> None:
    graph = scale_free(200, 900, seed=3)
    links = cut(graph)
    changed = [Part(own.number, own.keys[::3], {"label": own.keys[::3] * 2}) for own in links]
    sent = joined(components.told(part, own) for part, own in zip(changed, links, strict=True))
    expected: dict[int, int] = {}
    awake = {int(key) for part in changed for key in part.keys}
    for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        if source in awake:
            expected[target] = min(2 * source, expected.get(target, 2 * source))
    found: dict[int, int] = {}
    for key, label in zip(sent.keys.tolist(), sent["label"].tolist(), strict=True):
        found[key] = min(label, found.get(key, label))
    assert found == expected
    far = [Part(own.number, own.keys, {"distance": np.full(len(own.keys), np.inf)}) for own in links]
    assert not any(len(paths.told(part, own)) for part, own in zip(far, links, strict=True))


def test_lower_keeps_only_what_gets_smaller() -> None:
    part = Part(0, np.array([1, 2, 3]), {"label": np.array([1, 2, 3])})
    rows = Rows(np.array([3, 2, 3, 1]), {"label": np.array([2, 5, 1, 1])})
    found = lower("label", part, rows)
    assert (found.keys.tolist(), found["label"].tolist()) == ([3], [1])
    assert len(lower("label", part, Rows(np.empty(0, np.int64)))) == 0


def test_who_links_to_a_lost_partition_is_found() -> None:
    graph = cliques(6, 4)
    lost = frozenset({2})
    home = dict(zip(graph.vertices.tolist(), partition_of(graph.vertices, PARTITIONS).tolist(), strict=True))
    expected = {s for s, t in zip(graph.source.tolist(), graph.target.tolist(), strict=True) if home[t] == 2}
    expected |= {vertex for vertex, number in home.items() if number == 2}
    assert {int(key) for own in cut(graph) for key in components.beside(lost, own).keys} == expected


def test_a_kmeans_step_is_the_mean_of_the_nearest_and_an_empty_centre_stays() -> None:
    points = blobs(300, 3, 2, seed=1)
    at = np.vstack([points[:2], [[1e6, 1e6]]])
    part = Part(0, np.arange(3), {"at": at})
    found = means(part, joined([sums(at, points[:100]), sums(at, points[100:])]))["at"]
    nearest = nearest_of(points, at)
    for place in (0, 1):
        assert np.allclose(found[place], points[nearest == place].mean(axis=0))
    assert found[2].tolist() == [1e6, 1e6]


def test_places_are_by_rank_and_then_by_key() -> None:
    assert places({5: 0.1, 7: 0.4, 9: 0.1}).tolist() == [1, 0, 2]
