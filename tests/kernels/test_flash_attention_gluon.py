"""The warp-specialised forward: which calls take it (anywhere), and that it is right (on the GPUs it is for)."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

import minicompile
from minicompile.kernels.attention_problem import describe
from minicompile.kernels.configs import HOPPER_TABLE, hopper_row
from minicompile.kernels.flash_attention import attention_forward
from minicompile.kernels.interpret import launching_by, run_on_gpu
from tests.kernels.attention_cases import Case, errors, failures, operands

ATTENTION = sys.modules["minicompile.kernels.flash_attention"]
CASE = Case(torch.bfloat16, 1, 2, 1, 2048, 2048, 128, 128)
# Long enough for every row of the table, in programs enough to fill the GPU, and dividing nothing.
CASES = [
    Case(dtype, batch, heads, kv_heads, queries, keys, d, d, upper=upper, scale=scale, layout=layout, seed=seed)
    for seed, (dtype, batch, heads, kv_heads, queries, keys, upper, scale, layout) in enumerate((
        (torch.bfloat16, 1, 8, 8, 4100, 4100, None, None, "BHSD"), (torch.bfloat16, 1, 8, 2, 4099, 4099, 0, None, "BSHD"),
        (torch.float16, 3, 7, 1, 1500, 4097, 0, 1.0, "BSHD"), (torch.float16, 3, 9, 3, 1025, 4223, None, 0.05, "BHSD"),
        (torch.bfloat16, 150, 1, 1, 33, 4096, 0, None, "BSHD"), (torch.bfloat16, 5, 30, 30, 100, 4500, None, 1.0, "BHSD")))
    for d in (64, 128)
]  # fmt: skip


def hopper(monkeypatch: pytest.MonkeyPatch, case: Case) -> Any:
    """The row that a case would take on an H100."""
    monkeypatch.setattr(ATTENTION, "_is_hopper", lambda q: True)
    monkeypatch.setattr(ATTENTION, "HOPPER_VERSIONS", "")
    given = operands(case, "cpu")
    q, k, v = given["q"], given["k"], given["v"]
    band = (case.lower, case.upper, case.scale, case.dropout)
    return ATTENTION._hopper(describe(q, k, v, given["mask"], *band, False, None), q, k, v)


@pytest.mark.parametrize("change", [
    {}, {"upper": 0}, {"kv_heads": 2}, {"layout": "BSHD"}, {"dtype": torch.float16}, {"queries": 77},
], ids=str)  # fmt: skip
def test_plain_long_attention_takes_it(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(CASE, **change)
    assert hopper(monkeypatch, case) == hopper_row(128, case.upper == 0, 2048)


@pytest.mark.parametrize("change", [
    {"dtype": torch.float32}, {"mask": "row"}, {"lower": 64}, {"upper": 5}, {"dropout": 0.5}, {"scale": -0.2}, {"d": 96},
    {"dv": 64}, {"keys": 512}, {"layout": "sliced"}, {"layout": "expanded keys", "batch": 2},
], ids=str)  # fmt: skip
def test_everything_else_is_left_to_the_plain_kernels(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert hopper(monkeypatch, dataclasses.replace(CASE, **change)) is None


def only_on_hopper() -> None:
    q = torch.empty(1, device="cuda")
    if not ATTENTION._is_hopper(q) or not ATTENTION.triton.__version__.startswith(ATTENTION.HOPPER_VERSIONS):
        pytest.skip("chosen only for sm_90 and a Triton that was seen right there")


def launched(call: Any) -> tuple[Any, list[str]]:
    """What a call gives, and the kernels that it launched."""
    names: list[str] = []

    def run(kernel: Any, *rest: Any) -> Any:
        names.append(kernel.fn.__name__)
        return run_on_gpu(kernel, *rest)

    with launching_by(run):
        return call(), names


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.seed}-{case.d}")
def test_it_matches_fp64_and_itself(case: Case) -> None:
    only_on_hopper()
    given = operands(case, "cuda")

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        return attention_forward(given["q"], given["k"], given["v"], upper=case.upper, scale=case.scale)

    (out, lse), names = launched(call)
    assert (names == ["flash_attention_hopper_kernel"]) == (case.d == 128 or case.upper is None)
    assert not failures(case, errors(case, "cuda"))
    for _ in range(10):
        again, again_lse = call()
        assert torch.equal(again, out) and torch.equal(again_lse, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_graphs_launch_it_and_replay_it(mode: str) -> None:
    only_on_hopper()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True) * 2.0

    def results(function: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]

    compiled = minicompile.compile(attend, mode=mode)
    for seed in range(4):
        torch.manual_seed(seed)
        given = [torch.randn(1, 8, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        exact, eager = results(attend, torch.float64), results(attend, torch.bfloat16)
        for got, rival, want in zip(results(compiled, torch.bfloat16), eager, exact):
            assert (got - want).abs().max() <= 2.0 * (rival - want).abs().max()
        torch.testing.assert_close(compiled(*given), eager[0], atol=2e-2, rtol=2e-2)


def test_the_table_has_one_row_for_each_kind() -> None:
    kinds = [(row.head_dim, row.causal) for row in HOPPER_TABLE]
    assert len(set(kinds)) == len(kinds)
    assert all(hopper_row(d, causal, 1) is None for d, causal in kinds)
