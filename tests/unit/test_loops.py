"""Loops are the strongly connected components; what is left without their back edges has an order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import InvariantError
from millwheel.loops import Loop, back_edges, components, loops_of

NODES = "abcdefgh"

Edges = dict[str, list[str]]


def graphs(nodes: str = NODES) -> st.SearchStrategy[Edges]:
    return st.fixed_dictionaries({node: st.lists(st.sampled_from(nodes), max_size=3, unique=True) for node in nodes})


def as_networkx(edges: Mapping[str, Collection[str]]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(edges)
    graph.add_edges_from((node, to) for node, receivers in edges.items() for to in receivers)
    return graph


@given(graphs())
def test_components_are_those_of_networkx_receivers_first(edges: Edges) -> None:
    found = components(edges)
    assert {frozenset(c) for c in found} == {frozenset(c) for c in nx.strongly_connected_components(as_networkx(edges))}
    place = {node: i for i, component in enumerate(found) for node in component}
    assert all(place[to] <= place[node] for node, receivers in edges.items() for to in receivers)


@given(graphs(), st.sets(st.sampled_from(NODES)))
def test_without_its_back_edges_a_graph_has_no_circle(edges: Edges, entries: set[str]) -> None:
    graph, loops = as_networkx(edges), loops_of(edges, entries)
    found = [frozenset(c) for c in nx.strongly_connected_components(graph)]
    circles = {c for c in found if len(c) > 1 or any(node in edges[node] for node in c)}
    assert {frozenset(loop.members) for loop in loops} == circles
    for loop in loops:
        assert all(graph.has_edge(*edge) and {*edge} <= {*loop.members} for edge in loop.back_edges)
        assert loop.heads <= {*loop.members}
        assert loop.heads
        graph.remove_edges_from(loop.back_edges)
    assert nx.is_directed_acyclic_graph(graph)


@given(graphs(), st.permutations(NODES))
def test_the_choice_does_not_depend_on_the_order_of_wiring(edges: Edges, names: list[str]) -> None:
    assert loops_of({name: edges[name][::-1] for name in names}, ["c"]) == loops_of(edges, ["c"])


def test_a_loop_begins_where_it_gets_input_from_outside() -> None:
    edges = {"in": ["m"], "a": ["m"], "m": ["z"], "z": ["a", "out"], "out": []}
    assert loops_of(edges, []) == (Loop("loop:m", ("a", "m", "z"), (("a", "m"),)),)
    assert loops_of({"a": ["b"], "b": ["a"]}, ["b"]) == (Loop("loop:b", ("a", "b"), (("a", "b"),)),)


def test_what_sends_to_itself_is_a_loop() -> None:
    (loop,) = loops_of({"a": ["a"], "b": []}, ["a"])
    assert loop == Loop("loop:a", ("a",), (("a", "a"),))
    assert loop.heads == {"a"}


def test_a_long_chain_needs_no_recursion() -> None:
    edges = {f"n{i:05}": [f"n{i + 1:05}"] for i in range(20_000)} | {"n20000": ["n00000"]}
    (loop,) = loops_of(edges, [])
    assert (len(loop.members), loop.back_edges) == (20_001, (("n20000", "n00000"),))


def test_what_two_ways_lead_to_closes_no_loop() -> None:
    assert back_edges({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["a"]}, "a") == {("d", "a")}


def test_back_edges_are_those_of_one_component() -> None:
    with pytest.raises(InvariantError, match="'c'"):
        back_edges({"a": ["b"], "b": ["a"], "c": []}, "a")
