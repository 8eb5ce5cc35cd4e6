"""Why is it fast or not? One call answers: breaks with a tried rewrite, kernels, roofs, guards, accuracy.

python examples/08_explain.py [report.html]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import minicompile


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Two blocks, and a branch on a value that cuts the graph."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 65)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if x.abs().max() > 100:
            x = x / 100
        return self.head(x)


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Model().to(device)


def example_inputs() -> tuple[torch.Tensor, ...]:
    """What `minicompile explain 08_explain:model` calls the model with."""
    return (torch.randn(32, 64, device=device),)


def main(page: str | None = None) -> None:
    """Explain the model, then check it: every call runs eager beside and compares."""
    explained = minicompile.explain(model)(*example_inputs())
    print(explained)
    if page:
        print("written:", explained.save(page))
    (found,) = explained.breaks
    assert found.patch is not None and found.patch.verified
    assert {step.module for step in explained.steps} >= {"blocks.0.norm", "blocks.1.up", "head"}

    checked = minicompile.compile(model, options={"check": 2})
    (x,) = example_inputs()
    torch.testing.assert_close(checked(x), model(x), rtol=1e-4, atol=1e-5)
    assert not minicompile.api.compiled_function(checked).differences
    print("two calls checked beside eager: no difference")


if __name__ == "__main__":
    main(*sys.argv[1:])
