"""Convolutions with few products for each result: kernels of the graph on a GPU, with eager's values, gradients and strides."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.graph import short_convolutions
from tests.differential import check

OPTIONS = {"suppress_errors": False, "cache": False, "verify": True}
WHERE = [pytest.param("cpu", id="cpu"), pytest.param("cuda", marks=pytest.mark.gpu, id="cuda")]


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU, where the library's kernel is fast, like a GPU."""
    monkeypatch.setattr(short_convolutions, "gpu", types.SimpleNamespace(holds=lambda value: True))


def line(batch: int, channels: int, length: int, dtype: torch.dtype, device: str, tokens_first: bool) -> torch.Tensor:
    """A signal of several channels, as a network that works on tokens holds it, or in order."""
    shape = (batch, length, channels) if tokens_first else (batch, channels, length)
    value = torch.randn(shape, dtype=dtype, device=device)
    return (value.transpose(1, 2) if tokens_first else value).requires_grad_()


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("sizes", "taps", "padding", "dilation", "tokens_first"),
    [((2, 6, 19), 4, 3, 1, True), ((1, 3, 9), 3, 2, 2, False), ((3, 5, 8), 5, 0, 1, True), ((2, 4, 7), 1, 0, 1, False),
     ((2, 4, 7), 2, 9, 3, False), ((1, 1, 8), 8, 3, 1, True)],
)  # fmt: skip
def test_values_gradients_and_strides(
    sizes: tuple[int, int, int], taps: int, padding: int, dilation: int, tokens_first: bool, dtype: torch.dtype, device: str
) -> None:
    value = line(*sizes, dtype, device, tokens_first)
    weight, bias = (torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in ((sizes[1], 1, taps), sizes[1]))

    def convolved(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.conv1d(value, weight, bias, padding=padding, dilation=dilation, groups=sizes[1])

    compiled = minicompile.compile(convolved, options=OPTIONS)
    check(convolved, value, weight, bias, compile=lambda _: compiled, reference=dtype != torch.float64, tolerance=4.0)
    assert compiled.stats.extern_calls == 0


def test_an_expanded_line_and_turned_filters_at_several_lengths_beside_side_effects() -> None:
    def twice(value: torch.Tensor, weight: torch.Tensor, seen: list[int]) -> tuple[torch.Tensor, ...]:
        seen.append(value.shape[2])
        once = F.conv1d(value, weight, padding=2, groups=3)
        again = F.conv1d(once.flip(-1), weight, groups=3) * len(seen)
        once.mul_(2)
        return once, again, once[..., ::2]

    compiled = minicompile.compile(twice, options=OPTIONS)
    for length in (11, 14, 2, 11):
        given = torch.randn(1, 3, length).expand(2, 3, length), torch.randn(3, 3).t()[:, None], [0]
        check(twice, *given, compile=lambda _: compiled, backward=False)
        value, weight = (tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in given[:2])
        check(twice, value, weight, [0], compile=lambda _: compiled, tolerance=4.0)


IMAGES = {
    "blur": ((2, 3, 9, 7), (3, 1, 1, 5), {"groups": 3}),
    "window": ((2, 3, 9, 7), (3, 1, 5, 5), {"groups": 3, "padding": (2, 0)}),
    "edges": ((2, 1, 6, 8), (2, 1, 3, 3), {"padding": 1}),
    "edges of each channel": ((1, 3, 6, 8), (6, 1, 3, 2), {"groups": 3, "padding": (1, 3), "dilation": (2, 1)}),
    "two groups": ((2, 4, 5, 5), (6, 2, 2, 3), {"groups": 2}),
    "many from one": ((2, 1, 6, 8), (4, 1, 3, 3), {"padding": 1}),
    "colours": ((2, 3, 5, 4), (4, 3, 1, 1), {}),
}


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, dtype: torch.dtype, layout: torch.memory_format, device: str) -> None:
    sizes, of_weight, options = IMAGES[name]
    value = torch.randn(sizes, dtype=dtype, device=device).to(memory_format=layout).requires_grad_()
    weight, bias = (torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in (of_weight, of_weight[:1]))

    def convolved(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.conv2d(value, weight, bias, **options)

    compiled = minicompile.compile(convolved, options=OPTIONS)
    check(convolved, value, weight, bias, compile=lambda _: compiled, tolerance=4.0)
    in_graph = dtype != torch.bfloat16 or name == "colours"
    assert compiled.stats.extern_calls == (1 if in_graph else 2), "the gradient of the weight, or all"
    fixed = lambda value: F.conv2d(value, weight.detach().to(value.dtype), **options)  # in fp64, too, for the reference
    alone = minicompile.compile(fixed, options=OPTIONS)
    check(fixed, value, compile=lambda _: alone, tolerance=4.0)
    assert alone.stats.extern_calls == (not in_graph) * 2 + (name == "many from one" and in_graph)


def test_products_past_either_end_are_left_out() -> None:
    """Multiplied by zero they would be NaN where a value or a filter is infinite."""
    value = torch.tensor([[[float("inf"), 1.0, 2.0, 3.0]]], requires_grad=True)
    weight = torch.tensor([[[float("inf"), 1.0, 10.0]]], requires_grad=True)
    result = minicompile.compile(lambda v, w: F.conv1d(v, w, padding=1), options=OPTIONS)(value, weight)
    of_value, of_weight = torch.autograd.grad(result, (value, weight), torch.tensor([[[float("inf"), 0.0, 1.0, 1.0]]]))
    infinite = float("inf")
    assert result.tolist()[0][0] == [infinite, infinite, infinite, infinite]
    torch.testing.assert_close(of_value[0, 0, 3], torch.tensor(11.0))
    assert of_weight.isnan().tolist()[0][0] == [True, False, False] and of_weight[0, 0, 2] == infinite


@pytest.mark.parametrize(
    "other", [{"stride": 2}, {"taps": 9}, {"multiplier": 2}, {"groups": 1}, {"length": 3, "padding": 4, "dilation": 2}]
)
def test_other_convolutions_stay_the_librarys(other: dict[str, Any]) -> None:
    given = {"stride": 1, "taps": 3, "multiplier": 1, "groups": 4, "length": 12, "padding": 1, "dilation": 1} | other
    value = torch.randn(2, 4, given["length"])
    weight = torch.randn(4 * given["multiplier"], 4 // given["groups"], given["taps"])

    def convolved(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv1d(value, weight, None, given["stride"], given["padding"], given["dilation"], given["groups"])

    compiled = minicompile.compile(convolved, options=OPTIONS)
    check(convolved, value, weight, compile=lambda _: compiled, backward=False)
    assert compiled.stats.extern_calls == 1


@pytest.mark.parametrize(("of_weight", "options"), [
    ((3, 1, 7, 7), {"groups": 3}), ((3, 1, 3, 3), {"groups": 3, "stride": 2}), ((9, 3, 3, 3), {}), ((27, 1, 1, 1), {"groups": 3}),
])  # fmt: skip
def test_other_convolutions_of_images_do_too(of_weight: tuple[int, ...], options: dict[str, Any]) -> None:
    convolved = functools.partial(F.conv2d, **options)
    compiled = minicompile.compile(lambda value, weight: convolved(value, weight), options=OPTIONS)
    check(convolved, torch.randn(2, 3, 12, 12), torch.randn(of_weight), compile=lambda _: compiled, backward=False)
    assert compiled.stats.extern_calls == 1


@pytest.mark.parametrize("convolved", [F.conv1d, F.conv2d])
def test_places_that_eager_does_not_dilate_to_are_refused(convolved: Any) -> None:
    value, weight = (torch.randn(1, 1, *[size] * (1 + (convolved is F.conv2d))) for size in (5, 2))
    compiled = minicompile.compile(lambda value, weight: convolved(value, weight, dilation=0), options={"cache": False})
    with pytest.raises(RuntimeError, match="dilation should be greater than zero"):
        compiled(value, weight)


@pytest.mark.parametrize("wrong", [(torch.randn(2, 5, 12), 4), (torch.randn(2, 4, 1), 4), (torch.randn(2, 4, 12).double(), 4)])
def test_what_eager_refuses_is_refused(wrong: tuple[torch.Tensor, int]) -> None:
    value, groups = wrong
    weight = torch.randn(4, 1, 3)
    with pytest.raises(RuntimeError) as eager:
        F.conv1d(value, weight, groups=groups)
    with pytest.raises(RuntimeError) as ours:
        minicompile.compile(F.conv1d, options={"cache": False})(value, weight, groups=groups)
    assert str(ours.value) == str(eager.value)
