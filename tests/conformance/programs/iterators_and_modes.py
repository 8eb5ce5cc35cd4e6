"""Iterators of the program's own, live where a graph breaks, and torch function modes that watch what is called."""

from __future__ import annotations

import collections
import contextlib
import itertools

import torch

from tests.conformance.catalogue import Call, call, count, normal, program


class ByIndex:
    """The old protocol of iteration."""

    def __init__(self, items):
        self.items, self.asked = items, []

    def __getitem__(self, index):
        self.asked.append(index)
        return self.items[index]


class Counted:
    """The new one."""

    def __init__(self, items):
        self.items, self.at, self.log = items, 0, []

    def __iter__(self):
        self.log.append("iter")
        return self

    def __next__(self):
        if self.at >= len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


class Watching(torch.overrides.TorchFunctionMode):
    """Writes down every torch function that is called."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@program(core=True)
def zip_of_own_iterators_across_a_break():
    def outer(x):
        old, new, out = ByIndex([x, x * 2, x * 3]), Counted([x, x + 1, x + 2]), []
        for a, b in zip(old, new):
            out.append(a * float(b.sum()))
        return out, old.asked, new.log

    return outer, [call(count(2)), call(count(3))]


@program
def enumerate_and_map_across_a_break():
    def outer(x, most):
        old, out = ByIndex([x, x * 2, x * 3]), []
        for i, a in enumerate(old):
            if a.sum() > most:
                break
            out.append((i, a))
        pairs = zip(iter(Counted([x] * 3)), map(lambda z: z + 1, old))
        for p, q in pairs:
            print(p.sum().item())
            out.append(p + q)
            break
        return out, old.asked, list(pairs)

    return outer, [call(count(2), 2), call(count(3), 4)]


@program
def function_mode_in_the_frame():
    log = []

    def outer(x):
        with Watching(log):
            y = x + 1
            z = torch.relu(y)
        return z

    def inside_a_device():
        stack = contextlib.ExitStack()
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(Watching(log))
        return stack

    calls = [call(normal(2)), call(normal(2))]
    for context in (lambda: Watching(log), inside_a_device, lambda: torch.device("cpu")):
        calls.append(Call((normal(2),), {}, None, context))
    return outer, calls, log


def walked(queue, x):
    found = []
    for item in queue:
        found.append((item, int(x[0])))
    return found


def walked_backwards(queue, x):
    return [(item, int(x[0])) for item in reversed(queue)]


def walked_in_pairs(queue, x):
    found = []
    for place, (item, other) in enumerate(zip(queue, queue[::-1], strict=True)):
        found.append((place, item, other, int(x[0])))
    return found


def walked_while_it_grows(queue, x):
    found = []
    for item in queue:
        if len(queue) < 6:
            queue.append(item + 10)
        found.append((item, int(x[0])))
    return found


def walked_by_hand(queue, x):
    items = iter(queue)
    first = next(items)
    number = int(x[0])
    queue.append(9)
    return first, number, list(items)


def grown_and(walk):
    def outer(queue, x):
        for number in (0, 1, 2):
            queue.append(number)
        return walk(queue, x), queue

    return outer, [call([], torch.tensor([3, 4])), call([7], torch.tensor([5, 6])), call([7, 8], torch.tensor([5, 6]))]


@program(core=True)
def breaks_in_a_loop_over_a_list_that_has_grown():
    return grown_and(walked)


@program
def breaks_in_a_loop_backwards_over_a_list_that_has_grown():
    return grown_and(walked_backwards)


@program
def breaks_in_a_loop_over_pairs_of_a_list_that_has_grown():
    return grown_and(walked_in_pairs)


@program
def breaks_in_a_loop_over_a_list_that_grows():
    return grown_and(walked_while_it_grows)


@program
def a_break_behind_an_iterator_of_a_list_that_has_grown():
    return grown_and(walked_by_hand)


@program
def groups_of_numbers_from_a_tensor():
    def outer(kinds, grids):
        rows, grid = [], iter(grids)
        for row in kinds:
            groups = []
            for key, group in itertools.groupby(enumerate(row.tolist()), lambda pair: pair[1]):
                places = [place for place, _ in group]
                groups.append((key, places[0], places[-1] + 1))
            parts, position = [], 0
            for key, start, end in groups:
                if key == 0:
                    parts.append(torch.arange(end - start) + position)
                    position += end - start
                else:
                    height, width = next(grid).tolist()
                    parts.append(torch.arange(height * width) + position)
                    position += max(height, width)
            rows.append(torch.cat(parts))
        return rows

    kinds = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]])
    return outer, [call(kinds, torch.tensor([[1, 2], [2, 1]])), call(kinds.flip(1), torch.tensor([[2, 2], [2, 1]]))]


@program
def breaks_within_loops_over_ordered_dictionaries():
    held = collections.OrderedDict(b=torch.ones(2), a=torch.full((2,), 3.0))

    def outer(x):
        own = collections.OrderedDict(held, c=x)
        for key, value in own.items():
            print(key)
            own["c"] = value * x
        for value in reversed(held.values()):
            x = x + value
            print("held")
        names, values, parts = own.keys(), held.values(), []
        for name in held:
            print(name, len(names))
            parts += values
        try:
            for name in own:
                print(name)
                own[f"{name} again"] = x
        except RuntimeError as error:
            parts.append(str(error))
        return x, parts, own, list(names)

    return outer, [call(normal(2)), call(normal(2))]


@program
def a_sequence_of_modules_whose_places_have_moved_breaks_inside():
    class Told(torch.nn.Linear):
        def forward(self, x):
            print(x.shape)
            return super().forward(x)

    layers = torch.nn.Sequential(Told(3, 3), torch.nn.ReLU(), torch.nn.Tanh(), Told(3, 2))
    del layers[1]
    return layers, [call(normal(2, 3)), call(normal(4, 3))], layers


@program
def a_break_within_loops_over_dictionaries_that_iterate_their_own_way():
    log = []

    class Told(collections.OrderedDict):
        def __iter__(self):
            log.append("keys")
            return super().__iter__()

        def values(self):
            log.append("values")
            return super().values()

    table = Told(a=torch.ones(2), b=torch.full((2,), 2.0))

    def outer(x):
        for value in table.values():
            x = x + value
            print("value")
        for key in table:
            x = x * 2
            print(key)
        return x, list(log)

    return outer, [call(normal(2)) for _ in range(3)], log
