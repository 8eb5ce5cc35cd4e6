"""Two questions to CPython, answered in a fraction of a microsecond: was a dictionary changed, are these the same objects.

CPython 3.12 and later tell of every change to a dictionary that somebody watches (`PyDict_Watch`), and torch keeps the
number of the latest such change in the process for each dictionary. We change a dictionary of our own and look at its
number: if it grew by more than one since the last time, another watched dictionary was changed in between. In CPython 3.11
every dictionary holds a number that every change of it replaces (PEP 509), the fourth word of its memory.

Private name used, the same in torch 2.11 to 2.13: `torch._C._dynamo.guards.dict_version`. That the last word but one of a
list says where the addresses of its items lie, one after the other, is how CPython 3.11 to 3.14 lays it out. All of this is
tried when this is imported, and not used where it fails. Must not know what is in the dictionaries, nor decide which are
worth watching.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import struct
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch._C._dynamo.guards import dict_version

WORD = struct.calcsize("P")
character, pointer_at = ctypes.c_char, ctypes.c_size_t.from_address
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


def watch(tables: Iterable[Any]) -> Callable[[], object]:
    """A function that gives the same as long as no dictionary among `tables`, which are to be kept alive, is changed."""
    if sys.version_info < (3, 12):
        words = [memoryview((ctypes.c_char * WORD).from_address(id(table) + 3 * WORD)) for table in tables]
        return functools.partial(b"".join, words)
    for table in tables:
        dict_version(table)
    return epoch


class Sample:
    """An object whose attributes are changed to see whether that is noticed; 3.13.0 misses changes made in this way."""

    value: object


def table_behind(value: Any) -> Any:
    """The dictionary of which a class's `__dict__` is a view; anything else as it is."""
    return gc.get_referents(value)[0] if type(value) is types.MappingProxyType else value


def is_reliable() -> bool:
    """Whether changes are noticed and counted here as described above."""
    if sys.version_info < (3, 11) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample, objects = Sample(), [sys, PROBE]
    tables = PROBE, vars(sample), table_behind(vars(Sample))
    state = watch(tables)
    states = [state()]
    for _ in range(20):  # often enough for CPython to specialise the store
        for owner in (sample, Sample):
            owner.value = object()
            states.append(state())
    for owner in (sample, Sample):
        del owner.value
        states.append(state())
    noticed = len(set(states)) == len(states) and state() == states[-1]
    if noticed and sys.version_info < (3, 12):
        noticed = states[-1] == struct.pack("3Q", *map(dict_version, tables))
    return noticed and addresses(objects) == struct.pack("2P", *map(id, objects))


def addresses(objects: list[Any]) -> bytes:
    """The identities of some objects, as long as these are kept alive; read from the memory of their list."""
    items = pointer_at(id(objects) + list.__basicsize__ - 2 * WORD).value
    return (character * (WORD * len(objects))).from_address(items).raw


RELIABLE = is_reliable()
