"""Lists, closures, functions and classes that change between two calls, read in many ways."""

from __future__ import annotations

import collections
import functools
import json
import types

import torch

from tests.conformance.catalogue import after, call, count, normal, program


class Blk:
    def __init__(self, n):
        self.n = n
        self.calls = []
        self.d = {}
        self.s = set()
        self.q = collections.deque()

    def hit(self, k):
        self.calls.append(k)
        self.d[k] = self.n
        self.s.add(k)
        self.q.append(k)


def over(bs):
    def grow(i, k):
        return lambda: bs[i].hit(k)

    return [
        call(count(2)),
        after(grow(0, 5), count(2)),
        after(grow(1, 7), count(2)),
        after(grow(0, 1), count(2)),
        after(lambda: (bs[0].hit(2), bs[1].hit(3)), count(2)),
    ]


def made(*g):
    bs = [Blk(1), Blk(2)]
    for k in (3, 4):
        bs[0].hit(k)
        bs[1].hit(k + 1)
    return bs


@program(core=True)
def lists_summed():
    bs = made()
    return (lambda x: (x, sum((b.calls for b in bs), []))), over(bs), bs


@program
def lists_max():
    bs = made()
    return (lambda x: (x, max(b.calls for b in bs), min((b.calls for b in bs), key=lambda l: l[::-1]))), over(bs), bs


@program
def lists_sorted():
    bs = made()
    return (
        (
            lambda x: (
                x,
                sorted(b.calls for b in bs),
                sorted(bs, key=lambda b: b.calls)[0].n,
                sorted((b.calls, b.n) for b in bs)[0],
            )
        ),
        over(bs),
        bs,
    )


@program
def lists_as_text():
    bs = made()
    return (
        (
            lambda x: (
                x,
                str([b.calls for b in bs]),
                f"{(bs[0].calls, bs[1].d)}",
                "%s" % (bs[0].calls,),
                "{} {}".format(bs[0].d, bs[1].s),
                json.dumps([b.calls for b in bs]),
                repr({"a": bs[0].q}),
            )
        ),
        over(bs),
        bs,
    )


@program
def lists_in_lists():
    bs = made()
    return (
        (
            lambda x: (
                x,
                [b.calls for b in bs] == [[3, 4], [4, 5]],
                [3, 4] in [b.calls for b in bs],
                [b.calls for b in bs].count([3, 4]),
                [b.calls for b in bs] < [[3, 4, 1]],
            )
        ),
        over(bs),
        bs,
    )


@program
def set_operations_on_attributes():
    bs = made()

    def f(x):
        a, b = bs[0].s, bs[1].s
        return (
            x,
            a | b,
            a & b,
            a - b,
            a ^ b,
            a <= b,
            a.union(bs[1].calls),
            a.issuperset([4]),
            frozenset(a),
            len(a),
            {3} <= a,
            a == b,
            a.isdisjoint(bs[1].q),
            a.intersection(bs[0].d),
            sorted(a),
            bs[0].d.keys() & bs[1].d.keys(),
            bs[0].d.keys() - {4},
            bs[0].d.items() <= bs[1].d.items(),
            4 in bs[0].d.values(),
            bs[0].d == bs[1].d,
            list(reversed(bs[0].d)),
            bs[0].d | bs[1].d,
        )

    return f, over(bs), bs


@program
def writes_through_aliases_before_and_after_reading():
    class Box:
        pass

    b = Box()
    b.l = [1]
    b.d = {"l": b.l}
    c = Box()
    c.l = b.l

    def f(x, other):
        b.l.append(len(c.l))
        n = len(b.d["l"])
        c.l = c.l + [9]
        b.d["l"][0] = "first"
        other.l.append("o")
        return x * n, b.l is b.d["l"], c.l is b.l, b.l, c.l, other.l is b.l

    o = Box()
    o.l = []
    return (
        f,
        [
            call(count(2), o),
            after(lambda: setattr(o, "l", b.l), count(2), o),
            call(count(2), b),
            after(lambda: b.d.update(l=[0]), count(2), c),
        ],
        (b, c, o),
    )


@program
def two_arguments_that_are_one_or_share_a_list():
    class P:
        def __init__(self):
            self.v = 0
            self.hist = []

    def f(a, b, x):
        a.v += 1
        b.v += 10
        a.hist.append(b.v)
        b.hist.append(a.v)
        t = x[0] if isinstance(x, list) else x
        return t * a.v, a.v, b.v, a is b, a.hist is b.hist

    p, q = P(), P()
    return (
        f,
        [
            call(p, q, normal(2)),
            call(p, p, normal(2)),
            call(q, p, [normal(2)]),
            after(lambda: setattr(q, "hist", p.hist), p, q, normal(2)),
        ],
        (p, q),
    )


@program
def exceptions_leave_partial_effects():
    class Acc:
        def __init__(self):
            self.items = []
            self.total = 0
            self.open = 0

        def __enter__(self):
            self.open += 1
            return self

        def __exit__(self, *a):
            self.open -= 1

        def add(self, v):
            self.items.append(v)
            if v < 0:
                raise ValueError(f"neg {v} at {len(self.items)}")
            self.total += v

    acc = Acc()

    def f(x, vals):
        with acc:
            for v in vals:
                acc.add(v)
                x = x * v
        return x

    def g(x, vals):
        try:
            return f(x, vals), acc.total
        except ValueError as e:
            return e.args, acc.total, e.__traceback__.tb_lineno > 0

    return g, [call(count(2), [1, 2]), call(count(2), [3, -1, 4]), call(count(2), [5])], acc


@program
def numbers_as_dict_keys_that_vary():
    def f(x, n, table):
        table[n] = table.get(n, 0) + 1
        d = {n: "a", n + 1: "b", float(n): "c", True: "t"}
        s = {n, n + 1, n * 2, 3}
        l = [0] * n
        l[n - 1] = n
        l.insert(n, -1)
        t = (n, [n], {n: n})
        return (
            x[:n].sum() * n,
            d,
            sorted(s),
            l,
            t,
            table,
            f"{n}",
            n in range(3),
            range(n)[-1],
            "x" * n,
            divmod(7, n),
            list(range(0, 6, n)),
            [n][0] is n,
            str(t),
            max(3, n),
            n if n > 2 else None,
            {**table},
            sorted([n, 3, 1.5]),
            (n == 3) + 1,
            n & 1,
            n**2,
            n / 2,
            -n,
            hash(n),
            bytes([n]),
            chr(n + 65),
        )

    tb = {}
    return f, [call(count(6), n, tb) for n in (1, 2, 3, 4, 5, 2)], tb


@program
def lists_changed_while_iterated():
    def f(x, l):
        seen = []
        for i, v in enumerate(l):
            seen.append(v)
            if v == 1 and len(l) < 6:
                l.append(i + 10)
            if v == 2:
                l.remove(v)
        it = iter(l)
        next(it, None)
        l.insert(0, "n")
        rest = list(it)
        d = dict.fromkeys(l[:2])
        try:
            for k in d:
                d[k, 1] = 0
        except RuntimeError as e:
            m = str(e)
        return x * len(seen), seen, rest, m, l

    return f, [call(count(2), [1, 2, 3]), call(count(2), [2, 1]), call(count(2), [3, 3, 1])]


@program
def functions_replaced_and_patched():
    def h(x, k=2):
        return x * k

    ns = types.SimpleNamespace(fn=h, part=functools.partial(h, k=3), meth="abc".upper, lam=lambda v: v + 1)

    def f(x):
        return ns.fn(x), ns.part(x), ns.meth(), ns.lam(x), h(x)

    return f, [
        call(count(2)),
        after(lambda: setattr(h, "__defaults__", (5,)), count(2)),
        after(lambda: setattr(ns, "part", functools.partial(h, k=7)), count(2)),
        after(lambda: setattr(ns, "meth", "xyz".upper), count(2)),
        after(lambda: setattr(h, "__code__", (lambda x, k=0: x - k).__code__), count(2)),
        after(lambda: setattr(ns, "lam", lambda v: v + 2), count(2)),
        after(lambda: setattr(ns, "lam", torch.neg), count(2)),
    ]


@program
def classes_patched_between_calls():
    class A:
        k = 1

        def m(self, x):
            return x * self.k

        @property
        def p(self):
            return self.k

        @staticmethod
        def s(x):
            return x

        def __add__(self, o):
            return o + self.k

    class B(A):
        pass

    b = B()

    def f(x):
        return b.m(x), b.p, B.s(x), b + x, isinstance(b, A), getattr(b, "z", "none"), bool(b), b == b

    return f, [
        call(count(2)),
        after(lambda: setattr(A, "m", lambda self, x: x - 1), count(2)),
        after(lambda: setattr(B, "k", 5), count(2)),
        after(lambda: setattr(B, "p", "plain"), count(2)),
        after(lambda: setattr(A, "s", staticmethod(lambda x: x * 9)), count(2)),
        after(lambda: setattr(B, "__add__", lambda s, o: "added"), count(2)),
        after(lambda: setattr(A, "z", 3), count(2)),
        after(lambda: setattr(B, "__bool__", lambda s: False), count(2)),
        after(lambda: setattr(b, "m", lambda x: "inst"), count(2)),
        after(lambda: setattr(b, "__class__", A), count(2)),
        after(lambda: setattr(B, "__eq__", lambda s, o: "eq"), count(2)),
    ]


@program
def closures_rebuilt_and_cells_changed():
    def make(k):
        def g(x):
            return x * k

        def setk(v):
            nonlocal k
            k = v

        return g, setk

    (g, setk), box = make(2), {}
    box["g"] = g

    def f(x):
        return box["g"](x), g(x)

    return f, [
        call(count(2)),
        after(lambda: setk(3), count(2)),
        after(lambda: box.update(g=make(9)[0]), count(2)),
        after(lambda: g.__closure__[0].__setattr__("cell_contents", 4.5), count(2)),
        after(lambda: setk(torch.ones(2)), count(2)),
    ]
