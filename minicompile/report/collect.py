"""From what the stages left behind to the records of an explanation. Nothing here runs the user's code.

A compiled graph is read as plain attributes (`captured`, `partitioned`, `parts`); this module must not import the stages.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from minicompile.errors import Location
from minicompile.ir.index import hint
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Origin
from minicompile.ir.printer import captured_text, dtype_text
from minicompile.ir.schedule import KernelGroup, Schedule
from minicompile.report.matmul_shapes import matmul_shape
from minicompile.report.records import Fusion, GraphSummary, Kept, MemoryPoint, RecompileSummary, Step


def graph_summaries(graphs: Iterable[Any]) -> tuple[GraphSummary, ...]:
    """Every captured graph, in the order of compilation."""
    return tuple(
        GraphSummary(
            graph.captured.name,
            graph.captured.location,
            sum(node.op.startswith("call_") for node in graph.captured.module.graph.nodes),
            len(graph.captured.inputs),
            str(graph.captured.graph_break.reason) if graph.captured.graph_break else "",
            graph.fallbacks,
            captured_text(graph.captured),
        )
        for graph in graphs
    )


def kept_tensors(graphs: Iterable[Any]) -> tuple[Kept, ...]:
    """What the forward saves for the backward, and what the backward computes again."""
    found = []
    for graph in graphs:
        saved, again = graph.partitioned.saved_tensors, graph.partitioned.recomputed
        found += [Kept(e.name, "saved", e.num_bytes, e.reason, e.location) for e in saved]
        found += [Kept(e.name, "recomputed", e.num_bytes, e.reason, e.location) for e in again]
    return tuple(found)


def recompile_summaries(records: Any) -> tuple[RecompileSummary, ...]:
    """Every recompile with the annotation that avoids the next one."""
    return tuple(
        RecompileSummary(
            r.function, r.sentence, str(r.old), str(r.new), r.location, r.seconds, annotation(r.sentence, r.old, r.new)
        )
        for r in records.recompiles
    )


def annotation(sentence: str, old: Any, new: Any) -> str:
    """What the user can write so that this change does not compile another variant."""
    name = (re.search(r"`([^`]+)`", sentence) or ["", "x"])[1]
    sizes = [re.search(r"\(([\d, ]*)\)", str(value)) for value in (old, new)]
    if " tensor of size" in sentence and sizes[0] and sizes[1]:
        one, other = ([int(n) for n in found[1].split(",") if n.strip()] for found in sizes if found)
        if len(one) == len(other) and one != other:
            changed = [i for i, (a, b) in enumerate(zip(one, other)) if a != b]
            places = str(changed[0]) if len(changed) == 1 else str(changed)
            return f"minicompile.mark_dynamic({name}, {places}) before the first call, or compile(..., dynamic=True)"
        if len(one) != len(other):
            return f"pass `{name}` with one number of dimensions"
        return f"pass `{name}` with one dtype, device, stride and requires_grad"
    if type(old) is float or type(new) is float:
        return f"pass `{name}` as a 0-d tensor: torch.tensor({new})"
    if type(old) is int and type(new) is int and not isinstance(new, bool):
        return "compile(..., dynamic=True) keeps integers symbolic"
    if "grad mode" in sentence:
        return "call it always under torch.no_grad(), or never; both variants stay compiled"
    return f"keep `{name}` constant, or compile one function per value"


def named_module(words: str) -> str:
    """A module's path as users write it: without the name that stands for the compiled function."""
    return re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", words.removeprefix("the function")).lstrip(".")


def origins_of(step: KernelGroup | ExternKernel) -> tuple[Origin, ...]:
    """The FX nodes behind a step, each once."""
    if isinstance(step, ExternKernel):
        return step.origins
    return tuple(dict.fromkeys(origin for loop in step.loops for origin in loop.origins))


def steps_of(graphs: Iterable[Any]) -> Iterator[tuple[Any, str, int, Step]]:
    """(graph, half, number, record) of every step of every compiled half, in the order of execution."""
    for graph in graphs:
        for half, part in graph.parts.items():
            if part.schedule is None or part.program is None:
                continue
            for number in range(len(part.schedule.steps)):
                yield graph, half, number, step_record(graph.captured.name, half, number, part)


def step_record(graph: str, half: str, number: int, part: Any) -> Step:
    """One step of a compiled half."""
    step, buffers = part.schedule.steps[number], part.schedule.graph.buffers
    origins = origins_of(step)
    modules = [named_module(o.location.module) for o in origins if o.location and o.location.module]
    common: dict[str, Any] = {
        "graph": graph,
        "half": half,
        "number": number,
        "module": max(modules, key=modules.count, default=""),
        "operators": tuple(dict.fromkeys(origin.operator for origin in origins)),
        "lines": tuple(dict.fromkeys(origin.location for origin in origins if origin.location)),
        "reads": step.reads,
        "writes": step.writes,
    }
    written = [buffers[name] for name in step.writes if name in buffers]
    common["dtype"] = dtype_text(written[0].dtype) if written else ""
    if isinstance(step, ExternKernel):
        views = list(views_in((step.args, tuple(v for _, v in step.kwargs))))
        product = matmul_shape(step)
        name = re.sub(r"^torch\.ops\.(aten\.|minicompile\.)?|^kernels\.|\.(out|default)$", "", step.target)
        return Step(
            kind="extern",
            name=f"{name} {product.m}x{product.n}x{product.k}" if product else name,
            bytes_read=sum(view_bytes(view) for view in views),
            bytes_written=sum(map(buffer_bytes, written)),
            flops=extern_flops(step, views),
            matmul=product,
            reason=step.reason,
            **common,
        )
    function = part.program.steps[number][0].removeprefix("run_")
    kernel = next((k for k in part.program.kernels if k.name == function), None)
    return Step(
        kind="kernel",
        name=function or step.name,
        bytes_read=step.bytes_read,
        bytes_written=step.bytes_written,
        flops=step.flops,
        reason=step.tile.reason,
        source=kernel.text if kernel else "",
        **common,
    )


def views_in(value: Any) -> Iterator[BufferView]:
    """The buffer views among nested arguments."""
    if isinstance(value, BufferView):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from views_in(item)


def view_bytes(view: BufferView | Buffer) -> int:
    """Bytes of the elements of a view, at the hinted sizes."""
    return math.prod(hint(size) for size in view.sizes) * view.dtype.itemsize


buffer_bytes = view_bytes


def extern_flops(step: ExternKernel, views: list[BufferView]) -> int:
    """Floating-point operations of a product, a convolution or an attention call; zero for anything else."""
    name = step.target
    shapes = [[hint(size) for size in view.sizes] for view in views]
    product = matmul_shape(step)
    if product is not None:
        return 2 * product.batch * product.m * product.n * product.k
    if "attention" in name and len(shapes) >= 3:
        q, k = shapes[-3:-1] if "backward" in name and len(shapes[0]) == 4 and len(shapes) < 4 else shapes[:2]
        causal = dict(step.kwargs).get("causal", dict(step.kwargs).get("is_causal", False))
        products = 5 if "backward" in name else 2
        return products * 2 * math.prod(q) * k[-2] // (2 if causal is True else 1)
    if "convolution" in name and "backward" not in name and len(shapes) >= 2 and step.outputs[0] is not None:
        result = math.prod(hint(size) for size in step.outputs[0].sizes)
        return 2 * result * math.prod(shapes[1][1:])
    return 0


def fusions(graphs: Iterable[Any]) -> tuple[Fusion, ...]:
    """The ledger: what shares a kernel, and every pair that stays apart, dearest first."""
    done: list[Fusion] = []
    refused: list[Fusion] = []
    for graph in graphs:
        name = graph.captured.name
        for half, part in graph.parts.items():
            if part.schedule is None:
                continue
            for step in part.schedule.steps:
                if isinstance(step, KernelGroup) and len(origins_of(step)) > 1:
                    joined = ", ".join(dict.fromkeys(origin.operator for origin in origins_of(step)))
                    done.append(Fusion(name, half, "fused", step.name, joined))
            for entry in part.schedule.refusals:
                saved = None
                if entry.bytes_apart is not None and entry.bytes_fused is not None:
                    saved = entry.bytes_apart - entry.bytes_fused
                pair = f"{entry.producer} and {entry.consumer}"
                refused.append(Fusion(name, half, entry.verdict, pair, entry.reason, saved))
    return (*done, *sorted(refused, key=lambda fusion: -(fusion.bytes_saved or 0)))


def pattern_lines(graphs: Iterable[Any]) -> tuple[str, ...]:
    """Attention written by hand: found, or why not."""
    return tuple(
        f"{p.pattern} at {p.location}: " + ("replaced by one operator" if p.accepted else f"kept as written: {p.reason}")
        for graph in graphs
        for p in graph.partitioned.patterns
    )


def memory_points(graphs: Iterable[Any]) -> tuple[MemoryPoint, ...]:
    """Bytes alive while each step runs, inputs left out, from the memory plan."""
    found = []
    for graph in graphs:
        for half, part in graph.parts.items():
            if part.schedule is not None:
                named = [
                    step.name if isinstance(step, KernelGroup) else step.target.removesuffix(".out").rsplit(".", 1)[-1]
                    for step in part.schedule.steps
                ]
                for label, alive in zip(named, alive_bytes(part.schedule), strict=True):
                    found.append(MemoryPoint(graph.captured.name, half, label, alive))
    return tuple(found)


def alive_bytes(schedule: Schedule) -> list[int]:
    """Bytes held during each step; storage that a later buffer takes over is held once, until the last of them."""
    spans: dict[str, list[int]] = {}
    roots: dict[str, str] = {}
    for name, allocation in schedule.memory.allocations.items():
        root = roots[name] = roots.get(allocation.reuses or name, allocation.reuses or name)
        size = buffer_bytes(schedule.graph.buffers[name])
        first, last, held = spans.get(root, [allocation.first_step, allocation.last_step, 0])
        spans[root] = [min(first, allocation.first_step), max(last, allocation.last_step), max(held, size)]
    return [
        sum(size for first, last, size in spans.values() if first <= number <= last)
        for number in range(len(schedule.steps))
    ]


def draws_random_numbers(graph: Any) -> bool:
    """Whether a graph draws random numbers of its own, which are not eager's."""
    return any(str(node.target).startswith("minicompile.seeds") for node in graph.partitioned.forward.graph.nodes)


def globals_of(part: Any) -> dict[str, Any]:
    """The namespace of a half's generated file; empty where the half runs eagerly."""
    call = part.call
    while part.program is not None:
        inner = inspect.unwrap(call)
        inner = getattr(inner, "_call", inner)
        if inner is call:
            return call.__globals__ if "CONSTANTS" in call.__globals__ else {}
        call = inner
    return {}


def user_location(stack: tuple[Location, ...]) -> Location | None:
    """The innermost line that is not a library's."""
    own = [place for place in stack if "site-packages" not in place.file] or list(stack)
    return dataclasses.replace(own[-1], function=own[-1].function.removeprefix("resume_in_")) if own else None
