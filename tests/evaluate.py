"""Runs a lowered graph with plain tensor operations on the CPU: the oracle that kernels and fusions are tested against.

One loop at a time, over its whole iteration space, with every load bounds-checked; memory that nothing wrote holds NaN.
Half precisions are computed in fp32 and rounded where a loop stores. Slow and simple on purpose: this module must not
know anything of fusion, tiles or Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minicompile.errors import MinicompileError
from minicompile.ir import index as indices
from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Masked, Random
from minicompile.ir.index import Atom, FloorDiv, Index, Indirect, Mod, Symbol
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph, Reduction, Scan
from minicompile.ir.operators import _normal_from, _uniform_from, philox_words

HALF = (torch.float16, torch.bfloat16)


class EvaluationFailed(MinicompileError):
    """A program did something that a kernel must never do: read outside a buffer, use an undefined name."""


def evaluate(index: Index, values: Mapping[Any, Any], load: Callable[[Any], Any] | None = None) -> Any:
    """An index with numbers or arrays for axes and symbols (a symbol without a value takes its hint); `load` computes the
    scalar expression of an `Indirect` atom."""

    def atom_value(atom: Atom) -> Any:
        match atom:
            case _ if atom in values:
                return values[atom]
            case Symbol():
                return atom.hint
            case FloorDiv():
                return evaluate(atom.numerator, values, load) // evaluate(atom.divisor, values, load)
            case Mod():
                return evaluate(atom.numerator, values, load) % evaluate(atom.divisor, values, load)
            case Indirect() if load is not None:
                return load(atom.value)
        raise KeyError(f"no value for {atom}")

    return sum(math.prod(map(atom_value, monomial), start=coefficient) for monomial, coefficient in index.terms)


def draw(kind: str, seed: torch.Tensor, counter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`uniform` or `normal` of a dtype, or `bits` (the first word), for each element of `counter`."""
    words = philox_words(seed, counter)
    return {"uniform": _uniform_from, "normal": _normal_from, "bits": lambda w, _: w[0]}[kind](words, dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are computed in."""
    return torch.float32 if dtype in HALF else dtype


def _divide(mode: str) -> Callable[[Any, Any], Any]:
    def divide(a: Any, b: Any) -> Any:
        if not a.dtype.is_floating_point:
            b = torch.where(b == 0, torch.ones_like(b), b)
        return torch.div(a, b, rounding_mode=mode)

    return divide


def _modulo(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def modulo(a: Any, b: Any) -> Any:
        if not a.dtype.is_floating_point:
            b = torch.where(b == 0, torch.ones_like(b), b)
        return operation(a, b)

    return modulo


def _checked(value: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    if not valid.all():
        raise EvaluationFailed("a value out of range")
    return value


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "add", "sub", "mul", "pow", "neg", "abs", "sign", "reciprocal", "minimum", "maximum", "fmin", "fmax", "eq",
            "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and",
            "bitwise_or", "bitwise_xor", "bitwise_not", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
            "sqrt", "rsqrt", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
            "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "floor", "ceil", "trunc", "round", "isnan",
            "isinf", "signbit", "copysign", "hypot", "nextafter", "where",
        )
    },
    "checked": _checked,
    "truediv": torch.true_divide,
    "floordiv": _divide("floor"),
    "truncdiv": _divide("trunc"),
    "remainder": _modulo(torch.remainder),
    "fmod": _modulo(torch.fmod),
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
}  # fmt: skip


def storage_extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one, inclusive."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


class Evaluator:
    """Memory and sizes of one run.

    Attributes:
        graph: what is run.
        storage: buffer name to its elements, as one flat tensor.
        symbols: the run's sizes.
        kernels: what `kernels.NAME` targets mean.
    """

    def __init__(self, graph: LoweredGraph, kernels: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self.graph = graph
        self.storage: dict[str, torch.Tensor] = {}
        self.symbols: dict[Any, int] = {}
        self.kernels = kernels or {}

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Evaluate all operations; inputs that the graph overwrites change."""
        self.bind(inputs)
        for operation in self.graph.operations:
            self.step(operation)
        return tuple(self._plain(output) for output in self.graph.outputs)

    def bind(self, inputs: Sequence[Any]) -> None:
        """Take the inputs and the constants; learn the sizes."""
        for name, value in zip(self.graph.inputs, inputs, strict=True):
            if name in self.graph.size_inputs:
                self._learn(self.graph.size_inputs[name], int(value))
            elif isinstance(value, torch.Tensor):
                for size, seen in zip(self.graph.buffers[name].sizes, value.shape, strict=True):
                    self._learn(size, seen)
                self.storage[name] = _flat(value)
        for name, value in self.graph.constants.items():
            self.storage[name] = _flat(value.cpu())

    def _learn(self, size: Index, value: int) -> None:
        if len(size.terms) == 1 and len(size.terms[0][0]) == 1 and isinstance(size.terms[0][0][0], Symbol):
            self.symbols[size.terms[0][0][0]] = value // size.terms[0][1]

    def number(self, value: Any) -> int:
        """A size or stride in this run."""
        return int(evaluate(value, self.symbols)) if isinstance(value, Index) else int(value)

    def step(self, operation: Loop | ExternKernel) -> None:
        """Run one operation."""
        if isinstance(operation, Loop):
            self._prepare(operation.buffer, operation.overwrites)
            LoopRun(self, operation).run()
        else:
            self._call(operation)

    def _prepare(self, name: str, overwrites: str | None) -> None:
        if overwrites is not None:
            self.storage[name] = self.storage[overwrites]
        else:
            self.storage[name] = self._fresh(self.graph.buffers[name])

    def _fresh(self, buffer: Buffer) -> torch.Tensor:
        extent = storage_extent([*map(self.number, buffer.sizes)], [*map(self.number, buffer.strides)])
        unwritten: Any = math.nan if buffer.dtype.is_floating_point or buffer.dtype.is_complex else 77
        return torch.full((extent,), unwritten, dtype=buffer.dtype)

    def view(self, view: BufferView) -> torch.Tensor:
        """A strided window of a buffer."""
        memory = self.storage[view.buffer]
        if view.dtype != memory.dtype:
            memory = memory.view(view.dtype)
        sizes, strides = [*map(self.number, view.sizes)], [*map(self.number, view.strides)]
        return torch.as_strided(memory, sizes, strides, memory.storage_offset() + self.number(view.offset))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, BufferView):
            return self.view(value)
        if isinstance(value, Index):
            return self.number(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._plain, value))
        return value

    def _call(self, kernel: ExternKernel) -> None:
        target = self._target(kernel.target)
        args, kwargs = self._plain(kernel.args), {key: self._plain(value) for key, value in kernel.kwargs}
        if kernel.out_argument:
            (output,) = kernel.outputs
            assert output is not None
            kwargs["out"] = self._like(output)
        result = target(*args, **kwargs)
        results = tuple(result) if kernel.unpack else (result,)
        for buffer, old, value in zip(kernel.outputs, kernel.overwrites or (None,) * len(results), results, strict=True):
            if buffer is None:
                continue
            if old is not None:
                self.storage[buffer.name] = self.storage[old]
                continue
            if tuple(value.shape) != tuple(map(self.number, buffer.sizes)) or value.dtype != buffer.dtype:
                raise EvaluationFailed(
                    f"{kernel.target} gave {value.dtype} {tuple(value.shape)} for {buffer.name}: "
                    f"{buffer.dtype} {tuple(map(self.number, buffer.sizes))}"
                )
            self._like(buffer).copy_(value)

    def _target(self, text: str) -> Callable[..., Any]:
        first, *rest = text.split(".")
        if first == "kernels":
            return self.kernels[rest[0]]
        found: Any = torch
        for part in rest:
            found = getattr(found, part)
        return found

    def _like(self, buffer: Buffer) -> torch.Tensor:
        """A fresh tensor over a buffer's new storage."""
        self.storage[buffer.name] = self._fresh(buffer)
        return self.view(BufferView(buffer.name, buffer.sizes, buffer.strides, indices.ZERO, buffer.dtype))


def evaluate_graph(
    graph: LoweredGraph, inputs: Sequence[Any], kernels: Mapping[str, Callable[..., Any]] | None = None
) -> tuple[Any, ...]:
    """The graph's outputs for `inputs` (CPU tensors and integers, in the order of the placeholders)."""
    return Evaluator(graph, kernels).run(inputs)


def _flat(value: torch.Tensor) -> torch.Tensor:
    extent = storage_extent(value.shape, value.stride())
    return torch.as_strided(value.detach(), (extent,), (1,), value.storage_offset())


class LoopRun:
    """One loop over its whole iteration space, points first, then the reduction's axes."""

    def __init__(self, evaluator: Evaluator, loop: Loop) -> None:
        self.evaluator = evaluator
        self.loop = loop
        space = (*loop.axes, *loop.reduction_axes)
        self.shape = [evaluator.number(axis.size) for axis in space]
        self.positions: dict[Any, Any] = dict(evaluator.symbols)
        for place, (axis, size) in enumerate(zip(space, self.shape, strict=True)):
            self.positions[axis] = torch.arange(size).reshape([-1] + [1] * (len(space) - place - 1))

    def run(self) -> None:
        """Compute, fold and store."""
        loop, points = self.loop, self.shape[: len(self.loop.axes)]
        values = Expressions(self, None)
        value = values.of(loop.value).expand(self.shape)
        if isinstance(loop.fold, Reduction):
            value = _folded(loop.fold.kind, value.reshape([*points, -1]))
        elif isinstance(loop.fold, Scan):
            value = _scanned(loop.fold, value, loop.axes.index(loop.fold.axis))
        memory = self.evaluator.storage[loop.buffer]
        rows = [*points, *[1] * len(loop.reduction_axes)]
        condition = None if loop.condition is None else values.of(loop.condition).expand(rows).reshape(-1)
        place = torch.as_tensor(values.index(loop.store)).expand(rows).reshape(-1)
        value = value.to(memory.dtype).expand(points).reshape(-1)
        if condition is not None:
            place, value = place[condition], value[condition]
        _check_bounds(place, memory, f"the store of {loop.buffer}")
        memory.index_put_((place,), value, accumulate=loop.accumulate)


class Expressions:
    """Values of expressions, each computed once; where `mask` is false nothing is read."""

    def __init__(self, run: LoopRun, mask: Any) -> None:
        self.run = run
        self.mask = mask
        self.known: dict[Expr, Any] = {}

    def of(self, expression: Expr) -> Any:
        """The value over the iteration space, as a tensor that broadcasts to it."""
        if expression not in self.known:
            self.known[expression] = self._compute(expression)
        return self.known[expression]

    def index(self, index: Index) -> Any:
        """An index over the iteration space."""
        return evaluate(index, self.run.positions, self.of)

    def _compute(self, expression: Expr) -> Any:
        match expression:
            case Constant(value=value, dtype=dtype):
                return torch.tensor(value, dtype=wide(dtype))
            case Load():
                return self._load(expression)
            case IndexValue(index=index, dtype=dtype):
                return torch.as_tensor(self.index(index)).to(wide(dtype))
            case Apply():
                return self._apply(expression)
            case Masked():
                condition = self.of(expression.condition)
                inner = condition if self.mask is None else condition & self.mask
                value = Expressions(self.run, inner).of(expression.value)
                return torch.where(condition, value, self.of(expression.other))
            case Random(kind=kind, seed=seed, index=counter, dtype=dtype):
                return draw(kind, self.of(seed), torch.as_tensor(self.index(counter)), dtype).to(wide(dtype))
        raise EvaluationFailed(f"unknown expression {expression!r}")

    def _load(self, load: Load) -> Any:
        memory = self.run.evaluator.storage.get(load.buffer)
        if memory is None:
            raise EvaluationFailed(f"{load} is read before it is written")
        place = torch.as_tensor(self.index(load.index))
        if self.mask is not None:
            place, mask = torch.broadcast_tensors(place, self.mask)
            place = torch.where(mask, place, 0)
            if not bool(mask.any()):
                return torch.zeros((), dtype=wide(load.dtype))
        _check_bounds(place, memory, str(load))
        return memory[place].to(wide(memory.dtype))

    def _apply(self, expression: Apply) -> Any:
        arguments = [self.of(argument) for argument in expression.arguments]
        dtype = expression.dtype
        if expression.operation == "cast":
            return arguments[0].to(dtype).to(wide(dtype))
        if expression.operation == "bitcast":
            source = expression.arguments[0].dtype
            return arguments[0].to(source).view(dtype).to(wide(dtype))
        return OPERATIONS[expression.operation](*arguments).to(wide(dtype))


def _check_bounds(place: Any, memory: torch.Tensor, what: str) -> None:
    if place.numel() and (int(place.min()) < 0 or int(place.max()) >= memory.numel()):
        raise EvaluationFailed(
            f"{what} reaches {int(place.min())}..{int(place.max())} of {memory.numel()} elements"
        )


def _folded(kind: str, value: Any) -> Any:
    """Fold the last dimension."""
    if kind == "sum":
        return value.sum(-1)
    if kind == "prod":
        return value.prod(-1)
    if kind in ("max", "min"):
        return value.amax(-1) if kind == "max" else value.amin(-1)
    if kind == "any":
        return value.any(-1)
    number = value.to(torch.int64) if value.dtype == torch.bool else value
    return number.argmax(-1) if kind == "argmax" else number.argmin(-1)


def _scanned(scan: Scan, value: Any, dim: int) -> Any:
    return getattr(torch, scan.kind)(value, dim)



