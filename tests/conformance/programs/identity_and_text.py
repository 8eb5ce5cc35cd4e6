"""What is the same object, what is an alias, and what is said about it."""

from __future__ import annotations

import contextlib
import logging
import random
import types
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.conformance.catalogue import after, call, count, leaf, normal, program


# --- identity/aliasing natively decided
@program
def closures_of_one_factory_as_keys():
    def make(k):
        def g(x):
            return x * k

        return g

    a, b, c = make(1.0), make(2.0), make(3.0)
    table = {a: 10.0, b: 20.0}

    def f(x, g):
        return g(x) * table.get(g, 0.5), g in table, g in [a, b], [a, b].count(g)

    return f, [
        call(count(3), a),
        call(count(3), b),
        call(count(3), c),
        after(lambda: table.update({c: 5.0}), count(3), c),
    ]


@program
def methods_compared():
    class O:
        def __init__(s, v):
            s.v = v

        def m(s, x):
            return x * s.v

        def n(s, x):
            return x + s.v

    a, b = O(1.0), O(2.0)
    hooks = [a.m, b.m]

    def f(x, h):
        return h(x), h in hooks, h == a.m, hooks.index(h) if h in hooks else -1, h.__self__ is a, h.__func__ is O.m

    return f, [call(count(3), a.m), call(count(3), b.m), call(count(3), b.n), call(count(3), O(1.0).m)]


@program
def same_object_in_a_list_or_not():
    def f(x, l, o):
        n = 0
        for e in l:
            if e is o:
                n += 1
        return x + n, o in l, l.count(o), l == [o, o], tuple(l) == (o, o)

    o, p = types.SimpleNamespace(a=1), object()
    return f, [
        call(count(3), [o, p], o),
        call(count(3), [o, o], o),
        call(count(3), [p, p], o),
        call(count(3), [p, p], p),
    ]


@program
def tensors_in_sets_and_dicts_by_identity():
    def f(a, b):
        s = {a, b}
        d = {a: 1}
        d[b] = 2
        return (a + b) * len(s), len(d), b in {a}, len(set([a, b, a]))

    t = count(3)
    return f, [call(count(3), count(3)), call(t, t), call(count(3), t)]


@program
def unique_parameters_by_id():
    lin = nn.Linear(3, 3)
    other = nn.Linear(3, 3)
    box = types.SimpleNamespace(ms=[lin, other])

    def f(x):
        seen, total = set(), 0.0
        for m in box.ms:
            for p in m.parameters():
                if p in seen:
                    continue
                seen.add(p)
                total = total + p.pow(2).sum()
        return total + x.sum(), len(seen)

    return f, [
        call(count(3)),
        after(lambda: setattr(other, "weight", lin.weight), count(3)),
        after(lambda: box.ms.append(lin), count(3)),
        after(lambda: box.ms.append(nn.Linear(3, 1)), count(3)),
    ]


@program
def id_used_for_deduplication():
    def f(a, b):
        seen = {id(a), id(b)}
        return (a + b) * len(seen), id(a) == id(b)

    t = count(3)
    return f, [call(count(3), count(3)), call(t, t)]


# --- dtype/device things as keys and strings
@program
def text_of_everything():
    def f(x, n):
        return (
            x * n,
            f"{x.shape} {tuple(x.shape)} {x.dtype} {x.device} {x.ndim} {x.size(0):>5} {n:.3e} {n!r}",
            str(x.dtype).split(".")[-1],
            "%s-%d" % (x.dtype, x.numel()),
            f"{x.requires_grad=}",
            "{:04d}".format(x.shape[-1]),
            repr(x.shape),
            f"{list(x.size())}",
            f"{x.stride()}",
            x.type(),
            f"{x.layout}",
        )

    return f, [
        call(normal(2, 3), 1.5),
        call(normal(4, 3), 2.5),
        call(normal(4, 3).double(), 3.5),
        call(normal(2).half(), 4),
        call(normal(3, 2).t().requires_grad_(), 5),
    ]


@program
def tables_by_dtype_and_shape():
    tol = {torch.float32: 1e-5, torch.float64: 1e-8}
    by_shape = {(2, 3): "a", torch.Size([4]): "b"}

    def f(x):
        return (
            x * tol.get(x.dtype, 1.0),
            by_shape.get(tuple(x.shape)),
            by_shape.get(x.shape),
            x.shape in by_shape,
            x.dtype in (torch.float16, torch.bfloat16),
            {x.dtype: 1}[x.dtype],
        )

    return f, [
        call(normal(2, 3)),
        call(normal(4)),
        call(normal(4).double()),
        call(normal(5).half()),
        call(normal(2, 3).double()),
    ]


# --- exceptions with tensors
class ShapeError(ValueError):
    def __init__(self, msg, *, t, expected=None):
        super().__init__(msg)
        self.t, self.expected = t, expected


@program(raises=ShapeError, core=True)
def error_carries_a_tensor():
    def check(x, n):
        if x.shape[0] != n:
            raise ShapeError(f"bad {tuple(x.shape)}", t=x * 2, expected=n)
        return x

    def f(x, n, swallow):
        try:
            return check(x, n), None
        except ShapeError as e:
            e.add_note("noted")
            if not swallow:
                raise
            return e.t + 1, e.args, e.expected, e.__notes__
        finally:
            x.add_(1)

    return f, [call(count(3), 3, True), call(count(3), 4, True), call(count(3), 4, False), call(count(2), 2, False)]


@program(raises=KeyError)
def finally_order_nested():
    def f(x, where):
        log = []

        def step(n, bad):
            try:
                log.append(f"in {n}")
                if bad == n:
                    raise KeyError(n)
                return n
            except KeyError:
                log.append(f"except {n}")
                if n == "b":
                    raise
                return "handled"
            else:
                log.append("else")
            finally:
                log.append(f"finally {n}")

        try:
            try:
                r = [step("a", where), step("b", where)]
            finally:
                log.append("outer")
                x = x * 2
        except KeyError as e:
            r = e.args[0]
            log.append(repr(e))
            if where == "b" and x.shape[0] == 4:
                raise LookupErrorLike(r) from e if False else KeyError("again")
        return x + len(log), log, r

    LookupErrorLike = KeyError
    return f, [call(count(3), ""), call(count(3), "a"), call(count(3), "b"), call(count(4), "b")]


@program
def loop_else_try_continue():
    def f(xs, bad):
        out = []
        for i, x in enumerate(xs):
            try:
                if i == bad:
                    raise IndexError(i)
                if i == bad + 1:
                    continue
                if i == bad + 2:
                    break
                out.append(x * i)
            except IndexError as e:
                out.append(x - e.args[0])
            else:
                out.append(x)
            finally:
                out.append(i)
        else:
            out.append("done")
        return out

    return f, [call([count(2)] * 4, 9), call([count(2)] * 4, 0), call([count(2)] * 4, 2), call([count(2)] * 4, 3)]


@program
def with_return_and_suppress():
    class Guard:
        def __init__(s, log):
            s.log = log

        def __enter__(s):
            s.log.append("in")
            return s

        def __exit__(s, *e):
            s.log.append(e[0].__name__ if e[0] else "ok")
            return e[0] is RuntimeError

    log = []

    def f(x, k):
        with Guard(log) as g:
            with contextlib.suppress(ValueError):
                if k == 1:
                    raise ValueError
                if k == 2:
                    raise RuntimeError("r")
                if k == 3:
                    return x * 3
                x = x + 1
            x = x * 10
        return x

    return f, [call(count(3), i) for i in (0, 1, 2, 3, 0)], log


@program
def closing_and_callbacks_stack():
    log = []

    class R:
        def __init__(s, n):
            s.n = n
            log.append(f"open {n}")

        def close(s):
            log.append(f"close {s.n}")

    def f(x, n):
        with contextlib.ExitStack() as st:
            rs = [st.enter_context(contextlib.closing(R(i))) for i in range(n)]
            st.callback(log.append, "cb")
            st.push(lambda *e: log.append(e[0] is None))
            x = x + len(rs)
            if n > 2:
                kept = st.pop_all()
                kept.close()
        return x

    return f, [call(count(3), 1), call(count(3), 3), call(count(3), 1)], log


# --- in-place, views, out=, aliasing
@program
def outputs_alias_inputs_and_each_other():
    def f(x):
        a = x[:2]
        b = x.view(-1)
        c = x.t()
        d = x.detach()
        e = x.expand(2, *x.shape)
        return a, b, c, d, e, a, (x, [x, a]), {"x": x}

    return f, [call(normal(3, 4)), call(normal(3, 4).requires_grad_()), call(normal(4, 3))]


@program
def inplace_on_views_then_base_read():
    def f(x):
        y = x * 1
        v = y[1:]
        w = v.view(-1)[::2]
        w.mul_(3)
        y[0] = -1
        v += 1
        y.t()[0].zero_()
        z = y.clone()
        z[:, 1:].copy_(y[:, :-1])
        y.unsqueeze(0).sub_(1)
        return y, v, w, z

    return f, [call(normal(4, 4)), call(leaf(4, 4)), call(normal(3, 6))]


@program
def out_keyword_variants():
    buf = torch.empty(3)
    idx = torch.empty(3, dtype=torch.long)

    def f(x, y):
        r = torch.add(x, y, out=buf)
        torch.mul(buf, 2, out=buf)
        v = torch.empty(3)
        i = torch.empty(3, dtype=torch.long)
        m = torch.max(torch.stack([x, y]), 0, out=(v, i))
        z = torch.empty(0)
        torch.cat([x, y], out=z)
        return r is buf, r, v, i, m[0] is v, z

    return f, [call(normal(3), normal(3)), call(normal(3), normal(3))], buf


@program
def augmented_assignment_kinds():
    class Box:
        pass

    def f(x, d, l):
        b = Box()
        b.t = x
        b.t += 1
        d["k"] += x
        l[0] *= 2
        l[-1] @= torch.eye(3)
        x **= 2
        n = 3
        n -= x.shape[0]
        l += [n]
        d |= {"z": n}
        t = (1, x)
        t += (2,)
        return x, b.t is x, t

    return f, [
        call(normal(3), {"k": normal(3)}, [normal(3), normal(2, 3)]),
        call(normal(3), {"k": normal(3)}, [normal(3), normal(2, 3)]),
    ]


# --- random
@program
def dropout_and_noise_share_the_stream():
    m = nn.Dropout(0.3)

    def f(x, train):
        m.train(train)
        a = m(x)
        b = torch.randn(3)
        c = torch.rand_like(x) if train else torch.randperm(4)
        d = torch.randint(0, 5, (2,))
        e = torch.bernoulli(torch.full((3,), 0.5))
        g = torch.normal(0.0, 1.0, (2,))
        h = x.new_empty(2).uniform_()
        return a, b, c, d, e, g, h

    return f, [call(normal(3), True), call(normal(3), False), call(normal(4), True)]


@program
def numpy_and_python_random_mixed():
    def f(x):
        a = random.random()
        b = np.random.rand()
        c = torch.rand(1)
        random.shuffle(l := [1, 2, 3])
        d = random.choice(["a", "b"])
        return x * a + b + c, l, d, random.randint(0, 9), np.random.randint(5)

    return f, [call(normal(3)), call(normal(3))]


# --- numpy interplay
@program
def numpy_inside_and_back():
    def f(x, a):
        n = x.detach().numpy() * 2 + a
        y = torch.from_numpy(n.copy())
        z = torch.as_tensor(a) + x
        return y, z, n.sum(), n.shape, float(n[0]), np.asarray([1.0, 2.0]).tolist()

    return f, [
        call(normal(3), np.ones(3, np.float32)),
        call(normal(3), np.arange(3, dtype=np.float32)),
        call(normal(2), np.ones(2, np.float32)),
    ]


@program
def numpy_scalar_arguments_change():
    def f(x, k, n):
        return x * float(k) + int(n), x[:n], x.sum() * k

    return f, [
        call(normal(4), np.float32(2), np.int64(2)),
        call(normal(4), np.float32(3), np.int64(3)),
        call(normal(4), np.float64(3), np.int32(1)),
    ]


# --- logging
LOG = logging.getLogger("conf.b4")
LOG.propagate = False


class Keep(logging.Handler):
    def __init__(s):
        super().__init__()
        s.rows = []

    def emit(s, r):
        s.rows.append((r.levelname, r.getMessage()))


@program
def logging_at_levels_with_tensors_shapes():
    h = Keep()
    LOG.handlers[:] = [h]
    LOG.setLevel(logging.INFO)

    def f(x):
        LOG.debug("dbg %s", x.shape)
        LOG.info("shape %s %d", tuple(x.shape), x.numel())
        if x.shape[0] > 2:
            LOG.warning("big")
        return x * 2

    return (
        f,
        [
            call(normal(2)),
            call(normal(3)),
            after(lambda: LOG.setLevel(logging.ERROR), normal(3)),
            after(lambda: LOG.setLevel(logging.DEBUG), normal(2)),
        ],
        h.rows,
    )


# --- warn once caches
@program
def warn_once_with_a_set():
    warned = set()

    def once(m):
        if m not in warned:
            warned.add(m)
            warnings.warn(m)

    def f(x):
        once(f"got {x.ndim}")
        return x + len(warned)

    return f, [call(normal(2)), call(normal(2)), call(normal(2, 2)), call(normal(2))], sorted(warned)


@program
def lazy_property_with_lock():
    import threading

    class L:
        def __init__(s):
            s._v = None
            s._lock = threading.Lock()

        @property
        def v(s):
            if s._v is None:
                with s._lock:
                    if s._v is None:
                        s._v = torch.ones(3) * 4
            return s._v

    o = L()

    def f(x):
        return x * o.v

    return f, [call(normal(3)), call(normal(3))], o.__dict__.keys()


@program
def functions_that_know_themselves():
    kept = []

    def f(x):
        if kept:
            own, even, odd = kept.pop()
            return x, own() is own, own()() is own, even(4), odd.__closure__[0].cell_contents is even

        def own():
            return own

        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)

        kept.append((own, even, odd))
        return x + 1

    return f, [call(count(2)), call(count(2))]


@program
def parametrizations_cached_for_a_block():
    class Symmetric(nn.Module):
        def forward(self, matrix):
            return matrix.triu() + matrix.triu(1).mT

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())

    def applied_twice(x):
        with parametrize.cached():
            return layer(layer(x)) + layer.weight.sum()

    return applied_twice, [call(normal(2, 3)), call(normal(2, 3)), call(normal(4, 3))], layer


@program
def modules_named_by_their_identity():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    names = {id(module): name for name, module in network.named_modules()}

    def name_of(module):
        return names.get(id(module), "unknown")

    def replace():
        network[1] = nn.Tanh()

    def run(x):
        trail = []
        for layer in network:
            x = layer(x)
            trail.append(name_of(layer))
        return x, trail

    return run, [call(normal(3, 2)), call(normal(3, 2)), after(replace, normal(3, 2)), call(normal(3, 2))], network


@program
def shared_modules_visited_once():
    shared = nn.Linear(2, 2)
    network = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(2, 2))

    def walk(module, visit, seen):
        if id(module) in seen:
            return
        seen.add(id(module))
        visit(module)
        for child in module._modules.values():
            walk(child, visit, seen)

    def share_all():
        network[3] = shared

    def decayed(x):
        squares = []
        walk(network, lambda m: squares.append(m.weight.pow(2).sum()) if isinstance(m, nn.Linear) else None, set())
        return network(x), sum(squares), len(squares)

    return decayed, [call(normal(3, 2)), call(normal(3, 2)), after(share_all, normal(3, 2)), call(normal(3, 2))], network
