"""Where a function is cut, why, and how to see it: a `print`, a branch on a value, `.item()`.

python examples/07_graph_breaks.py
"""

from __future__ import annotations

import torch

import minicompile


def clipped(x: torch.Tensor) -> torch.Tensor:
    """Three lines that cannot be in a graph, each between lines that can."""
    y = x * 2
    print("  the largest value is", y.max().item())
    if y.norm() > 10:
        y = y * (10 / y.norm())
    return y.relu() + 1


def clipped_in_one_graph(x: torch.Tensor) -> torch.Tensor:
    """The same values without a break: the branch on a tensor becomes `torch.where`."""
    y = x * 2
    norm = y.norm()
    y = torch.where(norm > 10, y * (10 / norm), y)
    return y.relu() + 1


def main() -> None:
    """Run both, compare with eager, and list the breaks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small, large = torch.ones(4, device=device), torch.full((4,), 100.0, device=device)

    compiled = minicompile.compile(clipped)
    for x in (small, large):
        torch.testing.assert_close(compiled(x), clipped(x))
    print(compiled.stats)
    for graph_break in compiled.graph_breaks:
        print(graph_break)

    whole = minicompile.compile(clipped_in_one_graph, fullgraph=True)
    for x in (small, large):
        torch.testing.assert_close(whole(x), clipped_in_one_graph(x))
    print(whole.stats)

    try:
        minicompile.compile(clipped, fullgraph=True)(small)
    except minicompile.errors.MinicompileError as error:
        print(f"fullgraph=True raises:\n{error}")


if __name__ == "__main__":
    main()
