"""Cross-entropy over a linear head without the logits in memory: losses and gradients a chunk of rows at a time.

Idea (Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024; Hsu et al., Liger Kernel, 2024): of
the logits X Wᵀ only a chunk of rows exists at a time. One kernel turns it into its own gradient softmax - onehot while
it computes the losses, so that the gradients of X and W are two products more, and logits are made once. The products
are the vendor's, whose time dominates; with more than one chunk the gradient of W is added up in fp32.

This module must not decide when that pays: the caller does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl

import minicompile.gpu as gpu
from minicompile.kernels.interpret import launch

CHUNK_ELEMENTS = 2**28
LEAST_ROWS = 1024
BLOCK = 4096


@triton.jit
def cross_entropy_rows_kernel(
    logits_ptr, target_ptr, loss_ptr, stride, columns, ignore_index, smoothing,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: the loss of one row, and with GRADIENT its gradient in the place of the logits, 0 behind the columns."""
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * stride
    target = tl.load(target_ptr + row)
    maximum = tl.full([BLOCK], float("-inf"), tl.float32)
    plain, total = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logits = tl.load(base + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(maximum, logits, propagate_nan=tl.PropagateNan.ALL)
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(maximum - finite) + tl.exp(logits - finite)
        plain += tl.where(column < columns, logits, 0.0)
        maximum = higher
    highest = tl.max(maximum, 0)
    total = tl.sum(total * tl.exp(maximum - highest), 0)
    hit = tl.load(base + target, mask=(target >= 0) & (target < columns), other=0.0).to(tl.float32)
    loss = tl.log(total) - (1.0 - smoothing) * (hit - highest) - smoothing * (tl.sum(plain, 0) / columns - highest)
    kept = target != ignore_index
    tl.device_assert(~kept | ((target >= 0) & (target < columns)), "a class out of range")
    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0))
    if GRADIENT:
        for start in tl.range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            logits = tl.load(base + column, mask=column < columns, other=float("-inf")).to(tl.float32)
            wanted = smoothing / columns + tl.where(column == target, 1.0 - smoothing, 0.0)
            gradient = tl.where(kept & (column < columns), tl.exp(logits - highest) / total - wanted, 0.0)
            tl.store(base + column, gradient.to(logits_ptr.dtype.element_ty), mask=column < stride)


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int = -100,
    smoothing: float = 0.0, gradients: bool = True, chunk_rows: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The losses of all rows (fp32, 0 for ignored ones), and the gradients of their sum: of hidden, weight and bias.

    `hidden` is (rows, width), `weight` (columns, width), `target` (rows). Without `gradients` those are empty.
    """
    rows, columns = hidden.shape[0], weight.shape[0]
    each = chunk_rows or max(LEAST_ROWS, CHUNK_ELEMENTS // max(1, columns) // 256 * 256)
    # The vendor's products are several times slower on sizes that are not multiples of 16: columns of zeros make up for it.
    missing = -columns % 16
    if missing:
        weight = functional.pad(weight, (0, 0, 0, missing))
        bias = None if bias is None else functional.pad(bias, (0, missing))
    losses = hidden.new_empty((rows,), dtype=torch.float32)
    of_hidden = torch.empty_like(hidden) if gradients else hidden.new_empty(0)
    of_weight = weight.new_zeros(weight.shape if gradients else 0, dtype=torch.float32 if rows > each else weight.dtype)
    of_bias = hidden.new_zeros(len(weight) if gradients and bias is not None else 0, dtype=torch.float32)
    buffer = hidden.new_empty((min(rows, each), len(weight)))
    for start in range(0, rows, each):
        part = hidden[start : start + each]
        logits = buffer[: part.shape[0]]
        torch.mm(part, weight.t(), out=logits) if bias is None else torch.addmm(bias, part, weight.t(), out=logits)
        launch(
            cross_entropy_rows_kernel, (part.shape[0],), logits, target[start : start + each].contiguous(),
            losses[start : start + each], buffer.stride(0), columns, ignore_index, smoothing, GRADIENT=gradients,
            BLOCK=BLOCK if gpu.holds(hidden) else len(weight), num_warps=16,
            debug=True, sanitize_overflow=False,  # with the assertion
        )  # fmt: skip
        if gradients:
            torch.mm(logits, weight, out=of_hidden[start : start + each])
            if rows <= each:
                torch.mm(logits.t(), part, out=of_weight)
            elif weight.dtype == torch.float32:
                of_weight.addmm_(logits.t(), part)
            elif hidden.is_cuda:
                torch.addmm(of_weight, logits.t(), part, out_dtype=torch.float32, out=of_weight)
            else:
                of_weight += logits.t() @ part
            if bias is not None:
                of_bias += logits.sum(0, dtype=torch.float32)
    return losses, of_hidden, of_weight[:columns].to(weight.dtype), of_bias[:columns].to(hidden.dtype)
