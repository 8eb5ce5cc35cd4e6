"""What hand-written kernels there are, as data: name, module, what they take, and where their tiles are decided.

For stages that must know of a kernel without importing Triton (lowering's extern kernels, the code generator, the
report). This module must not import Triton, nor a module that does.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class KernelEntry:
    """One kernel that compiled graphs may call."""

    name: str
    module: str
    function: str
    differentiable: bool
    dtypes: tuple[str, ...]
    constraints: tuple[str, ...]
    tiles: str
    summary: str


_HALF_AND_FLOAT = ("bfloat16", "float16", "float32")

KERNELS: tuple[KernelEntry, ...] = (
    KernelEntry(
        "flash_attention", "minicompile.kernels.flash_attention", "flash_attention", True, _HALF_AND_FLOAT,
        ("head dims 1 to 256", "key heads divide query heads", "mask boolean or floating, broadcastable"),
        "configs.ATTENTION_TABLE", "attention with autograd",
    ),
    KernelEntry(
        "attention_forward", "minicompile.kernels.flash_attention", "attention_forward", False, _HALF_AND_FLOAT,
        ("4-dimensional tensors", "head dims 1 to 256", "key heads divide query heads"),
        "configs.ATTENTION_TABLE", "output and log-sum-exp of attention",
    ),
    KernelEntry(
        "attention_backward", "minicompile.kernels.flash_attention", "attention_backward", False, _HALF_AND_FLOAT,
        ("the arguments and results of attention_forward",),
        "configs.ATTENTION_TABLE", "gradients of attention in two passes, deterministic",
    ),
    KernelEntry(
        "flash_decode", "minicompile.kernels.flash_decode", "flash_decode", False, _HALF_AND_FLOAT,
        ("at most 16 queries", "at most 64 rows per key head", "no dropout"),
        "flash_decode.DECODE_CONFIG", "attention of few queries, split over keys",
    ),
    KernelEntry(
        "matmul", "minicompile.kernels.matmul", "matmul", False, (*_HALF_AND_FLOAT, "int8"),
        ("2- or 3-dimensional tensors of one dtype", "no prologue", "any epilogue that is elementwise on a tile"),
        "configs.MATMUL_TABLE", "matrix product with addend, activation and epilogue",
    ),
)  # fmt: skip


def kernel(name: str) -> KernelEntry:
    """The entry of this name; KeyError if there is none."""
    for entry in KERNELS:
        if entry.name == name:
            return entry
    raise KeyError(name)
