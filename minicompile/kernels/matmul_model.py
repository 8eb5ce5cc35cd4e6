"""Which tile, and whether this package's matmul or the vendor's, from arithmetic alone; each choice says why.

Time of a tiling = waves · (K steps · max(matrix time, operand time) + fill + store), never less than the bytes at the
memory's rate. Waves count whole rounds of programs over the processors (wave quantization), tiles count whole tiles
(tile quantization), both rounded up: that is where the vendor's library and we differ on odd sizes. The vendor is
modelled as the same arithmetic over its own tiles at its measured efficiency, with a penalty when the rows of an
operand, or of the result, are not multiples of 16 bytes.

Constants are fitted to 60 bf16 products on one H200 (2026-11-21, cuBLAS of torch 2.11 against Triton 3.6, TFLOP/s):
aligned, the vendor is as fast or faster nearly everywhere (4,096 cubed 742 : 716, small ones by 1.3 to 2), so it is
taken unless an epilogue saves enough traffic; rows of the result not aligned, 99 : 712 (4096 x 4095 x 4096), 95 : 517
(2048 x 50257 x 768), 14 : 62 (16 x 50257 x 4096), since our operands still load by TMA; operands not aligned, 120 : 137
and 477 for the vendor on aligned copies (4096 x 4096 x 4095), which the caller makes before it asks. In fp32
the vendor has 50, three-part bf16 products 70 with a sixth of its error; in tf32 397 : 80, as B is not K-major there.

This module must not import Triton nor touch a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from minicompile.kernels.configs import MATMUL_TABLE, MatmulConfig, MatmulRow

PROCESSORS = 132
BYTES_PER_SECOND = 4.27e12
L2_BYTES_PER_PROCESSOR = 70e9
LAUNCH_SECONDS = 3e-6
DESCRIPTOR_SECONDS = 5e-6
MATRIX_RATE = {"half": 790e12, "tf32": 395e12, "fp32": 60e12, "split": 130e12, "int8": 1580e12}
VENDOR_TILES = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 64))
VENDOR_EFFICIENCY = {"half": 0.95, "tf32": 0.96, "fp32": 0.84, "int8": 0.54}
VENDOR_SPLITS = (1, 2, 4, 8, 16, 32, 64)
UNALIGNED_PENALTY = 5.5
POINTER_PENALTY = 8.0
"""Loads of single elements are not pipelined, and spill: 777 x 1333 x 2056 took 200 us with a tile of 128 x 256 (2026-11-25)."""
VENDOR_BANDWIDTH = 0.88
MARGIN = 1.10
EPILOGUE_MARGIN = {"half": 1.3, "int8": 1.3, "tf32": 1.3, "fp32": 1.04, "split": 1.04}
"""Measured on the H200: in bf16, where the estimates had promised 1.04, a residual gains up to 1.15, but gelu loses up to
0.71, as its arithmetic is not hidden behind the products; in exact fp32 every epilogue gains, 1.1 to 1.35."""
EPILOGUE_FLOPS_PER_SECOND = 9e12
KEPT_BYTES_PER_SECOND = 0.6e12
"""Measured on the H200: gelu behind 100352 x 384 x 96 in bf16 takes 0.167 ms, and 0.305 where the product is stored too; the
vendor's product takes 0.03, gelu of as many elements by itself 0.053."""
NOT_OVERLAPPED = 0.1


@dataclasses.dataclass(frozen=True)
class MatmulProblem:
    """Sizes and numerics of one product, and what follows it. `aligned`: both operands have 16-byte strides and addresses;
    `by_vectors`: their rows even begin at multiples of 16 elements, without which Triton loads one element at a time where
    there is no descriptor; `bytes_kept`: of the product, where it is stored beside the result of the epilogue."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int
    is_fp32: bool
    precision: str
    aligned: bool
    epilogue_bytes_saved: int = 0
    epilogue_flops: int = 0
    bytes_kept: int = 0
    by_vectors: bool = True

    @property
    def numerics(self) -> str:
        """Which rows of the table hold."""
        if self.is_fp32:
            return {"ieee": "fp32", "tf32": "tf32"}.get(self.precision, "split")
        return "int8" if self.itemsize == 1 else "half"

    @property
    def aligned_result(self) -> bool:
        """Whether the rows of the result are multiples of 16 bytes."""
        return self.n * self.itemsize % 16 == 0

    @property
    def least_bytes(self) -> int:
        """Bytes that any implementation moves."""
        return self.batch * self.itemsize * (self.m * self.k + self.k * self.n + self.m * self.n)


@functools.lru_cache(maxsize=1 << 12)
def choose(problem: MatmulProblem) -> tuple[MatmulConfig | None, str]:
    """Our tile (`None`: the vendor's library) for one product and what follows it, and the reason with the estimates."""
    config, ours = rank_configs(problem, 1)[0]
    saved = problem.epilogue_bytes_saved
    margin = EPILOGUE_MARGIN[problem.numerics] if saved else MARGIN
    vendor = vendor_seconds(problem) + saved / BYTES_PER_SECOND
    estimates = f"estimated {ours * 1e6:.1f} us with {config} against {vendor * 1e6:.1f} us"
    if vendor < ours * margin:
        return None, f"the vendor's library is expected to be as fast: {estimates}"
    causes = ["three-part bf16 products are faster than plain fp32 ones"] if problem.numerics == "split" else []
    if not problem.aligned_result:
        causes.append("rows of the result are not multiples of 16 bytes, which the vendor's library is slow at")
    if saved:
        causes.append(f"the epilogue saves {saved / 1e6:.1f} MB of traffic")
    return config, f"{'; '.join(causes) or 'better tile quantization'}: {estimates}"


def route(setting: str, tf32: bool, facts: Any) -> tuple[str | None, str]:
    """Our tile (`None`: the vendor's library) and the reason, under `setting` ("auto", "triton" or "aten").

    `facts` has sizes (`batch`, `m`, `n`, `k`), `dtype`, `aligned`, `by_vectors`, `on_gpu`, and of an epilogue `bytes_saved`,
    `flops` and `bytes_kept`.
    """
    is_fp32 = facts.dtype.itemsize == 4
    precision = ("tf32" if tf32 else "bf16x6") if is_fp32 else "ieee"
    problem = MatmulProblem(facts.batch, facts.m, facts.n, facts.k, facts.dtype.itemsize, is_fp32, precision,
                            facts.aligned, facts.bytes_saved, facts.flops, facts.bytes_kept, facts.by_vectors)  # fmt: skip
    if setting == "triton":
        return str(rank_configs(problem, 1)[0][0]), "as asked for"
    if not facts.on_gpu:
        return None, "the vendor's library: on the CPU our kernel is interpreted"
    tile, reason = choose(problem)
    return None if tile is None else str(tile), reason


def rank_configs(problem: MatmulProblem, count: int) -> list[tuple[MatmulConfig, float]]:
    """The best few tiles with their estimated seconds."""
    options: list[tuple[MatmulConfig, float]] = []
    for row in MATMUL_TABLE:
        too_tall = row.config.swapped and problem.m > row.config.block_n
        if row.numerics != problem.numerics or too_tall or (row.config.tma and not problem.aligned):
            continue
        for split in _splits(problem, row.config):
            config = dataclasses.replace(row.config, split_k=split)
            options.append((config, _seconds(problem, row, config)))
    return sorted(options, key=lambda option: option[1])[:count]


def _splits(problem: MatmulProblem, config: MatmulConfig) -> list[int]:
    """Splits of K worth trying: those that do not exceed one wave, with at least four steps each.

    A split product is loaded by pointers, for which the tiles that TMA fills are not made.
    """
    if config.tma:
        return [1]
    m, n = (problem.n, problem.m) if config.swapped else (problem.m, problem.n)
    tiles = math.ceil(m / config.block_m) * math.ceil(n / config.block_n) * problem.batch
    steps = max(1, problem.k // (4 * config.block_k))
    return [1] + [s for s in (2, 3, 4, 6, 8, 12, 16) if s <= steps and tiles * s <= 2 * PROCESSORS]


def _seconds(problem: MatmulProblem, row: MatmulRow, config: MatmulConfig) -> float:
    m, n = (problem.n, problem.m) if config.swapped else (problem.m, problem.n)
    tile = (config.block_m, config.block_n)
    matrix = _tiling_seconds(problem, m, n, tile, config.split_k, row.efficiency)
    parts = 2 * 4 * config.split_k * m * n * problem.batch if config.split_k > 1 else 0
    fit = problem.aligned and (config.tma or problem.by_vectors or problem.is_fp32)  # fp32 is split in registers anyway
    penalty = 1.0 if fit else POINTER_PENALTY
    memory = (problem.least_bytes + parts) / (0.88 * BYTES_PER_SECOND)
    longer, shorter = max(matrix * penalty, memory), min(matrix * penalty, memory)
    launches = LAUNCH_SECONDS * (1 + (config.split_k > 1)) + DESCRIPTOR_SECONDS * config.tma
    return launches + longer + NOT_OVERLAPPED * shorter + _epilogue_seconds(problem)


def _epilogue_seconds(problem: MatmulProblem) -> float:
    """What an epilogue adds where products are too quick to hide it."""
    if problem.numerics not in ("half", "int8"):
        return 0.0
    return problem.epilogue_flops / EPILOGUE_FLOPS_PER_SECOND + problem.bytes_kept / KEPT_BYTES_PER_SECOND


def _tiling_seconds(
    problem: MatmulProblem, m: int, n: int, tile: tuple[int, int], split: int, efficiency: float
) -> float:
    """Whole waves of whole tiles at this share of the matrix rate; the efficiency is that of a full tile."""
    programs = math.ceil(m / tile[0]) * math.ceil(n / tile[1]) * problem.batch * split
    waves = math.ceil(programs / PROCESSORS)
    inner = max(1, math.ceil(problem.k / split))
    rate = MATRIX_RATE[problem.numerics] / PROCESSORS * efficiency
    matrix = 2.0 * tile[0] * tile[1] * inner / rate
    # A tile is never faster than its operands come from the L2 cache when all processors read.
    operands = (tile[0] + tile[1]) * inner * problem.itemsize / L2_BYTES_PER_PROCESSOR
    return waves * (max(matrix, operands) + 1.0e-6)


def vendor_seconds(problem: MatmulProblem) -> float:
    """The vendor's library by the same arithmetic, the best of its tiles and splits; split products are ours alone."""
    if problem.numerics == "split":
        problem = dataclasses.replace(problem, precision="ieee")
    efficiency = VENDOR_EFFICIENCY[problem.numerics]
    matrix = min(
        _tiling_seconds(problem, problem.m, problem.n, tile, split, efficiency * (0.6 if tile == (64, 64) else 1.0))
        for tile in VENDOR_TILES
        for split in VENDOR_SPLITS
    )
    memory = problem.least_bytes / (VENDOR_BANDWIDTH * BYTES_PER_SECOND)
    longer = max(matrix, memory)
    if problem.numerics == "half" and not (problem.aligned and problem.aligned_result):
        longer *= UNALIGNED_PENALTY
    return LAUNCH_SECONDS + longer
