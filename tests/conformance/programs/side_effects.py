"""Programs whose effect on the outside matters as much as their result: order, identity, exactly once."""

from __future__ import annotations

import abc
import sys

import torch

from tests.conformance.catalogue import after, call, count, normal, program

HISTORY: list[object] = []


@program(core=True)
def list_seen_by_the_caller():
    def outer(x, log):
        log.append(x * 2)
        log.append("text")
        log[0] = log[0] if len(log) > 2 else x
        return len(log)

    log: list[object] = []
    return outer, [call(count(2), log), call(count(2), log)]


@program(core=True)
def print_order():
    def outer(x):
        print("before", tuple(x.shape))
        y = x + 1
        print("sum", y.sum().item(), end=";\n")
        z = y * 2
        print("after", z.shape[0], sep="|")
        return z

    return outer, [call(count(2)), call(count(3))]


@program
def print_of_a_tensor():
    def outer(x):
        y = x * 2
        print(y, [y[0]], {"y": y.shape})
        return y + 1

    return outer, [call(count(2)), call(count(2))]


@program
def print_to_stderr_and_flush():
    def outer(x):
        print("quiet", file=sys.stderr)
        sys.stdout.write("loud\n")
        sys.stdout.flush()
        return x + 1

    return outer, [call(count(1))]


@program
def effects_around_a_break_happen_once():
    def outer(x, log):
        log.append("before")
        print("break")
        log.append("after")
        x.add_(1)
        print("again")
        log.append(len(log))
        return x

    return outer, [call(count(2), []), call(count(2), [0])]


@program(raises=ValueError)
def effects_before_an_exception_stay():
    class Box:
        pass

    def outer(x, box, d, s):
        box.first = x * 2
        d["key"] = 1
        s.add(3)
        x.mul_(2)
        if x.shape[0] == 2:
            raise ValueError(len(d))
        box.second = 1
        return x

    return outer, [call(count(3), Box(), {}, set()), call(count(2), Box(), {"a": 0}, {1})]


@program(raises=IndexError)
def effects_before_an_exception_inside_a_callee():
    def inner(log, x):
        log.append("inner")
        x.zero_()
        return log[10]

    def outer(x, log):
        log.append("outer")
        y = x + 1
        inner(log, x)
        log.append("never")
        return y

    return outer, [call(count(2), [])]


@program
def global_list_appended():
    HISTORY.clear()

    def outer(x):
        HISTORY.append(x.sum())
        return torch.stack(HISTORY)

    return outer, [call(normal(2)), call(normal(2)), call(normal(3))], HISTORY


@program
def module_level_counter_through_globals():
    globals()["COUNTER"] = 0

    def bump():
        global COUNTER
        COUNTER += 1
        return COUNTER

    def outer(x):
        return x * bump() + bump()

    return outer, [call(count(2)), call(count(2))]


@program
def closure_cell_shared_by_two_functions():
    total = torch.zeros(2)

    def add(x):
        nonlocal total
        total = total + x

    def outer(x):
        add(x)
        add(x * 2)
        return total

    return outer, [call(count(2)), call(count(2))]


@program
def dict_written_in_order():
    def outer(x, d):
        for name in ("z", "a", "m"):
            d[name] = x * len(d)
        d["z"] = "again"
        del d["a"]
        d["a"] = "last"
        return list(d)

    return outer, [call(count(1), {}), call(count(1), {"m": 0})]


@program
def attribute_of_a_global_object():
    class Meter:
        def __init__(self):
            self.values, self.total = [], 0.0

        def update(self, value, n=1):
            self.values.append(value)
            self.total += n

    meter = Meter()

    def outer(x):
        meter.update(x.mean(), n=x.shape[0])
        return x * meter.total

    return outer, [call(normal(2)), call(normal(3))], meter


@program
def class_attribute_written():
    class Registry:
        count = 0
        names: list[str] = []

    def outer(x, name):
        Registry.count += 1
        Registry.names.append(name)
        return x + Registry.count

    return outer, [call(count(2), "a"), call(count(2), "b")], Registry.names


@program
def function_attribute_written():
    def outer(x):
        outer.calls = getattr(outer, "calls", 0) + 1
        return x * outer.calls

    return outer, [call(count(2)), call(count(2))]


@program
def object_made_mutated_and_leaked():
    leaked = []

    class Record:
        def __init__(self, x):
            self.x, self.tags = x, {"new"}
            leaked.append(self)

    def outer(x):
        record = Record(x * 2)
        record.tags.add("used")
        record.x = record.x + 1
        return record.x.sum()

    return outer, [call(normal(2)), call(normal(2))], leaked


@program
def same_new_list_in_two_places():
    def outer(x):
        shared = [x]
        result = {"a": shared, "b": shared, "c": [shared]}
        shared.append(x + 1)
        return result

    return outer, [call(normal(1))]


@program
def argument_list_returned_inside_others():
    def outer(xs, d):
        d["xs"] = xs
        xs.append(d)
        return (xs, [xs], d)

    return outer, [call([normal(1)], {}), call([], {"xs": 1})]


@program
def list_cleared_and_refilled():
    def outer(xs, x):
        old = list(xs)
        xs.clear()
        xs.extend([x, *old])
        xs.sort(key=lambda t: t.shape[0])
        xs.reverse()
        xs[:1] = [x * 2, x * 3]
        return len(xs)

    return outer, [call([normal(2), normal(1)], normal(3)), call([], normal(3))]


@program
def set_written():
    def outer(x, seen):
        for size in (*x.shape, 7):
            seen.add(size)
        seen.discard(2)
        return x + len(seen)

    return outer, [call(normal(2, 3), {1}), call(normal(4, 2), set())]


@program
def order_of_evaluation():
    def outer(x):
        log = []

        def note(value, result):
            log.append(value)
            return result

        table = {}
        table[note("key", "k")] = note("value", x)
        total = note("left", x) + note("right", x) * note("last", 2)
        _ = (lambda a, *, b: None)(note("a", 1), b=note("b", 2))
        _ = note("x", False) and note("skipped", True) or note("y", 1)
        _ = note("lo", 1) < note("mid", 0) < note("hi", 2)
        return total, log

    return outer, [call(normal(1))]


@program
def effects_in_a_comprehension_and_default():
    def outer(x, log):
        values = [log.append(i) or x * i for i in range(3)]

        def inner(y, stamp=log.append("default")):
            return y, stamp

        return values, inner(x)

    return outer, [call(normal(1), [])]


@program
def callback_called_in_order():
    log = []

    def outer(x, callback):
        for i in range(3):
            x = x * 2
            callback(i, x.shape)
        return x

    return outer, [call(count(2), lambda i, shape: log.append((i, shape))), call(count(2), lambda *_: log.append("other"))], log


@program
def state_machine_kept_in_a_dict():
    state = {"phase": "warm", "steps": 0}

    def outer(x):
        state["steps"] += 1
        if state["phase"] == "warm" and state["steps"] >= 2:
            state["phase"] = "hot"
        return x * (2 if state["phase"] == "hot" else 1)

    return outer, [call(count(2)) for _ in range(4)], state


@program
def exponential_moving_average_kept_outside():
    state = {}

    def outer(name, x):
        if name in state:
            state[name].mul_(0.9).add_(x, alpha=0.1)
        else:
            state[name] = x.clone()
        return state[name].norm()

    return outer, [call("a", normal(2)), call("a", normal(2)), call("b", normal(2)), call("a", normal(2))], state


@program
def tuple_of_mutables_unpacked_and_written():
    def outer(pair, x):
        xs, d = pair
        xs += [x]
        d |= {"n": len(xs)}
        return pair

    return outer, [call(([], {}), normal(1)), call(([1], {"n": 0}), normal(1))]


@program
def nested_function_mutates_enclosing_list():
    def outer(x, depth):
        trail = []

        def descend(level, value):
            trail.append(level)
            return value if level == 0 else descend(level - 1, value + level)

        return descend(depth, x), trail

    return outer, [call(count(1), 2), call(count(1), 3)]


@program
def attribute_written_then_read_through_another_name():
    class Box:
        def __init__(self):
            self.value = 1

    box = Box()
    alias = {"box": box}

    def outer(x):
        box.value += 1
        return x * alias["box"].value

    return outer, [call(count(2)), after(lambda: setattr(box, "value", 10), count(2))], box


@program
def warnings_and_prints_interleaved_with_mutation():
    def outer(xs):
        while xs:
            x = xs.pop()
            print(len(xs), x.shape[0])
        return x * 2

    return outer, [call([count(1), count(2)]), call([count(3)])]


@program
def write_to_a_file_like_object():
    class Sink:
        def __init__(self):
            self.parts = []

        def write(self, text):
            self.parts.append(text)
            return len(text)

    sink = Sink()

    def outer(x):
        print("shape", tuple(x.shape), file=sink)
        return x + sink.write("tail")

    return outer, [call(count(2)), call(count(3))], sink


@program
def setitem_on_an_argument_object():
    class Table:
        def __init__(self):
            self.rows = {}

        def __setitem__(self, key, value):
            self.rows.setdefault(key, []).append(value)

        def __getitem__(self, key):
            return self.rows[key][-1]

    def outer(table, x):
        table["a"] = x
        table["a"] = table["a"] * 2
        return table["a"]

    return outer, [call(Table(), normal(1)), call(Table(), normal(1))]


@program
def counters_of_abstract_classes():
    class Base(abc.ABC):
        made, names = 0, ()

        def __init__(self):
            type(self).made += 1
            Base.names = (*Base.names, type(self).__name__)

        @abc.abstractmethod
        def run(self, x): ...

    class Once(Base):
        def run(self, x):
            Once.last = x.shape[0]
            return x * self.made

    class Twice(Once):
        made = 10

        def run(self, x):
            Twice.made = Twice.made - 1
            return super().run(x), Twice.last, getattr(Base, "last", None)

    def f(x):
        once, twice = Once(), Twice()
        return once.run(x), twice.run(x), Once.made, Twice.made, Base.made, Base.names[-2:]

    return f, [call(normal(2)), call(normal(2)), after(lambda: setattr(Once, "made", 5), normal(3)), call(normal(2))], (Once, Twice)


@program
def attribute_of_a_class_that_its_metaclass_computes():
    log = []

    class Meta(type):
        @property
        def level(cls):
            return cls._level

        @level.setter
        def level(cls, value):
            log.append(value)
            cls._level = value * 2

    class Levelled(metaclass=Meta):
        _level = 1

    def f(x, n):
        Levelled.level = n
        y = x * Levelled.level
        Levelled.level += 1
        return y, Levelled.level, Levelled._level

    return f, [call(normal(2), 1), call(normal(2), 2), call(normal(2), 4)], log
