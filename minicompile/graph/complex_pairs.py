"""Complex numbers as pairs of real ones, which kernels of ours compute with: rotary embeddings are often written so.

What is made of `view_as_complex` or of complex inputs by products, sums and views, and ends in `view_as_real`, becomes the
same arithmetic on real and imaginary parts. This module must not touch complex values that anything else reads.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from minicompile.graph import layout, torch_interface
from minicompile.graph.layout import made
from minicompile.graph.operators import name_of, operand

aten = torch.ops.aten
COMPLEX = (torch.complex64, torch.complex128)
CONJUGATES = ("_conj", "conj_physical", "_conj_physical")
VIEWS = "view _unsafe_view reshape unsqueeze squeeze expand permute transpose t slice select alias detach clone".split()
Pair = tuple[Node, Node]


def complex_as_pairs(module: GraphModule) -> GraphModule:
    """Replace what can be computed on pairs from its sources to every `view_as_real` that ends it."""
    writer = _PairWriter(module)
    for node in list(module.graph.nodes):
        if name_of(node) == "view_as_real" and operand(node) in writer.convertible:
            writer.end(node)
    return module


def is_complex(value: Any) -> bool:
    """Whether a node's value is a complex tensor."""
    return isinstance(value, Node) and getattr(value.meta.get("val"), "dtype", None) in COMPLEX


def complex_arguments(node: Node) -> list[Node]:
    """The complex tensors among the positional arguments, as often as they stand there."""
    return [argument for argument in node.args if isinstance(argument, Node) and is_complex(argument)]


def is_known(node: Node) -> bool:
    """Whether a complex value is made of real ones, or of complex ones by an operation that has a form for pairs."""
    name, count = name_of(node), len(complex_arguments(node))
    if name in ("mul", "add", "sub"):
        return count == len(node.args) == 2 and not node.kwargs
    if name == "complex":  # which spreads one part over the other
        shapes = [operand.meta["val"].shape for operand in node.all_input_nodes]
        return all(type(size) is int for shape in shapes for size in shape) and shapes[0] == shapes[-1]
    return name in ("view_as_complex", "polar") or count == 1 and name in (*VIEWS, *CONJUGATES, "neg")


def can_be_joined(node: Node) -> bool:
    """Whether parts side by side, which are contiguous, can be brought into a node's layout."""
    value = node.meta["val"]
    fixed = all(type(size) is int for size in value.shape)
    return fixed and not torch_interface.overlaps(value) or bool(value.is_contiguous())


class _PairWriter:
    """`convertible`: the known values of which all that reads them is known, too; other complex values are split once."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.graph = module, module.graph
        self.start = next(node for node in self.graph.nodes if node.op != "placeholder")
        self.pairs: dict[Node, Pair] = {}
        self.convertible: set[Node] = {node for node in self.graph.nodes if is_complex(node) and is_known(node)}
        while unfit := {node for node in self.convertible if not self._fits(node)}:
            self.convertible -= unfit

    def _fits(self, node: Node) -> bool:
        read = all(user in self.convertible or name_of(user) == "view_as_real" and can_be_joined(user) for user in node.users)
        # What is conjugated lazily has no view as real numbers, by which a source is split.
        return read and all(a in self.convertible or not a.meta["val"].is_conj() for a in complex_arguments(node))

    def end(self, node: Node) -> None:
        """Let the parts side by side stand for `view_as_real`."""
        parts = self._pair(operand(node))
        with self.graph.inserting_before(node):
            joined = made(node, aten.stack.default, list(parts), -1)
            joined = layout.laid_out_as(self.module, joined, node.meta["val"])
        if "variable" in node.meta:
            joined.meta["variable"] = node.meta["variable"]
        node.replace_all_uses_with(joined)

    def _pair(self, node: Node) -> Pair:
        if node not in self.pairs:
            arguments = [self._pair(argument) for argument in complex_arguments(node) if node in self.convertible]
            with self.graph.inserting_before(self.start if node.op == "placeholder" else node.next):
                self.pairs[node] = self._parts(node, arguments)
        return self.pairs[node]

    def _parts(self, node: Node, arguments: list[Pair]) -> Pair:
        name: str = name_of(node)
        if not arguments:
            return self._source(node, name if node in self.convertible else "")
        a, b = arguments[0]
        if len(arguments) == 1:
            if name in CONJUGATES:
                return a, made(node, aten.neg.default, b)
            return self._like(node, a), self._like(node, b)
        c, d = arguments[1]
        if name != "mul":
            return made(node, node.target, a, c), made(node, node.target, b, d)
        real = made(node, aten.sub.Tensor, self._product(node, a, c), self._product(node, b, d))
        return real, made(node, aten.add.Tensor, self._product(node, a, d), self._product(node, b, c))

    def _source(self, node: Node, name: str) -> Pair:
        arguments: Any = node.args
        if name == "complex":
            return arguments[0], arguments[1]
        if name == "polar":
            length, angle = arguments
            cosine, sine = made(node, aten.cos.default, angle), made(node, aten.sin.default, angle)
            return self._product(node, length, cosine), self._product(node, length, sine)
        whole = arguments[0] if name else made(node, aten.view_as_real.default, node)
        return made(node, aten.select.int, whole, -1, 0), made(node, aten.select.int, whole, -1, 1)

    def _like(self, node: Node, part: Node) -> Node:
        return made(node, node.target, part, *node.args[1:], **node.kwargs)

    def _product(self, node: Node, a: Node, b: Node) -> Node:
        return made(node, aten.mul.Tensor, a, b)
