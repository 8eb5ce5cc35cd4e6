"""An expression over symbolic sizes as nodes of an FX graph, for every stage that writes one.

Written against `torch.utils._sympy` of torch 2.11 to 2.15. This module must not know where a symbol's value comes from.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node, Proxy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


def values_of_symbols(env: Any) -> Mapping[sympy.Symbol, Any]:
    """The values that symbols had in the call that was captured, from a `ShapeEnv`."""
    values: Mapping[sympy.Symbol, Any] = env.backed_var_to_val
    return values


def call(function: Callable[..., Any]) -> Any:
    """A call of `function`, recorded if its first argument stands for a node; a dtype after it is dropped."""

    def recorded(value: Any, *rest: Any) -> Any:
        arguments = (value, *(item for item in rest if not isinstance(item, torch.dtype)))
        proxy = next((item for item in arguments if isinstance(item, Proxy)), None)
        if proxy is None:
            return function(*arguments)
        nodes = tuple(item.node if isinstance(item, Proxy) else item for item in arguments)
        return Proxy(proxy.node.graph.call_function(function, nodes))

    return staticmethod(recorded)


class SizeArithmetic(PythonReferenceAnalysis):
    """Python's arithmetic, recorded as nodes."""

    int_truediv = truediv = call(operator.truediv)
    floor_to_int = call(math.floor)
    ceil_to_int = call(math.ceil)
    trunc_to_int = call(math.trunc)
    round_to_int = call(round)
    minimum = call(torch.sym_min)
    maximum = call(torch.sym_max)
    sqrt = call(torch.sym_sqrt)

    @staticmethod
    def to_dtype(value: Any, dtype: torch.dtype) -> Any:
        """A number as a float."""
        return call(torch.sym_float).__func__(value)


def append_expression(
    graph: Graph, expression: sympy.Expr, symbols: Mapping[sympy.Symbol, Node], annotate: Callable[[Node, Any], None],
    value_of: str,
) -> Any:  # fmt: skip
    """The node (or number) of an expression; nodes made for it are appended to `graph` and given their values.

    `annotate(node, value)` is told each new node's value, computed from the values that `meta[value_of]` of others hold.
    """
    before = set(graph.nodes)
    environment = {symbol: Proxy(node) for symbol, node in symbols.items()}
    result = sympy_interp(SizeArithmetic, environment, expression)
    for node in [node for node in graph.nodes if node not in before]:
        arguments = torch.fx.node.map_arg(node.args, lambda argument: argument.meta[value_of])
        annotate(node, node.target(*arguments))
    return result.node if isinstance(result, Proxy) else result
