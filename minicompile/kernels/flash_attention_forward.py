"""FlashAttention-2, forward: softmax(Q Kᵀ · scale + bias) V without the scores in memory.

Algorithm (Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023). One program
owns BLOCK_M queries of one head and walks over the keys, BLOCK_N at a time, keeping for each query the running
maximum m of the scores, the running sum l of exp(score - m), and the running weighted sum of values. When a block
raises m by δ, both sums are rescaled by exp(-δ). At the end the values are divided by l, and the log-sum-exp m +
log(l) is kept for backward.

What this kernel adds to the paper:

* Exponentials are powers of two, with scale · log2(e) folded into the one multiply-add that subtracts the maximum.
* A *band*: query i sees key j only if i - lower <= j <= i + upper. Causal is upper = 0 (PyTorch's top-left alignment);
  a sliding window sets both. Blocks outside the band are skipped, blocks inside it are computed without a mask.
* A boolean mask, or an additive bias, of any strides, 0 for a broadcast dimension. Bounds of a boolean mask
  (`mask_bounds.py`) say which blocks are skipped because they hide everything, and which are computed without reading the
  mask because they show everything.
* A bias that is finite but hides (below -1e8) rounds the score away, as the sum does in eager: a query for which all
  keys are hidden so weighs them all alike.
* A query that sees no key gives zeros, and -inf as its log-sum-exp, as `F.scaled_dot_product_attention` does (its
  "safe softmax"). With NAN_ROWS it gives NaN, as a softmax written out by hand does.
* Dropout by Philox, whose counter is made of key, query and head: the same numbers whatever the tiles, forward and backward.
* The heaviest blocks of a causal head start first.
* Long fp32 problems take their operands in halves, or by one half each where tf32 is allowed (`halves.py`).

This module must not choose tiles (`configs.py`) nor know about autograd (`flash_attention.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicompile.kernels.halves import has_work, in_halves, scale_at
from minicompile.kernels.mask_bounds import walk_forwards

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
HIDDEN: tl.constexpr = tl.constexpr(-131072.0)


@triton.jit
def load_rows(
    source, strides, b, h, first, count, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    CHECK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """ROWS rows from `first` of one head; zeros beyond `count` rows (if CHECK) and beyond WIDTH columns.

    With TMA, `source` is a descriptor of the whole tensor, and the zeros are the hardware's. Else it is a pointer to
    it, with adjacent columns; the tile's own offsets are 32-bit, and only the scalar base moves in 64 bits.
    """
    if TMA:
        tile = source.load([b.to(tl.int32), h.to(tl.int32), first, 0]).reshape([ROWS, BLOCK_WIDTH])
    else:
        rows = tl.arange(0, ROWS)[:, None]
        columns = tl.arange(0, BLOCK_WIDTH)[None, :]
        base = source + b * strides[0] + h * strides[1] + tl.cast(first, tl.int64) * strides[2]
        pointers = base + (rows * strides[2] + columns)
        if CHECK and WIDTH != BLOCK_WIDTH:
            tile = tl.load(pointers, mask=(first + rows < count) & (columns < WIDTH), other=0.0)
        elif CHECK:
            tile = tl.load(pointers, mask=first + rows < count, other=0.0)
        elif WIDTH != BLOCK_WIDTH:
            tile = tl.load(pointers, mask=columns < WIDTH, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def load_operand(
    source, strides, b, h, first, count, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    CHECK: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`load_rows`, twice in a tuple; of an operand in halves the high ones and the low, which lie where its next head would."""
    if PRECISION == "halves":
        high = load_rows(source, strides, b, 2 * h, first, count, ROWS, BLOCK_WIDTH, BLOCK_WIDTH, CHECK, TMA)
        low = load_rows(source, strides, b, 2 * h + 1, first, count, ROWS, BLOCK_WIDTH, BLOCK_WIDTH, CHECK, TMA)
    elif PRECISION == "high":
        high = load_rows(source, strides, b, h, first, count, ROWS, BLOCK_WIDTH, BLOCK_WIDTH, CHECK, TMA)
        low = high
    else:
        high = load_rows(source, strides, b, h, first, count, ROWS, WIDTH, BLOCK_WIDTH, CHECK, TMA)
        low = high
    return high, low


@triton.jit
def transposed(operand):
    """Both tiles of an operand the other way round."""
    return tl.trans(operand[0]), tl.trans(operand[1])


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b; of two halves each three products, the small ones first."""
    if PRECISION == "halves":
        result = tl.dot(a[1], b[0])
        result = tl.dot(a[0], b[1], result)
        result = tl.dot(a[0], b[0], result)
    elif PRECISION == "high":
        result = tl.dot(a[0], b[0])
    else:
        result = tl.dot(a[0], b[0], input_precision=PRECISION)
    return result


@triton.jit
def add_product(acc, a, b, PRECISION: tl.constexpr):
    """acc + a b for a tile a in fp32. Products of halves are added outside the matrix units (`halves.py`)."""
    if PRECISION == "halves" or PRECISION == "high":
        high, low, scale = in_halves(a)
        acc += product((high, low), b, PRECISION) * scale[:, None]
    else:
        acc = tl.dot(a.to(b[0].dtype), b[0], acc, input_precision=PRECISION)
    return acc


@triton.jit
def row_pointers(base, strides, b, h, rows):
    """Where rows of one head begin."""
    return base + b * strides[0] + h * strides[1] + rows.to(tl.int64)[:, None] * strides[2]


@triton.jit
def block_of(length, heads, BLOCK: tl.constexpr, HEAVIEST_FIRST: tl.constexpr):
    """The program's place: its batch and head in one number and apart, and the first of its BLOCK rows of that head."""
    blocks = tl.cdiv(length, BLOCK)
    head = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks
    if HEAVIEST_FIRST:
        first = blocks - 1 - first
    return head, (head // heads).to(tl.int64), (head % heads).to(tl.int64), first * BLOCK


@triton.jit
def walk_over_keys(
    bounds_ptr, bounds_strides, b, h, first, queries, keys, lower, upper, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr, HAS_BOUNDS: tl.constexpr,
):  # fmt: skip
    """Where BLOCK_M queries begin to see keys, until where no mask is needed, and where they end."""
    start, full_stop, stop = 0, keys // BLOCK_N * BLOCK_N, keys
    if HAS_UPPER:
        stop = tl.maximum(tl.minimum(keys, first + BLOCK_M + upper), 0)
        full_stop = tl.maximum(tl.minimum(keys, first + upper + 1), 0) // BLOCK_N * BLOCK_N
    if HAS_LOWER:
        start = tl.maximum(first - lower, 0) // BLOCK_N * BLOCK_N
    if HAS_BOUNDS:
        bounds = bounds_ptr + b * bounds_strides[0] + h * bounds_strides[1]
        start, full_stop, stop = walk_forwards(bounds, first, queries, start, full_stop, stop, BLOCK_M, BLOCK_N)
    return start, full_stop, stop


@triton.jit
def apply_mask(
    scores, mask_base, strides, rows, cols, queries, keys, lower, upper, MASK: tl.constexpr, HAS_LOWER: tl.constexpr,
    HAS_UPPER: tl.constexpr,
):  # fmt: skip
    """Scores with the additive bias (in units of log 2), and which (query, key) pairs are in the band, within the keys, and
    not hidden by the boolean mask; `rows` and `cols` broadcast in either order."""
    visible = (cols < keys) & (rows >= 0)
    if HAS_UPPER:
        visible = visible & (cols <= rows + upper)
    if HAS_LOWER:
        visible = visible & (cols >= rows - lower)
    if MASK != "none":
        offsets = rows.to(tl.int64) * strides[2] + cols.to(tl.int64) * strides[3]
        entries = tl.load(mask_base + offsets, mask=(rows < queries) & (cols < keys), other=0)
        if MASK == "bool":
            visible = visible & (entries != 0)
        else:
            bias = entries.to(tl.float32)
            hiding = tl.where(bias == float("-inf"), bias, HIDDEN)
            scores = tl.where(bias < -1e8, hiding, scores + bias * LOG2E)
    return scores, visible


@triton.jit
def dropout_keeps(
    seed_ptr, head, first_row, first_col, ROWS: tl.constexpr, COLS: tl.constexpr, ROWS_ARE_KEYS: tl.constexpr, threshold
):  # fmt: skip
    """Which weights of a block survive dropout: a word of Philox, without its last bit, is at least `threshold`.

    One counter gives the four words of two queries and two keys that lie 8 apart: those a thread holds of a product's
    result, whichever of the two are its rows, so that nothing moves between threads. Blocks begin at multiples of 16.
    """
    halves = tl.arange(0, ROWS // 2)[:, None], tl.arange(0, COLS // 2)[None, :]
    row = (first_row + halves[0] // 8 * 16 + halves[0] % 8 + halves[1] * 0).to(tl.uint32)
    col = (first_col + halves[1] // 8 * 16 + halves[1] % 8 + halves[0] * 0).to(tl.uint32)
    key, query = (row, col) if ROWS_ARE_KEYS else (col, row)
    stream = query * 0 + head.to(tl.uint32)
    offset = query * 0 + tl.load(seed_ptr + 1).to(tl.uint32)
    first, next_key, next_query, last = tl.philox(tl.load(seed_ptr), key, query, stream, offset)
    next_row, next_col = (next_key, next_query) if ROWS_ARE_KEYS else (next_query, next_key)
    words = tl.join(tl.join(first, next_col), tl.join(next_row, last))
    words = words.reshape([ROWS // 16, 8, COLS // 16, 8, 2, 2]).permute(0, 5, 1, 2, 4, 3).reshape([ROWS, COLS])
    return (words >> 1).to(tl.int32) >= threshold


@triton.jit
def forward_blocks(
    acc, total, maximum, q, k_ptr, v_ptr, mask_base, seed_ptr, head, b, kv_head, first, rows, start, stop, queries, keys,
    k_strides, v_strides, mask_strides, lower, upper, qk_scale, threshold, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr,
    MASKED: tl.constexpr, FUSED_SCALE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """The running sums after the keys from `start` to `stop`. `rows` are the queries, `first` is theirs for dropout."""
    BLOCK_M: tl.constexpr = acc.shape[0]
    for n in tl.range(start, stop, BLOCK_N):
        cols = n + tl.arange(0, BLOCK_N)
        k = load_operand(k_ptr, k_strides, b, kv_head, n, keys, BLOCK_N, D, BLOCK_D, MASKED, TMA, PRECISION)
        scores = product(q, transposed(k), PRECISION)
        multiplier = qk_scale
        if not FUSED_SCALE:
            scores = scores * qk_scale
            multiplier = 1.0
        if MASKED:
            scores, visible = apply_mask(
                scores, mask_base, mask_strides, rows[:, None], cols[None, :], queries, keys, lower, upper, MASK,
                HAS_LOWER, HAS_UPPER)  # fmt: skip
            scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1) * multiplier)
        finite = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores * multiplier - finite[:, None])
        rescale = tl.exp2(maximum - finite)
        total = total * rescale + tl.sum(weights, 1)
        if DROPOUT:
            keeps = dropout_keeps(seed_ptr, head, first, n, BLOCK_M, BLOCK_N, False, threshold)
            weights = tl.where(keeps, weights, 0.0)
        v = load_operand(v_ptr, v_strides, b, kv_head, n, keys, BLOCK_N, DV, BLOCK_D, MASKED, TMA, PRECISION)
        acc = add_product(acc * rescale[:, None], weights, v, PRECISION)
        maximum = new_maximum
    return acc, total, maximum


@triton.jit
def flash_attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, scales_ptr, out_ptr, lse_ptr, mask_ptr, bounds_ptr, seed_ptr, q_strides, k_strides, v_strides,
    out_strides, mask_strides, bounds_strides, heads, queries, keys, lower, upper, qk_scale, keep_scale, threshold,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, MASK: tl.constexpr, HAS_LOWER: tl.constexpr, HAS_UPPER: tl.constexpr,
    HAS_BOUNDS: tl.constexpr, FULL_LOOP: tl.constexpr, MASKED_LOOP: tl.constexpr, FUSED_SCALE: tl.constexpr,
    DROPOUT: tl.constexpr, NAN_ROWS: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr, WHEN: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head."""
    if not has_work(scales_ptr, 3, WHEN):
        return
    qk_scale *= scale_at(scales_ptr, 0, PRECISION) * scale_at(scales_ptr, 1, PRECISION)
    head, b, h, first = block_of(queries, heads, BLOCK_M, HAS_UPPER)
    rows = first + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    q = load_operand(q_ptr, q_strides, b, h, first, queries, BLOCK_M, D, BLOCK_D, True, False, PRECISION)
    kv_head = h // GROUP
    mask_base = mask_ptr + b * mask_strides[0] + h * mask_strides[1]
    start, full_stop, stop = walk_over_keys(
        bounds_ptr, bounds_strides, b, h, first, queries, keys, lower, upper, BLOCK_M, BLOCK_N, HAS_LOWER, HAS_UPPER,
        HAS_BOUNDS)  # fmt: skip
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for masked in tl.static_range(2):  # first the keys that need no mask
        if MASKED_LOOP if masked else FULL_LOOP:
            acc, total, maximum = forward_blocks(
                acc, total, maximum, q, k_ptr, v_ptr, mask_base, seed_ptr, head, b, kv_head, first, rows, start,
                stop if masked else full_stop, queries, keys, k_strides, v_strides, mask_strides, lower, upper,
                qk_scale, threshold, D, DV, BLOCK_D, BLOCK_N, MASK, HAS_LOWER, HAS_UPPER, masked, FUSED_SCALE, DROPOUT,
                PRECISION, TMA)  # fmt: skip
            start = full_stop
    lse = maximum * LN2 + tl.log(total)
    empty = total == 0.0
    if NAN_ROWS:
        inverse = keep_scale / total
        lse = tl.where(empty, float("nan"), lse)
    else:
        inverse = tl.where(empty, 0.0, keep_scale / total)
        lse = tl.where(empty, float("-inf"), lse)
    tl.store(lse_ptr + head.to(tl.int64) * queries + rows, lse, mask=rows < queries)
    pointers = row_pointers(out_ptr, out_strides, b, h, rows) + columns[None, :]
    in_range = (rows[:, None] < queries) & (columns[None, :] < DV)
    inverse *= scale_at(scales_ptr, 2, PRECISION)
    tl.store(pointers, (acc * inverse[:, None]).to(out_ptr.dtype.element_ty), mask=in_range)
