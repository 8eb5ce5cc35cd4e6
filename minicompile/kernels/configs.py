"""Tile configurations of the hand-written kernels, as data: each with the reason for it and the date it was last
decided.

A table is read from the top; the first row that fits is the default, so adding a measured row means inserting it above.
This module must not import Triton.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeVar


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Tile of an attention kernel: BLOCK_M queries by BLOCK_N keys.

    With `one_loop`, blocks inside a causal band are masked like those on its edge: half the code and fewer registers.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    tma: bool = False
    one_loop: bool = False

    def __str__(self) -> str:
        flags = " tma" * self.tma + " one" * self.one_loop
        return f"{self.block_m}x{self.block_n} w{self.warps} s{self.stages}{flags}"


@dataclasses.dataclass(frozen=True)
class AttentionRow:
    """One decision: for which pass, numerics and padded head dim it holds, the choice, why, and since when.

    `causal` and `longest` (length of the walk) narrow it; None holds for all. `spill_bytes` is what the machine code
    for sm_90 may spill at most; the lint holds every row to it.
    """

    phase: str
    numerics: str
    head_dim: int
    tile: str
    reason: str
    spill_bytes: int = 0
    causal: bool | None = None
    longest: int | None = None
    date: str = "2026-11-21"

    @property
    def config(self) -> AttentionConfig:
        """The tile."""
        return attention_tile(self.tile)


def attention_tile(text: str) -> AttentionConfig:
    """A configuration from its short form: "128x64 w8 s3 tma", "64x32 w8 s1 one"."""
    tile, warps, stages, *flags = text.split()
    rows, columns = tile.split("x")
    return AttentionConfig(int(rows), int(columns), int(warps[1:]), int(stages[1:]), "tma" in flags, "one" in flags)


# Figures are TFLOP/s in bf16 and milliseconds in fp32 (batch 8, one head, length 4,096), of one H200 under Triton 3.6.
_UNTIMED = "from registers and shared memory; not timed yet"
_M = "H200, measured:"
_row = AttentionRow
_later = functools.partial(AttentionRow, date="2026-11-22")
_new = functools.partial(AttentionRow, date="2026-11-24")
_fresh = functools.partial(AttentionRow, date="2026-11-25")

ATTENTION_TABLE: tuple[AttentionRow, ...] = (
    _fresh("forward", "half", 64, "64x32 w4 s3", f"{_M} 197 keys: 60 us, 64x64 67, TMA 75; 77: 49, 61, 72", longest=224),
    _fresh("forward", "half", 64, "64x64 w4 s3", f"{_M} 512: 75 us, TMA 79, causal 59, 65; 1,024: 132, 136", longest=1024),
    _row("forward", "half", 64, "64x64 w4 s3 tma", f"{_M} 392 at 1,024", longest=2048),
    _row("forward", "half", 64, "64x64 w4 s4 tma", f"{_M} 386 at 4,096", causal=True, longest=8192),
    _row("forward", "half", 64, "64x128 w4 s3 tma", f"{_M} 422 at 16,384", causal=True),
    _row("forward", "half", 64, "128x64 w4 s3", f"{_M} 431 at 4,096, 445 at 16,384, pointers ahead of TMA"),
    _fresh("forward", "half", 128, "64x32 w4 s3", f"{_M} 64 keys: 35 us, 64x64 TMA 40; 77: 67, 81; 128: 44, 46", longest=128),
    _row("forward", "half", 128, "64x64 w4 s3 tma", f"{_M} full 430 / 484 / 480, causal 342 / 465 / 515; 2 per SM"),
    _row("forward", "half", 256, "128x64 w8 s2 tma", f"240 registers, 197 KB; {_UNTIMED}"),
    _row("forward", "tf32", 64, "64x64 w4 s2", f"{_M} 0.043 at 1,024 against 0.049", 128, longest=2048),
    _row("forward", "tf32", 64, "128x64 w8 s2", f"{_M} 0.327"),
    _row("forward", "tf32", 128, "64x64 w4 s2", f"{_M} 0.072 at 1,024", 192, causal=False, longest=2048),
    _row("forward", "tf32", 128, "128x64 w8 s2", f"{_M} 0.606", 128),
    _row("forward", "tf32", 256, "64x32 w4 s1 one", f"64 rows need 4 warps, 8 repeat the work; {_UNTIMED}", 640),
    _row("forward", "split", 64, "64x64 w4 s2", f"{_M} 0.629, tf32x3 0.773", 128),
    _row("forward", "split", 128, "64x32 w4 s2", f"{_M} 1.28, tf32x3 2.72", 192),
    _row("forward", "split", 256, "64x32 w4 s1 one", "16 keys are miscompiled with tf32x3 (see `width`)", 2048),
    _later("forward", "halves", 64, "128x128 w8 s2", f"{_M} 0.257, 16,384: 3.59; 64x64 w4 s2 0.272, 3.84; TMA slower"),
    _later("forward", "halves", 128, "128x64 w8 s2", f"{_M} 0.471, 16,384: 6.92; bf16x6 1.27, 19.6", 32),
    _fresh("forward", "high", 64, "64x128 w4 s3 tma", f"{_M} 16,384: 1.53, causal 0.82; 128x64 w8 s2 1.71, 1.10; tf32 4.70"),
    _fresh("forward", "high", 128, "128x64 w8 s3 tma", f"{_M} 0.239, 128x64 w8 s2 0.271; causal 0.208, 0.229"),
    _fresh("masked forward", "half", 64, "64x64 w4 s2 tma", f"{_M} padding, 512: 45 us, s3 47, pointers 57; bias 60, 61, 69"),
    _row("masked query gradient", "half", 64, "64x64 w4 s1 tma", f"more stages serialise with a bias; {_UNTIMED}"),
    _row("masked query gradient", "half", 128, "64x64 w4 s2 tma", f"8 warps serialise with a boolean mask; {_UNTIMED}"),
    _later("masked forward", "halves", 64, "64x64 w4 s2", f"wider tiles spill with a boolean mask; {_UNTIMED}"),
    _later("masked query gradient", "halves", 128, "128x32 w8 s2", f"taller tiles spill; {_UNTIMED}"),
    _later("masked key gradient", "halves", 64, "64x64 w4 s2 tma", f"as without a mask; {_UNTIMED}"),
    _later("masked key gradient", "halves", 128, "32x64 w4 s2 tma one", f"three stages do not fit; {_UNTIMED}", 576),
    _row("query gradient", "half", 64, "64x64 w4 s3 tma", f"{_M} 436 / 587 / 567", causal=True),
    _row("query gradient", "half", 64, "128x64 w8 s3 tma", f"{_M} 596 / 598 / 608"),
    _row("query gradient", "half", 128, "128x64 w8 s3 tma", f"{_M} 542 / 635 / 648, causal 392 / 576 / 638"),
    _row("query gradient", "half", 256, "64x32 w4 s2 tma", f"194 registers, 131 KB; {_UNTIMED}"),
    _row("query gradient", "tf32", 64, "64x64 w4 s1", f"{_M} 0.048 at 1,024 against 0.061", longest=2048),
    _row("query gradient", "tf32", 64, "128x32 w8 s1", f"{_M} 0.412"),
    _row("query gradient", "tf32", 128, "128x32 w8 s1 one", f"{_M} 0.880"),
    _row("query gradient", "tf32", 256, "16x32 w8 s1 one", f"fits shared memory; {_UNTIMED}", 352),
    _row("query gradient", "split", 64, "64x64 w4 s1", f"{_M} 0.758, tf32x3 0.962", 256),
    _row("query gradient", "split", 128, "64x32 w4 s1 one", f"{_M} 0.179 at 1,024 against 0.228", 192, longest=2048),
    _row("query gradient", "split", 128, "128x32 w8 s1 one", f"{_M} 1.69, 64x32 w8 3.89", 192),
    _row("query gradient", "split", 256, "16x32 w8 s1 one", f"fits shared memory; {_UNTIMED}", 640),
    _later("query gradient", "halves", 64, "128x32 w8 s2", f"{_M} 0.302, 16,384: 4.59; 64x64 w4 s2 0.307"),
    _later("query gradient", "halves", 128, "128x32 w8 s3 tma", f"{_M} full 0.599; 128x64 w8 s1 spills", 16, True),
    _later("query gradient", "halves", 128, "128x64 w8 s1", f"{_M} 0.598, 16,384: 9.50; 128x32 w8 s3 9.69", 64, False),
    _new("query gradient", "high", 64, "128x64 w8 s3 tma", f"{_M} 0.145, 16,384: 1.60; tf32 0.407, 5.72; 64x64 0.141, 1.70"),
    _fresh("query gradient", "high", 128, "128x64 w8 s3 tma", f"{_M} 0.204, 128x64 w8 s2 0.282; causal 0.169, 0.222"),
    _row("key gradient", "half", 64, "64x64 w4 s2 tma", f"{_M} 338 / 436 / 460", causal=True),
    _row("key gradient", "half", 64, "64x64 w4 s3 tma", f"{_M} 403 / 446 / 451"),
    _row("key gradient", "half", 128, "64x128 w8 s2 tma", f"{_M} causal 335 / 472 / 542", 96, causal=True),
    _row("key gradient", "half", 128, "64x128 w8 s2", f"{_M} 411 / 498 / 508, TMA 398 / 494 / 486", 96),
    _row("key gradient", "half", 256, "64x32 w8 s1 tma", f"wider keys spill over 600 bytes; {_UNTIMED}"),
    _row("key gradient", "tf32", 64, "64x64 w4 s1", f"{_M} 0.665", 256),
    _row("key gradient", "tf32", 128, "32x128 w8 s1 one", f"{_M} 1.38", 96),
    _row("key gradient", "tf32", 256, "32x16 w8 s1 one", f"fits shared memory; {_UNTIMED}", 512),
    _row("key gradient", "split", 64, "32x64 w4 s1", f"{_M} 1.22, tf32x3 1.66", 256),
    _row("key gradient", "split", 128, "32x64 w4 s1 one", f"{_M} 0.290 at 1,024 against 0.374", 1536, longest=2048),
    _row("key gradient", "split", 128, "32x128 w8 s1 one", f"{_M} 2.88, 32x64 w8 5.62", 1536),
    _row("key gradient", "split", 256, "32x16 w8 s1 one", f"fits shared memory; {_UNTIMED}", 640),
    _later("key gradient", "halves", 64, "64x64 w4 s2 tma", f"{_M} 0.410, 16,384: 6.37; pointers 0.417, 6.59"),
    _later("key gradient", "halves", 128, "32x128 w8 s3 tma one", f"{_M} 0.885, 16,384: 13.7; 64x128 w8 s1 1.03", 160),
    _new("key gradient", "high", 64, "64x64 w4 s3 tma", f"{_M} 0.195, 16,384: 2.90; tf32 0.662, 9.96"),
    _new("key gradient", "high", 128, "32x128 w8 s3 tma one", f"others spill more (3.6: 52 bytes); {_UNTIMED}", 240),
)


@dataclasses.dataclass(frozen=True)
class HopperRow:
    """One decision for the warp-specialised forward of a head dim: the tile, from how many keys on, why, and since when.

    A program has 64 queries for each of `groups`; `overlap`: a group's next scores are computed beside its softmax.
    """

    head_dim: int
    causal: bool
    groups: int
    block_n: int
    stages: int
    overlap: bool
    shortest: int
    reason: str
    date: str = "2026-11-22"


# TFLOP/s in bf16 on the H200 at lengths of 1,024 / 2,048 / 4,096 / 16,384; in brackets the plain tier's, in the same minute.
# Causal at head dim 64 it was as fast as that (389 (390), 471 (459)), and has no row.
HOPPER_VERSIONS = ("3.6.",)  # of Triton: those under which the results were checked on a chip
HOPPER_TABLE: tuple[HopperRow, ...] = (
    HopperRow(64, False, 3, 128, 2, False, 4096, f"{_M} 346 (392) / 449 (424) / 479 (421) / 525 (421)"),
    HopperRow(128, False, 2, 128, 2, True, 192, f"{_M} 491 (440) / 532 (461) / 633 (530) / 597 (477); 197 keys: 1.1 times"),
    HopperRow(128, True, 2, 128, 2, True, 1024, f"{_M} 364 (340) / 448 (397) / 526 (464) / 586 (480)"),
)


@dataclasses.dataclass(frozen=True)
class HopperBackwardRow:
    """One decision for the warp-specialised backward of a head dim: blocks of queries, the length on from which, why, when.

    `spill_bytes` is what the machine code may spill at most.
    """

    head_dim: int
    causal: bool
    block_m: int
    stages: int
    shortest: int
    reason: str
    spill_bytes: int = 0
    date: str = "2026-11-24"


# As above, all three gradients; never slower than the plain tier, at 256 by 9 (causal, head dim 64) to 45 percent.
HOPPER_BACKWARD_TABLE: tuple[HopperBackwardRow, ...] = (
    HopperBackwardRow(64, False, 128, 2, 256, f"{_M} 369 (296) / 421 (329) / 459 (361) / 485 (361)", 8),
    HopperBackwardRow(64, True, 128, 2, 256, f"{_M} 279 (228) / 356 (283) / 424 (329) / 506 (353)", 8),
    HopperBackwardRow(128, False, 64, 2, 256, f"{_M} 418 (301) / 480 (350) / 543 (380) / 546 (394)"),
    HopperBackwardRow(128, True, 64, 2, 256, f"{_M} 311 (224) / 391 (293) / 459 (349) / 539 (412)"),
)

SHARED_MEMORY_LIMIT = 232_448
Decision = TypeVar("Decision", HopperRow, HopperBackwardRow)


def hopper_row(table: tuple[Decision, ...], head_dim: int, causal: bool, length: int) -> Decision | None:
    """The decision of a table for a head dim and length, or None where the plain kernels are as fast."""
    rows = (row for row in table if row.head_dim == head_dim and row.causal == causal)
    return next((row for row in rows if length >= row.shortest), None)


def numerics_class(itemsize: int, precision: str) -> str:
    """Which rows hold for a dtype of this size and this way of forming products."""
    return precision if precision in ("tf32", "halves", "high") else "half" if itemsize == 2 else "split"


def attention_row(
    phase: str, numerics: str, head_dim: int, masked: bool = False, causal: bool = False, length: int = 4096
) -> AttentionRow:
    """The decision for a pass, numerics and padded head dim (the larger of the keys' and the values').

    `masked`: there is a mask tensor; some passes have rows of their own for that, the others take the ordinary ones.
    `length`: of the walk, which is over the keys, or over the queries for the key gradient.
    """
    for wanted in (f"masked {phase}", phase) if masked else (phase,):
        for row in ATTENTION_TABLE:
            if row.phase != wanted or row.numerics != numerics or head_dim > row.head_dim:
                continue
            if row.causal in (None, causal) and (row.longest is None or length <= row.longest):
                return row
    raise KeyError(f"no attention configuration for {phase}, {numerics}, head dim {head_dim}")


def shrunk(config: AttentionConfig) -> AttentionConfig | None:
    """The next smaller configuration: fewer stages, then half the larger side; None if there is none."""
    if config.stages > 1:
        return dataclasses.replace(config, stages=config.stages - 1)
    block_m, block_n = config.block_m, config.block_n
    if max(block_m, block_n) <= 16:
        return None
    if block_m >= block_n:
        block_m //= 2
    else:
        block_n //= 2
    return dataclasses.replace(config, block_m=block_m, block_n=block_n, warps=4)


def easier(config: AttentionConfig) -> AttentionConfig | None:
    """What to try when ptxas or the GPU refuses a configuration: no TMA, then smaller; None if there is nothing."""
    return dataclasses.replace(config, tma=False) if config.tma else shrunk(config)


def interpreted_attention_config(queries: int, keys: int) -> AttentionConfig:
    """Tiles for the interpreter, where a program costs milliseconds and a tile nothing; multiples of 16, as elsewhere."""
    rows, columns = (max(1, -(-min(length, 1024) // 16)) * 16 for length in (queries, keys))
    return AttentionConfig(rows, columns, 1, 1)


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
    """Tile of a matrix product; `swapped` computes the transposed product, for few rows."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    group_m: int = 8
    split_k: int = 1
    tma: bool = False
    halves: bool = False
    swapped: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("tma", "halves", "swapped") if getattr(self, name)]
        split = [f"split {self.split_k}"] if self.split_k > 1 else []
        tile = f"{self.block_m}x{self.block_n}x{self.block_k} w{self.warps} s{self.stages}"
        return " ".join([tile, *split, *flags])


@dataclasses.dataclass(frozen=True)
class MatmulRow:
    """One tile that the model may choose: for which numerics, its share of the matrix rate, why, and since when."""

    numerics: str
    config: MatmulConfig
    efficiency: float
    reason: str
    date: str = "2026-11-21"


MATMUL_TABLE: tuple[MatmulRow, ...] = (
    MatmulRow("half", MatmulConfig(128, 256, 64, 8, 3, tma=True, halves=True), 0.90, "large: fewest operand bytes a FLOP"),
    MatmulRow("half", MatmulConfig(256, 128, 64, 8, 3, tma=True, halves=True), 0.88, "large and tall"),
    MatmulRow("half", MatmulConfig(128, 128, 64, 8, 4, tma=True), 0.78, "middling: half the tile, less quantization"),
    MatmulRow("half", MatmulConfig(128, 64, 64, 4, 4, tma=True), 0.60, "small: more tiles than processors"),
    MatmulRow("half", MatmulConfig(64, 64, 128, 4, 4), 0.45, "small or unaligned, by pointers"),
    MatmulRow("half", MatmulConfig(128, 128, 64, 8, 3), 0.65, "unaligned for TMA, by pointers"),
    MatmulRow("half", MatmulConfig(128, 16, 128, 4, 4, swapped=True), 0.12, "up to 16 rows: weights as left operand"),
    MatmulRow("half", MatmulConfig(128, 32, 128, 4, 4, swapped=True), 0.22, "up to 32 rows: weights as left operand"),
    MatmulRow("half", MatmulConfig(64, 16, 256, 4, 3, swapped=True), 0.10, "up to 16 rows, few columns"),
    MatmulRow("tf32", MatmulConfig(128, 128, 32, 8, 4), 0.20, "H200, measured: 80 TFLOP/s; B is transposed in registers"),
    MatmulRow("tf32", MatmulConfig(64, 64, 32, 4, 4), 0.15, "small tf32 products"),
    MatmulRow("fp32", MatmulConfig(64, 64, 16, 4, 3), 0.73, "H200, measured: 44 TFLOP/s, vendor 50; wide tiles spill"),
    MatmulRow("fp32", MatmulConfig(32, 64, 16, 4, 3), 0.45, "plain FMA, small"),
    MatmulRow("split", MatmulConfig(128, 64, 32, 8, 3), 0.54, "H200, measured: bf16x6 70 TFLOP/s, tf32x3 40"),
    MatmulRow("int8", MatmulConfig(128, 128, 128, 8, 3), 0.47, "H200, measured: 737 TOP/s, vendor 850"),
    MatmulRow("int8", MatmulConfig(64, 64, 128, 4, 3), 0.40, "small int8"),
)


def matmul_tile(text: str) -> MatmulConfig:
    """The configuration that prints as `text`: "128x64x64 w4 s4 split 2 tma"."""
    tile, warps, stages, *rest = text.split()
    split = int(rest[rest.index("split") + 1]) if "split" in rest else 1
    flags = {name: name in rest for name in ("tma", "halves", "swapped")}
    block_m, block_n, block_k = map(int, tile.split("x"))
    return MatmulConfig(block_m, block_n, block_k, int(warps[1:]), int(stages[1:]), split_k=split, **flags)
