"""FlashAttention forward for Hopper (sm_90) in Triton's Gluon dialect: loading, products and softmax at the same time.

The algorithm is `flash_attention_forward.py`'s, for head dims up to 128 in half precision, full or causal, without mask,
window or dropout; output and log-sum-exp are laid out and rounded as there. A head dim is filled up to 64 or 128 with
zeros on the way to shared memory. What differs is who does what
(Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", 2024): a program is one
warp that loads (TMA) and GROUPS warp groups with 64 queries each (wgmma), which meet only at barriers in shared
memory. While one group takes exponentials, another's products run. With OVERLAP a group's own next scores are computed
while it takes exponentials, too; that costs a second tile of scores in registers.

Why the barriers are right. Step p of the ring is the keys of block p and the values of block p - LAG (LAG is 1 with
OVERLAP, else 0; keys exist for p < blocks, values for p >= LAG), and lives in slot p mod STAGES. Each barrier of a slot
completes exactly once for each step of that slot, in order, so that the phase of step p is the parity of p div STAGES:

* `k_full` and `v_full` count one arrival: the loading warp's announcement of the bytes, and then complete with the last
  byte. For step 0, whose values do not exist if LAG is 1, it arrives without announcing any.
* `free` counts one arrival of each group, after the group has waited for the products that read the step. The loading
  warp writes step p only after `free` completed for step p - STAGES (the first STAGES waits, for the phase before the
  first, pass at once: a barrier starts as if that had just completed).

No wait can be for a phase two ahead, which parity could not tell apart: a group waits for step p only after it freed
step p - 1, and step p + STAGES is not loaded before it freed step p. Nobody waits in a circle: the loading warp waits for
groups at step p - STAGES, a group at step p only for the loading of step p. What
is written by TMA is read by wgmma (both through the asynchronous proxy), so no fence is needed but before the output is
stored from shared memory. Triton joins a group's four warps before one of its threads arrives anywhere.

The weights stay in registers as left operand, which Triton 3.6 and ptxas 12.8 are known to overwrite too early in a
pipeline; here every such product is waited for in the step that issues it, and the wait holds the registers.

This module must not choose tiles (`configs.py`) and must be importable only where Triton has Gluon.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from minicompile.kernels.attention_problem import AttentionProblem, descriptor_strides
from minicompile.kernels.configs import HopperRow

# Triton 3.6 and 3.7 have other names for these than 3.8 and later.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

LN2: gl.constexpr = gl.constexpr(0.6931471805599453)
ROWS: gl.constexpr = gl.constexpr(64)
REGISTERS = {2: 168, 3: 128}  # of a thread on average, by groups: 65,536 over the groups' warps and the loader's four


@gluon.jit
def load_blocks(
    q_desc, k_desc, v_desc, tiles, barriers, b, h, kv_head, first, blocks, GROUPS: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, LAG: gl.constexpr,
):  # fmt: skip
    """The loading warp: the queries of every group, then the steps of the ring."""
    q_tiles, k_ring, v_ring = tiles
    q_full, k_full, v_full, free = barriers
    mbarrier.expect(q_full, GROUPS * q_desc.block_type.nbytes)
    for c in gl.static_range(GROUPS):
        load_tile(q_desc, [b, h, first + c * ROWS, 0], q_full, q_tiles.index(c))
    for p in range(blocks + LAG):
        slot = p % STAGES
        mbarrier.wait(free.index(slot), (p // STAGES & 1) ^ 1)
        if p < blocks:
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            load_tile(k_desc, [b, kv_head, p * BLOCK_N, 0], k_full.index(slot), k_ring.index(slot))
        if p >= LAG:
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            load_tile(v_desc, [b, kv_head, (p - LAG) * BLOCK_N, 0], v_full.index(slot), v_ring.index(slot))
        else:
            mbarrier.arrive(v_full.index(slot), count=1)


@gluon.jit
def weigh(
    scores, acc, total, maximum, rows, n, keys, first_masked, qk_scale, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr,
    SCORES: gl.constexpr, OUT: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """The weights of the keys from n on as a left operand, and the running sums made ready for them."""
    if n >= first_masked:
        cols = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
        visible = cols[None, :] < keys
        if CAUSAL:
            visible = visible & (cols[None, :] <= rows[:, None])
        scores = gl.where(visible, scores, float("-inf"))
    new_maximum = gl.maximum(maximum, gl.max(scores, 1) * qk_scale)
    finite = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(scores * qk_scale - finite[:, None])
    rescale = gl.exp2(maximum - finite)
    total = total * rescale + gl.sum(weights, 1)
    acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, OUT))[:, None]
    return gl.convert_layout(weights.to(DTYPE), gl.DotOperandLayout(0, OUT, 2)), acc, total, new_maximum


@gluon.jit
def attend(
    out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, C: gl.constexpr,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, NAN_ROWS: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """A warp group: the C-th 64 queries of the program."""
    q_tiles, k_ring, v_ring = tiles
    q_full, k_full, v_full, free = barriers
    DTYPE: gl.constexpr = q_tiles.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    first += C * ROWS
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    first_masked = keys - BLOCK_N + 1
    if CAUSAL:
        first_masked = gl.minimum(first_masked, first - BLOCK_N + 2)
    acc = gl.zeros([ROWS, D], gl.float32, OUT)
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    maximum = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    mbarrier.wait(q_full, 0)
    q = q_tiles.index(C).reshape([ROWS, D])
    if OVERLAP:
        mbarrier.wait(k_full.index(0), 0)
        k = k_ring.index(0).reshape([BLOCK_N, D]).permute((1, 0))
        scores = hopper.warpgroup_mma(q, k, nothing, use_acc=False)
        mbarrier.arrive(free.index(0), count=1)
        for p in range(1, blocks):
            slot = p % STAGES
            phase = p // STAGES & 1
            mbarrier.wait(k_full.index(slot), phase)
            k = k_ring.index(slot).reshape([BLOCK_N, D]).permute((1, 0))
            next_scores = hopper.warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
            weights, acc, total, maximum = weigh(scores, acc, total, maximum, rows, (p - 1) * BLOCK_N, keys,
                                                 first_masked, qk_scale, CAUSAL, BLOCK_N, SCORES, OUT, DTYPE)  # fmt: skip
            mbarrier.wait(v_full.index(slot), phase)
            acc = hopper.warpgroup_mma(weights, v_ring.index(slot).reshape([BLOCK_N, D]), acc, is_async=True)
            acc, weights, scores = hopper.warpgroup_mma_wait(0, deps=[acc, weights, next_scores])
            mbarrier.arrive(free.index(slot), count=1)
        slot = blocks % STAGES
        weights, acc, total, maximum = weigh(scores, acc, total, maximum, rows, (blocks - 1) * BLOCK_N, keys,
                                             first_masked, qk_scale, CAUSAL, BLOCK_N, SCORES, OUT, DTYPE)  # fmt: skip
        mbarrier.wait(v_full.index(slot), blocks // STAGES & 1)
        acc = hopper.warpgroup_mma(weights, v_ring.index(slot).reshape([BLOCK_N, D]), acc, is_async=True)
        acc, weights = hopper.warpgroup_mma_wait(0, deps=[acc, weights])
    else:
        for p in range(blocks):
            slot = p % STAGES
            phase = p // STAGES & 1
            mbarrier.wait(k_full.index(slot), phase)
            k = k_ring.index(slot).reshape([BLOCK_N, D]).permute((1, 0))
            scores = hopper.warpgroup_mma(q, k, nothing, use_acc=False)
            weights, acc, total, maximum = weigh(scores, acc, total, maximum, rows, p * BLOCK_N, keys, first_masked,
                                                 qk_scale, CAUSAL, BLOCK_N, SCORES, OUT, DTYPE)  # fmt: skip
            mbarrier.wait(v_full.index(slot), phase)
            acc = hopper.warpgroup_mma(weights, v_ring.index(slot).reshape([BLOCK_N, D]), acc, is_async=True)
            acc, weights = hopper.warpgroup_mma_wait(0, deps=[acc, weights])
            mbarrier.arrive(free.index(slot), count=1)
    lse = maximum * LN2 + gl.log(total)
    empty = total == 0.0
    if NAN_ROWS:
        inverse = 1.0 / total
        lse = gl.where(empty, float("nan"), lse)
    else:
        inverse = gl.where(empty, 0.0, 1.0 / total)
        lse = gl.where(empty, float("-inf"), lse)
    gl.store(lse_ptr + head.to(gl.int64) * queries + rows, lse, mask=rows < queries)
    q.store((acc * gl.convert_layout(inverse, gl.SliceLayout(1, OUT))[:, None]).to(DTYPE))
    fence_async_shared()
    store_tile(out_desc, [b, h, first, 0], q_tiles.index(C))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads", "group", "queries", "keys"])
def flash_attention_hopper_kernel(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, heads, group, queries, keys, qk_scale, D: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    NAN_ROWS: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """One program: 64 queries of one head for each of GROUPS warp groups."""
    row_blocks = gl.cdiv(queries, GROUPS * ROWS)
    head = gl.program_id(0) // row_blocks
    first = gl.program_id(0) % row_blocks
    if CAUSAL:  # the longest first
        first = row_blocks - 1 - first
    first = first * (GROUPS * ROWS)
    b, h = head // heads, head % heads
    kv_head = h // group
    stop = keys
    if CAUSAL:
        stop = gl.minimum(keys, first + GROUPS * ROWS)
    blocks = gl.cdiv(stop, BLOCK_N)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(q_full, count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(free.index(s), count=GROUPS)
    tiles = (q_tiles, k_ring, v_ring)
    barriers = (q_full, k_full, v_full, free)
    if GROUPS == 2:  # constants lose their constancy in a variable: each list of arguments is written out
        gl.warp_specialize([
            (attend, (out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, 0, D,
                      BLOCK_N, STAGES, CAUSAL, NAN_ROWS, OVERLAP)),
            (attend, (out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, 1, D,
                      BLOCK_N, STAGES, CAUSAL, NAN_ROWS, OVERLAP)),
            (load_blocks, (q_desc, k_desc, v_desc, tiles, barriers, b, h, kv_head, first, blocks, GROUPS, BLOCK_N,
                           STAGES, OVERLAP)),
        ], [4, 1], [240, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend, (out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, 0, D,
                      BLOCK_N, STAGES, CAUSAL, NAN_ROWS, OVERLAP)),
            (attend, (out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, 1, D,
                      BLOCK_N, STAGES, CAUSAL, NAN_ROWS, OVERLAP)),
            (attend, (out_desc, lse_ptr, tiles, barriers, b, h, head, first, blocks, queries, keys, qk_scale, 2, D,
                      BLOCK_N, STAGES, CAUSAL, NAN_ROWS, OVERLAP)),
            (load_blocks, (q_desc, k_desc, v_desc, tiles, barriers, b, h, kv_head, first, blocks, GROUPS, BLOCK_N,
                           STAGES, OVERLAP)),
        ], [4, 4, 1], [160, 160, 24])  # fmt: skip


ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def described(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """A TMA descriptor of a whole tensor, for tiles of `rows` rows of one head. Columns from the head dim to `width` are loaded
    as zeros and not stored."""
    block = [1, 1, rows, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, ELEMENTS[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), block, layout)


def hopper_launch(
    problem: AttentionProblem, row: HopperRow, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[Any, tuple[int], tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """Kernel, grid, arguments and constants of the forward; all tensors aligned for TMA."""
    grid, width = (triton.cdiv(problem.queries, 64 * row.groups) * problem.batch * problem.heads,), row.head_dim
    arguments = (
        described(q, 64, width), described(k, row.block_n, width), described(v, row.block_n, width), described(out, 64, width),
        lse, problem.heads, problem.group, problem.queries, problem.keys, problem.scale * math.log2(math.e),
    )  # fmt: skip
    constants = {
        "D": width, "BLOCK_N": row.block_n, "GROUPS": row.groups, "STAGES": row.stages,
        "CAUSAL": problem.upper is not None, "NAN_ROWS": problem.nan_rows, "OVERLAP": row.overlap, "num_warps": 4,
        "maxnreg": REGISTERS[row.groups],
    }  # fmt: skip
    return flash_attention_hopper_kernel, grid, arguments, constants
