"""Rules for `copy.copy` and `copy.deepcopy`. Objects are copied by their instance dictionaries; deep copies are a break."""

import collections
import copy
import enum
import types
from typing import Any

from minicompile.capture.attributes import class_lookup, instance_dict, python_method
from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import special
from minicompile.capture.side_effects import MISSING
from minicompile.capture.tracer import Tracer
from minicompile.capture.values import CONSTANT_TYPES, IDENTITY_TYPES, force

PLAIN_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.deque)
ATOMS = (*IDENTITY_TYPES, enum.Enum, types.FunctionType)
# Methods by which a class changes how its instances are copied.
COPY_METHODS = ("__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__",
                "__new__", "__getattr__")


@special(copy.copy)
def rule_copy(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    result, store = empty_twin(tracer, value)
    force(tracer, store, False)
    result.__dict__.update(store)
    return result


@special(copy.deepcopy)
def rule_deepcopy(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`copy.deepcopy(value)`: of tensors it copies memory, of objects it runs what they define."""
    raise Break("unknown call", "`copy.deepcopy` is called")


def empty_twin(tracer: Tracer, value: Any) -> tuple[Any, dict[str, Any]]:
    """A new instance of an object's class without attributes, and the attributes of the object."""
    kind = type(value)
    # With a dictionary and weak references at most, but no slots and no C layout.
    size = PlainInstance.__basicsize__ if kind.__weakrefoffset__ else object.__basicsize__
    plain = kind.__flags__ & (1 << 9) and kind.__base__ is not None and kind.__basicsize__ == size
    for method in COPY_METHODS:
        found, base = class_lookup(tracer, kind, method)
        plain = plain and (found is MISSING or base is object)
    store = instance_dict(tracer, value) if plain else None
    if store is None:
        raise Break("unknown call", f"`copy.copy` of an object of type {kind.__name__}")
    return tracer.made(object.__new__(kind)), store


class PlainInstance:
    """Has the layout of most classes."""
