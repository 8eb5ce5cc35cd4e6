"""The language model of the benchmark: RMSNorm, rotary embedding, attention with an fp32 softmax, SwiGLU."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = {
    "tiny": (32, 64, 2, 2),
    "small": (768, 3072, 12, 12),
    "deep": (768, 3072, 48, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25),
    "2.7b": (2560, 10240, 32, 32),
}
"""Name to width, feed-forward width, layers, heads."""


class LanguageModelBlock(nn.Module):
    """One layer."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward on `x` (batch, time, width)."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = torch.where(mask, q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), float("-inf"))
        mixed = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    """Token ids (batch, time) to logits."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor

    def __init__(
        self, width: int, hidden: int, layers: int, heads: int, vocabulary: int = 10000, context: int = 512
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LanguageModelBlock(width, hidden, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        head_width = width // heads
        angles = torch.outer(torch.arange(context), 10000 ** (-torch.arange(0, head_width, 2) / head_width))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.tril(torch.ones(context, context, dtype=torch.bool)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of every position."""
        time = ids.shape[1]
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time], self.mask[:time, :time])
        return self.head(self.norm(x))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), -1)
