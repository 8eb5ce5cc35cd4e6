"""What Python's own libraries write on functions, classes and fields, and what is read of it behind a graph break."""

from __future__ import annotations

import abc
import builtins
import collections
import copy
import dataclasses
import inspect
import time
import types
import typing

from tests.conformance.catalogue import after, call, count, program


def twice(outer):
    return outer, [call(count(2)), call(count(3))]


@program(core=True)
def marked_as_final_before_a_break():
    def outer(x):
        @typing.final
        def scale(y):
            return y * 2

        print(x.sum().item())
        return scale(x), scale.__final__

    return twice(outer)


@program
def a_marked_function_stays_the_same_one():
    def outer(x):
        def make(*, frozen=False):
            return x + frozen

        marked = typing.dataclass_transform(kw_only_default=True)(make)
        first = marked is make
        print(x.sum().item())
        return first, marked is make, make.__dataclass_transform__["kw_only_default"], make(frozen=True)

    return twice(outer)


@program
def a_decorator_that_leaves_out_type_checks():
    def outer(x):
        @typing.no_type_check_decorator
        def magic(function):
            return function

        @magic
        def scale(y: "unknown") -> {}:
            return y * 2

        return magic.__name__, scale.__no_type_check__, scale(x)

    return twice(outer)


@program
def a_type_is_shown_at_each_call():
    def outer(x):
        return x * typing.reveal_type(2)

    return twice(outer)


@program
def marked_as_abstract_before_a_break():
    def outer(x):
        @abc.abstractmethod
        def forward(y):
            return y + 1

        print(x.sum().item())
        return forward(x), forward.__isabstractmethod__

    return twice(outer)


@program
def fields_of_a_class_made_inside_behind_a_break():
    def outer(x):
        @dataclasses.dataclass
        class Options:
            width: int
            rate: float = dataclasses.field(default=0.5, repr=False)

        fields = dataclasses.fields(Options)
        print(x.sum().item())
        return [(field.name, field.type, field.repr, field.default == 0.5) for field in fields], x + Options(3).width

    return twice(outer)


@program
def a_field_with_a_name_behind_a_break():
    def outer(x):
        field = dataclasses.field(default=2)
        field.name = "width"
        print(x.sum().item())
        return field.name, x * field.default, dict(field.metadata), field.metadata == {}

    return twice(outer)


@program
def a_builtin_is_replaced_for_a_while():
    def size(row):
        return len(row)

    def outer(x):
        before = size([1, 2])
        kept, builtins.len = len, lambda row: 7
        try:
            during = size([1, 2])
        finally:
            builtins.len = kept
        return x + before, during, size([1, 2])

    return twice(outer)


@program
def a_deque_is_written_under_its_iterator():
    def outer(x):
        queue = collections.deque([1, 2, 3])
        rest = iter(queue)
        first = next(rest)
        print(x.sum().item())
        queue[1] = x * 2
        queue[2] = 5
        print(first)
        return first, list(rest)

    return twice(outer)


@program
def a_deep_copy_of_a_slice():
    def outer(x):
        part = slice([1], [2])
        copied = copy.deepcopy(part)
        copied.start.append(3)
        return x + len(part.start), part.start, copied.start, copied.step, x[copy.deepcopy(slice(0, 1))]

    return twice(outer)


@program
def a_module_is_shown_with_what_was_written_to_it():
    module = types.ModuleType("made")

    def outer(x):
        module.__file__ = f"made_{len(x)}.py"
        return x + 1, repr(module), f"{module}"

    return twice(outer)


class Described:
    """At first."""

    width: int = 1

    def scale(self, by: "int") -> float:
        return by * 0.5


def described():
    return type("Described", (), {"__doc__": "At first.", "__annotations__": {"width": int}, "width": 1, "scale": Described.scale})


@program
def type_hints_of_a_class_that_change():
    kind = described()

    def outer(x):
        return x + 1, {name: hint.__name__ for name, hint in typing.get_type_hints(kind).items()}

    return outer, [call(count(2)), after(lambda: kind.__annotations__.update(height=float), count(2)), call(count(3))]


@program
def type_hints_of_a_function_that_change():
    def scale(x, by: "int" = 2):
        return x * by

    def outer(x):
        return scale(x), {name: hint.__name__ for name, hint in typing.get_type_hints(scale).items()}

    return outer, [call(count(2)), after(lambda: scale.__annotations__.update(x=float), count(2)), call(count(3))]


@program
def a_class_that_is_inspected_changes():
    kind = described()

    def change():
        kind.__doc__, kind.width, kind.height = "Later.", 5, 2

    def outer(x):
        members = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
        return x * inspect.getattr_static(kind, "width"), inspect.getdoc(kind), inspect.isclass(kind), members

    return outer, [call(count(2)), after(change, count(2)), call(count(3))]


@program
def defaults_by_name_of_an_ordered_dictionary():
    seen = collections.OrderedDict(a=1)

    def outer(x):
        first = seen.setdefault("b", default=2)
        return x * first, seen.setdefault(key="c", default=len(seen)), seen.setdefault("b", default=9), list(seen.items())

    return twice(outer)


@program
def a_builtin_class_refuses_attributes_where_they_are_set():
    def outer(x):
        try:
            int.scale = 2
        except TypeError as error:
            return x + 1, str(error)
        return x

    return twice(outer)


@program
def what_is_no_element_of_a_time_behind_a_break():
    def outer(x):
        moment = time.struct_time((2024, 1, 2, 3, 4, len(x), 6, 7, 0, "CET", 3600))
        largest = x.max(0)
        print(x.sum().item())
        return moment, moment.tm_zone, moment.tm_gmtoff, largest.values, largest.indices

    return twice(outer)
