"""Every program between stages as text that a person reads: graphs, loops, schedules.

Loops are printed as small nests with one named value per line. This module must not change or check anything.
"""

from collections.abc import Iterable
from typing import Any

import torch

from minicompile.errors import Location
from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Random, children, walk
from minicompile.ir.graph import CapturedGraph, PartitionedGraph
from minicompile.ir.index import Axis
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph, Origin, Scan
from minicompile.ir.schedule import KernelGroup, Schedule

SHORT = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "remainder": "%", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "logical_and": "and", "logical_or": "or", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^", "left_shift": "<<", "right_shift": ">>",
}  # fmt: skip


def dtype_text(dtype: torch.dtype) -> str:
    """`f32` for `torch.float32`."""
    return SHORT.get(dtype, str(dtype).removeprefix("torch."))


def tensor_text(dtype: torch.dtype, sizes: Iterable[Any]) -> str:
    """`f32[3, 5]`."""
    return f"{dtype_text(dtype)}[{', '.join(map(str, sizes))}]"


# FX graphs


def module_text(module: torch.fx.GraphModule) -> str:
    """An FX graph, one node a line, with the type of its result and the user's line."""
    lines = []
    for node in module.graph.nodes:
        where = _place(node.meta.get("location"), node.meta.get("variable"))
        made = f"{node.name}: {_value_text(node.meta.get('val', node.meta.get('example_value')))} ="
        match node.op:
            case "placeholder":
                text = f"{made} input"
            case "get_attr":
                text = f"{made} constant {node.target}"
            case "output":
                text = f"return {_fx_argument(node.args[0])}"
            case _:
                text = f"{made} {_target_text(node.target)}({_fx_call(node)})"
        lines.append(f"{text:<70}  {where}".rstrip() if where else text)
    return "\n".join(lines) + "\n"


def _fx_call(node: torch.fx.Node) -> str:
    parts = [_fx_argument(a) for a in node.args]
    return ", ".join(parts + [f"{key}={_fx_argument(value)}" for key, value in node.kwargs.items()])


def _fx_argument(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(_fx_argument, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    return str(value)


def _target_text(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removeprefix("aten.").removesuffix(".default")
    return getattr(target, "__name__", str(target))


def _value_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return tensor_text(value.dtype, value.shape)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value_text, value))})"
    return "?" if value is None else str(value)


def _place(location: Location | None, variable: str | None = None) -> str:
    parts = [part for part in (variable, str(location) if location else "") if part]
    return f"# {', '.join(parts)}" if parts else ""


def captured_text(captured: CapturedGraph) -> str:
    """The graph as captured, with the source of each input."""
    lines = [f"# {captured.name}" + (f" at {captured.location}" if captured.location else "")]
    lines += [f"# {i.name} is {i.source} ({i.kind})" for i in captured.inputs]
    if captured.graph_break is not None:
        lines.append(f"# ends at a graph break: {captured.graph_break.reason}")
    return "\n".join(lines) + "\n" + module_text(captured.module)


def guards_text(captured: CapturedGraph) -> str:
    """The guards, each as a sentence and as the expression that checks it."""
    lines = []
    for guard in captured.guards:
        where = f"  # {guard.location}" if guard.location else ""
        lines += [f"{guard.sentence}{where}", f"    {guard.expression}"]
    return "\n".join(lines) + "\n"


def partitioned_text(partitioned: PartitionedGraph) -> str:
    """Forward and backward, and what is kept between them."""
    parts = ["# forward", module_text(partitioned.forward)]
    if partitioned.backward is not None:
        parts += ["# backward", module_text(partitioned.backward)]
    for title, values in (("saved for", partitioned.saved_tensors), ("recomputed in", partitioned.recomputed)):
        parts += [f"# {title} the backward"] if values else []
        parts += [f"{value.name}: {value.num_bytes:,} bytes; {value.reason}" for value in values]
    return "\n".join(parts) + "\n"


# Expressions and loops


def expression_text(expression: Expr, names: dict[Expr, str] | None = None) -> str:
    """An expression with infix operators; those in `names` by name."""
    known = names or {}
    if expression in known:
        return known[expression]
    if isinstance(expression, (Load, Constant, IndexValue)):
        return str(expression)
    inner = [expression_text(child, known) for child in children(expression)]
    match expression:
        case Apply(operation="cast", dtype=dtype):
            return f"{dtype_text(dtype)}({inner[0]})"
        case Apply(operation="where"):
            return f"({inner[1]} if {inner[0]} else {inner[2]})"
        case Apply(operation=operation) if operation in INFIX:
            return f"({inner[0]} {INFIX[operation]} {inner[1]})"
        case Random(kind=kind, index=index):
            return f"random_{kind}({inner[0]}, {index})"
    return f"{expression.operation if isinstance(expression, Apply) else 'masked'}({', '.join(inner)})"


def body_lines(root: Expr) -> tuple[list[str], str]:
    """Statements for the values used more than once, and the text of the result."""
    uses: dict[Expr, int] = {}
    order = list(walk(root))
    for expression in order:
        for child in children(expression):
            uses[child] = uses.get(child, 0) + 1
    names: dict[Expr, str] = {}
    lines = []
    for expression in order:
        if uses.get(expression, 0) > 1 and not isinstance(expression, (Constant, IndexValue)):
            text = expression_text(expression, names)
            names[expression] = f"t{len(names)}"
            lines.append(f"{names[expression]} = {text}")
    return lines, expression_text(root, names)


def _header(axes: tuple[Axis, ...]) -> str:
    if not axes:
        return "once:"
    return f"for {', '.join(a.name for a in axes)} in {' x '.join(str(a.size) for a in axes)}:"


def _origin_text(origins: tuple[Origin, ...]) -> str:
    return "; ".join(
        dict.fromkeys(f"{o.operator}{f' = {o.variable}' if o.variable else ''}{f' at {o.location}' if o.location else ''}"
                      for o in origins)
    )  # fmt: skip


def loop_text(loop: Loop) -> str:
    """One loop nest."""
    indent = "    "
    lines = [f"# {_origin_text(loop.origins)}"] if loop.origins else []
    lines.append(_header(loop.axes))
    statements, result = body_lines(loop.value)
    if isinstance(loop.fold, Scan):
        result = f"{loop.fold.kind}({result}) along {loop.fold.axis.name}"
    elif loop.fold is not None:
        lines.append(f"{indent}{loop.fold.kind} {_header(loop.fold.axes)}")
        result = f"{loop.fold.kind}({result})"
        statements = [indent + statement for statement in statements]
    lines += [indent + statement for statement in statements]
    guard = f" if {expression_text(loop.condition)}" if loop.condition is not None else ""
    sign = "+=" if loop.accumulate else "="
    lines.append(f"{indent}{loop.buffer}[{loop.store}] {sign} {result}{guard}")
    if loop.overwrites:
        lines.append(f"{indent}# in the storage of {loop.overwrites}")
    return "\n".join(lines)


def view_text(value: Any) -> str:
    """An argument or output."""
    if isinstance(value, BufferView):
        offset = f" + {value.offset}" if value.offset.constant != 0 else ""
        strides = ", ".join(map(str, value.strides))
        return f"{value.buffer}{offset}: {tensor_text(value.dtype, value.sizes)} by ({strides})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(view_text, value))}]"
    return str(value)


def extern_text(kernel: ExternKernel) -> str:
    """One call."""
    arguments = [*map(view_text, kernel.args), *(f"{key}={view_text(value)}" for key, value in kernel.kwargs)]
    results = ", ".join("_" if b is None else b.name for b in kernel.outputs) or "_"
    lines = [f"# {_origin_text(kernel.origins)}"] if kernel.origins else []
    lines.append(f"{results} = {kernel.target}({', '.join(arguments)})")
    if kernel.reason:
        lines[-1] += f"  # {kernel.reason}"
    if kernel.epilogue is not None:
        lines += ["    on its tiles:", *(f"    {line}" for line in loop_text(kernel.epilogue).splitlines())]
    return "\n".join(lines)


def operation_text(operation: Loop | ExternKernel) -> str:
    """A loop or a call."""
    return loop_text(operation) if isinstance(operation, Loop) else extern_text(operation)


def buffer_text(buffer: Buffer) -> str:
    """A buffer's type, strides and role."""
    strides = ", ".join(map(str, buffer.strides))
    return f"{buffer.name}: {tensor_text(buffer.dtype, buffer.sizes)} by ({strides}) on {buffer.device}, {buffer.role}"


def lowered_text(graph: LoweredGraph) -> str:
    """A whole lowered graph."""
    lines = [f"# {graph.name}", f"# inputs: {', '.join(graph.inputs)}"]
    lines += [f"# {name} is the size {symbol}" for name, symbol in graph.size_inputs.items()]
    lines += [buffer_text(buffer) for buffer in graph.buffers.values()]
    for operation in graph.operations:
        lines += ["", operation_text(operation)]
    lines += ["", f"return {', '.join(map(view_text, graph.outputs))}"]
    return "\n".join(lines) + "\n"


# Schedules


def group_text(group: KernelGroup) -> str:
    """One kernel: its tiles, its traffic, its loops."""
    tiles = ", ".join(f"{t.axis.name}: {t.axis.size} by {t.block} ({t.role})" for t in group.tile.axes)
    lines = [
        f"kernel {group.name}: {group.tile.strategy} over {tiles or 'one point'}; {group.tile.num_warps} warps",
        f"    reads {group.bytes_read:,} bytes ({', '.join(group.reads)})",
        f"    writes {group.bytes_written:,} bytes ({', '.join(group.writes)})",
    ]
    if group.tile.reason:
        lines.append(f"    because {group.tile.reason}")
    for loop in group.loops:
        lines += ["    " + line for line in loop_text(loop).splitlines()]
    return "\n".join(lines)


def schedule_text(schedule: Schedule) -> str:
    """The whole schedule: kernels in order, memory, and the fusions that were refused."""
    peak = max(schedule.held_bytes(), default=0)
    lines = [f"# {schedule.graph.name}: {len(schedule.steps)} steps, peak {peak:,} bytes"]
    for number, step in enumerate(schedule.steps):
        text = group_text(step) if isinstance(step, KernelGroup) else extern_text(step)
        freed = schedule.memory.freed_after.get(number, ())
        lines += ["", f"# step {number}" + (f"; then frees {', '.join(freed)}" if freed else ""), text]
    reused = [a for a in schedule.memory.allocations.values() if a.reuses]
    if reused:
        lines += ["", "# memory taken over", *(f"{a.buffer} takes {a.reuses}" for a in reused)]
    if schedule.refusals:
        lines += ["", "# not fused"]
        lines += [f"{r.producer} and {r.consumer}: {r.verdict}, {r.reason}" for r in schedule.refusals]
    return "\n".join(lines) + "\n"
