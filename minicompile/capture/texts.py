"""What native code asks of the user's objects when it turns them into text. A stand-in has the tracer answer.

Text that would show an address, a fake tensor or a symbol is refused.
"""

from __future__ import annotations

import collections
import enum
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch

from minicompile.capture.attributes import HEAP_TYPE, read_slot
from minicompile.capture.break_kinds import Break
from minicompile.capture.side_effects import elements, entries
from minicompile.capture.source import is_trusted_module
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Tracer
from minicompile.capture.values import CONSTANT_TYPES, IDENTITY_TYPES, VALUES, force, is_outside

CONTAINERS = (list, dict, set, frozenset, tuple, collections.deque)
TEXT_METHODS = ("__str__", "__repr__", "__format__", "__getitem__", "__missing__")
SAID_BY_C = (*IDENTITY_TYPES, FakeTensor, torch.nn.Module)


def is_of_users_class(value: Any) -> bool:
    """Whether methods of the user's may run where the standard library is given a value."""
    kind = type(value)
    ours = isinstance(value, (FakeTensor, enum.Enum)) or kind.__module__.startswith("minicompile.")
    return bool(kind.__flags__ & HEAP_TYPE) and not ours and not is_trusted_module(kind.__module__)


class Shown:
    """An object of the user's as native code turns it into text."""

    def __init__(self, tracer: Tracer, value: Any) -> None:
        self.__tracer, self.__value = tracer, value

    def __answer(self, function: Any, *args: Any) -> Any:
        tracer = self.__tracer
        native, tracer.native = tracer.native, False
        try:
            return tracer.call(function, (self.__value, *args))
        finally:
            tracer.native = native

    def __str__(self) -> str:
        return self.__answer(str)

    def __repr__(self) -> str:
        return self.__answer(repr)

    def __format__(self, specification: str) -> str:
        return self.__answer(format, specification)

    def __getattr__(self, name: str) -> Any:
        return as_shown(self.__tracer, self.__answer(getattr, name))

    def __getitem__(self, key: Any) -> Any:
        return as_shown(self.__tracer, self.__answer(operator.getitem, key))


def as_shown(tracer: Tracer, value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A value as native code may turn it into text: stand-ins for objects, also those in lists, tuples and dictionaries."""
    kind = type(value)
    if kind in (list, tuple, dict) and id(value) not in seen:
        force(tracer, value, False)
        inside = (*seen, id(value))
        if kind is dict:
            return {as_shown(tracer, key, inside): as_shown(tracer, item, inside) for key, item in entries(value)}
        return kind([as_shown(tracer, item, inside) for item in value])
    if not kind.__flags__ & HEAP_TYPE or isinstance(value, SAID_BY_C) or kind.__module__.startswith("minicompile.capture"):
        return value
    in_python = any(isinstance(getattr(kind, name, None), types.FunctionType) for name in TEXT_METHODS)
    return Shown(tracer, value) if in_python or not isinstance(value, (*VALUES, *CONTAINERS)) else value


def text_of_exception(tracer: Tracer, function: Any, error: BaseException) -> str:
    """`str` or `repr` of an exception that says no more than its arguments."""
    args = read_slot(tracer, vars(BaseException)["args"], error)
    alone = len(args) == 1
    if function is repr:
        inside = tracer.call(repr, args if alone else (args,))
        return f"{type(error).__name__}({inside})" if alone else f"{type(error).__name__}{inside}"
    function = repr if isinstance(error, KeyError) and alone else str
    return tracer.call(function, args if alone else (args,)) if args else ""


SAYS_ITS_ARGUMENTS = (BaseException.__str__, BaseException.__repr__, KeyError.__str__)


def leaves(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """What is in a container, and in those inside of it; a value that is none, itself."""
    if not isinstance(value, CONTAINERS) or type(value) in CONSTANT_TYPES:
        yield value
        return
    seen = set() if seen is None else seen
    if id(value) not in seen:
        seen.add(id(value))
        for part in (*elements(value), *(dict.values(value) if isinstance(value, dict) else ())):
            yield from leaves(part, seen)


def check_printable(tracer: Tracer, value: Any, symbols: bool = True) -> None:
    """Refuse to print what would show an address, a fake tensor or a symbol (with `symbols` the caller spells those out)."""
    force(tracer, value)
    for leaf in leaves(value):
        if isinstance(leaf, FakeTensor):
            raise Break("input or output", "a tensor is turned into text")
        if is_symbolic(leaf) and not symbols or type(leaf).__repr__ is object.__repr__ or (
                isinstance(leaf, (types.FunctionType, torch.nn.Module))
                or is_outside(tracer, leaf) and not isinstance(leaf, (*CONSTANT_TYPES, *IDENTITY_TYPES, enum.Enum))):
            raise Break("unsupported value", f"an object of type {type(leaf).__name__} is turned into text")
