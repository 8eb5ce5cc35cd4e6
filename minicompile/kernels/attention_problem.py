"""One attention call, described once: what the forward, backward and decode launches all derive from their arguments.

This module must not import Triton and must not launch anything.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

import minicompile.gpu as gpu
from minicompile.kernels.configs import SHARED_MEMORY_LIMIT, AttentionConfig, shrunk

MAX_HEAD_DIM = 256
HALVES_FROM, ONE_HALF_FROM = 1024, 4096
"""Lengths from which on halves are faster than operands in three parts, and one half than tf32 (H200, `docs/kernels.md`)."""
SUPPORTED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
    """Sizes, band, mask and numerics of one call; tensors are (batch, heads, length, head dim)."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    lower: int | None
    upper: int | None
    mask_kind: str
    scale: float
    dropout: float
    nan_rows: bool
    precision: str
    renormalise: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads

    @property
    def masked_everywhere(self) -> bool:
        """Whether no block is free of per-element masking: a mask tensor, or a band with a lower edge."""
        return self.mask_kind != "none" or self.lower is not None

    @property
    def in_halves(self) -> bool:
        """Whether fp32 operands are taken as sums of fp16 tiles, or as one."""
        return self.precision in ("halves", "high")

    def is_bounded(self, mask: torch.Tensor | None) -> bool:
        """Whether looking through a boolean mask beforehand pays: from some blocks of keys on."""
        if mask is None or mask.dtype != torch.bool or mask.dim() < 2:
            return False
        return self.queries > 16 and self.keys > (511 if gpu.holds(mask) else 16)

    @property
    def threshold(self) -> int:
        """Random 31-bit numbers below this are dropped."""
        return min(int(self.dropout * 2**31), 2**31 - 1)

    @property
    def keep_scale(self) -> float:
        """What the surviving weights are multiplied by."""
        return 1.0 / (1.0 - self.dropout) if self.dropout < 1.0 else 0.0

    @property
    def width(self) -> int:
        """Columns of a tile of queries, keys or values, one for all, so that all tiles are laid out alike.

        ptxas 12.8 miscompiles two tiles in the same shared memory, one after the other, whose rows are swizzled
        differently: the second's matrix descriptors are made from an undefined register (wrong values or an illegal
        access on the H200). Rows of 128 bytes or more are swizzled alike; tf32 tiles are also laid out by columns.
        """
        least = 32 if self.precision in ("tf32", "tf32x3") else 16
        return max(least, padded_head_dim(max(self.d, self.dv)))

    def fitted(self, phase: str, config: AttentionConfig, itemsize: int, entry_bytes: int) -> AttentionConfig:
        """The configuration, made smaller until an upper bound of its shared memory is within the GPU's limit.

        Bytes for each row of the block that stays and of those that the loop loads, and for each element of a mask. Beside a
        pipeline's stages there are copies of the loaded rows: the parts of split products, and tf32 operands laid out anew.
        """
        row = self.width * itemsize
        halves = itemsize == 2 or self.in_halves
        split = not halves and self.precision not in ("ieee", "tf32")
        parts = 2 if not split else 3 if self.precision == "bf16x6" else 4
        resident = row * (1 if phase == "forward" else 2) * parts // 2
        while (smaller := shrunk(config)) is not None:
            stay, walk = config.block_m, config.block_n
            if phase == "key gradient":
                stay, walk = walk, stay
            copies = max(config.stages + (split and config.stages > 1), 1 if split or halves else 2)
            needed = stay * resident + 2 * walk * row * copies + config.stages * stay * walk * entry_bytes
            if needed + 1024 <= SHARED_MEMORY_LIMIT:
                break
            config = smaller
        return config

    def constants(self, config: AttentionConfig) -> dict[str, Any]:
        """The compile-time arguments that all attention kernels share."""
        return {
            "GROUP": self.group,
            "D": self.d,
            "DV": self.dv,
            "BLOCK_D": self.width,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "MASK": self.mask_kind,
            "HAS_LOWER": self.lower is not None,
            "HAS_UPPER": self.upper is not None,
            "DROPOUT": self.dropout > 0.0,
            "NAN_ROWS": self.nan_rows,
            "PRECISION": self.precision,
            "TMA": config.tma,
            "num_warps": config.warps,
            "num_stages": config.stages,
        }


def padded_head_dim(d: int) -> int:
    """The head dimension as the kernels tile it: a power of two, at least 16."""
    return max(16, 1 << (d - 1).bit_length())


def descriptor_strides(tensor: torch.Tensor) -> list[int]:
    """The strides of a tensor with adjacent columns as a TMA descriptor may have them: along a dim of size 1 a tensor's own means
    nothing and may be 0 or anything."""
    row = tensor.stride(-2) if tensor.shape[-2] > 1 else 16
    return [*(step if size > 1 else row for size, step in zip(tensor.shape[:-1], tensor.stride(), strict=False)), 1]


def describe(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, lower: int | None, upper: int | None,
    scale: float | None, dropout: float, nan_rows: bool, precision: str | None,
) -> AttentionProblem:  # fmt: skip
    """The problem that these arguments state; raises ValueError for what the kernels do not take."""
    reason = unsupported(q, k, v, mask, dropout)
    if reason:
        raise ValueError(f"flash attention: {reason}")
    precision = precision or attention_precision(q, k, v)
    kind = "none" if mask is None else "bool" if mask.dtype == torch.bool else "bias"
    return AttentionProblem(
        q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], lower, upper, kind,
        1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale), dropout, nan_rows,
        precision, q.dtype == torch.float32 and precision not in ("tf32", "high"),
    )  # fmt: skip


def unsupported(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, dropout: float = 0.0
) -> str | None:
    """Why the kernels cannot take these arguments, or None if they can."""
    if any(t.dim() != 4 for t in (q, k, v)):
        return f"queries, keys and values must have 4 dimensions, not {q.dim()}, {k.dim()} and {v.dim()}"
    if q.dtype not in SUPPORTED_DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"queries, keys and values must share one dtype of bf16, fp16, fp32, not {q.dtype}, {k.dtype}, {v.dtype}"
    if not q.device == k.device == v.device or q.device.type not in ("cuda", "cpu"):
        return f"queries, keys and values must be on one GPU (or the CPU), not {q.device}, {k.device}, {v.device}"
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        return f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not go together"
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads"
    if not 1 <= q.shape[3] <= MAX_HEAD_DIM or not 1 <= v.shape[3] <= MAX_HEAD_DIM:
        return f"head dims {q.shape[3]} and {v.shape[3]} are not in 1..{MAX_HEAD_DIM}"
    if not 0.0 <= dropout <= 1.0:
        return f"dropout {dropout} is not a probability"
    if mask is not None:
        full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if mask.dim() > 4 or any(have not in (1, want) for have, want in zip(mask.shape[::-1], full[::-1])):
            return f"a mask of shape {tuple(mask.shape)} does not broadcast to {full}"
        if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
            return f"a mask must be boolean or floating, not {mask.dtype}"
        if mask.device != q.device:
            return f"the mask is on {mask.device}, the queries on {q.device}"
    return None


def attention_precision(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """How the products of an attention are formed: in fp32 by halves (`halves.py`), from the length on where that pays."""
    precision, dims = dot_precision(q), (q.shape[3], v.shape[3])
    if min(dims) < 16 or max(dims) > 128:
        return precision
    other, least = {"bf16x6": ("halves", HALVES_FROM), "tf32": ("high", ONE_HALF_FROM)}.get(precision, (precision, 0))
    return other if min(q.shape[2], k.shape[2]) >= least else precision


def dot_precision(q: torch.Tensor) -> str:
    """How fp32 products are formed: exact on the CPU, tf32 if the user allows it, else six products of
    three bf16 parts each: on the H200 nearer to fp64 than three tf32 products, or cuBLAS, and faster."""
    if q.dtype != torch.float32 or not gpu.holds(q):
        return "ieee"
    return "tf32" if tf32_allowed() else "bf16x6"


def tf32_allowed() -> bool:
    """The user's setting for fp32 matrix products on CUDA."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def adjacent_columns(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its last dimension has stride 1 and a tile's offsets fit 32 bits, else a copy."""
    fits = (tensor.stride(-1) == 1 or tensor.shape[-1] == 1) and tensor.stride(-2) < 2**22
    return tensor if fits else tensor.contiguous()


def expand_mask(mask: torch.Tensor | None, problem: AttentionProblem) -> tuple[torch.Tensor | None, tuple[int, ...]]:
    """The mask as the kernels read it (bytes for booleans) and its four strides, 0 where it is broadcast."""
    if mask is None:
        return None, (0, 0, 0, 0)
    shape = (problem.batch, problem.heads, problem.queries, problem.keys)
    expanded = mask.expand(shape)
    return (expanded.view(torch.uint8) if mask.dtype == torch.bool else expanded), expanded.stride()


def empty_output(q: torch.Tensor, v: torch.Tensor, tokens_first: bool | None) -> torch.Tensor:
    """Room for the result: in memory (batch, length, heads) with `tokens_first`, (batch, heads, length) without; as the queries
    lie for `None`."""
    batch, heads, queries, _ = q.shape
    if q.stride(1) < q.stride(2) if tokens_first is None else tokens_first:
        return q.new_empty((batch, queries, heads, v.shape[3])).transpose(1, 2)
    return q.new_empty((batch, heads, queries, v.shape[3]))
