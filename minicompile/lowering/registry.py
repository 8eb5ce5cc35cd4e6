"""The table of lowering rules: ATen overload to the function that turns it into loops.

A rule gets the builder and the operator's arguments (tensors as `TensorValue`, symbolic sizes as `Index`) and returns
values. It may raise `UseExtern`: what it emitted so far is dropped and the operator is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
VIEWS: set[Any] = set()


class UseExtern(Exception):
    """Raised by a rule for arguments that it has no loops for; the text is the reason shown to the user."""


def overload(name: str) -> Any | None:
    """The overload of a qualified name such as `aten.add.Tensor`; `None` where this torch version lacks it."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators given as `aten.name.overload`; names this torch version lacks are skipped."""

    def register(rule: Rule) -> Rule:
        for name in names:
            found = overload(name)
            if found is not None:
                RULES[found] = rule
        return rule

    return register


def lowers_view(*names: str) -> Callable[[Rule], Rule]:
    """As `lowers`, for rules that only rewrite accesses: they work for every dtype and device."""

    def register(rule: Rule) -> Rule:
        VIEWS.update(found for name in names if (found := overload(name)) is not None)
        return lowers(*names)(rule)

    return register
