"""Rules for the builtins that compare: sorting, searching, counting, heaps, bisection and the combinations of sets.

Where the user's objects are among what is sorted or searched, native code works on stand-ins for them (`comparing`).
"""

import bisect
import collections
import functools
import heapq
import types
from typing import Any

from minicompile.capture.attributes import defines
from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import Callback, call_pure, method, run_native, special
from minicompile.capture.comparing import refuse_objects, standing, standing_inside
from minicompile.capture.iteration import native_iterable
from minicompile.capture.kinds import isinstance
from minicompile.capture.side_effects import elements, native_base
from minicompile.capture.tracer import Args, Keywords, Tracer
from minicompile.capture.values import force

SETS = (set, frozenset)


def ordering_key(tracer: Tracer, key: Any) -> Any:
    """What native code sorts by: the user's key, of which objects are asked for their order."""
    return lambda item: standing(tracer, tracer.resolve(item) if key is None else Callback(tracer, key)(item))


@method(list, "sort")
def rule_sort(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`l.sort(...)`."""
    force(tracer, owner)
    keywords = {**kwargs, "key": ordering_key(tracer, kwargs.get("key"))}
    return run_native(tracer, functools.partial(list.sort, owner), args, keywords)


def searching(name: str, tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """The rule of a method of sequences that looks for an equal element."""
    force(tracer, (owner, args))
    seen = standing_inside(tracer, owner)
    before = elements(seen)
    search = functools.partial(getattr(native_base(owner), name), seen)
    result = run_native(tracer, search, (*(standing(tracer, item) for item in args[:1]), *args[1:]), kwargs)
    if name == "remove" and seen is not owner:
        place = next(place for place, item in enumerate(before) if place == len(seen) or item is not seen[place])
        native_base(owner).__delitem__(owner, place)
    return result


for _name, _kinds in (("index", (list, tuple, collections.deque)), ("count", (list, tuple, collections.deque)),
                      ("remove", (list, collections.deque))):
    method(_kinds, _name)(functools.partial(searching, _name))


def on_a_sorted_list(function: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a function of `heapq` or `bisect`."""
    if kwargs.get("key") is not None:
        kwargs = {**kwargs, "key": ordering_key(tracer, kwargs["key"])}
    return call_pure(tracer, function, args, kwargs)


for _function in (*vars(heapq).values(), *vars(bisect).values()):
    if isinstance(_function, types.BuiltinFunctionType):
        special(_function)(functools.partial(on_a_sorted_list, _function))


def combined(tracer: Tracer, function: Any, owner: Any, others: Args) -> Any:
    """What a method or operator of sets makes of a set and others."""
    refuse_objects(tracer, *(item for group in (owner, *others) for item in elements(group)))
    result = run_native(tracer, function, (owner, *others), {})
    return result if result is owner else tracer.made(result)


def combining(name: str, tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """The rule of a method of sets that takes other iterables."""
    others = tuple(item if isinstance(item, SETS) else run_native(tracer, list, (native_iterable(tracer, item),), {})
                   for item in args)
    return combined(tracer, getattr(native_base(owner), name), owner, others)


for _name in ("union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint"):
    method(SETS, _name)(functools.partial(combining, _name))
for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    method(set, _name)(functools.partial(combining, _name))


@special(collections._count_elements)
def rule_count_elements(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """What a `Counter` counts with."""
    if any(defines(tracer, type(args[0]), name) for name in ("get", "__setitem__")):
        raise Break("user object", f"items of an object of type {type(args[0]).__name__} are counted by a function written in C")
    return call_pure(tracer, collections._count_elements, args, kwargs)
