"""Random lowered graphs: pointwise, views of every kind, reductions, scans, scatters, in-place writes, extern calls."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Masked, apply
from minicompile.ir.index import Axis, Index, Indirect, as_index, floor_divide, remainder
from minicompile.ir.loops import (
    Buffer,
    BufferView,
    ExternKernel,
    Loop,
    LoweredGraph,
    Operation,
    Origin,
    Reduction,
    Scan,
)

CPU = torch.device("cpu")
F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool
SHAPES = [(4, 6), (6, 4), (24,), (4,), (6,), (2, 3, 4), (4, 2, 3), (8, 6), (), (2, 12)]
BINARY = ("add", "sub", "mul", "maximum", "minimum")


def buffer(name: str, shape: tuple[int, ...], dtype: torch.dtype = F32, role: str = "computed",
           order: list[int] | None = None) -> Buffer:
    """A dense buffer whose axes lie in memory in `order`, slowest first (row-major without one)."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        strides[dim], step = step, step * shape[dim]
    return Buffer(name, dtype, CPU, tuple(map(as_index, shape)), tuple(map(as_index, strides)), role)  # type: ignore[arg-type]


def offset(target: Buffer, indices: list[Index]) -> Index:
    """The flat offset of an element."""
    place = as_index(0)
    for index, stride in zip(indices, target.strides, strict=True):
        place = place + index * stride
    return place


def view_of(target: Buffer) -> BufferView:
    """All of a buffer."""
    return BufferView(target.name, target.sizes, target.strides, as_index(0), target.dtype)


class ProgramMaker:
    """Builds one random graph."""

    def __init__(self, seed: int, length: int) -> None:
        self.random = random.Random(seed)
        self.buffers: dict[str, Buffer] = {}
        self.alive: list[str] = []
        self.operations: list[Operation] = []
        for number in range(self.random.randint(1, 3)):
            self.add_buffer(f"in{number}", self.random.choice(SHAPES), role="input")
        self.inputs = tuple(self.alive)
        for number in range(length):
            self.step(f"b{number}")

    def add_buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = F32, role: str = "computed") -> Buffer:
        order = list(range(len(shape)))
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        self.buffers[name] = buffer(name, shape, dtype, role, order)
        self.alive.append(name)
        return self.buffers[name]

    def graph(self) -> LoweredGraph:
        """The graph; some results are outputs."""
        computed = [name for name in self.alive if self.buffers[name].role == "computed"]
        chosen = [name for name in computed if self.random.random() < 0.2] or computed[-1:]
        outputs = tuple(view_of(self.buffers[name]) for name in {*chosen, *computed[-1:]})
        return LoweredGraph(self.inputs, {}, self.buffers, {}, tuple(self.operations), outputs)

    def axes(self, shape: tuple[int, ...], letter: str = "i") -> tuple[Axis, ...]:
        return tuple(Axis(f"{letter}{number}", size) for number, size in enumerate(shape))

    def index_into(self, size: int, axes: tuple[Axis, ...], position: int) -> Index:
        """Some index in `[0, size)`, most often the axis at the same position."""
        pick = self.random
        if size == 1:
            return as_index(0)
        same = [axis for axis in axes if int(axis.size) == size]
        if same and pick.random() < 0.92:
            axis = axes[position] if position < len(axes) and axes[position] in same else pick.choice(same)
            return as_index(axis) if pick.random() < 0.93 else as_index(size - 1) - as_index(axis)
        if not axes:
            return as_index(pick.randrange(size))
        axis = pick.choice(axes)
        own = int(axis.size)
        if own <= size:
            return as_index(axis) + pick.randint(0, size - own)
        return remainder(as_index(axis), as_index(size)) if pick.random() < 0.5 else floor_divide(
            as_index(axis), as_index(-(-own // size)))

    def load(self, axes: tuple[Axis, ...], exact: bool = False) -> Expr:
        """An element of some buffer, seen through some view; with `exact` of one that no rounding has touched."""
        recent = self.alive[-4:] if self.random.random() < 0.7 else self.alive
        source = self.buffers[self.random.choice(self.exact_sources() if exact else recent)]
        shape = tuple(map(int, source.sizes))
        total = 1
        for axis in axes:
            total *= int(axis.size)
        same_numel = total == int(source.numel)
        if same_numel and shape != tuple(int(a.size) for a in axes) and self.random.random() < 0.8:
            flat = as_index(0)
            for axis in axes:
                flat = flat * axis.size + as_index(axis)
            indices, step = [], 1
            for size in reversed(shape):
                indices.insert(0, remainder(floor_divide(flat, as_index(step)), as_index(size)))
                step *= size
        else:
            indices = [self.index_into(size, axes, position) for position, size in enumerate(shape)]
        return self.element(source, indices)

    def exact_sources(self) -> list[str]:
        """The inputs that are still there."""
        return [name for name in self.inputs if name in self.alive]

    def element(self, source: Buffer, indices: Sequence[Index]) -> Expr:
        """A load as a floating-point number."""
        found = Load(source.name, offset(source, indices), source.dtype)
        return found if source.dtype.is_floating_point else apply("cast", found, dtype=F32)

    def value(self, axes: tuple[Axis, ...], exact: bool = False) -> Expr:
        """A random scalar expression."""
        pick = self.random
        result = self.load(axes, exact)
        for _ in range(pick.choice([0, 1, 1, 2])):
            kind = pick.random()
            if kind < 0.2:
                result = Apply(pick.choice(["tanh", "sigmoid", "neg", "cast"]), (result,), F32)
            elif kind < 0.35 and axes:
                axis = pick.choice(axes)
                limit = Constant(pick.randint(1, int(axis.size)), I64)
                inside = apply("lt", IndexValue(as_index(axis), I64), limit, dtype=BOOL)
                result = Masked(inside, result, Constant(0.5, F32), F32)
            else:
                result = apply(pick.choice(BINARY), result, self.load(axes, exact), dtype=F32)
        return result

    def step(self, name: str) -> None:
        """Append one operation that computes `name`."""
        kind = self.random.random()
        origins = (Origin(name, f"aten.{self.random.choice(['add', 'softmax', 'view'])}.default"),)
        if kind < 0.05:
            source = self.buffers[self.random.choice(self.alive)]
            result = self.buffers[name] = Buffer(name, source.dtype, CPU, source.sizes, source.strides)
            self.alive.append(name)
            self.operations.append(ExternKernel("torch.ops.aten.neg.default", (view_of(source),), (), (result,), origins=origins))
        elif kind < 0.12 and len(self.alive) > 2:
            self.overwrite(name, origins)
        elif kind < 0.2:
            self.join(name, origins)
        elif kind < 0.45:
            self.fold(name, origins)
        else:
            shape = self.random.choice(SHAPES)
            axes = self.axes(shape)
            value = self.value(axes)
            target = self.add_buffer(name, shape, self.random.choice([F32, F32, BF16]))
            place = offset(target, [as_index(a) for a in axes])
            self.operations.append(Loop(name, axes, value, place, origins=origins))

    def join(self, name: str, origins: tuple[Origin, ...]) -> None:
        """Two buffers one behind the other along some axis, or one with padding around it."""
        sources = [b for b in (self.buffers[n] for n in self.alive) if b.sizes]
        if not sources:
            return self.fold(name, origins)
        first = self.random.choice(sources)
        shape = list(map(int, first.sizes))
        dim = self.random.randrange(len(shape))
        alike = [b for b in sources if len(b.sizes) == len(shape)
                 and all(d == dim or int(n) == shape[d] for d, n in enumerate(b.sizes))]
        second = self.random.choice(alike)
        before, own, other = self.random.choice([0, 0, 2]), shape[dim], int(second.sizes[dim])
        shape[dim] = before + own + other
        axes = self.axes(tuple(shape))
        inside = IndexValue(as_index(axes[dim]), I64)
        points = [as_index(a) for a in axes]
        early = [p - before if d == dim else p for d, p in enumerate(points)]
        late = [p - (before + own) if d == dim else p for d, p in enumerate(points)]
        tail = Masked(apply("ge", inside, Constant(before + own, I64), dtype=BOOL),
                      self.element(second, late), Constant(0.0, F32), F32)
        condition = apply("lt", inside, Constant(before + own, I64), dtype=BOOL)
        if before:
            condition = apply("logical_and", condition, apply("ge", inside, Constant(before, I64), dtype=BOOL),
                              dtype=BOOL)
        value = Masked(condition, self.element(first, early), tail, F32)
        target = self.add_buffer(name, tuple(shape))
        self.operations.append(Loop(name, axes, value, offset(target, points), origins=origins))

    def fold(self, name: str, origins: tuple[Origin, ...]) -> None:
        """A reduction over some axes, or a scan."""
        shape = self.random.choice([s for s in SHAPES if s])
        axes = self.axes(shape)
        if self.random.random() < 0.15:
            axis = self.random.choice(axes)
            value = self.value(axes)
            target = self.add_buffer(name, shape)
            fold = Scan("cumsum", axis)
            place = offset(target, [as_index(a) for a in axes])
            self.operations.append(Loop(name, axes, value, place, fold, origins=origins))
            return
        if self.random.random() < 0.3:
            return self.variance(name, axes, origins)
        if len(axes) > 1 and self.random.random() < 0.25:
            return self.both_ways(name, axes, origins)
        if self.random.random() < 0.15:
            return self.exponentials(name, axes, origins)
        folded = tuple(a for a in axes if self.random.random() < 0.6) or axes[-1:]
        kept = tuple(a for a in axes if a not in folded)
        kind = self.random.choice(["sum", "sum", "max", "min", *["argmax"] * bool(self.exact_sources())])
        value = self.value(axes, exact=kind == "argmax")  # else rounding would choose among equals
        target = self.add_buffer(name, tuple(int(a.size) for a in kept), I64 if kind == "argmax" else F32)
        place = offset(target, [as_index(a) for a in kept])
        self.operations.append(Loop(name, kept, value, place, Reduction(kind, folded), origins=origins))

    def variance(self, name: str, axes: tuple[Axis, ...], origins: tuple[Origin, ...]) -> None:
        """A sum, and the sum of squared deviations from what it says is the mean."""
        dim = self.random.randrange(len(axes))
        kept, folded = axes[:dim] + axes[dim + 1 :], (axes[dim],)
        value = apply("cast", self.value(axes), dtype=F32)
        total = self.add_buffer(f"{name}_sum", tuple(int(a.size) for a in kept))
        place = offset(total, [as_index(a) for a in kept])
        self.operations.append(Loop(total.name, kept, value, place, Reduction("sum", folded), origins=origins))
        mean = apply("truediv", Load(total.name, place, F32), Constant(float(int(axes[dim].size)), F32), dtype=F32)
        deviation = apply("sub", value, mean, dtype=F32)
        squares = apply("mul", deviation, deviation, dtype=F32)
        target = self.add_buffer(name, tuple(int(a.size) for a in kept))
        place = offset(target, [as_index(a) for a in kept])
        self.operations.append(Loop(name, kept, squares, place, Reduction("sum", folded), origins=origins))

    def exponentials(self, name: str, axes: tuple[Axis, ...], origins: tuple[Origin, ...]) -> None:
        """A maximum, and the sum of exponentials below it."""
        kept, folded = axes[:-1], axes[-1:]
        value = apply("cast", self.value(axes), dtype=F32)
        highest = self.add_buffer(f"{name}_highest", tuple(int(a.size) for a in kept))
        place = offset(highest, [as_index(a) for a in kept])
        self.operations.append(Loop(highest.name, kept, value, place, Reduction("max", folded), origins=origins))
        below = apply("sub", value, Load(highest.name, place, F32), dtype=F32)
        target = self.add_buffer(name, tuple(int(a.size) for a in kept))
        place = offset(target, [as_index(a) for a in kept])
        exponential = apply("exp", below, dtype=F32)
        self.operations.append(Loop(name, kept, exponential, place, Reduction("sum", folded), origins=origins))

    def both_ways(self, name: str, axes: tuple[Axis, ...], origins: tuple[Origin, ...]) -> None:
        """A sum over the last axes, something computed from it, and a sum over the first axes of that, or of the same."""
        cut = self.random.randint(1, len(axes) - 1)
        value = apply("cast", self.value(axes), dtype=F32)
        rows = self.add_buffer(f"{name}_rows", tuple(int(a.size) for a in axes[:cut]))
        place = offset(rows, [as_index(a) for a in axes[:cut]])
        self.operations.append(Loop(rows.name, axes[:cut], value, place, Reduction("sum", axes[cut:]), origins=origins))
        scaled = apply("mul", value, Load(rows.name, place, F32), dtype=F32)
        if self.random.random() < 0.6:
            whole = self.add_buffer(f"{name}_scaled", tuple(int(a.size) for a in axes))
            at = offset(whole, [as_index(a) for a in axes])
            self.operations.append(Loop(whole.name, axes, scaled, at, origins=origins))
        columns = self.add_buffer(name, tuple(int(a.size) for a in axes[cut:]))
        at = offset(columns, [as_index(a) for a in axes[cut:]])
        folded = scaled if self.random.random() < 0.5 else value
        self.operations.append(Loop(name, axes[cut:], folded, at, Reduction("sum", axes[:cut]), origins=origins))

    def overwrite(self, name: str, origins: tuple[Origin, ...]) -> None:
        """A new version of a buffer in the old one's storage, in whole, in part, or scattered."""
        old = self.buffers[self.random.choice(self.alive)]
        shape = tuple(map(int, old.sizes))
        axes = self.axes(shape)
        indices = [as_index(a) for a in axes]
        accumulate = False
        if shape and old.dtype == F32 and self.random.random() < 0.4:
            table = buffer(f"{name}_where", (shape[0],), I64)
            self.buffers[table.name] = table
            axis = Axis("i0", shape[0])
            where = remainder(as_index(axis) * 2, as_index(shape[0]))
            self.operations.append(Loop(table.name, (axis,), IndexValue(where, I64), as_index(axis), origins=origins))
            indices[0] = as_index(Indirect(Load(table.name, as_index(axes[0]), I64), as_index(shape[0])))
            accumulate = True
        elif shape and shape[0] > 2 and self.random.random() < 0.4:
            axes = (Axis("i0", shape[0] - 2), *axes[1:])
            indices = [as_index(axes[0]) + 1, *(as_index(a) for a in axes[1:])]
        place = offset(old, indices)
        self.alive.remove(old.name)
        value = self.value(axes) if self.alive else Constant(1.0, F32)
        if not accumulate and self.random.random() < 0.6:
            value = apply("add", value, Load(old.name, place, old.dtype), dtype=F32)
        self.buffers[name] = Buffer(name, old.dtype, CPU, old.sizes, old.strides)
        self.alive.append(name)
        self.operations.append(
            Loop(name, axes, value, place, accumulate=accumulate, overwrites=old.name, origins=origins)
        )
