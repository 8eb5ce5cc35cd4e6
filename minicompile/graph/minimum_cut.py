"""A minimum cut of a network whose edges cost whole numbers or cannot be cut, by networkx.

Its implementation of Boykov and Kolmogorov's algorithm (2004) is the fastest of theirs on the long chains that models are,
four times as fast as Dinitz'. Of several cuts of one cost the one nearest to the sinks is taken. networkx takes a fifth of a
second to import, which only those pay who compile gradients. Must not know what the network stands for.
"""

from collections.abc import Iterable, Sequence

Edge = tuple[int, int, int | None]
"""Start, end, and what cutting the edge costs: `None` for one that cannot be cut."""

SOURCE, SINK = -1, -2


def minimum_cut(edges: Sequence[Edge], sources: Iterable[int], sinks: Iterable[int]) -> frozenset[int]:
    """The starts of the edges to cut, so that no sink is reached from a source, at the least cost together.

    Raises `networkx.NetworkXUnbounded` where no cut separates them.
    """
    import networkx  # slow to import

    network = networkx.DiGraph()
    for start, end, cost in edges:
        network.add_edge(start, end, **({} if cost is None else {"capacity": cost}))
    network.add_edges_from((SOURCE, source) for source in sources)
    network.add_edges_from((sink, SINK) for sink in sinks)
    _, (near, far) = networkx.minimum_cut(network, SOURCE, SINK, flow_func=networkx.algorithms.flow.boykov_kolmogorov)
    return frozenset(start for start, end, _ in edges if start in near and end in far)


def connected_pieces(edges: Sequence[Edge]) -> list[list[Edge]]:
    """The edges of each part of a network that nothing joins to the rest, in their order."""
    import networkx  # slow to import

    pieces = networkx.connected_components(networkx.Graph((start, end) for start, end, _ in edges))
    piece_of = {vertex: number for number, piece in enumerate(pieces) for vertex in piece}
    found: dict[int, list[Edge]] = {}
    for edge in edges:
        found.setdefault(piece_of[edge[0]], []).append(edge)
    return list(found.values())
