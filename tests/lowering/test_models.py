"""Whole models, forward and backward: right, lowered at a cost that follows their depth, with only the expected extern calls."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from minicompile.config import Config
from minicompile.ir import verify
from minicompile.lowering.lower import lower_graph
from tests.evaluate import evaluate_graph
from tests.lowering.oracle import TABLE, compare, externs


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5).masked_fill(~mask, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int = 16, words: int = 23) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = nn.Linear(width, words)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6, dtype=torch.bool)))

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(x)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(self.second(x).mean((2, 3)))


def training_step(model: nn.Module, loss, *inputs):
    """The functional ATen graph of loss and gradients, its inputs, and eager's results."""
    names, values = zip(*[*model.named_parameters(), *model.named_buffers()])
    count = len(list(model.parameters()))

    def step(*args):
        state = dict(zip(names, args))
        result = loss(torch.func.functional_call(model, state, args[len(names) : -1]), args[-1])
        return (result, *torch.autograd.grad(result, args[:count]))

    values = [v.detach().requires_grad_(v.is_floating_point()) for v in values]
    module = make_fx(step, decomposition_table=TABLE, tracing_mode="fake")(*values, *inputs)
    return module, [*(v.detach() for v in values), *inputs], [r.detach() for r in step(*values, *inputs)]


def check_step(model, loss, *inputs):
    module, values, expected = training_step(model, loss, *inputs)
    graph = lower_graph(module, Config(), "step")
    verify.verify_lowered(graph)
    for ours, eager in zip(evaluate_graph(graph, values), expected, strict=True):
        compare(ours, eager, slack=10.0)
    return graph


def sequence_loss(logits, words):
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def test_transformer():
    words = torch.randint(0, 23, (2, 6))
    graph = check_step(Transformer(2), sequence_loss, words, words)
    names = {name.split(".")[0] for name in externs(graph)}
    assert names <= {"mm", "addmm", "bmm", "native_layer_norm"}, collections.Counter(externs(graph))


def test_convolutional_network():
    check_step(Convolutional(), F.cross_entropy, torch.randn(2, 3, 9, 9), torch.tensor([1, 4]))


def test_perceptron_with_every_activation():
    layers = [nn.Linear(7, 9), nn.SiLU(), nn.Linear(9, 9), nn.GELU(), nn.Linear(9, 9), nn.Tanh(), nn.Softplus(), nn.Linear(9, 4)]
    check_step(nn.Sequential(*layers), F.mse_loss, torch.randn(5, 7), torch.randn(5, 4))


def calls_made_by(work: Callable[[], object]) -> int:
    """How many Python functions run while `work` does: a measure of its cost that no other load of the machine changes."""
    calls = collections.Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls["call"]


def test_the_cost_of_lowering_grows_with_depth_and_no_faster():
    words = torch.randint(0, 23, (2, 6))
    module_of = {depth: training_step(Transformer(depth), sequence_loss, words, words)[0] for depth in (2, 4, 8)}
    lower_graph(module_of[2], Config(), "warm")
    cost = {depth: calls_made_by(lambda: lower_graph(module, Config(), "step")) for depth, module in module_of.items()}
    assert cost[8] - cost[4] < 1.1 * 2 * (cost[4] - cost[2]), "each layer costs what the one before it did"
