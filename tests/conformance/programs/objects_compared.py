"""Objects of the user's that native code sorts, searches and hashes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
import operator
import types
import typing

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.conformance.catalogue import after, call, count, normal, program


@functools.total_ordering
class Pri:
    def __init__(self, p, t):
        self.p, self.t = p, t

    def __lt__(self, o):
        return self.p < o.p

    def __eq__(self, o):
        return self.p == o.p

    __hash__ = None


class Pri2:
    def __init__(self, p, t):
        self.p, self.t = p, t

    def __lt__(self, o):
        return self.p < o.p


class Add:
    def __init__(self, p):
        self.p = p

    def __add__(self, o):
        return Add(self.p + (o.p if isinstance(o, Add) else o))

    __radd__ = __add__


@dataclasses.dataclass(frozen=True)
class Spec:
    kind: str
    size: int = 3


@dataclasses.dataclass
class Eq:
    a: int
    b: str = ""


@dataclasses.dataclass(order=True)
class Ord:
    a: int
    t: typing.Any = dataclasses.field(compare=False, default=None)


def pris(*ps):
    return [Pri2(p, torch.ones(2) * p) for p in ps]


@program(core=True)
def sorted_of_user_objects():
    def f(x, l):
        return [x * o.t for o in sorted(l)], [x * o.t for o in sorted(l, reverse=True)]

    return f, [call(count(2), pris(1, 2, 3)), call(count(2), pris(3, 1, 2)), call(count(2), pris(2, 2, 1))]


@program
def list_sort_of_user_objects():
    def f(x, l):
        m = list(l)
        m.sort()
        l.sort()
        return [x * o.t for o in m]

    return f, [call(count(2), pris(1, 2, 3)), call(count(2), pris(3, 1, 2))]


@program
def max_min_of_user_objects():
    def f(x, l):
        return x * max(l).t, x * min(l).t, x * max(l[0], l[1]).t

    def mk(*ps):
        return [Pri(p, torch.ones(2) * p) for p in ps]

    return f, [call(count(2), mk(1, 2, 3)), call(count(2), mk(3, 1, 2)), call(count(2), pris(9, 1, 2))]


@program
def sum_of_user_objects():
    def f(x, l):
        return x * sum(l, Add(0)).p, x * sum(l).p

    return f, [call(count(2), [Add(1), Add(2)]), call(count(2), [Add(1), Add(5)])]


@program
def list_index_count_remove_of_user_objects():
    def f(x, l, o):
        i, c = l.index(o) if o in l else -1, l.count(o)
        l2 = list(l)
        if i >= 0:
            l2.remove(o)
        return x * (i + 2) + c, len(l2), l == l2, [Eq(1)] == [o]

    return f, [
        call(count(2), [Eq(1), Eq(2), Eq(1)], Eq(1)),
        call(count(2), [Eq(1), Eq(2), Eq(1)], Eq(2)),
        call(count(2), [Eq(3), Eq(2), Eq(1)], Eq(3)),
        call(count(2), [Eq(3), Eq(2), Eq(1)], Eq(7)),
    ]


@program
def set_call_of_frozen_dataclasses():
    def f(x, l):
        return x * len(set(l)), len(frozenset(l)), len(dict.fromkeys(l)), len({s: 1 for s in l}), len({s for s in l})

    return f, [
        call(count(2), [Spec("a"), Spec("b")]),
        call(count(2), [Spec("a"), Spec("a")]),
        call(count(2), [Spec("b"), Spec("a")]),
    ]


@program
def counter_and_group_of_frozen_dataclasses():
    def f(x, l):
        c = collections.Counter(l)
        g = [(k.kind, len(list(v))) for k, v in itertools.groupby(l)]
        d = collections.defaultdict(list)
        for s in l:
            d[s].append(x * s.size)
        return x * max(c.values()), g, [v for v in d.values()]

    return f, [
        call(count(2), [Spec("a"), Spec("b")]),
        call(count(2), [Spec("a"), Spec("a")]),
        call(count(2), [Spec("b", 2), Spec("b", 3), Spec("b", 3)]),
    ]


@program
def sets_of_frozen_dataclasses_combined():
    def f(x, l, m):
        a, b = set(l), set(m)
        return x * len(a | b), len(a & b), len(a - b), len(a ^ b), a == b, a <= b, a.isdisjoint(b), len(a.union(m))

    return f, [
        call(count(2), [Spec("a"), Spec("b")], [Spec("a")]),
        call(count(2), [Spec("a"), Spec("b")], [Spec("c")]),
        call(count(2), [Spec("a")], [Spec("a"), Spec("a")]),
    ]


@program
def dict_merge_of_frozen_dataclasses():
    def f(x, d, e):
        m = {**d, **e}
        n = d | e
        d2 = dict(d)
        d2.update(e)
        return x * sum(m.values()), len(n), len(d2), d == e, list(m.values())

    return f, [
        call(count(2), {Spec("a"): 1}, {Spec("b"): 2}),
        call(count(2), {Spec("a"): 1}, {Spec("a"): 2}),
        call(count(2), {Spec("b"): 1}, {Spec("b"): 2}),
    ]


@program
def dict_pop_setdefault_get_of_frozen_dataclasses():
    def f(x, d, k):
        a = d.get(k, 10)
        b = d.setdefault(k, 5)
        c = d.pop(k)
        e = d.pop(k, 7)
        d[k] = x
        return x * a + b + c + e

    return f, [
        call(count(2), {Spec("a"): 1}, Spec("b")),
        call(count(2), {Spec("a"): 1}, Spec("a")),
        call(count(2), {Spec("a"): 3}, Spec("c")),
    ]


@program
def tuple_keys_with_frozen_dataclasses():
    cache = {}

    def f(x, s):
        k = (s, tuple(x.shape))
        if k not in cache:
            cache[k] = torch.ones(x.shape) * s.size
        return x * cache[k], len(cache)

    return (
        f,
        [
            call(count(2), Spec("a", 1)),
            call(count(2), Spec("a", 2)),
            call(count(2), Spec("a", 1)),
            call(count(3), Spec("a", 1)),
            call(count(3), Spec("b", 1)),
        ],
        cache,
    )


@program
def objects_by_identity_as_keys():
    class O:
        def __init__(self, v):
            self.v = v

    a, b, c = O(1), O(2), O(3)
    d = {a: 10.0, b: 20.0}

    def f(x, o):
        if o in d:
            x = x * d[o]
        return x + o.v, d.get(o, -1.0)

    return f, [
        call(count(2), c),
        call(count(2), a),
        call(count(2), b),
        call(count(2), O(1)),
        after(lambda: d.update({c: 30.0}), count(2), c),
        after(lambda: d.pop(a), count(2), a),
    ]


holder = types.SimpleNamespace()  # global: the harness would look at the set in its own order


@program
def objects_by_identity_in_sets():
    class O:
        def __init__(self, v):
            self.v = v

    a, b, c = O(1), O(2), O(3)
    holder.d = {a, b}

    def f(x, o):
        d, s = holder.d, {o, a}
        if o in d:
            x = x * 2
        return x + o.v, len(s)

    return f, [
        call(count(2), c),
        call(count(2), a),
        call(count(2), b),
        call(count(2), O(1)),
        after(lambda: holder.d.add(c), count(2), c),
        after(lambda: holder.d.discard(a), count(2), a),
    ]


@program
def modules_as_keys():
    ms = [nn.Linear(2, 2), nn.Tanh(), nn.ReLU()]
    names = {m: i for i, m in enumerate(ms)}

    def f(x, m):
        return m(x) * (names[m] + 1) if m in names else m(x)

    return f, [
        call(normal(2, 2), ms[0]),
        call(normal(2, 2), ms[1]),
        call(normal(2, 2), ms[2]),
        call(normal(2, 2), nn.ReLU()),
        after(lambda: names.__setitem__(ms[2], 7), normal(2, 2), ms[2]),
    ]


@program
def tensors_as_keys_of_state():
    state = {}

    def f(p, g):
        s = state.setdefault(p, {"step": 0})
        s["step"] += 1
        return p * s["step"] + g

    a, b = count(2), count(3)
    return (
        f,
        [call(a, count(2)), call(a, count(2)), call(b, count(3)), call(a, count(2)), call(count(2), count(2))],
        None,
    )


@program
def functions_as_keys():
    d = {torch.relu: 1.0, F.gelu: 2.0, len: 3.0}

    def sq(x):
        return x * x

    d[sq] = 4.0

    def f(x, g):
        return g(x) * d.get(g, 0.5)

    return f, [
        call(normal(2), torch.relu),
        call(normal(2), F.gelu),
        call(normal(2), sq),
        call(normal(2), torch.tanh),
        call(normal(2), lambda x: x),
    ]


@program
def heap_of_user_objects():
    def f(x, l):
        h = []
        for o in l:
            heapq.heappush(h, o)
        out = []
        while h:
            out.append(heapq.heappop(h).t * x)
        return out, [o.a for o in heapq.nsmallest(2, l)]

    return f, [
        call(count(2), [Ord(1, count(2)), Ord(3, count(2) + 1), Ord(2, count(2) + 2)]),
        call(count(2), [Ord(5, count(2)), Ord(3, count(2) + 1), Ord(2, count(2) + 2)]),
    ]


@program
def sorting_tuples_with_user_objects():
    def f(x, l):
        return [x * i for i, o in sorted(enumerate(l), key=lambda t: (t[1], t[0]))], sorted(
            (o, i) for i, o in enumerate(l)
        )[0][1]

    return f, [call(count(2), [Ord(1), Ord(3), Ord(2)]), call(count(2), [Ord(5), Ord(3), Ord(2)])]


@program
def comparisons_inside_containers():
    def f(x, a, b):
        return (
            x + 1 if [a] == [b] else x,
            (a, 1) == (b, 1),
            {"k": a} == {"k": b},
            (a, 1) < (b, 2),
            a in (b,),
            [a].count(b),
            [b].index(a) if a == b else None,
        )

    return f, [call(count(2), Ord(1), Ord(2)), call(count(2), Ord(1), Ord(1)), call(count(2), Ord(3), Ord(2))]


@program
def comparison_in_deque_and_views():
    def f(x, l, o):
        d = collections.deque(l)
        return x + d.count(o), o in d, o in {1: o2 for o2 in l}.values(), d.index(o) if o in d else None

    return f, [
        call(count(2), [Eq(1), Eq(2)], Eq(2)),
        call(count(2), [Eq(1), Eq(2)], Eq(1)),
        call(count(2), [Eq(1), Eq(2)], Eq(4)),
    ]


@program
def user_numbers_in_builtins():
    class N:
        def __init__(s, v):
            s.v = v

        def __index__(s):
            return s.v

        def __float__(s):
            return float(s.v)

        def __abs__(s):
            return N(abs(s.v))

        def __len__(s):
            return s.v

        def __bool__(s):
            return s.v > 1

        def __round__(s, n=None):
            return s.v * 10

        def __trunc__(s):
            return s.v

        def __ceil__(s):
            return s.v + 1

        def __floor__(s):
            return s.v - 1

        def __divmod__(s, o):
            return (s.v, o)

        def __rdivmod__(s, o):
            return (o, s.v)

        def __pow__(s, o, m=None):
            return (s.v, o, m)

        def __hash__(s):
            return s.v

        def __eq__(s, o):
            return isinstance(o, N) and s.v == o.v

        def __int__(s):
            return s.v * 2

    def f(x, n):
        return (
            x * n.v,
            range(5)[n],
            list(range(n)),
            [0, 1, 2, 3][n],
            "abcd"[n:],
            bin(n),
            hex(n),
            math.sqrt(n),
            math.floor(n),
            math.ceil(n),
            math.trunc(n),
            float(n),
            int(n),
            len(n),
            bool(n),
            round(n),
            round(n, 2),
            divmod(n, 3),
            divmod(3, n),
            pow(n, 2),
            pow(n, 2, 5),
            hash(n),
            abs(n).v,
            "%d" % n,
            "ab" * n,
            [n] == [N(1)],
            any([n]),
            all([n, n]),
            complex(n),
            str(x[n].shape),
            x[:n],
            torch.zeros(n).shape,
            x.sum(0) if n else x,
            bytes(n),
            chr(n),
            operator.index(n),
        )

    return f, [call(normal(5, 2), N(1)), call(normal(5, 2), N(2)), call(normal(5, 2), N(3))]


@program
def user_containers_in_builtins():
    class L:
        def __init__(s, *v):
            s.v = list(v)

        def __iter__(s):
            return iter(s.v)

        def __contains__(s, o):
            return o in s.v

        def __getitem__(s, i):
            return s.v[i]

        def __len__(s):
            return len(s.v)

    def f(x, l):
        a, *b = l
        return (
            x * sum(l),
            max(l),
            sorted(l),
            tuple(l),
            set(l),
            [*l],
            {*l},
            dict(enumerate(l)),
            list(zip(l, l)),
            a,
            b,
            list(map(lambda z: z + 1, l)),
            any(l),
            all(l),
            ",".join(map(str, l)),
            list(reversed(l)),
            3 in l,
            l[0],
            l[1:],
            list(itertools.chain(l, l)),
            functools.reduce(operator.add, l),
            [1] + list(l),
            torch.tensor(list(l)),
            min(l, default=1),
            math.prod(l),
            math.fsum(l),
            np.sum(list(l)),
            list(filter(None, l)),
            "a" in l,
            statistics(l),
            bytes(l),
            frozenset(l),
            list(itertools.accumulate(l)),
            collections.deque(l),
            collections.Counter(l),
            dict.fromkeys(l),
            print(*l),
            "{} {}".format(*l),
            "%s" % (tuple(l),),
            [].extend(l),
            list(l).index(l[1]),
        )

    def statistics(l):
        import statistics

        return statistics.mean(l)

    return f, [call(normal(3), L(1, 2, 3)), call(normal(3), L(3, 0, 3)), call(normal(3), L(3, 4))]


class Key:
    def __init__(self, name, n):
        self.name, self.n = name, n

    def __eq__(self, o):
        return isinstance(o, Key) and (self.name, self.n) == (o.name, o.n)

    def __hash__(self):
        return hash((self.name, self.n))

    def __repr__(self):
        return f"Key({self.name}, {self.n})"


@program
def user_hash_as_dict_key():
    table = {Key("a", 1): 2.0, Key("b", 2): 3.0}

    def f(x, k):
        out = x
        if k in table:
            out = out * table[k]
        d = {Key("z", 0): x}
        d[k] = x + 1
        d[Key("z", 0)] = x + 5
        return out, [v for v in d.values()], len(d), table.get(Key("q", 1), None)

    return f, [
        call(count(3), Key("a", 1)),
        call(count(3), Key("b", 2)),
        call(count(3), Key("c", 2)),
        call(count(4), Key("z", 0)),
        after(lambda: table.update({Key("c", 2): 9.0}), count(3), Key("c", 2)),
    ]


@program(core=True)
def frozen_dataclass_as_dict_key():
    layers = {Spec("relu"): torch.relu, Spec("tanh", 4): torch.tanh}

    def f(x, specs):
        seen = set()
        for s in specs:
            if s in seen:
                continue
            seen.add(s)
            x = layers.get(s, torch.sigmoid)(x)
        return x, len(seen)

    return f, [
        call(count(3), [Spec("relu"), Spec("tanh", 4)]),
        call(count(3), [Spec("relu"), Spec("relu")]),
        call(count(3), [Spec("x", 9)]),
    ]


@program
def user_hash_in_set_of_outside():
    s = {Key("a", 1), Key("b", 2)}

    def f(x, k):
        if k in s:
            x = x + 1
        t = {Key("a", 1), Key("a", 1), k}
        return x * len(s), len(t)

    return f, [
        call(count(3), Key("a", 1)),
        call(count(3), Key("b", 3)),
        after(lambda: s.add(Key("b", 3)), count(3), Key("b", 3)),
    ]


class Mod(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cache = {}

    def forward(self, x, key):
        if key not in self.cache:
            self.cache[key] = x.mean().detach()
        return self.lin(x) + self.cache[key]


@program
def module_cache_keyed_by_user_objects():
    m = Mod()
    return (
        m,
        [
            call(normal(2, 3), Spec("a")),
            call(normal(2, 3), Spec("b")),
            call(normal(2, 3), Spec("a")),
            call(normal(2, 3), Key("a", 1)),
            call(normal(2, 3), Key("a", 1)),
        ],
        m.cache,
    )


class N:
    def __init__(s, v):
        s.v = v

    def __bool__(s):
        return s.v > 1


@program
def any_of_user_objects():
    def f(x, n):
        return x * 2, any([n]), all([n, n]), not n

    return f, [call(normal(5, 2), N(1)), call(normal(5, 2), N(2))]


@program
def any_of_user_objects_after_break():
    def f(x, n):
        print("a")
        return x * 2, any([n]), all([n, n]), not n

    return f, [call(normal(5, 2), N(1)), call(normal(5, 2), N(2))]


@program
def filter_none_of_user_objects():
    def f(x, *n):
        return x * 2, [m.v for m in filter(None, n)], [m.v for m in itertools.filterfalse(None, n)]

    return f, [call(normal(5, 2), N(1), N(2)), call(normal(5, 2), N(2), N(1))]


@program
def numbers_that_vary_as_bounds_of_a_search():
    def outer(x, items, start, stop):
        try:
            return x * stop, items.index(3, start, stop), (1, 3, 3, 3, 3, 3).index(3, start), collections.deque(items).index(3, start)
        except (TypeError, ValueError) as error:
            return x, str(error)

    items = [3, -2, 3, 0, 3, 3, 3]
    return outer, [call(count(2), items, start, stop) for start, stop in ((2, 4), (2, 5), (3, 6), (4, 7), (3, 4), (3, 1))]
