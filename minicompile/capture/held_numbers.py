"""Numbers that a tensor in the host's memory holds before a graph runs: the counts of steps that PyTorch's optimizers ask for.

They are fetched like floats that vary (`symbolic_float.py`), so that what an optimizer computes from its count is exact. Must
not look at tensors that a graph computes from others.
"""

import operator
from typing import Any

import torch

from minicompile.capture.constant_tensors import known_value
from minicompile.capture.output_graph import Traced
from minicompile.capture.source import Computed, Source
from minicompile.capture.symbolic_float import SymbolicFloat
from minicompile.capture.torch_interface import is_of_optimizers
from minicompile.capture.tracer import Tracer

ADDING = (operator.iadd, "add_", torch._foreach_add_)
LARGEST = 2**23
"""Sums of two whole numbers below this one are exact in 32 bits."""


def known_ahead(tracer: Tracer, tensor: Any, name: str) -> Any:
    """What a method that asks for a tensor's values gives, or `MISSING` where only a graph that has run knows it."""
    number = held_number(tracer, tensor) if name == "item" and is_of_optimizers(tracer.frames[-1].code) else None
    return known_value(tracer, tensor, name) if number is None else number


def held_number(tracer: Tracer, tensor: Any) -> float | SymbolicFloat | None:
    """What `tensor.item()` gives now, or `None` where only a graph that has run knows it.

    It is known for a whole number from outside, or made of a number, to which nothing but whole numbers was added since.
    Tensors that hold the same number share one stand-in; that they do is guarded.
    """
    if tensor.device.type != "cpu" or tensor.dim() or not tensor.is_floating_point() or tensor.requires_grad:
        return None
    entry = tracer.graph.traced[id(tensor)]
    amount = amount_added(entry)
    if amount is None or not tracer.dynamic.floats or tracer.dynamic.policy is False:
        return None
    start = entry.real.item() if entry.source is not None else constant_of(entry.node)
    if start is None or not is_count(start):
        return None
    if entry.source is None:
        return float(start + amount)
    held = Source(entry.source, "{0}.item()")
    key = amount, start
    if key not in tracer.held_numbers:
        words = f"`{{0}}` is a whole number below {LARGEST}"
        tracer.guards.test(held, f"{{0}} % 1 == 0 and 0 <= {{0}} < {LARGEST}", (), words, "constant", start)
        tracer.floats = True
        tracer.held_numbers[key] = held, SymbolicFloat(tracer, Computed(f"({{0}} + {amount!r})", (held,)), start + amount)
    first, number = tracer.held_numbers[key]
    if first is not held:
        words = f"`{{0}}` is `{first.words()}`"
        tracer.guards.test(held, "{0} == {others[0]}", (), words, "constant", start, (first,))
    return number


def is_count(number: float) -> bool:
    """Whether a number and those a little larger are whole and exact in every dtype for counts."""
    return number % 1 == 0 and 0 <= number < LARGEST


def amount_added(entry: Traced) -> float | None:
    """What the nodes of a tensor add to it in place, or `None` if it is changed in another way."""
    if entry.value.is_inference() or entry.value.dtype not in (torch.float32, torch.float64):
        return None
    amounts = [constant_of(user.args[1]) for user in (entry.node.users if entry.node is not None else ())
               if user.target in ADDING and user.kwargs.get("alpha", 1) == 1 and is_among(user.args[0], entry.node)]
    changes = entry.value._version - entry.version
    counts = [amount for amount in amounts if amount is not None and is_count(amount)]
    return float(sum(counts)) if len(counts) == len(amounts) == changes and sum(counts) < LARGEST else None


def is_among(target: Any, node: Any) -> bool:
    """Whether `node` is what an operation in place changes: its target, or one of a list of them."""
    return target is node or isinstance(target, (list, tuple)) and node in target


def constant_of(argument: Any) -> float | None:
    """The number that an argument of a node is, or of which it is the tensor."""
    if isinstance(argument, torch.fx.Node) and argument.target is torch.tensor:
        argument = argument.args[0]
    return argument if type(argument) in (int, float) else None
