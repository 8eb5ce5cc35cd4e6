"""Programs as people write them that were once wrong, or broke the graph where they need not."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator

import torch

from tests.conformance.catalogue import after, call, count, normal, program


class Meter:
    """Running average with slots and total ordering."""

    __slots__ = ("name", "total", "n", "history", "__weakref__")

    def __init__(self, name):
        self.name = name
        self.total = 0.0
        self.n = 0
        self.history = []

    def update(self, value, n=1):
        self.total += value * n
        self.n += n
        self.history.append((self.name, n))
        return self

    @property
    def avg(self):
        return self.total / max(1, self.n)

    def __lt__(self, other):
        return self.n < other.n

    def __repr__(self):
        return f"Meter({self.name}, {self.n})"

    def __format__(self, spec):
        return format(self.n, spec)

    def __iadd__(self, k):
        self.n += k
        return self

    def __bool__(self):
        return self.n > 0

    def __contains__(self, n):
        return any(h[1] == n for h in self.history)

    def __getitem__(self, i):
        return self.history[i]

    def __len__(self):
        return len(self.history)


@program(core=True)
def meters_in_a_tracker():
    class Tracker:
        def __init__(self):
            self.meters = collections.OrderedDict()
            self.order = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            meters = self.__dict__["meters"]
            if name in meters:
                return meters[name]
            raise AttributeError(f"no meter {name!r}")

        def log(self, **values):
            for k, v in values.items():
                if k not in self.meters:
                    self.meters[k] = Meter(k)
                    self.order.append(k)
                self.meters[k].update(v)

        def best(self):
            return max(self.meters.values(), default=None)

    t = Tracker()

    def f(x, **kw):
        t.log(**kw)
        y = x
        for name in t.order:
            y = y + getattr(t, name).avg
        try:
            t.missing
        except AttributeError as e:
            msg = str(e)
        m = t.best()
        if m:
            m += 2
        return y, msg, f"{m:>4}" if m else "-", [len(v) for v in t.meters.values()], m and (1 in m), m and m[-1]

    return (
        f,
        [
            call(normal(3)),
            call(normal(3), a=1.0),
            call(normal(3), a=2.0, b=3.0),
            call(normal(3), b=3.0),
            call(normal(3)),
        ],
        t,
    )


@program
def partialmethod_and_classmethods():
    class Ops:
        scale = 2

        def apply(self, x, mode, *, k=1):
            self.last = mode
            return x * self.scale * k if mode == "mul" else x + k

        mul = functools.partialmethod(apply, mode="mul")
        add5 = functools.partialmethod(apply, mode="add", k=5)

        @classmethod
        def bump(cls):
            cls.scale += 1
            return cls.scale

        @staticmethod
        def name():
            return "ops"

    o = Ops()

    def f(x, how):
        r = getattr(o, how)(x)
        return r, o.last, Ops.bump(), o.scale, Ops.name()

    return (
        f,
        [
            call(count(2), "mul"),
            call(count(2), "add5"),
            call(count(2), "mul"),
            after(lambda: setattr(o, "scale", 100), count(2), "mul"),
            call(count(2), "mul"),
        ],
        (o, lambda: 0),
    )


@program
def singledispatchmethod_in_a_class():
    class Conv:
        def __init__(self):
            self.n = 0

        @functools.singledispatchmethod
        def to(self, v):
            raise TypeError(f"cannot {type(v).__name__}")

        @to.register
        def _(self, v: int):
            self.n += 1
            return torch.full((2,), float(v))

        @to.register
        def _(self, v: str):
            self.n += 10
            return self.to(int(v))

        @to.register
        def _(self, v: torch.Tensor):
            self.n += 100
            return v

    c = Conv()

    def f(x, v):
        try:
            y = c.to(v)
        except TypeError as e:
            return x, str(e), c.n
        return x + y, c.n

    return (
        f,
        [call(count(2), 3), call(count(2), "4"), call(count(2), count(2)), call(count(2), 2.5), call(count(2), 3)],
        c,
    )


@program
def replay_buffer_with_priorities():
    class Buffer:
        def __init__(self, cap):
            self.cap = cap
            self.data = collections.deque(maxlen=cap)
            self.prio = collections.deque(maxlen=cap)
            self.seen = 0

        def push(self, *t, p=1.0):
            self.data.append(t)
            self.prio.append(p)
            self.seen += 1
            return self

        def __len__(self):
            return len(self.data)

        def __iter__(self):
            yield from sorted(zip(self.prio, range(len(self.data))), reverse=True)

        def sample(self, k):
            idx = [i for _, i in itertools.islice(self, k)]
            cols = list(zip(*(self.data[i] for i in idx)))
            return [torch.stack(c) if torch.is_tensor(c[0]) else list(c) for c in cols], idx

    b = Buffer(3)

    def f(x, a, p):
        b.push(x * 2, a, p=p)
        if len(b) < 2:
            return None
        (s, acts), idx = b.sample(2)
        return s.mean(0), acts, idx, b.seen

    return f, [call(normal(2), i, p) for i, p in enumerate((0.5, 0.7, 0.1, 0.9, 0.9))], b


@program
def config_object_merging_and_frozen():
    @dataclasses.dataclass(frozen=True)
    class Opt:
        lr: float = 0.1
        betas: tuple = (0.9, 0.99)

    @dataclasses.dataclass
    class Cfg:
        name: str
        opt: Opt = dataclasses.field(default_factory=Opt)
        extra: dict = dataclasses.field(default_factory=dict)
        total: int = dataclasses.field(init=False, default=0)
        scale: dataclasses.InitVar[int] = 1

        def __post_init__(self, scale):
            self.total = scale * len(self.name)

        @classmethod
        def load(cls, d):
            known = {f.name for f in dataclasses.fields(cls) if f.init}
            return cls(
                **{k: v for k, v in d.items() if k in known}, extra={k: v for k, v in d.items() if k not in known}
            )

    def f(x, d):
        c = Cfg.load(d)
        try:
            c.opt.lr = 3
        except dataclasses.FrozenInstanceError as e:
            msg = str(e)
        c2 = dataclasses.replace(c, opt=dataclasses.replace(c.opt, lr=c.opt.lr * 2), scale=3)
        return x * c2.opt.lr, c2.total, c == c2, hash(c.opt) == hash(Opt()), msg, dataclasses.asdict(c2), repr(c)

    return f, [
        call(count(2), {"name": "ab"}),
        call(count(2), {"name": "abc", "z": 1, "q": [1]}),
        call(count(2), {"name": "ab", "opt": Opt(0.2)}),
    ]


@program
def exit_stack_with_callbacks_and_errors():
    log = []

    @contextlib.contextmanager
    def section(name, eat=False):
        log.append("+" + name)
        try:
            yield name.upper()
        except ValueError as e:
            log.append(f"!{name}:{e}")
            if not eat:
                raise
        finally:
            log.append("-" + name)

    def f(x, names, fail):
        with contextlib.ExitStack() as stack:
            got = [stack.enter_context(section(n, eat=(n == "c"))) for n in names]
            stack.callback(log.append, "cb")
            if fail:
                raise ValueError(fail)
            x = x + len(got)
        return x, got, list(log)

    return (
        f,
        [
            call(count(2), ["a", "b"], ""),
            call(count(2), ["c", "a"], "oops"),
            call(count(2), ["c"], ""),
            call(count(2), ["c", "b"], "again"),
        ],
        log,
    )


@program
def state_machine_of_enum_and_match():
    class S(enum.Enum):
        IDLE = enum.auto()
        WARM = enum.auto()
        RUN = enum.auto()
        DONE = enum.auto()

        def next(self, ev):
            match (self, ev):
                case (S.IDLE, {"kind": "start", "at": int(t)}) if t > 0:
                    return S.WARM
                case (S.WARM, {"kind": "step", **rest}) if not rest:
                    return S.RUN
                case (S.RUN, {"kind": ("stop" | "kill") as why}):
                    return S.DONE if why == "stop" else S.IDLE
                case (s, _):
                    return s

    class M:
        def __init__(self):
            self.s = S.IDLE
            self.trail = []

        def feed(self, x, ev):
            old, self.s = self.s, self.s.next(ev)
            self.trail.append((old.name, self.s.name))
            return x * self.s.value if old is not self.s else x - 1

    m = M()

    def f(x, evs):
        for e in evs:
            x = m.feed(x, e)
        return x, m.s, m.trail[-1:]

    a = [{"kind": "start", "at": 1}, {"kind": "step"}]
    return (
        f,
        [
            call(count(3), a),
            call(count(3), [{"kind": "stop"}]),
            call(count(3), [{"kind": "start", "at": 0}]),
            call(count(3), a[:1]),
            call(count(3), [{"kind": "step", "x": 1}]),
            call(count(3), a[1:] + [{"kind": "kill"}]),
        ],
        m,
    )


@program
def outside_iterators_of_all_kinds():
    its = {
        "c": itertools.count(3),
        "m": map(lambda v: v * 2, [1, 2, 3, 4, 5, 6, 7, 8]),
        "g": (i * i for i in range(20)),
        "f": filter(None, [0, 1, 2, 0, 3, 4, 5, 6]),
        "cy": itertools.cycle("ab"),
    }

    def f(x):
        return x * next(its["c"]), next(its["m"]), next(its["g"]), next(its["f"]), next(its["cy"])

    return f, [call(count(2)) for _ in range(4)], lambda: 0


@program
def id_generator_of_a_class():
    class Node:
        _ids = itertools.count()

        def __init__(self, v):
            self.id = next(Node._ids)
            self.v = v

    def f(x):
        a, b = Node(x), Node(x + 1)
        return a.v + b.v, a.id, b.id

    return f, [call(count(2)) for _ in range(3)]


@program
def counter_arithmetic_and_chainmap():
    def f(x, text, over):
        c = collections.Counter(text)
        c.subtract("a")
        c.update({"z": 2})
        d = c + collections.Counter(a=1) - collections.Counter("b")
        m = collections.ChainMap(over, {"k": 1, "j": 2})
        m["new"] = 3
        kid = m.new_child({"k": 10})
        return (
            x * d.total(),
            d.most_common(2),
            +c,
            c & d,
            sorted(c.elements()),
            m["k"],
            kid["k"],
            kid.parents["k"],
            len(kid),
            dict(over),
            kid.maps[1] is over,
        )

    return f, [call(count(2), "aabbc", {}), call(count(2), "zz", {"k": 5}), call(count(2), "zz", {"q": 5})]


@program
def getattr_setattr_proxies():
    class Proxy:
        def __init__(self, t):
            object.__setattr__(self, "_t", t)
            object.__setattr__(self, "_log", [])

        def __getattr__(self, n):
            self._log.append(("get", n))
            return getattr(self._t, n)

        def __setattr__(self, n, v):
            self._log.append(("set", n))
            setattr(self._t, n, v)

        def __delattr__(self, n):
            self._log.append(("del", n))
            delattr(self._t, n)

        def __dir__(self):
            return ["x"]

    class T:
        def __init__(self):
            self.v = 1

        def m(self, x):
            self.v += 1
            return x * self.v

    p = Proxy(T())

    def f(x, n):
        y = p.m(x)
        p.extra = n
        had = hasattr(p, "nope")
        if n > 1:
            del p.extra
        return y, had, len(p._log), getattr(p, "extra", "gone")

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 1)], p


@program
def lru_cache_like_class():
    class LRU(collections.OrderedDict):
        def __init__(self, cap):
            super().__init__()
            self.cap = cap
            self.miss = 0

        def __getitem__(self, k):
            v = super().__getitem__(k)
            self.move_to_end(k)
            return v

        def __setitem__(self, k, v):
            if k in self:
                self.move_to_end(k)
            super().__setitem__(k, v)
            if len(self) > self.cap:
                self.popitem(last=False)

        def get_or(self, k, make):
            try:
                return self[k]
            except KeyError:
                self.miss += 1
                self[k] = r = make()
                return r

    c = LRU(2)

    def f(x, k):
        m = c.get_or(k, lambda: torch.arange(k, k + 2).float())
        return x + m, list(c), c.miss

    return f, [call(count(2), k) for k in (1, 2, 1, 3, 2)], c


@program
def parameter_sets_subtracted():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def f(x, other):
        rest = set(net.parameters()) - set(other)
        names = {p: n for n, p in net.named_parameters()}
        return (
            net(x),
            sorted(names[p] for p in rest),
            len(set(net[0].parameters()) & set(other)),
            len(rest | set(other)),
        )

    return f, [
        call(normal(1, 2), [net[0].weight]),
        call(normal(1, 2), [net[1].weight]),
        call(normal(1, 2), [net[0].weight, net[0].bias]),
        call(normal(1, 2), [torch.nn.Parameter(torch.ones(2, 2))]),
    ]


@program
def object_graph_copied():
    class Node:
        def __init__(self, v, kids=()):
            self.v, self.kids, self.meta = v, list(kids), {"d": len(kids)}

        def __copy__(self):
            n = Node.__new__(Node)
            n.__dict__.update(self.__dict__)
            n.meta = dict(self.meta, copied=True)
            return n

        def total(self):
            return self.v + sum(k.total() for k in self.kids)

    leaf_ = Node(torch.ones(2))
    root = Node(torch.zeros(2), [leaf_, leaf_])

    def f(x):
        c = copy.copy(root)
        d = copy.deepcopy(root)
        d.kids[0].v = d.kids[0].v + x
        c.kids.append(Node(x))
        return c.total(), d.total(), d.kids[0] is d.kids[1], root.meta, c.meta, len(root.kids), d.kids[0].v is leaf_.v

    return f, [call(count(2)), call(count(2)), after(lambda: root.kids.pop(), count(2))], root


@program
def callbacks_in_order_with_break():
    class CB:
        order = 0

        def __init__(self, n, log):
            self.n, self.log = n, log

        def on_begin(self, t):
            self.log.append((self.n, "begin"))

        def on_end(self, t):
            self.log.append((self.n, "end", t.step))

    class Stop(CB):
        order = -1

        def on_end(self, t):
            super().on_end(t)
            if t.step >= 2:
                raise StopTraining(t.step)

    class StopTraining(Exception):
        pass

    class Trainer:
        def __init__(self, cbs):
            self.cbs = sorted(cbs, key=lambda c: c.order)
            self.step = 0

        def __call__(self, name):
            for c in self.cbs:
                h = getattr(c, "on_" + name, None)
                if h is not None:
                    h(self)

        def fit(self, x, n):
            self("begin")
            try:
                for _ in range(n):
                    self.step += 1
                    x = x * 0.5
                    self("end")
            except StopTraining as e:
                return x, f"stopped {e}", e.args
            else:
                return x, "done", ()
            finally:
                self("finally")

    log = []
    t = Trainer([CB("a", log), Stop("s", log)])

    def f(x, n):
        return t.fit(x, n)

    return (
        f,
        [
            call(count(2), 1),
            call(count(2), 3),
            call(count(2), 1),
            after(lambda: setattr(t, "step", 0), count(2), 1),
            after(lambda: t.cbs.pop(0), count(2), 4),
        ],
        log,
    )


@program
def kv_cache_grown_in_a_dict_of_lists():
    class Cache:
        def __init__(self):
            self.k = collections.defaultdict(list)
            self.pos = 0

        def update(self, layer, k):
            self.k[layer].append(k)
            return torch.cat(self.k[layer], 0)

        @property
        def seen(self):
            return sum(t.shape[0] for t in self.k[0])

        def crop(self, n):
            for l in self.k:
                self.k[l] = [torch.cat(self.k[l])[:n]]

    c = Cache()

    def f(x, crop=None):
        if crop:
            c.crop(crop)
        outs = []
        for l in range(2):
            full = c.update(l, x * (l + 1))
            outs.append(full.sum(0))
        c.pos += len(x)
        return outs, c.seen, c.pos

    return f, [call(normal(1, 2)), call(normal(2, 2)), call(normal(1, 2), crop=2), call(normal(1, 2))], c


@program
def modules_called_in_list_with_prints():
    class Blk(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.lin = torch.nn.Linear(2, 2)
            self.n = n
            self.calls = []

        def forward(self, x, cache=None):
            if cache is not None and self.n in cache:
                print("hit", self.n)
                return cache[self.n]
            y = self.lin(x)
            self.calls.append(self.n)
            if cache is not None:
                cache[self.n] = y
            return y

    net = torch.nn.ModuleList(Blk(i) for i in range(3)).requires_grad_(False)

    def f(x, cache=None):
        for b in net:
            x = b(x, cache=cache)
        return x, sum((b.calls for b in net), [])

    c = {}
    return (
        f,
        [
            call(normal(1, 2)),
            call(normal(1, 2), cache=c),
            call(normal(1, 2), cache=c),
            call(normal(1, 2), {1: torch.ones(1, 2)}),
        ],
        net,
    )


@program
def break_inside_special_methods():
    class V:
        def __init__(self, v):
            self.v = v

        def __add__(self, o):
            print("add")
            return V(self.v + o.v)

        def __eq__(self, o):
            print("eq")
            return self.v is o.v

        def __getitem__(self, i):
            print("get", i)
            return self.v[i]

        def __len__(self):
            print("len")
            return 2

        def __call__(self, k):
            print("call")
            return self.v * k

        def __bool__(self):
            print("bool")
            return True

        def __enter__(self):
            print("enter")
            return self

        def __exit__(self, *a):
            print("exit")
            return False

        def __iter__(self):
            print("iter")
            return iter([self.v])

        def __contains__(self, q):
            print("contains")
            return q is self.v

        def __hash__(self):
            return 7

        def __str__(self):
            print("str")
            return "V"

        def __neg__(self):
            print("neg")
            return V(-self.v)

        def __getattr__(self, n):
            print("getattr", n)
            return n

        def __setitem__(self, i, w):
            print("set", i)

        def __delitem__(self, i):
            print("deli", i)

        def __index__(self):
            print("index")
            return 1

        def __iadd__(self, o):
            print("iadd")
            return self

    def f(x):
        a, b = V(x), V(x + 1)
        c = a + b
        r = [
            a == b,
            a[0],
            len(a),
            a(2),
            bool(a),
            (1 if a else 2),
            list(a),
            x in a,
            str(a),
            (-a).v,
            a.zip,
            {a: 1}[a],
            [10, 20][a],
            f"{a}",
            not a,
        ]
        a[0] = 1
        del a[1]
        a += b
        with a as q:
            r.append(q is a)
        for z in a:
            r.append(z)
        (u,) = a
        return c.v, r, u

    return f, [call(count(2)), call(count(2))]


@program
def exceptions_crossing_breaks_with_context():
    def inner(x, n):
        try:
            print("inner")
            if n:
                raise ValueError("a")
            return x
        except ValueError:
            print("handling")
            try:
                raise KeyError("b")
            except KeyError as k:
                print("second")
                raise TypeError("c") from k

    def f(x, n):
        try:
            return inner(x, n)
        except TypeError as e:
            print("outer")
            return x + 1, repr(e.__cause__), repr(e.__context__), repr(e.__cause__.__context__)

    return f, [call(count(2), 0), call(count(2), 1)]


@program
def break_inside_context_managers_of_users():
    log = []

    class CM:
        def __init__(self, n):
            self.n = n

        def __enter__(self):
            log.append(f"in{self.n}")
            return self

        def __exit__(self, *e):
            log.append((f"out{self.n}", e[0] and e[0].__name__))
            return self.n == 2

    @contextlib.contextmanager
    def gen(n):
        log.append("g+")
        try:
            yield n
        finally:
            log.append("g-")

    def f(x, n):
        with CM(1) as a, gen(5) as g, CM(n) as b:
            print(a.n, g, b.n)
            x = x + b.n
            if n > 1:
                raise KeyError(n)
        return x

    def safe(x, n):
        try:
            return f(x, n)
        except KeyError as e:
            return e.args, log[-3:]

    return safe, [call(count(2), 1), call(count(2), 2), call(count(2), 3)], log


@program
def errors_of_builtins_have_their_words():
    def f(x, n):
        out, nothing = [], None
        tests = (
            lambda: [1, 2][n + 5],
            lambda: {}["k"],
            lambda: (1,)[9],
            lambda: "abc".index("z"),
            lambda: [].pop(),
            lambda: {}.popitem(),
            lambda: set().pop(),
            lambda: [1].remove(2),
            lambda: int("x1"),
            lambda: float("q"),
            lambda: next(iter([])),
            lambda: dict([1]),
            lambda: dict([(1, 2, 3)]),
            lambda: tuple(3),
            lambda: list(None),
            lambda: zip([1], 3),
            lambda: max([]),
            lambda: min(),
            lambda: sum(["a"]),
            lambda: len(3),
            lambda: range(1, 2, 0),
            lambda: [].index(0),
            lambda: chr(-1),
            lambda: ord("ab"),
            lambda: n / 0,
            lambda: n % 0,
            lambda: math.sqrt(-1),
            lambda: "%d" % "a",
            lambda: "a".join([1]),
            lambda: getattr(x, "nope"),
            lambda: isinstance(1, 2),
            lambda: issubclass(1, int),
            lambda: super(),
            lambda: object.__new__(),
            lambda: int("12", 99),
            lambda: bytes([300]),
            lambda: [1, 2] < [1, "a"],
            lambda: {[]: 1},
            lambda: {1, []},
            lambda: sorted([1, "a"]),
            lambda: "abc"[1:2:0],
            lambda: x.view(7),
            lambda: torch.cat([]),
            lambda: x.reshape(-1, 3, 5),
            lambda: x + torch.ones(5),
            lambda: x @ torch.ones(7, 7),
            lambda: torch.stack([x, torch.ones(9)]),
            lambda: collections.namedtuple,
            lambda: collections.deque([1]).remove(5),
            lambda: str(b"a", "ascii", 3),
            lambda: "a".encode("nope"),
            lambda: [*3],
            lambda: {**3},
            lambda: (lambda a: a)(),
            lambda: (lambda: 1)(2),
            lambda: (lambda *, k: k)(),
            lambda: (lambda a: a)(1, a=2),
            lambda: [][:"a"],
            lambda: slice(),
            lambda: complex("z"),
            lambda: round("a"),
            lambda: divmod(1, 0),
            lambda: pow(0, -1),
            lambda: 1 << -1,
            lambda: [] * 1.5,
            lambda: iter(3),
            lambda: hash([]),
            lambda: (1).foo,
            lambda: None.foo,
            lambda: nothing(),
            lambda: nothing[0],
            lambda: 3 in 4,
            lambda: "a" in "b" in 3,
            lambda: print.foo,
            lambda: f.bar,
            lambda: type("X", (1,), {}),
            lambda: unpack(),
            lambda: unpack3(),
        )

        def unpack():
            a, b = 1, 2, 3

        def unpack3():
            a, b, *c = [1]

        for t in tests:
            try:
                r = t()
                out.append("ok" if not isinstance(r, (int, str)) else r)
            except Exception as e:
                out.append((type(e).__name__, str(e)))
        return x, out

    return f, [call(count(4), 1), call(count(4), 2)]


@program
def optimizer_written_by_hand_with_groups():
    class SGD:
        def __init__(self, groups, **defaults):
            self.groups = [{**defaults, **g} for g in groups]
            self.state = collections.defaultdict(dict)
            self.t = 0

        @torch.no_grad()
        def step(self, grads):
            self.t += 1
            for g in self.groups:
                for p in g["params"]:
                    d = grads[p]
                    if g.get("wd"):
                        d = d + g["wd"] * p
                    if m := g.get("momentum"):
                        st = self.state[p]
                        if "buf" not in st:
                            st["buf"] = d.clone()
                        else:
                            st["buf"].mul_(m).add_(d)
                        d = st["buf"]
                    p.sub_(g["lr"] * d)

    a, b = torch.ones(2), torch.zeros(2)
    opt = SGD([{"params": [a], "momentum": 0.9}, {"params": [b], "lr": 0.5}], lr=0.1, wd=0.01)

    def f(x):
        opt.step({a: x, b: x * 2})
        return a + b, opt.t, len(opt.state)

    return (
        f,
        [
            call(normal(2)),
            call(normal(2)),
            after(lambda: opt.groups[0].update(lr=1.0), normal(2)),
            after(lambda: opt.state.clear(), normal(2)),
        ],
        (a, b, opt.groups),
    )


@program
def coroutine_like_generators_with_state():
    def scheduler(tasks):
        q = collections.deque(enumerate(tasks))
        log = []
        while q:
            i, t = q.popleft()
            try:
                v = next(t)
            except StopIteration as s:
                log.append((i, "done", s.value))
            else:
                log.append((i, v))
                q.append((i, t))
        return log

    def task(x, n):
        for k in range(n):
            x = x * 2
            yield k
        return x

    def f(x, ns):
        return scheduler([task(x, n) for n in ns])

    return f, [call(count(2), [1, 2]), call(count(2), [3]), call(count(2), [])]


@program
def generator_close_throw_and_return():
    log = []

    def g(x):
        try:
            while True:
                try:
                    x = x + 1 if (s_ := (yield x)) is None else s_
                except KeyError as e:
                    log.append(str(e))
                    yield "caught"
        finally:
            log.append("closed")

    def f(x):
        it = g(x)
        a = next(it)
        b = it.send(x * 2)
        c = it.throw(KeyError("k"))
        d = next(it)
        it.close()
        try:
            next(it)
        except StopIteration:
            log.append("stop")
        it2 = g(x)
        next(it2)
        try:
            it2.throw(ValueError("v"))
        except ValueError as e:
            log.append(repr(e))

        def sub():
            r = yield from (1, 2)
            return (yield r)

        s = sub()
        l = list(s)
        return a, b, c, d, l, log

    return f, [call(count(2)), call(count(2))], log


@program
def event_bus_with_weak_method_like_handlers():
    class Bus:
        def __init__(self):
            self.h = collections.defaultdict(list)

        def on(self, ev, fn=None, *, once=False):
            def deco(fn):
                self.h[ev].append((fn, once))
                return fn

            return deco(fn) if fn else deco

        def emit(self, ev, *a, **k):
            keep, res = [], []
            for fn, once in self.h[ev]:
                res.append(fn(*a, **k))
                if not once:
                    keep.append((fn, once))
            self.h[ev][:] = keep
            return res

    bus = Bus()
    seen = []

    class L:
        def got(self, x, k=1):
            seen.append(("got", k))
            return x * k

    l = L()
    bus.on("e", l.got)

    @bus.on("e", once=True)
    def first(x, k=0):
        seen.append("first")
        return x + k

    def f(x, k):
        r = bus.emit("e", x, k=k)
        if k == 2:
            bus.on("e", lambda x, k: x - k, once=True)
        return r, len(seen), bus.emit("none"), {e: len(v) for e, v in bus.h.items()}

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 3), call(count(2), 3)], seen


@program
def plugin_manager_with_priorities_and_chain():
    class Stop(Exception):
        def __init__(self, value):
            self.value = value

    class Manager:
        def __init__(self):
            self._p = []

        def register(self, p, pr=0):
            bisect.insort(self._p, (pr, len(self._p), p))
            return p

        def __iter__(self):
            return (p for _, _, p in self._p)

        def run(self, hook, x, **kw):
            for p in self:
                fn = getattr(p, hook, None)
                if not callable(fn):
                    continue
                try:
                    x = fn(x, **kw)
                except Stop as s:
                    return s.value
            return x

    class Add:
        def __init__(self, k):
            self.k = k

        def pre(self, x, n=0):
            return x + self.k + n

        post = "not callable"

    class Halt:
        def pre(self, x, n=0):
            if n > 1:
                raise Stop(x * 100)
            return x

    m = Manager()
    m.register(Add(1), 5)
    m.register(Halt(), 3)

    def f(x, n):
        return m.run("pre", x, n=n), m.run("post", x), [type(p).__name__ for p in m]

    return (
        f,
        [call(count(2), 0), call(count(2), 2), after(lambda: m.register(Add(10), 1), count(2), 2), call(count(2), 1)],
        None,
    )


@program
def matrix_class_with_slices_and_ellipsis():
    class Grid:
        def __init__(self, t):
            self.t = t
            self.log = []

        def __getitem__(self, key):
            self.log.append(key if not isinstance(key, tuple) else tuple(type(k).__name__ for k in key))
            match key:
                case (int(i), int(j)):
                    return self.t[i, j]
                case (slice() as s, _):
                    return Grid(self.t[s, key[1]])
                case _ if key is Ellipsis:
                    return self.t
                case int():
                    return self.t[key]
                case slice(start=None, stop=b):
                    return self.t[:b].sum()
                case str():
                    raise TypeError(f"bad key {key!r}")

        def __setitem__(self, key, v):
            self.t = self.t.clone()
            self.t[key] = v

        def __matmul__(self, o):
            return Grid(self.t @ o.t)

        def __pow__(self, n):
            return functools.reduce(operator.matmul, [self] * n)

        def __neg__(self):
            return Grid(-self.t)

        def __eq__(self, o):
            return self.t.shape == o.t.shape

        def __getattr__(self, n):
            if n == "T":
                return Grid(self.t.T)
            raise AttributeError(n)

    def f(x, n):
        g = Grid(x)
        g[0, :] = n
        try:
            g["q"]
        except TypeError as e:
            m = str(e)
        return (
            g[1, 0],
            g[0:1, 1].t,
            g[...],
            g[:2],
            g[-1],
            (g**n).t,
            (-g.T).t,
            g == g.T,
            g != Grid(x[0]),
            m,
            len(g.log),
            g.log[:3],
        )

    return f, [call(normal(2, 2), 2), call(normal(2, 2), 3), call(normal(3, 3), 2)]


@program
def undo_stack_with_commands():
    class Cmd:
        registry = {}

        def __init_subclass__(cls, **k):
            Cmd.registry[cls.__name__.lower()] = cls

        def __init__(self, *a):
            self.a = a

        def __repr__(self):
            return f"{type(self).__name__}{self.a}"

    class Push(Cmd):
        def do(self, s):
            s.append(*self.a)

        def undo(self, s):
            s.pop()

    class Clear(Cmd):
        def do(self, s):
            self.old = s[:]
            s.clear()

        def undo(self, s):
            s[:] = self.old

    class Ed:
        def __init__(self):
            self.s, self.done, self.undone = [], [], []

        def run(self, name, *a):
            c = Cmd.registry[name](*a)
            c.do(self.s)
            self.done.append(c)
            self.undone.clear()

        def undo(self):
            if self.done:
                c = self.done.pop()
                c.undo(self.s)
                self.undone.append(c)

        def redo(self):
            if self.undone:
                c = self.undone.pop()
                c.do(self.s)
                self.done.append(c)

    ed = Ed()

    def f(x, script):
        for op, *a in script:
            getattr(ed, op)(*a)
        return sum(ed.s, x), len(ed.done), str(ed.done), list(map(repr, ed.undone))

    return (
        f,
        [
            call(count(2), [("run", "push", 1), ("run", "push", 2)]),
            call(count(2), [("undo",)]),
            call(count(2), [("redo",), ("run", "clear")]),
            call(count(2), [("undo",), ("undo",)]),
        ],
        ed.s,
    )


@program
def expression_tree_with_dunder_building():
    class N:
        prec = 0

        def __add__(self, o):
            return Op("+", self, wrap(o))

        def __radd__(self, o):
            return Op("+", wrap(o), self)

        def __mul__(self, o):
            return Op("*", self, wrap(o))

        __rmul__ = lambda self, o: Op("*", wrap(o), self)

        def __call__(self, **env):
            return self.ev(collections.ChainMap(env))

    class Var(N):
        def __init__(self, n):
            self.n = n

        def ev(self, e):
            return e[self.n]

        def __str__(self):
            return self.n

    class Const(N):
        def __init__(self, v):
            self.v = v

        def ev(self, e):
            return self.v

        def __str__(self):
            return str(self.v)

    class Op(N):
        fn = {"+": operator.add, "*": operator.mul}

        def __init__(self, op, *a):
            self.op, self.args = op, a

        def ev(self, e):
            return self.fn[self.op](*(a.ev(e) for a in self.args))

        def __str__(self):
            return f"({f' {self.op} '.join(map(str, self.args))})"

    def wrap(o):
        return o if isinstance(o, N) else Const(o)

    def f(x, k):
        a, b = Var("a"), Var("b")
        e = 2 * a + b * k + 1
        try:
            e(a=x)
        except KeyError as err:
            m = err.args
        return e(a=x, b=x + 1), str(e), m, f"{a}{e.op}"

    return f, [call(count(2), 3), call(count(2), 4), call(count(2), 0.5)]


@program
def pagination_iterators_combined():
    class Pages:
        def __init__(self, n, size):
            self.n, self.size, self.fetched = n, size, []

        def __len__(self):
            return self.n

        def __getitem__(self, i):
            if isinstance(i, slice):
                return [self[k] for k in range(*i.indices(len(self)))]
            if i < 0:
                i += self.n
            if not 0 <= i < self.n:
                raise IndexError(i)
            self.fetched.append(i)
            return list(range(i * self.size, (i + 1) * self.size))

    def f(x, n, size):
        p = Pages(n, size)
        flat = [v for page in p for v in page]
        a = list(itertools.chain.from_iterable(p[1:]))
        b = p[-1][-1] if n else None
        c = [v for v in reversed(p)]
        d = 0 in p, [0] in p
        e = list(zip(p, itertools.count(10)))
        g = list(itertools.compress(flat, itertools.cycle([1, 0])))
        h = list(itertools.takewhile(lambda v: v < 3, flat)), list(itertools.dropwhile(lambda v: v < 3, flat))
        first, *others = p if n else [None]
        return (
            x * len(flat),
            a,
            b,
            c,
            d,
            e,
            g,
            h,
            others,
            p.fetched,
            list(itertools.batched(flat, 2)) if hasattr(itertools, "batched") else 0,
        )

    return f, [call(count(2), 2, 2), call(count(2), 3, 1), call(count(2), 0, 2)]


@program
def interval_map_and_bisect_keys():
    class IM:
        def __init__(self, *pairs):
            self.k, self.v = map(list, zip(*sorted(pairs)))

        def __getitem__(self, key):
            i = bisect.bisect_right(self.k, key) - 1
            if i < 0:
                raise KeyError(key)
            return self.v[i]

        def __setitem__(self, key, v):
            i = bisect.bisect_left(self.k, key)
            if i < len(self.k) and self.k[i] == key:
                self.v[i] = v
            else:
                self.k.insert(i, key)
                self.v.insert(i, v)

        def __contains__(self, k):
            return k in self.k

    im = IM((0, 1.0), (10, 0.1), (5, 0.5))

    def f(x, step, put=None):
        if put is not None:
            im[step] = put
        try:
            lr = im[step]
        except KeyError as e:
            return x, repr(e)
        return x * lr, lr, step in im, len(im.k)

    return (
        f,
        [
            call(count(2), 3),
            call(count(2), 7),
            call(count(2), -1),
            call(count(2), 7, 9.0),
            call(count(2), 8),
            call(count(2), 12),
        ],
        im,
    )
