"""What kind of operator a node is: view, pointwise, reduction, random, expensive, impure.

The partition and the passes ask; nobody else decides such things. This module must not change graphs.
"""

import functools
import math
import operator
from typing import Any, cast

import torch
from torch.fx import Node

from minicompile.ir.graph import parts_of

aten = torch.ops.aten
ours = torch.ops.minicompile

MORE_POINTWISE = frozenset(
    """_to_copy where masked_fill full full_like ones zeros ones_like zeros_like new_full new_zeros new_ones scalar_tensor
    arange fill constant_pad_nd cat embedding index gather index_select tril triu hardshrink_backward softshrink_backward
    log_sigmoid_forward random_uniform random_normal random_randint lift_fresh_copy checked _prelu_kernel copy flip roll stack
    slice_scatter select_scatter repeat iota empty_strided diagonal_scatter new_empty_strided empty empty_like
    new_empty""".split()
)
"""Operators of which PyTorch does not say that they are pointwise."""
REDUCTIONS = frozenset(
    "sum mean amax amin max min prod var var_mean std std_mean any all argmax argmin logsumexp linalg_vector_norm".split()
)


def name_of(node: Node) -> str:
    """`add` for `aten.add.Tensor`; an empty string for what is no operator call."""
    target: Any = node.target
    return target._opname if isinstance(target, torch._ops.OpOverload) else ""


def is_view(node: Node) -> bool:
    """Whether the result shares storage with the first argument."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target.is_view or target._opname == "_unsafe_view"


def is_item(node: Node) -> bool:
    """Whether the node picks one of several results."""
    return node.target is operator.getitem


def is_fusible(node: Node) -> bool:
    """Whether the node is computed inside the loop of whoever reads it: pointwise work and views."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op == "get_attr" or not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
    if target.namespace == "minicompile":
        return target._opname in MORE_POINTWISE
    if target._opname in REDUCTIONS:
        return False
    return is_view(node) or target._opname in MORE_POINTWISE or is_pointwise_operator(target)


@functools.cache
def is_pointwise_operator(target: Any) -> bool:
    """Whether PyTorch says that an operator is pointwise."""
    return torch.Tag.pointwise in target.tags


def is_reduction(node: Node) -> bool:
    """Whether the node reduces: cheap arithmetic, but its whole argument is read."""
    return name_of(node) in REDUCTIONS


def is_impure(node: Node) -> bool:
    """Whether running the node twice may give two results, or does something else than give a result."""
    return node.op in ("placeholder", "output") or is_impure_operator(node.target)


@functools.cache
def is_impure_operator(target: Any) -> bool:
    """Whether calling an operator twice may give two results, or does something else than give a result."""
    return isinstance(target, torch._ops.OpOverload) and (
        target is ours.seeds.default
        or is_foreign(target)
        or target._schema.is_mutable
        or not target._schema.returns  # a check that raises
        or torch.Tag.nondeterministic_seeded in target.tags
    )


def is_foreign(target: Any) -> bool:
    """Whether a function is an operator of somebody else's, whose kernel may do anything, whatever its schema says."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims", "minicompile")


PLAIN_LINALG = ("linalg_vector_norm", "linalg_cross")
"""Operators of `torch.linalg` that compute with any values."""


def may_refuse_values(node: Node) -> bool:
    """Whether the operator's kernel may find an error that only values show, and raise it while the graph runs."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    solves = "linalg" in target._opname and target._opname not in PLAIN_LINALG or "cholesky" in target._opname
    return is_foreign(target) or not target._schema.returns or solves


def is_size(node: Node) -> bool:
    """Whether the node computes a size or another Python number."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def num_bytes(node: Node) -> int:
    """Bytes of the node's result, at the sizes seen at compile time; an expanded tensor counts its distinct elements."""
    total = 0
    for item in parts_of(node.meta.get("val")):
        if isinstance(item, torch.Tensor):
            places = zip(item.shape, item.stride(), strict=True)
            distinct = (hinted(size) for size, stride in places if not isinstance(stride, int) or stride != 0)
            total += math.prod(distinct) * item.element_size()
        elif item is not None:
            total += 8
    return total


def hinted(size: Any) -> int:
    """A size as a number: for a symbol, the value it had when it was first seen."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 4096


def operand(node: Node) -> Node:
    """The first argument of an operator whose first argument is a tensor: in a graph, a node."""
    return cast("Node", node.args[0])


def storage_root(node: Node) -> Node:
    """The node whose storage the result of `node` lies in."""
    while is_view(node) or is_item(node) and is_view(operand(node)):
        node = operand(node)
    return node
