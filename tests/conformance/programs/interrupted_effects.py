"""Programs that change things while the frame breaks or raises half-way: every effect once, in order, on the right object."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import itertools
import operator
import sys
import types
import warnings

import torch

from tests.conformance.catalogue import call, count, normal, program

COUNTER = 0


@program(core=True)
def break_inside_an_except_block():
    def outer(x, log):
        try:
            log.append("try")
            raise KeyError("gone")
        except KeyError as error:
            y = x * 2
            print("handling", error, y.sum().item())
            log.append(str(error))
            y = y + 1
            log.append((type(sys.exc_info()[1]).__name__, sys.exception() is sys.exc_info()[1]))
        log.append((sys.exc_info()[0], sys.exception()))
        return y

    return outer, [call(count(3), []), call(normal(3), [])]


@program(raises=KeyError)
def bare_raise_after_a_break_in_an_except_block():
    def outer(x, log):
        try:
            log["missing"]
        except KeyError:
            log["x"] = x + 1
            print("again")
            log["y"] = log["x"] * 2
            raise
        return x

    return outer, [call(count(3), {}), call(count(3), {"missing": 1})]


@program(raises=ValueError)
def exception_raised_after_a_break_keeps_its_context():
    def outer(x, log):
        try:
            raise KeyError("first")
        except KeyError:
            log.append(x * 2)
            print("between")
            log.append(x * 3)
            raise ValueError("second")

    def caught(x, log):
        try:
            outer(x, log)
        except ValueError as error:
            log.append(repr(error.__context__))
            raise

    return caught, [call(count(2), [])]


@program
def nested_handlers_with_breaks():
    def outer(x, log):
        try:
            raise KeyError(1)
        except KeyError as first:
            print("one", first)
            try:
                raise ValueError(2)
            except ValueError as second:
                print("two", second, repr(second.__context__))
                log.append(x + 1)
            log.append(repr(sys.exc_info()[1]))
            print("three")
        finally:
            log.append("finally")
            print("four")
        return x.sin()

    return outer, [call(count(2), []), call(count(2), [])]


@program
def break_in_a_loop_over_a_zip():
    def outer(x, names, weights):
        seen = []
        for index, (name, weight) in enumerate(zip(names, weights)):
            x = x * weight + index
            print(name, x.shape)
            seen.append(name)
        return x, seen

    return outer, [call(count(2), ["a", "b", "c"], (1.0, 2.0, 3.0)), call(count(2), ["q"], (4.0, 5.0))]


@program
def break_in_a_loop_over_a_dictionary():
    def outer(x, table):
        for key in table:
            print(key)
            x = x + 1
        for value in table.values():
            x = x * value
            print(value)
        for key, value in table.items():
            print(key, value)
            table[key] = value + 1
        return x

    return outer, [call(count(2), {"a": 1, "b": 2, "c": 3}), call(count(2), {"b": 2})]


@program(raises=RuntimeError)
def dictionary_grows_while_it_is_iterated():
    def outer(x, table):
        for key in table:
            x = x + 1
            print(key)
            table[key + "!"] = x
        return x

    return outer, [call(count(2), {"a": 1})]


@program
def list_grows_while_it_is_iterated():
    def outer(x, items):
        for item in items:
            x = x + item
            if len(items) < 6:
                items.append(item * 2)
            print(item)
        return x, items

    return outer, [call(count(2), [1, 2]), call(count(2), [3])]


@program
def break_in_a_generator_consumed_in_the_frame():
    def steps(x, log):
        for index in range(3):
            log.append(index)
            print("step", index)
            yield x * index
        log.append("done")

    def outer(x, log):
        total = x
        for part in steps(x, log):
            total = total + part
        return total, list(log)

    return outer, [call(count(3), []), call(count(3), [])]


@program
def break_beside_a_half_consumed_generator():
    def outer(x, log):
        def steps():
            for index in range(5):
                log.append(index)
                yield x * index

        generator = steps()
        first = next(generator)
        print("half way")
        second = next(generator)
        log.append("closing")
        generator.close()
        return first + second, log

    return outer, [call(count(3), []), call(count(3), [])]


@program
def iterator_shared_by_two_loops():
    def outer(x, items):
        iterator = iter(items)
        for item in iterator:
            x = x + item
            print("first", item)
            if item > 1:
                break
        for item in iterator:
            x = x * item
            print("second", item)
        return x, list(iterator)

    return outer, [call(count(2), [1, 2, 3, 4]), call(count(2), [5, 6])]


@program
def iterator_from_outside_shared_with_the_caller():
    def outer(x, iterator):
        x = x + next(iterator)
        print("between")
        return x * next(iterator)

    iterator = iter([1.0, 2.0, 3.0, 4.0])
    return outer, [call(count(2), iterator), call(count(2), iterator)], iterator


@program
def generator_expression_across_a_break():
    def outer(x, scales):
        parts = (x * scale for scale in scales)
        total = next(parts)
        print("first")
        for part in parts:
            total = total + part
        return total

    return outer, [call(count(2), [1, 2, 3])]


@program
def itertools_across_a_break():
    def outer(x):
        chain = itertools.chain([1, 2], (3,), range(4, 6))
        pairs = itertools.islice(itertools.count(10), 3)
        ring = itertools.cycle("ab")
        seen = [next(ring)]
        for item in chain:
            x = x + item
            print(item, next(ring))
        for item in pairs:
            x = x - item
            print(item)
        return x, next(ring), seen

    return outer, [call(count(2)), call(count(2))]


@program
def return_in_finally_wins_over_an_exception():
    def outer(x, log):
        try:
            print("in try")
            log.append(1)
            raise ValueError("swallowed")
        finally:
            log.append(2)
            print("in finally")
            return x + len(log)

    return outer, [call(count(2), []), call(count(2), [5])]


@program
def loop_with_try_finally_continue_and_break():
    def outer(x, log):
        for index in range(6):
            try:
                if index == 1:
                    continue
                if index == 4:
                    break
                x = x + index
                print(index)
            finally:
                log.append(index)
                print("finally", index)
        else:
            log.append("never")
        return x

    return outer, [call(count(2), []), call(count(2), [])]


class Swallow:
    """Swallows exceptions and notes what it saw."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        print("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(None if kind is None else (kind.__name__, str(error), trace is not None))
        print("exit")
        return True


@program(core=True)
def with_block_swallows_what_is_raised_after_a_break():
    def outer(x, log):
        with Swallow(log) as manager:
            x = x + 1
            print("inside", manager.log is log)
            x = x * 2
            raise ValueError(f"{x.sum().item():.1f}")
        log.append("after")
        return x

    return outer, [call(count(2), []), call(count(2), [])]


@program
def exit_stack_across_breaks():
    def outer(x, log):
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "last")
            stack.enter_context(Swallow(log))
            print("between")
            stack.callback(log.append, "first")
            x = x * 3
        return x

    return outer, [call(count(2), []), call(count(2), [])]


@program
def suppress_around_a_break():
    def outer(x, table):
        with contextlib.suppress(KeyError, IndexError):
            table["a"] = x * 2
            print("kept")
            table["b"] = table["missing"]
        return x + len(table)

    return outer, [call(count(2), {}), call(count(2), {"missing": 1})]


class Guarded:
    """Notes every store in a log, through `__setattr__`."""

    def __init__(self, log):
        object.__setattr__(self, "log", log)

    def __setattr__(self, name, value):
        self.log.append(("set", name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append(("delete", name))
        object.__delattr__(self, name)


@program
def stores_through_setattr_around_breaks():
    def outer(x, box):
        box.first = x + 1
        print("one")
        box.second = box.first * 2
        del box.first
        print("two", hasattr(box, "first"))
        box.second += 1
        return box.second

    def make():
        return Guarded([])

    first, second = make(), make()
    return outer, [call(count(2), first), call(count(2), second)], (first.log, second.log)


class Temperature:
    """A property with a setter and a deleter, and a counter on the class."""

    changes = 0

    def __init__(self):
        self._value = None

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        type(self).changes += 1
        print("set")
        self._value = new

    @value.deleter
    def value(self):
        Temperature.changes += 10
        self._value = None


@program
def property_setters_and_class_counters():
    Temperature.changes = 0

    def outer(x, box):
        box.value = x * 2
        box.value += 1
        result = box.value
        print("changes", Temperature.changes)
        del box.value
        return result, Temperature.changes

    return outer, [call(count(2), Temperature()), call(count(2), Temperature())]


class Noisy:
    """Says when it dies."""

    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


@program
def object_dies_at_the_right_place():
    def outer(x, log):
        noisy = Noisy(log)
        print("alive", len(log))
        x = x + 1
        del noisy
        gc.collect()
        log.append("after")
        return x * 2

    return outer, [call(count(2), []), call(count(2), [])]


@dataclasses.dataclass
class Record:
    """A dataclass whose `__post_init__` computes and has an effect."""

    x: torch.Tensor
    log: list
    tags: list = dataclasses.field(default_factory=list)
    total: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self):
        self.total = self.x.sum()
        self.log.append("made")
        print("post")


@program
def dataclass_post_init_with_a_break():
    def outer(x, log):
        record = Record(x, log)
        record.tags.append(1)
        other = dataclasses.replace(record, x=x + 1)
        return record.total + other.total, record.tags is other.tags, log

    return outer, [call(count(2), []), call(count(2), [])]


@program
def mutable_default_argument():
    def outer(x, seen=[]):
        seen.append(x.shape[0])
        print(len(seen))
        seen.append(x * 2)
        return seen[-1] + len(seen)

    return outer, [call(count(2)), call(count(3)), call(count(2))]


@program
def recursion_with_a_break_at_the_bottom():
    def descend(x, depth, log):
        log.append(depth)
        if depth == 0:
            print("bottom")
            return x
        x = descend(x * 2, depth - 1, log)
        log.append(-depth)
        return x + 1

    def outer(x, log):
        return descend(x, 4, log)

    return outer, [call(count(2), []), call(count(2), [])]


@program
def counters_of_all_kinds():
    globals()["COUNTER"] = 0
    local = 0

    class Holder:
        total = 0

    def outer(x):
        global COUNTER
        nonlocal local
        COUNTER += 1
        local += 2
        Holder.total += 3
        print(COUNTER > 0, local, Holder.total)
        COUNTER += 1
        local += 2
        Holder.total += 3

        def inner():
            global COUNTER
            COUNTER += 10
            return COUNTER

        before = COUNTER
        return x * (inner() - before), local, Holder.total

    return outer, [call(count(2)), call(count(2)), call(count(2))]


@program(raises=ZeroDivisionError)
def everything_changed_then_an_error():
    def outer(x, items, table, box, names, queue):
        items.append(x + 1)
        table["a"] = len(items)
        print("one")
        box.value = x * 2
        names.add("b")
        queue.appendleft(table["a"])
        table["b"] = 1 // (x.shape[0] - 2)
        items.append("never")
        return x

    def fresh():
        return [], {}, types.SimpleNamespace(), {"a"}, collections.deque(maxlen=2)

    return outer, [call(count(3), *fresh()), call(count(2), *fresh())]


@program
def containers_of_the_standard_library():
    def outer(x, groups, queue, tally, ordered):
        groups["a"].append(x)
        groups["b"]
        print(sorted(groups))
        queue.append(1)
        queue.rotate(1)
        queue.extendleft([7, 8])
        tally.update("aab")
        tally["c"] -= 2
        print(tally.most_common(1))
        ordered.move_to_end("first")
        ordered["third"] = ordered.pop("second")
        groups["a"].append(len(queue))
        return x + tally["a"], list(queue), list(ordered)

    def fresh():
        return (
            collections.defaultdict(list),
            collections.deque([0], maxlen=3),
            collections.Counter("b"),
            collections.OrderedDict(first=1, second=2),
        )

    return outer, [call(count(2), *fresh()), call(count(2), *fresh())]


@program
def exception_chain_after_a_break():
    def outer(x, log):
        try:
            try:
                print("deep")
                raise KeyError("cause")
            except KeyError as error:
                raise ValueError("effect") from error
        except ValueError as error:
            log.append((repr(error), repr(error.__cause__), error.__suppress_context__))
            print("caught")
        return x.cos()

    return outer, [call(count(2), []), call(count(2), [])]


@program
def warnings_in_order():
    def outer(x):
        warnings.warn("first", UserWarning, stacklevel=1)
        y = x + 1
        warnings.warn(f"second {tuple(y.shape)}", RuntimeWarning, stacklevel=1)
        return y

    return outer, [call(count(2)), call(count(3))]


@program
def formatting_of_shapes():
    def outer(x):
        text = f"{x.shape=} {x.shape[0]:>4} {len(x)!r} {x.dtype} {list(x.size())} {x.ndim + 1=:03d}"
        print(text)
        return x + len(text), text, "%s-%d" % (x.shape, x.numel()), "{0[0]}".format(x.shape)

    return outer, [call(count(2, 3)), call(count(4, 3))]


@program
def walrus_and_star_unpacking():
    def outer(x, items):
        if (size := len(items)) > 2:
            first, *middle, last = items
            middle.append(size)
        else:
            first, last, middle = 0, 0, []
        print([doubled for item in items if (doubled := item * 2) > 2])
        (head, (_, *tail)), other = (1, (2, 3, 4)), [*middle, *items]
        return x + first + last, middle, tail, other, head, doubled

    return outer, [call(count(2), [1, 2, 3, 4]), call(count(2), [5])]


@dataclasses.dataclass
class Point:
    """Matched by position and by name."""

    left: object
    right: object


@program
def match_statement_with_breaks():
    def outer(x, value):
        match value:
            case Point(left=0, right=y):
                print("zero", y)
                return x + y
            case Point(a, b) if a == b:
                print("equal")
                return x * a
            case {"key": [first, *rest], **others}:
                print(first, rest, others)
                return x - first
            case (int() | float()) as number:
                return x + number
            case [Point(right=inner), *_]:
                print("nested")
                return x + inner
            case str(text):
                return x, text
            case _:
                return x.neg()

    values = (Point(0, 5), Point(2, 2), {"key": [1, 2, 3], "z": 4}, 3, 2.5, [Point(1, 7), 0], "text", None)
    return outer, [call(count(2), value) for value in values]


@program
def deletions_of_all_kinds():
    def outer(x, items, table, box):
        del items[0], table["a"]
        print(len(items))
        del items[-2:], box.value
        local = x + 1
        result = local * 2
        del local
        print(table)
        try:
            return local
        except UnboundLocalError as error:
            return result, str(error)

    def fresh():
        return [1, 2, 3, 4], {"a": 1, "b": 2}, types.SimpleNamespace(value=1)

    return outer, [call(count(2), *fresh()), call(count(2), *fresh())]


@program
def lru_cache_counts_each_call_once():
    calls = []

    @functools.lru_cache
    def table(size):
        calls.append(size)
        return size * 2

    def outer(x):
        y = x + table(x.shape[0])
        print(table.cache_info().currsize)
        return y * table(x.shape[0]) + table(7)

    return outer, [call(count(2)), call(count(3)), call(count(2))], calls


@program
def single_dispatch_around_breaks():
    @functools.singledispatch
    def scale(value, x):
        return x

    @scale.register
    def _(value: int, x):
        print("int")
        return x * value

    @scale.register(list)
    def _(value, x):
        return sum((scale(item, x) for item in value), x)

    def outer(x, value):
        return scale(value, x) + 1

    return outer, [call(count(2), 3), call(count(2), [1, 2]), call(count(2), "s")]


class Access(enum.Flag):
    """Flags that combine."""

    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


@program
def enum_flags():
    def outer(x, access):
        if Access.READ in access:
            x = x + 1
        access |= Access.WRITE
        print(access, access is Access.BOTH, bool(access & ~Access.READ))
        return x * access.value, access ^ Access.READ, [flag.name for flag in Access]

    return outer, [call(count(2), Access.READ), call(count(2), Access.WRITE), call(count(2), Access(0))]


Span = collections.namedtuple("Span", ["start", "stop"], defaults=[9])


@program
def namedtuple_methods():
    def outer(x, span):
        other = span._replace(stop=x)
        print(span._fields, span.start)
        made = Span._make([1, 2])
        return other, other._asdict(), made + span[1:], Span(4)

    return outer, [call(count(2), Span(1, 2)), call(count(2), Span(3))]


@program
def deepcopy_of_containers_with_tensors():
    def outer(x, table):
        twin = copy.deepcopy(table)
        twin["list"].append(x)
        shallow = copy.copy(table)
        print(len(table["list"]), shallow["list"] is table["list"])
        shallow["new"] = x + 1
        twin["same"][0] = 5
        return twin, "new" in table, twin["same"] is twin["again"]

    def fresh():
        same = [1]
        return {"list": [2], "same": same, "again": same}

    return outer, [call(count(2), fresh()), call(count(2), fresh())]


@program
def sorting_with_keys():
    def outer(x, items):
        items.sort(key=lambda pair: (-pair[1], pair[0]))
        print(items[0][0])
        ranked = sorted(items, key=operator.itemgetter(0), reverse=True)
        best = max(items, key=lambda pair: pair[1])
        return x * best[1], [name for name, _ in ranked], min(items), items

    def fresh():
        return [("b", 2), ("a", 2), ("c", 5)]

    return outer, [call(count(2), fresh()), call(count(2), fresh())]


@program(raises=ValueError)
def zip_strict_with_effects():
    def outer(x, names, log):
        for name, part in zip(names, x.unbind(0), strict=True):
            log.append((name, part * 2))
            print(name)
        return log

    return outer, [call(count(2, 2), ["a", "b"], []), call(count(2, 2), ["a", "b", "c"], [])]


class Logged:
    """Compares equal to numbers and notes each comparison."""

    def __init__(self, value, log):
        self.value, self.log = value, log

    def __lt__(self, other):
        self.log.append(("lt", self.value))
        return self.value < getattr(other, "value", other)

    def __gt__(self, other):
        self.log.append(("gt", self.value))
        return self.value > getattr(other, "value", other)


@program
def chained_comparisons_evaluate_once():
    def outer(x, log):
        a, b = Logged(1, log), Logged(2, log)
        inside = a < b < 5 < Logged(9, log)
        print(inside, len(log))
        outside = 3 < a < b
        return x + inside + outside, 0 < x.shape[0] <= 3 != 4

    return outer, [call(count(2), []), call(count(4), [])]


@program
def in_place_operators_keep_identity():
    def outer(x, items, names, table, log):
        alias = items
        items += [1, 2]
        items *= 2
        names |= {"b"}
        names -= {"a"}
        table |= {"k": x}
        log.append(alias is items)
        print(len(items))
        alias += (9,)
        items[1:3] = [x, x + 1, 7]
        items[::2] = [0] * len(items[::2])
        return len(items), alias is items, table

    def fresh():
        return [5], {"a"}, {}, []

    return outer, [call(count(2), *fresh()), call(count(2), *fresh())]


@program
def tuple_with_an_in_place_operator_inside():
    def outer(x, pair, log):
        try:
            pair[0] += [1]
        except TypeError as error:
            log.append(str(error))
            print("caught")
        return x + len(pair[0]), pair

    return outer, [call(count(2), ([0], 1), []), call(count(2), ([], 1), [])]


@program
def star_arguments_with_effects():
    def outer(x, log):
        def note(value):
            log.append(value)
            print(value)
            return value

        def target(*args, **kwargs):
            return x * sum(args) + sum(kwargs.values()), list(kwargs)

        return target(note(1), *[note(2), note(3)], a=note(4), **{"b": note(5)})

    return outer, [call(count(2), []), call(count(2), [])]


@program
def order_of_evaluation_around_breaks():
    def outer(x, log):
        def note(value):
            log.append(value)
            return value

        def get(index):
            print("get", index)
            return items

        items = [0, 0, 0, 0]
        get(1)[note(2)], get(3)[note(1)] = note(x.shape[0]), note(4)
        table = {note("k"): note("v"), note("l"): note("w")}
        return x + items[1], items, table, note(1) + note(2) * note(3)

    return outer, [call(count(2), []), call(count(2), [])]


@program
def generator_with_send_and_finally():
    def outer(x, log):
        def accumulate():
            total = x
            try:
                while True:
                    factor = yield total
                    if factor is None:
                        return "returned"
                    total = total * factor
            finally:
                log.append("closed")

        generator = accumulate()
        next(generator)
        y = generator.send(2)
        print("sent")
        y = y + generator.send(3)
        try:
            generator.send(None)
        except StopIteration as stop:
            log.append(stop.value)
        return y

    return outer, [call(count(2), []), call(count(2), [])]


@program
def yield_from_with_a_break():
    def outer(x, log):
        def inner():
            log.append("inner")
            received = yield x
            print("received", received)
            yield x + 1
            return "inner result"

        def delegate():
            result = yield from inner()
            log.append(result)
            yield x * 2

        return sum(delegate(), x)

    return outer, [call(count(2), []), call(count(2), [])]


@program
def while_loop_with_tensor_condition():
    def outer(x, log):
        steps = 0
        while x.sum() < 20:
            x = x * 2 + 1
            steps += 1
            log.append(steps)
        else:
            log.append("else")
        return x, steps

    return outer, [call(count(3), []), call(count(3) + 30, [])]


@program
def nested_loops_with_breaks():
    def outer(x, log):
        for row in range(2):
            for column in (1, 2):
                x = x + row * column
                print(row, column)
                if column == 1 and row == 1:
                    break
            else:
                log.append(row)
        return x

    return outer, [call(count(3), []), call(count(3), [])]


@program
def comprehension_with_a_break_inside():
    def outer(x, log):
        def note(value):
            print(value)
            log.append(value)
            return x * value

        rows = [note(i) for i in range(3) if i != 1]
        table = {i: note(i) for i in (5, 6)}
        kept = {len(log) for _ in (note(j) for j in (7, 8))}
        return rows, table, kept

    return outer, [call(count(2), []), call(count(2), [])]


@program
def class_made_after_a_break():
    def outer(x, log):
        log.append(1)

        class Local:
            scale = len(log) + 1

            def apply(self, y):
                log.append(self.scale)
                return y * self.scale

        print("made")
        return Local().apply(x)

    return outer, [call(count(2), []), call(count(2), [])]


@program
def reentrant_call_through_a_callback():
    def outer(x, log, callback):
        log.append("in")
        print("before")
        x = callback(x + 1)
        log.append("out")
        return x * 2

    def fresh():
        log: list = []

        def callback(value):
            log.append("callback")
            return outer(value, log, lambda inner: inner * 3) if len(log) < 5 else value

        return log, callback

    return outer, [call(count(2), *fresh()), call(count(2), *fresh())]


@program
def buffer_changed_half_way():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            self.steps += 1
            self.calls += 1
            print("calls", self.calls)
            self.steps.mul_(2)
            self.last = x.detach() + self.steps
            return x * self.steps

    module = Counter()
    return module, [call(count(2)), call(count(2))], module


@program
def views_changed_around_a_break():
    def outer(x, log):
        row = x[0]
        row.add_(1)
        print("between")
        x[1:].mul_(2)
        log.append(row)
        row.zero_()
        return x, row, x[0] is row

    return outer, [call(count(3, 2), []), call(count(3, 2), [])]


@program
def attempts_that_fail_after_a_break():
    def attempt(x, need, place, log):
        if place == "early":
            print("attempt", len(log))
        log.append(len(log))
        if len(log) <= need:
            raise ValueError(len(log))
        print("done")
        return x + len(log)

    def outer(x, need, place):
        log, last = [], None
        for i in range(4):
            try:
                return attempt(x * i, need, place, log), last, log
            except ValueError as error:
                last = error.args
        return None, last, log

    return outer, [
        call(count(3), 0, "early"),
        call(count(3), 2, "early"),
        call(count(3), 9, "early"),
        call(count(3), 2, "late"),
        call(count(3), 3, "late"),
    ]


@program
def loop_that_catches_what_a_break_raised():
    def outer(x, bad):
        found = []
        for i in range(5):
            try:
                found.append(x * i + int(str(bad[i % len(bad)])))
                print(i)
                found.append(1 // bad[i % len(bad)])
            except ZeroDivisionError:
                found.append("zero")
            except ValueError:
                found.append("text")
                continue
            finally:
                found.append(i)
        return found

    return outer, [call(count(2), [1, 0, 2]), call(count(2), [0, "a"]), call(count(2), ["a", 1]), call(count(2), [3])]


@program
def default_device_around_breaks():
    def outer(x, talk):
        with torch.device("meta"):
            made = torch.empty(3, 4), torch.arange(3), torch.zeros(2, device="cpu")
            if talk:
                print("inside")
            with torch.device("cpu"):
                inner = torch.ones(2) * 3
                if talk:
                    print("deeper")
                inner = inner + torch.full((2,), 2.0)
            late = torch.rand(2)
        return x + inner, [each.device.type for each in (*made, late)], made[2], torch.ones(1)

    return outer, [call(count(2), False), call(count(2), True), call(count(2), True), call(count(3)[:2], False)]
