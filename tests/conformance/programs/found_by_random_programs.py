"""What programs made at random have found: small, and each was once wrong."""

from __future__ import annotations

import collections

from tests.conformance.catalogue import after, call, count, normal, program


class Box:
    """Holds things."""

    def __init__(self, **held):
        vars(self).update(held)


@program(core=True)
def truth_put_in_a_set_of_numbers():
    def f(x, members, n, m):
        members ^= {1}
        members.add(n < m)
        return x + len(members), sorted(map(type, members), key=str)

    return f, [call(normal(2), {1, 2, 5}, 2, 3), call(normal(2), {1, 2, 5}, 2, 3), call(normal(2), {2, 5}, 3, 2)]


@program
def key_replaced_by_an_equal_one():
    def f(x, table):
        value = table.pop(1)
        table[True] = value
        return x + value, list(table)

    table = {1: 2.0, "a": 3.0}
    return f, [call(normal(2), table), call(normal(2), {True: 1.0}), call(normal(2), {1: 2.0, 3: 4.0})], table


@program
def only_key_replaced_by_an_equal_one():
    def f(x, table, queue):
        key, value = table.popitem()
        table[float(key)] = value
        queue.append(queue.popleft() == 1)
        return x

    first = {1: "a"}
    return f, [call(normal(2), first, collections.deque([1])), call(normal(2), {2: "a"}, collections.deque([True]))], first


@program(raises=RuntimeError)
def number_that_varies_looked_for_beside_a_tensor():
    def f(x, n, items):
        return x + n, n in items, [n + step in items for step in range(2)]

    x = normal(2)
    return f, [call(x, 2, [2, 3, x]), call(x, 3, [3, 4, x]), call(x, 7, [3, 4, x]), call(x, 8, [8, 9])]


@program
def comparisons_kept_and_computed_with():
    def f(x, n, m, items):
        larger = n > m
        total = n + (n < m) - larger
        held = [larger, n == m, not larger, n != 3]
        return x * total, held, larger in items, (n < m) in held, sum(held), max(n, larger), held.count(True), n // (1 + larger), larger == n, sorted([n, larger])

    return f, [call(count(2), n, m, [2, True]) for n, m in ((2, 3), (1, 3), (5, 3), (4, 4), (7, 1))]


@program
def numbers_removed_from_lists_of_truths():
    def f(x, n, items):
        items.append(n > 2)
        items.append(n)
        items.remove(n)
        return x + n, items, items.index(n > 2)

    return f, [call(count(2), n, [True, False]) for n in (2, 3, 4, 1, 0)]


@program
def attribute_deleted_if_it_is_there():
    def f(x, box):
        try:
            del box.extra
        except AttributeError:
            return x
        return x + 1

    box = Box()

    def give():
        box.extra = 1

    return f, [call(normal(2), box), after(give, normal(2), box), call(normal(2), box), after(give, normal(2), box)], box


@program
def attribute_deleted_by_name():
    def f(x, box, name):
        had = name in vars(box)
        if had:
            delattr(box, name)
        vars(box).pop("other", None)
        return x + had

    box = Box(a=1, b=2, other=3)
    return f, [call(normal(2), box, "a"), call(normal(2), box, "a"), call(normal(2), box, "b"), call(normal(2), Box(a=1), "a")], box


@program
def division_by_a_comparison():
    def f(x, n, m):
        try:
            n //= n < m
        except ZeroDivisionError as error:
            return x, str(error)
        return x * n, n

    return f, [call(count(2), n, 3) for n in (2, 1, 4, 0, 3)]


@program
def roots_of_a_number_that_varies_by_newton():
    def f(x, n):
        guess, steps = n, []
        for _ in range(12):
            guess = (guess + n // guess) // 2
            steps.append(guess)
        return x * guess, steps[-1], guess**2 <= n < (guess + 1) ** 2

    return f, [call(count(2), n) for n in (20, 30, 50, 99, 10000, 2)]


@program
def remainders_until_nothing_is_left():
    def f(x, a, b):
        while b:
            a, b = b, a % b
        n = a
        for step in range(3):
            n //= n + step
        return x * a + n

    return f, [call(count(2), a, b) for a, b in ((12, 18), (35, 21), (17, 5), (100, 75), (12, 18))]
