"""Writes of graph inputs: which scatters may go straight into an input, and what must be read before it changes.

`copy_(placeholder, scatter(placeholder, ...))` at a graph's end needs no copy of the whole input if nothing reads the
old contents after the scatter. This module decides that from the FX graph and must not emit anything.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from minicompile.lowering.registry import VIEWS, overload

COPY = torch.ops.aten.copy_.default

SCATTERS = frozenset(
    overload(f"aten.{name}")
    for name in (
        "index_put.default", "_unsafe_index_put.default", "scatter.src", "scatter.value", "scatter_add.default",
        "index_add.default", "index_copy.default", "slice_scatter.default", "select_scatter.default",
    )
)  # fmt: skip


class InputWrites:
    """What a graph writes in place.

    Attributes:
        order: position of each node.
        direct: scatter node to the placeholder that it may write.
    """

    def __init__(self, graph: Graph) -> None:
        copies = [node for node in graph.nodes if node.target is COPY and node.args[0].op == "placeholder"]
        self.order: dict[Node, int] = {node: n for n, node in enumerate(graph.nodes)} if copies else {}
        self.direct: dict[Node, Node] = {}
        for copy in copies:
            target, scatter = copy.args[0], copy.args[1]
            if self._may_write(target, scatter, copy):
                self.direct[scatter] = target

    def _may_write(self, target: Node, scatter: Node, copy: Node) -> bool:
        """Whether nothing reads the old contents of `target` once `scatter` has run."""
        if scatter.target not in SCATTERS or scatter.args[0] is not target or scatter in self.direct:
            return False
        limit = self.order[scatter]
        for node in aliases(target):
            for user in node.users:
                if user not in (scatter, copy) and not _is_access(user) and self.order[user] > limit:
                    return False
                if user is scatter and node is not target:
                    return False
        return True

    def read_after(self, node: Node, moment: Node) -> bool:
        """Whether something later than `moment` reads `node`."""
        return any(self.order[user] > self.order[moment] for user in node.users)


def aliases(node: Node) -> list[Node]:
    """The node and every view of it."""
    found = [node]
    for alias in found:
        found.extend(user for user in alias.users if _is_access(user) and user not in found)
    return found


def _is_access(node: Node) -> bool:
    return node.target in VIEWS or node.target is operator.getitem
