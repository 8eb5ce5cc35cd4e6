"""Errors that Python raises and the program catches: their types, messages and causes are what it sees."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import threading

import torch

from tests.conformance.catalogue import after, call, count, program

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    value: int
    name: str = "none"


class Negative:
    def __len__(self):
        return -1


class Undecided:
    def __bool__(self):
        return 3


class NoIterator:
    def __iter__(self):
        return 5


def two(a, b, *, c=1):
    return a


def only_positional(a, /, b):
    return a


def only_keywords(*, a, b):
    return a


def stopping():
    yield 1
    raise StopIteration(3)


def shown(function):
    """What a program can see of an error."""
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error), error.args, type(error.__cause__).__name__


def unpack(value):
    a, b = value
    return a, b


def two_calls(outer):
    return outer, [call(count(3)), call(count(4))]


@program(core=True)
def arguments_that_do_not_fit():
    def outer(x):
        y = x * 2
        errors = [shown(lambda: two()), shown(lambda: two(1)), shown(lambda: two(1, 2, 3)), shown(lambda: two(1, 2, a=1))]
        errors += [shown(lambda: two(1, 2, z=1)), shown(lambda: only_positional(a=1, b=2)), shown(lambda: only_positional())]
        errors += [shown(lambda: only_keywords()), shown(lambda: only_keywords(1)), shown(lambda: only_keywords(a=1))]
        errors += [shown(lambda: (lambda a: a)()), shown(lambda: (lambda: 1)(2)), shown(lambda: two(**{1: 2}))]
        errors += [shown(lambda: Record()), shown(lambda: Record(1, 2, 3)), shown(lambda: Pair(1)), shown(lambda: Pair(1, c=2))]
        return y + 1, errors

    return two_calls(outer)


@program
def unpacking_what_cannot_be_unpacked():
    def outer(x):
        y = x * 2
        values = (5, None, [1], [1, 2, 3], "abc", {}, x.shape, iter([1]), (1, 2), x[:2])
        rest = itertools.count()
        return y, [shown(lambda: unpack(value)) for value in values], shown(lambda: unpack(rest)), next(rest)

    return two_calls(outer)


@program
def special_methods_with_wrong_answers():
    def outer(x):
        errors = [shown(lambda: len(Negative())), shown(lambda: bool(Negative())), shown(lambda: 1 if Undecided() else 2)]
        errors += [shown(lambda: list(NoIterator())), shown(lambda: [z for z in NoIterator()]), shown(lambda: list(stopping()))]
        errors += [shown(lambda: next(iter([])))]
        return x + 1, errors

    return two_calls(outer)


@program
def operators_on_tensors_that_do_not_fit():
    def outer(x):
        y = x * 2
        return y + 1, shown(lambda: x + [1]), shown(lambda: y < "a"), shown(lambda: x.shape[0] + "a"), shown(lambda: [1] - y)

    return two_calls(outer)


@program
def imports_that_fail():
    def outer(x):
        y = x * 2
        try:
            from torch import something_newer
        except ImportError as error:
            something_newer = error.name
        try:
            import math.nothing  # noqa: F401
        except ImportError as error:
            return y + 1, something_newer, type(error).__name__, str(error)
        return y

    def outer_with_fallback(x):
        try:
            from math import fused
        except ImportError:
            return outer(x)
        return fused(x)

    return two_calls(outer_with_fallback)


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("one", "two")

    @property
    def read_only(self):
        return self.one

    write_only = property(None, lambda self, value: None)


@program
def attributes_that_cannot_be_read_or_written():
    slotted, module = Slotted(), torch.nn.Linear(2, 2)
    slotted.one = 1

    def attempts(x):
        yield lambda: slotted.write_only
        yield lambda: setattr(slotted, "read_only", 1)
        yield lambda: delattr(slotted, "read_only")
        yield lambda: setattr(slotted, "three", 1)
        yield lambda: delattr(slotted, "three")
        yield lambda: slotted.two
        yield lambda: delattr(slotted, "two")
        yield lambda: delattr(x, "note")
        yield lambda: x.max(0).nothing
        yield lambda: setattr(module, "weight", x)
        yield lambda: dict(a=1, **{"a": 2})

    def f(x):
        seen = []
        for attempt in attempts(x):
            try:
                attempt()
            except Exception as error:
                seen.append((type(error).__name__, str(error)))
        return seen, x + 1

    return f, [call(count(3)), call(count(3))], slotted


@program
def attributes_written_and_deleted_again():
    class Base:
        level = 1

    class Derived(Base):
        level = 2

    slotted = Slotted()
    slotted.one = 1

    def f(x):
        x.note = "seen"
        del x.note
        y = x * 2
        y.note = 3
        del y.note
        slotted.two = 5
        del slotted.two
        del slotted.one
        kept = hasattr(x, "note"), hasattr(y, "note"), hasattr(slotted, "one"), hasattr(slotted, "two")
        slotted.one = 7
        del Derived.level
        inherited = Derived.level
        Derived.level = 4
        return y, kept, inherited, Derived.level, x.type()

    return f, [call(count(3)), call(count(3))], slotted


@program
def deletions_of_what_is_not_there():
    class Base:
        pass

    def f(x):
        seen = []
        for owner in (Base, Slotted(), math, x):
            try:
                del owner.one
            except AttributeError as error:
                seen.append(str(error))
        return seen, x + 1

    return f, [call(count(3)), call(count(3))]


@program
def thread_local_attributes():
    local = threading.local()
    local.depth = 0

    def f(x):
        local.depth += 1
        if local.depth % 3:
            x = f(x * 2)
        local.last = local.depth
        return x + local.depth

    return f, [call(count(3)), after(lambda: setattr(local, "depth", 4), count(3))], local.__dict__


@program
def matrices_that_cannot_be_factorised():
    def factor(x, jitter):
        while True:
            try:
                return torch.linalg.cholesky(x + jitter * torch.eye(2)), jitter
            except torch.linalg.LinAlgError as error:
                if not str(error).startswith("linalg.cholesky"):
                    raise
                jitter = jitter * 10 + 0.5

    def f(x, jitter):
        try:
            return torch.linalg.inv(x), factor(x, jitter)
        except RuntimeError as error:
            return str(error), type(error.__context__).__name__, factor(x, jitter)

    singular, negative = torch.ones(2, 2), -torch.eye(2)
    return f, [call(torch.eye(2).requires_grad_(), 0.0), call(singular, 0.0), call(negative, 0.0), call(torch.eye(2), 0.0)]


@program
def conditions_that_do_not_hold():
    def f(x, limit):
        try:
            torch._assert(x.sum() < limit, "too large")
            torch._assert_async(x.min() < limit)
        except (AssertionError, RuntimeError) as error:
            return str(error)
        return x * 2

    return f, [call(count(3), 10.0), call(count(3), 1.0)]


@program
def types_of_python_as_dtypes():
    def f(x):
        made = torch.zeros(2, dtype=float), torch.ones(2, dtype=int), torch.ones(2, dtype=bool), torch.zeros(1, dtype=complex)
        return *made, x.to(int), x.to(dtype=bool), x.sum(dtype=float), torch.arange(3, dtype=float)

    return f, [call(count(3)), call(count(3))]
