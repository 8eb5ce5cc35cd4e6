"""Kernels of a few operators compile for a GPU; what does not is reported."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import minicompile
from minicompile.compiler import Compiler
from minicompile.ir.program import Program
from tests.end_to_end import machine_code_sweep
from tests.end_to_end.machine_code_sweep import MachineCodeSweep, compile_to_ptx, swept

OPERATORS = {"remainder", "nn.functional.gelu", "softmax", "cumsum", "index_select", "amax", "bitwise_left_shift"}


def test_kernels_of_operators_compile_without_a_gpu() -> None:
    sweep = swept([op for op in op_db if op.name in OPERATORS], ["fp32", "int64"], samples=1, seconds=60)
    assert sweep.failures == [] and sweep.kernels >= len(OPERATORS)


def test_a_kernel_that_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels = MachineCodeSweep.compile

    def broken(sweep: MachineCodeSweep, program: Program) -> None:
        compile_kernels(sweep, dataclasses.replace(program, text=program.text.replace("tl.store(", "tl.stor(")))

    monkeypatch.setattr(MachineCodeSweep, "compile", broken)
    (failure,) = swept([op for op in op_db if op.name == "sigmoid"], ["fp32"], samples=1, seconds=60).failures[:1]
    assert failure.startswith("sigmoid fp32: ") and "stor" in failure


@pytest.fixture
def machine_code_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], str]:
    """Gives the PTX of the one kernel of a function of two tensors."""

    def compiled(function: Callable[..., Any]) -> str:
        machine_codes: list[str] = []
        monkeypatch.setattr(machine_code_sweep, "compile_to_ptx", lambda job: machine_codes.append(compile_to_ptx(job)))
        watched = MachineCodeSweep(tmp_path).watched(Compiler._run_stages)
        with mock.patch.object(Compiler, "_run_stages", watched):
            minicompile.compile(function, options={"cache": False})(torch.ones(64), torch.ones(64))
        (machine_code,) = machine_codes
        return machine_code

    return compiled


def test_a_product_is_rounded_before_anything_is_added_to_it(machine_code_of: Callable[..., str]) -> None:
    """With multiply-adds `x * x - y * y` of equal numbers is what the rounding of one product left, and its root NaN."""
    machine_code = machine_code_of(lambda x, y: (x * x - y * y).sqrt())
    assert "mul" in machine_code and "sub" in machine_code and "fma" not in machine_code


def test_functions_keep_numbers_below_the_smallest_normal_one(machine_code_of: Callable[..., str]) -> None:
    assert ".ftz" not in machine_code_of(lambda x, y: torch.floor(x) + torch.rsqrt(y) + torch.atan2(x, y) + torch.log(x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_cancels_in_eager_cancels_on_a_gpu(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 4096, device="cuda", dtype=dtype)

    def differences(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * x - z * z).sqrt(), x * y - y * z, torch.floor(x * y - z * y), (x * y).sum() - (z * y).sum()

    compiled = minicompile.compile(differences, options={"suppress_errors": False})
    assert not any(difference.any() for difference in compiled(x, y, x.clone()))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_numbers_are_what_they_are_in_eager(dtype: torch.dtype) -> None:
    x = torch.tensor([1e-40, -1e-40, 3e-39, -5e-39, 0.0, 1e-38], device="cuda", dtype=dtype)

    def small(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.floor(x), torch.ceil(x), x % 3, 3 % x, torch.atan2(x, x.flip(0)), x.rsqrt(), x.abs().pow(0.25), x.lgamma()

    for ours, eager in zip(minicompile.compile(small, options={"suppress_errors": False})(x), small(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=0.0, equal_nan=True)
