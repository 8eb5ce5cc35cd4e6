"""Functions that make classes: others in each call, used inside, given back, raised, or alive across a graph break."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing

import torch

from tests.conformance.catalogue import call, leaf, normal, program

SCALE = 2.0


@program(core=True)
def class_with_methods_of_every_kind():
    def outer(x):
        class Point:
            """A point."""

            z: int = 3

            def __init__(self, a, b):
                self.a, self.b = a, b

            def __add__(self, other):
                return Point(self.a + other.a, self.b + other.b)

            @property
            def norm(self):
                return (self.a**2 + self.b**2).sqrt()

            @staticmethod
            def both(value):
                return Point(value, value + 1)

            @classmethod
            def zero(cls, like):
                return cls(like * 0, like * 0)

        p = Point(x, x + 1) + Point.both(x) + Point.zero(x)
        said = Point.__name__, Point.__doc__, Point.__qualname__, Point.__module__, Point.__annotations__
        return p.norm * Point.z, isinstance(p, Point), type(p) is Point, said

    return outer, [call(leaf(2, 3)), call(leaf(2, 3)), call(leaf(4, 3))]


@program
def body_that_reads_variables_around_it():
    def outer(x, n):
        y = x.sin()

        class Shifted:
            k = n * 2
            shift = y
            values = [i * 2 for i in range(3)]
            for i in range(2):
                values.append(i)
            del i
            names = sorted(locals())
            if SCALE > 1:
                big = True

            def compute(self):
                return self.shift * self.k + n + SCALE + len(self.values)

        return Shifted().compute(), Shifted.names, Shifted.big, hasattr(Shifted, "i")

    return outer, [call(leaf(2, 3), 3), call(leaf(2, 3), 4), call(leaf(2, 3), 5)]


@program
def subclasses_made_together():
    def outer(x):
        class Base:
            def __init__(self, w):
                self.w = w

            def run(self, v):
                return v * self.w

        class Doubling:
            def run(self, v):
                return super().run(v) * 2

        class Child(Doubling, Base):
            __slots__ = ("kept",)

            def __init__(self, w):
                super().__init__(w + 1)
                self.kept = w

            def run(self, v):
                return super().run(v) - self.kept

        try:

            class Contradiction(Base, Child):
                pass

        except TypeError as error:
            refused = str(error)
        return Child(x).run(x), issubclass(Child, Base), [kind.__name__ for kind in Child.__mro__], refused

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def exception_class_caught_and_given_back():
    def outer(x):
        class Odd(ValueError):
            def __init__(self, message, value):
                super().__init__(message)
                self.value = value

        try:
            raise Odd("odd", x * 2)
        except ValueError as error:
            kept = error
        return kept.value + 1, repr(kept), type(kept).__name__, Odd.__mro__[1]

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program(raises=ValueError)
def exception_class_uncaught():
    def outer(x):
        class Odd(ValueError):
            pass

        y = x * 2
        if y.shape[0] > 2:
            raise Odd(f"{y.shape[0]} rows")
        return y

    def caller(x):
        try:
            return outer(x)
        except ValueError as error:
            raise ValueError(type(error).__name__, str(error)) from None

    return caller, [call(leaf(2, 3)), call(leaf(4, 3))]


@program
def instances_and_classes_given_back():
    def outer(x):
        y = x + 1

        class Kept:
            factor: float = 2.0

            def __init__(self, value=None):
                self.value = y if value is None else value

            @property
            def double(self):
                return self.value * self.factor

            @double.setter
            def double(self, value):
                self.value = value / self.factor

            @staticmethod
            def shift(value=y):
                return value

            @classmethod
            def of(cls, value):
                return cls(value)

            def again(self, *, k=3):
                return [Kept.of(k).value, type(self) is Kept, __class__ is Kept, super().__eq__(self)]

        return Kept, Kept(x)

    def used(x):
        kind, one = outer(x)
        other = kind()
        one.double = x * 4
        facts = kind.__name__, kind.__qualname__, kind.__annotations__, isinstance(one, kind), one.again(), kind.of(2).double
        return one.value, other.double, kind.shift(), facts

    compiled_inside = outer
    return (lambda x: [*used(x), compiled_inside(x)[1].value]), [call(leaf(2, 3)), call(leaf(2, 3)), call(leaf(4, 3))]


@program
def another_class_in_each_call():
    seen = []

    def outer(x):
        class Kept:
            def __init__(self, value):
                self.value = value

        seen.append(Kept)
        return Kept(x * 2)

    def compared(x):
        one, other = outer(x), outer(x)
        return one.value + other.value, type(one) is type(other), len(seen), len(set(seen))

    return compared, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def dataclasses_made_inside():
    def outer(x, k):
        @dataclasses.dataclass
        class Pair:
            a: torch.Tensor
            k: int = 3
            items: list = dataclasses.field(default_factory=list)

        @dataclasses.dataclass(frozen=True, order=True)
        class Fixed:
            k: int
            a: typing.Any = dataclasses.field(default=None, compare=False, repr=False)

        p, q = Pair(x), Pair(x * 2, k, [1])
        p.items.append(x)
        fixed = sorted([Fixed(k, x), Fixed(1)])
        try:
            fixed[0].k = 4
        except dataclasses.FrozenInstanceError as error:
            refused = str(error)
        names = [field.name for field in dataclasses.fields(Pair)]
        return p.a * p.k + q.a * q.k + p.items[0], names, fixed[0], refused, q, Fixed(2) == Fixed(2, x)

    def shown(x, k):
        value, names, fixed, refused, q, same = outer(x, k)
        return value, names, repr(fixed), fixed.k, refused, q.a, vars(q).keys(), type(q).__eq__ is object.__eq__, same

    return shown, [call(leaf(2, 3), 4), call(leaf(2, 3), 4), call(leaf(2, 3), 7)]


@program
def class_made_by_type():
    def outer(x):
        scaled = type("Scaled", (), {"k": x * 2, "compute": lambda self, v: v * self.k})
        error = type("Refused", (ArithmeticError,), {"__doc__": "No."})
        try:
            raise error("no")
        except ArithmeticError as caught:
            return scaled().compute(x), scaled.__name__, scaled.__module__, scaled.__qualname__, str(caught), error.__doc__

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def class_alive_across_breaks():
    def outer(x):
        y = x * 2

        class Factor:
            def __init__(self, value):
                self.value = value

            def __call__(self, v):
                return v * self.value + y

        factor = Factor(x)
        z = factor(x)
        print("between")
        return factor(z) + Factor(2)(x)

    return outer, [call(leaf(2, 3)), call(leaf(2, 3)), call(leaf(2, 3))]


@program
def class_dead_before_a_break():
    def outer(x):
        def tripled(v):
            class Factor:
                value = 3

            return v * Factor.value

        y = tripled(x)
        print("between")
        return tripled(y)

    return outer, [call(leaf(2, 3)), call(leaf(2, 3)), call(leaf(2, 3))]


@program
def break_in_a_method_of_a_class_made_inside():
    def outer(x):
        def make():
            class Printing:
                def __enter__(self):
                    print("enter")
                    return self

                def __exit__(self, *error):
                    print("exit", error[0] is not None)
                    return True

                def double(self, v):
                    print("double")
                    return v * 2

            return Printing()

        with make() as printing:
            x = printing.double(x)
            raise KeyError
        return make().double(x) + 1

    return outer, [call(leaf(2, 3)), call(leaf(2, 3)), call(leaf(2, 3))]


@program
def classes_in_a_loop_with_breaks():
    def outer(x):
        total = x * 0
        for i in range(3):

            class Step:
                k = i

            total = total + x * Step.k
            print(Step.__name__, i)
        return total

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def class_attributes_written_afterwards():
    def outer(x):
        class Counter:
            n = 0

        Counter.n += 1
        Counter.double = lambda self: x * 2
        for i in range(3):
            Counter.n += i
        return Counter().double() * Counter.n, Counter

    def shown(x):
        value, kind = outer(x)
        return value, kind.n, kind().double()

    return shown, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def operators_and_protocols_of_a_class_made_inside():
    def outer(x):
        class Many:
            def __call__(self, v):
                return v * 2

            def __getitem__(self, i):
                return x[i]

            def __len__(self):
                return 2

            def __iter__(self):
                for i in range(3):
                    yield x * i

            def __eq__(self, other):
                return True

            def __getattr__(self, name):
                if name == "missing":
                    return x * 3
                raise AttributeError(name)

            def __setattr__(self, name, value):
                object.__setattr__(self, name, value * 2)

        many = Many()
        many.doubled = x
        facts = len(many), many == 3, Many.__hash__ is None, hasattr(many, "other")
        return many(x) + many[0] + sum(many) + many.missing + many.doubled, facts

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def containers_and_modules_made_inside():
    def outer(x):
        class Rows(list):
            def first(self):
                return self[0] * 2

        class Defaults(dict):
            def __missing__(self, key):
                return x * key

        class Net(torch.nn.Module):
            def forward(self, v):
                return v.relu() + 1

        rows, defaults = Rows(), Defaults()
        rows.append(x)
        defaults["x"] = x
        return rows.first() + defaults[3] + Net()(x), rows, defaults, {Rows: 1}[Rows]

    def shown(x):
        value, rows, defaults, one = outer(x)
        return value, rows.first(), list(rows), dict(defaults), defaults[2], type(rows).__name__, one

    return shown, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def classes_that_python_has_to_make():
    def outer(x):
        class Level(enum.Enum):
            LOW = 1

        class Registry:
            names: typing.ClassVar[list] = []

            def __init_subclass__(cls, **kwargs):
                Registry.names.append((cls.__name__, kwargs))

        class Named(Registry, level=Level.LOW.value):
            pass

        class Told:
            def __set_name__(self, owner, name):
                self.name = name

            def __get__(self, instance, owner):
                return self.name

        class Holder:
            told = Told()

            @functools.cached_property
            def computed(self):
                return x * 2

        class Row(typing.NamedTuple):
            a: torch.Tensor
            b: int = 2

        return x * Level.LOW.value + Row(x).b, Registry.names, Holder().told, Holder().computed, Named.__name__

    return outer, [call(normal(2, 3)), call(normal(2, 3)), call(normal(2, 3))]


@program
def break_in_the_body_of_a_class():
    def outer(x):
        y = x + 1

        class Loud:
            print("in the body")
            k = 2

        return y * Loud.k

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def class_that_holds_itself():
    def outer(x):
        class Node:
            children = []

        Node.children.append(Node)
        return Node, x + 1

    def shown(x):
        kind, y = outer(x)
        return kind.children[0] is kind, y

    return shown, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def native_methods_of_a_class_alive_across_a_break():
    def outer(x):
        class Base:
            pass

        class Child(Base):
            def run(self, v):
                return v * 2

        order, asked = Child.mro, Child.__instancecheck__
        y = Child().run(x)
        print("between")
        return y, [kind.__name__ for kind in order()], asked(Child()), Base.__subclasses__() == [Child]

    def called_at_the_end(x):
        class Base:
            pass

        class Child(Base):
            pass

        return [kind.__name__ for kind in Child.mro()], x + 1

    return (lambda x: (outer(x), called_at_the_end(x))), [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def types_written_with_a_class_alive_across_a_break():
    def outer(x):
        class Kept:
            __slots__ = ("value",)

        maybe: typing.Any = typing.Optional[Kept], typing.Callable[[list[Kept]], int], Kept.value
        y = x * 2
        print("between")
        inner = maybe[1].__args__[0].__args__[0]
        return y, maybe[0].__args__[0] is Kept, inner is Kept, maybe[2].__objclass__ is Kept

    return outer, [call(leaf(2, 3)), call(leaf(2, 3))]


@program
def instances_by_way_of_a_type_with_parameters():
    def outer(x, again=False):
        class Table(dict):
            def __missing__(self, key):
                return key * 2

        class Box:
            __class_getitem__ = classmethod(types.GenericAlias)

        written = Table[str, int], Box[int]
        if again:
            print("between")
        table, box = written[0](a=1), written[1]()
        return x * table["a"], table[3], type(table) is Table, isinstance(box, Box), written[1].__origin__ is Box

    return outer, [call(leaf(2, 3)), call(leaf(2, 3), True)]
