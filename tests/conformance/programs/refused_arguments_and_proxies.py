"""What the tests of Python itself ask: calls that are refused, and in which words; objects that stand for others; what classes
say of themselves; how long objects and iterators live; loops longer than the stack is deep."""

from __future__ import annotations

import abc
import collections
import collections.abc
import copy
import enum
import functools
import itertools
import operator
import weakref

import torch

from tests.conformance.catalogue import after, call, count, program


def outcome(function):
    """What a call gives, or the words with which it is refused."""
    try:
        return function()
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        return f"{type(error).__name__}: {error}"


@program(core=True)
def methods_called_with_other_arguments():
    def f(x, d, items, text, kept):
        calls = (
            lambda: items.append(),
            lambda: items.append(1, 2),
            lambda: items.append(x=1),
            lambda: items.insert(1),
            lambda: items.extend(),
            lambda: items.sort(1),
            lambda: items.index(),
            lambda: items.index(value=1),
            lambda: items.__contains__(),
            lambda: items.__getitem__(),
            lambda: items.__setitem__(1),
            lambda: d.get(),
            lambda: d.get(1, 2, 3),
            lambda: d.get("a", default=2),
            lambda: d.setdefault("z", default=3),
            lambda: d.__getitem__(),
            lambda: d.pop(),
            lambda: d.update(1, 2),
            lambda: d.items(1),
            lambda: text.join(),
            lambda: text.join(iterable=["b"]),
            lambda: kept.add(),
            lambda: kept.discard(1, 2),
            lambda: kept.union(1),
            lambda: collections.deque().append(x=1),
        )
        return x + 1, [outcome(each) for each in calls], d, items, kept

    return f, [call(count(2), {"a": 1}, [1], "t", {1}), call(count(3), {"a": 1}, [1], "t", {1})]


@program
def builtins_called_with_keywords():
    def f(x, number, table):
        calls = (
            lambda: round(2.567, ndigits=number),
            lambda: round(number=2.5),
            lambda: int("11", base=2),
            lambda: str(object=number),
            lambda: str(b"a", encoding="utf8"),
            lambda: pow(2, 3, mod=5),
            lambda: pow(2, exp=3),
            lambda: sum([1, 2], start=number),
            lambda: getattr(table, "x", default=1),
            lambda: next(iter([1]), default=2),
            lambda: bool(x=1),
            lambda: repr(obj=1),
            lambda: len(obj=[]),
            lambda: isinstance(1, cls=int),
            lambda: range(stop=3),
            lambda: list(iterable=[1]),
            lambda: hasattr(table, name="a"),
            lambda: (str(), int(), float(), bool(), bytes()),
            lambda: "{a} {b:>3}".format_map({"a": number, "b": "t"}),
            lambda: "{c}".format_map({"a": number}),
        )
        return x * number, [outcome(each) for each in calls]

    return f, [call(count(2), 1, {}), call(count(2), 2, {}), call(count(2), 3, {})]


@program
def arguments_that_reach_object():
    class Open:
        def __init__(self, **rest):
            super().__init__(**rest)

    class Named(Open):
        def __init__(self, x, **rest):
            self.x = x
            super().__init__(**rest)

    class Single:
        def __new__(cls, *args):
            return super().__new__(cls, *args)

    def f(x):
        calls = (lambda: Named(x).x, lambda: Named(x, y=1), lambda: Open(1), lambda: type(Single()), lambda: Single(1))
        return x + 1, [outcome(each) for each in calls]

    return f, [call(count(2)), call(count(2))]


@program
def operators_in_place_that_are_refused():
    def f(x):
        words = []
        for symbol in ("+", "**", "%", "@", "<<"):
            value = None
            try:
                if symbol == "+":
                    value += 1
                elif symbol == "**":
                    value **= 2
                elif symbol == "%":
                    value %= 2
                elif symbol == "@":
                    value @= 2
                else:
                    value <<= 2
            except TypeError as error:
                words.append(str(error))
        return x + 1, words

    return f, [call(count(2))]


@program
def managers_without_an_exit():
    class Enters:
        def __enter__(self):
            return self

    class Leaves:
        def __exit__(self, *error):
            return None

    def f(x, kind):
        try:
            with kind():
                x = x + 1
        except TypeError as error:
            return x, str(error)
        return x

    return f, [call(count(2), Enters), call(count(2), Leaves), call(count(2), object)]


@program
def keys_made_of_a_comparison():
    def f(x, number):
        key = functools.cmp_to_key(lambda one, other: one % 5 - other % 5)
        found = key(3) == key(8), key(3) < key(4), key(4) >= key(9), key(3) != key(8), key(number) > key(2)
        return x, found, max(key(1), key(9)).obj, sorted([3, 6, 5], key=key)

    return f, [call(count(2), 3), call(count(2), 7), call(count(2), 5)]


@program
def lists_extended_by_themselves():
    def f(x, items):
        made = [x, 1]
        made.extend(made)
        items.extend(items)
        window = collections.deque([x, 2])
        window.extend(window)
        return made, items, window

    return f, [call(count(2), [1, 2]), call(count(2), [1, 2])]


class Forwarding:
    """Stands for another object: every attribute is the other's."""

    __slots__ = ("_target", "__weakref__")

    def __init__(self, target):
        object.__setattr__(self, "_target", target)

    def __getattribute__(self, name):
        return getattr(object.__getattribute__(self, "_target"), name)

    def __setattr__(self, name, value):
        setattr(object.__getattribute__(self, "_target"), name, value)

    def __delattr__(self, name):
        delattr(object.__getattribute__(self, "_target"), name)


class Hiding:
    """Stands for another object, which it keeps in its own dictionary."""

    def __init__(self, target):
        self.__target = target

    def __getattribute__(self, name):
        if name.startswith("_Hiding__"):
            return object.__getattribute__(self, name)
        return getattr(self.__target, name)


class Target:
    def __init__(self, x):
        self.x, self.calls = x, 0

    def scaled(self, factor):
        self.calls += 1
        return self.x * factor


@program
def proxies_made_inside_and_outside():
    outside = Forwarding(Target(count(2)))

    def f(x):
        outside.calls += 10
        outside.extra = x
        y = outside.scaled(2) + outside.calls + outside.extra
        del outside.extra
        inside = Hiding(Target(x))
        y = y + inside.scaled(3)
        print("half")
        kind = outside.__class__, type(outside), isinstance(outside, Target), hasattr(outside, "extra")
        return y + inside.scaled(4), inside.calls, kind, Forwarding(inside).scaled(2)

    return f, [
        call(count(2)),
        call(count(2)),
        after(lambda: setattr(outside, "calls", -100), count(2)),
        after(lambda: object.__setattr__(outside, "_target", Target(count(3))), count(3)),
    ]


@program
def proxies_returned():
    def f(x):
        inside = Hiding(Target(x))
        return inside.scaled(2), inside, [inside]

    def g(x):
        y, inside, _ = f(x)
        return y, inside.calls, inside.scaled(3), lambda: inside

    return g, [call(count(2)), call(count(2))]


@program
def what_classes_say_of_themselves():
    class Base:
        first: int

    class Middle(Base):
        pass

    class Last(Middle):
        second: str = "x"

    def named():
        pass

    def f(x):
        Base.__name__ = "Q" + Base.__name__
        Base.__doc__ = "doc"
        named.__doc__ = "said"
        found = [list(kind.__annotations__) for kind in (Base, Middle, Last)]
        inherited = [name for kind in Last.__mro__ for name in getattr(kind, "__annotations__", {})]
        return x + 1, found, inherited, Base.__name__, Base.__doc__, named.__doc__, Middle.__annotations__

    return f, [call(count(2)), call(count(2))], lambda: (Base.__name__, named.__doc__)


@program
def callable_or_not():
    class Thing:
        pass

    thing = Thing()

    def f(x):
        return x + 1, callable(thing), callable(Thing), callable(x), callable(f), isinstance(thing, collections.abc.Callable)

    return f, [call(count(2)), after(lambda: setattr(Thing, "__call__", lambda self: 1), count(2))]


@program
def classes_that_become_members():
    class Base(abc.ABC):
        pass

    class One:
        pass

    class Other:
        pass

    class Sized:
        pass

    def f(x, size):
        before = isinstance(One(), Base), isinstance(Other(), Base)
        Base.register(One)
        Sized.__len__ = lambda self: size
        seen = isinstance(Sized(), collections.abc.Sized), issubclass(Sized, collections.abc.Sized)
        return x + size, before, isinstance(One(), Base), isinstance(Other(), Base), seen

    return f, [call(count(2), 1), call(count(2), 2), after(lambda: Base.register(Other), count(2), 2)]


@program
def frozen_sets_of_frozen_sets():
    def f(x, items, pair):
        return x, frozenset(items) is items, tuple(pair) is pair, frozenset(frozenset([1])), set(items)

    return f, [call(count(2), frozenset([1, 2]), (1, 2))]


@program
def loops_longer_than_the_stack_is_deep():
    def counted(x, steps):
        seen = []
        for _ in range(steps):
            x = x + 1
            seen.append(int(x[0].item()))
        return x, len(seen), seen[-1]

    def until(x, limit):
        steps = 0
        while True:
            x = x + 1
            if x.sum() > limit:
                return x, steps
            steps += 1

    def guarded(x, steps):
        total = 0
        for step in range(steps):
            try:
                total += x.sum().item()
                if step % 2:
                    continue
            finally:
                x = x + 1
        return x, total

    def f(x, steps):
        return counted(x, steps), until(x, steps), guarded(x, steps)

    return f, [call(torch.zeros(1), 400), call(torch.zeros(1), 500)]


class Key:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Key) and self.number == other.number

    def __hash__(self):
        return hash(self.number)


class Table(dict):
    """Equal to everything, without a hash; its methods are the builtin ones, called by their class."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def take(self, key, *default):
        return dict.pop(self, key, *default)

    def holds(self, key):
        return dict.__contains__(self, key)


@program
def methods_of_builtins_called_by_their_class():
    def f(x, table):
        table[Key(1)] = x
        dict.__setitem__(table, Key(1), x + 1)
        made = Table(a=1)
        found = len(table), table.take(Key(1)), table.holds(Key(1)), made.take("a"), made.take("b", 3)
        return found, dict.setdefault(made, "z", 1), dict.get(made, "z"), outcome(lambda: made.take("b"))

    return f, [call(count(2), Table()), call(count(2), Table(q=1))]


class ByPlace:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, place):
        return self.items[place]


@program
def iterators_that_stay_at_their_end():
    def f(x, factor):
        sequence, items = ByPlace([1, 2]), [1]
        of_sequence, of_items = iter(sequence), iter(items)
        first = list(of_sequence), list(of_items)
        sequence.items.append(3)
        items.append(2)
        return x * factor, first, list(of_sequence), list(of_items), next(of_sequence, None)

    return f, [call(count(2), 2), call(count(2), 3)]


@program
def a_number_that_is_not_itself():
    def f(x):
        nan = float("nan")
        items, table = [nan, 1], {nan: "k"}
        print("half")
        found = nan in items, table.get(nan), items.index(nan), items == [nan, 1], operator.countOf([nan, nan], nan)
        return x + 1, found, nan == nan, float("nan") in items

    return f, [call(count(2)), call(count(2))]


@program
def views_of_dictionaries_across_a_break():
    def parts(x, table):
        made = {"a": x, "b": 2}
        keys, values, pairs = made.keys(), table.values(), table.items()
        print("half", list(keys))
        made["c"], table["new"] = 3, 1
        return keys, values, pairs, made.values()

    def whole(x):
        made = {"a": x + 1}
        return made.keys(), made.items()

    def f(x, table):
        return [list(view) for view in (*parts(x, table), *whole(x))]

    return f, [call(count(2), {"z": 1}), call(count(2), {"z": 1}), call(count(2), {"z": 1, "y": 2})]


class Node:
    def __init__(self, value=0):
        self.value = value


@program
def objects_that_variables_keep_alive():
    known = weakref.WeakSet()
    register, size = known.add, known.__len__

    def f(x, node):
        kept, other = Node(2), Node(3)
        table = weakref.WeakValueDictionary()
        table["kept"] = kept
        seen = weakref.ref(other)
        register(kept)
        register(node)
        print("half")
        alive = seen() is not None, "kept" in table, size()
        print("nearly", size())
        return x * size(), alive, seen() is not None, table.get("kept") is kept

    return f, [call(count(2), Node()), call(count(2), Node(1)), call(count(2), Node(1))]


class Counted(Exception):
    made = 0

    def __init__(self, *args):
        Counted.made += 1
        super().__init__(*args)


@program
def exceptions_thrown_in_every_way():
    Counted.made = 0

    def receiver(log):
        while True:
            try:
                yield len(log)
            except (ValueError, Counted) as error:
                log.append((type(error).__name__, error.args, Counted.made))

    def f(x, factor):
        log = []
        generator = receiver(log)
        next(generator)
        for thrown in ((ValueError("a", 1),), (ValueError,), (ValueError, "b"), (ValueError, ("c", "d")), (Counted,)):
            generator.throw(*thrown)
        generator.throw(ValueError, ValueError("made"), None)
        words = [outcome(lambda: receiver([]).throw(wrong)) for wrong in (5, "s", int, KeyError("k"))]
        return x * factor, log, words, Counted.made

    return f, [call(count(2), 2), call(count(2), 3)]


@program
def exceptions_raised_of_what_is_none():
    def f(x, value, cause):
        try:
            if cause == 0:
                raise value
            raise value from cause
        except Exception as error:
            return x, type(error).__name__, str(error), type(error.__cause__).__name__
        return x

    wrong = ((5, 0), (None, 0), (int, 0), (ValueError("v"), 5), (ValueError, "s"), (5, 6), (KeyError, ValueError))
    return f, [call(count(2), value, cause) for value, cause in wrong]


class Amount:
    def __init__(self, log, number):
        self.log, self.number = log, number

    def __add__(self, other):
        self.log.append(("add", self.number))
        return "added"

    def __radd__(self, other):
        self.log.append(("radd", self.number))
        return "added from the right"

    def __lt__(self, other):
        self.log.append(("lt", self.number))
        return NotImplemented

    __gt__ = __lt__


class Same(Amount):
    pass


class Otherwise(Amount):
    def __radd__(self, other):
        self.log.append(("other", self.number))
        return "otherwise"


class Virtual(Amount, abc.ABC):
    pass


class Apart(Amount):
    pass


Virtual.register(Apart)


@program
def operators_between_a_class_and_its_subclasses():
    def f(x):
        log = []
        plain, same, other = Amount(log, 1), Same(log, 2), Otherwise(log, 3)
        virtual, apart = Virtual(log, 4), Apart(log, 5)
        sums = plain + same, same + plain, plain + other, other + plain, virtual + apart, 3 + same
        words = [outcome(lambda: one < two) for one, two in ((plain, same), (same, plain), (virtual, apart), (apart, virtual))]
        return x + 1, sums, words, log

    return f, [call(count(2)), call(count(2))]


@program
def generators_that_run_themselves():
    def f(x):
        words = []

        def steps():
            try:
                next(running)
            except ValueError as error:
                words.append(str(error))
            yield 1
            yield from running

        running = steps()
        words.append(next(running))
        words.append(outcome(lambda: next(running)))
        words.append(outcome(lambda: vars(1)))
        words.append(outcome(lambda: vars(Forwarding.__new__(Forwarding)) if x.dim() > 3 else vars([])))
        return x + 1, words

    return f, [call(count(2)), call(count(3))]


class GetsOtherwise(dict):
    def get(self, key, default=None):
        return "mine" if key == "z" else super().get(key, default)

    def __missing__(self, key):
        return "missing"


class IteratesOtherwise(set):
    def __iter__(self):
        return iter([9, 9])


@program
def patterns_and_sets_of_subclasses():
    def chosen(table):
        match table:
            case {"a": one, "b": two, **rest}:
                return "both", one, two, rest
            case {"z": one}:
                return "last", one
            case {**rest}:
                return "rest", rest

    def f(x, table, members):
        made = collections.defaultdict(list)
        made["b"] = x
        found = chosen(table), chosen(made), len(made), chosen(collections.Counter("aab"))
        return x + 1, found, sorted(set(members)), sorted(frozenset(members)), list(IteratesOtherwise([1]))

    tables = {"a": 1, "b": 2, "c": 3}, GetsOtherwise(a=1), GetsOtherwise(), collections.defaultdict(int, a=1)
    return f, [call(count(2), table, IteratesOtherwise([3, 4])) for table in tables]


def refused(attempts, log):
    for attempt in attempts:
        try:
            log.append(attempt())
        except TypeError as error:
            log.append(str(error))
    return log


@program
def arguments_that_builtins_do_not_take():
    def f(x, items, n, log):
        return x * n, refused((lambda: iter(items, n, n), lambda: {n}.symmetric_difference(items, a=n)), log)

    return f, [call(count(3), [1, 2], n, []) for n in (1, 2, 3)]


@program
def more_arguments_that_builtins_do_not_take():
    def f(x, items, n, log):
        attempts = (
            lambda: next(iter(items), n, n),
            lambda: getattr(items, "a", n, n),
            lambda: vars(items, n),
            lambda: {n}.update(items, a=n),
            lambda: {n: n}.get(n, default=n),
            lambda: {n: n}.setdefault(n, default=n),
            lambda: items.extend(items, a=n),
            lambda: items.extend(iterable=items),
            lambda: ",".join(iterable=items),
        )
        made = {"a": n}
        made.update([("b", n)], c=n)
        return x * n, made, "{a} {}".format(n, a=n), collections.OrderedDict(a=n), refused(attempts, log)

    return f, [call(count(3), [1, 2], n, []) for n in (1, 2, 3)]


@program
def methods_of_other_classes():
    def f(x, items, n, log):
        attempts = (
            lambda: list.__add__(n, items),
            lambda: str.format(items, n),
            lambda: set.union(items, items),
            lambda: dict.update(n),
            lambda: list.__init__(x.shape, items),
            lambda: torch.Size.numel((1, n)),
            lambda: int.__eq__(items, n),
            lambda: list.append(),
        )
        return x * n, refused(attempts, log), int.__eq__(n, 2), list.__add__(items, items), torch.Size.numel(x.shape)

    return f, [call(count(3), [1, 2], n, []) for n in (1, 2, 3)]


@program
def more_arguments_than_library_functions_take():
    def f(x, items, n, log):
        queue = collections.deque(items)
        attempts = (
            lambda: queue.extend(items, items),
            lambda: queue.count(n, n),
            lambda: {n}.__contains__(n, n),
            lambda: copy.copy(items, n, n),
            lambda: copy.copy(items, deep=n),
            lambda: list(itertools.accumulate(items, 0)),
        )
        return x * n, refused(attempts, log), list(itertools.accumulate(items, None)), queue.count(n), copy.copy(x=items)

    return f, [call(count(3), [1, 2], n, []) for n in (1, 2, 3)]


@program
def members_that_an_enum_lacks():
    class Way(enum.Flag):
        UP = 1
        DOWN = 2

    def f(x, queue, n, log):
        try:
            log.append(Way(queue))
        except ValueError as error:
            log.append(str(error))
        return x * n, log, Way(n)

    return f, [call(count(3), collections.deque([n, 1]), n, []) for n in (1, 2, 3)]


@program
def sizes_that_vary_in_errors_of_torch():
    def f(x, n, log):
        try:
            log.append(torch.broadcast_shapes(x.shape, (n, 1)))
        except RuntimeError as error:
            log.append(str(error))
        return x * n, log

    return f, [call(count(size, 2), n, []) for size, n in ((3, 3), (4, 4), (5, 4), (6, 5), (4, 4))]
