"""Results that are views of inputs and that more is computed from, as autograd shows them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minicompile

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

FUNCTIONS: dict[str, Function] = {
    "all of it": lambda x, w: (h := x.view(-1), (h * 2).sin()),
    "a part": lambda x, w: (h := x[:, 1:], (h * 2).sin() + x.sum()),
    "a view of a view": lambda x, w: (h := x.t(), (k := h[1:]).sin() * 3, k),
    "a view of a view, which comes first": lambda x, w: (k := (h := x.t())[1:], k.sin() + h.sum(), h),
    "one of several": lambda x, w: (h := x.chunk(2, 1)[1], h.exp() @ w[:2]),
    "several": lambda x, w: ((parts := x.unbind(1))[1], (parts[0] * parts[1]).sin(), parts[0]),
    "read by a product": lambda x, w: (h := x.reshape(4, 3).mT, (h @ w).tanh()),
    "expanded": lambda x, w: (h := x[:, None].expand(3, 2, 4), (h * w[0]).sin()),
    "the same view twice": lambda x, w: (h := x.mT, h.sin() + x.mT.cos(), x.mT),
    "nothing but views": lambda x, w: (h := x.mT, h[1:], w.sin()),
    "one element": lambda x, w: (h := x[1, 2], h.sin() * w),
    "of its own size": lambda x, w: (h := x.view_as(x), h.sin(), w.expand_as(w)),
    "of another one's size": lambda x, w: (h := x[:, :1].expand_as(w), h.sin() * w),
    "arguments by name": lambda x, w: (h := torch.transpose(input=x, dim0=0, dim1=1), h.sin()),
    "at least": lambda x, w: ((h := torch.atleast_3d((x, w)))[0], h[0].sin() + h[1].sum()),
    "broadcast": lambda x, w: ((h := torch.broadcast_tensors(x, w[0]))[1], h[1].sin() * x),
    "none": lambda x, w: (h := x[:0], h.sin()),
}


def hooked(x: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> Any:
    seen: list[Tensor] = []
    results[0].register_hook(lambda grad: seen.append(grad) or grad * 3)
    results[1].sum().backward()
    return seen, x.grad, w.grad


def retained(x: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> Any:
    results[0].retain_grad()
    sum(result.square().sum() for result in results).backward()
    return results[0].grad, x.grad, w.grad


def asked_for(x: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> Any:
    return torch.autograd.grad(results[1].sum(), [*results, x, w], allow_unused=True)


def differentiated_twice(x: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> Any:
    (grad,) = torch.autograd.grad(results[1].sum(), x, create_graph=True, allow_unused=True)
    return None if grad is None else torch.autograd.grad((grad * x).sum(), [x, w], allow_unused=True)


def changed_outside(x: Tensor, w: Tensor, results: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        results[0].add_(1)
    results[1].sum().backward()
    return x, x.grad, w.grad


WATCHERS = (hooked, retained, asked_for, differentiated_twice, changed_outside)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    else:
        assert found == expected


def shown(function: Function, watch: Callable[..., Any], shape: tuple[int, int], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, requires_grad=True)
    w = torch.randn(3, shape[1], generator=generator, requires_grad=True)
    try:
        results = function(x, w)
        layout = [(type(value.grad_fn).__name__ if value._is_view() else "", value.stride()) for value in results]
        values = [value.detach().clone() for value in results]
        return layout, values, watch(x, w, results)
    except RuntimeError as error:
        return re.sub(r"\d+", "n", str(error))[:60]  # which of several views is told of first may differ


@pytest.mark.parametrize("watch", WATCHERS, ids=lambda watch: watch.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autograd_shows_what_eager_shows(name: str, watch: Callable[..., Any]) -> None:
    function = FUNCTIONS[name]
    compiled = minicompile.compile(function)
    for seed in range(2):
        expected, found = (shown(call, watch, (3, 4), seed) for call in (function, compiled))
        assert_same(found, expected)


def test_sizes_that_vary_and_calls_without_gradients() -> None:
    function = FUNCTIONS["a view of a view"]
    compiled = minicompile.compile(function)
    for seed, rows in enumerate((3, 5, 7, 9)):
        expected, found = (shown(call, hooked, (rows, 4), seed) for call in (function, compiled))
        assert_same(found, expected)
    with torch.no_grad():
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
        assert_same(compiled(x, w), function(x, w))
    assert compiled.stats.fallbacks == 0


def test_views_whose_shape_varies() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h, k = x.view(x.shape[0] * 2, -1), w[0].expand(x.shape[0] - 1, -1)
        return h, (h * 2).sin(), k, k.cos()

    compiled = minicompile.compile(function)
    for seed, rows in enumerate((3, 5, 7, 9)):
        for watch in (hooked, retained):
            expected, found = (shown(call, watch, (rows, 4), seed) for call in (function, compiled))
            assert_same(found, expected)


def test_gradients_of_results_asked_for_inside_break_the_graph_alone() -> None:
    def asking(x: Tensor, w: Tensor) -> Any:
        h = x.view(-1)
        a = (x @ w.mT).tanh()
        y = (h * 2).sin().sum() + (a * a).sum()
        a.retain_grad()
        first, second = torch.autograd.grad(y, [h, a], retain_graph=True)
        y.backward()
        return y, first, second, a.grad

    compiled = minicompile.compile(asking)
    for _ in range(2):
        x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        assert_same(compiled(x, w), asking(x, w))
    assert compiled.stats.fallbacks == 0 and compiled.stats.graph_breaks == 3


def test_a_hook_is_not_called_without_a_gradient() -> None:
    def hooked_beside_others(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        h, seen = (x @ w.mT).tanh(), []
        y = x.sin()
        h.register_hook(lambda grad: grad * 2)
        h.register_hook(lambda grad: seen.append(grad) or grad + 1)
        return y, h.exp(), seen

    compiled = minicompile.compile(hooked_beside_others)
    for chosen in (0, 1):
        shows = []
        for call in (hooked_beside_others, compiled):
            generator = torch.Generator().manual_seed(chosen)
            x, w = (torch.randn(3, 4, generator=generator, requires_grad=True) for _ in range(2))
            *results, seen = call(x, w)
            results[chosen].sum().backward()
            shows.append((seen, x.grad, w.grad))
        assert_same(*shows)
    assert compiled.stats.fallbacks == 0


def test_hooks_of_several_results_are_called_where_one_has_no_gradient() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    for call in (function, minicompile.compile(function)):
        results, seen = call(torch.ones(3, requires_grad=True)), []
        torch.autograd.graph.register_multi_grad_hook(results, seen.append)
        results[0].sum().backward()
        assert [[grad is None for grad in grads] for grads in seen] == [[False, True]]


@pytest.mark.parametrize("kept", ((0, 1), (0, 2), (0,)), ids=str)
def test_gradients_to_be_differentiated_again_pass_through_results_that_are_gone(kept: tuple[int, ...]) -> None:
    def chained(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        first = w.tanh()
        second = first * x
        return second.sin(), first, second

    shows = []
    for call in (chained, minicompile.compile(chained)):
        x, w = (torch.linspace(low, 1, 6, requires_grad=True) for low in (-1, -2))
        results = list(map(call(x, w).__getitem__, kept))
        grads = torch.autograd.grad(sum(result.square().sum() for result in results), [x, w, *results], create_graph=True)
        shows.append((grads, torch.autograd.grad(sum(grad.square().sum() for grad in grads[:2]), [x, w])))
    assert_same(*shows)


@pytest.mark.parametrize("kind", ["transposed", "the same", "a part"])
def test_views_of_two_inputs_that_share_memory(kind: str) -> None:
    def function(base: Tensor, view: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h, flat = base[1:], view.flatten()
        return h, (h @ w).relu() + flat[: h.shape[0], None], flat

    def seen(call: Function, rows: int) -> Any:
        generator = torch.Generator().manual_seed(rows)
        leaf, w = (torch.randn(size, 4, generator=generator, requires_grad=True) for size in (rows, 4))
        base = leaf * 1
        h, y, flat = call(base, {"transposed": base.mT, "the same": base, "a part": base[:, :2]}[kind], w)
        return h, y, flat, torch.autograd.grad(y.sum(), [h, flat, base, leaf, w], allow_unused=True)

    compiled = minicompile.compile(function)
    for rows in (4, 6, 4):
        assert_same(seen(compiled, rows), seen(function, rows))
    assert compiled.stats.fallbacks == 0
