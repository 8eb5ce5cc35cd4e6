"""Symbolic sizes as nodes: every expression over symbols that an operator takes becomes a small chain of nodes.

Symbols are read from the placeholders that carry them (`aten.sym_size.int`, or a size input itself). This module must not
decide which sizes are symbolic.
"""

from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from minicompile.ir.size_nodes import append_expression

aten = torch.ops.aten


def numbers_of(value: Any) -> Iterator[tuple[Any, int, Any]]:
    """The numbers that a graph input carries, each with the operator and the dim that read it; `None` for the input itself."""
    if not isinstance(value, torch.Tensor):
        yield None, 0, value
        return
    for reader, numbers in (aten.sym_size.int, value.shape), (aten.sym_stride.int, value.stride()):
        yield from ((reader, dim, number) for dim, number in enumerate(numbers))


class SizeExpressions:
    """The nodes that compute symbolic sizes in one graph, each expression once."""

    def __init__(self, graph: Graph, annotate: Callable[[Node, Any], None]) -> None:
        self._graph = graph
        self._annotate = annotate
        self._symbols: dict[sympy.Symbol, tuple[Node, Any, int, Any]] = {}
        self._nodes: dict[sympy.Expr, Node] = {}

    def learn(self, placeholder: Node, value: Any) -> None:
        """Remember which symbols a graph input carries."""
        for reader, dim, number in numbers_of(value):
            if isinstance(number, (torch.SymInt, torch.SymFloat)) and isinstance(number.node.expr, sympy.Symbol):
                self._symbols.setdefault(number.node.expr, (placeholder, reader, dim, number))

    def node_or_number(self, value: Any) -> Any:
        """A Python number if the value is constant, else the node that computes it."""
        expression = value.node.expr
        if expression.is_number:
            return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)](expression)
        known = self._nodes.get(expression)
        if known is None:
            known = self._nodes[expression] = self._build(expression)
        return known

    def forget(self, dropped: set[Node]) -> None:
        """Nodes were erased from the graph."""
        self._nodes = {key: node for key, node in self._nodes.items() if node not in dropped}

    def _build(self, expression: sympy.Expr) -> Node:
        for symbol in expression.free_symbols:
            if symbol not in self._symbols:
                raise RuntimeError(f"the size {symbol} is not a size of any input")
        symbols = {symbol: self._symbol(symbol) for symbol in sorted(expression.free_symbols, key=str)}
        return append_expression(self._graph, expression, symbols, self._annotate, "val")

    def _symbol(self, symbol: sympy.Symbol) -> Node:
        placeholder, reader, dim, value = self._symbols[symbol]
        if reader is None:
            return placeholder
        if symbol not in self._nodes:
            node = self._graph.call_function(reader, (placeholder, dim))
            self._annotate(node, value)
            self._nodes[symbol] = node
        return self._nodes[symbol]
