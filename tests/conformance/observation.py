"""What a caller can see of a call, written down as plain data, and the comparison of two such records.

Objects are numbered in the order in which they are first seen during a whole run. Two runs of the same program see
them in the same order, so equal numbers mean equal identity relations: an output that is an input, one list in two
places, tensors that share storage. Values are copied at once, since later calls may change them.

This module must not run programs and must not know which compiler is being tested.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import re
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

SIMPLE = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice)
NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.MethodType)
DRAINED = (types.GeneratorType, map, filter, zip, enumerate, reversed)
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclasses.dataclass(frozen=True)
class SeenTensor:
    """A tensor as a caller sees it. `storage` and `offset` matter where another tensor has the same storage."""

    kind: str
    number: int
    storage: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool
    is_leaf: bool
    is_inference: bool
    values: torch.Tensor
    gradient: Any


@dataclasses.dataclass(frozen=True)
class SeenValue:
    """A Python value without parts; `text` normally is its `repr`."""

    kind: str
    text: str
    value: Any = None


@dataclasses.dataclass(frozen=True)
class SeenParts:
    """A container or an object: its type, which object it is, and its parts in order."""

    kind: str
    number: int | None
    parts: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class SeenBefore:
    """Another mention of an object that this record already describes."""

    number: int


@dataclasses.dataclass(frozen=True)
class SeenException:
    """An exception: its type, message, cause, and the deepest line of the program's own file."""

    kind: str
    message: str
    line: int | None
    cause: str | None


class Observer:
    """Numbers and describes objects through one run of a program."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._alive: list[Any] = []
        self._described: set[int] = set()
        self._drained: dict[int, list[Any]] = {}
        self._draining = False
        self.tensors: list[torch.Tensor] = []

    def begin(self, drain: bool = False) -> None:
        """Start a new record: everything is described again, numbers stay; `drain` says whether to use up iterators."""
        self._described = set()
        self._draining = drain
        self.tensors = []

    def describe(self, value: Any) -> Any:
        """The record of `value`."""
        if isinstance(value, torch.Tensor):
            return self._once(value, self._tensor)
        if isinstance(value, (enum.Enum, np.generic)):
            return SeenValue(type(value).__name__, repr(value))
        if type(value) in SIMPLE:
            return SeenValue(type(value).__name__, ADDRESS.sub("0x", repr(value)), value)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return SeenValue(type(value).__name__, repr(value))
        if isinstance(value, NAMED):
            return SeenValue(type(value).__name__, getattr(value, "__qualname__", repr(value)))
        if isinstance(value, DRAINED):
            return self._iterator(value)
        if isinstance(value, tuple):
            return self._parts(value, enumerate(value), None)
        if isinstance(value, (set, frozenset)):
            return SeenParts(type(value).__name__, None, tuple(("", self.describe(v)) for v in sorted(value, key=repr)))
        return self._once(value, self._object)

    def number(self, value: Any) -> int:
        """Which object this is, counting from the first that the run showed."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
        return self._numbers[id(value)]

    def _once(self, value: Any, describe: Any) -> Any:
        number = self.number(value)
        if number in self._described:
            return SeenBefore(number)
        self._described.add(number)
        return describe(value, number)

    def _parts(self, value: Any, items: Any, number: int | None) -> SeenParts:
        return SeenParts(type(value).__qualname__, number, tuple((str(k), self.describe(v)) for k, v in items))

    def _iterator(self, iterator: Any) -> Any:
        if id(iterator) not in self._drained:
            if not self._draining:
                return SeenValue(type(iterator).__name__, "not looked into")
            self._alive.append(iterator)
            self._drained[id(iterator)] = list(iterator)
        return self._parts(iterator, enumerate(self._drained[id(iterator)]), None)

    def _tensor(self, tensor: torch.Tensor, number: int) -> SeenTensor:
        self.tensors.append(tensor)
        plain = tensor.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        strided = plain.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(plain)
        values = plain.clone() if strided else plain.to_dense()
        return SeenTensor(
            kind=type(tensor).__qualname__,
            number=number,
            storage=self._storage(plain) if strided else -1,
            offset=plain.storage_offset() if strided else 0,
            dtype=plain.dtype,
            shape=tuple(plain.shape),
            stride=meaningful_stride(plain) if strided else (),
            device=str(plain.device),
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
            is_inference=tensor.is_inference(),
            values=values.resolve_conj().resolve_neg().cpu(),
            gradient=self.describe(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None,
        )

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = len(self._storages)
            self._alive.append(storage)
        return self._storages[storage._cdata]

    def _object(self, value: Any, number: int) -> Any:
        if isinstance(value, (list, collections.deque)):
            return self._parts(value, [*enumerate(value), *sorted(public_state(value).items())], number)
        if isinstance(value, (dict, types.MappingProxyType, collections.ChainMap)):
            return self._parts(value, ((ADDRESS.sub("0x", repr(k)), v) for k, v in value.items()), number)
        if isinstance(value, np.ndarray):
            return SeenParts(f"ndarray {value.dtype} {value.shape}", number, tuple(self._array_parts(value)))
        if isinstance(value, torch.Generator):
            return SeenValue("Generator", str(hash(bytes(value.get_state().tolist()))))
        if isinstance(value, BaseException):
            return self._parts(value, [("args", value.args), *sorted(public_state(value).items())], number)
        if isinstance(value, torch.nn.Module):
            return self._parts(value, module_state(value).items(), number)
        if isinstance(value, functools.partial):
            return self._parts(
                value, [("func", value.func), ("args", value.args), ("keywords", value.keywords)], number
            )
        return self._parts(value, sorted(public_state(value).items()), number)

    def _array_parts(self, array: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
        for index, item in enumerate(array.reshape(-1).tolist()):
            yield str(index), self.describe(item)


def meaningful_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides, with 0 where a stride addresses nothing (sizes 0 and 1, empty tensors)."""
    if tensor.numel() == 0:
        return (0,) * tensor.dim()
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """What a caller can see of a module: parameters, buffers, children, plain attributes, number of hooks."""
    state: dict[str, Any] = {"training": module.training}
    state.update(module._parameters)
    state.update(module._buffers)
    state.update(module._modules)
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_"):
            state[name] = value
        elif name.endswith("hooks") and value:
            state[name] = len(value)
    return state


def public_state(value: Any) -> dict[str, Any]:
    """Attributes of an object, from its dictionary and its slots."""
    state = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                state[name] = getattr(value, name)
    return state


def describe_exception(error: BaseException, file: str) -> SeenException:
    """The record of an exception that left the program written in `file`."""
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno
        step = step.tb_next
    cause = error.__cause__
    return SeenException(
        kind=type(error).__qualname__,
        message=ADDRESS.sub("0x", str(error)),
        line=line,
        cause=None if cause is None else f"{type(cause).__qualname__}: {cause}",
    )


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far floats may be from eager's where no better reference is known, relative to the largest value."""

    by_dtype: tuple[tuple[torch.dtype, float], ...] = (
        (torch.float64, 1e-12),
        (torch.complex128, 1e-12),
        (torch.float32, 2e-6),
        (torch.complex64, 2e-6),
        (torch.float16, 2e-3),
        (torch.bfloat16, 1.6e-2),
    )

    def of(self, dtype: torch.dtype) -> float:
        """The relative tolerance for a dtype; 0 for those that are exact."""
        return dict(self.by_dtype).get(dtype, 0.0)


def differences(expected: Any, actual: Any, path: str, precise: Any = None) -> Iterator[str]:
    """Sentences that say where `actual` is not what eager showed; `precise` is the same record from an fp64 run."""
    if type(expected) is not type(actual):
        yield f"{path}: eager shows {short(expected)}, compiled {short(actual)}"
    elif isinstance(expected, SeenTensor):
        yield from tensor_differences(expected, actual, path, precise if isinstance(precise, SeenTensor) else None)
    elif isinstance(expected, SeenParts):
        yield from parts_differences(expected, actual, path, precise if isinstance(precise, SeenParts) else None)
    elif isinstance(expected, SeenValue) and isinstance(expected.value, (float, complex)):
        if expected.text != actual.text and not close_numbers(expected.value, actual.value):
            yield f"{path}: eager shows {short(expected)}, compiled {short(actual)}"
    elif expected != actual:
        yield f"{path}: eager shows {short(expected)}, compiled {short(actual)}"


def close_numbers(expected: Any, actual: Any) -> bool:
    """Whether two Python floats agree to what a reordered fp32 sum may change."""
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, complex):
        return abs(expected - actual) <= 2e-6 * abs(expected)
    return math.isclose(expected, actual, rel_tol=2e-6) or (math.isnan(expected) and math.isnan(actual))


def parts_differences(expected: SeenParts, actual: SeenParts, path: str, precise: SeenParts | None) -> Iterator[str]:
    """Differences of two containers or objects."""
    if expected.kind != actual.kind:
        yield f"{path}: eager has a {expected.kind}, compiled a {actual.kind}"
    if expected.number != actual.number:
        yield f"{path}: another object than in eager (object {actual.number}, not {expected.number})"
    names, others = [name for name, _ in expected.parts], [name for name, _ in actual.parts]
    if names != others:
        yield f"{path}: eager has parts {names}, compiled {others}"
        return
    references = dict(precise.parts) if precise is not None else {}
    for (name, part), (_, other) in zip(expected.parts, actual.parts, strict=True):
        yield from differences(part, other, f"{path}.{name}" if name else path, references.get(name))


def tensor_differences(
    expected: SeenTensor, actual: SeenTensor, path: str, precise: SeenTensor | None
) -> Iterator[str]:
    """Differences of two tensors: what they are, whose storage they have, and their values."""
    for field in ("kind", "number", "storage", "dtype", "shape", "stride", "device", "requires_grad", "is_leaf", "is_inference"):
        if getattr(expected, field) != getattr(actual, field):
            yield f"{path}: {field} is {getattr(expected, field)} in eager, {getattr(actual, field)} compiled"
    if expected.dtype == actual.dtype and expected.shape == actual.shape:
        yield from value_differences(expected.values, actual.values, path, precise.values if precise else None)
    yield from differences(expected.gradient, actual.gradient, f"{path}.grad", precise.gradient if precise else None)


def value_differences(
    expected: torch.Tensor, actual: torch.Tensor, path: str, precise: torch.Tensor | None
) -> Iterator[str]:
    """Differences of values: exact for integers and booleans, by error against fp64 (else relative) for floats."""
    if same_bits(expected, actual):
        return
    if not (expected.is_floating_point() or expected.is_complex()):
        yield f"{path}: values are {expected.tolist()} in eager, {actual.tolist()} compiled"
        return
    wide = torch.complex128 if expected.is_complex() else torch.float64
    eager, compiled = expected.to(wide), actual.to(wide)
    if not torch.equal(torch.isfinite(eager), torch.isfinite(compiled)):
        yield f"{path}: NaN or infinity in other places than in eager"
        return
    finite = torch.isfinite(eager)
    if not same_bits(eager[~finite], compiled[~finite]):
        yield f"{path}: another NaN or infinity than in eager"
    error, allowed = errors_of(eager[finite], compiled[finite], expected.dtype, precise, finite)
    if bool((error > allowed).any()):
        yield f"{path}: values off by up to {float(error.max()):.3g}, allowed is {float(allowed.min()):.3g}"


def errors_of(
    eager: torch.Tensor,
    compiled: torch.Tensor,
    dtype: torch.dtype,
    precise: torch.Tensor | None,
    finite: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The error of the compiled values and what is allowed, element by element."""
    scale = float(eager.abs().max()) if eager.numel() else 0.0
    ulp = torch.finfo(dtype).eps * eager.abs().clamp(min=scale * 0.125)
    if precise is not None and precise.shape == finite.shape:
        reference = precise.to(eager.dtype)[finite]
        eager_error = (eager - reference).abs()
        if bool((eager_error <= 0.02 * scale).all()):
            return (compiled - reference).abs(), 2 * eager_error.max() + 4 * ulp
    return (compiled - eager).abs(), torch.full_like(ulp, Tolerance().of(dtype) * scale)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal values, NaN equal to NaN."""
    return bool(torch.equal(first, second)) or bool(torch.allclose(first, second, rtol=0, atol=0, equal_nan=True))


def short(record: Any) -> str:
    """A record in at most 160 characters."""
    if isinstance(record, SeenValue):
        return record.text[:160]
    if isinstance(record, SeenTensor):
        return f"a tensor of shape {record.shape}, {record.dtype}"
    return str(record)[:160]
