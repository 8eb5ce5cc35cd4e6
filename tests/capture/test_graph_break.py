"""A graph break is local: the rest is captured, results and effects are plain Python's."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import operator
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from minicompile import disable
from tests.capture.support import capture, equal, same_as_eager

X = torch.arange(6.0).reshape(2, 3)


def test_print_item_and_branch(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("sum", y.sum().item())
        if y.sum() > 0:
            return y + 1
        return y - 1

    compiled = capture(function)
    assert equal(compiled(X), function(X)) and equal(compiled(-X), function(-X))
    assert capsys.readouterr().out == "sum 30.0\nsum 30.0\nsum -30.0\nsum -30.0\n"
    assert [entry.kind for entry in compiled.records.graph_breaks] == ["tensor value", "input or output", "branch on a tensor"]


def test_breaks_in_a_loop_do_not_grow_without_limit() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x + 1
            print(end="")
            x = x * 1.5
        return x

    compiled = same_as_eager(function, X)
    assert len(compiled.records.graphs) < 8
    assert not compiled.records.fallbacks


def test_break_inside_with_and_try() -> None:
    left = []

    @contextlib.contextmanager
    def manager() -> Iterator[int]:
        try:
            yield 1
        finally:
            left.append(1)

    def fails(x: torch.Tensor) -> float:
        raise ValueError(str(x.sum().item()))

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = x * 2
            print(end="")
            inside = torch.is_grad_enabled()
        try:
            print(end="")
            x = x + fails(x)
        except ValueError as error:
            x = x + len(str(error))
        else:
            x = x * 100
        return x + inside

    same_as_eager(function, X)


def test_break_in_a_callee_is_cut_out() -> None:
    def callee(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print(end="")
        return y + 1

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return callee(x) * 3

    inner = Inner()

    def function(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin()).cos()

    compiled = same_as_eager(function, X)
    assert len(compiled.records.graph_breaks) == 1
    assert not compiled.records.fallbacks


def test_closure_cells_survive_a_break() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        count = 0

        def step(y: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            return y * count

        x = step(x)
        print(end="")
        x = step(x)
        return x, count

    same_as_eager(function, X)


def test_values_that_differ_after_a_break_are_not_guarded_when_only_passed_on() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        value = x.sum().item()
        print(value, end="")
        seen.append(value)
        return x + 1

    compiled = capture(function)
    for shift in range(4):
        compiled(X + shift)
    assert len(seen) == 4
    assert not compiled.records.recompiles


def test_signatures_that_code_behind_a_break_makes_anew_are_known_again() -> None:
    def plain(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale

    def keyword(x: torch.Tensor, *, scale: float = 1) -> torch.Tensor:
        return x * scale

    def function(x: torch.Tensor, target: Callable[..., Any]) -> Any:
        print(end="")
        signature = disable(inspect.signature)(target)
        parameters = signature.parameters
        scale = parameters["scale"]
        kinds = [parameter.kind.name for parameter in parameters.values()]
        return target(x) * len(parameters), kinds, type(scale.default), scale.annotation, len(signature.bind(x).arguments)

    compiled = capture(function)
    for target in (plain, keyword) * 3:
        assert equal(compiled(X, target), function(X, target))
    records = compiled.records
    assert len(records.recompiles) == 1 and records.recompiles[0].sentence == "`.stack_0` says the same Signature"


def test_break_inside_an_except_block_stays_there() -> None:
    def function(x: torch.Tensor, log: list[object]) -> torch.Tensor:
        try:
            raise KeyError("gone")
        except KeyError as error:
            x = x + 1
            print(end="")
            log.append((str(error), type(sys.exc_info()[1]), error.__traceback__ is not None))
            x = x * 2
        log.append(sys.exc_info()[0])
        return x

    compiled, log, expected = capture(function), [], []
    assert equal(compiled(X, log), function(X, expected)) and log == expected
    assert not compiled.records.fallbacks
    assert len(compiled.records.graphs) == 2


def test_a_callee_sees_the_exception_that_its_caller_handles() -> None:
    def function(x: torch.Tensor) -> str:
        try:
            raise ValueError(str(x.shape[0]))
        except ValueError:
            return traceback.format_exc()

    text = capture(function)(X)
    assert text == function(X)


def test_an_exception_handled_after_a_break_is_not_the_context_of_the_next() -> None:
    def fails() -> None:
        print(end="")
        raise KeyError("first")

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            fails()
        except KeyError:
            x = x + 1
        print(end="")
        if x.shape[0] == 2:
            raise ValueError("second")
        return x

    for run in (function, capture(function)):
        with pytest.raises(ValueError) as caught:
            run(X)
        assert caught.value.__context__ is None


def test_a_generator_crosses_a_break_where_it_is() -> None:
    def steps(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for index in range(3):
            received = yield x * index
            assert received is None

    def function(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        generator = steps(x)
        total = next(generator)
        print(end="")
        total = total + next(generator)
        generator.close()
        other = steps(x)
        return total, other

    compiled = capture(function)
    total, other = compiled(X)
    expected, plain = function(X)
    assert equal(total, expected)
    assert not compiled.records.fallbacks
    assert type(other) is type(plain) and equal(list(other), list(plain))


def printing(xs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for x in xs:
        print(x.sum().item(), end="")
        yield x * 2


def tidy(xs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    try:
        for x in xs:
            yield x * 2
    finally:
        print("tidy", end="")


def loop_over_printing(x: torch.Tensor) -> torch.Tensor:
    total = x + 1
    for y in printing([total, total * 2]):
        total = total + y * 3
    return total * 2


def sum_of_printing(x: torch.Tensor) -> torch.Tensor:
    first, second = list(printing([x + 1, x + 2]))
    total: torch.Tensor = sum(printing([first, second])) * 2
    return total


def sum_of_what_prints(x: torch.Tensor) -> torch.Tensor:
    def shown(y: torch.Tensor) -> torch.Tensor:
        print(end="")
        return y * 2

    total: torch.Tensor = sum(shown(x + step) for step in range(3)) * 2
    return total


def loop_over_tidy(x: torch.Tensor) -> torch.Tensor:
    total = x + 1
    for y in tidy([total, total * 2, total * 3]):
        print(y.sum().item(), end="")
        total = total + y * 3
    return total * 2


def loop_over_tidy_that_is_left(x: torch.Tensor) -> torch.Tensor:
    total = x + 1
    for y in tidy([total, total * 2, total * 3]):
        print(y.sum().item(), end="")
        total = total + y * 3
        if total.dim() == 2:
            break
    return total * 2


@pytest.mark.parametrize(("function", "graphs"), [
    (loop_over_printing, 3), (sum_of_printing, 2), (sum_of_what_prints, 1), (loop_over_tidy, 4), (loop_over_tidy_that_is_left, 3)])
def test_breaks_in_and_around_generators_are_local(function: Callable[..., Any], graphs: int,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    compiled = capture(function)
    assert equal(compiled(X), function(X))
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]
    assert len(compiled.records.graphs) == graphs and not compiled.records.fallbacks


def test_a_generator_tidies_up_before_the_caller_handles_what_left_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> None:
        for y in tidy([x, x + 1]):
            x = x + [][int(y.sum().item())]

    compiled = capture(function)
    for run in (function, compiled, compiled):
        try:
            run(X)
        except IndexError:
            print("caught", end="")
        assert capsys.readouterr().out == "tidycaught"


def test_locals_is_no_break() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y, count = x + 1, 3
        kept = {key: value for key, value in locals().items() if key != "x"}
        return kept, dict(vars())["y"] * count

    compiled = same_as_eager(function, X)
    assert len(compiled.records.graphs) == 1 and not compiled.records.graph_breaks and not compiled.records.fallbacks


def test_breaks_in_loops_over_iterators_stay_in_the_loop() -> None:
    def function(x: torch.Tensor, names: list[str], table: dict[str, float]) -> torch.Tensor:
        for index, name in enumerate(names):
            print(index, name, end="")
            x = x + index
        for key, value in table.items():
            print(key, end="")
            x = x * value
        for scaled in map(lambda value: x * value, table.values()):
            print(end="")
            x = x + scaled
        return x

    compiled = same_as_eager(function, X, ["a", "b", "c"], {"a": 1.0, "b": 2.0})
    assert not compiled.records.fallbacks


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


ITERATORS: tuple[Callable[[], Iterator[Any]], ...] = (
    lambda: itertools.groupby("aab"), lambda: next(itertools.groupby("aab"))[1], lambda: itertools.pairwise([1, 2, 3]),
    lambda: itertools.tee([1, 2, 3])[1], lambda: iter([3, 0, 2].pop, 0), lambda: iter(collections.deque([1, 2])),
    lambda: reversed("ab"), lambda: iter(b"ab"), lambda: iter(range(1 << 99, 3 + (1 << 99))), lambda: iter(Level),
    *((lambda: itertools.batched([1, 2, 3], 2),) if sys.version_info >= (3, 12) else ()),
)


@pytest.mark.parametrize("place", range(len(ITERATORS)))
def test_every_iterator_crosses_a_break(place: int) -> None:
    def function(x: torch.Tensor) -> Any:
        items, out = ITERATORS[place](), []
        for item in items:
            print(end="")
            out.append(item[0] if isinstance(item, tuple) else item)
        return x * 2, out

    assert not same_as_eager(function, X).records.fallbacks


@pytest.mark.parametrize("make", (
    lambda: (3).__add__, lambda: operator.itemgetter(1), lambda: operator.methodcaller("add", other=2),
    lambda: functools.cmp_to_key(max), lambda: staticmethod(len), lambda: torch.finfo(torch.float32)))
def test_small_native_objects_cross_a_break(make: Callable[[], Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        made = make()
        print(end="")
        return x * 2, type(made)

    assert not same_as_eager(function, X).records.fallbacks


def test_a_long_loop_with_a_break_is_a_handful_of_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for index in range(50):
            x = torch.sin(x) + 1
            print(index, end="")
        return x

    compiled = same_as_eager(function, X)
    assert len(compiled.records.graphs) < 8
    assert not compiled.records.fallbacks


def test_a_break_in_a_loop_breaks_once_a_step_whatever_is_iterated_over() -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(9)])

    def over(elements: Callable[[], Any]) -> tuple[int, int]:
        def function(x: torch.Tensor) -> torch.Tensor:
            for _ in elements():
                x = x + 1
                print(end="")
                x = torch.sin(x)
            return x

        compiled = same_as_eager(function, X)
        assert not compiled.records.fallbacks
        return len(compiled.records.graph_breaks), len(compiled.records.graphs)

    for elements in (lambda: layers, lambda: range(9), lambda: reversed(range(9)), lambda: zip(range(9), layers, strict=False),
                     lambda: enumerate(layers), lambda: dict.fromkeys(range(9)), lambda: list(layers)):
        breaks, graphs = over(elements)
        assert max(breaks, graphs) <= 6


def test_an_iterator_of_the_users_is_advanced_as_far_as_in_eager() -> None:
    def taken(x: torch.Tensor, pairs: Any, single: Any, log: list[float]) -> tuple[Any, ...]:
        log.append(next(single, 0.0))
        first = next(pairs)
        return x * log[-1], first, next(single, None), next(pairs, None)

    def apart() -> tuple[Any, ...]:
        return X, zip([1.0, 2.0, 3.0], [3.0, 4.0, 5.0], strict=True), iter([5.0, 6.0, 7.0]), [0.5]

    def pairs_of_the_same() -> tuple[Any, ...]:
        single = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        return X, zip(single, single, strict=False), single, [0.5]

    def over_the_log() -> tuple[Any, ...]:
        log = [1.0, 2.0]
        return X, enumerate(log), iter(log), log

    compiled = capture(taken)
    for arguments in (apart, pairs_of_the_same, over_the_log, apart, pairs_of_the_same):
        ours, theirs = arguments(), arguments()
        assert equal(compiled(*ours), taken(*theirs))
        assert [list(each) for each in ours[1:]] == [list(each) for each in theirs[1:]]
    reordered = capture(taken)
    for arguments in (over_the_log, pairs_of_the_same, apart):
        assert equal(reordered(*arguments()), taken(*arguments()))


def noisy(x):
    print("noise")
    return x * 2


class MadeNoisily:
    def __init__(self, x):
        self.x = noisy(x)


class CalledNoisily:
    def __call__(self, x):
        return noisy(x)


def through_a_partial(x, call=functools.partial(noisy)):  # the same object in each call
    return call(x + 1) + 1


def through_an_object(x, call=CalledNoisily()):  # the same object in each call
    return call(x + 1) + 1


def through_a_class(x):
    return MadeNoisily(x + 1).x + 1


def through_native_code(x):
    return next(map(noisy, [x + 1])) + 1


@pytest.mark.parametrize("function, graphs", [(through_a_partial, 3), (through_an_object, 3), (through_a_class, 2),
                                              (through_native_code, 2)])
def test_every_break_in_a_callee_is_recorded_once(function, graphs):
    compiled = same_as_eager(function, torch.ones(3))
    (record,) = compiled.records.graph_breaks
    assert record.kind == "input or output" and record.stack[-1].text == 'print("noise")'
    assert len(compiled.records.graphs) == graphs


def test_an_iterator_over_an_ordered_dictionary_goes_on_where_the_graph_breaks():
    table = collections.OrderedDict(a=torch.ones(3), b=torch.zeros(3))

    def function(x):
        for key, value in table.items():
            x = x * value if key == "b" else noisy(x)
        for value in reversed(table.values()):
            x = noisy(x) + value
        values = table.values()
        return noisy(x), sum(values)

    assert not same_as_eager(function, torch.ones(3)).records.fallbacks


@pytest.mark.parametrize("room", [250, 450])
def test_a_recursion_that_eager_has_room_for_does_not_raise(room: int) -> None:
    """The tracer takes several of Python's frames for one; a handler in the user's code must not see that they run out."""

    def descend(x: torch.Tensor, depth: int) -> torch.Tensor:
        try:
            return x if depth == 0 else descend(x, depth - 1) + 1
        except RecursionError:
            return x * 100

    def called_deep(function: Callable[..., Any], frames: int) -> Any:
        return function() if frames == 0 else called_deep(function, frames - 1)

    compiled, x = capture(lambda x: descend(x, 100)), torch.ones(2)
    here = len(traceback.extract_stack())
    assert equal(called_deep(lambda: compiled(x), sys.getrecursionlimit() - here - room), x + 100)
    assert [fallback.reason for fallback in compiled.records.fallbacks] == ["the calls are nested too deep to be traced"]


def test_what_stands_before_a_class_statement_is_captured_once() -> None:
    def making(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).cos()

        class Factor(enum.IntEnum):
            value = 3

        return (y * Factor.value).sin()

    captured = capture(making)
    with pytest.warns(UserWarning, match="a class is made"):
        for size in (3, 3, 3):
            x = torch.arange(float(size))
            assert torch.equal(captured(x), making(x))
    records = captured.records
    assert len(records.graphs) == len(records.graph_breaks) == len(records.fallbacks) == 1


CLASS_MAKERS: dict[Callable[..., Any], tuple[Any, ...]] = {
    dataclasses.make_dataclass: ("Made", ["value"]), enum.Enum: ("Made", "value"),
    types.new_class: ("Made",)}


@pytest.mark.parametrize("make", CLASS_MAKERS)
def test_what_stands_before_a_call_that_makes_a_class_is_captured_once(make: Callable[..., Any]) -> None:
    def making(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        y = (x * 2).cos()
        made = make(*CLASS_MAKERS[make])
        return y.sin(), made.__name__

    captured = capture(making)
    with pytest.warns(UserWarning, match="a class is made"):
        for _ in range(3):
            assert equal(captured(X), making(X))
    records = captured.records
    assert len(records.graphs) == len(records.graph_breaks) == len(records.fallbacks) == 1


def test_an_error_that_is_handled_outside_keeps_the_variables_of_its_frames() -> None:
    def fail() -> None:
        kept = [1]
        raise KeyError(kept)

    def refused(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    try:
        fail()
    except KeyError as error:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            capture(refused)(X)
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        assert error.__traceback__.tb_next.tb_frame.f_locals == {"kept": [1]}
