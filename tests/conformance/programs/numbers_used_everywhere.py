"""Integers and floats that vary from call to call, in every place where Python takes a number."""

from __future__ import annotations

import bisect
import collections
import collections.abc
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import operator
import struct
import types
import typing

import torch
import torch.nn.functional as F

from tests.conformance.catalogue import call, count, program

INTS = (2, 3, 4, 5, 5, 7)
FLOATS = (0.5, 1.5, 2.25, 3.0, -1.5, 0.1)


class E(enum.IntEnum):
    TWO = 2
    THREE = 3
    FOUR = 4
    FIVE = 5
    SEVEN = 7


@dataclasses.dataclass
class D:
    n: int
    t: object = None


NT = collections.namedtuple("NT", "a b")


@program
def varying_integer_as_key_and_element():
    table = {i: i * i for i in range(10)}

    def outer(x, n):
        d = {n: "a", n + 1: "b", (n, "t"): 1}
        s = {n, n + 1, 2}
        f = frozenset([n])
        return (
            x * n,
            table[n],
            d,
            n in s,
            sorted(s),
            d[n],
            d.get(n + 1),
            d.pop(n),
            {n: n for n in range(n)},
            table.get(n * 2),
            n in table,
            [n].index(n),
            [1, n, n].count(n),
            collections.Counter([n, n])[n],
            dict.fromkeys([n]),
            len({n, n}),
            hash(n),
            hash((n, 1)),
            d[(n, "t")],
            f,
        )

    return outer, [call(count(3), v) for v in INTS]


@program
def varying_integer_in_containers_returned():
    def outer(x, n):
        l = [n] * 2
        t = (n, [n], {"k": n})
        o = D(n, x)
        p = NT(n, n + 1)
        return (
            l,
            t,
            o,
            p,
            p.b,
            o.n,
            p._replace(a=n * 2),
            slice(n),
            slice(0, n, 2),
            range(n),
            torch.Size([n, 1]),
            [*range(n)],
            list(enumerate("ab", n)),
            complex(n, 1),
            n + 0j,
            D(n) == D(n),
            (n,) == (n,),
            [n] < [n + 1],
            copy.copy([n]),
            copy.deepcopy((n, [n])),
            dataclasses.asdict(o)["n"],
            max(n, 3),
            min([n, 3]),
            sum([n, n]),
            math.prod([n, 2]),
        )

    return outer, [call(count(3), v) for v in INTS]


@program(core=True)
def varying_integer_in_text():
    def outer(x, n):
        return (
            x,
            str(n),
            repr(n),
            f"{n}",
            f"{n:3}|{n:>{n}}|{n:x}|{n!r}",
            "%d %s %r %5d" % (n, n, n, n),
            "{} {:04d} {a}".format(n, n, a=n),
            "-" * n,
            "abc"[n % 3],
            "abcdefgh"[n:],
            "a,b".split(",", n),
            "x".join(map(str, range(n))),
            "x".ljust(n, "."),
            str([n, (n,), {n: n}]),
            repr(D(n)),
            str(NT(n, 1)),
            json.dumps({"n": n, "l": [n]}),
            bytes([n]),
            bytes(n),
            chr(65 + n),
            bin(n),
            hex(n),
            n.to_bytes(2, "big"),
            struct.pack("<i", n),
            b"%d" % n,
            str(E(n)),
            E(n).name,
            f"{E(n)!r}",
            format(n, "b"),
            "abc".zfill(n),
            str(slice(n)),
            str(range(n)),
            str(n).isdigit(),
            int(str(n)),
            ascii(n),
        )

    return outer, [call(count(3), v) for v in INTS]


@program
def varying_integer_and_types():
    def outer(x, n):
        return (
            x,
            type(n),
            isinstance(n, int),
            isinstance(n, (str, int)),
            type(n) is int,
            n.__class__,
            n.real,
            n.numerator,
            bool(n),
            n is None,
            n == n,
            n != 3,
            n == 3.0,
            not n,
            n or 5,
            n and 5,
            callable(n),
            hasattr(n, "real"),
            isinstance(n, typing.SupportsInt),
            int(n),
            float(n),
            complex(n),
            round(n, -1),
            abs(-n),
            n.bit_length(),
            operator.index(n),
            issubclass(type(n), int),
            n.__add__(1),
            int.__mul__(n, 2),
            type(n)(3),
            isinstance(n, bool),
            n.conjugate(),
            dir(n) == dir(5) if False else 0,
            id(n) == id(n),
            fractions.Fraction(n, 3),
            decimal.Decimal(n),
        )

    return outer, [call(count(3), v) for v in INTS]


@program
def varying_integer_controls_flow():
    def outer(x, n):
        out = []
        while n > 0:
            match n:
                case 2:
                    out.append("two")
                case 3 | 4:
                    out.append("mid")
                case int(k) if k > 4:
                    out.append(k)
                case _:
                    out.append("low")
            n -= 1
        for i in range(n, 3):
            out.append(i)
        r = [x * i for i in range(2)] if n else x
        return out, r, n

    return outer, [call(count(3), v) for v in INTS]


@program
def varying_integer_indexes_lists_and_tensors():
    def outer(x, l, n):
        l[n % 3] = n
        l.insert(n, "i")
        a = l[n:], l[-n:], l[:n], l[n % 2], l.pop(n % 2)
        return (
            x[n - 2],
            x[:n],
            x[-n:],
            x[n:],
            x[::n],
            x.reshape(-1)[n],
            x.roll(n),
            x.repeat(n),
            x.narrow(0, 0, n),
            x.split(n),
            torch.full((n,), 1.5),
            torch.arange(n),
            x.new_zeros(n, 2),
            torch.eye(n),
            F.pad(x, (n, 0)),
            x.expand(n, -1),
            x.topk(n).values,
            a,
            l,
        )

    return outer, [call(count(8), ["a", "b", "c"], v) for v in INTS]


@program
def varying_integer_kept_outside():
    state = {"n": 0, "hist": []}
    total = 0
    holder = types.SimpleNamespace(v=0, d={})

    def outer(x, n):
        nonlocal total
        total += n
        state["n"] = n * 2
        state["hist"].append(n)
        state[n] = "k"
        holder.v = n
        holder.d.setdefault(n, []).append(total)
        outer.last = n
        print("n is", n)
        state["n"] += 1
        return x * total, state["n"]

    return outer, [call(count(3), v) for v in INTS], (state, holder)


@program
def varying_integer_through_functions():
    @functools.lru_cache
    def cached(k):
        return k * 10

    class K:
        def __init__(self, n):
            self.n = n

        def __index__(self):
            return self.n

        def __eq__(self, o):
            return isinstance(o, K) and o.n == self.n

        def __hash__(self):
            return hash(self.n)

        def __lt__(self, o):
            return self.n < o.n

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            if i >= self.n:
                raise IndexError(i)
            return i

        def __bool__(self):
            return self.n > 3

        def __format__(self, s):
            return f"<{self.n:{s}}>"

        def __contains__(self, v):
            return v < self.n

    def f(a, b=1, *c, d=2, **e):
        return a, b, c, d, e

    def outer(x, n):
        k = K(n)
        return (
            x[k - 1 if False else n % 3],
            cached(n),
            f(n, *range(n), d=n, z=n),
            functools.partial(f, n)(b=n),
            list(map(lambda v: v + n, [1, n])),
            list(filter(lambda v: v > n, range(9))),
            sorted([5, n, 1], key=lambda v: -v),
            functools.reduce(lambda a, b: a * b, range(1, n)),
            [10][K(0)],
            list(k),
            len(k),
            bool(k),
            f"{k:>3}",
            n in k,
            k == K(n),
            K(2) < k,
            {k: 1}[K(n)],
            [*k],
            sum(k),
            max(k),
            (lambda q=n: q)(),
            [*itertools.repeat("r", n)],
            [*itertools.islice("abcdefgh", n)],
            [*itertools.accumulate([n, n])],
            [*itertools.combinations(range(n), 2)][-1],
            bisect.bisect([1, 3, 5], n),
            divmod(n, 2),
            divmod(17, n),
            pow(n, 3, 5),
            pow(2, n),
            operator.mul(n, n),
            math.gcd(n, 6),
            isinstance(n, int),
        )

    return outer, [call(count(3), v) for v in INTS]


@program
def varying_float_everywhere():
    table = {0.5: "half", 3.0: "three"}

    def outer(x, s):
        d = {s: 1}
        l = [s, -s]
        return (
            x * s,
            s,
            str(s),
            f"{s:.2f}|{s!r}|{s:8}",
            "%.1f" % s,
            table.get(s),
            d,
            sorted(l),
            max(l),
            min(s, 1.0),
            s > 1,
            s == 1.5,
            bool(s),
            int(s),
            round(s),
            round(s, 1),
            abs(s),
            -s,
            s // 1,
            s % 1,
            s**2,
            2**s,
            s + 1,
            1 / s,
            s.is_integer(),
            math.floor(s),
            math.ceil(s),
            math.copysign(1, s),
            math.isclose(s, 1.5),
            [s] * 2,
            (s,) == (s,),
            D(s),
            NT(s, s).a,
            torch.full((2,), s),
            torch.tensor(s),
            x + s if s > 0 else x - s,
            s or 1,
            s and 2,
            not s,
            type(s).__name__,
            isinstance(s, float),
            hash(s),
            s.hex(),
            json.dumps([s]),
            sum([s, s]),
            complex(s),
            x.clamp(max=s),
            torch.where(x > s, x, s),
            x.masked_fill(x > 1, s),
            x.eq(s),
            x.pow(s) if s > 0 else 0,
            F.dropout(x, 0.0),
            divmod(s, 0.4),
            float(str(s)),
            s is s,
            s != s,
            {s, s},
        )

    return outer, [call(count(3), v) for v in FLOATS]


@program
def varying_float_kept_outside():
    state = {"s": 0.0}
    hist = []

    def outer(x, s):
        state["s"] = state["s"] * 0.9 + s * 0.1
        hist.append(state["s"])
        outer.last = s
        print(f"s {s}")
        return x * state["s"], state["s"] / 3

    return outer, [call(count(3), v) for v in FLOATS], (state, hist)


@program
def varying_float_in_accumulations():
    def outer(x, a, b):
        acc = 0.0
        for i in range(4):
            acc = acc + a * i - b
        m = sum(v * a for v in (0.1, 0.2, 0.3))
        n = math.fsum([a, b, 0.1])
        p = math.prod([a, b])
        c = max(a, b, 0.7) - min(a, b)
        d = a if a > b else b
        e = (a + b) * (a - b)
        f = [a, b][a < b]
        g = a < b < 3
        return (
            x * acc,
            acc,
            m,
            n,
            p,
            c,
            d,
            e,
            f,
            g,
            a == b,
            (a, b) < (b, a),
            round(a + b, 2),
            a // b if b else None,
            a % b if b else None,
            a**2 + b**2,
            math.hypot(a, b),
            math.atan2(a, b),
            sorted([a, b, 0.3]),
            a - a,
            a * 0,
            -a + a,
            a * 1.0 == a,
        )

    return outer, [call(count(3), a, b) for a, b in zip(FLOATS, reversed(FLOATS))]


@program
def counters_as_module_attributes():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0
            self.rate = 1.0
            self.register_buffer("total", torch.zeros(1))
            self.seen = []

        def forward(self, x):
            self.step += 1
            self.rate *= 0.9
            self.total += self.step
            if self.step % 3 == 0:
                self.seen.append(self.step)
            return x * self.rate + self.step, self.total.clone(), f"step {self.step}"

    m = M()
    return m, [call(count(3)) for _ in range(12)], m


@program
def sizes_in_python_structures():
    seen = collections.OrderedDict()

    def outer(x):
        b, t = x.shape
        key = (b, t)
        seen[key] = seen.get(key, 0) + 1
        d = {"b": b, t: "t"}
        grid = [[i * j for j in range(t)] for i in range(b)]
        return (
            x.sum(),
            key,
            d,
            f"{b}x{t}",
            sum(map(sum, grid)),
            x.shape == (b, t),
            x.shape[0] in (2, 3),
            [*x.shape],
            max(x.shape),
            x.numel() // b,
            divmod(x.numel(), 3),
            b * t == x.numel(),
            {*x.shape} == {b, t},
            x.size()[-1],
            "ab" * b,
            len(x) == b,
            list(range(b, t)),
            x.shape[::-1],
            (b, t) < (t, b),
            str(x.shape),
            x.shape + (1,),
            b if b > t else t,
            hash(x.shape) == hash((b, t)),
            isinstance(b, int),
            torch.Size((b,)) == x.shape[:1],
            x.shape.numel(),
            x.stride(),
        )

    return outer, [call(count(a, b)) for a, b in ((2, 3), (3, 3), (4, 5), (2, 7), (6, 2), (3, 3))], seen


@program
def overflow_and_limits_of_varying_integers():
    def outer(x, n):
        return (
            x + (n % 7),
            n * n,
            n**3,
            n << 40,
            -n,
            n - 2**62,
            n // 10**9,
            n / 3,
            n * 1.5,
            hash(n),
            n == 2**62,
            min(n, 5),
            n > 2**40,
            f"{n:,}",
            n.bit_length(),
            n & 0xFF,
            str(n)[:3],
        )

    return outer, [call(count(3), v) for v in (5, 2**31, 2**40 + 3, 2**62, 2**62 + 1, 2**63, 2**64 + 1)]


@program
def booleans_beside_varying_integers():
    def outer(x, n, flag):
        return (
            x * n if flag else x - n,
            flag + n,
            n * flag,
            [0, 1, 2][flag],
            flag is True,
            n == flag,
            int(flag),
            flag and n,
            n if n > 2 else flag,
            flag & (n > 3),
            not flag,
            bool(n % 2) is flag,
            {True: "t", False: "f"}[flag],
            isinstance(flag, int),
            str(flag),
            sum([flag, n > 3]),
            (n > 3) is flag,
            type(n > 3).__name__,
            flag | n,
            ~n,
            n ^ flag,
        )

    return outer, [call(count(3), n, f) for n, f in zip(INTS, (True, False, True, True, False, False))]


@program
def negative_varying_integers():
    def outer(x, n):
        return (
            x.roll(n),
            x[n:],
            x[n],
            x.sum(n % 2 - 1),
            n // 2,
            n % 3,
            abs(n),
            -n,
            n**2,
            n * -1,
            max(n, -2),
            range(n, 0),
            [1, 2, 3, 4][n],
            "abcd"[n:],
            n >> 1,
            divmod(n, 4),
            math.copysign(1, n),
            n < 0,
            x.diagonal(n + 2) if x.dim() > 1 else n,
            torch.tril(x[None].expand(4, 4), n),
            str(n),
            x.transpose(-1, n) if x.dim() > 1 else 0,
            round(n, -1),
            bin(n),
            int(n / 2),
            math.floor(n / 2),
            n.bit_length(),
        )

    return outer, [call(count(4), v) for v in (-1, -2, -3, -4, -2, -1)]


@program
def varying_integer_as_a_keyword_of_native_code():
    def f(x, n):
        try:
            window = collections.deque(maxlen=n)
        except TypeError as error:
            return str(error)
        window.extend(x * i for i in range(5))
        return list(window), window.maxlen, list(enumerate([x], start=n))[0][0]

    return f, [call(count(3), n) for n in (2, 3, 4, 1)]


@program
def varying_numbers_that_are_themselves():
    class Key(typing.NamedTuple):
        size: int
        part: object

    table = {}

    def f(x, n, rate):
        key, half = Key(n, x), n / 2
        table[key] = rate
        found = [key in table, (n, x) in table, len(table)]
        for value in (n, rate, half):
            try:
                found.append(list(value))
            except TypeError as error:
                found.append(str(error))
        return x * rate, n is n, rate is rate, half is half, found

    return f, [call(count(3), n, rate) for n, rate in ((1000, 0.5), (2000, 1.5), (3000, 2.5), (4000, 3.5))], table


@program
def sequences_that_are_not_used_up():
    class Pages(collections.abc.Sequence):
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, place):
            return self.items[place]

    def f(x, n):
        pages, table = Pages([x * i for i in range(n)]), collections.ChainMap({n: 1})
        first, second = next(iter(pages)), list(zip([1, 2], pages))
        try:
            backwards = list(reversed(table))
        except TypeError as error:
            backwards = str(error)
        return first, second, any(page is pages[1] for page in pages), backwards

    return f, [call(count(3), n) for n in (3, 4, 5)]
