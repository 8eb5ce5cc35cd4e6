"""Every representative kernel compiles to machine code without spilling registers, on a machine without a GPU."""

from __future__ import annotations

import pytest

from tests.codegen.build import compile_kernels, programs
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
