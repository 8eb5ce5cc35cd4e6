"""Numbers that stay symbolic: sizes, integers and floats that varied between calls. Must not decide which ones those are."""

from __future__ import annotations

from typing import Any

import torch

from minicompile.capture.symbolic_float import SymbolicFloat

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, SymbolicFloat)
EXAMPLES = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True, SymbolicFloat: 1.0}
"""A plain number of the type that each kind of symbolic number stands for."""


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic number."""
    return type(value) in SYMBOLIC


def spelled_out(value: Any) -> Any:
    """A value with the symbolic numbers inside of its containers fixed too, for text that shows them."""
    kind = type(value)
    if kind in (tuple, list, torch.Size, set, frozenset):
        return kind([spelled_out(item) for item in value])
    if kind is dict:
        return {spelled_out(key): spelled_out(item) for key, item in value.items()}
    return concrete(value)


def concrete(value: Any) -> Any:
    """A value with its symbolic numbers fixed, for code that needs the number itself."""
    kind = type(value)
    if kind is torch.SymInt:
        return int(value)
    if kind is torch.SymFloat or kind is SymbolicFloat:
        return float(value)
    if kind is torch.SymBool:
        return bool(value)
    if kind is tuple or kind is torch.Size:
        if any(is_symbolic(item) for item in value):
            return kind([concrete(item) for item in value])
    elif kind is slice:
        return slice(concrete(value.start), concrete(value.stop), concrete(value.step))
    return value
