"""The matrix product under the interpreter against fp64, in every variant; and the model's choices."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from minicompile.kernels.configs import MATMUL_TABLE, MatmulConfig
from minicompile.kernels.interpret import interpreting
from minicompile.kernels.matmul import matmul
from minicompile.kernels.matmul_model import MatmulProblem, choose, rank_configs
from tests.kernels.mutants import mutant_of

PLAIN = MatmulConfig(32, 16, 16, 1, 1)
VARIANTS = {
    "default": None,
    "pointers": PLAIN,
    "peeled": dataclasses.replace(PLAIN, warps=8),
    "split": dataclasses.replace(PLAIN, split_k=3),
    "descriptors": dataclasses.replace(PLAIN, tma=True),
    "halves": dataclasses.replace(PLAIN, block_n=32, tma=True, halves=True),
    "swapped": dataclasses.replace(PLAIN, swapped=True),
    "swapped split": dataclasses.replace(PLAIN, swapped=True, split_k=2),
    "swapped descriptors": dataclasses.replace(PLAIN, swapped=True, tma=True),
}
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}


@pytest.fixture(autouse=True)
def patched_once() -> Iterator[None]:
    with interpreting():
        yield


def _operand(batch: int, rows: int, columns: int, dtype: torch.dtype, layout: str) -> torch.Tensor:
    lead = (batch,) if batch else ()
    if layout == "transposed":
        return torch.randn(*lead, columns, rows).to(dtype).transpose(-1, -2)
    if layout == "sliced":
        return torch.randn(*lead, rows + 3, 2 * columns).to(dtype)[..., 2:-1, ::2]
    if layout == "expanded" and batch:
        return torch.randn(1, rows, columns).to(dtype).expand(batch, -1, -1)
    return torch.randn(*lead, rows, columns).to(dtype)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-3)).item()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_problems_match_fp64(variant: str, dtype: torch.dtype) -> None:
    draw = random.Random(f"{variant}{dtype}")
    torch.manual_seed(1)
    for _ in range(6):
        batch = draw.choice((0, 0, 2, 3))
        m, n, k = (draw.choice((1, 7, 16, 32, 33, 48, 64, 80)) for _ in range(3))
        a = _operand(batch, m, k, dtype, draw.choice(("rows", "rows", "transposed", "sliced", "expanded")))
        b = _operand(batch, k, n, dtype, draw.choice(("rows", "rows", "transposed", "sliced", "expanded")))
        addend = draw.choice((None, torch.randn(n), torch.randn(m, 1), torch.randn(m, n)))
        alpha, beta = draw.choice((1.0, 0.5)), draw.choice((1.0, -2.0, 0.0))
        given = None if addend is None else addend.to(dtype)
        got = matmul(a, b, given, alpha=alpha, beta=beta, config=VARIANTS[variant])
        wide = None if given is None else given.double()
        want = matmul_reference(a.double(), b.double(), wide, alpha, beta)
        assert _error(got, want) < TOLERANCE[dtype], (batch, m, n, k)


@pytest.mark.parametrize("variant", ["default", "pointers", "split", "swapped"])
def test_int8_is_exact(variant: str) -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((40, 70), (70, 30)))
    assert torch.equal(matmul(a, b, config=VARIANTS[variant]), a.int() @ b.int())


@triton.jit
def scale_rows(values, batch, rows, cols, in_range, extra):
    """values * scale[row] + constant."""
    scale_ptr, constant = extra
    return values * tl.load(scale_ptr + rows + cols * 0, mask=in_range, other=0.0) + constant


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_epilogue_slot_sees_the_right_coordinates(variant: str) -> None:
    a, b, scale = torch.randn(40, 64), torch.randn(64, 48), torch.randn(40)
    got = matmul(a, b, epilogue=scale_rows, extra=(scale, 2.0), config=VARIANTS[variant])
    torch.testing.assert_close(got, (a @ b) * scale[:, None] + 2.0, rtol=1e-5, atol=1e-4)


def test_output_of_any_strides_and_dtype() -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 10)
    out = torch.zeros(10, 20).t()
    assert matmul(a, b, out=out).data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, a @ b)
    assert matmul(a.half(), b.half(), out_dtype=torch.float32).dtype == torch.float32


def test_empty_sizes() -> None:
    assert matmul(torch.randn(0, 4), torch.randn(4, 3)).shape == (0, 3)
    assert torch.equal(matmul(torch.randn(2, 0), torch.randn(0, 3)), torch.zeros(2, 3))
    bias = torch.randn(3)
    assert torch.equal(matmul(torch.randn(2, 0), torch.randn(0, 3), bias), bias.expand(2, 3))


@triton.jit
def relu(values, batch, rows, cols, in_range, extra):
    """Zero instead of negative values; NaN stays."""
    return tl.where(values < 0.0, 0.0, values)


def test_nan_and_infinity_stay() -> None:
    a, b = torch.randn(8, 8), torch.eye(8)
    a[0, 0], a[1, 1] = float("nan"), float("inf")
    got = matmul(a, b, epilogue=relu)
    assert got[0].isnan().all() and got[1, 1] == float("inf")


@pytest.mark.parametrize("bad", [
    {"b": torch.randn(5, 3)}, {"b": torch.randn(4, 3).half()}, {"a": torch.randn(2, 3, 4)},
])  # fmt: skip
def test_bad_arguments_are_named(bad: dict[str, Any]) -> None:
    arguments = {"a": torch.randn(2, 4), "b": torch.randn(4, 3)} | bad
    with pytest.raises(ValueError, match="matmul: "):
        matmul(**arguments)


TWINS = {
    "a tail of K not masked": ("mask=in_range & (inner < stop)", "mask=in_range"),
    "forgotten alpha": ("values = values * alpha", "values = values"),
    "last group not cut": ("tl.minimum(tl.cdiv(M, BLOCK_M) - first, GROUP_M)", "GROUP_M"),
    "all splits write one place (a race)": ("part = c_ptr + split.to(tl.int64) * stride_cs", "part = c_ptr"),
    "one part lost": ("for _ in tl.range(0, splits)", "for _ in tl.range(1, splits)"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_wrong_kernel_is_noticed(twin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = sys.modules["minicompile.kernels.matmul"]
    mutant = mutant_of(implementation, *TWINS[twin], tmp_path)
    for name in ("matmul_kernel", "matmul_reduce_kernel"):
        monkeypatch.setattr(implementation, name, getattr(mutant, name))
    torch.manual_seed(2)
    # Rows beyond the operands' ends hold 100s, which an unmasked tail would read.
    a, b = torch.full((72, 60), 100.0), torch.full((60, 40), 100.0)
    a[:70, :50], b[:50] = torch.randn(70, 50), torch.randn(50, 40)
    a, b = a[:70, :50], b[:50]
    wrong = []
    for config in (dataclasses.replace(PLAIN, group_m=2), dataclasses.replace(PLAIN, split_k=2)):
        error = _error(matmul(a, b, alpha=0.5, config=config), 0.5 * (a.double() @ b.double()))
        wrong.append(not error < 1e-5)
    assert any(wrong)


def _problem(m: int, n: int, k: int, **options: Any) -> MatmulProblem:
    return MatmulProblem(1, m, n, k, 2, False, "ieee", k % 8 == 0, **options)


def test_the_model_says_who_and_why() -> None:
    tile, reason = choose(_problem(4096, 4096, 4096))
    assert tile is None and "vendor" in reason
    fused, reason = choose(_problem(4096, 4096, 4096, epilogue_bytes_saved=10**9))
    assert fused is not None and "saves 1000.0 MB" in reason
    assert choose(_problem(300, 500, 700))[0] is None
    assert choose(_problem(16, 8192, 8192))[0] is None, "bandwidth-bound: both are at 3.1 TB/s"
    skinny, reason = choose(_problem(16, 50257, 4096))
    assert skinny is not None and skinny.swapped and "16 bytes" in reason
    assert choose(_problem(4096, 4095, 4096))[0] is not None


def test_the_model_knows_wave_quantization() -> None:
    full, one_more = (rank_configs(_problem(128 * 132, 256 * blocks, 4096), 1)[0][1] for blocks in (1, 2))
    assert one_more > 1.5 * full
    assert all(not config.tma for config, _ in rank_configs(_problem(4095, 4095, 4095), 4))


def test_tiles_that_tma_fills_are_not_loaded_by_pointers() -> None:
    """128 x 256 by pointers, in three splits, took four times the vendor's time."""
    made_for_tma = {row.config.block_m * row.config.block_n for row in MATMUL_TABLE if row.config.halves}
    for shape in ((777, 1333, 2064), (777, 1333, 2056), (300, 500, 8192)):
        tiles = [config for config, _ in rank_configs(_problem(*shape), 99)]
        assert all(config.tma for config in tiles if config.block_m * config.block_n in made_for_tma)


def test_without_a_descriptor_rows_must_begin_at_multiples_of_16_elements() -> None:
    best, seconds = rank_configs(_problem(777, 1333, 2056, by_vectors=False), 1)[0]
    other, fewer = rank_configs(_problem(777, 1333, 2064), 1)[0]
    assert best.tma and not other.tma and fewer < seconds


def matmul_reference(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> torch.Tensor:
    """The same values by torch, in the dtype of the arguments."""
    values = alpha * (a @ b)
    return values if addend is None else values + beta * addend
