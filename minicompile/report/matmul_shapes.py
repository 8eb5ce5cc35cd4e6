"""What the shape of a matrix product costs: padding of the last tiles, idle processors of the last wave, odd rows.

The arithmetic is that of `kernels.matmul_model`, which knows the chip; this module must not time anything.
"""

import dataclasses
import math
import re
from typing import Any

import torch

from minicompile.ir.index import hint
from minicompile.ir.loops import BufferView, ExternKernel
from minicompile.kernels.matmul_model import LAUNCH_SECONDS, PROCESSORS, VENDOR_TILES, MatmulProblem, vendor_seconds
from minicompile.report.records import MatmulShape

PRODUCTS = re.compile(r"\b(fused_matmul|mm|bmm|addmm|baddbmm|matmul)\b")
WORTH_SAYING = 0.03


def matmul_shape(step: ExternKernel) -> MatmulShape | None:
    """The product that an extern call computes, or `None` if it is something else."""
    views = [arg for arg in step.args if isinstance(arg, BufferView)]
    if not PRODUCTS.search(step.target) or len(views) < 2:
        return None
    a, b = views[:2] if step.target.startswith("kernels.") else views[-2:]
    sizes = [[hint(size) for size in view.sizes] for view in (a, b)]
    if len(sizes[0]) not in (2, 3) or len(sizes[1]) != len(sizes[0]) or 0 in (*sizes[0], *sizes[1]):
        return None
    batch = sizes[0][0] if len(sizes[0]) == 3 else 1
    problem = MatmulProblem(
        batch, sizes[0][-2], sizes[1][-1], sizes[0][-1], a.dtype.itemsize, a.dtype == torch.float32,
        "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee", all(map(has_aligned_rows, (a, b))),
    )  # fmt: skip
    return judge(problem)


def has_aligned_rows(view: BufferView) -> bool:
    """Whether the operand's rows start at multiples of 16 bytes."""
    strides = sorted(hint(stride) for stride in view.strides[-2:])
    return all(stride * view.dtype.itemsize % 16 == 0 for stride in strides[1:])


def judge(problem: MatmulProblem) -> MatmulShape:
    """The losses of one product and the nearest better shape."""
    tile = min(VENDOR_TILES, key=lambda tile: waves(problem, tile) * tile[0] * tile[1])
    tiles = tile_count(problem, tile)
    padded = tiles * tile[0] * tile[1]
    seconds = vendor_seconds(problem)
    return MatmulShape(
        problem.batch, problem.m, problem.n, problem.k, tile,
        tile_loss=1 - problem.batch * problem.m * problem.n / padded,
        wave_loss=1 - tiles / (waves(problem, tile) * PROCESSORS),
        aligned=problem.aligned and problem.aligned_result,
        estimated_us=seconds * 1e6,
        advice=better_shape(problem, seconds),
    )  # fmt: skip


def tile_count(problem: MatmulProblem, tile: tuple[int, int]) -> int:
    """Tiles of the result."""
    return problem.batch * math.ceil(problem.m / tile[0]) * math.ceil(problem.n / tile[1])


def waves(problem: MatmulProblem, tile: tuple[int, int]) -> int:
    """Rounds over the processors."""
    return math.ceil(tile_count(problem, tile) / PROCESSORS)


def better_shape(problem: MatmulProblem, seconds: float) -> str:
    """The nearest change of one size that is expected to run at a clearly better rate, as a sentence."""
    if seconds < 2 * LAUNCH_SECONDS:  # the launch decides, not the shape
        return ""
    step = max(1, 16 // problem.itemsize)
    candidates: list[tuple[float, float, str]] = []
    for name in "mnk":
        size = getattr(problem, name)
        for unit in (step, 64, 128, 256):
            for other in {math.ceil(size / unit) * unit, size // unit * unit} - {size, 0}:
                aligned = problem.aligned or (name == "k" and other % step == 0) or (name == "n" and other % step == 0)
                changed: Any = dataclasses.replace(problem, **{name: other}, aligned=aligned)
                gain = 1 - (vendor_seconds(changed) / other) / (seconds / size)
                if gain > WORTH_SAYING and abs(other - size) <= max(0.15 * size, step):
                    text = f"{name} = {other} instead of {size}: about {gain:.0%} less time per unit of {name}"
                    candidates.append((abs(other - size) / size / gain, -gain, text))
    return min(candidates)[2] if candidates else ""
