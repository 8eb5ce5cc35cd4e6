"""PyTorch's surface: what is captured whole, and what ends a graph exactly once."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import operator
import os
import re
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from minicompile import compile as minicompile_compile
from minicompile.capture import calls
from minicompile.capture.comparing import MOST_KEYS
from minicompile.ir import autocast
from tests.capture.support import capture, equal, kinds, same_as_eager


@pytest.mark.parametrize("make", [
    lambda x: torch.tensor([x.sum(), x.max()]),
    lambda x: torch.tensor([[x.mean(), 1], [2.5, x.shape[0]]], dtype=torch.float64),
    lambda x: torch.tensor((x.argmax(), x.shape[0], True)),
    lambda x: torch.tensor([x.half().sum(), 1.5]),
    lambda x: torch.as_tensor([(x - target).square().mean() for target in range(3)]).argmin(),
    lambda x: torch.FloatTensor([value * 2 for value in x]),
    lambda x: x.new_tensor([x.argmin(), 3]),
])
def test_tensors_put_into_a_new_one_stay_in_the_graph(make: Any) -> None:
    compiled = capture(make)
    for size in (3, 4, 5):
        x = torch.randn(size)
        assert equal(compiled(x), make(x))
    assert kinds(compiled) == []


def test_an_array_of_a_tensor_or_of_numbers_stays_in_the_graph() -> None:
    def arrays(x: Any, scale: float) -> Any:
        same = torch.asarray(x) is x, torch.asarray(x, dtype=x.dtype) is x
        return torch.asarray(x, dtype=torch.float64) * scale, torch.asarray(x)[1:], torch.asarray([scale, 2, True]), \
            torch.asarray([[len(x)], [1]], device="cpu"), torch.asarray(1j), torch.asarray([]), same  # fmt: skip

    compiled = capture(arrays)
    for size, scale in ((3, 0.5), (4, 1.5), (5, 2.5)):
        x = torch.randn(size)
        assert equal(compiled(x, scale), arrays(x, scale))
    assert kinds(compiled) == []


@pytest.mark.parametrize("make", [
    lambda x: torch.asarray(x, copy=True).mul_(2),
    lambda x: torch.asarray(x, requires_grad=True) * 2,
    lambda x: torch.asarray(x.detach().numpy()) * 2,
    lambda x: torch.asarray(bytearray(b"ab"), dtype=torch.uint8) * 2,
])
def test_an_array_that_shares_memory_or_is_told_more_is_a_break(make: Any) -> None:
    compiled, x = capture(make), torch.randn(3)
    assert equal(compiled(x), make(x)) and kinds(compiled)


def test_tensors_whose_gradient_is_lost_are_put_together_by_eager() -> None:
    compiled = capture(lambda x: torch.tensor([x.sum(), x.max()]) * 2)
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(compiled(x), torch.stack([x.sum(), x.max()]).detach() * 2)
    assert kinds(compiled) == ["operation failed"], "so that eager can warn"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_one_graph_break(kind: Any) -> None:
    layer = kind(4, 5, num_layers=2, bidirectional=True)
    compiled = capture(lambda x: layer(x * 2)[0].sum())
    compiled(torch.randn(3, 2, 4))
    compiled(torch.randn(3, 2, 4))
    assert kinds(compiled) == ["recurrent network"]


def test_a_choice_of_attention_kernels_is_part_of_the_graph() -> None:
    """What may be used is as before afterwards, within what is chosen outside, and behind a graph break inside."""

    def chosen(x, printing=False):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            y = functional.scaled_dot_product_attention(x, x, x)
            if printing:
                print(torch.backends.cuda.mem_efficient_sdp_enabled())
            y = y + torch.backends.cuda.mem_efficient_sdp_enabled()
        return y, torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()

    compiled = minicompile_compile(chosen, options={"suppress_errors": False})
    x = torch.randn(1, 2, 4, 8)
    for printing in (False, True):
        for outside in (contextlib.nullcontext(), sdpa_kernel(SDPBackend.MATH), contextlib.nullcontext()):
            with outside:
                allowed = [ask() for ask in autocast.ASK_ATTENTION]
                expected, result = chosen(x, printing), compiled(x, printing)
                assert [ask() for ask in autocast.ASK_ATTENTION] == allowed
            torch.testing.assert_close(result[0], expected[0])
            assert result[1:] == expected[1:]
        assert bool(compiled.graph_breaks) == printing


def test_whether_processes_are_joined_is_asked_of_no_graph_but_guarded() -> None:
    def shared(x):
        return x * 3 if torch.distributed.is_available() and torch.distributed.is_initialized() else x + 1

    compiled = capture(shared, fullgraph=True)
    x = torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        assert torch.equal(compiled(x), x * 3)
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(compiled(x), x + 1)


def test_a_training_step_breaks_only_for_the_backward() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    compiled = capture(step)
    for _ in range(3):
        compiled(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    assert kinds(compiled) == ["autograd call"] * 2, "the first call finds no gradients, the others do"


def test_functional_call_is_captured() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = {name: value.detach() * 2 for name, value in (*model.named_parameters(), *model.named_buffers())}
    compiled = capture(lambda x: torch.func.functional_call(model, state, (x,)), fullgraph=True)
    x = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x), torch.func.functional_call(model, state, (x,)))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x  # not the derivative, so that it shows whose backward ran


def test_a_custom_function_is_captured_with_its_own_backward() -> None:
    compiled = minicompile_compile(lambda x: Cube.apply(x * 2).sum(), fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.factor, None


def test_a_custom_function_may_return_a_view_of_what_requires_a_gradient() -> None:
    compiled = minicompile_compile(lambda x: Reversed.apply(x, 2.0).sum() + Reversed.apply(x.exp(), 3.0).sum() + x.sum(), fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, -3 * x.detach().exp() - 1)


def test_a_custom_function_that_cannot_be_followed_is_one_graph_break_at_its_call() -> None:
    class Printing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            print("backward")
            return gradient

    compiled = capture(lambda x: Printing.apply(x.sin()).cos())
    compiled(torch.randn(3, requires_grad=True)).sum().backward()
    assert kinds(compiled) == ["custom autograd function"]


def test_and_of_an_argument_asks_for_the_truth_of_its_value() -> None:
    compiled = capture(lambda x, flag: (x, not (flag and x.shape)))
    x = torch.ones(2)
    assert [compiled(x, flag)[1] for flag in (True, False)] == [False, True]


def test_parts_of_parameters_are_captured_without_gradients() -> None:
    """Eager calls them leaves that require a gradient; a class token or a position table would be a break otherwise."""
    token, table = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(8, 4))

    def embed(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([token.expand(x.shape[0], -1, -1), x], 1) + table[: x.shape[1] + 1] @ table.t()[:, :4]

    with torch.no_grad():
        same_as_eager(embed, torch.randn(2, 5, 4), fullgraph=True)


class Lazily(types.ModuleType):
    def __init__(self):
        super().__init__("lazily")
        self.found = {"factor": 3.0}

    two = 2

    def __getattr__(self, name):
        if name in self.found:
            return self.found[name]
        raise AttributeError(name)


class OwnCategorical(torch.distributions.Categorical):
    pass


LAZILY = Lazily()
SET = object.__setattr__.__get__


class Frozen:
    """As the library attrs writes the constructor of a class whose objects do not change."""

    def __init__(self, factor):
        setter = SET(self)
        setter("factor", factor)




@pytest.mark.parametrize("function", [
    lambda x: x * LAZILY.factor * LAZILY.two + hasattr(LAZILY, "missing"), lambda x: OwnCategorical(logits=x, validate_args=True).entropy(),
    lambda x: x * Frozen(3.0).factor,
])  # fmt: skip
def test_what_a_class_makes_of_attributes_is_captured(function: Any) -> None:
    x = torch.rand(2, 3)
    compiled = same_as_eager(function, x, fullgraph=True)
    LAZILY.found["factor"] = 4.0
    assert equal(compiled(x), function(x))
    LAZILY.found["factor"] = 3.0


class ByClassMethods(torch.autograd.Function):
    factor = 3.0

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * cls.factor

    @classmethod
    def backward(cls, ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos() * cls.factor


class DifferentiableOnce(ByClassMethods):
    factor = 5.0

    @classmethod
    @torch.autograd.function.once_differentiable
    def backward(cls, ctx, gradient):
        return gradient * ctx.saved_tensors[0] * cls.factor


class KeepsAViewOfALeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.power = power.expand(x.shape)
        return x ** ctx.power

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.power, (gradient * ctx.power.exp()).sum()


@pytest.mark.parametrize("function", [ByClassMethods, DifferentiableOnce, KeepsAViewOfALeaf])
def test_custom_functions_of_every_kind_are_captured(function: Any) -> None:
    x, power = torch.rand(2, 3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    inputs = (x, power)[:1 + (function is KeepsAViewOfALeaf)]
    compiled = minicompile_compile(lambda *given: function.apply(*given).exp(), fullgraph=True)
    found = torch.autograd.grad(compiled(*inputs).sum(), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(function.apply(*inputs).exp().sum(), inputs))
    if function is DifferentiableOnce:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
            first.sum().backward()


@torch.jit.script
def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1) * factor, dtype=torch.float))


def test_scripted_functions_and_gradients_that_are_on_already_do_not_break(monkeypatch: pytest.MonkeyPatch) -> None:
    internal = sys.modules.get("torch.testing._internal.common_utils")
    if internal is not None:  # imported by another test, it has put a Python function of its own in place of the call
        monkeypatch.setattr(torch._C.ScriptFunction, "__call__", internal.func_call)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = scaled(x, 3)
        y.requires_grad_(True)
        return y.sin()

    compiled = same_as_eager(function, torch.ones(3, requires_grad=True))
    assert compiled.records.graphs and not compiled.records.graph_breaks and not compiled.records.fallbacks


def test_what_has_no_history_is_detached_in_place_in_the_graph() -> None:
    layer = nn.Linear(3, 3)

    def target_network(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = layer(x).relu().detach_()
        return layer(x) * target

    same_as_eager(target_network, torch.ones(2, 3), fullgraph=True)


def cut_off(x: torch.Tensor) -> torch.Tensor:
    h = x.tanh()
    h.detach_()
    return x.exp() * h + x


def cut_off_and_returned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = (x * 2).exp().detach_()
    return h, h * x, h.detach_()


def cut_off_and_written(x: torch.Tensor) -> torch.Tensor:
    h = x * 3
    h.detach_()
    h += 1
    h[0] = x[0]
    return h * x


@pytest.mark.parametrize("function", [cut_off, cut_off_and_returned, cut_off_and_written])
def test_what_has_a_history_is_detached_in_place_in_the_graph(function: Any) -> None:
    compiled = minicompile_compile(function, fullgraph=True)
    for size in ((2, 3), (2, 4), (5, 2)):
        x = torch.randn(size, dtype=torch.float64)
        mine, reference = (x.clone().requires_grad_() for _ in range(2))
        results, expected = ([f(each)] if torch.is_tensor(f(each)) else list(f(each))
                             for f, each in ((compiled, mine), (function, reference)))
        torch.testing.assert_close(results, expected)
        assert [r.requires_grad for r in results] == [r.requires_grad for r in expected]
        assert [r.is_leaf for r in results] == [r.is_leaf for r in expected]
        for found in (results, expected):
            sum(r.sum() for r in found).backward()
        torch.testing.assert_close(mine.grad, reference.grad)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x))


def test_what_is_seen_by_another_name_is_detached_in_place_by_eager() -> None:
    def outer(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        h = x.tanh()
        row = h[0]
        h.detach_()
        return row.requires_grad, h * x

    def of_view(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()[0].detach_()

    compiled = capture(outer)
    x = torch.ones(2, 3, requires_grad=True)
    assert compiled(x)[0] == outer(x)[0]
    assert [stop.kind for stop in compiled.records.graph_breaks] == ["autograd call"]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        capture(of_view)(x)


def test_what_was_read_with_its_history_is_detached_in_place_by_eager() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        total = (h * x).sum()
        h.detach_()
        return total + h.sum()

    compiled = capture(outer)
    for function in (outer, compiled):
        with pytest.raises(RuntimeError, match="saved tensor that has been detached in-place"):
            function(torch.ones(3, requires_grad=True)).backward()
    assert [stop.kind for stop in compiled.records.graph_breaks] == ["autograd call"]


def test_what_refuses_to_be_detached_in_place_is_left_to_eager() -> None:
    def first_row(x: torch.Tensor) -> torch.Tensor:
        return (x + 1)[:1].detach_()

    compiled = capture(first_row)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        compiled(torch.ones(2, 3))
    x = torch.ones(3).view(1, 3)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        capture(lambda x: x.detach_() + 1)(x)


def test_hooks_that_the_first_forward_installs_are_captured_and_installed_once() -> None:
    seen: list[int] = []

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
            self.installed = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.installed:
                for place, (_, layer) in enumerate(self.layers.named_children()):
                    self.install(layer, place)
                self.installed = True
            for layer in self.layers:
                x = layer(x)
            return x

        def install(self, layer: nn.Module, place: int) -> None:
            layer.register_forward_hook(lambda module, args, output: seen.append(place))

    stack = Stack()
    compiled, x = capture(stack), torch.ones(1, 2)
    first = compiled(x)
    assert torch.equal(first, stack(x)) and torch.equal(first, compiled(x))
    assert seen == [0, 1, 2] * 3
    assert not compiled.records.graph_breaks and not compiled.records.fallbacks


def test_what_a_program_asks_of_its_surroundings_is_no_break(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("minicompile.tests.surroundings")
    pattern = re.compile("[0-9]+")
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)

    def function(x: torch.Tensor) -> Any:
        logger.debug("size %s", 3)
        with contextlib.ExitStack() as stack, torch.profiler.record_function("a range"):
            stack.enter_context(torch.no_grad())
            x = x * int(os.environ.get("SURROUNDINGS", "2")) if x.shape[0] in {3, 4} else x
        if torch.__version__ >= "2.0" and pattern.search("a1") and os.getenv("SURROUNDINGS") != "5":
            x = x + 1
        return x, "SURROUNDINGS" in os.environ

    compiled = capture(function)
    for value in (None, "3", "5", None):
        if value is None:
            monkeypatch.delenv("SURROUNDINGS", raising=False)
        else:
            monkeypatch.setenv("SURROUNDINGS", value)
        assert equal(compiled(torch.ones(3)), function(torch.ones(3)))
    assert kinds(compiled) == [] and heard == []
    logger.setLevel(logging.DEBUG)
    compiled(torch.ones(3))
    logger.removeHandler(handler)
    assert heard == ["size 3"] and kinds(compiled) == ["input or output"]


@pytest.mark.parametrize("function", [
    lambda x: x * np.finfo(np.float32).eps + float(np.finfo("float16").max) - np.finfo("f8").eps,
    lambda x: x * np.iinfo(np.int16).max + np.iinfo("int8").bits,
    lambda x: torch.jit._unwrap_optional(x) + torch.fx._symbolic_trace.is_fx_tracing(),
    lambda x: (x[:0].unbind(0), list(itertools.islice(x[:0], 2)), x + 1),
], ids=["limits of floats", "limits of integers", "asked of torch.fx", "rows of nothing"])
def test_what_only_looks_like_the_business_of_another_library_is_no_break(function: Any) -> None:
    assert kinds(same_as_eager(function, torch.arange(3.0))) == []


def test_an_operator_that_is_absent_is_seen_once_it_is_there() -> None:
    def function(x):
        if not hasattr(torch.ops.tests_of_surface, "late"):
            return getattr(torch.ops.tests_of_surface, "later", torch.sin)(x)
        return torch.ops.tests_of_surface.late(x)

    compiled, x = capture(function), torch.randn(3)
    assert equal(compiled(x), x.sin()) and not kinds(compiled)
    with torch.library._scoped_library("tests_of_surface", "FRAGMENT") as library:
        library.define("late(Tensor x) -> Tensor")
        library.impl("late", torch.cos, "CompositeImplicitAutograd")
        assert equal(compiled(x), x.cos()) and not kinds(compiled)


def test_a_tensor_marked_as_a_buffer_is_kept_among_the_buffers() -> None:
    def function(module, x, tensor):
        module.state = tensor
        module.state = tensor if isinstance(tensor, nn.Buffer) else None
        module.other = x * 2
        return isinstance(x, (int, nn.Buffer)), x + 1

    compiled, x = capture(function), torch.ones(2)
    for tensor in (nn.Buffer(x), torch.ones(2), nn.Buffer(x, persistent=False), nn.Buffer(x)):
        mine, theirs = nn.Module(), nn.Module()
        assert equal(compiled(mine, x, tensor), function(theirs, x, tensor)) and not kinds(compiled)
        for part in ("_buffers", "_non_persistent_buffers_set"):
            assert getattr(mine, part) == getattr(theirs, part)
        assert mine.state is theirs.state and list(mine.__dict__) == list(theirs.__dict__)


def test_what_makes_or_shows_a_sparse_tensor_is_a_break() -> None:
    indices = torch.tensor([[0, 1, 2], [1, 2, 0]])

    def function(x: torch.Tensor) -> torch.Tensor:
        square = torch.sparse_coo_tensor(indices, x * 2, (3, 3))
        return (torch.sparse.mm(square, torch.eye(3)) + 1).sum()

    assert set(kinds(same_as_eager(function, torch.ones(3)))) == {"sparse tensor"}
    shown = torch.eye(3).to_sparse_csr().requires_grad_().values()  # a dense view of a sparse tensor
    assert kinds(same_as_eager(lambda values: values * 2, shown)) == ["sparse tensor"]


def test_a_module_traced_by_fx_is_captured_and_its_new_code_is_seen() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    compiled = capture(lambda x: traced(x) * 2, fullgraph=True)
    assert equal(compiled(torch.ones(2, 3)), traced(torch.ones(2, 3)) * 2)
    *_, result = traced.graph.nodes
    with traced.graph.inserting_before(result):
        result.args = (traced.graph.call_function(torch.neg, result.args),)
    traced.recompile()
    assert equal(compiled(torch.ones(2, 3)), traced(torch.ones(2, 3)) * 2)


def test_a_flag_that_is_set_as_it_stands_is_no_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(3.0)
        steps.requires_grad = False
        return x * steps

    same_as_eager(function, torch.ones(3), fullgraph=True)


def test_tensors_are_made_by_the_names_of_their_classes() -> None:
    def made(x: torch.Tensor) -> Any:
        as_types = x.type(torch.HalfTensor), (x > 0).type(torch.Tensor)
        filled = torch.Tensor(x.shape[0], 2).fill_(0.5), torch.LongTensor(2).zero_(), torch.Tensor(x.size()).zero_(), torch.Tensor()
        return torch.Tensor([1, x.shape[0]]), torch.FloatTensor([[1, True]]), x[torch.LongTensor([0, 2.5])], filled, as_types

    compiled = same_as_eager(made, torch.randn(3, 2), fullgraph=True)
    assert equal(compiled(torch.ones(4, 2)), made(torch.ones(4, 2)))


def test_a_variable_is_its_tensor_without_history() -> None:
    def wrapped(given: torch.Tensor) -> Any:
        x = given + 1
        state = torch.autograd.Variable(x.data.new(3).zero_())
        target = torch.autograd.Variable(x.sin(), requires_grad=False)
        same = torch.autograd.Variable(data=x)
        same.mul_(2)
        return (x.cos() + state) * target, target, isinstance(same, torch.autograd.Variable)

    same_as_eager(wrapped, torch.randn(3), fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    same_as_eager(lambda x: torch.autograd.Variable(x * 2) + x, x, fullgraph=True)
    same_as_eager(lambda x: torch.autograd.Variable(x * 2, requires_grad=True) * x, x)


@pytest.mark.parametrize("arguments", [(), ([1.0, 2.0],), (torch.ones(2), False, True)])
def test_a_variable_of_anything_else_is_made_by_eager(arguments: Any) -> None:
    def made() -> Any:
        return torch.autograd.Variable(*arguments) * 2

    compiled = capture(made)
    try:
        expected = made()
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            compiled()
    else:
        assert equal(compiled(), expected)
    assert kinds(compiled) == ["unknown call"]


def test_sizes_that_vary_are_found_in_sets_and_dictionaries() -> None:
    def function(x: torch.Tensor) -> Any:
        size = x.shape[0]
        return x * 2 if size in {3, 4} else x, size in {5: "five"}, size in frozenset({6})

    compiled = capture(function)
    for size in (2, 3, 4, 5, 6, 7):
        assert equal(compiled(torch.ones(size)), function(torch.ones(size)))
    assert kinds(compiled) == []


def test_masks_made_of_views_and_expanded_tensors_are_no_writes() -> None:
    def visible(mask, length):
        seen = mask.view(2, 1, 6) & mask.view(2, 6, 1) | mask[:, :1, None].expand(2, 6, 6)
        return length.expand(6, 6).bool() & seen

    compiled = same_as_eager(visible, torch.rand(2, 6) > 0.3, torch.rand(1, 6).round())
    assert not kinds(compiled)


def test_a_scan_is_captured_if_it_combines_by_arithmetic() -> None:
    def scanned(x, combine):
        return associative_scan(combine, {"sum": x, "last": x * 2}, dim=0, combine_mode="generic")

    def arithmetic(left, right):
        return {"sum": left["sum"] + right["sum"], "last": right["last"] * 1}

    def mixing(left, right):
        return {"sum": left["sum"].flip(0) + right["sum"].flip(0), "last": right["last"]}

    def indexing(left, right):
        return {"sum": left["sum"] + right["sum"][:1], "last": right["last"]}

    x = torch.arange(15.0).view(5, 3)
    assert not kinds(same_as_eager(scanned, x, arithmetic))
    assert set(kinds(same_as_eager(scanned, x, indexing))) == {"higher-order operator"}
    assert set(kinds(same_as_eager(scanned, x, mixing))) == {"higher-order operator"}


def test_a_walk_over_the_parts_of_a_large_model() -> None:
    layers = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))

    def counted(x):
        return x * len(list(layers.named_modules())) + sum(1 for _ in layers.parameters())

    assert not kinds(same_as_eager(counted, torch.ones(2)))


class Batch(NamedTuple):
    images: torch.Tensor
    labels: list[torch.Tensor]


def test_trees_of_named_tuples_are_walked_however_many_classes_are_known() -> None:
    assert len(pytree.SUPPORTED_NODES) > MOST_KEYS

    def doubled(x: torch.Tensor) -> Batch:
        return pytree.tree_map(lambda left, right: left + right, Batch(x, [x]), Batch(x, [x]))

    same_as_eager(doubled, torch.ones(2), fullgraph=True)


def test_a_table_of_sizes_that_a_known_library_keeps_is_made_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PURE_CACHES", (__name__.partition(".")[0],))

    @functools.lru_cache
    def merged(shape: tuple[int, ...], parts: tuple[tuple[str, int], ...]) -> list[int]:
        return [shape[0] * dict(parts)["s"], shape[1] // dict(parts)["s"]]

    def rearranged(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(merged(tuple(x.shape), (("s", 2),)))

    compiled = minicompile_compile(rearranged, fullgraph=True)
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 6)
        assert torch.equal(compiled(x), rearranged(x))
    assert len(compiled.compiler.graphs) == 2


def test_a_cached_function_marked_as_constant_is_called_whatever_was_changed_before() -> None:
    @functools.lru_cache
    @torch.compiler.assume_constant_result
    def installed(name: str) -> bool:
        return name in ("torch", "triton")

    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(x.dim())
        with torch.no_grad():
            return x * 2 if installed("torch") and not installed("other") else x

    compiled, seen = capture(program, fullgraph=True), [0]
    assert equal(compiled(torch.ones(2, 3), seen), torch.full((2, 3), 2.0)) and seen == [0, 2]


@torch.compiler.allow_in_graph
def chosen(choose: torch.Tensor, either: torch.Tensor, other: torch.Tensor, power: float = 1.0) -> list[torch.Tensor]:
    """What no tracer follows, computing with tensors alone."""
    exec("power += 1", scope := {"power": power})
    return [torch.where(choose, either, other), functional.softmax(other.double(), 0) ** scope["power"]]


@torch.compiler.allow_in_graph
def row_after_row(x: torch.Tensor) -> torch.Tensor:
    """The number of rows, which no tracer sees asked for."""
    return sum((x[row] * row for row in range(int(x.shape[0]))), x.new_zeros(x.shape[1:]))


@torch.compiler.allow_in_graph
def number_or_zero(x: torch.Tensor) -> float:
    """A number of a graph that has not run, and a handler that lets nothing through."""
    try:
        return x.sum().item()
    except Exception:
        return 0.0


def test_a_function_allowed_in_graphs_is_not_followed_and_its_operations_are_recorded() -> None:
    def program(choose: torch.Tensor, either: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        first, second = chosen(choose, ~either, other, power=2.0)
        return first.sum() + second.sum()

    compiled = capture(program, fullgraph=True)
    for length in (4, 5, 6):
        masks = [torch.arange(length) % step == 0 for step in (2, 3, 1)]
        torch.testing.assert_close(compiled(*masks), program(*masks))
    assert len(compiled.records.recompiles) == 1  # for any length


def test_a_function_allowed_in_graphs_runs_outside_where_it_asks_for_what_varies() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return row_after_row(x.sin()).cos()

    compiled = capture(program)
    for rows in range(2, 14):
        x = torch.linspace(-1, 1, rows * 3).view(rows, 3)
        torch.testing.assert_close(compiled(x), program(x))
    assert len(compiled.records.recompiles) == 1


@torch.compiler.allow_in_graph
def times_its_number(x: torch.Tensor, options: list[Any]) -> torch.Tensor:
    """A number in an attribute, which no tracer sees read."""
    return x * options[0].number


def test_a_function_allowed_in_graphs_reads_attributes_as_they_are() -> None:
    def program(x: torch.Tensor, held: types.SimpleNamespace) -> torch.Tensor:
        held.number += 1
        return times_its_number(x, [held]).sin()

    held, x = types.SimpleNamespace(number=1), torch.ones(2)
    compiled = capture(program)
    for number in (1, 2, 7, 3):
        held.number = number
        assert equal(compiled(x, held), (x * (number + 1)).sin()) and held.number == number + 1


def test_a_function_allowed_in_graphs_does_not_get_past_what_ends_a_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * number_or_zero(x)

    assert equal(capture(program)(torch.ones(3)), program(torch.ones(3)))


def test_weights_are_clipped_through_data_in_the_graph_that_has_stepped() -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.sub_(gradient, alpha=0.5)
        weight.data.clamp_(-0.5, 0.5)
        return weight.square()

    one, two = (torch.linspace(-2, 2, 5).requires_grad_() for _ in range(2))
    compiled, gradient = capture(step, fullgraph=True), torch.arange(5.0)
    results = [function(weight, gradient) for function, weight in ((step, one), (compiled, two))]
    for result in results:
        result.sum().backward()
    assert equal(results[0], results[1]) and equal(one.detach(), two.detach()) and equal(one.grad, two.grad)


def test_covariances_and_correlations_are_captured_where_eager_neither_weighs_nor_warns() -> None:
    def spread(x: torch.Tensor) -> Any:
        return torch.cov(x), torch.cov(input=x[0], correction=0), torch.corrcoef(x), torch.corrcoef(x[1])

    compiled = capture(spread, fullgraph=True)
    for columns in (4, 5, 6):
        one, other = (torch.arange(3.0 * columns).view(3, columns).sin().requires_grad_() for _ in range(2))
        expected, found = spread(one), compiled(other)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(sum(v.sin().sum() for v in values), x)[0] for values, x in ((expected, one), (found, other))))
    weighed = capture(lambda x: torch.cov(x, fweights=torch.tensor([1, 2, 1])))
    assert torch.equal(weighed(torch.eye(3)), torch.cov(torch.eye(3), fweights=torch.tensor([1, 2, 1])))
    with pytest.raises(TypeError, match="positional"):
        capture(lambda x: torch.cov(x, 1))(torch.eye(3))


def test_a_transform_that_cannot_be_captured_leaves_gradients_as_they_were() -> None:
    def curvature(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.hessian(lambda row: functional.cross_entropy(row[None], torch.zeros(1, dtype=torch.long))))(x)

    x = torch.randn(3, 4)
    expected = curvature(x)
    torch.testing.assert_close(capture(curvature)(x), expected)
    torch.testing.assert_close(curvature(x), expected)


def test_a_transform_that_pytorch_fails_to_compute_on_fake_tensors_changes_nothing_for_what_follows() -> None:
    """The error shows tensors, which fails as well, and leaves a guard in the frame that was to show them."""

    def distance(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x - (a @ x.T).T).square().sum()

    def curvatures(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.hessian(distance))(a, x)

    def dispatcher() -> tuple[Any, ...]:
        return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    before, (a, x) = dispatcher(), (torch.randn(4, 2, 2), torch.randn(4, 5, 2))
    torch.testing.assert_close(capture(curvatures)(a, x), curvatures(a, x))
    gc.collect()
    assert dispatcher() == before and torch.ones(2, requires_grad=True).sum().requires_grad


def test_a_distance_of_the_users_between_triplets_ends_no_graph() -> None:
    asked = []

    def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        asked.append(one.shape[0])
        return (one - other).abs().sum(-1)

    def loss(one: torch.Tensor, same: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return functional.triplet_margin_with_distance_loss(one, same, other, distance_function=distance, swap=True)

    given = tuple(torch.randn(4, 3) for _ in range(3))
    compiled = capture(loss)
    assert equal(compiled(*given), loss(*given)) and asked == [4] * 6
    assert kinds(compiled) == []


def test_divergences_of_gaussians_with_several_dimensions_end_no_graph() -> None:
    def divergence(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        gaussians = [
            torch.distributions.MultivariateNormal(mean, scale_tril=torch.diag_embed(mean.exp())) for mean in (one, other)
        ]
        return torch.distributions.kl_divergence(*gaussians)

    compiled = capture(divergence)
    for one, other in ((torch.randn(4, 1, 2), torch.randn(3, 2)), (torch.randn(2), torch.randn(5, 2))):
        assert equal(compiled(one, other), divergence(one, other))
    assert kinds(compiled) == []


@torch.jit.script_if_tracing
def scripted_for_exporters(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.sin() + by


def test_questions_of_scripts_and_of_the_processor_end_no_graph() -> None:
    """As torchvision asks before it resizes, suppresses boxes, and as networks of MONAI ask for what they are given."""

    def function(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        if torch.backends.cpu.get_cpu_capability() and torch.jit.isinstance(parts, list[torch.Tensor]):
            return scripted_for_exporters(x.cos(), 2.0) + parts[0]
        return x

    compiled = capture(function)
    x = torch.randn(3)
    assert equal(compiled(x, [x]), function(x, [x]))
    assert not compiled.records.graph_breaks and not compiled.records.fallbacks


@pytest.mark.parametrize("name", ["torch.compiler.is_compiling", "torch._dynamo.is_compiling"])
def test_whether_anything_compiles_is_no_break_by_either_name(name: str) -> None:
    asked = operator.attrgetter(name.removeprefix("torch."))(torch)
    assert not asked()
    assert torch.equal(capture(lambda x: x * asked(), fullgraph=True)(torch.ones(2)), torch.ones(2))


def test_names_that_are_absent_are_guarded_in_the_same_order_in_every_process() -> None:
    compiled = capture(lambda x: x.tanh().pow(2).neg().abs().mean())
    compiled(torch.randn(3))
    names = re.findall(r"'(\w+)' not in tensor", compiled.records.sources[0])
    assert names == ["abs", "mean", "neg", "pow", "tanh"]
