"""Containers, sorting, iterators, copies, weak references, numbers and what the standard library makes of them."""

from __future__ import annotations

import bisect
import collections
import copy
import decimal
import fractions
import functools
import heapq
import inspect
import itertools
import numbers
import operator
import statistics
import sys
import typing
import weakref

import torch
from torch import nn

from tests.conformance.catalogue import after, call, count, program


def err(f):
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e)


@program
def sorting_stability_and_keys():
    def outer(x, l, r):
        log = []

        def key(p):
            log.append(p[1])
            return p[0]

        s = sorted(l, key=key, reverse=r)
        l.sort(key=lambda p: (-p[0], p[1]))
        m = sorted(l, key=operator.itemgetter(1))
        n = sorted(l, key=functools.cmp_to_key(lambda a, b: (a[1] > b[1]) - (a[1] < b[1])))
        ts = sorted([x[:2], x, x[:1]], key=len)
        t2 = sorted("bAc", key=str.lower)
        t3 = sorted({3: 1, 1: 2}.items())
        t4 = sorted([(1, "b"), (1, "a")])
        return (
            s,
            log,
            l,
            m,
            n,
            [t.shape[0] for t in ts],
            t2,
            t3,
            t4,
            min(l, key=lambda p: p[1]),
            max([], default=5),
            max("ab", "cd", key=lambda v: v[1]),
            sorted([3, 1, 2], key=lambda v: -v),
            sorted([True, 0, 2.5, -1]),
        )

    return outer, [
        call(count(3), [(1, "a"), (0, "b"), (1, "c"), (0, "d")], False),
        call(count(3), [(1, "a"), (0, "b"), (1, "c"), (0, "d")], True),
    ]


@program
def sort_raises_half_way():
    def outer(x, l):
        def key(v):
            if v == 3:
                raise ValueError("three")
            return v

        a = err(lambda: l.sort(key=key))
        b = list(l)
        c = err(lambda: l.sort(key=lambda v: v if v < 2 else str(v)))
        return x, a, b, c, sorted(map(str, l))

    return outer, [call(count(3), [2, 3, 1]), call(count(3), [1, 0])]


@program(core=True)
def dict_order_and_views():
    def outer(x, d):
        k, v, i = d.keys(), d.values(), d.items()
        d["new"] = x.shape[0]
        a = (
            list(k),
            list(v)[-1],
            ("new", 3) in i,
            len(k),
            "new" in k,
            list(reversed(d)),
            k & {"new", "zz"},
            k | {"q"},
            k - {"a"},
            k ^ {"a"},
            k == set(d),
            i == dict(d).items(),
            k.isdisjoint({"zz"}),
            list(reversed(d.items())),
        )
        del d["new"]
        d["a"] = d.pop("a")
        d |= {"b": 9}
        return (
            a,
            list(k),
            {**d, "z": 1},
            d | {"y": 2},
            dict(d, kw=1),
            dict(zip("ab", range(2))),
            d == {"b": 9, "a": d["a"]},
            next(iter(d)),
            [*d],
            dict.fromkeys("ab", []),
            d.setdefault("s", []),
            d.get("none", 4),
            d.popitem(),
            repr(k),
            k.mapping == d,
        )

    return outer, [call(count(3), {"a": 1, "b": 2}), call(count(3), {"b": 1, "a": 2}), call(count(3), {"a": 5})]


@program
def mutation_while_iterating():
    def outer(x, d, s, l):
        out = []

        def f1():
            for k in d:
                d[k + "x"] = 1

        def f2():
            for k in d.values():
                d.pop("a")

        def f3():
            for e in s:
                s.add(e + 10)

        def f4():
            for k in d:
                d[k] = 5
            return "fine"

        for f in (f1, f2, f3, f4):
            out.append(err(f))
        seen = []
        for v in l:
            seen.append(v)
            if v < 3:
                l.append(v + 2)
            if v == 2:
                l.remove(1)
        q = collections.deque([1, 2])

        def f5():
            for v in q:
                q.append(v)

        out.append(err(f5))
        return x, out, seen, sorted(d)

    return outer, [call(count(3), {"a": 1}, {1, 2}, [1, 2]), call(count(3), {"a": 1, "b": 2}, {1}, [2, 1, 5])]


@program
def set_operations_in_full():
    def outer(x, a, b):
        c = (
            a | b,
            a & b,
            a - b,
            a ^ b,
            a <= b,
            a < a | b,
            a.isdisjoint({99}),
            a == set(a),
            a.union([7], (8,)),
            a.difference([1]),
            frozenset(a) == a,
            len(a),
            1 in a,
        )
        t = set(a)
        t.update([50], {51})
        t.discard(1)
        t.intersection_update({50, 51, 2})
        t.symmetric_difference_update({2, 3})
        t.difference_update({51})
        u = a.copy()
        u.add(100)
        e = err(lambda: u.remove(-1))
        u.clear()
        p = {5}.pop()
        q = err(lambda: set().pop())
        a.add(77)
        return (
            c,
            sorted(t),
            e,
            u,
            p,
            q,
            sorted(a),
            {frozenset({1}): 2}[frozenset({1})],
            {1, 1.0, True},
            set("aab") == {"a", "b"},
        )

    return outer, [call(count(3), {1, 2}, {2, 3}), call(count(3), {1, 2, 3}, {3}), call(count(3), set(), {1})]


@program
def list_operations_in_full():
    def outer(x, l):
        l2 = l[:]
        l2[1:1] = [9, 8]
        l2[::2] = [0] * len(l2[::2])
        l2.insert(-1, "i")
        l2.insert(100, "e")
        del l2[::3]
        r = l2.copy()
        r.reverse()
        r *= 2
        r[-1:] = []
        return (
            l2,
            r,
            l.index(2),
            l.count(2),
            l + [1],
            [0] * 3,
            l * 0,
            err(lambda: l.index(99)),
            err(lambda: l.index(2, 3)),
            l[-2:],
            l[5:],
            l[::-1],
            [*l, *l],
            l == list(l),
            l < [5],
            l2.pop(0),
            err(lambda: [].pop()),
            l.__contains__(2),
            [[0] * 2] * 2,
            list("ab"),
            l.__len__(),
            any(l),
            all(l),
            [a for a in l if a][0],
            sum([[1], [2]], []),
            2 in l,
            l.extend(range(2)),
            l,
        )

    return outer, [call(count(3), [1, 2, 3]), call(count(3), [2, 5]), call(count(3), [0, 2, 2, 7])]


@program(core=True)
def deque_counter_chainmap_in_full():
    def outer(x, w):
        d = collections.deque([1, 2, 3], maxlen=3)
        d.append(4)
        d.appendleft(0)
        d.rotate(1)
        d.extend([5])
        d.extendleft([6, 7])
        p = d.pop(), d.popleft()
        d.insert(1, "i")
        c = collections.Counter(w)
        c.update("ab")
        c.subtract("a")
        c["zz"] += 2
        m = c.most_common(2)
        t = c + collections.Counter("a")
        u = c & collections.Counter("aab")
        e = sorted(c.elements())
        tot = c.total()
        neg = -collections.Counter(a=-1)
        mi = c - collections.Counter("a")
        zero = c["nothing"]
        cm = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
        n = cm.new_child({"b": 9})
        n["c"] = x
        od = collections.OrderedDict(a=1, b=2)
        od.move_to_end("a")
        od.move_to_end("b", last=False)
        q = od.popitem(last=False)
        od["z"] = 1
        eq = od == {"a": 1, "z": 1}, od == collections.OrderedDict(z=1, a=1)
        dd = collections.defaultdict(lambda: [0])
        dd["k"].append(1)
        dd["k"].append(2)
        dn = dd.get("no"), "no" in dd, len(dd)
        dd2 = collections.defaultdict(int, a=1)
        dd2["a"] += 1
        dd2["b"] += 1
        return (
            d,
            d.maxlen,
            p,
            c,
            m,
            t,
            u,
            e,
            tot,
            neg,
            mi,
            zero,
            cm["a"],
            cm["b"],
            n["b"],
            n["c"],
            len(n),
            sorted(n),
            n.maps[0],
            list(od.items()),
            q,
            eq,
            dd,
            dn,
            dd2,
            dd.default_factory(),
            d.index(0) if 0 in d else None,
            list(reversed(d)),
            d.count(1),
            d[0],
            d[-1],
            list(n.parents),
            repr(c),
            repr(od),
            c == collections.Counter(c),
            sorted(c.items()),
        )

    return outer, [call(count(3), "abca"), call(count(3), "xyz"), call(count(3), "")]


@program
def containers_from_outside_mutated():
    def outer(x, d, c, od, dd):
        d.append(x)
        d.rotate(1)
        d.popleft() if len(d) > 3 else None
        c["k"] += 1
        c.update("kk")
        od.move_to_end(next(iter(od)))
        od["n"] = x.shape[0]
        dd["m"].append(x)
        dd["n"]
        return len(d), c.most_common(1), list(od), sorted(dd)

    d, c, od, dd = (
        collections.deque([1, 2], 4),
        collections.Counter("a"),
        collections.OrderedDict(a=1, b=2),
        collections.defaultdict(list),
    )
    return outer, [call(count(3), d, c, od, dd) for _ in range(4)], (d, c, od, dd)


@program
def heapq_bisect_and_statistics():
    def outer(x, l):
        h = list(l)
        heapq.heapify(h)
        heapq.heappush(h, 0)
        a = (
            heapq.heappop(h),
            heapq.nsmallest(2, h),
            heapq.nlargest(2, h, key=lambda v: -v),
            heapq.heappushpop(h, 5),
            heapq.heapreplace(h, 9),
            list(heapq.merge([1, 4], [2, 3])),
        )
        s = sorted(l)
        b = bisect.bisect(s, 2), bisect.bisect_left(s, 2)
        bisect.insort(s, 2)
        return (
            x,
            a,
            b,
            s,
            h,
            statistics.mean(l),
            statistics.median(l),
            fractions.Fraction(1, 3) + 1,
            str(decimal.Decimal("1.10") + 2),
        )

    return outer, [call(count(3), [3, 1, 2]), call(count(3), [5, 5, 1, 7])]


@program
def heap_of_the_user_is_changed():
    def outer(x, h, v):
        heapq.heappush(h, v)
        small = heapq.heappop(h)
        bisect.insort(h, v + 1)
        return x * small, h

    h = [3, 5, 4]
    return outer, [call(count(3), h, 1), call(count(3), h, 6), call(count(3), h, 2)], h


@program
def itertools_in_full():
    def outer(x, l):
        it = iter(l)
        a, b = itertools.tee(l)
        return (
            x,
            list(itertools.accumulate(l, operator.mul, initial=1)),
            list(itertools.batched(l, 2)) if sys.version_info >= (3, 12) else 0,
            list(itertools.pairwise(l)),
            list(itertools.zip_longest(l, "a", fillvalue=0)),
            [(k, list(g)) for k, g in itertools.groupby(l, key=lambda v: v % 2)],
            list(itertools.starmap(pow, [(2, 3), (l[0], 2)])),
            list(itertools.compress(l, [1, 0, 1])),
            list(itertools.dropwhile(lambda v: v < 2, l)),
            list(itertools.filterfalse(None, [0, 1])),
            list(itertools.islice(itertools.count(l[0], 2), 3)),
            list(itertools.islice(itertools.cycle(l), 5)),
            list(itertools.repeat(x.shape[0], 2)),
            list(itertools.product(l, repeat=2))[:3],
            list(itertools.permutations(l, 2))[:2],
            list(itertools.combinations_with_replacement(l, 2))[-1],
            list(a) == list(b),
            next(it),
            next(it, None),
            list(it),
            [next(c) for c in [itertools.count()] * 3],
            sum(1 for _ in itertools.chain(l, l)),
            list(itertools.accumulate([x, x, x]))[-1],
        )

    return outer, [call(count(3), [1, 2, 3]), call(count(3), [4, 4, 6, 1])]


@program
def functools_in_full():
    def outer(x, n):
        calls = []

        @functools.lru_cache(maxsize=None)
        def fib(k):
            calls.append(k)
            return k if k < 2 else fib(k - 1) + fib(k - 2)

        @functools.wraps(fib)
        def w(*a):
            return a

        p = functools.partial(lambda a, b=1, *c, **d: (a, b, c, d), 1, b=2)
        q = functools.partial(p, z=3)
        return (
            x * fib(n),
            calls,
            w.__name__,
            w.__wrapped__ is fib,
            p(b=5),
            q(y=1),
            q.keywords,
            p.args,
            functools.reduce(lambda a, b: a * 2 + b, range(n), 1),
            functools.reduce(operator.add, [x, x]),
            fib.cache_info().misses,
            functools.partial(int, base=2)("101"),
            sorted([3, 1], key=functools.cmp_to_key(lambda a, b: a - b)),
        )

    return outer, [call(count(3), 3), call(count(3), 4), call(count(3), 5)]


@program
def decorators_made_inside():
    def outer(x, n):
        log = []

        def deco(f):
            @functools.wraps(f)
            def wrapper(*a, **k):
                log.append((f.__name__, len(a), sorted(k)))
                return f(*a, **k)

            wrapper.calls = 0
            return wrapper

        @deco
        def g(y, z=1):
            "g doc"
            g.calls += 1
            return y * z + n

        return g(x), g(x, z=2), log, g.__name__, g.__doc__, g.calls, g.__wrapped__(x)

    return outer, [call(count(3), 3), call(count(3), 4)]


@program
def operator_module():
    def outer(x, a, b):
        ops = [
            getattr(operator, n)(a, b)
            for n in (
                "add",
                "sub",
                "mul",
                "mod",
                "floordiv",
                "truediv",
                "and_",
                "or_",
                "xor",
                "lshift",
                "lt",
                "le",
                "eq",
                "ne",
                "ge",
                "gt",
                "is_",
                "is_not",
            )
        ]
        return (
            x,
            ops,
            operator.index(a),
            operator.inv(a),
            operator.pow(a, 2),
            operator.concat([1], [2]),
            operator.countOf([1, 1], 1),
            operator.indexOf([5, 6], 6),
            operator.length_hint([1]),
            operator.attrgetter("shape", "dtype")(x),
            operator.methodcaller("sum", 0)(x),
            operator.itemgetter(0, -1)([a, b]),
            operator.not_(a),
            operator.truth(b),
            operator.contains([a], a),
            operator.call(len, "ab"),
            operator.matmul(x, x),
            operator.neg(x),
            operator.iadd([1], [2]),
        )

    return outer, [call(count(3), 7, 2), call(count(3), 8, 3), call(count(3), 9, 9)]


@program
def copies_of_tensors_and_objects():
    class K:
        def __init__(self):
            self.l = [1]
            self.t = None

        def __copy__(self):
            k = K()
            k.l = "copied"
            return k

        def __deepcopy__(self, memo):
            k = K()
            k.l = ("deep", len(memo) > 0)
            return k

    class Plain:
        pass

    def outer(x, k):
        p = Plain()
        p.l = [x]
        p.me = p
        q, r = copy.copy(p), copy.deepcopy(p)
        t = copy.copy(x)
        u = copy.deepcopy(x)
        u += 1
        return (
            q.l is p.l,
            q.me is p,
            r.me is r,
            r.l[0] is x,
            t is x,
            u,
            copy.copy(k).l,
            copy.deepcopy(k).l,
            copy.deepcopy([x, x])[0] is copy.deepcopy([x, x])[1],
            copy.deepcopy({"a": [1, (2, [3])]}),
            copy.copy((1, 2)),
            copy.copy({1}),
            copy.copy([p])[0] is p,
        )

    return outer, [call(count(3), K()), call(count(4), K())]


@program
def deepcopy_keeps_structure():
    def outer(x, d):
        c = copy.deepcopy(d)
        c["a"].append(1)
        c["b"]["t"].add_(1)
        return c, c["a"] is c["same"], d["a"] is d["same"], x + c["b"]["t"]

    def mk():
        l = [1]
        return {"a": l, "same": l, "b": {"t": count(3)}}

    return outer, [call(count(3), mk()), call(count(3), mk())]


@program
def deepcopy_of_modules():
    lin = nn.Linear(3, 3)
    with torch.no_grad():
        lin.weight.fill_(0.5)
        lin.bias.fill_(0.25)

    def outer(x, m):
        c = copy.deepcopy(m)
        with torch.no_grad():
            c.weight.mul_(2)
        return m(x), c(x), c.weight is m.weight, c.training

    return outer, [call(count(3), lin), call(count(3), lin)], lin


@program
def weak_references():
    class K:
        pass

    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = 2.0

    def outer(x, k, cache):
        r = weakref.ref(k)
        o = r()
        cache[k] = x.shape[0]
        return x * len(cache), o is k, cache[k], k in cache, weakref.proxy(k).v, r() is not None

    ks = [K(), K()]
    for i, k in enumerate(ks):
        k.v = i
    return outer, [
        call(count(3), ks[0], weakref.WeakKeyDictionary()),
        call(count(3), ks[1], weakref.WeakKeyDictionary({ks[0]: 1})),
    ]


@program
def weak_reference_held_by_an_object():
    class Node:
        def __init__(self, v):
            self.v = v
            self.parent = None
            self.kids = []

        def add(self, k):
            k.parent = weakref.ref(self)
            self.kids.append(k)

    root = Node(1.0)
    root.add(Node(2.0))

    def outer(x, n):
        k = n.kids[0]
        p = k.parent()
        n.add(Node(3.0))
        return x * p.v + n.kids[-1].parent().v, p is n, len(n.kids)

    return outer, [call(count(3), root), after(lambda: setattr(root, "v", 5.0), count(3), root)], root


@program
def typing_at_run_time_in_full():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T) -> None:
            self.v = v

    class TD(typing.TypedDict, total=False):
        a: int
        b: str

    class NT(typing.NamedTuple):
        a: int
        b: float = 2.0

        def s(self):
            return self.a + self.b

    def outer(x, v: typing.Optional[int] = None) -> list[int]:
        b: Box[int] = Box[int](3)
        t: TD = TD(a=1)
        c = typing.cast(int, v)
        n = NT(1)
        return (
            x * b.v,
            t,
            c,
            n.s(),
            n._asdict(),
            typing.get_origin(list[int]),
            typing.get_args(dict[str, int]),
            isinstance(v, int | None),
            isinstance(n, tuple),
            typing.TYPE_CHECKING,
            list[int] == list[int],
            typing.Optional[int] == typing.Union[int, None],
            NT.__annotations__ and NT._fields,
            typing.get_type_hints(NT) != {},
            Box[int].__origin__ is Box,
            isinstance([], typing.Sequence),
            typing.Literal["a"] == typing.Literal["a"],
        )

    return outer, [call(count(3)), call(count(3), 5), call(count(3), "s")]


@program
def inspect_at_run_time():
    def f(a, b=2, *c, d, e=5, **g) -> int:
        "doc"
        return a

    class K:
        def m(self, q):
            return q

    def outer(x):
        s = inspect.signature(f)
        return (
            x,
            list(s.parameters),
            s.parameters["b"].default,
            s.parameters["d"].kind.name,
            str(s),
            inspect.isfunction(f),
            inspect.ismethod(K().m),
            inspect.isclass(K),
            inspect.getdoc(f),
            s.bind(1, d=2).arguments,
            inspect.isgeneratorfunction(f),
            callable(K().m),
            f.__code__.co_varnames,
            inspect.getfullargspec(f).kwonlyargs,
            inspect.ismodule(torch),
            inspect.isbuiltin(len),
        )

    return outer, [call(count(3)), call(count(3))]


@program
def number_tower_and_types():
    def outer(x, v):
        return (
            x,
            type(v).__name__,
            isinstance(v, numbers.Number),
            isinstance(v, (int, float)),
            bool(v),
            v == 1,
            v in (0, 1, 2),
            int(v),
            float(v),
            complex(v),
            str(v),
            v + True,
            v * 2.5,
            v // 2,
            -v,
            v**2,
            abs(v),
            round(v),
            hash(v) == hash(1),
            v is True,
            max(v, 0),
            min(v, 0.5),
            [10, 20, 30][int(v)],
            divmod(v, 2),
            v.real,
            v.imag,
            v.conjugate(),
            (v).__class__.__name__,
            f"{v}",
            repr(v),
            v.__add__(1),
            range(int(v) + 1)[-1],
            sum([v, v]),
            v / 2,
            v % 2,
            v > 0,
            not v,
        )

    return outer, [call(count(3), v) for v in (1, True, 1.0, 2, False, 0, 2.0)]


@program
def bit_tricks():
    def outer(x, n):
        pop = bin(n).count("1")
        low = n & -n
        rev = int(f"{n:08b}"[::-1], 2)
        m = n
        steps = 0
        while m:
            m &= m - 1
            steps += 1
        gray = n ^ (n >> 1)
        return (
            x * pop,
            low,
            rev,
            steps,
            gray,
            n.bit_count(),
            n.bit_length(),
            1 << n.bit_length(),
            ~n & 0xFF,
            (n | 1) ^ 3,
            n >> 1 << 1 == n,
            [i for i in range(8) if n >> i & 1],
            int.from_bytes(n.to_bytes(2, "big"), "little"),
            -n >> 1,
            -n // 2,
            -n % 8,
            (-n) & 7,
        )

    return outer, [call(count(3), v) for v in (5, 12, 255, 6, 129)]


@program
def string_to_number_conversions():
    def outer(x, s):
        return (
            x + int(s),
            int(s, 16),
            float(s + ".5"),
            int("0b101", 0),
            int(" 7 "),
            float("1e3"),
            float("inf"),
            float("-nan") != float("nan"),
            int("1_000"),
            bool(s),
            complex("1+2j"),
            int(2.9),
            int(-2.9),
            err(lambda: int(s + "z")),
            err(lambda: int("")),
            str(int(s)) == s,
            s.zfill(5),
            ord(s[0]),
            chr(65 + int(s)),
            round(float(s) / 3, 3),
            float(s).is_integer(),
            int(True),
        )

    return outer, [call(count(3), "3"), call(count(3), "12"), call(count(3), "7")]
