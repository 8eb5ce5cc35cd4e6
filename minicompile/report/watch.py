"""Watching a compiled half run: every step through a function of ours, with the tensors that it writes.

A generated file calls one module-level function per step (`Program.steps`); those are replaced for a while. So a profile gets
ranges with the user's names, `blocks.0.attention / softmax_kernel`, where compiled code itself marks nothing and calls cost
nothing more. This module must not change what a step computes.
"""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from minicompile.ir.graph import parts_of
from minicompile.ir.loops import Buffer, extent
from minicompile.ir.schedule import KernelGroup
from minicompile.report.accuracy import named, node_values
from minicompile.report.collect import globals_of, step_record
from minicompile.report.sandbox import copied

Around = Callable[["Watched", Callable[[], Any]], Any]


@dataclasses.dataclass(frozen=True)
class Watched:
    """One call of one step: where it is, and its positional arguments."""

    graph: int
    half: str
    number: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@contextlib.contextmanager
def watching(graphs: Iterable[Any], around: Around) -> Iterator[None]:
    """Have `around(which, step)` called in place of every step of every compiled half; it has to call `step()`."""
    with contextlib.ExitStack() as stack:
        for place, graph in enumerate(graphs):
            for half, part in graph.parts.items():
                stack.enter_context(watching_part(place, half, part, around))
        yield


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value for a while."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


@contextlib.contextmanager
def watching_part(graph: int, half: str, part: Any, around: Around) -> Iterator[None]:
    """The same for one half."""
    names, called = globals_of(part), inspect.unwrap(part.call)
    steps = part.program.steps if names else ()
    originals = {name: names[name] for name, _ in steps if name}
    position = [0]

    def watched(name: str) -> Callable[..., Any]:
        original = originals[name]

        def call(*arguments: Any, **keywords: Any) -> Any:
            while steps[position[0] % len(steps)][0] != name:  # a step with nothing to do is not called
                position[0] += 1
            number = position[0] % len(steps)
            position[0] += 1
            which = Watched(graph, half, number, arguments, keywords)
            return around(which, functools.partial(original, *arguments, **keywords))

        return call

    # A CUDA graph's replay runs no step.
    eager = replaced(called, "fallback", "it is being watched") if hasattr(called, "fallback") else contextlib.nullcontext()
    names.update({name: watched(name) for name in originals})
    try:
        with eager:
            yield
    finally:
        names.update(originals)


def compare_steps(part: Any, module: torch.fx.GraphModule, inputs: list[Any], judge: Callable[..., None]) -> bool:
    """Run a half on copies of its inputs and call `judge` with what every step writes: the step's name, the buffer, its value,
    that of the graph's operator and that in fp64 (`None` where there is none). Whether that was possible."""
    eager, exact = (node_values(module, inputs, double) for double in (False, True))
    if not globals_of(part) or eager is None or part.schedule is None:
        return False

    def around(which: Watched, step: Callable[[], Any]) -> Any:
        result = step()
        label = part.program.steps[which.number][0].removeprefix("run_")
        for buffer, tensor in written_tensors(part, which, result).items():
            judge(label, buffer, tensor, named(eager, buffer), named(exact or {}, buffer))
        return result

    with torch.no_grad(), watching_part(0, "", part, around):
        part.call(copied(inputs))
    return True


def written_tensors(part: Any, which: Watched, result: Any) -> dict[str, torch.Tensor]:
    """The buffers that a step has just written, by name."""
    step = part.schedule.steps[which.number]
    if isinstance(step, KernelGroup):
        given = dict(zip(part.program.steps[which.number][1], which.arguments[1:]))
        buffers = part.schedule.graph.buffers
        return {name: in_layout(given[name], buffers[name]) for name in step.writes if name in given}
    if "out" in which.keywords:
        result = which.keywords["out"]
    pairs = zip((b.name if b is not None else "" for b in step.outputs), parts_of(result))
    return {name: value for name, value in pairs if name and isinstance(value, torch.Tensor) and not step.overwrites}


def in_layout(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """What a kernel was given as a buffer, which a program of fixed sizes may hold in another layout."""
    if extent(buffer.sizes, buffer.strides) is None:
        return tensor
    return tensor.as_strided(list(map(int, buffer.sizes)), list(map(int, buffer.strides)))


Profiled = Sequence[tuple[Any, Callable[[Any, str], Any]]]
"""Compiled graphs, each with what gives a half of it with every stage's product."""


@contextlib.contextmanager
def profile(graphs: Profiled, path: str | pathlib.Path | None) -> Iterator[torch.profiler.profile]:
    """A `torch.profiler` profile in which every step of the graphs is a range (on a GPU an NVTX range too); written as a
    Chrome trace to `path`."""
    labels = {
        (place, half): [label(graph, half, number, part) for number in range(len(part.program.steps))]
        for place, (graph, products) in enumerate(graphs)
        for half in graph.parts
        if (part := products(graph, half)).program is not None
    }

    def around(which: Watched, step: Callable[[], Any]) -> Any:
        name = labels[which.graph, which.half][which.number]
        nvtx = torch.cuda.nvtx.range(name) if torch.cuda.is_available() else contextlib.nullcontext()
        with torch.profiler.record_function(name), nvtx:
            return step()

    with watching([graph for graph, _ in graphs], around), torch.profiler.profile() as taken:
        yield taken
    if path is not None:
        taken.export_chrome_trace(str(path))


def label(graph: Any, half: str, number: int, part: Any) -> str:
    """The module, and the kernel in it."""
    step = step_record(graph.captured.name, half, number, part)
    return f"{step.module or step.graph} / {step.name}" + (" (backward)" if half != "forward" else "")
