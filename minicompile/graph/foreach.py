"""Operators over lists of tensors (`torch._foreach_*`) as one operator per tensor.

Loops over single tensors fuse with what is around them, and the code generator batches those that are alike. This module
must not record nodes itself.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minicompile.graph.torch_interface import storage_key

SINGLE: dict[str, Callable[..., Tensor]] = {
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "zero": torch.zeros_like,
    "copy": lambda old, new, non_blocking=False: new.to(old.dtype).expand_as(old).clone(),
}
VALUE_LAST = ("addcmul", "addcdiv")
"""These take the scalar by keyword where there is one tensor."""


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator over lists to the function that applies its single form to every element."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in dir(torch.ops.aten):
        single = name.removeprefix("_foreach_")
        if single == name or not (single in SINGLE or hasattr(torch, single)):
            continue
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            scalars_in_a_tensor = single in VALUE_LAST and overload == "Tensor"
            if not operator._schema.is_mutable and not scalars_in_a_tensor:
                table[operator] = functools.partial(each, single, SINGLE.get(single) or getattr(torch, single))
    return table


def each(name: str, function: Callable[..., Tensor], *arguments: Any, **keywords: Any) -> Any:
    """`function` of the elements of every list among the arguments; other arguments are the same for all."""
    if name in VALUE_LAST and len(arguments) > 3:
        arguments, keywords = arguments[:3], {**keywords, "value": arguments[3]}
    count = len(next(a for a in arguments if isinstance(a, (list, tuple))))
    found = []
    for number in range(count):
        own = [a[number] if isinstance(a, (list, tuple)) else a for a in arguments]
        named = {k: a[number] if isinstance(a, (list, tuple)) else a for k, a in keywords.items()}
        if name in ("maximum", "minimum") and not isinstance(own[1], Tensor):
            found.append(own[0].clamp_min(own[1]) if name == "maximum" else own[0].clamp_max(own[1]))
        else:
            found.append(function(*own, **named))
    return found


def one_after_the_other(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """An operator over lists, in place, as eager does it where a tensor that it writes is read again later in the lists."""
    torch.autograd.graph.increment_version(arguments[0])  # functional tensors count no writes of such operators
    given = (*arguments, *keywords.values())
    lists = [value for value in given if isinstance(value, (list, tuple))]
    places = [(number, value) for values in lists for number, value in enumerate(values) if isinstance(value, Tensor)]
    places += [(-1, value) for value in given if isinstance(value, Tensor) and not value.dim()]  # each element reads it
    written = {storage_key(value): number for number, value in enumerate(arguments[0])}
    if all(written.get(storage_key(value), number) == number for number, value in places):
        return function(*arguments, **keywords)
    for number in range(len(arguments[0])):
        def own(value: Any, number: int = number) -> Any:
            return value[number : number + 1] if isinstance(value, (list, tuple)) else value

        function(*map(own, arguments), **{name: own(value) for name, value in keywords.items()})
    return arguments[0]
