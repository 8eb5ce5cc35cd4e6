"""Subclasses of numbers, texts and tuples, and objects that turn into numbers."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import operator
import re
import typing

from tests.conformance.catalogue import after, call, count, program

ST = {"k": 1, "mode": "a", "tol": 0.1}
LOG = []


def states(*values, act=lambda: None):
    """A call for each state that the programs read."""
    return [after(lambda value=value: (ST.update(k=value), LOG.clear(), act()), count(3)) for value in values]


@program(core=True)
def int_and_str_subclasses():
    class Steps(int):
        def __new__(cls, v, unit="s"):
            o = super().__new__(cls, v)
            o.unit = unit
            return o

        def __add__(self, o):
            return Steps(int(self) + int(o), self.unit)

        def __repr__(self):
            return f"{int(self)}{self.unit}"

    class Name(str):
        def __truediv__(self, o):
            return Name(f"{self}/{o}")

        @property
        def parts(self):
            return self.split("/")

    def f(x, n, s):
        st = Steps(n, "ms") + 2
        nm = Name(s) / "w" / n
        return (
            x * st,
            st,
            st.unit,
            repr(st),
            nm,
            nm.parts,
            isinstance(st, int),
            st == n + 2,
            {st: 1}[n + 2],
            nm.upper(),
            type(nm[:1]).__name__,
            sum([st, 1]),
        )

    return f, [call(count(2), 1, "a"), call(count(2), 2, "b"), call(count(2), 2, "b")]


@program
def numbers_with_hidden_state():
    class Temp(float):
        def __mul__(self, o):
            return float(self) * o * ST["k"]

        __rmul__ = __mul__

        def __str__(self):
            return f"{float(self)}-{ST['k']}"

    class Idx:
        def __index__(self):
            return ST["k"]

        def __float__(self):
            return ST["k"] + 0.5

        def __int__(self):
            return ST["k"] * 10

        def __complex__(self):
            return 1j

        def __round__(self, n=0):
            return ("r", ST["k"], n)

        def __trunc__(self):
            return 8

        def __floor__(self):
            return ST["k"] + 100

        def __ceil__(self):
            return ST["k"] + 200

        def __divmod__(self, o):
            return (ST["k"], o)

        def __pow__(self, o, m=None):
            return (ST["k"], o, m)

        def __abs__(self):
            return ST["k"]

        def __invert__(self):
            return "inv"

        def __pos__(self):
            return "pos"

    def f(x, t):
        i = Idx()
        return (
            x * t,
            t * 2,
            str(t),
            f"{t}",
            f"{t:.1f}",
            [10, 20, 30, 40][i],
            x[i],
            range(5)[i],
            int(i),
            float(i),
            complex(i),
            round(i),
            round(i, 2),
            math.floor(i),
            math.ceil(i),
            math.trunc(i),
            divmod(i, 2),
            pow(i, 2),
            pow(i, 2, 3),
            abs(i),
            ~i,
            +i,
            operator.index(i),
            "abcd"[i],
            [1, 2, 3, 4][:i],
            list(range(i)),
            hex(i),
            bin(i),
            math.sqrt(i),
            bytes(i),
            "x" * i.__index__(),
            [0] * i.__index__(),
        )

    calls = []
    for k in (0, 1, 2, 0):
        calls.append(after(lambda k=k: ST.update(k=k), count(4), Temp(1.5)))
    return f, calls


@program
def statistics_of_user_numbers():
    import statistics

    class N(float):
        def __add__(self, o):
            return N(float(self) + float(o) + ST["k"])

        __radd__ = __add__

    class D:
        def __init__(self, v):
            self.v = v

        def __float__(self):
            return self.v * ST["k"]

    def f(x):
        return (
            x,
            sum([N(1.0), N(2.0)]),
            math.fsum([D(1.0), D(2.0)]),
            math.hypot(D(3.0), 4.0),
            max(N(1.0), N(2.0)),
            statistics.fmean([1.0, D(2.0)]),
            math.isclose(D(1.0), 1.0),
            "%d %.1f" % (3, D(2.0)),
        )

    return f, states(1, 2, 1)


@program
def named_tuple_overrides():
    class P(collections.namedtuple("P", "a b")):
        def __eq__(self, o):
            return ST["k"] == 1

        __hash__ = tuple.__hash__

        def __len__(self):
            return ST["k"] + 5

        def __contains__(self, v):
            return ST["k"] == 2

        def __getattribute__(self, n):
            return super().__getattribute__(n)

        def __repr__(self):
            return f"P!{ST['k']}"

    p = P(1, 2)

    def f(x):
        a, b = p
        return (
            x,
            p == (3,),
            len(p),
            1 in p,
            repr(p),
            p.a,
            p[0],
            p in [5],
            f"{p}",
            sorted([p])[0] is p,
            bool(p),
            [*p],
            tuple(p),
            p + (1,),
            hash(p) == hash((1, 2)),
            {p: 1}[p],
            p.index(2),
            str([p]),
        )

    return f, states(1, 2, 1)


@program
def str_subclass_overrides():
    class S(str):
        def __eq__(self, o):
            return ST["k"] == 1

        __hash__ = str.__hash__

        def __add__(self, o):
            return "add"

        def __len__(self):
            return ST["k"]

        def __getitem__(self, i):
            return "gi"

        def __iter__(self):
            return iter(["it"])

        def __contains__(self, o):
            return ST["k"] == 2

        def __mod__(self, o):
            return "mod"

        def upper(self):
            return f"UP{ST['k']}"

        def __format__(self, sp):
            return f"F{ST['k']}"

        def __str__(self):
            return "STR"

    s = S("abc")

    def f(x):
        return (
            x,
            s == "z",
            s + "q",
            len(s),
            s[0],
            list(s),
            "q" in s,
            s % 3,
            s.upper(),
            f"{s}",
            str(s),
            s.lower(),
            "".join([s, s]),
            s * 2,
            "x" + s,
            s in ["u"],
            {s: 1}.get("abc"),
            s.startswith("a"),
            sorted([s, "b"])[0][0],
            "%s" % s,
            s.split("b"),
            bool(s),
            s != "abc",
            s < "b",
        )

    return f, states(1, 2, 1)


@program
def plain_key_beside_keys_with_an_equality_of_their_own():
    class S(str):
        def __eq__(self, o):
            return ST["k"] == 1

        __hash__ = str.__hash__

    table = {S("abc"): 1}

    def f(x):
        return x, table.get("abc"), "abc" in table

    return f, states(1, 2, 1)


@program
def int_subclass_overrides():
    class I(int):
        def __eq__(self, o):
            return ST["k"] == 1

        __hash__ = int.__hash__

        def __lt__(self, o):
            return ST["k"] == 2

        def __add__(self, o):
            return ("add", ST["k"])

        def __index__(self):
            return ST["k"]

        def __bool__(self):
            return ST["k"] == 1

        def __int__(self):
            return 70 + ST["k"]

        def __float__(self):
            return 0.5 + ST["k"]

        def __repr__(self):
            return f"I{ST['k']}"

    i = I(5)

    def f(x):
        return (
            x,
            i == 9,
            i < 3,
            i + 1,
            bool(i),
            int(i),
            float(i),
            repr(i),
            str(i),
            f"{i}",
            f"{i:03d}",
            i - 1,
            1 + i,
            i in [4],
            sorted([i, 3])[0] == 3,
            max(i, 3),
            [1, 2, 3, 4, 5, 6, 7][i],
            range(i),
            i * 2,
            -i,
            i**2,
            hash(i),
            {5: "five"}.get(i),
            "a" * i,
            x[i % 3],
            sum([i, 1]),
            divmod(i, 2),
            i.bit_length(),
            "%d" % i,
            round(i),
            1 if i else 0,
            not i,
            i and 3,
        )

    return f, states(1, 2, 1)


@program
def special_methods_that_are_no_functions():
    class Op:
        def __init__(self, v):
            self.v = v

        def _bin(self, o, how="add"):
            return self.v + o if how == "add" else self.v * o

        __add__ = functools.partialmethod(_bin, how="add")
        __mul__ = functools.partialmethod(_bin, how="mul")
        __neg__ = lambda self: -self.v
        __len__ = staticmethod(lambda: 3) if False else (lambda self: 3)
        __iter__ = None
        __lt__ = functools.partialmethod(lambda self, o, k: k, k=True)

    def f(x, k):
        o = Op(x)
        out = []
        for t in (lambda: iter(o), lambda: o < 3, lambda: o > 3, lambda: o - 1):
            try:
                out.append(t())
            except TypeError as e:
                out.append(str(e))
        return o + k, o * k, -o, len(o), out

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 4)]


@program
def falsy_members_and_missing_values():
    class L(enum.IntEnum):
        ZERO = 0
        ONE = 1

        @classmethod
        def _missing_(cls, v):
            return cls.ONE if isinstance(v, str) else None

    class P(enum.Flag):
        NONE = 0
        A = 1
        B = 2

    def f(x, v):
        try:
            m = L(v)
        except ValueError as e:
            return x, str(e)
        return x * m, m, m.name, P(int(m)), bool(P(0))

    return f, [call(count(2), v) for v in (0, 1, "s", 7, 0)]


@program
def sequences_that_override_their_searches():
    class Q(list):
        def index(self, v, *a):
            return super().index(v, *a) + 100

        def count(self, v):
            return -super().count(v)

        def remove(self, v):
            super().remove(v)
            super().append("removed")

        def __delitem__(self, i):
            raise RuntimeError("no")

        def __getitem__(self, i):
            return "item"

    class Obj:
        def __init__(self, k):
            self.k = k

        def __eq__(self, o):
            return self.k == getattr(o, "k", o)

    def f(x, k):
        q = Q([1, Obj(2), k])
        q.remove(2)
        return x, q.index(k), q.count(k), len(q), list.__getitem__(q, -1), k in q

    return f, [call(count(2), 1), call(count(2), 3), call(count(2), 4)]


@program
def texts_made_of_objects():
    class Tx(str):
        def __new__(cls, v):
            return super().__new__(cls, v)

    class N(float):
        pass

    class O:
        def __str__(self):
            return "O!"

        def __iter__(self):
            return iter("zz")

        def __float__(self):
            return 2.5

    def f(x, k):
        return (
            x * N(k),
            Tx(O()),
            Tx(k),
            N(O()),
            N("1.5"),
            Tx("a") + "b",
            isinstance(Tx(k), Tx),
            typing.List[int] is typing.List[int],
            str.__new__(Tx, "q"),
        )

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 4)]


@program
def numbers_with_reflected_methods_beside_tensors():
    class Weight(float):
        def __mul__(self, other):
            return other * float(self) * ST["k"]

        __rmul__ = __radd__ = __rtruediv__ = __mul__

    class Place(int):
        def __radd__(self, other):
            return "added"

        def __index__(self):
            return ST["k"]

    def f(x, weight):
        place = Place(2)
        y = x * weight
        y += Weight(3.0)
        return y, weight * x, 2.0 * weight, x / weight, x + place, 1 + place, x[place], [1, 2, 3][place], x[:place]

    return f, [after(lambda k=k: ST.update(k=k), count(4), Weight(1.5)) for k in (1, 3, 1)]


@program
def methods_of_equal_objects_compared():
    class Box:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value == other.value

        __hash__ = None

        def show(self):
            return self.value

        shown = show

    def f(x, first, second):
        methods = first.show, second.show
        return (
            first == second,
            methods[0] == methods[1],
            methods[0] == first.show,
            methods[0] == first.shown,
            methods[0] != second.show,
            methods.count(first.show),
            second.show in [first.show],
            x.add == x.add,
            x.add != x.sub,
            x.add == x.clone().add,
        )

    box = Box(1)
    return f, [call(count(2), box, Box(1)), call(count(2), box, box), call(count(2), box, Box(2))]


@program
def objects_that_stand_for_a_number_in_native_code():
    class Place:
        def __init__(self, n):
            self.n = n

        def __index__(self):
            return self.n

    def outer(x, p):
        items = collections.deque(range(6), maxlen=4)
        items.rotate(p)
        popped = list(range(9))
        popped.insert(p, "new")
        popped.pop(p)
        popped[p] = "set"
        popped.__setitem__(p, float(p))
        made = "a,b,c,d,e".split(",", p), "ab".ljust(p, "."), "a\tb".expandtabs(tabsize=p), "aXbX".find("X", p)
        counted = list(itertools.islice("abcdefgh", p)), list(itertools.combinations("abcd", p)), list(enumerate("ab", p))
        return x * 2, items, popped, made, counted, complex(p), re.sub("a", "b", "aaaaaa", count=p)

    return outer, [call(count(3), Place(n)) for n in (3, 4, 2, 3)]


@program
def forms_that_objects_refuse():
    class Plain:
        pass

    def outer(x, value):
        try:
            return x * 2, f"{value:>8}"
        except TypeError as error:
            return x + 1, str(error)

    return outer, [call(count(3), value) for value in ([1], Plain(), {}, int, None, (1, 2), "text", 3)]
