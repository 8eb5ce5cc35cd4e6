"""What hand-written kernels will launch is compiled before they are called: once for each kind of call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minicompile.ir.index import Symbol, as_index
from minicompile.ir.loops import BufferView, ExternKernel, LoweredGraph
from minicompile.runtime import early_kernels
from minicompile.runtime.early_kernels import EarlyKernels


def view(buffer: str, length: Any = 6) -> BufferView:
    """A transposed view that starts at the fifth element."""
    sizes, strides = (as_index(length), as_index(4)), (as_index(1), as_index(8))
    return BufferView(buffer, sizes, strides, as_index(4), torch.bfloat16)


def graph(*calls: tuple[str, Any]) -> LoweredGraph:
    """A graph of nothing but calls."""
    steps = tuple(ExternKernel(target, args, (("mask_gradient", True),), ()) for target, args in calls)
    return LoweredGraph((), {}, {}, {}, steps, ())


def test_a_kind_of_call_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def attention_forward(*args: Any, **kwargs: Any) -> None:
        seen.append((*args, kwargs))

    monkeypatch.setattr(early_kernels, "kernels", SimpleNamespace(attention_forward=attention_forward))
    early = EarlyKernels()
    length = Symbol("n", 6, 2)
    layers = graph(
        ("kernels.attention_forward", (view("q"), 0.5, None)), ("kernels.attention_forward", (view("q_1"), 0.5, None)),
        ("kernels.attention_forward", (view("r", length), 0.5, None)), ("torch.ops.aten.mm.default", (view("q"), view("q"))),
    )  # fmt: skip
    for _ in range(2):
        early.start(layers)
        early.wait()
    ((tensor, scale, mask, options),) = seen
    assert (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype) == ((6, 4), (1, 8), 4, torch.bfloat16)
    assert (scale, mask, options) == (0.5, None, {"mask_gradient": True})


def test_what_cannot_be_compiled_is_left_to_the_call() -> None:
    early = EarlyKernels()
    early.start(graph(("kernels.mask_bounds", (view("mask"), "not a number"))))
    early.wait()


def test_what_was_declined_ahead_is_compiled_when_its_graph_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(early_kernels, "kernels", SimpleNamespace(mask_bounds=lambda *args, **kwargs: seen.append("planned")))
    monkeypatch.setattr(early_kernels, "compile_launches", lambda call, device, prepare: seen.append(str(prepare([], 0))))
    early, layers = EarlyKernels(), graph(("kernels.mask_bounds", (view("mask"), 3)))
    for ahead in (True, True, False, False, True):
        early.start(layers, ahead)
    early.wait()
    assert seen == ["False", "True"]


def test_two_threads_may_wait_for_one_compilation() -> None:
    early: Any = EarlyKernels()
    second = SimpleNamespace(join=lambda: None)
    early._running = [("attention_forward", SimpleNamespace(join=lambda: early.wait("mask_bounds"))), ("mask_bounds", second)]
    early._running.append(("attention_backward", second))
    early.wait("attention_forward")
    assert [name for name, _ in early._running] == ["attention_backward"]
    early.wait()
    assert not early._running
