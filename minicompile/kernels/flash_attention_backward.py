"""FlashAttention-2, backward: two passes over the scores, no atomics, the same result on every run.

Algorithm (Dao, "FlashAttention-2", 2023, section 3.1.2, split in two). With P = exp(S - lse) recomputed block by block,

    delta_i = Σ_d dO_id O_id  (- the gradient of lse)            one program per block of rows
    dP = dO Vᵀ,  dS = P ∘ (dP - delta),  dQ = scale · dS K        one program per block of queries, walking over keys
    dV = Pᵀ dO,  dK = scale · dSᵀ Q                               one program per block of keys, walking over queries

The second walk works on transposed blocks (keys x queries), so that P and dS are the left operand of their products as
they come out of the registers. Computing S and dP twice costs 7 products instead of 5, and buys a fixed order of
additions. With grouped heads, one program adds up the query heads of its key head; when that leaves too few programs,
each query head writes its own part and the parts are added afterwards. The gradient of an additive bias is dS itself,
written in full and then summed over the broadcast dimensions.

A log-sum-exp near 100 is rounded by 4e-6, and so would be every weight of its row. With RENORMALISE (fp32) the first walk
therefore adds up each row's weights, which should give 1, and both walks divide by what it gave.

Band, mask, dropout, empty rows and operands in halves are as in `flash_attention_forward.py`, whose helpers are used
here. This module must not choose tiles (`configs.py`) nor know about autograd.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicompile.kernels.flash_attention_forward import (
    LOG2E,
    add_product,
    apply_mask,
    block_of,
    dropout_keeps,
    load_operand,
    load_rows,
    product,
    row_pointers,
    transposed,
    walk_over_keys,
)
from minicompile.kernels.halves import has_work, scale_at
from minicompile.kernels.mask_bounds import walk_backwards


@triton.jit
def flash_attention_delta_kernel(
    out_ptr, dout_ptr, dlse_ptr, delta_ptr, out_strides, dout_strides, heads, queries, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """Row sums of dO ∘ O, less the gradient of the log-sum-exp."""
    head, b, h, first = block_of(queries, heads, BLOCK_M, False)
    rows = first + tl.arange(0, BLOCK_M)
    out = load_rows(out_ptr, out_strides, b, h, first, queries, BLOCK_M, DV, BLOCK_D, True, False)
    dout = load_rows(dout_ptr, dout_strides, b, h, first, queries, BLOCK_M, DV, BLOCK_D, True, False)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    offsets = head.to(tl.int64) * queries + rows
    if HAS_DLSE:
        delta -= tl.load(dlse_ptr + offsets, mask=rows < queries, other=0.0)
    tl.store(delta_ptr + offsets, delta, mask=rows < queries)


@triton.jit
def load_per_row(base, first, queries, ROWS: tl.constexpr, CHECK: tl.constexpr):
    """One fp32 number for each of ROWS rows from `first`; zeros beyond `queries`."""
    rows = first + tl.arange(0, ROWS)
    if CHECK:
        values = tl.load(base + rows, mask=rows < queries, other=0.0)
    else:
        values = tl.load(base + rows)
    return values


@triton.jit
def base_two(lse):
    """A log-sum-exp in units of log 2; +inf for rows that saw no key, so that their weights become 0."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@triton.jit
def query_gradient_blocks(
    dq, sums, q, dout, lse, delta, k_ptr, v_ptr, mask_base, dbias_base, seed_ptr, head, b, kv_head, first, start, stop,
    queries, keys, k_strides, v_strides, mask_strides, lower, upper, qk_scale, dweights_scale, keep_scale, threshold,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, HAS_LOWER: tl.constexpr,
    HAS_UPPER: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, HAS_DBIAS: tl.constexpr,
    NAN_ROWS: tl.constexpr, RENORMALISE: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dQ (without the scale), and the rows' sums of weights, after the keys from `start` to `stop`."""
    BLOCK_M: tl.constexpr = dq.shape[0]
    rows = first + tl.arange(0, BLOCK_M)
    for n in tl.range(start, stop, BLOCK_N):
        cols = n + tl.arange(0, BLOCK_N)
        k = load_operand(k_ptr, k_strides, b, kv_head, n, keys, BLOCK_N, D, BLOCK_D, MASKED, TMA, PRECISION)
        v = load_operand(v_ptr, v_strides, b, kv_head, n, keys, BLOCK_N, DV, BLOCK_D, MASKED, TMA, PRECISION)
        scores = product(q, transposed(k), PRECISION) * qk_scale
        if MASKED:
            scores, visible = apply_mask(
                scores, mask_base, mask_strides, rows[:, None], cols[None, :], queries, keys, lower, upper, MASK,
                HAS_LOWER, HAS_UPPER)  # fmt: skip
            weights = tl.where(visible, tl.exp2(scores - lse[:, None]), 0.0)
        else:
            weights = tl.exp2(scores - lse[:, None])
        if RENORMALISE:
            sums += tl.sum(weights, 1)
        dweights = product(dout, transposed(v), PRECISION) * dweights_scale
        if DROPOUT:
            keeps = dropout_keeps(seed_ptr, head, first, n, BLOCK_M, BLOCK_N, False, threshold)
            dweights = tl.where(keeps, dweights * keep_scale, 0.0)
        dscores = weights * (dweights - delta[:, None])
        if NAN_ROWS and MASKED:
            dscores = tl.where(visible, dscores, 0.0)
        if HAS_DBIAS:
            offsets = rows.to(tl.int64)[:, None] * keys + cols[None, :]
            in_range = (rows[:, None] < queries) & (cols[None, :] < keys)
            tl.store(dbias_base + offsets, dscores.to(dbias_base.dtype.element_ty), mask=in_range)
        dq = add_product(dq, dscores, k, PRECISION)
    return dq, sums


@triton.jit
def flash_attention_query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, scales_ptr, lse_ptr, delta_ptr, inverse_ptr, dq_ptr, dbias_ptr, mask_ptr, bounds_ptr,
    seed_ptr, q_strides, k_strides, v_strides, dout_strides, dq_strides, mask_strides, bounds_strides, heads, queries, keys,
    lower, upper, qk_scale, scale, keep_scale, threshold, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, HAS_LOWER: tl.constexpr,
    HAS_UPPER: tl.constexpr, HAS_BOUNDS: tl.constexpr, FULL_LOOP: tl.constexpr, MASKED_LOOP: tl.constexpr,
    DROPOUT: tl.constexpr, HAS_DBIAS: tl.constexpr, NAN_ROWS: tl.constexpr, RENORMALISE: tl.constexpr,
    PRECISION: tl.constexpr, TMA: tl.constexpr, WHEN: tl.constexpr,
):  # fmt: skip
    """One program: dQ of BLOCK_M queries of one head."""
    if not has_work(scales_ptr, 4, WHEN):
        return
    qk_scale *= scale_at(scales_ptr, 0, PRECISION) * scale_at(scales_ptr, 1, PRECISION)
    dweights_scale = scale_at(scales_ptr, 2, PRECISION) * scale_at(scales_ptr, 3, PRECISION)
    head, b, h, first = block_of(queries, heads, BLOCK_M, HAS_UPPER)
    rows = first + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    q = load_operand(q_ptr, q_strides, b, h, first, queries, BLOCK_M, D, BLOCK_D, True, False, PRECISION)
    dout = load_operand(dout_ptr, dout_strides, b, h, first, queries, BLOCK_M, DV, BLOCK_D, True, False, PRECISION)
    statistics = head.to(tl.int64) * queries
    lse = base_two(load_per_row(lse_ptr + statistics, first, queries, BLOCK_M, True))
    delta = load_per_row(delta_ptr + statistics, first, queries, BLOCK_M, True)
    kv_head = h // GROUP
    mask_base = mask_ptr + b * mask_strides[0] + h * mask_strides[1]
    dbias_base = dbias_ptr + statistics * keys
    start, full_stop, stop = walk_over_keys(
        bounds_ptr, bounds_strides, b, h, first, queries, keys, lower, upper, BLOCK_M, BLOCK_N, HAS_LOWER, HAS_UPPER,
        HAS_BOUNDS)  # fmt: skip
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    for masked in tl.static_range(2):  # first the keys that need no mask
        if MASKED_LOOP if masked else FULL_LOOP:
            dq, sums = query_gradient_blocks(
                dq, sums, q, dout, lse, delta, k_ptr, v_ptr, mask_base, dbias_base, seed_ptr, head, b, kv_head, first,
                start, stop if masked else full_stop, queries, keys, k_strides, v_strides, mask_strides, lower, upper,
                qk_scale, dweights_scale, keep_scale, threshold, D, DV, BLOCK_D, BLOCK_N, MASK, HAS_LOWER, HAS_UPPER,
                masked, DROPOUT, HAS_DBIAS, NAN_ROWS, RENORMALISE, PRECISION, TMA)  # fmt: skip
            start = full_stop
    if RENORMALISE:
        inverse = tl.where(sums > 0.0, 1.0 / sums, 1.0)
        tl.store(inverse_ptr + statistics + rows, inverse, mask=rows < queries)
        dq = dq * inverse[:, None]
    pointers = row_pointers(dq_ptr, dq_strides, b, h, rows) + columns[None, :]
    in_range = (rows[:, None] < queries) & (columns[None, :] < D)
    scale *= scale_at(scales_ptr, 1, PRECISION)
    tl.store(pointers, (dq * scale).to(dq_ptr.dtype.element_ty), mask=in_range)


@triton.jit
def key_gradient_blocks(
    dk, dv, k, v, q_ptr, dout_ptr, lse_base, delta_base, inverse_base, mask_base, seed_ptr, head, b, h, first, start,
    stop, queries, keys, q_strides, dout_strides, mask_strides, lower, upper, qk_scale, dweights_scale, keep_scale,
    threshold, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, MASK: tl.constexpr,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr,
    NAN_ROWS: tl.constexpr, RENORMALISE: tl.constexpr, CHECK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """dK (without the scale) and dV after the queries from `start` to `stop`; blocks are keys x queries."""
    BLOCK_N: tl.constexpr = dk.shape[0]
    cols = first + tl.arange(0, BLOCK_N)
    for m in tl.range(start, stop, BLOCK_M):
        rows = m + tl.arange(0, BLOCK_M)
        q = load_operand(q_ptr, q_strides, b, h, m, queries, BLOCK_M, D, BLOCK_D, CHECK_ROWS, TMA, PRECISION)
        dout = load_operand(
            dout_ptr, dout_strides, b, h, m, queries, BLOCK_M, DV, BLOCK_D, CHECK_ROWS, TMA, PRECISION)  # fmt: skip
        lse = base_two(load_per_row(lse_base, m, queries, BLOCK_M, CHECK_ROWS))
        scores = product(k, transposed(q), PRECISION) * qk_scale
        if MASKED:
            scores, visible = apply_mask(
                scores, mask_base, mask_strides, rows[None, :], cols[:, None], queries, keys, lower, upper, MASK,
                HAS_LOWER, HAS_UPPER)  # fmt: skip
            weights = tl.where(visible, tl.exp2(scores - lse[None, :]), 0.0)
        else:
            weights = tl.exp2(scores - lse[None, :])
        if RENORMALISE:
            weights *= load_per_row(inverse_base, m, queries, BLOCK_M, CHECK_ROWS)[None, :]
        dropped = weights
        if NAN_ROWS:
            dropped = tl.where((lse != lse)[None, :], float("nan"), dropped)
        if DROPOUT:
            keeps = dropout_keeps(seed_ptr, head, first, m, BLOCK_N, BLOCK_M, True, threshold)
            dropped = tl.where(keeps, dropped * keep_scale, 0.0)
        dv = add_product(dv, dropped, dout, PRECISION)
        dweights = product(v, transposed(dout), PRECISION) * dweights_scale
        if DROPOUT:
            dweights = tl.where(keeps, dweights * keep_scale, 0.0)
        delta = load_per_row(delta_base, m, queries, BLOCK_M, CHECK_ROWS)
        dscores = weights * (dweights - delta[None, :])
        if NAN_ROWS and MASKED:
            dscores = tl.where(visible, dscores, 0.0)
        dk = add_product(dk, dscores, q, PRECISION)
    return dk, dv


@triton.jit
def flash_attention_key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, scales_ptr, lse_ptr, delta_ptr, inverse_ptr, dk_ptr, dv_ptr, mask_ptr, bounds_ptr,
    seed_ptr, q_strides, k_strides, v_strides, dout_strides, dk_strides, dv_strides, mask_strides, bounds_strides, heads, queries,
    keys, lower, upper, qk_scale, scale, keep_scale, threshold, GROUP: tl.constexpr, HEADS_EACH: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_BOUNDS: tl.constexpr,
    FULL_LOOP: tl.constexpr, MASKED_LOOP: tl.constexpr, CHECK_ROWS: tl.constexpr, DROPOUT: tl.constexpr,
    NAN_ROWS: tl.constexpr, RENORMALISE: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
    WHEN: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of BLOCK_N keys, added over HEADS_EACH query heads."""
    if not has_work(scales_ptr, 4, WHEN):
        return
    qk_scale *= scale_at(scales_ptr, 0, PRECISION) * scale_at(scales_ptr, 1, PRECISION)
    dweights_scale = scale_at(scales_ptr, 2, PRECISION) * scale_at(scales_ptr, 3, PRECISION)
    blocks = tl.cdiv(keys, BLOCK_N)
    slots = heads // HEADS_EACH
    slot = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_N
    b, out_head = (slot // slots).to(tl.int64), (slot % slots).to(tl.int64)
    cols = first + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    kv_head = out_head * HEADS_EACH // GROUP
    k = load_operand(k_ptr, k_strides, b, kv_head, first, keys, BLOCK_N, D, BLOCK_D, True, False, PRECISION)
    v = load_operand(v_ptr, v_strides, b, kv_head, first, keys, BLOCK_N, DV, BLOCK_D, True, False, PRECISION)
    start, full_start, stop = 0, 0, queries
    if HAS_UPPER:
        start = tl.maximum(first - upper, 0) // BLOCK_M * BLOCK_M
        full_start = (tl.maximum(first + BLOCK_N - 1 - upper, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    if HAS_LOWER:
        stop = tl.minimum(queries, tl.maximum(first + BLOCK_N + lower, 0))
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.range(0, HEADS_EACH):
        h = out_head * HEADS_EACH + member
        head = (b * heads + h).to(tl.int32)
        statistics = head.to(tl.int64) * queries
        lse_base, delta_base, inverse_base = lse_ptr + statistics, delta_ptr + statistics, inverse_ptr + statistics
        mask_base = mask_ptr + b * mask_strides[0] + h * mask_strides[1]
        masked_start, masked_stop, free_start, free_stop = start, stop, full_start, queries
        if HAS_BOUNDS:
            bounds = bounds_ptr + b * bounds_strides[0] + h * bounds_strides[1]
            masked_start, free_start, masked_stop = walk_backwards(
                bounds, first, keys, start, full_start, stop, queries, BLOCK_N, BLOCK_M)  # fmt: skip
            free_stop = masked_stop
        for masked in tl.static_range(2):  # first the queries that need no mask
            if MASKED_LOOP if masked else FULL_LOOP:
                dk, dv = key_gradient_blocks(
                    dk, dv, k, v, q_ptr, dout_ptr, lse_base, delta_base, inverse_base, mask_base, seed_ptr, head, b, h,
                    first, masked_start if masked else free_start, masked_stop if masked else free_stop, queries, keys,
                    q_strides, dout_strides, mask_strides, lower, upper, qk_scale, dweights_scale, keep_scale,
                    threshold, D, DV, BLOCK_D, BLOCK_M, MASK, HAS_LOWER, HAS_UPPER, masked, DROPOUT, NAN_ROWS,
                    RENORMALISE, CHECK_ROWS, PRECISION, TMA)  # fmt: skip
                masked_stop = tl.minimum(free_start, free_stop)
    dk_pointers = row_pointers(dk_ptr, dk_strides, b, out_head, cols) + columns[None, :]
    dv_pointers = row_pointers(dv_ptr, dv_strides, b, out_head, cols) + columns[None, :]
    dk_range = (cols[:, None] < keys) & (columns[None, :] < D)
    dv_range = (cols[:, None] < keys) & (columns[None, :] < DV)
    scale *= scale_at(scales_ptr, 0, PRECISION)
    tl.store(dk_pointers, (dk * scale).to(dk_ptr.dtype.element_ty), mask=dk_range)
    dv *= scale_at(scales_ptr, 3, PRECISION)
    tl.store(dv_pointers, dv.to(dv_ptr.dtype.element_ty), mask=dv_range)
