"""Strided views written in place, lists that hold one tensor twice, inputs that overlap: as eager, at several shapes."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile
from tests.differential import check, leaves

STATE: dict[str, Any] = {"scale": 1.0, "seen": []}


def writes_a_strided_view(x: torch.Tensor) -> Any:
    view = x[::2, 1:]
    view.mul_(STATE["scale"])
    STATE["seen"].append(STATE["scale"])
    return x, view + x.mean(), view.stride()


def changes_a_list_and_a_dict(tensors: list[torch.Tensor], record: dict[str, int]) -> Any:
    tensors.append(tensors[0] + tensors[1])
    record["n"] = len(tensors)
    tensors[0] = tensors[0] * 2
    return tensors[-1].t().contiguous().view(-1), record


def writes_an_input_that_overlaps_another(x: torch.Tensor, y: torch.Tensor) -> Any:
    y.add_(1)
    return x.sum(-1), y * 2


def strided(data: torch.Tensor) -> tuple[Any, ...]:
    return (data.t() if data.shape[1] % 2 else data,)


def twice(data: torch.Tensor) -> tuple[Any, ...]:
    return [data, data], {}


def overlapping(data: torch.Tensor) -> tuple[Any, ...]:
    return data, data[1:]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (writes_a_strided_view, strided),
        (changes_a_list_and_a_dict, twice),
        (writes_an_input_that_overlaps_another, overlapping),
    ],
)
def test_as_eager(function: Callable[..., Any], arguments: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    compiled = minicompile.compile(function)
    for columns in range(5, 9):
        STATE["scale"] = columns / 2
        data = torch.randn(6, columns)
        shown = []
        for run in (function, compiled):
            STATE["seen"] = []
            given = arguments(data.clone())
            shown.append((run(*given), given, STATE["seen"]))
        torch.testing.assert_close(shown[1], shown[0])


def nested_views(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    cache[1, :, 3:4].copy_(new[1])
    return cache[1].sum(-1)


def halves_of_one_cache(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    cache[0][:, at] = new[0]
    cache[1][:, at] = new[1] + 1
    return cache.sum(-1)


def two_places(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    cache[:, :, at] = new
    cache.index_copy_(2, at + 1, new * 2)
    return cache.sum(-1)


def added_to_a_slice(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    cache[:, :, 2:3] += new
    return cache[:, :, :4].sum()


def old_contents_read_first(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    old = cache.sum(-1)
    cache[:, :, at] = new
    return old, (new.mT @ cache[:, :, 5:6]).sum()


def scattered(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    cache.scatter_(2, at.view(1, 1, 1, 1).expand_as(new), new)
    return cache.mean()


def old_contents_read_last(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    old = cache[:, :, :1].clone()
    cache[:, :, 0:1] = new
    cache[:, :, 1:] = cache[:, :, :-1].clone()
    return old + cache[:, :, 1:2]


def inner_view_read_between(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> Any:
    part, whole = cache[1], cache * 1
    part[:, 2:3] = new[1]
    between = cache[1, :, :4].sum()
    part[:, 4:5] = new[0]
    part[:, 2:4] = part[:, 4:6]
    return between, part.sum() + whole.sum()


IN_PLACE = [nested_views, halves_of_one_cache, two_places, added_to_a_slice, old_contents_read_first, scattered]


@pytest.mark.parametrize("function", [*IN_PLACE, old_contents_read_last, inner_view_read_between])
def test_a_cache_is_written_where_it_is(function: Callable[..., Any]) -> None:
    arguments = torch.randn(2, 3, 16, 4), torch.randn(2, 3, 1, 4), torch.tensor([5])
    plain, ours = ([value.clone() for value in arguments] for _ in range(2))
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    torch.testing.assert_close(compiled(*ours), function(*plain))
    torch.testing.assert_close(ours, plain)
    if function in IN_PLACE:
        loops = compiled.compiler.graphs[0].parts["forward"].lowered.operations
        written = [math.prod(axis.size.constant for axis in loop.axes) for loop in loops if getattr(loop, "overwrites", None)]
        assert written and max(written) <= arguments[1].numel()


def shifts(x: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1]
    return x + 1


def copies_a_row(x: torch.Tensor) -> torch.Tensor:
    x[torch.tensor([0, 1])] = x[0]
    return x + 1


def adds_the_next_rows(x: torch.Tensor) -> torch.Tensor:
    x[1:] += x[:-1]
    return x + 1


REFUSED: tuple[Callable[[torch.Tensor], Any], ...] = (
    shifts, copies_a_row, adds_the_next_rows, lambda x: x.add_(x.t()), lambda x: x[1:].copy_(x[:-1]), lambda x: x.expand(2, 4, 4).add_(1),
    lambda x: x.index_add_(0, torch.tensor([0]), x[1:2]), lambda x: x.scatter_(0, torch.zeros(1, 4, dtype=torch.long), x[1:2]),
    lambda x: torch.mul(x[1:], 2, out=x[:-1]), lambda x: torch.index_select(x, 0, torch.tensor([1, 0, 3, 2]), out=x),
    lambda x: (lambda y: torch.cross(y, y + 1, 0, out=y))(x[:3]), lambda x: torch.take(x, x.long() % 3, out=x),
)  # fmt: skip
ALLOWED: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda x: x.mul_(x) + x.add_(x[:]), lambda x: x[:2].add_(x[2:]) + x[2:], lambda x: x[:, :2].copy_(x[:, 2:]) + x[:, 2:],
    lambda x: x.diagonal().add_(x[0]) + 1, lambda x: torch.mul(x[2:], 2, out=x[:2]) + 1,
    lambda x: torch.clamp(x, 1, 3, out=x) + torch.where(x > 2, x, x + 1, out=x), lambda x: torch.mm(x[:2, :2], x[2:, 2:], out=x[:2, 2:]) + 1,
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_from_a_part_of_the_memory_that_is_written(dynamic: bool) -> None:
    for function in (*REFUSED, *ALLOWED):
        shown: list[Any] = []
        compiled = minicompile.compile(function, dynamic=dynamic, options={"cache": False})
        for run in (function, compiled):
            x = torch.arange(16.0).view(4, 4)
            try:
                shown.append((run(x), x))
            except RuntimeError as error:
                shown.append((str(error), x))
        assert (type(shown[0][0]) is str) == (function in REFUSED)
        torch.testing.assert_close(shown[1][1], shown[0][1])
        assert shown[1][0] == shown[0][0] if function in REFUSED else torch.equal(shown[1][0], shown[0][0])
        assert function in REFUSED or not compiled.graph_breaks


WINDOWS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.unfold(1, 2, 2).mul_(2), lambda x: x.unfold(0, 1, 2).zero_(), lambda x: x.unfold(1, 3, 1)[:, 1].mul_(2),
    lambda x: x.expand(2, 3, 5)[0].exp_(), lambda x: x.expand_as(x).exp_(), lambda x: x.expand(2, 3, 5)[1].__setitem__(0, 1.0),
    lambda x: torch.broadcast_tensors(x, x[0])[0].masked_fill_(x > 0, -math.inf).masked_fill_(x > 1, -math.inf),
    lambda x: x[:1].expand(5, 5).diagonal().mul_(2), lambda x: x.as_strided((2, 3), (1, 1)).select(0, 1).mul_(2),
    lambda x: x.detach().expand(2, 3, 5)[0].add_(1), lambda x: (x.unfold(1, 2, 2), x.add_(1))[0].sum(),
]  # fmt: skip


def test_a_window_is_read_while_another_part_of_its_memory_is_written() -> None:
    """As torchvision fills what a turned image leaves empty: the last channel tells where that is."""

    def function(x: torch.Tensor) -> torch.Tensor:
        image, mask = torch.tensor_split(x.sin(), (-1,), dim=-3)
        mask = mask.expand_as(image)
        return image.sub_(0.5).mul_(mask).add_(0.5) + mask

    check(function, torch.randn(2, 4, 3, 3), compile=functools.partial(minicompile.compile, options={"suppress_errors": False}))


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("write", WINDOWS)
def test_views_that_share_elements_or_leave_some_out_are_written_as_in_eager(write: Callable[..., Any], computed: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 1 if computed else x
        return write(y), y + 0

    x = torch.linspace(-9, 9, 15).view(3, 5)
    x[1, 1] = -math.inf
    shown = [(run(given), given) for run, given in ((function, x.clone()), (minicompile.compile(function), x.clone()))]
    torch.testing.assert_close(shown[1], shown[0])


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("write", [
    lambda x: x.diagonal().fill_(7), lambda x: x[:, 0].fill_(7), lambda x: x[0, 1].add_(7), lambda x: x.select(1, 0).mul_(2) + x[:, 1],
])  # fmt: skip
def test_an_input_whose_elements_share_memory_is_written_as_in_eager(write: Callable[[torch.Tensor], Any]) -> None:
    rows = [torch.arange(4.0) for _ in range(2)]
    shown = [run(given.view(4, 1).expand(4, 3)) for run, given in zip((write, minicompile.compile(write)), rows, strict=True)]
    torch.testing.assert_close([shown[1], rows[1]], [shown[0], rows[0]])


def test_an_empty_index_gives_a_view_and_not_the_tensor() -> None:
    results = [function(torch.tensor(1.0)) for function in (lambda s: (s, s[()]), minicompile.compile(lambda s: (s, s[()])))]
    for tensor, view in results:
        assert view is not tensor and view.data_ptr() == tensor.data_ptr()


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
@pytest.mark.parametrize("write", [
    lambda x: x.fill_diagonal_(1), lambda x: x.as_strided((2,), (3,)).fill_(1), lambda x: x.as_strided((2,), (3,), 9).fill_(1),
])  # fmt: skip
def test_an_input_that_begins_inside_its_storage_is_written_by_strides(write: Callable[[torch.Tensor], Any], dtype: torch.dtype) -> None:
    for part in (slice(1, 4), slice(None)), (slice(None), slice(None, None, 2)), (slice(2, None), slice(1, 4)):
        storages = [torch.zeros(6, 8, dtype=dtype) for _ in range(2)]
        for function, storage in zip((write, minicompile.compile(write)), storages, strict=True):
            function(storage[part])
        assert storages[0].any()
        torch.testing.assert_close(storages[1], storages[0])


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_the_bits_of_a_result_beside_it_keep_their_dtype(first: bool, differentiable: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        bits = y.view(torch.int32)
        return (bits, y) if first else (y, bits)

    x = torch.randn(3, 5, requires_grad=differentiable)
    shown = function(x), minicompile.compile(function)(x)
    torch.testing.assert_close(shown[1], shown[0])
    assert shown[1][0].data_ptr() == shown[1][1].data_ptr()


def masks_in_place(weight: torch.Tensor) -> None:
    weight.data *= torch.tensor([[1.0, 0, 1], [0, 1, 1]])


def halves_and_turns(weight: torch.Tensor) -> None:
    weight.data.mul_(0.5)[1:].neg_()


def takes_its_own_data(weight: torch.Tensor) -> None:
    weight.data = weight.data


@pytest.mark.parametrize("change", [masks_in_place, halves_and_turns, takes_its_own_data])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_two_forwards_that_write_a_weight_through_data_come_before_their_backward(
    change: Callable[[torch.Tensor], None], needs_gradient: bool
) -> None:
    """Such a write is none to autograd: the first backward reads the weight as the second forward left it."""

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        change(weight)
        return (x @ weight.T).square()

    compiled = minicompile.compile(forward)
    shown = []
    for function in (forward, compiled):
        weight = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_(needs_gradient)
        first, second = (torch.linspace(-1, last, 6).view(2, 3).requires_grad_() for last in (3, 5))
        loss = function(first, weight).sum() + function(second, weight).sum()
        loss.backward()
        shown.append((loss, first.grad, second.grad, weight, weight.grad, weight._version))
    torch.testing.assert_close(shown[1], shown[0])
    assert not compiled.graph_breaks


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", [
    lambda x: x.add_(1), lambda x: x.data.add_(1), lambda x: x.detach().zero_(), lambda x: torch.add(x, 1, out=x.data),
    lambda x: torch._foreach_add_([x.data], 1.0), lambda x: torch.nn.functional.batch_norm(torch.eye(4), x, x + 1, training=True),
])  # fmt: skip
def test_a_write_that_nothing_counts_is_seen_in_an_input_of_the_same_memory(write: Callable[[torch.Tensor], Any], mode: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        write(x)
        return y * 2

    shown = []
    for run in (function, minicompile.compile(function)):
        for offset in (4, 2, 4):  # apart, shared, apart again
            with mode():
                memory = torch.arange(8.0)
                shown.append((run(memory[:4], memory[offset : offset + 4]), memory))
    torch.testing.assert_close(shown[3:], shown[:3])


def test_a_test_of_values_under_inference_mode_is_no_break_where_nothing_is_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        assert (x > 0).all(), "not positive"
        return x * 2

    compiled = minicompile.compile(function, fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
        with pytest.raises(AssertionError, match="not positive"):
            compiled(torch.zeros(3))


@pytest.mark.parametrize("part", [lambda y: y.detach(), lambda y: y.data, lambda y: y.detach()[1:], lambda y: y.detach().view(-1)])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("differentiable", [False, True])
def test_a_detached_result_is_no_view_of_the_one_beside_it(
    part: Callable[[torch.Tensor], torch.Tensor], first: bool, differentiable: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return (part(y), y) if first else (y, part(y))

    shown = []
    for run in (function, minicompile.compile(function)):
        results = run(torch.ones(2, 3, requires_grad=differentiable))
        y, detached = results[::-1] if first else results
        detached.requires_grad_()
        with torch.no_grad():
            detached.add_(1)
        shown.append((y.requires_grad, detached.requires_grad, detached.is_leaf, y._is_view(), y.detach()))
    assert shown[0][:4] == shown[1][:4]
    assert torch.equal(shown[0][4], shown[1][4])


def test_an_input_is_written_through_a_view_that_a_list_keeps() -> None:
    def function(x: torch.Tensor, kept: list[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        view = x.t()[::2, 1:]
        kept.append(view)
        result = view * STATE["scale"]
        kept[0].add_(1)
        kept += [result, x]
        return result.sum() + x.sum(), kept[-1] is x

    shown = []
    for run in (function, minicompile.compile(function)):
        torch.manual_seed(0)
        for rows, scale, twice in ((4, 1.0, False), (4, 3.0, False), (7, 3.0, False), (5, -2.0, True)):
            STATE["scale"] = scale
            x = torch.randn(rows, 10)[:, ::2]
            kept = [x] if twice else []
            shown.append((run(x, kept), kept, x, [value.stride() for value in kept]))
    torch.testing.assert_close(shown[4:], shown[:4])


@pytest.mark.parametrize("function", [
    lambda bank, row: bank[1].copy_(row), lambda bank, row: (bank.unsqueeze(1), bank.mul_(2))[0],
    lambda bank, row: (bank.t(), row := bank[0], row.mul_(2), row * 3)[::3],
])  # fmt: skip
def test_views_of_a_leaf_written_without_gradients_are_results(function: Callable[..., Any]) -> None:
    shown = []
    compiled = minicompile.compile(function, options={"suppress_errors": False})
    for run in (function, compiled):
        bank = torch.arange(6.0).view(2, 3).requires_grad_()
        with torch.no_grad():
            found = result if isinstance(result := run(bank, torch.ones(3)), tuple) else (result,)
            shown.append([*((value._base is bank, value.requires_grad, value.stride(), value.tolist()) for value in found), bank.tolist()])
    assert shown[0] == shown[1] and not compiled.graph_breaks


@pytest.mark.parametrize("dynamic", [None, True])
def test_inputs_that_share_memory_in_some_calls_only(dynamic: bool | None) -> None:
    """At addresses known to be apart, at them in other order, and with tensors there that share memory after all."""

    def write(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x * y, y.sum()

    def rounds(function: Callable[..., Any]) -> list[torch.Tensor]:
        base, a, b = torch.arange(12.0), torch.arange(4.0), torch.arange(4.0) * 3
        seen = []
        for x, y in ((a, b), (a, b), (b, a), (a, a), (base[:4], base[4:8]), (base[:4], base[2:6]), (a, b), (base[:4], base[:4]),
                     (base[8:], base[4:8]), (base[:8:2], base[1:8:2]), (base[:4], base[4:8]), (base[:4], base[3:7])):  # fmt: skip
            seen += [*function(x, y), base.clone(), a.clone(), b.clone()]
        return seen

    torch.testing.assert_close(rounds(minicompile.compile(write, dynamic=dynamic)), rounds(write), rtol=0, atol=0)


def test_results_of_other_operations_that_vary_in_size_and_share_memory_are_not_taken_for_changed() -> None:
    def losses(scores: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        places = torch.arange(scores.shape[0])
        return torch.nn.functional.cross_entropy(scores, places) + torch.nn.functional.cross_entropy(turned, places)

    compiled = minicompile.compile(losses, options={"suppress_errors": False})
    for size in (4, 3, 5, 6):
        leaf = torch.randn(size, size, requires_grad=True)
        scores = leaf * 2
        (expected,) = torch.autograd.grad(losses(scores, scores.t()), leaf, retain_graph=True)
        (found,) = torch.autograd.grad(compiled(scores, scores.t()), leaf)
        torch.testing.assert_close(found, expected)
    assert compiled.stats.graphs == 2 and compiled.stats.fallbacks == 0


@pytest.mark.parametrize("function", [
    lambda y: (y, y[:2].detach()), lambda y: (y.detach()[1], y, y.detach().view(-1)), lambda y: (y[:, :2].detach(), y.sin(), y, y[1]),
    lambda y: (y.view(6, -1), y.detach()[1:].t(), y[0].detach().cos()), lambda y: (y.chunk(2, 1)[0].detach(), y, y.detach().view(torch.int32)),
    lambda y: (y[:, ::2], y[:, ::2].detach()), lambda y: (y[1].detach()[1:], y[1], y[0].detach()),
    lambda y: (y[0].mul_(2), y.detach()[1], y.detach().view(torch.int32)[:, 1:]), lambda y: (y.detach()[1].mul_(2), y[0]),
])  # fmt: skip
def test_detached_parts_of_a_result_are_results(function: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(4, 6)
    compiled = minicompile.compile(lambda x: function(layer(x)), options={"suppress_errors": False})
    for rows in (3, 4, 5):
        shown, x = [], torch.randn(rows, 4)
        for run in (lambda x: function(layer(x)), compiled):
            leaf = x.clone().requires_grad_()
            results = run(leaf)
            sum(value.square().sum() for value in results if value.requires_grad).backward()
            described = [(value.stride(), value.storage_offset(), value.requires_grad, value._is_view()) for value in results]
            memory = [[one.untyped_storage()._cdata == other.untyped_storage()._cdata for one in results] for other in results]
            shown.append(([*map(torch.Tensor.detach, results), leaf.grad], (described, memory)))
        assert shown[0][1] == shown[1][1]
        torch.testing.assert_close(shown[1][0], shown[0][0])


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("use", [lambda part: part, lambda part: part * 2])
@pytest.mark.parametrize("split", [lambda x: x.unbind(0)[1], lambda x: x.chunk(2)[0], lambda x: x.split(1)[-1]])
def test_one_of_several_views_is_refused_once_their_memory_was_written(
    split: Callable[[torch.Tensor], torch.Tensor], use: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        whole = x + 1
        part = split(whole)
        whole.mul_(2)
        return use(part)

    with pytest.raises(RuntimeError, match="multiple views"):
        minicompile.compile(function)(torch.randn(4, 3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("split", [torch.Tensor.unbind, lambda whole: whole.chunk(2, 1)])
def test_one_of_several_views_of_written_memory_is_refused_behind_the_graph(split: Callable[[torch.Tensor], Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        whole = x.sin()
        whole[:, 0] = 1
        return whole, *split(whole)

    _, part, *_ = minicompile.compile(function)(torch.randn(2, 4, requires_grad=True))
    with pytest.raises(RuntimeError, match="multiple views"):
        part.mul_(2)


def turned_through_data(x: torch.Tensor) -> Any:
    view = x.data
    view.t_()
    return view, view.data, x.sum()


def turned_through_data_and_written(x: torch.Tensor) -> Any:
    view = x.data
    view.swapdims_(0, 1).mul_(2)
    return view, x.sum()


def turned_after_its_data_was_taken(x: torch.Tensor) -> Any:
    y = x * 2
    view = y.data
    y.t_()
    return view, y


def longer_than_what_it_is_the_data_of(x: torch.Tensor) -> Any:
    y = x * 2
    view = y.data
    view.unsqueeze_(0).add_(1)
    return y, view


def transposed_and_written(x: torch.Tensor) -> Any:
    y = x * 1
    view = y[...]
    view.transpose_(0, 1)
    view[..., 1:].mul_(-1.5)
    return y, view


def a_part_turned_and_written(x: torch.Tensor) -> Any:
    view = (x * 1)[1:]
    view.t_()
    view[1:] *= -1.5
    return view


def a_part_turned_before_what_it_is_of_has_gradients(x: torch.Tensor) -> Any:
    y = torch.zeros(4, 4)
    view = y[1:, :3]
    same = view
    view.swapaxes_(0, 1)
    same[1:] = x[1:, 1:].t()[:2]
    return y


@pytest.mark.parametrize(
    "function",
    [turned_through_data, turned_through_data_and_written, turned_after_its_data_was_taken, longer_than_what_it_is_the_data_of,
     transposed_and_written, a_part_turned_and_written, a_part_turned_before_what_it_is_of_has_gradients],
    ids=lambda function: function.__name__.replace("_", " "),
)
@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_view_whose_shape_is_changed_in_place(function: Callable[..., Any], differentiable: bool, dynamic: bool) -> None:
    shown = []
    for run in (function, minicompile.compile(function, dynamic=dynamic)):
        x = torch.arange(16.0).view(4, 4).requires_grad_(differentiable)
        results = leaves(run(x))
        weighted = [(result * torch.arange(result.numel()).view(result.shape)).sum() for result in results if result.requires_grad]
        if weighted:
            sum(weighted).backward()
        places = [result.untyped_storage().data_ptr() == results[0].untyped_storage().data_ptr() for result in results]
        described = [(result.shape, result.stride(), result.requires_grad) for result in results]
        shown.append((described, places, [result.detach() for result in results], x.detach(), x.grad))
    assert shown[0][:2] == shown[1][:2]
    torch.testing.assert_close(shown[1][2:], shown[0][2:])


def caches_of_two_layers(one: torch.Tensor, two: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    one[:, 1] = column
    two[:, 1] = column * 2
    return (one * two).sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_one_storage_that_lie_apart_are_changed_in_a_graph_and_others_by_eager(dynamic: bool) -> None:
    compiled = minicompile.compile(caches_of_two_layers, dynamic=dynamic)

    parts: list[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = [
        lambda whole: (whole[0], whole[1]), lambda whole: (whole[2], whole[0]), lambda whole: (whole[1], whole[1:][1]),
    ]  # fmt: skip
    for part in parts:
        ours, theirs = torch.zeros(3, 3, 4), torch.zeros(3, 3, 4)
        column = torch.randn(3)
        assert torch.equal(compiled(*part(ours), column), caches_of_two_layers(*part(theirs), column)) and torch.equal(ours, theirs)
    assert len(compiled.compiler.graphs) == 1 and compiled.stats.fallbacks == 0
    for offset in (2, 4, 12):  # the first two overlap
        ours, theirs = torch.zeros(24), torch.zeros(24)
        one, two = ((flat[:12].view(3, 4), flat[offset : offset + 12].view(3, 4)) for flat in (ours, theirs))
        with pytest.warns(UserWarning, match="shares memory") if offset == 2 else contextlib.nullcontext():
            result = compiled(*one, column)
        assert torch.equal(result, caches_of_two_layers(*two, column)) and torch.equal(ours, theirs)
    assert len(compiled.compiler.graphs) == 1 and compiled.stats.fallbacks == 1


def test_what_is_written_with_a_gradient_into_a_part_is_known_to_the_others() -> None:
    def function(one: torch.Tensor, two: torch.Tensor, x: torch.Tensor) -> Any:
        one.mul_(x)
        return two.requires_grad, two * 2

    for call in (function, minicompile.compile(function)):
        whole, x = torch.ones(2, 3), torch.ones(3, requires_grad=True)
        assert call(whole[0], whole[1], x)[0] is True and whole.requires_grad


def test_parts_of_one_storage_are_not_taken_for_the_two_that_lay_there_before() -> None:
    def function(one: torch.Tensor, two: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        one.mul_(x)
        return two * 2

    memory, x = bytearray(24), torch.ones(3, requires_grad=True)
    one, two = (torch.frombuffer(memory, dtype=torch.float32, count=3, offset=offset) for offset in (0, 12))
    compiled = minicompile.compile(function)
    assert not compiled(one, two, x).requires_grad
    whole = torch.frombuffer(memory, dtype=torch.float32).view(2, 3)
    assert compiled(whole[0], whole[1], x).requires_grad


@pytest.mark.parametrize("part", [
    lambda x: torch.ops.aten.dropout(x, 0.5, False), lambda x: torch.ops.aten.dropout.default(x, 0.5, train=False),
    lambda x: torch.unsafe_chunk(x, 2)[1], lambda x: torch.ops.aten.unsafe_chunk.default(x, 2)[1],
    lambda x: torch.ops.aten.unsafe_split(x, 3)[0], lambda x: torch.ops.aten.unsafe_split_with_sizes.default(x, [1, 3], 1)[0],
])  # fmt: skip
@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_an_operator_called_by_its_name_in_aten_gives_what_it_was_given(
    part: Callable[[torch.Tensor], torch.Tensor], differentiable: bool, dynamic: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copy = x * 1
        part(copy).add_(1)
        return copy, part(x * 2).mul_(x.sum())

    for shape in [(4, 4), (5, 4)]:
        shown = []
        for run in (function, minicompile.compile(function, dynamic=dynamic)):
            x = torch.arange(20.0)[: math.prod(shape)].view(shape).requires_grad_(differentiable)
            results = run(x)
            gradients = torch.autograd.grad(sum(result.sum() for result in results), x) if differentiable else ()
            shown.append((results, gradients))
        torch.testing.assert_close(shown[1], shown[0])


def test_a_result_that_lies_elsewhere_than_a_written_view_of_its_shape() -> None:
    def beside_what_is_written(x: torch.Tensor) -> torch.Tensor:
        turned = x.t()
        turned[1, 0] = 0.5
        return turned[0, 0]

    for function in (beside_what_is_written, minicompile.compile(beside_what_is_written)):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_() * 1
        result = function(x)
        assert (result.storage_offset(), result.item()) == (0, 0.0)


@pytest.mark.parametrize("refused", [lambda leaf: leaf, lambda leaf: leaf.view(-1)])
def test_leaves_are_refused_before_anything_is_written(refused: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def writes_both(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        x[1:] = 2.0
        return counts * 2

    compiled = minicompile.compile(writes_both)
    for function in (writes_both, compiled):
        counts, leaf = torch.zeros(2), torch.ones(3, requires_grad=True)
        function(leaf * 1, counts)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            function(refused(leaf), counts)
        assert counts.tolist() == [2.0, 0.0]


def test_a_write_from_the_same_memory_in_another_shape_is_refused() -> None:
    def by_itself(x: torch.Tensor) -> torch.Tensor:
        row = x.unsqueeze(0)
        row *= x
        return row

    for function in (by_itself, minicompile.compile(by_itself)):
        with pytest.raises(RuntimeError, match="single memory location"):
            function(torch.ones(3))
