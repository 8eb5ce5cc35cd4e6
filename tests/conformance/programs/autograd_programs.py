"""Programs about gradients: backward, custom functions, checkpoints, hooks, functional transforms, optimizers."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Function, grad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.conformance.catalogue import call, count, integers, leaf, normal, program


class Scale(Function):
    """Doubles on the way forward, triples on the way back."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 + x * 0, None


@torch.library.custom_op("conformance::shift", mutates_args=())
def shift(x: torch.Tensor, by: float) -> torch.Tensor:
    """A custom operation with a fake and a backward."""
    return x + by


@shift.register_fake
def _(x, by):
    return torch.empty_like(x)


shift.register_autograd(lambda ctx, gradient: (gradient * 2, None), setup_context=lambda ctx, inputs, output: None)


@torch.library.custom_op("conformance::fill_", mutates_args={"x"})
def fill_(x: torch.Tensor, value: float) -> None:
    """A custom operation that changes its argument."""
    x.fill_(value)


@program(core=True)
def gradients_of_several_inputs():
    def outer(a, b):
        return (a * b).sin().sum(), a.exp()

    return outer, [call(leaf(3), leaf(3)), call(leaf(2, 3), leaf(3)), call(leaf(2), normal(2))]


@program(core=True)
def training_step_with_backward():
    model = nn.Linear(3, 2)

    def step(x, target):
        loss = functional.cross_entropy(model(x), target)
        loss.backward()
        return loss.detach()

    return step, [call(normal(4, 3), integers(4, high=2)), call(normal(4, 3), integers(4, high=2))], model


@program
def whole_training_loop_body():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [call(normal(4, 3), normal(4, 1)) for _ in range(3)], model


@program
def optimizer_step_as_a_function():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def step():
        optimizer.step()

    return step, [call(), call(), call()], model


@program
def optimizer_with_scheduler():
    weight = leaf(3)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        (weight * x).sum().backward()
        optimizer.step()
        scheduler.step()
        return scheduler.get_last_lr()[0]

    return step, [call(normal(3)) for _ in range(3)], weight


@program
def gradient_accumulation_over_micro_batches():
    model = nn.Linear(2, 1)

    def step(batches):
        for batch in batches:
            (model(batch).pow(2).mean() / len(batches)).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    return step, [call([normal(3, 2), normal(2, 2)]), call([normal(1, 2)])], model


@program(core=True)
def custom_autograd_function():
    def outer(x, factor):
        return Scale.apply(x * 2, factor) + x

    return outer, [call(leaf(3), 2.0), call(leaf(2), 5.0), call(normal(2), 2.0)]


@program
def custom_function_with_two_outputs():
    class MinMax(Function):
        @staticmethod
        def forward(x):
            return x.min(), x.max(), x.argmax()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.mark_non_differentiable(output[2])

        @staticmethod
        def backward(ctx, low, high, _):
            (x,) = ctx.saved_tensors
            return low * (x == x.min()) + high * (x == x.max())

    def outer(x):
        low, high, where = MinMax.apply(x)
        return (x - low) / (high - low), where

    return outer, [call(leaf(4)), call(normal(4))]


@program
def custom_function_that_mutates():
    class AddOne(Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def outer(x):
        y = x * 2
        return AddOne.apply(y) * 3

    return outer, [call(leaf(2)), call(normal(2))]


@program
def straight_through_estimator():
    def outer(x):
        hard = (x > 0).float()
        soft = x.sigmoid()
        return hard + soft - soft.detach(), torch.round(x.detach())

    return outer, [call(leaf(4)), call(normal(3))]


@program(core=True)
def checkpointed_block():
    block = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 3))

    def outer(x):
        return checkpoint(block, x, use_reentrant=False) + checkpoint(lambda a, b: a * b, x, x, use_reentrant=False)

    return outer, [call(leaf(2, 3)), call(normal(2, 3))], block


@program
def checkpoint_with_dropout():
    def outer(x):
        return checkpoint(lambda y: functional.dropout(y * 2, 0.5), x, use_reentrant=False)

    return outer, [call(leaf(6)), call(leaf(6))]


@program
def reentrant_checkpoint():
    def outer(x):
        return checkpoint(torch.sin, x * 2, use_reentrant=True)

    return outer, [call(leaf(3))]


@program
def autograd_grad_in_the_frame():
    def outer(x):
        y = (x**3).sum()
        (first,) = grad(y, x, create_graph=True)
        (second,) = grad(first.sum(), x)
        return first.detach(), second

    return outer, [call(leaf(3)), call(leaf(2))]


@program
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def outer(x):
        x = x.detach().requires_grad_()
        (slope,) = grad(critic(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()

    return outer, [call(normal(3, 2)), call(normal(2, 2))], critic


@program
def tensor_hooks():
    log = []

    def outer(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        x.register_hook(lambda gradient: log.append(gradient.shape[0]))
        return y.sum()

    return outer, [call(leaf(2)), call(leaf(3))], log


@program
def retain_grad_on_an_intermediate():
    def outer(x):
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward()
        return y.grad, x.grad

    return outer, [call(leaf(2)), call(leaf(3))]


@program
def backward_with_an_explicit_gradient():
    def outer(x, gradient):
        y = x**2
        y.backward(gradient, retain_graph=True)
        y.sum().backward()
        return x.grad.clone()

    return outer, [call(leaf(2), torch.ones(2)), call(leaf(3), count(3))]


@program
def grad_attribute_read_and_reset():
    def outer(w, x):
        if w.grad is not None:
            previous = w.grad.clone()
            w.grad = None
        else:
            previous = None
        (w * x).sum().backward()
        return previous

    w = leaf(2)
    return outer, [call(w, normal(2)), call(w, normal(2))]


@program
def detached_branch():
    def outer(x, w):
        hidden = x * w
        return (hidden.detach() * w).sum() + hidden.sum(), hidden.detach().requires_grad

    return outer, [call(normal(2), leaf(2)), call(leaf(2), leaf(2))]


@program
def output_that_needs_no_gradient():
    def outer(x, w):
        y = x @ w
        with torch.no_grad():
            accuracy = (y.argmax(-1) == 0).float().mean()
        return y.pow(2).mean(), accuracy, y.argmax(-1)

    return outer, [call(normal(3, 2), leaf(2, 2)), call(leaf(1, 2), leaf(2, 2))]


@program
def unused_parameter():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    return Model(), [call(normal(2)), call(normal(3, 2))]


@program
def inplace_before_and_after_use():
    def outer(x):
        y = x * 2
        z = y.clone()
        z.mul_(y)
        y = y + 1
        z[0] = y[1]
        return z, y

    return outer, [call(leaf(3)), call(normal(2))]


@program(core=True)
def func_grad():
    def outer(w, x):
        loss = lambda weight: (torch.tanh(x @ weight) ** 2).sum()
        return torch.func.grad(loss)(w), torch.func.grad_and_value(loss)(w)

    return outer, [call(normal(3, 2), normal(4, 3)), call(normal(2, 1), normal(1, 2))]


@program(core=True)
def func_vmap():
    def outer(xs, ys, w):
        scores = torch.vmap(lambda x, y: (x * y).sum())(xs, ys)
        return scores, torch.vmap(lambda x: x @ w, in_dims=0, out_dims=1)(xs), torch.vmap(torch.add, in_dims=(0, None))(xs, ys[0])

    return outer, [call(normal(3, 2), normal(3, 2), normal(2, 4)), call(normal(1, 2), normal(1, 2), normal(2, 2))]


@program
def func_jacobians():
    def outer(x):
        f = lambda v: torch.sin(v) * v.sum()
        return torch.func.jacrev(f)(x), torch.func.jacfwd(f)(x), torch.func.hessian(lambda v: (v**3).sum())(x)

    return outer, [call(normal(2)), call(normal(3))]


@program
def func_per_sample_gradients():
    model = nn.Linear(2, 1)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, x, y):
        return functional.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    def outer(xs, ys):
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, xs, ys)

    return outer, [call(normal(3, 2), normal(3, 1)), call(normal(2, 2), normal(2, 1))]


@program
def func_jvp_and_vjp():
    def outer(x, tangent):
        value, derivative = torch.func.jvp(torch.tanh, (x,), (tangent,))
        _, pull = torch.func.vjp(torch.exp, x)
        return value, derivative, pull(tangent)[0]

    return outer, [call(normal(2), normal(2)), call(normal(3), normal(3))]


@program(core=True)
def user_custom_op():
    def outer(x, by):
        return shift(x * 2, by) + torch.ops.conformance.shift(x, 1.0)

    return outer, [call(leaf(2), 1.0), call(normal(3), 2.0)]


@program
def user_custom_op_that_mutates():
    def outer(x, value):
        y = x + 1
        fill_(y[0], value)
        fill_(x, 7.0)
        return y

    return outer, [call(count(2, 2), 1.5), call(count(3, 1), -1.0)]


@program
def saved_tensor_mutated_before_backward():
    def outer(x):
        y = x.exp()
        z = y * 2
        y.detach_()
        return z.sum() + y.sum()

    return outer, [call(leaf(2))]


@program
def gradient_of_views_and_indexing():
    def outer(x, index):
        y = x.view(-1)[index]
        z = x.t()[0] * y.sum()
        w = torch.zeros(2, 2)
        w[0] = z[:2]
        return w, x[x > 0].sum()

    return outer, [call(leaf(2, 2), torch.tensor([0, 3, 3])), call(leaf(2, 2), torch.tensor([1]))]


@program
def double_use_of_a_parameter_through_views():
    def outer(w, x):
        return torch.cat([x @ w, x @ w.t(), w[:1] * 2]), functional.embedding(torch.tensor([0, 1, 0]), w)

    return outer, [call(leaf(2, 2), normal(3, 2)), call(leaf(2, 2), leaf(1, 2))]


@program
def attention_by_hand_with_gradients():
    def outer(q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(dim=-1) @ v

    return outer, [
        call(leaf(1, 2, 3, 4), leaf(1, 2, 3, 4), leaf(1, 2, 3, 4), torch.ones(3, 3).tril()),
        call(leaf(1, 2, 3, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4), None),
    ]


@program
def loss_scaling_by_hand():
    state = {"scale": 4.0}

    def outer(w, x):
        ((w * x).sum() * state["scale"]).backward()
        with torch.no_grad():
            w.grad.div_(state["scale"])
            if not torch.isfinite(w.grad).all():
                state["scale"] /= 2
                w.grad.zero_()
        return state["scale"]

    return outer, [call(leaf(2), normal(2)), call(leaf(2), torch.tensor([float("inf"), 1.0])), call(leaf(2), normal(2))], state


@program(raises=RuntimeError)
def backward_of_something_that_needs_no_grad():
    def outer(x):
        y = x * 2
        y.sum().backward()
        return x.grad

    return outer, [call(leaf(2)), call(normal(2))]


@program
def forward_mode_dual_numbers():
    import torch.autograd.forward_ad as forward_ad

    def outer(x, tangent):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            return forward_ad.unpack_dual(dual.sin()).tangent * 1

    return outer, [call(normal(2), normal(2))]


@program
def freeze_and_unfreeze_inside():
    model = nn.Linear(2, 2)

    def outer(x):
        for parameter in model.parameters():
            parameter.requires_grad_(x.shape[0] == 2)
        y = model(x)
        return y, y.requires_grad

    return outer, [call(normal(2, 2)), call(normal(3, 2))], model


@program(backward=False)
def views_of_a_parameter_made_without_gradients():
    model = nn.Linear(4, 3)

    def inference(x):
        first, *others = model.weight.unbind(0)
        return model.weight[:2].t() + x.sum(), first.requires_grad, first.is_leaf, others[0], model.weight.expand(2, 3, 4) * 1

    def mixed(x, quiet):
        if quiet:
            with torch.no_grad():
                return inference(x)
        with torch.no_grad():
            first, second, _ = model.weight.unbind(0)
            scale = model.weight.t()[0].sum()
            model.bias[0].add_(1)
        return (x * first).sum() + model.weight.sum() * scale, second

    return mixed, [call(normal(4), True), call(normal(4), False), call(normal(5, 4), True), call(normal(5, 4), False)], model


@program
def differentiable_values_placed_by_a_mask_that_takes_none():
    def outer(x, bound):
        scale = x.max(1, keepdim=True)[0] - x.min(1, keepdim=True)[0]
        scale[scale < bound] += 1.0
        return x / scale

    return outer, [call(leaf(3, 4), 1e-5), call(leaf(3, 4), 9.0), call(leaf(4, 4), 1e-5), call(leaf(5, 4), 1e-5)]


@program
def results_written_where_a_mask_says_among_slices_and_integers():
    def outer(x, y, mask):
        columns, row, cells = x * 2, x * 2, x * 2
        columns[:, mask] = y
        row[1, mask] = y[0]
        cells[..., mask, None] = y[:, :1, None]
        columns[:, mask] += 1
        return columns * columns, row * row, cells * cells

    def calls_with(mask):
        return call(leaf(3, 4), leaf(3, 2), torch.tensor(mask))

    return outer, [calls_with([True, False, True, False]), calls_with([False, False, True, True])]
