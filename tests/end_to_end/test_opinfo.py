"""A fixed part of the operator sweep: what users write by hand is fused, and nothing differs from eager."""

from __future__ import annotations

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from minicompile.ir.fake_mode import BEFORE_TORCH_2_13
from tests.end_to_end.operator_verdict import DTYPES, full_name, judge

FUSED = (
    "add mul div.no_rounding_mode sub pow softmax log_softmax sum mean var std amax argmax cumsum where masked_fill gather cat stack "
    "nn.functional.gelu nn.functional.silu nn.functional.softplus nn.functional.mish nn.functional.glu nn.functional.pad.constant "
    "nn.functional.layer_norm nn.functional.batch_norm nn.functional.group_norm nn.functional.instance_norm "
    "nn.functional.rms_norm nn.functional.cross_entropy nn.functional.mse_loss nn.functional.soft_margin_loss "
    "nn.functional.embedding nn.functional.dropout clamp tril flip roll repeat logsumexp scatter_add "
    "remainder floor_divide linalg.vector_norm logspace"
).split()
RIGHT = (
    "sort topk matmul index_put index_add index_reduce.amin linalg.inv fft.fft nn.functional.conv2d nn.functional.max_pool2d "
    "nn.functional.interpolate.bilinear scatter_reduce.amax median unsafe_split transpose split expand unfold as_strided einsum "
    "polygamma.polygamma_n_0 unique resize_ bernoulli empty_like var_mean norm nn.functional.scaled_dot_product_attention "
    "linalg.lstsq.grad_oriented masked.mean"
).split()
HALVES = (
    "add softmax log_softmax sum mean nn.functional.layer_norm nn.functional.batch_norm nn.functional.gelu nn.functional.cross_entropy "
    "cumsum nn.functional.conv2d nextafter nn.functional.glu cat"
).split()
INTEGERS = "add mul div.no_rounding_mode floor_divide remainder sum amax argmax cumsum where gather bitwise_and bitwise_left_shift sort cat".split()
if BEFORE_TORCH_2_13:
    RIGHT.remove("fft.fft")  # the layout of its result: docs/limits.md, Platforms
OPERATORS = {full_name(op): op for op in op_db}


@pytest.mark.parametrize("name", FUSED)
def test_written_by_hand_elsewhere_and_fused_here(name: str) -> None:
    verdict = judge(OPERATORS[name], "fp32", 1, 60)
    assert verdict.kind in ("fused", "near", "views", "graph break"), verdict


@pytest.mark.parametrize("name", RIGHT)
def test_equal_to_eager(name: str) -> None:
    verdict = judge(OPERATORS[name], "fp32", 1, 60)
    assert verdict.samples and verdict.kind not in ("wrong", "crash", "slow"), verdict


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_as_near_as_eager(name: str) -> None:
    verdict = judge(OPERATORS[name], "bf16", 1, 60)
    assert verdict.samples and verdict.kind not in ("wrong", "crash", "slow"), verdict


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_integers_are_exact(name: str, dtype: str) -> None:
    if DTYPES[dtype] not in OPERATORS[name].supported_dtypes("cpu"):
        pytest.skip("eager has no such operator")
    verdict = judge(OPERATORS[name], dtype, 1, 60)
    assert verdict.kind not in ("wrong", "crash", "slow"), verdict
