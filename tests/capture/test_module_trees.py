"""Guards on modules that nobody touched are not tested again, and whatever anybody touches is noticed."""

from __future__ import annotations

import collections
import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minicompile
from minicompile.capture import cpython_interface, module_trees
from minicompile.capture.entry import CompiledCallable
from tests.capture.support import capture, equal

needs_watching = pytest.mark.skipif(not cpython_interface.RELIABLE, reason="this Python does not tell of changed dictionaries")


class Options:
    """Plain attributes."""

    def __init__(self) -> None:
        self.power, self.names = 2, ["a", "b"]


class Scaled(nn.Module):
    """Reads parameters, buffers, plain attributes of several types and an object of the user's own."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.register_buffer("shift", torch.ones(width))
        self.scale, self.offset, self.flag = 2, 0.0, True
        self.options = Options()
        self.table = collections.OrderedDict(a=1.0, b=2.0)
        self.sizes = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Something of everything."""
        y = self.norm(self.linear(x)) * self.scale + torch.atan2(x * 0.0, x * 0.0 + self.offset) + self.shift
        y = y ** self.options.power + len(self.options.names) + len(self.sizes)
        for place, value in enumerate(self.table.values()):
            y = y + place * value
        return y if self.flag else -y


class Doubled(Scaled):
    """The same with another result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice as much."""
        return 2 * super().forward(x)


class Model(nn.Module):
    """Modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.more = Scaled(), nn.Sequential(Scaled(), nn.ModuleDict({"last": Scaled()})["last"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        return self.more(self.first(x)) * getattr(self, "extra", 1.0) + isinstance(self.first.scale, bool)


def replace_table(model: Model) -> None:
    """Give a module another `__dict__`, equal to the one it had, and change that."""
    part = model.more[0]
    part.__dict__ = dict(part.__dict__)
    part.scale = 7


def rename_buffer(model: Model) -> None:
    """Take a name away without changing any value."""
    model.first._buffers["moved"] = model.first._buffers.pop("shift")
    model.first.shift = torch.zeros(4)


CHANGES: dict[str, Callable[[Model], Any]] = {
    "a parameter's values": lambda model: model.first.linear.weight.data.fill_(0.5),
    "a parameter": lambda model: setattr(model.first.linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "a parameter to none": lambda model: setattr(model.first.linear, "bias", None),
    "a parameter's data": lambda model: setattr(model.more[1].linear.bias, "data", torch.full((4,), 3.0)),
    "a parameter's type": lambda model: model.double(),
    "a parameter's flag": lambda model: model.first.linear.weight.requires_grad_(False),
    "a buffer": lambda model: setattr(model.first, "shift", torch.full((4,), 5.0)),
    "an empty table of parameters": lambda model: model._parameters.update(extra=nn.Parameter(torch.full((4,), 2.0))),
    "an empty table of buffers": lambda model: model._buffers.update({"extra": torch.full((4,), 2.0)}),
    "a buffer's name": rename_buffer,
    "an int": lambda model: setattr(model.more[1], "scale", 3),
    "an int to an equal bool": lambda model: (setattr(model.first, "scale", 1), setattr(model.first, "scale", True)),
    "a float's sign": lambda model: setattr(model.first, "offset", -0.0),
    "a flag": lambda model: setattr(model.more[1], "flag", False),
    "an attribute behind the module's back": lambda model: model.first.__dict__.update(scale=9),
    "an object's attribute": lambda model: setattr(model.more[1].options, "power", 3),
    "an object's list": lambda model: model.first.options.names.append("c"),
    "a list": lambda model: model.first.sizes.append(3),
    "an order": lambda model: model.first.table.move_to_end("a"),
    "a table's entry": lambda model: model.more[0].table.update(b=4.0),
    "a module": lambda model: setattr(model, "first", Doubled()),
    "a module in a list": lambda model: model.more.append(nn.Linear(4, 4)),
    "a module in a list, by its place": lambda model: model.more.__setitem__(0, nn.Linear(4, 4)),
    "two modules' places": lambda model: model.more._modules.update({"0": model.more[1], "1": model.more[0]}),
    "a class": lambda model: setattr(model.more[1], "__class__", Doubled),
    "a whole `__dict__`": replace_table,
    "a hook": lambda model: model.more[1].linear.register_forward_hook(lambda module, args, result: result + 1),
    "a hook in its table": lambda model: model.first._forward_pre_hooks.__setitem__(7, lambda module, args: (args[0] + 1,)),
    "a hook on all modules": lambda model: nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result * 2 if isinstance(module, nn.LayerNorm) else None),
    "a method on the object": lambda model: setattr(model.first, "forward", lambda x: x - 1),
    "epsilon": lambda model: setattr(model.more[0].norm, "eps", 0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_on_a_tree_that_was_unchanged_for_long(name: str) -> None:
    torch.manual_seed(0)
    model = Model()
    model.first.scale = 1
    reference, x = copy.deepcopy(model), torch.randn(3, 4)
    compiled = capture(model)
    for _ in range(4):
        assert equal(compiled(x), reference(x))
    assert trees_of(compiled) or not cpython_interface.RELIABLE
    torch.manual_seed(1)
    handle = CHANGES[name](model)
    torch.manual_seed(1)
    other = CHANGES[name](reference) if name != "a hook on all modules" else None
    try:
        x = x.to(next(model.parameters()).dtype)
        for _ in range(4):
            result, expected = compiled(x), reference(x)
            assert equal(result, expected)
            assert result.requires_grad == expected.requires_grad and result.dtype == expected.dtype
    finally:
        for each in (handle, other):
            if hasattr(each, "remove"):
                each.remove()


def trees_of(compiled: CompiledCallable) -> list[module_trees.Tree]:
    """The trees of the variant used last that are known to be unchanged."""
    names = compiled.cache.entries[0].function.__globals__
    found = [value for value in names.values() if isinstance(value, module_trees.ModuleTrees)]
    return [tree for trees in found for tree in trees.trees.values() if trees.unchanged(*(root() for root in tree.roots))]


@needs_watching
def test_an_unchanged_tree_is_recognised_and_a_changed_one_is_learnt_again() -> None:
    model, x = Model(), torch.randn(3, 4)
    compiled = capture(model)
    for _ in range(3):
        compiled(x)
    assert trees_of(compiled)
    model.first.unrelated = 1
    assert not trees_of(compiled)
    compiled(x)
    assert trees_of(compiled)
    assert len(compiled.records.graphs) == 1


@needs_watching
def test_a_module_that_changes_between_all_calls_is_given_up() -> None:
    model, x = Model(), torch.randn(3, 4)
    compiled = capture(model)
    for number in range(3 * module_trees.MOST_FAILURES):
        model.first.unrelated = number
        assert equal(compiled(x), model(x))
    compiled(x), compiled(x)
    assert not trees_of(compiled)


def test_modules_that_take_turns_share_a_variant() -> None:
    models, x = [Model() for _ in range(3)], torch.randn(3, 4)
    compiled = capture(lambda model, x: model(x))
    for turn in range(6):
        for model in models:
            assert equal(compiled(model, x), model(x))
        models[turn % 3].first.linear.weight.data.mul_(2)
    assert len(compiled.records.graphs) == 1


def test_a_module_passed_as_an_argument_is_not_kept_alive() -> None:
    model, x = Model(), torch.randn(3, 4)
    compiled = capture(lambda model, x: model(x))
    for _ in range(4):
        compiled(model, x)
    seen = [weakref.ref(model), weakref.ref(model.first), weakref.ref(model.first.linear.weight)]
    del model
    gc.collect()
    assert [each() for each in seen] == [None, None, None]
    assert compiled(Model(), x).shape == (3, 4)


def test_a_table_that_was_emptied_later_and_then_filled_is_read_again() -> None:
    model, x = Model(), torch.randn(3, 4)
    model._buffers["unread"] = torch.ones(4)
    compiled = capture(model)
    for change in (lambda: None, model._buffers.clear, lambda: model._buffers.update({"extra": torch.full((4,), 2.0)})):
        change()
        for _ in range(3):
            assert equal(compiled(x), model(x))


def test_a_function_whose_code_is_replaced_is_captured_again() -> None:
    def old(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def new(x: torch.Tensor) -> torch.Tensor:
        return x * 5

    kind = type("Kind", (nn.Module,), {"forward": lambda self, x: self.step(x), "step": lambda self, x: self.value + x,
                                       "value": property(lambda self: old(torch.ones(4)))})
    compiled, model, x = capture(lambda model, x: model(x)), kind(), torch.randn(3, 4)
    assert equal(compiled(model, x), x + 2)
    old.__code__ = new.__code__
    assert equal(compiled(model, x), x + 5)
    kind.step.__code__ = (lambda self, x: x - self.value).__code__
    assert equal(compiled(model, x), x - 5)


def test_a_changed_class_is_noticed_on_a_tree_that_was_unchanged_for_long() -> None:
    class Base(nn.Module):
        factor = 2.0

    class Other(Base):
        factor = 9.0

    class Part(Base):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.full((2,), float(n))) for n in range(12)])

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = x + weight
            return self.step(x) + getattr(self, "extra", 0.0)

    model, x = nn.Sequential(Part(), Part()), torch.randn(2)
    changes: list[Callable[[], Any]] = [
        lambda: setattr(Base, "factor", 3.0), lambda: setattr(Part, "factor", 4.0), lambda: delattr(Part, "factor"),
        lambda: setattr(Part, "step", lambda self, x: x - self.factor), lambda: setattr(Base, "extra", 1.0),
        lambda: setattr(Part, "extra", property(lambda self: self.weights[3])), lambda: setattr(Part, "__bases__", (Other,)),
        lambda: setattr(nn.ParameterList, "__iter__", lambda self: iter([self[2]])), lambda: delattr(nn.ParameterList, "__iter__"),
        lambda: setattr(nn.Module, "extra", 5.0), lambda: delattr(nn.Module, "extra"),
        lambda: setattr(Part, "__getattr__", lambda self, name: 7.0 if name == "factor" else nn.Module.__getattr__(self, name)),
        lambda: delattr(Other, "factor") or delattr(Base, "factor")]
    original = nn.ParameterList.__iter__
    try:
        for change in changes:
            compiled, before = capture(model), model(x)
            for _ in range(4):
                assert equal(compiled(x), before)
            assert trees_of(compiled) or not cpython_interface.RELIABLE
            change()
            for _ in range(4):
                assert equal(compiled(x), model(x))
    finally:
        nn.ParameterList.__iter__ = original


class Pair(tuple[int, ...]):
    """Keeps its `__dict__` behind its items."""


class Failure(Exception):
    """Keeps its `__dict__` where all exceptions do."""


def test_objects_that_keep_their_attributes_elsewhere_are_not_taken_for_unchanged() -> None:
    class Holding(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.failure = Pair((1, 2)), Failure()
            self.pair.factor, self.failure.factor = 3.0, 5.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.pair.factor + self.failure.factor

    model, x = Holding(), torch.randn(3, 4)
    compiled = capture(model)
    for number, change in enumerate((
            lambda: None, lambda: setattr(model.pair, "factor", 7.0), lambda: setattr(model.failure, "factor", 9.0),
            lambda: setattr(model.pair, "__dict__", {"factor": 11.0}), lambda: setattr(model.failure, "__dict__", {"factor": 13.0}))):
        change()
        for _ in range(4):
            assert equal(compiled(x), model(x)), number


def test_parameters_passed_together_are_those_that_the_module_has_now() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.full((2,), float(n))) for n in range(12)])

        def forward(self, inputs: torch.Tensor, parameters: torch.Tensor) -> Any:
            result = self.weights[0] - self.weights[1]
            for weight in (inputs, *self.weights, parameters):
                result = result * 0.5 + weight
            return result, self.weights[4], [*self.weights], parameters

    model, x, y = Many(), torch.randn(2), torch.randn(2)
    compiled = capture(model)
    for number in range(6):
        result, weight, weights, last = compiled(x, y)
        assert weight is model.weights[4] and last is y
        assert all(one is other for one, other in zip(weights, model.weights, strict=True))
        assert equal(result, model(x, y)[0])
        model.weights[number] = nn.Parameter(torch.randn(2))
        model.weights[number + 1].data = torch.randn(2)
    assert len(compiled.records.graphs) == 1
    model.weights[5].data = torch.randn(2, 2)
    assert equal(compiled(x, y)[0], model(x, y)[0])
    assert len(compiled.records.graphs) == 2


def test_a_class_that_the_function_changes_counts_every_call() -> None:
    class Counting(Model):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return super().forward(x) * self.calls

    model, x = Counting(), torch.randn(3, 4)
    compiled = capture(model)
    for number in range(1, 6):
        result = compiled(x)
        assert model.calls == number
        assert equal(result, Model.forward(model, x) * number)


@needs_watching
def test_a_module_that_the_function_changes_is_not_watched() -> None:
    class Counting(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x)

    model, x = Counting(), torch.randn(3, 4)
    compiled = capture(model)
    for number in range(1, 5):
        compiled(x)
        assert model.calls == number
    assert all(table is not model.__dict__ for tree in trees_of(compiled) for table in tree.tables)


@needs_watching
def test_every_change_to_a_watched_dictionary_is_noticed() -> None:
    table: dict[str, Any] = {"a": 1}
    ordered: collections.OrderedDict[str, int] = collections.OrderedDict(a=1, b=2)
    module = nn.Linear(1, 1)  # kept alive, as whoever watches must
    state = cpython_interface.watch([table, ordered], [module])
    changes: list[Callable[[], Any]] = [
        lambda: table.update(a=2), lambda: table.setdefault("c", 1), lambda: table.pop("c"), table.popitem,
        table.clear, ordered.popitem, lambda: ordered.__setitem__("z", 1), ordered.clear]
    seen = state()
    for change in changes:
        assert state() == seen
        change()
        assert state() != seen
        seen = state()


def test_objects_that_have_to_be_different_are_one_guard() -> None:
    def guards_of(count: int) -> int:
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count)))
        compiled = minicompile.compile(lambda x: x + len(list(model.named_parameters())), options={"cache": False})
        compiled(torch.ones(2))
        return len(compiled.records.graphs[0].guards)

    few, more, most = map(guards_of, (4, 8, 12))
    assert most - more == more - few, "they do not grow with the square of the parameters"
