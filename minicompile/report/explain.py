"""`minicompile.explain`: run a function compiled and eagerly, time it, judge it, and return one `Explanation`.

The compiler is handed in as `Tools`; this module must not import the stages.
"""

import contextlib
import dataclasses
import functools
import io
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minicompile.report import collect, rewrites, verdict
from minicompile.report.accuracy import accuracy, output_accuracies
from minicompile.report.binary import resources
from minicompile.report.clock import Clock, milliseconds, synchronize
from minicompile.report.explanation import Explanation
from minicompile.report.records import Accuracy, Certificate, ExplainedBreak, GuardCost, SizePoint, Step
from minicompile.report.roofs import roofs_of
from minicompile.report.sandbox import Sandbox
from minicompile.report.watch import compare_steps, replaced, watching

SWEEP = (0.25, 0.5, 1.0, 2.0, 4.0)
GuardTest = tuple[tuple[str, str], Callable[[Any, Any, Any], Any]]


@dataclasses.dataclass(frozen=True)
class Tools:
    """The compiler, as much as an explanation needs of it.

    Attributes:
        compile: compiles a function with the settings asked for.
        internals: the compiled function behind what `compile` returned (its `compiler`, `records` and caches of variants).
        guard_tests: the guards of a cache's last variant, each (in words, as text) with a function of (callable, args, kwargs)
            that tests it, and one that tests all.
        binary: the machine code of a kernel (its record, its `@triton.jit` function), or `None`.
        directory: where measured roofs are kept.
        clock: makes a clock for a device.
    """

    compile: Callable[[Any], Any]
    internals: Callable[[Any], Any]
    guard_tests: Callable[[Any], tuple[list[GuardTest], Callable[[Any, Any, Any], Any] | None]]
    binary: Callable[[Any, Any], bytes | None]
    directory: pathlib.Path
    clock: Callable[[str], Clock] = Clock


def explain(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tools: Tools, sweep: bool | None = None
) -> Explanation:
    """Explain one call of `target`; `sweep` compiles it at other batch sizes too (by default on a GPU only).

    The recompiles of a function that is compiled already are part of its explanation.
    """
    former = getattr(target, "recompiles", []) if hasattr(target, "__wrapped__") else []
    target = getattr(target, "__wrapped__", target)
    case = Case(target, args, kwargs, tools)
    case.first_call()
    eager_us, compiled_us = case.steady_us(target), case.steady_us(case.compiled)
    steps = case.steps()
    sizes = case.sweep(sweep if sweep is not None else case.clock.is_gpu)
    doubled = next((p.compiled_us / compiled_us for p in sizes if p.size == 2 * (case.sandbox.batch or 0)), None)
    fusions, graphs = collect.fusions(case.graphs), case.graphs
    host_us = case.quietly(lambda: case.clock.host_us(case.sandbox.prepared(case.compiled)))
    guards, guards_ns = case.guards()
    seconds = max(0.0, case.first_seconds - compiled_us / 1e6)
    return Explanation(
        function=getattr(target, "__qualname__", type(target).__name__),
        device=torch.cuda.get_device_name() if case.clock.is_gpu else "cpu",
        graphs=tuple(map(collect.graph_summary, graphs)),
        breaks=case.breaks(),
        guards=guards,
        guards_ns=guards_ns,
        recompiles=tuple(map(collect.explained_recompile, [*former, *case.function.records.recompiles])),
        fallbacks=tuple(f"{f.function}: {f.reason}" for f in case.function.records.fallbacks),
        saved=tuple(entry for graph in graphs for entry in graph.partitioned.saved_tensors),
        recomputed=tuple(entry for graph in graphs for entry in graph.partitioned.recomputed),
        steps=steps,
        fusions=fusions,
        patterns=collect.pattern_lines(graphs),
        compile_seconds=dict(case.function.timings),
        first_call_seconds=case.first_seconds,
        peak_bytes=case.peak_bytes,
        roofs=case.roofs,
        verdict=verdict.judge_function(steps, fusions, compiled_us, host_us, doubled, case.roofs),
        break_even=verdict.break_even(seconds, eager_us, compiled_us, sizes),
        accuracy=case.certificate(),
        notes=tuple(case.notes),
        files=source_files(case, steps),
    )


class Case:
    """One function with its arguments, compiled once for the explanation."""

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tools: Tools) -> None:
        self.target, self.tools = target, tools
        self.sandbox = Sandbox(target, args, kwargs)
        self.compiled = tools.compile(target)
        self.function = tools.internals(self.compiled)
        self.clock = tools.clock(self.sandbox.device)
        self.roofs = roofs_of(self.sandbox.device if self.clock.is_gpu else "cpu", tools.directory, milliseconds)
        self.notes: list[str] = []
        self.inputs: dict[tuple[int, str], tuple[Any, str, list[Any]]] | None = None
        self.function.compiler.around = self.around
        self.first_seconds = 0.0
        self.peak_bytes: int | None = None
        if not self.clock.is_gpu:
            self.notes.append(
                "no GPU: bytes and operations hold; times are those of Triton's interpreter, which runs other tiles, so "
                f"there are no registers; verdicts are expectations for {self.roofs.device}"
            )

    @property
    def graphs(self) -> list[Any]:
        """Every compiled graph so far."""
        return list(self.function.compiler.graphs)

    def first_call(self) -> None:
        """Compile by calling, backward included."""
        start = time.perf_counter()
        with self.sandbox.untouched():
            self.sandbox.prepared(self.compiled)()
            synchronize(self.sandbox.device)
        self.first_seconds = time.perf_counter() - start

    def quietly(self, action: Callable[[], Any]) -> Any:
        """Run something that calls the user's function again, without its printing and without traces of it."""
        with self.sandbox.untouched(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()

    def steady_us(self, function: Callable[..., Any]) -> float:
        """One call after warm-up."""
        if self.clock.is_gpu and function is self.compiled:
            self.quietly(self.sandbox.prepared(function))
            self.peak_bytes = self.clock.peak_bytes(lambda: self.quietly(self.sandbox.prepared(function)))
        return float(self.quietly(lambda: self.clock.call_us(self.sandbox.prepared(function))))

    def steps(self) -> tuple[Step, ...]:
        """Every step with its time, binary and verdict."""
        run = self.sandbox.prepared(self.compiled)
        times = self.quietly(lambda: self.clock.steps_us(run, self.watching_keys))
        tf32 = torch.backends.cuda.matmul.allow_tf32
        numbered = {id(graph): place for place, graph in enumerate(self.graphs)}
        found: list[Step] = []
        binaries: dict[str, tuple[int | None, int | None]] = {}
        for graph, half, step in collect.steps_of(self.graphs):
            part = graph.parts[half]
            kernel = next((k for k in part.program.kernels if k.name == step.name), None)
            if kernel is not None and kernel.text not in binaries:
                code = self.tools.binary(kernel, collect.globals_of(part)[kernel.name])
                binaries[kernel.text] = resources(code) if code else (None, None)
            registers, spilled = binaries[kernel.text] if kernel is not None else (None, None)
            took = times.get((numbered[id(graph)], half, step.number))
            step = dataclasses.replace(step, registers=registers, spilled_bytes=spilled, microseconds=took)
            judged = step if self.clock.is_gpu else dataclasses.replace(step, microseconds=None)
            found.append(dataclasses.replace(step, verdict=verdict.judge_step(judged, self.roofs, tf32)))
        return tuple(found)

    def watching_keys(self, around: Callable[[Any, Callable[[], Any]], Any]) -> Any:
        """Watching, with the place of a step as its key."""
        return watching(self.graphs, lambda which, step: around((which.graph, which.half, which.number), step))

    def sweep(self, wanted: bool) -> tuple[SizePoint, ...]:
        """Eager and compiled time at other sizes of the first dimension."""
        batch = self.sandbox.batch
        if not wanted or not batch:
            return ()
        points = []
        for size in sorted({max(1, int(batch * factor)) for factor in SWEEP}):
            other = self.sandbox.resized(size)
            compiled = self.tools.compile(self.target)
            try:
                calls = [other.prepared(function) for function in (self.target, compiled)]
                times = [self.quietly(functools.partial(self.clock.call_us, call)) for call in calls]
            except Exception as failure:  # not every function takes every size
                self.notes.append(f"the sweep stops at size {size}: {type(failure).__name__}")
                continue
            points.append(SizePoint(size, *times))
        return tuple(points)

    def guards(self) -> tuple[tuple[GuardCost, ...], float | None]:
        """Every guard with its cost, and the cost of all of those of the entry together."""
        costs: dict[tuple[str, str], float] = {}

        def timed(cache: Any, *called: Any) -> float | None:
            tests, together = self.tools.guard_tests(cache)
            for guard, test in tests:
                costs.setdefault(guard, self.clock.nanoseconds(functools.partial(test, *called)))
            return self.clock.nanoseconds(functools.partial(together, *called)) if together is not None else None

        def timed_first(cache: Any, call: Callable[..., Any], *called: Any) -> Any:
            timed(cache, *called)
            return call(*called)

        total = timed(self.function.cache, self.function.function, self.sandbox.args, self.sandbox.kwargs)
        with contextlib.ExitStack() as watched:
            for cache in self.function.session.inner_caches():
                timing = functools.partial(timed_first, cache, cache.call)
                watched.enter_context(replaced(cache, "call", timing))
            self.quietly(functools.partial(self.sandbox.once, self.compiled))
        found: dict[tuple[str, str], GuardCost] = {}
        for guard in (guard for graph in self.graphs for guard in graph.captured.guards):
            key = (guard.sentence, guard.expression)
            found.setdefault(key, GuardCost(**vars(guard), nanoseconds=costs.get(key)))
        return tuple(found.values()), total

    def breaks(self) -> tuple[ExplainedBreak, ...]:
        """Every graph break with a rewrite; mechanical ones as patches that were tried."""
        found: dict[Any, ExplainedBreak] = {}
        for record in self.function.records.graph_breaks:
            place = collect.user_location(record.stack)
            if (record.kind, place) not in found:
                patch = rewrites.patch(record.kind, place, self.sandbox, self.tools) if place else None
                found[record.kind, place] = ExplainedBreak(**vars(record), location=place, patch=patch)
        return tuple(found.values())

    def certificate(self) -> Certificate:
        """The errors of every output and kernel."""
        if any(map(collect.draws_random_numbers, self.graphs)):
            return Certificate((), (), "random numbers differ from eager's; compile with fallback_random to compare")
        kernels: list[Accuracy] = []

        def judge(step: str, buffer: str, *values: Any) -> None:
            kernels.extend(filter(None, [accuracy(buffer, step, *values)]))

        self.inputs = {}
        try:
            found = self.quietly(functools.partial(self.sandbox.once, self.compiled))
            ran, self.inputs = self.inputs, None
            for graph, half, inputs in ran.values():
                compare_steps(graph.parts[half], graph.module(half), inputs, judge)
            eager = self.quietly(functools.partial(self.sandbox.once, self.target))
            exact = self.quietly(lambda: self.sandbox.once(self.sandbox.in_double(), double=True))
        except Exception as failure:  # not every function has an fp64 form
            return Certificate((), tuple(kernels), f"no fp64 run: {type(failure).__name__}: {str(failure)[:100]}")
        names = [f"output {number}" for number in range(self.sandbox.output_count)]
        names += [f"gradient of {name}" for name in self.sandbox.differentiable_names]
        return Certificate(tuple(output_accuracies(found, eager, exact, names)), tuple(kernels), advice(self.graphs))

    def around(self, graph: Any, half: str, part: Any) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The call of a half that keeps copies of its inputs while a certificate is made."""

        @functools.wraps(part.call)
        def call(inputs: list[Any]) -> tuple[Any, ...]:
            if self.inputs is not None:
                self.inputs[id(graph), half] = graph, half, [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]
            return tuple(part.call(inputs))

        return call


def advice(graphs: Iterable[Any]) -> str:
    """The option that would change the rounding."""
    halves = [part.schedule for graph in graphs for part in graph.parts.values() if part.schedule is not None]
    dtypes = {buffer.dtype for schedule in halves for buffer in schedule.graph.buffers.values()}
    if dtypes & {torch.float16, torch.bfloat16}:
        return "options={'emulate_precision_casts': True} rounds 16-bit intermediates where eager does"
    if torch.float32 in dtypes and torch.backends.cuda.matmul.allow_tf32:
        return "torch.backends.cuda.matmul.allow_tf32 = False multiplies in fp32"
    return ""


def source_files(case: Case, steps: Iterable[Step]) -> dict[str, str]:
    """The text of the user's files that records point at."""
    places = [line for step in steps for line in step.lines]
    places += [place for record in case.function.records.graph_breaks for place in record.stack]
    names = dict.fromkeys(place.file for place in places if "site-packages" not in place.file)
    return {name: pathlib.Path(name).read_text() for name in names if pathlib.Path(name).is_file()}
