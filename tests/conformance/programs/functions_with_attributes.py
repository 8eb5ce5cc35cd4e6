"""Functions, methods, partial calls and generators that have attributes, and names of their own."""

from __future__ import annotations

import functools

from tests.conformance.catalogue import call, count, program


class Shown:
    """An object whose text is the same in every run."""

    def __repr__(self):
        return "a shown one"

    def method(self):
        return 1


@program(core=True)
def function_with_a_dictionary():
    def f(x, again=False):
        def table():
            return len(table.rows)

        table.rows = {}
        if again:
            print(end="")
        table.rows["a"] = 1
        getattr(table, "rows").update(b=2)
        kept = table.rows
        return x * table(), table.rows, kept is table.rows, list(table.__dict__)

    return f, [call(count(3)), call(count(3), True)]


@program
def wrapper_that_is_updated():
    def f(x, again=False):
        def inner(value: "a number"):  # noqa: F722
            """What is wrapped."""
            return value + 1

        def outer(other: "another"):
            return inner(other) * 2

        inner.options, outer.options = {"a": 1}, {}
        functools.update_wrapper(outer, inner, updated=("options",))
        shared = outer.__annotations__ is inner.__annotations__
        if again:
            print(end="")
        inner.__annotations__["return"] = "its result"
        same = outer.__annotations__ is inner.__annotations__
        return outer(x), outer.options, outer.__name__, outer.__doc__, outer.__annotations__, shared, same

    return f, [call(count(3)), call(count(3), True)]


@program
def partial_call_with_attributes():
    def f(x, again=False):
        scaled = functools.partial(lambda value, by: value * by, by=3)
        scaled.notes = {}
        scaled.title = "scaled"
        if again:
            print(end="")
        scaled.notes["by"] = scaled.keywords["by"]
        return scaled(x), scaled.notes, getattr(scaled, "title"), list(scaled.__dict__)

    return f, [call(count(3)), call(count(3), True)]


@program
def names_of_generators():
    def numbers():
        yield 1

    @functools.wraps(numbers)
    def wrapped():
        yield from numbers()

    wrapped.__name__ = "renamed"

    def f(x, own):
        def made():
            yield 2

        if own:
            made.__name__, made.__qualname__ = "own", "mine.own"
        generators = numbers(), wrapped(), made()
        names = [(one.__name__, one.__qualname__.rpartition(".")[2]) for one in generators]
        return x + sum(map(next, generators)), names

    return f, [call(count(3), False), call(count(3), True)]


@program
def text_of_a_bound_method():
    shown = Shown()

    def f(x):
        texts = repr(shown.method), str(shown.method), f"{Shown().method}", f"{shown.method!r}", "{}".format(shown.method)
        return x + 1, texts, "%s" % shown.method, repr([shown.method])

    return f, [call(count(3)), call(count(3))]


def finished_generator():
    """A generator that has nothing left to give."""
    generator = (item for item in ())
    list(generator)
    return generator


@program
def names_of_generators_from_outside():
    def numbers():
        yield 1

    def more():
        yield 2

    def f(x, generator):
        return x + 1, generator.__name__, generator.gi_frame is None

    return f, [call(count(3), numbers()), call(count(3), more()), call(count(3), finished_generator())]


@program
def text_of_a_property_that_is_written():
    def f(x, shown, again=False):
        made = property(lambda owner: 1, doc="made")
        if again:
            print(end="")
        made.__doc__ = shown.__doc__ = made.__doc__ + " and written"
        return x + 1, made.__doc__, shown.__doc__

    shown = property(lambda owner: 2, doc="shown")
    return f, [call(count(3), shown), call(count(3), shown, True), call(count(3), property(doc="another"))], shown
