"""Iterators of the program's own, live where a graph breaks, and torch function modes that watch what is called."""

from __future__ import annotations

import contextlib

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
