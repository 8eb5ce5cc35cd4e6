"""What this code generator cannot print, so that lowering can leave it to an extern kernel.

This module must not print anything.
"""

from __future__ import annotations

import torch

from minicompile.codegen.triton_ops import TRITON_OPS
from minicompile.codegen.triton_text import LOW_PRECISION, TRITON_DTYPES
from minicompile.errors import MinicompileError
from minicompile.ir.expr import Apply, Expr, indirect_values, walk
from minicompile.ir.loops import Loop


class CannotGenerate(MinicompileError):
    """A kernel group that cannot be printed; the compiler falls back to eager."""


ATOMIC_DTYPES = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
"""Dtypes that `tl.atomic_add` takes on every chip; narrower sums belong into one of these first."""


def reason_not_to_emit(loop: Loop, dtype: torch.dtype) -> str | None:
    """Why `loop`, which computes a buffer of `dtype`, cannot become part of a Triton kernel; `None` if it can."""
    if dtype not in TRITON_DTYPES:
        return f"Triton has no {dtype}"
    if loop.accumulate and dtype not in ATOMIC_DTYPES:
        return f"atomic additions to {dtype} are not available: accumulate in float32 and convert"
    roots = [loop.value, *indirect_values(loop.store)]
    if loop.condition is not None:
        roots.append(loop.condition)
    for root in roots:
        for expression in walk(root):
            reason = _reason_against(expression)
            if reason is not None:
                return reason
    return None


def _reason_against(expression: Expr) -> str | None:
    if expression.dtype not in TRITON_DTYPES:
        return f"Triton has no {expression.dtype}"
    if isinstance(expression, Apply):
        if expression.operation not in TRITON_OPS:
            return f"no Triton text for {expression.operation}"
        if expression.operation == "nextafter" and expression.dtype in LOW_PRECISION:
            return "nextafter of 16-bit numbers"
    return None
