"""Programs of which a function used to be left to eager whole: `except*`, iterators and generators that are live where a graph
breaks, and instructions that can only be cut out by letting Python execute them.
"""

from __future__ import annotations

import contextlib
import decimal
import itertools
import sys
import traceback
import types

import numpy as np
import torch

from tests.conformance.catalogue import call, count, normal, program


def described(error):
    if error is None:
        return None
    parts = [described(part) for part in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    lines = [
        (entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__) if entry.filename == __file__
    ]
    notes = tuple(getattr(error, "__notes__", ()))
    return type(error).__name__, str(error), notes, repr(error.__cause__), repr(error.__context__), lines, parts


def fail(kind):
    if kind == 0:
        raise ExceptionGroup(
            "g", [ValueError("a"), TypeError("b"), ExceptionGroup("n", [ValueError("c"), KeyError("d")])]
        )
    if kind == 1:
        raise ValueError("naked")
    if kind == 2:
        raise KeyError("other")
    if kind == 3:
        raise BaseExceptionGroup("bg", [ValueError("a"), KeyboardInterrupt()])


@program(core=True)
def groups_of_exceptions_caught_in_parts():
    def inner(x, kind, log):
        y = x + 1
        try:
            fail(kind)
            y = y * 2
        except* ValueError as group:
            group.add_note("seen")
            log.append(("v", len(group.exceptions), type(group).__name__, sys.exception() is group))
            y = y - 1
            raise
        except* (TypeError, KeyError) as group:
            log.append(("t", len(group.exceptions)))
            y = y - 2
            raise RuntimeError("new") from group
        else:
            log.append("else")
        finally:
            log.append("finally")
        log.append(sys.exception())
        return y

    def f(x, kind, log):
        try:
            z = inner(x, kind, log)
        except BaseException as e:
            log.append(described(e))
            z = x - 5
        return z * 2

    return f, [call(count(3), k, []) for k in (0, 1, 2, 3, 4)]


@program
def groups_of_exceptions_around_breaks():
    def inner(x, kind, log):
        y = x + 1
        try:
            fail(kind)
            y = y * 2
        except* ValueError as group:
            print("v", len(group.exceptions), y.sum().item())
            log.append(("v", len(group.exceptions), type(group).__name__, sys.exception() is group))
            y = y - 1
            raise
        except* (TypeError, KeyError) as group:
            print("t", y.sum().item())
            log.append(("t", len(group.exceptions)))
            y = y - 2
            raise RuntimeError("new") from group
        else:
            log.append("else")
        finally:
            print("fin")
            log.append("finally")
        log.append(sys.exception())
        return y

    def f(x, kind, log):
        try:
            z = inner(x, kind, log)
        except BaseException as e:
            log.append(described(e))
            z = x - 5
        return z * 2

    return f, [call(count(3), k, []) for k in (0, 1, 2, 3)]


@program
def group_of_exceptions_from_outside():
    def f(x, error, log):
        y = x + 1
        try:
            raise error
        except* ValueError as group:
            log.append(
                (
                    "v",
                    [repr(e) for e in group.exceptions],
                    group.exceptions[0] is error or group.exceptions[0] in getattr(error, "exceptions", ()),
                )
            )
            y = y - 1
        except* TypeError as group:
            log.append(("t", [repr(e) for e in group.exceptions]))
            y = y * 3
        return y

    return f, [
        call(count(3), ExceptionGroup("g", [ValueError("a")]), []),
        call(count(3), ExceptionGroup("g", [ValueError("b"), ValueError("c")]), []),
        call(count(3), ExceptionGroup("g", [ValueError("b"), ExceptionGroup("h", [TypeError("c")])]), []),
        call(count(3), ValueError("b"), []),
        call(count(3), TypeError("b"), []),
    ]


@program(raises=TypeError)
def except_star_of_what_is_no_exception():
    def f(x, kind):
        y = x + 1
        try:
            raise ValueError("a")
        except* kind:
            y = y - 1
        return y

    return f, [
        call(count(3), ValueError),
        call(count(3), (KeyError, ValueError)),
        call(count(3), ExceptionGroup),
        call(count(3), int),
    ]


@program
def group_with_a_derive_of_its_own():
    class G(ExceptionGroup):
        def derive(self, excs):
            return G(self.message + "'", excs)

    def f(x, log):
        y = x + 1
        try:
            raise G("a", [ValueError(1), TypeError(2)])
        except* ValueError as g:
            log.append((type(g).__name__, g.message))
        except* TypeError as g:
            log.append((type(g).__name__, g.message))
        return y

    return f, [call(count(3), []), call(count(3), [])]


@program
def except_star_in_a_loop():
    def f(xs, log):
        total = xs[0] * 0
        for i, x in enumerate(xs):
            try:
                if i == 1:
                    raise ExceptionGroup("g", [ValueError(i), KeyError(i)])
                total = total + x
            except* ValueError as g:
                log.append(str(g))
                total = total - 1
            except* KeyError:
                try:
                    raise
                except* KeyError as g:
                    log.append([e.args for e in g.exceptions])
        return total

    return f, [call([count(3)] * 3, []), call([count(2)] * 4, [])]


@program
def sparse_tensors_tested_for_none_and_matched():
    def f(x, s=None, t=None):
        y = x + 1
        if s is not None:
            y = torch.sparse.mm(s, y)
        z = y * 2 if t is None else y * 3
        same = s is t
        match s:
            case None:
                z = z + 1
            case [a, *_]:
                z = z + 2
            case _:
                z = z + 3
        return z, same

    s = torch.eye(3).to_sparse()
    return f, [call(normal(3, 3)), call(normal(3, 3), s), call(normal(3, 3), s, s)]


@program(raises=ValueError)
def exception_from_outside_raised_while_another_is_handled():
    class E(ValueError):
        def __init__(self):
            print("made")
            super().__init__("made here")

    kept = ValueError("kept")

    def f(x, n, log):
        y = x + 1
        try:
            if n == 1:
                raise KeyError("k")
            if n == 2:
                raise E
            if n == 3:
                raise kept
        except KeyError as k:
            y = y * 2
            try:
                if y.shape[0] == 4:
                    raise kept
                raise kept from k
            except ValueError as e:
                log.append((repr(e.__context__), repr(e.__cause__), e is kept))
            kept.__context__ = kept.__cause__ = None
            raise kept
        except E as e:
            log.append((str(e), repr(e.__context__)))
            y = y * 3
        return y

    return (
        f,
        [
            call(normal(3), 0, []),
            call(normal(3), 1, []),
            call(normal(3), 2, []),
            call(normal(3), 3, []),
            call(normal(4), 1, []),
        ],
        kept,
    )


@program
def iterators_of_itertools_across_breaks():
    def f(xs, x, log):
        it = iter(xs)
        for a in itertools.islice(it, 2):
            print(a)
            x = x + a
        rest = list(it)
        live = itertools.chain(xs, rest)
        for a in live:
            print("c", a)
            if a == 2 and len(xs) < 6:
                xs.append(9)
            x = x * a
        log.append((rest, list(live)))
        zl = itertools.zip_longest(xs, rest, fillvalue=x)
        for a, b in zl:
            print("z")
            x = x + a * b
        cy = itertools.cycle(xs)
        got = []
        for a in cy:
            got.append(a)
            if len(got) > 7:
                break
            if len(got) == 2:
                print("cy")
            if len(got) == 6:
                print("cy")
        got.append(next(cy))
        acc = itertools.accumulate(xs, lambda p, q: p * q, initial=1)
        for a in acc:
            print("acc", a)
            got.append(a)
            if a > 2:
                break
        got.append(next(acc, "end"))
        tw = itertools.takewhile(lambda v: v < 3, xs)
        dw = itertools.dropwhile(lambda v: v < 2, xs)
        ff = itertools.filterfalse(lambda v: v % 2, xs)
        co = itertools.compress(xs, itertools.cycle([1, 0]))
        sm = itertools.starmap(lambda p, q: p + q, zip(xs, rest))
        pe = itertools.permutations(xs[:3], 2)
        pr = itertools.product(xs[:2], repeat=2)
        rp = itertools.repeat(x, 3)
        pw = itertools.pairwise(xs)
        everything = [tw, dw, ff, co, sm, pe, pr, rp, pw]
        for one in everything:
            next(one)
        print("all")
        for one in everything:
            got.append(next(one, "none"))
        print("all")
        for one in everything:
            got.append(list(itertools.islice(one, 3)))
        return x, got

    return f, [call([1, 2, 3], count(3), []), call([1, 2, 3, 4], count(3), []), call([2, 1, 3], count(2), [])]


@program
def generators_with_finally_left_by_break():
    def f(x, n, log):
        def gen(name):
            try:
                for i in range(5):
                    with contextlib.ExitStack() as stack:
                        stack.callback(log.append, f"{name} exit {i}")
                        yield i
            except GeneratorExit:
                log.append(f"{name} exits")
                raise
            finally:
                log.append(f"{name} closed")

        for i in gen("a"):
            x = x + i
            if i == n:
                break
        else:
            log.append("whole")
        log.append("after a")

        def inner():
            for i in gen("b"):
                if i == n:
                    return i

        x = x + (inner() or 0)
        log.append("after b")
        kept = gen("c")
        for i in kept:
            if i == n:
                break
        log.append("after c")
        x = x + sum(kept)
        for i in gen("d"):
            for j in gen("e"):
                if j == 1:
                    break
            if i == 1:
                break
        return x

    return f, [call(count(3), n, []) for n in (0, 2, 9)]


@program
def sparse_tensor_in_a_closure():
    s = torch.eye(3).to_sparse()

    def f(x):
        y = x + 1
        z = torch.sparse.mm(s, y)
        return z * 2

    return f, [call(normal(3, 3)), call(normal(3, 3))]


@program
def array_in_a_closure_unpacked():
    s = np.arange(3.0)

    def f(x):
        y = x + 1
        a, *b = s
        z = y + float(a) + len(b)
        return z * 2, +s

    return f, [call(normal(3, 3)), call(normal(3, 3))]


@program
def iterator_from_outside_unpacked_with_a_star():
    def f(x, it):
        y = x + 1
        a, *b = it
        return y * a, b

    return f, [call(normal(3), map(int, "123")), call(normal(3), map(int, "1234"))]


@program
def mapping_proxy_as_keyword_arguments():
    def g(**kw):
        return sorted(kw.items())

    def f(x, m):
        y = x + 1
        r = g(**m)
        q = g(c=3, **m)
        return y * 2, r, q

    return f, [call(normal(3), types.MappingProxyType({"a": 1})), call(normal(3), types.MappingProxyType({"b": 1}))]


@program(raises=TypeError)
def mapping_proxy_that_repeats_a_keyword():
    def g(**kw):
        return sorted(kw.items())

    def f(x, m):
        y = x + 1
        q = g(c=3, **m)
        return y * 2, q

    return f, [call(normal(3), types.MappingProxyType({"a": 1})), call(normal(3), types.MappingProxyType({"c": 1}))]


@program
def positive_of_a_decimal():
    def f(x, d):
        y = x + 1
        e = +d
        return y * float(e), e

    return f, [call(normal(3), decimal.Decimal("1.5")), call(normal(3), decimal.Decimal("2.5"))]


@program
def patterns_over_objects_that_break():
    class P:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self._a = a
            self.b = b

        @property
        def a(self):
            print("a")
            return self._a

    def f(x, p, d):
        y = x + 1
        match p:
            case P(1, b):
                y = y + b
            case P(a, b=2):
                y = y - a
            case _:
                y = y * 0
        match d:
            case {"k": k, **rest}:
                y = y + k + len(rest)
            case [a, *b]:
                y = y + a + len(b)
            case _:
                y = y - 1
        return y

    return f, [
        call(normal(3), P(1, 5), {"k": 1, "j": 2}),
        call(normal(3), P(3, 2), types.MappingProxyType({"k": 2})),
        call(normal(3), P(3, 3), [1, 2, 3]),
        call(normal(3), 4, np.arange(3)),
    ]


@program
def pairs_and_chains_with_branches_on_tensors():
    def f(x, layers):
        y = x
        for a, b in itertools.pairwise(layers):
            if y.sum() > 100:
                y = y * 0.5
            y = y + a - b
        for v in itertools.chain.from_iterable([[1, 2], (3,)]):
            if y.sum() > 100:
                y = y * 0.5
            y = y + v
        return y

    return f, [call(normal(3), [1, 2, 3]), call(normal(3) + 100, [1, 2, 3, 4])]


@program
def global_made_and_deleted_in_the_call():
    def f(x):
        global NEWG
        y = x + 1
        NEWG = 3
        y = y + NEWG
        del NEWG
        return y * 2

    return f, [call(normal(3)), call(normal(3))]


@program
def class_made_in_the_call():
    def f(x, n):
        y = x + 1

        class P:
            k = n

            def __init__(self, v):
                self.v = v

            def go(self):
                return self.v * self.k

        z = P(y).go()
        return z.cos(), P.__qualname__

    return f, [call(count(3), 2), call(normal(4), 3), call(normal(4), 2)]
