"""Rules for the builtins that compare: sorting, searching, heaps, bisection and the combinations of sets.

Where the user's objects are among what is compared, native code works on stand-ins for them (`comparing`).
"""

import bisect
import collections
import functools
import heapq
import types
from typing import Any

from minicompile.capture.calls import Callback, call_pure, method, run_native, special
from minicompile.capture.comparing import standing, standing_inside
from minicompile.capture.iteration import native_iterable
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
    result = run_native(tracer, search, tuple(standing(tracer, item) for item in args), kwargs)
    if name == "remove" and seen is not owner:
        place = next(place for place, item in enumerate(before) if place == len(seen) or item is not seen[place])
        native_base(owner).__delitem__(owner, place)
    return result


for _name, _kinds in (("index", (list, tuple, collections.deque)), ("count", (list, tuple, collections.deque)),
                      ("remove", (list, collections.deque))):
    method(_kinds, _name)(functools.partial(searching, _name))


class StandIns:
    """Containers of stand-ins for native code, and the way back to what they stand for.

    Attributes:
        needed: there were objects to stand for.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.needed = tracer, False
        self.originals: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """What stands for an element."""
        found = standing(self.tracer, value)
        self.needed = self.needed or found is not value
        self.originals[id(found)] = value
        return found

    def inside(self, container: Any) -> Any:
        """A container of the same kind that holds stand-ins."""
        force(self.tracer, container)
        return native_base(container)(map(self.of, elements(container)))

    def original(self, value: Any) -> Any:
        """What native code gave: an element, a new set of elements, or something else."""
        if type(value) in SETS:
            return self.tracer.made(type(value)(map(self.original, value)))
        return self.originals.get(id(value), value)


def on_a_sorted_list(function: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a function of `heapq` or `bisect`, which may move the elements of the list that it is given first."""
    if not args or not isinstance(args[0], list):
        return call_pure(tracer, function, args, kwargs)
    stand_ins, key = StandIns(tracer), kwargs.get("key")
    seen = stand_ins.inside(args[0])
    if key is not None:
        kwargs["key"] = lambda item: standing(tracer, Callback(tracer, key)(stand_ins.original(item)))
    try:
        result = run_native(tracer, function, (seen, *map(stand_ins.of, args[1:2]), *args[2:]), kwargs)
    finally:
        list.__setitem__(args[0], slice(None), map(stand_ins.original, seen))
    return tracer.resolve(stand_ins.original(result))


for _function in (*vars(heapq).values(), *vars(bisect).values()):
    if isinstance(_function, types.BuiltinFunctionType):
        special(_function)(functools.partial(on_a_sorted_list, _function))


def combined(tracer: Tracer, function: Any, owner: Any, others: Args) -> Any:
    """What a method or operator of sets makes of a set and others."""
    stand_ins = StandIns(tracer)
    seen, *given = map(stand_ins.inside, (owner, *others))
    result = run_native(tracer, function, (seen, *given) if stand_ins.needed else (owner, *others), {})
    if not stand_ins.needed:
        return result if result is owner else tracer.made(result)
    if result is not seen and result is not None:
        return stand_ins.original(result)
    kept = {id(stand_ins.original(item)) for item in seen}
    set.difference_update(owner, [item for item in elements(owner) if id(item) not in kept])
    set.update(owner, map(stand_ins.original, seen))
    return owner if result is seen else None


def combining(name: str, tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """The rule of a method of sets that takes other iterables."""
    others = tuple(item if isinstance(item, SETS) else run_native(tracer, list, (native_iterable(tracer, item),), {})
                   for item in args)
    return combined(tracer, getattr(native_base(owner), name), owner, others)


for _name in ("union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint"):
    method(SETS, _name)(functools.partial(combining, _name))
for _name in ("update", "intersection_update", "difference_update", "symmetric_difference_update"):
    method(set, _name)(functools.partial(combining, _name))
