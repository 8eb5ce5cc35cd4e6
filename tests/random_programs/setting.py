"""The classes and functions that every random program finds around it.

The text of this module stands at the top of each program, so that each has classes of its own.
"""

# ruff: noqa: F401

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import operator
import weakref
from typing import Any

import torch

Pair = collections.namedtuple("Pair", "left right")
LOG: list[Any] = []
TOTALS = {"n": 0}


class Positive:
    """A data descriptor that refuses negative numbers."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, owner, kind=None):
        return self if owner is None else owner.__dict__.get(self.name, 1)

    def __set__(self, owner, value):
        LOG.append(("set", self.name))
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{self.name} is {value}")
        owner.__dict__[self.name] = value


class Box:
    """Properties, descriptors, missing attributes, a call, items, a context, an order, an iterator."""

    made = 0
    scale = Positive()

    def __init__(self, value, *items):
        type(self).made += 1
        self.value = value
        self.items = list(items)
        self._reads = 0

    @property
    def double(self):
        self._reads += 1
        return self.value * 2

    @double.setter
    def double(self, value):
        self.value = value * 0.5

    @functools.cached_property
    def lazy(self):
        LOG.append("lazy")
        return self.value + len(self.items)

    @classmethod
    def of(cls, *values):
        return cls(values[0], *values[1:])

    @staticmethod
    def joined(*values):
        return sum(value.sum() for value in values)

    def __getattr__(self, name):
        if name.startswith("missing"):
            return len(name)
        raise AttributeError(f"no {name}")

    def __call__(self, z, k=2):
        self.items.append(k)
        return z * k + self.scale

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __contains__(self, value):
        return any(item is value for item in self.items)

    def __iter__(self):
        for item in self.items:
            yield item
        LOG.append("iterated")

    def __enter__(self):
        LOG.append("enter")
        return self.value

    def __exit__(self, kind, error, trace):
        LOG.append(("exit", kind and kind.__name__))
        return kind is KeyError

    def __add__(self, other):
        return type(self)(self.value + (other.value if isinstance(other, Box) else other))

    def __radd__(self, other):
        return type(self)(other + self.value, "r")

    def __iadd__(self, other):
        self.value = self.value + other
        return self

    def __lt__(self, other):
        return len(self.items) < len(other.items)

    def __eq__(self, other):
        return isinstance(other, Box) and len(self.items) == len(other.items)

    def __hash__(self):
        return 5


class Crate(Box):
    """A subclass with `super()` and an overridden property."""

    def __init__(self, value, *items):
        super().__init__(value, *items, "crate")

    @property
    def double(self):
        return super().double + 1

    def __bool__(self):
        LOG.append("bool")
        return len(self.items) > 1


class Slotted:
    """Slots, one of which may be unset."""

    __slots__ = ("left", "right")

    def __init__(self, left):
        self.left = left


@dataclasses.dataclass
class Record:
    """A dataclass with defaults made anew."""

    value: Any
    count: int = 0
    parts: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.parts.append(self.count)

    def grown(self, by=1):
        return dataclasses.replace(self, count=self.count + by, parts=[*self.parts])


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    """A frozen dataclass with an order."""

    rank: int
    name: str = "frozen"


class Mode(enum.Enum):
    """An enumeration with a method."""

    ADD = "add"
    MUL = "mul"

    def apply(self, a, b):
        return getattr(torch, self.value)(a, b)


class Steps:
    """An iterator written by hand."""

    def __init__(self, value, count):
        self.value, self.left = value, count

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.value + self.left


class Odd(Exception):
    """An exception of the user's own, with a field."""

    def __init__(self, text, payload=None):
        super().__init__(text)
        self.payload = payload


class Block(torch.nn.Module):
    """A module with a parameter, a buffer and a counter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 2.0]))
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, z):
        self.calls += 1
        self.seen += z.numel()
        if self.training:
            z = z + self.seen
        return z * self.weight.sum()


def counted(z, seen=[]):
    seen.append(z.dim())
    return z * len(seen)


def recurse(z, depth):
    return z if depth <= 0 else recurse(z + 1, depth - 1)


def gen(items, k=1):
    LOG.append("gen starts")
    try:
        for number, item in enumerate(items):
            got = yield item * number
            if got is not None:
                LOG.append(("got", got))
                k += 1
    finally:
        LOG.append("gen ends")
    return k


def chained(items):
    result = yield from gen(items, 2)
    LOG.append(result)
    yield items[-1]


def guarded(z, k=0):
    try:
        if z.dim() == k:
            raise Odd(f"{k} dims", z)
        return z[0]
    except Odd as error:
        LOG.append(str(error))
        return error.payload * 2
    finally:
        LOG.append("guarded")


def first_large(items, least):
    for number, item in enumerate(items):
        try:
            if item.dim() < 1:
                continue
            if item.numel() >= least:
                return number, item
        finally:
            TOTALS["n"] += 1
    else:
        return -1, None


def helper(a, b):
    a = a.clone()
    if a.shape == b.shape:
        a += b
        return a
    return b


def picked(*args, a=None, b=None, **more):
    TOTALS["n"] += len(args) + len(more)
    return b if TOTALS["n"] % 2 else a


def wrapped(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        inner.calls += 1
        return function(*args, **kwargs)

    inner.calls = 0
    return inner


@wrapped
def scaled(z, k=3):
    LOG.append(k)
    return z * k


@contextlib.contextmanager
def opened(where, swallow=False):
    where.append("open")
    try:
        yield where
    except ValueError:
        if not swallow:
            raise
        where.append("swallowed")
    finally:
        where.append("close")
