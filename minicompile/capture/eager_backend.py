"""The simplest backend: runs the captured graph as it is. For tests and for graphs that the compiler fails on."""

from collections.abc import Callable, Sequence
from typing import Any

from minicompile.ir.graph import CapturedGraph


def run_graph_eagerly(captured: CapturedGraph) -> Callable[..., Sequence[Any]]:
    """The captured graph itself as a callable."""
    forward: Callable[..., Sequence[Any]] = captured.module.forward
    return forward
