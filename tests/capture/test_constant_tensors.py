"""Values of tensors made of constants are known while tracing, as long as nothing has written to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.support import capture, equal, kinds, same_as_eager


def summed_over_all_but_the_first(x):
    return x.sum(torch.arange(1, x.dim()).tolist())


def numbers_of_tensors(x):
    return x * int(torch.tensor(3.7)) + float(torch.tensor(2.5, dtype=torch.float64)), bool(torch.tensor(float("nan")))


def rates_in_steps(x):
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
    for rate in rates:
        x = x * (1 - rate)
    return x, rates


def scales_that_are_checked(x, scales=(1.0, 2.0)):
    if not (torch.tensor(scales) > 0).all():
        raise ValueError("scales have to be positive")
    return x / torch.tensor(scales)


def under_a_mask(x):
    mask = torch.tril(torch.ones(2, 2))
    return [x[i] * x[j] for i in range(2) for j in range(2) if mask[i, j] > 0]


def a_list_that_goes_on(x):
    sizes = torch.tensor([[1, 2], [3, 4]]).tolist()
    sizes[0].append(x.shape[0])
    sizes.append([])
    return x, sizes


@pytest.mark.parametrize("function", [
    summed_over_all_but_the_first, numbers_of_tensors, rates_in_steps, scales_that_are_checked, under_a_mask,
    a_list_that_goes_on])
def test_a_value_made_of_constants_is_no_break(function: Any) -> None:
    same_as_eager(function, torch.rand(2, 2), fullgraph=True)


def written_in_part(x):
    steps = torch.zeros(3)
    steps[1] = 2
    return x, steps.tolist(), (steps * 2).sum().item()


def written_through_a_view(x):
    steps = torch.arange(4)
    steps[1:].mul_(2)
    return x, steps.tolist()


def written_as_data(x):
    steps = torch.arange(4.0)
    steps.data.mul_(2)
    return x, (steps + 1).tolist()


def written_by_out(x):
    steps = torch.zeros(2)
    torch.add(torch.ones(2), 1, out=steps)
    return x, steps.tolist()


def turned_in_place(x):
    steps = torch.arange(4).reshape(2, 2)
    steps.t_()
    return x, steps.tolist()


def filled_memory(x):
    return x, torch.empty(2).fill_(3).tolist(), x.new_empty(2).zero_().tolist()


def cast_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.full((2, 2), 1.001) @ torch.ones(2, 2)
    return x, product.tolist(), (product.float() * 1).sum().item()


def of_an_argument(x):
    return x, (x + torch.ones(2, 2)).sum().item()


@pytest.mark.parametrize("function", [
    written_in_part, written_through_a_view, written_as_data, written_by_out, turned_in_place, filled_memory, cast_inside,
    of_an_argument])
def test_a_value_that_something_else_decides_is_a_break(function: Any) -> None:
    compiled = same_as_eager(function, torch.rand(2, 2))
    assert set(kinds(compiled)) == {"tensor value"}


def test_random_numbers_are_drawn_in_each_call() -> None:
    def function(x):
        return x, torch.rand(2).tolist(), torch.randperm(8).tolist()

    compiled, state = capture(function), torch.get_rng_state()
    drawn = [compiled(torch.ones(2))[1:] for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    torch.set_rng_state(state)
    assert [function(torch.ones(2))[1:] for _ in range(3)] == drawn


def test_numbers_that_vary_are_no_constants() -> None:
    def function(x, n):
        return x * torch.arange(n).sum().item()

    compiled = capture(function)
    for n in (3, 4, 5, 3, 9):
        assert equal(compiled(torch.ones(2), n), function(torch.ones(2), n))
    assert not compiled.records.fallbacks


def test_what_eager_refuses_raises_as_in_eager() -> None:
    def of_several(x):
        return x, torch.zeros(3).item()

    def in_a_branch(x):
        return x if torch.zeros(2) else x * 2

    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        capture(of_several)(torch.ones(2))
    with pytest.raises(RuntimeError, match="ambiguous"):
        capture(in_a_branch)(torch.ones(2))
    with pytest.raises(ValueError, match="positive"):
        capture(scales_that_are_checked)(torch.ones(2), (1.0, -1.0))
