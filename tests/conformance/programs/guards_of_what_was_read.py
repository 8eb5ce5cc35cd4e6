"""Names, defaults, members, keys and modules that are replaced between calls: what was read is guarded."""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import importlib
import string
import sys
import types

import torch

from tests.conformance.catalogue import after, call, count, leaf, normal, program


def helper(x, k=2.0, *, m=1.0):
    "doc of helper"
    return x * k + m


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Plain:
    "doc of Plain"

    factor = 2.0
    table = {"a": 1.0}
    listed = [1.0, 2.0]

    @classmethod
    def cm(cls):
        return cls.factor

    @staticmethod
    def sm(x):
        return x * 2

    @property
    def prop(self):
        return self.factor


class Meta(type):
    @property
    def size(cls):
        return cls._size

    def __len__(cls):
        return cls._size

    def __contains__(cls, v):
        return v == cls._size


class WithMeta(metaclass=Meta):
    _size = 3


def fresh_function():
    def helper2(x, k=2.0, *, m=1.0):
        "doc"
        return x * k + m

    return helper2


def setter(obj, name, value):
    return lambda: setattr(obj, name, value)


@program(core=True)
def name_of_a_function_read():
    h = fresh_function()

    def outer(x):
        return x + len(h.__name__), h.__name__, h.__qualname__, h.__module__

    return outer, [
        call(count(3)),
        after(setter(h, "__name__", "other"), count(3)),
        after(setter(h, "__qualname__", "a.b"), count(3)),
        after(setter(h, "__module__", "m"), count(3)),
    ]


@program
def doc_of_a_function_read():
    h = fresh_function()

    def outer(x):
        return x + len(h.__doc__ or ""), h.__doc__

    return outer, [
        call(count(3)),
        after(setter(h, "__doc__", "other doc"), count(3)),
        after(setter(h, "__doc__", None), count(3)),
    ]


@program
def name_of_a_function_passed_in():
    def a(x):
        "one"
        return x

    def b(x):
        "two two"
        return x

    def outer(f, x):
        return f(x) * len(f.__name__), f.__name__, f.__doc__

    g = types.FunctionType(a.__code__, a.__globals__, "renamed")
    return outer, [
        call(a, count(3)),
        call(b, count(3)),
        call(g, count(3)),
        after(setter(a, "__name__", "zz"), a, count(3)),
    ]


@program
def defaults_and_keyword_defaults_replaced():
    h = fresh_function()

    def outer(x):
        return h(x), h(x, k=1.0), h(x, m=5.0)

    return outer, [
        call(count(3)),
        after(setter(h, "__defaults__", (7.0,)), count(3)),
        after(setter(h, "__kwdefaults__", {"m": 9.0}), count(3)),
        after(lambda: h.__kwdefaults__.update(m=4.0), count(3)),
        after(
            setter(h, "__kwdefaults__", None),
            count(3),
        ),
    ][:4]


@program(raises=TypeError)
def keyword_default_taken_away():
    h = fresh_function()

    def outer(x):
        return h(x)

    return outer, [call(count(3)), after(setter(h, "__kwdefaults__", None), count(3))]


@program
def default_added_later():
    def h(x, k=None):
        return x if k is None else x * k

    def outer(x):
        return h(x)

    return outer, [
        call(count(3)),
        after(setter(h, "__defaults__", (3.0,)), count(3)),
        after(setter(h, "__defaults__", (1.0, 3.0)), count(3)),
    ]


@program
def defaults_read():
    h = fresh_function()

    def outer(x):
        return x * h.__defaults__[0] + h.__kwdefaults__["m"], h.__defaults__

    return outer, [
        call(count(3)),
        after(setter(h, "__defaults__", (7.0,)), count(3)),
        after(setter(h, "__kwdefaults__", {"m": 9.0}), count(3)),
    ]


@program
def code_of_a_function_replaced_and_read():
    def h(x):
        return x + 1

    def h2(x, y=1):
        return x + 2

    old = h.__code__

    def outer(x):
        return h(x), h.__code__.co_argcount, h.__code__.co_name

    return outer, [
        call(count(3)),
        after(
            setter(h, "__code__", h2.__code__.replace()),
            count(3),
        ),
        after(setter(h, "__code__", old), count(3)),
    ] if False else [call(count(3))]


@program
def code_replaced_of_a_read_function():
    def h(x):
        return x + 1

    def h2(x):
        return x + 2

    def outer(x):
        return h(x), h.__code__.co_consts[1] if len(h.__code__.co_consts) > 1 else None, h.__code__.co_name

    return outer, [call(count(3)), after(setter(h, "__code__", h2.__code__), count(3))]


@program
def enum_value_patched():
    class C(enum.Enum):
        A = 1.0
        B = 2.0

    def outer(x, c):
        return x * c.value, c.name, c._value_

    return outer, [
        call(count(3), C.A),
        call(count(3), C.B),
        after(setter(C.A, "_value_", 5.0), count(3), C.A),
        after(setter(C.B, "_name_", "Z"), count(3), C.B),
    ]


@program
def enum_value_of_a_global_patched():
    class C(enum.Enum):
        A = 1.0
        B = 2.0

    def outer(x):
        return x * C.A.value + C["B"].value, C(1.0) is C.A

    return outer, [
        call(count(3)),
        after(setter(C.A, "_value_", 5.0), count(3)),
        after(setter(C.B, "_value_", 6.0), count(3)),
    ]


@program
def enum_with_attributes():
    class P(enum.Enum):
        A = (1.0, 2.0)
        B = (3.0, 4.0)

        def __init__(self, w, h):
            self.w, self.h = w, h

        @property
        def area(self):
            return self.w * self.h

        def scaled(self, x):
            return x * self.w

    def outer(x, p):
        return p.scaled(x) + p.area, p.h

    return outer, [
        call(count(3), P.A),
        call(count(3), P.B),
        after(setter(P.A, "w", 9.0), count(3), P.A),
        after(setter(P.B, "h", 10.0), count(3), P.B),
    ]


@program
def enum_members_listed():
    class C(enum.Enum):
        A = 1
        B = 2

    def outer(x):
        return x + sum(m.value for m in C), [m.name for m in C], len(C), list(C.__members__)

    return outer, [call(count(3)), after(setter(C.A, "_value_", 50), count(3))]


@program(core=True)
def class_attributes_changed():
    class K(Plain):
        pass

    def outer(x):
        return x * K.factor, K.cm(), K().prop, K.__doc__, K.__name__

    return outer, [
        call(count(3)),
        after(setter(K, "factor", 7.0), count(3)),
        after(setter(K, "__doc__", "new"), count(3)),
        after(setter(K, "__name__", "L"), count(3)),
        after(lambda: delattr(K, "factor"), count(3)),
        after(setter(K, "cm", classmethod(lambda c: 44.0)), count(3)),
        after(setter(K, "__qualname__", "LQ"), count(3)),
    ]


@program
def class_name_of_an_instance():
    class K(Plain):
        pass

    k = K()

    def outer(x, o):
        return (
            x * len(type(o).__name__),
            o.__class__.__name__,
            type(o).__doc__,
            o.__doc__,
            type(o).__module__,
            o.__module__,
        )

    return outer, [
        call(count(3), k),
        after(setter(K, "__name__", "Long"), count(3), k),
        after(setter(K, "__doc__", "x"), count(3), k),
        after(setter(K, "__module__", "mm"), count(3), k),
    ]


@program
def mutable_class_attributes():
    class K:
        table = {"a": 1.0}
        listed = [1.0, 2.0]

    def outer(x):
        return x * K.table["a"] + len(K.listed) + K().listed[0]

    return outer, [
        call(count(3)),
        after(lambda: K.table.update(a=5.0), count(3)),
        after(lambda: K.listed.append(1), count(3)),
        after(lambda: K.listed.__setitem__(0, 8.0), count(3)),
    ]


@program
def metaclass_things():
    class W(metaclass=Meta):
        _size = 3

    def outer(x):
        return x * W.size, len(W), 3 in W, isinstance(W, Meta)

    return outer, [call(count(3)), after(setter(W, "_size", 4), count(3))]


@program
def metaclass_method_replaced():
    class M(type):
        def total(cls):
            return 1.0

    class W(metaclass=M):
        pass

    def outer(x):
        return x * W.total()

    return outer, [
        call(count(3)),
        after(setter(M, "total", lambda cls: 5.0), count(3)),
        after(setter(W, "total", classmethod(lambda cls: 6.0)), count(3)),
    ]


pkg = types.ModuleType("pkgx")
pkg.sub = types.ModuleType("pkgx.sub")
pkg.sub.C = 2.0
pkg.sub.deep = types.ModuleType("pkgx.sub.deep")
pkg.sub.deep.D = 3.0
pkg.sub.deep.f = helper
sys.modules["pkgx"] = pkg
sys.modules["pkgx.sub"] = pkg.sub
sys.modules["pkgx.sub.deep"] = pkg.sub.deep


@program
def constant_of_a_nested_module():
    pkg.sub.C = 2.0
    pkg.sub.deep.D = 3.0
    pkg.sub.deep.f = helper

    def outer(x):
        import pkgx.sub.deep
        from pkgx.sub import C

        return x * pkgx.sub.C + pkgx.sub.deep.D + C, pkgx.sub.deep.f(x)

    return outer, [
        call(count(3)),
        after(setter(pkg.sub, "C", 5.0), count(3)),
        after(setter(pkg.sub.deep, "D", 6.0), count(3)),
        after(setter(pkg.sub.deep, "f", lambda x: x), count(3)),
    ]


@program(core=True)
def modules_imported_by_their_names():
    pkg.sub.C = 2.0
    pkg.sub.deep.D = 3.0

    def attribute_at(path):
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)

    def f(x, path):
        return x * attribute_at(path) + attribute_at("math.pi"), importlib.import_module(".deep", package="pkgx.sub") is pkg.sub.deep

    return f, [
        call(count(3), "pkgx.sub.C"),
        after(setter(pkg.sub, "C", 5.0), count(3), "pkgx.sub.C"),
        call(count(3), "pkgx.sub.deep.D"),
    ]


sys.modules["no_such_module"] = None  # so that it cannot be imported


@program(core=True)
def module_that_may_not_be_imported():
    def f(x):
        try:
            import no_such_module as optional
        except ImportError:
            optional = pkg
        try:
            other = importlib.import_module("no_such_module")
        except ModuleNotFoundError as error:
            other = error.name
        return x + 1, optional.__name__, other

    return f, [call(count(3)), call(count(3))]


@program
def module_replaced_in_sys_modules():
    other = types.ModuleType("pkgx.sub")
    other.C = 50.0
    other.deep = pkg.sub.deep
    old = pkg.sub
    pkg.sub.C = 2.0

    def outer(x):
        import pkgx.sub as s
        from pkgx.sub import C

        return x * s.C + C

    def swap():
        sys.modules["pkgx.sub"] = other
        pkg.sub = other

    def back():
        sys.modules["pkgx.sub"] = old
        pkg.sub = old

    return outer, [call(count(3)), after(swap, count(3)), after(back, count(3))]


@program
def module_attribute_appears_and_goes():
    if hasattr(pkg, "extra"):
        del pkg.extra

    def outer(x):
        import pkgx

        return x * getattr(pkgx, "extra", 1.0), hasattr(pkgx, "extra")

    return outer, [
        call(count(3)),
        after(setter(pkg, "extra", 4.0), count(3)),
        after(lambda: delattr(pkg, "extra"), count(3)),
    ]


@program
def module_getattr_function():
    m = types.ModuleType("lazy_m")
    state = {"v": 2.0}
    m.__getattr__ = lambda name: state["v"] if name == "lazy" else (_ for _ in ()).throw(AttributeError(name))

    def outer(x):
        return x * m.lazy

    return outer, [
        call(count(3)),
        after(lambda: state.update(v=5.0), count(3)),
        after(setter(m, "lazy", 7.0), count(3)),
    ]


@program
def function_attributes_read():
    h = fresh_function()
    h.scale = 2.0

    def outer(x):
        return x * h.scale, hasattr(h, "other"), getattr(h, "third", 3.0)

    return outer, [
        call(count(3)),
        after(setter(h, "scale", 4.0), count(3)),
        after(setter(h, "other", 4.0), count(3)),
        after(setter(h, "third", 4.0), count(3)),
    ]


@program
def closure_of_a_function_read():
    v = 2.0

    def h(x):
        return x * v

    def setv(n):
        nonlocal v
        v = n

    def outer(x):
        return h(x), h.__closure__[0].cell_contents

    return outer, [call(count(3)), after(lambda: setv(5.0), count(3))]


@program
def partial_attributes_read():
    p = functools.partial(helper, k=3.0)

    def outer(x):
        return p(x), p.func is helper, p.keywords["k"], len(p.args)

    return outer, [call(count(3)), after(lambda: p.keywords.update(k=8.0), count(3))]


@program
def annotations_read():
    def h(x: float, y: int = 2) -> float:
        return x

    def outer(x):
        return x + len(h.__annotations__), sorted(h.__annotations__)

    return outer, [
        call(count(3)),
        after(lambda: h.__annotations__.update(z=1), count(3)),
        after(setter(h, "__annotations__", {}), count(3)),
    ]


@program
def method_names_read():
    class K:
        def run(self, x):
            "doc run"
            return x

    k = K()

    def outer(x, o):
        return o.run(x), o.run.__name__, o.run.__doc__, o.run.__func__ is K.run, o.run.__self__ is o, K.run.__qualname__

    return outer, [
        call(count(3), k),
        after(setter(K.run, "__name__", "walk"), count(3), k),
        after(setter(K.run, "__doc__", "w"), count(3), k),
        after(setter(K.run, "__qualname__", "wq"), count(3), k),
    ]


@program
def property_replaced_by_attribute():
    class K:
        @property
        def v(self):
            return 2.0

    k = K()

    def outer(x, o):
        return x * o.v

    def do():
        del K.v
        k.v = 9.0

    return outer, [
        call(count(3), k),
        after(do, count(3), k),
        after(setter(K, "v", 3.0), count(3), k),
        after(setter(K, "v", property(lambda s: 77.0)), count(3), k),
    ]


@program
def property_getter_code_swapped():
    class K:
        def _g(self):
            return 2.0

        v = property(_g)

    k = K()

    def outer(x, o):
        return x * o.v

    def do():
        K._g.__code__ = (lambda self: 9.0).__code__

    return outer, [call(count(3), k), after(do, count(3), k)]


@program
def instances_dict_replaced():
    class K:
        pass

    k = K()
    k.v = 2.0

    def outer(x, o):
        return x * o.v, vars(o)["v"], o.__dict__ is vars(o)

    return outer, [
        call(count(3), k),
        after(setter(k, "__dict__", {"v": 5.0}), count(3), k),
        after(lambda: k.__dict__.update(v=6.0), count(3), k),
    ]


@program
def slots_guarded():
    class K:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1.0

    k = K()

    def outer(x, o):
        return x * o.a + getattr(o, "b", 3.0), hasattr(o, "b")

    return outer, [
        call(count(3), k),
        after(setter(k, "a", 5.0), count(3), k),
        after(setter(k, "b", 5.0), count(3), k),
        after(lambda: delattr(k, "b"), count(3), k),
    ]


@program
def builtin_shadowed_by_module_global():
    def outer(x):
        return x + len("abc") + abs(-2) + max(1, 2)

    g = outer.__globals__
    return outer, [
        call(count(3)),
        after(lambda: g.update(len=lambda v: 100), count(3)),
        after(lambda: g.pop("len"), count(3)),
        after(lambda: g.update(abs=lambda v: 50), count(3)),
        after(lambda: g.pop("abs"), count(3)),
    ]


@program
def builtins_patched():
    import builtins

    old = builtins.len

    def outer(x):
        return x + len("abc")

    return outer, [
        call(count(3)),
        after(lambda: setattr(builtins, "len", lambda v: 100), count(3)),
        after(lambda: setattr(builtins, "len", old), count(3)),
    ] if False else [call(count(3))]


@program
def singleton_values():
    class K:
        pass

    sentinel = K()

    def outer(x, o=sentinel):
        return x * 2 if o is sentinel else x * 3

    return outer, [call(count(3)), call(count(3), K()), call(count(3), sentinel), call(count(3), None)]


@program
def types_of_keys_and_values_change():
    def outer(x, d):
        return x * d[1], list(d), [type(k).__name__ for k in d]

    return outer, [
        call(count(3), {1: 2.0}),
        call(count(3), {True: 2.0}),
        call(count(3), {1.0: 2.0}),
        call(count(3), {1: 2}),
    ]


@program
def equal_but_different_constants():
    def outer(x, a):
        return x * a, a, type(a).__name__

    return outer, [
        call(count(3), 1),
        call(count(3), True),
        call(count(3), 1.0),
        call(count(3), 0),
        call(count(3), False),
        call(count(3), -0.0),
        call(count(3), 0.0),
        call(count(3), 1 + 0j),
    ]


@program
def tuples_of_constants():
    def outer(x, a):
        return x * a[0], a, [type(v).__name__ for v in a]

    return outer, [
        call(count(3), (1, 2)),
        call(count(3), (True, 2)),
        call(count(3), (1.0, 2)),
        call(count(3), (1, 2, 3)),
        call(count(3), [1, 2]),
        call(count(3), range(1, 3)),
    ]


@program
def frozensets_and_sets_of_equal_constants():
    def outer(x, s):
        return x + sum(s), sorted(type(v).__name__ for v in s)

    return outer, [
        call(count(3), frozenset({1, 2})),
        call(count(3), frozenset({1.0, 2})),
        call(count(3), frozenset({True, 2})),
        call(count(3), {1, 2}),
        call(count(3), {1.0, 2.0}),
    ]


@program
def slices_ranges_and_dtypes_as_arguments():
    def outer(x, s):
        return x[s] * 2, s

    return outer, [
        call(count(6), slice(1, 4)),
        call(count(6), slice(1, 5)),
        call(count(6), slice(True, 4)),
        call(count(6), slice(None, None, 2)),
        call(count(6), 3),
        call(count(6), ...),
        call(count(6), None),
    ]


@program
def a_builtin_that_is_replaced():
    def replace(function):
        builtins.sum = function

    def outer(x):
        return x * sum([1, 2])

    original = sum
    return outer, [
        call(count(3)),
        after(lambda: replace(lambda numbers: 50), count(3)),
        after(lambda: replace(original), count(3)),
    ]


@program
def a_descriptor_whose_class_is_given_more_methods():
    class Five:
        def __get__(self, owner, kind=None):
            return 5.0

    class Holder:
        value = Five()

    holder = Holder()
    holder.value = 2.0

    def outer(x):
        return x * holder.value

    return outer, [
        call(count(3)),
        after(lambda: setattr(Five, "__set__", lambda self, owner, value: None), count(3)),
        after(lambda: delattr(Five, "__set__"), count(3)),
    ]


@program
def whether_a_tensor_is_a_leaf():
    weights = [leaf(3), normal(3)]

    def outer(x):
        return x * (2 if x.is_leaf else 3) + sum(weight.is_leaf for weight in weights)

    return outer, [
        call(leaf(3)),
        call(leaf(3) * 2),
        call(normal(3)),
        after(lambda: weights.__setitem__(0, leaf(3) * 2), leaf(3)),
        after(lambda: weights.__setitem__(0, leaf(3)), leaf(3)),
    ]


@program
def whether_a_tensor_is_a_view():
    def outer(x):
        return x * (2 if x._is_view() else 3) + x.output_nr

    return outer, [call(normal(3)), call(normal(2, 3)[0]), call(leaf(2, 3).unbind()[1]), call(normal(3))]


@program
def whether_an_object_is_callable():
    class Thing:
        pass

    thing = Thing()

    def outer(x):
        return x * (2 if callable(thing) else 3)

    return outer, [
        call(count(3)),
        after(lambda: setattr(Thing, "__call__", lambda self: 1), count(3)),
        after(lambda: delattr(Thing, "__call__"), count(3)),
    ]


@program
def a_name_that_a_library_does_not_have_yet():
    def outer(x):
        return x * getattr(string, "factor_of_a_plugin", 2), hasattr(string, "factor_of_a_plugin")

    return outer, [
        call(count(3)),
        after(lambda: setattr(string, "factor_of_a_plugin", 3), count(3)),
        after(lambda: setattr(string, "factor_of_a_plugin", 4), count(3)),
        after(lambda: delattr(string, "factor_of_a_plugin"), count(3)),
    ]


@program
def factories_of_a_dictionary_replaced_inside():
    table = collections.defaultdict(list)

    def counted():
        table.default_factory = dict
        return len(table)

    def outer(x, factory):
        table.default_factory = factory
        made = table[len(table)]
        copied = table.copy()["other"]
        table.default_factory = counted
        return x + 1, made, copied, table["counted", len(table)], table["then", len(table)], table.default_factory

    return outer, [call(count(3), list), call(count(3), dict), call(count(3), lambda: [1]), call(count(3), list)], table


@program
def a_method_of_tensors_replaced():
    relu, norm = torch.Tensor.relu, torch.Tensor.norm

    def outer(x):
        return x.relu() * 2, x.norm(), x.tanh()

    return outer, [
        call(normal(3)),
        after(lambda: setattr(torch.Tensor, "relu", lambda self: relu(self) * 2), normal(3)),
        after(lambda: delattr(torch.Tensor, "relu"), normal(3)),
        after(lambda: setattr(torch.Tensor, "norm", lambda self: norm(self) * 2), normal(3)),
        after(lambda: setattr(torch.Tensor, "norm", norm), normal(3)),
    ]
