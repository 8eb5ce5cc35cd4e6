"""What native code asks of the user's objects when it sorts, searches and hashes: which are equal, which is smaller.

A stand-in has the tracer answer. Python's own tables hold the objects themselves; which of their keys a key equals is
found out with stand-ins first. Must not decide what an operator means.
"""

import collections
import enum
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import elements, entries, native_base
from minicompile.capture.symbolic_size import concrete, is_symbolic
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import CONSTANT_TYPES, IDENTITY_TYPES, force, hash_by_looking

PLAIN = (FakeTensor, *IDENTITY_TYPES)
SEQUENCES = (tuple, list, set, frozenset, collections.deque)
MOST_KEYS = 64
"""With more keys than this to be asked at each look-up, tracing would take too long."""
IDENTITY_HASHES = (object.__hash__, torch.Tensor.__hash__, torch.nn.Module.__hash__)


class Asked:
    """An object of the user's as native code sees it."""

    def __init__(self, tracer: Tracer, value: Any) -> None:
        self.tracer, self.value = tracer, value

    def __hash__(self) -> int:
        if type(self.value).__hash__ is object.__hash__:
            return 0  # so that the identity of two objects is always asked for, and guarded
        answer = concrete(hash_by_looking(self.tracer, self.value))
        if hash(self.value) != answer:
            raise Break("user object", f"hashing an object of type {type(self.value).__name__} depends on what was changed")
        return int(answer)

    def __repr__(self) -> str:
        return str(self.answer(repr))

    def answer(self, function: Callable[..., Any], *others: Any) -> Any:
        """What the tracer makes of a builtin that native code calls."""
        tracer = self.tracer
        if any(standing(tracer, other) is not other for other in others if type(other) is not Asked):
            raise Break("user object", f"an object of type {type(self.value).__name__} is compared with a container")
        given = (other.value if type(other) is Asked else other for other in others)
        return tracer.call_from_native(function, (self.value, *given))


def comparison(function: Callable[..., Any]) -> Callable[[Asked, Any], bool]:
    """The special method of `Asked` for a comparison."""
    return lambda self, other: bool(self.tracer.call(bool, (self.answer(function, other),)))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Asked, f"__{_name}__", comparison(getattr(operator, _name)))


def is_compared_in_python(value: Any) -> bool:
    """Whether comparing or hashing a value runs Python code of its class; what all enums have is known."""
    methods = (getattr(type(value), name, None) for name in ("__eq__", "__hash__", "__lt__"))
    return any(isinstance(method, types.FunctionType) and method is not enum.Enum.__hash__ for method in methods)


def standing(tracer: Tracer, value: Any) -> Any:
    """A value as native code may compare and hash it: stand-ins for objects and for numbers that vary, of which PyTorch's
    own comparisons know no truths and no NaN; the value itself if there are none in it."""
    if type(value) in CONSTANT_TYPES or isinstance(value, PLAIN):
        return value
    if isinstance(value, enum.Enum) and not is_compared_in_python(value):
        return value
    if is_symbolic(value) or is_compared_in_python(value) or not isinstance(value, (dict, *SEQUENCES)):
        return tracer.global_values.setdefault((id(value), "as native code sees it"), Asked(tracer, value))
    return standing_inside(tracer, value)


def standing_inside(tracer: Tracer, value: Any) -> Any:
    """A container as native code may compare it with another one; anything else as it is."""
    if not isinstance(value, (dict, *SEQUENCES)) or is_compared_in_python(value):
        return value
    force(tracer, value, False)
    if isinstance(value, dict):
        pairs = [(standing(tracer, key), standing(tracer, item)) for key, item in entries(value)]
        same = all(new is old for pair, before in zip(pairs, entries(value), strict=True) for new, old in zip(pair, before))
        return value if same else native_base(value)(pairs)
    items = [standing(tracer, item) for item in elements(value)]
    return value if all(map(operator.is_, items, elements(value))) else native_base(value)(items)


def hash_of(asked: Any) -> int:
    """The hash of a value as native code sees it."""
    try:
        return hash(asked)
    except TypeError as error:
        if "SymInt" in str(error):
            raise Break("user object", "an object that holds numbers that vary is hashed") from None
        raise RaisedInUserCode(error.with_traceback(None)) from None


def settled(tracer: Tracer, table: Any, key: Any) -> Any:
    """The key of a table (or element of a set) that equals `key`, asked through the tracer; `key` if there is none."""
    key = concrete(key)
    asked = standing(tracer, key)
    keys = elements(table)
    one_of_each_type = {type(other): other for other in keys}.values()
    if asked is key and not isinstance(key, FakeTensor) and not any(map(is_compared_in_python, one_of_each_type)):
        return key
    if len(keys) > MOST_KEYS:
        if isinstance(key, (FakeTensor, torch.nn.Module)) and type(key).__hash__ in IDENTITY_HASHES:
            return key  # as in walks over large models, whose parts are taken to stay different
        if sum(standing(tracer, other) is not other for other in keys) > MOST_KEYS:
            raise Break("user object", f"an object of type {type(key).__name__} is looked up in a large table")
    if any(other is key for other in keys):
        return key
    hashed = hash_of(asked)
    for other in keys:
        if isinstance(key, FakeTensor) or isinstance(other, FakeTensor):
            tracer.call(operator.is_, (other, key))  # a guard
        elif hash_of(standing(tracer, other)) == hashed and standing(tracer, other) == asked:
            return other
    return key


def settled_all(tracer: Tracer, items: Any) -> list[Any]:
    """The elements of a set or keys of a dictionary made of `items`, in their order; which are equal is asked."""
    kept: dict[Any, Any] = {}
    for item in map(concrete, items):
        asked = standing(tracer, item)
        hash_of(asked)
        kept.setdefault(asked, item)
    return list(kept.values())


def refuse_objects(tracer: Tracer, *values: Any) -> Any:
    """The last of some values that native code hashes or compares, and keeps; refuses objects, which have to be asked."""
    if any(standing(tracer, value) is not value and not is_symbolic(value) for value in values):
        raise Break("user object", "objects are hashed or compared by a function written in C")
    return values[-1] if values else None


ITEMS = ("__getitem__", "__setitem__", "__delitem__", "__contains__")
BY_ITEMS = frozenset("update setdefault pop popitem copy or_ ior __init__ __or__ __ior__ __ror__".split())
"""What an `OrderedDict` does by the methods for items of its class, unlike a dictionary."""


def refuse_own_items(name: str, owner: Any, args: Args, kwargs: Keywords) -> None:
    """Refuse a function written in C that would call the item methods which the class of an `OrderedDict` has in Python."""
    if name not in BY_ITEMS or not isinstance(owner, dict) and len(args) + len(kwargs) < 2:
        return
    for table in (owner, *args):
        if isinstance(table, collections.OrderedDict) and any(
                isinstance(getattr(type(table), item), types.FunctionType) for item in ITEMS):
            raise Break("user object", f"items of an object of type {type(table).__name__} are used by a function written in C")
