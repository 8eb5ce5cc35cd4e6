"""FlashAttention backward for Hopper (sm_90) in Triton's Gluon dialect: one pass over the scores, five products for seven.

The formulas are `flash_attention_backward.py`'s and the problems those of `flash_attention_gluon.py`. One walk gives all
three gradients (Dao, "FlashAttention-2", 2023, section 3.1.2; on Hopper as in Shah et al., "FlashAttention-3", 2024): a
program owns 128 keys, 64 for each of two warp groups, and walks over blocks of queries, which a warp of its own loads by TMA
into a ring. For each block a group computes

    Sᵀ = K Qᵀ,  dPᵀ = V dOᵀ        keys x queries, so that Pᵀ and dSᵀ are left operands as they come out of the registers
    dV += Pᵀ dO,  dK += dSᵀ Q      which stay in registers for the whole walk
    dQ += dS K                     one half of the block by each group, over the 128 keys of both

dSᵀ of both groups meets in shared memory for the last. Other programs add to the same dQ: in fp32 in global memory, by TMA's
own addition, in whatever order they come; dQ may therefore differ in its last bits from run to run, as FlashAttention-2's and
the vendor's does, and under `torch.use_deterministic_algorithms` the two passes without additions are taken instead. Two
small kernels stand around: one makes the row statistics and zeros, the other rounds the sums to dQ.

Why the barriers are right. Step p of the ring is one block of queries, in slot p mod STAGES. Each barrier completes exactly
once for each of its steps, in order, so that the phase of step p is the parity of p div STAGES (of p for the last two):

* `q_full` and `dout_full` of a slot count one arrival, the loading warp's announcement, and complete with the last byte; so
  does `kv_full`, once.
* `free` of a slot counts one arrival of each group, after its products that read the step. The loading warp writes step p only
  after `free` completed for step p - STAGES (the first waits pass at once: a barrier starts as if the phase before was over).
* `written` counts one arrival of each group, when its rows of dSᵀ of step p are in shared memory; both wait for it before dQ.
* `read` counts one arrival of each group, when its product for dQ of step p is done; both wait for that of step p - 1 before they
  write dSᵀ of step p, and for the last one's before dK takes the place of the keys.

No wait can be for a phase two ahead, which parity could not tell apart: between two completions of `written` or `read` lies an
arrival of the group that waits, between two of `q_full` or `dout_full` its arrival at `free`, and it waits for each completion
before it arrives again. Nobody waits in a circle: the loading warp waits for groups at step p - STAGES; a group at step p waits
for the loading of step p, for the other group's product of step p - 1, and, having arrived itself, for the other group's dSᵀ of
step p, which that writes before it waits for anything later. dSᵀ and dQ are written to shared memory by threads and read by the
asynchronous proxy: each thread fences its own writes before its group's arrival, or before the addition that reads them.

Left operands in registers are waited for in the step that issues them, as in the forward; the wait holds the registers. This
module must not choose tiles (`configs.py`) and must be importable only where Triton has Gluon.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from minicompile.kernels.attention_problem import AttentionProblem
from minicompile.kernels.configs import HopperBackwardRow
from minicompile.kernels.flash_attention_backward import base_two
from minicompile.kernels.flash_attention_forward import block_of, load_rows, row_pointers
from minicompile.kernels.flash_attention_gluon import described, load_tile, store_tile


@_core.builtin
def _add_tile(tensor_desc, coord, src, _semantic=None):
    """Add a tile in shared memory to one in global memory by TMA: Triton 3.6 has the instruction, but no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(_core.ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


# Triton 3.8 and later have names for these.
add_tile = getattr(tma, "async_atomic_add", None) or _add_tile
join_warps = getattr(gl, "barrier", None) or gl.thread_barrier

ROWS: gl.constexpr = gl.constexpr(64)  # keys of a group
KEYS: gl.constexpr = gl.constexpr(128)  # of a program
STATISTICS_ROWS = 64
HopperLaunch = tuple[Any, tuple[int], tuple[Any, ...], dict[str, Any]]


@gluon.jit
def load_blocks(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, tiles, barriers, b, h, kv_head, row, padded, first, start,
    stop, steps, BLOCK_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp: keys and values of the program, then the steps of the ring."""
    k_tile, v_tile, q_ring, dout_ring, lse_ring, delta_ring, dscores_tile, dq_tiles = tiles
    kv_full, q_full, dout_full, free, written, read = barriers
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    load_tile(k_desc, [b, kv_head, first, 0], kv_full, k_tile)
    load_tile(v_desc, [b, kv_head, first, 0], kv_full, v_tile)
    m = start
    for p in range(steps):
        slot = p % STAGES
        mbarrier.wait(free.index(slot), (p // STAGES & 1) ^ 1)
        mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
        load_tile(q_desc, [b, h, m * BLOCK_M, 0], q_full.index(slot), q_ring.index(slot))
        load_tile(lse_desc, [row + m * BLOCK_M], q_full.index(slot), lse_ring.index(slot))
        mbarrier.expect(dout_full.index(slot), dout_desc.block_type.nbytes + delta_desc.block_type.nbytes)
        load_tile(dout_desc, [b, h, m * BLOCK_M, 0], dout_full.index(slot), dout_ring.index(slot))
        load_tile(delta_desc, [row + m * BLOCK_M], dout_full.index(slot), delta_ring.index(slot))
        m += 1
        if m == stop:  # the next query head
            m = start
            h += 1
            row += padded


@gluon.jit
def differentiate(
    dk_desc, dv_desc, sums_desc, tiles, barriers, b, kv_head, row, padded, first, start, stop, steps, keys, qk_scale, scale,
    C: gl.constexpr, D: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """A warp group: dK and dV of the C-th 64 keys of the program, and the C-th half of its part of dQ, 64 by 64."""
    k_tile, v_tile, q_ring, dout_ring, lse_ring, delta_ring, dscores_tile, dq_tiles = tiles
    kv_full, q_full, dout_full, free, written, read = barriers
    DTYPE: gl.constexpr = q_ring.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    BY_QUERY: gl.constexpr = gl.SliceLayout(0, SCORES)
    dk = gl.zeros([ROWS, D], gl.float32, OUT)
    dv = gl.zeros([ROWS, D], gl.float32, OUT)
    no_scores = gl.zeros([ROWS, BLOCK_M], gl.float32, SCORES)
    no_dq = gl.zeros([64, 64], gl.float32, DQ)
    half_row: gl.constexpr = C * (BLOCK_M - 64)  # where the group's half of a block of dQ begins
    half_column: gl.constexpr = C * (D - 64)
    all_k = k_tile.reshape([KEYS, D])
    k = all_k.slice(C * ROWS, ROWS, 0)
    v = v_tile.reshape([KEYS, D]).slice(C * ROWS, ROWS, 0)
    m = start
    unmasked = start  # from this block on
    if CAUSAL:
        unmasked = gl.cdiv(first + KEYS - 1, BLOCK_M)
    if first + KEYS > keys:
        unmasked = stop
    mbarrier.wait(kv_full, 0)
    for p in tl.range(0, steps, disable_licm=True):  # else matrix descriptors are computed outside, and spilled
        slot = p % STAGES
        phase = p // STAGES & 1
        q = q_ring.index(slot).reshape([BLOCK_M, D])
        dout = dout_ring.index(slot).reshape([BLOCK_M, D])
        mbarrier.wait(q_full.index(slot), phase)
        scores = hopper.warpgroup_mma(k, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        mbarrier.wait(dout_full.index(slot), phase)
        dweights = hopper.warpgroup_mma(v, dout.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        lse = lse_ring.index(slot).load(BY_QUERY)
        scores = hopper.warpgroup_mma_wait(1, deps=[scores])
        weights = gl.exp2(scores * qk_scale - lse[None, :])
        if m < unmasked:
            cols = first + C * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            visible = cols[:, None] < keys
            if CAUSAL:
                rows = m * BLOCK_M + gl.arange(0, BLOCK_M, BY_QUERY)
                visible = visible & (cols[:, None] <= rows[None, :])
            weights = gl.where(visible, weights, 0.0)
        left_weights = gl.convert_layout(weights.to(DTYPE), OPERAND)
        dv = hopper.warpgroup_mma(left_weights, dout, dv, is_async=True)
        dweights = hopper.warpgroup_mma_wait(1, deps=[dweights])
        delta = delta_ring.index(slot).load(BY_QUERY)
        dscores = (weights * (dweights - delta[None, :])).to(DTYPE)
        mbarrier.wait(read, (p & 1) ^ 1)
        dscores_tile.slice(C * ROWS, ROWS, 0).store(dscores)
        fence_async_shared()
        mbarrier.arrive(written, count=1)
        mbarrier.wait(written, p & 1)
        half = dscores_tile.slice(half_row, 64, 1).permute((1, 0))
        dq = hopper.warpgroup_mma(half, all_k.slice(half_column, 64, 1), no_dq, use_acc=False, is_async=True)
        left_dscores = gl.convert_layout(dscores, OPERAND)
        dk = hopper.warpgroup_mma(left_dscores, q, dk, is_async=True)
        dv, dq, left_weights = hopper.warpgroup_mma_wait(1, deps=[dv, dq, left_weights])
        mbarrier.arrive(read, count=1)
        tma.store_wait(0)  # the addition before has read the tile
        dq_tiles.index(C).store(dq)
        fence_async_shared()
        add_tile(sums_desc, [row + m * BLOCK_M + half_row, half_column], dq_tiles.index(C))
        dk, left_dscores = hopper.warpgroup_mma_wait(0, deps=[dk, left_dscores])
        mbarrier.arrive(free.index(slot), count=1)
        m += 1
        if m == stop:
            m = start
            row += padded
    if steps > 0:
        mbarrier.wait(read, (steps - 1) & 1)
    v.store(dv.to(DTYPE))
    k.store((dk * scale).to(DTYPE))
    fence_async_shared()
    join_warps()
    store_tile(dv_desc, [b, kv_head, first + C * ROWS, 0], v_tile.slice(C * ROWS, ROWS, 2))
    store_tile(dk_desc, [b, kv_head, first + C * ROWS, 0], k_tile.slice(C * ROWS, ROWS, 2))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads", "group", "queries", "keys", "padded"])
def flash_attention_hopper_backward_kernel(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_desc, dv_desc, sums_desc, heads, group, queries, keys, padded,
    qk_scale, scale, D: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """One program: dK and dV of 128 keys of one head of keys, and what they add to dQ of the query heads that share it."""
    blocks = gl.cdiv(keys, KEYS)
    kv_head = gl.program_id(0) // blocks
    first = gl.program_id(0) % blocks * KEYS  # causal, too, the longest first
    b = kv_head // (heads // group)
    kv_head = kv_head % (heads // group)
    h = kv_head * group
    row = (b * heads + h) * padded
    start = 0
    stop = gl.cdiv(queries, BLOCK_M)
    if CAUSAL:
        start = gl.minimum(first // BLOCK_M, stop)
    steps = (stop - start) * group
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    DSCORES: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BLOCK_M], q_desc.dtype)
    k_tile = gl.allocate_shared_memory(k_desc.dtype, [1, 1, KEYS, D], k_desc.layout)
    v_tile = gl.allocate_shared_memory(v_desc.dtype, [1, 1, KEYS, D], v_desc.layout)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_M, D], q_desc.layout)
    dout_ring = gl.allocate_shared_memory(dout_desc.dtype, [STAGES, 1, 1, BLOCK_M, D], dout_desc.layout)
    lse_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], lse_desc.layout)
    delta_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], delta_desc.layout)
    dscores_tile = gl.allocate_shared_memory(q_desc.dtype, [KEYS, BLOCK_M], DSCORES)
    dq_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, 64], sums_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    dout_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    written = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    read = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    mbarrier.init(kv_full, count=1)
    mbarrier.init(written, count=2)
    mbarrier.init(read, count=2)
    for s in gl.static_range(STAGES):
        mbarrier.init(q_full.index(s), count=1)
        mbarrier.init(dout_full.index(s), count=1)
        mbarrier.init(free.index(s), count=2)
    tiles = (k_tile, v_tile, q_ring, dout_ring, lse_ring, delta_ring, dscores_tile, dq_tiles)
    barriers = (kv_full, q_full, dout_full, free, written, read)
    gl.warp_specialize([  # constants lose their constancy in a variable: each list of arguments is written out
        (differentiate, (dk_desc, dv_desc, sums_desc, tiles, barriers, b, kv_head, row, padded, first, start, stop, steps,
                         keys, qk_scale, scale, 0, D, BLOCK_M, STAGES, CAUSAL)),
        (differentiate, (dk_desc, dv_desc, sums_desc, tiles, barriers, b, kv_head, row, padded, first, start, stop, steps,
                         keys, qk_scale, scale, 1, D, BLOCK_M, STAGES, CAUSAL)),
        (load_blocks, (q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, tiles, barriers, b, h, kv_head, row, padded,
                       first, start, stop, steps, BLOCK_M, STAGES)),
    ], [4, 1], [240, 24])  # fmt: skip


@triton.jit
def flash_attention_hopper_rows_kernel(
    out_ptr, dout_ptr, dlse_ptr, lse_ptr, base_two_ptr, delta_ptr, sums_ptr, out_strides, dout_strides, heads, queries,
    padded, D: tl.constexpr, BLOCK: tl.constexpr, HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """What the walk wants to know of each query: delta, the log-sum-exp in units of log 2, and zeros for the sums of dQ.

    Each head has `padded` rows, a whole number of blocks; those beyond `queries` are given weights of 0.
    """
    head, b, h, first = block_of(padded, heads, BLOCK, False)
    rows = first + tl.arange(0, BLOCK)
    out = load_rows(out_ptr, out_strides, b, h, first, queries, BLOCK, D, D, True, False)
    dout = load_rows(dout_ptr, dout_strides, b, h, first, queries, BLOCK, D, D, True, False)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    given = head.to(tl.int64) * queries + rows
    if HAS_DLSE:
        delta -= tl.load(dlse_ptr + given, mask=rows < queries, other=0.0)
    lse = tl.load(lse_ptr + given, mask=rows < queries, other=float("-inf"))
    written = head.to(tl.int64) * padded + rows
    tl.store(base_two_ptr + written, base_two(lse))
    tl.store(delta_ptr + written, delta)
    tl.store(sums_ptr + written[:, None] * D + tl.arange(0, D)[None, :], tl.zeros([BLOCK, D], tl.float32))


@triton.jit
def flash_attention_hopper_query_gradient_kernel(
    sums_ptr, dq_ptr, dq_strides, heads, queries, padded, scale, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dQ: the sums over the keys, scaled and rounded."""
    head, b, h, first = block_of(queries, heads, BLOCK, False)
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)[None, :]
    sums = tl.load(sums_ptr + (head.to(tl.int64) * padded + rows)[:, None] * D + columns)
    pointers = row_pointers(dq_ptr, dq_strides, b, h, rows) + columns
    tl.store(pointers, (sums * scale).to(dq_ptr.dtype.element_ty), mask=(rows < queries)[:, None])


def described_in_fp32(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """A TMA descriptor of a whole fp32 tensor without gaps."""
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float32)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


def hopper_backward_launches(
    problem: AttentionProblem, row: HopperBackwardRow, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None,
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], list[HopperLaunch]]:  # fmt: skip
    """dQ, dK and dV, yet to be written, and what writes them: three launches (kernel, grid, arguments, constants)."""
    heads, d = problem.batch * problem.heads, problem.d
    padded = triton.cdiv(problem.queries, row.block_m) * row.block_m
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    sums = q.new_empty((heads * padded, d), dtype=torch.float32)
    base_two_lse, delta = (q.new_empty(heads * padded, dtype=torch.float32) for _ in range(2))
    sizes = (problem.heads, problem.queries, padded)
    block = {"D": d, "BLOCK": STATISTICS_ROWS, "num_warps": 4}
    rows = (
        out, dout, lse if dlse is None else dlse.float().contiguous(), lse, base_two_lse, delta, sums, out.stride()[:3],
        dout.stride()[:3], *sizes,
    )  # fmt: skip
    walk = (
        described(q, row.block_m, d), described(k, 128, d), described(v, 128, d), described(dout, row.block_m, d),
        described_in_fp32(base_two_lse, [row.block_m]), described_in_fp32(delta, [row.block_m]), described(dk, 64, d),
        described(dv, 64, d), described_in_fp32(sums, [64, 64]), problem.heads, problem.group, problem.queries, problem.keys,
        padded, problem.scale * math.log2(math.e), problem.scale,
    )  # fmt: skip
    constants = {
        "D": d, "BLOCK_M": row.block_m, "STAGES": row.stages, "CAUSAL": problem.upper is not None, "num_warps": 4, "maxnreg": 168,
    }  # fmt: skip
    blocks, padded_blocks = (triton.cdiv(length, STATISTICS_ROWS) * heads for length in (problem.queries, padded))
    programs = triton.cdiv(problem.keys, 128) * problem.batch * problem.kv_heads
    rounding = (sums, dq, dq.stride()[:3], *sizes, problem.scale)
    return (dq, dk, dv), [
        (flash_attention_hopper_rows_kernel, (padded_blocks,), rows, {**block, "HAS_DLSE": dlse is not None}),
        (flash_attention_hopper_backward_kernel, (programs,), walk, constants),
        (flash_attention_hopper_query_gradient_kernel, (blocks,), rounding, block),
    ]
