"""Errors that eager's kernels raise and PyTorch's fake ones do not: such a graph is left to eager, which raises them.

Looks at operators as the program calls them, not at what they are made of. This module must not raise eager's errors itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from minicompile.errors import Unsupported

aten = torch.ops.aten

CONVERT_NUMBERS = frozenset((
    aten.fill, aten.full, aten.full_like, aten.new_full, aten.masked_fill, aten.clamp, aten.clamp_min, aten.clamp_max,
    aten.hardtanh, aten.threshold, aten.index_fill, aten.scatter, aten.constant_pad_nd, aten.add, aten.sub, aten.rsub,
    aten.addcmul, aten.addcdiv,
))  # fmt: skip
"""Operators whose kernels take numbers in the dtype of the result, and refuse those that it does not hold."""
SUBTRACTIONS = frozenset((aten.sub, aten.rsub))
DIVISIONS = frozenset((aten.floor_divide, aten.remainder, aten.fmod, aten.div))


def check(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Raise `Unsupported` where eager raises."""
    packet = func.overloadpacket
    if not isinstance(result, torch.Tensor):
        return
    if packet in CONVERT_NUMBERS and any(overflows(value, result.dtype) for value in (*args, *kwargs.values())):
        raise Unsupported("refused by eager", f"{func} of a number that {result.dtype} does not hold")
    if packet in SUBTRACTIONS and any(map(is_truth, args)) or kwargs.get("alpha") is True and result.dtype != torch.bool:
        raise Unsupported("refused by eager", f"{func} of truth values")
    by_zero = packet in DIVISIONS and any(type(value) is int and value == 0 for value in args[1:])
    if by_zero and not result.dtype.is_floating_point and result.device.type == "cpu":
        raise Unsupported("refused by eager", f"{func} of integers by zero")
    if packet is aten.heaviside and args[0].dtype != args[1].dtype:
        raise Unsupported("refused by eager", f"{func} of two dtypes")


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
    return value is True or value is False or isinstance(value, torch.Tensor) and value.dtype == torch.bool
