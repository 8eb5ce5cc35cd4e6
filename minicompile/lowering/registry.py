"""The table of lowering rules: ATen overload to the function that turns it into loops.

A rule gets the builder and the operator's arguments (tensors as `TensorValue`, symbolic sizes as `Index`) and returns
values. It may raise `UseExtern`: what it emitted so far is dropped and the operator is called as it is.
"""

from collections.abc import Callable
from typing import Any

from minicompile.ir import operators  # noqa: F401  (defines the operators of our own that rules are for)
from minicompile.ir.operator_names import overloads

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
VIEWS: set[Any] = set()


class UseExtern(Exception):
    """Raised by a rule for arguments that it has no loops for; the text is the reason shown to the user."""


def lowers(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators called as `overloads` calls them; those that this torch version lacks are skipped."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads(names), rule))
        return rule

    return register


def lowers_view(names: str) -> Callable[[Rule], Rule]:
    """As `lowers`, for rules that only rewrite accesses: they work for every dtype and device."""
    VIEWS.update(overloads(names))
    return lowers(names)
