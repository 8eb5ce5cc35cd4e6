"""Training code around a compiled function sees what it sees around a plain one.

Each scenario gets the identity or the compiler, and shows what a caller can see: values, gradients, errors, versions,
what shares memory. Both must show the same.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minicompile
from minicompile.runtime.second_derivatives import DoubleBackward
from tests.differential import leaf, leaves
from tests.planned_for_gpu import planned_for_gpu

Wrap = Callable[[Any], Any]
SCENARIOS: list[Callable[[Wrap], Any]] = []


def scenario(function: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
    """Add a scenario to the table."""
    SCENARIOS.append(function)
    return function


def attempt(call: Callable[[], Any]) -> Any:
    """The result, or the kind and beginning of the error."""
    try:
        return call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(4, 6), nn.Linear(2, 2), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(F.gelu(self.first(x))))


@scenario
def gradients_that_are_zero_whatever_comes_in(wrap: Wrap) -> Any:
    step = wrap(lambda x, y, z: (x**0, torch.copysign(y.detach(), z), y.exp()))
    shown = []
    for chosen in ([0, 1, 2], [0, 1], [1, 0]):
        x, y, z = leaf(3), leaf(3), leaf(3)
        outputs = step(x, y, z)
        sum(outputs[number].sum() for number in chosen).backward()
        shown.append([value.grad is None for value in (x, y, z)])
    return shown


@scenario
def an_unused_parameter_keeps_no_gradient(wrap: Wrap) -> Any:
    model = Perceptron()
    step = wrap(model)
    step(torch.randn(5, 4)).square().sum().backward()
    return [p.grad for p in model.parameters()], [b for b in model.buffers()]


@scenario
def gradients_accumulate_and_are_set_to_none(wrap: Wrap) -> Any:
    model = Perceptron()
    step, optimizer, seen = wrap(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for number in range(4):
        step(torch.randn(5, 4)).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 1)
        seen.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return seen, [p.detach() for p in model.parameters()]


@scenario
def a_gradient_is_added_into_the_same_memory(wrap: Wrap) -> Any:
    w = leaf(4, 4)
    step = wrap(lambda w, x: (x @ w).tanh())
    step(w, torch.randn(3, 4)).sum().backward()
    assert w.grad is not None
    first, place = w.grad.clone(), storage(w.grad)
    step(w, torch.randn(3, 4)).sum().backward()
    return first, w.grad, storage(w.grad) == place


@scenario
def a_subset_of_gradients(wrap: Wrap) -> Any:
    a, b, c = leaf(3), leaf(3), torch.randn(3)
    out = wrap(lambda a, b, c: (a * b).exp() + b * c)(a, b, c)
    found = torch.autograd.grad(out.sum(), [b], retain_graph=True)
    again = torch.autograd.grad([out], [a, b], [torch.arange(3.0)])
    return found, again, a.grad, b.grad, attempt(lambda: torch.autograd.grad(out.sum(), [b]))


@scenario
def an_input_that_is_not_used(wrap: Wrap) -> Any:
    a, b = leaf(3), leaf(3)
    out = wrap(lambda a, b: a.sin())(a, b).sum()
    unused = attempt(lambda: torch.autograd.grad(out, [b], retain_graph=True))
    return unused, torch.autograd.grad(out, [a, b], allow_unused=True)


@scenario
def a_kept_graph_twice_and_a_freed_graph_once(wrap: Wrap) -> Any:
    a = leaf(3)
    out = wrap(lambda a: a.sin() * a)(a).sum()
    out.backward(retain_graph=True)
    out.backward()
    return a.grad, attempt(lambda: out.backward())


@scenario
def hooks_on_tensors_parameters_and_modules(wrap: Wrap) -> Any:
    seen: list[Any] = []
    later: list[Any] = []
    model = Perceptron()
    model.first.weight.register_hook(lambda g: g * 2)
    model.last.bias.register_post_accumulate_grad_hook(lambda p: later.append(p.grad.clone()))
    x = leaf(5, 4)
    x.register_hook(lambda g: seen.append(g.clone()))
    out = wrap(model)(x)
    out.register_hook(lambda g: g + 1)
    out.retain_grad()
    out.sum().backward()
    return seen, later, [p.grad for p in model.parameters()], out.grad, x.grad


@scenario
def hooks_of_results_that_a_backward_does_not_reach(wrap: Wrap) -> Any:
    seen: list[Any] = []
    a, b = leaf(3), leaf(3)
    first, second, third = wrap(lambda a, b: (h := a.sin(), b.exp(), h * 2))(a, b)
    handle = first.register_hook(lambda g: seen.append(("first", g * 1)))
    second.register_hook(lambda g: g * 5)
    third.register_hook(lambda g: seen.append(("third", g * 1)))
    second.sum().backward(retain_graph=True)
    third.sum().backward(retain_graph=True)
    handle.remove()
    first.sum().backward()
    return seen, a.grad, b.grad, len(first._backward_hooks)


@scenario
def full_backward_hooks(wrap: Wrap) -> Any:
    seen: list[Any] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
    model.register_full_backward_pre_hook(lambda m, go: seen.append(go[0].clone()))
    wrap(model)(torch.randn(3, 4)).square().sum().backward()
    return seen, [p.grad for p in model.parameters()]


@scenario
def intermediate_and_final_result(wrap: Wrap) -> Any:
    def both(x: Tensor, w: Tensor) -> Any:
        h = torch.tanh(x @ w)
        return h, (h * h.sigmoid()).sum() + w.sum()

    x, w = torch.randn(5, 4), leaf(4, 3)
    h, loss = wrap(both)(x, w)
    kept = torch.autograd.grad(loss, [h, w], retain_graph=True)
    mixed = torch.autograd.grad(loss * 2 + h.square().sum(), [h, w], retain_graph=True)
    h.retain_grad()
    h.register_hook(lambda g: g * 3)
    (loss + h.sum()).backward()
    return kept, mixed, h.grad, w.grad


@scenario
def a_chain_of_results(wrap: Wrap) -> Any:
    def layers(x: Tensor, a: Tensor, b: Tensor) -> Any:
        first = torch.tanh(x @ a)
        second = torch.tanh(first @ b) + first
        return [first, second, second.sum(0)], second.logsumexp(1).mean()

    x, a, b = torch.randn(5, 4), leaf(4, 4), leaf(4, 4)
    states, loss = wrap(layers)(x, a, b)
    per_state = torch.autograd.grad(loss, [*states[:2], a, b], retain_graph=True)
    between = torch.autograd.grad(states[1].sum(), [states[0], b], retain_graph=True)
    for state in states:
        state.retain_grad()
    (loss + states[2].square().sum()).backward()
    return per_state, between, [state.grad for state in states], a.grad, b.grad


@scenario
def plain_training_with_an_intermediate_result(wrap: Wrap) -> Any:
    model = Perceptron()

    def logits_and_loss(x: Tensor, t: Tensor) -> Any:
        logits = model(x)
        return logits, F.cross_entropy(logits, t)

    step, seen = wrap(logits_and_loss), []
    for number in range(3):
        logits, loss = step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
        (loss if number < 2 else loss + logits.square().mean()).backward()
        seen.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return seen


@scenario
def a_view_of_an_intermediate_result(wrap: Wrap) -> Any:
    def both(x: Tensor) -> Any:
        h = x.exp()
        return h, h.t(), h[0], h.sum(), x

    x = leaf(3, 4)
    h, turned, row, total, same = wrap(both)(x)
    found = torch.autograd.grad(total + turned.sum() + row.sum(), [x], retain_graph=True)
    return found, storage(h) == storage(turned) == storage(row), same is x, turned.shape, row.stride()


@scenario
def a_view_of_an_input_gets_another_shape_and_is_differentiated_twice(wrap: Wrap) -> Any:
    x = leaf(4)
    y = x * 1
    result = wrap(lambda y: ((v := y[1:]).unsqueeze_(0) * v).sin().sum())(y)
    (gradient,) = torch.autograd.grad(result, x, create_graph=True)
    return result, gradient, torch.autograd.grad(gradient.sum(), x)


@scenario
def a_gradient_penalty(wrap: Wrap) -> Any:
    w, x = leaf(4, 1), leaf(5, 4)
    net = wrap(lambda x, w: torch.tanh(x @ w).sum())
    gradient, = torch.autograd.grad(net(x, w), [x], retain_graph=True)
    ((gradient.norm(dim=1) - 1) ** 2).sum()
    score = net(x, w) + (gradient.detach().norm() - 1) ** 2
    score.backward()
    return gradient, w.grad


@scenario
def a_saved_input_is_changed_before_the_backward(wrap: Wrap) -> Any:
    a, b = leaf(3), torch.randn(3)
    out = wrap(lambda a, b: (a * b).sum())(a, b)
    b.add_(1)
    return attempt(lambda: out.backward()), a.grad


@scenario
def an_input_that_is_not_saved_may_change(wrap: Wrap) -> Any:
    a, b = leaf(3), torch.randn(3)
    out = wrap(lambda a, b: (a + b).sum())(a, b)
    b.add_(1)
    out.backward()
    return a.grad


@scenario
def inputs_that_are_not_saved_change_where_the_backward_reads_them(wrap: Wrap) -> Any:
    x, y, rows = leaf(6, 1), torch.randn(9), torch.randn(4, 9)
    step = wrap(lambda x, y, rows: (((x - y).abs() * (x + 1 < y)).sum(), ((rows[1] + 1).exp() * x).sum(), rows.mul_(3)))
    first, second, _ = step(x, y, rows)
    y.zero_(), rows.zero_()
    with torch.no_grad():
        x.add_(1)
    first.backward()
    return attempt(lambda: second.backward()), x.grad, rows


@scenario
def a_decoder_is_given_its_cache_and_returns_it(wrap: Wrap) -> Any:
    def decoder(x: Tensor, weights: list[Tensor], cache: list[Tensor], lengths: list[int]) -> Any:
        kept = []
        for w, old in zip(weights, cache):
            kept.append(torch.cat([old, x @ w]))
            lengths.append(len(kept[-1]))
            x = x + (x @ kept[-1].t()).softmax(-1) @ kept[-1]
        cache[0] = kept[0] * len(lengths)
        return x, kept, kept[1][1:], kept[-1].t()

    weights, cache, lengths = [leaf(4, 4, dtype=torch.float64) for _ in range(3)], list(torch.randn(3, 2, 8).double()[..., ::2]), []
    run, shown = wrap(decoder), []
    for step, rows in enumerate((3, 5, 3, 2)):
        base, seen = leaf(4, rows, dtype=torch.float64), []
        y, kept, part, turned = run(base.t(), weights, cache, lengths)
        if step % 2:
            kept[0].retain_grad(), kept[1].register_hook(lambda gradient: (seen.append(gradient), gradient * 2)[1])
        loss = y.square().mean() + part.sum() * (step > 1) + turned.sin().sum()
        shown.append(torch.autograd.grad(loss, [base, *weights, kept[2]], retain_graph=True))
        loss.backward()
        shown += [base.grad, [w.grad.clone() for w in weights], kept[0].grad if step % 2 else None, seen, [*lengths], turned.stride()]
        cache = [value.detach() for value in (cache[0], kept[1], turned.t())]
    return shown


@scenario
def a_custom_backward_that_is_no_product_stands_between_results(wrap: Wrap) -> Any:
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient.sign() * gradient * gradient

    def results(x: Tensor, w: Tensor) -> Any:
        h = Squared.apply(x @ w)
        k = h.sin()
        m = Squared.apply(k * h)
        return h, k, m, (k + m).sum(0)

    run, shown = wrap(results), []
    for rows in (2, 3):
        x, w = leaf(rows, 3, dtype=torch.float64), leaf(3, 3, dtype=torch.float64)
        h, k, m, total = run(x, w)
        k.retain_grad(), h.register_hook(lambda gradient: gradient + 1)
        shown.append(torch.autograd.grad(total.sum() + m.sum(), [x, w, h, k], retain_graph=True))
        (total.sum() + h.sum() + m.square().sum()).backward()
        shown += [x.grad, w.grad, k.grad]
    return shown


@scenario
def parameters_change_between_forward_and_backward(wrap: Wrap) -> Any:
    w, x = leaf(4, 4), leaf(3, 4)
    out = wrap(lambda x, w: (x @ w).sum())(x, w)
    with torch.no_grad():
        w.mul_(2)
    return attempt(lambda: out.backward())


@scenario
def without_gradients(wrap: Wrap) -> Any:
    step, w, x = wrap(lambda x, w: (x @ w).relu()), leaf(4, 4), torch.randn(3, 4)
    with torch.no_grad():
        first = step(x, w)
    with torch.inference_mode():
        second = step(x, w)
    third = step(x, w)
    return first, second, first.requires_grad, second.is_inference(), third.requires_grad, third


@scenario
def switches_inside(wrap: Wrap) -> Any:
    def mixed(x: Tensor, w: Tensor) -> Any:
        with torch.no_grad():
            target = (x @ w).sigmoid()
        y = (x @ w).tanh()
        return ((y - target) ** 2).sum() + (y.detach() * w).sum(), target, y.detach()

    x, w = torch.randn(4, 4), leaf(4, 4)
    loss, target, y = wrap(mixed)(x, w)
    loss.backward()
    return loss, target.requires_grad, y.requires_grad, w.grad


@scenario
def gradients_switched_on_inside(wrap: Wrap) -> Any:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        with torch.enable_grad():
            return (x @ w).sum()

    x, w = torch.randn(4, 4), leaf(4, 4)
    with torch.no_grad():
        loss = wrap(inner)(x, w)
    loss.backward()
    return loss.requires_grad, w.grad


@scenario
def outputs_that_are_inputs_and_views(wrap: Wrap) -> Any:
    x, y = leaf(3, 4), torch.randn(3, 4)
    same, turned, row, narrow, other = wrap(lambda x, y: (x, x.t(), x[1], x.narrow(1, 1, 2), y.view(-1)))(x, y)
    (turned.sum() + (row * 2).sum() + narrow.exp().sum()).backward()
    return (same is x, turned._base is x, storage(turned) == storage(x), storage(other) == storage(y), row.storage_offset(),
            narrow.stride(), x.grad)  # fmt: skip


@scenario
def a_view_that_is_returned_is_written(wrap: Wrap) -> Any:
    x = torch.randn(3, 4)
    row = wrap(lambda x: x[1])(x)
    row.add_(10)
    y = leaf(3, 4) * 1
    view = wrap(lambda y: y.view(2, 6))(y)
    view.mul_(3)
    y.sum().backward(retain_graph=True)
    return x, y, y._version, view._version


@scenario
def a_leaf_that_must_not_be_written(wrap: Wrap) -> Any:
    x = leaf(3)
    return attempt(lambda: wrap(lambda x: x.add_(1))(x)), attempt(lambda: wrap(lambda x: x[0].zero_())(x))


@scenario
def an_input_is_written_with_a_gradient(wrap: Wrap) -> Any:
    a, b = leaf(3), leaf(3)
    x = a * 2
    before = x._version
    out = wrap(lambda x, b: x.mul_(b).exp().sum())(x, b)
    out.backward(retain_graph=True)
    x.sum().backward()
    return x, x._version - before, a.grad, b.grad


@scenario
def versions_of_written_inputs(wrap: Wrap) -> Any:
    x, y, z = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    def write(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(1)
        y[1:3] = 2
        return x + y + z

    out = wrap(write)(x, y, z)
    return x, y, out, x._version > 0, y._version > 0, z._version


@scenario
def two_arguments_share_memory(wrap: Wrap) -> Any:
    base = torch.arange(8.0)
    step = wrap(lambda a, b: (a.add_(1), b * 2, a + b))
    first = step(base[:5], base[3:])
    second = step(base[:3], base[5:])
    third = step(base, base)
    return first, second, third, base


@scenario
def a_list_holds_one_tensor_twice(wrap: Wrap) -> Any:
    x = torch.randn(3)
    def write(pair: list[Tensor]) -> Any:
        pair[0].mul_(2)
        return pair[1] + 1

    return wrap(write)([x, x]), x


@scenario
def outputs_share_memory(wrap: Wrap) -> Any:
    x = torch.randn(4, 4)
    h, top, flat, again = wrap(lambda x: (lambda h: (h, h[:2], h.view(-1), h))(x + 1))(x)
    top.zero_()
    return h, flat, again is h, storage(h) == storage(flat)


@scenario
def parts_of_a_hidden_tensor(wrap: Wrap) -> Any:
    x = leaf(3, 6)
    a, b, c = wrap(lambda x: (x * 2).chunk(3, 1))(x)
    (a.sum() + (b * c).sum()).backward()
    return x.grad, storage(a) == storage(b), b.storage_offset(), attempt(lambda: a.add_(1).sum())


@scenario
def memory_that_grows(wrap: Wrap) -> Any:
    x = torch.arange(6.0)
    def grow(x: Tensor) -> Tensor:
        x.resize_(2, 3)
        return x + 1

    return wrap(grow)(x), x.shape


@scenario
def averages_of_weights_and_statistics(wrap: Wrap) -> Any:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("average", torch.zeros(4, 4))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.average.lerp_(self.layer.weight, 0.1)
                self.steps += 1
            return self.layer(x) + F.linear(x, self.average)

    model = Average()
    step = wrap(model)
    for _ in range(3):
        step(torch.randn(2, 4)).sum().backward()
    return model.average, model.steps, model.layer.weight.grad


@scenario
def a_cache_of_keys_is_filled(wrap: Wrap) -> Any:
    cache, place = torch.zeros(2, 8, 4), []
    def store(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, new)
        cache[:, 7:] = new.mean(1, keepdim=True)
        return cache[:, :4].sum((1, 2))

    step = wrap(store)
    for number in range(3):
        place.append(step(cache, torch.randn(2, 2, 4), torch.tensor([2 * number, 2 * number + 1])))
    return cache, place, storage(cache) == cache.data_ptr()


@scenario
def checkpointed_regions(wrap: Wrap) -> Any:
    from torch.utils.checkpoint import checkpoint

    w, x = leaf(4, 4), leaf(3, 4)
    step = wrap(lambda x, w: checkpoint(lambda x: torch.tanh(x @ w).exp(), x, use_reentrant=False) @ w)
    step(x, w).sum().backward()
    return x.grad, w.grad


@scenario
def scaled_losses_under_autocast(wrap: Wrap) -> Any:
    model = Perceptron()
    step = wrap(lambda x: model(x).float().square().mean())
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = step(torch.randn(5, 4))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.dtype, [p.dtype for p in model.parameters()], scaler.get_scale()


@scenario
def a_gradient_that_is_never_given(wrap: Wrap) -> Any:
    a, b = leaf(3), leaf(3)
    first, second = wrap(lambda a, b: (a * 2, b.sin()))(a, b)
    first.sum().backward()
    return a.grad, b.grad


@scenario
def gradients_of_other_dtypes_and_layouts(wrap: Wrap) -> Any:
    a = leaf(3, 4)
    step = wrap(lambda a: a.sin())
    step(a).sum().backward()
    step(a).t().contiguous().view(-1).square().sum().backward()
    step(a).backward(torch.ones(4, 3).t())
    step(a).expand(2, 3, 4).sum().backward()
    step(a).double().sum().backward()
    return a.grad


@scenario
def two_calls_in_one_graph(wrap: Wrap) -> Any:
    w, x = leaf(4, 4), torch.randn(3, 4)
    step = wrap(lambda x, w: (x @ w).tanh())
    step(step(step(x, w), w), w).sum().backward()
    return w.grad


@scenario
def integers_beside_floats(wrap: Wrap) -> Any:
    x = leaf(4)
    best, place, count = wrap(lambda x: (x.max(), x.argmax(), (x > 0).sum()))(x)
    best.backward()
    return best.requires_grad, place.requires_grad, count.requires_grad, place, count, x.grad


@scenario
def a_write_with_gradients_is_no_gradient_of_what_was_there(wrap: Wrap) -> Any:
    """`x` has no history until it is written; what was computed from it before has none afterwards."""

    def function(weight: Tensor, x: Tensor, kept: Tensor) -> Tensor:
        before = x * 3
        kept.copy_(x)
        x.mul_(weight)
        return before

    weight, x, kept = leaf(3), torch.ones(3), torch.zeros(3)
    before = wrap(function)(weight, x, kept)
    x.sum().backward()
    return before, kept, x, weight.grad


PAIRS: list[Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = [
    lambda a, b: (a.exp(), a.sin()),
    lambda a, b: ((a * b).exp(), (a * b).sin()),
    lambda a, b: (lambda h: (h.exp(), h.sin()))(a * b),
    lambda a, b: (lambda h: (h.exp(), h.sin()))(a + b),
    lambda a, b: (lambda h: (h, h.sin()))(a * b),
    lambda a, b: (a + b, a * b, (a * b).cos()),
    lambda a, b: (lambda fake: ((fake.detach() * b).tanh(), (fake * b).tanh()))(a.exp()),
]


@scenario
def results_that_share_no_history_have_a_backward_each(wrap: Wrap) -> Any:
    shown: list[Any] = []
    for function in PAIRS:
        for order in ((0, 1), (1, 0), (0, 0), (0, 1, 0), (1, 0, 1)):
            a, b = leaf(3), leaf(3)
            results = wrap(function)(a, b)
            for number in order:
                shown += [attempt(results[number].sum().backward), a.grad, b.grad]
    return shown


CHANGED: list[Callable[[Tensor], tuple[Tensor, ...]]] = [
    *(lambda x, name=name: (getattr(x, name)(),) for name in ("prod", "max", "amax", "amin", "median", "norm", "std", "exp", "square")),
    lambda x: (x.dist(x.detach() * 2),),
    lambda x: (lambda places: (places, x.gather(0, places)))(x.argsort()),
    lambda x: (x.argsort(), x.gather(0, x.argsort())),
    lambda x: (x.sum(), x * x.sum()),
    lambda x: (lambda h: (h, h.sin()))(x * 2),
    lambda x: (lambda h: (h[1:], h + 1))(x * 2),
]


@scenario
def a_result_that_eager_saved_is_changed(wrap: Wrap) -> Any:
    shown: list[Any] = []
    for function in CHANGED:
        x = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
        results = wrap(function)(x)
        results[0].add_(1)
        shown += [attempt(results[-1].sum().backward), x.grad]
    return shown


@scenario
def a_factor_that_every_call_changes(wrap: Wrap) -> Any:
    factor, a = torch.ones(3), leaf(3)

    def function(a: Tensor) -> Tensor:
        factor.add_(1)
        return a * factor

    step = wrap(function)
    earlier, later = step(a), step(a)
    return attempt(later.sum().backward), attempt(earlier.sum().backward), a.grad


class Doubled(torch.autograd.Function):
    """Doubles a tensor in place, with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


@scenario
def a_custom_function_writes_an_input(wrap: Wrap) -> Any:
    a = leaf(4)
    b = a * 1
    out = wrap(lambda b: Doubled.apply(b) * 3)(b)
    (out.sum() + b.exp().sum()).backward()
    return out, b, a.grad, b.requires_grad


@scenario
def zeros_that_are_not_in_memory(wrap: Wrap) -> Any:
    a, zeros = leaf(3, 4), torch._efficientzerotensor((3, 4))
    product = wrap(lambda a: a.sin() * 2 + 1)
    product(a).backward(zeros)
    return a.grad, product(zeros), product(torch.zeros(3, 4))


@scenario
def gradients_in_batches(wrap: Wrap) -> Any:
    a, rows, w = leaf(3, 4), torch.eye(3), leaf(4)
    twice = a * 2
    product = wrap(lambda a, w: (a.sin() * w).sum(1))
    once = torch.autograd.grad(out := product(a, w), (a, w), rows, is_grads_batched=True, retain_graph=True)
    mapped = torch.func.vmap(lambda row: torch.autograd.grad(out, a, row, retain_graph=True)[0])(rows)
    several = torch.autograd.grad(wrap(lambda a: (a.sum(1), a.exp()))(twice), a, (rows, torch.ones(3, 3, 4)), is_grads_batched=True)
    functional = torch.autograd.functional
    derivatives = functional.jacobian(product, (a, w), vectorize=True), functional.hessian(wrap(lambda a: a.exp().sum()), a, vectorize=True)
    return once, mapped, several, derivatives, torch.autograd.grad(out.sum(), w)


@scenario
def gradients_that_belong_to_a_transform_or_have_a_tangent(wrap: Wrap) -> Any:
    a, ones, func, forward_ad = leaf(3), torch.ones(3), torch.func, torch.autograd.forward_ad
    out = wrap(lambda a: a.sin() * a)(a)

    def pulled(v: Tensor) -> Tensor:
        return torch.autograd.grad(out, a, v, create_graph=True)[0]

    with forward_ad.dual_level():
        dual = tuple(forward_ad.unpack_dual(pulled(forward_ad.make_dual(ones, ones * 2))))
    forward = func.jacfwd(pulled)(ones), func.jvp(pulled, (ones,), (ones,))
    return dual, forward, func.grad(lambda v: pulled(v).sum())(ones), func.jacrev(pulled)(ones)


@scenario
def losses_of_one_call_that_are_differentiated_one_after_the_other(wrap: Wrap) -> Any:
    generator, critic, seen = nn.Linear(2, 3), nn.Linear(3, 1), []
    generator.weight.register_hook(lambda gradient: seen.append(gradient * 2))
    losses = wrap(lambda real, made: (F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean(),
                                      F.softplus(-critic(made)).mean()))  # fmt: skip
    for made in (generator(torch.randn(4, 2)).tanh(), wrap(generator)(torch.randn(4, 2))):
        of_critic, of_generator = losses(torch.randn(4, 3), made)
        of_critic.backward()
        seen.append(generator.weight.grad if not seen else None)
        of_generator.backward()
        both = losses(torch.randn(4, 3), generator(torch.randn(4, 2)).tanh())
        sum(both).backward()
    return seen, [parameter.grad for model in (generator, critic) for parameter in model.parameters()]


@scenario
def heads_of_which_one_is_used(wrap: Wrap) -> Any:
    body, first, second, mask = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2), torch.eye(2, 3)
    second.weight.register_hook(lambda gradient: gradient * mask)
    second.weight.register_post_accumulate_grad_hook(lambda parameter: shown.append(parameter.grad.clone()))
    shown: list[Any] = []
    step = wrap(lambda x: (first(z := body(x).relu()), second(z), z.sum()))
    for used in ([0], [2], [0, 1], [1], [2, 0, 1]):
        results = step(torch.randn(2, 3))
        sum(results[i].pow(2).sum() for i in used).backward()
        shown.append([None if p.grad is None else p.grad.clone() for m in (body, first, second) for p in m.parameters()])
    return shown


@scenario
def inputs_that_no_result_depends_on(wrap: Wrap) -> Any:
    a, b, c = leaf(3), leaf(3), leaf(3)
    h, seen = b.exp(), []

    def apart(a: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        unused = a * c  # noqa: F841  # autograd would have known of it
        return a.sin() * (h * c).detach(), (a * a).sum()

    first, second = wrap(apart)(a, h, c)
    c.register_hook(lambda gradient: seen.append(gradient * 2))
    h.register_hook(lambda gradient: seen.append(gradient * 2))
    first.sum().backward(retain_graph=True)
    twice, = torch.autograd.grad(second, a, create_graph=True)
    h.sum().backward()
    return seen, a.grad, b.grad, c.grad, torch.autograd.grad(twice.sum(), (a, c), allow_unused=True)


@scenario
def towers_apart(wrap: Wrap) -> Any:
    a, b, seen = leaf(3), leaf(3), []
    x, y = a.exp(), b.exp()
    y.register_hook(seen.append)
    first, second, mixed = wrap(lambda x, y: (x.sin(), y.cos(), y.tanh()))(x, y)
    first.register_hook(seen.append)
    from_second = torch.autograd.grad(mixed.sum(), y, retain_graph=True)
    second.sum().backward(retain_graph=True)
    (first.sum() + second.sum()).backward()
    return seen, from_second, a.grad, b.grad, attempt(lambda: first.sum().backward())


@scenario
def a_view_in_other_modes_than_its_surroundings(wrap: Wrap) -> Any:
    def views(x: Tensor, h: Tensor) -> Any:
        silent = h[:, 1:]
        with torch.enable_grad():
            heard, result = h[:, 1:], x.sin()
        return silent, heard, result

    shown = []
    for x in (torch.ones(2, 3), leaf(2, 3)):
        start = leaf(2, 3)
        h = start.exp()
        with torch.no_grad():
            views_of = wrap(views)(x, h)
        shown.append([(view.requires_grad, view.is_leaf) for view in views_of])
        views_of[1].sum().backward()
        shown.append(start.grad)
    return shown


@scenario
def a_view_of_an_input_that_is_written_with_gradients_later(wrap: Wrap) -> Any:
    x, w = torch.ones(2, 3), leaf(2, 3)
    view, _ = wrap(lambda x: (x.view(-1), x * 2))(x)
    x.mul_(w)
    view.sum().backward()
    return w.grad, view


@scenario
def lists_written_in_place_are_writes(wrap: Wrap) -> Any:
    def write(h: Tensor, w: Tensor) -> Tensor:
        torch._foreach_mul_([h], 0.5)
        with torch.no_grad():
            torch._foreach_add_([w], 1.0)
        return h * 3

    a, w = leaf(3), leaf(3)
    h, kept = a * 1, (w * w).sum()
    out = wrap(write)(h, w)
    (out.sum() + h.sum()).backward()
    return a.grad, w._version, attempt(kept.backward)


@scenario
def a_custom_function_writes_a_leaf_that_nobody_differentiates(wrap: Wrap) -> Any:
    x = leaf(3)
    with torch.no_grad():
        out = wrap(lambda x: Doubled.apply(x))(x)
    return x, out, out is x


def parts(x: Tensor, y: Tensor) -> Any:
    return x.sin() * 2, y.exp() * 2, x * y


class Nothing(torch.autograd.Function):
    """Gives nothing, and hands on no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None


def once(call: Callable[[], Any]) -> Callable[[Tensor], None]:
    """A hook that makes a call when it is called first."""
    calls = [call]
    return lambda gradient: calls.pop()() if calls else None


@scenario
def a_gradient_asked_for_in_a_hook(wrap: Wrap) -> Any:
    a, b, c, seen = leaf(3), leaf(3), leaf(3), []
    x, y = a * 2, b * 2
    results = wrap(parts)(x, y)
    losses = [result.sum() for result in results]
    results[1].register_hook(once(lambda: seen.append(torch.autograd.grad(losses[0], [x], retain_graph=True))))
    sum(losses).backward()
    h, loss = wrap(lambda c: (h := c.sin(), h.square().sum()))(c)
    h.register_hook(once(lambda: seen.append(torch.autograd.grad(loss, [c], retain_graph=True))))
    loss.backward(retain_graph=True)
    return seen, a.grad, b.grad, c.grad


@scenario
def a_result_beside_views_of_it(wrap: Wrap) -> Any:
    def views(x: Tensor) -> Any:
        h = x.exp()
        turned = h.t()
        return h, turned, h[0], turned.square().sum() + h.sin().sum()

    x = leaf(2, 3)
    h, turned, row, loss = wrap(views)(x)
    found = torch.autograd.grad(loss + turned.sum() + (row * 2).sum(), [h, x], retain_graph=True)
    alone = [torch.autograd.grad(part.sum(), [h], retain_graph=True) for part in (turned, row, loss)]
    h.retain_grad()
    h.register_hook(lambda gradient: gradient * 2)
    (loss + row.sum()).backward()
    return found, alone, h.grad, x.grad, turned._base is h, storage(h) == storage(row)


@scenario
def a_result_beside_one_that_is_written_in_place(wrap: Wrap) -> Any:
    def function(x: Tensor) -> Any:
        h = x.exp()
        k = h * 2
        k.mul_(1.5)
        return h, k, h.sin().sum()

    x = leaf(3)
    h, k, loss = wrap(function)(x)
    return torch.autograd.grad(loss + k.sum(), [h, x])


@scenario
def a_result_written_in_place_and_computed_with(wrap: Wrap) -> Any:
    def function(x: Tensor) -> Any:
        h = x.sin()
        h[0] = x[1] * 3
        rest = h[1:]
        rest.mul_(2)
        return h, h.square().sum(), rest * 3

    x = leaf(3)
    h, loss, rest = wrap(function)(x)
    h.retain_grad()
    (loss + h.sum() + rest.sum()).backward()
    return h.grad, x.grad


@scenario
def features_behind_activations_in_place(wrap: Wrap) -> Any:
    layers = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.1, True))]
    for layer in layers:
        nn.init.eye_(layer[0].weight)

    def function(x: Tensor) -> Any:
        first = layers[0](x)
        second = layers[1](first)
        return first, second, second.square().sum()

    first, second, loss = wrap(function)(leaf(2, 3))
    return torch.autograd.grad(loss + first.sum() + second.sum(), [first, second, layers[0][0].weight])


@scenario
def a_gradient_by_an_input_that_was_written(wrap: Wrap) -> Any:
    def function(x: Tensor, y: Tensor) -> Any:
        whole = x[:]
        x[0].mul_(2)
        y.add_(x)
        return x.square(), x, y[:2], y * x, whole.sin(), x.view(-1).exp()

    x, y = leaf(3), leaf(3)
    inputs = x * 1, y * 3
    results = wrap(function)(*inputs)
    total = sum(result.sum() for result in results)
    found = torch.autograd.grad(total, [*inputs, x, y, results[2]], retain_graph=True, allow_unused=True)
    inputs[0].register_hook(lambda gradient: gradient * 2)
    total.backward()
    return found, x.grad, y.grad, results[1] is inputs[0], storage(results[2]) == storage(inputs[1])


@scenario
def a_gradient_by_an_input_written_through_a_view_that_is_returned(wrap: Wrap) -> Any:
    def function(x: Tensor) -> Any:
        row = x[0]
        row.mul_(2)
        return row, row * 2

    x = leaf(3, 3)
    written = x * 1
    row, twice = wrap(function)(written)
    return torch.autograd.grad(twice.sum() + row.sum(), [written, x]), storage(row) == storage(written)


@scenario
def a_buffer_that_gets_a_history(wrap: Wrap) -> Any:
    buffer, weight = torch.ones(3), leaf(3)
    loss = wrap(lambda buffer, weight: buffer.copy_(weight * 2).square().sum())(buffer, weight)
    buffer.retain_grad()
    loss.backward()
    return buffer.grad, weight.grad


def views_of_views(x: Tensor) -> Any:
    first = x[:2]
    return first[:, 1:].t(), first, first[1:], x[:2], first.view(-1)[1:3]


@scenario
def views_of_a_view_that_is_returned(wrap: Wrap) -> Any:
    found = []
    for function in (views_of_views, lambda x: views_of_views(x * 2)):
        results = wrap(function)(leaf(3, 2))
        total = sum((result * scale).sum() for scale, result in enumerate(results, 1))
        found.append(torch.autograd.grad(total, [results[1], results[3]]))
    return found


@scenario
def a_hook_that_raises_leaves_nothing_behind(wrap: Wrap) -> Any:
    a, b = leaf(3), leaf(3)
    x, y = a * 2, b * 2
    p, q, r = wrap(parts)(x, y)
    hook = p.register_hook(lambda gradient: gradient.new_empty(2).view(3))
    failed = attempt(lambda: (p.sum() + q.sum()).backward(retain_graph=True))
    hook.remove()
    Nothing.apply(r).sum().backward(retain_graph=True)
    return failed, a.grad, b.grad


class KeepsAPart(torch.autograd.Function):
    """A sine; a view of the result is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.sin()
        ctx.save_for_backward(x, result[:1])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, part = ctx.saved_tensors
        return gradient * x.cos() + part.sum()


@scenario
def a_custom_function_that_keeps_a_view_of_its_result(wrap: Wrap) -> Any:
    x, y = leaf(3), leaf(3)
    wrap(lambda x: KeepsAPart.apply(x * 2))(x).sum().backward()
    result = wrap(lambda y: KeepsAPart.apply(y))(y)
    with torch.no_grad():
        result.mul_(2)
    z = leaf(3)
    first = torch.autograd.grad(wrap(lambda z: TimesAPart.apply(z).sin())(z).sum(), z, create_graph=True)
    return x.grad, type(attempt(lambda: result.sum().backward())), y.grad, first, torch.autograd.grad(first[0].sum(), z)


class TimesAPart(torch.autograd.Function):
    """A double; a view of the result is an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x * 2
        ctx.part = result[:1]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.part


def written_by_a_list(x: Tensor) -> Tensor:
    result = x.sin()
    torch._foreach_mul_([x.cos(), result], 2.0)
    return result


@scenario
def a_gradient_that_passes_a_result_that_has_its_history_late(wrap: Wrap) -> Any:
    shown = []
    for history in (KeepsAPart.apply, written_by_a_list, lambda x: Doubled.apply(x * 1)):
        x, seen = leaf(3), []
        h, loss = wrap(lambda x: (h := history(x), h.exp().sum()))(x)
        shown += torch.autograd.grad(loss, [h, x], retain_graph=True)
        h.register_hook(lambda gradient: (seen.append(gradient), gradient * 2)[1])
        (h.sum() + loss).backward()
        shown += [x.grad, seen]
    return shown


class Pair(torch.autograd.Function):
    """Two results, and a backward that adds something once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return first * 2 + second * 3 + x


@torch.library.custom_op("tests_of_autograd::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * 3


pair.register_fake(lambda x: (x * 2, x * 3))
pair.register_autograd(lambda ctx, *gradients: Pair.backward(ctx, *gradients),
                       setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@scenario
def gradients_that_pass_two_results_of_a_custom_function(wrap: Wrap) -> Any:
    def followed(h: Tensor, w: Tensor) -> Any:
        return h, w, h.exp()

    def crossed(h: Tensor, w: Tensor) -> Any:
        return h, h.sin(), w, w * h

    shown = []
    for custom in (Pair.apply, pair):
        for results in (lambda h, w: (h, h.exp()), followed, crossed, lambda h, w: (h, w.exp())):
            x, seen = leaf(3), []
            first, *rest = wrap(lambda x: results(*custom(x)))(x)
            first.retain_grad()
            first.register_hook(lambda gradient: None if gradient is None else (seen.append(gradient), gradient * 2)[1])
            rest[-1].sum().backward(retain_graph=True)
            shown += [x.grad.clone(), attempt(lambda: torch.autograd.grad(rest[0].sum(), first, retain_graph=True))]
            sum(each.sum() for each in (first, *rest)).backward()
            shown += [x.grad, first.grad, seen]
    return shown


@pytest.mark.parametrize("custom", [Pair.apply, pair])
def test_a_custom_backward_runs_once_for_a_result_and_for_what_is_computed_from_a_hidden_one(custom: Any) -> None:
    def results(x: Tensor) -> Any:
        first, second = custom(x)
        return first, first * second

    grads = []
    for function in (results, minicompile.compile(results)):
        x = torch.ones(3, requires_grad=True)
        sum(result.sum() for result in function(x)).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


class Spike(torch.autograd.Function):
    """A step whose gradient is that of a smooth one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.clone() / (x.abs() + 1) ** 2


def test_a_backward_that_is_a_product_with_a_copy_of_its_gradient_leaves_no_graph_to_eager() -> None:
    def spiking(x: Tensor) -> Any:
        spikes = Spike.apply(x)
        h = spikes * 2
        return h, h.exp() + spikes

    x, grads = leaf(3), []
    for function in (spiking, minicompile.compile(spiking, options={"suppress_errors": False})):
        results = function(x)
        grads += torch.autograd.grad(results[1].sum(), results[0], retain_graph=True)
        grads += torch.autograd.grad(results[0].sum() + results[1].sum(), x)
    torch.testing.assert_close(grads[:2], grads[2:])


@scenario
def hooks_of_results_that_are_gone_or_changed(wrap: Wrap) -> Any:
    def chained(x: Tensor, y: Tensor) -> Any:
        h = x * 2
        k = h.neg()
        return h, k, k + h, y.cos()

    def written(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return x, x.neg(), (x + y).neg(), y.cos()

    shown = []
    for function in (chained, written):
        for change in (lambda h: None, lambda h: h.mul_(3)):
            x, y, seen = leaf(3), leaf(3) * 1, []
            *followed, last, other = wrap(function)(x * 1, y)
            for result in followed:
                result.register_hook(lambda gradient: None if gradient is None else (seen.append(gradient), gradient * 2)[1])
            change(followed[0])
            del followed, result
            (last.sum() + other.sum()).backward()
            shown += [x.grad, seen]
    return shown


class Clipped(torch.autograd.Function):
    """A sine whose incoming gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.clamp(-1, 1) * x.cos()


@scenario
def a_gradient_of_one_of_two_custom_functions_that_compute_the_same(wrap: Wrap) -> Any:
    shown = []
    for used in range(2):
        x = leaf(3)
        wrap(lambda x: (Clipped.apply(x), Clipped.apply(x) * 2))(x)[used].sum().backward()
        shown.append(x.grad)
    return shown


class Halved(Clipped):
    """A sine whose gradient is half of what it should be."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (gradient * x.cos() / 2).reshape(-1)[:]


def beside_a_returned_result(x: Tensor) -> Any:
    """A network that keeps the keys of its second layer, beside its result, which custom functions give too."""
    hidden = Halved.apply(x)
    keys = hidden.exp()
    return keys, keys.sum() * hidden


@scenario
def gradients_that_pass_the_hidden_result_of_a_linear_custom_backward(wrap: Wrap) -> Any:
    shown = []
    for used in ([0], [1], [0, 1]):
        x = leaf(3)
        results = wrap(beside_a_returned_result)(x)
        shown.append(torch.autograd.grad(results[1].sum(), results[0], retain_graph=True))
        sum(results[i].sum() for i in used).backward()
        shown.append(x.grad)
    return shown


def test_a_linear_custom_backward_is_compiled_beside_a_result_that_others_are_computed_from() -> None:
    compiled = minicompile.compile(beside_a_returned_result, options={"suppress_errors": False})
    compiled(torch.ones(3, requires_grad=True))
    assert compiled.stats.graphs == 1


@scenario
def losses_that_a_graph_adds_up_in_place_behind_a_custom_backward_that_is_no_product(wrap: Wrap) -> Any:
    def added_up(x: Tensor, seen: Tensor) -> Any:
        loss: Any = 0
        for _ in range(2):
            mask = Clipped.apply(x)
            loss += mask.mean()
            seen += mask
            x = mask * x
        loss /= 2
        return x, loss

    run, shown = wrap(added_up), []
    for used in ([0], [1], [2], [0, 1, 2]):
        x, seen = leaf(3), leaf(3)
        results = [*run(x, total := seen * 1), total]
        sum((3 * results[i]).sum() for i in used).backward()
        shown += [x.grad, seen.grad]
    return shown


def hidden_scores(x: Tensor, hidden: Tensor) -> Any:
    scores = x @ x.t()
    scores.data.masked_fill_(hidden, -math.inf)
    weights = scores.softmax(-1)
    return weights, weights @ x


def read_before(x: Tensor, hidden: Tensor) -> Any:
    gate = x.sigmoid()
    squares = gate * gate
    gate.data[hidden] = 3
    return gate, squares, gate.exp()


def changed_twice(x: Tensor, hidden: Tensor) -> Any:
    state = x
    for _ in range(2):
        state = (state * x).tanh()
        state.view(-1).data.clamp_(-0.2, 0.2)
    return state + 1


def attended(x: Tensor, hidden: Tensor) -> Any:
    values = x * 2
    result = (x @ x.t()).softmax(-1) @ values
    values.data.mul_(2), result.data.mul_(3)
    return result * result


def by_attention(x: Tensor, hidden: Tensor) -> Any:
    result = F.scaled_dot_product_attention(x[None], x[None], x[None])
    result.data.mul_(3)
    return result * result


def by_a_custom_function(x: Tensor, hidden: Tensor) -> Any:
    y = x * 2
    result = Clipped.apply(y)
    y.data.masked_fill_(hidden, 0)
    return result


def in_a_checkpoint(x: Tensor, hidden: Tensor) -> Any:
    def region(x: Tensor) -> Tensor:
        y = x.exp()
        y.data.mul_(0.5)
        return y * 2

    return torch.utils.checkpoint.checkpoint(region, x, use_reentrant=False)


def a_view_of_an_input(x: Tensor, hidden: Tensor) -> Any:
    part = x[1:]
    part.data.add_(1)
    return part.sin(), x.cos()


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("routes", [contextlib.nullcontext, planned_for_gpu])
@pytest.mark.parametrize("function, captured", [
    (hidden_scores, True), (read_before, True), (changed_twice, True), (attended, True), (by_attention, False),
    (by_a_custom_function, False), (in_a_checkpoint, False), (a_view_of_an_input, False)])  # fmt: skip
def test_data_of_results_is_changed(function: Callable[..., Any], captured: bool, routes: Any) -> None:
    with routes():
        compiled = minicompile.compile(function)
        for _ in range(2):
            x = torch.randn(4, 4, dtype=torch.float64)
            shown = []
            for run in (function, compiled):
                mine = x.clone().requires_grad_()
                results = run(mine, torch.eye(4) > 0)
                sum((result * (1 + x[0])).sum() for result in leaves(results)).backward()
                shown.append([mine, mine.grad, *leaves(results)])
            torch.testing.assert_close(shown[1], shown[0])
    assert (compiled.stats.fallbacks == 0) == captured


@scenario
def a_result_of_several_that_only_eager_keeps_is_changed(wrap: Wrap) -> Any:
    def chained(x: Tensor) -> Any:
        h = x - 1.5
        return (h * x).exp(), h

    shown = []
    for changed in (0, 1):
        results = wrap(chained)(leaf(3))
        separate = wrap(lambda x, y: (x.exp(), y.exp(), x * y))(leaf(3) * 1, leaf(3) * 1)
        for group in (results, separate):
            with torch.no_grad():
                group[changed].mul_(2)
            shown.append(attempt(lambda: sum(result.sum() for result in group).backward()))
    return shown


@scenario
def losses_of_one_call_after_gradients_that_kept_it(wrap: Wrap) -> Any:
    shown = []
    for x, y in ((leaf(3), leaf(3)), (leaf(3) * 2, leaf(3) * 2)):
        p, q, _ = wrap(parts)(x, y)
        losses = [p.sum(), q.sum()]
        shown.append(torch.autograd.grad(losses, [x, y], retain_graph=True))
        shown += [attempt(lambda: torch.autograd.grad(losses[i], (x, y)[i])) for i in (0, 1, 0)]
        first, hidden, loss = wrap(lambda x, y: (x.sin(), h := y.exp(), (h * x).sum()))(x, y)
        shown += [torch.autograd.grad(first.sum(), x), torch.autograd.grad(loss, [hidden, y])]
    return shown


@pytest.mark.parametrize("function", SCENARIOS, ids=lambda function: function.__name__.replace("_", " "))
def test_the_caller_sees_what_it_sees_in_eager(function: Callable[[Wrap], Any]) -> None:
    torch.manual_seed(7)
    plain = function(lambda target: target)
    torch.manual_seed(7)
    compiled = function(lambda target: minicompile.compile(target, options={"suppress_errors": False}))
    shown, wanted = leaves(compiled), leaves(plain)
    assert [describe(value) for value in shown] == [describe(value) for value in wanted]
    tensors = [(a, b) for a, b in zip(shown, wanted, strict=True) if isinstance(a, Tensor)]
    for one, other in tensors:
        torch.testing.assert_close(one, other, equal_nan=True)


def describe(value: Any) -> Any:
    """What must be equal at once: everything but the numbers of a tensor."""
    return (value.shape, value.dtype, value.requires_grad) if isinstance(value, Tensor) else value


def part_overwritten(a: Tensor) -> Tensor:
    result = a + 1
    result.view(-1)[1:].exp_()
    return result.clone()


@pytest.mark.parametrize("function", [
    lambda a: a.exp(), part_overwritten, lambda a: a.exp().view(-1).clone(), lambda a: a.sigmoid()[None].clone()])
def test_a_result_changed_before_the_backward_gives_the_gradient_of_the_forward_or_an_error(
    function: Callable[[Tensor], Tensor]
) -> None:
    a = leaf(3)
    out = minicompile.compile(function)(a)
    (expected,) = torch.autograd.grad(2 * function(a).sum(), a)
    out.mul_(2)
    try:
        out.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(a.grad, expected)


def changed(x: Tensor, w: Tensor, compiled: Callable[..., Any]) -> Any:
    out = compiled(x, bias := w.detach().clone())
    bias.add_(1)
    return out


@pytest.mark.parametrize(("function", "call"), [
    (lambda x, w: F.dropout(x @ w, 0.5).tanh(), lambda x, w, compiled: compiled(x, w)),
    (lambda x, w: (x.exp().sum() + w.sum()).tanh(), lambda x, w, compiled: compiled(x.repeat(1000, 1), w)),  # which only autograd holds
    (lambda x, w: (x.exp().sum() + w.sum()).tanh(), changed),
    (lambda x, w: (x @ w.mul_(2)).tanh(), lambda x, w, compiled: compiled(x, w * 1)),
    (lambda x, w: (x * w.mul_(2).sum()).tanh(), lambda x, w, compiled: compiled(x, torch.ones(20_000))),
])
def test_gradients_that_cannot_be_differentiated_again_are_an_error_that_says_what_to_do(
    function: Callable[..., Any], call: Callable[..., Any]
) -> None:
    x, w = leaf(5, 4), leaf(4, 1)
    out = call(x, w, minicompile.compile(function)).sum()
    with pytest.raises(DoubleBackward, match="cannot be differentiated twice.*minicompile.disable"):
        torch.autograd.grad(out, [x], create_graph=True)


def penalised(critic: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """A gradient penalty beside a loss of another call; the critic's input is a result, which nobody but autograd holds."""
    scores = critic((x * 2).requires_grad_())
    gradient, = torch.autograd.grad(scores.sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean() + critic(x.detach()).mean()


def hessian(critic: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda value: critic(value).sum(), x, create_graph=True)


def third(critic: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    first, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    second, = torch.autograd.grad(first.sum(), x, create_graph=True)
    return second.square()


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("program", [penalised, hessian, third])
def test_gradients_are_differentiated_again(program: Callable[..., Tensor], whole: bool) -> None:
    torch.manual_seed(0)
    critic = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    one = (lambda x: compiled(critic, x)) if whole else (lambda x: program(compiled, x))
    compiled = minicompile.compile(program if whole else critic)
    for rows in (2, 4, 3):
        shown = []
        for function in (lambda x: program(critic, x), one):
            x = torch.linspace(-1, 1, 3 * rows).view(rows, 3).requires_grad_()
            critic.zero_grad()
            value = function(x)
            value.sum().backward()
            shown.append((value, x.grad, *(parameter.grad for parameter in critic.parameters())))
        torch.testing.assert_close(shown[1], shown[0])


def test_what_is_handed_on_behind_a_graph_break_is_there_when_gradients_are_differentiated_again() -> None:
    def function(x: Tensor) -> Tensor:
        h = (x * 2).sin()
        print(end="")
        return (h + 1).sum(0) * h.mean()

    compiled, x = minicompile.compile(function), torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, (x,), check_batched_grad=True) and torch.autograd.gradgradcheck(compiled, (x,))
    assert compiled.stats.graph_breaks == 1


class Remembering(torch.nn.Module):
    """Overwrites statistics that the score depends on and others that it does not, and keeps a value on the way to it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)
        self.register_buffer("direction", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.direction.copy_(F.normalize(self.first.weight @ (self.first.weight.t() @ self.direction), dim=0))
        self.feature = F.leaky_relu_(self.norm(self.first(x) * self.direction.clone()), 0.2)
        return self.second(self.feature + self.feature.square())


def matched(critic: Any, x: Tensor) -> Tensor:
    of_input, of_feature = torch.autograd.grad(critic(x).sum(), [x, critic.feature], create_graph=True)
    return of_input.square().sum() + of_feature.square().sum() + critic.feature.sum()


def of_features(critic: Any, x: Tensor) -> Tensor:
    """The penalty's gradient by a feature that the score's gradient depends on."""
    score = critic(x).square().sum()
    feature, inputs = critic.feature, torch.autograd.grad(score, x, create_graph=True)
    return torch.autograd.grad(inputs[0].square().sum(), feature, create_graph=True)[0].square().sum()


@pytest.mark.parametrize("program", [penalised, third, matched, of_features])
def test_what_is_differentiated_again_may_overwrite_statistics_and_give_what_its_result_is_computed_from(
    program: Callable[..., Tensor]
) -> None:
    torch.manual_seed(0)
    models = [critic := Remembering().double(), copy.deepcopy(critic)]
    for rows in (2, 4, 3):
        shown = []
        for model, critic in zip(models, (models[0], minicompile.compile(models[1])), strict=True):
            x = torch.linspace(-1, 1, 3 * rows).double().view(rows, 3).sin().requires_grad_()
            model.zero_grad()
            value = program(critic, x)
            value.sum().backward()
            shown.append((value, x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()))
        torch.testing.assert_close(shown[1], shown[0])


def test_gradients_in_batches_of_a_result_that_another_one_is_computed_from() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return (h := x.sin()), h * x

    found = []
    for function in (program, minicompile.compile(program)):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        h, y = function(x)
        found.append(torch.autograd.grad(y, [x, h], torch.eye(3), is_grads_batched=True))
    torch.testing.assert_close(found[1], found[0])


def test_what_ran_under_autocast_is_differentiated_again_with_its_casts() -> None:
    torch.manual_seed(0)
    critic = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    compiled = minicompile.compile(critic)
    for cast in (True, False):
        shown = []
        for function in (critic, compiled):
            x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                scores = function(x)
            first, = torch.autograd.grad(scores.float().sum(), x, create_graph=True)
            first.square().sum().backward()
            shown.append((first, x.grad))
        torch.testing.assert_close(shown[1], shown[0], rtol=1e-4, atol=1e-5)


def test_gradients_that_only_the_graph_records_are_differentiated_again() -> None:
    @torch.no_grad()
    def program(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.sin() * x

    found = []
    for function in (program, minicompile.compile(program)):
        x = torch.ones(3, requires_grad=True)
        first, = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), x))
    torch.testing.assert_close(found[1], found[0])


def test_results_computed_from_results_take_one_compiled_backward_unless_somebody_looks_between() -> None:
    def both(x: Tensor, w: Tensor) -> Any:
        h = (x @ w).tanh()
        return h, h.square().sum()

    compiled = minicompile.compile(both, dynamic=True)
    for rows in (3, 5):
        w = leaf(4, 4)
        compiled(torch.randn(rows, 4), w)[1].backward()
    parts = [part for graph in compiled.compiler.graphs for part in graph.parts]
    assert parts.count("backward_of_1") == 1 and not any(part.startswith("to_") for part in parts)
    h, loss = compiled(torch.randn(6, 4), w)
    found, = torch.autograd.grad(loss, [h])
    torch.testing.assert_close(found, 2 * h.detach())
    assert "to_sources_of_1" in [part for graph in compiled.compiler.graphs for part in graph.parts]


@pytest.mark.parametrize("result", [lambda x: x + 1, lambda x: x.t() + 1, lambda x: x * 3, lambda x: x.t() + x])
def test_a_result_that_hands_its_gradient_on_adds_what_other_results_send_it_once(result: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        first = result(x)
        return first, first.sum() * torch.full((4,), 2)

    compiled = minicompile.compile(program)
    for watched in (False, True):
        gradients = []
        for function in (program, compiled):
            x = torch.ones(3, 3, requires_grad=True)
            first, second = function(x)
            outputs = [x, first] if watched else [x]
            gradients += [torch.autograd.grad(first.sum() + 2 * second.sum(), outputs)]
        torch.testing.assert_close(gradients[1], gradients[0])


@torch.library.custom_op("minicompile_tests::grouped_product", mutates_args=())
def grouped_product(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of `x` times the matrix of their group, as mixtures of experts do; the groups are read as numbers."""
    bounds = [0, *ends.tolist()]
    return torch.cat([x[a:b] @ weight for a, b, weight in zip(bounds, bounds[1:], weights, strict=False)])


@grouped_product.register_fake
def _(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def gradients_of_groups(ctx: Any, gradient: torch.Tensor) -> Any:
    """The backward looks at values too, so that it cannot be traced."""
    x, weights, ends = ctx.saved_tensors
    bounds = [0, *ends.tolist()]
    parts = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    return (torch.cat([gradient[part] @ weight.T for part, weight in zip(parts, weights, strict=True)]),
            torch.stack([x[part].T @ gradient[part] for part in parts]), None)


grouped_product.register_autograd(gradients_of_groups, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def test_a_custom_operator_whose_backward_looks_at_values_is_compiled() -> None:
    def program(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return (grouped_product(x * 2, weights, ends=ends).sin() * x.sum(1, keepdim=True)).relu()

    compiled = minicompile.compile(program, options={"suppress_errors": False, "cache": False}, fullgraph=True)
    for rows in (12, 16, 9):
        leaves = [torch.randn(rows, 8, requires_grad=True), torch.randn(3, 8, 5, requires_grad=True)]
        ends = torch.tensor([4, 7, rows])
        results = [function(*leaves, ends) for function in (compiled, program)]
        torch.testing.assert_close(*results)
        for mine, theirs in zip(*(torch.autograd.grad(result.sum(), leaves) for result in results), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert len(minicompile.api.compiled_function(compiled).compiler.graphs) == 2


@torch.library.custom_op("minicompile_tests::scaled_all", mutates_args=())
def scaled_all(values: list[torch.Tensor], factor: torch.Tensor, times: list[int]) -> list[torch.Tensor]:
    """Each of some tensors times a factor and a number."""
    return [value * factor * times[0] for value in values]


@scaled_all.register_fake
def _(values: list[torch.Tensor], factor: torch.Tensor, times: list[int]) -> list[torch.Tensor]:
    return [torch.empty_like(value) for value in values]


@torch.library.custom_op("minicompile_tests::first_of_all", mutates_args=())
def first_of_all(values: list[torch.Tensor]) -> torch.Tensor:
    """A copy of the first of some tensors, without a gradient."""
    return values[0].clone()


@first_of_all.register_fake
def _(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(values[0])


def keep_scaled(ctx: Any, inputs: Any, output: Any) -> None:
    """Keeps all but the list of numbers, of which it keeps the first."""
    values, factor, (ctx.number,) = inputs
    ctx.save_for_backward(*values, factor)


def gradients_of_scaled(ctx: Any, gradients: list[torch.Tensor]) -> Any:
    """A backward that looks at a value."""
    *values, factor = ctx.saved_tensors
    number = ctx.number if factor.sum().item() > 0 else 0
    return ([gradient * factor * number for gradient in gradients],
            sum(gradient * value * number for gradient, value in zip(gradients, values, strict=True)), None)


scaled_all.register_autograd(gradients_of_scaled, setup_context=keep_scaled)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_custom_operator_of_lists_whose_backward_looks_at_values_is_compiled(dynamic: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = scaled_all([x.cos(), y * 2], y, [3])
        return first.sin() + second, second

    compiled = minicompile.compile(program, options={"suppress_errors": False, "cache": False}, fullgraph=True, dynamic=dynamic)
    for rows in (4, 5):
        leaves = [torch.rand(rows, 3, requires_grad=True) for _ in range(2)]
        results = [function(*leaves) for function in (compiled, program)]
        torch.testing.assert_close(*results)
        gradients = [torch.autograd.grad(sum(result.sum() for result in each), leaves) for each in results]
        torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_custom_operator_of_a_list_without_a_gradient_raises_in_the_backward() -> None:
    for function in (first_of_all, minicompile.compile(lambda values: first_of_all(values) * 2)):
        result = function([torch.ones(3, requires_grad=True)])
        assert result.requires_grad
        with pytest.raises(RuntimeError, match="no autograd formula"):
            result.sum().backward()


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("key, breaks", [("CPU", 1), ("CompositeExplicitAutograd", 1), ("CompositeImplicitAutograd", 0)])
def test_a_custom_operator_without_a_rule_has_the_gradient_of_its_kernel(key: str, breaks: int) -> None:
    with torch.library._scoped_library("minicompile_tests", "FRAGMENT") as library:
        library.define(f"thrice_{key}(Tensor x) -> Tensor")
        library.impl(f"thrice_{key}", lambda x: 3 * x, key)
        if key == "CPU":
            library.impl(f"thrice_{key}", torch.empty_like, "Meta")
        operator = getattr(torch.ops.minicompile_tests, f"thrice_{key}")

        def program(x: torch.Tensor) -> torch.Tensor:
            return operator(x.relu()).cos()

        compiled, x = minicompile.compile(program, options={"suppress_errors": False}), torch.randn(5)
        torch.testing.assert_close(compiled(x), program(x))
        assert not compiled.graph_breaks
        x.requires_grad_()
        gradients = [torch.autograd.grad(function(x).sum(), x)[0] for function in (compiled, program)]
        torch.testing.assert_close(*gradients)
        assert len(compiled.graph_breaks) == breaks


@pytest.mark.parametrize("used", [0, 1])
def test_each_result_of_an_operator_made_of_others_has_a_gradient_of_its_own(used: int) -> None:
    def angles(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.asinh(), x.atan()
        return first * 2, second * 3

    with torch.library._scoped_library("minicompile_tests", "FRAGMENT") as library:
        library.define("angles(Tensor x) -> (Tensor, Tensor)")
        library.impl("angles", angles, "CompositeImplicitAutograd")
        operator, x = torch.ops.minicompile_tests.angles, leaf(5)
        compiled = minicompile.compile(lambda x: operator(x), options={"suppress_errors": False})
        gradients = [torch.autograd.grad(function(x)[used].sum(), x)[0] for function in (compiled, operator)]
        torch.testing.assert_close(*gradients)


def test_nothing_is_differentiated_under_inference_mode() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            return x.clone().abs().sqrt(), torch.lerp(x, x, -0.5)

    compiled, x = minicompile.compile(function, options={"suppress_errors": False}), torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        results = compiled(x)
    assert all(result.is_inference() and not result.requires_grad for result in results)
    torch.testing.assert_close(results, function(x.detach()))
    assert all(result.requires_grad for result in compiled(x))


def test_gradients_switched_on_under_inference_mode_stay_off_behind_a_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            print(end="")
            return x.diag()

    with torch.inference_mode():
        result = minicompile.compile(function, options={"cache": False})(torch.randn(3, 3, requires_grad=True))
    assert result.is_inference() and not result.requires_grad


class Flat(torch.autograd.Function):
    """A view with a backward of its own, which reads nothing that was kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.view(2, 3)


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_custom_function_left_to_eager_that_keeps_nothing_is_differentiated_twice() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    loss = minicompile.compile(lambda x: Flat.apply(x))(x).sum()
    loss.backward()
    loss.backward()
    assert torch.equal(x.grad, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [lambda x: x[0], lambda x: x.t(), lambda x: (x[:1], x[1:])])
def test_views_under_inference_mode_require_gradients_as_what_they_are_views_of(view: Callable[[Tensor], Any], dynamic: bool) -> None:
    for x in (torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True) * 2):
        with torch.inference_mode():
            results = leaves(minicompile.compile(view, dynamic=dynamic)(x))
        assert all(result.requires_grad and not result.is_inference() for result in results)


def test_a_view_made_without_gradients_of_what_has_them_stays_in_the_graph() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            y = x * 0.5
            z = x.exp()
        return y.view(-1), z[0], z

    x = torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        flat, row, z = minicompile.compile(function, options={"cache": False, "suppress_errors": False})(x)
    (flat.sum() + row.sum()).backward()
    assert flat.is_leaf and flat.requires_grad and row._base is z and x.grad is None
    z.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())


DETACHED = [lambda x: (y := x * 2, y.detach()), lambda x: ((y := x * 2).detach(), y.detach()), lambda x: ((y := (x * 2).detach()), y.detach()),
            lambda x: (y := x * 2, y.detach()[0]), lambda x: ((y := x * 2)[1:], y.detach()), lambda x: (x, x.data[1:]), lambda x: (x, x.detach()[0])]  # fmt: skip


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("function", DETACHED)
def test_a_detached_result_does_not_follow_what_becomes_of_the_other(function: Callable[..., Any], gradient: bool) -> None:
    found = []
    for run in (function, minicompile.compile(function, options={"cache": False})):
        first, second = run(torch.ones(3, 4, requires_grad=gradient) + 0)
        first.mul_(torch.tensor(3.0, requires_grad=True))
        found.append((first.requires_grad, second.requires_grad, second._is_view(), second._base is first, second.tolist()))
    assert found[0] == found[1]


def test_a_weight_masked_through_data_refuses_a_second_derivative() -> None:
    layer = torch.nn.Linear(4, 1)
    mask = torch.tensor([[1.0, 0.0, 1.0, 0.0]])

    def masked(x: torch.Tensor) -> torch.Tensor:
        layer.weight.data *= mask
        return torch.tanh(layer(x))

    x = torch.randn(3, 4, requires_grad=True)
    out = minicompile.compile(masked)(x)
    with pytest.raises(DoubleBackward, match="it changes an input"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss, F.mse_loss, F.l1_loss])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_gradient_of_a_loss_shows_where_values_are_no_numbers(loss: Callable[..., Any], reduction: str) -> None:
    found = []
    for function in (loss, minicompile.compile(loss)):
        x, y = (torch.tensor(values, requires_grad=True) for values in ([math.nan, 0.5, -3.0, math.inf, 1.0], [0.0, math.nan, 1.0, 0.0, 1.0]))
        found.append(torch.autograd.grad(function(x, y, reduction=reduction).sum(), [x, y]))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)


def the_memory_of_an_input(x: Tensor, h: Tensor) -> Any:
    taken = h.detach()
    taken.copy_(x)
    return taken


def the_data_of_an_input(x: Tensor, h: Tensor) -> Any:
    taken = h.data
    taken *= x
    return taken


def the_memory_of_a_result(x: Tensor, h: Tensor) -> Any:
    first = h * 2
    second = first.detach()
    second.mul_(x)
    return first, second


def a_result_written_through_data(x: Tensor, h: Tensor) -> Any:
    normal = F.layer_norm(h, (3,))
    normal.data.mul_(3)
    return normal * x


def a_result_of_another_shape_without_gradients(x: Tensor, h: Tensor) -> Any:
    result = h * x
    with torch.no_grad():
        result.unsqueeze_(0)
    return result


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("function", [the_memory_of_an_input, the_data_of_an_input, the_memory_of_a_result,
                                      a_result_written_through_data, a_result_of_another_shape_without_gradients])  # fmt: skip
def test_what_no_graph_says_is_left_to_eager(function: Callable[..., Any]) -> None:
    values, weights = torch.randn(2, 2, 3), torch.randn(2, 3)
    shown = []
    for run in (function, minicompile.compile(function)):
        x, start = (value.clone().requires_grad_() for value in values)
        results = leaves(run(x, start * 1))
        sum((result * weights).sum() for result in results[-1:]).backward()
        shown.append([*results, x.grad, start.grad])
    for one, other in zip(*shown, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one.shape, one.requires_grad) == (other.shape, other.requires_grad)
            torch.testing.assert_close(one, other)


def test_second_gradients_where_a_function_of_torch_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.tanh
    monkeypatch.setattr(torch, "tanh", lambda value: real(value) * 2)

    def critic(x: Tensor) -> Tensor:
        return torch.tanh(x).sum()

    x = leaf(3)
    for expected, actual in ((hessian(critic, x), hessian(minicompile.compile(critic), x)),
                             (third(critic, x), third(minicompile.compile(critic), x))):
        torch.testing.assert_close(actual, expected)


def test_hooks_of_a_result_that_is_gone_are_not_passed_by_in_silence() -> None:
    """Differentiated again, the graph runs on the caller's own result, of which there is none any more."""

    def features(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x.tanh()
        return hidden, (hidden * 2).exp()

    x = torch.randn(3, requires_grad=True)
    hidden, result = minicompile.compile(features)(x)
    hidden.register_hook(lambda gradient: gradient)
    del hidden
    with pytest.raises(DoubleBackward, match="a result with hooks is gone"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def test_a_gradient_penalty_through_batch_norm_at_several_sizes() -> None:
    """A critic that keeps its features in a list, with statistics that it overwrites, transposed inputs and a number that changes."""

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.norm, self.score = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)
            self.kept: list[torch.Tensor] = []
            self.scale = 1.5

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.norm(self.hidden(x)).tanh()
            self.kept.append(features)
            return self.score(features) * self.scale, features

    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        critic, seen = Critic().double(), []
        call = minicompile.compile(critic) if compiled else critic
        for batch, scale in ((4, 1.5), (7, 1.5), (9, 0.5)):
            critic.scale = scale
            critic.zero_grad()
            x = torch.randn(6, batch, dtype=torch.float64).t().detach().requires_grad_()
            score, features = call(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            ((slope.norm(dim=1) - 1).square().mean() + features.square().mean()).backward()
            gradients = (parameter.grad for parameter in critic.parameters() if parameter.grad is not None)
            seen += [tensor.detach().clone() for tensor in (slope, x.grad, *gradients, *critic.buffers())]
        return seen + [features.detach() for features in critic.kept]

    for got, want in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_truth_values_that_are_written_get_a_history_as_in_eager() -> None:
    def written(x: Tensor, mask: Tensor) -> Tensor:
        mask[...] = x.sum()
        return x.sum().sin()

    for function in (written, minicompile.compile(written)):
        x, mask = leaf(2, 2), torch.zeros(2, 3, dtype=torch.bool)
        function(x, mask).backward()
        assert mask.requires_grad
        torch.testing.assert_close(x.grad, x.sum().cos().expand(2, 2))


@pytest.mark.parametrize("largest", [
    lambda x, z: (x - z).amax(1), lambda x, z: torch.where(z > 0, x, -x).max(1)[0], lambda x, z: (x + z).median(),
    lambda x, z: (x[:, :, None] - z[:, None]).masked_fill(z[:, None] > 1, -1.0).amax((1, 2)),
])  # fmt: skip
def test_what_was_largest_stays_so_where_the_inputs_change_before_the_backward(largest: Callable[..., Tensor]) -> None:
    """The backward searches values that it computes again; eager keeps them, and no input."""
    torch.manual_seed(0)
    x, z = torch.randn(3, 6), torch.randn(3, 6)
    gradients = []
    for function in (largest, minicompile.compile(largest)):
        point, other = x.clone().requires_grad_(), z.clone()
        result = function(point, other)
        with torch.no_grad():
            point.zero_()
            other.zero_()
        result.sum().backward()
        gradients.append(point.grad)
    assert torch.equal(*gradients)
