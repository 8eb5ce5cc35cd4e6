"""Numbers that stay symbolic: sizes and integers that varied between calls. Must not decide which ones those are."""

from __future__ import annotations

from typing import Any

import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: Any) -> bool:
    """Whether a value is one of torch's symbolic numbers."""
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
    if kind is torch.SymFloat:
        return float(value)
    if kind is torch.SymBool:
        return bool(value)
    if kind is tuple or kind is torch.Size:
        if any(is_symbolic(item) for item in value):
            return kind([concrete(item) for item in value])
    elif kind is slice:
        return slice(concrete(value.start), concrete(value.stop), concrete(value.step))
    return value
