"""Errors that Python raises and the program catches: their types, messages and causes are what it sees."""

from __future__ import annotations

import collections
import dataclasses
import itertools

from tests.conformance.catalogue import call, count, program

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
