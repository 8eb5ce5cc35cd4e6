"""Quotients of fp32 blocks, which are computed without the branch of a library's division: eager's, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import minicompile

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SPECIAL = [0.0, 1.0, 3.0, 1 / 3, 448.0, 1e-20, 1e20, 2.0**-126, 2.0**126, 2.0**127, 3e38, 1e-38, 2.0**-149, float("inf"), float("nan")]
SMALLEST_EXACT = 2.0**-100
"""Quotients of smaller numbers, or by them, may be two units off."""


def units_apart(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many fp32 numbers lie between two, the other way round zero included; 0 between two NaN."""
    ordered = [torch.where(t.signbit(), -(t.view(torch.int32).long() & 0x7FFFFFFF), t.view(torch.int32).long()) for t in (left, right)]
    both_nan = left.isnan() & right.isnan()
    return torch.where(both_nan, 0, (ordered[0] - ordered[1]).abs() + (left.signbit() != right.signbit()).long())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [lambda a, b: a / b, lambda a, b: 1.0 / b, lambda a, b: a.relu() / b])
def test_ordinary_quotients_are_eagers(device: str, function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(5)
    numbers, divisors = (torch.randn(1 << 16, device=device) for _ in range(2))
    expected = function(numbers, divisors)
    apart = units_apart(minicompile.compile(function)(numbers, divisors), expected)
    assert int(apart.max()) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_infinities_and_what_is_not_a_number_divide_as_in_eager(device: str) -> None:
    values = torch.tensor([*SPECIAL, *(-value for value in SPECIAL)], device=device)
    a, b = (part.flatten().contiguous() for part in torch.meshgrid(values, values, indexing="ij"))
    apart = units_apart(minicompile.compile(lambda a, b: a / b)(a, b), a / b)
    small = (a.abs() < SMALLEST_EXACT) | (b.abs() < SMALLEST_EXACT)
    assert int(apart[~small].max()) == 0 and int(apart.max()) <= 2


@pytest.mark.parametrize("device", DEVICES)
def test_rows_divide_by_numbers_of_their_own(device: str) -> None:
    x = torch.randn(37, 130, device=device)
    compiled = minicompile.compile(lambda x: x / x.abs().amax(1, keepdim=True))
    assert torch.equal(compiled(x), x / x.abs().amax(1, keepdim=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("divisor", [0.0, -0.0, 3.0, float("inf"), float("nan")])
def test_divisors_that_the_program_spells_out(device: str, divisor: float) -> None:
    x = torch.randn(5, 7, device=device)
    for function in (lambda x: x / divisor, lambda x: x / torch.full_like(x, divisor)):
        compiled = minicompile.compile(function, options={"suppress_errors": False})
        assert int(units_apart(compiled(x), x / divisor).max()) <= 1
