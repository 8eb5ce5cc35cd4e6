"""Programs about user classes: attributes, properties, descriptors, special methods, inheritance."""

from __future__ import annotations

import abc
import enum
import functools
import typing
import weakref

import torch

from tests.conformance.catalogue import after, call, count, normal, program


@program(core=True)
def method_as_entry():
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        def scale(self, x):
            return x * self.factor

    scaler = Scaler(2.0)
    return scaler.scale, [call(count(2)), after(lambda: setattr(scaler, "factor", 3.0), count(2))]


@program(core=True)
def object_constructed_in_the_frame():
    class Accumulator:
        kind = "sum"

        def __init__(self, start):
            self.total = start
            self.steps = 0

        def add(self, x):
            self.total = self.total + x
            self.steps += 1
            return self

    def outer(x):
        accumulator = Accumulator(x)
        accumulator.add(x).add(x * 2)
        return accumulator, accumulator.total, accumulator.kind

    return outer, [call(normal(2)), call(normal(3))]


@program
def attribute_written_on_an_argument():
    class Holder:
        pass

    def outer(holder, x):
        holder.last = x * 2
        holder.count = getattr(holder, "count", 0) + 1
        return holder.last + holder.count

    holder = Holder()
    return outer, [call(holder, normal(2)), call(holder, normal(2)), call(holder, normal(2))]


@program
def attribute_deleted():
    class Holder:
        def __init__(self):
            self.cache = 5

    def outer(holder, x):
        if hasattr(holder, "cache"):
            x = x + holder.cache
            del holder.cache
        return x

    holder = Holder()
    return outer, [call(holder, count(2)), call(holder, count(2))]


@program(core=True)
def property_read_and_written():
    class Temperature:
        def __init__(self):
            self._celsius = 1.0
            self.reads = 0

        @property
        def celsius(self):
            self.reads += 1
            return self._celsius

        @celsius.setter
        def celsius(self, value):
            self._celsius = value * 2

    def outer(t, x):
        y = x * t.celsius
        t.celsius = 3.0
        return y + t.celsius, t.reads

    return outer, [call(Temperature(), count(2)), call(Temperature(), count(2))]


@program
def property_that_raises():
    class Strict:
        @property
        def value(self):
            raise AttributeError("not ready")

    def outer(x, strict):
        return x + getattr(strict, "value", 7), hasattr(strict, "value")

    return outer, [call(count(2), Strict())]


@program
def cached_property():
    class Lazy:
        def __init__(self):
            self.computed = 0

        @functools.cached_property
        def table(self):
            self.computed += 1
            return torch.arange(3.0)

    def outer(lazy, x):
        return lazy.table * x + lazy.table, lazy.computed

    lazy = Lazy()
    return outer, [call(lazy, normal(3)), call(lazy, normal(3))]


@program
def static_and_class_methods():
    class Maker:
        factor = 2

        @staticmethod
        def plus(x, n):
            return x + n

        @classmethod
        def scale(cls, x):
            return cls.plus(x * cls.factor, 1)

    class Other(Maker):
        factor = 5

    def outer(x):
        return Maker.scale(x), Other.scale(x), Other().plus(x, 2)

    return outer, [call(count(2)), after(lambda: setattr(Maker, "factor", 7), count(2))]


@program
def class_attribute_changed_between_calls():
    class Settings:
        scale = 1.0

    settings = Settings()

    def outer(x):
        return x * settings.scale

    return outer, [
        call(count(2)),
        after(lambda: setattr(Settings, "scale", 2.0), count(2)),
        after(lambda: setattr(settings, "scale", 3.0), count(2)),
        after(lambda: delattr(settings, "scale"), count(2)),
    ]


@program
def method_replaced_between_calls():
    class Stepper:
        def step(self, x):
            return x + 1

    stepper = Stepper()

    def outer(x):
        return stepper.step(x)

    return outer, [
        call(count(2)),
        after(lambda: setattr(Stepper, "step", lambda self, x: x + 2), count(2)),
        after(lambda: setattr(stepper, "step", lambda x: x + 3), count(2)),
    ]


@program
def data_descriptor():
    class Positive:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, instance, owner=None):
            return self if instance is None else getattr(instance, self.name)

        def __set__(self, instance, value):
            setattr(instance, self.name, abs(value))

    class Box:
        width = Positive()

        def __init__(self, width):
            self.width = width

    def outer(x, box):
        box.width = -x.shape[0]
        return x * box.width, Box(-3.0).width, type(Box.width).__name__

    return outer, [call(count(2), Box(1)), call(count(3), Box(1))]


@program
def non_data_descriptor_shadowed():
    class Default:
        def __get__(self, instance, owner=None):
            return 10.0

    class Box:
        size = Default()

    def outer(x, box):
        before = box.size
        vars(box)["size"] = 2.0
        return x * before + box.size

    return outer, [call(count(2), Box()), call(count(2), Box())]


@program
def getattr_hook():
    class Proxy:
        def __init__(self, target):
            self.target = target
            self.asked = []

        def __getattr__(self, name):
            self.asked.append(name)
            return getattr(self.target, name)

    class Target:
        scale = 3.0

    def outer(x, proxy):
        return x * proxy.scale + proxy.scale, proxy.asked

    return outer, [call(count(2), Proxy(Target())), call(count(2), Proxy(Target()))]


@program
def getattribute_and_setattr_hooks():
    class Spy:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __getattribute__(self, name):
            if name not in ("log", "__class__", "__dict__"):
                object.__getattribute__(self, "log").append(name)
            return object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            self.log.append("set " + name)
            object.__setattr__(self, name, value)

    def outer(x, spy):
        spy.value = x * 2
        return spy.value + 1

    return outer, [call(normal(1), Spy()), call(normal(1), Spy())]


@program(core=True)
def call_operator():
    class Affine:
        def __init__(self, scale):
            self.scale = scale

        def __call__(self, x, shift=0):
            return x * self.scale + shift

    affine = Affine(2.0)

    def outer(x):
        return affine(x) + affine(x, shift=1)

    return outer, [call(count(2)), after(lambda: setattr(affine, "scale", 1.0), count(2))]


@program
def callable_object_as_entry():
    class Counter:
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x + self.calls

    return Counter(), [call(count(2)), call(count(2))]


@program(core=True)
def operator_overloads():
    class Complex:
        def __init__(self, re, im):
            self.re, self.im = re, im

        def __add__(self, other):
            return Complex(self.re + other.re, self.im + other.im)

        def __mul__(self, other):
            if isinstance(other, Complex):
                return Complex(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
            return NotImplemented

        def __rmul__(self, number):
            return Complex(self.re * number, self.im * number)

        def __neg__(self):
            return Complex(-self.re, -self.im)

        def __eq__(self, other):
            return self is other or torch.equal(self.re, other.re)

        __hash__ = None

    def outer(a, b):
        z = 2 * (Complex(a, b) * Complex(b, a)) + -Complex(a, a)
        return z.re, z.im, z != z

    return outer, [call(normal(2), normal(2))]


@program
def inplace_and_container_overloads():
    class Bag:
        def __init__(self):
            self.items = {}

        def __iadd__(self, item):
            self.items[len(self.items)] = item
            return self

        def __getitem__(self, key):
            return self.items[key]

        def __setitem__(self, key, value):
            self.items[key] = value * 2

        def __delitem__(self, key):
            del self.items[key]

        def __contains__(self, key):
            return key in self.items

        def __len__(self):
            return len(self.items)

        def __iter__(self):
            return iter(self.items.values())

        def __bool__(self):
            return "never" not in self.items

    def outer(x, bag):
        bag += x
        bag += x + 1
        bag["k"] = x
        del bag[0]
        return sum(bag) if bag else x, len(bag), 1 in bag, 0 in bag

    return outer, [call(normal(1), Bag()), call(normal(1), Bag())]


@program
def comparison_overloads_in_sorting():
    @functools.total_ordering
    class Version:
        def __init__(self, number, tensor):
            self.number, self.tensor = number, tensor

        def __eq__(self, other):
            return self.number == other.number

        def __lt__(self, other):
            return self.number < other.number

    def outer(versions):
        ordered = sorted(versions)
        return [v.tensor * 2 for v in ordered], max(versions).number, versions[0] >= versions[1]

    return outer, [call([Version(3, normal(1)), Version(1, normal(1)), Version(2, normal(1))])]


@program
def repr_str_and_format():
    class Named:
        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return f"<{self.name}>"

        def __format__(self, spec):
            return self.name.rjust(int(spec or 0), ".")

    def outer(x, named):
        return x + 1, f"{named} {named!r} {named:6}", str(named), [named].__repr__()

    return outer, [call(normal(1), Named("ab")), call(normal(1), Named("c"))]


@program
def inheritance_and_super():
    class Base:
        def __init__(self, width):
            self.width = width

        def forward(self, x):
            return x + self.width

    class Middle(Base):
        def __init__(self, width, depth):
            super().__init__(width)
            self.depth = depth

        def forward(self, x):
            return super().forward(x) * self.depth

    class Leaf(Middle):
        def forward(self, x):
            return super(Leaf, self).forward(x) - Base.forward(self, x)

    def outer(x, width):
        return Leaf(width, 3).forward(x)

    return outer, [call(count(2), 1), call(count(2), 2)]


@program
def diamond_inheritance():
    class Root:
        def names(self):
            return ["root"]

    class Left(Root):
        def names(self):
            return ["left", *super().names()]

    class Right(Root):
        def names(self):
            return ["right", *super().names()]

    class Both(Left, Right):
        pass

    def outer(x):
        return x + len(Both().names()), Both().names(), [kind.__name__ for kind in Both.__mro__]

    return outer, [call(count(1))]


@program
def isinstance_and_issubclass():
    class Base:
        pass

    class Child(Base):
        pass

    def outer(x, value):
        facts = [
            isinstance(value, Base),
            isinstance(value, (int, Child)),
            issubclass(type(value), Base),
            type(value) is Child,
            isinstance(x, torch.Tensor),
            torch.is_tensor(value),
            isinstance(x, torch.nn.Parameter),
            callable(value),
        ]
        return x + sum(facts), facts

    return outer, [call(count(1), Child()), call(count(1), Base()), call(count(1), 3), call(torch.nn.Parameter(count(1)), len)]


@program
def abstract_base_class():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self, x): ...

        def describe(self, x):
            return self.area(x) + 1

    class Square(Shape):
        def area(self, x):
            return x * x

    def outer(x):
        try:
            Shape()
        except TypeError:
            return Square().describe(x), isinstance(Square(), Shape)

    return outer, [call(normal(2))]


@program
def protocol_and_generic():
    T = typing.TypeVar("T")

    @typing.runtime_checkable
    class HasScale(typing.Protocol):
        scale: float

    class Box(typing.Generic[T]):
        def __init__(self, value: T, scale: float):
            self.value, self.scale = value, scale

    def outer(x):
        box = Box[torch.Tensor](x, 2.0)
        kind: typing.Any = typing.cast(typing.List[int], [1, 2])
        return box.value * box.scale, isinstance(box, HasScale), kind

    return outer, [call(normal(2))]


@program
def enum_members():
    class Activation(enum.Enum):
        RELU = "relu"
        TANH = "tanh"

        def apply(self, x):
            return torch.relu(x) if self is Activation.RELU else torch.tanh(x)

    def outer(x, activation):
        names = [member.name for member in Activation]
        return activation.apply(x), activation.value, Activation("relu") is activation, Activation["TANH"].name, names

    return outer, [call(normal(2), Activation.RELU), call(normal(2), Activation.TANH), call(normal(2), Activation.RELU)]


@program
def int_enum_and_flags():
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 10

    class Option(enum.Flag):
        A = enum.auto()
        B = enum.auto()

    def outer(x, level, option):
        return x * level + (level > 5), bool(option & Option.A), option | Option.B, Level(1).name, sorted(Level)

    return outer, [call(count(2), Level.LOW, Option.A), call(count(2), Level.HIGH, Option.B)]


@program
def slots():
    class Point:
        __slots__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

    def outer(point):
        point.x = point.x + point.y
        moved = Point(point.y, point.x)
        try:
            moved.z = 1
        except AttributeError:
            return moved, point.x
        return None

    return outer, [call(Point(normal(1), normal(1))), call(Point(normal(2), normal(2)))]


@program
def new_and_singleton():
    class Singleton:
        instance = None

        def __new__(cls):
            if cls.instance is None:
                cls.instance = super().__new__(cls)
                cls.instance.uses = 0
            return cls.instance

    def outer(x):
        first, second = Singleton(), Singleton()
        first.uses += 1
        return x + second.uses, first is second

    return outer, [call(count(1)), call(count(1))]


@program
def metaclass_registry():
    registry = {}

    class Meta(type):
        def __new__(mcs, name, bases, namespace):
            made = super().__new__(mcs, name, bases, namespace)
            registry[name.lower()] = made
            return made

        def __len__(cls):
            return cls.size

    class Double(metaclass=Meta):
        size = 2

        def apply(self, x):
            return x * 2

    def outer(x, name):
        return registry[name]().apply(x), len(registry[name])

    return outer, [call(count(2), "double")]


@program
def class_defined_in_the_frame():
    def outer(x, n):
        class Local:
            factor = n

            def apply(self, value):
                return value * self.factor

        return Local().apply(x), Local.__name__

    return outer, [call(count(2), 2), call(count(2), 3)]


@program
def init_subclass_and_class_getitem():
    class Base:
        subclasses = []

        def __init_subclass__(cls, **options):
            super().__init_subclass__(**options)
            cls.subclasses.append(cls.__name__)

        def __class_getitem__(cls, item):
            return item * 2

    class First(Base):
        pass

    def outer(x):
        return x * Base[3], Base.subclasses[0], len(First.subclasses)

    return outer, [call(count(2))]


@program
def setattr_and_getattr_by_name():
    class Holder:
        pass

    def outer(x, names):
        holder = Holder()
        for i, name in enumerate(names):
            setattr(holder, name, x * i)
        delattr(holder, names[0])
        return [getattr(holder, name, None) for name in names], sorted(vars(holder)), holder.__dict__[names[1]]

    return outer, [call(normal(1), ["a", "b"]), call(normal(1), ["c", "d", "e"])]


@program
def bound_method_comparison_and_storage():
    class Machine:
        def __init__(self):
            self.step = self.first

        def first(self, x):
            self.step = self.second
            return x + 1

        def second(self, x):
            self.step = self.first
            return x * 2

    def outer(x, machine):
        x = machine.step(x)
        x = machine.step(x)
        return x, machine.step == machine.first, machine.first.__self__ is machine

    return outer, [call(count(2), Machine()), call(count(3), Machine())]


@program
def weak_reference():
    class Node:
        def __init__(self, value):
            self.value = value

    node = Node(2.0)
    reference = weakref.ref(node)

    def outer(x):
        target = reference()
        return x * target.value if target is not None else x

    return outer, [call(count(2)), after(lambda: setattr(node, "value", 3.0), count(2))], node


@program
def linked_objects_with_a_cycle():
    class Node:
        def __init__(self, value, parent=None):
            self.value, self.parent, self.children = value, parent, []
            if parent is not None:
                parent.children.append(self)

    def outer(x):
        root = Node(x)
        child = Node(x * 2, root)
        Node(x * 3, child)
        return root, child.parent is root, child.children[0].value

    return outer, [call(normal(1))]


@program
def same_object_in_two_arguments():
    class Box:
        def __init__(self, value):
            self.value = value

    def outer(a, b, x):
        a.value = x
        b.value = b.value + 1
        return a.value, a is b

    one = Box(0.0)
    return outer, [call(one, one, count(2)), call(Box(0.0), Box(5.0), count(2))]


@program
def object_returned_is_the_argument():
    class Box:
        def __init__(self, value):
            self.value = value

    def outer(box, x):
        box.value = box.value * x
        return box, [box]

    return outer, [call(Box(2.0), normal(1)), call(Box(normal(1)), normal(1))]


@program
def truth_and_length_of_user_objects():
    class Maybe:
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

    def outer(x, maybe):
        return x + 1 if maybe else x - 1

    return outer, [call(count(2), Maybe([])), call(count(2), Maybe([0])), call(count(2), Maybe([]))]


@program
def partial_call_as_an_attribute_of_a_class():
    class Scaled:
        double = functools.partial(torch.mul, other=2)
        triple = functools.partialmethod(lambda self, factor, value: value * factor, 3)

    def outer(x, scaled):
        return Scaled.double(x) + scaled.double(x), scaled.triple(x)

    return outer, [call(normal(2, 3), Scaled()), call(normal(2, 3), Scaled())]
