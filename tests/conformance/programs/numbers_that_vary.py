"""Integers and sizes that differ between calls: whatever Python can do with a number must be done with each one."""

from __future__ import annotations

import dataclasses
import math

import torch

from tests.conformance.catalogue import call, normal, program

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


@program(raises=ValueError)
def lengths_that_a_class_computes_from_an_integer():
    class Sized:
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

    def outer(x, n):
        return x * n, len(Sized(n)), bool(Sized(n))

    return outer, calls_with_numbers()


@program(raises=TypeError)
def lengths_that_are_floats():
    class Sized:
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

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
