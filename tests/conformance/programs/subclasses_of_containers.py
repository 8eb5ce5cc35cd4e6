"""Subclasses of lists, dictionaries, sets, deques, tuples and exceptions that override what they can."""

from __future__ import annotations

import collections
import copy

from tests.conformance.catalogue import after, call, count, normal, program

ST = {"k": 1, "mode": "a", "tol": 0.1}
LOG = []


def states(*values, act=lambda: None):
    """A call for each state that the programs read."""
    return [after(lambda value=value: (ST.update(k=value), LOG.clear(), act()), count(3)) for value in values]


class L(list):
    def __eq__(self, o):
        return ST["k"] == 1

    def __len__(self):
        return ST["k"] + list.__len__(self)

    def __iter__(self):
        LOG.append("iter")
        return iter([ST["k"]])

    def __getitem__(self, i):
        LOG.append(("get", i))
        return list.__getitem__(self, i) if i != 7 else ST["k"]

    def __setitem__(self, i, v):
        LOG.append(("set", i))
        list.__setitem__(self, i, v)

    def __contains__(self, v):
        return ST["k"] == 2

    def __add__(self, o):
        return L(list.__add__(self, o) + [ST["k"]])

    def __iadd__(self, o):
        self.append(("iadd", ST["k"]))
        return self

    def append(self, v):
        LOG.append("append")
        super().append(v)

    def __bool__(self):
        return ST["k"] == 1

    def __reversed__(self):
        return iter(["rev"])

    def __repr__(self):
        return f"L{ST['k']}"

    def __delitem__(self, i):
        LOG.append("del")
        list.__delitem__(self, i)

    def sort(self, **k):
        LOG.append("sort")
        super().sort(**k)


class D(dict):
    def __getitem__(self, k):
        LOG.append(("get", k))
        return (dict.get(self, k), ST["k"])

    def __setitem__(self, k, v):
        LOG.append(("set", k))
        super().__setitem__(k, (v, ST["k"]))

    def __iter__(self):
        LOG.append("iter")
        return iter(["it"])

    def __len__(self):
        return 100 + ST["k"]

    def keys(self):
        LOG.append("keys")
        return ["a"]

    def items(self):
        return [("i", ST["k"])]

    def values(self):
        return [ST["k"]]

    def get(self, k, d=None):
        return ("got", ST["k"])

    def __contains__(self, k):
        return ST["k"] == 2

    def update(self, *a, **k):
        LOG.append("update")
        super().update(*a, **k)

    def pop(self, k, *d):
        LOG.append("pop")
        return super().pop(k, *d)

    def setdefault(self, k, d=None):
        return super().setdefault(k, (d, ST["k"]))

    def __eq__(self, o):
        return ST["k"] == 1

    def copy(self):
        return D(self)

    def __or__(self, o):
        return "or"

    def __missing__(self, k):
        return "missing"


def use_list(x, l):
    def g(*a):
        return a

    y = (
        l[0],
        len(l),
        [*l],
        list(l),
        tuple(l),
        5 in l,
        l == [9],
        l != [9],
        bool(l),
        not l,
        l + [1],
        list(reversed(l)),
        repr(l),
        str(l),
        f"{l}",
        sorted(l),
        sum(l),
        max(l),
        l.index(1) if list.__contains__(l, 1) else None,
        l.count(1),
        g(*l),
        [v for v in l],
        dict.fromkeys(l),
        set(l),
        list(map(str, l)),
        list(zip(l, "ab")),
        list(enumerate(l)),
        l[-1],
        l[0:1],
        ",".join(map(str, l)),
        l[7] if len(l) > 100 else 0,
        any(l),
        list.__len__(l),
        1 if l else 2,
        l * 2,
        [0] + l if False else 0,
        copy.copy(l) is l,
        l is not None,
        list.copy(l),
        next(iter(l)),
        l.__len__(),
        isinstance(l, list),
    )
    (a,) = l
    l += [3]
    l.append(4)
    l[0] = "z"
    l.extend([5])
    l.insert(0, "i")
    l.pop()
    del l[0]
    return x, y, a, l, list.__getitem__(l, 0)


def use_dict(x, d):
    def g(**k):
        return k

    y = (
        d["a"],
        len(d),
        [*d],
        list(d),
        {**d},
        dict(d),
        "a" in d,
        d.get("a"),
        d.items(),
        list(d.keys()),
        d == {},
        d != {},
        d.setdefault("n", 1),
        g(**d),
        bool(d),
        [k for k in d],
        sorted(d),
        dict.__len__(d),
        d | {},
        d.copy(),
        "%(a)s" % d,
        "{a}".format_map(d),
        "{a}".format(**d),
        dict.__getitem__(d, "a"),
        dict.get(d, "a"),
        next(iter(d)),
        list(dict.items(d)),
        d["zz"],
        tuple(d),
        max(d),
    )
    d["b"] = 2
    d.update(c=3)
    d.pop("b")
    dict.__setitem__(d, "raw", 1)
    match d:
        case {"a": v, **r}:
            m = v, sorted(map(str, r))
        case _:
            m = None
    return x, y, m, list(dict.items(d)), sorted(dict.keys(d))


@program(core=True)
def list_subclass_from_outside():
    l = L()

    def f(x):
        return *use_list(x, l), list(LOG)

    return f, states(1, 2, 1, act=lambda: list.__setitem__(l, slice(None), [1, 2])), None


@program
def list_subclass_made_inside():
    def f(x):
        l = L([1, 2])
        return *use_list(x, l), list(LOG)

    return f, states(1, 2, 1), None


@program
def dict_subclass_from_outside():
    d = D()

    def f(x):
        return *use_dict(x, d), list(LOG)

    return f, states(1, 2, 1, act=lambda: (dict.clear(d), dict.update(d, a=1))), None


@program
def dict_subclass_made_inside():
    def f(x):
        d = D(a=1)
        return *use_dict(x, d), list(LOG)

    return f, states(1, 2, 1), None


@program
def set_and_deque_subclasses():
    class S(set):
        def __iter__(self):
            return iter(sorted(set.__iter__(self), key=str, reverse=True) + [ST["k"]])

        def __contains__(self, v):
            return ST["k"] == 2

        def __len__(self):
            return 50 + ST["k"]

        def add(self, v):
            LOG.append("add")
            super().add((v, ST["k"]))

        def __or__(self, o):
            return S(set.__or__(self, o) | {ST["k"] + 100})

        def __bool__(self):
            return ST["k"] == 1

        def __eq__(self, o):
            return ST["k"] == 1

    class Q(collections.deque):
        def append(self, v):
            LOG.append("app")
            super().append(v)
            super().appendleft(ST["k"])

        def __getitem__(self, i):
            return ("q", super().__getitem__(i))

        def __len__(self):
            return ST["k"]

        def __iter__(self):
            return reversed(list(super().__iter__()))

    def f(x):
        s = S([3, 1])
        s.add(5)
        q = Q([1, 2], 4)
        q.append(9)
        y = (
            list(map(str, s)),
            3 in s,
            len(s),
            list(s | {7}),
            bool(s),
            s == {1},
            s != {1},
            sorted(map(str, list(s))),
            set.__len__(s),
            (s & {3}),
            {1, 3} <= s,
            min(map(str, s)),
            s.issuperset({3}),
            s.union([8]),
            list(set(s)),
            frozenset(s) if False else 0,
        )
        z = (
            q[0],
            len(q),
            list(q),
            tuple(q),
            q.popleft(),
            [v for v in q],
            sum(q),
            q.maxlen,
            2 in q,
            q.count(2),
            q.index(2),
            collections.deque(q),
            collections.deque.__len__(q),
        )
        s.discard(3)
        s.update([4])
        q.extend([8])
        q.rotate()
        return x, y, z, s, q, list(LOG)

    return f, states(1, 2, 1), None


@program
def tuple_subclass_overrides():
    class T(tuple):
        def __new__(cls, *a):
            return super().__new__(cls, a + (ST["k"],))

        def __iter__(self):
            return iter([ST["k"]])

        def __len__(self):
            return 9

        def __getitem__(self, i):
            return ("t", tuple.__getitem__(self, i))

        def __eq__(self, o):
            return ST["k"] == 1

        def __hash__(self):
            return 3

        def __contains__(self, v):
            return ST["k"] == 2

        def __lt__(self, o):
            return ST["k"] == 1

        def __add__(self, o):
            return "add"

        def __bool__(self):
            return ST["k"] == 2

        def __repr__(self):
            return f"T{ST['k']}"

        def index(self, v):
            return "idx"

    t0 = T("o")

    def f(x):
        t = T("x", 1)

        def u(t):
            (a,) = t
            return (
                [*t],
                len(t),
                t[0],
                t == (1,),
                t != (1,),
                hash(t),
                5 in t,
                t < (9,),
                t + (1,),
                bool(t),
                repr(t),
                a,
                t.index(1),
                tuple(t),
                tuple.__len__(t),
                {t: 1}.get(t),
                [t].index(t),
                t in [t],
                sorted([t, t])[0] is t,
                f"{t}",
                list(map(str, t)),
                max(t),
                t[-1],
                t[:1],
                t.count(1),
                isinstance(t, tuple),
                {t0: 5}.get(t, "none"),
            )

        return x, u(t), u(t0), t, t0

    return f, states(1, 2, 1)


@program
def exception_subclass_overrides():
    class E(ValueError):
        def __init__(self, *a):
            super().__init__(*a)
            self.made = ST["k"]

        @property
        def args(self):
            return ("prop", ST["k"])

        def __eq__(self, o):
            return ST["k"] == 1

        def __getattr__(self, n):
            if n.startswith("__"):
                raise AttributeError(n)
            return f"{n}{ST['k']}"

        def with_traceback(self, tb):
            LOG.append("wt")
            return super().with_traceback(tb)

        def add_note(self, n):
            super().add_note(n + str(ST["k"]))

        def __str__(self):
            return f"E{ST['k']}{BaseException.args.__get__(self)}"

    class F(E, KeyError):
        pass

    def f(x):
        out = []
        for mk in (lambda: E(1), lambda: F("a", 2)):
            try:
                raise mk().with_traceback(None)
            except (KeyError, E) as e:
                e.add_note("n")
                out.append(
                    (
                        e.args,
                        str(e),
                        repr(e),
                        e.made,
                        e.zip,
                        e == 3,
                        e.__notes__,
                        isinstance(e, KeyError),
                        type(e).__mro__[1].__name__,
                    )
                )
                try:
                    raise e from None
                except ValueError as e2:
                    out.append((e2 is e, e2.__cause__, e2.__suppress_context__, e2.__context__))
        return x, out, list(LOG)

    return f, states(1, 2, 1)


@program
def list_and_dict_subclasses_overriding():
    class Stack(list):
        def push(self, *v):
            self.extend(v)
            return self

        def __getitem__(self, i):
            return super().__getitem__(i) if isinstance(i, slice) else ("got", super().__getitem__(i))

        def __len__(self):
            return super().__len__() + 100

        def __iter__(self):
            return reversed([super(Stack, self).__getitem__(i) for i in range(super().__len__())])

    class Default(dict):
        def __getattr__(self, n):
            try:
                return self[n]
            except KeyError:
                raise AttributeError(n) from None

        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    def f(x, n):
        s = Stack().push(x, n)
        d = Default(a=x, n=n)
        d.z = d.a + d.n
        del d.a
        try:
            d.a
        except AttributeError as e:
            m = (str(e), e.__cause__, e.__suppress_context__)
        return s[1], len(s), list(s)[0], d, m, bool(s), s == [x, n] if n > 5 else None, sorted(d), [*s][-1] is x

    return f, [call(count(2), 1), call(count(2), 2)]


@program
def break_with_live_subclasses():
    class Rev(list):
        def __iter__(self):
            return reversed(list(super().__iter__()))

        def __len__(self):
            return 1

    class D(dict):
        def __iter__(self):
            return iter(["only"])

        def keys(self):
            return ["only"]

        def __getitem__(self, k):
            return ("got", super().get(k))

    class S(set):
        def __iter__(self):
            return iter(sorted(super().__iter__(), reverse=True))

    class Q(collections.deque):
        def __iter__(self):
            return iter([9])

    class Tp(tuple):
        def __iter__(self):
            return iter("tp")

        def __getitem__(self, i):
            return "item"

    class OD(collections.OrderedDict):
        def __iter__(self):
            yield "x"

        def items(self):
            return [("k", 0)]

    class Nt(collections.namedtuple("Nt", "a b")):
        def __iter__(self):
            return iter([1])

    def f(x, n):
        r, d, s, q, t, o, nt = (
            Rev([x, n]),
            D(a=n, b=x),
            S([1, 2, n]),
            Q([n, 2], maxlen=5),
            Tp((n, x)),
            OD([("p", n), ("q", x)]),
            Nt(n, x),
        )
        print("break", n)
        return (
            list.__getitem__(r, 0),
            len(r),
            list(r),
            dict.__len__(d),
            d["a"],
            list(d),
            list(s),
            set.__len__(s),
            list(q),
            q[0],
            collections.deque.__len__(q),
            tuple.__getitem__(t, 0),
            tuple.__len__(t),
            list(t),
            collections.OrderedDict.__len__(o),
            o["p"],
            nt.a,
            nt.b,
            list(nt),
        )

    return f, [call(count(2), 5), call(count(2), 6)]


@program
def returned_subclasses_with_odd_iteration():
    class Rev(list):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    class Q(collections.deque):
        def __iter__(self):
            return iter([9])

    class S(set):
        def __iter__(self):
            return iter([])

        def __len__(self):
            return 0

        def __bool__(self):
            return False

    def f(x, n):
        r, q, s = Rev([x, n]), Q([n, 2]), S([1, n])
        r.tag = n
        q.tag = x
        return list.__getitem__(r, 0), r, q, s, 1 if s else 2, not r

    return f, [call(count(2), 5), call(count(2), 6)]


class S(set):
    pass


class F(frozenset):
    pass


class Q(collections.deque):
    pass


@program
def set_subclass_changed_outside():
    s = S([1, 2])

    def f(x):
        r = x * len(s), 3 in s, sorted(s), bool(s), s | {9}, s <= {1, 2, 3}, [*s], max(s), s == {1, 2}
        s.add(7)
        return r

    return f, [call(count(2)), after(lambda: s.add(3), count(2)), after(lambda: s.clear() or s.add(5), count(2))], s


@program
def deque_subclass_changed_outside():
    s = Q([1, 2], 5)

    def f(x):
        r = x * len(s), 3 in s, sorted(s), bool(s), s[0], [*s], max(s), s == collections.deque([1, 2])
        s.append(7)
        s.rotate(1)
        return r

    return (
        f,
        [call(count(2)), after(lambda: s.append(3), count(2)), after(lambda: s.clear() or s.append(5), count(2))],
        s,
    )


@program
def frozenset_subclass_replaced():
    box = {"s": F([1, 2])}

    def f(x):
        s = box["s"]
        return x * len(s), 3 in s, sorted(s), bool(s), s | {9}, s == {1, 2}, type(s | {9}).__name__

    return f, [
        call(count(2)),
        after(lambda: box.update(s=F([3])), count(2)),
        after(lambda: box.update(s=frozenset([3])), count(2)),
    ]


@program
def ordered_dicts_and_counters_changed_outside():
    class OD(collections.OrderedDict):
        pass

    class DD(collections.defaultdict):
        pass

    class C(collections.Counter):
        pass

    o, d, c = OD(a=1), DD(list, a=[1]), C("aab")

    def f(x):
        r = (
            len(o),
            list(o),
            o["a"],
            d["a"],
            d["zz"],
            c["a"],
            c["q"],
            c.most_common(1),
            list(c.elements()),
            c.total(),
            o == {"a": 1},
            sum(c.values()),
        )
        o["n"] = len(o)
        o.move_to_end("a")
        d["k"].append(1)
        c.update("b")
        c["z"] -= 1
        return x, r

    return (
        f,
        [
            call(count(2)),
            after(lambda: (o.update(b=2), d.update(a=[5]), c.update("ccc")), count(2)),
            after(lambda: (o.clear(), o.update(a=4), d.pop("zz"), c.clear()), count(2)),
        ],
        (o, d, c),
    )


class Meter(list):
    def append(self, value):
        super().append(value.item() + 1)

    def extend(self, values):
        put = super().extend
        print(end="")
        put(value * 2 for value in values)

    def pop(self, *place):
        return super().pop(*place) * 10

    def plain_append(self):
        return super().append


class Settings(dict):
    def get(self, name, default=None):
        return super().get(str(name) + "!", default)

    def setdefault(self, name, value):
        return super().setdefault(name + "!", value.item())


class Unique(set):
    def add(self, value):
        super().add(value.item() * 2)


class Failure(ValueError):
    def add_note(self, note):
        super().add_note(f"{note} {next(NOTES)}")


NOTES = iter(lambda: 7, 0)


@program
def overridden_methods_of_containers_around_breaks():
    kept = Meter([1.0])

    def f(x, append):
        meter, settings, unique, failure = Meter(), Settings(), Unique(), Failure("failed")
        for owner in (meter, kept):
            owner.append(x.sum())
        meter.extend([1, 2])
        settings.setdefault("a", x.max())
        unique.add(x.min())
        failure.add_note("noted")
        append(x.shape[0])
        return x + meter.pop(), meter, settings.get("a"), settings, unique, failure.__notes__

    return f, [call(count(3), kept.plain_append()), call(count(3), kept.plain_append()), call(count(4), [].append)], kept


@program
def dictionaries_with_keys_of_numbers_and_an_order_of_their_own():
    asked = []

    class Newest(dict):
        def __iter__(self):
            asked.append(len(self))
            return iter(sorted(dict.keys(self), reverse=True)[:2])

    table = Newest({1: 2.0, 2: 3.0, 3: 4.0})

    def outer(x):
        for key, factor in dict.items(table):
            x = x * factor + key
        return x, list(table), len(asked)

    return outer, [
        call(count(3)),
        call(count(3)),
        after(lambda: table.__setitem__(4, 5.0), count(3)),
        after(lambda: table.pop(1), count(3)),
    ], asked


@program
def containers_whose_classes_take_other_arguments():
    class Window(collections.deque):
        def __init__(self, items, size):
            super().__init__(items, maxlen=size)

    class Groups(collections.defaultdict):
        def __new__(cls, kind, note):
            return super().__new__(cls)

        def __init__(self, kind, note):
            super().__init__(kind)
            self.note = note

    def f(x, n):
        window, groups = Window([1, 2, n], 2), Groups(list, n)
        print("made")
        groups[n].append(window)
        return x * 2, window, groups, Window([n], 3), Groups(int, "more")

    return f, [call(normal(2), n) for n in (3, 4, 5)]


class Lowered(collections.OrderedDict):
    """Keys are written small, and read so."""

    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)

    def __getitem__(self, key):
        return super().__getitem__(key.lower())


@program
def ordered_dictionaries_that_set_items_in_their_own_way():
    lowered = Lowered(Known=1)

    def outer(x):
        made = Lowered(A=1)
        made.update({"B": 2}, C=3)
        lowered.setdefault("Later", 4)
        return x * len(made), list(made)

    return outer, [call(normal(2)), call(normal(3))], lowered


class Doubled(collections.OrderedDict):
    """Gives twice what it holds."""

    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class DoubledToo(dict):
    """The same, but that copies by `dict` do not ask it."""

    def __getitem__(self, key):
        return super().__getitem__(key) * 2


@program
def copies_of_dictionaries_that_give_other_items():
    doubled = Doubled(a=3)

    def named(**items):
        return items

    def outer(x):
        given, other = Doubled(a=x), DoubledToo(a=x)
        copies = dict(given), {**given}, named(**given), collections.OrderedDict(other), dict(other), dict(doubled)
        return [copy["a"] for copy in copies], list(given.values())

    return outer, [call(normal(2)), call(normal(3))], doubled


@program
def reversed_containers_that_give_other_items():
    class Listed(list):
        def __getitem__(self, place):
            return 7

    class Tuple(tuple):
        def __getitem__(self, place):
            return 7

    def outer(x):
        return x * sum(reversed(Listed([1, 2]))) + sum(reversed(Tuple([1, 2])))

    return outer, [call(normal(2))]


@program
def reversed_containers_that_iterate_over_other_items():
    class Listed(list):
        def __iter__(self):
            return iter([7])

    class Tuple(tuple):
        def __iter__(self):
            return iter([7])

    class Ordered(collections.OrderedDict):
        def __iter__(self):
            return iter([7])

    def outer(x):
        ordered = Ordered()
        ordered[5] = x
        return x * sum(reversed(Listed([1, 2]))) + sum(reversed(Tuple([1, 2]))) + next(reversed(ordered))

    return outer, [call(normal(2))]


@program
def an_ordered_dictionary_that_is_told_of_every_item():
    told = []

    class Told(collections.OrderedDict):
        def __setitem__(self, key, item):
            told.append(key)
            super().__setitem__(key, item)

    def outer(x):
        made = Told()
        made["a"] = x
        made |= {"b": 1}
        return x * len(made | {"c": 2}), list(made.copy()), made.pop("b"), made.popitem()[0]

    return outer, [call(normal(2)), call(normal(2))], told


@program
def a_counter_that_is_told_of_every_count():
    told = []

    class Told(collections.Counter):
        def __setitem__(self, key, count):
            told.append(key)
            super().__setitem__(key, count)

    def outer(x):
        counts = Told("ab")
        counts.update("b")
        return x * counts["b"], len(collections.Counter("abc"))

    return outer, [call(normal(2)), call(normal(2))], told
