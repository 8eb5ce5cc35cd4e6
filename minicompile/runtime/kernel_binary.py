"""Machine code of one generated kernel: compiled by Triton once, kept on disk, loaded without Triton afterwards."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
import triton

from minicompile.ir.program import KernelArgument, KernelSource
from minicompile.runtime import kernel_worker
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.graph_key import environment, library_sources
from minicompile.runtime.kernel_worker import Job, Machine
from minicompile.runtime.worker_pool import POOL

TRITON_TYPES: dict[torch.dtype, str] = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip


def triton_type(argument: KernelArgument) -> str:
    """`*fp32` for a pointer, `i32` or `i64` for a size."""
    if argument.dtype is None:
        return "i64" if argument.wide else "i32"
    return "*" + TRITON_TYPES[argument.dtype]


def for_sizes(kernel: KernelSource, sizes: Sequence[int]) -> KernelSource:
    """The kernel specialised for size arguments like these: which are multiples of 16, and how long a row is."""
    first = len(kernel.arguments) - len(sizes)
    arguments = [
        dataclasses.replace(argument, divisible_by_16=size % 16 == 0, hint=0)
        for argument, size in zip(kernel.arguments[first:], sizes, strict=True)
    ]
    special = dataclasses.replace(kernel, arguments=(*kernel.arguments[:first], *arguments))
    if not kernel.row:
        return special
    constants = dict(kernel.constants)
    block = triton.next_power_of_2(max(1, row_length(kernel, sizes)))
    warps = max(1, min(16, kernel.num_warps * block // triton.next_power_of_2(constants["RBLOCK"])))
    return dataclasses.replace(special, constants=tuple((constants | {"RBLOCK": block}).items()), num_warps=warps)


def row_length(kernel: KernelSource, sizes: Sequence[int]) -> int:
    """How long a row of a kernel with a varying `row` is for these sizes."""
    return int(eval(kernel.row, {}, dict(zip(kernel.sizes, sizes, strict=True))))  # the text is ours


def binary_key(kernel: KernelSource, target: Any) -> str:
    """Everything that the machine code depends on, hashed; small functions that kernels call are the library's."""
    parts = (kernel.text, kernel.arguments, kernel.constants, kernel.num_warps, kernel.num_stages, str(target))
    return hashlib.sha256(repr((environment(), library_sources()[0], parts)).encode()).hexdigest()


def compile_kernel(
    kernel: KernelSource, function: Any, target: Any, cache: CodeCache | None, path: str | None = None
) -> Machine:
    """The machine code of `function` (the `@triton.jit` object of `kernel`) for `target` (a `GPUTarget`).

    With the `path` of the file that it is in, another process may do it. On disk it is a line of JSON, then the code.
    """
    key = binary_key(kernel, target)
    stored = cache.read("kernels", key) if cache else None
    if stored is not None:
        metadata, code = stored.split(b"\n", 1)
        return Machine(code, json.loads(metadata))
    job = compile_job(kernel, function, target, path or "")
    here = functools.partial(kernel_worker.compiled, job, function)
    machine = here() if path is None else POOL.compiled(job, here)
    if cache:
        cache.write("kernels", key, json.dumps(machine.metadata).encode() + b"\n" + machine.code)
    return machine


def is_kept(kernel: KernelSource, target: Any, cache: CodeCache | None) -> bool:
    """Whether the machine code for the hinted sizes seems to be on disk."""
    if cache is None or not cache.usable:
        return False
    return cache.path("kernels", binary_key(for_sizes(kernel, kernel.hints), target)).exists()


def compile_job(kernel: KernelSource, function: Any, target: Any, path: str) -> Job:
    """What Triton is to compile: the function with its signature, constants and alignment facts."""
    signature = {argument.name: triton_type(argument) for argument in kernel.arguments}
    signature.update({name: "constexpr" for name, _ in kernel.constants})
    place = function.arg_names.index
    return Job(
        path, kernel.name, (target.backend, target.arch, target.warp_size),
        {name: signature[name] for name in function.arg_names},
        {place(name): value for name, value in kernel.constants},
        tuple(place(argument.name) for argument in kernel.arguments if argument.divisible_by_16),
        kernel.num_warps, kernel.num_stages,
    )  # fmt: skip


def machine_code(kernel: KernelSource, function: Any, cache: CodeCache | None = None) -> bytes | None:
    """The machine code of `function` for this machine's GPU; `None` without one, as tiles for the CPU are others."""
    if not torch.cuda.is_available():
        return None
    return compile_kernel(kernel, function, triton.runtime.driver.active.get_current_target(), cache).code
