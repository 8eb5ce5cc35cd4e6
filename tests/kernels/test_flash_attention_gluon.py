"""The warp-specialised attention: which calls take it (anywhere), and that it is right (on the GPUs it is for)."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

import minicompile
from minicompile.kernels.attention_problem import describe
from minicompile.kernels.configs import HOPPER_BACKWARD_TABLE, HOPPER_TABLE, HopperBackwardRow, hopper_row
from minicompile.kernels.flash_attention import attention_backward, attention_forward
from minicompile.kernels.interpret import launching_by, run_on_gpu
from tests.kernels.attention_cases import TOLERANCE, Case, attention_reference, errors, failures, operands
from tests.kernels.mutants import mutant_of

ATTENTION = sys.modules["minicompile.kernels.flash_attention"]
CASE = Case(torch.bfloat16, 1, 2, 1, 2048, 2048, 128, 128)
# Long enough for every row of the table, in programs enough to fill the GPU, and dividing nothing.
CASES = [
    Case(dtype, batch, heads, kv_heads, queries, keys, d, d, upper=upper, scale=scale, layout=layout, seed=seed)
    for seed, (dtype, batch, heads, kv_heads, queries, keys, upper, scale, layout) in enumerate((
        (torch.bfloat16, 1, 8, 8, 4100, 4100, None, None, "BHSD"), (torch.bfloat16, 1, 8, 2, 4099, 4099, 0, None, "BSHD"),
        (torch.float16, 3, 7, 1, 1500, 4097, 0, 1.0, "BSHD"), (torch.float16, 3, 9, 3, 1025, 4223, None, 0.05, "BHSD"),
        (torch.bfloat16, 150, 1, 1, 33, 4096, 0, None, "BSHD"), (torch.bfloat16, 5, 30, 30, 100, 4500, None, 1.0, "BHSD"),
        (torch.bfloat16, 1, 12, 4, 2100, 4133, None, None, "stride 0")))
    for d in (64, 128, 40, 72, 80, 120)
]  # fmt: skip
# Of any length, with as few programs as one: no query, or no key, for some of a block's rows; grouped heads; blocks hidden from all.
BACKWARD_CASES = [
    Case(dtype, batch, heads, kv_heads, queries, keys, d, d, upper=upper, scale=scale, layout=layout, seed=seed)
    for seed, (dtype, batch, heads, kv_heads, queries, keys, scale, layout) in enumerate((
        (torch.bfloat16, 2, 4, 4, 512, 512, None, "BHSD"), (torch.bfloat16, 2, 4, 2, 1000, 1000, None, "BSHD"),
        (torch.float16, 1, 6, 2, 333, 777, 0.3, "BHSD"), (torch.float16, 2, 4, 1, 777, 129, None, "BSHD"),
        (torch.bfloat16, 1, 2, 2, 65, 64, 1.0, "BHSD"), (torch.bfloat16, 3, 4, 4, 1, 500, None, "BHSD"),
        (torch.float16, 1, 20, 10, 2047, 2049, None, "BHSD"), (torch.bfloat16, 2, 3, 3, 64, 1, -0.2, "BSHD"),
        (torch.bfloat16, 1, 12, 4, 600, 700, None, "stride 0")))
    for d in (64, 128) for upper in (None, 0)
]  # fmt: skip


def on_hopper(monkeypatch: pytest.MonkeyPatch, case: Case) -> tuple[Any, ...]:
    """What is chosen by, of a case on an H100: the problem, queries, keys, values, and the output's gradient."""
    monkeypatch.setattr(ATTENTION, "_is_hopper", lambda q: True)
    monkeypatch.setattr(ATTENTION, "HOPPER_VERSIONS", "")
    given = operands(case, "cpu")
    q, k, v = given["q"], given["k"], given["v"]
    band = (case.lower, case.upper, case.scale, case.dropout)
    return describe(q, k, v, given["mask"], *band, False, None), q, k, v, given["dout"]


def hopper(monkeypatch: pytest.MonkeyPatch, case: Case) -> Any:
    """The row that a case's forward would take on an H100."""
    return ATTENTION._hopper(*on_hopper(monkeypatch, case)[:4])


def hopper_backward(monkeypatch: pytest.MonkeyPatch, case: Case) -> Any:
    """The row that its backward would take, on one of 132 processors."""
    monkeypatch.setattr(ATTENTION.gpu, "processors", lambda q: 132)
    return ATTENTION._hopper_backward(*on_hopper(monkeypatch, case))


@pytest.mark.parametrize("change", [
    {}, {"upper": 0}, {"kv_heads": 2}, {"layout": "BSHD"}, {"dtype": torch.float16}, {"queries": 77}, {"layout": "stride 0"},
    {"d": 72, "dv": 72}, {"d": 96, "dv": 96},
], ids=str)  # fmt: skip
def test_plain_long_attention_takes_it(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(CASE, **change)
    assert hopper(monkeypatch, case) == hopper_row(HOPPER_TABLE, 128, case.upper == 0, 2048)


@pytest.mark.parametrize("change", [
    {}, {"upper": 0}, {"kv_heads": 2}, {"layout": "BSHD"}, {"dtype": torch.float16}, {"d": 64, "dv": 64},
    {"scale": -0.2}, {"queries": 3000}, {"layout": "stride 0", "batch": 1, "heads": 18, "kv_heads": 9},
], ids=str)  # fmt: skip
def test_so_does_its_backward(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(CASE, **{"batch": 9, **change})
    assert hopper_backward(monkeypatch, case) == hopper_row(HOPPER_BACKWARD_TABLE, case.d, case.upper == 0, 2048) is not None


@pytest.mark.parametrize("change", [
    {"dtype": torch.float32}, {"mask": "row"}, {"lower": 64}, {"upper": 5}, {"dropout": 0.5}, {"d": 96}, {"dv": 64},
    {"d": 96, "dv": 96}, {"keys": 77}, {"queries": 77}, {"layout": "sliced"}, {"layout": "expanded keys"}, {"gradient": "stride 0"},
    {"batch": 8},
], ids=str)  # fmt: skip
def test_every_other_backward_is_left_to_the_plain_kernels(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert hopper_backward(monkeypatch, dataclasses.replace(CASE, **{"batch": 9, **change})) is None


def test_no_sums_in_any_order_where_determinism_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(CASE, batch=9)
    assert hopper_backward(monkeypatch, case) is not None
    torch.use_deterministic_algorithms(True)
    try:
        assert hopper_backward(monkeypatch, case) is None
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("change", [
    {"dtype": torch.float32}, {"mask": "row"}, {"lower": 64}, {"upper": 5}, {"dropout": 0.5}, {"scale": -0.2}, {"d": 96},
    {"dv": 64}, {"d": 100, "dv": 100}, {"d": 32, "dv": 32}, {"keys": 128}, {"layout": "sliced"}, {"layout": "expanded keys", "batch": 2},
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
    assert (names == ["flash_attention_hopper_kernel"]) == (case.d > 64 or case.upper is None)
    assert not failures(case, errors(case, "cuda"))
    for _ in range(10):
        again, again_lse = call()
        assert torch.equal(again, out) and torch.equal(again_lse, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("case", BACKWARD_CASES, ids=lambda case: f"{case.seed}-{case.d}-{case.upper}")
def test_its_backward_matches_fp64_and_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV bit for bit; dQ, whose additions come in any order, to the tolerance."""
    only_on_hopper()
    rows = tuple(dataclasses.replace(row, shortest=1) for row in HOPPER_BACKWARD_TABLE)
    monkeypatch.setattr(ATTENTION, "HOPPER_BACKWARD_TABLE", rows)
    monkeypatch.setattr(ATTENTION.gpu, "processors", lambda q: 1)
    given = operands(case, "cuda")
    leaves = [given[name].double().requires_grad_() for name in "qkv"]
    dlse = torch.randn(case.batch, case.heads, case.queries, device="cuda") if case.seed % 2 else None
    out, lse = attention_reference(*leaves, upper=case.upper, scale=case.scale)
    loss = (out * given["dout"]).sum() if dlse is None else (out * given["dout"]).sum() + (lse * dlse).sum()
    wants = torch.autograd.grad(loss, leaves)
    q, k, v, dout = (given[name] for name in ("q", "k", "v", "dout"))
    rounded, lse = attention_forward(q, k, v, upper=case.upper, scale=case.scale)

    def call() -> tuple[torch.Tensor, ...]:
        return attention_backward(dout, q, k, v, rounded, lse, upper=case.upper, scale=case.scale, dlse=dlse)[:3]

    first, names = launched(call)
    assert "flash_attention_hopper_backward_kernel" in names
    for _ in range(10):
        for place, (got, again, want) in enumerate(zip(first, call(), wants)):
            assert (again - want).abs().max() <= TOLERANCE[case.dtype][1] * want.abs().max().clamp(min=1e-3)
            assert place == 0 or torch.equal(got, again)


# Each twin changes one line of the kernels; none leaves a barrier that somebody would wait at for ever.
FORWARD_TWINS = {
    "missing mask": ('scores = gl.where(visible, scores, float("-inf"))', "scores = scores"),
    "wrong scale": ("- finite[:, None])", "- 0.5 * finite[:, None])"),
    "lost rescale of the values": ("acc * gl.convert_layout(rescale, gl.SliceLayout(1, OUT))[:, None]", "acc"),
    "lost rescale of the sum": ("total * rescale +", "total +"),
    "band off by one": ("cols[None, :] <= rows[:, None]", "cols[None, :] < rows[:, None]"),
    "first head of keys for all": ("kv_head = h // group", "kv_head = h * 0"),
    "values of the other slot": ("v_ring.index(slot).reshape", "v_ring.index(1 - slot).reshape"),
}
BACKWARD_TWINS = {
    "missing mask": ("weights = gl.where(visible, weights, 0.0)", "weights = weights"),
    "band off by one": ("cols[:, None] <= rows[None, :]", "cols[:, None] < rows[None, :]"),
    "forgotten delta": ("(dweights - delta[None, :])", "dweights"),
    "unscaled dK": ("(dk * scale)", "dk"),
    "unscaled dQ": ("(sums * scale)", "sums"),
    "first head of a group only": ("steps = (stop - start) * group", "steps = stop - start"),
    "race: scores read before they are written": ("mbarrier.wait(written, p & 1)", "pass"),
}
TWINS = [(True, twin) for twin in FORWARD_TWINS] + [(False, twin) for twin in BACKWARD_TWINS]
TWIN_CASES = (
    Case(torch.bfloat16, 4, 40, 20, 300, 1100, 128, 128, seed=1),
    Case(torch.bfloat16, 4, 40, 20, 1100, 1100, 128, 128, upper=0, seed=2),
)


def twin_of(forward: bool, twin: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the wrong kernel taken in place of the right one."""
    plain = importlib.import_module("minicompile.kernels.flash_attention_gluon" + "_backward" * (not forward))
    mutant = mutant_of(plain, *(FORWARD_TWINS if forward else BACKWARD_TWINS)[twin], folder)
    name = "hopper_launch" if forward else "hopper_backward_launches"
    monkeypatch.setattr(plain, name, getattr(mutant, name))


@pytest.mark.parametrize(("forward", "twin"), TWINS)
def test_a_twin_has_its_line_to_change(forward: bool, twin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin_of(forward, twin, tmp_path, monkeypatch)


@pytest.mark.gpu
def test_the_right_kernels_pass_where_the_twins_are_noticed() -> None:
    only_on_hopper()
    for case in TWIN_CASES:
        found, names = launched(lambda case=case: errors(case, "cuda"))
        assert {"flash_attention_hopper_kernel", "flash_attention_hopper_backward_kernel"} <= set(names)
        assert not failures(case, found)


@pytest.mark.gpu
@pytest.mark.parametrize(("forward", "twin"), TWINS)
def test_a_wrong_kernel_is_noticed(forward: bool, twin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_hopper()
    twin_of(forward, twin, tmp_path, monkeypatch)
    assert any(failures(case, errors(case, "cuda")) for case in TWIN_CASES), f"the checks do not notice: {twin}"


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


@pytest.mark.parametrize("table", [HOPPER_TABLE, HOPPER_BACKWARD_TABLE], ids=["forward", "backward"])
def test_a_table_has_one_row_for_each_kind(table: Any) -> None:
    kinds = [(row.head_dim, row.causal) for row in table]
    assert len(set(kinds)) == len(kinds)
    assert all(hopper_row(table, d, causal, 1) is None for d, causal in kinds)


@pytest.mark.parametrize("row", HOPPER_BACKWARD_TABLE, ids=lambda row: f"{row.head_dim}-{row.causal}")
def test_each_group_has_a_square_half_of_a_block_of_dq(row: HopperBackwardRow) -> None:
    assert row.block_m * row.head_dim == 2 * 64 * 64 and row.block_m % 64 == 0
