"""Objects that write something down where they are hashed or iterated over: each is asked as often as in plain Python."""

from __future__ import annotations

from tests.conformance.catalogue import call, normal, program


class Counted:
    """Counts how often it is hashed."""

    def __init__(self, value, log):
        self.value, self.log, self.hashed = value, log, 0

    def __hash__(self):
        self.hashed += 1
        self.log.append(("hash", self.value))
        return hash(self.value)

    def __eq__(self, other):
        self.log.append(("equal", self.value, other.value))
        return self.value == other.value


class Steps:
    """An iterator that writes down what is asked of it."""

    def __init__(self, count, log):
        self.count, self.log = count, log

    def __iter__(self):
        self.log.append("iter")
        return self

    def __next__(self):
        self.log.append(self.count)
        if self.count <= 0:
            raise StopIteration
        self.count -= 1
        return self.count


@program(core=True)
def tables_from_outside_whose_keys_count():
    log = []
    first, second = Counted(1, log), Counted(2, log)
    table, bag, pairs = {first: 1, second: 2}, {first}, {(second, 0): 3}

    def outer(x):
        found = table[Counted(2, log)]
        return x * found, first in table, first.hashed, second.hashed, len(bag), list(table.values()), pairs[second, 0]

    return outer, [call(normal(2)) for _ in range(3)], log


@program
def tables_made_inside_whose_keys_count():
    log = []
    first, second = Counted(1, log), Counted(2, log)

    def outer(x):
        table = {first: 1, second: 2}
        merged = {**table, Counted(1, log): 5}
        counts = [table[Counted(1, log)], merged.pop(first), table.setdefault(Counted(2, log), 9)]
        return x * len({first, Counted(1, log)}), counts, {first: 1} == {Counted(1, log): 1}, len(log), first.hashed

    return outer, [call(normal(2)) for _ in range(2)], log


@program
def unpacking_asks_an_iterator_twice():
    log = []

    def outer(x, count):
        first, *rest = Steps(count, log)
        *all_but, last = [*Steps(2, log)]
        messages = []
        try:
            first, second, *rest = Steps(1, log)
        except ValueError as error:
            messages.append(str(error))
        try:
            *rest, first, second = Steps(1, log)
        except ValueError as error:
            messages.append(str(error))
        return x * first, rest, all_but, last, messages

    return outer, [call(normal(2), 3), call(normal(2), 1)], log
