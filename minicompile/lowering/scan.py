"""Running sums, products and extremes along a dimension.

This module must not know how a scan is split over programs.
"""

from __future__ import annotations

from typing import Any

from minicompile.ir.expr import cast
from minicompile.lowering.builder import GraphBuilder
from minicompile.lowering.registry import lowers
from minicompile.lowering.values import TensorValue
from minicompile.lowering.view import wrap


@lowers("aten.cumsum.default", "aten.cumprod.default")
def lower_scan(builder: GraphBuilder, value: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    """A running sum or product; the other scans are called as they are."""
    result = builder.val.dtype
    if value.rank == 0:
        return builder.like_node(lambda _: cast(value.load(()), result))
    kind = builder.node.target._opname
    return builder.scan(kind, wrap(dim, value.rank), result, lambda i: cast(value.load(i), result))
