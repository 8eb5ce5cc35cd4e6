"""Text that shows tensors costs no graph break where nobody looks at it, and one where somebody does."""

from __future__ import annotations

import torch

from tests.capture.support import capture


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def test_messages_of_checks_that_pass_cost_nothing() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        check(x.dim() == 1, f"no vector: {y.sum():.3f}")
        torch._check(x.shape[0] < 5, lambda: f"{x}")
        return y * 2

    compiled = capture(outer)
    for length in (2, 3, 4):
        x = torch.arange(float(length))
        assert torch.equal(compiled(x), outer(x))
    assert [len(graph.module.graph.find_nodes(op="output")[0].args[0]) for graph in compiled.records.graphs] == [1, 1]
    assert not compiled.records.graph_breaks


def test_text_is_made_in_front_of_the_break_that_needs_it() -> None:
    def outer(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        text = f"{x.sum():.1f}"
        x = x + 1
        print(text)
        return x * 2, text

    compiled = capture(outer)
    assert compiled(torch.ones(3))[1] == "3.0"
    assert [stop.reason for stop in compiled.records.graph_breaks] == ["`print` is called"]


def test_text_of_a_tensor_that_is_changed_afterwards_is_a_break() -> None:
    def outer(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        y = x * 2
        text = f"{y.sum()}"
        return y.zero_(), f"{text}"

    compiled = capture(outer)
    assert compiled(torch.ones(3))[1] == "6.0"
    assert not compiled.records.fallbacks
