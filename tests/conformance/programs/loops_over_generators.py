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


def shifted(xs, by, log):
    """What is given, shifted; it says in the log where it is."""
    for x in xs:
        log.append(len(log))
        yield x + by
    log.append("end")


@program
def generators_that_have_not_begun_are_given():
    log = []

    def summed(items, x):
        for item in items:
            x = x * item
        return x, list(items), len(log)

    xs = [torch.ones(2), torch.full((2,), 3.0)]
    begun = shifted(xs, 4, log)
    next(begun)
    calls = [call(shifted(xs, 1, log), normal(2)), call(shifted(xs, 1, log), normal(2)), call(begun, normal(2)),
             call(begun, normal(2)), call(shifted(xs, 2, log), normal(2)), call(iter(xs), normal(2))]
    return summed, calls, log


@program
def a_generator_of_parameters_lives_across_a_break():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))

    def step(x):
        parameters = net.named_parameters()
        if x.sum() > 0:
            x = x * 2
        decayed = [(name, parameter * 0.5) for name, parameter in parameters]
        return x, decayed, next(parameters, None)

    return step, [call(torch.full((2,), sign)) for sign in (1.0, -1.0, 1.0)], net


@program
def a_generator_that_has_not_begun_is_left_on_its_way():
    log = []

    def taken(items, x, count):
        for place, item in enumerate(items):
            x = x + item
            if place == count:
                break
        return x, [item * 2 for item in items]

    xs = [torch.ones(2), torch.full((2,), 3.0), torch.zeros(2)]
    return taken, [call(shifted(xs, 1, log), normal(2), count) for count in (0, 1, 5, 0)], log


@program
def a_generator_is_given_twice_and_to_native_code():
    log = []

    def paired(first, second):
        rows = list(zip(first, second, strict=False))
        return [a * b for a, b in rows], max((x.shape for x in second), default=None), len(log)

    xs = [torch.ones(2), torch.full((2,), 3.0), torch.full((2,), 5.0)]
    once = shifted(xs, 1, log)
    pairs = [(shifted(xs, 1, log), shifted(xs, 2, log)), (once, once), (shifted(xs, 3, log), xs)]
    return paired, [call(*pair) for pair in pairs], log
