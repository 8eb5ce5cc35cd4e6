"""A Python float that a graph takes as an input: PyTorch's operators can be called with it, but nobody learns its value.

Stands on private interfaces of PyTorch 2.11 to 2.15: `torch.fx.experimental.sym_node.SymNode`, and that operators take a
`torch.SymFloat` as a scalar. This module must not know where the float comes from.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import METHOD_TO_OPERATOR, SymNode
from torch.utils._pytree import tree_map

from minicompile.ir.without_dynamo import DispatchMode


class FloatNeeded(Exception):
    """PyTorch asks for the value of a float that is to stay an input, or computes with it."""


class FloatNode(SymNode):
    """What is behind a `torch.SymFloat` that is an input."""

    def sym_float(self) -> FloatNode:
        """Itself."""
        return self


def needed(self: FloatNode, *args: Any) -> Any:
    """Refuse."""
    raise FloatNeeded(str(self.expr))


for _name in {*METHOD_TO_OPERATOR, "evaluate", *(name for name in vars(SymNode) if name.startswith("guard_"))} - {"sym_float"}:
    for _form in (_name, f"_{_name}", f"{_name}_"):
        setattr(FloatNode, _form, needed)


def new_float(env: Any, name: str, value: float) -> tuple[sympy.Symbol, torch.SymFloat]:
    """A new symbol for a float, which is `value` now, and what operators take for it."""
    symbol = sympy.Symbol(name, real=True)
    return symbol, torch.SymFloat(FloatNode(symbol, env, float, value))


def is_float_input(value: Any) -> bool:
    """Whether a value is a float that is an input."""
    return type(value) is torch.SymFloat and type(value.node) is FloatNode


def hinted(func: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of an ATen operator from which to learn about its result: of a pointwise one with the floats' present
    values, which do not matter to dtype and sizes."""
    if torch.Tag.pointwise not in func.tags:
        return args, kwargs
    return tree_map(lambda item: item.node.hint if is_float_input(item) else item, (args, kwargs))


class Hints(DispatchMode):
    """Operators on fake tensors are run on `hinted` arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = hinted(func, args, kwargs or {})
        return func(*args, **kwargs)
