"""Generators from outside that have not begun: traced to their end, as if the function had made them.

Nobody can tell such a generator from one that has run elsewhere, if it has ended where the captured code does; then the user's
own is closed. One that is left before its end is not begun at all: the call is traced again.
"""

import functools
import inspect
import types
from typing import Any

from minicompile.capture.native import BREAKING_MODULES
from minicompile.capture.side_effects import Lazy
from minicompile.capture.source import Item, Source
from minicompile.capture.torch_interface import why_untraced
from minicompile.capture.tracer import COROUTINE_FLAGS, Frame, Generator, TraceAgain, Tracer

KEPT_OUT: set[types.CodeType] = set()
"""The codes of functions of which no generator begins while tracing."""


def keep_out(function: Any) -> None:
    """Have no generator of a function begin while tracing."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isgeneratorfunction(function):
        KEPT_OUT.add(function.__code__)


def begin(tracer: Tracer, real: Any) -> Generator | None:
    """The traced generator that stands for one from outside; `None` if that has begun or cannot be traced."""
    begun = tracer.effects.generators.get(id(real))
    if begun is not None:
        return begun[1]
    if not tracer.begins or type(real) is not types.GeneratorType:
        return None
    code, frame = real.gi_code, real.gi_frame
    strange = code.co_freevars or code.co_flags & (COROUTINE_FLAGS | inspect.CO_ITERABLE_COROUTINE)  # cells are out of reach
    if strange or not has_not_begun(real, code, frame and frame.f_globals):
        return None
    function = tracer.made(types.FunctionType(code, frame.f_globals, real.__name__))
    function.__qualname__ = real.__qualname__
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if code in KEPT_OUT or package in BREAKING_MODULES or why_untraced(function) is not None:
        return None
    source = tracer.sources[id(real)]
    tracer.guards.test(source, "{1}({0}, {2}, {3})", (has_not_begun, code, frame.f_globals),
                       f"`{{0}}` is a generator of {real.__qualname__} that has not begun", "identity")
    held, variables = Source(source, "{0}.gi_frame.f_locals"), frame.f_locals
    generator = Generator(tracer, tracer.with_cells(Frame(function, {
        name: Lazy(Item(held, name), variables[name]) for name in parameters(code)})))
    tracer.effects.generators[id(real)] = (real, generator)
    return generator


def has_not_begun(generator: Any, code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a generator of some code waits at its start."""
    if generator.gi_code is not code or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
        return False
    return generator.gi_frame.f_globals is namespace


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """The names of all parameters."""
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]


def check_begun(tracer: Tracer) -> None:
    """Trace again, without beginning any, where one is left before its end."""
    if not all(generator.finished for _, generator in tracer.effects.generators.values()):
        raise TraceAgain(begins=False)
