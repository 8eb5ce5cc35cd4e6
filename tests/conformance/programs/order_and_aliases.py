"""Side effects in order when something raises half-way, aliases, closures, context managers and generators."""

from __future__ import annotations

import collections
import contextlib
import itertools
import types

import torch

from tests.conformance.catalogue import call, count, program


def show(*a):
    print(*a)


class Logger:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, tb):
        self.log.append(("out", kind and kind.__name__, str(error) if error else None))
        return False


class Swallow(Logger):
    def __exit__(self, kind, error, tb):
        super().__exit__(kind, error, tb)
        return True


@program(raises=ValueError)
def effects_before_a_raise_in_a_comprehension():
    log = []

    def step(v):
        log.append(v)
        if v == 2:
            raise ValueError("two")
        return v

    def outer(x, n):
        y = x + 1
        r = [step(i) for i in range(n)]
        return y, r

    return outer, [call(count(3), 2), call(count(3), 5), call(count(3), 1)], log


@program(raises=ValueError)
def effects_before_a_raise_with_breaks():
    log = []
    d = {}

    def outer(x, n):
        for i in range(n):
            log.append(i)
            d[i] = x * i
            print("step", i)
            if i == 2:
                d.pop(0)
                raise ValueError(f"at {i}")
            log.append(("done", i))
        return x, len(log)

    return outer, [call(count(3), 2), call(count(3), 5), call(count(3), 1)], (log, d)


@program
def raise_half_way_through_an_extend():
    def gen(x, log):
        for i in range(3):
            log.append(i)
            yield x * i
            if i == 1:
                raise KeyError("half")

    def outer(x, log, out):
        try:
            out.extend(gen(x, log))
        except KeyError as e:
            log.append(str(e))
        try:
            out += gen(x, log)
        except KeyError as e:
            log.append(str(e))
        try:
            out[1:2] = gen(x, log)
        except KeyError as e:
            log.append("slice")
        try:
            {}.update((i, v) for i, v in enumerate(gen(x, log)))
        except KeyError as e:
            log.append("upd")
        return len(out)

    a, b = [], []
    return outer, [call(count(3), a, b), call(count(3), a, b)], (a, b)


@program(core=True)
def half_way_dict_update():
    def pairs(log):
        yield "a", 1
        log.append("mid")
        raise ValueError("p")

    def outer(x, d, log):
        try:
            d.update(pairs(log))
        except ValueError:
            log.append("caught")
        try:
            d |= pairs(log)
        except ValueError:
            log.append("caught2")
        try:
            d.update([("c", 3), ("d",)])
        except ValueError as e:
            log.append(str(e))
        return x + len(d)

    d, l = {}, []
    return outer, [call(count(3), d, l), call(count(3), d, l)], (d, l)


@program
def half_way_unpacking_assignment():
    class Target:
        def __init__(self):
            self.log = []

        def __setattr__(self, n, v):
            if n == "b":
                raise ValueError("no b")
            object.__setattr__(self, n, v)

    def outer(x, t, lst):
        try:
            t.a, t.b, t.c = x, x + 1, x + 2
        except ValueError as e:
            lst.append(str(e))
        try:
            lst[0], lst[99] = 5, 6
        except IndexError as e:
            lst.append(str(e))
        return hasattr(t, "a"), hasattr(t, "c")

    t = Target()
    l = ["x"]
    return outer, [call(count(3), t, l), call(count(4), t, l)], (t, l)


@program(core=True)
def evaluation_order_of_everything():
    def outer(x, log):
        def t(v):
            log.append(v)
            return v

        a = t([0] * 4)
        a[t(1)] = t(7)
        t(a)[t(2)], t(a)[t(3)] = t(8), t(9)
        d = {t("k"): t("v"), **t({"z": 1}), t("k2"): t(2)}
        f = t(lambda *a, **k: (a, k))(t(1), *t([2]), k=t(3), **t({"m": 4}))
        c = t(1) < t(2) < t(0) < t(5)
        s = t(0) or t("") or t("last")
        n = t(1) and t(0) and t(5)
        g = t(3) if t(False) else t(4)
        l = [t(i) for i in t(range(2)) if t(True)]
        a[t(0)] += t(1)
        x = t(x) + t(1) * t(2)
        assert t(True), t("never")
        return x, a, d, f, c, s, n, g, l, len(log)

    log = []
    return outer, [call(count(3), []), call(count(3), [])]


@program
def aliases_of_containers_in_and_out():
    def outer(x, a, b):
        a.append(x)
        b.append(x * 2)
        c = [a, b, a]
        d = {"a": a, "c": c, "self": None}
        d["self"] = d
        return c, d, (a, a), [x, x], a is b, [[]] * 3

    l = []
    return outer, [call(count(3), [], []), call(count(3), l, l), call(count(3), l, l)], l


@program
def aliases_of_tensors_in_and_out():
    def outer(x, y):
        v = x.view(-1)
        w = v[1:]
        z = x + y
        return x, [x, v], {"w": w, "z": z, "z2": z}, x is y, v._base is x if v._base is not None else None, z[0:2], z

    t = count(2, 3)
    return outer, [call(count(2, 3), count(2, 3)), call(t, t), call(t, t.clone())]


@program
def same_object_through_two_paths():
    class K:
        pass

    def outer(x, o, d):
        o.v = x + 1
        d["o"].w = x + 2
        d["o"].v = d["o"].v + 1
        return o.v, getattr(o, "w", None), d["o"] is o

    k = K()
    k2 = K()
    return outer, [call(count(3), k, {"o": k}), call(count(3), k2, {"o": k}), call(count(3), k, {"o": k})], (k, k2)


@program
def default_list_shared_with_caller():
    shared = []

    def outer(x, acc=shared):
        acc.append(x.shape[0])

        def inner(b=acc):
            b.append("in")
            return b

        return inner() is acc, len(acc), acc

    return outer, [call(count(3)), call(count(4)), call(count(3), [])], shared


@program
def nonlocal_counters_with_breaks():
    def outer(x):
        n = 0
        seen = []

        def bump(k):
            nonlocal n
            n += k
            print("bump", n)
            seen.append(n)

            def deeper():
                nonlocal n
                n *= 2
                return n

            return deeper()

        a = bump(1)
        b = bump(2)
        print(n)
        return x * n, a, b, seen, bump

    return outer, [call(count(3)), call(count(4))]


@program
def closures_made_in_a_loop_with_breaks():
    def outer(x):
        fs = []
        for i in range(3):

            def f(y, i=i):
                return y + i + j

            j = i * 10
            fs.append(f)
            print("made", i)
        j = 100
        return [f(x) for f in fs], fs[0](x)

    return outer, [call(count(3)), call(count(3))]


@program
def cell_deleted_and_rebound():
    def outer(x):
        v = x + 1

        def f():
            return v

        a = f()
        del v
        try:
            f()
        except NameError as e:
            m = str(e)
        print("break")
        try:
            f()
        except NameError as e:
            m2 = str(e)
        v = x + 5
        return a, f(), m, m2

    return outer, [call(count(3)), call(count(3))]


@program
def nonlocal_of_the_entry_written():
    total = 0.0
    hist = []

    def outer(x):
        nonlocal total, hist
        total += float(x.shape[0])
        print("t", total)
        hist = [*hist, total]
        total -= 1
        return x * total, hist

    def get():
        return total, hist

    return outer, [call(count(3)), call(count(4)), call(count(4))], get


@program
def context_managers_with_breaks_and_errors():
    def outer(x, lg, sw, n):
        with lg as l, sw:
            y = x + 1
            print("inside")
            if n == 1:
                raise ValueError("one")
            y = y * 2
            if n == 2:
                return y, "early"
        print("after", len(lg.log))
        with contextlib.suppress(ZeroDivisionError):
            print("again")
            n / (n - 3)
        try:
            with lg:
                print("deep")
                if n == 4:
                    raise KeyError("k")
        except KeyError as e:
            y = x - 1
        return y, lg.log, sw.log

    return outer, [call(count(3), Logger(), Swallow(), n) for n in (0, 1, 2, 3, 4)]


@program
def generator_context_managers():
    log = []

    @contextlib.contextmanager
    def scope(name):
        log.append(("enter", name))
        try:
            yield name.upper()
        except ValueError as e:
            log.append(("error", str(e)))
        else:
            log.append(("fine", name))
        finally:
            log.append(("exit", name))

    def outer(x, n):
        with scope("a") as a, scope("b"):
            y = x * 2
            if n == 1:
                raise ValueError("v")
            if n == 2:
                print("p")
        with scope("c"):
            for i in range(2):
                with scope("d"):
                    if i == 0:
                        continue
                    y = y + i
        return y, a

    return outer, [call(count(3), 0), call(count(3), 1), call(count(3), 2)], log


@program
def exit_stack_and_callbacks():
    def outer(x, log, n):
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.callback(log.append, i)
                stack.enter_context(contextlib.nullcontext(i))
            stack.push(lambda *a: log.append(a[0] and a[0].__name__) or True)
            if n == 3:
                raise ValueError("x")
            y = x + n
            return y, "ret"
        return x, "fell"

    log = []
    return outer, [call(count(3), log, 2), call(count(3), log, 3), call(count(3), log, 1)], log


@program
def exit_that_raises_or_returns():
    class Bad:
        def __init__(self, mode):
            self.mode = mode

        def __enter__(self):
            return self

        def __exit__(self, k, e, t):
            if self.mode == 1:
                raise KeyError("from exit")
            return self.mode

    def outer(x, m):
        try:
            with Bad(m):
                x = x + 1
                raise ValueError("body")
        except KeyError as e:
            return x, "key", type(e.__context__).__name__, e.__cause__
        except ValueError as e:
            return x, "value", e.__context__
        return x, "swallowed"

    return outer, [call(count(3), m) for m in (0, 1, 2, "", "x", None)]


@program
def generators_send_throw_close():
    def gen(x, log):
        got = None
        try:
            while True:
                try:
                    got = yield x + len(log), got
                    log.append(got)
                except ValueError as e:
                    log.append(("caught", str(e)))
                    yield "handled"
        finally:
            log.append("closed")

    def outer(x, log):
        g = gen(x, log)
        out = [next(g), g.send(5), g.throw(ValueError("v")), next(g), g.send("a")]
        g.close()
        g.close()
        try:
            next(g)
        except StopIteration as e:
            out.append(("stop", e.value))
        try:
            g.send(None)
        except StopIteration as e:
            out.append("stop2")
        try:
            g.throw(KeyError("late"))
        except KeyError as e:
            out.append(str(e))
        return out

    return outer, [call(count(3), []), call(count(3), [])]


@program
def generators_return_values_and_delegation():
    def inner(n, log):
        for i in range(n):
            r = yield i
            log.append(r)
        return n * 10

    def middle(n, log):
        a = yield from inner(n, log)
        b = yield from [7, 8]
        try:
            c = yield from inner(1, log)
        except KeyError:
            c = "key"
        return a, b, c

    def outer(x, n):
        log = []
        g = middle(n, log)
        out = []
        try:
            out.append(next(g))
            for k in range(10):
                if k == n + 2:
                    out.append(g.throw(KeyError("t")))
                else:
                    out.append(g.send(k) if k < n else next(g))
        except StopIteration as e:
            out.append(e.value)
        return x + n, out, log

    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 3)]


@program
def generator_misuse():
    def gen():
        yield 1
        yield 2

    def bad():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def selfish():
        next(me[0])
        yield 1

    me = []

    def outer(x):
        out = []
        g = gen()
        try:
            g.send(3)
        except TypeError as e:
            out.append(str(e))
        b = bad()
        next(b)
        try:
            b.close()
        except RuntimeError as e:
            out.append(str(e))
        s = selfish()
        me.append(s)
        try:
            next(s)
        except ValueError as e:
            out.append(str(e))
        me.clear()
        g2 = gen()
        g2.close()
        out.append(list(g2))
        g3 = gen()
        try:
            g3.throw(ValueError)
        except ValueError as e:
            out.append(("v", str(e)))
        out.append(list(g3))
        try:
            g3.throw(5)
        except TypeError as e:
            out.append(str(e))
        return x + 1, out

    return outer, [call(count(3)), call(count(3))]


@program
def generator_attributes_and_types():
    def gen():
        "doc"
        yield 1

    def outer(x):
        g = gen()
        return (
            x,
            isinstance(g, types.GeneratorType),
            isinstance(g, collections.abc.Iterator),
            type(g).__name__,
            g.__name__,
            iter(g) is g,
            hasattr(g, "send"),
            isinstance(g, collections.abc.Generator),
            callable(g),
        )

    return outer, [call(count(3)), call(count(3))]


@program
def break_inside_generators():
    def gen(x, n):
        for i in range(n):
            print("y", i)
            r = yield x * i
            if r:
                print("got", r)
        return "end"

    def outer(x, n):
        t = x.sum() * 0
        for v in gen(x, n):
            t = t + v.sum()
        g = gen(x, n)
        a = next(g)
        b = g.send("hello")

        def deleg():
            r = yield from gen(x, 2)
            print("r", r)

        t2 = list(deleg())
        return t, a, b, t2

    return outer, [call(count(3), 2), call(count(3), 3)]


@program
def generator_expression_scoping():
    def outer(x, n):
        k = 1
        g = (i * k for i in range(n))
        k = 10
        a = list(g)
        g2 = ((i, j) for i in range(2) for j in range(i, n) if (i + j) % 2)
        first = next(g2, None)
        return (
            x * k,
            a,
            first,
            list(g2),
            sum(i for i in a),
            max((i for i in a), default=None),
            [*(c for c in "abc")],
            dict((i, i * i) for i in range(3)),
            tuple(i for i in range(n)),
        )

    return outer, [call(count(3), 2), call(count(3), 3), call(count(3), 0 + 1)]


@program
def infinite_generator_with_islice_and_takewhile():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    def outer(x, n):
        g = naturals()
        a = list(itertools.islice(g, n))
        b = next(g)
        c = list(itertools.takewhile(lambda v: v < 10, g))
        d = next(g)
        return x + b, a, c, d, list(zip(g, "ab")), next(g)

    return outer, [call(count(3), 2), call(count(3), 3)]


@program
def recursion_with_generators():
    def walk(t):
        if isinstance(t, (list, tuple)):
            for c in t:
                yield from walk(c)
        elif isinstance(t, dict):
            for k in sorted(t):
                yield from walk(t[k])
        else:
            yield t

    def outer(tree):
        return [v * 2 for v in walk(tree)], sum(v.sum() for v in walk(tree) if isinstance(v, torch.Tensor))

    return outer, [call([count(2), (count(3), {"b": count(2), "a": count(1)})]), call({"z": [count(2)]})]


@program
def sets_of_tensors_and_objects_from_outside():
    class K:
        pass

    k = K()

    def outer(x, s, other):
        s.add(x)
        n = len(s)
        a = x in s, k in s, other in s
        s.discard(other)
        return x + n, a, len(s), {x, k} == s, bool(s), frozenset(s) >= {x}

    y = count(3)
    return outer, [call(count(3), {k}, y), call(count(3), {k, y}, y), call(count(3), {y, 1}, count(3))], k


@program
def frozen_sets_of_objects_from_outside():
    class K:
        pass

    ks = [K(), K()]
    known = frozenset(ks[:1])

    def outer(x, k):
        return x * 2 if k in known else x * 3

    return outer, [call(count(3), ks[0]), call(count(3), ks[1]), call(count(3), ks[0])]


@program
def argument_changes_between_tensor_and_number():
    Pair = collections.namedtuple("Pair", "x y")

    def outer(p):
        print("one")
        q = p.y
        print("two")
        return p.x * q

    return outer, [call(Pair(count(3), v)) for v in (count(3), 2.0, 3, count(3).double(), True)]
