"""Factors of matrix products are padded without changing them, once for all products, and only where it pays; small products are loops."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
import minicompile.gpu as gpu
from minicompile.config import Config
from minicompile.ir.loops import ExternKernel, LoweredGraph
from minicompile.lowering import products
from tests import differential
from tests.lowering.oracle import check, lower

BF16 = torch.bfloat16


def matrix(*sizes: int, turned: bool = False) -> torch.Tensor:
    return torch.randn(*reversed(sizes), dtype=BF16).t() if turned else torch.randn(*sizes, dtype=BF16)


def multiplied_sizes(graph: LoweredGraph) -> list[list[int]]:
    """The sizes of both factors of every product."""
    calls = [op for op in graph.operations if isinstance(op, ExternKernel) and "mm" in op.target]
    return [[int(size) for view in call.args[-2:] for size in view.sizes] for call in calls]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "holds", lambda value: True)
    monkeypatch.setattr(products, "LEAST_OPERATIONS_A_BYTE", {2: 0, 4: 0})
    monkeypatch.setattr(products, "SMALL", 0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("a", "b", "sizes"),
    [
        (matrix(5, 16), matrix(16, 9, turned=True), [5, 16, 16, 16]),
        (matrix(5, 9), matrix(9, 16), [5, 16, 16, 16]),
        (matrix(9, 5, turned=True), matrix(5, 16), [16, 5, 5, 16]),
        (matrix(9, 5, turned=True), matrix(5, 3, turned=True), [16, 16, 16, 16]),
        (matrix(8, 16), matrix(16, 24), [8, 16, 16, 24]),
        (matrix(5, 0), matrix(0, 9), [5, 0, 0, 9]),
    ],
)
def test_products_of_padded_factors(a: torch.Tensor, b: torch.Tensor, sizes: list[int]) -> None:
    assert multiplied_sizes(check(lambda x, y: -(x @ y), a, b)) == [sizes]
    check(lambda bias, x, y: torch.addmm(bias, x, y, beta=0.5, alpha=2), matrix(1, b.shape[1])[0], a, b)
    check(lambda x, y: (torch.relu(x) @ y).t() + 1, a, b)


@pytest.mark.usefixtures("always")
def test_products_in_tf32_are_padded_where_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(5, 9), torch.randn(9, 6)
    assert multiplied_sizes(check(lambda x, y: -(x @ y), a, b)) == [[5, 9, 9, 6]]
    setting = types.SimpleNamespace(matmul=types.SimpleNamespace(fp32_precision="tf32"))
    monkeypatch.setattr(torch.backends, "cuda", setting)
    assert multiplied_sizes(check(lambda x, y: -(x @ y), a, b)) == [[5, 16, 16, 8]]
    assert multiplied_sizes(check(lambda x, y: -(x @ y), a, torch.randn(9, 4))) == [[5, 16, 16, 4]]
    assert multiplied_sizes(check(lambda x, y: -(x @ y), a.double(), b.double())) == [[5, 9, 9, 6]]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("x", "sizes"),
    [
        (torch.randn(4, 6, 16).transpose(0, 1), [24, 16, 16, 8]),
        (torch.randn(4, 6, 16), [24, 16, 16, 8]),
        (torch.randn(16, 6, 4).permute(1, 2, 0), [24, 16, 16, 8]),
        (torch.randn(5, 6, 16)[:4].transpose(0, 1)[1:], [5, 4, 16, 5, 16, 8]),
        (torch.randn(150, 6, 16).transpose(0, 1), [6, 150, 16, 6, 16, 8]),
        (torch.randn(1, 6, 16), [1, 6, 16, 1, 16, 8]),
        (torch.randn(4, 0, 16), [4, 0, 16, 4, 16, 8]),
    ],
)
def test_a_batch_of_products_with_one_matrix_is_one_product_where_its_rows_lie_at_equal_distances(
    x: torch.Tensor, sizes: list[int]
) -> None:
    weight = torch.randn(8, 16).t()
    assert multiplied_sizes(check(lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)) + 1, x, weight)) == [sizes]
    check(lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)), x, weight)
    check(lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)).view(-1).sin(), x, weight)
    check(lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)).transpose(0, 1) @ w.t(), x, weight)


@pytest.mark.usefixtures("always")
def test_a_factor_of_two_products_is_padded_once() -> None:
    graph = lower(lambda g, w, x: (g @ w, g.t() @ x), (matrix(5, 9), matrix(9, 16), matrix(5, 16)))
    assert multiplied_sizes(graph) == [[5, 16, 16, 16], [16, 5, 5, 16]]
    assert len({op.args[0].buffer for op in graph.operations if isinstance(op, ExternKernel)}) == 1


def gradients(run: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[Any]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss = run(*leaves)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.usefixtures("always")
def test_a_head_and_its_loss_train_as_in_eager() -> None:
    target = torch.tensor([0, 3, 10, 2, 2])

    def loss(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(torch.relu(x), weight, bias).float(), target)

    tensors = matrix(5, 7), matrix(11, 7), matrix(1, 11)[0]
    compiled = minicompile.compile(loss, options={"suppress_errors": False, "cache": False})
    exact = gradients(loss, *(tensor.double() for tensor in tensors))
    for ours, eager, true in zip(gradients(compiled, *tensors), gradients(loss, *tensors), exact, strict=True):
        assert ours.stride() == eager.stride()
        assert (ours - true).abs().max() <= 2 * (eager - true).abs().max() + 0.01 * true.abs().max()


def test_factors_that_gain_little_and_other_dtypes_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "holds", lambda value: True)
    monkeypatch.setattr(products, "SMALL", 0)
    assert multiplied_sizes(lower(torch.mm, (matrix(5, 9), matrix(9, 3)))) == [[5, 9, 9, 3]]
    assert multiplied_sizes(lower(torch.mm, (torch.randn(2000, 4001), torch.randn(4001, 2001)))) == [[2000, 4001, 4001, 2001]]
    head = torch.empty(2048, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)
    assert multiplied_sizes(lower(lambda x, w: (x @ w.t()).relu(), head)) == [[2048, 768, 768, 50272]]


@pytest.mark.usefixtures("always")
def test_columns_of_a_result_that_leaves_the_graph_are_left_to_our_kernel() -> None:
    """The padded product would be copied to be returned; columns of a factor that lie side by side are padded all the same."""
    rows, columns = matrix(2, 3, 16).flatten(0, 1), matrix(16, 9, turned=True)
    assert multiplied_sizes(check(torch.mm, rows, columns)) == [[6, 16, 16, 9]]
    assert multiplied_sizes(check(lambda x, y: (x @ y).view(2, 3, 9), rows, columns)) == [[6, 16, 16, 9]]
    assert multiplied_sizes(check(lambda x, y: ((z := x @ y), z.exp()), rows, columns)) == [[6, 16, 16, 9]]
    assert multiplied_sizes(check(torch.mm, rows, columns.contiguous())) == [[6, 16, 16, 16]]
    assert multiplied_sizes(check(torch.mm, matrix(5, 9), matrix(9, 3, turned=True))) == [[5, 16, 16, 3]]
    assert multiplied_sizes(lower(torch.mm, (rows, columns), config=Config(matmul="aten"))) == [[6, 16, 16, 16]]


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "holds", lambda value: True)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: x @ w.t(),
        lambda x, w, b: torch.relu(x)[:, ::2] @ w[:, ::2].t(),
        lambda x, w, b: torch.addmm(b[:1], x, w.t(), beta=0.5, alpha=-2),
        lambda x, w, b: torch.addmm(b * torch.nan, x, w.t(), beta=0),
        lambda x, w, b: torch.bmm(x.expand(3, *x.shape), w.t().expand(3, *w.t().shape).contiguous()),
        lambda x, w, b: torch.baddbmm(b, x[None], w.t()[None], alpha=3),
        lambda x, w, b: (x.t() @ x, w.t() @ w, x[:1] @ w.t(), w @ x[-1], torch.outer(b, b)),
    ],
)
def test_small_products_are_loops_with_the_values_of_eager(function: Callable[..., Any], dtype: torch.dtype) -> None:
    for rows, columns, inner in ((4, 7, 9), (1, 5, 33), (6, 1, 8), (3, 2, 1)):
        tensors = [torch.randn(*sizes, dtype=dtype) for sizes in ((rows, inner), (columns, inner), (columns,))]
        assert multiplied_sizes(check(function, *tensors)) == []


@pytest.mark.usefixtures("loops")
def test_only_what_is_little_work_or_reads_a_matrix_once_is_a_loop() -> None:
    def is_loop(a: torch.Tensor, b: torch.Tensor) -> bool:
        return not multiplied_sizes(lower(torch.mm, (a, b)))

    wide = torch.empty(4096, 4096)
    assert is_loop(torch.empty(64, 128), torch.empty(128, 128)) and not is_loop(torch.empty(64, 129), torch.empty(129, 128))
    assert is_loop(torch.empty(1, 4096), wide.t()) and is_loop(wide, torch.empty(4096, 1))
    assert not is_loop(torch.empty(1, 4096), wide) and not is_loop(wide.t(), torch.empty(4096, 1))
    assert not is_loop(torch.empty(2, 513), torch.empty(513, 3))
    assert not is_loop(torch.ones(3, 3, dtype=torch.int64), torch.ones(3, 3, dtype=torch.int64))
    assert not is_loop(torch.empty(0, 4), torch.empty(4, 3))


@pytest.mark.usefixtures("loops")
def test_a_user_who_asks_for_the_librarys_products_gets_them() -> None:
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    compiled = {name: minicompile.compile(layer, options={"matmul": name, "cache": False}) for name in ("auto", "aten")}
    for each in compiled.values():
        torch.testing.assert_close(each(x), layer(x))
    assert compiled["auto"].stats.extern_calls == 0 and compiled["aten"].stats.extern_calls == 1


@pytest.mark.usefixtures("loops")
def test_a_network_of_small_layers_trains_without_a_library_call() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    compiled = minicompile.compile(network, options={"suppress_errors": False, "cache": False})
    x = torch.randn(5, 12)
    exact = gradients(lambda x: copy.deepcopy(network).double()(x).square().sum(), x.double())
    ours = gradients(lambda x: compiled(x).square().sum(), x)
    for found, true in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-6)
    assert compiled.stats.extern_calls == 0


@pytest.mark.usefixtures("loops")
def test_short_sums_and_small_matrices_of_a_batch_are_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number: rotations of points, covariances, a layer over one feature."""
    monkeypatch.setattr(products, "SMALL", 0)
    for dtype in DTYPES:
        points, turn = torch.randn(50, 3, dtype=dtype), torch.randn(3, 3, dtype=dtype)
        matrices = torch.randn(40, 6, 8, dtype=dtype)
        assert not multiplied_sizes(check(lambda p, t: p @ t.t(), points, turn))
        assert not multiplied_sizes(check(lambda m: m @ m.mT, matrices))
        assert not multiplied_sizes(check(lambda p, t: F.linear(p[:, :1], t[:, :1], t[0]), points, turn))
    assert multiplied_sizes(lower(torch.bmm, (torch.randn(1, 8, 8), torch.randn(1, 8, 8))))
    assert multiplied_sizes(lower(torch.bmm, (torch.randn(40, 6, 9), torch.randn(40, 9, 6))))
    assert multiplied_sizes(lower(torch.mm, (torch.randn(9, 5), torch.randn(5, 9)), config=Config(matmul="aten")))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("alpha", [0, 0.0, 0.5])
def test_factors_that_are_multiplied_by_zero_are_not_read(alpha: float) -> None:
    """Where they are infinite, a loop would give NaN, the library does not."""
    odd, addend = torch.tensor([[1.0, torch.inf], [torch.nan, 2.0]]), torch.randn(2)
    differential.check(lambda m, c: (c.addmm(m, m, alpha=alpha), c.addmm(m, m, alpha=alpha, beta=0)), odd, addend)
    differential.check(lambda m, c: (c.addmv(m, m[0], alpha=alpha), c.addmv(m, m[0], alpha=alpha, beta=0)), odd, addend)
