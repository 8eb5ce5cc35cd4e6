"""The public interface behaves like `torch.compile`'s, and a compiled module like the module it was made from."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn as nn

import minicompile
from minicompile.errors import InvalidOption


class Small(nn.Module):
    """A module with a parameter, a buffer, a submodule and names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and add."""
        return self.linear(x).relu() * self.scale + (1.0 if self.training else 0.0)


class WithStats(nn.Module):
    """A module whose own attribute has the name of one of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.stats = "mine"
        self.timings = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.timings(x)


def double_plus_one(x: torch.Tensor) -> torch.Tensor:
    """Doc of the function."""
    return x * 2 + 1


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_a_function_keeps_its_value_name_and_doc() -> None:
    compiled = minicompile.compile(double_plus_one)
    torch.testing.assert_close(compiled(X), double_plus_one(X))
    assert compiled.__wrapped__ is double_plus_one
    assert (compiled.__name__, compiled.__doc__) == ("double_plus_one", "Doc of the function.")
    assert str(inspect.signature(compiled)) == str(inspect.signature(double_plus_one))


def test_bare_and_parametrised_decorators() -> None:
    @minicompile.compile
    def bare(x):
        return x.sin()

    @minicompile.compile(fullgraph=True, dynamic=False)
    def parametrised(x):
        return x.cos()

    torch.testing.assert_close(bare(X), X.sin())
    torch.testing.assert_close(parametrised(X), X.cos())
    assert parametrised.config.fullgraph and parametrised.config.dynamic is False


def test_methods_lambdas_builtins_partials_and_callable_objects() -> None:
    class Owner:
        def __init__(self, k):
            self.k = k

        def scaled(self, x):
            return x * self.k

        @minicompile.compile
        def decorated(self, x):
            return x + self.k

        def __call__(self, x):
            return x - self.k

    import functools

    owner = Owner(3.0)
    torch.testing.assert_close(minicompile.compile(owner.scaled)(X), X * 3)
    torch.testing.assert_close(owner.decorated(X), X + 3)
    assert owner.decorated.stats.graphs == 1
    torch.testing.assert_close(minicompile.compile(lambda x: x.exp())(X), X.exp())
    torch.testing.assert_close(minicompile.compile(torch.tanh)(X), X.tanh())
    doubled = minicompile.compile(functools.partial(torch.mul, other=2))
    torch.testing.assert_close(doubled(X), X * 2)
    library = minicompile.compile(torch.nn.functional.cross_entropy)
    labels = torch.zeros(X.shape[0], dtype=torch.long)
    torch.testing.assert_close(library(X, labels), torch.nn.functional.cross_entropy(X, labels))
    for compiled in (doubled, library):
        assert compiled.stats.graphs == 1 and compiled.stats.fallbacks == 0
    torch.testing.assert_close(minicompile.compile(owner)(X), X - 3)


@pytest.mark.parametrize("transform", [
    torch.vmap,
    torch.func.grad,
    torch.func.jacrev,
    torch.func.hessian,
    lambda function: torch.vmap(torch.func.grad_and_value(function), in_dims=1, out_dims=(1, 0)),
])
def test_a_transform_of_a_function_is_one_graph(transform: Any) -> None:
    transformed = transform(lambda x: (x.sin() * x).sum())
    compiled = minicompile.compile(transformed, fullgraph=True)
    for size in (3, 4, 5):
        x = torch.linspace(-1, 1, size * 2).reshape(2, size)
        torch.testing.assert_close(compiled(x), transformed(x))
    assert compiled.stats.graphs and not compiled.graph_breaks and not compiled.stats.fallbacks


def test_static_and_class_methods_stay_what_they_are() -> None:
    class Layer:
        scale = 3

        @minicompile.compile
        @staticmethod
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @minicompile.compile
        @classmethod
        def scaled(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.scale

    x = torch.ones(2)
    for owner in (Layer, Layer()):
        assert torch.equal(owner.double(x), x * 2) and torch.equal(owner.scaled(x), x * 3)


def test_stats_sources_and_timings_tell_what_was_compiled() -> None:
    compiled = minicompile.compile(double_plus_one)
    assert compiled.stats.graphs == 0 and len(minicompile.sources(compiled)) == 0
    compiled(X)
    assert compiled.stats.graphs == 1
    assert (compiled.stats.graph_breaks, compiled.stats.fallbacks) == (0, 0)
    assert compiled.stats.kernels == 1 and compiled.stats.extern_calls == 0
    assert compiled.recompiles == []
    assert sum(compiled.timings.values()) > 0
    listing = str(minicompile.sources(compiled))
    assert "@triton.jit" in listing
    with pytest.raises(AttributeError):
        compiled.stats.graphs = 5


def test_a_recompile_is_recorded_with_its_reason() -> None:
    compiled = minicompile.compile(lambda x, flag: x + 1 if flag else x - 1)
    compiled(X, True)
    torch.testing.assert_close(compiled(X, False), X - 1)
    assert len(compiled.recompiles) == 1
    assert "flag" in str(compiled.recompiles[0])


def test_a_graph_break_is_recorded_with_its_line() -> None:
    def breaks(x):
        y = x + 1
        print("between")
        return y * 2

    compiled = minicompile.compile(breaks)
    torch.testing.assert_close(compiled(X), (X + 1) * 2)
    assert compiled.stats.graph_breaks == 1
    assert "test_api.py" in str(compiled.graph_breaks[0])


def test_fullgraph_raises_with_the_line() -> None:
    def breaks(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(minicompile.errors.MinicompileError, match=r"test_api\.py"):
        minicompile.compile(breaks, fullgraph=True)(X)


def test_mode_and_options_exclude_each_other() -> None:
    with pytest.raises(RuntimeError, match="mode or options"):
        minicompile.compile(double_plus_one, mode="default", options={"cache": False})


def test_unknown_options_and_modes_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidOption, match="'fallback_random'"):
        minicompile.compile(double_plus_one, options={"falback_random": True})
    with pytest.raises(InvalidOption, match="max-autotune"):
        minicompile.compile(double_plus_one, mode="fastest")
    with pytest.raises(InvalidOption, match="'dynamic'"), minicompile.config.patch(dinamic=True):
        pass


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="class Small"):
        minicompile.compile(Small)
    with pytest.raises(TypeError, match="not int"):
        minicompile.compile(3)
    with pytest.raises(TypeError, match="not something"):
        minicompile.sources(double_plus_one)


def test_disable_as_argument_decorator_and_setting() -> None:
    off = minicompile.compile(double_plus_one, disable=True)
    torch.testing.assert_close(off(X), double_plus_one(X))
    assert off.stats.graphs == 0

    @minicompile.disable(reason="counts in Python")
    def counted(x):
        seen.append(minicompile.is_compiling())
        return x + 1

    seen: list[bool] = []
    compiled = minicompile.compile(lambda x: counted(x * 2) * 3)
    torch.testing.assert_close(compiled(X), (X * 2 + 1) * 3)
    assert seen == [False]

    with minicompile.config.patch(disable=True):
        off = minicompile.compile(double_plus_one)
    off(X)
    assert off.stats.graphs == 0


def test_generators_and_coroutines_run_as_they_are() -> None:
    def generator(x):
        yield x + 1
        yield x + 2

    async def coroutine(x):
        return x + 1

    torch.testing.assert_close(list(minicompile.compile(generator)(X)), [X + 1, X + 2])
    with pytest.raises(StopIteration) as stopped:
        minicompile.compile(coroutine)(X).send(None)
    torch.testing.assert_close(stopped.value.value, X + 1)


def test_is_compiling_is_true_only_while_capturing() -> None:
    compiled = minicompile.compile(lambda x: x + 1 if minicompile.is_compiling() else x - 1)
    assert not minicompile.is_compiling()
    torch.testing.assert_close(compiled(X), X + 1)


def test_a_way_for_compilers_that_raises_is_not_taken() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        masks = [] if minicompile.is_compiling() else [torch.ones_like(x)]
        return x * masks[0][:, None]

    compiled = minicompile.compile(masked, fullgraph=True)
    torch.testing.assert_close(compiled(torch.arange(3.0)), masked(torch.arange(3.0)))
    assert compiled.stats.graphs == 1


def test_what_a_program_makes_for_compilers_does_not_reach_behind_a_graph_break() -> None:
    def mask_of(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x), len(x)) if minicompile.is_compiling() else x.new_ones(1) if (x > -1).all() else x

    def masked(x: torch.Tensor, breaks: bool) -> torch.Tensor:
        mask = mask_of(x)
        if breaks and x.sum() > 0:
            x = x[:-1]
        return x * mask

    compiled = minicompile.compile(masked)
    for breaks, shape in ((False, (3, 3)), (True, (2,)), (True, (2,))):
        assert compiled(torch.arange(3.0), breaks).shape == shape
    with pytest.raises(minicompile.errors.Unsupported, match="branch on a tensor"):
        minicompile.compile(masked, fullgraph=True)(torch.arange(3.0), True)


def test_an_operation_that_fails_only_on_the_way_for_compilers_is_not_on_the_way() -> None:
    def scores(x: torch.Tensor) -> torch.Tensor:
        mask = None if not minicompile.is_compiling() and x.all() else torch.ones(len(x), len(x))
        y = x[1:].sin()
        return y if mask is None else y + mask

    torch.testing.assert_close(minicompile.compile(scores)(X + 2), scores(X + 2))


def test_reset_forgets_what_was_compiled() -> None:
    compiled = minicompile.compile(double_plus_one)
    compiled(X)
    minicompile.reset()
    assert compiled.stats.graphs == 0
    torch.testing.assert_close(compiled(X), double_plus_one(X))
    assert compiled.stats.graphs == 1


def test_compiling_twice_compiles_the_original() -> None:
    again = minicompile.compile(minicompile.compile(double_plus_one))
    assert again.__wrapped__ is double_plus_one
    module = Small()
    assert minicompile.compile(minicompile.compile(module)).__wrapped__ is module


def test_methods_and_partials_of_what_is_compiled_are_compiled_from_the_original() -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = by

        @minicompile.compile
        def apply(self, x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
            return x * self.by + more

    scaled = Scaled(2.0)
    for target in (scaled.apply, functools.partial(Scaled.apply, scaled), functools.partial(scaled.apply, more=0.0)):
        compiled = minicompile.compile(target, fullgraph=True)
        torch.testing.assert_close(compiled(X), X * 2)
        assert compiled.stats.graphs == 1 and compiled.stats.fallbacks == 0


def test_objects_whose_own_methods_are_compiled_are_captured_through_them() -> None:
    class Doubling(Small):
        forward = minicompile.compile(lambda self, x: Small.forward(self, x) * 2)

    class Shifting:
        __call__ = minicompile.compile(lambda self, x: x + 1)

    assigned, shifting = Small(), Shifting()
    assigned.forward = minicompile.compile(assigned.forward)
    compiled_inside = minicompile.compile(Doubling())
    for target in (Doubling(), assigned, functools.partial(compiled_inside), shifting, lambda x: shifting(x)):
        compiled = minicompile.compile(target, fullgraph=True)
        torch.testing.assert_close(compiled(X), target(X))
        assert (compiled.stats.graphs, compiled.stats.graph_breaks, compiled.stats.fallbacks) == (1, 0, 0)


def test_what_is_compiled_already_keeps_its_own_breaks_where_a_compiled_function_calls_it() -> None:
    class Counting(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * int(self.calls)

        @minicompile.compile
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 * int(self.calls)

    module, function = Counting(), minicompile.compile(lambda x: x * int(x.sum() + 3))
    model = minicompile.compile(module)
    step = minicompile.compile(lambda x: model(x) + module.twice(x) + function(x))
    for _ in range(3):
        result, twin = step(X), copy.deepcopy(module)
        twin.calls -= 1
        torch.testing.assert_close(result, twin(X) + X * 2 * int(twin.calls) + X * int(X.sum() + 3))
    assert (len(step.graph_breaks), len(model.graph_breaks), len(function.graph_breaks)) == (3, 1, 1)


def test_marks_check_their_dimension() -> None:
    x = torch.zeros(2, 3)
    minicompile.mark_dynamic(x, -1)
    minicompile.mark_static(x)
    with pytest.raises(IndexError, match="dimension 2"):
        minicompile.mark_dynamic(x, 2)


def test_concurrent_calls_agree() -> None:
    compiled = minicompile.compile(lambda x: (x * 2).relu().sum(-1))
    inputs = [torch.full((3, 5), float(i)) for i in range(4)]
    results: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: compiled(inputs[i])})) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(torch.equal(results[i], (inputs[i] * 2).relu().sum(-1)) for i in range(4))


def test_a_module_is_the_same_module_to_everyone() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    assert isinstance(compiled, Small) and isinstance(compiled, minicompile.CompiledModule)
    assert compiled.__wrapped__ is module
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    assert repr(compiled) == repr(module)
    torch.testing.assert_close(compiled(X), module(X))
    assert compiled.stats.graphs == 1


def test_compiled_modules_of_one_class_are_of_one_class() -> None:
    models = [minicompile.compile(Small().requires_grad_(index > 1)) for index in range(4)]
    assert len({type(model) for model in models}) == 1
    parameters, buffers = torch.func.stack_module_state(models[:2])

    def one(weights, held):
        return torch.func.functional_call(models[0], (weights, held), (X,))

    torch.testing.assert_close(torch.vmap(one)(parameters, buffers), torch.stack([model(X) for model in models[:2]]))


def test_the_class_of_a_compiled_module_is_as_the_users() -> None:
    class Growing(Small):
        def wider(self) -> nn.Module:
            return type(self)()

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return type(self).forward(self, x) * 2

        @classmethod
        def made(cls) -> nn.Module:
            return cls()

    module = Growing()
    compiled = minicompile.compile(module)
    assert [type(each) for each in (compiled.wider(), compiled.made(), type(compiled)())] == [Growing] * 3
    torch.testing.assert_close(compiled.twice(X), module(X) * 2)
    assert inspect.signature(type(compiled).forward) == inspect.signature(Growing.forward)
    assert inspect.getsource(type(compiled)) == inspect.getsource(Growing)


def test_a_compiled_function_has_what_the_original_has() -> None:
    def tagged(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x * by

    tagged.tag = "tag"  # type: ignore[attr-defined]
    compiled = minicompile.compile(tagged)
    assert (compiled.tag, compiled.__code__, compiled.__defaults__) == ("tag", tagged.__code__, (2.0,))
    assert minicompile.compile(Small()).forward.__self__.scale == Small().scale
    with pytest.raises(AttributeError):
        compiled.missing


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated is copy.deepcopy(decorated)
    held = pickle.loads(pickle.dumps(minicompile.compile(double_plus_one)))
    torch.testing.assert_close(held(X), double_plus_one(X))


@minicompile.compile
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_attributes_pass_through_both_ways() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    torch.testing.assert_close(compiled(X), module(X))
    compiled.scale = 5.0
    assert module.scale == 5.0
    torch.testing.assert_close(compiled(X), module(X))
    compiled.linear = nn.Linear(4, 3)
    assert module.linear.out_features == 3
    torch.testing.assert_close(compiled(X), module(X))
    del compiled.scale
    with pytest.raises(AttributeError):
        module.scale


def test_names_of_the_users_module_come_before_ours() -> None:
    compiled = minicompile.compile(WithStats())
    assert compiled.stats == "mine" and isinstance(compiled.timings, nn.Linear)
    assert compiled.recompiles == []


def test_train_and_eval_switch_the_original() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    trained = compiled(X)
    assert compiled.eval() is compiled and not module.training
    torch.testing.assert_close(compiled(X), trained - 1)
    assert compiled.train().training and module.linear.training


def test_to_changes_the_original() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    compiled(X)
    assert compiled.to(torch.float64) is compiled
    assert module.linear.weight.dtype == torch.float64
    torch.testing.assert_close(compiled(X.double()), module(X.double()))


def test_a_deep_copy_of_a_compiled_object_is_compiled_though_the_object_says_how_it_is_copied() -> None:
    class Scaled:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def __deepcopy__(self, memo: dict[int, object]) -> Scaled:
            return Scaled()

    compiled = minicompile.compile(Scaled())
    twin = copy.deepcopy(compiled)
    assert twin.__wrapped__ is not compiled.__wrapped__ and torch.equal(twin(X), X * 2) and twin.stats.graphs == 1


def test_deepcopy_and_pickle_keep_a_working_compiled_module() -> None:
    compiled = minicompile.compile(Small(), dynamic=False)
    expected = compiled(X)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), copy.copy(compiled)):
        assert isinstance(twin, Small) and isinstance(twin, minicompile.CompiledModule)
        assert twin.forward.config.dynamic is False
        torch.testing.assert_close(twin(X), expected)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin.linear.weight.zero_()
    torch.testing.assert_close(compiled(X), expected)


def test_torch_save_round_trip() -> None:
    compiled = minicompile.compile(Small())
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(loaded(X), compiled(X))


def test_state_dicts_of_torch_compile_load() -> None:
    source, target = Small(), Small()
    prefixed = {f"_orig_mod.{key}": value for key, value in source.state_dict().items()}
    assert minicompile.compile(target).load_state_dict(prefixed).missing_keys == []
    torch.testing.assert_close(target(X), source(X))

    parent = nn.Sequential(minicompile.compile(Small()))
    parent.load_state_dict({f"0._orig_mod.{key}": value for key, value in source.state_dict().items()})
    torch.testing.assert_close(parent(X), source(X))
    assert list(parent.state_dict()) == [f"0.{key}" for key in source.state_dict()]
    with pytest.raises(RuntimeError, match="Unexpected key"):
        minicompile.compile(target).load_state_dict({**source.state_dict(), "more": torch.zeros(1)})


def test_hooks_run() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    seen: list[str] = []
    handles = [
        compiled.register_forward_pre_hook(lambda m, args: seen.append("before")),
        module.register_forward_hook(lambda m, args, out: out + 10),
    ]
    torch.testing.assert_close(compiled(X), module(X))
    assert seen == ["before", "before"]
    [handle.remove() for handle in handles]
    torch.testing.assert_close(compiled(X), module(X))
    assert seen == ["before", "before"]


def test_a_patched_forward_is_the_one_that_runs() -> None:
    module = Small()
    compiled = minicompile.compile(module)
    compiled(X)
    compiled.forward = lambda x: x * 7
    torch.testing.assert_close(compiled(X), X * 7)
    torch.testing.assert_close(module(X), X * 7)


def test_other_methods_call_the_compiled_forward() -> None:
    class Twice(Small):
        def twice(self, x):
            return self(self(x))

    module = Twice()
    compiled = minicompile.compile(module)
    torch.testing.assert_close(compiled.twice(X), module.twice(X))
    assert compiled.stats.graphs >= 1


def test_training_a_compiled_module_trains_the_original() -> None:
    torch.manual_seed(0)
    module = Small()
    reference = copy.deepcopy(module)
    compiled = minicompile.compile(module)
    for model in (compiled, reference):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
    for got, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_an_unwritable_cache_costs_no_correctness(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    compiled = minicompile.compile(double_plus_one, options={"cache_directory": blocked / "cache"})
    torch.testing.assert_close(compiled(X), double_plus_one(X))


def test_wrong_shapes_raise_what_eager_raises() -> None:
    compiled = minicompile.compile(lambda a, b: a @ b)
    with pytest.raises(RuntimeError) as eager:
        X @ X
    with pytest.raises(RuntimeError) as ours:
        compiled(X, X)
    assert type(ours.value) is type(eager.value)


def test_a_forward_assigned_to_the_original_is_the_one_that_runs() -> None:
    model = nn.Linear(2, 2)
    compiled, x = minicompile.compile(model), torch.ones(1, 2)
    plain = compiled(x)
    model.forward = lambda x: nn.Linear.forward(model, x) * 3  # type: ignore[method-assign]  # as users do
    torch.testing.assert_close(compiled(x), plain * 3)
    del model.forward
    torch.testing.assert_close(compiled(x), plain)


def test_a_lazy_module_becomes_its_class_at_the_first_call() -> None:
    x = torch.randn(2, 3)
    for lazy, becomes in ((nn.LazyLinear(4), nn.Linear), (nn.Sequential(nn.LazyLinear(4)), nn.Sequential)):
        compiled = minicompile.compile(lazy)
        first = compiled(x)
        assert type(lazy) is becomes and isinstance(compiled, becomes) and not isinstance(compiled, nn.LazyLinear)
        assert torch.equal(first, lazy(x)) and torch.equal(compiled(x), first)
        assert compiled.stats.graphs and isinstance(copy.deepcopy(compiled), becomes)


def test_parts_without_a_shape_can_be_asked_for_and_come_after_others() -> None:
    compiled = minicompile.compile(lambda m, x: (x + 1, m.has_uninitialized_params(), [type(b).__name__ for b in m.buffers()]))
    for module in (nn.BatchNorm1d(2), nn.LazyBatchNorm1d(affine=False), nn.LazyBatchNorm1d()):
        module.__class__ = nn.LazyBatchNorm1d
        _, uninitialised, kinds = compiled(module, torch.ones(2))
        assert (uninitialised, kinds[0]) == (type(module.running_mean) is not torch.Tensor, type(module.running_mean).__name__)


def test_a_forward_given_to_the_class_is_the_one_that_runs() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()))
    compiled, x = minicompile.compile(traced), torch.randn(3, 2)
    assert torch.allclose(compiled(x), traced(x))
    (last,) = (node for node in traced.graph.nodes if node.target == "1")
    last.replace_all_uses_with(last.args[0])
    traced.recompile()  # gives the class another forward
    assert torch.allclose(compiled(x), traced.get_submodule("0")(x))


def test_a_class_given_to_a_compiled_module_brings_its_forward() -> None:
    class Shifted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    module = nn.Linear(3, 2)
    compiled = minicompile.compile(module)
    before = compiled(torch.ones(2, 3))
    compiled.__class__ = Shifted
    torch.testing.assert_close(compiled(torch.ones(2, 3)), before + 1)
    assert type(module) is Shifted
