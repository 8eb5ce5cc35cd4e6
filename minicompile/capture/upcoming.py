"""Builtin iterators from outside, such as those of a loop in which the graph broke: what they give next, without taking it.

A variant depends on how many elements are left only as far as it took them, so that the steps of a loop share one variant.
Must not run any of the user's code: iterators that would (`map`, generators, subclasses) are not looked into.
"""

import collections
import contextlib
import gc
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from minicompile.capture.break_kinds import Break
from minicompile.capture.side_effects import MISSING, Lazy, is_changed
from minicompile.capture.source import Item, Source
from minicompile.capture.tracer import Tracer

TABLES = tuple(type(made(view)) for made in (iter, reversed) for view in ({}, {}.values(), {}.items()))
PLAIN = (type(iter([])), type(iter(())), type(iter(range(0))), type(reversed([])), reversed, type(iter("")), type(iter("é")),
         type(reversed(range(0))), *TABLES)
COMBINING = (itertools.combinations, itertools.combinations_with_replacement, itertools.permutations, itertools.product,
             itertools.repeat, itertools.count)  # which have taken all that they need where they are made
IMMUTABLE = (tuple, range, str)
CONTAINERS = (*IMMUTABLE, list, dict)


def is_plain(iterator: Any) -> bool:
    """Whether an iterator of Python's own gives what a container holds."""
    return type(iterator) in PLAIN or type(iterator) in (enumerate, zip, *COMBINING)


def written_down(iterator: Any) -> tuple[Any, ...]:
    """How an iterator says that it is made anew at its place: a class, arguments and perhaps a state."""
    warns = type(iterator).__module__ == "itertools"  # since 3.12
    with warnings.catch_warnings(action="ignore") if warns else contextlib.nullcontext():
        reduced: tuple[Any, ...] = iterator.__reduce__()
        return reduced


def copied(iterator: Any, parts: dict[int, Any]) -> Any:
    """Another iterator that stands where `iterator` stands, or `MISSING`; adds what both read from to `parts`, by id."""
    if id(iterator) in parts:
        return parts[id(iterator)][1]
    kind, copy = type(iterator), MISSING
    if kind in PLAIN or kind in COMBINING:
        container = next((held for held in gc.get_referents(iterator) if isinstance(held, CONTAINERS)), None)
        if container is not None:
            parts[id(container)] = (container, None)
        try:
            maker, args, *state = written_down(iterator)
        except RuntimeError:  # the dictionary has changed
            return MISSING
        if kind in COMBINING or type(args[0]) in CONTAINERS:
            copy = maker(*args)
            if state and state[0] is not None:
                copy.__setstate__(state[0])
    elif kind in (enumerate, zip):
        maker, args, *state = iterator.__reduce__()
        args = [copied(item, parts) if hasattr(item, "__next__") else item for item in args]
        if MISSING not in args:
            copy = maker(*args, **({"strict": True} if state else {}))
    parts[id(iterator)] = (iterator, copy)
    return copy


def upcoming(iterator: Any, count: int) -> tuple[Any, ...]:
    """At most `count` of the elements that an iterator gives next; it stays where it is."""
    return tuple(itertools.islice(copied(iterator, {}), count))


def reads_alone(iterator: Any, others: tuple[Any, ...]) -> bool:
    """Whether an iterator reads from none of some other iterators and containers, nor from what they read."""
    mine: dict[int, Any] = {}
    theirs: dict[int, Any] = {}
    copied(iterator, mine)
    for other in others:
        copied(other, theirs)
    changing = [part for part, (value, _) in mine.items() if type(value) not in IMMUTABLE]
    return theirs.keys().isdisjoint(changing) and not any(id(other) in changing for other in others)


def skip(iterator: Any, count: int) -> None:
    """Advance an iterator; asked for more than it has, it is at its end."""
    collections.deque(itertools.islice(iterator, count), maxlen=0)


class UpcomingElements(Source):
    """As many elements of an iterator as the captured code asked for."""

    __slots__ = ("asked",)

    def __init__(self, parent: Source) -> None:
        super().__init__(parent, "", "upcoming({0})")
        self.asked = 0

    def expression(self, base: str, constant: Any) -> str:
        return f"{constant(upcoming, 'upcoming')}({base}, {self.asked})"


class OutsideIterator:
    """How far the captured code has advanced an iterator of the user's, who does not see it yet.

    Attributes:
        real: the user's iterator; copy: one of ours that moves while tracing.
        parts: the iterators and containers from which it reads, by id.
        asked: how often it was advanced, the end included; source: what it gave.
    """

    def __init__(self, tracer: Tracer, real: Any) -> None:
        self.tracer, self.real = tracer, real
        self.parts: dict[int, Any] = {}
        self.copy: Iterator[Any] = copied(real, self.parts)
        self.source = UpcomingElements(tracer.sources[id(real)])
        self.guard: Any = None
        self.given = 0

    @property
    def asked(self) -> int:
        """How often it was advanced."""
        return self.source.asked

    def can_advance(self) -> bool:
        """Whether what it gives next is known: nothing that it reads from was changed or advanced by the captured code."""
        effects = self.tracer.effects
        shadows = [effects.by_real[part] for part in self.parts if part in effects.by_real]
        return self.copy is not MISSING and not any(map(is_changed, shadows)) and reads_alone(
            self.real, tuple(other.real for other in effects.iterators.values() if other is not self and other.asked))

    def __next__(self) -> Any:
        """The next element, which nobody has looked at."""
        try:
            item = next(self.copy, MISSING) if self.source.asked == self.given else MISSING
        except ValueError:
            raise Break("iterator", "a strict `zip` finds that the lengths differ") from None
        if self.guard is None:
            self.tracer.guards.test(self.source, "len({0}) == {1}", (0,), "`{0}` are as many", "structure")
            self.guard = self.tracer.guards.items[-1]
        self.source.asked = self.given + 1
        if item is MISSING:
            raise StopIteration
        self.given += 1
        self.guard.constants = (self.given,)
        return Lazy(Item(self.source, self.given - 1), item)


def outside_iterator(tracer: Tracer, real: Any) -> OutsideIterator | None:
    """How far an iterator from outside has been advanced, or `None` if nobody can tell what it gives next."""
    iterators = tracer.effects.iterators
    if id(real) not in iterators and is_plain(real):
        iterators[id(real)] = OutsideIterator(tracer, real)
    found = iterators.get(id(real))
    return found if found is not None and found.can_advance() else None


def guard_independence(tracer: Tracer) -> None:
    """Guard that what the captured code changed is not what the iterators that it advanced read from."""
    effects = tracer.effects
    advanced = [each for each in effects.iterators.values() if each.asked]
    changed = [(each.real, tracer.sources[id(each.real)]) for each in advanced]
    if advanced:
        changed.extend((shadow.real, shadow.source) for shadow in effects.changed_shadows()
                       if isinstance(shadow.real, CONTAINERS))
    for each in advanced:
        others = [(real, source) for real, source in changed if real is not each.real]
        if others and reads_alone(each.real, tuple(real for real, _ in others)):
            tracer.guards.test(tracer.sources[id(each.real)], "{1}({0}, ({every},))", (reads_alone,),
                               "`{0}` reads nothing that is changed", "overlap", others=tuple(source for _, source in others))
