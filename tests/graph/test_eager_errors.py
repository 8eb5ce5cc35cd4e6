"""What eager's kernels refuse and PyTorch's fake ones do not is refused by the compiled function too, in eager's words."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.graph.eager_errors import problem_of

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "fp16 filled under a mask": lambda x: x.half().masked_fill(x > 1, -1e9),
    "fp16 clamped": lambda x: x.half().clamp(max=7e4),
    "fp16 padded": lambda x: F.pad(x.half(), (1, 1), value=7e4),
    "fp16 scaled sum": lambda x: torch.add(x.half(), x.half(), alpha=7e4),
    "fp32 filled": lambda x: torch.full_like(x, 1e300),
    "bytes filled": lambda x: x.to(torch.uint8).fill_(300),
    "bytes chosen": lambda x: torch.where(x > 1, x.to(torch.uint8), 300),
    "bytes clamped": lambda x: x.to(torch.uint8).clamp(min=300),
    "integers from infinity": lambda x: torch.full((2,), float("inf"), dtype=torch.int64) + x[:2],
    "steps beyond bytes": lambda x: torch.linspace(0, 1e4, 9, dtype=torch.uint8)[:4] + x,
    "steps beyond fp16": lambda x: torch.linspace(0, 1e5, 9, dtype=torch.float16)[:4] + x,
    "random bytes below zero": lambda x: torch.randint(-1, 5, (2,), dtype=torch.uint8) + x[:2],
    "truth subtracted": lambda x: x - True,
    "a mask subtracted": lambda x: x - (x > 1),
    "truth as a factor": lambda x: torch.add(x, x, alpha=True),
    "integers over zero": lambda x: x.long() // 0,
    "integers modulo zero": lambda x: x.long() % 0,
    "step of two dtypes": lambda x: torch.heaviside(x, x.long()),
    "softmax of integers": lambda x: x.long().softmax(0),
    "absolute truth": lambda x: (x > 1).abs(),
    "rounded truth": lambda x: torch.round(x > 1),
    "truth modulo truth": lambda x: (x > 1) % (x > 2),
    "truth to a true power": lambda x: (x > 1) ** (x > 2),
    "largest truth": lambda x: (x > 1).argmax(),
    "place of the least truth": lambda x: (x > 1).argmin(0),
    "running sum of truth values": lambda x: x.cumsum(0, dtype=torch.bool),
    "running sum of truth values in place": lambda x: (x > 1).cumsum_(0),
    "running product of truth values in place": lambda x: (x > 1).cumprod_(0),
    "truth values times a fraction": lambda x: torch.add(x > 1, x > 2, alpha=0.5),
    "logarithm of a sum over no dimensions": lambda x: x.logsumexp([]),
    "gelu of integers": lambda x: F.gelu(x.long(), approximate="tanh"),
    "slope of integers": lambda x: F.leaky_relu(x.long(), 2),
    "likelihood of integers": lambda x: F.nll_loss(x.long().view(2, 2), torch.tensor([0, 1])),
    "fractions to integers": lambda x: x.long().ldexp_(torch.tensor(-1)),
    "squared error of complex numbers": lambda x: F.mse_loss(x + 1j, x - 1j),
    "classes of 32 bits": lambda x: F.cross_entropy(x.view(2, 2), torch.tensor([0, 1]).int()),
    "classes of pixels of 32 bits": lambda x: F.nll_loss(x.view(1, 2, 2), torch.tensor([[0, 1]]).int()),
    "filled at places of 32 bits": lambda x: x.index_fill(0, torch.tensor([0]).int(), x[0]),
    "filled with a vector": lambda x: x.index_fill(0, torch.tensor([0]), x[:1]),
    "added at fractional places": lambda x: x.index_add(0, torch.tensor([0.0]), x[:1]),
    "a number selected by a fraction": lambda x: x[0].index_select(0, torch.tensor([0.0])),
    "reduced into another dtype": lambda x: x[:0].index_reduce(0, torch.tensor([], dtype=torch.long), x[:0].double(), "prod"),
    "largest of neighbouring integers": lambda x: F.max_pool1d(x.long().view(1, 4), 2),
    "largest of neighbouring integers, by torch": lambda x: torch.max_pool1d(x.long().view(1, 4), 2),
    "scan of no integers": lambda x: x[:0].long().logcumsumexp(0),
    "complex numbers that are numbers": lambda x: torch.nansum(x + 1j),
    "product of masks": lambda x: torch.dot(x > 1, x > 2),
    "silu of integers": lambda x: F.silu(x.long()),
    "silu of bytes": lambda x: F.silu(x.byte()),
    "deviation of integers": lambda x: torch.std(x.long()),
    "loss of integers": lambda x: F.mse_loss(x.long(), x.long()),
    "interpolated integers": lambda x: F.interpolate(x.long().view(1, 1, 2, 2), scale_factor=2),
    "integers to decimals": lambda x: torch.round(x.long(), decimals=1),
    "logsigmoid of integers": lambda x: F.logsigmoid(x.long()),
    "uniform backwards": lambda x: (x * 1).uniform_(3, -1),
    "uniform beyond fp16": lambda x: x.half().uniform_(-1e6, 1e6),
    "random bytes": lambda x: torch.randint(0, 300, (3,), dtype=torch.uint8) + x[:3],
    "smooth loss of negative width": lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0),
    "batch norm without channels": lambda x: F.batch_norm(x, None, None, training=True),
    "cut by more than there is": lambda x: F.pad(x, (-3, -3)) + 1,
    "unpooled into the next channel": lambda x: F.max_unpool2d(x.view(1, 2, 2, 1), torch.tensor([0, 9, 0, 3]).view(1, 2, 2, 1), 2),
    "copied to places of another dtype": lambda x: x.index_copy(0, torch.tensor([0]), x[:1].long()),
    "added to places of another dtype": lambda x: (x * 1).index_add_(0, torch.tensor([0]), x[:1].double()),
    "set to another dtype": lambda x: (x * 1).__setitem__(torch.tensor([0]), x[:1].half()),
    "accumulated in another dtype": lambda x: x.index_put((torch.tensor([0]),), x[:1].double(), accumulate=True),
    "cross product of two dtypes": lambda x: torch.linalg.cross(x[:3], x[:3].double()),
    "normalized in another dtype": lambda x: F.layer_norm(x, (4,), x.half()),
    "batch norm in another dtype": lambda x: F.batch_norm(x[None], x.double(), x.double()),
    "quotient of whole numbers": lambda x: torch.addcdiv(x, x > 1, x.long()),
    "distance of masks": lambda x: torch.dist(x, x > 1),
    "logits that are whole": lambda x: F.binary_cross_entropy_with_logits(x.long(), x),
    "whole numbers with a slope": lambda x: F.prelu(x.long(), torch.tensor([1])),
    "matrix and vector of two dtypes": lambda x: x.view(2, 2).double() @ x[:2],
    "class weights of another dtype": lambda x: F.cross_entropy(x[None], torch.tensor([0]), x.double()),
    "probabilities of whole numbers": lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 1).long()),
    "logits weighed by truth": lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=x > 1),
    "sampled at places of another dtype": lambda x: F.grid_sample(x.view(1, 1, 2, 2), torch.zeros(1, 1, 1, 2).double(), align_corners=False),
    "mean over windows of whole numbers": lambda x: F.adaptive_avg_pool1d(x[None].long(), 2),
    "robust loss of whole numbers": lambda x: F.huber_loss(x.long(), x),
    "halves averaged in three dims": lambda x: F.avg_pool3d(x.bfloat16().view(1, 1, 2, 2), 1),
    "logarithms of odds in place": lambda x: x.long().logit_(),
    "product in place": lambda x: x.long().mul_(1.5),
    "product by its long name": lambda x: x.long().multiply_(x),
    "quotient in place": lambda x: x.long().div_(2),
    "quotient by an operator": lambda x: operator.itruediv(x.long(), x.long().sum()),
    "sum of products in place": lambda x: x.long().addcmul_(x, x),
    "bytes filled with a negative fraction": lambda x: torch.full_like(x, -1.5, dtype=torch.uint8),
    "uniform numbers from above one": lambda x: x.uniform_(2),
    "embedding of fractions": lambda x: F.embedding(x, x.view(4, 1)),
    "embedding of bytes": lambda x: F.embedding(x.byte(), x.view(4, 1)),
    "one of classes of 32 bits": lambda x: F.one_hot(x.int(), 5),
    "logits of more": lambda x: torch.binary_cross_entropy_with_logits(torch.ones(2, 4), x),
    "a margin to more": lambda x: F.soft_margin_loss(x, torch.ones(2, 4)),
    "a complex target": lambda x: F.huber_loss(x, x + 1j),
    "a complex gate": lambda x: F.glu(x + 1j),
    "celu of no slope": lambda x: F.celu(x, 0.0),
    "logits weighed by more": lambda x: F.binary_cross_entropy_with_logits(x, x, torch.ones(2, 4)),
    "product of masks in place": lambda x: (x > 1).mul_(2),
    **{f"{name} of what is larger": lambda x, name=name: getattr(x * 1, name)(torch.ones(2, *x.shape)) for name in (
        "fmod_ copysign_ eq_ lt_ pow_ floor_divide_ remainder_ clamp_ clamp_min_ atan2_ xlogy_ heaviside_ arctan2_ greater_").split()},
    "filled under a mask of another size": lambda x: (x * 1).index_put((x[:3] > 1,), x[0]),
    "filled under a mask of one row": lambda x: operator.setitem(x.view(2, 2), x[None, :2] > 0, 0.5),
    "filled under a mask of the last dimension that is too short": lambda x: operator.setitem((x * 1).view(2, 2), (..., x[:1] > 1), 0.5),
    "filled under two masks, one too long": lambda x: operator.setitem((x * 1).view(2, 2), (x[:2] > 1, x[:3] > 1), 0.5),
    "filled under a mask that is a column": lambda x: operator.setitem(x.view(2, 2), x.view(2, 2)[:, :1] > 1, x[0]),
    "a differentiable number under a mask of another size": lambda x: operator.setitem(x, x[:1] >= 0, x[0].clone().requires_grad_()),
    "a range of truth values": lambda x: torch.arange(3, 7, dtype=torch.bool),
    "steps between truth values": lambda x: torch.linspace(0, 1, 5, dtype=torch.bool),
    "two elements selected from a number": lambda x: x[0].index_select(0, torch.tensor([0, 0])),
    "complex numbers in order": lambda x: x > 1j,
    "complex numbers in place of truth": lambda x: (x + 1j).le_(x),
    "a bias of a matrix beside a vector": lambda x: F.linear(x[:2], x.view(2, 2), x.view(2, 2)),
    "a bias larger than the product": lambda x: F.linear(x.view(1, 2, 2), x.view(2, 2), x.view(2, 1, 2)),
    "a matrix added to a vector": lambda x: torch.addmv(x.view(2, 2), x.view(2, 2), x[:2]),
    "masks of more masks": lambda x: (x > 1).__ior__(torch.ones(2, *x.shape, dtype=torch.bool)),
}

ALLOWED: dict[str, Callable[[torch.Tensor], Any]] = {
    "segments of the last dimension": lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([1, 3]), axis=-1).mean(-1),
    "steps between whole numbers": lambda x: [torch.linspace(*ends, dtype=torch.int64) + x[0].long()
                                              for ends in ((0.97, 1.41, 137), (-5.5, 7.3, 11), (0, 10**15, 7))],
    "steps between bytes that wrap around": lambda x: torch.linspace(-3, 3, 64, dtype=torch.uint8)[:4] + x,
    "a large identity": lambda x: torch.eye(300, 299) + x[0],
    "infinity and the lowest": lambda x: (x.half().masked_fill(x > 1, -torch.inf), x.half().clamp(torch.finfo(torch.half).min, 3)),
    "products overflow": lambda x: (x.half() * 7e4, x * 1e300, torch.where(x > 1, x.half(), -1e9)),
    "bytes take negative numbers": lambda x: torch.full((2,), -1, dtype=torch.uint8),
    "masks of masks": lambda x: torch.add(x > 1, x > 2, alpha=True),
    "floats over zero": lambda x: (x / 0, x // 0, x % 0.0, x.long() / 0),
    "numbers of other dtypes": lambda x: ((x * 1).index_put_((x > 1,), torch.tensor(2)), F.layer_norm(x.half(), (4,), x), x.clone().copy_(x.long())),
    "masks of some dimensions": lambda x: (x.view(1, 4).index_put((torch.tensor([0]), x > 1), x[0]),
                                           x.view(2, 2).index_put((torch.tensor(True), x[:2] > 0), x[0])),
    "integers and truth": lambda x: (x.long().abs(), x.long().round(), 2 ** (x > 1), (x > 1) ** 2, (x > 1).sum(), (x > 1) * (x > 2)),
    "interpolated bytes": lambda x: F.interpolate(x.byte().view(1, 1, 2, 2), scale_factor=2),
    "a bias for each row": lambda x: F.linear(x.view(1, 2, 2), x.view(2, 2), x.view(2, 2)),
    "products in place": lambda x: (x.clone().mul_(2), x.long().mul_(True), x.half().mul_(x)),
}


WRONG_CLASS, WRONG_ROW, ZERO = torch.tensor([1, 9, 2]), torch.tensor([0, -6, 1]), torch.tensor([2, 0, 1])


def written(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Two writes, the second of which eager refuses."""
    x.add_(1)
    x[i] = 0
    return x + 1


VALUES_REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "index": (lambda x, i: x[i] * 2, WRONG_CLASS),
    "index from the end": (lambda x, i: x[i] * 2, WRONG_ROW),
    "index of a later dim": (lambda x, i: x[:, i].sum(1), WRONG_CLASS),
    "index of a part": (lambda x, i: torch.cat([x, x[i]]) * 2, WRONG_CLASS),
    "index of varying size": (lambda x, i: x[i].softmax(-1), WRONG_CLASS),
    "gather": (lambda x, i: x.gather(1, i[:, None]) * 2, WRONG_CLASS),
    "gather from the end": (lambda x, i: x.gather(1, i[:, None]) * 2, torch.tensor([0, -1, 1])),
    "index of an expanded tensor": (lambda x, i: x[0].expand(3, 8)[i] + 1, WRONG_CLASS),
    "index of the only column": (lambda x, i: x[:, :1][0, i] + 1, WRONG_CLASS),
    "embedding in an expanded table": (lambda x, i: F.embedding(i, x[0].expand(3, 8)) + 1, WRONG_CLASS),
    "gather from a number": (lambda x, i: x[0, 0].gather(0, i[1]) + 1, WRONG_CLASS),
    "take from a number": (lambda x, i: x[0, 0].take(i) + 1, WRONG_CLASS),
    "index_select": (lambda x, i: x.index_select(0, i) + 1, WRONG_CLASS),
    "embedding": (lambda x, i: F.embedding(i, x) + 1, WRONG_CLASS),
    "index into nothing": (lambda x, i: x[:0][i] + 1, ZERO),
    "gather from nothing": (lambda x, i: x[:0].gather(0, i[:, None]) + 1, ZERO),
    "pair of indices": (lambda x, i: x[i, i] + 1, WRONG_CLASS),
    "index beyond 32 bits": (lambda x, i: x[i] + 1, torch.tensor([2**32 + 1])),
    "index that is not selected": (lambda x, i: torch.where(i < 5, x[i].sum(-1), 0.0), WRONG_CLASS),
    "class that is not ignored": (lambda x, i: F.cross_entropy(x[:3], i, ignore_index=-1), torch.tensor([1, -100, 2])),
    "gathered into itself": (lambda x, i: torch.gather(x[0], 0, i, out=x[0, :3]), ZERO),
    "take": (lambda x, i: x.take(i) + 1, torch.tensor([1, 40])),
    "scatter": (lambda x, i: (x * 1).scatter(0, i[:, None], 1.0) + 1, WRONG_CLASS),
    "scatter in place": (lambda x, i: x.scatter_(0, i[:, None], 1.0) + 1, WRONG_CLASS),
    "written": (written, WRONG_CLASS),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[:, None], x) + 1, WRONG_CLASS),
    "index_put": (lambda x, i: x.index_put((i,), x[0]) + 1, WRONG_CLASS),
    "index_add": (lambda x, i: x.index_add(0, i, x[:3]) + 1, WRONG_CLASS),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:3]) + 1, WRONG_CLASS),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0) + 1, WRONG_CLASS),
    "select_scatter": (lambda x, i: x.select_scatter(x[0], 0, 7), ZERO),
    "target": (lambda x, i: F.cross_entropy(x[:3], i), WRONG_CLASS),
    "target below zero": (lambda x, i: F.cross_entropy(x[:3], i, label_smoothing=0.1), torch.tensor([1, -2, 2])),
    "one_hot": (lambda x, i: F.one_hot(i, 8) + 1, WRONG_CLASS),
    "one_hot below zero": (lambda x, i: F.one_hot(i, 8) + 1, WRONG_ROW),
    "floor division": (lambda x, i: x[:3, 1].long() // i, ZERO),
    "remainder": (lambda x, i: x[:3, 1].long() % i, ZERO),
    "number by zero": (lambda x, i: 7 // i, ZERO),
    "fmod": (lambda x, i: torch.fmod(x[:3, 1].long(), i), ZERO),
    "truncating division": (lambda x, i: torch.div(x[:3, 1].long(), i, rounding_mode="trunc"), ZERO),
    "division in place": (lambda x, i: i.floor_divide_(i), ZERO),
    "bernoulli": (lambda x, i: torch.bernoulli(x) + 1, ZERO),
    "bernoulli in place": (lambda x, i: (x * 1).bernoulli_(x) + 1, ZERO),
    "bernoulli of a number": (lambda x, i: (x * 1).bernoulli_(1.5) + 1, ZERO),
    "normal": (lambda x, i: torch.normal(x, -x), ZERO),
    "multinomial": (lambda x, i: torch.multinomial(-x, 2), ZERO),
    "binary_cross_entropy": (lambda x, i: F.binary_cross_entropy(x, x * 0), ZERO),
    "binary_cross_entropy of NaN": (lambda x, i: F.binary_cross_entropy(x * 0 / 0, x * 0), ZERO),
    "binary_cross_entropy to a target": (lambda x, i: F.binary_cross_entropy(x.sigmoid(), x), ZERO),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VALUES_REFUSED)
def test_values_are_refused_as_in_eager(name: str, dynamic: bool) -> None:
    function, index = VALUES_REFUSED[name]
    compiled = minicompile.compile(function, dynamic=dynamic, options={"cache": False})
    for _ in range(2):
        raised, left = [], []
        for run in (function, compiled):
            x, i = torch.arange(40.0).view(5, 8), index.clone()
            with pytest.raises((IndexError, RuntimeError)) as error:
                run(x, i)
            raised.append((type(error.value), str(error.value)))
            left.append((x, i))
        assert raised[0] == raised[1]
        if name != "written":  # the first write has happened
            torch.testing.assert_close(left[0], left[1])


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("drop", [torch.dropout, torch.native_dropout, torch.alpha_dropout])
def test_a_chance_that_varies_is_refused_outside_of_0_and_1(drop: Callable[..., Any]) -> None:
    compiled = minicompile.compile(lambda x, p: drop(x, p, True))
    for p in (0.5, 0.6, 0.7):
        compiled(torch.ones(3), p)
    for p in (1.5, -0.1):
        with pytest.raises(RuntimeError, match="p"):
            compiled(torch.ones(3), p)


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize(("mode", "dtype"), [("nearest", torch.int64), ("linear", torch.int8), ("nearest-exact", torch.bool)])
def test_pictures_of_whole_numbers_are_refused_at_sizes_that_vary(mode: str, dtype: torch.dtype) -> None:
    compiled = minicompile.compile(lambda x: F.interpolate(x, size=3, mode=mode), dynamic=True)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        compiled(torch.ones(2, 3, 5).to(dtype))


@pytest.mark.filterwarnings("ignore:minicompile runs")
@pytest.mark.parametrize("activate", [
    lambda x, slope: F.leaky_relu_(x, slope), lambda x, slope: F.elu(x, slope, inplace=True), lambda x, slope: F.celu_(x, slope),
    lambda x, slope: F.rrelu_(x, slope - 0.05, slope + 0.05),
])  # fmt: skip
def test_a_negative_slope_in_place_has_no_gradient(activate: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, slope: float) -> torch.Tensor:
        return activate(x * 2, slope) + 1

    compiled, x = minicompile.compile(function), torch.tensor([-1.0, 2.0], requires_grad=True)
    for slope in (0.5, -0.5, -0.25, 0.25):
        shown = []
        for call in (function, compiled):
            result = call(x, slope)
            if slope < 0:
                with pytest.raises(RuntimeError, match="negative slope"):
                    result.sum().backward()
            shown.append((result, *(torch.autograd.grad(result.sum(), x) if slope > 0 else ())))
        torch.testing.assert_close(shown[1], shown[0])


def test_what_the_program_had_written_before_an_error_is_written_once() -> None:
    for run in (written, minicompile.compile(written)):
        x = torch.zeros(5, 8)
        with pytest.raises(IndexError):
            run(x, WRONG_CLASS)
        assert set(x.unique().tolist()) <= {0.0, 1.0}


def test_an_index_that_is_known_to_be_inside_is_not_checked() -> None:
    def function(x: torch.Tensor) -> Any:
        return x[torch.arange(3)] + 1, x[:, torch.arange(4) + 2] + 1, F.pad(x, (2, 2), "reflect")

    compiled = minicompile.compile(function, options={"cache": False})
    torch.testing.assert_close(compiled(torch.arange(40.0).view(5, 8)), function(torch.arange(40.0).view(5, 8)))
    (text,) = minicompile.sources(compiled).values()
    assert "checked" not in text and "maximum" not in text


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name: str) -> None:
    x = torch.arange(4.0)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        REFUSED[name](x)
    with pytest.raises(type(eager.value)) as compiled:
        minicompile.compile(REFUSED[name])(x)
    assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_what_happened_before_a_refusal_has_happened_once(name: str) -> None:
    def function(log: list[str], written: torch.Tensor, x: torch.Tensor) -> Any:
        log.append("before")
        written.add_(1)
        try:
            result = REFUSED[name](x)
        finally:
            log.append("after")
        written.add_(1)
        log.append("at the end")
        return result

    compiled = minicompile.compile(function, options={"cache": False})
    for _ in range(2):
        log: list[str] = []
        written = torch.zeros(3)
        with pytest.raises((RuntimeError, IndexError)):
            compiled(log, written, torch.arange(4.0))
        assert log == ["before", "after"]
        assert written.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ALLOWED)
def test_compiled_where_eager_computes(name: str) -> None:
    x = torch.arange(4.0)
    compiled = minicompile.compile(ALLOWED[name], options={"suppress_errors": False})
    torch.testing.assert_close(compiled(x), ALLOWED[name](x), equal_nan=True)
    assert not compiled.graph_breaks and not compiled.records.fallbacks


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16])
@pytest.mark.parametrize("function", [
    lambda x, n: x.clamp(max=n), lambda x, n: x.masked_fill(x > 2, n), lambda x, n: torch.where(x > 2, x, n),
    lambda x, n: torch.full_like(x, n), lambda x, n: torch.add(x, x, alpha=n)])  # fmt: skip
@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_an_integer_that_varies_beyond_the_dtype_is_refused_as_in_eager(function: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled = minicompile.compile(function, options={"cache": False})
    for number in (200, 100, 70000, -5, -70000, 7):
        outcomes = []
        for run in (function, compiled):
            try:
                outcomes.append(run(torch.tensor([1, 3, 100]).to(dtype), number).tolist())
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("function", [
    lambda x, n: (x + n) // 2, lambda x, n: (n - x).float(), lambda x, n: torch.sub(x, n, alpha=3) > 0, lambda x, n: torch.rsub(x, n, alpha=2),
    lambda x, n: x + 70000, lambda x, n: (x - 0x9E3779B9) >> 1])  # fmt: skip
def test_a_sum_with_an_integer_beyond_the_dtype_wraps_around_in_the_graph(function: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled = minicompile.compile(function, options={"cache": False, "suppress_errors": False})
    x = torch.tensor([1, 3, 100]).to(dtype)
    for number in (200, 70000, -5, -70000, 2**31, -(2**40) - 7):
        torch.testing.assert_close(compiled(x, number), function(x, number))


def test_an_operator_that_python_cannot_name_is_left_to_eager() -> None:
    results = []
    for function in (torch.Tensor.random_, minicompile.compile(lambda x, low, high: x.random_(low, high))):
        torch.manual_seed(0)
        results.append(function(torch.zeros(20), 2, None))
    torch.testing.assert_close(*results)


LOSSES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.soft_margin_loss)


@pytest.mark.parametrize("target", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("trained", [True, False])
def test_a_loss_of_two_dtypes_is_what_this_version_of_pytorch_makes_of_it(
    trained: bool, loss: Callable[..., Any], target: torch.dtype
) -> None:
    """Refused, forward or backward, or computed, in one dtype or the other."""
    for dtype in (torch.float32, torch.float64):
        outcomes = []
        for function in (loss, minicompile.compile(loss, options={"cache": False})):
            x = torch.tensor([0.1, 0.9, 0.3], dtype=dtype, requires_grad=trained)
            try:
                result = function(x, torch.tensor([1, 0, 1]).to(target))
                gradients = torch.autograd.grad(result, x) if trained else ()
                outcomes.append((result.dtype, round(result.item(), 2), [[round(n, 2) for n in g.tolist()] for g in gradients]))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("operator", "shapes"), [
    (torch.ops.aten.mm, [(2, 2), (2, 2)]), (torch.ops.aten.bmm, [(1, 2, 2), (1, 2, 2)]), (torch.ops.aten.dot, [(2,), (2,)]),
    (torch.ops.aten.addmm, [(2,), (2, 2), (2, 2)]), (torch.ops.aten.baddbmm, [(1, 2, 2)] * 3),
])  # fmt: skip
def test_products_have_one_dtype(operator: Any, shapes: list[tuple[int, ...]]) -> None:
    """Also where no kernel of eager's is called, as in small products on a GPU."""
    tensors = [torch.rand(shape) for shape in shapes]
    assert not problem_of(operator.default, tuple(tensors), {}, tensors[0])
    for place in range(len(shapes)):
        mixed = [tensor.double() if at == place else tensor for at, tensor in enumerate(tensors)]
        assert problem_of(operator.default, tuple(mixed), {}, tensors[0]) == "two dtypes"
