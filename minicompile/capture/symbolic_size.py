"""Numbers that stay symbolic: sizes, integers and floats that varied between calls. Must not decide which ones those are."""

import collections
import operator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from minicompile.capture.kinds import isinstance
from minicompile.capture.symbolic_float import SymbolicFloat

SYMBOLIC = (torch.SymInt, torch.SymFloat, SymbolicFloat)
EXAMPLES = {torch.SymInt: 1, torch.SymFloat: 1.0, SymbolicFloat: 1.0}
"""A plain number of the type that each kind of symbolic number stands for."""


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic number."""
    return type(value) in SYMBOLIC


def known_number(value: Any) -> Any:
    """The number that a symbolic integer without symbols is (`n - n`); any other value as it is."""
    return int(value) if type(value) is torch.SymInt and value.node.expr.is_number else value


def spelled_out(value: Any) -> Any:
    """A value with the symbolic numbers inside of its containers fixed too, for text that shows them."""
    if type(value) is collections.Counter:  # no container to PyTorch
        return collections.Counter(spelled_out(dict(value)))
    return tree_map(concrete, value, is_leaf=lambda part: type(part) is torch.Size)


def concrete(value: Any) -> Any:
    """A value with its symbolic numbers fixed, for code that needs the number itself."""
    kind = type(value)
    if kind is torch.SymInt:
        return int(value)
    if kind is torch.SymFloat or kind is SymbolicFloat:
        return float(value)
    if kind is tuple or kind is torch.Size or isinstance(value, tuple) and hasattr(kind, "_fields"):
        parts = [concrete(item) for item in value]
        return value if all(map(operator.is_, parts, value)) else getattr(kind, "_make", kind)(parts)
    if kind is slice:
        return slice(concrete(value.start), concrete(value.stop), concrete(value.step))
    return value
