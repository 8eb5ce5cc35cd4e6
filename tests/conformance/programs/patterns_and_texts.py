"""Match statements, formatting, exceptions in detail, unpacking, deletions and globals."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import string
import sys
import traceback
import types

import torch

from tests.conformance.catalogue import after, call, count, program


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class P:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@dataclasses.dataclass
class D:
    a: int
    b: object = None


NT = collections.namedtuple("NT", "p q")
CONST = 5


@program(core=True)
def match_all_patterns():
    def describe(v):
        match v:
            case None:
                return "none"
            case True | False as b:
                return ("bool", b)
            case 0:
                return "zero"
            case -1 | -2:
                return "neg"
            case 1.5:
                return "float"
            case 2 + 3j:
                return "complex"
            case b"by":
                return "bytes"
            case "ab":
                return "ab"
            case Color.RED:
                return "red"
            case Color() as c:
                return ("color", c.name)
            case []:
                return "empty"
            case [x]:
                return ("one", x)
            case [1, *rest]:
                return ("starts1", rest)
            case [x, [y, *_], z] if x == z:
                return ("nested", x, y)
            case (x, y):
                return ("pair", x, y)
            case [*_, "end"]:
                return "ends"
            case {"k": 1, **rest}:
                return ("k1", sorted(rest))
            case {"a": {"b": [_, v]}}:
                return ("deep", v)
            case {}:
                return ("mapping", len(v))
            case P(0, y=yy):
                return ("P0", yy)
            case P(x, y) if x > y:
                return ("P>", x, y)
            case P():
                return "P"
            case D(a=1, b=None):
                return "D1N"
            case D(a, D(b)):
                return ("DD", a, b)
            case str(s):
                return ("str", s)
            case int(n) | float(n):
                return ("num", n)
            case set():
                return "set"
            case _:
                return ("other", type(v).__name__)

    def outer(x, v):
        return x + 1, describe(v)

    vals = [
        None,
        True,
        False,
        0,
        -1,
        -2,
        1.5,
        2 + 3j,
        b"by",
        "ab",
        Color.RED,
        Color.BLUE,
        [],
        [7],
        (1, 2, 3),
        [5, [6, 7], 5],
        [5, [6], 8],
        (3, 4),
        [9, 9, "end"],
        {"k": 1, "z": 2},
        {"a": {"b": [1, 2]}},
        {},
        P(0, 5),
        P(3, 2),
        P(2, 3),
        D(1),
        D(2, D(4)),
        D(3),
        "s",
        42,
        4.25,
        {1},
        frozenset(),
        range(3),
        collections.deque([1]),
        NT(1, 2),
        "abc",
        bytearray(b"x"),
        collections.OrderedDict(k=1),
    ]

    def outer2(x):
        return x + 1, [describe(v) for v in vals]

    return outer2, [call(count(3)), after(lambda: vals.__setitem__(3, 5), count(3))], vals


@program
def match_of_varying_arguments():
    def outer(x, v):
        match v:
            case [a, b]:
                return x + a + b
            case {"s": s, **kw}:
                return x * s, kw
            case P(x=xx, y=CONST):
                return x + xx
            case int() if v > 3:
                return x * v
            case int():
                return x - v
            case torch.Tensor(shape=(n,)):
                return x + v, n
            case torch.Tensor():
                return x.sum() + v.sum()
            case (torch.Tensor() as t, *ts):
                return t, len(ts)
            case _:
                return x

    return outer, [
        call(count(3), v)
        for v in (
            [1, 2],
            [1, 3],
            (2, 2),
            {"s": 2},
            {"s": 3, "z": 1},
            2,
            5,
            7,
            count(3),
            count(2, 2),
            (count(3), 1, 2),
            P(1, 5),
            "no",
        )
    ]


@program(raises=TypeError)
def match_args_that_do_not_fit():
    class Q:
        __match_args__ = ("a",)

    def outer(x, v):
        match v:
            case Q(1, 2):
                return x
        return x + 1

    return outer, [call(count(3), 5), call(count(3), Q())]


@program
def match_binds_and_leaves_names():
    def outer(x, v):
        a = "before"
        match v:
            case (a, 1):
                r = "one"
            case (b, 2):
                r = ("two", b)
            case _:
                r = "none"
        return x, r, a

    return outer, [call(count(3), v) for v in ((5, 1), (5, 2), (5, 3), 4)]


@program
def match_with_breaks_in_guards():
    def say(v):
        print("guard", v)
        return v

    def outer(x, v):
        match v:
            case [a, b] if say(a) > 2:
                return x * a
            case [a, b] if x.sum() > b:
                return x + b
            case [*_]:
                return x

    return outer, [call(count(3), [3, 1]), call(count(3), [1, 2]), call(count(3), [1, 200])]


@program
def f_strings_with_every_spec():
    def outer(x, i, f, s):
        w = 8
        p = 2
        return (
            x,
            f"{i}",
            f"{i:5}",
            f"{i:<5}|{i:^7}|{i:>+6}|{i:05}|{i:,}|{i:_}|{i:b}|{i:o}|{i:x}|{i:X}|{i:#x}|{i:#b}|{i:c}|{i:e}|{i:n}",
            f"{f:.{p}f}|{f:{w}.{p}f}|{f:e}|{f:.3g}|{f:%}|{f:+.1f}|{f: .1f}|{f:010.3f}|{f:,.2f}",
            f"{s!r:>10}|{s:*^9}|{s!a}|{s:.2}|{s!s:3}",
            f"{i=}|{f=:.1f}|{s = !r}",
            f"{{{i}}}",
            f"{x.shape}",
            f"{x.shape[0]:03}",
            f"{x.dtype}",
            f"{i if i > 3 else 'small'}",
            f"{'nested ' + f'{i}'}",
            f"{[i, f]}{ {'k': i} }{(i,)}",
            f"{None} {True}",
            f"{i!r}{f!s}",
            "%s %r %d %5.2f %x %% %-5d| %05d" % (s, s, i, f, i, i, i),
            "{0} {1!r} {0:>4} {k} {l[0]} {m.real}".format(i, s, k=f, l=[i], m=i),
            "{:{}}".format(i, 6),
            string.Template("$a ${b}").substitute(a=i, b=s),
            format(f, ".1f"),
            format(i, "08b"),
            s.format_map({}) if "{" not in s else 0,
        )

    return outer, [
        call(count(3), 65, 2.5, "ab"),
        call(count(4), 66, 3.14159, "çd"),
        call(count(3), 1234, -1e10, "x"),
        call(count(3), 7, 0.0, ""),
    ]


@program
def string_methods_in_full():
    def outer(x, s):
        return (
            x + len(s),
            s.split(),
            s.split(","),
            s.rsplit(None, 1),
            s.partition(","),
            s.rpartition("zz"),
            s.strip(" x"),
            s.title(),
            s.swapcase(),
            s.capitalize(),
            s.casefold(),
            s.center(20, "*"),
            s.ljust(5) + "|",
            s.zfill(12),
            s.replace("a", "bb", 1),
            s.find("b"),
            s.rfind("a"),
            s.count("a"),
            s.startswith(("a", " ")),
            s.endswith("b"),
            s.isalpha(),
            s.isdigit(),
            s.isidentifier(),
            s.isspace(),
            s.isupper(),
            s.encode(),
            s.encode("utf-16-le")[:4],
            s.expandtabs(),
            s.splitlines(True),
            s.removeprefix("a"),
            s.removesuffix("b"),
            s.translate(str.maketrans("ab", "xy", ",")),
            s * 2,
            s[::-1],
            s[1:-1],
            "b" in s,
            s < "b",
            max(s, default="") if s else "",
            sorted(set(s)),
            [ord(c) for c in s],
            s.join(["1", "2"]),
            hash(s) == hash(str(s)),
            s.index(""),
            list(s),
            repr(s),
            ascii(s),
        )

    return outer, [
        call(count(3), " aXb,a b "),
        call(count(3), "abc"),
        call(count(3), "Ünï\tcode\nline"),
        call(count(3), ""),
    ]


@program
def bytes_and_bytearrays():
    def outer(x, b):
        a = bytearray(b)
        a.append(65)
        a.extend(b"xy")
        a[0:1] = b"Z"
        a += b"!"
        m = memoryview(bytes(a))
        return (
            x + b[0],
            b.hex(),
            bytes.fromhex("00ff"),
            int.from_bytes(b, "little"),
            (1000).to_bytes(3, "big"),
            b.decode("latin1"),
            b + b"c",
            b * 2,
            b[1:],
            list(b),
            b.find(b"b"),
            bytes(3),
            bytes([1, 2]),
            a,
            len(a),
            bytes(a).count(b"x"),
            b"%d %s" % (5, b),
            m[1],
            b.upper(),
            b.split(b"b"),
            b"a" in b,
            b == b"ab",
        )

    return outer, [call(count(3), b"ab"), call(count(3), b"\x00\xffb"), call(count(3), bytearray(b"bb"))]


@program
def exception_groups():
    def outer(x, n):
        out = []
        try:
            errs = [ValueError(1), TypeError("t"), ExceptionGroup("in", [KeyError("k"), ValueError(2)])]
            if n:
                raise ExceptionGroup("g", errs[:n])
            out.append("none")
        except* ValueError as eg:
            out.append(("v", [str(e) for e in eg.exceptions], eg.message))
        except* (TypeError, KeyError) as eg:
            out.append(("tk", len(eg.exceptions)))
        return x + n, out

    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 3), call(count(3), 0)]


@program
def exception_group_methods():
    def outer(x):
        g = ExceptionGroup("m", [ValueError("a"), ExceptionGroup("n", [TypeError("b"), ValueError("c")])])
        m, r = g.split(ValueError)
        s = g.subgroup(lambda e: isinstance(e, TypeError))
        return (
            x,
            repr(m),
            repr(r),
            s.exceptions[0].exceptions[0].args,
            str(g),
            g.derive([OSError(1)]).message,
            isinstance(g, Exception),
            BaseExceptionGroup("z", [KeyboardInterrupt()]).message,
        )

    return outer, [call(count(3)), call(count(3))]


@program(raises=ExceptionGroup)
def exception_group_leaves():
    def outer(x, n):
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            pass
        return x

    return outer, [call(count(3), 0)]


@program
def notes_chaining_and_context():
    def outer(x, n):
        out = []
        try:
            try:
                {}["k"]
            except KeyError as e:
                e.add_note("n1")
                if n == 0:
                    raise ValueError("v") from e
                if n == 1:
                    raise ValueError("v") from None
                if n == 2:
                    raise ValueError("v")
                if n == 3:
                    raise
                raise e
        except Exception as e:
            out = [
                type(e).__name__,
                str(e),
                repr(e.__cause__),
                repr(e.__context__),
                e.__suppress_context__,
                getattr(e, "__notes__", None),
                getattr(e.__context__, "__notes__", None),
            ]
        return x, out, sys.exc_info()

    return outer, [call(count(3), n) for n in range(5)]


@program
def tracebacks_and_exc_info():
    def deep(n):
        if n == 0:
            raise ValueError("deep")
        deep(n - 1)

    def outer(x, n):
        try:
            deep(n)
        except ValueError as e:
            info = sys.exc_info()
            tb = e.__traceback__
            names = []
            while tb:
                names.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
                tb = tb.tb_next
            same = info[1] is e and info[2] is e.__traceback__
            lines = [f.lineno for f in traceback.extract_tb(e.__traceback__)]
            text = traceback.format_exception_only(e)
        return x, names, same, sys.exc_info(), lines, text

    return outer, [call(count(3), 0), call(count(3), 2)]


@program
def with_traceback_and_reraise():
    def outer(x):
        try:
            try:
                1 / 0
            except ZeroDivisionError as e:
                saved = e
            try:
                raise saved.with_traceback(None)
            except ZeroDivisionError as e:
                a = e is saved
            raise KeyError("z") from saved
        except KeyError as k:
            return x, a, k.__cause__ is saved, k.__context__, k.args

    return outer, [call(count(3)), call(count(3))]


@program(core=True)
def finally_overrides_everything():
    def f1(log):
        try:
            return log.append("t") or 1
        finally:
            return 2

    def f2(log):
        for i in range(5):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                log.append(i)
            finally:
                log.append(("f", i))
        else:
            log.append("else")
        return log

    def f3(log):
        while True:
            try:
                raise ValueError
            finally:
                break
        return "swallowed"

    def f4(log):
        try:
            try:
                raise ValueError("a")
            finally:
                raise KeyError("b")
        except KeyError as e:
            return repr(e.__context__)

    def f5(log):
        v = [1]
        try:
            return v
        finally:
            v.append(2)

    def outer(x):
        log = []
        return x, f1(log), f2(log), f3(log), f4(log), f5(log)

    return outer, [call(count(3)), call(count(3))]


@program
def exception_classes_of_ones_own():
    class E(Exception):
        def __init__(self, code, msg="m"):
            super().__init__(code, msg)
            self.code = code

        def __str__(self):
            return f"E{self.code}"

    class F(E, KeyError):
        pass

    class G(Exception):
        extra = 5

    def outer(x, n):
        out = []
        for kind in (E, F, G, StopIteration, OSError, SystemExit, UnicodeDecodeError):
            try:
                if kind is OSError:
                    raise OSError(2, "no", "file")
                if kind is UnicodeDecodeError:
                    b"\xff".decode()
                raise kind(n)
            except F as e:
                out.append(("F", e.code, str(e), e.args))
            except E as e:
                out.append(("E", e.code, repr(e)))
            except (G, StopIteration) as e:
                out.append((type(e).__name__, e.args, getattr(e, "value", None)))
            except OSError as e:
                out.append((e.errno, e.strerror, e.filename, str(e)))
            except ValueError as e:
                out.append(str(e))
            except BaseException as e:
                out.append((type(e).__name__, e.code))
            else:
                out.append("no")
            finally:
                out.append("f")
        return x * n, out

    return outer, [call(count(3), 1), call(count(3), 2)]


@program
def attributes_of_standard_errors():
    def outer(x):
        out = []

        def t(f):
            try:
                f()
            except Exception as e:
                out.append(
                    (
                        type(e).__name__,
                        str(e),
                        e.args,
                        getattr(e, "name", "-"),
                        getattr(e, "obj", "-") is x,
                        getattr(e, "key", "-"),
                    )
                )

        t(lambda: x.nope)
        t(lambda: undefined_name)
        t(lambda: math.nope)
        t(lambda: (5).nope)
        t(lambda: None.a)
        t(lambda: {}["q"])
        t(lambda: [][0])
        t(lambda: int("z"))
        t(lambda: __import__("nope_mod"))
        t(lambda: x + "a")
        t(lambda: x[5])
        t(lambda: x.view(7))
        t(lambda: torch.zeros(2) @ torch.zeros(3))
        t(lambda: D())
        t(lambda: D(1, 2, 3))
        t(lambda: D(c=1))
        t(lambda: len())
        t(lambda: "a".join([1]))
        t(lambda: [].pop())
        t(lambda: [1].remove(2))
        t(lambda: {}.popitem())
        t(lambda: next(iter([])))
        t(lambda: (1).__getitem__)
        t(lambda: "x".nope())
        t(lambda: P.nope)
        t(lambda: P(1, 2).nope)
        t(lambda: Color.NOPE)
        t(lambda: Color(9))
        t(lambda: Color["N"])
        t(lambda: [].index(3))
        t(lambda: "abc".index("z"))
        t(lambda: float("q"))
        t(lambda: complex("q"))
        t(lambda: {1}.remove(2))
        t(lambda: collections.deque().pop())
        t(lambda: NT(1))
        t(lambda: NT(1, 2)._replace(z=1))
        t(lambda: setattr(5, "a", 1))
        t(lambda: setattr(NT(1, 2), "p", 3))
        t(lambda: isinstance(1, 2))
        t(lambda: issubclass(1, int))
        t(lambda: [1] < [None])
        t(lambda: sorted([1, "a"]))
        t(lambda: max(1, "a"))
        t(lambda: sum(["a"]))
        t(lambda: "a" * "b")
        t(lambda: callable())
        t(lambda: getattr(5, 6))
        t(lambda: range(1.5))
        t(lambda: chr("a"))
        t(lambda: print(end=5)) if False else None
        return x + 1, out

    return outer, [call(count(3)), call(count(3))]


@program
def walrus_everywhere():
    def outer(x, n):
        if (m := n * 2) > 4 and (k := m - 1):
            r = k
        else:
            r = (k := -1)
        lst = [y := 1, y + 1, (z := y * 10)]
        while (n := n - 1) > 0:
            lst.append(n)
        c = [q for i in range(4) if (q := i * i) % 2 == 0]
        d = {(w := i): w + 1 for i in range(3)}
        f = (lambda: (v := 3) + v)()
        s = f"{(u := m)}{u}"
        return x + m, r, k, lst, c, q, d, w, f, s, [last := j for j in range(3)][-1], last, n

    return outer, [call(count(3), 1), call(count(3), 3), call(count(3), 4)]


@program
def unpacking_of_all_sorts():
    def outer(x, v):
        a, (b, *c), *d, e = v
        [f, g], h = (1, 2), 3
        i = j = k = [0]
        i.append(1)
        (l,) = [5]
        (*m,) = "xy"
        n, o = o2 = (1, 2)
        for p, (q, *r) in [(1, (2, 3, 4)), (5, (6,))]:
            pass
        (s := [*range(2), *"ab"]).append((*m, *d))
        t = {**{"a": 1}, "b": 2, **{"a": 3}}
        u, w = x.shape if x.dim() == 2 else (x.shape[0], None)
        y, z = x[0], x[-1]
        return a, b, c, d, e, f, g, h, j, k is i, l, m, n, o2, p, q, r, s, t, u, w, y + z

    return outer, [
        call(count(3), [1, (2, 3, 4), 5, 6, 7]),
        call(count(2, 3), (1, "xyz", 5)),
        call(count(4), [x for x in (1, [2], 3)]),
    ]


@program
def chained_comparisons_and_booleans():
    def outer(x, a, b, c):
        return (
            x,
            a < b < c,
            a < b > c,
            a == b == c,
            a is b is c,
            a in [b] in [[b]],
            not a,
            a and b or c,
            a or b and c,
            (a, b) < (b, c),
            a != b != c,
            1 < a <= 3 < 10,
            a if b else c,
            None is not a,
            a not in (b, c),
            [] == [] != (),
            bool(a) ^ bool(b),
            a < b < (c if c else 1) < 100,
        )

    return outer, [call(count(3), 1, 2, 3), call(count(3), 3, 2, 1), call(count(3), 0, 0, 0), call(count(3), 2, 2, 0)]


@program
def deletions():
    def outer(x, d, l, o):
        del d["a"], l[0], l[-1:], o.v
        y = x + 1
        del x
        try:
            x
        except UnboundLocalError as e:
            m = str(e)
        try:
            del o.v
        except AttributeError as e:
            m2 = str(e)
        try:
            del d["a"]
        except KeyError as e:
            m3 = repr(e)
        try:
            del l[10]
        except IndexError as e:
            m4 = str(e)
        for i in range(3):
            t = i
            del t
        try:
            return t
        except UnboundLocalError as e:
            m5 = str(e)
        return y, m, m2, m3, m4, m5, i

    def ns():
        o = types.SimpleNamespace()
        o.v = 1
        return o

    return outer, [call(count(3), {"a": 1, "b": 2}, [1, 2, 3], ns()), call(count(4), {"a": 1}, [5, 6], ns())]


G1 = 0
G2 = []


@program
def globals_written_half_way():
    def outer(x, n):
        global G1, G2, G3
        G1 += n
        G2 = [*G2, G1]
        G3 = x * G1

        def inner():
            global G1
            G1 += 100
            return G1

        try:
            r = inner()
            if n == 2:
                raise ValueError
        except ValueError:
            G1 = -1
        print(G1)
        G1 += 1
        return G3, r, G1, len(G2)

    def reset():
        g = globals()
        g.update(G1=0, G2=[])
        g.pop("G3", None)

    reset()
    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 3), after(reset, count(3), 1)]


@program
def augmented_assignments_of_all_targets():
    class O:
        pass

    def outer(x, o, d, l):
        o.v += 1
        o.l += [1]
        d["k"] *= 2
        d["l"] += (3,)
        l[0] -= 5
        l[1] += [x]
        l[1][0] += 1 if False else 0
        t = ([1],)
        try:
            t[0] += [2]
        except TypeError as e:
            m = str(e)
        s = "a"
        s += "b"
        b = 1
        b |= 6
        b &= 5
        b ^= 2
        b <<= 3
        b >>= 1
        b **= 2
        b //= 3
        b %= 100
        f = 1.5
        f /= 2
        f **= 2
        se = {1}
        al = se
        se |= {2}
        se -= {1}
        se ^= {5}
        se &= {2, 5}
        tu = (1,)
        tu2 = tu
        tu += (2,)
        y = x
        y = y + 0
        z = y
        z += 1
        z *= 2
        z -= 1
        z /= 2
        di = {"a": 1}
        di2 = di
        di |= {"b": 2}
        return o.v, o.l, d, l, t, m, s, b, f, al is se, se, tu2, tu, z is y, y, di2 is di, di

    def o():
        q = O()
        q.v = 1
        q.l = [0]
        return q

    return outer, [call(count(3), o(), {"k": 2, "l": []}, [9, []]), call(count(3), o(), {"k": 3, "l": [1]}, [1, [2]])]


@program
def traceback_of_each_error_after_a_break():
    def first():
        print("1")
        del (1,)[0]

    def second():
        print("2")
        {}[[]] = 1

    def lines(f):
        try:
            print("calling")
            f()
        except TypeError as error:
            tb = error.__traceback__
            return [
                tb.tb_frame.f_code.co_name,
                tb.tb_next.tb_frame.f_code.co_name,
                tb.tb_next.tb_lineno,
                tb.tb_next.tb_next,
            ]

    def outer(x):
        return x + 1, [lines(f) for f in (first, second, first)]

    return outer, [call(count(3)), call(count(3))]


@program
def notes_added_after_a_break():
    def outer(x, n):
        try:
            try:
                print("try")
                {}[n]
            except KeyError as error:
                print("caught")
                error.add_note(f"n{n}")
                error.extra = n
                raise
        except KeyError as error:
            return x, error.__notes__, error.extra

    return outer, [call(count(3), 1), call(count(3), 2), call(count(3), 3)]


@program
def errors_in_a_loop_with_breaks():
    def outer(x, n):
        last, log = None, []
        for i in range(n):
            try:
                if i % 2:
                    raise KeyError(i)
                log.append(("fine", i))
            except KeyError as error:
                print("error")
                last = error
                log.append(error.args)
            finally:
                print("finally")
                log.append("f")
        else:
            log.append("else")
        return x * n, log, repr(last)

    return outer, [call(count(3), 1), call(count(3), 3), call(count(3), 4)]


@program
def f_strings_with_an_empty_spec():
    def outer(x, value, name):
        return x + 1, f"{value:}", name + f"{name!r:}" + f"{name:}{value!s:}", [name, name, f"{name:}"]

    return outer, [call(count(2), 3, "a"), call(count(2), 4, "b"), call(count(2), 1.5, "b"), call(count(2), None, "")]
