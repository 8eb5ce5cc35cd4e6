"""The routes that only a GPU takes, on CPU tensors: values and gradients against eager and fp64, and that they are taken."""

from __future__ import annotations

import functools
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minicompile
from minicompile.api import compiled_function
from minicompile.ir.loops import ExternKernel
from minicompile.ir.schedule import KernelGroup
from tests.differential import check, leaf
from tests.planned_for_gpu import planned_for_gpu, thresholds_lowered

PACKAGE = pathlib.Path(minicompile.__file__).parent
OPTIONS = {"suppress_errors": False, "verify": True, "fallback_random": True}
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    torch.manual_seed(0)
    with planned_for_gpu(), thresholds_lowered():
        yield


class Convolutions(nn.Module):
    """Convolutions whose bias, layout and batch norm a GPU's graph changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.second(F.relu(self.norm(self.first(images)))))


def head(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w, b), target, label_smoothing=0.1, ignore_index=2)


def updated(gradients: list[torch.Tensor], momenta: list[torch.Tensor]) -> list[torch.Tensor]:
    return [0.9 * momentum + gradient for gradient, momentum in zip(gradients, momenta, strict=True)]


# name: function, arguments, the routes that forward and backward must take
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    "loss of a head": (head, (leaf(9, 7), leaf(11, 7), leaf(11), torch.arange(9) % 11), {"kernels.linear_cross_entropy"}),
    "norm": (lambda x, w, b: F.layer_norm(x, (9,), w, b), (leaf(24, 9), leaf(9), leaf(9)), {"crossed", "persistent"}),
    "long softmax": (lambda x: (x * 2).softmax(-1), (leaf(9, 150),), {"looped"}),
    "sums": (lambda x: (x.sum(), x.square().sum(0), x.amax(1)), (leaf(5, 90),), {"looped", "persistent"}),
    "variance of columns": (lambda x: torch.var_mean(x + 3, 0), (leaf(60, 6),), {"looped"}),
    "argmax and cumsum": (lambda x: (x.argmax(-1), x.cumsum(0), x.t().contiguous()), (leaf(6, 50),), {"looped", "pointwise"}),
    "small product": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (leaf(3, 4), leaf(5, 4), leaf(5)), {"persistent"}),
    "padded product": (lambda x, w: torch.tanh(x @ w), (leaf(9, 13, dtype=BF16), leaf(13, 11, dtype=BF16)),
                       {"pointwise", "torch.ops.aten.mm.out"}),
    "rows of a table": (lambda w, i: F.embedding(i, w).tanh(), (leaf(4, 5), torch.arange(40) % 4), {"looped"}),
    "constants at places": (lambda i: torch.ones(2).expand(4, 2)[i].sin(), (torch.arange(5) % 4,), {"pointwise"}),
    "updates": (updated, ([leaf(n, 3) for n in (2, 5, 7)], [leaf(n, 3) for n in (2, 5, 7)]), {"batch"}),
    "convolutions": (Convolutions(), (leaf(2, 3, 7, 7),), {"torch.ops.aten.convolution.default"}),
}  # fmt: skip


def routes(compiled: Any) -> set[str]:
    """How the kernels of all graphs walk, whether several share a launch, and what else is called."""
    steps = [step for graph in compiled.compiler.graphs for part in graph.parts.values() for step in part.schedule.steps]
    kernels = [step for step in steps if isinstance(step, KernelGroup)]
    walks = {"batch" if kernel.batch else kernel.tile.strategy for kernel in kernels}
    return walks | {step.target for step in steps if isinstance(step, ExternKernel)}


def taken(function: Callable[..., Any], *arguments: Any, dynamic: bool | None = None, **options: Any) -> set[str]:
    """The routes of a function that shows what eager shows."""
    made: list[Any] = []

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(minicompile.compile(function, dynamic=dynamic, options=OPTIONS | options))
        return made[-1]

    check(function, *arguments, compile=compile, calls=1, tolerance=4.0)
    return routes(compiled_function(made[0]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, arguments, expected = PROGRAMS[name]
    found = taken(function, *arguments)
    assert expected <= found, found


def test_kernels_that_mention_a_varying_size_are_launched_one_by_one() -> None:
    def function(x: torch.Tensor, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return [row + torch.arange(row.shape[0]) // x.shape[0] for row in rows]

    for length in (3, 5):
        taken(function, torch.randn(length), [torch.randn(size) for size in (4, 8, 12)], dynamic=True)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_our_products_with_tiles_of_the_chip(dtype: torch.dtype) -> None:
    arguments = (leaf(20, 24, dtype=dtype), leaf(40, 24, dtype=dtype), leaf(40, dtype=dtype))
    found = taken(lambda x, w, b: F.relu(F.linear(x, w, b)), *arguments, matmul="triton")
    assert "kernels.fused_matmul" in found


def test_a_small_product_of_two_dtypes_raises_as_in_eager() -> None:
    with pytest.warns(UserWarning, match="of two dtypes"), pytest.raises(RuntimeError, match="same dtype"):
        minicompile.compile(torch.mm)(torch.randn(2, 3), torch.randn(3, 2).double())


def test_a_class_out_of_range_raises_as_in_eager() -> None:
    arguments = (torch.randn(5, 4), torch.randn(7, 4), torch.randn(7), torch.tensor([1, 2, 3, -100, 9]))
    with pytest.raises(IndexError, match="out of bounds"):
        minicompile.compile(head, options=OPTIONS)(*arguments)


# queries, keys, heads, heads of the keys, head dim, dtype, mask, further arguments
ATTENTIONS: dict[str, tuple[int, int, int, int, int, torch.dtype, torch.Tensor | None, dict[str, Any]]] = {
    "plain": (20, 37, 2, 2, 12, F32, None, {}),
    "causal": (37, 37, 2, 2, 16, F32, None, {"is_causal": True}),
    "causal, bf16": (20, 37, 2, 2, 16, BF16, None, {"is_causal": True}),
    "by halves": (33, 40, 1, 1, 16, F32, None, {"scale": 0.5}),
    "groups": (18, 21, 4, 2, 8, F32, None, {"enable_gqa": True}),
    "mask": (20, 37, 2, 2, 12, F32, torch.arange(37) < torch.arange(20)[:, None] + 9, {}),
    "bias of every head": (20, 9, 2, 2, 8, F32, leaf(2, 20, 9), {}),
    "bias of keys": (20, 9, 2, 2, 8, F16, torch.randn(2, 1, 1, 9, dtype=F16), {}),
    "decode": (1, 300, 2, 2, 8, F32, None, {}),
    "decode, groups": (3, 70, 4, 2, 8, F32, torch.randn(2, 1, 3, 70).masked_fill(torch.arange(70) > 60, -math.inf), {"enable_gqa": True}),
    "decode, causal": (5, 70, 4, 1, 16, BF16, None, {"enable_gqa": True, "is_causal": True}),
    "decode, mask": (16, 70, 2, 2, 16, F16, torch.arange(70) < 9 * torch.arange(1, 17)[:, None], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("merged", [False, True])
def test_attention(name: str, merged: bool) -> None:
    queries, keys, heads, of_keys, width, dtype, mask, options = ATTENTIONS[name]
    inputs = [leaf(2, n, length, width, dtype=dtype) for n, length in ((heads, queries), (of_keys, keys), (of_keys, keys))]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        out = F.scaled_dot_product_attention(q, k, v, mask, **options)
        return out.transpose(1, 2).flatten(2) if merged else out

    compiled = minicompile.compile(attend, options=OPTIONS)
    near(with_gradients(compiled, *inputs, mask), with_gradients(attend, *map(doubled, (*inputs, mask))), dtype)
    assert {"kernels.attention_forward", "kernels.attention_backward"} <= routes(compiled)


def test_gradients_of_attention_drop_what_its_result_drops() -> None:
    q, k, v = (leaf(1, 2, n, 8) for n in (20, 33, 33))
    compiled = minicompile.compile(functools.partial(F.scaled_dot_product_attention, dropout_p=0.3), dynamic=False,
                                   options=OPTIONS | {"fallback_random": False})  # fmt: skip

    def seeded(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return compiled(*inputs)

    kept = seeded(q, k, torch.eye(33).expand(1, 2, 33, 33)) != 0

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT / math.sqrt(8)).softmax(-1) * kept / 0.7 @ v

    near(with_gradients(seeded, q, k, v), with_gradients(exact, *map(doubled, (q, k, v))), F32)
    assert "kernels.attention_backward" in routes(compiled)


def test_the_gradient_of_a_bias_where_sizes_vary() -> None:
    inputs = [torch.randn(1, 3, 5, 17)[..., 1:9].requires_grad_(), leaf(1, 3, 11, 8), leaf(1, 3, 11, 16), leaf(5, 11)]
    compiled = minicompile.compile(F.scaled_dot_product_attention, dynamic=True, options=OPTIONS)
    near(with_gradients(compiled, *inputs), with_gradients(F.scaled_dot_product_attention, *map(doubled, inputs)), F32)


def doubled(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor in fp64, a leaf where it was one."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def with_gradients(function: Callable[..., torch.Tensor], *arguments: torch.Tensor | None) -> list[torch.Tensor]:
    """The result, and the gradients of a weighted sum of it."""
    result = function(*arguments)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    leaves = [argument for argument in arguments if argument is not None and argument.requires_grad]
    return [result, *torch.autograd.grad(result, leaves, weights)]


def near(found: list[torch.Tensor], exact: list[torch.Tensor], dtype: torch.dtype) -> None:
    """What the dtype's rounding of results, and of what is subtracted in the gradients, explains."""
    tolerance = 32 * torch.finfo(dtype).eps
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


ASKS_THE_DEVICE = re.compile(r"is_cuda|device\.type|device\.kind|get_device_properties")
STAGES = ("graph", "lowering", "scheduling", "codegen", "kernels")
IMITATE_EAGER = ("graph/eager_errors.py graph/decompositions.py graph/attention.py graph/writing_operators.py "
                 "lowering/creation.py lowering/pointwise.py").split()
KNOW_BOTH = (
    "kernels/interpret.py kernels/linear_cross_entropy.py kernels/attention_problem.py kernels/flash_attention.py lowering/lower.py "
    "scheduling/matmul.py scheduling/split.py scheduling/unroll.py scheduling/batch.py "
    "codegen/geometry.py codegen/generate.py codegen/wrapper.py"
).split()
"""By the properties of the device, which `planned_for_gpu` sets, or in a way that it leaves as it is: where kernels are
launched, what the program's text says, and the check for the chip of the warp-specialised kernels."""


def test_nothing_else_asks_for_the_device() -> None:
    """What decides by the device decides by what these tests can answer: `gpu.holds` or `DeviceProperties`."""
    asking = {
        str(path.relative_to(PACKAGE))
        for stage in STAGES
        for path in (PACKAGE / stage).rglob("*.py")
        if ASKS_THE_DEVICE.search(path.read_text())
    }
    assert asking == {*IMITATE_EAGER, *KNOW_BOTH}


@pytest.mark.parametrize("grad", [False, True])
def test_a_group_norm_and_what_follows_read_the_data_once(grad: bool) -> None:
    compiled = minicompile.compile(lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)), options=OPTIONS)
    args = leaf(3, 8, 5, 6), leaf(8), leaf(8)
    with torch.set_grad_enabled(grad):
        compiled(*args)
    (graph,) = compiled_function(compiled).compiler.graphs
    walks = [step for step in graph.parts["forward"].schedule.steps if "x" in step.reads]
    assert len(walks) == 1


class PartlyCast(nn.Module):
    """A convolution that autocast casts, whose layout a GPU's graph changes, and a product of what autocast must not cast."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.convolution(images)
        with torch.autocast("cpu", enabled=False):
            return features.prod(1)


def test_layouts_that_change_under_autocast_leave_dtypes_as_they_are() -> None:
    compiled = minicompile.compile(PartlyCast(), options=OPTIONS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        compiled(leaf(2, 3, 7, 7))
    (graph,) = compiled_function(compiled).compiler.graphs
    (product,) = graph.module("forward").graph.find_nodes(op="call_function", target=torch.ops.aten.prod.dim_int)
    assert product.meta["val"].dtype == BF16


@pytest.mark.parametrize("dynamic", [None, True])
def test_values_picked_by_targets_that_may_be_no_class(dynamic: bool | None) -> None:
    """One-hot sums in several directions, of rows that lie in columns, weighted by a list that the function changes."""

    def picked(x: torch.Tensor, targets: torch.Tensor, weights: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        rows = x.t()
        hot = torch.where(torch.arange(rows.shape[1]) == targets[:, None], weights[0][:, None], 0.0)
        weights[0] = weights[0] * 2
        return hot.sum(1), (hot * rows).sum(1), rows - rows.exp() * hot.sum(1, keepdim=True), hot.sum(0)

    compiled = minicompile.compile(picked, dynamic=dynamic, options={"suppress_errors": False, "cache": False})
    for classes, count in ((15, 4), (21, 3), (27, 5)):
        x, weight, targets = leaf(classes, count), leaf(count), torch.randint(-2, classes + 2, (count,))
        shown = []
        for function in (picked, compiled):
            weights = [weight]
            results = function(x, targets, weights)
            gradients = torch.autograd.grad(sum(result.square().sum() for result in results), (x, weight))
            shown.append([*results, *gradients, *weights])
        for found, expected in zip(*reversed(shown), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


def test_a_position_counted_by_a_loop_is_compared_with_a_size() -> None:
    """Of rows that one loop walks over, of varying number: the first half comes from one tensor, the others from another."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half, chosen = y.shape[1] // 2, torch.where(y > 0, y, x)
        joined = torch.cat([y[:, :half], x[:, half:]], 1)
        return joined.mean(2), chosen * chosen.square().mean(1, keepdim=True), (y > 0.3).sum(0)

    taken(function, torch.randn(8, 3, 65), torch.randn(8, 3, 65), dynamic=True)


def test_a_step_of_a_stencil_is_not_computed_again_for_each_neighbour() -> None:
    def heat(u: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            u = u + 0.1 * (u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u)
        return u

    compiled = minicompile.compile(heat, options=OPTIONS)
    compiled(torch.randn(1024, 1024))
    (graph,) = compiled_function(compiled).compiler.graphs
    assert len(graph.parts["forward"].schedule.steps) == 3


def test_what_is_read_by_a_scan_and_behind_it_is_computed_in_both() -> None:
    """No kernel can hold the opacity and what reads it beside its running product, which lies in between."""

    def weights(density: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        opacity = 1 - torch.exp(-density * step)
        passed = F.pad(1 - opacity, (1, 0), value=1.0).cumprod(-1)[:, :-1]
        return opacity * passed

    density, step = torch.rand(512, 100), torch.rand(512, 100)
    with planned_for_gpu(), torch.no_grad():
        compiled = minicompile.compile(weights, options=OPTIONS)
        torch.testing.assert_close(compiled(density, step), weights(density, step))
    assert compiled.stats.kernels == 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_a_scan_reads_may_lie_crosswise_and_be_written_afterwards(dynamic: bool | None) -> None:
    def rendered(density: torch.Tensor, depth: torch.Tensor) -> tuple[torch.Tensor, ...]:
        step = torch.cat([depth[:, 1:] - depth[:, :-1], depth[:, :1] * 0 + 3], -1)
        opacity = 1 - torch.exp(-density.relu() * step)
        weight = opacity * F.pad(1 - opacity, (1, 0), value=1.0).cumprod(-1)[:, :-1]
        density.add_(1)
        return weight, (weight * depth).sum(-1), opacity.T

    compiled = minicompile.compile(rendered, dynamic=dynamic, options=OPTIONS)
    for rows, columns in ((7, 13), (7, 30), (3, 5)):
        density, depth = torch.randn(columns, rows, 2)[..., 0].T, torch.rand(1, columns).cumsum(-1).expand(rows, columns)
        with planned_for_gpu():
            check(rendered, density, depth, compile=lambda _: compiled, backward=False)
