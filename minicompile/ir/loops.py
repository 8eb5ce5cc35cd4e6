"""Loop IR: buffers, the loop nests that compute them, and the kernels we did not write.

A `Loop` computes one buffer: for every point of `axes` (row-major) it evaluates `value`, reduces it over the reduction's
axes if there is one, and stores the result at `store`. Views cost nothing: they only change the index expressions of
loads. Names are in single-assignment form: every operation writes buffers of its own name; `overwrites` says that the
storage is that of an older buffer, whose readers must then all come first.

This module must not know about scheduling decisions or Triton.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_iter

from minicompile.errors import Location
from minicompile.ir.expr import Expr, Load, indirect_values, loads, rewrite, rewrite_index
from minicompile.ir.index import ZERO, Atom, Axis, Index, hint, product, total

PRODUCT = "(product)"
"""What the epilogue of a matrix product loads: the product before it is rounded or stored."""

ReductionKind = Literal["sum", "prod", "max", "min", "any", "argmax", "argmin"]
ScanKind = Literal["cumsum", "cumprod"]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The FX node behind an operation: its name, its operator, the user's variable and line where known."""

    node: str
    operator: str
    variable: str = ""
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A strided tensor in memory.

    Attributes:
        name: unique in the graph.
        dtype, device: as in torch.
        sizes, strides: in elements; the storage holds just this tensor (offset 0), strides may be any non-negative.
        role: a graph input, a tensor constant, or something the graph computes.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    role: Literal["input", "constant", "computed"] = "computed"

    @property
    def numel(self) -> Index:
        """Number of elements."""
        return product(self.sizes)

    @property
    def extent(self) -> Index:
        """Elements of memory from the first to the last, gaps included."""
        if any(size.constant == 0 for size in self.sizes):
            return ZERO
        return total((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)) + 1


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How a loop folds its reduction axes.

    `max` and `min` propagate NaN; `any` is over booleans; `argmax` and `argmin` give the flat int64 position in the
    reduction axes' row-major order, the first one at ties, a NaN winning. Floating sums and products accumulate in
    fp32 (fp64 for fp64 values) and round once; integer and boolean ones in int64.
    """

    kind: ReductionKind
    axes: tuple[Axis, ...]


@dataclasses.dataclass(frozen=True)
class Scan:
    """An inclusive scan along one axis; the result has the axis too. Accumulates as `Reduction` does."""

    kind: ScanKind
    axis: Axis


@dataclasses.dataclass(frozen=True)
class Loop:
    """One loop nest that computes `buffer`.

    Attributes:
        buffer: the buffer written.
        axes: the points at which a result is stored; without the reduction's axes, with the scan's.
        value: what is computed at each point (of `axes` and the reduction's axes).
        store: flat element offset in `buffer` at which the result goes; a function of `axes`, indirect for scatters.
        fold: a reduction, a scan, or nothing.
        accumulate: results are added to what is there, atomically (scatters that may hit a place twice).
        condition: store only where it holds (scatters of masked values).
        overwrites: the older buffer whose storage this loop writes, in whole or in part.
        origins: the FX nodes whose work this is, in order.
    """

    buffer: str
    axes: tuple[Axis, ...]
    value: Expr
    store: Index
    fold: Reduction | Scan | None = None
    accumulate: bool = False
    condition: Expr | None = None
    overwrites: str | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the buffers written."""
        return (self.buffer,)

    @functools.cached_property
    def inherits(self) -> dict[str, str]:
        """The buffer written, if it lies in the storage of an older one, to that one."""
        return {} if self.overwrites is None else {self.buffer: self.overwrites}

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers read, each once; an overwritten buffer counts."""
        return tuple(dict.fromkeys((*(load.buffer for load in self.loads), *self.inherits.values())))

    @functools.cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every distinct load of the body, the condition and the store's index."""
        parts = (self.value, *([] if self.condition is None else [self.condition]), *indirect_values(self.store))
        return tuple(dict.fromkeys(load for part in parts for load in loads(part)))

    @property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """The axes folded away; empty for pointwise loops and scans."""
        return self.fold.axes if isinstance(self.fold, Reduction) else ()


def fold_identity(kind: str, dtype: torch.dtype) -> int | float | bool:
    """What leaves every other value of a fold unchanged."""
    kind_of_number = bool if dtype == torch.bool else float if dtype.is_floating_point else int
    if kind in ("sum", "prod", "any"):
        return kind_of_number(kind == "prod")
    limits = None if kind_of_number is not int else torch.iinfo(dtype)
    lowest, highest = (limits.min, limits.max) if limits else (-math.inf, math.inf) if kind_of_number is float else (False, True)
    return highest if kind in ("min", "argmin") else lowest


def rewrite_loop(
    loop: Loop, axes: Mapping[Atom, Index] | None = None, on_load: Callable[[Load], Expr] | None = None
) -> Loop:
    """`expr.rewrite` of all that a loop evaluates; what it runs over and folds stays."""
    condition = None if loop.condition is None else rewrite(loop.condition, axes, on_load)
    value, store = rewrite(loop.value, axes, on_load), rewrite_index(loop.store, axes, on_load)
    return dataclasses.replace(loop, value=value, store=store, condition=condition)


def numbered(loops: Iterable[Loop], axes: Mapping[Atom, Index] | None = None) -> tuple[list[Loop], list[str]]:
    """The loops with their buffers called by number, and those buffers in order: loops that do the same become equal."""
    names: dict[str, str] = {}

    def name(buffer: str) -> str:
        return names.setdefault(buffer, f"buffer{len(names)}")

    moved = [rewrite_loop(loop, axes, lambda load: Load(name(load.buffer), load.index, load.dtype)) for loop in loops]
    return [dataclasses.replace(m, buffer=name(m.buffer), overwrites=None, origins=()) for m in moved], list(names)


@dataclasses.dataclass(frozen=True)
class BufferView:
    """A strided view of a buffer: an argument of an extern kernel, or an output of the graph."""

    buffer: str
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index
    dtype: torch.dtype


def views_in(value: Any) -> Iterator[BufferView]:
    """The buffer views in nested lists and tuples."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, BufferView))


@functools.lru_cache(maxsize=1 << 12)
def element_count(sizes: tuple[Index, ...]) -> int:
    """The number of elements at the hinted sizes."""
    return math.prod(hint(size) for size in sizes)


@functools.lru_cache(maxsize=1 << 12)
def extent(sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> int | None:
    """Elements from the first to the last of a strided tensor, if that is known."""
    if any(number.constant is None for number in (*sizes, *strides)):
        return None
    steps = zip(map(int, sizes), map(int, strides), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if all(map(int, sizes)) else 0


def num_bytes(buffer: Buffer | BufferView) -> int:
    """The bytes of all elements at the hinted sizes."""
    return element_count(buffer.sizes) * buffer.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class ExternKernel:
    """A call that we do not generate: an ATen operator, a library's op, or a hand-written kernel.

    Attributes:
        target: the operator, as Python text the host wrapper can evaluate (`torch.ops.aten.mm.default`), or
            `kernels.NAME` for a hand-written one.
        args, kwargs: plain Python values, with `BufferView` and `Index` where tensors and sizes go (nested in
            lists and tuples as the operator wants them).
        outputs: buffers the call creates, `None` for a result that is not a tensor, in the operator's order.
        out_argument: the call writes into `outputs[0]`, passed as keyword `out=` (saves an allocation and a copy).
        overwrites: buffers whose storage the call changes in place; `outputs` then names their new versions.
        unpack: the call returns a tuple or list of `outputs`, also where there is only one.
        pure: the same arguments give the same result and nothing else happens (no randomness, no I/O).
        reason: why this is extern, for the report; origins: the FX nodes whose work this is, in order.
        epilogue: for `kernels.fused_matmul`: a pointwise loop over (batch, row, column) of the product that is evaluated on
            the tiles of the result before they are stored; its load of `PRODUCT` is the product's element there. The call
            then computes the loop's buffer, `outputs[0]`; with a second output the product itself is stored too.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[Buffer | None, ...]
    out_argument: bool = False
    overwrites: tuple[str, ...] = ()
    unpack: bool = False
    pure: bool = True
    reason: str = ""
    origins: tuple[Origin, ...] = ()
    epilogue: Loop | None = None

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the buffers written."""
        return tuple(b.name for b in self.outputs if b is not None)

    @functools.cached_property
    def inherits(self) -> dict[str, str]:
        """Buffers written to the older ones in whose storage they lie."""
        return dict(zip(self.writes, self.overwrites, strict=True)) if self.overwrites else {}

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers read, each once."""
        found = dict.fromkeys(view.buffer for view in views_in((self.args, self.kwargs)))
        found.update(dict.fromkeys(self.overwrites))
        if self.epilogue is not None:
            found.update(dict.fromkeys(name for name in self.epilogue.reads if name != PRODUCT))
        return tuple(found)


Operation = Loop | ExternKernel


@dataclasses.dataclass(frozen=True)
class LoweredGraph:
    """A whole graph as loop nests and extern kernels.

    Attributes:
        inputs: names in the order of the graph's placeholders: tensors are in `buffers`, sizes in `size_inputs`.
        size_inputs: name of the placeholder to the symbol it defines.
        buffers: every buffer by name.
        constants: tensors baked into the graph (small; moved to the device at load time).
        operations: in an order that respects every dependence.
        outputs: one per graph output: a view of a buffer, an `Index` (a size), a Python number, or `None`.
        name: as in `CapturedGraph`.
        device: where loops run.
    """

    inputs: tuple[str, ...]
    size_inputs: Mapping[str, Index]
    buffers: Mapping[str, Buffer]
    constants: Mapping[str, torch.Tensor]
    operations: tuple[Operation, ...]
    outputs: tuple[BufferView | Index | int | float | bool | None, ...]
    name: str = "graph"
    device: torch.device = torch.device("cpu")
