"""How a conformance program is written down, and the register of all of them.

A program is a factory. Each time it is asked it returns fresh state: the callable, the calls to make in order, and
optionally an object whose state the caller can see afterwards:

    @program
    def scale_changes_between_calls():
        settings = {"scale": 2.0}

        def scaled(x):
            return x * settings["scale"]

        return scaled, [call(normal(3)), after(lambda: settings.update(scale=3.0), normal(3))], settings

This module knows nothing of compilers and compares nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch


@dataclasses.dataclass
class Call:
    """One call of the program: its arguments, what happens just before it, and the context it runs in."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Callable[[], Any] | None = None
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def call(*args: Any, **kwargs: Any) -> Call:
    """A plain call."""
    return Call(args, kwargs)


def after(action: Callable[[], Any], *args: Any, **kwargs: Any) -> Call:
    """A call made after `action` has changed something."""
    return Call(args, kwargs, before=action)


def under(context: Callable[[], contextlib.AbstractContextManager[Any]], *args: Any, **kwargs: Any) -> Call:
    """A call made inside a context manager."""
    return Call(args, kwargs, context=context)


@dataclasses.dataclass(frozen=True)
class Program:
    """A registered program.

    Attributes:
        name: the factory's name, unique in the suite.
        topic: the module it is written in.
        factory: returns the callable, the calls and (optionally) watched state; fresh each time.
        raises: the exception type that some call is meant to raise; without it an exception in eager is a mistake.
        backward: whether gradients are computed through outputs that require them.
        core: part of the quick subset that covers each topic once or twice.
    """

    name: str
    topic: str
    factory: Callable[[], tuple[Any, ...]]
    raises: type[BaseException] | None = None
    backward: bool = True
    core: bool = False

    def build(self) -> tuple[Callable[..., Any], list[Call], Any]:
        """The callable, the calls and the watched state, all fresh."""
        made = self.factory()
        return made[0], list(made[1]), made[2] if len(made) > 2 else None


PROGRAMS: dict[str, Program] = {}


def program(
    factory: Callable[[], tuple[Any, ...]] | None = None,
    *,
    raises: type[BaseException] | None = None,
    backward: bool = True,
    core: bool = False,
) -> Any:
    """Register a factory as a program, bare or with options."""

    def register(function: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        name = function.__name__
        if name in PROGRAMS:
            raise ValueError(f"two programs are called {name}")
        topic = function.__module__.rpartition(".")[2]
        PROGRAMS[name] = Program(name, topic, function, raises, backward, core)
        return function

    return register if factory is None else register(factory)


def all_programs() -> list[Program]:
    """Every program of the suite, in the order of the topic files."""
    for topic in topics():
        importlib.import_module(topic)
    return list(PROGRAMS.values())


def topics() -> Iterator[str]:
    """The module names of the topic files."""
    package = importlib.import_module("tests.conformance.programs")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
        yield f"{package.__name__}.{module.name}"


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed values; the harness seeds the generator before it asks a factory."""
    return torch.randn(shape).to(dtype)


def positive(*shape: int) -> torch.Tensor:
    """Values between 0.5 and 1.5."""
    return torch.rand(shape) + 0.5


def leaf(*shape: int) -> torch.Tensor:
    """A leaf that requires grad."""
    return torch.randn(shape, requires_grad=True)


def integers(*shape: int, low: int = 0, high: int = 10) -> torch.Tensor:
    """Random `int64` values in `[low, high)`."""
    return torch.randint(low, high, shape)


def count(*shape: int) -> torch.Tensor:
    """0, 1, 2, ... as floats in the given shape."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)
