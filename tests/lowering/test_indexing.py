"""Gathers, scatters, and writes of graph inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from minicompile.config import Config
from minicompile.errors import Unsupported
from minicompile.ir import verify
from minicompile.ir.loops import Loop
from minicompile.lowering.lower import lower_graph
from tests.evaluate import EvaluationFailed, evaluate_graph
from tests.lowering.oracle import TABLE, check, externs


def test_gathers():
    x, i, j = torch.randn(5, 6, 4), torch.tensor([[0, -1], [3, 2]]), torch.tensor([1, 4])
    check(lambda a, b, c: (a[b], a[:, b], a[b, c], a[c, :, b], a[:, None, c], a[..., c % 4], a[2, c]), x, i, j)
    check(lambda a, b: (a.gather(1, b), torch.take_along_dim(a, b, 1)), torch.randn(3, 5), torch.randint(0, 5, (3, 2)))
    check(lambda a, b: (a.index_select(1, b), a.take(b)), x, j)
    check(lambda a, b: F.embedding(b, a), torch.randn(10, 3), torch.randint(0, 10, (2, 4)))
    check(lambda a, b: a[b.int()], x, j)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_scatters(dtype):
    x, i = torch.randint(0, 9, (5, 4)).to(dtype), torch.randint(0, 5, (3, 4))
    source = torch.randint(0, 9, (3, 4)).to(dtype)
    row = torch.tensor([4, 0, 1])
    assert not externs(check(lambda a, b, s: a.scatter_add(0, b, s), x, i, source))
    check(lambda a, r, s: (a.index_add(0, r, s), a.index_copy(0, r, s), a.index_put((r,), s)), x, row, source)
    check(lambda a, r, s: a.index_put((r,), s, accumulate=True), x, torch.tensor([1, 1, -1]), source)
    check(lambda a, b: a.scatter(1, b, 7), x, torch.tensor([[0, 2], [1, 3]]))
    check(lambda a, s: (a.slice_scatter(s, 0, 1, 4), a.select_scatter(s[0], 0, -1)), x, source)
    check(lambda a, s: a.slice_scatter(s[:2], 0, 0, 4, 2), x, source)
    check(lambda a: torch.where(a > 3, a, 0).masked_fill(a == 1, 2), x)


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_diagonals_are_written_by_a_choice(offset: int) -> None:
    x, stack = torch.randn(4, 5), torch.randn(4, 3, 5)
    assert not externs(check(lambda a: torch.diagonal_scatter(a, a.diagonal(offset).cos(), offset), x))
    written = lambda a: torch.diagonal_scatter(a, a.diagonal(offset, -1, 0).cos(), offset, -1, 0)
    assert not externs(check(written, stack))
    assert not externs(check(lambda a: torch.diagonal_scatter(a.long(), a.diagonal(offset), offset), x))



@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_scatter_of_one_element_to_each_row_writes_nothing_apart(dtype, dim):
    x = torch.randint(-9, 9, (3, 4, 5)).to(dtype)
    i, source = torch.randint(0, 3, x.shape).narrow(dim, 0, 1).contiguous(), torch.randint(-9, 9, x.shape).to(dtype)
    graphs = [check(lambda a, b, s: (a.scatter(dim, b, s), a.scatter(dim, b, 1)), x, i, source)]
    if dtype != torch.bool:
        graphs.append(check(lambda a, b, s: (a.scatter_add(dim, b, s), 0 * a.scatter_add(dim, b, s)), x, i, source))
    for graph in graphs:
        assert not any(loop.overwrites for loop in graph.operations)
        with pytest.raises(EvaluationFailed, match="a value out of range"):
            evaluate_graph(graph, [x, i + 5, source])


def test_negative_zeros_beside_what_a_scatter_adds_stay():
    x = torch.full((2, 3), -0.0)
    check(lambda a, b: 1 / a.scatter_add(1, b, torch.zeros(2, 1)), x, torch.tensor([[1], [0]]))


def test_masks():
    x = torch.randn(4, 5)
    assert not externs(check(lambda a: a.index_put((a > 0,), torch.tensor(3.0)), x))
    check(lambda a, m: a.index_put((m,), a[0]), x, torch.tensor([True, False, True, False]))


def test_gradient_of_a_small_table_that_is_read_often():
    for rows, padding, sizes in ((1, -1, (130,)), (3, 1, (2, 200)), (4, -1, (5, 1, 60))):
        grad, index = torch.randn(*sizes, 5).transpose(0, -2), torch.randint(0, rows, sizes)
        backward = lambda g, i, r=rows, p=padding: torch.ops.aten.embedding_dense_backward(g, i, r, p, False)
        check(backward, grad.reshape(*sizes, 5), index, decompose=False)
        check(backward, torch.randn(5, *sizes).movedim(0, -1), index, decompose=False)
        whole = torch.randint(-1, 2, (*sizes, 5)).bfloat16()  # their sums are exact; eager adds up in bf16
        check(backward, whole, index.int(), decompose=False)


def test_gradient_of_an_embedding():
    grad, index = torch.randn(3, 4, 5), torch.randint(0, 7, (3, 4))
    for padding in (-1, 2):
        check(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 7, padding, False), grad, index, decompose=False)
    check(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 7, -1, False), grad.bfloat16(), index, decompose=False)


def test_an_index_out_of_range_fails_before_anything_is_touched():
    programs = [lambda a, b: a[b], lambda a, b: a.index_put((b,), torch.ones(2)), lambda a, b: a.gather(0, b)]
    for graph in [check(program, torch.randn(4), torch.tensor([1, 2])) for program in programs]:
        for wrong in (4, 99, -5, -99):
            with pytest.raises(EvaluationFailed, match="a value out of range"):
                evaluate_graph(graph, [torch.randn(4), torch.tensor([1, wrong])])


def in_place(function, *args):
    """Lower a function that writes its arguments; run it beside eager; return the graph."""
    module = make_fx(function, decomposition_table=TABLE, tracing_mode="fake")(*[a.clone() for a in args])
    graph = lower_graph(module, Config(), "test")
    verify.verify_lowered(graph)
    ours, eager = [a.clone() for a in args], [a.clone() for a in args]
    found, expected = evaluate_graph(graph, ours), function(*eager)
    for one, other in zip([*ours, *found], [*eager, *expected]):
        torch.testing.assert_close(one, other)
    return graph


def test_a_scatter_into_an_input_copies_nothing():
    def update(cache, position, value):
        written = torch.ops.aten.index_put(cache, [position], value)
        torch.ops.aten.copy_(cache, written)
        return (written * 2,)

    graph = in_place(update, torch.randn(100, 3), torch.tensor([7]), torch.randn(1, 3))
    first = graph.operations[0]
    assert isinstance(first, Loop) and first.overwrites == graph.inputs[0] and str(first.axes[0].size) == "3"


def test_a_slice_written_into_an_input():
    def update(cache, value):
        written = torch.ops.aten.slice_scatter(cache, value, 0, 2, 4)
        torch.ops.aten.copy_(cache, written)
        return (written.sum(0),)

    graph = in_place(update, torch.randn(10, 3), torch.randn(2, 3))
    assert graph.operations[0].overwrites == graph.inputs[0]


def test_old_contents_are_kept_for_later_readers():
    def swap(x, y):
        doubled, turned = x * 2, x.flip(0)
        torch.ops.aten.copy_(x, y.flip(0))
        torch.ops.aten.copy_(y, turned)
        return (doubled,)

    in_place(swap, torch.randn(4, 3), torch.randn(4, 3))

    def turn(x):
        torch.ops.aten.copy_(x, torch.ops.aten.flip(x, [0]))
        return ()

    in_place(turn, torch.randn(5))

    def scattered(x, i, v):
        written = torch.ops.aten.index_put(x, [i], v)
        old = torch.ops.aten.select(x, 0, 1) * 3
        torch.ops.aten.copy_(x, written)
        return (old,)

    in_place(scattered, torch.randn(4), torch.tensor([1]), torch.randn(1))


def test_a_call_that_writes_its_argument():
    def function(x):
        turned = torch.ops.aten.flip(x, [0])
        torch.ops.aten.digamma_(x)
        return turned, x * 2

    graph = in_place(function, torch.rand(5) + 1)
    assert any(o.writes and getattr(o, "overwrites", None) == (graph.inputs[0],) for o in graph.operations)


def test_a_write_of_anything_but_an_input_is_refused():
    module = make_fx(lambda x: ((x * 2).copy_(x),), tracing_mode="fake")(torch.randn(3))
    with pytest.raises(Unsupported):
        lower_graph(module, Config(), "test")
