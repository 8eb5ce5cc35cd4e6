"""Writes of graph inputs: which scatters may go straight into an input, and what must be read before it changes.

`copy_(placeholder, scatter(placeholder, ...))` at a graph's end needs no copy of the whole input if nothing reads the
old contents after the scatter; nor does a chain of scatters, nor a scatter into a view that is put back in its place.
This module decides that from the FX graph and must not emit anything.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from minicompile.ir.operator_names import overload
from minicompile.lowering.registry import VIEWS

COPY = torch.ops.aten.copy_.default

SCATTERS = frozenset(map(overload, (
    "index_put _unsafe_index_put scatter.src scatter.value scatter_add index_add index_copy slice_scatter select_scatter"
).split()))  # fmt: skip

# What puts a region back, and the view that is the region.
REGIONS: dict[Any, Any] = {
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
}


class InputWrites:
    """What a graph writes in place.

    Attributes:
        order: position of each node.
        direct: scatter node to what it may write in place of a copy: the placeholder, an earlier scatter, a view of either.
    """

    def __init__(self, graph: Graph) -> None:
        copies = [node for node in graph.nodes if node.target is COPY and node.args[0].op == "placeholder"]
        self.order: dict[Node, int] = {node: n for n, node in enumerate(graph.nodes)} if copies else {}
        self.direct: dict[Node, Any] = {}
        self._begins: dict[Node, Node] = {}
        for copy in copies:
            writes = self._writes(copy.args[1], copy.args[0])
            if writes and not self.direct.keys() & set(writes) and self._nothing_read_late(writes, copy):
                self.direct.update((node, node.args[0]) for node in writes)

    def _writes(self, value: Any, target: Node) -> list[Node] | None:
        """The scatters that make `target` into `value`, in order, each after those that its source consists of."""
        if value is target:
            return []
        if not isinstance(value, Node) or value.target not in SCATTERS:
            return None
        before = self._writes(value.args[0], target)
        if before is None:
            return None
        region: Any = value.args[1]
        while isinstance(region, Node) and region.target in SCATTERS:
            region = region.args[0]
        inner = self._writes(value.args[1], region) if is_region(region, value) else None
        self._begins[value] = inner[0] if inner else value
        return [*before, *(inner or ()), value]

    def _nothing_read_late(self, writes: list[Node], copy: Node) -> bool:
        """Whether no old contents are read once they are overwritten, or while they are."""
        for write in writes:
            limit = self.order[self._begins[write]]
            for node in aliases(write.args[0]):  # type: ignore[arg-type]  # a node
                for user in node.users:
                    if user in writes:
                        if node in inputs_after_the_first(user) and not is_region(node, user):
                            return False
                    elif user is not copy and not _is_access(user) and self.order[user] > limit:
                        return False
        return True

    def read_after(self, node: Node, moment: Node) -> bool:
        """Whether something later than `moment` reads `node`."""
        return any(self.order[user] > self.order[moment] for user in node.users)


def is_region(view: Any, scatter: Node) -> bool:
    """Whether `view` is exactly the part of the first argument that the scatter replaces."""
    kind = REGIONS.get(scatter.target)
    return (
        kind is not None and isinstance(view, Node) and view.target is kind
        and view.args[0] is scatter.args[0] and view.args[1:] == scatter.args[2:]
    )  # fmt: skip


def inputs_after_the_first(node: Node) -> set[Node]:
    """What a node reads apart from its first argument."""
    found: set[Node] = set()
    torch.fx.node.map_arg((node.args[1:], node.kwargs), found.add)
    return found


def aliases(node: Node) -> list[Node]:
    """The node and every view of it."""
    found = [node]
    for alias in found:
        found.extend(user for user in alias.users if _is_access(user) and user not in found)
    return found


def _is_access(node: Node) -> bool:
    return node.target in VIEWS or node.target is operator.getitem
