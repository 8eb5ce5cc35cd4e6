"""Programs that the tests of the report explain; in a file, because explanations show source lines."""

from __future__ import annotations

import torch
from torch import nn


def norm(x, weight):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x * scale * weight).relu()


def printing(x):
    y = x.relu()
    print("between")
    return y + 1


def branching(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x - 1
    return y.exp()


def returning(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def item(x):
    total = x.sum().item()
    return x / total


def hidden_item(x):
    total = int(x.sum().item())
    return x[:total]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers=2, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Model()


def example_inputs():
    return (torch.randn(4, 16),)


def mean_in_one_line(x): return x.mean().item()  # noqa: E704 - a patch of whole lines would break it


def one_line(x):
    """Calls a function whose body is in the line of its head, and one that breaks in a call."""
    if x.dim() == 2: x = x * mean_in_one_line(x)  # noqa: E701 - as above
    return x + 1
