"""Fourier transforms of real numbers, as autograd writes their gradients, in fewer steps.

The gradient of a transform from real to half a spectrum is, in PyTorch, the real part of a complex transform of the half,
padded with zeros; the same numbers come from a transform to real ones, of half the size, of what is weighted: all but the
ends of the half stand for two. The gradient of the other direction doubles a slice of a copy, which is one product with
weights. Kernels of ours do not compute with complex numbers, so each step saved is a pass over memory. This module must not
touch real tensors.
"""

import itertools
from typing import Any

import torch
from torch.fx import GraphModule, Node

from minicompile.graph import layout
from minicompile.graph.complex_pairs import is_complex
from minicompile.graph.layout import made
from minicompile.graph.operators import is_view, name_of, operand

aten = torch.ops.aten
ZEROS = ("zeros", "new_zeros", "zeros_like")


def shorten_transforms(module: GraphModule) -> GraphModule:
    """Replace each of those steps by its shorter form, where sizes are known."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and is_complex(node) and all(type(size) is int for size in node.meta["val"].shape):
            shorter = SHORTER.get(name_of(node))
            if shorter is not None:
                with module.graph.inserting_before(node):
                    shorter(node)
    return module


def plain_copy(node: Any) -> None:
    """A functional copy over all of a tensor that nobody else sees is what is copied."""
    value, source = node.meta["val"], node.args[1]
    if is_complex(source) and (source.meta["val"].dtype, source.meta["val"].shape) == (value.dtype, value.shape):
        if all(name_of(user) == "slice_scatter" for user in node.users):
            node.replace_all_uses_with(source)


def scattered(node: Any) -> None:
    """A slice written into zeros is padding; one of a spectrum that doubles what it read is a product with weights."""
    into, part, dim, first, end = written_slice(node)
    if end < first:  # not plain
        return
    if is_zero(into):
        widths = pads(node, dim, first, node.meta["val"].shape[dim] - end)
        transformed_next = any(name_of(user) == "_fft_c2c" for user in node.users)  # which wants its half alone
        if name_of(part) == "constant_pad_nd" and pads_with_zeros(part) and not transformed_next:
            widths = [a + b for a, b in itertools.zip_longest(widths, part.args[1], fillvalue=0)]
            part = operand(part)
        replace_if_alike(node, made(node, aten.constant_pad_nd.default, part, widths, 0.0))
    elif name_of(into) == "_fft_r2c" and name_of(part) == "mul" and part.args[1] == 2 and (
            is_slice(part.args[0], into, dim, first, end)):
        replace_if_alike(node, made(node, aten.mul.Tensor, into, weights_of(into, dim, first, end, 2.0, node)))


def written_slice(node: Any) -> tuple[Any, Any, int, int, int]:
    """What a `slice_scatter` writes into, what it writes, along which dimension, from where and to where: -1 if not plain."""
    defaults: list[Any] = [None, None, 0, None, None, 1]
    into, part, dim, first, end, step = list(node.args) + defaults[len(node.args) :]
    size = node.meta["val"].shape[dim]
    first, end = 0 if first is None else first, size if end is None else end
    plain = step == 1 and type(first) is type(end) is int and 0 <= first <= end
    return into, part, dim, first, min(end, size) if plain else -1


def transformed(node: Any) -> None:
    """The real part of a complex transform of a padded half spectrum is a transform to real numbers."""
    whole, dims, normalization, forward = node.args
    parts = [user for real in node.users for user in real.users]
    if forward or not parts or not whole_is_half(whole, dims[-1]) or len(dims) > 1 and normalization:
        return
    if any(name_of(real) != "view_as_real" for real in node.users) or not all(is_real_part(part) for part in parts):
        return
    half, dim, size = operand(whole), dims[-1], whole.meta["val"].shape[dims[-1]]
    weights = weights_of(half, dim, 1, size - half.meta["val"].shape[dim] + 1, 0.5, node)
    half = made(node, aten.mul.Tensor, half, weights)
    if len(dims) > 1:
        half = made(node, aten._fft_c2c.default, half, dims[:-1], 0, False)
    result = made(node, aten._fft_c2r.default, half, [dim], normalization, size)
    for part in parts:
        with node.graph.inserting_before(part):
            alike = all_read_alike(part, result)
            stands_for = result if alike else layout.laid_out_as(node.graph.owning_module, result, part.meta["val"])
        part.replace_all_uses_with(stands_for)


SHORTER = {"copy": plain_copy, "slice_scatter": scattered, "_fft_c2c": transformed}


def is_zero(node: Any) -> bool:
    """Whether all elements of a value are zero."""
    return name_of(node) in ZEROS or is_view(node) and is_zero(operand(node))


def is_slice(node: Any, of: Any, dim: int, first: int, end: int) -> bool:
    """Whether a value is this part of another."""
    return name_of(node) == "slice" and tuple(node.args) == (of, dim, first, end)


def whole_is_half(whole: Any, dim: int) -> bool:
    """Whether a value is half a spectrum, with zeros after it along `dim`."""
    if name_of(whole) != "constant_pad_nd" or not pads_with_zeros(whole):
        return False
    size, half = whole.meta["val"].shape[dim], operand(whole).meta["val"].shape[dim]
    return list(whole.args[1]) == pads(whole, dim, 0, size - half) and half == size // 2 + 1


def pads(node: Any, dim: int, before: int, after: int) -> list[int]:
    """How `constant_pad_nd` says what is appended along one dimension of a result."""
    rank = node.meta["val"].dim()
    return [0, 0] * (rank - 1 - dim % rank) + [before, after]


def pads_with_zeros(node: Any) -> bool:
    """Whether what a `constant_pad_nd` appends is zero."""
    return len(node.args) < 3 or bool(node.args[2] == 0)


def is_real_part(node: Any) -> bool:
    """Whether a node takes the real parts out of pairs."""
    return name_of(node) == "select" and node.args[1] in (-1, node.meta["val"].dim()) and node.args[2] == 0


def weights_of(spectrum: Any, dim: int, first: int, end: int, inside: float, node: Any) -> Node:
    """Weights along `dim` of half a spectrum, for `node`: `inside` from `first` to `end`, 1 before and after."""
    value = spectrum.meta["val"]
    options = {"dtype": value.dtype.to_real(), "device": value.device}
    middle = node.graph.call_function(aten.full.default, ([end - first], inside), options)
    with value.fake_mode:
        middle.meta = {**node.meta, "val": torch.full([end - first], inside, **options)}
    line = made(node, aten.constant_pad_nd.default, middle, [first, value.shape[dim] - end], 1.0)
    return made(node, aten.view.default, line, [-1, *[1] * (value.dim() - 1 - dim % value.dim())])


def replace_if_alike(node: Node, by: Node) -> None:
    """Let another node stand for one that it equals but for its layout, if that is the same or nobody who reads it cares."""
    if layout.layouts(by.meta["val"]) == layout.layouts(node.meta["val"]) or all_read_alike(node, by):
        node.replace_all_uses_with(by)


def all_read_alike(node: Node, by: Node) -> bool:
    """Whether what reads a node gives the same with another one in its place."""
    return all(layout.reads_alike(user, node, by) for user in node.users)
