"""Convolutions in `channels_last`: same results, in eager's layout, with few copies."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import minicompile
from minicompile.api import compiled_function
from minicompile.graph import convolution_bias, layout
from tests.differential import check


@pytest.fixture(autouse=True)
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layout, convolution_bias):
        monkeypatch.setattr(module, "gpu", types.SimpleNamespace(holds=lambda value: True))
    monkeypatch.setattr(layout, "LEAST_CHANNELS", 1)


class Block(nn.Module):
    """A residual block with everything around it that meets a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8 * 16, 5)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = F.relu(self.first(images))
        features = F.max_pool2d(features + F.relu(self.norm(self.second(features))), 2)
        return self.head(features.flatten(1)), features, features.transpose(1, 2), features.mean((2, 3))


def test_a_network_and_its_layouts() -> None:
    torch.manual_seed(0)
    block, images = Block(), torch.randn(2, 3, 8, 8)
    check(block, images.requires_grad_(), against_torch=False)
    for expected, got in zip(block(images), minicompile.compile(block)(images), strict=True):
        assert got.stride() == expected.stride()
    gradients = [torch.autograd.grad(run(images)[0].sum(), list(block.parameters()))
                 for run in (block, minicompile.compile(block))]  # fmt: skip
    assert [g.stride() for g in gradients[0]] == [g.stride() for g in gradients[1]]


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_kinds_of_convolution(groups: int, transposed: bool) -> None:
    torch.manual_seed(0)
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = nn.Sequential(make(8, 8, 3, stride=2, groups=groups), nn.GELU(), make(8, 16, 1), nn.PixelShuffle(2))
    check(model, torch.randn(2, 8, 9, 7, requires_grad=True))
    check(model, torch.randn(2, 8, 9, 7).to(memory_format=torch.channels_last))


def test_groups_of_an_odd_width_keep_their_layout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 32, 1))
    check(model, torch.randn(2, 32, 9, 7, requires_grad=True))
    compiled = minicompile.compile(model)
    compiled(torch.randn(2, 32, 9, 7, requires_grad=True)).sum().backward()
    (graph,) = compiled_function(compiled).compiler.graphs
    seen = [
        (layout.loses(node), operand.meta["val"].stride()[1] == 1)
        for half in (graph.partitioned.forward, graph.partitioned.backward)
        for node in half.graph.nodes if layout.is_convolution(node) for operand in layout.operands(node)[:-1]
    ]  # fmt: skip
    assert len(seen) == 9 and all(last != loses for loses, last in seen)


@pytest.mark.parametrize("make, sizes", [(nn.Conv1d, (2, 3, 9)), (nn.Conv2d, (2, 3, 5, 4)), (nn.ConvTranspose3d, (1, 3, 3, 4, 2))])
def test_biases_are_the_business_of_kernels(make: type[nn.Module], sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(make(3, 4, 2), nn.GELU())
    check(model, torch.randn(*sizes, requires_grad=True))
    compiled = minicompile.compile(model)
    compiled(torch.randn(*sizes, requires_grad=True)).sum().backward()
    partitioned = next(text for name, text in minicompile.stages(compiled).items() if name.endswith("partitioned"))
    calls = [line for line in partitioned.splitlines() if "= convolution" in line]
    assert len(calls) == 2 and "None" in calls[0] and "[True, True, False]" in calls[1]


def test_attention_over_pixels() -> None:
    def attend(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        b, c, h, w = images.shape
        tokens = F.conv2d(images, weight).view(b, c, h * w).transpose(1, 2)
        mixed = torch.softmax(tokens @ tokens.transpose(1, 2), -1) @ tokens
        return F.conv2d(mixed.transpose(1, 2).reshape(b, c, h, w), weight).contiguous() + images

    torch.manual_seed(0)
    check(attend, torch.randn(2, 4, 5, 6, requires_grad=True), torch.randn(4, 4, 1, 1, requires_grad=True))


def test_a_network_copies_images_weights_and_gradients_only() -> None:
    weights = [torch.randn(8, 8, 3, 3) for _ in range(4)]

    def deep(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.relu(F.conv2d(x, weight, padding=1))
        return x

    compiled = minicompile.compile(deep)
    compiled(torch.randn(2, 8, 6, 6))
    assert compiled.stats.kernels <= 1 + len(weights) + 4


def merged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mixed.transpose(1, 2).reshape(2, 6, 12)


READERS_OF_ATTENTION = {
    "merged heads": (lambda q, k, v: merged(q, k, v) * 2, 0),
    "flattened": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(-2, 1).flatten(2).sin(), 0),
    "permuted": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).contiguous().sin(), 0),
    "returned": (merged, 1),
    "written": (lambda q, k, v: merged(q, k, v).mul_(2), 0),
    "read twice": (lambda q, k, v: (lambda out: out.transpose(1, 2).reshape(2, 6, 12) * out.sum())(
        F.scaled_dot_product_attention(q, k, v)), 1),
    "another order": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).reshape(6, -1).sin(), 1),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS_OF_ATTENTION)
def test_heads_are_merged_without_a_copy(reader: str) -> None:
    function, copies = READERS_OF_ATTENTION[reader]
    q, k, v = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    compiled = minicompile.compile(function)
    expected, got = function(q, k, v), compiled(q, k, v)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (expected, got)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    partitioned = next(text for name, text in minicompile.stages(compiled).items() if name.endswith("partitioned"))
    forward = partitioned[: partitioned.index("# backward")]
    assert forward.count("= clone(") == copies


def test_merged_heads_may_be_written_before_the_backward() -> None:
    q, k, v = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    gradients = []
    for function in (merged, minicompile.compile(merged)):
        out = function(q, k, v)
        total = (out * 3).sum()
        with torch.no_grad():
            out.zero_()
        gradients.append(torch.autograd.grad(total, (q, k, v)))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def averaging(device: str, **options: bool) -> nn.Module:
    """Averages over windows that overlap, between convolutions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AvgPool2d(3, 1, 1, **options), nn.Conv2d(8, 8, 3)).to(device)


def factor_strides(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """The strides of the second factors of the forward's batched products."""
    check(function, *tensors)
    compiled = minicompile.compile(function)
    compiled(*tensors)
    graph = compiled_function(compiled).compiler.graphs[0].partitioned.forward.graph
    return [node.args[1].meta["val"].stride() for node in graph.nodes if node.target is torch.ops.aten.bmm.default]


@pytest.mark.parametrize("head_dim", [16, 5])
def test_factors_of_batched_products_are_copied_as_they_lie(head_dim: int) -> None:
    """Unless their vectors would be cut where those of the copy that eager makes are whole."""
    q, k = (torch.randn(2, length, 3, head_dim, requires_grad=True) for length in (7, 8))
    scores = lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k)
    as_it_lies = head_dim == 16
    assert factor_strides(scores, q, k) == [(8 * head_dim, 1, head_dim) if as_it_lies else (8 * head_dim, 8, 1)]
    assert factor_strides(lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k.sin()).tanh(), q, k.flip(1))
    assert factor_strides(lambda a, b: torch.einsum("bqhk,bkhd->bqhd", a, b), torch.randn(2, 7, 3, 8), k) == [
        (8 * head_dim, head_dim, 1)]  # fmt: skip


def test_a_copied_factor_that_is_seen_otherwise_keeps_its_order() -> None:
    def seen(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copy = k.permute(0, 2, 3, 1).contiguous()
        return torch.bmm(q.flatten(0, 1), copy.view(6, 16, 8)), copy

    tensors = torch.randn(2, 3, 7, 16), torch.randn(2, 8, 3, 16)
    check(seen, *tensors)
    assert minicompile.compile(seen)(*tensors)[1].stride() == seen(*tensors)[1].stride()
    check(lambda q, k: torch.bmm(q.flatten(0, 1), (c := k.permute(0, 2, 3, 1).contiguous().view(6, 16, 8))) + c.sum(), *tensors)


@pytest.mark.parametrize("counted", [False, True])
def test_gradients_of_averages_see_no_channels_last(counted: bool) -> None:
    layouts = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.avg_pool2d_backward.default:
                layouts.append(args[1].is_contiguous())
            return function(*args, **(kwargs or {}))

    model = averaging("cpu", count_include_pad=counted, ceil_mode=True)
    result = minicompile.compile(model)(torch.randn(2, 3, 9, 7, requires_grad=True))
    with Watch():
        result.sum().backward()
    assert layouts == [True]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"count_include_pad": False}, {"ceil_mode": True}])
def test_gradients_of_averages_on_a_gpu(options: dict[str, bool]) -> None:
    images = torch.randn(2, 3, 9, 7, device="cuda", requires_grad=True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check(averaging("cuda", **options), images, against_torch=False)


@torch.library.custom_op("minicompile_tests::by_memory", mutates_args=())
def by_memory(value: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory."""
    return value.as_strided((value.numel(),), (1,)).clone()


@by_memory.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return value.new_empty(value.numel())


def test_what_others_wrote_gets_the_layout_that_eager_gives_it() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w).relu()
        return by_memory(y), by_memory(F.conv2d(y, w)), y.view(torch.int32)

    x, w = torch.randn(2, 4, 7, 7), torch.randn(4, 4, 3, 3)
    check(lambda x, w: function(x, w)[:2], x, w)
    check(function, x, w)
    check(function, x.to(memory_format=torch.channels_last), w)


@pytest.mark.parametrize("draw", [torch.randn_like, lambda like: torch.empty_like(like).exponential_(), F.dropout])
def test_random_numbers_of_eager_are_drawn_in_its_layout(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        pixels = F.conv2d(images, weight)
        return pixels + draw(pixels)

    arguments = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    torch.manual_seed(0)
    expected = function(*arguments)
    torch.manual_seed(0)
    got = minicompile.compile(function, options={"fallback_random": True})(*arguments)
    torch.testing.assert_close(got, expected)
