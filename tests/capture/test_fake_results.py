"""Remembered results of fake operators: as the operator gives them, and given without running it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from minicompile.capture import fake_results
from minicompile.capture.entry import CompiledCallable
from minicompile.capture.fake_results import RememberingFakeMode
from minicompile.capture.torch_interface import fake_input
from minicompile.ir.fake_mode import FakeMode

OPERATIONS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x, y: (x + y).relu() * 2.5,
    "a number's type": lambda x, y: (x * 2, x.int() * 2, x.int() * 2.0, x.int() * True),
    "layouts": lambda x, y: (x.t() + y.t(), torch.empty_like(x.t()), x.t().contiguous(), x.to(memory_format=torch.preserve_format)),
    "views": lambda x, y: (x[1:], x[1:].t(), x.unbind(0), x.view(-1)[3:], x.expand(2, *x.shape), x.detach()),
    "moves": lambda x, y: (x.permute(1, 0), x.transpose(0, 1)[2], x.unsqueeze(1).squeeze(1), x.t().clone(), x.split([1, 3]),
                           x.t().unsqueeze(0).clone(memory_format=torch.contiguous_format).view(3, 8), y[:, 1:].expand(2, 4, 5)),
    "products": lambda x, y: (x @ y.t(), F.linear(x, y), torch.addmm(x[0, :4], x, y.t())),
    "several results": lambda x, y: (x.max(-1), x.sort(), torch.var_mean(x, -1), x.split(2)),
    "reductions": lambda x, y: (x.sum(), x.mean(-1, keepdim=True), x.softmax(-1), x.double().cumsum(0)),
    "dtypes": lambda x, y: (x.half() + y, x > y, x.to(torch.bfloat16), torch.where(x > 0, x, 1.0)),
    "new tensors": lambda x, y: (torch.zeros(3, 2), torch.full((2,), 3), x.new_zeros(2), torch.arange(4, dtype=torch.float64)),
    "writes": lambda x, y: (x.clone().add_(1), x.clone().t_(), F.dropout(x, 0.5), y.clone().view(-1).mul_(2)),
    "complex": lambda x, y: (torch.complex(x, y).conj(), torch.complex(x, y).imag, torch.complex(x, y).conj().imag),
}


def described(value: Any) -> Any:
    """All that can be told of fake tensors in a result, what shares memory included."""
    seen: dict[int, int] = {}

    def one(item: Any) -> Any:
        if isinstance(item, FakeTensor):
            place = seen.setdefault(item.untyped_storage()._cdata, len(seen))
            return (tuple(item.shape), item.stride(), item.storage_offset(), item.dtype, item.device, item.requires_grad,
                    item.is_leaf, item._is_view(), item.is_conj(), item.is_neg(), item.is_inference(), item.is_inference() or item._version, place)
        return [one(each) for each in item] if isinstance(item, (tuple, list)) else item

    return one(value)


@pytest.mark.parametrize("setting", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_of_plain_fake_tensors(name: str, setting: Any) -> None:
    def run(mode: FakeTensorMode) -> Any:
        x, y = torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)
        with setting():
            fakes = [fake_input(mode, value) for value in (x, y)]
            with mode:
                return described((fakes, OPERATIONS[name](*fakes)))

    expected = run(FakeMode())
    fake_results.RESULTS.clear()
    mode = RememberingFakeMode(allow_non_fake_inputs=False)
    assert run(mode) == expected
    assert run(mode) == expected, "the second time"


@pytest.mark.parametrize("make", [
    lambda: nn.Parameter(torch.randn(3)), lambda: torch.randn(4, 4)[1:], lambda: torch.randn(4, 4).t(), lambda: torch.zeros(0, 3),
    lambda: torch.randn(2, requires_grad=True) * 2, lambda: torch.randn(2, 3).transpose(0, 1).contiguous().data,
    lambda: torch.tensor(3), lambda: torch.empty_strided((2, 2), (4, 1)),
])  # fmt: skip
def test_inputs_are_those_of_plain_fake_tensors(make: Callable[[], Tensor]) -> None:
    value = make()
    plain, ours = FakeTensorMode().from_tensor(value), fake_input(RememberingFakeMode(), value)
    assert described(ours) == described(plain)
    assert isinstance(ours, nn.Parameter) == isinstance(value, nn.Parameter)


@pytest.mark.parametrize(("sizes", "strides", "wanted"), [
    ((1, 3, 2), (1, 2, 1), (1, 2, 1, 3, 1)), ((1, 3), (1, 1), (1, 1, 3)), ((3, 1, 4), (1, 1, 3), (12,)), ((4, 1, 2), (1, 8, 4), (8, 1)),
])  # fmt: skip
@pytest.mark.parametrize("setting", [torch.enable_grad, torch.inference_mode])
def test_views_are_those_of_eager_where_sizes_are_one(sizes: Any, strides: Any, wanted: Any, setting: Any) -> None:
    def strides_of(value: Tensor) -> Any:
        try:
            return value.view(wanted).stride()
        except RuntimeError:
            return "no view"

    real, mode = torch.empty_strided(sizes, strides), RememberingFakeMode()
    fake = fake_input(mode, real)
    with mode, setting():
        found = strides_of(fake)
    assert found == strides_of(real)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("wanted", [(-1,), (4, 2, -1), (2, 4, 2, 2, 4), (8, 16)])
def test_views_of_sizes_that_vary_are_those_of_eager(order: Any, wanted: Any) -> None:
    def strides_of(value: Tensor) -> Any:
        try:
            return tuple(map(int, value.view(wanted).stride()))
        except (RuntimeError, ValueError):
            return "no view"

    real = torch.empty_strided((2, 4, 4, 4), [(128, 32, 8, 2)[place] for place in order])
    mode = RememberingFakeMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(real, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 4))
    expected = strides_of(real)
    with mode:
        assert strides_of(fake) == expected


@pytest.mark.parametrize("sizes", [(1, 8, 4, 4), (3, 8, 1, 4), (1, 2, 3, 1)])
@pytest.mark.parametrize("odd", [1, 8, 100])
@pytest.mark.parametrize("computed", [lambda x: x / 2.0, lambda x: x > torch.tensor(1.0), lambda x: 1 - x, lambda x: x + x, lambda x: x.pow(2)])
def test_results_of_a_tensor_in_channels_last_and_numbers_are_those_of_eager(sizes: Any, odd: int, computed: Any) -> None:
    """The stride of a size of 1 counts there, and what a convolution makes of the result lies accordingly."""
    strides = torch.empty(sizes).to(memory_format=torch.channels_last).stride()
    real = torch.empty_strided(sizes, [odd if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)])
    mode = RememberingFakeMode()
    with mode:
        found = computed(fake_input(mode, real)).stride()
    assert found == computed(real).stride()


def test_a_setting_that_changes_results_is_part_of_what_is_remembered() -> None:
    mode, before = RememberingFakeMode(), torch.get_default_dtype()
    found = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            with mode:
                found.append(torch.full((2,), 1.5).dtype)
    finally:
        torch.set_default_dtype(before)
    assert found == [torch.float32, torch.float64]


class Block(nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        return x + self.second(F.gelu(self.first(self.norm(x))))


def test_more_equal_layers_run_no_more_fake_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    dispatch = FakeTensorMode.dispatch

    def counted(self: Any, func: Any, *rest: Any) -> Any:
        ran.append(func)
        return dispatch(self, func, *rest)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counted)
    counts = []
    for layers in (3, 3, 12):
        fake_results.RESULTS.clear()
        ran.clear()
        model = nn.Sequential(*[Block() for _ in range(layers)])
        CompiledCallable(model, lambda captured: captured.module.forward)(torch.randn(2, 4))
        counts.append(len(ran))
    assert counts[1] == counts[2] > 0, "the first time PyTorch's own memory was empty"
