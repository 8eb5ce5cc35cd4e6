"""The minimum cut against all cuts of small networks; the pieces of networks against what is reached."""

from __future__ import annotations

import itertools
import random

import networkx
import pytest

from minicompile.graph.minimum_cut import Edge, connected_pieces, minimum_cut

VERTICES = 7


def network(seed: int) -> tuple[list[Edge], list[int], list[int]]:
    """A random network without cycles, a fifth of whose edges cannot be cut."""
    draw = random.Random(seed)
    pairs = [pair for pair in itertools.combinations(range(VERTICES), 2) if draw.random() < 0.5]
    edges = [(*pair, None if draw.random() < 0.2 else draw.randint(1, 5)) for pair in pairs]
    return edges, draw.sample(range(3), draw.randint(1, 2)), draw.sample(range(4, VERTICES), draw.randint(1, 2))


def cost(edges: list[Edge], near: frozenset[int]) -> float:
    """What it costs to cut the edges that leave some vertices."""
    return sum(float("inf") if price is None else price for start, end, price in edges if start in near and end not in near)


@pytest.mark.parametrize("seed", range(150))
def test_no_cut_costs_less_and_none_of_that_cost_is_nearer_to_the_sinks(seed: int) -> None:
    edges, sources, sinks = network(seed)
    between = [vertex for vertex in range(VERTICES) if vertex not in (*sources, *sinks)]
    cuts = [frozenset(sources).union(chosen) for size in range(len(between) + 1)
            for chosen in itertools.combinations(between, size)]
    least = min(cost(edges, near) for near in cuts)
    if least == float("inf"):
        with pytest.raises(networkx.NetworkXUnbounded):
            minimum_cut(edges, sources, sinks)
        return
    largest = frozenset[int]().union(*(near for near in cuts if cost(edges, near) == least))
    expected = {start for start, end, _ in edges if start in largest and end not in largest}
    assert minimum_cut(edges, sources, sinks) == expected


def test_a_long_chain_needs_no_recursion() -> None:
    edges: list[Edge] = [(place, place + 1, 3 if place == 4000 else 5) for place in range(5000)]
    assert minimum_cut(edges, [0], [5000]) == {4000}


def test_pieces_keep_the_order_of_their_edges() -> None:
    edges: list[Edge] = [(0, 1, 1), (5, 6, 2), (1, 2, None), (7, 6, 3), (9, 9, 1)]
    assert connected_pieces(edges) == [[edges[0], edges[2]], [edges[1], edges[3]], [edges[4]]]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_what_is_reached(seed: int) -> None:
    draw = random.Random(seed)
    edges: list[Edge] = [(draw.randrange(60), draw.randrange(60), 1) for _ in range(45)]
    for piece in connected_pieces(edges):
        reached = {piece[0][0]}
        for _ in edges:
            reached.update(*({start, end} for start, end, _ in edges if start in reached or end in reached))
        assert piece == [edge for edge in edges if edge[0] in reached]
