"""Kernels of a few operators compile for a GPU; what does not is reported."""

from __future__ import annotations

import dataclasses

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from minicompile.ir.program import Program
from tests.end_to_end.machine_code_sweep import MachineCodeSweep, swept

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
