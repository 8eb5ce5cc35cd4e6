"""What Python keeps for an object (`__dict__`, keywords, defaults), and objects that hold themselves, across graph breaks."""

from __future__ import annotations

import collections
import functools
import types

import torch

from tests.conformance.catalogue import call, count, normal, program


class Plain:
    pass


class Scaled:
    def __init__(self, **settings):
        self.scale = 1.0
        table = self.__dict__
        print("settings", *settings)
        table.update(settings)

    def __call__(self, x):
        return x * self.scale


@program
def instance_dictionary_written_behind_a_break():
    def f(x, scale):
        made, table = Scaled(scale=scale), vars(Plain())
        print("made")
        table["x"] = x
        return made(x), table, made.__dict__ is vars(made)

    return f, [call(count(3), 2.0), call(count(3), 3.0), call(normal(2), 3.0)]


@program(core=True)
def instance_dictionary_in_several_places():
    def f(x):
        made = Plain()
        made.me, table = made.__dict__, made.__dict__
        names, write, held = table.keys(), table.update, [table]
        print("made")
        write(a=x)
        made.b = 2
        return held[0] is vars(made), made.me is table, list(names), made.a, table["b"]

    return f, [call(count(3)), call(normal(2))]


@program
def dictionaries_of_functions_modules_and_errors():
    def f(x):
        def inner(a, *, k=1):
            return a * k

        module, error, space = torch.nn.Identity(), ValueError("e"), types.SimpleNamespace(a=1)
        tables = [inner.__dict__, module.__dict__, error.__dict__, space.__dict__, inner.__kwdefaults__]
        print("made")
        for place, table in enumerate(tables):
            table["k"] = place
        return inner(x), inner.k, module.k, error.k, space.k, inner.__kwdefaults__ is tables[4]

    return f, [call(count(3)), call(normal(2))]


@program
def keywords_of_partial_calls_changed():
    scaled = functools.partial(torch.add, alpha=1)

    def f(x):
        made = functools.partial(torch.add, x, alpha=1)
        keywords, attributes = made.keywords, made.__dict__
        scaled.keywords["alpha"] += 1
        print("made")
        keywords["alpha"] = 5
        attributes["note"] = "n"
        return scaled(x, x), made(x), made.note, made.keywords is keywords, scaled.keywords

    return f, [call(count(3)), call(count(3)), call(normal(2))], scaled.keywords


@program
def keyword_defaults_changed():
    def scaled(x, *, by=1, log=None):
        return x * by, log

    def f(x):
        scaled.__kwdefaults__["by"] += 1
        first = scaled(x)
        scaled.__kwdefaults__["log"] = [scaled.__kwdefaults__["by"]]
        print("changed")
        scaled.__kwdefaults__["by"] += 10
        return first, scaled(x)

    return f, [call(count(3)), call(count(3)), call(normal(2))], scaled


@program
def objects_that_hold_themselves():
    class Row(tuple):
        pass

    class Pair(collections.namedtuple("Pair", "a b")):
        pass

    def f(x):
        items = [x + 1]
        largest, row, pair, plain = functools.partial(max, items), Row((items, 2)), Pair(items, 3), (1, items)
        items.extend((largest, row, pair, plain))
        row.me = row
        print("made")
        return (largest is items[1], largest.args[0] is items, row is items[2] is row.me, row[0] is items,
                pair is items[3], pair.a is items, plain is items[4], plain[1] is items)  # fmt: skip

    return f, [call(count(3)), call(normal(2))]


@program
def tuples_in_two_places():
    held = Plain()

    def f(x):
        held.last = (x + 1, 2)
        held.all = [held.last]
        last = held.last
        print("made")
        return last is held.last, held.all[0] is last, last

    return f, [call(count(3)), call(normal(2))], held


@program
def bound_methods_in_two_places():
    def f(x):
        def numbers():
            yield from range(4)

        items, total, running = [], x.sum, numbers()
        push, compare, step = items.append, (1.5).__lt__, running.send
        held = [push, total, compare, step]
        print("made")
        push(total())
        step(None)
        return held[0] is push, held[1] is total, held[2] is compare, held[3] is step, items, next(running)

    return f, [call(count(3)), call(normal(2))]


@program
def generators_that_hold_themselves():
    def numbers(x, held):
        for number in range(4):
            print(number, held[0] is not None)
            yield x * number, held[0]

    def f(x):
        def steps():
            try:
                print("step")
                next(running)
            except ValueError as error:
                yield str(error)
            yield running

        running, held = steps(), []
        counted = numbers(x, held)
        held.append(counted)
        words = [next(running), next(running) is running, *running]
        y, same = next(counted)
        return y, words, same is counted, [z for z, _ in same], held

    return f, [call(count(3)), call(normal(2))]


@program
def module_that_gives_what_it_wraps_is_asked_as_often():
    class Wrapper(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            print("asked for", name)
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.in_features

    return Wrapper(torch.nn.Linear(3, 2)), [call(normal(2, 3)), call(normal(2, 3))]
