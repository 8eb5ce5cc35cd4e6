"""Integers and sizes that differ between calls: whatever Python can do with a number must be done with each one."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import fractions
import json
import math

import torch

from tests.conformance.catalogue import call, count, normal, program

NUMBERS = (3, 4, 5, 9, -3)


def calls_with_numbers():
    """The same tensor kind with several integers."""
    return [call(normal(3), number) for number in NUMBERS]


@program(core=True)
def rounding_an_integer_to_tens():
    def outer(x, n):
        return x * 2, round(n, -1), round(n), round(x.shape[0], -1)

    return outer, [*calls_with_numbers(), call(normal(6), 3), call(normal(7), 16)]


@program
def methods_and_class_of_an_integer():
    def outer(x, n):
        return x * 2, n.bit_length(), n.__class__.__name__, n.as_integer_ratio(), x.shape[0].bit_length()

    return outer, [*calls_with_numbers(), call(normal(6), 3), call(normal(7), 16)]


@program
def class_of_an_integer_alone():
    def outer(x, n):
        return x * n, n.__class__, type(n), isinstance(n, int), n.real, n.__add__(1)

    return outer, calls_with_numbers()


@program(raises=ZeroDivisionError)
def division_by_an_integer_that_becomes_zero():
    seen = []

    def outer(x, n):
        y = x * 2
        seen.append(n)
        return x.numel() // n, y, 7 % n if n > 4 else None

    return outer, [*calls_with_numbers(), call(normal(3), 0), call(normal(4), 7), call(normal(5), 0)], seen


@program
def arithmetic_of_an_integer():
    def outer(x, n):
        return x * n, (n + 1, 3 - n, n // 2, n % 3, -n, abs(n), n / 2, divmod(n, 4), n * 10**18), n > 4, n == 4.0

    return outer, calls_with_numbers()


@program
def containers_of_an_integer():
    def outer(x, n):
        return x + n, [0] * n, "ab" * n, {n: 1}, {n, 4}, list(range(n)), f"{n:03d}", math.sqrt(abs(n)), bin(n), str(n)

    return outer, calls_with_numbers()


@program
def several_shapes_of_an_integer():
    def outer(x, n):
        rows, columns = x.shape
        return x + n, torch.Size([columns, rows]), torch.Size([rows, columns]), torch.Size([n]), x.shape[::-1]

    return outer, [call(normal(2, 3), 3), call(normal(3, 4), 5), call(normal(5, 7), 6)]


@program
def roots_of_negative_integers_inside_try():
    def outer(x, n):
        try:
            return x * (n - 5) ** 0.5, (-n) ** -1.5
        except RuntimeError as error:
            return x, str(error)

    return outer, calls_with_numbers()


class Sized:
    """An object that says of itself how long it is."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


@program(raises=ValueError)
def lengths_that_a_class_computes_from_an_integer():
    def outer(x, n):
        return x * n, len(Sized(n)), bool(Sized(n))

    return outer, calls_with_numbers()


@program(raises=TypeError)
def lengths_that_are_floats():
    def outer(x, size):
        return x * size, len(Sized(size))

    return outer, [call(normal(3), 2), call(normal(3), 3), call(normal(3), 0.5), call(normal(3), 1.5), call(normal(3), 2.5)]


@dataclasses.dataclass(frozen=True)
class Place:
    """A key of tables that is hashed by its field."""

    row: int


@program
def keys_that_hold_an_integer():
    def outer(x, n):
        try:
            return x * 2, {Place(x.shape[0] + n): 0, Place(n): 3}
        except TypeError as error:
            return str(error)

    return outer, calls_with_numbers()


@program
def integers_searched_for_beside_truths():
    def outer(x, n):
        pairs = sorted([(n, True), (True, n), (n, False)])
        return x + 1, [n] == [True], (n, 2) != (False, 2), [False, n, True].index(n), [n, 0].count(False), pairs, min(False, n), max(n, True)

    return outer, [call(normal(3), n) for n in (3, 4, 1, 0, 5, 1)]


@program
def integers_beside_infinity_and_nan():
    def outer(x, n, bounds):
        try:
            return x + n, [(sorted([n, b]), max(n, b), n < b, n == b, [n] == [b], n in (b, 7), (x.shape[0] / 2) > b) for b in bounds]
        except Exception as error:
            return str(error)

    bounds = (math.inf, -math.inf, math.nan, 2.5, 1.0)
    return outer, [call(normal(n + 1), n, bounds) for n in (3, 4, 1, 0, 5)]


@program
def numbers_that_are_not_found():
    def outer(x, n):
        try:
            return x + [1, 2].index(n)
        except ValueError as error:
            return x, str(error)

    return outer, calls_with_numbers()


@program
def items_of_sets_and_numbers():
    def outer(x, n):
        said = []
        for owner in ({3}, frozenset([3]), n):
            try:
                said.append(owner[0])
            except TypeError as error:
                said.append(str(error))
        return x + 1, said

    return outer, calls_with_numbers()


@program
def methods_of_numbers():
    def outer(x, n, s):
        whole, bits = s.is_integer, n.bit_length
        return x * s, whole(), bits(), n.real + s.real, s.as_integer_ratio(), s.hex(), n.__add__(1), s.__eq__(2.0), s.__divmod__(2), (
            math.isclose(s, 2, rel_tol=0.3), round(s, ndigits=1), math.modf(s), math.frexp(s), (x.shape[0] / 2).is_integer())

    return outer, [call(normal(n), n, s) for n, s in ((3, 1.5), (4, 2.0), (5, 2.5), (7, -3.0), (8, 0.25))]


@program
def sizes_as_json():
    def outer(x):
        return x * 2, json.dumps({"rows": x.shape[0], "sizes": [*x.shape]})

    return outer, [call(normal(n, 2)) for n in (3, 4, 5)]


class Stage(enum.IntEnum):
    WARM = 1
    MAIN = 2
    COOL = 4


class Steps(int):
    pass


class Rate(float):
    pass


@program
def numbers_that_vary_compared_with_numbers_of_other_types():
    others = [Stage.MAIN, Steps(4), Rate(2.0), Rate(2.5), fractions.Fraction(5, 2), fractions.Fraction(2), decimal.Decimal(4), 2 + 0j]

    def compared(n):
        found = [n == other for other in others], [other != n for other in others], [other < n for other in others[:-1]]
        return *found, n in others, [n, 1] == [Stage.MAIN, 1], (n,) == (2 + 0j,), others.count(n), {"n": n} == {"n": Rate(2.5)}

    def scheduled(x, n, rate):
        if n == Stage.WARM:
            x = x * 0.5
        elif n in (Stage.MAIN, Stage.COOL):
            x = x + n
        match n:
            case Stage.COOL:
                x = x.cos()
        return x, compared(n), compared(rate), fractions.Fraction(3, 2) ** n, n + fractions.Fraction(1, 3), Stage.COOL - n

    return scheduled, [call(normal(3), n, rate) for n, rate in ((1, 1.5), (2, 2.0), (3, 4.0), (4, 2.5), (2, 3.0))]


@program
def quotients_of_quotients_by_negative_numbers():
    def outer(x, n):
        third, size = n // 3, x.shape[0] // 2
        by_half = third // (n // 2)
        return x + third // -3, n // -3 // -3, torch.arange(abs((third + 6) // -4)), size // -3, by_half, divmod(third, -4)

    return outer, [call(normal(size), n) for size, n in ((4, 7), (5, 11), (5, 8), (9, -7), (7, -4), (4, 13))]


@program
def varying_numbers_in_kept_tuples():
    lately, queue, items, table = collections.deque(maxlen=3), collections.deque(), [], {}

    def f(x, step):
        entry = (x, step)
        lately.append(entry)
        queue.appendleft(entry)
        items.insert(0, entry)
        items.append(entry)
        held = table.setdefault(len(items), entry)
        print("kept")
        places = lately[-1], queue[0], items[0], items[-1], held
        return x * step, [place is entry for place in places], max(step for _, step in lately)

    return f, [call(count(2), step) for step in range(2, 7)], (lately, queue, items, table)


@program
def sums_of_floats_and_tensors():
    class Weighted:
        def __init__(self, value):
            self.value = value

        def __radd__(self, other):
            return Weighted(other + self.value)

    def f(x, a, b):
        n = x.shape[0]
        return (
            sum([0.1] * 10 + [a, 1e16, b, -1e16, x, a, 0.3]),
            sum([0.1] * 10 + [x, a]),
            sum([a, b], x),
            sum([n, x, a, True, n / 3]),
            sum([a, Weighted(x)]).value,
        )

    calls = ((2, 0.1, 2.0), (3, 0.3, 3.0), (5, 0.9, 2.0), (7, 0.5, 3.0))
    return f, [call(normal(n, dtype=torch.float64), a, b) for n, a, b in calls]


@program
def floats_beside_quotients_of_integers():
    def f(x, chance, layer, layers):
        depth = layer / layers
        if chance < depth:
            x = x * chance
        if depth >= chance * 2:
            x = x + depth
        return x * max(depth, chance), depth == chance

    return f, [call(normal(2), *numbers) for numbers in ((0.1, 2, 4), (0.3, 3, 5), (0.9, 2, 4), (0.5, 3, 6), (0.6, 1, 7))]


@program
def tensors_of_constants_are_asked_for_their_values():
    def blurred(x, sigmas, depth):
        if not (torch.tensor(sigmas) > 0).all():
            raise ValueError("no sigma is negative")
        rates = [rate.item() for rate in torch.linspace(0, 0.5, depth)]
        steps = torch.arange(depth)
        steps[0] = depth
        dims = torch.arange(1, x.dim()).tolist()
        return x.sum(dims) * rates[-1] / sigmas[0], rates, steps.tolist(), int(torch.tensor(depth) * 2)

    calls = [((1.0, 2.0), 3), ((1.0, 2.0), 4), ((3.0, 2.0), 5), ((1.0, 2.0), 3)]
    return blurred, [call(normal(2, 3), *rest) for rest in calls]


@program(raises=ValueError)
def a_check_of_constants_fails():
    def checked(x, sigmas):
        seen.append(x.sum())
        if (torch.tensor(sigmas) <= 0).any():
            raise ValueError("a sigma is negative")
        return x * 2

    seen = []
    return checked, [call(normal(2), (1.0, 2.0)), call(normal(2), (1.0, -2.0)), call(normal(2), (1.0, 2.0))], seen
