"""The fake tensors of capture and graph: PyTorch's, with eager's strides where PyTorch's own fake kernels give others.

Written against torch 2.11 and 2.13; private: `torch._subclasses.fake_tensor`. This module must not know graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from minicompile.ir import without_dynamo

aten = torch.ops.aten
FAKE_DEVICE = torch.ops.prim.device.default
"""What a fake tensor asks its mode for when it is asked for its device."""

BY_OPERANDS = frozenset(getattr(getattr(aten, packet), overload) for packet, overload in (name.split(".") for name in (
    "logical_and.default logical_or.default logical_xor.default logaddexp.default heaviside.default copysign.Tensor "
    "floor_divide.default xlogy.Tensor special_xlog1py.default div.Tensor_mode native_dropout_backward.default").split()))
"""Operators whose fake kernel looks at the wrong operands: eager takes the layout of the first two, in order."""

BEFORE_TORCH_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


class FakeMode(FakeTensorMode):
    """PyTorch's fake tensor mode, in which results lie in memory as in eager."""

    _dispatch_impl = without_dynamo.method(FakeTensorMode._dispatch_impl)
    _initialise = without_dynamo.method(FakeTensorMode.__init__)

    def __init__(self, **options: Any) -> None:
        without_dynamo.spare_fake_kernels()
        self._initialise(**options)

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The fake result of an operator."""
        result: Any = super().dispatch(func, types, args, kwargs or {})
        if BEFORE_TORCH_2_13 and all(made.alias_info is None for made in func._schema.returns):
            result = tuple(map(self.remembering, result)) if isinstance(result, tuple) else self.remembering(result)
        if func is aten.pow.Scalar or func is aten.log_sigmoid_forward.default and result[0].device.type == "cpu":
            # Eager's are contiguous, whatever the operands are.
            results = result if isinstance(result, tuple) else (result,)
            of = [super(FakeMode, self).dispatch(aten.new_empty.default, types, (value, value.shape)) for value in results]
            return tuple(of) if isinstance(result, tuple) else of[0]
        tensors = [value for value in args if isinstance(value, torch.Tensor)] if func in BY_OPERANDS else ()
        if len(tensors) < 2:
            return result
        like: Any = super().dispatch(aten.eq.Tensor, types, tuple(tensors[:2]))
        return super().dispatch(aten.empty_like.default, types, (like,), {"dtype": result.dtype})

    def remembering(self, made: Any) -> Any:
        """A new tensor whose second dimension is the innermost, made in the way that tells it so; others as they are.

        Before torch 2.13 a result of symbolic size may lie in `channels_last`, and its `is_contiguous` deny it.
        """
        if not isinstance(made, FakeTensor) or made.dim() not in (4, 5) or not made._has_symbolic_sizes_strides:
            return made
        innermost = made.stride()[1]
        if type(innermost) is not int or innermost != 1:
            return made
        options = {"dtype": made.dtype, "device": made.fake_device}
        return super().dispatch(aten.empty_strided.default, (), (made.shape, made.stride()), options)


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share storage; functional tensors have functional storages."""
    return value.untyped_storage()._cdata
