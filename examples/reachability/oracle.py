"""The judge: networkx says which pages are reached after each prefix of the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import networkx as nx

from examples.reachability.links import ROOT_PAGE, PageLink


def prefixes(count: int, compared: int) -> list[int]:
    """Lengths of the prefixes that are compared: `compared` of them, evenly, and all links."""
    return sorted({count * i // compared for i in range(1, compared + 1)})


def reached(links: Sequence[tuple[PageLink, int]], compared: int) -> Iterator[tuple[int, int, set[str]]]:
    """Of each prefix: its length, the time of its last link in us, and the pages that it reaches."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node(ROOT_PAGE)
    done = 0
    for length in prefixes(len(links), compared):
        graph.add_edges_from((link.page, link.to) for link, _ in links[done:length])
        done = length
        yield length, links[length - 1][1], {ROOT_PAGE, *nx.descendants(graph, ROOT_PAGE)}


def difference(links: Sequence[tuple[PageLink, int]], since: Mapping[str, int], compared: int) -> str | None:
    """The first prefix after which the pages are not those of networkx, in words; None when there is none.

    `since` has the time in us from when on each page is reached.
    """
    for length, upto, wanted in reached(links, compared):
        found = {page for page, at in since.items() if at <= upto}
        if found != wanted:
            missing, extra = sorted(wanted - found)[:5], sorted(found - wanted)[:5]
            return f"after {length:,} links: missing {missing}, too much {extra} ({len(found):,} of {len(wanted):,})"
    return None
