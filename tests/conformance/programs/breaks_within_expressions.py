"""Graph breaks in the middle of an expression or a header: what lies on the stack then comes from outside of the next graph."""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
import sys

import torch
from torch import nn

import minicompile
from tests.conformance.catalogue import after, call, count, leaf, normal, positive, program


@minicompile.disable
def apart(value):
    return value


@program(core=True)
def displays_that_are_half_built():
    def outer(xs, y, table):
        total = (*xs, apart(y), *[y + 1])
        listed = [*xs, 5, apart(3)]
        merged = {**table, "b": apart(y), **{"z": 1}}
        return total, listed, sorted({*table, apart("q")}), merged, max(*map(len, [*table, apart("abc")]), 0), (y, *apart([y * 2]), *xs)

    return outer, [call([normal(1)], normal(1), {"a": 1}), call([normal(1), normal(2)], normal(1), {"a": 1, "c": 2}),
                   call([], normal(2), {})]


@program
def arguments_that_are_half_evaluated():
    def outer(xs, k, options):
        first = torch.add(*xs, apart(xs[0]) if len(xs) < 2 else apart(xs[1]) * 0)
        second = dict(*[[("a", apart(k))]], **options)
        return first, second, sum([apart(k), *[1] * len(xs)]), "{}-{}".format(*[apart(k)], len(xs)), [x * apart(k) for x in xs]

    return outer, [call([normal(2)], 2, {"b": 1}), call([normal(2), normal(2)][:1], 3, {}), call([normal(2)] * 1, 2, {"c": 5, "d": 6})]


@program
def handlers_chosen_after_a_break():
    def outer(x, key, kinds, log):
        try:
            raise apart(KeyError)(key)
        except apart(kinds) as first:
            log.append(str(first))
            try:
                raise ValueError(2) from apart(first)
            except (apart(TypeError), ValueError) as second:
                log.append((repr(second.__cause__), repr(second.__context__), repr(sys.exc_info()[1])))
                x = x + len(log)
        except Exception:
            log.append("other")
        finally:
            apart(log.append)("finally")
        return x

    return outer, [call(count(2), 1, KeyError, []), call(count(2), 2, ValueError, []), call(count(2), 3, (TypeError, LookupError), [])]


@program
def super_that_crosses_a_break():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def __call__(self, x):
            apart(self).calls += 1
            return apart(super()).__call__(x)

        def forward(self, x):
            return x * self.calls

    class Named:
        made = 0

        @classmethod
        def make(cls, x):
            cls.made += 1
            return x * cls.made

    class Again(Named):
        @classmethod
        def make(cls, x):
            return apart(super()).make(x) + 1

    module = Counted()

    def outer(x):
        return module(x) + Again.make(x)

    return outer, [call(count(2)), call(count(2)), after(lambda: setattr(module, "calls", 7), count(2))], module


@program
def a_type_made_inside_crosses_a_break():
    def outer(x):
        either, listed = int | None, list[int]
        print(either, listed)
        return x + isinstance(3, either), str(either), listed == list[int], str(dict[str, either] if apart(True) else None)

    return outer, [call(normal(2)), call(normal(2))]


@program
def a_check_in_a_try_behind_a_break():
    def outer(x):
        try:
            print("checking")
            if (x < 0).any():
                raise ValueError("negative")
            return x.sqrt(), "root"
        except ValueError as error:
            return -x, str(error)

    return outer, [call(positive(3)), call(-positive(3)), call(positive(3)), call(-positive(3)), call(positive(3))]


@program
def headers_with_breaks():
    @contextlib.contextmanager
    def scaled(k):
        yield apart(k) * 2

    def outer(x, names):
        with apart(torch.no_grad)(), scaled(apart(3)) as k, contextlib.suppress(apart(ZeroDivisionError)):
            y = x * k
            y = y / apart(len(names))
            1 // (len(names) - 1)
            y = y + 1
        for index, name in apart(enumerate)(names, start=apart(1)):
            y = y + index if apart(name) else y - index
        while apart(k) > 4:
            k -= 1
        return y, k, x * 2 if apart(k) == 4 else None, [n for n in names if apart(n)], not apart(names), apart(k) < 5 < apart(7)

    return outer, [call(leaf(2), ["a", ""]), call(leaf(2), ["a"]), call(normal(2), ["", "b", "c"])]


@program
def what_only_c_makes_is_live_at_a_break():
    def outer(x, n, text):
        found, until, to_bytes = re.match(r"(\w+)-(\d)", text), iter([1, 2, 3].pop, 2), n.to_bytes
        counted, lengths = itertools.count(n), operator.attrgetter("numerator")
        x = x + apart(n)
        numbers = list(until), to_bytes(2, "big"), (-n).bit_length() + apart(1), next(counted), lengths(n)
        return x * int(found[2]), numbers, text.split(apart("-"))

    return outer, [call(normal(2), 3, "ab-4"), call(normal(2), 5, "c-2"), call(normal(2), 6, "c-2")]


@program
def attributes_of_generators_and_methods():
    def outer(x):
        def parts():
            yield x

        made, add = parts(), x.add
        kinds = made.__class__.__name__, type(made).__name__, hasattr(made, "gi_frame"), made.__name__, made.gi_running
        return kinds, add.__name__, add.__self__ is x, add == x.add, hasattr(add, "missing"), add.__call__(2), next(made) + 1

    return outer, [call(normal(2)), call(normal(3))]


@program
def instances_made_by_a_metaclass():
    class Single(type):
        made = {}

        def __call__(cls, *args, **kwargs):
            if cls not in cls.made:
                cls.made[cls] = super().__call__(*args, **kwargs)
            return cls.made[cls]

    class Store(metaclass=Single):
        def __init__(self, k=1):
            self.k = k

    class Tagged(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.tag = cls.__name__
            return made

    class Point(metaclass=Tagged):
        def __init__(self, x):
            self.x = x

    def outer(x, k):
        store = Store(k)
        store.k += 1
        point = Point(x * store.k)
        return point.x + 1, point.tag, store is Store(), len(Single.made)

    return outer, [call(normal(2), 3), call(normal(2), 5), call(normal(2), 7)], Single


@program
def methods_of_numbers_that_vary():
    def outer(x, n):
        return x * n, n.to_bytes(apart(3), "big"), n.bit_length() + apart(1), "abc".join(apart(["-", "-"]))

    return outer, [call(normal(2), n) for n in (3, 4, 5, 6)]


@program
def a_name_of_a_comprehension_and_of_a_closure():
    def outer(x, factors):
        bias = x.sum()
        return [apart(f * bias) for f in factors], {f: (lambda: bias * f)() for f in apart(factors)}

    return outer, [call(normal(2), [1, 2]), call(normal(2), [3])]


@program(raises=TypeError)
def handlers_that_are_no_exceptions():
    def outer(x, kinds, fail):
        try:
            if fail:
                raise KeyError(1)
        except kinds:
            x = x + 1
        return x

    kinds = [(KeyError, True), (5, False), (5, True), (int, True), ((KeyError, 3), True), ((ValueError, KeyError), True), ((), False)]
    return outer, [call(normal(2), *each) for each in kinds]


@program
def numbers_that_vary_beside_objects_in_tables():
    class Key:
        pass

    key = Key()

    def outer(x, elements, table):
        return x + 1, key in elements, 5 in elements, table.get((1, key)), len(table), (3, key) in table

    return outer, [call(normal(2), {key, n}, {(n, key): n}) for n in (3, 4, 5, 6)]


GENERIC = """
def f(x):
    class Stack[T]:
        def __init__(self):
            self.items: list[T] = []

        def push(self, item: T):
            self.items.append(item)
            return self

    def twice[T: (int, float), *Ts, **P](value: T) -> T:
        return value * 2

    type Pair[T] = tuple[T, T]
    parameters = [*twice.__type_params__, *Stack.__type_params__, *Pair.__type_params__]
    return Stack().push(x).push(twice(x)).items, [p.__module__ for p in parameters], Pair.__module__, str(Pair[int])
"""

if sys.version_info >= (3, 12):  # which has the syntax

    @program
    def generic_classes_functions_and_aliases():
        space = {"__name__": __name__}
        exec(GENERIC, space)
        return space["f"], [call(normal(2)), call(normal(3))]
