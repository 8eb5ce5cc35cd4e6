"""Classes that a function makes in each call, by a `class` statement, by `type` or with `dataclass`."""

import dataclasses
import gc
from typing import Any

import pytest
import torch

from tests.capture.support import capture, equal

X = torch.linspace(-1, 1, 6)


class Base:
    """A class from outside that the functions below make subclasses of."""


def used_inside(x: torch.Tensor) -> Any:
    @dataclasses.dataclass
    class Scaled(Base):
        factor: torch.Tensor
        shift: int = 3

        def apply(self, value: torch.Tensor) -> torch.Tensor:
            return value * self.factor + self.shift

    return Scaled(x.sin()).apply(x)


def given_back(x: torch.Tensor) -> Any:
    class Kept(Base):
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

        def again(self) -> Any:
            return Kept(self.value + 1)

    return Kept(x.sin())


def test_a_class_used_inside_leaves_one_graph_that_makes_none() -> None:
    captured = capture(used_inside)
    for _ in range(3):
        assert equal(captured(X), used_inside(X))
    records = captured.records
    assert len(records.graphs) == 1 and not records.graph_breaks and not records.fallbacks
    assert "'Scaled'" not in records.sources[0]


def test_a_class_that_is_given_back_is_another_one_each_time() -> None:
    captured = capture(given_back)
    results = [captured(X) for _ in range(5)]
    assert len({type(result) for result in results}) == 5
    for result in results:
        assert type(result).__qualname__ == "given_back.<locals>.Kept"
        assert type(result.again()) is type(result) and equal(result.again().value, X.sin() + 1)
    assert len(captured.records.graphs) == 1 and not captured.records.fallbacks


@pytest.mark.parametrize("function", [used_inside, given_back])
def test_no_class_that_capture_worked_on_is_left_among_the_subclasses_of_a_base(function: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        captured = capture(function)
        captured(X)
        kept = captured(X) if function is given_back else None
        count = 2 if function is given_back else 0
        assert len(Base.__subclasses__()) == count
        del kept
    finally:
        gc.enable()


def test_a_class_made_of_a_global_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(x: torch.Tensor) -> torch.Tensor:
        class Scaled:
            factor = FACTOR

        return x * Scaled.factor

    captured = capture(reading)
    for factor in (2, 3, 2):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert equal(captured(X), X * factor)


FACTOR = 1


def test_what_follows_a_break_that_a_class_crosses_is_left_to_eager_once() -> None:
    def breaking(x: torch.Tensor) -> torch.Tensor:
        class Doubled:
            def __call__(self, value: torch.Tensor) -> torch.Tensor:
                return value * 2

        doubled = Doubled()
        y = doubled(x).cos()
        torch.manual_seed(0)
        return doubled(y).sin()

    captured = capture(breaking)
    with pytest.warns(UserWarning, match="a class is made"):
        for _ in range(12):
            assert equal(captured(X), breaking(X))
    records = captured.records
    assert len(records.graphs) == len(records.graph_breaks) == len(records.fallbacks) == 1 and not records.recompiles


def annotated_with_what_is_given_back(x: torch.Tensor) -> Any:
    class Kept:
        pass

    def double(value: Kept, many: list[Kept]) -> Any:
        return value, many

    return x * 2, Kept, double


def test_a_function_that_is_given_back_is_annotated_with_the_class_that_is() -> None:
    captured = capture(annotated_with_what_is_given_back)
    for _ in range(2):
        _, kind, double = captured(X)
        assert double.__annotations__["value"] is kind and double.__annotations__["many"].__args__ == (kind,)
