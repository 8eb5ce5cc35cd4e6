"""Running sums, products and extremes along a dimension.

This module must not know how a scan is split over programs.
"""

from __future__ import annotations

from typing import Any

from minicompile.ir.expr import cast
from minicompile.lowering.builder import GraphBuilder
from minicompile.lowering.registry import UseExtern, lowers
from minicompile.lowering.values import TensorValue
from minicompile.lowering.view import wrap

GENERATED: frozenset[str] = frozenset({"cumsum", "cumprod"})
"""The scans that are generated; the others are called as they are."""


def _scan(kind: str) -> Any:
    def rule(builder: GraphBuilder, value: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
        if kind not in GENERATED:
            raise UseExtern(f"{kind} is not generated")
        if value.rank == 0:
            return builder.like_node(lambda _: cast(value.load(()), builder.val.dtype))
        result = builder.val.dtype
        return builder.scan(kind, wrap(dim, value.rank), result, lambda i: cast(value.load(i), result))

    return rule


lowers("aten.cumsum.default")(_scan("cumsum"))
lowers("aten.cumprod.default")(_scan("cumprod"))
lowers("aten.logcumsumexp.default")(_scan("logcumsumexp"))


