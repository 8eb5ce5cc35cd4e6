"""A fixed part of the operator sweep: nothing is wrong, and what users write by hand is fused."""

from __future__ import annotations

import pytest
import torch

from minicompile.ir.fake_mode import BEFORE_TORCH_2_13

opinfo_sweep = pytest.importorskip("tests.lowering.opinfo_sweep")

FUSED = (
    "add mul div softmax log_softmax sum mean var std amax argmax cumsum where masked_fill gather index_select cat stack "
    "nn.functional.gelu nn.functional.silu nn.functional.softplus nn.functional.pad nn.functional.mse_loss clamp tril "
    "flip roll repeat logsumexp scatter_add index_add nn.functional.embedding pow remainder floor_divide"
).split()
RIGHT = "sort topk matmul index_put linalg.inv fft.fft nn.functional.conv2d scatter_reduce median svd view_as_complex".split()
if BEFORE_TORCH_2_13:
    RIGHT.remove("fft.fft")  # the layout of its result: docs/limits.md, Platforms


def verdicts(names, dtype):
    """Verdict by operator (its worst variant's text)."""
    found = {}
    for info in opinfo_sweep.op_db:
        if info.name in names and dtype in info.dtypes:
            found.setdefault(info.name, []).append(opinfo_sweep.outcome(info, dtype, 3))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_fused_operators(dtype):
    for name, outcomes in verdicts(FUSED, dtype).items():
        for verdict, detail in outcomes:
            assert verdict != "WRONG", f"{name}: {detail}"
            if dtype == torch.float32:
                fused = verdict in ("fused", "views or eager") or detail.endswith("an index into a 0-d tensor")
                assert fused, f"{name}: {verdict}, {detail}"


def test_extern_operators_are_right():
    for name, outcomes in verdicts(RIGHT, torch.float32).items():
        for verdict, detail in outcomes:
            assert verdict != "WRONG", f"{name}: {detail}"
