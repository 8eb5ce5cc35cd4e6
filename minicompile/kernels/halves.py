"""fp32 operands as sums of two fp16 tiles: three products of halves in place of one in fp32; or as one, in place of tf32.

The method is that of Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
theoretical peak performance" (2022).

Three products: x = high + low, each rounded to nearest, keeps 23 of 24 bits at worst, and all of them in three numbers of
four. Of a b = (high_a + low_a) (high_b + low_b) only low_a low_b is left out, 2**-22 of the product at most, in random
directions: less than what fp32's own additions lose in a sum of a dozen terms.

Sums outside the matrix units: these cut off what their sums have no bits for, so that a sum kept in them over all blocks of a
loop drifts in one direction. They add up the products of one block; blocks are added in fp32, rounded to nearest
(`add_product` in `flash_attention_forward.py`).

The range of fp16: powers of two bring the largest entry of an operand, and of each row of the weights, to 2**14; what is left
of an entry is then below 2**-39 of that, whatever the entry's own size. So the halves *hold* an operand if in each stretch of
its rows every row, and every column that is not zero, reaches 2**-12 of the operand's largest entry (BROAD): beside an entry
of that size fp32 would round more. NaN, infinities, rows of zeros, numbers beyond 2**30 and all else is not held. This verdict
stays on the GPU: a kernel on halves returns at once if an operand is not held, and its twin on the operands themselves,
launched after it, if all are.

One half alone is what tf32 keeps of a number: 11 bits, the first one included, and by the same powers of two nothing is out
of range. Where the user allows tf32, products of high halves take its place, at the speed of 16-bit operands.

This module must not know what the operands are multiplied for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from minicompile.kernels.interpret import launch

STRETCH = 64
TOP: tl.constexpr = tl.constexpr(14)
BROAD: tl.constexpr = tl.constexpr(2.0**-12)
MODERATE: tl.constexpr = tl.constexpr(2.0**30)
CHUNK: tl.constexpr = tl.constexpr(1024)


@triton.jit
def power_of_two(x, SIGN: tl.constexpr):
    """2**(SIGN * (floor(log2 x) - TOP)) for positive, normal x."""
    exponent = (x.to(tl.int32, bitcast=True) >> 23) - 127 - TOP
    return ((exponent * SIGN + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def in_halves(x):
    """Halves of a tile of which each row was divided by a power of two, and these powers."""
    largest = tl.minimum(tl.maximum(tl.max(tl.abs(x), 1), 2.0**-100), 2.0**125)
    x = x * power_of_two(largest, -1)[:, None]
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16), power_of_two(largest, 1)


@triton.jit
def has_work(scales_ptr, COUNT: tl.constexpr, WHEN: tl.constexpr):
    """Whether a kernel works, of those for when halves hold all of COUNT operands, for when not, and for always."""
    working = True
    if WHEN != "always":
        least = tl.load(scales_ptr)
        for i in tl.static_range(1, COUNT):
            least = tl.minimum(least, tl.load(scales_ptr + i))
        working = (least > 0.0) == (WHEN == "held")
    return working


@triton.jit
def scale_at(scales_ptr, INDEX: tl.constexpr, PRECISION: tl.constexpr):
    """What the products of an operand are multiplied by if it is in halves."""
    scale = 1.0
    if PRECISION == "halves" or PRECISION == "high":
        scale = tl.load(scales_ptr + INDEX)
    return scale


@triton.jit
def stretch(x_ptr, sizes, strides, index, BLOCK_WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """ROWS rows of one head: entries, whether the rows exist, head, rows and columns; the last stretch overlaps."""
    heads, rows, width = sizes
    blocks = tl.cdiv(rows, ROWS)
    head = (index // blocks).to(tl.int64)
    row = tl.maximum(tl.minimum(index % blocks * ROWS, rows - ROWS), 0) + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK_WIDTH)[None, :]
    base = x_ptr + head // heads * strides[0] + head % heads * strides[1]
    entries = tl.load(base + row.to(tl.int64) * strides[2] + column, mask=(row < rows) & (column < width), other=0.0)
    return entries, row < rows, head, row, column


@triton.jit
def ranges_kernel(operands, counts, sizes, strides, ranges_ptr, BLOCK_WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Of each stretch the largest entry, infinite if there is a NaN, and the least of what its rows and columns reach."""
    index = tl.program_id(0)
    for i in tl.static_range(len(operands)):
        if (tl.program_id(1) == i) & (index < counts[i]):
            x, exists, _, _, _ = stretch(operands[i], sizes[i], strides[i], index, BLOCK_WIDTH, ROWS)
            x = tl.where(x == x, tl.abs(x), float("inf"))
            of_rows, of_columns = tl.max(tl.where(exists, x, float("inf")), 1), tl.max(x, 0)
            least = tl.minimum(tl.min(of_rows, 0), tl.min(tl.where(of_columns > 0.0, of_columns, float("inf")), 0))
            place = ranges_ptr + 2 * (i * tl.num_programs(0) + index)
            tl.store(place, tl.max(of_columns, 0))
            tl.store(place + 1, least)


@triton.jit
def scale_of(ranges_ptr, count):
    """What an operand's halves are multiplied by to give its entries, and 0 if they do not hold it."""
    largest, least = tl.zeros([CHUNK], tl.float32), tl.full([CHUNK], float("inf"), tl.float32)
    for start in tl.range(0, count, CHUNK):
        index = start + tl.arange(0, CHUNK)
        largest = tl.maximum(largest, tl.load(ranges_ptr + 2 * index, mask=index < count, other=0.0))
        least = tl.minimum(least, tl.load(ranges_ptr + 2 * index + 1, mask=index < count, other=float("inf")))
    top, bottom = tl.max(largest, 0), tl.min(least, 0)
    held = (top < MODERATE) & (top > 1.0 / MODERATE) & (bottom >= top * BROAD)
    return tl.where(held, power_of_two(tl.where(held, top, 1.0), 1), 0.0)


@triton.jit
def halves_kernel(
    operands, halves, counts, sizes, strides, ranges_ptr, scales_ptr, BLOCK_WIDTH: tl.constexpr, ROWS: tl.constexpr,
    LOW: tl.constexpr,
):  # fmt: skip
    """The halves of each stretch, high and then low if asked for, and the scale of each operand."""
    index = tl.program_id(0)
    for i in tl.static_range(len(operands)):
        if (tl.program_id(1) == i) & (index < counts[i]):
            scale = scale_of(ranges_ptr + 2 * i * tl.num_programs(0), counts[i])
            if index == 0:
                tl.store(scales_ptr + i, scale)
            x, exists, head, row, column = stretch(operands[i], sizes[i], strides[i], index, BLOCK_WIDTH, ROWS)
            x = x * (1.0 / tl.where(scale > 0.0, scale, 1.0))
            high = x.to(tl.float16)
            places = halves[i] + ((2 if LOW else 1) * head * sizes[i][1] + row) * BLOCK_WIDTH + column
            tl.store(places, high, mask=exists)
            if LOW:
                tl.store(places + sizes[i][1] * BLOCK_WIDTH, (x - high.to(tl.float32)).to(tl.float16), mask=exists)


def halved(width: int, low: bool, *operands: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Of each (batch, heads, length, d) the halves, and the scales: (batch, heads, length, width) the high ones alone, or
    with twice the heads, high and low in turn.
    """
    counts = tuple(x.shape[0] * x.shape[1] * triton.cdiv(x.shape[2], STRETCH) for x in operands)
    parts = 2 if low else 1
    halves = tuple(x.new_empty((x.shape[0], parts * x.shape[1], x.shape[2], width), dtype=torch.float16) for x in operands)
    ranges, scales = operands[0].new_empty((len(operands), max(counts), 2)), operands[0].new_empty(len(operands))
    grid, tile = (max(counts), len(operands)), {"BLOCK_WIDTH": width, "ROWS": STRETCH}
    sizes, strides = tuple(tuple(x.shape[1:]) for x in operands), tuple(x.stride()[:3] for x in operands)
    launch(ranges_kernel, grid, operands, counts, sizes, strides, ranges, **tile)
    launch(halves_kernel, grid, operands, halves, counts, sizes, strides, ranges, scales, **tile, LOW=low)
    return halves, scales
