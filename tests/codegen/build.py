"""Schedules built by hand, and generated files imported as modules."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from typing import Any

import torch

from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.index import ZERO, Axis, Index, as_index, product
from minicompile.ir.loops import Buffer, BufferView, ExternKernel, Loop, LoweredGraph
from minicompile.ir.program import Program
from minicompile.ir.schedule import (
    Allocation,
    DeviceProperties,
    KernelGroup,
    MemoryPlan,
    Schedule,
    TileAxis,
    TilePlan,
)

INTERPRETER = DeviceProperties(kind="cpu")
GPU = DeviceProperties(name="NVIDIA H200", kind="cuda")


def buffer(name: str, shape: Sequence[int | Index], dtype: torch.dtype = torch.float32, role: str = "computed") -> Buffer:
    """A contiguous buffer on the CPU."""
    sizes = tuple(as_index(size) for size in shape)
    strides = tuple(product(sizes[dim + 1 :]) for dim in range(len(sizes)))
    return Buffer(name, dtype, torch.device("cpu"), sizes, strides, role)  # type: ignore[arg-type]


def whole(target: Buffer) -> BufferView:
    """All of a buffer."""
    return BufferView(target.name, target.sizes, target.strides, ZERO, target.dtype)


def pointwise_plan(*tiles: tuple[Axis, int], num_warps: int = 4) -> TilePlan:
    """Parallel axes, slowest first."""
    return TilePlan(tuple(TileAxis(axis, block, "parallel") for axis, block in tiles), "pointwise", num_warps, 1)


def reduction_plan(strategy: str, *tiles: tuple[Axis, int], num_warps: int = 4) -> TilePlan:
    """Parallel axes, then the reduction axis."""
    axes = [TileAxis(axis, block, "parallel") for axis, block in tiles[:-1]]
    axes.append(TileAxis(*tiles[-1], "reduction"))
    return TilePlan(tuple(axes), strategy, num_warps, 1)  # type: ignore[arg-type]


def group(name: str, loops: Sequence[Loop], plan: TilePlan, stored: Sequence[str]) -> KernelGroup:
    """A kernel group."""
    return KernelGroup(name, tuple(loops), plan, frozenset(stored))


def schedule(
    steps: Sequence[KernelGroup | ExternKernel],
    buffers: Sequence[Buffer],
    outputs: Sequence[str],
    memory: MemoryPlan | None = None,
    size_inputs: dict[str, Index] | None = None,
    constants: dict[str, torch.Tensor] | None = None,
    name: str = "graph",
) -> Schedule:
    """A schedule; the buffers with the role `input` are its inputs, sizes come first."""
    table = {b.name: b for b in buffers}
    inputs = (*(size_inputs or {}), *(b.name for b in buffers if b.role == "input"))
    operations = [op for step in steps for op in (step.loops if isinstance(step, KernelGroup) else (step,))]
    graph = LoweredGraph(
        inputs, size_inputs or {}, table, constants or {}, tuple(operations), tuple(whole(table[o]) for o in outputs), name
    )
    older = {loop.buffer: Allocation(loop.buffer, loop.overwrites, 0, 0) for group in steps if isinstance(group, KernelGroup)
             for loop in group.loops if loop.overwrites is not None}  # fmt: skip
    return Schedule(graph, tuple(steps), memory or MemoryPlan(older, {}))


def programs(of: Schedule, **config: Any) -> tuple[Program, Program]:
    """The program for the interpreter and the one for a GPU (which the interpreter can run too)."""
    settings = dataclasses.replace(Config(), **config)
    return generate_program(of, settings, INTERPRETER), generate_program(of, settings, GPU)


@functools.cache
def programs_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the programs of this process lie until it ends."""
    return tempfile.TemporaryDirectory(prefix="minicompile-test-")


def load(program: Program) -> types.ModuleType:
    """The program's file as a module."""
    path = pathlib.Path(tempfile.mkdtemp(dir=programs_folder().name), f"{program.name}.py")
    path.write_text(program.text)
    name = f"generated_{program.key[:16]}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    module.CONSTANTS.update(dict(program.constants))
    return module


def run_both(of: Schedule, inputs: Sequence[Any], **config: Any) -> list[tuple[torch.Tensor, ...]]:
    """Outputs of both programs of a schedule on the same inputs."""
    return [load(program).call(list(inputs)) for program in programs(of, **config)]


def compile_kernels(program: Program, targets: Sequence[Any]) -> None:
    """Compile every kernel to machine code, which needs no GPU; registers must suffice."""
    import triton  # slow to import, and only the compile tests need it

    from minicompile.runtime.kernel_binary import compile_job
    from minicompile.runtime.kernel_worker import OPTIONS, triton_source

    module = load(program)
    for kernel in program.kernels:
        for target in targets:
            options = {**OPTIONS, "num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
            function = getattr(module, kernel.name)
            source = triton_source(compile_job(kernel, function, target, ""), function)
            compiled = triton.compile(source, target=target, options=options)
            assert spilled_bytes(compiled) == 0, f"{kernel.name} spills registers on {target}"


def spilled_bytes(compiled: Any) -> int:
    """Memory that a kernel's threads need beside their registers, by the machine code's own account."""
    import triton  # slow to import, and only the compile tests need it

    if "amdgcn" in compiled.asm:
        return sum(map(int, re.findall(r"[sv]gpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"])))
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"STACK:(\d+)", usage)))
