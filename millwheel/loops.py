"""Loops of a pipeline: which computations send to each other in a circle, and where each circle is cut.

Lives here: strongly connected components of a directed graph, and the choice of their back edges.  Never here: streams,
settings or watermarks.  Invariants:

* without its back edges a graph has no circle;
* the choice depends on names only, so that every process and every run makes the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from millwheel.errors import InvariantError

LOOP_PREFIX = "loop:"
"""Before the name of a loop's head: the name under which the floor of the loop is stored."""


class Loop(msgspec.Struct, frozen=True):
    """Computations that reach each other (a strongly connected component), and where the circle is cut."""

    name: str
    """`LOOP_PREFIX` and the computation at which the loop begins: the first by name of those that get input from outside."""
    members: tuple[str, ...]
    """By name."""
    back_edges: tuple[tuple[str, str], ...]
    """(sender, receiver), by name.  Without them the members have an order."""

    @property
    def heads(self) -> frozenset[str]:
        """Members that receive on back edges."""
        return frozenset(receiver for _, receiver in self.back_edges)


def loops_of(edges: Mapping[str, Collection[str]], entries: Collection[str]) -> tuple[Loop, ...]:
    """The loops of a graph, by name: `edges` maps each node to its receivers, `entries` get input that no node sends.

    >>> loops_of({"a": ["b"], "b": ["c"], "c": ["b"]}, ["a"])
    (Loop(name='loop:b', members=('b', 'c'), back_edges=(('c', 'b'),)),)
    """
    found = []
    for members in components(edges):
        within = {node: sorted(members.intersection(edges.get(node, ()))) for node in sorted(members)}
        if len(members) == 1 and not any(within.values()):
            continue
        fed = {to for node, receivers in edges.items() if node not in members for to in receivers}
        entered = sorted(members & (fed | {*entries}))
        begin = entered[0] if entered else min(members)
        found.append(Loop(LOOP_PREFIX + begin, tuple(within), tuple(sorted(back_edges(within, begin)))))
    return tuple(sorted(found, key=lambda loop: loop.name))


def components(edges: Mapping[str, Collection[str]]) -> list[set[str]]:
    """The strongly connected components (Tarjan), receivers before senders.  A node without a circle is one by itself."""
    found: list[set[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    """By node: the earliest node on the path that it reaches."""
    open_: list[str] = []
    placed: set[str] = set()
    for start in sorted(edges):
        # Each step of the walk is (node, its receivers that are not looked at yet): no recursion, whatever the length.
        walk: list[tuple[str, Iterator[str]]] = []
        if start not in order:
            _enter(start, edges, order, lowest, open_, walk)
        while walk:
            node, rest = walk[-1]
            for to in rest:
                if to not in order:
                    _enter(to, edges, order, lowest, open_, walk)
                    break
                if to not in placed:
                    lowest[node] = min(lowest[node], order[to])
            else:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    at = open_.index(node)
                    found.append({*open_[at:]})
                    placed.update(open_[at:])
                    del open_[at:]
    return found


def _enter(
    node: str,
    edges: Mapping[str, Collection[str]],
    order: dict[str, int],
    lowest: dict[str, int],
    open_: list[str],
    walk: list[tuple[str, Iterator[str]]],
) -> None:
    order[node] = lowest[node] = len(order)
    open_.append(node)
    walk.append((node, iter(sorted(edges.get(node, ())))))


def back_edges(edges: Mapping[str, Collection[str]], begin: str) -> set[tuple[str, str]]:
    """Edges that lead back to where a depth-first walk from `begin`, in the order of names, came from.

    Raises `InvariantError` when the walk does not reach every node.
    """
    found: set[tuple[str, str]] = set()
    seen, path = {begin}, {begin}
    walk = [(begin, iter(sorted(edges.get(begin, ()))))]
    while walk:
        node, rest = walk[-1]
        for to in rest:
            if to in path:
                found.add((node, to))
            elif to not in seen:
                seen.add(to)
                path.add(to)
                walk.append((to, iter(sorted(edges.get(to, ())))))
                break
        else:
            walk.pop()
            path.discard(node)
    if seen != edges.keys():
        raise InvariantError(f"{sorted(edges.keys() - seen)} cannot be reached from {begin!r}, so this is no loop")
    return found
