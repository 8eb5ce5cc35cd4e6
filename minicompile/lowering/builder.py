"""Emits buffers, loops and extern calls; what every rule works through.

The builder keeps names unique, gives buffers eager's strides, and undoes what an abandoned rule emitted. It must not
know any operator, and it never decides about fusion: one rule's loops are emitted as they are.
"""

import dataclasses
import keyword
from collections.abc import Callable, Iterable
from typing import Any

import torch

import minicompile.gpu as gpu
from minicompile.config import Config
from minicompile.ir.expr import Apply, Constant, Expr, cast
from minicompile.ir.index import ONE, ZERO, Index
from minicompile.ir.loops import (
    Buffer,
    BufferView,
    ExternKernel,
    Loop,
    LoweredGraph,
    Operation,
    Origin,
    Reduction,
    ReductionKind,
    Scan,
    fold_identity,
)
from minicompile.lowering.registry import UseExtern
from minicompile.lowering.sizes import contiguous_strides, is_empty, overlaps, size_indices, stride_indices
from minicompile.lowering.values import FLOAT8, LOOP_DTYPES, FloatInput, TensorValue, axes_of, loop_axes, mapped

Indices = tuple[Index, ...]


class GraphBuilder:
    """The lowered graph under construction.

    Attributes:
        config: the compiler's settings.
        device: where loops run; buffers of other devices are left to extern kernels.
        movable: the dtypes that loops load, store and convert there; they compute with `LOOP_DTYPES` alone.
        node: the FX node being lowered.
        origin: where that node comes from, as recorded on operations.
        written: maps each new version of a storage to the first buffer that had it.
        shared: values that one node made and others may use, by keys that say what they are.
        floats: maps the loads that `in_memory` gave to the floats that they read.
        in_place: the graph input whose storage the node's result takes over, if it is a write of that input.
    """

    def __init__(self, name: str, config: Config, device: torch.device) -> None:
        self.name = name
        self.config = config
        self.device = device
        self.movable = LOOP_DTYPES | FLOAT8 if gpu.converts_float8(device) else LOOP_DTYPES
        self.node: Any = None
        self.origin: Origin | None = None
        self.in_place: TensorValue | None = None
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.operations: list[Operation] = []
        self.moved: dict[tuple[TensorValue | FloatInput, torch.device], TensorValue] = {}
        self.shared: dict[tuple[Any, ...], TensorValue] = {}
        self.floats: dict[Expr, FloatInput] = {}
        self.written: dict[str, str] = {}
        self._names: set[str] = set()

    # Names and buffers

    def unique_name(self, hint: str) -> str:
        """A fresh identifier near `hint`."""
        name = hint if hint.isidentifier() and not keyword.iskeyword(hint) else f"buffer_{hint}"
        count = 0
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def checkpoint(self) -> tuple[int, int]:
        """How much is emitted: the point to which `roll_back` returns."""
        return len(self.operations), len(self.buffers)

    def roll_back(self, point: tuple[int, int]) -> None:
        """Drop everything emitted since `point`."""
        del self.operations[point[0] :]
        for name in list(self.buffers)[point[1] :]:
            del self.buffers[name]
            self._names.discard(name)
        self.moved = {key: value for key, value in self.moved.items() if value.buffer in self.buffers}
        self.shared = {key: value for key, value in self.shared.items() if value.buffer in self.buffers}

    def new_buffer(
        self,
        sizes: Indices,
        dtype: torch.dtype,
        *,
        strides: Indices | None = None,
        device: torch.device | None = None,
        suffix: str = "",
    ) -> Buffer:
        """A computed buffer named after the node; strides that overlap are replaced by row-major ones."""
        if strides is None or overlaps(sizes, strides):
            strides = contiguous_strides(sizes)
        hint = self.node.name + (f"_{suffix}" if suffix else "")
        buffer = Buffer(self.unique_name(hint), dtype, device or self.device, sizes, strides)
        self.buffers[buffer.name] = buffer
        return buffer

    def buffer_for(self, result: torch.Tensor, suffix: str = "") -> Buffer:
        """A computed buffer laid out as a fake result promises."""
        sizes, strides = size_indices(result.shape), stride_indices(result.stride())
        return self.new_buffer(sizes, result.dtype, strides=strides, device=result.device, suffix=suffix)

    def new_version(self, name: str, suffix: str = "") -> Buffer:
        """A buffer for the storage of an older one, once something has written it."""
        hint = self.node.name + (f"_{suffix}" if suffix else "")
        new = dataclasses.replace(self.buffers[name], name=self.unique_name(hint), role="computed")
        self.buffers[new.name] = new
        self.written[new.name] = self.written.get(name, name)
        return new

    def same_storage(self, first: str, second: str) -> bool:
        """Whether both are versions of one storage."""
        return self.written.get(first, first) == self.written.get(second, second)

    def whole(self, buffer: Buffer) -> TensorValue:
        """The value that is all of `buffer`."""
        return TensorValue(buffer.name, buffer.dtype, buffer.dtype, buffer.device, buffer.sizes, buffer.strides)

    # The node's own result, as fake tensors know it

    @property
    def val(self) -> Any:
        """The node's fake result; `None` for a call that returns nothing."""
        return self.node.meta.get("val")

    # Loops

    def pointwise(
        self,
        sizes: Indices,
        dtype: torch.dtype,
        body: Callable[[Indices], Expr],
        *,
        strides: Indices | None = None,
        suffix: str = "",
        fold: Scan | None = None,
    ) -> TensorValue:
        """A buffer whose element at `i` is `body(i)`, cast to `dtype`."""
        buffer = self.new_buffer(sizes, dtype, strides=strides, suffix=suffix)
        result = self.whole(buffer)
        if is_empty(sizes):
            return self._empty(buffer)
        indices = loop_axes(sizes)
        self._emit(buffer.name, axes_of(indices), cast(body(indices), dtype), result.at(indices), fold=fold)
        return result

    def like_node(self, body: Callable[[Indices], Expr], index: int | None = None) -> TensorValue:
        """`pointwise` with the sizes, strides and dtype of the node's result (its `index`-th one)."""
        val = self.val if index is None else self.val[index]
        suffix = "" if index is None else str(index)
        sizes, strides = size_indices(val.shape), stride_indices(val.stride())
        return self.pointwise(sizes, val.dtype, body, strides=strides, suffix=suffix)

    def reduce(
        self,
        kind: ReductionKind,
        sizes: Indices,
        dims: Iterable[int],
        dtype: torch.dtype,
        body: Callable[[Indices], Expr],
        *,
        keepdim: bool = False,
        strides: Indices | None = None,
        suffix: str = "",
    ) -> TensorValue:
        """Fold `body` over `dims` of a space of `sizes`; a fold of nothing gives the identity of sums and products."""
        folded = set(dims)
        kept = tuple(d for d in range(len(sizes)) if d not in folded)
        out_sizes = tuple(ONE if d in folded else s for d, s in enumerate(sizes) if keepdim or d not in folded)
        if is_empty(sizes[d] for d in folded):
            if kind not in ("sum", "prod", "any"):
                raise UseExtern("a reduction without identity over nothing")
            fill = Constant(fold_identity(kind, dtype), dtype)
            return self.pointwise(out_sizes, dtype, lambda _: fill, strides=strides, suffix=suffix)
        buffer = self.new_buffer(out_sizes, dtype, strides=strides, suffix=suffix)
        result = self.whole(buffer)
        if is_empty(out_sizes):
            return self._empty(buffer)
        outer = loop_axes(tuple(sizes[d] for d in kept))
        inner = loop_axes(tuple(sizes[d] for d in sorted(folded)), "r")
        by_dim = dict(zip(kept, outer, strict=True)) | dict(zip(sorted(folded), inner, strict=True))
        value = body(tuple(by_dim[d] for d in range(len(sizes))))
        place = tuple(ZERO if d in folded else by_dim[d] for d in range(len(sizes)) if keepdim or d not in folded)
        axes = axes_of(inner)
        if kind == "sum" and not axes and value.dtype.is_floating_point:
            value = Apply("add", (value, Constant(0.0, value.dtype)), value.dtype)  # -0.0 becomes 0.0, as in eager
        self._emit(buffer.name, axes_of(outer), value, result.at(place), fold=Reduction(kind, axes) if axes else None)
        return result

    def scan(self, kind: Any, dim: int, dtype: torch.dtype, body: Callable[[Indices], Expr]) -> TensorValue:
        """Scan `body` along `dim` over the node's result."""
        sizes, strides = size_indices(self.val.shape), stride_indices(self.val.stride())
        along = axes_of(loop_axes(sizes)[dim : dim + 1])
        return self.pointwise(sizes, dtype, body, strides=strides, fold=Scan(kind, along[0]) if along else None)

    def overwrite(
        self,
        target: TensorValue,
        indices: Indices,
        value: Expr,
        place: Index,
        *,
        accumulate: bool = False,
        condition: Expr | None = None,
        suffix: str = "",
    ) -> TensorValue:
        """Write `value` at flat offset `place` of `target`'s storage; the result is `target`'s new version."""
        old = self.buffers[target.buffer]
        new = self.new_version(target.buffer, suffix)
        self._emit(
            new.name, axes_of(indices), cast(value, old.dtype), place,
            accumulate=accumulate, condition=condition, overwrites=old.name,
        )  # fmt: skip
        return dataclasses.replace(target, buffer=new.name)

    @property
    def _origins(self) -> tuple[Origin, ...]:
        return (self.origin,) if self.origin else ()

    def _emit(self, name: str, axes: tuple[Any, ...], value: Expr, store: Index, **options: Any) -> None:
        self.operations.append(Loop(name, axes, value, store, origins=self._origins, **options))

    def _empty(self, buffer: Buffer) -> TensorValue:
        """A buffer without elements needs only to exist."""
        arguments = (tuple(map(_plain, buffer.sizes)), tuple(map(_plain, buffer.strides)))
        options = (("dtype", buffer.dtype), ("device", buffer.device))
        self.extern("torch.ops.aten.empty_strided.default", arguments, options, (buffer,), reason="no elements")
        return self.whole(buffer)

    # Copies

    def copy(
        self, value: TensorValue, *, strides: Indices | None = None, dtype: torch.dtype | None = None, suffix: str = ""
    ) -> TensorValue:
        """`value` in a buffer of its own."""
        if value.dtype not in self.movable or value.device != self.device:
            options = () if dtype is None else (("dtype", dtype),)
            layout = {"strides": strides, "device": value.device, "suffix": suffix or "copy"}
            return self._copied(value, dtype or value.dtype, options, "a plain copy", **layout)
        return self.pointwise(value.sizes, dtype or value.dtype, value.load, strides=strides, suffix=suffix or "contiguous")

    def _copied(
        self, value: TensorValue, dtype: torch.dtype, options: tuple[tuple[str, Any], ...], reason: str, **layout: Any
    ) -> TensorValue:
        """A copy by PyTorch."""
        buffer = self.new_buffer(value.sizes, dtype, **layout)
        self.extern("torch.ops.aten._to_copy.default", (self.argument(value),), options, (buffer,), reason=reason)
        return self.whole(buffer)

    def moved_to(self, value: TensorValue, device: torch.device) -> TensorValue:
        """`value` on `device`; copied there once, however often it is asked for."""
        if value.device == device:
            return value
        key = (value, device)
        if key not in self.moved:
            reason = f"moves a tensor from {value.device} to {device}"
            self.moved[key] = self._copied(value, value.dtype, (("device", device),), reason, device=device, suffix="moved")
        return self.moved[key]

    def in_memory(self, value: FloatInput) -> Expr:
        """A float that the graph takes, as loops read it; written to memory once."""
        key = (value, self.device)
        if key not in self.moved:
            buffer = self.new_buffer((), torch.float64, suffix=str(value.symbol))
            options = (("dtype", torch.float64), ("device", self.device))
            self.extern("torch.ops.aten.full.default", ((), value.symbol), options, (buffer,), reason="a Python float")
            self.moved[key] = self.whole(buffer)
            self.floats[self.moved[key].load(())] = value
        return self.moved[key].load(())

    # Extern calls

    def argument(self, value: Any) -> Any:
        """`value` as an extern kernel's argument: tensors as views, sizes as plain integers where constant."""

        def leaf(part: Any) -> Any:
            if isinstance(part, TensorValue):
                linear = part if part.strides is not None else self.copy(part)
                assert linear.strides is not None
                return BufferView(linear.buffer, linear.sizes, linear.strides, linear.offset, linear.dtype)
            if isinstance(part, Expr):
                part = self.floats.get(part, part)
            if isinstance(part, FloatInput):
                return part.symbol
            return _plain(part) if isinstance(part, Index) else part

        return mapped(value, leaf)

    def extern(
        self,
        target: str,
        args: tuple[Any, ...],
        kwargs: tuple[tuple[str, Any], ...],
        outputs: tuple[Buffer | None, ...],
        *,
        reason: str,
        **options: Any,
    ) -> None:
        """Emit a call; arguments are already in extern form (see `argument`)."""
        self.operations.append(ExternKernel(target, args, kwargs, outputs, reason=reason, origins=self._origins, **options))

    def finish(self, inputs: tuple[str, ...], size_inputs: dict[str, Index], outputs: tuple[Any, ...]) -> LoweredGraph:
        """The finished graph."""
        operations = tuple(self.operations)
        return LoweredGraph(inputs, size_inputs, self.buffers, self.constants, operations, outputs, self.name, self.device)


def _plain(index: Index) -> int | Index:
    constant = index.constant
    return index if constant is None else constant


