"""Every stage but the last for a GPU, on a machine without one: the tracer's tensors say that they lie on one.

Forward only: PyTorch's autograd asks the device itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import minicompile
from minicompile import compiler
from minicompile.bench.cases import attention_written_out, causal_attention
from minicompile.capture import dynamic, torch_interface
from minicompile.ir.program import Program
from minicompile.ir.schedule import DeviceProperties

H200 = DeviceProperties(name="NVIDIA H200", kind="cuda")


class Planned(BaseException):
    """A program was written; not an `Exception`, so that no fallback takes it for its own."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.name)
        self.program = program


def fake_on_gpu(mode: FakeTensorMode, like: torch.Tensor, sizes: Any, strides: Any) -> FakeTensor:
    """`torch_interface.symbolic_fake` on the first GPU."""
    with torch._C._DisableTorchDispatch():
        return FakeTensor(mode, torch.empty_strided(sizes, strides, dtype=like.dtype, device="meta"), torch.device("cuda:0"))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    """The program of a function's first graph, for a GPU."""

    def stop(self: Any, plan: Any, half: str, program: Program, *rest: Any) -> None:
        raise Planned(program)

    monkeypatch.setattr(torch_interface, "symbolic_fake", fake_on_gpu)
    monkeypatch.setattr(dynamic, "symbolic_fake", fake_on_gpu)
    monkeypatch.setattr(compiler, "device_properties", lambda device: H200)
    monkeypatch.setattr(compiler.Compiler, "_load", stop)

    def plan(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
        compiled = minicompile.compile(function, dynamic=True, options={"cache": False, "suppress_errors": False, **options})
        with pytest.raises(Planned) as stopped:
            compiled(*args)
        return stopped.value.program

    return plan


def test_attention_of_any_length_is_our_kernel(planned: Callable[..., Program]) -> None:
    for function, sizes in ((attention_written_out, (6, 64, 32)), (causal_attention, (2, 3, 64, 32))):
        program = planned(function, *(torch.randn(sizes) for _ in range(3)))
        assert [call for call, _ in program.extern_calls] == ["kernels.attention_forward"]


@pytest.mark.parametrize("function", [
    lambda x: F.gelu(x * 2), lambda x: x.softmax(-1), lambda x: x.sum(0), lambda x: x.t() + 1, lambda x: torch.cat([x, x * 2]),
    lambda x: F.layer_norm(x, (x.shape[-1],)).cumsum(0), lambda x: (x[:, 1:] > 0).any(1), lambda x: x.argmax(1) + torch.arange(x.shape[0], device=x.device),
])  # fmt: skip
def test_functions_of_any_size_are_kernels(planned: Callable[..., Program], function: Callable[..., Any]) -> None:
    program = planned(function, torch.randn(24, 40))
    assert program.kernels and program.device.type == "cuda" and not program.extern_calls


def test_bernoulli_draws_with_eagers_own_operator_where_that_is_asked_for(planned: Callable[..., Program]) -> None:
    program = planned(torch.bernoulli, torch.rand(24), fallback_random=True)
    assert [call for call, _ in program.extern_calls] == ["torch.ops.aten.bernoulli.default"]


@pytest.mark.parametrize(("function", "stays"), [
    (lambda x, i: x.exp() + F.pad(x, (1, -1)), True),
    (lambda x, i: x.index_select(0, i), False),
    (lambda x, i: F.embedding(i, x), False),
    (lambda x, i: x.gather(1, i.unsqueeze(1)), False),
    (lambda x, i: torch.multinomial(x, 2), False),
    (lambda x, i: F.cross_entropy(x, i), False),
])  # fmt: skip
def test_a_test_that_raises_is_made_before_what_may_stop_the_device(
    planned: Callable[..., Program], function: Callable[..., Any], stays: bool
) -> None:
    def checked(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return function(x, i)

    program = planned(checked, torch.rand(5, 7), torch.arange(5))
    results = re.findall(r"^ +return \((.*)\)$", program.text, re.MULTILINE)[0]
    assert results == ("add, ne" if stays else "any_1,"), "the result and what failed, or the test alone"


def test_a_mask_on_the_cpu_is_moved_for_the_operator_that_takes_it(planned: Callable[..., Program]) -> None:
    def function(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.tensor([True, False, True]),), v) * 2

    program = planned(function, torch.rand(3, 4), torch.rand(4))
    assert "torch.ops.aten.index_put.default" in [call for call, _ in program.extern_calls]


def test_a_constant_stays_on_the_host_where_the_host_computes_with_it(planned: Callable[..., Program]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        host, moved = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]).to(x.device)
        return x + moved, host + 1

    program = planned(function, torch.rand(5, 2))
    values = {name: constant.tolist() for name, constant in program.constants}
    assert [values[name] for name in program.host_constants] == [[1.0, 2.0]]
    assert '[1.0, 2.0], dtype=torch.float32).to("cpu")' in program.text
    assert '[3.0, 4.0], dtype=torch.float32).to("cuda:0")' in program.text


def memory_on_the_host(x: torch.Tensor) -> Any:
    first = torch.empty_strided((2, 3), (1, 2), device="cpu").fill_(3)
    second = x.new_empty_strided((2, 3), (3, 1), device="cpu").copy_(first)
    return x.exp(), first, second + 1


def test_memory_on_the_host_is_taken_with_its_strides(planned: Callable[..., Program]) -> None:
    program = planned(memory_on_the_host, torch.rand(5, 2))
    assert 'aten_empty_strided([2, 3], [1, 2], device=torch.device("cpu")' in program.text
    assert 'aten_new_empty_strided(x, [2, 3], [3, 1], device=torch.device("cpu")' in program.text


@pytest.mark.gpu
@pytest.mark.parametrize("sizes_vary", [False, True])
def test_memory_on_the_host_in_a_graph_on_a_gpu(sizes_vary: bool) -> None:
    compiled = minicompile.compile(memory_on_the_host, dynamic=sizes_vary, options={"suppress_errors": False})
    x = torch.rand(5, 2, device="cuda")
    found, wanted = compiled(x), memory_on_the_host(x)
    torch.testing.assert_close(found, wanted)
    assert [value.stride() for value in found] == [value.stride() for value in wanted]
