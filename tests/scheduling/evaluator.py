"""Runs lowered graphs and schedules point by point with NumPy, in double precision; storage reuse is carried out for real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Masked
from minicompile.ir.index import Axis, Index, hint
from minicompile.ir.loops import BufferView, ExternKernel, Loop, LoweredGraph, Reduction, Scan
from minicompile.ir.schedule import KernelGroup, Schedule
from tests.evaluate import evaluate

Array = Any
OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "neg": np.negative,
    "exp": np.exp,
    "tanh": np.tanh,
    "eq": np.equal,
    "sigmoid": lambda a: 1 / (1 + np.exp(-np.clip(a, -30, 30))),
    "lt": np.less,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "bitwise_and": np.logical_and,  # of truths
    "where": np.where,
    "cast": lambda a: a,
}
FOLDS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda a: a.sum(1),
    "prod": lambda a: a.prod(1),
    "max": lambda a: a.max(1),
    "min": lambda a: a.min(1),
    "any": lambda a: a.any(1),
    "argmax": lambda a: a.argmax(1),
    "argmin": lambda a: a.argmin(1),
}


def storage_size(graph: LoweredGraph, name: str) -> int:
    """Elements from the first to the last of a buffer."""
    buffer = graph.buffers[name]
    return 1 + sum((hint(n) - 1) * hint(s) for n, s in zip(buffer.sizes, buffer.strides, strict=True))


def run_loop(loop: Loop, memory: Mapping[str, Array]) -> None:
    """Run one loop over the storages in `memory`, by buffer name."""
    scan_axes = tuple(a for a in loop.axes if not (isinstance(loop.fold, Scan) and a is loop.fold.axis))
    inner = loop.reduction_axes or ((loop.fold.axis,) if isinstance(loop.fold, Scan) else ())
    axes = scan_axes + tuple(inner)
    sizes = [hint(a.size) for a in axes]
    places = np.indices(sizes).reshape(len(axes), -1) if axes else np.zeros((0, 1), int)
    values: dict[Axis, Array] = dict(zip(axes, places, strict=True))
    count = int(np.prod(sizes))
    done: dict[Expr, Array] = {}

    def index(at: Index) -> Array:
        return np.broadcast_to(np.asarray(evaluate(at, values, position)), (count,))  # type: ignore[arg-type]

    def position(expression: Expr) -> Array:
        return value(expression).astype(int)

    def value(expression: Expr) -> Array:
        if expression not in done:
            done[expression] = np.broadcast_to(np.asarray(compute(expression)), (count,))
        return done[expression]

    def compute(expression: Expr) -> Array:
        match expression:
            case Load():
                source = memory[expression.buffer]
                return source[np.clip(index(expression.index), 0, len(source) - 1)]
            case Constant():
                return expression.value
            case IndexValue():
                return index(expression.index)
            case Apply():
                return OPERATIONS[expression.operation](*map(value, expression.arguments))
            case Masked():
                return np.where(value(expression.condition), value(expression.value), value(expression.other))
        raise TypeError(expression)

    result, place = value(loop.value), index(loop.store)
    if isinstance(loop.fold, Reduction):
        rows = int(np.prod([hint(a.size) for a in loop.axes]))
        result, place = FOLDS[loop.fold.kind](result.reshape(rows, -1)), place.reshape(rows, -1)[:, 0]
    elif isinstance(loop.fold, Scan):
        table = result.reshape(-1, hint(loop.fold.axis.size))
        result = table.cumsum(1).reshape(-1)
    target = memory[loop.buffer]
    keep = np.ones(count, bool) if loop.condition is None else value(loop.condition)
    if loop.accumulate:
        np.add.at(target, place[keep], result[keep])
    elif loop.condition is not None:
        target[place[keep]] = result[keep]
    else:
        target[place] = result


def run_extern(call: ExternKernel, graph: LoweredGraph, memory: dict[str, Array]) -> None:
    """The only extern kernel of these tests negates a whole storage."""
    (view,) = call.args
    assert isinstance(view, BufferView)
    memory[call.writes[0]] = -memory[view.buffer][: storage_size(graph, call.writes[0])]


def outputs_of(graph: LoweredGraph, memory: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs."""
    return [memory[o.buffer].copy() for o in graph.outputs if isinstance(o, BufferView)]


def run_graph(graph: LoweredGraph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of the unfused graph."""
    memory = {name: array.copy() for name, array in inputs.items()}
    for operation in graph.operations:
        if isinstance(operation, ExternKernel):
            run_extern(operation, graph, memory)
            continue
        if operation.overwrites is not None:
            memory[operation.buffer] = memory[operation.overwrites]
        else:
            memory[operation.buffer] = np.full(storage_size(graph, operation.buffer), np.nan)
        run_loop(operation, memory)
    return outputs_of(graph, memory)


def run_schedule(schedule: Schedule, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of the schedule: what is not stored vanishes with its kernel, reused storage is shared."""
    graph = schedule.graph
    memory = {name: array.copy() for name, array in inputs.items()}
    storages = dict(memory)
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternKernel):
            run_extern(step, graph, memory)
            storages[step.writes[0]] = memory[step.writes[0]]
        else:
            run_group(step, schedule, memory, storages)
        for name in schedule.memory.freed_after.get(number, ()):
            memory.pop(name, None)
    return outputs_of(graph, memory)


def run_group(group: KernelGroup, schedule: Schedule, memory: dict[str, Array], storages: dict[str, Array]) -> None:
    """Run one kernel. `storages` keeps what was freed, for the buffers that take it over."""
    inside: dict[str, Array] = dict(memory)
    for loop in group.loops:
        name = loop.buffer
        donor = schedule.memory.allocations[name].reuses if name in group.stored else None
        if loop.overwrites is not None:
            inside[name] = inside[loop.overwrites]
        elif donor is not None:
            inside[name] = storages[donor]
        else:
            inside[name] = np.full(storage_size(schedule.graph, name), np.nan)
        run_loop(loop, inside)
        if name in group.stored:
            storages[name] = memory[name] = inside[name]
