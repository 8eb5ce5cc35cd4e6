"""Every representative kernel compiles to machine code without spilling registers, on a machine without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import minicompile
from minicompile.api import compiled_function
from tests.codegen.build import compile_kernels, load, programs
from tests.codegen.catalogue import CATALOGUE, CONFIGURATION

QUICK = ("gelu_mul", "softmax_persistent", "layer_norm_looped", "argmax_looped", "dropout", "dynamic_rows",
         "embedding_gradient", "cumprod_looped", "rms_norm_backward", "optimizer_step")  # fmt: skip
OTHER_CHIPS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32),
               "gfx942": ("hip", "gfx942", 64)}  # fmt: skip


def compile_for(name: str, chip: str) -> None:
    from triton.backends.compiler import GPUTarget  # slow to import

    _, program = programs(CATALOGUE[name](), **CONFIGURATION.get(name, {}))
    compile_kernels(program, [GPUTarget(*OTHER_CHIPS[chip])])


@pytest.mark.parametrize("name", QUICK)
def test_a_kernel_compiles_for_sm_90(name: str) -> None:
    compile_for(name, "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("chip", OTHER_CHIPS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_kernel_compiles_for_every_chip(name: str, chip: str) -> None:
    compile_for(name, chip)


def test_the_runtime_compiles_the_assertions_of_a_kernel_and_no_others() -> None:
    from triton.backends.compiler import GPUTarget  # slow to import

    from minicompile.runtime.kernel_binary import compile_job
    from minicompile.runtime.kernel_worker import compiled

    for name, checks in (("embedding_gradient", True), ("integer_division", False), ("gelu_mul", False)):
        _, program = programs(CATALOGUE[name]())
        module = load(program)
        for kernel in program.kernels:
            function = getattr(module, kernel.name)
            code = compiled(compile_job(kernel, function, GPUTarget("cuda", 90, 32), ""), function).code
            assert (b"a value out of range" in code) == checks
            assert (b"__assertfail" in code) == checks
        assert ("debug=True" in program.text) == checks  # the file that runs by itself


def test_numbers_beside_doubles_keep_their_precision() -> None:
    """Triton 3.6 rounds a bare literal that doubles are compared with to fp32."""
    import triton
    from triton.backends.compiler import GPUTarget

    from minicompile.runtime.kernel_binary import compile_job
    from minicompile.runtime.kernel_worker import triton_source

    compiled = minicompile.compile(lambda x: torch.where(x > 0.1, x % 0.37, 0.7) + torch.fmod(x, -0.3))
    compiled(torch.randn(64, dtype=torch.float64))
    (graph,) = compiled_function(compiled).compiler.graphs
    program = graph.parts["forward"].program
    (kernel,) = program.kernels
    function = getattr(load(program), kernel.name)
    target = GPUTarget("cuda", 90, 32)
    text = triton.compile(triton_source(compile_job(kernel, function, target, ""), function), target=target).asm["ttir"]
    constants = [abs(float(number)) for number in re.findall(r"arith.constant (?:dense<)?(-?[0-9.eE+-]+)>? : (?:tensor<\w+x)?f64", text)]
    assert constants and {0.1, 0.37, 0.7, 0.3} <= set(constants)


WRONG_INDEX = """
import torch, minicompile
table, index = torch.randn(100, 64, device="cuda"), torch.tensor([1, 7, {wrong}], device="cuda")
compiled = minicompile.compile(lambda table, index: torch.nn.functional.embedding(index, table) * 2)
torch.testing.assert_close(compiled(table, index % 100), table[index % 100] * 2)
try:
    compiled(table, index)
    torch.cuda.synchronize()
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [100, -1])
def test_an_index_out_of_range_stops_the_device(wrong: int) -> None:
    run = subprocess.run([sys.executable, "-c", WRONG_INDEX.format(wrong=wrong)], capture_output=True, text=True, timeout=300)
    assert "device-side assert" in run.stdout, run.stdout + run.stderr
