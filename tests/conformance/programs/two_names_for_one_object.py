"""What is changed under one name and read under another: two objects in one call, the same object in the next."""

from __future__ import annotations

import collections
import operator
import sys

import torch
from torch import nn

from tests.conformance.catalogue import after, call, count, leaf, normal, program


class Record:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 1


def in_every_way(function, make):
    """Calls with two objects, with one twice, the other way round, and with the other one twice."""
    one, other = make(), make()
    pairs = [(one, other), (one, one), (other, one), (other, other)]
    return function, [call(normal(2), *pair) for pair in pairs], (one, other)


@program(core=True)
def an_attribute_written_and_read():
    def outer(x, written, read):
        written.v = x + 1
        return read.v * 2

    return in_every_way(outer, lambda: Record(v=normal(2)))


@program
def a_counter_of_either():
    def outer(x, written, read):
        written.n += 1
        return x * read.n

    return in_every_way(outer, lambda: Record(n=1))


@program
def a_slot_written_and_read():
    def outer(x, written, read):
        written.n += 1
        return x * read.n

    return in_every_way(outer, Slotted)


@program
def a_list_item_written_and_read():
    def outer(x, written, read):
        written[0] = x + 1
        return read[0] * 2

    return in_every_way(outer, lambda: [normal(2)])


@program
def a_dictionary_entry_written_and_read():
    def outer(x, written, read):
        written["v"] = x + 1
        return read["v"] * 2

    return in_every_way(outer, lambda: {"v": 1})


@program
def modules_that_count_each_other():
    def make():
        module = nn.Linear(2, 2)
        module.calls, module.last = 0, torch.ones(2)
        return module

    def outer(x, written, read):
        written.calls += 1
        written.last = x
        return read.last * read.calls + read(x)

    return in_every_way(outer, make)


@program
def cells_shared_by_functions():
    def make(n):
        def get():
            return n

        def put(value):
            nonlocal n
            n = value

        return get, put

    (get, put), (get_other, put_other) = make(1), make(2)

    def outer(x, write, read):
        write(5)
        return x * read()

    return outer, [call(normal(2), put, get_other), call(normal(2), put_other, get_other), call(normal(2), put, get)], (get, get_other)


@program
def a_node_that_is_its_own_parent():
    root, loop = Record(n=1, parent=None), Record(n=1)
    loop.parent = loop

    def outer(x, node):
        node.n = node.n + 1
        parent = node.parent or node
        return x * parent.n

    return outer, [call(normal(2), Record(n=1, parent=root)), call(normal(2), loop), call(normal(2), root)], (root, loop)


@program
def marks_and_gradients_of_tensors():
    def outer(x, written, read):
        written.mark = 3
        written.grad = x * 2
        return x * getattr(read, "mark", 1), x if read.grad is None else read.grad + 1

    one, other = leaf(2), leaf(2)
    return outer, [call(normal(2), one, other), call(normal(2), leaf(2), other), call(normal(2), other, other)]


@program
def windows_and_sets():
    def outer(x, window, other, seen, known):
        window.append(3)
        seen.add(5)
        return x * len(other), 5 in known, list(other)

    first, second = collections.deque([1]), collections.deque([1])
    calls = [call(normal(2), first, second, {1}, {1}), call(normal(2), collections.deque([1]), second, {1}, {1}),
             call(normal(2), second, second, {1}, {1})]
    one = {1}
    return outer, [*calls, call(normal(2), collections.deque([1]), second, one, one)], (first, second, one)


@program(core=True)
def objects_sorted_by_a_getter():
    def outer(x, records):
        ordered = sorted(records, key=operator.attrgetter("k"))
        return [x * record.v for record in ordered], max(records, key=operator.attrgetter("v", "k")).k

    def pair(*keys):
        return [Record(k=key, v=float(place + 2)) for place, key in enumerate(keys)]

    return outer, [call(count(2), pair(1, 0)), call(count(2), pair(0, 1)), call(count(2), pair(1, 0))]


@program
def getters_from_outside():
    getters = {"nested": operator.attrgetter("inner.a", "v"), "item": operator.itemgetter("k"), "call": operator.methodcaller("scaled", 3)}

    class Outer:
        def __init__(self, a, v):
            self.inner, self.v = Record(a=a), v

        def __getitem__(self, key):
            return self.v * len(key)

        def scaled(self, by, plus=0):
            return self.v * by + plus

    def outer(x, thing):
        found = {name: getter(thing) for name, getter in getters.items()}
        return x * found["call"], found, operator.methodcaller("scaled", 2, plus=thing.v)(thing)

    return outer, [call(count(2), Outer(1, 2)), call(count(2), Outer(2, 2)), call(count(2), Outer(2, 3)),
                   after(lambda: getters.update(item=operator.itemgetter("long key")), count(2), Outer(2, 3)),
                   after(lambda: getters.update(call=operator.methodcaller("scaled", 5)), count(2), Outer(2, 3))]


@program
def text_of_elements_by_methods():
    class Named:
        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return f"<{self.name}>"

        def __eq__(self, other):
            return self.name == other.name

        def __hash__(self):
            return hash(self.name)

    class Table(dict):
        def __repr__(self):
            return "Table" + super().__repr__()

    def outer(x, one, other, k):
        texts = [one].__repr__(), {1: one}.__str__(), "%s".__mod__((one,)), repr(Table(k=k)), list.__repr__([one])
        return x * k, texts, [one].__eq__([other]), (one,).__ne__((other,)), (one,).__hash__() == (other,).__hash__()

    calls = [("a", "b", 2), ("c", "c", 3), ("d", "c", 4), ("b", "b", 5)]
    return outer, [call(normal(2), Named(one), Named(other), k) for one, other, k in calls]


@program
def super_kept_and_asked():
    class Base:
        kind = "base"

        def go(self, x):
            return x * 2

    class Sub(Base):
        kind = "sub"

        def go(self, x, name):
            print("before")
            parent, method = super(), getattr(super(), name)
            print("after")
            return parent.go(x + 1) + method(x), hasattr(super(), "missing"), super().kind

    return Sub().go, [call(normal(2), "go"), call(normal(3), "go")]


@program
def iterators_of_texts_across_a_break():
    def outer(x, text):
        letters = iter(text)
        first = next(letters)
        print("a graph break")
        return x + 1, first, list(letters)

    return outer, [call(normal(2), "éab"), call(normal(2), "abc"), call(normal(2), "éé")]


@program
def ranges_of_objects_that_are_numbers():
    class Number:
        def __init__(self, n):
            self.n = n

        def __index__(self):
            return self.n

    def outer(x, number):
        return x + 1, list(range(number)), list(range(1, 5, number)), [0, 1, 2, 3][number], "abcd"[number:]

    return outer, [call(normal(2), Number(n)) for n in (1, 2, 3)]


NAMESPACE = globals()
STORED = COUNTED = WRITTEN = OF_FUNCTION = 0


def with_its_namespace(function):
    return function, [call(count(3)), call(count(4)), call(count(3))]


@program
def a_global_stored_through_its_namespace():
    def outer(x):
        NAMESPACE["STORED"] = x.shape[0]
        return x * STORED

    return with_its_namespace(outer)


@program
def a_global_stored_through_what_globals_gives():
    def outer(x):
        names = globals()
        print("a graph break")
        names["COUNTED"] = names.get("COUNTED", 0) + x.shape[0]
        y = x * COUNTED
        names.update(COUNTED=0)
        return y, COUNTED, "COUNTED" in globals()

    return with_its_namespace(outer)


@program
def a_global_read_through_its_namespace():
    def outer(x):
        global WRITTEN
        WRITTEN = x.shape[0]
        return x * NAMESPACE["WRITTEN"], vars(sys.modules[__name__])["WRITTEN"]

    return with_its_namespace(outer)


@program
def a_global_stored_through_a_function():
    def outer(x):
        outer.__globals__["OF_FUNCTION"] = x.shape[0]
        return x * OF_FUNCTION

    return with_its_namespace(outer)
