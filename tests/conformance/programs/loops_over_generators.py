"""Loops over generators that wait inside a `try` or `with` while the graph breaks, however the loop is left."""

from __future__ import annotations

import contextlib
import sys

import torch

from tests.conformance.catalogue import call, count, normal, program


def tidy(xs, name="tidy"):
    try:
        for x in xs:
            yield x * 2
    finally:
        print(name, sys.exc_info()[0], torch.is_grad_enabled())


def talking(xs):
    try:
        for x in xs:
            print("next", x.sum().item())
            yield x * 2
    finally:
        print("talking ends")


def delegating(xs):
    with torch.no_grad():
        yield from tidy(xs)
    print("delegating ends")


def failing(xs):
    for x in xs:
        with contextlib.suppress(ZeroDivisionError):
            yield x * 2
        if x.shape[0] == 2:
            raise OSError("generator")


def steps(x):
    return [x, x + 1, x + 2]


def twice(outer):
    return outer, [call(count(2)), call(count(3)), call(normal(2))]


@program(core=True)
def breaks_in_a_loop_over_a_generator_that_tidies_up():
    def outer(x):
        total = x * 0
        for y in tidy(steps(x + 1)):
            print("body", y.sum().item())
            total = total + y
        print("behind")
        return total * 2

    return twice(outer)


@program
def a_loop_over_a_generator_that_tidies_up_is_left():
    def outer(x):
        total = x * 0
        for y in tidy(steps(x + 1)):
            print("body", y.sum().item())
            total = total + y
            if total.shape[0] == 2:
                break
        else:
            print("not left")
        print("behind")
        return total * 2

    return twice(outer)


@program
def a_return_from_loops_over_generators_that_tidy_up():
    def outer(x):
        for y in tidy(steps(x + 1), "outer"):
            for z in tidy(steps(y + 1), "inner"):
                print("body", z.sum().item())
                if y.shape[0] == 2:
                    return y + z
        return x

    return twice(outer)


@program
def an_exception_ends_loops_over_generators_that_tidy_up():
    def outer(x):
        try:
            for y in tidy(steps(x + 1), "outer"):
                for z in tidy(steps(y + 1), "inner"):
                    print("body", z.sum().item())
                    raise KeyError(1)
        except KeyError:
            print("caught")
        return x * 2

    return twice(outer)


@program(raises=IndexError)
def an_exception_leaves_loops_over_generators_that_tidy_up():
    def outer(x):
        for y in tidy(steps(x + 1), "outer"):
            for z in tidy(steps(y + 1), "inner"):
                x = x + [][int(z.sum().item())]

    return twice(outer)


@program
def an_exception_is_caught_in_a_loop_over_a_generator_that_tidies_up():
    def outer(x):
        for y in tidy(steps(x + 1)):
            try:
                x = x + y
                x = x + [][int(y.sum().item())]
            except IndexError:
                print("caught")
            finally:
                print("body ends", sys.exc_info()[0])
        return x

    return twice(outer)


@program
def a_loop_is_left_while_an_exception_is_handled():
    def outer(x):
        try:
            raise ValueError(1)
        except ValueError:
            for y in tidy(steps(x + 1)):
                print("body", sys.exc_info()[0])
                x = x + y
                if x.shape[0] == 2:
                    break
            print("behind", sys.exc_info()[0])
        return x

    return twice(outer)


@program(core=True)
def a_loop_over_a_generator_that_prints_and_tidies_up_is_left():
    def outer(x):
        total = x * 0
        for y in talking(steps(x + 1)):
            total = total + y
            if total.shape[0] == 2:
                break
        print("behind")
        return total * 2

    return twice(outer)


@program
def a_loop_over_a_generator_that_delegates_is_left():
    def outer(x):
        total = x * 0
        for y in delegating(steps(x + 1)):
            print("body", torch.is_grad_enabled())
            total = total + y
            if total.shape[0] == 2:
                break
        print("behind", torch.is_grad_enabled())
        return total * 2

    return twice(outer)


@program
def a_generator_that_waits_in_a_block_raises():
    def outer(x):
        try:
            for y in failing(steps(x)):
                print("body")
                x = x + y
        except OSError as error:
            print("caught", error)
        return x * 2

    return twice(outer)


@program
def a_break_in_a_comprehension_over_a_generator_that_tidies_up():
    def shown(x):
        print("shown")
        return x + 1

    def outer(x):
        total = sum(shown(y) for y in tidy(steps(x)))
        for y in (shown(y) for y in tidy(steps(x), "second")):
            total = total + y
            break
        print("behind")
        return [shown(y) for y in tidy(steps(total), "third")]

    return twice(outer)


@program
def a_generator_that_tidies_up_has_a_name():
    def outer(x):
        generator = talking(steps(x + 1))
        for y in generator:
            x = x + y
            break
        print("behind")
        x = x * 2
        print("end")
        return x

    return twice(outer)
