"""What training code uses of PyTorch besides operators: hooks, functions with rules of their own, and their like."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.catalogue import after, call, count, leaf, program, under


class WithRules(torch.autograd.Function):
    """Its batching rule and its forward derivative are not those of its forward."""

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 7, in_dims[0]

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 9


class Batched(torch.autograd.Function):
    """PyTorch makes its batching rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, power):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * ctx.power * x ** (ctx.power - 1), None


@program
def custom_function_with_rules_for_transforms():
    def f(x):
        return torch.vmap(WithRules.apply)(x), *torch.func.jvp(WithRules.apply, (x,), (x + 1,))

    return f, [call(leaf(2, 3)), call(leaf(2, 3))]


@program(core=True)
def custom_function_in_a_batch():
    def f(x):
        def one(row):
            return Batched.apply(row, 3)

        return torch.vmap(one)(x), torch.vmap(torch.func.grad(lambda row: one(row).sum()))(x.detach())

    return f, [call(leaf(2, 3)), call(leaf(2, 3))]


@torch.library.custom_op("conformance_interfaces::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(len(CALLS))
    return x + len(CALLS)


CALLS: list[int] = []
counted.register_fake(torch.empty_like)
counted.register_autograd(lambda ctx, gradient: gradient * 3)


@program
def operator_of_ones_own_that_is_no_function():
    CALLS.clear()

    def f(x):
        twice = counted(x) - 2 * counted(x)
        counted(x.detach())
        return twice

    return f, [call(leaf(3)), call(leaf(3)), under(torch.no_grad, leaf(3))], CALLS


class Picky(nn.Module):
    def forward(self, x):
        if len(x) == 3:
            raise ValueError("three rows")
        return x * 2


@program
def hooks_that_are_always_called():
    log = []
    model = nn.Sequential(nn.Linear(2, 2), Picky())
    model[1].register_forward_hook(lambda module, args, result: log.append(("inner", result is None)), always_call=True)
    model.register_forward_hook(
        lambda module, args, kwargs, result: log.append(("outer", result is None)), always_call=True, with_kwargs=True
    )

    def f(x):
        try:
            return model(x).sin()
        except ValueError as error:
            log.append(str(error))
            return x

    return f, [call(count(2, 2)), call(count(3, 2)), call(count(2, 2)), call(count(3, 2))], log


@program
def call_of_all_modules_replaced():
    plain, log = nn.Module.__call__, []
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def f(x):
        return model(x) * 2

    def watch():
        nn.Module.__call__ = lambda self, *args: (log.append(type(self).__name__), plain(self, *args) * 2)[1]

    def put_back():
        nn.Module.__call__ = plain

    return f, [call(count(2, 2)), after(watch, count(2, 2)), after(put_back, count(2, 2))], log


@program
def dropout_inside_of_transforms():
    def f(x):
        def dropped(x):
            return torch.dropout(x, 0.5, True)

        return torch.func.grad(lambda x: dropped(x).sum())(x), torch.vmap(dropped, randomness="different")(x)

    return f, [call(leaf(2, 8)), call(leaf(2, 8))]


@program
def spectrogram_turned_back_into_sound():
    class Vocoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(8))
            self.out = nn.Linear(4, 10)

        def forward(self, x):
            size, phase = self.out(x).transpose(1, 2).chunk(2, 1)
            spectrum = size.exp().clip(max=100) * (phase.cos() + 1j * phase.sin())
            return torch.istft(spectrum, 8, 4, 8, self.window).clamp(-1, 1) + 1

    model = Vocoder()
    return model, [call(count(2, frames, 4).sin()) for frames in (6, 8, 9)], model


@program(raises=RuntimeError)
def windows_that_leave_gaps_in_a_signal():
    log, window = [], torch.hann_window(8)

    def f(x, hop):
        log.append(hop)
        spectrum = torch.stft(x, 8, hop, window=window, return_complex=True) * 2
        log.append(spectrum.shape)
        return torch.istft(spectrum, 8, hop, window=window, length=x.shape[-1] - 4)

    return f, [call(count(2, size).sin(), hop) for size, hop in ((16, 4), (24, 4), (32, 4), (16, 8), (24, 8), (32, 8))], log


@program(raises=ValueError)
def hooks_for_one_call():
    model, log = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), []

    def fail(*_):
        raise ValueError("in a hook")

    def f(x, failing):
        seen = {}
        handles = [layer.register_forward_hook(lambda m, i, o: seen.update({m: o.sum()})) for layer in model]
        handles.append(model.register_forward_hook(lambda *_: log.append("always"), always_call=True))
        handles.append(model[2].register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True))
        if failing:
            handles.append(model[1].register_forward_hook(fail))
        try:
            model(x)
        finally:
            for handle in handles:
                handle.remove()
            log.append([len(layer._forward_hooks) for layer in (model, *model)])
        return list(seen.values()), model(x), len(model[2]._forward_pre_hooks_with_kwargs)

    return f, [call(leaf(2, 3), failing) for failing in (False, True, False, True)], (model, log)


@program
def hooks_that_stay():
    layer, log = nn.Linear(2, 2), []

    def f(x, called):
        layer.register_forward_hook(lambda m, i, o: log.append(len(log)))
        return layer(x) if called else x + 1

    return f, [call(leaf(2), called) for called in (False, False, True, True, False)], log
