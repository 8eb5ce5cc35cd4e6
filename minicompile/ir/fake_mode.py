"""The fake tensors of capture and graph: PyTorch's, with eager's strides where PyTorch's own fake kernels give others.

Written against torch 2.11, 2.13 and 2.15; private: `torch._subclasses.fake_tensor` and `fake_impls`,
`torch._library.simple_registry`, `torch._prims_common`, and what the constructor of `FakeTensor` does in C++. This module must
not know graphs.
"""

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._library.simple_registry import singleton
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import _compute_stride
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from minicompile.ir import without_dynamo
from minicompile.ir.operator_names import overload, overloads, packets

aten = torch.ops.aten
FAKE_DEVICE = torch.ops.prim.device.default
"""What a fake tensor asks its mode for when it is asked for its device."""

BY_OPERANDS = frozenset(overloads(
    "logical_and logical_or logical_xor logaddexp logaddexp2 heaviside copysign.Tensor floor_divide xlogy.Tensor "
    "special_xlog1py div.Tensor_mode native_dropout_backward binary_cross_entropy"))
"""Operators whose fake kernel looks at the wrong operands: eager takes the layout of the first two, in order."""

VIEWS = overloads("view _unsafe_view")
"""Operators whose fake kernel makes sizes anew, as quotients of quotients, and asks for all strides in one condition:
of either, algebra takes for ever."""

BATCH_NORMS = packets(
    "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_batch_norm_with_update_functional _batch_norm_no_update")
"""Eager's result is contiguous or `channels_last`, the fake one's like the input."""

CONTIGUOUS = (aten.pow.Scalar, aten.rrelu_with_noise.default, aten.rrelu_with_noise_functional.default,
              aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.nll_loss2d_forward.default, aten.im2col.default)  # fmt: skip
"""Operators whose result is contiguous in eager, whatever the operands are."""

FAKE_QUANTIZATIONS = (aten.fake_quantize_per_tensor_affine_cachemask.default,
                      aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)  # fmt: skip
"""Operators without a fake kernel: a tensor like the first, and where the gradient passes."""

FACTORISATIONS = overloads("_linalg_svd linalg_qr linalg_lu linalg_lu_factor_ex lu_unpack")
"""Operators with results as long as the shorter side of a matrix, which their fake kernels leave open."""

ON_CPU: dict[Any, Callable[..., torch.memory_format | None]] = {
    aten.log_sigmoid_forward.default: lambda _: torch.contiguous_format,
    aten.native_group_norm.default: lambda value, *_: suggest_memory_format(value),
    aten.max_unpool2d.default: lambda value, *_: suggest_memory_format(value) if value.dim() == 4 else None,
    **dict.fromkeys((aten.channel_shuffle.default, aten.replication_pad3d.default, aten.reflection_pad3d.default),
                    lambda value, _: suggest_memory_format(value)),
    aten.roll.default: lambda value, shifts, dims=(): suggest_memory_format(value) if is_cut(value, shifts, dims) else None,
}
"""Layouts that only eager's kernels for the CPU give, from the operands."""

BEFORE_TORCH_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def python_dispatcher() -> contextlib.AbstractContextManager[Any]:
    """Operators go through PyTorch's rules written in Python, where there are any; those in C++ know no symbols."""
    from torch._dispatch.python import enable_python_dispatcher  # loads all decompositions; needed for symbols only

    return enable_python_dispatcher()


def no_python_dispatcher() -> contextlib.AbstractContextManager[Any]:
    """Operators go through PyTorch's rules in C++ again, those for tensors of fixed sizes."""
    return torch._C._DisablePythonDispatcher()


class FakeMode(without_dynamo.DispatchMode, FakeTensorMode):
    """PyTorch's fake tensor mode, in which results lie in memory as in eager."""

    _dispatch_impl = without_dynamo.method(FakeTensorMode._dispatch_impl)
    _initialise = without_dynamo.method(FakeTensorMode.__init__)
    inside = False
    """Whether PyTorch's rule for an operator runs, which asks for windows that it knows to lie in the storage."""

    def __init__(self, **options: Any) -> None:
        without_dynamo.spare_fake_kernels()
        self._initialise(**options)
        self.first: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}

    def fake(self, memory: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor over a tensor on `meta`, with the attributes of the first one made for the device.

        PyTorch's constructor writes twenty of them, asks for the device's driver, and takes four times as long.
        """
        if device not in self.first:
            made = FakeTensor(self, memory, device)
            self.first[device] = made.fake_device, dict(vars(made))
            return made
        place, attributes = self.first[device]
        made = torch.Tensor._make_subclass(FakeTensor, memory, dispatch_device=True, device_for_backend_keys=place)
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        vars(made).update(attributes)
        return made

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The fake result of an operator."""
        if func is aten.as_strided.default and not self.inside and reaches_beyond(*args, **kwargs or {}):
            raise RuntimeError("a window reaches beyond the storage")
        outer, self.inside = self.inside, True
        try:
            return self.result_of(func, types, args, kwargs)
        finally:
            self.inside = outer

    def result_of(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The fake result of an operator, where eager would give one."""
        if func is aten.diagonal.default and args[0]._has_symbolic_sizes_strides:
            args, kwargs = self.crossed(types, *args, **kwargs or {}), {}
        if func is aten.ldexp.Tensor and not shifts_exponents(*args):
            func, args = aten.mul.Tensor, (args[0], self.dispatch(aten.pow.Scalar, types, (2.0, args[1])))  # as eager
        if func is aten.segment_reduce.default:
            kwargs = {**kwargs, "axis": kwargs.get("axis", 0) % args[0].dim()}  # PyTorch's rule counts from the first only
        if func is aten.block_diag.default:
            args = (of_one_dtype(args[0]),)
        if func is aten.huber_loss.default:
            args = (args[0], args[1].to(args[0].dtype), *args[2:])  # eager's result has the dtype of the values
        if func in VIEWS and args[0]._has_symbolic_sizes_strides:
            return super().dispatch(aten.as_strided.default, types, (args[0], *seen_as(*args)))
        if func in FAKE_QUANTIZATIONS:
            kinds = ({"dtype": args[0].dtype}, {"dtype": torch.bool})
            return tuple(super(FakeMode, self).dispatch(aten.empty_like.default, types, args[:1], kind) for kind in kinds)
        if writes_each_element(func):
            shapes = [tuple(value.shape) for value in args if isinstance(value, torch.Tensor)]
            if (whole := tuple(torch.broadcast_shapes(*shapes))) != shapes[0]:
                raise RuntimeError(f"output with shape {[*shapes[0]]} doesn't match the broadcast shape {[*whole]}")
        if func in (aten.logit_.default, aten.ldexp_.default) and not args[0].is_floating_point():
            raise RuntimeError("fractions cannot be written to whole numbers")
        with self if func is aten.native_layer_norm.default else contextlib.nullcontext():  # its rule calls operators
            result: Any = super().dispatch(func, types, args, kwargs or {})
        if func in FACTORISATIONS and args[0]._has_symbolic_sizes_strides:
            return self.as_long_as_one_side(types, result, *args[0].shape[-2:])
        if func is aten.native_dropout.default and result[0] is args[0]:  # of nothing: by the fake kernel alone
            return super().dispatch(aten.empty_like.default, types, args[:1]), result[1]
        if func is aten.multi_margin_loss.default and not args[1].dim():
            return super().dispatch(aten.squeeze.default, types, (result,))
        if BEFORE_TORCH_2_13 and all(made.alias_info is None for made in func._schema.returns):
            result = tuple(map(self.remembering, result)) if isinstance(result, tuple) else self.remembering(result)
        if (value := beside_numbers(func, args)) is not None and 1 in value.shape and value.shape == result.shape:
            return self.in_layout(types, result, value.shape, dense_strides(value))
        if wanted := memory_format(func, args):
            first, *rest = result if isinstance(result, tuple) else (result,)
            first = super().dispatch(aten.empty_like.default, types, (first,), {"memory_format": wanted})
            return (first, *rest) if isinstance(result, tuple) else first
        tensors = [value for value in args if isinstance(value, torch.Tensor)] if func in BY_OPERANDS else ()
        if len(tensors) < 2:
            return result
        like: Any = super().dispatch(aten.eq.Tensor, types, tuple(tensors[:2]))
        return super().dispatch(aten.empty_like.default, types, (like,), {"dtype": result.dtype})

    def crossed(self, types: Any, value: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> tuple[Any, ...]:
        """The arguments of a diagonal, on the part of a matrix that it crosses: it is then as long as one size."""
        rows, columns = value.shape[dim1] + min(offset, 0), value.shape[dim2] - max(offset, 0)
        if rows > 0 and columns > 0:
            dim, end = (dim2, rows + max(offset, 0)) if rows <= columns else (dim1, columns - min(offset, 0))
            value = super().dispatch(aten.slice.Tensor, types, (value, dim, 0, end))
        return value, offset, dim1, dim2

    def as_long_as_one_side(self, types: Any, results: Any, rows: Any, columns: Any) -> Any:
        """New results of a matrix, in which the smaller of its sizes is one of them; for sizes that vary, which is a guard."""
        import sympy  # loaded already where there are symbols

        from minicompile.ir.size_nodes import values_of_symbols  # imports it

        left_open, known = map(sympy.sympify, (torch.sym_min(rows, columns), rows if rows <= columns else columns))
        if left_open == known:
            return results
        env: Any = self.shape_env
        values = values_of_symbols(env)

        def settled(number: Any) -> Any:
            expression = sympy.sympify(number).xreplace({left_open: known})
            hint = int(expression.xreplace(values))
            return hint if expression.is_number else env.create_symintnode(expression, hint=hint)

        layouts = [(tuple(map(settled, made.shape)), tuple(map(settled, made.stride()))) for made in results]
        return tuple(self.in_layout(types, made, *layout) for made, layout in zip(results, layouts, strict=True))

    def remembering(self, made: Any) -> Any:
        """A new tensor whose second dimension is the innermost, made in the way that tells it so; others as they are.

        Before torch 2.13 a result of symbolic size may lie in `channels_last`, and its `is_contiguous` deny it.
        """
        if not isinstance(made, FakeTensor) or made.dim() not in (4, 5) or not made._has_symbolic_sizes_strides:
            return made
        innermost = made.stride()[1]
        if type(innermost) is not int or innermost != 1:
            return made
        return self.in_layout((), made, made.shape, made.stride())

    def in_layout(self, types: Any, like: FakeTensor, sizes: Any, strides: Any) -> Any:
        """A new fake tensor of these sizes and strides, with the dtype and on the device of `like`."""
        options = {"dtype": like.dtype, "device": like.fake_device}
        return super().dispatch(aten.empty_strided.default, types, (sizes, strides), options)


def reaches_beyond(value: Any, sizes: Any, strides: Any, storage_offset: Any = None) -> bool:
    """Whether a window leaves the storage, which PyTorch would make larger; for sizes that vary the answer is a guard."""
    first = value.storage_offset() if storage_offset is None else storage_offset
    last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return bool((last + 1) * value.element_size() > value.untyped_storage().nbytes()) and 0 not in sizes


def seen_as(value: torch.Tensor, shape: Any) -> tuple[Any, Any]:
    """The sizes and strides of a view, found step by step as eager does."""
    sizes = torch._prims_common.infer_size(shape, value.numel())
    if torch._prims_common.is_contiguous_or_false(value):
        return sizes, torch._prims_common.make_contiguous_strides_for(sizes)
    if (strides := _compute_stride(value.shape, value.stride(), sizes)) is None:
        raise ValueError(f"Cannot view a tensor with shape {value.shape} and strides {value.stride()} as one of {sizes}")
    return sizes, strides


def of_one_dtype(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors in the dtype that eager gives all of them; PyTorch's rule for `block_diag` counts 0-d ones like others."""
    kind = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    dtype = torch._prims_common.elementwise_dtypes(*values, type_promotion_kind=kind)[1]
    return [value.to(dtype) for value in values]


@functools.cache
def writes_each_element(func: Any) -> bool:
    """Whether an operator is the in-place form of a pointwise one; PyTorch's rules for some of them resize what they write."""
    name, _, form = func.__name__.partition(".")
    if not func._schema.is_mutable or not name.endswith("_"):
        return False
    pure = overload(f"{name[:-1]}.{form}")
    return func in (aten.floor_divide_.Tensor, aten.pow_.Tensor) or pure is not None and torch.Tag.pointwise in pure.tags


def beside_numbers(func: Any, args: Any) -> FakeTensor | None:
    """The tensor in `channels_last` that a pointwise operator takes with numbers in place of other ones: eager then sorts its
    dimensions, those of size 1 too, where PyTorch's rule takes the layout for known."""
    if torch.Tag.pointwise not in func.tags or func._schema.is_mutable:
        return None
    operands = [value for parameter, value in zip(func._schema.arguments, args, strict=False)
                if str(parameter.type) == "Tensor" or func is aten.rsub.Scalar]
    first, *rest = sorted(operands, key=lambda value: value.dim() if isinstance(value, torch.Tensor) else 0, reverse=True)
    if not rest or not isinstance(first, FakeTensor) or first.dim() != 4 or first._has_symbolic_sizes_strides:
        return None
    alone = not any(isinstance(value, torch.Tensor) and value.dim() for value in rest)
    return first if alone and first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous() else None


def dense_strides(value: torch.Tensor) -> tuple[int, ...]:
    """The strides of a result of one dense tensor, its dimensions in the tensor's order, as eager sorts them."""
    order = list(reversed(range(value.dim())))  # innermost first
    for place in range(1, len(order)):
        for before in reversed(range(place)):
            inner, outer = order[before], order[place]
            strides, sizes = (value.stride(inner), value.stride(outer)), (value.shape[inner], value.shape[outer])
            if 0 in strides or strides[0] == strides[1] and sizes[0] <= sizes[1]:
                continue
            if strides[0] < strides[1]:
                break
            order[before], order[place] = outer, inner
            place = before
    lengths = itertools.accumulate((value.shape[dim] for dim in order[:-1]), operator.mul, initial=1)
    return tuple(stride for _, stride in sorted(zip(order, lengths, strict=True)))


def memory_format(func: Any, args: Any) -> torch.memory_format | None:
    """The layout of an operator's first result in eager; `None` where fake kernels know it."""
    if func.overloadpacket in BATCH_NORMS:
        return dense_format(args[0]) if args[0].fake_device.type == "cpu" else suggest_memory_format(args[0])
    if func in ON_CPU and args[0].fake_device.type == "cpu":
        return ON_CPU[func](*args)
    contiguous = func in CONTIGUOUS or func is aten.angle.default and args[0].is_complex()
    contiguous |= func in (aten.any.dims, aten.all.dims) and args[1:2] == ([],)
    return torch.contiguous_format if contiguous else None


def dense_format(value: torch.Tensor) -> torch.memory_format:
    """The layout that a tensor lies in without gaps, whatever the strides of its sizes of 1; else the one that they suggest."""
    last = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}.get(value.dim(), ())
    dense = (each for each in (torch.contiguous_format, *last) if value.is_contiguous(memory_format=each))
    return next(dense, None) or suggest_memory_format(value)


def is_cut(value: torch.Tensor, shifts: Any, dims: Any) -> bool:
    """Whether each turn of `roll` puts two pieces together, none of them empty, which keeps `channels_last` on the CPU."""
    last = suggest_memory_format(value) is not torch.contiguous_format
    return last and bool(dims) and all(shift % value.shape[dim] != 0 for shift, dim in zip(shifts, dims, strict=True))


def shifts_exponents(value: torch.Tensor, power: torch.Tensor) -> bool:
    """Whether eager's `ldexp` changes exponents, which never overflows on the way, and does not multiply by a power of two."""
    return value.is_floating_point() and not power.is_floating_point() and not power.is_complex()


def surely_equal(first: Any, second: Any) -> bool:
    """Whether two sizes are equal in every call of the graph, as far as is known; nothing new is assumed."""
    return first == second if type(first) is int and type(second) is int else surely(first == second)


def surely_one(size: Any) -> bool:
    """Whether a size is 1 in every call, as a slice's may be that was broadcast; symbols alone are at least 2."""
    return size == 1 if type(size) is int else size.node.hint == 1 and surely(size == 1)


def surely(condition: bool | torch.SymBool) -> bool:
    """Whether something holds in every call of the graph, as far as is known; nothing new is assumed."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loaded already where there are symbols

    return statically_known_true(condition)


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share storage; functional tensors have functional storages."""
    return value.untyped_storage()._cdata


def device_of(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.device:
    """What `FakeTensor.__torch_dispatch__` says of a fake tensor's device; before that is asked for the first time, PyTorch
    imports `torch.distributed.tensor`, which takes a tenth of a second."""
    (fake,) = args
    return torch.device("meta") if fake.fake_mode.in_kernel_invocation else fake.fake_device


singleton.find("prim::device").torch_dispatch_rules.register(FakeTensor, device_of)
