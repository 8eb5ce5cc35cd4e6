"""Launch a Triton kernel: on the GPU as usual, on CPU tensors through Triton's interpreter, in the same process.

`launch(kernel, grid, *args, **meta)` takes an ordinary `@triton.jit` function. For CPU tensors the kernel's plain
function is rewritten by `triton.runtime.interpreter.InterpretedFunction` and run program by program on NumPy. Nothing
depends on the environment variable `TRITON_INTERPRET`, and after the launch Triton is as it was, so the same process
can compile the same kernels to machine code.

Works with Triton 3.6 to 3.9; every use of a private interface of Triton's interpreter is in this file:

* `_patch_lang` puts NumPy versions of the builtins into `tl`, but only into the modules that a kernel's globals name
  and, for nested calls, without taking them back. Here `tl` *and* `tl.core` are patched once per launch and restored.
* `tl.sum`, `tl.max`, `tl.zeros`, `tl.cdiv`, ... and the user's own helpers are `@triton.jit` functions, whose
  `__call__` raises outside a kernel, and whose method form (`x.sum(0)`) does not bind `x`. Both are patched on
  `JITFunction`. `constexpr_function`s must return bare values, not `tl.constexpr`.
* bfloat16 is kept as `uint16` bits. Triton casts to it by truncation, multiplies the *bits* in `tl.dot` and in
  arithmetic; here casts round to nearest even, and dot products and elementwise operations go through float32. Still
  wrong: `tl.sum` and `tl.cumsum` of bfloat16 (cast to float32 first, as every kernel should).
* `tl.dot` goes to BLAS, fp16 and bf16 in fp32, all else in fp64; `input_precision` is ignored.
* The checks "a power of two" and "at most 2**20 elements" are lifted: a tile may be as large as the problem, which is
  what makes the interpreter as fast as NumPy. One program over everything; never a grid of thousands.
* `triton.language.extra.libdevice` functions are empty stubs; those that kernels use get NumPy bodies, as does `tl.erf`.
* A masked load without `other=` gives zeros here and anything on the GPU: always pass `other`.
* float8 is kept as `uint8` bits, and converted by PyTorch: beyond the largest number it may differ from hardware.
* `num_warps`, `num_stages` and other launch options are dropped. Inline assembly and atomics on bf16 do not work.
* The kernel's source must be readable by `inspect` (a real file, or an entry in `linecache`), with no function nested
  in it, and no assignment with two targets (`a = b = 0`).

This module must not know any kernel, and must not choose tiles.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import jit as triton_jit

from minicompile.kernels.cache_keys import settle

Grid = Sequence[int] | Callable[[dict[str, Any]], Sequence[int]]

OPTIONS = {"enable_fp_fusion": True}  # multiply-adds, as up to Triton 3.9, which warns that the next one will not by itself

LOCK = threading.RLock()


def run_on_gpu(kernel: Any, grid: Grid, args: tuple[Any, ...], meta: dict[str, Any]) -> Any:
    """Launch by Triton, which gives the compiled kernel."""
    settle(kernel)
    return kernel[grid](*args, **OPTIONS | meta)


_RUN: contextvars.ContextVar[Callable[..., Any]] = contextvars.ContextVar("how a GPU launch is done", default=run_on_gpu)


def launch(kernel: Any, grid: Grid, *args: Any, **meta: Any) -> None:
    """Run `kernel` over `grid`; CPU tensors among the arguments select the interpreter."""
    if runs_interpreted(*args, *meta.values()):
        _interpret(kernel, grid, args, meta, number_as_launched)
    else:
        _RUN.get()(kernel, grid, args, meta)


@contextlib.contextmanager
def launching_by(run: Callable[..., Any]) -> Iterator[None]:
    """Have `run` called in place of `run_on_gpu` for every GPU launch of this thread in the block."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def compile_launches(
    call: Callable[[], Any], device: torch.device, prepare: Callable[[list[Any], int], bool] | None = None
) -> None:
    """Compile and load what `call` launches, all at once, in a call that launches nothing; a failure is left to its next call.

    `prepare` is given the kernels and the number of the GPU, before any is compiled, and says whether they are to be.
    """
    kernels: list[Any] = []
    planned: list[Callable[[], Any]] = []

    def plan(kernel: Any, grid: Grid, args: tuple[Any, ...], meta: dict[str, Any]) -> None:
        settle(kernel)
        kernels.append(kernel)
        planned.append(functools.partial(kernel.warmup, *args, grid=grid, **OPTIONS | meta))

    try:
        with launching_by(plan):
            call()
    except Exception:  # of whatever kind: the call that launches will raise it to the user
        return
    if prepare is not None and kernels:
        if not prepare(kernels, torch.cuda.current_device() if device.index is None else device.index):
            return

    def compile(launch: Callable[[], Any]) -> None:
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with contextlib.suppress(Exception), on_device:  # as above
            getattr(launch(), "run", None)  # asked for it, Triton makes its launcher, with a C compiler, and loads the kernel

    with concurrent.futures.ThreadPoolExecutor(len(planned) or 1) as pool:
        list(pool.map(compile, planned))


def runs_interpreted(*args: Any) -> bool:
    """Whether a launch with these arguments goes through the interpreter: its first tensor is on the CPU."""
    for arg in args:
        tensor = getattr(arg, "base", arg)
        if isinstance(tensor, torch.Tensor):
            return tensor.device.type == "cpu"
    return False


def interpret(kernel: Any, grid: Grid, *args: Any, **meta: Any) -> None:
    """Run a kernel of a generated file (a `@triton.jit` function or its plain Python function) on NumPy.

    Its numbers have 64 bits, as those of kernels for any size have on a GPU.
    """
    _interpret(kernel, grid, args, meta, lambda interpreter, value: _number(interpreter, value, tl.int64))


def number_as_launched(interpreter: Any, value: int) -> Any:
    """A number of the width that a launch by Triton gives it; the interpreter's own may lie unsigned under a signed type."""
    return _number(interpreter, value, interpreter._implicit_cvt(value).dtype)


def _number(interpreter: Any, value: int, dtype: Any) -> Any:
    return tl.tensor(interpreter.TensorHandle(np.array([value], interpreter._get_np_dtype(dtype)), dtype), dtype)


def _interpret(
    kernel: Any, grid: Grid, args: tuple[Any, ...], meta: dict[str, Any], number: Callable[[Any, int], Any]
) -> None:
    """Run one program after the other; `number` makes an argument of an integer."""
    plain = getattr(kernel, "fn", kernel)
    parameters, rewritten = _prepared(plain)
    values = dict(zip(parameters, args, strict=False)) | {name: value for name, value in meta.items() if name in parameters}
    for name, (default, _) in parameters.items():
        values.setdefault(name, default)
    shape = tuple(grid(values)) if callable(grid) else tuple(grid)
    with interpreting() as interpreter:
        for name, (_, is_constexpr) in parameters.items():
            if not is_constexpr:
                value = values[name]
                values[name] = number(interpreter, value) if type(value) is int else interpreter._implicit_cvt(value)
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*(*shape, 1, 1)[:3])
        for index in np.ndindex(*(*shape, 1, 1)[:3]):
            builder.set_grid_idx(*index)
            rewritten(**values)


def _prepared(plain: Callable[..., None]) -> tuple[dict[str, tuple[Any, bool]], Callable[..., None]]:
    """Name to (default, is it a constexpr) of each parameter, and the kernel as the interpreter runs it.

    Both are kept on the function and die with it, which Triton's own table of rewritten functions would prevent.
    """
    kept = plain.__dict__.get("_minicompile_prepared")
    if kept is None:
        jitted = triton_jit.JITFunction(plain)
        parameters = {p.name: (p.default if p.has_default else None, p.is_constexpr) for p in jitted.params}
        with interpreting() as interpreter:
            rewritten = interpreter.InterpretedFunction(plain).rewrite()
            getattr(interpreter.InterpretedFunction, "rewritten_fn", {}).pop(plain, None)
        kept = plain.__dict__["_minicompile_prepared"] = parameters, rewritten
    return kept


@contextlib.contextmanager
def interpreting() -> Iterator[Any]:
    """Make Triton's language run on NumPy inside the block; yields Triton's interpreter module.

    Entering costs about a millisecond; `launch` enters by itself and may be nested in an outer block, which then pays
    for all launches in it. One thread at a time, and no compilation for a GPU in the block.
    """
    # Imported here because importing it costs time and no GPU run needs it.
    from triton.runtime import interpreter

    with LOCK, np.errstate(all="ignore"):
        if getattr(interpreter.interpreter_builder, "minicompile_active", False):
            yield interpreter
            return
        scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        try:
            _patch_calls(scope, interpreter)
            _patch_numerics(scope, interpreter)
            _patch_libdevice(scope, interpreter)
            _patch_folds(scope, interpreter)
            builder = interpreter.interpreter_builder
            precisions = (*builder.options.allowed_dot_input_precisions, "bf16x3", "bf16x6")
            # A GPU wraps around without checking either, and the checks are half of the interpreter's time.
            options = {"sanitize_overflow": False, "debug": True, "allowed_dot_input_precisions": precisions}
            scope.set_attr(builder, "options", dataclasses.replace(builder.options, **options))
            scope.set_attr(builder, "minicompile_active", True)
            yield interpreter
        finally:
            scope.restore()


def _patch_calls(scope: Any, interpreter: Any) -> None:
    """Let a `@triton.jit` function be called, and be a method of a tensor; lift the limits on block shapes."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_semantic", None)
        kwargs.pop("_generator", None)
        return interpreter.InterpretedFunction(self.fn).rewrite()(*args, **kwargs)

    def bind(self: Any, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(call, self, instance)

    def call_constexpr(self: Any, *args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        unwrap = tl.core._unwrap_if_constexpr
        return self.fn(*map(unwrap, args), **{name: unwrap(value) for name, value in kwargs.items()})

    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        ret_ty = ret_ty or tl.block_type(tl.int32, [end - start])
        return tl.tensor(interpreter.interpreter_builder.create_make_range(None, start, end), ret_ty)

    scope.set_attr(triton_jit.JITFunction, "__call__", call)
    scope.set_attr(triton_jit.JITFunction, "__get__", bind)
    scope.set_attr(triton_jit.ConstexprFunction, "__call__", call_constexpr)
    scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))
    scope.set_attr(tl.core, "validate_block_shape", lambda shape: math.prod(int(size) for size in shape))
    scope.set_attr(interpreter.TritonSemantic, "arange", arange)


KEPT_AS_BITS = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _widen(handle: Any) -> np.ndarray:
    """A handle's values in a type that NumPy can compute with: bits become float32."""
    dtype = handle.dtype.scalar
    if dtype == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    if dtype in KEPT_AS_BITS:
        return torch.from_numpy(np.array(handle.data)).view(KEPT_AS_BITS[dtype]).float().numpy()
    return handle.data


def _to_bits(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """float32 to the bits of a narrow dtype, rounded to nearest even; NaN stays NaN."""
    contiguous = np.ascontiguousarray(values, dtype=np.float32)
    source = contiguous if contiguous.flags.writeable else contiguous.copy()
    bits = torch.uint16 if dtype == tl.bfloat16 else torch.uint8
    return torch.from_numpy(source).to(KEPT_AS_BITS[dtype]).view(bits).numpy().reshape(values.shape)


def _patch_numerics(scope: Any, interpreter: Any) -> None:
    """Round bfloat16 as hardware does, and send dot products to BLAS."""
    builder, handle_type = interpreter.interpreter_builder, interpreter.TensorHandle
    elementwise = {name: getattr(builder, name) for name in ("binary_op", "unary_op")}

    def cast(source: Any, target: Any) -> Any:
        if target.scalar in KEPT_AS_BITS:
            return handle_type(_to_bits(_widen(source), target.scalar), target.scalar)
        return handle_type(_widen(source).astype(interpreter._get_np_dtype(target)), target.scalar)

    def compute(name: str, first: Any, *rest: Any) -> Any:
        if first.dtype.scalar != tl.bfloat16:
            return elementwise[name](first, *rest)
        wide = [handle_type(_widen(x), tl.float32) if isinstance(x, handle_type) else x for x in (first, *rest)]
        result = elementwise[name](*wide)
        return result if result.data.dtype != np.float32 else handle_type(_to_bits(result.data, tl.bfloat16), tl.bfloat16)

    def dot(a: Any, b: Any, accumulator: Any, *_: Any) -> Any:
        is_short = a.data.dtype.itemsize == 2 and accumulator.data.dtype == np.float32
        wide = np.float32 if is_short else np.float64  # in fp32 the processor would decide in which order sums are rounded
        product = np.matmul(_widen(a).astype(wide, copy=False), _widen(b).astype(wide, copy=False))
        exact = product.astype(np.int64) if accumulator.data.dtype == np.int32 else product
        return handle_type(exact.astype(accumulator.data.dtype, copy=False) + accumulator.data, accumulator.dtype.scalar)

    def erf(arg: Any) -> Any:
        return handle_type(torch.erf(torch.from_numpy(arg.data.copy())).numpy(), arg.dtype.scalar)

    def fma(left: Any, right: Any, addend: Any) -> Any:  # up to Triton 3.8 it rounds the product of fp32 numbers, too
        wide = np.float64 if addend.data.dtype == np.float32 else addend.data.dtype
        with_product = left.data.astype(wide) * right.data + addend.data
        return handle_type(with_product.astype(addend.data.dtype), addend.dtype.scalar)

    def fail_unless(condition: Any, message: str) -> None:
        if not condition.data.all():  # also under `python -O`, which leaves Triton's own assertion out
            raise AssertionError(message)

    def splat(target: Any, arg: Any) -> Any:
        return handle_type(np.full(target.shape, arg.data.reshape(-1)[0], dtype=arg.data.dtype), arg.dtype.scalar)

    for name in ("create_maximumf", "create_minimumf"):  # of a zero and a negative one NumPy takes the second, eager the first
        scope.set_attr(builder, name, lambda left, right, function=getattr(builder, name): function(right, left))
    scope.set_attr(builder, "create_splat", splat)  # Triton's turns a boolean into int32
    scope.set_attr(builder, "create_assert", fail_unless)
    scope.set_attr(builder, "cast_impl", cast)
    scope.set_attr(builder, "create_fp_to_fp", lambda source, target, rounding: cast(source, target))
    scope.set_attr(builder, "binary_op", functools.partial(compute, "binary_op"))
    scope.set_attr(builder, "unary_op", functools.partial(compute, "unary_op"))
    scope.set_attr(builder, "create_dot", dot)
    scope.set_attr(builder, "create_fma", fma)
    scope.set_attr(builder, "create_erf", erf)


def _by_torch(name: str) -> Callable[..., np.ndarray]:
    function = getattr(torch, name)
    return lambda *arrays: function(*(torch.from_numpy(np.array(array)) for array in arrays)).numpy()


_LIBDEVICE: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in (
        "tanh", "sinh", "cosh", "tan", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "trunc",
        "rint", "hypot", "fmod", "copysign", "nextafter")},
    "pow": np.power, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, **{name: _by_torch(name) for name in ("erfc", "erfinv", "lgamma")},
}  # fmt: skip


def _patch_libdevice(scope: Any, interpreter: Any) -> None:
    """Give NumPy bodies to the libdevice functions that generated kernels use."""
    # Imported here because only the interpreter needs the stubs' module.
    from triton.language.extra import libdevice

    def body(function: Callable[..., np.ndarray]) -> Callable[..., Any]:
        def run(*args: Any, **_: Any) -> Any:
            tensors = [interpreter.interpreter_semantic.to_tensor(tl.core._unwrap_if_constexpr(arg)) for arg in args]
            result = function(*(_widen(tensor.handle) for tensor in tensors))
            dtype = tl.int1 if result.dtype == np.bool_ else tensors[0].dtype
            if dtype == tl.bfloat16:
                result = _to_bits(result, dtype)
            handle = interpreter.TensorHandle(result.astype(interpreter._get_np_dtype(dtype), copy=False), dtype)
            blocks = any(tensor.type.is_block() for tensor in tensors)
            return tl.tensor(handle, tl.block_type(dtype, list(result.shape)) if blocks else dtype)

        return run

    for name, function in _LIBDEVICE.items():
        scope.set_attr(libdevice, name, body(function))


def _patch_folds(scope: Any, interpreter: Any) -> None:
    """Reductions and scans with a function of the kernel's own: whole arrays at a time, not element by element."""

    def combine(operation: Any, left: list[Any], right: list[Any], dtypes: list[Any]) -> list[np.ndarray]:
        pairs = [operation.to_tensor(array, dtype) for array, dtype in zip(left + right, dtypes * 2, strict=True)]
        result = operation.combine_fn.fn(*pairs)
        parts = result if isinstance(result, tuple) else (result,)
        return [np.broadcast_to(part.handle.data, left[0].shape) for part in parts]

    def reduce(self: Any, tensors: Any) -> list[Any]:
        shape, whole = tensors[0].handle.data.shape, self.axis is None
        tensors, axis = self.unravel(tensors, self.axis)
        dtypes = [tensor.dtype for tensor in tensors]
        arrays = [np.moveaxis(tensor.handle.data, axis, 0) for tensor in tensors]
        while (count := arrays[0].shape[0]) > 1:
            even = count - count % 2
            paired = combine(self, [a[0:even:2] for a in arrays], [a[1:even:2] for a in arrays], dtypes)
            arrays = [np.concatenate([p, a[even:]]) for p, a in zip(paired, arrays, strict=True)]
        if self.keep_dims:
            results = [a.reshape([1] * len(shape)) if whole else np.moveaxis(a, 0, axis) for a in arrays]
        else:
            results = [a[0].item() if whole else a[0] for a in arrays]
        return [self.to_tensor(result, dtype) for result, dtype in zip(results, dtypes, strict=True)]

    def scan(self: Any, tensors: Any) -> list[Any]:
        dtypes = [tensor.dtype for tensor in tensors]
        arrays = [np.moveaxis(tensor.handle.data, self.axis, 0) for tensor in tensors]
        distance = 1
        while distance < arrays[0].shape[0]:
            later = combine(self, [a[:-distance] for a in arrays], [a[distance:] for a in arrays], dtypes)
            arrays = [np.concatenate([a[:distance], part]) for a, part in zip(arrays, later, strict=True)]
            distance *= 2
        return [self.to_tensor(np.moveaxis(a, 0, self.axis), d) for a, d in zip(arrays, dtypes, strict=True)]

    def accumulated(function: Any) -> Any:
        """A sum or product in float64, as eager's on the CPU; NumPy's in float32 loses digits along outer axes."""

        def run(self: Any, tensor: Any) -> Any:
            data = tensor.handle.data
            wide = np.float64 if data.dtype == np.float32 else None
            options = {"keepdims": self.keep_dims} if function is np.sum else {}
            result = self.to_tensor(function(data, axis=self.axis, dtype=wide, **options), tensor.dtype)
            return result if function is np.sum else [result]

        return run

    scope.set_attr(interpreter.ReduceOps, "sum", accumulated(np.sum))
    scope.set_attr(interpreter.ScanOps, "cumsum", accumulated(np.cumsum))
    scope.set_attr(interpreter.ScanOps, "cumprod", accumulated(np.cumprod))
    scope.set_attr(interpreter.ReduceOps, "generic_reduce", reduce)
    scope.set_attr(interpreter.ScanOps, "generic_scan", scan)
