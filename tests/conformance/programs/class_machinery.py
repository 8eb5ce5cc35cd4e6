"""Descriptors, slots, metaclasses, hooks, dataclasses and operators of the user's classes."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import math
import typing

import torch

from tests.conformance.catalogue import after, call, count, normal, program


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name
        self.owner = owner.__name__

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, 1.0)

    def __set__(self, obj, value):
        if value < 0:
            raise ValueError(f"{self.name} < 0")
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Account:
    balance = Positive()
    limit = Positive()

    def __init__(self, b):
        self.balance = b


@program(core=True)
def validating_descriptor():
    def outer(x, a, v):
        x = x * a.balance
        try:
            a.balance = v
        except ValueError as e:
            return x, str(e), a.balance
        a.limit = v + 1
        l = a.limit
        del a.limit
        return x * a.balance, l, a.limit, Account.balance.name, Account.balance.owner, vars(a)

    a = Account(2.0)
    return (
        outer,
        [
            call(count(3), a, 3.0),
            call(count(3), a, -1.0),
            call(count(3), a, 4.0),
            after(lambda: setattr(a, "_balance", 10.0), count(3), a, 5.0),
        ],
        a,
    )


class Lazy:
    def __init__(self, f):
        self.f = f
        self.__doc__ = f.__doc__

    def __set_name__(self, o, n):
        self.n = n

    def __get__(self, obj, owner):
        if obj is None:
            return self
        v = obj.__dict__[self.n] = self.f(obj)
        return v


@program
def non_data_descriptor_caches():
    class K:
        def __init__(self, x):
            self.x = x
            self.calls = 0

        @Lazy
        def double(self):
            "dbl"
            self.calls += 1
            return self.x * 2

    ks = [K(count(3)), K(count(3) + 1)]

    def outer(k):
        return k.double + k.double, k.calls, "double" in k.__dict__, K.double.n

    return outer, [call(ks[0]), call(ks[1]), call(ks[0]), after(lambda: ks[0].__dict__.pop("double"), ks[0])], ks


@program
def descriptor_without_get_on_class():
    class W:
        def __set__(self, o, v):
            o.__dict__["w"] = ("set", v)

    class K:
        w = W()

    k = K()

    def outer(x, k, v):
        k.w = v
        return x, k.w, type(K.__dict__["w"]).__name__ if False else 0

    return outer, [call(count(3), k, 1), call(count(3), k, 2)], k


@program
def slots_of_every_kind():
    class A:
        __slots__ = ("a",)

    class B(A):
        __slots__ = ("b", "__dict__")

    class C(A):
        __slots__ = ("c",)
        d = 5

    def outer(x, o, n):
        o.a = x * n
        out = []
        for name in ("b", "c", "d", "zz"):
            try:
                setattr(o, name, n)
                out.append(getattr(o, name))
            except AttributeError as e:
                out.append(str(e))
        try:
            del o.a
            o.a
        except AttributeError as e:
            out.append(str(e))
        o.a = n
        return out, hasattr(o, "__dict__"), o.a

    b, c = B(), C()
    return outer, [call(count(3), b, 1), call(count(3), b, 2), call(count(3), c, 3), call(count(3), c, 4)], (b,)


@program
def init_subclass_and_registries():
    registry = {}

    class Base:
        scale = 1.0

        def __init_subclass__(cls, /, tag=None, **kw):
            super().__init_subclass__(**kw)
            registry[tag or cls.__name__] = cls
            cls.tag = tag

    class A(Base, tag="aa"):
        scale = 2.0

    class B(A):
        pass

    def outer(x, key):
        cls = registry[key]
        return (
            x * cls.scale * cls().scale,
            cls.tag,
            cls.__name__,
            list(registry),
            issubclass(cls, A),
            [c.__name__ for c in cls.__mro__],
            [c.__name__ for c in Base.__subclasses__()],
        )

    return (
        outer,
        [
            call(count(3), "aa"),
            call(count(3), "B"),
            after(lambda: setattr(A, "scale", 7.0), count(3), "B"),
            after(lambda: registry.update(B=A), count(3), "B"),
        ],
        registry,
    )


@program
def metaclass_attributes_and_calls():
    class M(type):
        kinds = []

        def __call__(cls, *a, **k):
            o = super().__call__(*a, **k)
            M.kinds.append(cls.__name__)
            return o

        @property
        def label(cls):
            return cls.__name__.lower()

        def __getitem__(cls, k):
            return (cls.__name__, k)

        def __iter__(cls):
            return iter([1, 2, cls.v])

        def __len__(cls):
            return 3

        def __instancecheck__(cls, o):
            return hasattr(o, "v")

        def __getattr__(cls, n):
            if n.startswith("dyn_"):
                return n
            raise AttributeError(n)

        def __eq__(cls, o):
            return type.__eq__(cls, o)

        __hash__ = type.__hash__

    class K(metaclass=M):
        v = 2.0

        def __init__(self, a):
            self.a = a

    def outer(x, n):
        k = K(n)
        return (
            x * k.a * K.v,
            K.label,
            K[n],
            list(K),
            len(K),
            isinstance(k, K),
            isinstance(5, K),
            K.dyn_foo,
            len(M.kinds),
            hasattr(K, "nope"),
        )

    return outer, [call(count(3), 2), call(count(3), 3), after(lambda: setattr(K, "v", 9.0), count(3), 3)], M.kinds


@program
def getattr_and_getattribute_hooks():
    class Proxy:
        def __init__(self, t):
            object.__setattr__(self, "_t", t)
            object.__setattr__(self, "log", [])

        def __getattr__(self, n):
            self.log.append(("get", n))
            return getattr(self._t, n)

        def __setattr__(self, n, v):
            self.log.append(("set", n))
            setattr(self._t, n, v)

        def __delattr__(self, n):
            self.log.append(("del", n))
            delattr(self._t, n)

    class T:
        v = 2.0

    t = T()
    p = Proxy(t)

    def outer(x, p, n):
        p.w = n
        r = x * p.v + p.w
        del p.w
        return r, hasattr(p, "w"), getattr(p, "nope", 3), len(p.log), p.__class__.__name__

    return (
        outer,
        [call(count(3), p, 1), call(count(3), p, 2), after(lambda: setattr(t, "v", 5.0), count(3), p, 2)],
        (p, t),
    )


@program
def getattribute_with_super():
    class K:
        def __init__(self):
            self.hits = {}
            self.v = 3.0

        def __getattribute__(self, n):
            if n == "magic":
                return 42
            v = super().__getattribute__(n)
            if n != "hits" and not n.startswith("__"):
                h = super().__getattribute__("hits")
                h[n] = h.get(n, 0) + 1
            return v

        def m(self, x):
            return x * self.v

    k = K()

    def outer(x, k):
        return k.m(x) + k.magic, k.v, dict(k.hits)

    return outer, [call(count(3), k), call(count(3), k), after(lambda: setattr(k, "v", 7.0), count(3), k)], k


@program
def cached_properties_everywhere():
    class K:
        def __init__(self, x):
            self.x = x
            self.n = 0

        @functools.cached_property
        def total(self):
            self.n += 1
            return self.x.sum() * self.n

        @property
        def twice(self):
            return self.total * 2

    k = K(count(3))

    def outer(k, y):
        return k.total + y, k.twice, k.n, "total" in vars(k), k.total is k.total

    return (
        outer,
        [call(k, 1.0), call(k, 2.0), after(lambda: k.__dict__.pop("total"), k, 2.0), call(K(count(4)), 1.0)],
        k,
    )


@program
def total_ordering_class():
    @functools.total_ordering
    class V:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v if isinstance(o, V) else NotImplemented

        def __lt__(self, o):
            return self.v < o.v if isinstance(o, V) else NotImplemented

        def __repr__(self):
            return f"V({self.v})"

    def outer(x, a, b):
        r = [
            a < b,
            a <= b,
            a > b,
            a >= b,
            a == b,
            a != b,
            a == 5,
            max(a, b).v,
            [v.v for v in sorted([b, a, V(2)])],
            sorted([b, a], reverse=True)[0] is b,
        ]
        try:
            a < 5
        except TypeError as e:
            r.append(str(e))
        return x + a.v, r, repr(a), str(b), f"{a}"

    return outer, [call(count(3), V(1), V(2)), call(count(3), V(3), V(2)), call(count(3), V(2), V(2))]


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=7, repr=False, compare=False)

    def norm(self):
        return self.x**2 + self.y**2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: str = "b"


@dataclasses.dataclass(slots=True, kw_only=True)
class Slotted:
    a: float
    b: float = 2.0


@dataclasses.dataclass
class WithInit:
    a: float
    scale: dataclasses.InitVar[float] = 2.0
    total: float = dataclasses.field(init=False)
    K: typing.ClassVar[int] = 3

    def __post_init__(self, scale):
        self.total = self.a * scale * self.K


@dataclasses.dataclass
class Child(Point):
    z: float = 3.0

    def norm(self):
        return super().norm() + self.z


@program(core=True)
def dataclass_features():
    def outer(x, v):
        p = Point(v, tags=["a"])
        q = dataclasses.replace(p, y=v + 1)
        p.tags.append("b")
        c = Child(v)
        return (
            x * p.norm(),
            q,
            p == q,
            p == Point(v, 0.0, ["a", "b"], 99),
            dataclasses.asdict(q),
            dataclasses.astuple(c),
            [f.name for f in dataclasses.fields(c)],
            c.norm(),
            dataclasses.is_dataclass(p),
            dataclasses.is_dataclass(Point),
            repr(p),
            c,
            q.tags is p.tags,
            Point.__match_args__,
        )

    return outer, [call(count(3), 1.0), call(count(3), 2.0), call(count(3), 2)]


@program
def frozen_and_ordered_dataclasses():
    def outer(x, v):
        f, g = Frozen(v), Frozen(v + 1, "a")
        out = [
            f < g,
            f == Frozen(v),
            f != g,
            sorted([g, f])[0] == f,
            hash(f) == hash(Frozen(v)),
            {f: 1}[Frozen(v)],
            f in {g},
            repr(f),
            max(f, g).a,
        ]
        try:
            f.a = 5
        except dataclasses.FrozenInstanceError as e:
            out.append(str(e))
        try:
            del f.a
        except AttributeError as e:
            out.append(str(e))
        try:
            f < 5
        except TypeError as e:
            out.append(str(e))
        return x * f.a, out, dataclasses.replace(g, a=v)

    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 2)]


@program
def slotted_and_keyword_only_dataclasses():
    def outer(x, v):
        s = Slotted(a=v)
        s.b = s.b + v
        out = []
        try:
            Slotted(v)
        except TypeError as e:
            out.append(str(e))
        try:
            s.zz = 1
        except AttributeError as e:
            out.append(str(e))
        return x * s.a, s, s == Slotted(a=v, b=s.b), out, dataclasses.asdict(s), repr(s)

    return outer, [call(count(3), 1.0), call(count(3), 2.0)]


@program
def init_variables_and_class_variables():
    def outer(x, v, s):
        w = WithInit(v, s)
        u = WithInit(v)
        return (
            x * w.total + u.total,
            w,
            WithInit.K,
            [f.name for f in dataclasses.fields(WithInit)],
            repr(u),
            hasattr(w, "scale"),
            w.scale,
        )

    return outer, [
        call(count(3), 1.0, 3.0),
        call(count(3), 2.0, 4.0),
        after(lambda: setattr(WithInit, "K", 3), count(3), 2.0, 4.0),
    ]


@program
def dataclass_argument_mutated():
    def outer(x, p):
        p.x = p.x + 1
        p.tags.append(p.x)
        y = x * p.norm()
        p.y = y
        return y, p

    ps = [Point(1.0), Child(2.0)]
    return outer, [call(count(3), ps[0]), call(count(3), ps[1]), call(count(3), Point(5.0, 1.0))], ps


@program
def dataclass_with_tensors_compared():
    def outer(x):
        p, q = Point(x), Point(x)
        return p == q, p.x is q.x, dataclasses.replace(p).x is x, dataclasses.astuple(p)[0] is x

    return outer, [call(count(1)), call(count(1) + 1)]


@program
def make_dataclass_at_run_time():
    def outer(x, v):
        K = dataclasses.make_dataclass("K", [("a", float), ("b", float, dataclasses.field(default=2.0))])
        k = K(v)
        return x * k.a + k.b, repr(k)

    return outer, [call(count(3), 1.0), call(count(3), 2.0)]


@program
def abstract_classes_and_protocols():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...
        @property
        @abc.abstractmethod
        def name(self): ...
        def describe(self):
            return f"{self.name}"

    class Sq(Shape):
        def __init__(self, s):
            self.s = s

        def area(self):
            return self.s**2

        @property
        def name(self):
            return "sq"

    @typing.runtime_checkable
    class HasArea(typing.Protocol):
        def area(self): ...

    class Virtual:
        pass

    Shape.register(Virtual)

    def outer(x, s):
        out = []
        try:
            Shape()
        except TypeError as e:
            out.append(str(e))
        q = Sq(s)
        return (
            x * q.area(),
            q.describe(),
            isinstance(q, Shape),
            isinstance(q, HasArea),
            isinstance(5, HasArea),
            isinstance(Virtual(), Shape),
            issubclass(Virtual, Shape),
            out,
            sorted(Shape.__abstractmethods__),
        )

    return outer, [call(count(3), 1.0), call(count(3), 2.0)]


@program
def operators_with_reflection_and_subclass_priority():
    class A:
        def __init__(self, v):
            self.v = v

        def __add__(self, o):
            return ("A.add", self.v)

        def __radd__(self, o):
            return ("A.radd", self.v)

        def __sub__(self, o):
            return NotImplemented

        def __rmul__(self, o):
            return ("A.rmul", type(o).__name__)

        def __eq__(self, o):
            return ("A.eq",)

        def __lt__(self, o):
            return NotImplemented

        def __matmul__(self, o):
            return "mm"

        def __rshift__(self, o):
            return "rs"

        def __iadd__(self, o):
            self.v += 1
            return self

        def __neg__(self):
            return A(-self.v)

        def __invert__(self):
            return "inv"

        def __abs__(self):
            return abs(self.v)

        def __bool__(self):
            return self.v > 0

        def __index__(self):
            return self.v

        def __round__(self, n=None):
            return ("round", n)

        def __divmod__(self, o):
            return "dm"

        def __rpow__(self, o):
            return "rp"

        def __pow__(self, o, m=None):
            return ("pow", m)

        def __trunc__(self):
            return 9

        def __floor__(self):
            return 8

        def __complex__(self):
            return 1j

        def __float__(self):
            return 2.5

    class B(A):
        def __radd__(self, o):
            return ("B.radd", self.v)

        def __rsub__(self, o):
            return "B.rsub"

        def __gt__(self, o):
            return "B.gt"

    def outer(x, n):
        a, b = A(n), B(n + 1)
        out = [
            a + b,
            b + a,
            1 + a,
            a + 1,
            a - b,
            3 * a,
            "s" * A(2) if False else 0,
            a == b,
            a < b,
            a @ 1,
            a >> 2,
            -a is not a,
            ~a,
            abs(a),
            bool(a),
            [10, 20, 30, 40][a],
            round(a),
            round(a, 2),
            divmod(a, 2),
            2**a,
            a**2,
            pow(a, 2, 3),
            math.trunc(a),
            math.floor(a),
            complex(a),
            float(a),
            range(5)[a],
            hex(a),
            math.sqrt(a),
        ]
        a += 5
        out.append(a.v)
        for f in (lambda: a - 1, lambda: 1 - a, lambda: a < 1, lambda: a // 2, lambda: a & 1):
            try:
                out.append(f())
            except TypeError as e:
                out.append(str(e))
        return x * a.v, out

    return outer, [call(count(3), 1), call(count(3), 2)]


@program
def containers_by_protocol():
    class Seq:
        def __init__(self, d):
            self.d = d
            self.log = []

        def __len__(self):
            return len(self.d)

        def __getitem__(self, i):
            self.log.append(i)
            return self.d[i]

        def __setitem__(self, i, v):
            self.d[i] = v

        def __delitem__(self, i):
            del self.d[i]

        def __contains__(self, v):
            self.log.append(("in", v))
            return v in self.d

        def __missing__(self, k):
            return "miss"

    class Len0:
        def __len__(self):
            return 0

    def outer(x, s):
        a, *b = s
        out = [
            a,
            b,
            len(s),
            3 in s,
            s[0:2],
            s[-1],
            list(s),
            list(reversed(s)),
            bool(s),
            bool(Len0()),
            not Len0(),
            [1] if Len0() else [2],
            max(s),
            sum(s),
            tuple(s),
            sorted(s, reverse=True),
            dict(zip(s, s)),
            list(enumerate(s)),
            list(map(str, s)),
            "-".join(str(v) for v in s),
        ]
        s[0] = 9
        del s[1]
        return x * s[0], out, s.log

    return outer, [call(count(3), Seq([1, 2, 3])), call(count(3), Seq([4, 5, 6]))]


@program
def instances_hashed_and_compared():
    class K:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return isinstance(o, K) and self.v == o.v

        def __hash__(self):
            return hash(self.v)

    ks = [K(1), K(2)]

    def outer(x, ks, d):
        s = {K(1), K(1), ks[1]}
        e = {K(1): "a", ks[1]: "b"}
        return (
            x + len(s),
            e[K(2)],
            K(1) in s,
            d.get(K(2)),
            [1, K(1)].index(K(1)),
            K(1) in (K(1),),
            d[ks[0]],
            [K(1), K(1)].count(K(1)),
            ks[0] == K(1),
            len({k for k in ks}),
            {k: 1 for k in ks}[K(2)],
        )

    d = {K(1): 10, K(2): 20}
    return outer, [
        call(count(3), ks, d),
        call(count(3), ks, d),
        after(lambda: (setattr(ks[1], "v", 1), d.update({K(2): 30})), count(3), [ks[0], K(2)], d),
    ]


@program
def classes_made_inside():
    def outer(x, n):
        class A:
            k = n

            def __init__(self, v):
                self.v = v

            def f(self, y):
                return y * self.v * self.k

        class B(A):
            def f(self, y):
                return super().f(y) + 1

        T = type("T", (B,), {"extra": 5})
        return B(2).f(x), T(3).f(x) + T.extra, T.__name__, issubclass(T, A), A.__qualname__

    return outer, [call(count(3), 2), call(count(3), 3)]


@program
def new_and_immutable_subclasses():
    class F(float):
        def __new__(cls, v, unit="m"):
            s = super().__new__(cls, v)
            s.unit = unit
            return s

        def __mul__(self, o):
            return F(float(self) * o, self.unit)

    class T(tuple):
        def __new__(cls, *a):
            return super().__new__(cls, a)

        @property
        def first(self):
            return self[0]

    class S(str):
        def shout(self):
            return S(self.upper() + "!")

    class D(dict):
        def __getattr__(self, n):
            try:
                return self[n]
            except KeyError:
                raise AttributeError(n)

        __setattr__ = dict.__setitem__

    class L(list):
        def __getitem__(self, i):
            r = super().__getitem__(i)
            return L(r) if isinstance(i, slice) else r

    class I(int):
        def __add__(self, o):
            return I(int(self) + int(o) + 100)

    def outer(x, v):
        f = F(v) * 2
        t = T(x, v)
        s = S("ab").shout()
        d = D(a=v)
        d.b = x
        l = L([1, 2, v])
        return (
            x * float(f),
            f.unit,
            type(f).__name__,
            t.first,
            t[1],
            len(t),
            s,
            type(s).__name__,
            d.a,
            d["b"],
            sorted(d),
            type(l[1:]).__name__,
            l[1:][1],
            I(1) + 2,
            type(I(1) + 2).__name__,
            isinstance(f, float),
            hasattr(d, "zz"),
        )

    return outer, [call(count(3), 2.0), call(count(3), 3.0)]


@program
def classes_made_between_operations():
    def outer(x, scale):
        y, counts = (x * scale).cos(), 0

        class Scaled:
            factor = scale

            def __call__(self, value):
                nonlocal counts
                counts += 1
                return value * self.factor

        class Shifted(Scaled):
            def __call__(self, value):
                return super().__call__(value) + 1

        result = Shifted()(y) + Scaled()(x)
        return result.sin(), counts, Shifted.__qualname__, Shifted.__mro__[1].__name__

    return outer, [call(normal(3), 2), call(normal(3), 2), call(normal(4), 3)]


@program
def classes_made_in_a_loop():
    def outer(x):
        made = []
        for number in range(3):
            y = x * number

            class Part:
                value = number

            made.append(y + Part.value)
        return torch.stack(made), Part.value

    return outer, [call(normal(2)), call(normal(2)), call(normal(3))]


@program
def classes_made_by_calls():
    def doubled(self, value):
        return value * 2

    makers = {
        "tuple": lambda value: collections.namedtuple("Pair", "first second")(value, 3),
        "data": lambda value: dataclasses.make_dataclass("Pair", ["first", ("second", int, 3)])(value),
        "typed": lambda value: typing.NamedTuple("Pair", [("first", torch.Tensor), ("second", int)])(value, 3),
    }

    def made_by_helper(x, kind):
        pair = makers[kind]((x + 1).cos())
        return pair.first * pair.second, type(pair).__name__, pair.second

    def outer(x, kind):
        y = (x * 2).cos()
        pair_type = collections.namedtuple("Pair", ["value", "count"])
        pair = pair_type(y.sin(), len(kind))
        mode = enum.Enum("Mode", "train test")
        doubler = type("Doubler", (torch.nn.Module,), {"forward": doubled, "factor": mode.test.value})()
        return doubler(pair.value) * doubler.factor, pair._fields, mode.train.name, made_by_helper(x, kind)

    return outer, [call(normal(3), kind) for kind in ("tuple", "data", "typed", "tuple")]
