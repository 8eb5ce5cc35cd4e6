"""Lowered graphs written by hand, in the form lowering gives them: one loop per operator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minicompile.ir.expr import Apply, Constant, Expr, Load, apply
from minicompile.ir.index import ONE, ZERO, Axis, Index, as_index, product
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph, Operation, Origin, Reduction

Sizes = tuple[int | Index, ...]
Point = tuple[Index, ...]
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


class GraphMaker:
    """Collects buffers and operations."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.operations: list[Operation] = []

    def new(self, name: str, sizes: Sizes, dtype: torch.dtype = F32, role: str = "computed") -> Buffer:
        """A row-major buffer."""
        extents = tuple(as_index(size) for size in sizes)
        strides = tuple(product(extents[number + 1 :]) for number in range(len(extents)))
        self.buffers[name] = Buffer(name, dtype, torch.device("cpu"), extents, strides, role)  # type: ignore[arg-type]
        return self.buffers[name]

    def input(self, name: str, *sizes: int | Index, dtype: torch.dtype = F32) -> str:
        """A graph input."""
        return self.new(name, sizes, dtype, "input").name

    def load(self, name: str, *point: Index | int) -> Expr:
        """One element."""
        buffer = self.buffers[name]
        place = ZERO
        for index, stride in zip(point, buffer.strides, strict=True):
            place = place + as_index(index) * stride
        return Load(name, place, buffer.dtype)

    def pointwise(self, name: str, sizes: Sizes, body: Callable[..., Expr], operator: str = "aten.add.Tensor",
                  dtype: torch.dtype = F32, overwrites: str | None = None) -> str:
        """`body` at every point."""
        buffer = self.new(name, sizes, dtype)
        axes = self._axes(buffer.sizes, "i")
        value = body(*axes)
        store = self.load(name, *axes).index  # type: ignore[union-attr]
        self.operations.append(
            Loop(name, _real(axes), value, store, overwrites=overwrites, origins=(Origin(name, operator),))
        )
        return name

    def reduce(self, name: str, kind: str, sizes: Sizes, dims: tuple[int, ...], body: Callable[..., Expr],
               operator: str = "aten.sum.dim_IntList", dtype: torch.dtype = F32) -> str:
        """`body` folded over `dims` of a space of `sizes`."""
        extents = tuple(as_index(size) for size in sizes)
        kept = [d for d in range(len(extents)) if d not in dims]
        outer = self._axes(tuple(extents[d] for d in kept), "i")
        inner = self._axes(tuple(extents[d] for d in dims), "r")
        by_dim = dict(zip([*kept, *dims], [*outer, *inner], strict=True))
        self.new(name, tuple(extents[d] for d in kept), dtype)
        value = body(*(by_dim[d] for d in range(len(extents))))
        store = self.load(name, *outer).index  # type: ignore[union-attr]
        fold = Reduction(kind, _real(inner))  # type: ignore[arg-type]
        self.operations.append(Loop(name, _real(outer), value, store, fold, origins=(Origin(name, operator),)))
        return name

    def extern(self, name: str, source: str, out_argument: bool = False) -> str:
        """An extern kernel that negates, into memory of the program's if asked."""
        buffer = self.buffers[source]
        result = self.new(name, buffer.sizes, buffer.dtype)
        view = BufferView(source, buffer.sizes, buffer.strides, ZERO, buffer.dtype)
        self.operations.append(ExternKernel("neg", (view,), (), (result,), out_argument, origins=(Origin(name, "aten.neg"),)))
        return name

    def graph(self, *outputs: str) -> LoweredGraph:
        """The finished graph."""
        views = tuple(
            BufferView(n, self.buffers[n].sizes, self.buffers[n].strides, ZERO, self.buffers[n].dtype) for n in outputs
        )
        inputs = tuple(name for name, buffer in self.buffers.items() if buffer.role == "input")
        return LoweredGraph(inputs, {}, self.buffers, {}, tuple(self.operations), views)

    def _axes(self, sizes: tuple[Index, ...], letter: str) -> tuple[Index, ...]:
        return tuple(
            ZERO if size is ONE else as_index(Axis(f"{letter}{number}", size)) for number, size in enumerate(sizes)
        )


def _real(indices: tuple[Index, ...]) -> tuple[Axis, ...]:
    return tuple(index.terms[0][0][0] for index in indices if index.terms)  # type: ignore[misc]


def op(name: str, *arguments: Expr | float, dtype: torch.dtype = F32) -> Expr:
    """A scalar operation; numbers become constants."""
    return apply(name, *(Constant(a, dtype) if isinstance(a, (int, float)) else a for a in arguments), dtype=dtype)


def to(value: Expr, dtype: torch.dtype) -> Expr:
    """A cast."""
    return Apply("cast", (value,), dtype)


def softmax(maker: GraphMaker, source: str, rows: int | Index, columns: int | Index) -> str:
    """Softmax over rows, one loop per operator."""
    load, space = maker.load, (rows, columns)
    maker.reduce("amax", "max", space, (1,), lambda i, j: load(source, i, j), "aten.amax.default")
    maker.pointwise("shifted", space, lambda i, j: op("sub", load(source, i, j), load("amax", i)), "aten.sub.Tensor")
    maker.pointwise("exp", space, lambda i, j: op("exp", load("shifted", i, j)), "aten.exp.default")
    maker.reduce("total", "sum", space, (1,), lambda i, j: load("exp", i, j))
    return maker.pointwise("softmax", space, lambda i, j: op("truediv", load("exp", i, j), load("total", i)),
                           "aten.div.Tensor")
