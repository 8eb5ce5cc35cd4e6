"""Two questions to CPython, answered in a fraction of a microsecond: was a dictionary changed, are these the same objects.

CPython tells of every change to a dictionary that somebody watches (`PyDict_Watch`, 3.12 and later), and torch keeps the
number of the latest such change in the process for each dictionary. We change a dictionary of our own and look at its
number: if it grew by more than one since the last time, another watched dictionary was changed in between.

Private name used, the same in torch 2.11 to 2.13: `torch._C._dynamo.guards.dict_version`. That a tuple holds the addresses
of its items one after the other is how CPython 3.11 to 3.14 lays it out. Both are tried when this is imported, and not used
where they fail. Must not know what is in the dictionaries, nor decide which are worth watching.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import types
from collections.abc import Iterable
from typing import Any

from torch._C._dynamo.guards import dict_version

watch = dict_version
"""Have all later changes of a dictionary noticed."""


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


class Sample:
    """An object whose attributes are changed to see whether that is noticed; 3.13.0 misses changes made in this way."""

    value: object


def is_reliable() -> bool:
    """Whether changes are noticed and counted here as described above."""
    if sys.version_info < (3, 12) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample, objects = Sample(), [sys, PROBE]
    watch(PROBE), watch(vars(sample))
    epochs = [epoch()]
    for _ in range(20):  # often enough for CPython to specialise the store
        sample.value = object()
        epochs.append(epoch())
    del sample.value
    epochs.append(epoch())
    noticed = len(set(map(id, epochs))) == len(epochs) and epoch() is epochs[-1]
    return noticed and addresses(objects) == struct.pack("2P", *map(id, objects))


def addresses(objects: Iterable[Any]) -> bytes:
    """The identities of some objects, as long as these are kept alive; read from the memory of a tuple of them."""
    items = tuple(objects)
    return ctypes.string_at(id(items) + tuple.__basicsize__, POINTER_SIZE * len(items))


POINTER_SIZE = struct.calcsize("P")
RELIABLE = is_reliable()
