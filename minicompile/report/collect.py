"""From what the stages left behind to the records of an explanation. Nothing here runs the user's code.

A compiled graph is read as plain attributes (`captured`, `partitioned`, `parts`); this module must not import the stages.
"""

import collections
import inspect
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from minicompile.errors import Location
from minicompile.ir.index import hint
from minicompile.ir.loops import BufferView, ExternKernel, Origin, num_bytes, views_in
from minicompile.ir.printer import captured_text, dtype_text
from minicompile.ir.schedule import KernelGroup, Schedule
from minicompile.report.document import place
from minicompile.report.matmul_shapes import matmul_shape
from minicompile.report.records import ExplainedRecompile, Fusion, GraphSummary, MatmulShape, Step


def graph_summary(graph: Any) -> GraphSummary:
    """One captured graph."""
    captured = graph.captured
    operations = sum(node.op.startswith("call_") for node in captured.module.graph.nodes)
    return GraphSummary(
        captured.name, captured.location, operations, len(captured.inputs), graph.fallbacks, captured_text(captured)
    )


def explained_recompile(record: Any) -> ExplainedRecompile:
    """A recompile with the annotation that avoids the next one."""
    return ExplainedRecompile(str(record), record.seconds, annotation(record.sentence, record.old, record.new))


def annotation(sentence: str, old: Any, new: Any) -> str:
    """What the user can write so that this change does not compile another variant."""
    name = (re.search(r"`([^`]+)`", sentence) or ["", "x"])[1]
    known = next((text for word, text in ANNOTATIONS.items() if word in sentence), "")
    if known:
        return known.format(name)
    sizes = [re.search(r"\(([\d, ]*)\)", str(value)) for value in (old, new)]
    guarded = re.search(r" tensor of size (\S+)", sentence)
    if guarded and sizes[0] and sizes[1]:
        one, other = ([int(n) for n in found[1].split(",") if n.strip()] for found in sizes if found)
        if len(one) != len(other):
            return f"pass `{name}` with one number of dimensions"
        fixed = [size != "any" for size in guarded[1].split("x")]
        changed = [i for i, (a, b) in enumerate(zip(one, other)) if a != b and fixed[i]]
        if any(min(one[i], other[i]) < 2 for i in changed):
            return SPECIAL_SIZES
        if changed:
            places = str(changed[0]) if len(changed) == 1 else str(changed)
            return f"minicompile.mark_dynamic({name}, {places}) before the first call, or compile(..., dynamic=True)"
        return f"pass `{name}` with one dtype, device, stride and requires_grad"
    if new in (0, 1) and ".shape[" in name:
        return SPECIAL_SIZES
    if re.search(r"`[^`]* (==|!=|<=?|>=?) [^`]*`", sentence):
        return "the program asks for this there: each answer has a variant, which stays compiled; or ask outside"
    if type(old) is float or type(new) is float:
        return f"pass `{name}` as a 0-d tensor: torch.tensor({new})"
    if type(old) is int and type(new) is int:
        return "compile(..., dynamic=True) keeps integers symbolic"
    return f"keep `{name}` constant, or compile one function per value"


SPECIAL_SIZES = "nothing to do: sizes 0 and 1 always have variants of their own"
ANNOTATIONS = {
    "grad mode": "call it always under torch.no_grad(), or never; both variants stay compiled",
    ".training`": "nothing to do: a variant for train() and one for eval() stay compiled",
    "the call has": "give the same arguments at every call; each way of calling it has a variant",
    "keyword arguments": "give the same arguments at every call; each way of calling it has a variant",
    " element": "pass `{0}` with one number of elements, or as one tensor",
    " has the keys": "pass `{0}` with one set of keys",
    "default d": "set it once, before the first call",
}
"""What avoids a recompile, by words of the guard that failed."""


def named_module(words: str) -> str:
    """A module's path as users write it: without the name that stands for the compiled function."""
    return re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", re.sub(r"^(the function|self)\b", "", words)).lstrip(".")


def origins_of(step: KernelGroup | ExternKernel) -> tuple[Origin, ...]:
    """The FX nodes behind a step, each once."""
    if isinstance(step, ExternKernel):
        return step.origins
    return tuple(dict.fromkeys(origin for loop in step.loops for origin in loop.origins))


def steps_of(graphs: Iterable[Any]) -> Iterator[tuple[Any, str, Step]]:
    """(graph, half, record) of every step of every compiled half, in the order of execution."""
    for graph in graphs:
        for half, part in graph.parts.items():
            if part.schedule is not None and part.program is not None:
                held = part.schedule.held_bytes()
                for number in range(len(held)):
                    yield graph, half, step_record(graph.captured.name, half, number, part, held[number])


def step_record(graph: str, half: str, number: int, part: Any, held: int = 0) -> Step:
    """One step of a compiled half."""
    step, buffers = part.schedule.steps[number], part.schedule.graph.buffers
    origins = origins_of(step)
    modules = [named_module(o.location.module) for o in origins if o.location and o.location.module]
    written = [buffers[name] for name in step.writes if name in buffers]
    name = part.program.steps[number][0].removeprefix("run_") or getattr(step, "name", "")
    if isinstance(step, KernelGroup):
        kernel = next((k for k in part.program.kernels if k.name == name), None)
        product, traffic, flops = None, (step.bytes_read, step.bytes_written), step.flops
        reason, source = step.tile.reason, kernel.text if kernel else ""
    else:
        views = list(views_in((step.args, tuple(value for _, value in step.kwargs))))
        product, traffic = matmul_shape(step), (sum(map(num_bytes, views)), sum(map(num_bytes, written)))
        flops, reason, source = extern_flops(step, product, views), step.reason, ""
        name = re.sub(r"^torch\.ops\.(aten\.|minicompile\.)?|^kernels\.|\.(out|default)$", "", step.target)
        name += f" {product}" if product else ""
    return Step(
        graph, half, number, "kernel" if isinstance(step, KernelGroup) else "extern", name,
        module=max(modules, key=modules.count, default=""),
        operators=tuple(dict.fromkeys(origin.operator for origin in origins)),
        lines=tuple(dict.fromkeys(origin.location for origin in origins if origin.location)),
        reads=step.reads, writes=step.writes, bytes_read=traffic[0], bytes_written=traffic[1], flops=flops,
        dtype=dtype_text(written[0].dtype) if written else "", held_bytes=held, reason=reason, source=source,
        matmul=product,
    )  # fmt: skip


def extern_flops(step: ExternKernel, product: MatmulShape | None, views: list[BufferView]) -> int:
    """Floating-point operations of a product, a convolution or an attention call; zero for anything else."""
    if product is not None:
        return 2 * product.batch * product.m * product.n * product.k
    shapes = [[hint(size) for size in view.sizes] for view in views]
    backward = "backward" in step.target
    flag = next((item for item in step.args if isinstance(item, bool)), False)
    if "attention" in step.target and len(shapes) >= 3:
        q, k = [shape for shape in shapes if len(shape) == 4][backward : backward + 2]
        ours = step.target.startswith("kernels.")  # which says how far ahead of itself a query sees
        causal = step.args[8 if backward else 5] == 0 if ours else flag
        return (5 if backward else 2) * 2 * math.prod(q) * k[-2] // (2 if causal else 1)
    if "convolution" in step.target:
        # A gradient of the input takes as many operations as the forward, and so does one of the weight.
        weight = shapes[2 if backward else 1]
        output = step.outputs[0].sizes if step.outputs[0] is not None and not backward else ()
        points = shapes[1 if backward else 0] if flag else shapes[0] if backward else [hint(size) for size in output]
        halves = sum(wanted is True for wanted in step.args[-1][:2]) if backward else 1
        return halves * 2 * math.prod(points) * math.prod(weight[1:])
    return 0


def fusions(graphs: Iterable[Any]) -> tuple[Fusion, ...]:
    """The ledger of every compiled half."""
    halves = (pair for graph in graphs for pair in graph.parts.items())
    return tuple(entry for half, part in halves if part.schedule is not None for entry in fusions_of(half, part.schedule))


def fusions_of(half: str, schedule: Schedule) -> Iterator[Fusion]:
    """What shares a kernel, and every pair that stays apart."""
    made = [(step.origins[0], name) for step in schedule.graph.operations if step.origins for name in step.writes]
    words = {name: origin.operator + (f" at {origin.location.short}" if origin.location else "") for origin, name in made}
    names = re.compile("|".join(sorted((rf"\b{name}\b" for name in words), key=len, reverse=True)) or "$^")
    for step in schedule.steps:
        if isinstance(step, KernelGroup) and len(origins_of(step)) > 1:
            yield Fusion(half, "fused", ", ".join(dict.fromkeys(origin.operator for origin in origins_of(step))), "one kernel")
    for entry in schedule.refusals:
        saved = None if entry.bytes_apart is None or entry.bytes_fused is None else entry.bytes_apart - entry.bytes_fused
        between = (entry.producer, entry.consumer)
        reason = names.sub(lambda found: words[found[0]], entry.reason)
        one, other = (words.get(name, name) for name in between)
        pair = f"{one.partition(' at ')[0] if one.partition(' at ')[2] == other.partition(' at ')[2] else one} and {other}"
        yield Fusion(half, entry.verdict, pair, reason, saved, between)


def pattern_lines(graphs: Iterable[Any]) -> tuple[str, ...]:
    """Attention written by hand: found, or why not."""
    lines = collections.Counter(
        f"{p.pattern} at {place(p.location)}: " + ("replaced by one operator" if p.accepted else f"kept as written: {p.reason}")
        for graph in graphs
        for p in graph.partitioned.patterns
    )
    return tuple(line + (f", {count} times" if count > 1 else "") for line, count in lines.items())


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
    return own[-1] if own else None
