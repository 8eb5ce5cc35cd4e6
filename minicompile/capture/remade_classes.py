"""Classes that `collections.namedtuple` made inside of a function, another one in each call, as they come in from outside.

Any class that looks like the first one will do in its place: capture guards that, and fetches the class again in each call.
"""

import collections
import sys
import types
from typing import Any

from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import contents

FIELD: Any = type(vars(collections.namedtuple("Pair", "one two"))["one"])

def is_remade(kind: type) -> bool:
    """Whether a class is one that `namedtuple` makes in each call of a function: no module holds it by its name."""
    if kind.__bases__ != (tuple,) or "_field_defaults" not in kind.__dict__:
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind


def looks_like(kind: Any, first: Any) -> bool:
    """Whether nothing tells a class that `namedtuple` made from the one that was there when its caller was captured."""
    if kind is first:
        return True
    if type(kind) is not type or not is_remade(kind) or kind.__qualname__ != first.__qualname__:
        return False
    return kind.__dict__.keys() == first.__dict__.keys() and all(
        alike(kind.__dict__[name], value) for name, value in first.__dict__.items())


def alike(one: Any, other: Any) -> bool:
    """Whether two entries of such classes are the same, or were made by the same code."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (staticmethod, classmethod)):
        return alike(one.__func__, other.__func__)
    if isinstance(one, types.FunctionType):
        held, expected = ([it.__defaults__, it.__kwdefaults__, *map(contents, it.__closure__ or ())] for it in (one, other))
        return one.__code__ == other.__code__ and alike(held, expected)
    if isinstance(one, FIELD):
        return bool(one.__reduce__() == other.__reduce__())
    if isinstance(one, (tuple, list)) and type(one) in (tuple, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in other)
    return one is other or type(one) in (str, int, bool, float) and one == other
