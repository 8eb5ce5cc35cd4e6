"""The differential helper accepts right compilers and catches wrong ones."""

from __future__ import annotations

import pytest
import torch

from tests.differential import Different, check, variants


def right(function):
    return function


def softmax(x, dim):
    return torch.softmax(x, dim)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (7,)], ids=str)
def test_eager_equals_itself_on_every_variant(shape: tuple[int, ...]) -> None:
    seen = list(variants(*shape))
    assert any(not x.is_contiguous() for x in seen) and any(x.numel() == 0 for x in seen)
    for x in seen:
        check(lambda x: (x.softmax(-1), x * 2 + 1), x, compile=right)


def test_gradients_and_parameters_are_compared() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    check(module, torch.randn(5, 3, requires_grad=True), compile=right)
    with pytest.raises(Different, match="gradients"):
        check(lambda x: x * 2, torch.ones(3, requires_grad=True), compile=lambda f: lambda x: x * 2 + (x - x.detach()))


def test_changed_arguments_are_compared() -> None:
    def scale(x):
        return x.mul_(2).sum()

    check(scale, torch.ones(3), compile=right)
    with pytest.raises(Different, match="arguments"):
        check(scale, torch.ones(3), compile=lambda f: lambda x: f(x.clone()))


def test_shared_storage_stays_shared_between_copies() -> None:
    base = torch.arange(4.0)

    def both(x, y):
        x.add_(1)
        return x + y

    check(both, base[:3], base[1:], compile=right)
    with pytest.raises(Different):
        check(both, base[:3], base[1:], compile=lambda f: lambda x, y: f(x, y.clone()))


def test_errors_are_judged_against_double_precision() -> None:
    x = torch.randn(64, 64)
    check(lambda x: x @ x, x, compile=lambda f: lambda x: (x.double() @ x.double()).float())
    with pytest.raises(Different, match="error"):
        check(lambda x: x @ x, x, compile=lambda f: lambda x: (x.bfloat16() @ x.bfloat16()).float())


def test_integers_dtypes_strides_and_special_values() -> None:
    wrong = {
        "values differ": lambda f: lambda x: f(x) + (1 if f(x).dtype == torch.int64 else 0),
        "dtype": lambda f: lambda x: f(x).double(),
        "stride": lambda f: lambda x: f(x).t().contiguous().t(),
    }
    for message, compile in wrong.items():
        with pytest.raises(Different, match=message):
            check(lambda x: x.argsort(), torch.randn(3, 4), compile=compile)
    with pytest.raises(Different, match="NaN"):
        check(torch.log, torch.tensor([-1.0, 2.0]), compile=lambda f: lambda x: f(x).nan_to_num())


def test_exceptions_are_compared() -> None:
    def broken(x):
        raise ValueError("no")

    check(broken, torch.ones(1), compile=right)
    with pytest.raises(Different, match="raises"):
        check(broken, torch.ones(1), compile=lambda f: lambda x: x)


def test_second_call_is_compared() -> None:
    def forgetful(function):
        calls = []

        def compiled(x):
            calls.append(x)
            return function(x) if len(calls) == 1 else function(x) + 1

        return compiled

    with pytest.raises(Different, match="call 1"):
        check(torch.neg, torch.ones(2), compile=forgetful)
