"""Numbers that a tensor in the host's memory holds before a graph runs: the counts of steps that PyTorch's optimizers ask for.

They are fetched like floats that vary (`symbolic_float.py`), so that what an optimizer computes from its count is exact. Must
not look at tensors that a graph computes from others.
"""

import functools
import operator
from typing import Any

import torch

from minicompile.capture.output_graph import Traced
from minicompile.capture.source import Computed
from minicompile.capture.symbolic_float import SymbolicFloat
from minicompile.capture.tracer import Tracer

ADDING = (operator.iadd, "add_", torch._foreach_add_)


def held_number(tracer: Tracer, tensor: Any) -> float | SymbolicFloat | None:
    """What `tensor.item()` gives now, or `None` where only a graph that has run knows it.

    It is known for a tensor from outside, or made of a number, to which nothing but numbers was added since. Tensors that hold
    the same number share one stand-in; that they do is guarded.
    """
    if tensor.device.type != "cpu" or tensor.dim() or not tensor.is_floating_point() or tensor.requires_grad:
        return None
    entry = tracer.graph.traced[id(tensor)]
    amounts = amounts_added(entry)
    if amounts is None or not tracer.dynamic.floats or tracer.dynamic.policy is False:
        return None
    start = entry.real if entry.source is not None else constant_of(entry.node)
    if start is None:
        return None
    real: float = functools.reduce(torch.add, amounts, torch.as_tensor(start, dtype=tensor.dtype)).item()
    if entry.source is None:
        return real
    text = "".join(f".add({amount!r})" for amount in amounts) + ".item()"
    source = Computed("{0}" + text, (entry.source,))
    number = tracer.held_numbers.setdefault((text, real.hex()), SymbolicFloat(tracer, source, real))
    if number.source is not source:
        words = f"`{{0}}` is `{number.source.words()}`"
        tracer.guards.test(source, "{0} == {others[0]}", (), words, "constant", real, (number.source,))
    tracer.floats = True
    return number


def amounts_added(entry: Traced) -> list[float] | None:
    """The numbers that the nodes of a tensor add to it in place, or `None` if it is changed in another way."""
    if entry.value.is_inference():
        return None
    amounts = [constant_of(user.args[1]) for user in (entry.node.users if entry.node is not None else ())
               if user.target in ADDING and user.kwargs.get("alpha", 1) == 1 and starts_with(user.args[0], entry.node)]
    changes = entry.value._version - entry.version
    return None if None in amounts or len(amounts) != changes else amounts  # type: ignore[return-value]


def starts_with(target: Any, node: Any) -> bool:
    """Whether an operation in place on `target`, a node or a list of nodes, changes `node`."""
    return target is node or isinstance(target, (list, tuple)) and node in target


def constant_of(argument: Any) -> float | None:
    """The number that an argument of a node is, or of which it is the tensor."""
    if isinstance(argument, torch.fx.Node) and argument.target is torch.tensor:
        argument = argument.args[0]
    return argument if type(argument) in (int, float) else None
