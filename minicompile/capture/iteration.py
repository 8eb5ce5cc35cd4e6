"""Iteration on the symbolic stack: what can be iterated natively, what runs the user's `__iter__` and `__next__`."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch

from minicompile.capture.attributes import class_lookup, defines
from minicompile.capture.begun_generators import begin
from minicompile.capture.break_kinds import Break, Control, RaisedInUserCode
from minicompile.capture.calls import RecordTorch, invoke_special
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import MISSING, NATIVE_BASES
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Generator, Tracer
from minicompile.capture.values import force, guard_order, is_outside


def get_iterator(tracer: Tracer, value: Any) -> Any:
    """`iter(value)`, as an object that `advance` understands."""
    if isinstance(value, FakeTensor):
        if value.dim() == 0:
            raise RaisedInUserCode(TypeError("iteration over a 0-d tensor"))
        return tracer.made(iter(tracer.operation("call_method", "unbind", (value, 0))))
    kind = type(value)
    method, _ = class_lookup(tracer, kind, "__iter__")
    if isinstance(method, types.FunctionType) and not isinstance(value, OURS):
        iterator = tracer.resolve(invoke_special(tracer, value, "__iter__"))
        if not hasattr(type(iterator), "__next__"):
            raise RaisedInUserCode(TypeError(f"iter() returned non-iterator of type '{type(iterator).__name__}'"))
        return iterator
    if isinstance(value, NATIVE_BASES):
        force(tracer, value, False)
        if isinstance(value, (set, frozenset)):
            guard_order(tracer, value)
        return tracer.made(iter(value))
    if method is MISSING and defines(tracer, kind, "__getitem__"):
        return tracer.call(by_index, (value,))
    if is_outside(tracer, value):
        if hasattr(kind, "__next__"):
            return value
        raise Break("unsupported value", f"iteration over an object of type {kind.__name__}")
    try:
        return tracer.made(iter(concrete(value)))
    except TypeError as error:
        raise RaisedInUserCode(error.with_traceback(None)) from None


def by_index(value: Any) -> Iterator[Any]:
    """The old iteration protocol, to be traced: `value[0]`, `value[1]`, ... until `IndexError`."""
    place = 0
    while True:
        try:
            item = value[place]
        except (IndexError, StopIteration):
            return
        yield item
        place += 1


class Remaining:
    """What an iterator of the traced program still gives, for native code."""

    def __init__(self, tracer: Tracer, iterator: Any) -> None:
        self.tracer, self.iterator = tracer, iterator

    def __iter__(self) -> Remaining:
        return self

    def __next__(self) -> Any:
        return self.tracer.resolve(advance(self.tracer, self.iterator))


class Iterables(Remaining):
    """The same, where each element is iterated over in turn."""

    def __next__(self) -> Any:
        return native_iterable(self.tracer, super().__next__())


OURS = (Generator, Remaining)


def advance(tracer: Tracer, iterator: Any) -> Any:
    """`next(iterator)`, possibly lazy; raises `StopIteration` at the end."""
    if defines(tracer, type(iterator), "__next__") and not isinstance(iterator, OURS):
        try:
            return tracer.resolve(invoke_special(tracer, iterator, "__next__"))
        except RaisedInUserCode as error:
            if isinstance(error.value, StopIteration):
                raise StopIteration(*error.value.args) from None
            raise
    if is_outside(tracer, iterator):
        iterator = begin(tracer, iterator)
        if iterator is None:
            raise Break("iterator", "an iterator that was made outside of the captured code is advanced")
    try:
        if type(iterator) in (map, filter):
            with RecordTorch(tracer):
                return tracer.resolve(next(iterator))
        return tracer.resolve(next(iterator))
    except (StopIteration, Control, RecursionError):
        raise
    except Exception as error:  # an iterator is user code, which raises what it likes
        raise RaisedInUserCode(error.with_traceback(None)) from None


def native_iterable(tracer: Tracer, value: Any) -> Any:
    """A value over which native code can iterate."""
    if isinstance(value, NATIVE_BASES):
        if defines(tracer, type(value), "__iter__"):
            return list(drain(tracer, value))
        force(tracer, value, False)
        if isinstance(value, (set, frozenset)):
            guard_order(tracer, value)
        return value
    if (type(value).__module__ == "builtins" or type(value) is itertools._tee) and not is_outside(tracer, value):
        return value
    by_index = defines(tracer, type(value), "__getitem__")
    if isinstance(value, torch.Tensor) or is_outside(tracer, value) or hasattr(type(value), "__iter__") or by_index:
        if isinstance(value, OURS):
            return value
        iterator = get_iterator(tracer, value)
        return iterator if isinstance(iterator, OURS) else Remaining(tracer, iterator)
    return value


def drain(tracer: Tracer, value: Any) -> Remaining:
    """The elements of a traced value, for native code."""
    return Remaining(tracer, get_iterator(tracer, value))
