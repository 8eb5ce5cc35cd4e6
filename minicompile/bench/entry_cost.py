"""What a call costs before its graph runs: guards checked, the graph entered; and what capturing costs.

The graphs themselves are replaced by their first results, so that nothing of a kernel or of PyTorch's operators is in the
figures. The only part of the benchmark that reaches below the public interface, which offers no other backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from minicompile.capture.entry import CompiledCallable

SECONDS, CALLS = 2.0, 10


def first_result(run: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in for a graph: runs it once, and gives that result from then on."""
    kept: list[Any] = []

    def again(*inputs: Any) -> Any:
        if not kept:
            kept.append(run(*inputs))
        return kept[0]

    return again


def with_constant_graphs(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under a compiler whose graphs cost nothing; eager as it is."""
    if name.startswith("torch"):
        return torch.compile(function, backend=lambda module, inputs: first_result(module.forward))
    if name.startswith("minicompile"):
        return CompiledCallable(function, lambda captured: first_result(captured.module.forward))
    return function


def entry_cost(name: str, function: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Microseconds to enter the graph, and seconds to capture it, beside the same forward on fake tensors."""
    seconds = []
    for _ in range(3):
        if name.startswith("torch"):
            torch.compiler.reset()
        compiled = with_constant_graphs(name, function)
        start = time.perf_counter()
        compiled(*inputs)
        seconds.append(time.perf_counter() - start)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(CALLS):
            compiled(*inputs)
        best = min(best, time.perf_counter() - start)
    captured = {} if name == "eager" else {"capture_s": min(seconds)}
    fake = {"fake_s": fake_forward_seconds(function, inputs)} if isinstance(function, torch.nn.Module) else {}
    return {"entry_us": best / CALLS * 1e6} | captured | fake


def fake_forward_seconds(module: torch.nn.Module, inputs: tuple[Any, ...]) -> float:
    """Seconds of one forward on fake tensors, which any capture has to run."""
    best = float("inf")
    for _ in range(3):
        mode = FakeTensorMode()
        tensors = module.state_dict(keep_vars=True).items()
        state: dict[str, torch.Tensor] = {key: mode.from_tensor(value) for key, value in tensors}
        fakes = tuple(mode.from_tensor(value) for value in inputs)
        start = time.perf_counter()
        with mode:
            torch.func.functional_call(module, state, fakes)
        best = min(best, time.perf_counter() - start)
    return best
