"""Where a boolean mask shows anything, found once and used by every attention kernel that reads the mask.

For each group of GROUP queries (or, looking at the mask from the other side, of keys) four numbers say what the group
sees of the other side: `begin`, the first that any of the group sees; `prefix`, the end of the run from `begin` on that
all of them see; `suffix`, the start of the run up to `stop` that all of them see; and `stop`, after the last that any
of them sees. The attention kernels skip what lies outside, and compute the runs without reading the mask, whatever
their tiles: so a causal mask in memory costs what causal costs, and the layers of a model share one look at it.

This module must not know how attention is computed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import minicompile.gpu as gpu
from minicompile.kernels.interpret import launch

GROUP: tl.constexpr = tl.constexpr(64)
WALKED_AT_ONCE = 128


@triton.jit
def mask_bounds_kernel(mask_ptr, bounds_ptr, strides, heads, rows, cols, BLOCK_N: tl.constexpr):
    """One program: the bounds of GROUP rows of a mask of one head, BLOCK_N columns at a time."""
    groups = tl.cdiv(rows, GROUP)
    slot = tl.program_id(0) // groups
    row = (tl.program_id(0) % groups * GROUP + tl.arange(0, GROUP))[:, None]
    base = mask_ptr + (slot // heads).to(tl.int64) * strides[0] + (slot % heads).to(tl.int64) * strides[1]
    base += row.to(tl.int64) * strides[2]
    begin, prefix = tl.cast(cols, tl.int32), tl.cast(cols, tl.int32)
    stop, suffix, broken = tl.cast(0, tl.int32), tl.cast(0, tl.int32), tl.cast(0, tl.int32)
    for start in tl.range(0, cols, BLOCK_N):
        col = start + tl.arange(0, BLOCK_N)
        inside = (row < rows) & (col < cols)[None, :]
        seen = tl.load(base + col.to(tl.int64)[None, :] * strides[3], mask=inside, other=0) != 0
        some = tl.max(seen.to(tl.int32), 0) != 0
        whole = tl.min((seen | (inside == 0)).to(tl.int32), 0) != 0
        begin = tl.minimum(begin, tl.min(tl.where(some, col, cols), 0))
        last = tl.max(tl.where(some, col + 1, 0), 0)
        stop = tl.maximum(stop, last)
        prefix = tl.minimum(prefix, tl.min(tl.where((whole == 0) & (col >= begin), col, cols), 0))
        suffix = tl.where(last > 0, tl.maximum(broken, tl.max(tl.where((whole == 0) & (col < last), col + 1, 0), 0)), suffix)
        broken = tl.maximum(broken, tl.max(tl.where(whole, 0, col + 1), 0))
    bounds = bounds_ptr + tl.program_id(0) * 4
    tl.store(bounds, begin)
    tl.store(bounds + 1, prefix)
    tl.store(bounds + 2, suffix)
    tl.store(bounds + 3, stop)


@triton.jit
def block_bounds(bounds, first, rows, BLOCK: tl.constexpr):
    """begin, prefix, suffix and stop for the BLOCK rows from `first` (a multiple of BLOCK); `bounds` are of one head."""
    GROUPS: tl.constexpr = (BLOCK + GROUP - 1) // GROUP
    group = first // GROUP + tl.arange(0, GROUPS)
    inside = group * GROUP < rows
    entry = bounds + group * 4
    begins, stops = tl.load(entry, mask=inside, other=2147483647), tl.load(entry + 3, mask=inside, other=0)
    prefixes, suffixes = tl.load(entry + 1, mask=inside, other=2147483647), tl.load(entry + 2, mask=inside, other=0)
    begin, stop = tl.min(begins, 0), tl.max(stops, 0)
    prefix = tl.min(tl.where(inside & (begins != begin), begin, prefixes), 0)
    suffix = tl.max(tl.where(inside & (stops != stop), stop, suffixes), 0)
    return begin, prefix, suffix, stop


@triton.jit
def walk_forwards(bounds, first, rows, start, full_stop, stop, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """A walk in STEPs from `start` to `stop`, free of masks until `full_stop`, cut to what BLOCK rows of the mask see."""
    begin, prefix, _, end = block_bounds(bounds, first, rows, BLOCK)
    start = tl.maximum(start, begin // STEP * STEP)
    free = tl.where(begin <= start, prefix // STEP * STEP, start)
    return start, tl.maximum(start, tl.minimum(full_stop, free)), tl.minimum(stop, end)


@triton.jit
def walk_backwards(bounds, first, rows, start, full_start, stop, walked, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """A walk in STEPs from `start` to `stop` of `walked`, free of masks from `full_start` on, cut in the same way."""
    begin, _, suffix, end = block_bounds(bounds, first, rows, BLOCK)
    start, stop = tl.maximum(start, begin // STEP * STEP), tl.minimum(stop, end)
    free = tl.maximum(full_start, tl.cdiv(suffix, STEP) * STEP)
    ends_inside = (stop % STEP != 0) & (stop < walked)
    return start, tl.maximum(start, tl.where(ends_inside, stop, free)), stop


def mask_bounds(mask: torch.Tensor, queries: int, keys: int, by_keys: bool) -> tuple[torch.Tensor]:
    """The bounds of a boolean mask that broadcasts to (batch, heads, queries, keys).

    Returns int32 (batch or 1, heads or 1, groups, 4): groups of queries that look at keys, or the other way round.
    """
    mask = mask[(None,) * (4 - mask.dim())].view(torch.uint8)
    mask = mask.expand(*mask.shape[:2], queries, keys)
    if by_keys:
        mask = mask.transpose(2, 3)
    batch, heads, rows, columns = mask.shape
    groups = triton.cdiv(rows, GROUP.value)
    bounds = torch.empty((batch, heads, groups, 4), dtype=torch.int32, device=mask.device)
    at_once = WALKED_AT_ONCE if gpu.holds(mask) else columns
    launch(
        mask_bounds_kernel, (batch * heads * groups,), mask, bounds, mask.stride(), heads, rows, columns,
        BLOCK_N=at_once, num_warps=4,
    )  # fmt: skip
    return (bounds,)
