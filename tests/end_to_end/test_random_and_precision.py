"""Random numbers have the right distribution and belong to their seed; casts are where eager puts them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import minicompile
from tests.differential import check

COUNT = 1 << 16


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return minicompile.compile(function, options={"suppress_errors": False, **options})


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first.flatten().double(), second.flatten().double()]))[0, 1])


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(x.shape), 0.5, 1 / 12),
    "rand_like in half": (lambda x: torch.rand_like(x, dtype=torch.float16), 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(x.shape), 0.0, 1.0),
    "randn in fp64": (lambda x: torch.randn(x.shape, dtype=torch.float64), 0.0, 1.0),
    "randint": (lambda x: torch.randint(0, 10, x.shape), 4.5, 8.25),
    "every small integer": (lambda x: torch.randint(-128, 128, x.shape, dtype=torch.int8), -0.5, 65535 / 12),
    "every byte in place": (lambda x: torch.empty_like(x, dtype=torch.uint8).random_(0, 256), 127.5, 65535 / 12),
    "whole numbers in place": (lambda x: torch.empty_like(x).random_(-5, 5), -0.5, 8.25),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 16 / 12),
    "normal": (lambda x: torch.empty_like(x).normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "dropout": (lambda x: F.dropout(torch.ones_like(x), 0.25), 1.0, 1 / 3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_distribution_is_eager_s_and_the_seed_decides(name: str) -> None:
    function, mean, variance = DRAWS[name]
    draw, x = compiled(function), torch.zeros(256, COUNT // 256)
    torch.manual_seed(1)
    first, second = draw(x), draw(x)
    torch.manual_seed(1)
    again = draw(x)
    values = first.double()
    assert first.dtype == function(x).dtype and torch.equal(first, again) and not torch.equal(first, second)
    assert abs(float(values.mean()) - mean) < 5 * (variance / COUNT) ** 0.5
    assert abs(float(values.var()) / variance - 1) < 0.05
    noise = 5 / COUNT**0.5
    shifted = [correlation(values[:, by:], values[:, :-by]) for by in (1, 2, 3, 4, 8)] + [correlation(values[1:], values[:-1])]
    assert max(map(abs, [*shifted, correlation(first, second)])) < noise


def test_layers_and_calls_draw_apart() -> None:
    layers, x = compiled(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5), torch.rand_like(x))), torch.ones(COUNT)
    torch.manual_seed(2)
    values = [value for _ in range(2) for value in layers(x)]
    pairs = [correlation(a, b) for i, a in enumerate(values) for b in values[:i]]
    assert max(map(abs, pairs)) < 5 / COUNT**0.5


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_the_backward_uses_the_mask_of_the_forward(budget: float) -> None:
    w = torch.eye(64, requires_grad=True)

    def block(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.tanh(F.dropout(x @ w, 0.3) * 2), 0.4)

    x = torch.rand(64, 64).add_(0.5).requires_grad_()
    out = compiled(block, activation_memory_budget=budget)(x, w)
    inner = torch.tanh(2 * x / 0.7)
    expected = torch.where(out != 0, (1 - inner**2) * 2 / 0.7 / 0.6, 0.0)
    out.sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_attention_with_dropout() -> None:
    q, k = torch.randn(2, 2, 2, 32, 8).unbind(0)
    v = torch.randn(2, 2, 32, 8, requires_grad=True)
    attend = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    torch.manual_seed(3)
    outs = [attend(q, k, v) for _ in range(64)]
    torch.manual_seed(3)
    assert torch.equal(attend(q, k, v), outs[0]) and not torch.equal(outs[0], outs[1])
    torch.testing.assert_close(sum(outs) / 64, F.scaled_dot_product_attention(q, k, v), atol=0.4, rtol=0)
    weight = torch.randn_like(outs[0])
    gradient, = torch.autograd.grad(outs[0], v, weight)
    torch.testing.assert_close((gradient * v).sum(), (outs[0] * weight).sum())  # the result is linear in the values


@pytest.mark.parametrize("function", [
    lambda x: F.dropout(x.transpose(0, 1), 0.3), lambda x: F.dropout((x @ x.mT).permute(2, 0, 1), 0.3),
    lambda x: torch.empty_like(x.transpose(0, 1)).bernoulli_(0.3), lambda x: torch.bernoulli(x.transpose(0, 1), 0.3),
    lambda x: torch.empty_like(x.mT).bernoulli_(x.sigmoid().mT), lambda x: x.mT.bernoulli(0.4), lambda x: x[:, ::2].clone().normal_(),
    lambda x: torch.empty_like(x.mT).random_(-9, 9), lambda x: torch.empty_like(x).random_(2, 50).long(),
    lambda x: torch.distributions.Laplace(x, 1.0, validate_args=False).rsample(),
])  # fmt: skip
def test_eager_s_own_numbers_lie_where_eager_has_them(function: Callable[[Tensor], Tensor]) -> None:
    x, ours = torch.randn(4, 3, 5), compiled(function, fallback_random=True)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    actual = ours(x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


def test_eager_s_own_numbers_when_asked_for() -> None:
    def draws(x: Tensor) -> Any:
        return F.dropout(x, 0.3), torch.rand_like(x), torch.randn(5), torch.randint(0, 9, (4,)), torch.bernoulli(x.sigmoid()), torch.randperm(7)

    x, ours = torch.randn(6, 6), compiled(draws, fallback_random=True)
    for seed in (4, 5):
        torch.manual_seed(seed)
        expected = draws(x)
        torch.manual_seed(seed)
        assert all(torch.equal(a, b) for a, b in zip(ours(x), expected, strict=True))


CHAINS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda a, b: (a * b + a) / (b.abs() + 0.5) - a * 3.7 + 0.125,  # eager's CPU kernel rounds a scalar that is added
    "activations": lambda a, b: F.silu(a) * b.sigmoid() + F.relu(b - a).tanh() - F.leaky_relu(a, 0.3),
    "exponentials": lambda a, b: (a.exp() + b.exp()).log() * (a * a + 1).sqrt().reciprocal() + (b * b + 1).rsqrt(),
    "mixed with fp32": lambda a, b: (a.float() * b + 1).to(a.dtype) * a + b.float().to(a.dtype),
    "selection": lambda a, b: torch.where(a > b, a * 1.1, b * 0.9).clamp(-1, 1) + torch.maximum(a * 3, b) * 0.3,
    "infinities replaced": lambda a, b: torch.nan_to_num(a / 0) * 0.5 + torch.nan_to_num(b / 0) * 0.25,
    "overflow": lambda a, b: (a * 300) * (b * 300) * 1e-4,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHAINS)
def test_emulated_casts_give_eager_s_bits(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    a, b = (torch.randn(64, 32).to(dtype).requires_grad_() for _ in range(2))
    expected, shown = CHAINS[name](a, b), compiled(CHAINS[name], emulate_precision_casts=True)(a, b)
    same = (shown == expected) | (shown.isnan() & expected.isnan())
    if name in ("exponentials", "activations"):  # the functions themselves are another library's, a last bit apart
        assert same.double().mean() > 0.99
        torch.testing.assert_close(shown, expected, rtol=3 * torch.finfo(dtype).eps, atol=1e-4)
    else:
        assert bool(same.all())


def test_autocast_casts_where_eager_does() -> None:
    def network(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Any:
        h = F.linear(x, w, b)
        n = F.layer_norm(h, (8,))
        s = (n @ w).softmax(-1)
        with torch.autocast("cpu", enabled=False):
            full = s.float() @ w.float()
        values = [h, n, s, full, h + x, h * n, torch.cat([h, n.to(h.dtype)]), h.sum(), F.mse_loss(h, t), F.gelu(h), h.exp(), torch.einsum("ij,kj->ik", x, w),
                  torch.bmm(x[None], w[None]), F.scaled_dot_product_attention(h[None, None], h[None, None], n[None, None])]  # fmt: skip
        return values

    arguments = [torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), torch.randn(8), torch.randn(8, 8)]
    shown = []
    for run in (network, compiled(network)):
        with torch.autocast("cpu", torch.bfloat16):
            values = run(*arguments)
        gradients = torch.autograd.grad(sum(value.float().square().mean() for value in values), arguments[:2])
        shown.append([*values, *gradients])
    assert [value.dtype for value in shown[0]] == [value.dtype for value in shown[1]]
    for ours, eager in zip(shown[1], shown[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=0.05, atol=0.02 * float(eager.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_wholly_in_another_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True).to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    shown = []
    for run in (layer, compiled(layer)):
        layer.zero_grad()
        out = run(x)
        out.float().square().mean().backward()
        shown.append([out.detach().clone(), *(p.grad.clone() for p in layer.parameters())])
    tolerance = 1e-9 if dtype == torch.float64 else 0.06
    for ours, eager in zip(shown[1], shown[0], strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_powers_of_a_number_are_rounded_once(device: str) -> None:
    steps = torch.cat([torch.arange(200.0), torch.rand(200), torch.tensor([-3.0, 4000.0])]).to(device)
    for base in (0.9, 0.999, 41821.43):
        rounded = torch.tensor(base).to(device)  # as eager takes a number
        powers = compiled(lambda x, base=base: base**x)(steps)
        assert torch.equal(powers, (rounded.double() ** steps.double()).float())


@pytest.mark.parametrize("extreme", [
    lambda t: t.amax(0), lambda t: t.abs().amax(), lambda t: t.t().amin(1), lambda t: t.max(), lambda t: t.median(),
    lambda t: torch.linalg.vector_norm(t, float("inf"), 0),
])  # fmt: skip
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_gradients_of_an_extreme_find_it(extreme: Callable[[Tensor], Tensor], budget: float) -> None:
    """Its elements are looked for by equality, which another rounding of what was computed before would hide."""
    torch.manual_seed(0)
    x = torch.randn(7, 65).bfloat16().requires_grad_()  # drawn in fp32: the same numbers in every version, without ties

    def function(x: Tensor) -> Tensor:
        return extreme(x * (x.square().mean(1, keepdim=True) + 0.01).rsqrt())

    (found,) = torch.autograd.grad(compiled(function, activation_memory_budget=budget)(x).sum(), x)
    (expected,) = torch.autograd.grad(function(x.double()).sum(), x)
    assert (found.double() - expected.double()).norm() < 0.5 * expected.double().norm()


@pytest.mark.parametrize("function", [
    lambda x: torch.softmax(x * 30000.0, -1), lambda x: torch.softmax((x * 3000.0 + 1e5) * x.sign(), -1),
    lambda x: (torch.softmax(x * 3000.0, -1) + 1, x * 3000.0), lambda x: torch.log_softmax(x * 5000.0, 0),
    lambda x: x.mul(3000.0).logsumexp(-1), lambda x: torch.special.logsumexp(x * 3000.0, (0, 1), keepdim=True),
    lambda x: torch.logsumexp(x * 3000.0, 0),
    lambda x: (torch.softmax(h := x * 3000.0, -1), h @ h.T), lambda x: (torch.softmax((h := x * 3000.0)[:, :9], -1), h.T @ h),
])  # fmt: skip
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_gradients_of_a_softmax_of_large_values(function: Callable[[Tensor], Any], budget: float) -> None:
    """Their distances from the largest are large beside one where some are rounded and some are not."""
    torch.manual_seed(0)
    x = torch.randn(8, 33).bfloat16().requires_grad_()
    compiling = functools.partial(compiled, activation_memory_budget=budget)
    check(function, x, compile=compiling)


def softmax_by_hand(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize("function", [
    lambda x: ((scores := x * 30000.0), torch.softmax(scores, -1)), lambda x: softmax_by_hand(x * 30000.0),
    lambda x: ((scores := x * 30000.0), softmax_by_hand(scores)),
])  # fmt: skip
def test_long_softmax_of_large_values(function: Callable[[Tensor], Any]) -> None:
    """It takes several kernels, which must not see one number rounded and another one not."""
    torch.manual_seed(0)
    check(function, torch.randn(2, 40_000).bfloat16(), compile=compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool], ids=str)
def test_memory_that_nothing_has_written_is_filled_where_eager_fills_it(dtype: torch.dtype) -> None:
    def making(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row = torch.empty(4, dtype=dtype)
        row[1] = 0
        return torch.empty_like(x, dtype=dtype), row, x.new_empty_strided((2, 3), (1, 2), dtype=dtype), x.new_empty(2, dtype=dtype)

    made, x = minicompile.compile(making, fullgraph=True), torch.ones(3)
    before = torch.utils.deterministic.fill_uninitialized_memory
    try:
        for fill in (True, False, True):
            torch.utils.deterministic.fill_uninitialized_memory = fill
            torch.use_deterministic_algorithms(True)
            for result, expected in zip(made(x), making(x), strict=True):
                assert not fill or torch.equal(result.nan_to_num(7.0), expected.nan_to_num(7.0))
            torch.use_deterministic_algorithms(False)
            assert not made(x)[1][1]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before
