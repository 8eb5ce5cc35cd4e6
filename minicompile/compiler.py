"""The whole pipeline as one readable list: captured graph in, compiled graph out.

Every stage is named, timed, verified when asked, and dumped when asked. A stage that fails leaves its half of the graph
to eager execution of the ATen graph, with one warning that names the user's line; `suppress_errors=False` raises instead.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minicompile.codegen.generate import generate_program
from minicompile.codegen.reference import reference_text
from minicompile.config import Config
from minicompile.errors import CompileFailed, Location
from minicompile.graph.build import build_graph
from minicompile.ir import printer, verify
from minicompile.ir.graph import CapturedGraph, PartitionedGraph
from minicompile.lowering.lower import lower_graph
from minicompile.report.artifacts import ArtifactFolder
from minicompile.runtime.autograd_function import bind
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.compiled_graph import CompiledGraph, CompiledPart
from minicompile.runtime.cuda_graphs import GraphedCall, backward_roles, forward_roles
from minicompile.runtime.device import device_properties
from minicompile.runtime.program_loader import load_program
from minicompile.scheduling.schedule import schedule_graph

FlatCall = Callable[[list[Any]], tuple[Any, ...]]


class Compiler:
    """Compiles captured graphs under one configuration and keeps what it compiled.

    Attributes:
        config: the settings.
        on_part: told of every compiled half: the captured graph, `forward` or `backward`, the product.
        graphs: every compiled graph, in order.
    """

    def __init__(
        self, config: Config, on_part: Callable[[CapturedGraph, str, CompiledPart], None] | None = None
    ) -> None:
        self.config = config
        self.on_part = on_part
        self.graphs: list[CompiledGraph] = []
        self._cache = CodeCache(config.cache_directory, config.cache_megabytes) if config.cache else None
        self._graph_pool: Any = None
        self._lock = threading.RLock()

    def backend(self, captured: CapturedGraph) -> CompiledGraph:
        """Compile one graph: forward now, backward when it is first needed."""
        with self._lock:
            clock = StageClock(captured.location)
            artifacts = ArtifactFolder.create(self.config.dump_directory, captured.name)
            artifacts.write("captured_graph.py", lambda: printer.captured_text(captured))
            artifacts.write("guards.txt", lambda: printer.guards_text(captured))
            with clock.stage("graph"):
                partitioned = build_graph(captured, self.config)
                if self.config.verify:
                    verify.verify_partitioned(partitioned)
            artifacts.write("joint_graph.py", lambda: partitioned.joint_text)
            artifacts.write("partition.py", lambda: printer.partitioned_text(partitioned))
            compiled = CompiledGraph(captured, partitioned, clock.seconds)
            forward = self._compile_part(compiled, "forward", artifacts)
            call = bind(partitioned, forward.call, lambda: self._backward_call(compiled, artifacts))
            if partitioned.backward is not None and not captured.grad_enabled:
                call = torch.enable_grad()(call)  # the graph itself switches gradients on
            compiled.bind(call)
            self.graphs.append(compiled)
            return compiled

    def _backward_call(
        self, compiled: CompiledGraph, artifacts: ArtifactFolder
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        with self._lock:
            part = compiled.parts.get("backward") or self._compile_part(compiled, "backward", artifacts)
            return part.call

    def _compile_part(self, compiled: CompiledGraph, half: str, artifacts: ArtifactFolder) -> CompiledPart:
        """Lower, schedule, generate and load one half; on failure the half runs its ATen graph."""
        module = getattr(compiled.partitioned, half)
        clock = StageClock(compiled.captured.location)
        try:
            part = self._run_stages(compiled.partitioned, module, half, clock, artifacts)
        except CompileFailed as failure:
            if not self.config.suppress_errors:
                raise
            warnings.warn(f"{failure}; this part runs eagerly", stacklevel=2)
            part = CompiledPart(call=eager_call(module), fallback=str(failure), timings=clock.seconds)
        compiled.parts[half] = part
        if self.on_part is not None:
            self.on_part(compiled.captured, half, part)
        return part

    def _run_stages(
        self,
        partitioned: PartitionedGraph,
        module: torch.fx.GraphModule,
        half: str,
        clock: StageClock,
        artifacts: ArtifactFolder,
    ) -> CompiledPart:
        name = f"{partitioned.name}_{half}"
        with clock.stage("lowering"):
            lowered = lower_graph(module, self.config, name)
            if self.config.verify:
                verify.verify_lowered(lowered)
        artifacts.write(f"{half}_loops.txt", lambda: printer.lowered_text(lowered))
        device = device_properties(program_device(module))
        with clock.stage("scheduling"):
            schedule = schedule_graph(lowered, self.config, device)
        artifacts.write(f"{half}_schedule.txt", lambda: printer.schedule_text(schedule))
        with clock.stage("codegen"):
            # Naming the operators again costs as much as writing the kernels, so only a dumped file checks itself.
            reference = reference_text(module) if self.config.dump_directory else None
            program = generate_program(schedule, self.config, device, reference)
        artifacts.write(f"{half}_program.py", lambda: program.text)
        overwritten = [m.input_index for m in partitioned.binding.mutated_inputs if m.in_graph]
        with clock.stage("kernels"):
            call, path = load_program(program, self._cache, overwritten if half == "forward" else ())
        if self.config.mode == "reduce-overhead" and program.device.type == "cuda":
            call = self._graphed(call, partitioned, half)
        return CompiledPart(call, lowered, schedule, program, path, timings=clock.seconds)


    def _graphed(self, call: FlatCall, partitioned: PartitionedGraph, half: str) -> FlatCall:
        """The call as a CUDA graph, if the graph's inputs allow one."""
        roles = forward_roles(partitioned)
        if isinstance(roles, str):
            return call
        if self._graph_pool is None:
            self._graph_pool = torch.cuda.graph_pool_handle()
        return GraphedCall(call, roles if half == "forward" else backward_roles(partitioned), self._graph_pool)


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
        except Exception as failure:
            raise CompileFailed(name, failure, self._location) from failure
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def program_device(module: torch.fx.GraphModule) -> torch.device:
    """The device that a graph's kernels run on: the accelerator if any tensor lives there."""
    found = torch.device("cpu")
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return value.device
    return found


def eager_call(module: torch.fx.GraphModule) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Run an ATen graph operator by operator; the list of inputs is emptied as a generated program does."""

    def call(inputs: list[Any]) -> tuple[Any, ...]:
        arguments = tuple(inputs)
        inputs.clear()
        with torch.no_grad():
            return tuple(module(*arguments))

    return call
