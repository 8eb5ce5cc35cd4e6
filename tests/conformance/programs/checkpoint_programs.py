"""Programs with `torch.utils.checkpoint`: both kinds, nested, with arguments of all sorts, with what must not happen twice."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.conformance.catalogue import call, leaf, normal, program, under


class Block(nn.Module):
    """A residual block, as in a transformer."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, scale=1.0, mask=None):
        y = self.down(functional.gelu(self.up(self.norm(x)))) * scale
        return x + (y if mask is None else y * mask)


@program(core=True)
def checkpointed_blocks_in_a_loop():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.checkpointing = True

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
            return x.mean()

    model = Model()
    return model, [call(leaf(2, 4)), call(normal(3, 4)), under(torch.no_grad, normal(3, 4))], model


@program
def checkpoint_with_keywords_and_numbers():
    block = Block()

    def outer(x, mask):
        y = checkpoint(block, x, 0.5, use_reentrant=False, mask=mask)
        return checkpoint(block, y, scale=2.0, use_reentrant=False, preserve_rng_state=False)

    return outer, [call(leaf(2, 4), torch.ones(2, 1)), call(normal(2, 4), None)], block


@program
def reentrant_checkpoint_of_blocks():
    block = Block()

    def outer(x):
        return checkpoint(block, x * 2, use_reentrant=True) + checkpoint(block, x, 0.5, use_reentrant=True)

    return outer, [call(leaf(2, 4)), call(leaf(3, 4)), under(torch.no_grad, leaf(2, 4))], block


@program
def reentrant_checkpoint_without_a_differentiable_input():
    block = Block()

    def outer(x):
        y = checkpoint(block, x, use_reentrant=True)
        return y, y.requires_grad

    return outer, [call(normal(2, 4))], block


@program
def reentrant_checkpoint_that_detaches_inside():
    def outer(x):
        first, second = checkpoint(lambda y: (y * 2, y.detach() * 3), x, use_reentrant=True)
        return first, second, second.requires_grad

    return outer, [call(leaf(3))]


@program
def reentrant_checkpoint_of_a_tuple():
    def outer(x, pair):
        return checkpoint(lambda y, both: y * both[0] * both[1], x, pair, use_reentrant=True)

    return outer, [call(leaf(2), (normal(2), normal(2)))]


@program
def nested_checkpoints():
    block = Block()

    def inner(x):
        return checkpoint(block, x, use_reentrant=False).sin()

    def outer(x):
        return checkpoint(inner, checkpoint(lambda y: inner(y) + inner(y * 2), x, use_reentrant=False), use_reentrant=False)

    return outer, [call(leaf(2, 4)), call(normal(2, 4))], block


@program
def checkpoint_that_returns_many_things():
    def inner(x, name):
        return {"sum": x.sum(), "parts": [x * 2, name], "shape": x.shape}, x > 0, None

    def outer(x):
        table, sign, nothing = checkpoint(inner, x, "mine", use_reentrant=False)
        return table["parts"][0] * sign + table["sum"], table, nothing

    return outer, [call(leaf(3)), call(normal(2, 2))]


@program
def checkpoint_through_a_partial_as_transformers_do():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.gradient_checkpointing, self.way = Block(), True, None

        def __call__(self, *args, **kwargs):
            if self.gradient_checkpointing and self.training:
                return self.way(functools.partial(super().__call__, **kwargs), *args)
            return super().__call__(*args, **kwargs)

        def forward(self, x, scale=1.0):
            return (self.block(x, scale=scale),)

    layers = nn.ModuleList(Layer() for _ in range(2))
    for layer in layers:
        layer.way = functools.partial(checkpoint, use_reentrant=False)

    def outer(x):
        for layer in layers:
            x = layer(x, scale=0.5)[0]
        return x

    return outer, [call(leaf(2, 4)), call(normal(2, 4))], layers


@program
def checkpoint_with_dropout_between():
    block = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 4), nn.Dropout(0.3))

    def outer(x):
        return checkpoint(block, functional.dropout(x, 0.1), use_reentrant=False) + torch.rand(4)

    return outer, [call(leaf(2, 4)), call(leaf(2, 4))], block


@program
def checkpoint_of_batch_norm_counts_twice():
    block = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def outer(x):
        return checkpoint(block, x, use_reentrant=False).relu() * 2

    return outer, [call(leaf(4, 3)), call(leaf(4, 3))], block


@program
def checkpoint_with_a_side_effect():
    log = []

    def inner(x):
        log.append(x.shape[0])
        return x.exp()

    def outer(x):
        return checkpoint(inner, x * 2, use_reentrant=False) + 1

    return outer, [call(leaf(2)), call(leaf(3))], log


@program
def checkpoint_that_changes_its_argument():
    def outer(x):
        y = x * 2
        z = checkpoint(lambda v: v.detach().clone().add_(1) * v, y, use_reentrant=False)
        return z, y

    return outer, [call(leaf(2))]


@program
def sequential_checkpoint():
    model = nn.Sequential(*[Block() for _ in range(4)])

    def outer(x, segments):
        return checkpoint_sequential(model, segments, x, use_reentrant=False)

    return outer, [call(leaf(2, 4), 2), call(leaf(2, 4), 3), call(normal(2, 4), 4)], model


@program
def sequential_checkpoint_reentrant():
    functions = [torch.sin, torch.exp, nn.Tanh()]

    def outer(x):
        return checkpoint_sequential(functions, 2, x, use_reentrant=True) * 2

    return outer, [call(leaf(2, 4)), call(leaf(3))]


@program
def checkpoint_under_autocast():
    block = Block()

    def outer(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = checkpoint(block, x, use_reentrant=False)
        return y.float().sum()

    return outer, [call(leaf(2, 4)), call(normal(2, 4))], block


@program(raises=ValueError)
def checkpoint_with_an_unknown_keyword():
    def outer(x):
        return checkpoint(torch.sin, x, use_reentrant=True, scale=2)

    return outer, [call(leaf(2))]


@program(raises=RuntimeError)
def checkpoint_whose_function_raises():
    def outer(x):
        return checkpoint(lambda y: y @ y, x * 2, use_reentrant=False)

    return outer, [call(leaf(2, 2)), call(leaf(2, 3))]


@program
def checkpoint_caught_error():
    def outer(x):
        try:
            return checkpoint(lambda y: y @ y, x * 2, use_reentrant=False)
        except RuntimeError:
            return x

    return outer, [call(leaf(2, 2)), call(leaf(2, 3))]


@program
def checkpoint_with_a_graph_break_inside():
    def inner(x):
        y = x.exp()
        print("inside")
        return y * x

    def outer(x):
        return checkpoint(inner, x * 2, use_reentrant=False) + 1

    return outer, [call(leaf(2)), call(normal(3))]


@program
def checkpoint_as_a_decorator():
    layer = nn.Linear(3, 3)

    def body(x, scale=1.0):
        return layer(x).sin() * scale

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).cos()

    try:
        decorated = checkpoint(use_reentrant=False)(body)
        Model.forward = checkpoint(use_reentrant=False)(Model.forward)
    except TypeError:  # before torch 2.15
        decorated = functools.partial(checkpoint, body, use_reentrant=False)
    model = Model()

    def outer(x):
        return decorated(x, scale=2.0) + model(x) * 3

    return outer, [call(leaf(2, 3)), call(normal(2, 3))], model


@program(raises=TypeError)
def checkpoint_is_called_without_its_function():
    def outer(x):
        return checkpoint(use_reentrant=False)(torch.sin)(x) + checkpoint(use_reentrant=7, debug=3)

    return outer, [call(leaf(2, 3))]


@program
def checkpoint_takes_every_keyword_that_this_torch_has():
    def body(x, **others):
        return x.sin() * (1 + len(others))

    def outer(x):
        return checkpoint(body, x, use_reentrant=False, early_stop=True, respect_saved_tensors_hooks=None)

    return outer, [call(leaf(2, 3))]
