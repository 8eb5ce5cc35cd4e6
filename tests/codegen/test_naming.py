"""Variables of the user's may have the names that generated code uses itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import minicompile

POSITIONS = [f"{axis}_{word}" for axis in "xyr" for word in ("index", "mask", "start")]


def program(name: str) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    """A function with an argument, and a softmax of it, called `name`."""
    lines = [f"def program({name}, other):", f"    inverse = ~{name}", f"    {name} = {name}.float().softmax(-1)",
             f"    return inverse & other, {name}, {name} * other, {name}.sum(0)"]  # fmt: skip
    namespace: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {}
    exec("\n".join(lines), namespace)
    return namespace["program"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*POSITIONS, "XBLOCK", "RBLOCK", "program", "s0", "s1", "tl", "inputs", "block", "size",
                                  "run_softmax_kernel"])  # fmt: skip
def test_names_of_generated_code_are_free_for_the_user(name: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    plain = program(name)
    compiled = minicompile.compile(plain, dynamic=dynamic, options={"suppress_errors": False})
    for length in (5, 9):
        inputs = torch.rand(7, length) < 0.5, torch.rand(7, length) < 0.5
        torch.testing.assert_close(compiled(*inputs), plain(*inputs))
