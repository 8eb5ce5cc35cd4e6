"""Objects from outside turned into text: what the text says is no property of their class, and differs from call to call."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import inspect
import os
import re
import reprlib
import types

from tests.conformance.catalogue import after, call, count, normal, program

Pair = collections.namedtuple("Pair", "left right")
VALUES = (
    (ValueError("a"), ValueError("b")),
    (KeyError("a"), OSError(2, "no", "f")),
    (datetime.date(2020, 1, 2), datetime.date(2021, 1, 2)),
    (datetime.timedelta(1), datetime.timedelta(2)),
    (bytearray(b"a"), bytearray(b"b")),
    (array.array("i", [1]), array.array("i", [2])),
    (re.compile("a"), re.compile("b")),
)


def called_with_values(outer):
    """Calls with two values of each kind, the first once more."""
    return outer, [call(normal(2), value) for first, second in VALUES[:4] for value in (first, second, first)]


@program(core=True)
def text_of_an_object():
    def outer(x, value):
        return x * 2, str(value), repr(value)

    return called_with_values(outer)


@program
def object_in_an_f_string():
    def outer(x, value):
        return x * 2, f"{value} {value!r:>30}"

    return called_with_values(outer)


@program
def object_in_a_format():
    def outer(x, value):
        return x * 2, "{} {k!r}".format(value, k=[value]), "%s" % (value,)

    return called_with_values(outer)


@program
def object_inside_a_container_as_text():
    def outer(x, value):
        return x * 2, str([value]), str({"a": (value,)}), ", ".join(map(str, [value]))

    return called_with_values(outer)


@program
def texts_of_errors_caught_after_a_break():
    def shown(function):
        try:
            return function()
        except Exception as error:
            return f"{type(error).__name__}: {error}", error.args

    def outer(x, names):
        log = [shown(lambda: float(names[int(x.sum().item()) % 2])), shown(lambda: {}[names[0] + str(x.max().item())])]
        return x * 2, log

    names = ["a", "b"]
    return outer, [call(count(2), names), call(count(3), names), after(lambda: names.reverse(), count(2), names)]


@program
def containers_of_varying_integers_as_text():
    def outer(x, n):
        pair = Pair(n, 1)
        tables = (collections.Counter({n: n}), collections.defaultdict(list, a=n), collections.OrderedDict(b=n), {n: (n,)})
        return x * 2, str(collections.deque([n], 3)), "%s" % tables[0], f"{tables}", repr(pair), "{}".format([pair, {n}])

    return outer, [call(normal(2), number) for number in (3, 4, 5, 9, -2)]


class Descriptor:
    """Counts who asks for its text or for attributes that it does not have."""

    def __init__(self):
        self.asked = []

    def __repr__(self):
        self.asked.append("repr")
        return "a descriptor"

    def __getattr__(self, name):
        self.asked.append(name)
        raise AttributeError(name)

    def __get__(self, owner, kind):
        return 3.0


@program
def texts_that_nobody_asks_for():
    class Described:
        scale = descriptor = Descriptor()

    described = Described()

    def f(x, others):
        return x * described.scale, len(others), len(descriptor.asked)

    descriptor = vars(Described)["scale"]
    return f, [call(count(2), {descriptor: 1}), call(count(2), {}), call(count(3), {1: 1})]


class Row(list):
    pass


@program
def text_of_subclasses_of_lists_with_numbers_that_vary():
    def outer(x, row, size):
        return x * 2, str(row), f"{row} of {size}", repr([row, size]), "%s" % (size,)

    return outer, [call(count(3), Row([n, n / 2]), os.terminal_size((n, n + 1))) for n in (2, 3, 5, 6)]


@program
def text_of_signatures():
    def made(n):
        return lambda a=n, *, b=2 * n: a + b

    def outer(x, signature, other):
        return x * 2, str(signature), f"{signature}", signature == other, str(signature.parameters["a"])

    first = inspect.signature(made(1))
    return outer, [call(count(3), inspect.signature(made(n)), first) for n in (1, 2, 3)]


@program
def forms_of_numbers_of_subclasses():
    class Degrees(float):
        def __str__(self):
            return f"{float(self)} degrees"

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    def outer(x, value, level):
        try:
            return x * 2, f"{value:.1f}", f"{value}", format(value, ">6.2f"), f"{level:03d}", f"{value:q}"
        except ValueError as error:
            return x, f"{value:08.3f}", str(error)

    return outer, [call(count(3), Degrees(n / 2), level) for n, level in ((1, Level.LOW), (3, Level.HIGH), (5, Level.LOW))]


class Ring:
    def __init__(self, *parts):
        self.parts = [*parts, self]

    @reprlib.recursive_repr(fillvalue="+++")
    def __repr__(self):
        return f"<{', '.join(map(repr, self.parts))}>"


@program
def an_object_in_itself_is_shown_as_was_asked_for():
    def outer(x):
        return x + 1, repr(Ring(1, "a"))

    return outer, [call(count(2)), call(count(3))]


@program
def texts_that_hold_the_address_of_a_function():
    def outer(x):
        def scale():
            return x * 2

        holders = [functools.partial(scale), staticmethod(scale), classmethod(scale), collections.defaultdict(scale),
                   types.SimpleNamespace(scale=scale), {"scale": scale}.items()]
        texts = [repr(holder) for holder in holders]
        return [repr(scale) in text for text in texts], scale()

    return outer, [call(count(2)), call(count(3))]
