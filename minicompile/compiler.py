"""The whole pipeline as one readable list: captured graph in, compiled graph out.

Every stage is named, timed, verified when asked, and dumped when asked. A stage that fails leaves its half of the graph
to eager execution of the ATen graph, with one warning that names the user's line; `suppress_errors=False` raises instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minicompile.capture.collector import collection_postponed
from minicompile.capture.frame_cache import CAPTURE_LOCK
from minicompile.codegen.generate import generate_program
from minicompile.codegen.reference import reference_text
from minicompile.config import Config
from minicompile.errors import CompileFailed, Location, warn_user
from minicompile.graph.attention import calls_alone
from minicompile.graph.build import build_graph
from minicompile.graph.missing_gradients import backward_without
from minicompile.ir import printer, verify
from minicompile.ir.graph import CapturedGraph, PartitionedGraph
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.program import FlatCall, Program
from minicompile.ir.schedule import DeviceProperties, FusionRefusal
from minicompile.kernels import interpret
from minicompile.kernels.attention_problem import tf32_allowed
from minicompile.kernels.matmul_model import route
from minicompile.lowering.lower import lower_graph
from minicompile.report.artifacts import ArtifactFolder
from minicompile.report.checked import Checker
from minicompile.runtime.autograd_function import bind
from minicompile.runtime.autotune import Tuner, measure_on_device
from minicompile.runtime.call_plan import CallPlan, call_plan
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.compiled_graph import CompiledGraph, CompiledPart
from minicompile.runtime.cuda_graphs import GraphedCall, GraphPool, backward_roles, forward_roles
from minicompile.runtime.device import device_properties
from minicompile.runtime.early_kernels import EARLY
from minicompile.runtime.graph_key import GraphKey, graph_key, lasting_flags
from minicompile.runtime.graph_store import StoredGraph
from minicompile.runtime.program_loader import load_program
from minicompile.runtime.triton_key import prepare_triton_key
from minicompile.runtime.worker_pool import POOL
from minicompile.scheduling.fusion import why_not_fused
from minicompile.scheduling.matmul import Chooser
from minicompile.scheduling.schedule import schedule_graph

KERNELS_OF_ATTENTION = 24


class Compiler:
    """Compiles captured graphs under one configuration and keeps what it compiled.

    Attributes:
        config: the settings.
        on_part: told of every compiled half: the graph, `forward` or `backward`, the product.
        graphs: every compiled graph, in order.
        keep_products: run every stage, so that its product can be looked at, where the disk has the finished program.
        around: replaces the call of every compiled half, for those who watch it run.
    """

    def __init__(
        self, config: Config, on_part: Callable[[CompiledGraph, str, CompiledPart], None] | None = None
    ) -> None:
        self.config = config
        self.on_part = on_part
        self.graphs: list[CompiledGraph] = []
        self.around: Callable[[CompiledGraph, str, CompiledPart], FlatCall] | None = None
        self.keep_products = on_part is not None or bool(config.check)
        self.checker = Checker(config.check, config.cache_directory / "differences", self._alone) if config.check else None
        self._cache = CodeCache(config.cache_directory, config.cache_megabytes) if config.cache else None
        measure = functools.partial(measure_on_device, cache=self._cache)
        self._tuner = Tuner(config.autotune_seconds, self._cache, measure)
        if torch.cuda.is_initialized():
            prepare_triton_key(self._cache)
        self._graph_pools: dict[torch.device, GraphPool] = {}
        self._lock = CAPTURE_LOCK

    def _alone(self, captured: CapturedGraph) -> CompiledGraph:
        """A graph compiled by itself, for the search of what is wrong with it."""
        return Compiler(self.config.replace(check=0, cache=False, dump_directory=None)).backend(captured)

    def why_not_fused(self, first: str, second: str) -> list[FusionRefusal]:
        """Why two operations of what was compiled are in different kernels; `LookupError` if there are no such two."""
        parts = [self.products(graph, half) for graph in self.graphs for half in graph.parts]
        schedules = [part.schedule for part in parts if part.schedule is not None]
        if not schedules:
            raise LookupError("nothing was scheduled: call it first")
        found = [record for schedule in schedules for record in why_not_fused(schedule, first, second)]
        if not found:
            raise LookupError(f"no two operations are called {first!r} and {second!r} in one graph")
        return found

    def backend(self, captured: CapturedGraph) -> CompiledGraph:
        """Compile one graph, or load it from the disk: forward now, backward when it is first needed."""
        with self._lock:
            clock = StageClock(captured.location)
            artifacts = ArtifactFolder.create(self.config.dump_directory, captured.name)
            artifacts.write("captured_graph.py", lambda: printer.captured_text(captured))
            artifacts.write("guards.txt", lambda: printer.guards_text(captured))
            with clock.stage("lookup"):
                key = graph_key(captured, self.config) if self._cache else None
                stored = self._stored(key)
            if stored is not None and key is not None and key.allows(stored.assumptions):
                compiled = self._from_disk(captured, stored, clock)
            else:
                compiled = self._from_stages(captured, key, clock, artifacts)
            self.graphs.append(compiled)
            return compiled

    def _from_stages(
        self, captured: CapturedGraph, key: GraphKey | None, clock: StageClock, artifacts: ArtifactFolder
    ) -> CompiledGraph:
        POOL.prepare(expected_kernels(captured.module))
        with clock.stage("graph"):
            partitioned = build_graph(captured, self.config)
            if self.config.verify:
                verify.verify_partitioned(partitioned)
        artifacts.write("joint_graph.py", lambda: partitioned.joint_text)
        artifacts.write("partition.py", lambda: printer.partitioned_text(partitioned))
        plan = call_plan(partitioned, captured)
        compiled = CompiledGraph(captured, plan, lambda: partitioned, backward_without, clock.seconds, key)
        forward = self._compile_part(compiled, "forward", artifacts)
        self._bind(compiled, forward, lambda half: self._compile_part(compiled, half, artifacts))
        return compiled

    def _stored(self, key: GraphKey | None) -> StoredGraph | None:
        """The graph as an earlier process compiled it, unless somebody wants to see the stages' products."""
        if self._cache is None or key is None or self.keep_products or self.config.dump_directory or self.config.verify:
            return None
        content = self._cache.read("graphs", key.text)
        return StoredGraph.from_bytes(content) if content else None

    def _from_disk(self, captured: CapturedGraph, stored: StoredGraph, clock: StageClock) -> CompiledGraph:
        def partition() -> PartitionedGraph:
            made = build_graph(captured, self.config)
            if call_plan(made, captured).taken != stored.plan.taken:
                raise CompileFailed("lookup", RuntimeError("the forward on the disk keeps other values for a backward"), None)
            return made

        compiled = CompiledGraph(captured, stored.plan, partition, backward_without, clock.seconds)
        programs = dict(zip(stored.halves, stored.programs, strict=True))

        def half_of(half: str) -> CompiledPart:
            if half in programs:
                return self._stored_part(compiled, half, programs[half])
            return self._compile_part(compiled, half, ArtifactFolder.create(None, compiled.plan.name))

        self._bind(compiled, half_of("forward"), half_of)
        return compiled

    def _bind(self, compiled: CompiledGraph, forward: CompiledPart, other_half: Callable[[str], CompiledPart]) -> None:
        def half_call(half: str) -> FlatCall:
            with self._lock, collection_postponed():
                return (compiled.parts.get(half) or other_half(half)).call

        call = bind(compiled.plan, compiled.captured.module, forward.call, half_call)
        if compiled.plan.tangents is not None and not compiled.plan.grad_enabled:
            call = torch.enable_grad()(call)  # the graph itself switches gradients on
        compiled.run = self.checker.graph(compiled, call) if self.checker is not None else call

    def _stored_part(self, compiled: CompiledGraph, half: str, program: Program) -> CompiledPart:
        clock = StageClock(compiled.captured.location)
        part = self._load(compiled.plan, half, program, clock, lambda: self._for_any_size(
            compiled, half, lower_graph(compiled.module(half), self.config, compiled.plan.name)))
        return self._finish(compiled, half, part)

    def _compile_part(self, compiled: CompiledGraph, half: str, artifacts: ArtifactFolder) -> CompiledPart:
        """Lower, schedule, generate and load one half; on failure the half runs its ATen graph."""
        clock = StageClock(compiled.captured.location)
        try:
            part = self._run_stages(compiled, half, clock, artifacts)
        except CompileFailed as failure:
            if not self.config.suppress_errors:
                raise
            warn_user(f"{failure}; this part runs eagerly")
            part = CompiledPart(call=eager_call(compiled.module(half)), fallback=str(failure), timings=clock.seconds)
        part = self._finish(compiled, half, part)
        self._store(compiled)
        return part

    def _finish(self, compiled: CompiledGraph, half: str, part: CompiledPart) -> CompiledPart:
        for around in (self.checker.part if self.checker is not None else None, self.around):
            if around is not None:
                part = dataclasses.replace(part, call=around(compiled, half, part))
        compiled.parts[half] = part
        if self.on_part is not None:
            self.on_part(compiled, half, part)
        return part

    def products(self, compiled: CompiledGraph, half: str) -> CompiledPart:
        """A half with the product of every stage, compiled once more if it came from the disk."""
        part = compiled.parts[half]
        if part.schedule is not None or part.fallback:
            return part
        return self._run_stages(compiled, half, StageClock(None), ArtifactFolder(None))

    def joint_text(self, compiled: CompiledGraph) -> str:
        """The joint graph as text, which is made only when somebody asks for it."""
        with_text = self.config.replace(dump_directory=self.config.dump_directory or "unused")
        return compiled.partitioned.joint_text or build_graph(compiled.captured, with_text).joint_text

    def _store(self, compiled: CompiledGraph) -> None:
        """Keep a graph for later processes; a forward never without its own backward, all of those that were needed."""
        key = compiled.key
        if self._cache is None or key is None or key.flags != lasting_flags():
            return
        programs = {half: part.program for half, part in compiled.parts.items() if part.program is not None}
        if len(programs) == len(compiled.parts) and (len(programs) > 1 or compiled.plan.tangents is None):
            content = StoredGraph(compiled.plan, tuple(programs), tuple(programs.values()), key.assumptions()).to_bytes()
            if content is not None:
                self._cache.write("graphs", key.text, content)

    def _run_stages(
        self, compiled: CompiledGraph, half: str, clock: StageClock, artifacts: ArtifactFolder
    ) -> CompiledPart:
        module = compiled.module(half)
        name = f"{compiled.plan.name}_{half}"
        with clock.stage("lowering"):
            lowered = lower_graph(module, self.config, name)
            if self.config.verify:
                verify.verify_lowered(lowered)
        artifacts.write(f"{half}_loops.txt", lambda: printer.lowered_text(lowered))
        device = device_properties(lowered.device)
        start_early(lowered)
        if half == "forward" and compiled.partitioned.backward is not None and torch.cuda.is_available():
            with contextlib.suppress(Exception):  # the backward will say what is wrong
                start_early(lower_graph(calls_alone(compiled.partitioned.backward), self.config, name), ahead=True)
        with clock.stage("scheduling"):
            schedule = schedule_graph(lowered, self.config, device, matmul_chooser(self.config, device))
        tuning = ""
        if self.config.mode.startswith("max-autotune"):
            with clock.stage("autotune"):
                generate = functools.partial(generate_program, config=self.config, device=device)
                schedule, tuning = self._tuner.tuned(schedule, generate, device)
        artifacts.write(f"{half}_schedule.txt", lambda: printer.schedule_text(schedule))
        with clock.stage("codegen"):
            # Naming the operators again costs as much as writing the kernels, so only a dumped file checks itself.
            reference = reference_text(module) if self.config.dump_directory else None
            program = generate_program(schedule, self.config, device, reference)
        artifacts.write(f"{half}_program.py", lambda: program.text)
        part = self._load(compiled.plan, half, program, clock, lambda: self._for_any_size(compiled, half, lowered))
        return dataclasses.replace(part, lowered=lowered, schedule=schedule, tuning=tuning)

    def _for_any_size(self, compiled: CompiledGraph, half: str, lowered: LoweredGraph) -> FlatCall:
        """One half again, right for all values of its symbolic sizes."""
        with self._lock:
            device = device_properties(lowered.device)
            schedule = schedule_graph(lowered, self.config, device, matmul_chooser(self.config, device), any_size=True)
            program = generate_program(schedule, self.config, device, any_size=True)
            return self._load(compiled.plan, half, program, StageClock(compiled.captured.location)).call

    def _load(self, plan: CallPlan, half: str, program: Program, clock: StageClock,
              other: Callable[[], FlatCall] | None = None) -> CompiledPart:  # fmt: skip
        """A program's kernels compiled and bound, as a CUDA graph if asked for."""
        with clock.stage("kernels"):
            call, path = load_program(program, self._cache, plan.overwritten if half == "forward" else (), other)
        part = CompiledPart(call, program=program, path=path, timings=clock.seconds)
        if self.config.mode not in ("reduce-overhead", "max-autotune") or program.device.type != "cuda":
            return part
        roles = forward_roles(plan)
        if isinstance(roles, str):
            return dataclasses.replace(part, never_replayed=roles)
        device = torch.device("cuda", program.device.index or 0)
        pool = self._graph_pools.setdefault(device, GraphPool(device))
        graphed = GraphedCall(call, roles if half == "forward" else backward_roles(plan), pool)
        return dataclasses.replace(part, call=graphed)


def start_early(lowered: LoweredGraph, ahead: bool = False) -> None:
    """Have hand-written kernels of a graph compiled beside the stages, or ahead of them, where there is a GPU to load them on."""
    on_gpu = device_properties(lowered.device).kind == "cuda" and torch.cuda.is_available()
    if on_gpu and not torch.cuda.is_current_stream_capturing():
        EARLY.start(lowered, ahead)


def before_fork() -> None:
    """Wait until no other thread compiles or interprets: a child would find the locks held for ever."""
    CAPTURE_LOCK.acquire()
    interpret.LOCK.acquire()


def after_fork() -> None:
    """Let parent and child go on."""
    interpret.LOCK.release()
    CAPTURE_LOCK.release()


os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)


class StageClock:
    """Seconds by stage; an exception inside a stage becomes a `CompileFailed` with the stage's name."""

    def __init__(self, location: Location | None) -> None:
        self.seconds: dict[str, float] = {}
        self._location = location

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block as `name`."""
        start = time.perf_counter()
        try:
            yield
        except CompileFailed:
            raise
        except Exception as failure:  # whatever a stage raises, the user's call must not
            raise CompileFailed(name, failure, self._location) from failure
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def matmul_chooser(config: Config, device: DeviceProperties) -> Chooser | None:
    """Who computes matrix products; on the CPU, where our kernel runs interpreted, it must be asked for."""
    if config.matmul == "aten" or (device.kind != "cuda" and config.matmul == "auto"):
        return None
    return functools.partial(route, config.matmul, tf32_allowed())


def expected_kernels(module: torch.fx.GraphModule) -> int:
    """About how many distinct kernels a graph on an accelerator will have: one for two distinct operations, and for attention in
    fp32 as many as take the time of its kernels, forward and backward."""
    made = [(node.target, node.meta.get("example_value")) for node in module.graph.nodes if node.op != "placeholder"]
    on_device = [(target, value) for target, value in made if isinstance(value, torch.Tensor) and value.device.type != "cpu"]
    wide = [str(target) for target, value in on_device if value.dtype == torch.float32]
    attention = any("softmax" in name or "attention" in name for name in wide)
    distinct = {(target, str(value.shape), value.dtype) for target, value in on_device}  # symbolic sizes have no hash
    return len(distinct) // 2 + KERNELS_OF_ATTENTION * attention


def eager_call(module: torch.fx.GraphModule) -> FlatCall:
    """Run an ATen graph operator by operator; the list of inputs is emptied as a generated program does."""
    for view in module.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        view.target = torch.ops.aten.reshape.default  # eager's kernels may give strides of which no view is possible

    def call(inputs: list[Any]) -> tuple[Any, ...]:
        arguments = tuple(inputs)
        inputs.clear()
        with torch.no_grad(), torch._C._DisableAutocast():  # whose casts stand in the graph
            return tuple(module(*arguments))

    return call
