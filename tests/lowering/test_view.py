"""Views cost nothing and are right in every composition."""

from __future__ import annotations

import random

import pytest
import torch

from minicompile.ir.loops import Loop
from tests.lowering.oracle import check, lower

VIEWS = [
    lambda x: x.permute(2, 0, 1), lambda x: x.transpose(0, 2), lambda x: x[1:], lambda x: x[:, ::2], lambda x: x[..., -2:],
    lambda x: x[:, 1], lambda x: x.unsqueeze(1), lambda x: x.reshape(-1), lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.flip(0), lambda x: x.flip(-1, 0), lambda x: x.roll(2, 1), lambda x: x.roll(3), lambda x: x.repeat(2, 1, 3),
    lambda x: x.expand(2, *x.shape), lambda x: x.diagonal(), lambda x: x.diagonal(1, -1, 0), lambda x: x.unfold(1, 2, 1),
    lambda x: x.split(2, 1)[1], lambda x: x.unbind(0)[1], lambda x: x.chunk(2, 2)[0], lambda x: x.movedim(0, -1),
    lambda x: x.squeeze(), lambda x: x.view(torch.int32).view(torch.float32), lambda x: x.unsqueeze(0).expand(3, -1, -1, -1),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_a_view_alone_and_under_arithmetic(number):
    x = torch.randn(4, 4, 6)
    check(VIEWS[number], x)
    check(lambda a: VIEWS[number](a * 2).sin(), x)
    check(lambda a: VIEWS[number](a.transpose(0, 1)).sum(0), x)


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed):
    chosen = random.Random(seed)

    def chain(x):
        for _ in range(5):
            view = chosen_views.pop()
            if x.dim() == 3 and min(x.shape) >= 3:
                x = view(x)
            else:
                x = x.reshape(-1)[: 4 * 3 * 5].reshape(4, 3, 5) if x.numel() >= 60 else x.reshape(-1)
        return x, x * 2

    order = [chosen.choice(VIEWS) for _ in range(5)]
    chosen_views = list(order)

    def rerun(x):
        chosen_views[:] = order
        return chain(x)

    check(rerun, torch.randn(6, 5, 4))


def test_a_reshape_of_contiguous_memory_keeps_a_linear_access():
    graph = check(lambda x: (x.reshape(6, 20).sin(), x.reshape(2, 3, 4, 5).cos(), x.reshape(12, 2, 5).exp()), torch.randn(6, 4, 5))
    for operation in graph.operations:
        assert isinstance(operation, Loop)
        assert "//" not in str(operation.loads[0].index) and "%" not in str(operation.loads[0].index)


def test_views_make_no_loops():
    graph = check(lambda x: x.permute(1, 0)[1:].unsqueeze(0), torch.randn(3, 4))
    assert not graph.operations


@pytest.mark.parametrize("view", [lambda x: x.view(24).view(2, 12).view(4, 6), lambda x: x.expand(4, 6)[0:4].permute(0, 1)])
def test_views_that_change_nothing_leave_no_trace(view):
    (plain,), (viewed,) = (lower(function, [torch.randn(4, 6)]).operations for function in (torch.sin, lambda x: view(x).sin()))
    assert (viewed.value, viewed.store, viewed.axes) == (plain.value, plain.store, plain.axes)


def test_complex_views():
    z = torch.randn(3, 4, dtype=torch.complex64)
    check(lambda a: (torch.view_as_real(a), a.conj() * 2, a.t()[1:], a.real, a.reshape(-1).abs()), z)
    check(lambda a: torch.view_as_complex(a) * 1j, torch.randn(3, 2))
    check(lambda a: (a.flip(0), a.transpose(0, 1).reshape(-1)), z)


def test_a_strided_window_of_nothing():
    check(lambda x: x.as_strided((0, 2), (2, 1)) + 1, torch.empty(0, 4))
