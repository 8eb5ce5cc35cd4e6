"""Programs about comprehensions, generator expressions, generators and iterators."""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import operator

import torch

from tests.conformance.catalogue import after, call, count, normal, program


@program(core=True)
def list_comprehension_with_condition():
    def outer(xs, limit):
        return [x * i for i, x in enumerate(xs) if x.shape[0] > limit]

    return outer, [call([normal(1), normal(2), normal(3)], 1), call([normal(1), normal(2)], 0)]


@program
def nested_comprehension():
    def outer(x, n):
        return [x * i + j for i in range(n) for j in range(i) if (i + j) % 2]

    return outer, [call(normal(1), 3), call(normal(1), 4)]


@program
def comprehension_closes_over_locals():
    def outer(x, factors):
        bias = x.sum()
        return [f * bias for f in factors], {f: (lambda: bias * f)() for f in factors}

    return outer, [call(normal(2), [1, 2]), call(normal(2), [3])]


@program
def comprehension_variable_does_not_leak():
    def outer(x):
        i = 10
        squares = [i * i for i in range(3)]
        return x + i, squares

    return outer, [call(normal(1))]


@program
def dict_and_set_comprehensions():
    def outer(named):
        shapes = {tensor.shape for tensor in named.values()}
        return {name: tensor.t() for name, tensor in named.items() if not name.startswith("_")}, len(shapes)

    return outer, [call({"a": normal(2, 3), "_b": normal(2)}), call({"c": normal(1, 2), "d": normal(1, 2)})]


@program(core=True)
def generator_expression_in_sum():
    def outer(xs):
        return sum(x.sum() for x in xs), max(x.shape[0] for x in xs), tuple(x + 1 for x in xs)

    return outer, [call([normal(1), normal(2)]), call([normal(3)])]


@program
def any_and_all_stop_early():
    def outer(x, numbers):
        seen = []

        def look(n):
            seen.append(n)
            return n > 2

        return x + any(look(n) for n in numbers), all(look(n) for n in numbers), seen

    return outer, [call(normal(1), [1, 3, 5]), call(normal(1), [4, 5])]


@program
def any_over_tensor_conditions():
    def outer(xs):
        return any((x > 0).all() for x in xs), all(x.sum() > 0 for x in xs)

    return outer, [call([count(2) - 5, count(2) + 1]), call([count(2) + 1])]


@program(core=True)
def generator_consumed_in_the_frame():
    def outer(x, n):
        def powers():
            value = torch.ones_like(x)
            for _ in range(n):
                yield value
                value = value * x

        return list(powers()), sum(powers())

    return outer, [call(normal(2), 3), call(normal(2), 4)]


@program
def generator_partly_consumed():
    def outer(x):
        log = []

        def produce():
            for i in range(5):
                log.append(i)
                yield x + i

        generator = produce()
        first, second = next(generator), next(generator)
        return first * second, log

    return outer, [call(normal(1))]


@program
def generator_argument_partly_consumed():
    def outer(generator):
        return next(generator) + next(generator)

    def numbers():
        for i in itertools.count():
            yield torch.full((2,), float(i))

    shared = numbers()
    return outer, [call(shared), call(shared)]


@program
def generator_returned_to_the_caller():
    def outer(x):
        y = x * 2
        return (y + i for i in range(3))

    return outer, [call(normal(1))]


@program
def entry_is_a_generator_function():
    def outer(x):
        x = x + 1
        yield x
        yield x * 2

    return outer, [call(normal(1)), call(normal(2))]


@program
def generator_with_send():
    def outer(x):
        def averager():
            total, n = torch.zeros(2), 0
            while True:
                value = yield total / max(n, 1)
                total, n = total + value, n + 1

        average = averager()
        next(average)
        average.send(x)
        return average.send(x * 3)

    return outer, [call(normal(2))]


@program
def generator_closed_runs_finally():
    def outer(x):
        log = []

        def produce():
            try:
                yield x
                yield x + 1
            finally:
                log.append("closed")

        generator = produce()
        first = next(generator)
        generator.close()
        return first, log

    return outer, [call(normal(1))]


@program
def yield_from():
    def flatten(tree):
        if isinstance(tree, torch.Tensor):
            yield tree
        else:
            for branch in tree:
                yield from flatten(branch)

    def outer(tree):
        return torch.cat(list(flatten(tree)))

    return outer, [call([normal(1), [normal(2), [normal(3)]]]), call([[normal(1)]])]


@program
def yield_from_returns_a_value():
    def inner(x):
        yield x
        return x * 10

    def middle(x):
        result = yield from inner(x)
        yield result

    def outer(x):
        return list(middle(x))

    return outer, [call(normal(1))]


@program
def generator_that_mutates():
    def outer(x, box):
        def steps():
            for i in range(3):
                box.append(i)
                yield x * i

        for value in steps():
            if len(box) == 2:
                break
        return value

    return outer, [call(normal(1), []), call(normal(1), [7])]


@program(raises=ValueError)
def generator_that_raises():
    def produce(x):
        yield x
        raise ValueError("no more")

    def outer(x, n):
        total = x
        for _, value in zip(range(n), produce(x)):
            total = total + value
        return total

    return outer, [call(normal(1), 1), call(normal(1), 3)]


@program
def stop_iteration_caught():
    def outer(xs):
        iterator = iter(xs)
        total = next(iterator)
        while True:
            try:
                total = total + next(iterator)
            except StopIteration:
                return total

    return outer, [call([normal(1), normal(1)]), call([normal(1)])]


@program
def next_with_default():
    def outer(xs, wanted):
        found = next((x for x in xs if x.shape[0] == wanted), None)
        return found if found is None else found * 2

    return outer, [call([normal(1), normal(2)], 2), call([normal(1)], 5)]


@program
def iterator_argument_consumed():
    def outer(iterator):
        first = next(iterator)
        return first * 2, len(list(iterator))

    def fresh():
        return iter([normal(1), normal(1), normal(1)])

    return outer, [call(fresh()), call(fresh())]


@program
def user_defined_iterator():
    class Countdown:
        def __init__(self, start):
            self.left = start

        def __iter__(self):
            return self

        def __next__(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return self.left

    def outer(x, countdown):
        return [x + n for n in countdown], countdown.left

    return outer, [call(normal(1), Countdown(3)), call(normal(1), Countdown(1))]


@program
def sequence_protocol_iteration():
    class Rows:
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return self.data.shape[0]

        def __getitem__(self, i):
            if i >= len(self):
                raise IndexError(i)
            return self.data[i]

    def outer(rows):
        return [row * 2 for row in rows], len(rows), rows[1]

    return outer, [call(Rows(normal(2, 2))), call(Rows(normal(3, 2)))]


@program
def iter_with_sentinel():
    def outer(x):
        values = [3, 2, 1, 0, 5]
        taken = list(iter(lambda: values.pop(0), 0))
        return x * sum(taken), values

    return outer, [call(normal(1))]


@program
def map_and_filter():
    def outer(xs, ys):
        products = map(lambda x, y: x * y, xs, ys)
        big = filter(lambda x: x.shape[0] > 1, xs)
        return list(products), list(big), list(filter(None, [0, 1, "", "a"]))

    return outer, [call([normal(1), normal(2)], [normal(1), normal(2)]), call([normal(3)], [normal(3), normal(1)])]


@program
def zip_star_transposes():
    def outer(pairs):
        lefts, rights = zip(*pairs)
        return torch.stack(lefts), torch.stack(rights)

    return outer, [call([(normal(2), normal(2)) for _ in range(3)]), call([(normal(2), normal(2))])]


@program(raises=ValueError)
def zip_strict():
    def outer(xs, ys):
        return [x + y for x, y in zip(xs, ys, strict=True)]

    return outer, [call([normal(1)] * 2, [normal(1)] * 2), call([normal(1)] * 2, [normal(1)])]


@program
def zip_leaves_the_longer_iterator_advanced():
    def outer(x):
        numbers = iter(range(5))
        pairs = list(zip(numbers, "ab"))
        return x + next(numbers), pairs

    return outer, [call(normal(1))]


@program
def reversed_and_sorted_of_generators():
    def outer(x, n):
        return [x + i for i in reversed(range(n))], sorted((i * 7 % 5 for i in range(n)), reverse=True)

    return outer, [call(normal(1), 4), call(normal(1), 6)]


@program
def generator_with_try_inside():
    def outer(x):
        def safe(values):
            for value in values:
                try:
                    yield x / value
                except TypeError:
                    yield x
                else:
                    yield x * 0

        return list(safe([2.0, "bad", 4.0]))

    return outer, [call(normal(1))]


@program
def lazy_generator_sees_later_changes():
    def outer(x):
        factor = 2
        lazy = (x * factor for _ in range(2))
        factor = 5
        return list(lazy)

    return outer, [call(normal(1))]


@program
def mutating_a_list_while_iterating():
    def outer(x, limit):
        numbers = [1]
        for n in numbers:
            if len(numbers) < limit:
                numbers.append(n * 2)
        return x * sum(numbers), numbers

    return outer, [call(normal(1), 4), call(normal(1), 2)]


@program(raises=RuntimeError)
def mutating_a_dict_while_iterating():
    def outer(x, d):
        for key in d:
            d[key + "'"] = x
        return x

    return outer, [call(normal(1), {"a": 1})]


@program
def async_function_object_is_left_alone():
    async def later(x):
        return x + 1

    def outer(x):
        coroutine = later(x)
        coroutine.close()
        return x * 2

    return outer, [call(normal(1))]


@program
def accumulate_in_a_generator_pipeline():
    def scale(xs, factor):
        for x in xs:
            yield x * factor

    def running(xs):
        total = 0
        for x in xs:
            total = total + x
            yield total

    def outer(xs):
        return list(running(scale(xs, 2.0)))

    return outer, [call([normal(1), normal(1)]), call([normal(1) for _ in range(4)])]


@program
def generator_dropped_inside_its_finally():
    log = []

    def parts(items):
        log.append("start")
        try:
            for index, item in enumerate(items):
                yield item * index
        finally:
            log.append("end")

    def outer(x, way):
        if way == "break":
            for part in parts([x, x]):
                x = x + part
                break
        elif way == "next":
            x = next(parts([x, x])) + 1
        elif way == "closed":
            running = parts([x, x])
            x = next(running) + 2
            running.close()
        else:
            running = parts([x, x])
            x = next(running) + 3
            running = None
        log.append("after")
        return x

    return outer, [call(count(2), way) for way in ("break", "next", "closed", "dropped")], log


@program
def generator_dropped_inside_its_finally_after_a_break():
    log = []

    def parts(items):
        try:
            for index, item in enumerate(items):
                yield item * index
        finally:
            log.append("end")

    def outer(x, way):
        running = parts([x, x, x])
        for part in running if way == "named" else parts([x, x, x]):
            print("a graph break")
            x = x + part
            if way != "all":
                break
        running = None
        log.append("after")
        return x + 1

    return outer, [call(count(2), way) for way in ("break", "named", "all")], log


@program
def context_manager_around_a_break():
    log = []

    @contextlib.contextmanager
    def noted(name):
        log.append(name)
        try:
            yield name
        finally:
            log.append(f"end of {name}")

    def outer(x):
        with noted("block") as name:
            x = x + len(name)
            print("a graph break")
            x = x * 2
        log.append("after")
        return x

    return outer, [call(count(2)), call(count(3))], log


@program
def iterators_from_outside_used_up_by_native_code():
    lines = io.StringIO("a\nb\na\nc\n")
    items = iter([3, 4, 3, 5])

    def outer(x):
        counted = collections.Counter(lines)
        return x + len(counted), counted, operator.countOf(items, 3), list(items)

    def again():
        nonlocal items
        lines.seek(0)
        items = iter([3, 3])

    return outer, [call(count(2)), call(count(2)), after(again, count(2)), call(count(2)), after(again, count(2))]
