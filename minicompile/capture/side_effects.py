"""Stand-ins for the user's mutable objects while tracing, and what changed in them.

A container that comes from outside is copied into a *shadow* of the same type, on which Python's own methods run; the
original is compared with its snapshot when the frame ends. Nothing here touches the user's objects, and nothing here
writes code: `reconstruct` turns the changes into statements.
"""

import collections
import types
from typing import Any

from minicompile.capture.kinds import isinstance
from minicompile.capture.source import Source

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


class Lazy:
    """A value from outside that has not been looked at: no guard depends on it yet."""

    __slots__ = ("source", "real", "resolved")

    def __init__(self, source: Source, real: Any) -> None:
        self.source, self.real, self.resolved = source, real, MISSING


class Shadow:
    """A copy of a container (or cell) of the user's, with what it held at first.

    Attributes:
        real: the user's object; source: where it is; copy: the stand-in on which tracing works.
        before: the elements (list), items (dict) or contents (cell) at first, possibly lazy.
        structure_guarded: length and keys are already guarded.
        absent: keys that were looked up and not found.
    """

    __slots__ = ("real", "source", "copy", "before", "structure_guarded", "absent", "present")

    def __init__(self, real: Any, source: Source, copy: Any, before: Any) -> None:
        self.real, self.source, self.copy, self.before = real, source, copy, before
        self.structure_guarded = False
        self.absent: set[Any] = set()
        self.present: set[Any] = set()


def same(now: Any, before: Any) -> bool:
    """Whether a slot still holds what it held at first."""
    return now is before or (type(before) is Lazy and before.resolved is not MISSING and before.resolved is now)


def typed(value: Any) -> Any:
    """A key or an element with its type and the sign of its zeros: `1`, `True` and `1.0` are equal, and `0.0` and `-0.0`."""
    if isinstance(value, (tuple, frozenset)):
        return (type(value), *map(typed, value))
    return (type(value), value, repr(value)) if type(value) in (float, complex) and not value else (type(value), value)


class SideEffects:
    """Shadows by identity, and stores to attributes and globals that have no shadow.

    Attributes:
        shadows: id of the stand-in to its shadow.
        attributes: (id of object, name) to (object, value) for slots, classes and modules.
        globals: (id of globals dictionary, name) to (dictionary, value).
        generators: id of a generator from outside to it and the traced one that stands for it.
    """

    def __init__(self) -> None:
        self.shadows: dict[int, Shadow] = {}
        self.attributes: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.generators: dict[int, tuple[Any, Any]] = {}

    def add(self, shadow: Shadow) -> None:
        """Register a new shadow."""
        self.shadows[id(shadow.copy)] = shadow

    def any_pending(self) -> bool:
        """Whether the user's objects are not yet what the traced program made of them."""
        stored = self.attributes or self.globals or self.generators
        return bool(stored) or any(map(differs_from_the_original, self.changed_shadows()))

    def written(self) -> list[int]:
        """The identities of all that is written so far."""
        held = (contents(shadow.copy) for shadow in self.changed_shadows())
        parts = ((*now, *now.values()) if isinstance(now, dict) else now for now in held)
        stored = self.attributes.values(), self.globals.values(), self.generators.values()
        return [id(item) for part in (*stored, *parts) for item in part]

    def changed_shadows(self) -> list[Shadow]:
        """The shadows whose contents differ from what they were at first."""
        return [shadow for shadow in self.shadows.values() if is_changed(shadow)]


def differs_from_the_original(shadow: Shadow) -> bool:
    """Whether a changed stand-in holds anything that the user's object does not hold now."""
    now, before = contents(shadow.copy), shadow.before
    if not isinstance(now, dict) or list(now) != list(before):
        return True
    return any(not same(value, before[key]) and not (type(before[key]) is Lazy and before[key].real is value)
               for key, value in now.items())


def native_base(value: Any) -> Any:
    """The builtin container whose methods read what a container holds, whatever methods its class overrides."""
    for base in NATIVE_BASES:  # a generator would take twice as long
        if isinstance(value, base):
            return base
    return None


NATIVE_BASES = (list, tuple, set, frozenset, collections.deque, collections.OrderedDict, dict, str, bytes, range)
"""Those containers, each ahead of what it is a subclass of, and what else Python iterates over by itself."""


def elements(container: Any) -> list[Any]:
    """The elements of a sequence or set, or the keys of a dictionary, in its own order."""
    return list(native_base(container).__iter__(container))


def entries(table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dictionary in its own order, whatever methods its class overrides."""
    return list(native_base(table).items(table))


def put(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set an item of a dictionary, whatever methods its class overrides."""
    native_base(table).__setitem__(table, key, value)


def contents(container: Any) -> Any:
    """A snapshot of a container, cell or set, comparable slot by slot."""
    if isinstance(container, dict):
        return dict(entries(container))
    if isinstance(container, (list, collections.deque)):
        return elements(container)
    if isinstance(container, types.CellType):
        try:
            return [container.cell_contents]
        except ValueError:
            return []
    return set(container)


def is_changed(shadow: Shadow) -> bool:
    """Whether the stand-in of a container differs from its snapshot."""
    now, before = contents(shadow.copy), shadow.before
    if isinstance(now, dict):
        if len(now) != len(before) or any(a is not b and typed(a) != typed(b) for a, b in zip(now, before, strict=True)):
            return True
        return any(not same(value, before[key]) for key, value in now.items())
    if isinstance(now, list):
        return len(now) != len(before) or not all(map(same, now, before))
    return set(map(typed, now)) != set(map(typed, before))
