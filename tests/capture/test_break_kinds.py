"""Every registered kind of graph break can be fired, explains itself under `fullgraph=True`, and costs no correctness.

Each program has one line with the comment `# here`, which the error must show, and is fresh for every run.
"""

from __future__ import annotations

import abc
import asyncio
import os
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import checkpoint

import minicompile
from minicompile.capture.break_kinds import KINDS
from minicompile.errors import Unsupported
from tests.capture.support import capture, equal

Program = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def fires(kind: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Register the program that fires a kind."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[kind] = make
        return make

    return register


def matrix() -> torch.Tensor:
    """A small input."""
    return torch.arange(6.0).reshape(2, 3)


def one_line(kind: str, function: Callable[..., Any], *args: Any) -> None:
    """Register a program of one expression."""
    PROGRAMS[kind] = lambda: (function, args or (matrix(),))


one_line("tensor value", lambda x: x * x.sum().item())  # here
one_line("branch on a tensor", lambda x: x + 1 if x.sum() > 0 else x - 1)  # here
one_line("data-dependent shape", lambda x: x.nonzero() + 1)  # here
one_line("input or output", lambda x: (x + 1, print(end="")))  # here
one_line("unknown call", lambda x: x + len(str(sys._getframe(0))))  # here
one_line("NumPy", lambda x: x + float(np.array(2.0)))  # here
one_line("random numbers", lambda x: x + 0 * random.random())  # here
one_line("real memory", lambda x: x + (x.data_ptr() == x.data_ptr()))  # here
one_line("sparse tensor", lambda x: x.to_sparse().to_dense() + 1)  # here
one_line("unsupported tensor", lambda x: x.conj().real * 2, torch.ones(2, dtype=torch.complex64).conj())  # here
one_line("tensor attribute", lambda x: x + (x.grad_fn is None))  # here
one_line("nested compiler", lambda x: torch.compile(lambda y: y + 1, backend="eager")(x))  # here
one_line("torch.func transform", lambda x: torch.vmap(lambda row: row * 2, chunk_size=1)(x))  # here
one_line("operation failed", lambda x: attempt(lambda: x @ x))  # here
one_line("unsupported argument", lambda x: torch.ones(2, 3, out=(x,)[0].double().float()[:, :2]))  # here
one_line("time", lambda x: x + 0 * time.time())  # here
one_line("imports", lambda x: x + __import__("this_module_is_not_there_yet", fromlist=["value"]).value)  # here


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or the type of the error."""
    try:
        return function()  # here
    except RuntimeError as error:
        return type(error).__name__


@fires("disabled function")
def disabled_function() -> Program:
    @minicompile.disable
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return (lambda x: helper(x) + 1), (matrix(),)  # here


@fires("random seed")
def random_seed() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)  # here
        return x + torch.rand(3)

    return function, (matrix(),)


@fires("optimizer")
def optimizer() -> Program:
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)

    def function(x: torch.Tensor) -> torch.Tensor:
        scheduler.step()  # here
        return x + 1

    return function, (matrix(),)


@fires("global torch setting")
def global_torch_setting() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(torch.get_num_threads())  # here
        return x + 1

    return function, (matrix(),)


@fires("autograd call")
def autograd_call() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((x * x).sum(), x)  # here
        return gradient + 1

    return function, (matrix().requires_grad_(),)


@fires("custom autograd function")
def custom_autograd_function() -> Program:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            print(end="")
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    return (lambda x: Twice.apply(x) + 1), (matrix().requires_grad_(),)  # here


@fires("checkpoint")
def checkpointed() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint(lambda y: y.sin(), x, use_reentrant=False, debug=True)  # here

    return function, (matrix().requires_grad_(),)


@fires("tensor hook")
def tensor_hook() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * 2)  # here
        return x * 2

    return function, (matrix().requires_grad_(),)


@fires("recurrent network")
def recurrent_network() -> Program:
    torch.manual_seed(0)
    layer = torch.nn.GRU(3, 2)
    return (lambda x: layer(x)[0] + 1), (matrix(),)  # here


@fires("tensor subclass")
def tensor_subclass() -> Program:
    class Marked(torch.Tensor):
        pass

    return (lambda x: (x * 2).as_subclass(torch.Tensor)), (matrix().as_subclass(Marked),)  # here


@fires("higher-order operator")
def higher_order_operator() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))  # here

    return function, (matrix(),)


@fires("unsupported instruction")
def unsupported_instruction() -> Program:
    line = sys._getframe().f_lineno  # here
    shown = compile("\n" * (line - 1) + "3", __file__, "single")  # as at the prompt, where values are printed
    return types.FunctionType(shown, {}), ()


@fires("unsupported value")
def unsupported_value() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        class Local(metaclass=abc.ABCMeta):  # here
            scale = 3

        return x * Local.scale

    return function, (matrix(),)


@fires("iterator")
def iterator() -> Program:
    return (lambda x, values: x + next(values)), (matrix(), iter({1, 2, 3}))  # here


@fires("asynchronous code")
def asynchronous_code() -> Program:
    async def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return (lambda x: asyncio.run(scaled(x))), (matrix(),)  # here


@fires("user object")
def user_object() -> Program:
    class Key:
        asked = 0

        def __hash__(self) -> int:
            Key.asked += 1
            return 3

    def function(x: torch.Tensor) -> torch.Tensor:
        table = {}
        table[Key()] = 2  # here
        return x * table[Key()]

    return function, (matrix(),)


@fires("recursion")
def recursion() -> Program:
    def descend(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else descend(x, depth - 1) + 1  # here

    return (lambda x: descend(x, 200)), (matrix(),)


@fires("shared memory")
def shared_memory() -> Program:
    def function(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:  # here
        x.add_(1)
        return row * 2

    x = matrix()
    return function, (x, x[0])


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Fallbacks warn; that is another test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_every_registered_kind_has_a_program() -> None:
    assert set(PROGRAMS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_kind_says_what_why_where_and_what_to_do(kind: str) -> None:
    function, args = PROGRAMS[kind]()
    with pytest.raises(Unsupported) as caught:
        capture(function, fullgraph=True)(*args)
    error, text = caught.value, str(caught.value)
    assert error.kind == kind
    assert KINDS[kind].explanation in text and KINDS[kind].hint in text and KINDS[kind].hint
    assert any(os.path.samefile(place.file, __file__) for place in error.stack)
    lines = open(__file__).read().splitlines()
    assert any("# here" in lines[place.line - 1] for place in error.stack if os.path.samefile(place.file, __file__))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_kind_costs_no_correctness(kind: str) -> None:
    (function, args), (twin, twin_args) = PROGRAMS[kind](), PROGRAMS[kind]()
    compiled = capture(twin)
    for _ in range(2):
        try:
            expected: Any = function(*args)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(*twin_args)
            continue
        assert equal(compiled(*twin_args), expected)
        assert all(equal(left, right) for left, right in zip(args, twin_args, strict=True) if type(left) is torch.Tensor)
