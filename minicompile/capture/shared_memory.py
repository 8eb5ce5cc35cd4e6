"""Writes that eager refuses because of memory that elements, or an argument and the written tensor, share.

PyTorch's fake kernels do not look. Must not know about bytecode or graphs.
"""

import functools
import operator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from minicompile.capture.break_kinds import Break
from minicompile.capture.torch_interface import FakeTensor
from minicompile.ir.fake_mode import storage_key
from minicompile.ir.operator_names import AUGMENTED
from minicompile.ir.replacements import get_item

IN_PLACE = AUGMENTED | {"setitem"}
READ_APART = frozenset(
    "scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_ index_put_ index_reduce_ put_ masked_scatter_".split())
"""Operators that refuse all arguments in the written memory; others refuse those that lie in a part of it."""


def refuse_shared_writes(name: str, args: tuple[Any, ...]) -> None:
    """Leave to eager a write that it refuses: to an expanded tensor, or from memory that is written at other places."""
    writes = name.strip("_") in IN_PLACE or name.endswith("_") and not name.endswith("__") and not hasattr(operator, name)
    if not args or not writes or not is_strided(args[0]):
        return
    target, *rest = args
    layout = zip(target.shape, target.stride(), strict=True)
    if any(type(stride) is int and stride == 0 and size != 1 for size, stride in layout):
        raise Break("operation failed", "elements of the tensor that is written share memory")
    read = [value for value in tree_leaves(rest) if is_strided(value)]
    read = [value for value in read if storage_key(value) == storage_key(target)]
    apart = name in READ_APART
    if read and name.strip("_") == "setitem":
        apart = any(isinstance(part, torch.Tensor) for part in tree_leaves(rest[0]))
        with torch.no_grad():
            target = target if apart else get_item(target, rest[0])
    written = span_of(target)
    for place in map(span_of, read):
        if place and written and place[0] < written[1] and written[0] < place[1] and (apart or place != written):
            raise Break("operation failed", "an argument lies in a part of the memory that is written")


@functools.cache
def is_pointwise(function: Any) -> bool:
    """Whether each element of a result comes from those at its place: the result may be written over an argument."""
    packet = getattr(torch.ops.aten, function.__name__, None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor takes up its storage."""
    return bool(tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size())


def is_strided(value: Any) -> bool:
    """Whether a value is a tensor with strides."""
    return isinstance(value, FakeTensor) and value.layout is torch.strided


def seen(size: Any) -> int:
    """A size as it was when it was first seen; nothing is assumed about others."""
    return size if type(size) is int else int(size.node.hint)


def span_of(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Where a tensor begins and ends in its storage, and its dimensions, if it fills what is between; `None` if not."""
    steps = sorted((seen(step), seen(size)) for size, step in zip(value.shape, value.stride(), strict=True) if size != 1)
    extent = 1
    for step, size in steps:
        if size == 0 or step != extent:
            return None
        extent *= size
    first = seen(value.storage_offset())
    return first, first + extent, value.dim(), steps if len(steps) < 2 else [seen(step) for step in value.stride()]
