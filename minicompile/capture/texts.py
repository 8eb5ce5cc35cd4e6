"""What native code may turn into text: nothing that would show an address, a fake tensor or a symbol, or run the user's code.

Text of an f-string that shows tensors is made behind the graph, and only where somebody needs it.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

from minicompile.capture.break_kinds import Break
from minicompile.capture.cpython_interface import HEAP_TYPE
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import Lazy, elements
from minicompile.capture.source import Source, is_trusted_module
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Tracer
from minicompile.capture.values import CONSTANT_TYPES, IDENTITY_TYPES, RULES, TensorMethod, force, is_outside

CONTAINERS = (list, dict, set, frozenset, tuple, collections.deque)
TEXT_METHODS = ("__str__", "__repr__", "__format__", "__getitem__", "__missing__")
WITHOUT_ATTRIBUTES = (torch.Tensor, enum.Enum, types.FunctionType, types.MethodType, *IDENTITY_TYPES)
"""Values that show nothing else of themselves while tracing, beside constants and containers."""


def is_of_users_class(value: Any) -> bool:
    """Whether methods of the user's may run where the standard library is given a value."""
    kind = type(value)
    ours = isinstance(value, (FakeTensor, enum.Enum)) or kind.__module__.startswith("minicompile.")
    return bool(kind.__flags__ & HEAP_TYPE) and not ours and not is_trusted_module(kind.__module__)


def parts(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """A value, what is in it if it is a container, and in those inside of it."""
    yield value
    seen = set() if seen is None else seen
    if is_container(value) and id(value) not in seen:
        seen.add(id(value))
        more = (*dict.values(value), getattr(value, "default_factory", None)) if isinstance(value, dict) else ()
        for part in (*elements(value), *more):
            yield from parts(part, seen)


def is_container(value: Any) -> bool:
    """Whether `parts` looks inside of a value."""
    return isinstance(value, CONTAINERS) and type(value) not in CONSTANT_TYPES


def leaves(value: Any) -> Iterator[Any]:
    """What is in a container, and in those inside of it; a value that is none, itself."""
    return (part for part in parts(value) if not is_container(part))


def refuse_attributes(values: tuple[Any, ...], label: str) -> None:
    """Refuse what may have attributes, which code that nobody follows would read as they were before the call, without guards."""
    for leaf in leaves(values):
        if not (isinstance(leaf, WITHOUT_ATTRIBUTES) or type(leaf) in CONSTANT_TYPES or is_symbolic(leaf)):
            raise Break("unknown call", f"{label} is given an object of type {type(leaf).__name__}")


def check_printable(tracer: Tracer, value: Any, symbols: bool = True) -> None:
    """Refuse to print what shows an address, a tensor or a symbol, and objects that say in Python what is printed."""
    refuse_addresses(tracer, value, symbols)
    for part in parts(value):
        if isinstance(part, BaseException):
            check_printable(tracer, part.args, symbols=False)
        methods = (getattr(type(part), name, None) for name in TEXT_METHODS)
        if is_of_users_class(part) and any(isinstance(method, types.FunctionType) for method in methods):
            raise Break("user object", f"an object of type {type(part).__name__} is turned into text by a function written in C")


def refuse_addresses(tracer: Tracer, value: Any, symbols: bool = True) -> None:
    """Refuse what would show an address, a fake tensor or a symbol (with `symbols` the caller spells those out)."""
    force(tracer, value)
    written = [id(namespace) for namespace, _ in tracer.effects.globals.values()]
    for leaf in leaves(value):
        if isinstance(leaf, FakeTensor):
            raise Break("input or output", "a tensor is turned into text")
        if is_symbolic(leaf) and not symbols or type(leaf).__repr__ is object.__repr__ or (
                isinstance(leaf, types.ModuleType) and id(vars(leaf)) in written) or (
                isinstance(leaf, SHOW_OTHERS)
                or is_outside(tracer, leaf) and not isinstance(leaf, (*CONSTANT_TYPES, *IDENTITY_TYPES, enum.Enum))):
            raise Break("unsupported value", f"an object of type {type(leaf).__name__} is turned into text")


SHOW_OTHERS = (types.FunctionType, types.MethodType, TensorMethod, torch.nn.Module, functools.partial, staticmethod, classmethod,
               types.SimpleNamespace, *map(type, ({}.keys(), {}.values(), {}.items())))
"""Types whose text shows an address, or objects that are found in none of the containers."""


class TensorText(tuple[Any, ...]):
    """The parts of a text that shows tensors: plain text, and tensors with how they are shown and their version then.

    On the stack it is a lazy value, so that whoever looks at it ends the graph.
    """


PLAIN_FORM = re.compile(r"[<>^]?\d*(\.\d+)?[efg%]")
"""How numbers of every type may be shown."""


def shown_later(tracer: Tracer, value: Any, form: str) -> bool:
    """Whether a value is a tensor that can be shown behind the graph as well."""
    graph = tracer.graph
    if not isinstance(value, FakeTensor) or value.is_inference() or not (tracer.picks and graph.inside is graph.region is None):
        return False
    return not form or not value.dim() and not value.is_complex() and PLAIN_FORM.fullmatch(form) is not None


def lazy_text(*parts: Any) -> Lazy:
    """A text that shows tensors, as it is passed around."""
    return Lazy(Source(None, "", "a text that shows a tensor"), TensorText(parts))


def is_tensor_text(value: Any) -> bool:
    """Whether a value on the stack is text that shows tensors."""
    return type(value) is Lazy and type(value.real) is TensorText


def joined(tracer: Tracer, values: list[Any]) -> Any:
    """The parts of an f-string as one text."""
    parts = [value.real if is_tensor_text(value) else (tracer.resolve(value),) for value in values]
    pieces = list(itertools.chain.from_iterable(parts))
    return lazy_text(*pieces) if any(type(piece) is tuple for piece in pieces) else "".join(pieces)


def needed(tracer: Tracer, text: TensorText, source: Source) -> Any:
    """Ends the graph where the text is looked at."""
    raise Break("input or output", "the text of a tensor is needed")


RULES[TensorText] = needed
