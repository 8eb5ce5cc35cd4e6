"""Rules for `copy.copy`, `copy.deepcopy` and `pickle.dumps`. Objects are copied by their instance dictionaries; what copies
itself is a break, and so is all that is pickled but constants.
"""

import collections
import copy
import enum
import pickle
import types
from collections.abc import Iterator
from typing import Any

from minicompile.capture.attributes import class_lookup, instance_dict, python_method
from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import run_native, special
from minicompile.capture.cpython_interface import HEAP_TYPE
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import MISSING, entries, put
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import CONSTANT_TYPES, IDENTITY_TYPES, force, is_outside

PLAIN_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.deque)
ATOMS = (*IDENTITY_TYPES, enum.Enum, types.FunctionType)
# Methods by which a class changes how its instances are copied.
COPY_METHODS = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__",
                "__getnewargs_ex__", "__new__", "__getattr__")


@special(copy.copy)
def rule_copy(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`copy.copy(value)`."""
    value = args[0]
    if type(value) in PLAIN_CONTAINERS:
        force(tracer, value, False)
        return tracer.made(value.copy())
    if type(value) in CONSTANT_TYPES or type(value) is tuple or isinstance(value, ATOMS):
        return value
    copier = python_method(tracer, type(value), "__copy__")
    if copier is not None:
        return tracer.call(copier, (value,))
    result, store = empty_twin(tracer, value, "copy")
    force(tracer, store, False)
    result.__dict__.update(store)
    return result


@special(copy.deepcopy)
def rule_deepcopy(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`copy.deepcopy(value)`."""
    memo = args[1] if args[1:] else Memo()
    if kwargs or type(memo) is not Memo:
        raise Break("unknown call", "`copy.deepcopy` with a memo")
    return deep_copy(tracer, args[0], memo)


class Memo(dict[int, Any]):
    """Copies by the id of the original."""


def deep_copy(tracer: Tracer, value: Any, memo: Memo) -> Any:
    """A copy of a value and of all that it holds; what occurs twice is copied once."""
    kind = type(value)
    if kind is slice:
        return slice(*(deep_copy(tracer, part, memo) for part in (value.start, value.stop, value.step)))
    if kind in CONSTANT_TYPES or isinstance(value, ATOMS) or is_symbolic(value):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, FakeTensor):
        raise Break("real memory", "`copy.deepcopy` of a tensor")
    copier = python_method(tracer, kind, "__deepcopy__")
    if copier is not None:
        return memo.setdefault(id(value), tracer.resolve(tracer.call(copier, (value, memo))))
    force(tracer, value, False)
    if kind is tuple:
        items = tuple(deep_copy(tracer, item, memo) for item in value)
        result: Any = value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return memo.setdefault(id(value), result)
    if kind in (list, set):
        result = memo[id(value)] = tracer.made(kind())
        add = result.append if kind is list else result.add
        for item in list(value):
            add(deep_copy(tracer, item, memo))
        return result
    if kind in (dict, collections.OrderedDict):
        result = memo[id(value)] = tracer.made(kind())
        source = value
    else:
        result, source = empty_twin(tracer, value, "deepcopy")
        memo[id(value)] = result
        force(tracer, source, False)
    target = result if isinstance(result, dict) else result.__dict__
    for key, item in entries(source):
        put(target, deep_copy(tracer, key, memo), deep_copy(tracer, item, memo))
    return result


@special(pickle.dumps)
def rule_dumps(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`pickle.dumps(value)` of constants and new containers of them, as libraries make keys of arguments."""
    if kwargs or len(args) != 1:
        raise Break("unknown call", "`pickle.dumps` with options")
    force(tracer, args[0])
    known = set()
    for part in pickled_parts(tracer, args[0]):
        if part in known:
            raise Break("unknown call", "`pickle.dumps` of what holds something twice")  # or another one that is equal
        known.add(part)
    return run_native(tracer, pickle.dumps, args, {})


def pickled_parts(tracer: Tracer, value: Any) -> Iterator[tuple[type, Any]]:
    """What `pickle` writes but once of constants and new containers of them; what may be one object gives the same twice."""
    kind = type(value)
    if kind in (str, bytes):
        yield kind, value
    elif kind in (tuple, list, dict) and not is_outside(tracer, value):
        if kind is not tuple:
            yield kind, id(value)
        for item in (*value.keys(), *value.values()) if kind is dict else value:
            yield from pickled_parts(tracer, item)
        if kind is tuple:
            yield kind, repr(value)
    elif value is not None and kind not in (bool, int, float):
        raise Break("unknown call", f"`pickle.dumps` of an object of type {kind.__name__}")


def empty_twin(tracer: Tracer, value: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """A new instance of an object's class without attributes, and the attributes of the object."""
    kind = type(value)
    # With a dictionary and weak references at most, but no slots and no C layout.
    size = PlainInstance.__basicsize__ if kind.__weakrefoffset__ else object.__basicsize__
    plain = kind.__flags__ & HEAP_TYPE and kind.__base__ is not None and kind.__basicsize__ == size
    for method in COPY_METHODS if name == "copy" else COPY_METHODS[1:]:
        found, base = class_lookup(tracer, kind, method)
        plain = plain and (found is MISSING or base is object)
    store = instance_dict(tracer, value) if plain else None
    if store is None:
        raise Break("unknown call", f"`copy.{name}` of an object of type {kind.__name__}")
    return tracer.made(object.__new__(kind)), store


class PlainInstance:
    """Has the layout of most classes."""
