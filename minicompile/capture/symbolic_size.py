"""Numbers that stay symbolic: sizes, integers and floats that varied between calls. Must not decide which ones those are."""

import collections
import copy
import operator
from typing import Any

import torch

from minicompile.capture.symbolic_float import SymbolicFloat

TABLES = (dict, collections.Counter, collections.defaultdict, collections.OrderedDict)
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
    kind = type(value)
    if kind in (tuple, list, torch.Size, set, frozenset):
        return kind([spelled_out(item) for item in value])
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return tuple.__new__(kind, map(spelled_out, value))
    if kind is collections.deque:
        return collections.deque(map(spelled_out, value), value.maxlen)
    if kind in TABLES:
        table = copy.copy(value)
        table.clear()
        for key, item in value.items():
            table[spelled_out(key)] = spelled_out(item)
        return table
    return concrete(value)


def concrete(value: Any) -> Any:
    """A value with its symbolic numbers fixed, for code that needs the number itself."""
    kind = type(value)
    if kind is torch.SymInt:
        return int(value)
    if kind is torch.SymFloat or kind is SymbolicFloat:
        return float(value)
    if kind is tuple or kind is torch.Size:
        parts = [concrete(item) for item in value]
        return value if all(map(operator.is_, parts, value)) else kind(parts)
    if kind is slice:
        return slice(concrete(value.start), concrete(value.stop), concrete(value.step))
    return value
