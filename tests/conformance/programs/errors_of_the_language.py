"""What Python raises for displays, calls and numbers that do not work out, caught and uncaught."""

from __future__ import annotations

import collections
import functools
import itertools
import math

import torch

from tests.conformance.catalogue import after, call, count, program


def shown(f):
    try:
        return f()
    except Exception as error:
        tb = error.__traceback__
        lines = []
        while tb is not None:
            lines.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
            tb = tb.tb_next
        return type(error).__name__, str(error), [l for l in lines if l[0] != "shown"]


def ident(*a, **k):
    return a, k


@program(core=True)
def displays_that_fail():
    def outer(x, bad):
        y = x * 2
        out = [
            shown(lambda: [*bad]),
            shown(lambda: (*bad,)),
            shown(lambda: {*bad}),
            shown(lambda: ident(*bad)),
            shown(lambda: {**bad}),
            shown(lambda: ident(**bad)),
            shown(lambda: [1, *bad, 2]),
            shown(lambda: {1, *bad}),
            shown(lambda: ident(1, *bad, k=2)),
            shown(lambda: ident(1, **bad, z=2)),
            shown(lambda: {"a": 1, **bad}),
        ]
        return y + 1, out

    return outer, [call(count(3), 5), call(count(3), None), call(count(3), 2.5)]


@program
def literals_that_fail():
    def outer(x):
        y = x * 2
        out = [
            shown(lambda: [*5]),
            shown(lambda: ident(*5)),
            shown(lambda: {[]}),
            shown(lambda: {[]: 1}),
            shown(lambda: {{}: 1}),
            shown(lambda: dict(5)),
            shown(lambda: dict([1])),
            shown(lambda: dict([(1, 2, 3)])),
            shown(lambda: dict(["ab", "c"])),
            shown(lambda: set([[]])),
            shown(lambda: frozenset([{}])),
            shown(lambda: {1: 2}[[]]),
            shown(lambda: [] in {1}),
            shown(lambda: [] in {1: 2}),
            shown(lambda: {[] for _ in range(1)}),
            shown(lambda: {[]: 1 for _ in range(1)}),
            shown(lambda: hash([])),
            shown(lambda: hash({})),
            shown(lambda: {1}.add([])),
            shown(lambda: dict.fromkeys([[]])),
            shown(lambda: {}.get([])),
            shown(lambda: {}.setdefault([], 1)),
            shown(lambda: {}.pop([])),
            shown(lambda: ident(**{1: 2})),
            shown(lambda: ident(a=1, **{"a": 2})),
            shown(lambda: list(5)),
            shown(lambda: tuple(5)),
            shown(lambda: set(5)),
            shown(lambda: sum(5)),
            shown(lambda: sorted(5)),
            shown(lambda: max(5)),
            shown(lambda: max([])),
            shown(lambda: min()),
            shown(lambda: zip(5)),
            shown(lambda: enumerate(5)),
            shown(lambda: map(len, 5)),
            shown(lambda: filter(None, 5)),
            shown(lambda: reversed(5)),
            shown(lambda: reversed({1})),
            shown(lambda: iter(5)),
            shown(lambda: next([])),
            shown(lambda: len(5)),
            shown(lambda: range("a")),
            shown(lambda: range(1, 2, 0)),
            shown(lambda: any(5)),
            shown(lambda: all(5)),
            shown(lambda: int("x")),
            shown(lambda: float("y")),
            shown(lambda: int([])),
            shown(lambda: chr(-1)),
            shown(lambda: ord("ab")),
            shown(lambda: round("a")),
            shown(lambda: abs("a")),
            shown(lambda: divmod(1, 0)),
            shown(lambda: pow(0, -1)),
            shown(lambda: pow(2, -1, 4)),
            shown(lambda: 1 % 0),
            shown(lambda: 1 << -1),
            shown(lambda: "a" + 1),
            shown(lambda: [] + ()),
            shown(lambda: -"a"),
            shown(lambda: ~1.5),
        ]
        return y + 1, out

    return outer, [call(count(3)), call(count(4))]


@program
def subscripts_that_fail():
    def outer(x, k):
        y = x * 2
        nothing, y_list = None, [1]

        def set1():
            [1][k] = 2

        def set2():
            (1,)[0] = 2

        def set3():
            "abc"[0] = "d"

        def del1():
            del [1][5]

        def del2():
            del {}[k]

        def del3():
            del (1,)[0]

        def set4():
            {}[[]] = 1

        def set5():
            [1, 2, 3][::2] = [1]

        def set6():
            [1, 2][0:1] = 5

        def set7():
            None[0] = 1

        def aug():
            t = (1, [2])
            t[1] += [3]

        out = [shown(f) for f in (set1, set2, set3, del1, del2, del3, set4, set5, set6, set7, aug)]
        out += [
            shown(lambda: [1][k]),
            shown(lambda: (1,)[k]),
            shown(lambda: "a"[k]),
            shown(lambda: {}[k]),
            shown(lambda: k[0]),
            shown(lambda: nothing[0]),
            shown(lambda: y_list["a"]),
            shown(lambda: y_list[k / 2]),
            shown(lambda: [1][::0]),
            shown(lambda: range(3)[k]),
            shown(lambda: b"a"[k]),
            shown(lambda: collections.deque([1])[k]),
            shown(lambda: (1, k)[nothing]),
            shown(lambda: len[0]),
            shown(lambda: ident[0]),
        ]
        return y, out

    return outer, [call(count(3), 7), call(count(3), 9), call(count(3), -8)]


@program(raises=TypeError)
def star_of_a_number_leaves():
    def outer(x, v):
        y = x + 1
        z = [*v]
        return y, z

    return outer, [call(count(3), [1]), call(count(3), 5)]


@program(raises=TypeError)
def unhashable_in_a_display_leaves():
    def outer(x, v):
        y = x + 1
        return y, {1, v}

    return outer, [call(count(3), 5), call(count(3), []), call(count(3), {})]


@program(raises=TypeError)
def double_star_of_a_list_leaves():
    def outer(x, v):
        y = x + 1
        return y, ident(**v)

    return outer, [call(count(3), {"a": 2}), call(count(3), [1])]


@program(raises=TypeError)
def keyword_twice_leaves():
    def outer(x, v):
        y = x + 1
        return y, ident(a=1, **v)

    return outer, [call(count(3), {"b": 2}), call(count(3), {"a": 3})]


@program(core=True)
def single_dispatch_functions():
    @functools.singledispatch
    def act(v, x):
        return x

    @act.register
    def _(v: int, x):
        return x * v

    @act.register(str)
    def _(v, x):
        return x + len(v)

    @act.register(list)
    def _(v, x):
        return x - len(v)

    def outer(x, v):
        return act(v, x)

    return outer, [
        call(count(3), 2),
        call(count(3), "abc"),
        call(count(3), [1, 2]),
        call(count(3), 2.5),
        after(lambda: act.register(float, lambda v, x: x * v), count(3), 2.5),
        call(count(3), True),
        call(count(3), None),
    ]


@program
def single_dispatch_on_tensors_and_classes():
    class A:
        pass

    class B(A):
        pass

    class C(B):
        pass

    @functools.singledispatch
    def act(v, x):
        return x

    @act.register(torch.Tensor)
    def _(v, x):
        return x * v

    @act.register(A)
    def _(v, x):
        return x + 1

    def outer(x, v):
        return act(v, x), act.dispatch(type(v)) is act.dispatch(int)

    return outer, [
        call(count(3), count(3)),
        call(count(3), A()),
        call(count(3), C()),
        after(lambda: act.register(B)(lambda v, x: x + 7), count(3), C()),
        call(count(3), 3),
    ]


@program
def single_dispatch_method():
    class K:
        scale = 3.0

        @functools.singledispatchmethod
        def act(self, v, x):
            return x

        @act.register
        def _(self, v: int, x):
            return x * v * self.scale

        @act.register(str)
        def _(self, v, x):
            return x + len(v)

    k = K()

    def outer(x, v):
        return k.act(v, x)

    return outer, [
        call(count(3), 2),
        call(count(3), "abc"),
        call(count(3), 2.5),
        after(lambda: setattr(K, "scale", 5.0), count(3), 2),
    ]


@program
def chain_from_iterable():
    def outer(x, lists):
        return (
            x + sum(itertools.chain.from_iterable(lists)),
            list(itertools.chain.from_iterable([[x, x * 2], (x * 3,)])),
            list(itertools.chain.from_iterable(i for i in ((1, 2), [3]))),
        )

    return outer, [
        call(count(3), [[1, 2], [3]]),
        call(count(3), [[1, 2], [4]]),
        call(count(3), ((), (5,))),
        call(count(3), []),
    ]


@program
def math_of_a_float_that_varies():
    def outer(x, s):
        return (
            x * math.exp(s) + math.sqrt(s),
            math.log(s),
            x * math.sin(s),
            math.floor(s),
            math.pow(s, 2.0),
            math.isnan(s),
            x + math.log2(s) + math.tanh(s),
            math.hypot(s, 1.0),
        )

    return outer, [call(count(3), v) for v in (0.5, 1.5, 2.5, 3.5, 2.0, 7.25)]


@program(raises=ValueError)
def math_of_a_float_out_of_its_domain():
    def outer(x, s):
        return x * math.sqrt(s)

    return outer, [call(count(3), v) for v in (0.5, 1.5, 2.5, -3.5, 2.0)]


@program(raises=OverflowError)
def math_overflow():
    def outer(x, s):
        return x * math.exp(s)

    return outer, [call(count(3), v) for v in (0.5, 1.5, 2.5, 1000.0, 2.0)]


@program
def math_of_an_int_that_varies():
    def outer(x, n):
        return (
            x * math.exp(n) + math.sqrt(n),
            math.log(n),
            x * math.sin(n),
            math.pow(n, 2),
            x + math.log2(n),
            math.factorial(n),
            math.gcd(n, 6),
            math.comb(n, 2),
            math.isqrt(n),
            math.prod([n, 2]),
            math.fsum([n, 0.5]),
        )

    return outer, [call(count(3), v) for v in (2, 3, 4, 5, 6, 7)]


@program
def power_with_a_remainder():
    def outer(x, n):
        return x ** (n % 3), 2**n, n**2, x * n**0.5, (n % 3) ** 2, (-n) ** (n % 2), n ** (n % 4)

    return outer, [call(count(3), v) for v in (2, 3, 4, 5, 6, 7)]


@program
def power_of_a_tensor_by_a_varying_int():
    def outer(x, n):
        return x**n, torch.pow(x, n), n**x

    return outer, [call(count(3), v) for v in (2, 3, 4, 5, 6, 0, 1, -1)] if False else [
        call(count(3) + 1, v) for v in (2, 3, 4, 5, 0, 1)
    ]


@program
def powers_of_sizes():
    def outer(x):
        return (
            x * x.shape[0] ** 2,
            x.shape[0] ** -0.5 * x,
            x.size(0) ** -1,
            1 / math.sqrt(x.shape[0]),
            x.shape[0] ** (x.dim() + 1),
            2 ** x.shape[0],
        )

    return outer, [call(count(n)) for n in (3, 4, 5, 6)]


@program
def integer_floor_and_modulo_of_negatives():
    def outer(x, n, m):
        return (
            x * (n // m),
            n % m,
            divmod(n, m),
            -n // m,
            -(n // m),
            n // -m,
            n % -m,
            math.fmod(n, m),
            n / m,
            int(n / m),
            round(n / m),
            n & m,
            n | m,
            n ^ m,
            n << 2,
            n >> 1,
            ~n,
            abs(n),
            n.bit_length(),
            (-n) % m,
            math.trunc(n / m),
            math.floor(n / m),
            math.ceil(n / m),
        )

    return outer, [
        call(count(3), a, b) for a, b in ((7, 3), (-7, 3), (8, 3), (-9, 4), (10, -3), (11, -4), (-12, -5), (100, 7))
    ]


@program
def big_integers():
    def outer(x, n):
        big = n**40 + 1
        return (
            x + (big % 97),
            big,
            hash(big),
            big.bit_length(),
            -big // 7,
            big & 0xFFFF,
            big >> 100,
            int(str(big)[:5]),
            (1 << 200) - big,
            big.to_bytes(400, "big")[-9:],
            float(n**3),
            big == big + 0,
            bin(n),
            hex(n),
            oct(n),
            f"{big:,}",
            f"{n:x}",
            f"{n:08b}",
        )

    return outer, [call(count(3), v) for v in (7, 8, 9, 10, 2**40, 2**62 + 1, 2**70)]


@program
def floats_formatted_and_rounded():
    def outer(x, s):
        return (
            x * s,
            f"{s:.3f}",
            f"{s:e}",
            f"{s:g}",
            f"{s!r}",
            f"{s:>10.2f}|{s:<10}|{s:^12.1f}|{s:+}",
            "%.2f %5.1f %g" % (s, s, s),
            "{:.1%}".format(s),
            round(s),
            round(s, 1),
            round(s, -1),
            s.is_integer(),
            s.hex(),
            s.as_integer_ratio(),
            int(s),
            str(s),
            repr(s),
            s // 1,
            s % 1,
            divmod(s, 0.3),
            math.modf(s),
            math.frexp(s),
        )

    return outer, [call(count(3), v) for v in (2.5, 0.125, 1e20, -3.75, 0.1 + 0.2, -0.0, 1e-7)]


@program
def rounding_half():
    def outer(x, s, n):
        return (
            x + round(s, n),
            round(s * 10, n),
            round(0.5),
            round(1.5),
            round(2.5),
            round(-0.5),
            round(2.675, 2),
            round(1234567, -n),
            round(s),
        )

    return outer, [
        call(count(3), 2.675, 2),
        call(count(3), 1.005, 2),
        call(count(3), 0.5, 1),
        call(count(3), 1.25, 1),
        call(count(3), -2.5, 0),
    ]
