"""Results, and what is written in place, have eager's strides; views of inputs have eager's gradients at any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile
from tests.differential import check
from tests.planned_for_gpu import planned_for_gpu

LAST = torch.channels_last
attention = torch.nn.functional.scaled_dot_product_attention


def images() -> torch.Tensor:
    return torch.randn(2, 4, 3, 7).contiguous(memory_format=LAST)


def volumes() -> torch.Tensor:
    return torch.randn(2, 2, 5, 4, 3).contiguous(memory_format=torch.channels_last_3d)


def reversed_in_memory() -> torch.Tensor:
    return torch.randn(5, 6, 3).permute(2, 1, 0)


def strided() -> torch.Tensor:
    return torch.randn(4, 6)[:, ::2]


def written_view(x: torch.Tensor) -> Any:
    y = (x * 1).narrow(3, 0, 1)
    y.zero_()
    return y, y * 2


def written_input(x: torch.Tensor) -> Any:
    x.mul_(2)
    return x + 1, x.sum()


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = [
    (lambda x: torch.softmax(x, -1), reversed_in_memory),
    (lambda x: torch.log_softmax(x, 0), reversed_in_memory),
    (lambda x: torch.logical_and(torch.tensor(1.0), x), images),
    (lambda x: torch.copysign(x, torch.tensor(-1.0)), images),
    (lambda x: x // torch.tensor(2.0), reversed_in_memory),
    (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), reversed_in_memory),
    (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), images),
    (lambda x: torch.nn.functional.batch_norm(x[:, :, None], torch.zeros(4), torch.ones(4)), images),
    (lambda x: torch.nn.functional.group_norm(x, 2, torch.ones(4), torch.zeros(4)) * 2, images),
    (lambda x: torch.nn.functional.interpolate(x, scale_factor=2), reversed_in_memory),
    (lambda x: torch.nn.functional.unfold(x, (1, 4), stride=(1, 4)), lambda: torch.randn(2, 1, 5, 4)),
    (lambda x: torch.nn.functional.max_pool1d(x, 2), lambda: torch.randn(2, 7, 4).mT),
    (lambda x: torch.nn.functional.max_pool1d(x, 2, ceil_mode=True), lambda: torch.randn(2, 7, 4).mT.requires_grad_()),
    (lambda x: torch.cat([x, x + 1], 1)[:, 4:], images),
    (lambda x: torch.cat([x, x + 1], -1)[..., 3:].transpose(0, 1), strided),
    (lambda x: attention(x.mT, x.mT, x.mT), images),
    (lambda x: attention(x, x, x[..., :5]), lambda: torch.randn(2, 5, 3, 7).transpose(1, 2)),
    (lambda x: attention(x, x, x), lambda: torch.randn(2, 5, 3, 7).transpose(1, 2)),
    (written_view, images),
    (written_input, strided),
    (written_input, lambda: torch.randn(6, 4).t()),
    (lambda x: (x[::2, 1:].t() * 2).expand(3, -1, -1)[1:, ::3].transpose(0, 2), lambda: torch.randn(7, 4).t()),
    (lambda x: (x[1:] * 2)[:, None].expand(-1, 3, -1)[1:].mT, strided),
    (lambda x: torch.nn.functional.dropout(x.expand(4, *x.shape), 0.0), strided),
    (lambda x: torch.dropout((x + 1).expand(4, *x.shape), p=0.5, train=False), strided),
    (lambda x: x.flip(0)[:, None].expand(-1, 3, -1), strided),
    (lambda x: (x * 2).roll(1, 0).expand(3, -1, -1)[1:, ::2].transpose(0, 1), strided),
    (lambda x: (lambda y: (y.clone(), y.expand(2, *y.shape)))(x + 1), strided),
    (lambda x: (lambda y: (y.clone(), y[:1].expand(5, -1).split(2)[0]))(x + 1), strided),
    (lambda x: x.clone()[:, :, None].expand(-1, -1, 3)[1:], lambda: torch.randn(4, 3)),
    (lambda x: torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid().contiguous(), reduction="none"), reversed_in_memory),
    (torch.nn.Dropout(0.0), strided),
    (torch.nn.RReLU(0.1, 0.3).eval(), images),
    (lambda x: torch.complex(x, x * 2).angle(), reversed_in_memory),
    (lambda x: (torch.isin(x, x[0]), torch.isin(x, 1.0), x.any([]), x.all([])), reversed_in_memory),
    (lambda x: torch.nn.functional.one_hot((x > 0).long(), 3), reversed_in_memory),
    (lambda x: torch.nn.functional.rrelu(x, 0.1, 0.3, True).stride(), reversed_in_memory),
    (lambda x: (x.roll(1, 2), x.roll((1, -2), (2, 3)).as_strided((2, 3), (4, 1)), torch.fft.fftshift(x), x.roll(3)), images),
    (lambda x: (x.roll((1, 0), (2, 3)), x.roll(x.shape[0], 0), x[:, :3].roll(1, 1)), images),
    (lambda x: [torch.nn.functional.pad(x, [2, 1, 1, 0, 0, 2], mode=mode) for mode in ("replicate", "reflect")], volumes),
    (lambda x: torch.nn.functional.unfold(x, 1, stride=2), lambda: torch.randn(7, 6, 3, 2).permute(3, 2, 1, 0)),
    (lambda x: torch.nn.functional.cross_entropy(x, x.argmax(1).mT.contiguous().mT, reduction="none"), images),
    (lambda x: (torch.nn.functional.channel_shuffle(x, 2), torch.nn.functional.channel_shuffle(x.relu(), 2).permute(0, 2, 3, 1).view(-1, 4)[:2]), images),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("function", "made"), PROGRAMS)
def test_strides_are_eagers(function: Callable[..., Any], made: Callable[[], torch.Tensor], dynamic: bool) -> None:
    torch.manual_seed(0)
    options = {"fallback_random": True, "suppress_errors": False}
    check(function, made(), calls=1, compile=lambda run: minicompile.compile(run, dynamic=dynamic, options=options))


@pytest.mark.parametrize("write", [
    lambda x, y: x.index_put_((y > 0,), torch.tensor(3.0)), lambda x, y: x.index_add_(0, torch.zeros(len(y), dtype=torch.long), y),
    lambda x, y: x.clamp_(min=y).lerp_(y, 0.5).tril_(), lambda x, y: x.copy_(y),
])  # fmt: skip
def test_inputs_with_gaps_in_memory_are_written_at_every_size(write: Callable[..., Any]) -> None:
    compiled = minicompile.compile(write, dynamic=True, options={"suppress_errors": False})
    for rows, places in (2, slice(None, 3)), (3, slice(1, 9, 3)), (4, slice(None, 9, 4)):
        one, other, y = torch.ones(rows, 4, 9), torch.ones(rows, 4, 9), torch.randn(rows, 4, 3)
        assert compiled(other[..., places], y).stride() == write(one[..., places], y).stride()
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("view", [lambda x: (x * 2).flatten(2), lambda x: (x + 1)[:, 4:, ::2].transpose(1, 2)])
def test_a_view_without_elements_has_eagers_strides(view: Callable[..., Any]) -> None:
    compiled = minicompile.compile(view, options={"suppress_errors": False})
    for rows in (0, 2):
        x = torch.randn(rows, 4, 6, 5)
        assert compiled(x).stride() == view(x).stride()


def test_nothing_is_read_of_an_expanded_tensor_without_elements() -> None:
    for shape, strides in ((0, 3), (0, 1)), ((3, 0), (1, 0)):
        x = torch.empty(0).as_strided(shape, strides)
        compiled = minicompile.compile(lambda x: x.roll(1, -1), options={"suppress_errors": False, "cache": False})
        assert compiled(x).shape == shape and compiled(x).stride() == x.roll(1, -1).stride()
        assert "tl.load" not in "".join(minicompile.sources(compiled).values())


BY_OPERANDS: dict[str, Callable[..., torch.Tensor]] = {
    "copysign": torch.copysign, "floor_divide": torch.floor_divide, "xlogy": torch.xlogy, "xlog1py": torch.special.xlog1py,
    "floor_divide back": lambda a, b: torch.floor_divide(b, a), "logical_and": torch.logical_and,
    "logaddexp2": torch.logaddexp2, "logaddexp2 of 0-d": lambda a, b: torch.logaddexp2(torch.tensor(1.0), a),
    "logical_xor with 0-d": lambda a, b: torch.logical_xor(torch.tensor(1.0), a), "over 0-d": lambda a, b: a // torch.tensor(2.0),
    "number to a power": lambda a, b: 2.0**a, "one to a power": lambda a, b: 1.0**a, "power in double": lambda a, b: torch.float_power(2, a),
    "logsigmoid": lambda a, b: torch.nn.functional.logsigmoid(a), "softmax": lambda a, b: a.softmax(-1), "log_softmax": lambda a, b: a.log_softmax(0), "sum": torch.add, "maximum": torch.maximum,
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BY_OPERANDS)
def test_strides_that_a_program_sees_are_those_of_its_results(name: str, dynamic: bool) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        result = BY_OPERANDS[name](a, b)
        return result, result.as_strided((24,), (1,)), result.stride(), result.is_contiguous(), result.as_strided((2, 2), result.stride()[:2])

    mixed = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), torch.arange(24.0).view(4, 2, 3) + 1
    compiled = minicompile.compile(function, dynamic=dynamic, options={"suppress_errors": False})
    for a, b in (mixed, mixed[::-1]):
        eager, found = function(a, b), compiled(a, b)
        assert found[0].stride() == eager[0].stride()
        assert found[2:4] == eager[2:4]
        torch.testing.assert_close((found[0], found[1], found[4]), (eager[0], eager[1], eager[4]), equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_of_a_result_share_its_memory_and_have_eagers_gradient(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y.unfold(1, 3, 1), (x * 3).unfold(0, 2, 1).tanh(), (x + 1).as_strided((3, 4), (3, 1))

    compiled = minicompile.compile(function, dynamic=dynamic, options={"suppress_errors": False})
    results = []
    for run in (function, compiled):
        torch.manual_seed(0)
        x = torch.randn(4, 6, requires_grad=True)
        outputs = run(x)
        sum((output * torch.randn(output.shape)).sum() for output in outputs).backward()
        windows = outputs[0].detach()
        windows[0, 0, 1] = 7
        results.append((outputs, x.grad, windows[0, 1, 0]))
        assert windows.stride() == (6, 1, 1)
    torch.testing.assert_close(results[1], results[0])


def test_a_view_of_an_input_whose_elements_share_memory_has_eagers_gradient_at_every_size() -> None:
    compiled = minicompile.compile(lambda x: x.expand(2, *x.shape), options={"suppress_errors": False})
    for size in (3, 4, 5):
        x = torch.arange(float(size)).unsqueeze(1).expand(size, 6).requires_grad_()
        output = compiled(x)
        weights = torch.randn(2, size, 6)
        (found,) = torch.autograd.grad(output, x, weights)
        torch.testing.assert_close(found, weights.sum(0))


@pytest.mark.parametrize("copied", [lambda x: x.flip(-2), lambda x: x.roll(1, 0), torch.fliplr])
def test_what_was_computed_from_an_input_that_is_written_later_has_eagers_strides(copied: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        result = copied(x)
        x.mul_(2)
        return result

    x = torch.randn(5, 3).t()
    assert minicompile.compile(function)(x.clone()).stride() == function(x).stride()


def detached_first(x: torch.Tensor) -> Any:
    y = (x + x).clone()
    return y.detach(), y


def detached_and_views(x: torch.Tensor) -> Any:
    y = x * 2
    return y.detach(), y, y.view(2, 2), y.detach().view(2, 2)


def parts_of_a_detached_one(x: torch.Tensor) -> Any:
    y = x * 2
    return y.detach()[1:], y[1:], y.view(2, 2).detach()


def detached_last(x: torch.Tensor) -> Any:
    y = x * 2
    aside = y.detach()
    return aside[1:], y[1:], aside


def detached_in_another_shape(x: torch.Tensor) -> Any:
    y = x * 2
    aside = y.detach()
    return aside.view(2, 2), aside[1:], y[:2], y.view(2, 2)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    "function", [detached_first, detached_and_views, parts_of_a_detached_one, detached_last, detached_in_another_shape])
@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_outputs_that_share_memory_with_a_detached_one(function: Callable[..., Any], gradient: bool) -> None:
    shown = []
    for run in (function, minicompile.compile(function, options={"cache": False})):
        x = torch.tensor([1.0, -2.0, 0.5, 3.0], requires_grad=gradient)
        outputs = run(x)
        watched = [output for output in outputs if output.requires_grad]
        if watched:
            sum((output * output).sum() for output in watched).backward()
        values = [output.detach().clone() for output in outputs]
        with torch.no_grad():
            outputs[0].add_(1)
        shown.append((values, [output.requires_grad for output in outputs], [output.detach().clone() for output in outputs], x.grad))
    torch.testing.assert_close(shown[1], shown[0])


@pytest.mark.parametrize("dynamic", [None, True])
def test_attention_lies_as_the_backend_lays_it_that_eager_chooses(dynamic: bool | None) -> None:
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return attention(query, key, value)

    inputs = [torch.randn(2, 20, 3, 16).transpose(1, 2) for _ in range(3)]
    compiled, expected = minicompile.compile(run, dynamic=dynamic, options={"cache": False}), run(*inputs)
    torch.testing.assert_close(compiled(*inputs), expected)
    assert compiled(*inputs).stride() == expected.stride() and not compiled.stats.fallbacks


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens_first", [False, True])
def test_attention_on_a_gpu_lies_as_in_eager(dtype: torch.dtype, tokens_first: bool) -> None:
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attention(query, key, value)

    inputs = [torch.randn(2, 24, 24, 32, dtype=dtype, device="cuda") for _ in range(3)]
    if tokens_first:
        inputs = [value.transpose(1, 2) for value in inputs]
    result, expected = minicompile.compile(run, options={"cache": False})(*inputs), run(*inputs)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


@pytest.mark.parametrize("trained", [False, True])
def test_attention_written_by_hand_lies_as_the_product_it_is(trained: bool) -> None:
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return (product := (query @ key.mT * 0.3).softmax(-1) @ value), product.transpose(1, 2).reshape(2, 9, -1)

    with planned_for_gpu():
        check(run, *(torch.randn(2, 9, 3, 4).transpose(1, 2).requires_grad_(trained) for _ in range(3)), backward=False)
