"""A minimum cut of a network whose edges cost whole numbers or cannot be cut, by augmenting shortest paths.

Of several cuts of one cost the one nearest to the sinks is taken. Must not know what the network stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Edge = tuple[int, int, int | None]
"""Start, end, and what cutting the edge costs: `None` for one that cannot be cut."""

SOURCE, SINK = -1, -2


def minimum_cut(edges: Sequence[Edge], sources: Iterable[int], sinks: Iterable[int]) -> frozenset[int]:
    """The starts of the edges to cut, so that no sink is reached from a source, at the least cost together."""
    free: dict[tuple[int, int], float] = {}
    neighbours: dict[int, list[int]] = {SOURCE: [], SINK: []}
    for start, end, cost in (*edges, *((SOURCE, source, None) for source in sources), *((sink, SINK, None) for sink in sinks)):
        for one, other in ((start, end), (end, start)):
            if (one, other) not in free:
                free[one, other] = 0
                neighbours.setdefault(one, []).append(other)
        free[start, end] += math.inf if cost is None else cost

    def reached(first: int, towards: bool) -> dict[int, int]:
        """Every vertex that more can flow to from `first` (`towards`: from which it can to `first`), nearest first, and what
        comes before it."""
        found, queue = {first: first}, [first]
        for here in queue:
            for there in neighbours[here]:
                if there not in found and free[(there, here) if towards else (here, there)] > 0:
                    found[there] = here
                    queue.append(there)
        return found

    while SINK in (before := reached(SOURCE, towards=False)):
        path = [(before[SINK], SINK)]
        while path[-1][0] != SOURCE:
            path.append((before[path[-1][0]], path[-1][0]))
        amount = min(free[step] for step in path)
        if amount == math.inf:
            raise ValueError("no cut separates the sources from the sinks")
        for start, end in path:
            free[start, end] -= amount
            free[end, start] += amount
    far = reached(SINK, towards=True)
    return frozenset(start for start, end, _ in edges if start not in far and end in far)


def connected_pieces(edges: Sequence[Edge]) -> list[list[Edge]]:
    """The edges of each part of a network that nothing joins to the rest, in their order."""
    leads_to: dict[int, int] = {}

    def root(vertex: int) -> int:
        while leads_to.setdefault(vertex, vertex) != vertex:
            leads_to[vertex] = vertex = leads_to[leads_to[vertex]]
        return vertex

    for start, end, _ in edges:
        leads_to[root(start)] = root(end)
    found: dict[int, list[Edge]] = {}
    for edge in edges:
        found.setdefault(root(edge[0]), []).append(edge)
    return list(found.values())
