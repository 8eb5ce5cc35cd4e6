"""Complex arithmetic between real tensors is done on real and imaginary parts; any other is the library's."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import minicompile
from minicompile.api import compiled_function
from minicompile.ir.loops import ExternKernel
from tests.differential import check, leaf

PHASES = torch.polar(torch.ones(6, 4), torch.randn(6, 4))


def pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def rotated(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """A rotary embedding as Llama's reference code writes it."""
    return torch.view_as_real(pairs(x) * phases[None, :, None]).flatten(3).type_as(x)


def of_angles(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    phases = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs(x).transpose(1, 2) * phases).flatten(3)


def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = pairs(x), torch.complex(y, y.cos())
    return torch.view_as_real((a + b - a.conj() * b).squeeze(0).permute(1, 0, 2) * -a[0, :1].mT.mT) * 0.1


def real_part(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    return (pairs(x) * phases[:, None]).real.sum(0) + (pairs(x) * pairs(x)).imag


def with_changed_phases(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    """The phases, an input, are changed in place first, and turn what they turned back."""
    phases.mul_(2)
    return torch.view_as_real(pairs(x) * phases[:, None] * phases[:, None].conj()).flatten(3)


def of_a_transform(x: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(pairs(x), dim=-1) * phases[:, None]) + 1


X = leaf(2, 6, 3, 8)
PROGRAMS: dict[str, tuple[Any, tuple[torch.Tensor, ...], int]] = {
    "rotary": (rotated, (X, PHASES), 1),
    "rotary in half": (rotated, (leaf(2, 6, 3, 8, dtype=torch.bfloat16), PHASES), 1),
    "phases that are learnt": (rotated, (X, PHASES.clone().requires_grad_()), 1),
    "angles": (of_angles, (X, leaf(6, 4)), 0),
    "sums and conjugates": (sums, (leaf(1, 3, 3, 8), leaf(3, 3, 4)), 0),
    "a part spread over the other": (lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, y)), (leaf(3, 4), leaf(4)), 2),
    "parts": (real_part, (X, PHASES), 1),
    "of a transform": (of_a_transform, (X, PHASES), 4),
}


def complex_calls(compiled: Any) -> int:
    """How many calls of the forward take or give complex numbers."""
    (graph,) = compiled_function(compiled).compiler.graphs
    part = graph.parts["forward"]
    buffers = part.lowered.buffers
    steps = [step for step in part.schedule.steps if isinstance(step, ExternKernel)]
    return sum(any(buffers[name].dtype.is_complex for name in (*step.reads, *step.writes)) for step in steps)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_complex_numbers_are_pairs(name: str, dynamic: bool) -> None:
    function, inputs, calls = PROGRAMS[name]
    check(function, *inputs, compile=functools.partial(minicompile.compile, dynamic=dynamic))
    compiled = minicompile.compile(function, dynamic=dynamic, options={"verify": True})
    with torch.no_grad():
        compiled(*inputs)
    assert complex_calls(compiled) == calls or dynamic and "rotary" not in name


def test_phases_that_the_function_changes() -> None:
    torch.manual_seed(0)
    check(with_changed_phases, leaf(2, 6, 3, 8), torch.polar(torch.ones(6, 4), torch.randn(6, 4)))


@pytest.mark.parametrize("function", [
    lambda x, p: pairs(x) * p[:, None], lambda x, p: torch.view_as_real(pairs(x) * 2.0), lambda x, p: (pairs(x) * p[:, None]).abs(),
    lambda x, p: (torch.view_as_real(z := pairs(x) * p[:, None]), z), lambda x, p: ((c := p.conj()) + 0, torch.view_as_real(c.mT.mT * p)),
])  # fmt: skip
def test_what_has_no_form_for_pairs_stays_complex(function: Any) -> None:
    check(function, X, PHASES)


def test_infinite_and_undefined_products_are_those_of_eager() -> None:
    numbers = torch.tensor([0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cartesian_prod(numbers, numbers)
    z = torch.view_as_complex(x)

    def function(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x)[:, None] * z)

    found, expected = minicompile.compile(function)(x, z), function(x, z)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_complex_numbers_with_zeros_of_either_sign_are_told_apart() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.complex(x, x)
        return tuple(torch.view_as_real(z * number) for number in (complex(0.0, 0.0), complex(-0.0, 0.0), complex(0.0, -0.0)))

    x = torch.ones(2)
    for found, expected in zip(minicompile.compile(function)(x), function(x), strict=True):
        assert found.signbit().tolist() == expected.signbit().tolist()
