"""Unmodified Python runs as captured graphs, with plain Python's results."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import importlib
import inspect
import math
import pickle
import sys
import types
import typing
import warnings
import weakref
from typing import Any

import pytest
import torch

import minicompile
from minicompile.errors import Unsupported
from tests.capture.support import capture, equal, same_as_eager

SCALE = 3.0
X = torch.arange(6.0).reshape(2, 3)


def test_straight_line_code_is_one_graph() -> None:
    compiled = same_as_eager(lambda x, y: (x + y).sin() * 2, X, X + 1)
    assert len(compiled.records.graphs) == 1
    assert not compiled.records.graph_breaks
    assert [node.op for node in compiled.records.graphs[0].module.graph.nodes][:2] == ["placeholder"] * 2


def test_loops_comprehensions_containers_and_strings() -> None:
    def function(x: torch.Tensor, factors: list[float]) -> dict[str, object]:
        total = x
        for index, factor in enumerate(factors):
            total = total + x * factor if index % 2 else total - x
        parts = [piece * 2 for piece in total.unbind(0)]
        return {f"shape {tuple(x.shape)}": parts, "sum": sum(parts), **{str(k): k for k in range(2)}}

    assert len(same_as_eager(function, X, [1.0, 2.0, 3.0], fullgraph=True).records.graphs) == 1


def test_closures_defaults_partial_and_methods() -> None:
    def outer(scale: float):
        def inner(x: torch.Tensor, *, shift: float = 1.0, **rest: float) -> torch.Tensor:
            return x * scale + shift + sum(rest.values())

        return inner

    class Holder:
        def __init__(self) -> None:
            self.bias = 2.0

        @property
        def twice(self) -> float:
            return self.bias * 2

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return outer(self.twice)(x, other=1.0)

    same_as_eager(functools.partial(outer(2.0), shift=3.0), X, fullgraph=True)
    same_as_eager(Holder().apply, X, fullgraph=True)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a class has no properties any more")
def test_properties_of_a_class_are_read() -> None:
    class Columns:
        first = 1

        @classmethod
        @property
        def rest(cls):
            return slice(cls.first, None)

    compiled = same_as_eager(lambda x: x[Columns.rest] * Columns().rest.start, torch.randn(4), fullgraph=True)
    Columns.first = 2
    assert equal(compiled(torch.ones(4)), 2 * torch.ones(2))


def test_modules_are_inlined_with_their_parameters_as_inputs() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    compiled = capture(module, fullgraph=True)
    assert equal(compiled(X), module(X))
    kinds = [entry.kind for entry in compiled.records.graphs[0].inputs]
    assert kinds.count("parameter") == 4
    compiled(X).sum().backward()
    assert module[0].weight.grad is not None
    with torch.no_grad():
        module[0].weight.mul_(2)
    module[1] = torch.nn.LayerNorm(4)
    assert equal(compiled(X), module(X))


def test_dataclasses_named_results_and_math() -> None:
    @dataclasses.dataclass
    class Pair:
        first: torch.Tensor
        second: float

    def function(x: torch.Tensor) -> tuple[object, ...]:
        pair = Pair(x.max(0).values, math.sqrt(16.0))
        return pair.first * pair.second, pair.second

    same_as_eager(function, X, fullgraph=True)


class Reduction(str, enum.Enum):
    MEAN = "mean"
    SUM = "sum"


def test_a_class_is_iterated_and_measured_by_its_own_class() -> None:
    layers = torch.nn.ModuleDict({"mean": torch.nn.Identity()})

    def function(x: torch.Tensor, reduction: str) -> typing.Any:
        if reduction not in {item.value for item in Reduction}:
            raise ValueError(reduction)
        known = typing.cast(torch.nn.ModuleDict, layers)[reduction]
        return known(x) * len(Reduction), [item.value for item in Reduction], sorted(Reduction, key=len)

    same_as_eager(function, X, "mean", fullgraph=True)


class Stage(enum.IntEnum):
    NONE = 0
    LAST = 3


class Count(int):
    """A number of a class of one's own."""


class Measured(type):
    """A class that has a length, and whose objects therefore have none."""

    def __len__(cls) -> int:
        return 0


class Plain(metaclass=Measured):
    """An object that is always true."""


@pytest.mark.parametrize("values", [(Stage.NONE, Stage.LAST), (Count(0), Count(2)), (Reduction.MEAN, Reduction.SUM), (Plain(), None)])
def test_the_truth_of_a_member_of_an_enum_or_of_a_number_of_ones_own_class_is_no_break(values: tuple[object, ...]) -> None:
    def function(x: torch.Tensor, value: object) -> torch.Tensor:
        return x * 2 if value else x + (not value)

    compiled = capture(function, fullgraph=True)
    for value in values * 2:
        assert equal(compiled(X, value), function(X, value))


def test_the_types_of_a_union_are_read() -> None:
    same_as_eager(lambda x: x * len((int | str | None).__args__), X, fullgraph=True)


def test_arguments_are_bound_to_a_signature_layers_among_them() -> None:
    def checked(function: typing.Any) -> typing.Any:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def inner(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if not isinstance(bound.arguments["factor"], float):
                raise TypeError("factor")
            return function(*bound.args, **bound.kwargs)

        return inner

    @checked
    def function(layer: torch.nn.Module, x: torch.Tensor, factor: typing.Any = 2.0) -> torch.Tensor:
        return typing.cast(torch.Tensor, layer(x)) * factor

    compiled, layer = capture(function, fullgraph=True), torch.nn.Linear(3, 3)
    for more in ({}, {"factor": 3.0}):
        assert equal(compiled(layer, X, **more), function(layer, X, **more))
    for wrong in ({"factor": 3}, {"other": 1}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            compiled(layer, X, **wrong)


def test_a_changed_global_closure_or_attribute_is_seen() -> None:
    class Holder:
        value = 1.0

    holder, cell = Holder(), [2.0]
    captured = 3.0

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + holder.value + cell[0] + captured

    compiled = capture(function)
    assert equal(compiled(X), function(X))
    holder.value = 5.0
    assert equal(compiled(X), function(X))
    cell[0] = 7.0
    assert equal(compiled(X), function(X))
    captured = 9.0
    assert equal(compiled(X), function(X))
    assert len(compiled.records.recompiles) == 3
    assert "`holder` has no value" in compiled.records.recompiles[0].sentence


def test_hooks_that_come_and_go_in_a_call_do_not_recompile() -> None:
    layer, seen = torch.nn.Linear(3, 3), []

    def function(x: torch.Tensor) -> torch.Tensor:
        with layer.register_forward_hook(lambda m, args, result: seen.append(result.sum())):
            return layer(x)

    compiled = capture(function)
    for _ in range(3):
        assert torch.equal(compiled(X), layer(X))
    layer.register_forward_hook(lambda m, args, result: result * 2).remove()
    compiled(X)
    assert len(seen) == 4
    assert len(compiled.records.graphs) == 1


def test_sums_and_comparisons_of_numbers_that_vary_break_no_graph() -> None:
    def function(x: torch.Tensor, chance: float, layer: int) -> torch.Tensor:
        return sum([chance, x, chance]) if chance < layer / 8 else x

    compiled = capture(function)
    for chance, layer in (0.1, 2), (0.2, 3), (0.3, 4), (0.9, 5):
        assert torch.equal(compiled(X, chance, layer), function(X, chance, layer))
    assert not compiled.records.graph_breaks


def test_what_was_not_read_does_not_recompile() -> None:
    class Holder:
        used, unused = 1.0, 1.0

    holder = Holder()
    holder.table = {"a": 1.0, "b": 2.0}

    def function(x: torch.Tensor, ignored: object) -> torch.Tensor:
        return x * holder.used * holder.table["a"]

    compiled = capture(function)
    compiled(X, 1)
    holder.unused, holder.table["b"] = 4.0, 5.0
    compiled(X, "other")
    assert not compiled.records.recompiles


def test_identity_and_side_effects_are_kept() -> None:
    log: list[torch.Tensor] = []
    state = {"calls": 0}

    def function(x: torch.Tensor, items: list[torch.Tensor]) -> tuple[object, ...]:
        state["calls"] += 1
        items.append(x + 1)
        log.append(x)
        both = [x]
        return x, both, both, items

    compiled = capture(function)
    items = [X]
    first, left, right, back = compiled(X, items)
    assert first is X and left is right and back is items and len(items) == 2
    assert state == {"calls": 1} and log[0] is X


def test_in_place_changes_of_inputs_happen_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0] = 0
        return x * 2

    one, other = X.clone(), X.clone()
    compiled = capture(function, fullgraph=True)
    assert equal(compiled(one), function(other)) and equal(one, other)


def test_exceptions_inside_and_out() -> None:
    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ValueError("inner")
        except ValueError as error:
            return x * len(str(error))

    def escapes(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("outer")

    same_as_eager(caught, X, fullgraph=True)
    with pytest.raises(KeyError, match="outer"):
        capture(escapes)(X)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        capture(lambda x: x @ x)(X)


def test_grad_modes_and_autocast_are_followed() -> None:
    def function(x: torch.Tensor) -> tuple[bool, torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            inside = x * 2
            flag = torch.is_grad_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = x @ x.t()
        return flag, inside, product

    compiled = same_as_eager(function, X.requires_grad_(False), fullgraph=True)
    with torch.no_grad():
        compiled(X)
    assert "grad mode" in compiled.records.recompiles[0].sentence


def test_a_slice_object_keeps_its_numbers_symbolic() -> None:
    def last_rows(x, table):
        n = x.shape[0]
        return x * table[(slice(-n, None), ...)] + table[slice(n)]

    compiled = capture(last_rows, fullgraph=True)
    for n in (3, 4, 5, 6):
        x, table = torch.randn(n, 2), torch.randn(9, 2)
        assert equal(compiled(x, table), last_rows(x, table))
    assert len(compiled.records.recompiles) == 1


def test_the_recompile_limit_warns_with_the_failing_guard() -> None:
    compiled = capture(lambda x, name: x * len(name), recompile_limit=2)
    compiled(X, "a")
    compiled(X, "bb")
    with pytest.warns(UserWarning, match="name"):
        assert equal(compiled(X, "ccc"), X * 3)
    assert equal(compiled(X, "dddd"), X * 4)


def test_fullgraph_raises_a_typed_error() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(Unsupported) as caught:
        capture(function, fullgraph=True)(X)
    assert caught.value.kind == "branch on a tensor"
    assert "torch.where" in caught.value.hint
    assert caught.value.stack[-1].text.startswith("return x + 1")


def test_nothing_is_kept_alive_by_the_cache() -> None:
    module = torch.nn.Linear(3, 3)
    compiled = capture(module)
    argument = X.clone()
    result = compiled(argument)
    references = [weakref.ref(value) for value in (module, argument, result)]
    del module, compiled, argument, result
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_numbers_from_several_calls_of_a_function_with_a_cache_are_constants() -> None:
    @functools.lru_cache(maxsize=None)
    def halves(n):
        return [n // 2, n - n // 2]

    def function(x):
        return x.reshape(*halves(4), -1), x.reshape(*halves(6), -1)

    compiled = same_as_eager(function, torch.arange(36.0), fullgraph=True)
    assert [given.source for given in compiled.records.graphs[0].inputs] == ["x"]


def test_sizes_and_integers_become_symbolic_when_they_vary() -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, str]:
        batch, width = x.shape
        return x.view(batch * width) * n, batch + n, f"{x.shape[1]}"

    compiled = capture(function)
    for batch, n in ((2, 3), (3, 3), (4, 4), (5, 7), (6, 9), (1, 3)):
        argument = torch.randn(batch, 3)
        result = compiled(argument, n)
        assert equal(result, function(argument, n)) and type(result[1]) is int
    assert len(compiled.records.graphs) == 4
    never = capture(function, dynamic=False)
    for batch in (2, 3, 4):
        never(torch.randn(batch, 3), 1)
    assert not any(entry.kind == "size" for graph in never.records.graphs for entry in graph.inputs)


def test_several_threads_may_make_the_first_call() -> None:
    import concurrent.futures  # only this test needs it

    module = torch.nn.Linear(3, 3)
    compiled = capture(module)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: compiled(X), range(8)))
    assert all(equal(result, module(X)) for result in results)
    assert len(compiled.records.graphs) == 1


def test_results_with_named_fields_go_in_and_out() -> None:
    def function(found: torch.return_types.sort) -> tuple[torch.Tensor, torch.return_types.sort, type]:
        again = found.values.sort(descending=True)
        return again.indices + found.indices, again, type(found)

    compiled = capture(function)
    argument = torch.sort(X)
    result, expected = compiled(argument), function(argument)
    assert type(result[1]) is torch.return_types.sort and result[2] is torch.return_types.sort
    assert equal(result[0], expected[0]) and equal(result[1].values, expected[1].values)


def test_memory_that_is_shared_in_one_call_leaves_the_others_compiled() -> None:
    def function(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return row * 2

    compiled = capture(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shared in (True, False, True, False):
            x, twin = torch.ones(2, 3), torch.ones(2, 3)
            assert equal(compiled(x, x[0] if shared else torch.ones(3)), function(twin, twin[0] if shared else torch.ones(3)))
    assert len(compiled.records.graphs) == 1 and len(compiled.records.fallbacks) == 1
    assert compiled.records.recompiles[0].sentence == "`x` is changed and shares memory with another input"


def test_views_of_parameters_without_gradients_are_no_break() -> None:
    module = torch.nn.Linear(4, 4)
    compiled = minicompile.compile(lambda x: x * module.bias.reshape(1, -1) + module.bias.expand(2, 4), fullgraph=True)
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), x * module.bias + module.bias)


@pytest.mark.parametrize("name", ["type", "list", "len", "torch_state", "torch"])
def test_a_function_may_be_called_as_what_its_guards_call(name: str) -> None:
    def function(x: torch.Tensor, items: list[int]) -> tuple[torch.Tensor, list[int]]:
        return x * len(items), [*items]

    function.__name__ = name
    assert len(same_as_eager(function, torch.ones(2), [1, 2]).records.sources) == 1


def test_a_key_of_another_sign_is_another_key() -> None:
    def copied(x: torch.Tensor, table: dict[float, int]) -> torch.Tensor:
        return torch.copysign(x, next(iter(table)))

    compiled, x = minicompile.compile(copied), torch.ones(2)
    for key in (0.0, -0.0, 0.0):
        assert torch.equal(compiled(x, {key: 1}), copied(x, {key: 1}))


def test_a_loaded_module_that_is_imported_by_its_name_is_no_break() -> None:
    def function(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * importlib.import_module(name).pi

    same_as_eager(function, torch.ones(3), "math", fullgraph=True)


def test_modules_of_the_standard_library_are_loaded_while_capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        import colorsys
        from xml.dom import minicompat

        try:
            import colorsys.nothing
        except ImportError:
            return x * colorsys.rgb_to_hsv(0.5, 0.25, 0.125)[2] + len(minicompat.StringTypes)
        return x

    for name in ("colorsys", "xml.dom.minicompat"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    compiled = capture(function)
    assert equal(compiled(X), function(X))
    assert [record.kind for record in compiled.records.graph_breaks] == ["imports"], "what cannot be loaded raises in the program"


BACKENDS = """
import sys
kept = {}
class Backend: pass
class OfTorch(Backend):
    def __init__(self):
        import torch
        self.torch = torch
def get_backend(tensor):
    if type(tensor) not in kept:
        found = [kind for kind in Backend.__subclasses__() if "torch" in sys.modules]
        kept[type(tensor)] = found[0]()
    return kept[type(tensor)]
"""


def test_the_backend_of_einops_is_found_before_its_first_call_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = types.ModuleType("einops._backends")
    exec(BACKENDS, vars(backends))
    monkeypatch.setitem(sys.modules, "einops._backends", backends)
    monkeypatch.delitem(sys.modules, "torch._dynamo.trace_rules", raising=False)  # knows einops, too
    compiled = capture(lambda x: backends.get_backend(x).torch.sin(x), fullgraph=True)
    assert equal(compiled(X), X.sin()) and torch.Tensor in backends.kept


def test_arguments_that_are_pickled_to_be_a_key_are_no_break() -> None:
    kept: dict[bytes, int] = {}

    def function(x: torch.Tensor, **options: Any) -> torch.Tensor:
        return x * kept.setdefault(pickle.dumps(options), len(options))

    compiled = capture(lambda x: function(x) + function(x, scale=1.0, name="a"), fullgraph=True)
    assert equal(compiled(torch.ones(3)), torch.full((3,), 2.0)) and kept == {pickle.dumps({}): 0, pickle.dumps({"scale": 1.0, "name": "a"}): 2}
