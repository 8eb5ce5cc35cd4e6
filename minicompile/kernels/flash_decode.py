"""Attention of one or a few queries over many keys: the keys are split over programs, and the parts merged.

Algorithm (Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023). With one query there is one
block of rows per head, far fewer programs than the GPU has processors, and the time is that of reading keys and
values. So each program takes one stretch of the keys of one key head, with all query heads of its group as rows of
one tile (keys and values are read once for the group), and writes its output and log-sum-exp; a second kernel weighs
the parts by exp(lse_part - lse).

The number of splits follows FlashAttention-3: one if the programs nearly fill the GPU anyway or the keys are few,
else the fewest that come within 85% of the best use of whole waves of programs.

The walk over keys is `forward_blocks` of `flash_attention_forward.py`. No dropout and no backward here.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

import minicompile.gpu as gpu
from minicompile.kernels.attention_problem import (
    AttentionProblem,
    adjacent_columns,
    describe,
    empty_output,
    expand_mask,
)
from minicompile.kernels.configs import AttentionConfig
from minicompile.kernels.flash_attention_forward import LN2, LOG2E, forward_blocks
from minicompile.kernels.interpret import launch

MOST_ROWS = 64
DECODE_CONFIG = AttentionConfig(16, 64, 4, 3)


@triton.jit
def flash_decode_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, q_strides, k_strides, v_strides, part_strides, mask_strides, batch,
    kv_heads, queries, keys, stretch, lower, upper, qk_scale, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, HAS_LOWER: tl.constexpr,
    HAS_UPPER: tl.constexpr, FULL_LOOP: tl.constexpr, FUSED_SCALE: tl.constexpr, NAN_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: all queries of the heads that share one key head, over one stretch of the keys."""
    slot = tl.program_id(0)
    split = tl.program_id(1)
    b, kv_head = (slot // kv_heads).to(tl.int64), (slot % kv_heads).to(tl.int64)
    row = tl.arange(0, BLOCK_M)
    h, query = kv_head * GROUP + row // queries, row % queries
    real = row < GROUP * queries
    columns = tl.arange(0, BLOCK_D)
    q_pointers = q_ptr + b * q_strides[0] + h[:, None] * q_strides[1] + query.to(tl.int64)[:, None] * q_strides[2]
    q = tl.load(q_pointers + columns[None, :], mask=real[:, None] & (columns[None, :] < D), other=0.0)
    mask_base = mask_ptr + b * mask_strides[0] + tl.where(real, h, 0)[:, None] * mask_strides[1]
    start = split * stretch
    stop = tl.minimum(start + stretch, keys)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    full_stop = start + (stop - start) // BLOCK_N * BLOCK_N
    for masked in tl.static_range(2):  # first the keys that need no mask
        if masked or FULL_LOOP:
            acc, total, maximum = forward_blocks(
                acc, total, maximum, (q, q), k_ptr, v_ptr, mask_base, q_ptr, slot, b, kv_head, 0, query, start,
                stop if masked else full_stop, queries, keys, k_strides, v_strides, mask_strides, lower, upper,
                qk_scale, 0, D, DV, BLOCK_D, BLOCK_N, MASK, HAS_LOWER, HAS_UPPER, masked, FUSED_SCALE, False, PRECISION,
                False)  # fmt: skip
            start = full_stop
    empty = total == 0.0
    lse = tl.where(empty, float("-inf"), maximum * LN2 + tl.log(total))
    inverse = tl.where(empty, 0.0, 1.0 / total)
    if NAN_ROWS:
        inverse = tl.where(empty, float("nan"), inverse)
        lse = tl.where(empty, float("nan"), lse)
    heads = kv_heads * GROUP
    lse_row = ((split * batch + b) * heads + h) * queries + query
    tl.store(lse_ptr + lse_row, lse, mask=real)
    out_row = split.to(tl.int64) * part_strides[0] + b * part_strides[1] + h * part_strides[2]
    out_row += query.to(tl.int64) * part_strides[3]
    pointers = out_ptr + out_row[:, None] + columns[None, :]
    in_range = real[:, None] & (columns[None, :] < DV)
    tl.store(pointers, (acc * inverse[:, None]).to(out_ptr.dtype.element_ty), mask=in_range)


@triton.jit
def flash_decode_merge_kernel(
    parts_ptr, part_lse_ptr, out_ptr, lse_ptr, out_strides, rows, heads, queries, splits, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, NAN_ROWS: tl.constexpr,
):  # fmt: skip
    """One program: one query of one head, its parts weighed by their share of the exponentials."""
    row = tl.program_id(0).to(tl.int64)
    split, columns = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    lse = tl.load(part_lse_ptr + split * rows + row, mask=split < splits, other=float("-inf"))
    maximum = tl.max(lse, 0)
    finite = tl.where(maximum == float("-inf"), 0.0, maximum)
    shares = tl.exp2((lse - finite) * LOG2E)
    total = tl.sum(shares, 0)
    in_range = (split[:, None] < splits) & (columns[None, :] < DV)
    parts = tl.load(
        parts_ptr + (split.to(tl.int64)[:, None] * rows + row) * DV + columns[None, :], mask=in_range, other=0.0
    )
    merged = tl.sum(parts * shares[:, None], 0)
    empty = total == 0.0
    nothing = float("nan") if NAN_ROWS else 0.0
    merged = tl.where(empty, nothing, merged / total)
    tl.store(lse_ptr + row, tl.where(empty, float("nan") if NAN_ROWS else float("-inf"), finite + tl.log(total)))
    b, h, query = row // queries // heads, row // queries % heads, row % queries
    pointers = out_ptr + b * out_strides[0] + h * out_strides[1] + query * out_strides[2] + columns
    tl.store(pointers, merged.to(out_ptr.dtype.element_ty), mask=columns < DV)


def flash_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, lower: int | None = None,
    upper: int | None = None, scale: float | None = None, nan_rows: bool = False, precision: str | None = None,
    tokens_first: bool | None = None, splits: int | None = None, config: AttentionConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output and natural log-sum-exp for few queries (see `suits_decode`); no autograd."""
    problem = describe(q, k, v, mask, lower, upper, scale, 0.0, nan_rows, precision)
    q, k, v = map(adjacent_columns, (q, k, v))
    out = empty_output(q, v, tokens_first)
    lse = q.new_empty((problem.batch, problem.heads, problem.queries), dtype=torch.float32)
    if out.numel() == 0 or problem.keys == 0:
        return out.fill_(float("nan") if nan_rows else 0.0), lse.fill_(float("nan") if nan_rows else float("-inf"))
    entries, mask_strides = expand_mask(mask, problem)
    entry_bytes = 0 if entries is None else entries.element_size()
    rows = max(16, 1 << (problem.group * problem.queries - 1).bit_length())
    if config is None:
        wished = dataclasses.replace(DECODE_CONFIG, block_m=rows)
        config = problem.fitted("forward", wished, q.element_size(), entry_bytes)
    splits = splits or choose_splits(problem.batch * problem.kv_heads, problem.keys, config.block_n, gpu.processors(q))
    stretch = triton.cdiv(triton.cdiv(problem.keys, splits), config.block_n) * config.block_n
    splits = triton.cdiv(problem.keys, stretch)
    parts, part_lse = out[None], lse[None]
    if splits > 1:
        parts = q.new_empty((splits, *out.shape), dtype=torch.float32)
        part_lse = lse.new_empty((splits, *lse.shape))
    constants = problem.constants(config)
    constants["BLOCK_M"] = rows
    launch(
        flash_decode_kernel, (problem.batch * problem.kv_heads, splits),
        q, k, v, parts, part_lse, q if entries is None else entries, q.stride()[:3], k.stride()[:3], v.stride()[:3],
        parts.stride()[:4], mask_strides, problem.batch, problem.kv_heads, problem.queries, problem.keys, stretch,
        lower or 0, upper or 0, problem.scale * 1.4426950408889634,
        **{name: value for name, value in constants.items() if name not in ("DROPOUT", "TMA", "NAN_ROWS")},
        FULL_LOOP=not problem.masked_everywhere and upper is None, NAN_ROWS=nan_rows and splits == 1,
        FUSED_SCALE=problem.scale > 0.0 and problem.mask_kind != "bias",
    )  # fmt: skip
    if splits > 1:
        count = lse.numel()
        launch(
            flash_decode_merge_kernel, (count,), parts, part_lse, out, lse, out.stride()[:3], count, problem.heads,
            problem.queries, splits, DV=problem.dv, BLOCK_D=constants["BLOCK_D"],
            SPLITS=1 << (splits - 1).bit_length(), NAN_ROWS=nan_rows, num_warps=4,
        )  # fmt: skip
    return out, lse


def suits_decode(problem: AttentionProblem) -> bool:
    """Whether few rows per key head make the decode kernel the better one."""
    return problem.queries <= 16 and problem.queries * problem.group <= MOST_ROWS and problem.dropout == 0.0


def choose_splits(tiles: int, keys: int, block_n: int, processors: int) -> int:
    """Into how many stretches to cut the keys of each of `tiles` programs."""
    blocks = triton.cdiv(keys, block_n)
    if tiles >= 0.8 * processors or blocks <= 4:
        return 1
    most = min(128, blocks, processors)
    use = []
    for splits in range(1, most + 1):
        waves = tiles * splits / processors
        use.append(waves / triton.cdiv(tiles * splits, processors))
    best = max(use)
    return next(splits for splits, share in enumerate(use, 1) if share >= 0.85 * best)
