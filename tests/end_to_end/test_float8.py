"""8-bit floats: converted and moved in kernels of ours, bit by bit as in eager."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors agree in dtype, layout and every bit; any NaN is one."""
    if (left.dtype, left.shape, left.stride()) != (right.dtype, right.shape, right.stride()):
        return False
    left, right = (t.float() if t.dtype in (E4M3, E5M2) else t for t in (left, right))
    signs = not left.is_floating_point() or torch.equal(left.signbit() & (left == left), right.signbit() & (right == right))
    return signs and torch.equal(left.nan_to_num(7.7), right.nan_to_num(7.7)) and torch.equal(left.isnan(), right.isnan())


def every_value(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8, device=device).view(dtype)


def numbers_around(dtype: torch.dtype, device: str) -> torch.Tensor:
    """All values of a dtype, the middles between them and their neighbours in fp32, and numbers beyond both ends."""
    values = every_value(dtype, device).float()
    ordered = values[values.isfinite()].sort().values
    middles = (ordered[1:] + ordered[:-1]) / 2
    infinity = torch.tensor(float("inf"), device=device)
    beyond = torch.tensor([464.0, 480, 1e4, 61440, 65536, 1e30, 1e-30, 2.0**-149, float("inf"), float("nan")], device=device)
    exact = torch.cat([values, middles, beyond, -beyond])
    return torch.cat([exact, torch.nextafter(exact, infinity), torch.nextafter(exact, -infinity)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_numbers_become_the_8_bits_that_eager_gives(device: str, dtype: torch.dtype, source: torch.dtype) -> None:
    numbers = numbers_around(dtype, device)
    x = (numbers if source.is_floating_point else numbers.nan_to_num(0).clamp(-(2.0**30), 2.0**30)).to(source)
    compiled = minicompile.compile(lambda x: x.to(dtype))
    assert same_bits(compiled(x), x.to(dtype))
    assert (compiled.stats.kernels, compiled.stats.extern_calls) == (1, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, E4M3, E5M2])
def test_8_bits_become_the_number_that_eager_gives(device: str, dtype: torch.dtype, target: torch.dtype) -> None:
    x = every_value(dtype, device)
    assert same_bits(minicompile.compile(lambda x: x.to(target))(x), x.to(target))


def quantised_by_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = x.float().view(x.shape[0], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (blocks / scale).to(E4M3).view_as(x), scale.squeeze(-1)


def rounded_twice(x: torch.Tensor) -> torch.Tensor:
    return (x.bfloat16() * 1.3).to(E5M2)


def straight_through(x: torch.Tensor) -> torch.Tensor:
    return x + (x.to(E4M3).to(x.dtype) - x).detach()


def moves(q: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
    turned = q.transpose(0, 1)
    joined = torch.cat([q, x.to(E4M3)], 1)
    return [q[rows], turned.contiguous(), turned.reshape(4, -1), joined, q[rows].to(torch.bfloat16) * 2, q.view(torch.uint8) + 1]


def cache_written(q: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    q[:, 1] = x[:, 0].to(E4M3)
    q[rows] = x[rows].to(E4M3)
    return q.to(torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [quantised_by_blocks, rounded_twice, straight_through, moves, cache_written])
def test_quantised_tensors_need_no_call_of_the_library(device: str, function: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    x = torch.randn(6, 64, 4, device=device) * 30
    of_one = {quantised_by_blocks: (x[..., 0].contiguous(),), rounded_twice: (x,), straight_through: (x,)}
    arguments = of_one.get(function) or (x.to(E4M3), x, torch.tensor([4, 0, 1], device=device))
    compiled, others = minicompile.compile(function), copy.deepcopy(arguments)
    results, expected = compiled(*arguments), function(*others)
    ours, eagers = ([r] if isinstance(r, torch.Tensor) else r for r in (results, expected))
    assert all(map(same_bits, ours, eagers)) and all(map(same_bits, arguments, others))
    assert (compiled.stats.extern_calls, compiled.stats.fallbacks) == (0, 0)


def test_kinds_that_kernels_do_not_convert_are_left_to_the_library() -> None:
    x = torch.randn(5, 7)
    compiled = minicompile.compile(lambda x: (x + 1).to(torch.float8_e4m3fnuz))
    assert same_bits(compiled(x).float(), (x + 1).to(torch.float8_e4m3fnuz).float())
    assert compiled.stats.extern_calls == 1


def promoted(q: torch.Tensor) -> torch.Tensor:
    return torch.cat([q, torch.ones(5, 7)])


def promoted_by_nothing(q: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.ones(0), q])


def picked(q: torch.Tensor) -> torch.Tensor:
    return q.gather(0, torch.zeros(5, 7, dtype=torch.int64))


@pytest.mark.parametrize("function", [promoted, promoted_by_nothing, picked])
def test_what_eager_refuses_of_8_bit_floats_is_refused(function: Callable[..., Any]) -> None:
    q = torch.randn(5, 7).to(E4M3)
    with pytest.raises(RuntimeError) as eager:
        function(q)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value))):
        minicompile.compile(function)(q)
