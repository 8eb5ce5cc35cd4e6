"""Numbers that stay symbolic: sizes and integers that varied between calls. Must not decide which ones those are."""

from __future__ import annotations

from typing import Any

import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: Any) -> bool:
    """Whether a value is one of torch's symbolic numbers."""
    return type(value) in SYMBOLIC
