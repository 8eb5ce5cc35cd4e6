"""Errors that eager's kernels raise and PyTorch's fake ones do not: such a graph is left to eager, which raises them.

Looks at operators as the program calls them, not at what they are made of. This module must not raise anything itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from minicompile.graph import eager_strides

aten = torch.ops.aten

CONVERT_NUMBERS = frozenset(getattr(aten, name) for name in (
    "fill full full_like new_full masked_fill clamp clamp_min clamp_max hardtanh threshold index_fill scatter constant_pad_nd "
    "add sub rsub addcmul addcdiv").split())
"""Operators whose kernels take numbers in the dtype of the result, and refuse those that it does not hold."""


def problem_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> str:
    """What eager would complain about; nothing if it would not."""
    packet = getattr(func, "overloadpacket", None)
    if packet in eager_strides.BATCH_NORMS and args[0].dim() < 2:
        return "a tensor without channels"
    if packet is None or not isinstance(result, torch.Tensor):
        return ""
    if packet in (aten._softmax, aten._log_softmax) and not result.dtype.is_floating_point:
        return "whole numbers"
    if packet in CONVERT_NUMBERS and any(overflows(value, result.dtype) for value in (*args, *kwargs.values())):
        return f"a number that {result.dtype} does not hold"
    if packet in (aten.sub, aten.rsub) and any(map(is_truth, args)) or kwargs.get("alpha") is True and result.dtype != torch.bool:
        return "truth values"
    if packet in (aten.floor_divide, aten.remainder, aten.fmod, aten.div) and any(type(n) is int and n == 0 for n in args[1:]):
        return "" if result.dtype.is_floating_point or result.device.type != "cpu" else "integers by zero"
    if packet is aten.bernoulli and any(isinstance(p, float) and not 0 <= p <= 1 for p in (*args[1:], *kwargs.values())):
        return "a probability outside of 0 and 1"
    if packet is aten.select_scatter and not -(size := args[0].shape[args[2]]) <= args[3] < size:
        return "a place outside of the tensor"
    return "two dtypes" if packet is aten.heaviside and args[0].dtype != args[1].dtype else ""


def overflows(value: Any, dtype: torch.dtype) -> bool:
    """Whether a plain number is beyond what a dtype holds; unsigned ones take negative numbers too."""
    if type(value) not in (int, float) or dtype.is_complex or dtype == torch.bool:
        return False
    if dtype.is_floating_point:
        return math.isfinite(value) and abs(value) > torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return not math.isfinite(value) or not min(limits.min, -limits.max) <= value <= limits.max


def is_truth(value: Any) -> bool:
    """Whether an operand is boolean."""
    return type(value) is bool or isinstance(value, torch.Tensor) and value.dtype == torch.bool
