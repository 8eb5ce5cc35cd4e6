"""Classes that `namedtuple` makes in each call of a function."""

import collections
from typing import Any

import pytest
import torch

from minicompile.capture.remade_classes import is_remade, looks_like
from tests.capture.support import capture, equal

X = torch.linspace(-1, 1, 6)


def features(x: torch.Tensor) -> Any:
    made = collections.namedtuple("Features", ["low", "high"])
    return made(x.sin(), x.cos())


def test_a_class_made_in_each_call_is_captured_once_and_is_another_one_each_time() -> None:
    captured = capture(features)
    results = [captured(X) for _ in range(12)]
    assert len({type(result) for result in results}) == 12
    assert all(looks_like(type(result), type(features(X))) for result in results)
    records = captured.records
    assert len(records.graphs) == 1 and not records.graph_breaks and not records.fallbacks


def test_one_variant_takes_instances_of_all_of_them() -> None:
    captured = capture(lambda one, other: (one.low - other.high, other._replace(low=one.low), type(one) is type(other)))
    for _ in range(12):
        one, other = features(X), features(X + 1)
        difference, replaced, same = captured(one, other)
        assert torch.equal(difference, one.low - other.high) and replaced.low is one.low and replaced.high is other.high
        assert type(replaced) is type(other) and not same
    assert len(captured.records.graphs) == 1 and not captured.records.fallbacks


def test_a_class_and_its_instances_cross_a_graph_break() -> None:
    def breaking(x: torch.Tensor) -> Any:
        made = collections.namedtuple("Features", "low high", defaults=[2])
        first = made(x + 1)
        print(end="")
        return made(first.low * 2, first.high), type(first) is made

    captured = capture(breaking)
    for _ in range(12):
        second, same = captured(X)
        assert same and second.high == 2 and torch.equal(second.low, (X + 1) * 2)
    assert len(captured.records.graphs) == 2 and not captured.records.fallbacks


def test_an_instance_may_be_longer_or_shorter_than_its_class_says() -> None:
    captured = capture(lambda pair: (len(pair), [item + 1 for item in pair]))
    for items in ((X, 1.0), (X, 1.0, 5), (X,), (X, 1.0)):
        count, more = captured(tuple.__new__(type(features(X)), items))
        assert count == len(items) and equal(more, [item + 1 for item in items])


MAKERS: dict[str, Any] = {
    "another name": lambda: collections.namedtuple("Other", "low high"),
    "another order": lambda: collections.namedtuple("Features", "high low"),
    "a default": lambda: collections.namedtuple("Features", "low high", defaults=[None]),
    "another module": lambda: collections.namedtuple("Features", "low high", module="elsewhere"),
    "a subclass": lambda: type("Features", (collections.namedtuple("Features", "low high"),), {}),
    "no such class": lambda: tuple,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_class_that_is_another_one_is_told_apart(make: Any) -> None:
    first = type(features(X))
    assert is_remade(first) and not looks_like(make(), first)


def test_a_method_that_was_replaced_tells_classes_apart() -> None:
    first, kind = type(features(X)), type(features(X))
    assert looks_like(kind, first)
    kind._asdict = lambda self: {}
    assert not looks_like(kind, first)


def test_arguments_of_a_method_by_name_tell_classes_apart() -> None:
    def made(factor: int) -> Any:
        kind = type(features(X))
        kind.scaled = lambda self, *, by=factor: self.low * by
        return kind

    assert looks_like(made(2), made(2)) and not looks_like(made(3), made(2))


COMPARED: dict[str, Any] = {
    "two instances": lambda one, other: type(one) is type(other),
    "instance and class": lambda one, other: (isinstance(one, type(other)), type(other)(one.low, 2)),
    "key of a dictionary": lambda one, other: {type(one): 1}.get(type(other)),
    "class of a module": lambda one, other: (isinstance(one, Features), isinstance(other, Features)),
}
Features = collections.namedtuple("Features", ["low", "high"])


@pytest.mark.parametrize("compare", COMPARED.values(), ids=COMPARED)
def test_classes_that_look_like_each_other_are_compared_in_each_call(compare: Any) -> None:
    captured, kinds = capture(compare), [type(features(X)), type(features(X)), Features]
    for first in kinds:
        for second in kinds:
            one, other = first(X, 1), second(X + 1, 1)
            assert equal(captured(one, other), compare(one, other))
    assert not captured.records.fallbacks


def test_a_class_is_looked_up_where_others_like_it_are_keys() -> None:
    captured, kinds = capture(lambda table, kind: table.get(kind)), [type(features(X)) for _ in range(3)]
    for key in kinds:
        for kind in kinds:
            assert captured({key: X}, kind) is (X if kind is key else None)


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_the_text_of_a_field_is_set() -> None:
    def documented() -> Any:
        made = collections.namedtuple("Features", ["low", "high"])
        made.low.__doc__ = "the low one"
        return made

    assert capture(documented)().low.__doc__ == "the low one"
