"""A question to CPython, answered in a microsecond: were these dictionaries, or the types of these objects, changed?

CPython 3.12 and later tell of every change to a dictionary that somebody watches (`PyDict_Watch`), and torch keeps the
number of the latest such change in the process for each dictionary. We change a dictionary of our own and look at its
number: if it grew by more than one since the last time, another watched dictionary was changed in between. In CPython 3.11
every dictionary holds a number that every change of it replaces (PEP 509), the fourth word of its memory.

Nobody tells of an object's new type or `__dict__`. CPython 3.11 to 3.14 keep the type in the second word of an object, and the
`__dict__`, if it exists as an object of its own, in the third word ahead of it. All such words are read at once.

Private name used, the same in torch 2.11 to 2.15: `torch._C._dynamo.guards.dict_version`. All of this is tried when this is
imported, and not used where it fails. Must not know what is in the dictionaries, nor decide which are worth watching.
CPython's flags of classes are named here, too.
"""

import gc
import struct
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch._C._dynamo.guards import dict_version

WORD = struct.calcsize("P")
# Flags of classes: whose objects have their `__dict__` where it is read here, of which only C makes instances, whose attributes
# cannot be set, that a `class` statement made, and that a pattern with one positional part matches whole.
MANAGED_DICT, NEVER_INSTANTIATED, IMMUTABLE, HEAP_TYPE, MATCHES_ITSELF = 1 << 4, 1 << 7, 1 << 8, 1 << 9, 1 << 22
PROBE: dict[int, Any] = {}
LATEST = types.SimpleNamespace(number=-1, epoch=object())
"""The number of our own latest change, and the epoch that began with the latest change of anybody else's."""


def epoch() -> object:
    """An object that stays the same as long as no watched dictionary is changed.

    Threads may come between any two steps: then the number has grown too much, which begins a new epoch for nothing. A
    new epoch is set before the number from which later changes are counted, so that no thread can miss it.
    """
    before = LATEST.number
    PROBE[0] = []
    number = dict_version(PROBE)
    if number != before + 1:
        LATEST.epoch = object()
    LATEST.number = number
    return LATEST.epoch


def words_at(places: Sequence[int]) -> Callable[[], bytes]:
    """A function that reads the words at some addresses: as an array over all that is between them, which is not looked at."""
    first = min(places)
    size, kind = (max(places) - first) // WORD + 1, np.dtype(np.uintp).str
    layout = {"data": (first, True), "shape": (size,), "typestr": kind, "version": 3}
    memory = np.asarray(types.SimpleNamespace(__array_interface__=layout))
    wanted = np.array([(place - first) // WORD for place in places])
    return lambda: memory.take(wanted).tobytes()


def watch(tables: Sequence[Any], owners: Sequence[Any]) -> Callable[[], object]:
    """A function that gives the same as long as no dictionary among `tables` is changed and each of the `owners`, of types with
    `MANAGED_DICT`, is of the type and has the `__dict__` that it has now. Whoever calls it has all of them alive."""
    places = [id(owner) + word * WORD for owner in owners for word in (1, -3)]
    if sys.version_info < (3, 12):
        return words_at([*(id(table) + 3 * WORD for table in tables), *places])
    for table in tables:
        dict_version(table)
    words = words_at(places)
    return lambda: (epoch(), words())


class Sample:
    """An object whose attributes are changed to see whether that is noticed; 3.13.0 misses changes made in this way."""

    value: object


class OtherSample(Sample):
    """What a sample becomes."""


def table_behind(value: Any) -> Any:
    """The dictionary of which a class's `__dict__` is a view; anything else as it is."""
    return gc.get_referents(value)[0] if type(value) is types.MappingProxyType else value


def is_reliable() -> bool:
    """Whether changes are noticed and counted here as described above."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample = Sample()
    tables = PROBE, vars(sample), table_behind(vars(Sample))
    state = watch(tables, [sample])
    states = [state()]
    for _ in range(20):  # often enough for CPython to specialise the store
        for owner in (sample, Sample):
            owner.value = object()
            states.append(state())
    for owner in (sample, Sample):
        del owner.value
        states.append(state())
    if state() != states[-1]:
        return False
    read = words_at([id(sample) + WORD, id(sample) - 3 * WORD])
    for change in ("__dict__", dict(vars(sample))), ("__class__", OtherSample):
        setattr(sample, *change)
        states.append(state())
        if read() != struct.pack("2P", id(type(sample)), id(sample.__dict__)):
            return False
    return len(set(states)) == len(states)


RELIABLE = is_reliable()
