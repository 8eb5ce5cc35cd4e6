"""Iteration on the symbolic stack: what can be iterated natively, what runs the user's `__iter__` and `__next__`."""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from minicompile.capture.attributes import class_lookup, get_attribute
from minicompile.capture.break_kinds import CONTROL, Break, RaisedInUserCode
from minicompile.capture.calls import RecordTorch, call
from minicompile.capture.side_effects import MISSING
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Tracer
from minicompile.capture.upcoming import is_plain, outside_iterator
from minicompile.capture.values import force, guard_order, is_outside

DIRECT = (list, tuple, dict, set, frozenset, str, bytes, range, collections.deque)


def get_iterator(tracer: Tracer, value: Any) -> Any:
    """`iter(value)`, as an object that `advance` understands."""
    if isinstance(value, FakeTensor):
        if value.dim() == 0:
            raise RaisedInUserCode(TypeError("iteration over a 0-d tensor"))
        return tracer.made(iter(tracer.operation("call_method", "unbind", (value, 0))))
    kind = type(value)
    method, _ = class_lookup(tracer, kind, "__iter__")
    if isinstance(method, types.FunctionType) and not hasattr(kind, "resume"):
        return call(tracer, get_attribute(tracer, value, "__iter__"), (), {})
    if isinstance(value, DIRECT):
        force(tracer, value, False)
        if isinstance(value, (set, frozenset)):
            guard_order(tracer, value)
        return tracer.made(iter(value))
    if is_outside(tracer, value):
        if hasattr(kind, "__next__"):
            return value
        raise Break("unsupported value", f"iteration over an object of type {kind.__name__}")
    if method is MISSING and isinstance(class_lookup(tracer, kind, "__getitem__")[0], types.FunctionType):
        return tracer.made(iterate_by_index(tracer, value))
    try:
        return tracer.made(iter(value))
    except TypeError as error:
        raise RaisedInUserCode(error) from None


def iterate_by_index(tracer: Tracer, value: Any) -> Any:
    """The old iteration protocol: `value[0]`, `value[1]`, ... until `IndexError`."""
    position = 0
    while True:
        try:
            item = call(tracer, get_attribute(tracer, value, "__getitem__"), (position,), {})
        except RaisedInUserCode as error:
            if isinstance(error.value, IndexError):
                return
            raise
        yield item
        position += 1


def advance(tracer: Tracer, iterator: Any) -> Any:
    """`next(iterator)`, possibly lazy; raises `StopIteration` at the end."""
    if is_outside(tracer, iterator):
        known = outside_iterator(tracer, iterator)
        if known is not None:
            return next(known)
        kind = type(iterator)
        method, _ = class_lookup(tracer, kind, "__next__")
        if not isinstance(method, types.FunctionType):
            raise Break("iterator", "an iterator that was made outside of the captured code is advanced")
    method, _ = class_lookup(tracer, type(iterator), "__next__")
    if isinstance(method, types.FunctionType) and not hasattr(type(iterator), "resume"):
        try:
            return tracer.resolve(call(tracer, get_attribute(tracer, iterator, "__next__"), (), {}))
        except RaisedInUserCode as error:
            if isinstance(error.value, StopIteration):
                raise StopIteration(error.value.value) from None
            raise
    try:
        if type(iterator) in (map, filter):
            with RecordTorch(tracer):
                return tracer.resolve(next(iterator))
        return tracer.resolve(next(iterator))
    except (StopIteration, *CONTROL):
        raise
    except Exception as error:
        raise RaisedInUserCode(error) from None


def native_iterable(tracer: Tracer, value: Any) -> Any:
    """A value over which native code can iterate."""
    if isinstance(value, DIRECT):
        if isinstance(class_lookup(tracer, type(value), "__iter__")[0], types.FunctionType):
            return list(drain(tracer, value))
        force(tracer, value, False)
        if isinstance(value, (set, frozenset)):
            guard_order(tracer, value)
        return value
    if type(value).__module__ == "builtins" and not is_outside(tracer, value):
        return value
    if isinstance(value, torch.Tensor) or is_outside(tracer, value) or hasattr(type(value), "__iter__"):
        if hasattr(type(value), "resume"):
            return value
        iterator = get_iterator(tracer, value)
        native = is_plain(iterator) and not is_outside(tracer, iterator)
        return iterator if native or hasattr(type(iterator), "resume") else rest(tracer, iterator)
    return value


def drain(tracer: Tracer, value: Any) -> Any:
    """A native generator over the elements of a traced value."""
    yield from rest(tracer, get_iterator(tracer, value))


def rest(tracer: Tracer, iterator: Any) -> Any:
    """A native generator over what an iterator still gives."""
    while True:
        try:
            item = tracer.resolve(advance(tracer, iterator))
        except StopIteration:
            return
        yield item
