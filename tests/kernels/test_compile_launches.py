"""The kernels of a wrapper are compiled together and launched by nobody meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import torch

from minicompile.kernels.interpret import OPTIONS, compile_launches, launch


class Kernel:
    """In place of a `@triton.jit` function."""

    hash = "its name"

    def __init__(self, together: threading.Barrier, error: Exception | None = None) -> None:
        self.compiled: list[Any] = []
        self.launched: list[Any] = []
        self.together, self.error, self.loaded = together, error, 0

    def warmup(self, *args: Any, grid: Any, **meta: Any) -> Kernel:
        self.together.wait(30)
        self.compiled.append((grid, meta))
        if self.error is not None:
            raise self.error
        return self

    @property
    def run(self) -> None:
        """What Triton's compiled kernels load themselves for."""
        self.loaded += 1

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **meta: self.launched.append((grid, meta))


def test_kernels_are_compiled_at_once_and_not_launched() -> None:
    together = threading.Barrier(2)
    first, second = Kernel(together), Kernel(together, RuntimeError("does not compile"))
    tensor = torch.empty(4, device="meta")

    def wrapper() -> None:
        launch(first, (2,), tensor, BLOCK=16)
        launch(second, (3,), tensor, BLOCK=32)

    compile_launches(wrapper, torch.device("meta"))
    assert first.compiled == [((2,), {"BLOCK": 16} | OPTIONS)] and second.compiled == [((3,), {"BLOCK": 32} | OPTIONS)]
    assert not first.launched and not second.launched
    assert (first.loaded, second.loaded) == (1, 0)
    wrapper()
    assert first.launched == [((2,), {"BLOCK": 16} | OPTIONS)] and second.launched == [((3,), {"BLOCK": 32} | OPTIONS)]


def test_a_wrapper_that_raises_raises_when_it_is_called_in_earnest() -> None:
    def wrapper() -> None:
        raise ValueError("no")

    compile_launches(wrapper, torch.device("meta"))
    compile_launches(lambda: None, torch.device("meta"))
