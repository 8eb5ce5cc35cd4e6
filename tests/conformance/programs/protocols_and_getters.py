"""What libraries of Python ask the user's objects: protocols, getters, abstract classes, formats."""

from __future__ import annotations

import abc
import collections
import dataclasses
import inspect
import itertools
import operator
import typing

import torch

from tests.conformance.catalogue import after, call, count, normal, program


class O:
    def __init__(s, **k):
        s.__dict__.update(k)


@program
def getters_of_operator():
    def f(x, o, d):
        o.late = 5.0
        g = operator.attrgetter("v")
        h = operator.attrgetter("v", "inner.w")
        i = operator.itemgetter("a")
        j = operator.itemgetter(0, -1)
        m = operator.methodcaller("get", "a", 3)
        l = operator.attrgetter("late")
        return x * g(o) + l(o), h(o), i(d), j([x, 1, x + 1]), m(d), list(map(g, [o, o]))

    return f, [
        call(count(3), O(v=2.0, inner=O(w=1)), {"a": 1}),
        call(count(3), O(v=3.0, inner=O(w=1)), {"a": 1}),
        call(count(3), O(v=3.0, inner=O(w=4)), {"a": 9}),
    ]


@program
def sorted_by_attrgetter():
    def f(x, l):
        return (
            [x * o.v for o in sorted(l, key=operator.attrgetter("k"))],
            max(l, key=operator.attrgetter("v")).k,
            min(l, key=lambda o: (o.k, o.v)).v,
        )

    return f, [
        call(count(2), [O(k=1, v=2.0), O(k=0, v=3.0)]),
        call(count(2), [O(k=0, v=2.0), O(k=1, v=3.0)]),
        call(count(2), [O(k=0, v=2.0), O(k=1, v=1.0)]),
    ]


@program
def getters_with_user_protocols():
    class G:
        def __init__(s, k):
            s.k = k

        def __getitem__(s, i):
            return s.k * i

        def __getattr__(s, n):
            if n.startswith("__"):
                raise AttributeError(n)
            return len(n) * s.k

        def run(s, a, b=1):
            return a * s.k + b

    def f(x, g):
        return x * operator.itemgetter(3)(g) + operator.attrgetter("abc")(g), operator.methodcaller("run", 2, b=5)(g)

    return f, [call(count(2), G(2)), call(count(2), G(3))]


@typing.runtime_checkable
class HasScale(typing.Protocol):
    scale: float

    def go(self): ...


@program(core=True)
def runtime_protocol_attributes_come_and_go():
    class A:
        def go(self):
            return 1

    a = A()

    def f(x):
        return x * a.scale if isinstance(a, HasScale) else x

    return f, [
        call(count(2)),
        after(lambda: setattr(a, "scale", 3.0), count(2)),
        after(lambda: delattr(a, "scale"), count(2)),
    ]


class Base(abc.ABC):
    @abc.abstractmethod
    def go(self): ...


@program(raises=TypeError)
def abstract_class_registered_later():
    class V:
        def go(s):
            return 2

    v = V()

    class B2(abc.ABC):
        pass

    def f(x, bad):
        if bad:
            Base()
        return x * v.go() if isinstance(v, B2) else x, issubclass(V, B2)

    return f, [call(count(2), False), after(lambda: B2.register(V), count(2), False), call(count(2), True)]


@program
def instance_check_hooks():
    class M(type):
        flag = True

        def __instancecheck__(cls, o):
            return cls.flag and hasattr(o, "tag")

        def __subclasscheck__(cls, c):
            return cls.flag

    class D(metaclass=M):
        pass

    o = O(tag=1)
    p = O()

    def f(x, o):
        return x * 2 if isinstance(o, D) else x, issubclass(int, D), isinstance(o, (int, D))

    return f, [
        call(count(2), o),
        call(count(2), p),
        after(lambda: setattr(p, "tag", 1), count(2), p),
        after(lambda: setattr(M, "flag", False), count(2), p),
        after(lambda: setattr(M, "flag", True), count(2), p),
    ]


@program
def subclasses_defined_later():
    class R:
        pass

    kept = []

    def more():
        kept.append(type("S%d" % len(kept), (R,), {}))

    def f(x):
        return x * len(R.__subclasses__()), [c.__name__ for c in R.__subclasses__()]

    return f, [call(count(2)), after(more, count(2)), after(more, count(2))]


@program
def signature_of_a_function_changes():
    def g(a, b=2, *c, d=4, **e):
        return a

    def f(x):
        s = inspect.signature(g)
        return (
            x * len(s.parameters),
            [(p.name, p.default is inspect._empty, str(p.kind)) for p in s.parameters.values()],
            s.parameters["b"].default,
            str(s),
        )

    return f, [
        call(count(2)),
        after(lambda: setattr(g, "__defaults__", (7,)), count(2)),
        after(lambda: setattr(g, "__kwdefaults__", {"d": 9}), count(2)),
    ]


@program
def arguments_filtered_by_signature():
    def a(x, scale=1.0):
        return x * scale

    def b(x, shift=0.0, **kw):
        return x + shift

    def f(fn, x, **kw):
        ps = inspect.signature(fn).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in ps.values()):
            kw = {k: v for k, v in kw.items() if k in ps}
        return fn(x, **kw)

    return f, [
        call(a, count(2), scale=2.0, shift=1.0),
        call(b, count(2), scale=2.0, shift=1.0),
        call(a, count(2), shift=1.0),
    ]


@program
def accumulate_and_groupby_of_objects():
    class N:
        def __init__(s, v):
            s.v = v

        def __add__(s, o):
            return N(s.v + o.v)

        def __eq__(s, o):
            return s.v // 2 == o.v // 2

        __hash__ = None

    def f(x, l):
        return [x * n.v for n in itertools.accumulate(l)], [[n.v for n in g] for k, g in itertools.groupby(l)]

    return f, [
        call(count(2), [N(1), N(2), N(3)]),
        call(count(2), [N(2), N(2), N(3)]),
        call(count(2), [N(4), N(5), N(3)]),
    ]


@program
def iter_with_sentinel_objects():
    class E:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return getattr(o, "v", None) == s.v

    def f(x, l, stop):
        it = iter(l)
        return [x * e.v for e in iter(lambda: next(it), stop)]

    return f, [
        call(count(2), [E(1), E(2), E(3)], E(3)),
        call(count(2), [E(1), E(2), E(3)], E(2)),
        call(count(2), [E(3), E(2), E(3)], E(2)),
    ]


@program
def str_methods_over_user_strings():
    class S(str):
        def __eq__(s, o):
            return str.lower(s) == str.lower(o)

        def __hash__(s):
            return hash(str.lower(s))

    def f(x, s):
        return (
            x * len(s),
            s == "AB",
            s in {"ab": 1},
            {S("AB"): 2}.get(s),
            s + "c",
            s.upper(),
            s.startswith("a"),
            [S("x"), s].index("ab") if s == "ab" else None,
        )

    return f, [call(count(2), S("ab")), call(count(2), S("AB")), call(count(2), S("abc"))]


@program
def formatted_objects():
    class P:
        def __init__(s, a):
            s.a = a

        def __format__(s, spec):
            return f"<{s.a:{spec or '.1f'}}>"

        def __str__(s):
            return f"P{s.a}"

        def __repr__(s):
            return f"P({s.a!r})"

    @dataclasses.dataclass
    class D:
        a: int
        p: typing.Any = None

    def f(x, p):
        return (
            x * p.a,
            f"{p} {p!s} {p!r} {p:.3f}",
            "{0} {0.a} {p[0]}".format(p, p=[p]),
            "%s %r" % (p, p),
            str([p, (p,)]),
            str({p.a: p}),
            repr(D(1, p)),
            str(D(p.a)),
            format(p, ".2f"),
            print(p, [p]),
        )

    return f, [call(count(2), P(1.5)), call(count(2), P(2.5))]


@program
def bytes_and_bytearrays_used():
    def f(x, b):
        a = bytearray(b)
        a.append(3)
        a[0] = 9
        a += b"z"
        a.extend([1, 2])
        return x * a[0], bytes(a), len(a), a.hex(), list(a[:2]), b"z" in a, a, int.from_bytes(a[:2], "big"), sum(a)

    return f, [call(count(2), b"ab"), call(count(2), b"cd"), call(count(2), b"xyz")]


@program
def memory_of_bytes_as_state():
    state = bytearray(4)

    def f(x, i):
        state[i] += 1
        return x * state[i], sum(state)

    return f, [call(count(2), 0), call(count(2), 0), call(count(2), 1)], state


@program
def dates_decimals_fractions_as_arguments():
    import datetime
    import decimal
    import fractions

    def f(x, d, q, r):
        return (
            x * float(q) + d.year,
            q + 1,
            r * 2,
            float(r),
            d.isoformat(),
            d < datetime.date(2025, 1, 1),
            str(q),
            r.numerator,
        )

    D, Q, R = datetime.date, decimal.Decimal, fractions.Fraction
    return f, [
        call(count(2), D(2024, 1, 2), Q("1.5"), R(1, 3)),
        call(count(2), D(2026, 1, 2), Q("2.5"), R(2, 3)),
        call(count(2), D(2026, 1, 2), Q("2.5"), R(1, 3)),
    ]


@program
def paths_as_arguments():
    import pathlib

    def f(x, p):
        return x * len(p.name), str(p / "a"), p.suffix, p.parent == pathlib.Path("r"), p.stem

    return f, [call(count(2), pathlib.Path("r/ab.txt")), call(count(2), pathlib.Path("q/abc.pt"))]


@program
def user_dict_like_config():
    class AttrDict(dict):
        def __getattr__(s, k):
            try:
                return s[k]
            except KeyError:
                raise AttributeError(k) from None

        def __setattr__(s, k, v):
            s[k] = v

        def __delattr__(s, k):
            del s[k]

    c = AttrDict(a=1.0, sub=AttrDict(b=2))

    def f(x):
        c.count = c.get("count", 0) + 1
        return (
            x * c.a + c.sub.b,
            hasattr(c, "zzz"),
            getattr(c, "q", 5),
            {**c},
            list(c),
            "a" in c,
            len(c),
            c.sub is c["sub"],
        )

    return (
        f,
        [
            call(count(2)),
            call(count(2)),
            after(lambda: c.sub.update(b=9), count(2)),
            after(lambda: setattr(c, "a", count(2)), count(2)),
        ],
        c,
    )


@program
def user_mapping_and_sequence_abcs():
    class M(collections.abc.Mapping):
        def __init__(s, d):
            s.d = d

        def __getitem__(s, k):
            return s.d[k] * 2

        def __iter__(s):
            return iter(s.d)

        def __len__(s):
            return len(s.d)

    class Q(collections.abc.Sequence):
        def __init__(s, *v):
            s.v = v

        def __getitem__(s, i):
            return s.v[i]

        def __len__(s):
            return len(s.v)

    class MM(collections.abc.MutableMapping):
        def __init__(s):
            s.d = {}

        def __getitem__(s, k):
            return s.d[k.lower()]

        def __setitem__(s, k, v):
            s.d[k.lower()] = v

        def __delitem__(s, k):
            del s.d[k.lower()]

        def __iter__(s):
            return iter(s.d)

        def __len__(s):
            return len(s.d)

    def f(x, m, q):
        t = MM()
        t["A"] = x
        t.update(m)
        t.setdefault("Zz", 3)
        k = t.pop("a")

        def kw(**k):
            return sorted(k)

        return (
            k * m["a"],
            m.get("zz", 1),
            "a" in m,
            dict(m),
            list(m.items()),
            m == {"a": 2},
            q.index(2),
            q.count(2),
            3 in q,
            list(reversed(q)),
            [*q],
            dict(t),
            kw(**m),
            {**m},
            isinstance(q, collections.abc.Sequence),
            m.keys() & {"a"},
            t == dict(t),
            max(q),
            q[-1],
        )

    return f, [
        call(count(2), M({"a": 1, "b": 2}), Q(1, 2, 3)),
        call(count(2), M({"a": 5}), Q(2, 2)),
        call(count(2), M({"a": 1}), Q(3, 2)),
    ]


@program
def user_set_and_list_abcs():
    class OS(collections.abc.MutableSet):
        def __init__(s, it=()):
            s.d = dict.fromkeys(it)

        def __contains__(s, k):
            return k in s.d

        def __iter__(s):
            return iter(s.d)

        def __len__(s):
            return len(s.d)

        def add(s, k):
            s.d[k] = None

        def discard(s, k):
            s.d.pop(k, None)

    class UL(collections.UserList):
        pass

    def f(x, a, b):
        s = OS(a)
        s |= OS(b)
        s.remove(a[0])
        t = OS(a) & OS(b)
        u = UL(a)
        u.append(9)
        u += b
        v = u[1:]
        u.sort()
        return (
            x * len(s),
            list(s),
            list(t),
            OS(a) <= OS(b),
            OS(a) == set(a),
            list(OS(a) - OS(b)),
            list(u),
            list(v),
            u == UL(a),
            9 in u,
            type(v).__name__,
        )

    return f, [call(count(2), [1, 2, 3], [3, 4]), call(count(2), [5, 2], [2, 5]), call(count(2), [5, 2], [2, 5, 7])]


class Amount:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Amount(self.value + other.value)

    def __eq__(self, other):
        return self.value == other.value


def amounts(*values):
    return [Amount(value) for value in values]


@program
def sums_of_objects_along_the_way():
    def outer(x, items):
        return [x * each.value for each in itertools.accumulate(items)]

    return outer, [call(count(2), amounts(1, 2, 3)), call(count(2), amounts(1, 5, 3)), call(count(2), amounts(1, 5))]


@program
def lengths_of_runs_of_equal_objects():
    def outer(x, items):
        return [x * len(list(group)) for _, group in itertools.groupby(items)]

    return outer, [call(count(2), amounts(1, 1, 3)), call(count(2), amounts(1, 2, 3)), call(count(2), amounts(4, 4, 4))]


@program
def arguments_injected_by_a_signature():
    services = {"scale": lambda: 2.0, "bias": lambda scale: scale + 1}

    def provided(make):
        return make(**{name: provided(services[name]) for name in inspect.signature(make).parameters})

    def injected(function):
        signature = inspect.signature(function)

        def wrapper(*args, **kwargs):
            bound = signature.bind_partial(*args, **kwargs)
            for name in signature.parameters:
                if name not in bound.arguments and name in services:
                    bound.arguments[name] = provided(services[name])
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        return wrapper

    @injected
    def layer(x, scale, bias, *, act="relu"):
        return getattr(torch, act)(x * scale + bias)

    def outer(x, **kwargs):
        return layer(x, **kwargs)

    return outer, [
        call(count(3)),
        call(count(3), bias=0.5),
        after(lambda: services.update(scale=lambda: 3.0), count(3)),
        call(count(3), act="tanh"),
    ]


@program
def signatures_whose_defaults_change():
    sizes, table = [1], {"k": 2.0}

    def layer(x, sizes=sizes, table=table):
        return x + len(sizes) + table["k"]

    signature = inspect.signature(layer)
    parameter = signature.parameters["sizes"]

    def outer(x):
        bound = signature.bind(x)
        bound.apply_defaults()
        return layer(*bound.args), len(parameter.default), parameter.default is sizes

    return outer, [
        call(count(3)),
        after(lambda: sizes.append(2), count(3)),
        after(lambda: table.update(k=7.0), count(3)),
        call(count(4)),
    ]


class Place:
    """A number of its own."""

    def __init__(self, at):
        self.at = at

    def __index__(self):
        return self.at


class PlaceWithParts(Place):
    """A number that PyTorch takes for a sequence."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (0, 1)[index]


@program
def subscripts_that_are_numbers_and_sequences():
    def f(x, place):
        y = x.clone()
        y[place] = 5
        return x[place], x[place, 0], x[..., place], x[place:], y, "abc"[place], [4, 5, 6][place]

    places = (Place(1), PlaceWithParts(0), PlaceWithParts(1), Place(2), Place(1))
    return f, [call(normal(3, 3), place) for place in places]


@program
def subscripts_seen_by_subclasses():
    class Noted(list):
        def __getitem__(self, key):
            self.seen.append(key.start if isinstance(key, slice) else key)
            return super().__getitem__(key)

        def __setitem__(self, key, value):
            self.seen.append(key)
            super().__setitem__(key, value)

        def __delitem__(self, key):
            self.seen.append(key)
            super().__delitem__(key)

    class Echo(str):
        def __getitem__(self, key):
            return key

    def f(x, noted, place):
        first, rest = noted[place], noted[place:]
        noted[place] = 7
        del noted[place]
        return x * first, rest, Echo("abc")[place], Echo("abc")[place:].start

    def noted():
        made = Noted([1, 2, 3])
        made.seen = []
        return made

    return f, [call(normal(2), noted(), Place(at)) for at in (0, 1, 2, 1)]
