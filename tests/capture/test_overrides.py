"""Objects that are no tensors and whose classes override torch functions: part of a graph, asked as PyTorch asks them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.capture.support import capture, equal, same_as_eager

X = torch.linspace(-1, 1, 9).reshape(3, 3)


class Diagonal:
    """A matrix that is kept as its diagonal."""

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(kind, (Diagonal, Seen)) for kind in types):
            return NotImplemented
        if func in (torch.matmul, torch.Tensor.matmul):
            left, right = args
            return left.values[:, None] * right if isinstance(left, Diagonal) else left * right.values
        if func is torch.stack:
            return Diagonal(torch.stack([item.values for item in args[0]], **(kwargs or {})))
        if func is torch.trace:
            raise TypeError("no trace")
        return NotImplemented

    def __mul__(self, number):
        return Diagonal(self.values * number)

    def __rmul__(self, number):
        return "the object's own", number


class Seen:
    """Says what it was asked."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        names = [type(item).__name__ for item in args]
        return func.__name__, [kind.__name__ for kind in types], names, sorted(kwargs or {})

    def __radd__(self, other):
        return "asked the object"

    __rsub__ = __rmatmul__ = __rmul__ = __rtruediv__ = __radd__


def products(values, x):
    matrix = Diagonal(values)
    return torch.matmul(matrix, x), x @ matrix, x.matmul(matrix), torch.stack([matrix, matrix * 2], dim=1).values


def test_what_a_class_computes_is_part_of_the_graph():
    compiled = same_as_eager(products, X[0], X)
    assert not compiled.records.graph_breaks and len(compiled.records.graphs) == 1


def test_a_tensors_operator_asks_the_class_and_not_the_reflected_method():
    def f(x):
        seen = Seen()
        x = x.clone()
        results = [x + seen, x - seen, x * seen, x / seen, x @ seen, x == seen, seen < x, seen ** x, x.mul(other=seen)]
        x += seen
        return results, x

    assert not same_as_eager(f, X).records.fallbacks


@pytest.mark.filterwarnings("ignore:Defining your")
def test_a_class_with_a_plain_method_is_asked_by_eager():
    class Plain:
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return "asked the object as PyTorch does"

        __rmul__ = Seen.__radd__

    compiled = same_as_eager(lambda x: (x * Plain(), torch.mul(x, Plain())), X)
    assert {found.kind for found in compiled.records.graph_breaks} == {"unsupported argument"}


@pytest.mark.parametrize("call", [
    lambda seen, x: torch.cat([x, seen], dim=1),
    lambda seen, x: functional.softmax(seen, dim=1),
    lambda seen, x: torch.mul(x, other=seen),
    lambda seen, x: x.expand_as(seen),
    lambda seen, x: torch.einsum("ij,ij", seen, seen),
    lambda seen, x: torch.add(Diagonal(x), seen),
    lambda seen, x: torch.add(seen, Diagonal(x)),
], ids=["list", "python", "keyword", "method", "einsum", "declined first", "two kinds"])
def test_a_class_is_asked_in_pytorchs_order_and_words(call: Any):
    assert not same_as_eager(lambda x: call(Seen(), x), X).records.graph_breaks
    assert not same_as_eager(call, Seen(), X).records.graph_breaks


def test_what_no_class_implements_is_eagers():
    def f(x):
        caught = []
        for function in (torch.sin, torch.trace):
            try:
                function(Diagonal(x))
            except TypeError as error:
                caught.append(error.args[0])
        return caught, x * Diagonal(x)

    same = capture(f)(X), f(X)
    assert same[0][0] == same[1][0] and equal(same[0][1], same[1][1])


def test_a_class_that_gets_another_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    compiled = capture(lambda x: x + Seen())
    assert compiled(X)[0] == "add"
    monkeypatch.setattr(Seen, "__torch_function__", classmethod(lambda *_: "another"))
    assert compiled(X) == "another"


def test_a_python_function_asks_the_class_of_a_tensor_too():
    same_as_eager(lambda x: (functional.mse_loss(x, Seen()), torch.einsum("ij,ij", x, Seen())), X)


def test_classes_of_one_family_are_asked_by_eager():
    class Special(Seen):
        pass

    same_as_eager(lambda x: torch.add(Seen(), Special()), X)
