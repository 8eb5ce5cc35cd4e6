"""Compile what a kernel's wrapper would launch for an H100/H200 without having one, and read ptxas's report.

`recorded_launches(module, call)` runs a wrapper with `launch` replaced, so that nothing executes; `machine_code(...)`
specialises the arguments as Triton's launcher would (divisibility by 16, ones as constants) and compiles for sm_90.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

SHARED_MEMORY_LIMIT = 232_448
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "i1", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """What ptxas made of one launch."""

    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    serialized: bool
    wgmma: int
    mixed_descriptors: bool
    left_in_registers: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Launch:
    """One recorded call of `launch`."""

    kernel: Any
    args: tuple[Any, ...]
    meta: dict[str, Any]


def recorded_launches(module: types.ModuleType, call: Callable[[], object]) -> list[Launch]:
    """The launches that `call` makes through `module.launch`; none of them runs."""
    seen: list[Launch] = []
    with mock.patch.object(
        module, "launch", lambda kernel, grid, *args, **meta: seen.append(Launch(kernel, args, meta))
    ):
        call()
    return seen


def machine_code(launch: Launch) -> MachineCode:
    """Compile one launch for sm_90 and read registers, spills, shared memory and serialisation."""
    kernel = launch.kernel
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}

    def described(place: tuple[int, ...], value: Any, is_constexpr: bool) -> Any:
        if isinstance(value, tuple) and not is_constexpr:
            return tuple(described((*place, index), item, False) for index, item in enumerate(value))
        kind, divisible = _specialise(value, is_constexpr, len(place) == 1 and kernel.params[place[0]].do_not_specialize)
        if kind == "constexpr":
            constants[place] = value
        elif divisible:
            attributes[place] = [["tt.divisibility", 16]]
        return kind

    values = dict(zip((p.name for p in kernel.params), launch.args)) | launch.meta
    for index, parameter in enumerate(kernel.params):
        signature[parameter.name] = described((index,), values[parameter.name], parameter.is_constexpr)
    options = {name: launch.meta[name] for name in LAUNCH_OPTIONS if name in launch.meta}
    began = time.perf_counter()
    language = GluonASTSource if kernel.is_gluon() else ASTSource
    source = language(kernel, signature=signature, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    seconds = time.perf_counter() - began
    ptx = binary.asm["ptx"]
    report = _ptxas(ptx)
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", report)]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", report)]
    name = kernel.fn.__name__
    serialized = re.search(r"C75\d\d|serializ", report) is not None
    shared, products = binary.metadata.shared, ptx.count("wgmma.mma_async")
    mixed, left = mixed_descriptors(ptx), left_in_registers(binary.asm["ttgir"])
    return MachineCode(name, max(registers), max(spills), shared, serialized, products, mixed, left, seconds)


def left_in_registers(ttgir: str) -> int:
    """Matrix instructions whose left operand comes from registers: in a pipelined loop over K, Triton 3.6 lets the next
    step overwrite them while they are still read (triton #9433)."""
    return len(re.findall(r"warp_group_dot .* : tensor<[^*]*> \* ", ttgir))


def mixed_descriptors(ptx: str) -> bool:
    """Whether one shared-memory base is given matrix descriptors of two layouts, which ptxas 12.8 miscompiles.

    Seen in SASS: the second layout's `UIADD3` reads a register that is never written; on the H200 all rows but the
    first 16 were wrong, or the access illegal. The upper half of a descriptor says its swizzle and strides.
    """
    layouts: dict[str, set[int]] = {}
    for base, number in re.findall(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d{15,});", ptx):
        layouts.setdefault(base, set()).add(int(number) % 2**64 >> 32)
    return any(len(kinds) > 1 for kinds in layouts.values())


def _specialise(value: Any, is_constexpr: bool, any_value: bool) -> tuple[Any, bool]:
    """The type that Triton's launcher gives an argument, and whether it is known to divide by 16; `any_value`: not by request."""
    if isinstance(value, torch.Tensor):
        return "*" + DTYPES[value.dtype], value.data_ptr() % 16 == 0
    if hasattr(value, "block_shape"):
        shape = ", ".join(map(str, value.block_shape))
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""
        return f"tensordesc<{DTYPES[value.base.dtype]}[{shape}]{layout}>", False
    if is_constexpr or value is None or (isinstance(value, int) and value == 1 and not any_value):
        return "constexpr", False
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0 and not any_value
    return "fp32", False


def _ptxas(ptx: str) -> str:
    program = get_ptxas(90).path
    architecture = re.search(r"\.target (sm_\w+)", ptx)
    assert architecture is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [
            program,
            "-v",
            f"--gpu-name={architecture[1]}",
            str(source),
            "-o",
            str(Path(folder) / "kernel.cubin"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout + done.stderr
