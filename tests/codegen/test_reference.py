"""The reference that a generated file carries is the graph itself."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from minicompile.codegen.reference import reference_text


def test_a_graph_of_operators_becomes_a_function() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.maximum(x, torch.full_like(x, -torch.inf)) + 1, torch.zeros(3, device=y.device) * y

    x, y = torch.randn(3), torch.randn(3)
    text = reference_text(make_fx(function)(x, y))
    assert text is not None, make_fx(function)(x, y).graph.python_code("self")
    names: dict[str, object] = {"torch": torch}
    exec(text, names)
    found = names["reference"](x, y)  # type: ignore[operator]
    torch.testing.assert_close(tuple(found), function(x, y))


def test_a_graph_with_tensors_of_its_own_has_none() -> None:
    constant = torch.randn(3)
    assert reference_text(make_fx(lambda x: x + constant)(torch.randn(3))) is None
