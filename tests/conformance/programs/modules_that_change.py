"""Modules whose parts change between calls, and values of subclasses of Python's own types."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import typing

import numpy as np
import torch
from torch import Tensor, nn

from tests.conformance.catalogue import after, call, count, leaf, normal, program


# --- modules: attributes, buffers, hooks changed between calls
class M(nn.Module):
    mult = 2.0

    def __init__(s):
        super().__init__()
        s.lin = nn.Linear(3, 3)
        s.register_buffer("b", torch.ones(3))
        s.register_buffer("nb", None)
        s.n = 0
        s.opts = {"a": 1}
        s.fn = torch.relu

    def extra(s, x):
        return x

    def forward(s, x):
        s.n += 1
        x = s.fn(s.lin(x)) * s.b * s.mult + s.n
        if s.nb is not None:
            x = x + s.nb
        return s.extra(x) * s.opts["a"]


def mprog(*changes, args=None):
    m = M()
    return m, [call(normal(2, 3))] + [after(functools.partial(c, m), normal(2, 3)) for c in changes], m


@program
def module_buffers_replaced():
    return mprog(
        lambda m: setattr(m, "b", torch.ones(3) * 3),
        lambda m: m.register_buffer("nb", torch.ones(3)),
        lambda m: setattr(m, "nb", None),
        lambda m: m._buffers.__setitem__("b", torch.zeros(3)),
        lambda m: m.b.fill_(7),
        lambda m: setattr(m, "b", torch.ones(1)),
    )


@program
def module_class_attribute_and_method_changed():
    class N(M):
        pass

    m = N()

    def undo():
        for k in ("mult", "extra"):
            if k in N.__dict__:
                delattr(N, k)

    return (
        m,
        [
            call(normal(2, 3)),
            after(lambda: setattr(N, "mult", 5.0), normal(2, 3)),
            after(lambda: setattr(N, "extra", lambda s, x: x - 1), normal(2, 3)),
            after(lambda: setattr(m, "extra", lambda x: x * 9), normal(2, 3)),
            after(undo, normal(2, 3)),
            after(lambda: delattr(m, "extra"), normal(2, 3)),
        ],
        m,
    )


@program
def module_function_attribute_swapped():
    return mprog(
        lambda m: setattr(m, "fn", torch.tanh),
        lambda m: setattr(m, "fn", lambda x: x * 2),
        lambda m: setattr(m, "fn", nn.Tanh()),
        lambda m: m.opts.update(a=4),
        lambda m: setattr(m, "opts", collections.defaultdict(lambda: 3)),
    )


@program
def module_hooks_come_and_go():
    m = M()
    hs = []

    def pre(mod, a):
        return (a[0] * 2,)

    def post(mod, a, o):
        return o + 1

    def kpost(mod, a, k, o):
        return o * 3

    return (
        m,
        [
            call(normal(2, 3)),
            after(lambda: hs.append(m.register_forward_pre_hook(pre)), normal(2, 3)),
            after(lambda: hs.append(m.lin.register_forward_hook(post)), normal(2, 3)),
            after(lambda: hs.append(m.register_forward_hook(kpost, with_kwargs=True)), normal(2, 3)),
            after(lambda: hs.pop(0).remove(), normal(2, 3)),
            after(lambda: [h.remove() for h in hs], normal(2, 3)),
        ],
        m,
    )


@program
def global_module_hook_appears():
    m = M()
    hs = []
    log = []
    return (
        m,
        [
            call(normal(2, 3)),
            after(
                lambda: hs.append(
                    torch.nn.modules.module.register_module_forward_hook(
                        lambda mod, a, o: log.append(type(mod).__name__)
                    )
                ),
                normal(2, 3),
            ),
            after(lambda: hs[0].remove(), normal(2, 3)),
        ],
        log,
    )


@program
def global_backward_hook_appears():
    m = nn.Linear(3, 3)
    hs = []
    register = torch.nn.modules.module.register_module_full_backward_pre_hook
    return (
        lambda x: m(x) * 1,
        [
            call(leaf(2, 3)),
            after(lambda: hs.append(register(lambda mod, gradients: (gradients[0] * 2,))), leaf(2, 3)),
            after(lambda: hs[0].remove(), leaf(2, 3)),
        ],
        m,
    )


@program
def layers_inserted_removed_frozen():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    return (
        m,
        [
            call(normal(2, 3)),
            after(lambda: m.insert(1, nn.Tanh()), normal(2, 3)),
            after(lambda: m.pop(0) if hasattr(m, "pop") else m.__delitem__(0), normal(2, 3)),
            after(lambda: m.append(nn.Linear(3, 2)), normal(2, 3)),
            after(lambda: m[-1].requires_grad_(False), normal(2, 3)),
            after(lambda: m.__setitem__(0, nn.Identity()), normal(2, 3)),
        ],
        m,
    )


@program
def parameters_swapped_tied_and_reinitialised():
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def tie():
        m[1].weight = m[0].weight

    def drop_bias():
        m[0].bias = None

    def reinit():
        with torch.no_grad():
            for p in m.parameters():
                p.fill_(0.5)

    return (
        m,
        [
            call(normal(2, 3)),
            after(tie, normal(2, 3)),
            after(drop_bias, normal(2, 3)),
            after(reinit, normal(2, 3)),
            after(lambda: setattr(m[1], "weight", nn.Parameter(torch.eye(3))), normal(2, 3)),
            after(lambda: m.load_state_dict({k: torch.ones_like(v) for k, v in m.state_dict().items()}), normal(2, 3)),
        ],
        m,
    )


@program
def train_eval_toggles_with_norm_and_dropout():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.ReLU())
    return (
        m,
        [
            call(normal(4, 3)),
            after(m.eval, normal(4, 3)),
            after(m.train, normal(4, 3)),
            after(lambda: m[1].eval(), normal(4, 3)),
            after(lambda: setattr(m[2], "p", 0.0), normal(4, 3)),
            after(lambda: setattr(m[1], "momentum", None), normal(4, 3)),
            after(lambda: m[1].reset_running_stats(), normal(4, 3)),
            after(lambda: m[1].train(), normal(4, 3)),
        ],
        m,
    )


@program
def module_registers_itself_lazily():
    class Lz(nn.Module):
        def __init__(s):
            super().__init__()
            s.proj = None

        def forward(s, x):
            if s.proj is None:
                s.proj = nn.Linear(x.shape[-1], 2)
                s.add_module("act", nn.Tanh())
                s.register_buffer("cnt", torch.zeros(()))
            s.cnt += 1
            return s.act(s.proj(x)), [n for n, _ in s.named_parameters()], s.cnt.clone()

    m = Lz()
    return m, [call(normal(2, 3)), call(normal(2, 3))], m


@program
def module_returns_and_takes_dataclasses():
    @dataclasses.dataclass
    class In:
        x: Tensor
        mask: typing.Optional[Tensor] = None
        opts: dict = dataclasses.field(default_factory=dict)

    @dataclasses.dataclass
    class Out:
        y: Tensor
        aux: list = dataclasses.field(default_factory=list)
        src: typing.Any = None

    class Mo(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 3)

        def forward(s, i):
            y = s.l(i.x)
            if i.mask is not None:
                y = y.masked_fill(i.mask, 0.0)
            o = Out(y, [y.sum()], i)
            o.aux.append(i.opts.get("k", 0))
            i.opts["seen"] = True
            return o

    return Mo(), [
        call(In(normal(2, 3))),
        call(In(normal(2, 3), normal(2, 3) > 0)),
        call(In(normal(2, 3), None, {"k": 3})),
        call(In(normal(4, 3), opts={"k": 4})),
    ]


@program
def getattr_chain_and_delegation():
    class Wrap(nn.Module):
        def __init__(s, inner):
            super().__init__()
            s.inner = inner

        def __getattr__(s, n):
            try:
                return super().__getattr__(n)
            except AttributeError:
                return getattr(s.inner, n)

        def forward(s, *a, **k):
            return s.inner(*a, **k) * s.gain

    class In(nn.Module):
        def __init__(s):
            super().__init__()
            s.gain = 2.0
            s.l = nn.Linear(3, 3)

        def forward(s, x, bias=0.0):
            return s.l(x) + bias

    w = Wrap(Wrap(In()))
    return (
        w,
        [
            call(normal(2, 3)),
            after(lambda: setattr(w.inner.inner, "gain", 3.0), normal(2, 3), bias=1.0),
            after(lambda: setattr(w, "gain", 5.0), normal(2, 3)),
            call(normal(2, 3), bias=normal(3)),
        ],
        w,
    )


@program
def mixins_with_super_forward():
    class Res:
        def forward(s, x):
            return x + super().forward(x)

    class Scl:
        scale = 0.5

        def forward(s, x):
            return super().forward(x) * s.scale

    class L(nn.Linear):
        pass

    class A(Res, Scl, L):
        pass

    class B(Scl, Res, L):
        scale = 2.0

    a, b = A(3, 3), B(3, 3)

    def f(x, w):
        return (a if w else b)(x), type(a).__mro__[1].__name__

    return f, [
        call(normal(2, 3), True),
        call(normal(2, 3), False),
        after(lambda: setattr(a, "scale", 9.0), normal(2, 3), True),
    ]


@program
def callable_layers_in_plain_containers():
    ls = [nn.Linear(3, 3), torch.tanh, lambda x: x * 2, functools.partial(torch.clamp, min=0), nn.Sequential(nn.ReLU())]
    cfg = {"on": {0, 2}, "rep": 1}

    def f(x):
        for _ in range(cfg["rep"]):
            for i, l in enumerate(ls):
                if i in cfg["on"] or isinstance(l, nn.Sequential):
                    x = l(x)
        return x

    return f, [
        call(normal(2, 3)),
        after(lambda: cfg["on"].add(1), normal(2, 3)),
        after(lambda: ls.append(torch.neg), normal(2, 3)),
        after(lambda: cfg.update(rep=2, on={5, 3}), normal(2, 3)),
    ]


@program
def iterating_state_dicts_and_named_children():
    m = nn.Sequential(collections.OrderedDict(a=nn.Linear(2, 2), b=nn.Sequential(nn.ReLU(), nn.Linear(2, 1))))

    def f(x):
        sizes = {k: tuple(v.shape) for k, v in m.state_dict().items()}
        names = (
            [n for n, _ in m.named_modules()],
            [n for n, c in m.named_children()],
            [n for n, p in m.named_parameters() if p.requires_grad],
        )
        tot = sum(p.numel() for p in m.parameters())
        return (
            m(x) + tot,
            sizes,
            names,
            dict(m.named_buffers()),
            len(m),
            m.a.weight is m[0].weight,
            m.get_submodule("b.1").bias is m.b[1].bias,
        )

    return f, [
        call(normal(2, 2)),
        after(lambda: m.a.weight.requires_grad_(False), normal(2, 2)),
        after(lambda: m.b.append(nn.Tanh()), normal(2, 2)),
    ]


@program
def weights_averaged_and_copied_in_frame():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)

    def f(x, t):
        with torch.no_grad():
            for p, q in zip(a.parameters(), b.parameters()):
                p.lerp_(q, t)
                q.data.mul_(0.9)
            a.weight[0] = 0
            b.bias.copy_(a.bias)
        return a(x) + b(x)

    return f, [call(normal(2, 3), 0.5), call(normal(2, 3), 0.25), call(normal(2, 3), 0.25)], (a, b)


@program
def module_deepcopied_in_frame():
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def f(x):
        n = copy.deepcopy(m)
        with torch.no_grad():
            n[0].weight.zero_()
        return m(x), n(x), n[0].weight is m[0].weight

    return f, [call(normal(2, 2)), call(normal(2, 2))], m


@program
def tensors_deepcopied_in_frame():
    def f(x, d):
        y = copy.deepcopy(x)
        y.add_(1)
        e = copy.deepcopy(d)
        e["a"].mul_(2)
        e["l"].append(1)
        return y, e, e["a"] is e["b"], copy.copy(x) is x

    t = count(3)
    return f, [call(count(3), {"a": t, "b": t, "l": [t]}), call(count(4), {"a": t, "b": t, "l": []})]


@program
def functional_and_stateful_optimizer_by_hand():
    class SGD:
        def __init__(s, ps, lr, mom):
            s.ps, s.lr, s.mom, s.buf, s.t = list(ps), lr, mom, {}, 0

        @torch.no_grad()
        def step(s, gs):
            s.t += 1
            for i, (p, g) in enumerate(zip(s.ps, gs)):
                b = s.buf.get(i)
                s.buf[i] = b = g.clone() if b is None else b.mul_(s.mom).add_(g)
                p.add_(b, alpha=-s.lr)

    m = nn.Linear(2, 1)
    o = SGD(m.parameters(), 0.1, 0.9)

    def f(x, y):
        l = (m(x) - y).pow(2).mean()
        gs = torch.autograd.grad(l, list(m.parameters()))
        o.step(gs)
        return l.detach()

    return (
        f,
        [
            call(normal(4, 2), normal(4, 1)),
            call(normal(4, 2), normal(4, 1)),
            after(lambda: setattr(o, "lr", 0.01), normal(4, 2), normal(4, 1)),
        ],
        (m, o.buf),
    )


@program
def class_level_caches_and_counters():
    class C:
        made = 0
        cache = {}

        def __new__(cls, k):
            if k in cls.cache:
                return cls.cache[k]
            o = super().__new__(cls)
            cls.cache[k] = o
            cls.made += 1
            return o

        def __init__(s, k):
            s.k = k

        @classmethod
        def stats(cls):
            return cls.made, sorted(cls.cache)

        @staticmethod
        def scale(x, k):
            return x * k

    def f(x, k):
        a, b = C(k), C(k)
        return C.scale(x, a.k), a is b, C.stats()

    return f, [
        call(count(2), 1),
        call(count(2), 1),
        call(count(2), 2),
        after(lambda: (C.cache.clear(), setattr(C, "made", 0)), count(2), 1),
    ]


class Name(str):
    def shout(self):
        return self.upper() + "!"


class F_(float):
    def twice(s):
        return s * 2


class I_(int):
    def big(s):
        return s > 2


class By(bytes):
    pass


@program(core=True)
def values_of_subclasses_of_builtins():
    def f(x, n, v, i, b):
        return (
            x * v + i,
            n.shout(),
            n[0],
            n == "a",
            n + "c",
            v.is_integer(),
            v.twice(),
            i.bit_length(),
            i.big(),
            range(5)[i],
            f"{n}-{v}-{i}",
            len(n),
            b.hex(),
            b[0],
            "a" in n,
            {"a": 1}.get(n),
            int(i),
            float(v),
            x[:i],
            [n].count("a"),
            max(i, 2),
            n.join(["x", "y"]),
            "%s" % n,
            hash(n) == hash("a"),
            bool(i),
            -v,
            i // 2,
            isinstance(i, int),
            type(n).__name__,
        )

    return f, [
        call(count(4), Name("a"), F_(1.5), I_(1), By(b"q")),
        call(count(4), Name("b"), F_(1.5), I_(1), By(b"q")),
        call(count(4), Name("b"), F_(2.0), I_(1), By(b"q")),
        call(count(4), Name("ba"), F_(2.0), I_(3), By(b"z")),
    ]


@program
def enum_like_strings_in_configs():
    class Act(Name):
        pass

    table = {Act("relu"): torch.relu, Act("tanh"): torch.tanh}

    def f(x, a):
        return table[a](x), a in table, table.get("tanh") is torch.tanh, a.startswith("r"), a.title()

    return f, [call(normal(4), Act("relu")), call(normal(4), Act("tanh")), call(normal(4), "relu")]


@program
def numpy_values_as_settings():
    def f(x, k):
        return x * k, k > 2, float(k) + 1, int(k), str(float(k)), k + 1, -k, round(float(k)), isinstance(k, float)

    return f, [
        call(normal(4), np.float64(2.5)),
        call(normal(4), np.float64(3.5)),
        call(normal(4), np.float64(1.5)),
        call(normal(4), 2.5),
    ]


@program
def hooks_registered_in_one_call_have_keys_of_their_own():
    """The class of the handles counts them, and belongs to torch."""
    layer = torch.nn.Linear(3, 3)

    def hooked(x):
        handles = [layer.register_forward_hook(lambda module, args, out, by=by: out * by) for by in (2, 3)]
        result = layer(x)
        handles[0].remove()
        return result, layer(x), len(layer._forward_hooks), handles[1].id - handles[0].id

    return hooked, [call(count(2, 3)), call(count(2, 3)), after(layer._forward_hooks.clear, count(2, 3))]
