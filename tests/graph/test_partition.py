"""What is kept between forward and backward, what is recomputed, and that both sides still agree with eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minicompile.config import Config
from minicompile.graph.build import build_graph
from tests.differential import leaf
from tests.graph.programs import Captured, check, compile_eagerly


def block(x, w, v):
    y = F.gelu(F.layer_norm(x, (16,)) @ w)
    return x + (y * torch.sigmoid(y)) @ v


def kept_bytes(partitioned) -> int:
    return sum(saved.num_bytes for saved in partitioned.saved_tensors)


def test_a_pointwise_chain_is_recomputed_from_its_input() -> None:
    compiled = check(lambda x: x.sin().cos().tanh().exp(), leaf(64, 64))
    assert kept_bytes(compiled.partitioned) <= 64 * 64 * 4
    assert compiled.partitioned.recomputed


def test_products_are_not_repeated_unless_memory_asks() -> None:
    x, w, v = leaf(32, 16), leaf(16, 64), 0.1 * torch.randn(64, 16)
    v.requires_grad_()
    plain = check(block, x, w, v, tolerance=1e-4).partitioned
    products = [node for node in plain.backward.graph.nodes if str(node.target) == "aten.mm.default"]
    assert len(products) == 4
    tight = check(block, x, w, v, config=Config(activation_memory_budget=0.0), tolerance=1e-4).partitioned
    half = check(block, x, w, v, config=Config(activation_memory_budget=0.5), tolerance=1e-4).partitioned
    assert kept_bytes(tight) == 0
    assert kept_bytes(half) <= kept_bytes(plain) / 2


def test_the_sums_of_a_residual_stream_are_not_computed_again() -> None:
    """Keeping the products is fewer bytes than keeping the wider sums; each sum would be that of all products before it."""
    def layers(x, a, b, c, d):
        for w in (a, b, c, d):
            x = x + F.layer_norm(x, (16,)).bfloat16() @ w.bfloat16()
        return x

    backward = check(layers, leaf(32, 16), *(leaf(16, 16) for _ in range(4)), tolerance=0.1).partitioned.backward
    again = [node for node in backward.graph.nodes if node.op == "call_function" and node.name.startswith("add")
             and node.meta["stage"] == "forward" and node.meta["val"].shape == (32, 16)]  # fmt: skip
    assert not set(again) & {argument for node in again for argument in node.all_input_nodes}


def test_small_inputs_that_the_user_may_change_are_copied_where_what_is_made_of_them_is_large() -> None:
    def distances(x, y):
        return ((x[:, None] - y).abs() * (x[:, None] + 1 < y)).sum((1, 2))

    x, y = leaf(32, 1), torch.randn(64)
    compiled = check(distances, x, y)
    assert 0 < kept_bytes(compiled.partitioned) <= (32 + 64) * 4
    assert {node.op for node in compiled.partitioned.forward.graph.nodes if "clone" in node.name} == {"call_function"}


def test_an_input_that_eager_reads_in_the_backward_is_read_again_for_the_rest_too() -> None:
    def loss(x):
        return F.softmax(x / 2, -1).square().sum() + torch.logsumexp(x, -1).sum()

    assert kept_bytes(check(loss, leaf(8, 256)).partitioned) <= 8 * 3 * 4, "the statistics of the rows"


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_what_a_gradient_of_pooling_asks_for_its_shape_is_not_kept(pool) -> None:
    def network(x, w, v):
        return pool((F.conv2d(x, w) * v).sigmoid(), 2, 2)

    partitioned = check(network, torch.randn(2, 3, 9, 9), leaf(4, 3, 2, 2), torch.randn(4, 1, 1)).partitioned
    kept = [node for node in partitioned.backward.graph.nodes if node.op == "placeholder" and node.name != "tangent_0"]
    assert [node.name for node in kept if node.meta["val"].shape == (2, 4, 8, 8)] == ["convolution_default"]


def test_what_pooling_and_a_convolution_read_is_kept_once() -> None:
    def network(x, w, v):
        y = F.conv2d(x, w).relu()
        return F.max_pool2d(y, 2, 2), F.conv2d(y, v)

    partitioned = check(network, torch.randn(2, 3, 9, 9), leaf(4, 3, 2, 2), leaf(4, 4, 1, 1)).partitioned
    assert sum(saved.num_bytes == 4 * 2 * 4 * 8 * 8 for saved in partitioned.saved_tensors) == 1


@pytest.mark.parametrize("function", [
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), lambda x, w, b: F.group_norm(x, 4, w, b),
    lambda x, w, b: F.layer_norm(x, (8, 8), w[:8, None].expand(8, 8), b[:8, None].expand(8, 8)),
])  # fmt: skip
def test_a_norm_of_a_half_precision_input_keeps_the_input(function) -> None:
    """Not its copy in fp32, which the forward and the backward share: eager keeps the input too, so it may be read again."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(*size, dtype=torch.bfloat16, requires_grad=True) for size in ((6, 16, 8, 8), (16,), (16,)))
    partitioned = check(function, x, w, b, tolerance=0.1).partitioned
    assert kept_bytes(partitioned) <= 6 * 16 * 2 * 4, "the statistics"


def test_a_backward_through_results_that_are_computed_from_each_other_grows_with_their_number() -> None:
    def network(x, *weights):
        results = []
        for w in weights:
            results.append(x @ w)
            x = x + results[-1].sin()
        return x, *results

    def products(function, layers: int) -> list[int]:
        partitioned = check(function, leaf(3, 4), *(leaf(4, 4) for _ in range(layers)), tolerance=1e-4).partitioned
        return [sum(str(node.target) == "aten.mm.default" for node in half.graph.nodes)
                for half in (partitioned.backward, partitioned.to_inputs, partitioned.to_sources)]  # fmt: skip

    assert products(lambda x, a, b, c: network(x, a, b, c), 3) == [2 * 3, 2 * 3, 2]
    assert products(lambda x, a, b, c, d, e, f: network(x, a, b, c, d, e, f), 6) == [2 * 6, 2 * 6, 5]


@pytest.mark.parametrize(("weigh", "again"), [(lambda x: x * 2, True), (torch.exp, False), (lambda x: (x.bfloat16() * 2).float(), False)])
def test_what_a_gradient_searches_for_its_largest_is_computed_again_where_no_rounding_can_differ(weigh, again) -> None:
    """The largest of each row is searched among all scores; those of an exponential may be rounded in another way there."""
    def largest(rows, columns):
        return weigh(rows[:, None] - columns[None]).masked_fill(rows[:, None] < columns[None], -3.0).amax(1)

    compiled = check(largest, leaf(48), leaf(64), tolerance=2e-2 if not again else 1e-5)
    assert (kept_bytes(compiled.partitioned) < 48 * 64 * 4) == again


def test_every_kept_tensor_has_a_reason() -> None:
    partitioned = check(block, leaf(32, 16), leaf(16, 64), leaf(64, 16), tolerance=1e-3).partitioned
    assert partitioned.saved_tensors and all(saved.reason for saved in partitioned.saved_tensors)


def test_a_checkpointed_region_is_recomputed() -> None:
    captured = Captured(block, (leaf(32, 16), leaf(16, 64), leaf(64, 16)))
    for node in captured.graph.module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            node.meta["checkpoint"] = 1
    partitioned = build_graph(captured.graph, Config(verify=True))
    assert kept_bytes(partitioned) == 0


def test_a_long_checkpointed_region_with_attention_and_dropout_is_cut() -> None:
    def layer(x):
        for _ in range(3):
            q = F.layer_norm(x, (16,)).view(2, 4, 8, 2).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 4, 16)
            x = x + F.dropout(y.tanh().sin().cos().exp().sigmoid().sin().cos().tanh().neg().exp(), 0.1)
        return x

    captured = Captured(layer, (leaf(2, 4, 16),))
    for node in captured.graph.module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            node.meta["checkpoint"] = 1
    partitioned = build_graph(captured.graph, Config(verify=True))
    assert kept_bytes(partitioned) < 16 * 2 * 4 * 16 * 4


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_random_numbers_are_drawn_once(budget: float) -> None:
    config = Config(activation_memory_budget=budget, verify=True)
    compiled = compile_eagerly(lambda x, w: F.dropout(x @ w, 0.5, True).sin(), leaf(8, 8), leaf(8, 8), config=config)
    seeds = [str(n.target) for half in (compiled.partitioned.forward, compiled.partitioned.backward)
             for n in half.graph.nodes if str(n.target) == "minicompile.seeds.default"]  # fmt: skip
    assert len(seeds) == 1
    x, w = torch.ones(8, 8, requires_grad=True), torch.eye(8, requires_grad=True)
    y = compiled(x, w)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    expected = torch.where(y == 0, 0.0, 2.0 * torch.cos(torch.full((8, 8), 2.0)))
    torch.testing.assert_close(gradient, expected)
