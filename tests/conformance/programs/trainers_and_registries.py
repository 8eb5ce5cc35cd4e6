"""Training loops, environments, registries, configurations, context managers and callbacks as people write them."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import math
import types
import typing
import weakref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance.catalogue import after, call, count, integers, normal, program, under

# ---- hashed user objects


# ---- contextvars
var = contextvars.ContextVar("scale", default=1.0)


@program
def context_variable_read():
    def f(x):
        return x * var.get()

    def set_it(v):
        return lambda: var.set(v)

    return f, [call(count(3)), after(set_it(3.0), count(3)), after(set_it(1.0), count(3))]


@program
def context_variable_set_and_reset_inside():
    v2 = contextvars.ContextVar("v2")

    def inner(x):
        return x * v2.get(2.0)

    def f(x):
        tok = v2.set(5.0)
        y = inner(x)
        v2.reset(tok)
        return y, inner(x)

    return f, [call(count(3)), call(count(4))]


# ---- weakrefs
class Node_:
    def __init__(self, v):
        self.v = v
        self.parent = None
        self.kids = []

    def add(self, k):
        k.parent = weakref.ref(self)
        self.kids.append(k)
        return k

    def total(self):
        return self.v + sum(k.total() for k in self.kids)


@program
def tree_with_weak_parents():
    root = Node_(count(3))
    a = root.add(Node_(count(3) * 2))
    b = a.add(Node_(torch.ones(3)))

    def f(x):
        p = b.parent().parent()
        return x + p.total(), p is root, a.parent() is root, root.parent is None

    return f, [call(count(3)), after(lambda: a.add(Node_(torch.ones(3))), count(3))]


@program
def weak_value_dictionary_used():
    d = weakref.WeakValueDictionary()
    n = Node_(count(3))
    d["n"] = n

    def f(x):
        return x + d["n"].v if "n" in d else x

    return f, [call(count(3)), after(lambda: setattr(n, "v", count(3) * 7), count(3))], n


@program
def weak_key_dictionary_used():
    d = weakref.WeakKeyDictionary()
    n = Node_(2.0)
    d[n] = 3.0

    def f(x, o):
        return x * d.get(o, 1.0)

    m = Node_(1.0)
    return f, [call(count(3), n), call(count(3), m), after(lambda: d.update({m: 8.0}), count(3), m)], (n, m)


# ---- __torch_function__ subclasses / modes
class Scaled:
    def __init__(self, t, s):
        self.t, self.s = t, s

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.t * a.s if isinstance(a, Scaled) else a for a in args]
        return func(*args, **(kwargs or {}))


@program
def duck_tensors_with_torch_function():
    def f(x, s):
        a = Scaled(x, s)
        return torch.add(a, 1), torch.matmul(a, a), torch.cat([x, x])

    return f, [call(normal(3, 3), 2.0), call(normal(3, 3), 3.0), call(normal(2, 2), 3.0)]


class MyT(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r = super().__torch_function__(func, types, args, kwargs or {})
        return r


@program
def tensor_subclass_argument_with_torch_function():
    def f(x):
        y = x * 2
        return y.sum(), type(y).__name__, isinstance(y, MyT)

    return f, [call(normal(3).as_subclass(MyT)), call(normal(3)), call(normal(4).as_subclass(MyT))]


class LogMode(torch.overrides.TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(getattr(func, "__name__", "?"))
        return func(*args, **(kwargs or {}))


@program
def torch_function_mode_inside():
    log = []

    def f(x):
        with LogMode(log):
            y = torch.sin(x) + 1
        return y

    return f, [call(normal(3)), call(normal(3))], log


@program
def torch_function_mode_around():
    log = []

    def f(x):
        return torch.sin(x) + 1

    return f, [under(lambda: LogMode(log), normal(3)), call(normal(3)), under(lambda: LogMode(log), normal(3))], log


# ---- stateful decorators
def counted(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        w.calls += 1
        return fn(*a, **k)

    w.calls = 0
    return w


@program
def decorator_with_a_counter():
    @counted
    def g(x):
        return x * 2

    def f(x):
        return g(x) + g.calls, g.calls

    return f, [call(count(3)), call(count(3)), call(count(3)), after(lambda: setattr(g, "calls", 100), count(3))], g


class Memo:
    def __init__(self, fn):
        self.fn, self.store = fn, {}
        functools.update_wrapper(self, fn)

    def __call__(self, x, k):
        if k not in self.store:
            self.store[k] = self.fn(x, k)
        return self.store[k]

    def __get__(self, obj, owner):
        return self if obj is None else functools.partial(self, obj)


@program
def class_decorator_memo():
    @Memo
    def g(x, k):
        return x * k

    def f(x, k):
        return g(x, k) + 1, g.__name__, sorted(g.store)

    return (
        f,
        [call(count(3), 1), call(count(3) + 5, 1), call(count(3), 2), after(lambda: g.store.clear(), count(3), 1)],
        g,
    )


def retry(times, exc=(ValueError,)):
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            for i in range(times):
                try:
                    return fn(*a, attempt=i, **k)
                except exc as e:
                    last = e
            raise RuntimeError(f"failed after {times}") from last

        return w

    return deco


@program(raises=RuntimeError)
def retry_decorator():
    @retry(3)
    def g(x, need, attempt):
        if attempt < need:
            raise ValueError(attempt)
        return x + attempt

    def f(x, n):
        return g(x, n)

    return f, [call(count(3), 0), call(count(3), 2), call(count(3), 5)]


# ---- __set_name__, descriptors with typed fields
class Typed:
    def __init__(self, kind, default=None):
        self.kind, self.default = kind, default

    def __set_name__(self, owner, name):
        self.name = "_" + name
        owner._fields = getattr(owner, "_fields", ()) + (name,)

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, self.default)

    def __set__(self, obj, v):
        if not isinstance(v, self.kind):
            raise TypeError(f"{self.name[1:]} must be {self.kind.__name__}, not {type(v).__name__}")
        setattr(obj, self.name, v)


class Hyper:
    lr = Typed(float, 0.1)
    steps = Typed(int, 2)


@program(raises=TypeError)
def fields_by_set_name():
    h = Hyper()

    def f(x, steps):
        h.steps = steps
        for _ in range(h.steps):
            x = x - h.lr * x
        return x, Hyper._fields, h.lr

    return (
        f,
        [call(count(3), 1), call(count(3), 3), after(lambda: setattr(h, "lr", 0.5), count(3), 2), call(count(3), "4")],
        h,
    )


# ---- dataclass-configured models
@dataclasses.dataclass
class Block:
    width: int
    act: str = "relu"
    drop: float = 0.0
    norm: bool = True


@dataclasses.dataclass
class Conf:
    blocks: list = dataclasses.field(default_factory=list)
    scale: float = 1.0
    extra: dict = dataclasses.field(default_factory=dict)


class Net(nn.Module):
    ACTS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}

    def __init__(self, conf, d=4):
        super().__init__()
        self.conf = conf
        self.layers = nn.ModuleList()
        for b in conf.blocks:
            self.layers.append(
                nn.ModuleDict({"lin": nn.Linear(d, b.width), **({"norm": nn.LayerNorm(b.width)} if b.norm else {})})
            )
            d = b.width

    def forward(self, x):
        for layer, b in zip(self.layers, self.conf.blocks):
            x = layer["lin"](x)
            if "norm" in layer:
                x = layer["norm"](x)
            x = self.ACTS[b.act](x)
            if self.training and b.drop:
                x = F.dropout(x, b.drop)
        return x * self.conf.scale if self.conf.extra.get("scaled", True) else x


@program(core=True)
def network_configured_by_dataclasses():
    c = Conf([Block(5), Block(6, "gelu", norm=False), Block(3, "silu")])
    n = Net(c)

    def change():
        c.blocks[0].act = "silu"

    return n, [
        call(normal(2, 4)),
        after(lambda: setattr(c, "scale", 0.5), normal(2, 4)),
        after(change, normal(2, 4)),
        after(lambda: c.extra.update(scaled=False), normal(2, 4)),
        after(lambda: c.blocks.__setitem__(1, dataclasses.replace(c.blocks[1], act="relu")), normal(3, 4)),
    ]


@program
def dataclass_asdict_and_fields_inside():
    c = Conf([Block(5)], 2.0)

    def f(x, b):
        d = dataclasses.asdict(b)
        n = [fl.name for fl in dataclasses.fields(b)]
        r = dataclasses.replace(b, width=b.width + 1)
        return x * d["width"] * r.width, n, dataclasses.astuple(b), r, b == r, dataclasses.is_dataclass(b)

    return f, [call(count(3), Block(2)), call(count(3), Block(3, "gelu")), call(count(3), Block(2))]


# ---- enum / flags / strenum
class Mode(str, enum.Enum):
    A = "a"
    B = "b"

    @property
    def factor(self):
        return {"a": 1.0, "b": 2.0}[self.value]

    @classmethod
    def parse(cls, t):
        return cls(t.lower())


class Opt(enum.Flag):
    NONE = 0
    BIAS = enum.auto()
    RELU = enum.auto()
    BOTH = BIAS | RELU


@program(raises=ValueError)
def enums_parsed_and_dispatched():
    def f(x, t, o):
        m = Mode.parse(t)
        if Opt.BIAS in o:
            x = x + 1
        if o & Opt.RELU:
            x = x.relu()
        match m:
            case Mode.A:
                y = x * m.factor
            case Mode.B:
                y = x - m.factor
        return y, m.name, m == "a", o, [p.name for p in Opt if p in o], f"{m.value}-{o.value}"

    return f, [
        call(normal(3), "A", Opt.NONE),
        call(normal(3), "b", Opt.BOTH),
        call(normal(3), "a", Opt.RELU),
        call(normal(3), "zz", Opt.RELU),
    ]


# ---- generators pipeline
@program
def windows_and_batches():
    def batched(it, n):
        it = iter(it)
        while chunk := list(itertools.islice(it, n)):
            yield chunk

    def windows(seq, n):
        d = collections.deque(maxlen=n)
        for s in seq:
            d.append(s)
            if len(d) == n:
                yield tuple(d)

    def f(x, n):
        rows = list(x)
        return [torch.stack(b).sum(0) for b in batched(rows, n)], [torch.stack(w).mean(0) for w in windows(rows, n)]

    return f, [call(normal(5, 2), 2), call(normal(6, 2), 3), call(normal(4, 2), 2)]


@program
def coroutine_accumulator():
    def acc():
        total, n = None, 0
        while True:
            v = yield (None if total is None else total / n)
            if v is None:
                return total
            total = v if total is None else total + v
            n += 1

    def f(x):
        g = acc()
        next(g)
        outs = [g.send(r) for r in x]
        try:
            g.send(None)
        except StopIteration as s:
            last = s.value
        return outs, last

    return f, [call(normal(3, 2)), call(normal(4, 2))]


# training callbacks
class Callback_:
    def on_start(self, tr):
        pass

    def on_batch(self, tr, i, loss):
        pass

    def on_end(self, tr):
        pass


class History(Callback_):
    def __init__(self):
        self.losses = []
        self.ended = 0

    def on_batch(self, tr, i, loss):
        self.losses.append(loss.detach())

    def on_end(self, tr):
        self.ended += 1


class EarlyStop(Callback_):
    def __init__(self, n):
        self.n = n

    def on_batch(self, tr, i, loss):
        if i + 1 >= self.n:
            tr.stop = True


class Trainer:
    def __init__(self, model, cbs):
        self.model, self.cbs, self.stop = model, cbs, False

    def fire(self, name, *a):
        for c in self.cbs:
            getattr(c, "on_" + name)(self, *a)

    def fit(self, xs, ys):
        self.stop = False
        self.fire("start")
        total = 0.0
        for i, (x, y) in enumerate(zip(xs, ys)):
            loss = F.mse_loss(self.model(x), y)
            total = total + loss
            self.fire("batch", i, loss)
            if self.stop:
                break
        self.fire("end")
        return total


@program
def trainer_with_callbacks():
    h = History()
    e = EarlyStop(2)
    m = nn.Linear(3, 1)
    t = Trainer(m, [h, e])
    return (
        t.fit,
        [
            call(normal(4, 2, 3), normal(4, 2, 1)),
            after(lambda: setattr(e, "n", 3), normal(4, 2, 3), normal(4, 2, 1)),
            after(lambda: t.cbs.pop(), normal(4, 2, 3), normal(4, 2, 1)),
        ],
        (h, t.__dict__.keys()),
    )


# RL rollouts
class Env:
    def __init__(self):
        self.state = torch.zeros(3)
        self.t = 0
        self.rng = torch.tensor([0.1, -0.2, 0.3])

    def reset(self):
        self.state, self.t = torch.zeros(3), 0
        return self.state

    def step(self, a):
        self.t += 1
        self.state = self.state * 0.9 + self.rng * a
        return self.state, -self.state.pow(2).sum(), self.t >= 4, {"t": self.t}


Transition = collections.namedtuple("Transition", "s a r done")


class Replay:
    def __init__(self, cap):
        self.cap, self.data, self.pos = cap, [], 0

    def push(self, *a):
        if len(self.data) < self.cap:
            self.data.append(None)
        self.data[self.pos] = Transition(*a)
        self.pos = (self.pos + 1) % self.cap

    def sample(self, idx):
        return Transition(
            *map(torch.stack, zip(*[(self.data[i].s, self.data[i].a, self.data[i].r) for i in idx])),
            [self.data[i].done for i in idx],
        )


@program
def rollout_and_replay():
    env, rep, pol = Env(), Replay(6), nn.Linear(3, 3)

    def f(gamma):
        s, done, R = env.reset(), False, []
        while not done:
            a = torch.tanh(pol(s))
            s2, r, done, info = env.step(a)
            rep.push(s.detach(), a.detach(), r.detach(), done)
            R.append(r)
            s = s2
        ret, out = 0.0, []
        for r in reversed(R):
            ret = r + gamma * ret
            out.insert(0, ret)
        b = rep.sample([0, 2, 1])
        return torch.stack(out), b.s, b.done, info

    return f, [call(0.9), call(0.9), call(0.5)], rep


@program
def gae_computation():
    def f(r, v, d, gamma=0.99, lam=0.95):
        adv = torch.zeros_like(r)
        last = 0
        for t in reversed(range(len(r))):
            nv = v[t + 1] if t + 1 < len(v) else torch.zeros(())
            delta = r[t] + gamma * nv * (1 - d[t]) - v[t]
            adv[t] = last = delta + gamma * lam * (1 - d[t]) * last
        return adv, adv + v[: len(r)]

    return f, [
        call(normal(4), normal(5), torch.tensor([0.0, 0, 1, 0])),
        call(normal(3), normal(4), torch.tensor([0.0, 0, 1])),
        call(normal(4), normal(4), torch.tensor([0.0, 0, 1, 0]), lam=0.5),
    ]


# registries
REG = {}


def register(name=None):
    def deco(cls):
        REG[name or cls.__name__.lower()] = cls
        return cls

    return deco


@register()
class Relu(nn.Module):
    def forward(self, x):
        return x.relu()


@register("scale")
class Scale(nn.Module):
    def __init__(self, by=2.0):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * self.by


def build(cfg):
    cfg = dict(cfg)
    return REG[cfg.pop("type")](**cfg)


@program
def models_built_from_registry_inside():
    def f(x, cfgs):
        for c in cfgs:
            x = build(c)(x)
        return x

    return f, [
        call(normal(3), [{"type": "relu"}, {"type": "scale", "by": 3.0}]),
        call(normal(3), [{"type": "scale"}]),
        call(normal(3), [{"type": "scale", "by": 3.0}]),
    ]


@program(raises=KeyError)
def registry_changed_between_calls():
    class Other(nn.Module):
        def forward(self, x):
            return x - 1

    reg = dict(REG)

    def f(x, name):
        return reg[name]()(x)

    return f, [
        call(normal(3), "relu"),
        after(lambda: reg.update(relu=Other), normal(3), "relu"),
        call(normal(3), "nope"),
    ]


class Plugin:
    known = {}

    def __init_subclass__(cls, /, tag=None, **kw):
        super().__init_subclass__(**kw)
        cls.known[tag or cls.__name__] = cls
        cls.order = len(cls.known)

    def run(self, x):
        return x * self.order


class PA(Plugin, tag="a"):
    pass


class PB(Plugin, tag="b"):
    def run(self, x):
        return super().run(x) + 1


@program
def plugins_by_init_subclass():
    def f(x, tags):
        for t in tags:
            x = Plugin.known[t]().run(x)
        return (
            x,
            [c.__name__ for c in Plugin.__subclasses__()] if False else None,
            type(Plugin.known["b"]()).__mro__[1] is Plugin,
        )

    return f, [call(normal(3), "ab"), call(normal(3), "ba")]


# context managers with state
class Timer:
    active = []

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        Timer.active.append(self.name)
        return self

    def __exit__(self, t, v, tb):
        Timer.active.pop()
        self.err = t.__name__ if t else None
        return t is ValueError


@program
def nested_scopes_named():
    def f(x, bad):
        names = []
        with Timer("a") as a, Timer("b") as b:
            names.append("/".join(Timer.active))
            with Timer("c") as c:
                names.append("/".join(Timer.active))
                x = x + len(Timer.active)
                if bad:
                    raise ValueError("x")
                x = x * 2
        return x, names, a.err, b.err, c.err, list(Timer.active)

    return f, [call(normal(3), False), call(normal(3), True)]


@contextlib.contextmanager
def swapped(obj, **kw):
    old = {k: getattr(obj, k) for k in kw}
    for k, v in kw.items():
        setattr(obj, k, v)
    try:
        yield obj
    finally:
        for k, v in old.items():
            setattr(obj, k, v)


@program(raises=ZeroDivisionError)
def attributes_swapped_temporarily():
    s = types.SimpleNamespace(a=1.0, b=2.0)

    def g(x):
        return x * s.a + s.b

    def f(x, k):
        with swapped(s, a=k) as t:
            y = g(x)
            if k == 0:
                y = y / k + 1 // int(k)
        return y, g(x), t is s

    return f, [call(normal(3), 3.0), call(normal(3), 4.0), call(normal(3), 0.0), call(normal(3), 5.0)], s


@program
def module_eval_mode_scoped():
    @contextlib.contextmanager
    def evaluating(m):
        was = m.training
        m.eval()
        try:
            yield
        finally:
            m.train(was)

    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))

    def f(x):
        with evaluating(m), torch.no_grad():
            y = m(x)
        return y, m.training, m[1].training

    return f, [call(normal(4, 3)), call(normal(4, 3)), after(lambda: m.eval(), normal(4, 3))], m


@program
def ema_context_swaps_weights():
    m = nn.Linear(2, 2)
    shadow = {k: v.detach().clone() * 2 for k, v in m.named_parameters()}

    @contextlib.contextmanager
    def ema():
        kept = {k: v.detach().clone() for k, v in m.named_parameters()}
        with torch.no_grad():
            for k, v in m.named_parameters():
                v.copy_(shadow[k])
        try:
            yield m
        finally:
            with torch.no_grad():
                for k, v in m.named_parameters():
                    v.copy_(kept[k])

    def f(x):
        with torch.no_grad():
            a = m(x)
            with ema() as e:
                b = e(x)
        return a, b, m(x)

    return f, [call(normal(2, 2)), call(normal(3, 2))], m


# singledispatch / method
@functools.singledispatch
def embed(v, x):
    raise TypeError(type(v).__name__)


@embed.register
def _(v: int, x):
    return x + v


@embed.register(str)
def _(v, x):
    return x * len(v)


@embed.register(list)
@embed.register(tuple)
def _(v, x):
    return sum((embed(i, x) for i in v), torch.zeros_like(x))


@embed.register
def _(v: torch.Tensor, x):
    return x @ v


@program(raises=TypeError)
def embedding_by_type():
    def f(x, *vs):
        return [embed(v, x) for v in vs]

    return f, [
        call(normal(2, 2), 1, "abc", [1, "a"]),
        call(normal(2, 2), normal(2, 2), (1, (2, "z"))),
        call(normal(2, 2), 2, "abcd", []),
        call(normal(2, 2), {}),
    ]


# cached_property
class Geo:
    def __init__(self, r):
        self.r = r
        self.n = 0

    @functools.cached_property
    def area(self):
        self.n += 1
        return math.pi * self.r**2

    @functools.cached_property
    def grid(self):
        self.n += 10
        return torch.arange(3.0) * self.r


@program
def cached_properties_reset_between_calls():
    g = Geo(2.0)

    def f(x):
        return x * g.area + g.grid, g.n, g.area

    def reset():
        g.__dict__.pop("area")
        g.r = 5.0

    return (
        f,
        [
            call(count(3)),
            call(count(3)),
            after(reset, count(3)),
            after(lambda: g.__dict__.pop("grid"), count(3)),
            after(lambda: setattr(g, "area", 1.0), count(3)),
        ],
        g,
    )


# NamedTuple
class Out(typing.NamedTuple):
    logits: Tensor
    loss: typing.Optional[Tensor] = None
    aux: tuple = ()

    @property
    def prob(self):
        return self.logits.softmax(-1)

    def with_loss(self, t):
        return self._replace(loss=F.cross_entropy(self.logits, t))


@program
def named_tuple_outputs():
    m = nn.Linear(3, 4)

    def f(x, t=None):
        o = Out(m(x))
        if t is not None:
            o = o.with_loss(t)
        return o, o.prob, o._asdict(), o[0] is o.logits, len(o), Out._fields, Out._field_defaults

    return f, [call(normal(2, 3)), call(normal(2, 3), integers(2, high=4)), call(normal(3, 3), integers(3, high=4))]


@program
def named_tuple_state_threaded():
    class S(typing.NamedTuple):
        h: Tensor
        c: Tensor
        n: int = 0

    cell = nn.LSTMCell(2, 3)

    def f(xs, s=None):
        s = s or S(torch.zeros(1, 3), torch.zeros(1, 3))
        for x in xs:
            s = S(*cell(x[None], (s.h, s.c)), s.n + 1)
        return s

    return f, [
        call(normal(3, 2)),
        call(normal(3, 2), S(normal(1, 3), normal(1, 3), 5)),
        call(normal(2, 2), S(normal(1, 3), normal(1, 3), 7)),
    ]


# closures mutated between calls
@program
def closure_cells_changed():
    k, l = 2.0, [1.0]

    def setk(v):
        nonlocal k
        k = v

    def f(x):
        return x * k + sum(l)

    return f, [
        call(count(3)),
        after(lambda: setk(3.0), count(3)),
        after(lambda: l.append(2.0), count(3)),
        after(lambda: setk(count(3)), count(3)),
        after(lambda: setk("ab" and 4), count(3)),
    ]


@program
def mutable_default_accumulates():
    def f(x, acc=[], seen={}):
        acc.append(x.shape[0])
        seen[len(acc)] = x.sum()
        return x * len(acc), list(acc), dict(seen)

    return f, [call(count(3)), call(count(3)), call(count(2)), call(count(3), []), call(count(3))]
