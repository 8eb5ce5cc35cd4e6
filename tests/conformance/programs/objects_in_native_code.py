"""What native code does with the user's objects: it compares, hashes, iterates, converts and prints them."""

from __future__ import annotations

import ast
import bisect
import collections
import copy
import dataclasses
import datetime
import enum
import functools
import heapq
import inspect
import itertools
import json
import math
import operator
import string
import struct
import textwrap
import types
import typing

import torch

from tests.conformance.catalogue import after, call, count, program

ST = {"k": 1, "mode": "a", "tol": 0.1}
LOG = []


def states(*values, act=lambda: None):
    """A call for each state that the programs read."""
    return [after(lambda value=value: (ST.update(k=value), LOG.clear(), act()), count(3)) for value in values]


@program(core=True)
def beam_search_with_heap():
    @dataclasses.dataclass(order=True)
    class Hyp:
        score: float
        tokens: tuple = dataclasses.field(compare=False)

        def extend(self, t, s):
            return dataclasses.replace(self, score=self.score + s, tokens=self.tokens + (t,))

    def f(x, table, width):
        beam = [Hyp(0.0, ())]
        for step in table:
            cand = []
            for h in beam:
                for t, s in enumerate(step):
                    n = h.extend(t, s)
                    if len(cand) < width:
                        heapq.heappush(cand, n)
                    else:
                        heapq.heappushpop(cand, n)
            beam = heapq.nlargest(width, cand)
        best = max(beam)
        return x[list(best.tokens)], best.tokens, [h.tokens for h in beam]

    return f, [
        call(count(3), [[0.1, 0.5], [0.2, 0.3, 0.9]], 2),
        call(count(3), [[0.7, 0.5], [0.2, 0.1, 0.0]], 2),
        call(count(3), [[0.7, 0.5]], 1),
    ]


@program
def total_ordering_and_sorting():
    @functools.total_ordering
    class V:
        def __init__(self, k, t):
            self.k, self.t = k, t

        def __eq__(self, o):
            return self.k == o.k if isinstance(o, V) else NotImplemented

        def __lt__(self, o):
            return self.k < o.k if isinstance(o, V) else NotImplemented

        __hash__ = None

    def f(x, ks):
        vs = [V(k, x * k) for k in ks]
        vs.sort()
        lo, hi = min(vs), max(vs)
        bad = []
        for g in (lambda: lo < 3, lambda: hash(lo), lambda: {lo}):
            try:
                g()
            except TypeError as e:
                bad.append(str(e))
        return (
            hi.t,
            lo <= hi,
            lo >= hi,
            lo == 3,
            [v.k for v in reversed(vs)],
            bad,
            V(1, 0) in vs,
            bisect.bisect_left(vs, V(2, 0)),
        )

    return f, [call(count(2), [3, 1, 2]), call(count(2), [2, 2]), call(count(2), [5, 1])]


@program
def string_formatting_of_all_kinds():
    class T:
        def __init__(self, v):
            self.v = v
            self.d = {"k": [v, v + 1]}

        def __str__(self):
            return f"<{self.v}>"

        def __repr__(self):
            return f"T({self.v!r})"

        def __format__(self, s):
            return f"{self.v:{s or 'd'}}|{s}"

    def f(x, v, w):
        t = T(v)
        return (
            x + v,
            f"{t}",
            f"{t!r:>8}",
            f"{t!s}",
            f"{t:05}",
            "{0.v}-{0.d[k][1]}".format(t),
            "%s %r %5.2f %%" % (t, t, v / 3),
            f"{v:>{w}}",
            f"{v=}",
            f"{v=:#x}",
            "{:{}}".format("a", w),
            "{a:>{b}}|{a}".format(a=v, b=w),
            string.Template("$a ${b}").substitute(a=v, b=t),
            f"{x.shape[0]:03d}",
            f"{'q':*^{w}}",
            f"{v:,}",
            f"{1 / 3:.{w}f}",
            "a-b-c".rsplit("-", 1),
            "x".join(map(str, range(v % 4))),
            "Tab\tle".expandtabs(4),
            textwrap.dedent("  a\n   b"),
            format(v, "+b"),
        )

    return f, [call(count(3), 5, 7), call(count(3), 12345, 6), call(count(4), 5, 7)]


@program
def sets_of_objects_combined():
    class Tag:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return isinstance(o, Tag) and o.n == self.n

        def __hash__(self):
            return hash(self.n)

        def __repr__(self):
            return f"#{self.n}"

    def f(x, a, b):
        A, B = {Tag(n) for n in a}, {Tag(n) for n in b}
        return (
            x * len(A | B),
            len(A & B),
            sorted(t.n for t in A - B),
            sorted(t.n for t in A ^ B),
            A <= B,
            A == B,
            A.isdisjoint(B),
            len(A.union(B, [Tag(9)])),
            frozenset(A) == A,
        )

    return f, [call(count(2), "abc", "bcd"), call(count(2), "ab", "abc"), call(count(2), "", "a")]


@program
def heap_class_of_objects():
    class Item:
        def __init__(self, p, v):
            self.p, self.v = p, v

        def __lt__(self, o):
            return self.p < o.p

    class PQ:
        def __init__(self):
            self.h = []

        def push(self, p, v):
            heapq.heappush(self.h, Item(p, v))

        def pop(self):
            return heapq.heappop(self.h).v

        def __len__(self):
            return len(self.h)

    q = PQ()

    def f(x, ps):
        for p in ps:
            q.push(p, x + p)
        return q.pop(), len(q)

    return f, [call(count(2), [3, 1]), call(count(2), [2, 0]), call(count(2), [])], q


@program
def fractions_and_decimals():
    import decimal
    import fractions

    def f(x, a, b):
        fr = fractions.Fraction(a, b)
        d = decimal.Decimal(a) / decimal.Decimal(b)
        return (
            x * float(fr + 1),
            fr.numerator,
            str(fr),
            float(d) > 0.5,
            d.quantize(decimal.Decimal("0.01")),
            fr.limit_denominator(10),
            sum([fr, fr]),
            max(fr, fractions.Fraction(1, 2)),
        )

    return f, [call(count(2), 1, 3), call(count(2), 3, 4), call(count(2), 3, 4)]


@program
def decimal_and_fraction_arguments():
    import decimal
    import fractions

    def f(x, q):
        return x * float(q), q + 1, q > 1, str(q)

    return f, [
        call(count(2), fractions.Fraction(1, 3)),
        call(count(2), fractions.Fraction(4, 3)),
        call(count(2), decimal.Decimal("1.5")),
        call(count(2), decimal.Decimal("0.5")),
    ]


@program
def dates_and_durations_of_arguments():
    import datetime

    def f(x, start, days):
        d = start + datetime.timedelta(days=days)
        delta = d - start
        return (
            x * delta.days,
            d.isoformat(),
            d.strftime("%Y-%m-%d"),
            delta.total_seconds(),
            d.weekday(),
            d > start,
            f"{d:%d.%m}",
            [start + i * datetime.timedelta(hours=1) for i in range(2)],
        )

    s = datetime.datetime(2024, 1, 30)
    return f, [call(count(2), s, 1), call(count(2), s, 3), call(count(2), datetime.datetime(2023, 2, 28), 1)]


@program
def enum_text_reads_state():
    class Mode(enum.Enum):
        A = 1
        B = 2

        def __str__(self):
            return f"{self.name}:{ST['mode']}"

    class Lv(enum.IntEnum):
        X = 3

        def __format__(self, s):
            return ST["mode"] + s

        def __repr__(self):
            return "LV" + ST["mode"]

    def f(x, m):
        return x, str(m), f"{m}", f"{Lv.X:q}", repr(Lv.X), "%s" % m, "{}".format(m), f"{[m, Lv.X]}", str({"k": Lv.X})

    return f, [
        after(lambda: ST.update(mode="a"), count(2), Mode.A),
        after(lambda: ST.update(mode="b"), count(2), Mode.A),
        call(count(2), Mode.B),
    ]


@program
def enum_operators_read_state():
    class Mode(enum.Enum):
        A = 1
        B = 2

        def __eq__(self, o):
            return ST["mode"] == "loose" or self is o

        def __hash__(self):
            return 5

        def __lt__(self, o):
            return (self.value < o.value) ^ (ST["mode"] == "rev")

        def __bool__(self):
            return ST["mode"] != "loose"

        def __call__(self, x):
            return x * self.value if ST["mode"] == "a" else x

        @classmethod
        def _missing_(cls, v):
            return cls.A if ST["mode"] == "loose" else cls.B

    def f(x, m):
        return (
            m(x),
            m == Mode.B,
            m in [Mode.B],
            sorted([Mode.B, m])[0].name,
            bool(m),
            Mode(99).name,
            max(m, Mode.A).name,
            1 if m else 0,
            {Mode.B: 1}.get(m),
        )

    calls = []
    for s in ("a", "loose", "rev", "a"):
        calls.append(after(lambda s=s: ST.update(mode=s), count(2), Mode.A))
    return f, calls


@program
def reversed_and_reflected_operators():
    log = []

    class L:
        def __init__(self, v):
            self.v = v

        def __radd__(self, o):
            log.append("radd")
            return ("radd", o)

        def __rmatmul__(self, o):
            log.append("rmat")
            return NotImplemented

        def __rsub__(self, o):
            return NotImplemented

        def __eq__(self, o):
            return NotImplemented

        def __lt__(self, o):
            return NotImplemented

        def __gt__(self, o):
            return "gt"

        def __ror__(self, o):
            return ("ror", type(o).__name__)

        def __rlshift__(self, o):
            return "rls"

    class M(L):
        def __radd__(self, o):
            log.append("M")
            return super().__radd__(o)

        def __add__(self, o):
            return "madd"

    def f(x, n):
        a, b = L(x), M(x)
        out = [
            1 + a,
            a == b,
            a != b,
            3 < a,
            a < b,
            {1} | a,
            {} | a,
            [1] + a if n > 5 else 0,
            n << a,
            a + b if False else b + a,
            sum([1, a]),
        ]
        for g in (
            lambda: 1 - a,
            lambda: n @ a,
            lambda: a < 3 if n < 0 else a >= 3,
            lambda: -a,
            lambda: a[0],
            lambda: len(a),
            lambda: a(),
            lambda: iter(a),
            lambda: a + 1,
            lambda: a.zip,
            lambda: [1] + (2,),
            lambda: "a" + n,
            lambda: n + "a",
            lambda: a << 1,
            lambda: int(a),
            lambda: next(a),
            lambda: {}[a, n],
            lambda: del_(a),
            lambda: setit(a),
            lambda: 1 in a,
            lambda: reversed(a),
            lambda: round(a),
            lambda: abs(a),
            lambda: math.floor(a),
            lambda: float(a),
            lambda: sorted([a, b]),
            lambda: hash(a),
            lambda: format(a, "q"),
            lambda: with_(a),
            lambda: await_(a),
        ):
            try:
                out.append(g())
            except Exception as e:
                out.append((type(e).__name__, str(e)[:60]))
        return x, out, log

    def del_(a):
        del a[0]

    def setit(a):
        a[0] = 1

    def with_(a):
        with a:
            pass

    def await_(a):
        return [*a]

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 7)], log


@program
def exceptions_with_custom_text_and_state():
    class E(Exception):
        def __init__(self, code, *, hint=None):
            super().__init__(code)
            self.code = code
            self.hint = hint

        def __str__(self):
            return f"E{self.code}({self.hint or ST['mode']})"

        def __reduce__(self):
            return (E, (self.code,))

    class K(KeyError):
        pass

    class O(OSError):
        pass

    class S(E):
        __str__ = Exception.__str__

    def f(x, n):
        out = []
        for mk in (
            lambda: E(n),
            lambda: E(n, hint="h"),
            lambda: K("k", n),
            lambda: K("one"),
            lambda: O(2, "no file", "p"),
            lambda: S(n),
            lambda: ValueError(),
            lambda: ValueError(n, [n]),
            lambda: StopIteration(n),
            lambda: UnicodeError("u"),
            lambda: ImportError("i", name="nm"),
            lambda: SystemError((1,)),
            lambda: AttributeError("a", name="q", obj=1),
            lambda: AssertionError({"d": n}),
            lambda: E(E(1)),
        ):
            try:
                raise mk()
            except Exception as e:
                out.append((str(e), repr(e), f"{e}", "%s|%r" % (e, e), e.args, f"{[e]}"[:30] if n > 1 else 0))
        return x, out

    return f, [
        after(lambda: ST.update(mode="m1"), count(2), 1),
        after(lambda: ST.update(mode="m2"), count(2), 1),
        call(count(2), 2),
    ]


@program
def dataclass_features_all():
    @dataclasses.dataclass(order=True, slots=True)
    class A:
        k: int
        v: list = dataclasses.field(default_factory=list, compare=False)
        n: str = dataclasses.field(default="n", repr=False, kw_only=True)

    @dataclasses.dataclass(unsafe_hash=True)
    class B:
        x: float
        a: A = dataclasses.field(default=None, hash=False)

        def __eq__(self, o):
            return abs(self.x - o.x) < ST["tol"]

    def f(x, k):
        a, b = A(k), A(k + 1, [k], n="z")
        s = sorted([b, a])
        p, q = B(1.0, a), B(1.2)
        return (
            x * a.k,
            s,
            a < b,
            a == A(k, [9]),
            repr(p),
            p == q,
            dataclasses.astuple(b),
            dataclasses.replace(b, k=0),
            [f.name for f in dataclasses.fields(a)],
            dataclasses.is_dataclass(p),
            A.__match_args__,
            hash(p) == hash(B(1.0)),
            p in [q],
            [q, p].index(p),
            {p: 1}.get(q),
            A.__slots__,
        )

    return None if 0 else f, [
        after(lambda: ST.update(tol=0.1), count(2), 1),
        after(lambda: ST.update(tol=0.5), count(2), 1),
        call(count(2), 2),
    ]


@program
def format_map_of_a_dict_with_missing():
    class Safe(dict):
        def __missing__(self, k):
            LOG.append(k)
            return f"<{k}{ST['k']}>"

    class Obj:
        def __getitem__(self, k):
            LOG.append(k)
            return f"{k}!{ST['k']}"

    def f(x):
        LOG.clear()
        return (
            x,
            "{a}-{b}".format_map(Safe(a=1)),
            "%(a)s %(q)s" % Safe(a=2),
            "%(z)s" % Obj(),
            "{0[w]}".format(Obj()),
            "{x.real} {y}".format(x=3, y=ST["k"]),
            Safe(a=1)["zz"],
            list(LOG),
            "abc".translate(collections.defaultdict(lambda: "z", {97: ST["k"] + 65})),
        )

    return f, states(1, 2, 1), LOG


@program
def json_with_hooks_and_defaults():
    LOG.clear()

    class P:
        def __init__(self, a):
            self.a = a

    class Enc(json.JSONEncoder):
        def default(self, o):
            LOG.append(type(o).__name__)
            return {"p": o.a + ST["k"]}

    def f(x):
        LOG.clear()
        a = json.dumps({"p": P(1)}, default=lambda o: o.a * ST["k"])
        b = json.dumps([P(2)], cls=Enc)
        c = json.loads('{"a": [1, {"b": 2}]}', object_hook=lambda d: (LOG.append(sorted(d)), d)[1])
        d = json.dumps({"b": 1, "a": [1.5, None, True]}, sort_keys=True, indent=1)
        return x * c["a"][0], a, b, d, list(LOG)

    return f, states(1, 2, 1), LOG


@program
def callables_of_all_kinds_given_to_natives():
    class C:
        def __init__(self, s):
            self.s = s
            self.n = 0

        def __call__(self, *a):
            self.n += 1
            return a[0] * self.s * ST["k"] if len(a) == 1 else a[0] + a[1] * self.s

        def meth(self, v):
            self.n += 10
            return -v * ST["k"]

        @staticmethod
        def stat(v):
            return v + ST["k"]

        @classmethod
        def cls_(cls, v):
            return (v, cls.__name__, ST["k"])

    def f(x):
        c = C(2)
        l = [3, 1, 2]
        return (
            x * sum(map(c, l)),
            sorted(l, key=c.meth),
            max(l, key=C.stat),
            [*map(C.cls_, l)],
            functools.reduce(c, l),
            [*filter(c, [0, 1])],
            [*itertools.accumulate(l, c)],
            {k: [*g] for k, g in itertools.groupby(l, key=functools.partial(operator.mod, 5))},
            min(l, key=functools.cmp_to_key(lambda a, b: (a - b) * ST["k"])),
            [*itertools.starmap(c, [(1, 2)])],
            heapq.nlargest(1, l, key=c.meth),
            next(iter(c.stat, None), 0) if False else 0,
            c.n,
            [*map(str.upper, "ab")],
            [*map(int, "12")],
            [*map(operator.add, l, l)],
            sorted(l, key=lambda v, *, k=ST["k"]: -v * k),
            bisect.bisect([1, 5], 3, key=c.stat),
            [*itertools.takewhile(c, [1, 0, 2])],
            dict(map(lambda v: (v, c(v)), l)),
            collections.defaultdict(C.__call__.__get__(c, C).__self__.stat.__class__ if 0 else list),
            sorted("bA", key=str.lower),
            functools.partial(c, 5)(),
            operator.methodcaller("meth", 4)(c),
            c.n,
        )

    return f, states(1, 2, -1)


@program
def objects_iterated_by_natives():
    LOG.clear()

    class It:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            LOG.append("iter")
            return (i * ST["k"] for i in range(self.n))

    class Nx:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            LOG.append("next")
            if self.n <= 0:
                raise StopIteration
            self.n -= 1
            return self.n * ST["k"]

    class Mp:
        def keys(self):
            LOG.append("keys")
            return ["a", "b"]

        def __getitem__(self, k):
            LOG.append(k)
            return ST["k"]

    class Seq(collections.abc.Sequence):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            LOG.append(i)
            if i >= 2:
                raise IndexError
            return i + ST["k"]

    def f(x):
        LOG.clear()
        a, *b = It(3)

        def g(*a, **k):
            return a, k

        r = [
            list(It(2)),
            tuple(Nx(2)),
            set(It(2)),
            sum(It(3)),
            max(Nx(3)),
            sorted(Nx(3)),
            any(It(1)),
            all(Nx(2)),
            list(zip(It(2), Nx(3))),
            dict(Mp()),
            {**Mp()},
            g(*It(2), **Mp()),
            list(enumerate(Nx(1))),
            list(map(lambda a, b: a + b, It(2), Nx(2))),
            collections.deque(It(2)),
            collections.Counter(Nx(2)),
            [*itertools.chain(It(1), Nx(1))],
            ",".join(map(str, It(2))),
            frozenset(Nx(2)),
            dict(zip("ab", It(2))),
            list(reversed(Seq())),
            1 + ST["k"] in Seq(),
            Seq().index(ST["k"]),
            Seq().count(9),
            list(Seq()),
            bytes(It(2)) if ST["k"] >= 0 else b"",
            [*itertools.islice(Nx(5), 2)],
            0 in It(2),
            list(filter(None, It(3))),
            heapq.nsmallest(1, Nx(3)),
            dict.fromkeys(It(2)),
            min(It(2), default=7),
            min(It(0), default=7),
            b"".join([]),
            [1] + list(Nx(1)),
            functools.reduce(operator.add, It(3)),
            x.new_tensor(list(It(2))),
        ]
        l = [0]
        l += It(2)
        l.extend(Nx(1))
        l[0:1] = It(2)
        return x, a, b, r, l, list(LOG)

    return f, states(1, 2, 1), LOG


@program
def metaclasses_answering_isinstance():
    LOG.clear()

    class M(type):
        def __instancecheck__(cls, o):
            LOG.append("inst")
            return isinstance(o, (int, str)) if ST["k"] == 1 else hasattr(o, "shape")

        def __subclasscheck__(cls, c):
            return ST["k"] == 2

        def __getattr__(cls, n):
            return (n, ST["k"])

        def __or__(cls, o):
            return ("or", ST["k"])

        def __repr__(cls):
            return f"M{ST['k']}"

        def __bool__(cls):
            return ST["k"] == 1

        def __call__(cls, *a):
            return a + (ST["k"],) if a else super().__call__()

        @property
        def prop(cls):
            return cls.__name__ * ST["k"]

    class A(metaclass=M):
        pass

    def f(x):
        LOG.clear()
        try:
            match x:
                case A():
                    r = "A"
                case _:
                    r = "no"
        except Exception as e:
            r = repr(e)
        return (
            x,
            isinstance(3, A),
            isinstance(x, A),
            issubclass(int, A),
            A.foo,
            A == 5,
            A == A,
            repr(A),
            f"{A}",
            bool(A),
            A(1),
            type(A()) is A,
            A.prop,
            r,
            (A | 3),
            A in [7],
            {A: 1}.get(A),
            list(LOG),
        )

    return f, states(1, 2, 1), LOG


@program
def attribute_access_hooks_on_everything():
    LOG.clear()
    ST.update(k=1)

    class G:
        def __init__(self, v):
            self.v = v

        def __getattribute__(self, n):
            if not n.startswith("__"):
                LOG.append(n)
            r = object.__getattribute__(self, n)
            return r * ST["k"] if n == "v" else r

        def __setattr__(self, n, v):
            LOG.append(("set", n))
            object.__setattr__(self, n, v + ST["k"] if isinstance(v, int) else v)

        def m(self):
            return self.v

        def __eq__(self, o):
            return self.v == o.v

    g0 = G(3)

    def f(x):
        LOG.clear()
        g = G(2)
        g.v += 1
        g.w = x
        r = (
            g.v,
            g.m(),
            g0.v,
            vars(g),
            g == g0,
            getattr(g0, "nope", "d"),
            hasattr(g0, "m"),
            operator.attrgetter("v")(g0),
            g in [g0],
            [g, g0].index(g0),
            g0.__dict__["v"],
            copy.copy(g0).v,
        )
        g0.v = 5
        return x, r, list(LOG), g0, [g0]

    return f, states(1, 2, 1), g0


@program
def text_conversions_called_by_containers():
    LOG.clear()

    class R:
        def __init__(self, v):
            self.v = v

        def __repr__(self):
            LOG.append("repr")
            return f"R{self.v}{ST['k']}"

    class S(R):
        def __str__(self):
            LOG.append("str")
            return "S" + super().__repr__()

    def f(x):
        LOG.clear()
        d = collections.OrderedDict(a=R(1))
        dd = collections.defaultdict(list, {R: 1} if 0 else {"k": S(2)})
        dq = collections.deque([R(3)], 3)
        nt = collections.namedtuple("NT", "p q")(R(4), S(5))
        ns = types.SimpleNamespace(z=R(6))
        ct = collections.Counter({"u": 2})
        out = [
            str([R(1), S(2)]),
            repr((S(1),)),
            f"{ {'k': R(2)} }",
            str(d),
            str(dd),
            str(dq),
            str(nt),
            str(ns),
            str(ct),
            str({S(7)}),
            repr(frozenset([R(8)])),
            str(ValueError(R(9))),
            repr(KeyError(S(1))),
            str(KeyError(S(2))),
            "%s" % [R(1)],
            "{!r:>9}".format(S(3)),
            "{}".format((S(1), [R(2)])),
            str(range(2)),
            str(functools.partial(max, 1))[:9],
            str(collections.ChainMap({"c": R(1)})),
            f"{S(1)!s:>6}|{S(2)!r}|{S(3)!a}",
            ascii(R("é")),
            str({"a": {"b": [S(1)]}}),
            str(dict(a=nt)),
            ", ".join(str(v) for v in (R(1), S(1))),
            str(type(x)),
            str(x.dtype),
            str(x.shape),
            "{0} {0.v} {1[0]}".format(S(1), [R(2)]),
        ]
        return x, out, list(LOG)

    return f, states(1, 2, 1), LOG


@program
def generic_alias_makes_instances():
    T = typing.TypeVar("T")
    made = []

    class Box(typing.Generic[T]):
        n = 0

        def __init__(self, v):
            Box.n += 1
            made.append(Box.n)
            self.v = v * ST["k"]

    def f(x):
        b = Box[int](2)
        return x * b.v, Box.n, b, b.__orig_class__ is not None, len(made)

    return f, states(1, 2, 2), made


@program
def enum_missing_reads_state():
    class Mode(enum.Enum):
        A = 1
        B = 2

        @classmethod
        def _missing_(cls, v):
            return cls.A if ST["k"] == 1 else cls.B if ST["k"] == 2 else None

    def f(x):
        try:
            m = Mode(99)
        except ValueError as e:
            return x, str(e)
        return x * m.value, m, Mode(2)

    return f, states(1, 2, 3, 1)


@program
def enum_missing_alone_in_text():
    class Mode(enum.Enum):
        A = 1
        B = 2

        def __str__(self):
            return f"{self.name}{ST['k']}"

    def f(x):
        return x, f"{Mode.A}"

    return f, states(1, 2, 1)


@program
def enum_order_alone():
    class P(enum.Enum):
        A = 1
        B = 2

        def __lt__(self, o):
            return (self.value < o.value) == (ST["k"] == 1)

    def f(x):
        return x, sorted([P.B, P.A]), min(P), max([P.A, P.B])

    return f, states(1, 2, 1)


@program
def formatter_subclass():
    class F(string.Formatter):
        def get_value(self, key, args, kw):
            return kw.get(key, f"<{key}{ST['k']}>") if isinstance(key, str) else args[key]

        def format_field(self, v, spec):
            return f"[{v}]" + spec

    class Tm(string.Template):
        delimiter = "%"

    def f(x):
        return x, F().format("{a}-{0}-{b:q}", 5, b=2), Tm("%a $a").substitute(a=ST["k"])

    return f, states(1, 2, 1)


@program
def node_visitor_subclass():
    class V(ast.NodeVisitor):
        def __init__(self):
            self.names = []

        def visit_Name(self, n):
            self.names.append(n.id * ST["k"])

        def visit_BinOp(self, n):
            self.names.append(type(n.op).__name__)
            self.generic_visit(n)

    def f(x):
        v = V()
        v.visit(ast.parse("a + b * c"))
        return x * len(v.names), v.names

    return f, states(1, 2, 1)


@program
def members_of_an_object():
    class O:
        a = 1

        @property
        def p(self):
            return ST["k"]

        def m(self):
            return 2

    def f(x):
        return (
            x,
            [n for n, v in inspect.getmembers(O()) if not n.startswith("_")],
            dict(inspect.getmembers(O()))["p"],
            inspect.signature(O.m).parameters.keys() == {"self"},
        )

    return f, states(1, 2, 1)


@program(backward=False)
def numbers_in_tensors_given_to_native_code():
    def outer(x, n):
        made = [list(itertools.islice("abcdefgh", n)), list(itertools.combinations("abcd", n)), x.__len__()]
        made += [struct.pack("<f", x[1]), list(itertools.repeat(1, n))]
        for wrong in (lambda: n(), lambda: {**x}, lambda: abs(lambda: 1), lambda: list(itertools.chain(n))):
            try:
                made.append(wrong())
            except TypeError as error:
                made.append(str(error))
        return x * 2, made

    return outer, [call(count(3), torch.tensor(2)), call(count(4), torch.tensor(3)), call(count(5), torch.tensor(1))]


@program
def templates_and_calendars_from_outside():
    def outer(x, template, day):
        text = template.substitute(name="x", size=len(x))
        return x * 2, text, template.safe_substitute(), day.isocalendar(), day.isocalendar().week

    templates = string.Template("$name"), string.Template("$name of ${size}"), string.Template("$$ $size")
    days = datetime.date(2020, 1, 5), datetime.date(2021, 7, 1), datetime.date(2022, 12, 31)
    return outer, [call(count(3), template, day) for template, day in zip(templates, days)]
