"""What the tests of capture share: compile with the eager backend, compare with plain Python. Holds no tests."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from minicompile.capture.entry import CompiledCallable
from minicompile.config import current


def capture(function: Callable[..., Any], **options: Any) -> CompiledCallable:
    """`function` captured, its graphs run by torch; faults of the tracer raise."""
    return CompiledCallable(function, operator.attrgetter("module.forward"), current().replace(suppress_errors=False, **options))


def equal(left: Any, right: Any) -> bool:
    """Whether two results are equal, tensors by value."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def same_as_eager(function: Callable[..., Any], *args: Any, **options: Any) -> CompiledCallable:
    """Check two calls of the captured function against plain ones; returns the captured function."""
    compiled = capture(function, **options)
    for _ in range(2):
        assert equal(compiled(*args), function(*args))
    return compiled


def kinds(compiled: Any) -> list[str]:
    """The kinds of graph breaks, in order."""
    assert not compiled.records.fallbacks
    return [found.kind for found in compiled.records.graph_breaks]
