"""Every shipped configuration, compiled for sm_90 without a GPU: no serialised matrix products, few spills, shared memory that fits.

CI compiles a part; all of it with `MINICOMPILE_LINT=all python -m pytest tests/kernels/test_lint.py`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from minicompile.kernels.attention_problem import describe
from minicompile.kernels.configs import (
    ATTENTION_TABLE,
    HOPPER_BACKWARD_TABLE,
    HOPPER_TABLE,
    MATMUL_TABLE,
    AttentionRow,
    HopperBackwardRow,
    HopperRow,
    MatmulRow,
    attention_row,
)
from minicompile.kernels.flash_decode import DECODE_CONFIG, flash_decode
from minicompile.kernels.linear_cross_entropy import linear_cross_entropy
from minicompile.kernels.matmul import matmul
from tests.kernels.machine_code import SHARED_MEMORY_LIMIT, Launch, machine_code, recorded_launches

ATTENTION = sys.modules.get("minicompile.kernels.flash_attention") or __import__(
    "minicompile.kernels.flash_attention", fromlist=["launch"]
)
BOUNDS = sys.modules["minicompile.kernels.mask_bounds"]
HALVES = sys.modules["minicompile.kernels.halves"]
EVERYTHING = os.environ.get("MINICOMPILE_LINT") == "all"
HALF_ONLY = {
    "half": torch.bfloat16,
    "split": torch.float32,
    "halves": torch.float32,
    "high": torch.float32,
    "tf32": torch.float32,
    "int8": torch.int8,
    "fp32": torch.float32,
}
PRECISIONS = {"half": "ieee", "tf32": "tf32", "split": "bf16x6", "halves": "halves", "high": "high", "int8": "ieee", "fp32": "ieee"}


def _attention_launch(row: AttentionRow, **options: Any) -> Launch:
    q = torch.empty(2, 16, 4096, row.head_dim, dtype=HALF_ONLY[row.numerics])
    mask = options.get("mask")
    bounded = mask is not None and mask.dtype == torch.bool
    bounds = torch.empty(1, 1, 64, 4, dtype=torch.int32) if bounded else None
    shared = {"precision": PRECISIONS[row.numerics], "bounds": bounds, **options}
    phase = row.phase.removeprefix("masked ")

    def call() -> None:
        if phase == "forward":
            ATTENTION.attention_forward(q, q, q, config=row.config, **shared)
        else:
            rows, configs = torch.empty(2, 16, 4096), (row.config, row.config)
            ATTENTION.attention_backward(q, q, q, q, q, rows, key_bounds=bounds, configs=configs, **shared)

    seen: list[Launch] = []
    recorded_launches(HALVES, lambda: seen.extend(recorded_launches(ATTENTION, call)))
    return next(launch for launch in seen if phase.replace(" ", "_") in launch.kernel.fn.__name__)


def _check(launch: Launch, spill_bytes: int, may_serialize: bool = False, racing_operands: int | None = None) -> None:
    """`racing_operands`: how many matrix instructions may take their left operand from registers.

    `may_serialize`: tf32 operands that are not K-major go through registers, and ptxas then serialises; the rows
    that do were the fastest measured all the same."""
    code = machine_code(launch)
    code = dataclasses.replace(code, serialized=code.serialized and not may_serialize)
    if EVERYTHING and not triton.__version__.startswith("3.6"):
        # The limits of the full lint are those of the version on the target machine.
        if code.serialized or code.spill_bytes > spill_bytes or code.shared_bytes > SHARED_MEMORY_LIMIT:
            pytest.xfail(f"Triton {triton.__version__}: {code}")
    assert not code.mixed_descriptors, f"{code}: two layouts in one place, which ptxas miscompiles"
    assert racing_operands is None or code.left_in_registers <= racing_operands, f"{code}: races under Triton 3.6"
    assert not code.serialized, f"{code}: ptxas serialises the matrix products"
    assert code.spill_bytes <= spill_bytes, f"{code}: spills more than {spill_bytes} bytes"
    assert code.shared_bytes <= SHARED_MEMORY_LIMIT, f"{code}: does not fit shared memory"


@pytest.mark.parametrize("upper", [None, 0], ids=["full", "causal"])
@pytest.mark.parametrize(
    "row",
    [row for row in ATTENTION_TABLE if not row.phase.startswith("masked")],
    ids=lambda row: f"{row.phase}-{row.numerics}-{row.head_dim}-{row.config}".replace(" ", "-"),
)
def test_attention(row: AttentionRow, upper: int | None) -> None:
    if not EVERYTHING and (row.numerics, row.head_dim, upper) not in (
        ("half", 64, 0),
        ("half", 128, None),
        ("split", 64, None),
        ("halves", 64, None),
        ("high", 64, None),
        ("high", 128, 0),
    ):
        pytest.skip("part of the full lint")
    if row.causal is not None and row.causal != (upper is not None):
        pytest.skip("the row is for the other kind of band")
    _check(_attention_launch(row, upper=upper), row.spill_bytes, may_serialize=row.numerics == "tf32")


@pytest.mark.parametrize("row", HOPPER_TABLE, ids=lambda row: f"{row.head_dim}-{row.causal}")
def test_the_warp_specialised_forward(row: HopperRow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left operands in registers are allowed here: each is waited for in the step that issues it."""
    monkeypatch.setattr(ATTENTION, "_is_hopper", lambda q: True)
    monkeypatch.setattr(ATTENTION, "HOPPER_VERSIONS", "")
    q, k = (torch.empty(2, heads, 16384, row.head_dim, dtype=torch.bfloat16) for heads in (16, 4))
    upper = 0 if row.causal else None
    (launch,) = recorded_launches(ATTENTION, lambda: ATTENTION.attention_forward(q, k, k, upper=upper))
    assert launch.kernel.is_gluon()
    _check(launch, 0)


@pytest.mark.parametrize("row", HOPPER_BACKWARD_TABLE, ids=lambda row: f"{row.head_dim}-{row.causal}")
def test_the_warp_specialised_backward(row: HopperBackwardRow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds of its left operands."""
    monkeypatch.setattr(ATTENTION, "_is_hopper", lambda q: True)
    monkeypatch.setattr(ATTENTION, "HOPPER_VERSIONS", "")
    q, k = (torch.empty(2, heads, 4096, row.head_dim, dtype=torch.bfloat16) for heads in (16, 4))
    lse, upper = torch.empty(2, 16, 4096), 0 if row.causal else None
    launches = recorded_launches(ATTENTION, lambda: ATTENTION.attention_backward(q, q, k, k, q, lse, upper=upper))
    assert [launch.kernel.is_gluon() for launch in launches] == [False, True, False]
    for launch in launches:
        _check(launch, row.spill_bytes)


@pytest.mark.parametrize("mask", ["bool", "bias"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("numerics", ["half", "halves", "high"])
@pytest.mark.parametrize("phase", ["forward", "query gradient", "key gradient"])
def test_masked_attention(phase: str, numerics: str, head_dim: int, mask: str) -> None:
    if not EVERYTHING and (numerics, head_dim, mask) != ("half", 64, "bool"):
        pytest.skip("part of the full lint")
    row = attention_row(phase, numerics, head_dim, masked=True)
    given = torch.empty(1, 1, 4096, 4096, dtype=torch.bool if mask == "bool" else HALF_ONLY[numerics])
    _check(_attention_launch(dataclasses.replace(row, head_dim=head_dim), mask=given), max(row.spill_bytes, 256))


@pytest.mark.parametrize("numerics", ["half", "split"])
def test_decode(numerics: str) -> None:
    module = sys.modules["minicompile.kernels.flash_decode"]
    q, k = (torch.empty(2, heads, length, 128, dtype=HALF_ONLY[numerics]) for heads, length in ((32, 1), (8, 4096)))
    launches = recorded_launches(
        module, lambda: flash_decode(q, k, k, splits=4, config=DECODE_CONFIG, precision=PRECISIONS[numerics])
    )
    for launch in launches:
        _check(launch, 64)


@pytest.mark.parametrize("row", MATMUL_TABLE, ids=lambda row: f"{row.numerics}-{row.config}".replace(" ", "-"))
def test_matmul(row: MatmulRow, monkeypatch: pytest.MonkeyPatch) -> None:
    if not EVERYTHING and row.numerics not in ("half", "tf32"):
        pytest.skip("part of the full lint")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    dtype = HALF_ONLY[row.numerics]
    a, b = torch.empty(4096, 4096, dtype=dtype), torch.empty(4096, 4096, dtype=dtype).t()
    a = a[: row.config.block_n] if row.config.swapped else a
    options: dict[str, Any] = {"precision": PRECISIONS[row.numerics], "config": row.config}
    if row.numerics != "int8":
        options |= {"addend": torch.empty(4096, dtype=dtype), "epilogue": silu}
    module = sys.modules["minicompile.kernels.matmul"]
    for launch in recorded_launches(module, lambda: matmul(a, b, **options)):
        racing = None if row.numerics in ("tf32", "split") else 0
        _check(launch, 32 if row.numerics == "fp32" else 0, racing_operands=racing)


@triton.jit
def silu(values, batch, rows, cols, in_range, extra):
    """An activation in the epilogue."""
    return values / (1.0 + tl.exp(-values))


@triton.jit
def gate(product, batch_index, row_index, col_index, in_range, extra):
    """What codegen writes for silu(gate) * product."""
    gate_ptr = extra[0]
    gates = tl.load(gate_ptr + (row_index * 4096 + col_index), mask=in_range).to(tl.float32)
    return gates / (tl.exp(-1.0 * gates) + 1.0) * product


HALF_ROWS = [row for row in MATMUL_TABLE if row.numerics == "half"]


@pytest.mark.parametrize("row", HALF_ROWS if EVERYTHING else HALF_ROWS[:5:2], ids=lambda row: str(row.config).replace(" ", "-"))
def test_matmul_with_a_generated_epilogue(row: MatmulRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    a, b = torch.empty(4096, 4096, dtype=torch.bfloat16), torch.empty(4096, 4096, dtype=torch.bfloat16).t()
    a = a[: row.config.block_n] if row.config.swapped else a
    module, extra = sys.modules["minicompile.kernels.matmul"], (torch.empty(4096, 4096, dtype=torch.bfloat16),)
    for launch in recorded_launches(module, lambda: matmul(a, b, epilogue=gate, extra=extra, config=row.config)):
        _check(launch, 0, racing_operands=0)
        assert launch.meta["enable_fp_fusion"] is False  # what it multiplies is rounded before anything is added to it


def test_kernels_beside_the_products() -> None:
    loss = sys.modules[linear_cross_entropy.__module__]
    hidden, weight = torch.empty(64, 64, dtype=torch.bfloat16), torch.empty(50257, 64, dtype=torch.bfloat16)
    target = torch.zeros(64, dtype=torch.int64)
    (launch,) = recorded_launches(loss, lambda: linear_cross_entropy(hidden, weight, None, target))
    _check(dataclasses.replace(launch, meta={**launch.meta, "BLOCK": loss.BLOCK}), 0)
    mask = torch.empty(4096, 4096, dtype=torch.bool)
    for by_keys in (False, True):
        (launch,) = recorded_launches(BOUNDS, lambda: BOUNDS.mask_bounds(mask, 4096, 4096, by_keys))
        _check(dataclasses.replace(launch, meta={**launch.meta, "BLOCK_N": BOUNDS.WALKED_AT_ONCE}), 0)


@triton.jit
def racing_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    """A known-wrong twin: the left operand of a pipelined product is computed in registers."""
    row, inner = tl.arange(0, BLOCK)[:, None], tl.arange(0, 64)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in tl.range(0, K, 64):
        a = tl.load(a_ptr + row * K + k + inner[None, :]).to(tl.float32)
        b = tl.load(b_ptr + tl.arange(0, BLOCK)[None, :] * K + k + inner[:, None])
        total = tl.dot((a / (1.0 + tl.exp(-a))).to(tl.bfloat16), b, total)
    tl.store(c_ptr + row * BLOCK + tl.arange(0, BLOCK)[None, :], total)


def test_the_lint_sees_a_race() -> None:
    a, c = torch.empty(128, 4096, dtype=torch.bfloat16), torch.empty(128, 128)
    launch = Launch(racing_kernel, (a, a, c, 4096), {"BLOCK": 128, "num_warps": 4, "num_stages": 3})
    assert machine_code(launch).left_in_registers > 0


@pytest.mark.parametrize("row", ATTENTION_TABLE, ids=lambda row: f"{row.phase}-{row.numerics}-{row.head_dim}")
def test_rows_of_a_product_are_not_repeated(row: AttentionRow) -> None:
    """64 rows or more go to warpgroups of 64: with more warps than 16 rows each, the same rows are computed twice.

    With split products that also gave wrong values on the H200.
    """
    rows = row.config.block_n if row.phase == "key gradient" else row.config.block_m
    assert rows < 64 or rows >= 16 * row.config.warps


@pytest.mark.parametrize("row", ATTENTION_TABLE, ids=lambda row: f"{row.phase}-{row.numerics}-{row.head_dim}")
@pytest.mark.parametrize("entry_bytes", [0, 4])
def test_what_is_chosen_fits_shared_memory(row: AttentionRow, entry_bytes: int) -> None:
    """Without a mask the row is taken as it stands; with an fp32 bias something smaller may be, and is found."""
    dtype = HALF_ONLY[row.numerics]
    q = torch.empty(1, 1, 64, row.head_dim, dtype=dtype)
    problem = describe(q, q, q, None, None, None, None, 0.0, False, PRECISIONS[row.numerics])
    itemsize = 2 if row.numerics == "high" else dtype.itemsize
    chosen = problem.fitted(row.phase.removeprefix("masked "), row.config, itemsize, entry_bytes)
    assert chosen == row.config or entry_bytes


def test_the_lint_sees_a_bad_kernel() -> None:
    """128 x 128 with four warps at head dim 128 spills and serialises."""
    row = next(r for r in ATTENTION_TABLE if (r.phase, r.numerics, r.head_dim) == ("forward", "half", 128))
    config = type(row.config)(128, 128, 4, 3)
    bad = AttentionRow(row.phase, row.numerics, row.head_dim, str(config), "")
    code = machine_code(_attention_launch(bad, upper=0))
    assert code.spill_bytes > 1000 or code.serialized
