"""Workloads of training: normalisations and losses with their backward, and the steps of an optimizer.

Like `cases`, it says what to call and how many bytes that moves at least, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

NORMS = ("layer_norm", "rms_norm", "softmax", "bias_gelu", "group_norm", "batch_norm")
SHAPES = ((8192, 768), (32768, 768), (16384, 2560), (8192, 8192))
OPTIMIZERS = ("sgd", "adamw", "adamw_clipped")
Tensors = list[torch.Tensor]


def backward_function(name: str, columns: int) -> tuple[Callable[..., torch.Tensor], int]:
    """The function of a case, and how many vectors of `columns` elements it takes behind its data."""
    functions: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (columns,), w, b), 2),
        "rms_norm": (lambda x, w: F.rms_norm(x, (columns,), w), 1),
        "softmax": (lambda x: x.softmax(-1), 0),
        "bias_gelu": (lambda x, b: F.gelu(x + b), 1),
        "group_norm": (lambda x, w, b: F.group_norm(x.view(-1, columns, 8, 8), 8, w, b), 2),
        "batch_norm": (lambda x, w, b: F.relu(F.batch_norm(x.view(-1, columns, 8, 8), None, None, w, b, training=True)), 2),
    }
    return functions[name]


def sizes(quick: bool) -> list[tuple[int, ...]]:
    """The shapes of the 147 parameters of a language model with 24 layers, or of very little."""
    width = 16 if quick else 768
    layer = ((width,), (3 * width, width), (width, width), (width,), (4 * width, width), (width, 4 * width))
    return [(100 if quick else 10000, width), *(shape for _ in range(24) for shape in layer), (width,), (width, width)]


def optimizer_step(name: str, count: int) -> Callable[..., Tensors]:
    """The new parameters and states from `count` parameters, gradients and states each, given one behind the other."""

    def step(*tensors: torch.Tensor) -> Tensors:
        parameters, gradients, *states = (list(tensors[i : i + count]) for i in range(0, len(tensors), count))
        if name == "sgd":
            (momenta,) = states
            momenta = list(torch._foreach_add(torch._foreach_mul(momenta, 0.9), gradients))
            return [*torch._foreach_add(parameters, momenta, alpha=-0.01), *momenta]
        if name == "adamw_clipped":
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            gradients = list(torch._foreach_mul(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0)))
        means, squares = states
        parameters = list(torch._foreach_mul(parameters, 1 - 1e-5))
        means = list(torch._foreach_lerp(means, gradients, 0.1))
        squares = list(torch._foreach_addcmul(torch._foreach_mul(squares, 0.999), gradients, gradients, 0.001))
        scale = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
        return [*torch._foreach_addcdiv(parameters, means, scale, -1e-3), *means, *squares]

    return step


def optimizer_inputs(name: str, quick: bool, device: str) -> tuple[tuple[torch.Tensor, ...], int]:
    """The inputs of a step, and the least bytes it must move."""
    shapes = sizes(quick)
    lists: list[Any] = [[torch.rand(shape, device=device) for shape in shapes] for _ in range(3 if name == "sgd" else 4)]
    moved = {"sgd": 5, "adamw": 7, "adamw_clipped": 8}[name]
    return tuple(tensor for tensors in lists for tensor in tensors), moved * sum(p.nbytes for p in lists[0])
