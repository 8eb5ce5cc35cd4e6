"""The compilers that the suite can be run with, by name. Only this module of the suite imports them."""

from __future__ import annotations

import contextlib
import importlib.util
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

ENVIRONMENT_VARIABLE = "MINICOMPILE_CONFORMANCE"
STRICT = ("capture", "full-strict")
COMPILERS = ("eager", "capture", "full", "torch", "torch-aot", "torch-inductor")


def chosen() -> str:
    """The compiler named by the environment; without one, the deepest part of minicompile that exists."""
    name = os.environ.get(ENVIRONMENT_VARIABLE) or default()
    if name not in COMPILERS:
        raise ValueError(f"{ENVIRONMENT_VARIABLE}={name!r}; it takes one of {', '.join(COMPILERS)}")
    return name


def default() -> str:
    """The tracer with an eager backend once it exists, before that plain eager (which tests only the harness)."""
    return "capture" if importlib.util.find_spec("minicompile.capture.entry") else "eager"


@contextlib.contextmanager
def compiler(name: str) -> Iterator[Compile]:
    """The compile function called `name`, with what it needs in place around one program."""
    if name == "eager":
        yield lambda function: function
    elif name == "capture":
        yield captured_only
    elif name == "full":
        yield fully_compiled
    elif name == "full-strict":
        yield strictly_compiled
    else:
        with torch_compiler(
            {"torch": "eager", "torch-aot": "aot_eager", "torch-inductor": "inductor"}[name]
        ) as compile:
            yield compile


def captured_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """The tracer alone: graphs run by torch, one operation at a time."""
    from minicompile import config  # here, so that the suite's own tests run without the package
    from minicompile.capture.entry import CompiledCallable

    return CompiledCallable(function, operator.attrgetter("module.forward"), config.current().replace(suppress_errors=False))


def fully_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Everything, with eager's random numbers so that values can be compared."""
    import minicompile  # here, so that the suite's own tests run without the package

    return minicompile.compile(function, options={"fallback_random": True})


def strictly_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Everything, rounding where eager does and hiding no failure of the compiler."""
    import minicompile  # here, so that the suite's own tests run without the package

    options = {"fallback_random": True, "emulate_precision_casts": True, "suppress_errors": False}
    return minicompile.compile(function, options=options)


@contextlib.contextmanager
def torch_compiler(backend: str) -> Iterator[Compile]:
    """`torch.compile` with fresh caches and eager's random numbers."""
    import torch._dynamo  # slow to import, and only this compiler needs it
    import torch._inductor.config

    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        yield lambda function: torch.compile(function, backend=backend)
    torch._dynamo.reset()
