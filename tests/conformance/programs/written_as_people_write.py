"""Small whole programs: caches, parsers, machines, registries, pipelines."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import re
import string
import typing

import torch
import torch.nn.functional as F
from torch import nn

from tests.conformance.catalogue import after, call, count, positive, program


class LRU:
    def __init__(self, n):
        self.n = n
        self.d = collections.OrderedDict()
        self.hits = self.misses = 0

    def get(self, k, make):
        if k in self.d:
            self.d.move_to_end(k)
            self.hits += 1
            return self.d[k]
        self.misses += 1
        v = self.d[k] = make(k)
        if len(self.d) > self.n:
            self.d.popitem(last=False)
        return v


@program
def cache_with_eviction():
    c = LRU(2)

    def outer(x, ks):
        return [c.get(k, lambda k: x * k) for k in ks], c.hits, c.misses, list(c.d)

    return outer, [call(count(3), [1, 2, 1, 3, 2]), call(count(3), [3, 3, 4]), call(count(4), [4, 1])], c


@program
def event_system():
    class Bus:
        def __init__(self):
            self.h = collections.defaultdict(list)
            self.log = []

        def on(self, name, prio=0):
            def deco(f):
                self.h[name].append((prio, f))
                self.h[name].sort(key=lambda p: -p[0])
                return f

            return deco

        def emit(self, name, *a, **k):
            r = None
            for p, f in list(self.h[name]):
                self.log.append((name, f.__name__))
                r = f(*a, **k)
                if r is StopIteration:
                    break
            return r

    bus = Bus()

    @bus.on("x", 1)
    def first(t, k=1):
        return t + k

    @bus.on("x")
    def second(t, k=1):
        return StopIteration if k > 2 else t * k

    def outer(x, k):
        r = bus.emit("x", x, k=k)
        if k == 2:

            @bus.on("x", 5)
            def late(t, k):
                return t

        return r, len(bus.log), len(bus.h["x"]), bus.emit("none")

    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 3)], bus.log


@program(core=True)
def recursive_descent_parser():
    token = re.compile(r"\s*(?:(\d+\.?\d*)|(.))")

    def parse(s, env):
        toks = [(n, o) for n, o in token.findall(s)] + [("", "")]
        pos = 0

        def peek():
            return toks[pos]

        def take():
            nonlocal pos
            pos += 1
            return toks[pos - 1]

        def atom():
            n, o = take()
            if n:
                return float(n)
            if o == "(":
                v = expr()
                if take()[1] != ")":
                    raise SyntaxError("expected )")
                return v
            if o == "-":
                return -atom()
            if o in env:
                return env[o]
            raise SyntaxError(f"unexpected {o!r}")

        def term():
            v = atom()
            while peek()[1] in ("*", "/") and peek()[1]:
                v = v * atom() if take()[1] == "*" else v / atom()
            return v

        def expr():
            v = term()
            while peek()[1] in ("+", "-") and peek()[1]:
                v = v + term() if take()[1] == "+" else v - term()
            return v

        return expr()

    def outer(x, s):
        try:
            return parse(s, {"x": x, "y": x * 2})
        except SyntaxError as e:
            return str(e)

    return outer, [
        call(count(3), "x + 2*y"),
        call(count(3), "(x - 1) / 4 - -y"),
        call(count(3), "x + ("),
        call(count(3), "3 * 4.5"),
        call(count(3), "q"),
    ]


@program(core=True)
def stack_machine():
    class Op(enum.Enum):
        PUSH = enum.auto()
        ADD = enum.auto()
        MUL = enum.auto()
        DUP = enum.auto()
        SWAP = enum.auto()
        JNZ = enum.auto()
        DEC = enum.auto()
        POP = enum.auto()

    def run(code, x):
        stack, pc, steps = [x], 0, 0
        while pc < len(code):
            op, *arg = code[pc]
            pc += 1
            steps += 1
            match op:
                case Op.PUSH:
                    stack.append(arg[0])
                case Op.ADD:
                    b, a = stack.pop(), stack.pop()
                    stack.append(a + b)
                case Op.MUL:
                    b, a = stack.pop(), stack.pop()
                    stack.append(a * b)
                case Op.DUP:
                    stack.append(stack[-1])
                case Op.SWAP:
                    stack[-1], stack[-2] = stack[-2], stack[-1]
                case Op.DEC:
                    stack[-1] -= 1
                case Op.JNZ if stack[-1]:
                    pc = arg[0]
                case Op.JNZ | Op.POP:
                    stack.pop()
        return stack, steps

    def outer(x, n):
        return run(
            [
                (Op.PUSH, n),
                (Op.SWAP,),
                (Op.PUSH, 2.0),
                (Op.MUL,),
                (Op.SWAP,),
                (Op.DEC,),
                (Op.JNZ, 1),
                (Op.DUP,),
                (Op.ADD,),
            ],
            x,
        )

    return outer, [call(count(3), 1), call(count(3), 3), call(count(3), 4)]


@program
def visitor_over_an_expression_tree():
    @dataclasses.dataclass
    class Num:
        v: float

    @dataclasses.dataclass
    class Var:
        n: str

    @dataclasses.dataclass
    class Bin:
        op: str
        l: object
        r: object

    class Visitor:
        def visit(self, n):
            return getattr(self, "visit_" + type(n).__name__, self.generic)(n)

        def generic(self, n):
            raise NotImplementedError(type(n).__name__)

    class Eval(Visitor):
        OPS = {"+": operator.add, "*": operator.mul, "-": operator.sub}

        def __init__(self, env):
            self.env = env
            self.count = 0

        def visit_Num(self, n):
            self.count += 1
            return n.v

        def visit_Var(self, n):
            self.count += 1
            return self.env[n.n]

        def visit_Bin(self, n):
            return self.OPS[n.op](self.visit(n.l), self.visit(n.r))

    class Show(Visitor):
        def visit_Num(self, n):
            return f"{n.v:g}"

        def visit_Var(self, n):
            return n.n

        def visit_Bin(self, n):
            return f"({self.visit(n.l)} {n.op} {self.visit(n.r)})"

    t1 = Bin("+", Var("x"), Bin("*", Num(2.0), Var("y")))
    t2 = Bin("-", t1, Num(1.5))

    def outer(x, t):
        e = Eval({"x": x, "y": x + 1})
        try:
            return e.visit(t), e.count, Show().visit(t)
        except NotImplementedError as err:
            return str(err)

    return outer, [
        call(count(3), t1),
        call(count(3), t2),
        after(lambda: setattr(t2.r, "v", 9.0), count(3), t2),
        call(count(3), Bin("+", Num(1.0), 5)),
        after(lambda: setattr(t1, "op", "*"), count(3), t1),
    ]


@program
def retries_with_backoff():
    class Flaky(Exception):
        pass

    def retry(times, on=(Exception,)):
        def deco(f):
            @functools.wraps(f)
            def wrapper(*a, **k):
                last = None
                for i in range(times):
                    try:
                        return f(*a, attempt=i, **k)
                    except on as e:
                        last = e
                        log.append((i, type(e).__name__))
                    finally:
                        log.append("f")
                else:
                    raise RuntimeError("gave up") from last

            return wrapper

        return deco

    log = []

    @retry(3, on=(Flaky, KeyError))
    def work(x, n, attempt):
        if attempt < n:
            raise Flaky(attempt) if attempt % 2 == 0 else KeyError(attempt)
        return x * attempt

    def outer(x, n):
        try:
            return work(x, n), len(log)
        except RuntimeError as e:
            return str(e), type(e.__cause__).__name__, e.__cause__.args

    return outer, [call(count(3), 0), call(count(3), 2), call(count(3), 5), call(count(3), 1)], log


@program
def plugin_registry_by_decorator():
    REG = {}

    def register(name=None, **meta):
        def deco(c):
            REG[name or c.__name__.lower()] = (c, meta)
            c.meta = meta
            return c

        return deco

    @register("scale", factor=2.0)
    class Scale:
        def __call__(self, x):
            return x * self.meta["factor"]

    @register(bias=1.0)
    class Shift:
        def __call__(self, x):
            return x + self.meta["bias"]

    def outer(x, names):
        for n in names:
            cls, meta = REG.get(n, (None, {}))
            if cls is None:
                return f"no {n}; have {sorted(REG)}"
            x = cls()(x)
        return x

    return (
        outer,
        [
            call(count(3), ["scale", "shift"]),
            call(count(3), ["shift", "scale", "scale"]),
            call(count(3), ["nope"]),
            after(lambda: REG["scale"][1].update(factor=5.0), count(3), ["scale"]),
            after(lambda: REG.update(nope=REG["shift"]), count(3), ["nope"]),
        ],
        REG,
    )


@program
def nested_config_merging():
    def merge(a, b):
        out = dict(a)
        for k, v in b.items():
            out[k] = merge(out[k], v) if isinstance(v, dict) and isinstance(out.get(k), dict) else v
        return out

    defaults = {"opt": {"lr": 0.1, "betas": (0.9, 0.99)}, "act": "relu", "layers": [1, 2]}

    class Cfg(dict):
        def __getattr__(self, n):
            try:
                v = self[n]
            except KeyError:
                raise AttributeError(n) from None
            return Cfg(v) if isinstance(v, dict) else v

    def outer(x, over):
        c = Cfg(merge(defaults, over))
        x = getattr(F, c.act)(x) * c.opt.lr + c.opt.betas[0]
        for l in c.layers:
            x = x + l
        return x, c, hasattr(c, "nope"), getattr(c.opt, "wd", 0.0), defaults["opt"] is c["opt"]

    return (
        outer,
        [
            call(count(3), {}),
            call(count(3), {"opt": {"lr": 0.5}}),
            call(count(3), {"act": "tanh", "layers": []}),
            call(count(3), {"opt": {"wd": 1.0}}),
        ],
        defaults,
    )


@program
def dijkstra_with_heap():
    import heapq

    def outer(x, g):
        dist, heap, order = {0: 0}, [(0, 0)], []
        while heap:
            d, u = heapq.heappop(heap)
            if d > dist.get(u, math.inf):
                continue
            order.append(u)
            for v, w in g.get(u, ()):
                if d + w < dist.get(v, math.inf):
                    dist[v] = d + w
                    heapq.heappush(heap, (d + w, v))
        return x * dist[max(dist)], dist, order

    return outer, [call(count(3), {0: [(1, 4), (2, 1)], 2: [(1, 2)], 1: [(3, 1)]}), call(count(3), {0: [(1, 1)]})]


@program
def topological_sort_with_cycle_check():
    def outer(x, deps):
        seen, out, path = {}, [], []

        def visit(n):
            if seen.get(n) == 1:
                raise ValueError("cycle: " + "->".join([*path, n]))
            if seen.get(n) == 2:
                return
            seen[n] = 1
            path.append(n)
            for m in sorted(deps.get(n, ())):
                visit(m)
            path.pop()
            seen[n] = 2
            out.append(n)

        try:
            for n in deps:
                visit(n)
        except ValueError as e:
            return str(e), path
        vals = {}
        for i, n in enumerate(out):
            vals[n] = x * i + sum((vals[m] for m in deps.get(n, ())), torch.zeros(3))
        return vals, out

    return outer, [
        call(count(3), {"c": {"a", "b"}, "b": {"a"}, "a": set()}),
        call(count(3), {"a": {"b"}, "b": {"a"}}),
        call(count(3), {"z": {"y"}}),
    ]


@program
def matrix_game_of_life():
    def outer(b, steps):
        for _ in range(steps):
            n = sum(torch.roll(b, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
            b = ((n == 3) | ((b == 1) & (n == 2))).to(b.dtype)
        return b, "\n".join("".join("#" if v else "." for v in r) for r in b.tolist())

    return outer, [call((count(5, 5) % 3 == 0).float(), 1), call((count(6, 4) % 2 == 0).float(), 2)]


@program
def running_statistics_object():
    class Welford:
        __slots__ = ("n", "mean", "m2")

        def __init__(self):
            self.n, self.mean, self.m2 = 0, 0.0, 0.0

        def push(self, v):
            self.n += 1
            d = v - self.mean
            self.mean = self.mean + d / self.n
            self.m2 = self.m2 + d * (v - self.mean)
            return self

        @property
        def var(self):
            return self.m2 / (self.n - 1) if self.n > 1 else float("nan")

        def __iadd__(self, o):
            for v in o:
                self.push(v)
            return self

        def __len__(self):
            return self.n

    w = Welford()

    def outer(x, w, s):
        w.push(s).push(s + 1)
        w += [x.mean(), x.sum()]
        return w.mean, w.var, len(w), bool(w)

    return outer, [call(count(3), w, 1.0), call(count(3), w, 2.5), call(count(4), w, 0.1)], None


@program
def text_tokenizer_and_vocab():
    class Vocab:
        def __init__(self):
            self.ids = {"<pad>": 0, "<unk>": 1}
            self.frozen = False

        def __getitem__(self, w):
            if w not in self.ids:
                if self.frozen:
                    return self.ids["<unk>"]
                self.ids[w] = len(self.ids)
            return self.ids[w]

        def encode(self, s, n):
            out = [self[w.strip(string.punctuation).lower()] for w in s.split()][:n]
            return out + [0] * (n - len(out))

    v = Vocab()
    emb = count(12, 2)

    def outer(texts, n):
        ids = torch.tensor([v.encode(t, n) for t in texts])
        mask = ids != 0
        e = emb[ids] * mask.unsqueeze(-1)
        return e.sum(1) / mask.sum(1, keepdim=True), len(v.ids)

    return (
        outer,
        [
            call(["The cat, sat."], 4),
            call(["the dog sat", "A b"], 3),
            after(lambda: setattr(v, "frozen", True), ["new words the"], 3),
        ],
        v.ids,
    )


@program
def matrix_class_with_operators():
    class M:
        def __init__(self, t):
            self.t = t if isinstance(t, torch.Tensor) else torch.tensor(t, dtype=torch.float32)

        def __matmul__(self, o):
            return M(self.t @ (o.t if isinstance(o, M) else o))

        def __add__(self, o):
            return M(self.t + (o.t if isinstance(o, M) else o))

        __radd__ = __add__

        def __pow__(self, n):
            if n < 0:
                raise ValueError("negative")
            r, b = M(torch.eye(len(self))), self
            while n:
                if n & 1:
                    r = r @ b
                b, n = b @ b, n >> 1
            return r

        def __len__(self):
            return self.t.shape[0]

        def __getitem__(self, k):
            return M(self.t[k])

        def __eq__(self, o):
            return isinstance(o, M) and bool((self.t == o.t).all())

        def __neg__(self):
            return M(-self.t)

        @property
        def T(self):
            return M(self.t.T)

        def __iter__(self):
            return (M(r) for r in self.t)

    def outer(x, n):
        m = M(x)
        try:
            p = m**n
        except ValueError as e:
            return str(e)
        return p.t, (1 + m + m.T).t, (-m)[0].t, len(m), [r.t.sum() for r in m], sum(m).t, m == M(x), m == 3

    return outer, [call(count(2, 2), 3), call(count(2, 2), 5), call(count(2, 2), -1), call(count(3, 3), 0)]


@program
def pipeline_of_generators_with_tensors():
    def read(ts):
        for i, t in enumerate(ts):
            yield {"id": i, "t": t}

    def keep(it, pred):
        return (d for d in it if pred(d))

    def batch(it, n):
        b = []
        for d in it:
            b.append(d["t"])
            if len(b) == n:
                yield torch.stack(b)
                b = []
        if b:
            yield torch.stack(b)

    def outer(x, n, drop):
        ts = list(x.unbind())
        return [b.sum(0) for b in batch(keep(read(ts), lambda d: d["id"] % drop), n)]

    return outer, [call(count(6, 2), 2, 3), call(count(5, 2), 2, 2), call(count(6, 2), 4, 2)]


@program
def observers_and_properties():
    class Observable:
        def __init__(self):
            self._v = None
            self.subs = []

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, new):
            old, self._v = self._v, new
            for s in self.subs:
                s(old, new)

        @v.deleter
        def v(self):
            self.v = None

    o = Observable()
    log = []
    o.subs.append(lambda a, b: log.append((a is None, b is None)))

    def outer(x, o):
        o.v = x + 1
        o.v = o.v * 2
        r = o.v
        del o.v
        o.subs.append(lambda a, b: None)
        return r, o.v, len(o.subs)

    return outer, [call(count(3), o), call(count(3), o)], log


@program
def mixins_and_cooperative_super():
    class Base(nn.Module):
        def __init__(self, **kw):
            super().__init__()
            self.kw = kw

        def forward(self, x):
            return x

        def extra(self):
            return ["base"]

    class Scale(Base):
        def __init__(self, scale=2.0, **kw):
            super().__init__(**kw)
            self.scale = scale

        def forward(self, x):
            return super().forward(x * self.scale)

        def extra(self):
            return [*super().extra(), "scale"]

    class Shift(Base):
        def __init__(self, shift=1.0, **kw):
            super().__init__(**kw)
            self.shift = nn.Parameter(torch.tensor(shift))

        def forward(self, x):
            return super().forward(x + self.shift)

        def extra(self):
            return [*super().extra(), "shift"]

    class Both(Scale, Shift):
        pass

    m = Both(scale=3.0, shift=0.5, other=1)

    def outer(x):
        return m(x), m.extra(), m.kw, [c.__name__ for c in type(m).__mro__][:4], [n for n, _ in m.named_parameters()]

    return (
        outer,
        [call(count(3)), after(lambda: setattr(m, "scale", 1.0), count(3)), after(lambda: m.kw.update(z=2), count(3))],
        m.kw,
    )


@program
def bank_with_transactions():
    class Insufficient(Exception):
        def __init__(self, need, have):
            super().__init__(f"need {need:.2f}, have {have:.2f}")
            self.need = need

    class Bank:
        def __init__(self):
            self.acc = collections.defaultdict(float)
            self.hist = []

        @contextlib.contextmanager
        def tx(self):
            saved = dict(self.acc)
            try:
                yield self
                self.hist.append("ok")
            except Insufficient as e:
                self.acc.clear()
                self.acc.update(saved)
                self.hist.append(str(e))

        def move(self, a, b, n):
            if self.acc[a] < n:
                raise Insufficient(n, self.acc[a])
            self.acc[a] -= n
            self.acc[b] += n

    bank = Bank()
    bank.acc["a"] = 10.0

    def outer(x, n):
        with bank.tx() as b:
            b.move("a", "b", n)
            b.move("b", "c", n / 2)
            b.move("a", "d", n)
        return x * bank.acc["a"], dict(bank.acc), bank.hist[-1]

    return outer, [call(count(3), 2.0), call(count(3), 4.0), call(count(3), 1.5)], bank.hist


@program
def simulated_annealing_schedule():
    def outer(x, temps, flags):
        out, best, stale = [], None, 0
        for i, (t, f) in enumerate(zip(temps, itertools.cycle(flags))):
            y = x * t if f else x / t
            score = sum(p * q for p, q in zip((1, 2, 3), y.shape * 3))
            if best is None or score > best[0]:
                best, stale = (score, i), 0
            elif (stale := stale + 1) > 1:
                break
            out.append(y)
        else:
            return "exhausted", out
        return best, len(out), out[-1]

    return outer, [
        call(count(3), [1.0, 0.5, 0.25, 0.1], [True, False]),
        call(count(3), [2.0], [True]),
        call(count(2, 2), (4.0, 2.0, 1.0), "ab"),
    ]


@program
def immutable_updates_with_replace():
    @dataclasses.dataclass(frozen=True)
    class State:
        x: torch.Tensor
        step: int = 0
        tags: tuple = ()

        def next(self, **kw):
            return dataclasses.replace(self, step=self.step + 1, **kw)

    class Pt(typing.NamedTuple):
        a: torch.Tensor
        b: int = 1

    def outer(s, n):
        for i in range(n):
            s = s.next(x=s.x + i, tags=(*s.tags, i))
        p = Pt(s.x)._replace(b=n)
        a, b = p
        return s, p, a is s.x, b, p._fields, Pt._make([1, 2])

    return outer, [call(State(count(3)), 2), call(State(count(3), 5, ("t",)), 1), call(State(count(3)), 0)]


@program
def polynomial_and_newton():
    class Poly:
        def __init__(self, *c):
            self.c = c

        def __call__(self, x):
            return functools.reduce(lambda a, c: a * x + c, self.c, 0)

        def diff(self):
            n = len(self.c) - 1
            return Poly(*(c * (n - i) for i, c in enumerate(self.c[:-1])))

        def __repr__(self):
            return " + ".join(f"{c}x^{len(self.c) - 1 - i}" for i, c in enumerate(self.c) if c)

    def outer(x, p, n):
        d = p.diff()
        for _ in range(n):
            x = x - p(x) / d(x)
        return x, repr(p), repr(d), p(2), d(2.0)

    return outer, [call(positive(3), Poly(1, 0, -2), 3), call(positive(3), Poly(2, 3, 0, -1), 2)]


@program
def table_formatting():
    def outer(x, rows):
        w = [max(len(str(c)) for c in col) for col in zip(*rows)]
        lines = [
            " | ".join(f"{str(c):<{n}}" if isinstance(c, str) else f"{c:>{n}}" for c, n in zip(r, w)) for r in rows
        ]
        lines.insert(1, "-+-".join("-" * n for n in w))
        return x * len(lines), "\n".join(lines), w

    return outer, [call(count(3), [("name", "n"), ("abc", 5), ("d", 12345)]), call(count(3), [("z", 1.5)])]


@program
def memoised_recursion_on_tuples():
    def outer(x, a, b):
        memo = {}

        def lcs(i, j):
            if i == len(a) or j == len(b):
                return ()
            if (i, j) not in memo:
                memo[i, j] = (a[i], *lcs(i + 1, j + 1)) if a[i] == b[j] else max(lcs(i + 1, j), lcs(i, j + 1), key=len)
            return memo[i, j]

        r = lcs(0, 0)
        return x * len(r), "".join(r), len(memo)

    return outer, [call(count(3), "abcde", "ace"), call(count(3), "xay", "ab"), call(count(3), "", "q")]


@program
def coroutine_style_averager():
    def averager():
        total, n, avg = 0.0, 0, None
        while True:
            try:
                v = yield avg
            except GeneratorExit:
                log.append("bye")
                raise
            if v is None:
                return total
            total = total + v
            n += 1
            avg = total / n

    log = []

    def outer(x, vs):
        g = averager()
        next(g)
        out = [g.send(x * v) for v in vs]
        try:
            g.send(None)
        except StopIteration as e:
            out.append(e.value)
        h = averager()
        next(h)
        h.close()
        return out

    return outer, [call(count(3), [1, 2]), call(count(3), [4])], log


@program
def state_pattern_with_class_swaps():
    class A:
        def step(self, x):
            self.__class__ = B
            return x + 1

    class B(A):
        def step(self, x):
            self.__class__ = A
            return x * 2

    def outer(x, o):
        for _ in range(3):
            x = o.step(x)
        return x, type(o).__name__

    o = A()
    return outer, [call(count(3), o), call(count(3), o)]
