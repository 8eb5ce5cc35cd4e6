"""Recursion over matched data, chains of generators, histories that are walked both ways, and windows of a sequence."""

from __future__ import annotations

import collections
import dataclasses
import math

import torch
import torch.nn.functional as F

from tests.conformance.catalogue import call, count, normal, program


@dataclasses.dataclass(frozen=True)
class Circle:
    radius: float


@dataclasses.dataclass(frozen=True)
class Box:
    width: float
    height: float


def area(shape, x):
    match shape:
        case Circle(r):
            return 3.14 * r * r * x
        case Box(width=w, height=h) if w == h:
            return x * w**2
        case Box(w, h):
            return x * w * h
        case [first, *rest]:
            return area(first, x) + sum(area(other, x) for other in rest)
        case {"shape": inner, **options}:
            return area(inner, x) * options.get("scale", 1)
        case _:
            raise TypeError(f"no {shape!r}")


@program(core=True)
def areas_of_nested_shapes():
    def outer(x, k):
        shapes = [Circle(1.5), Box(2.0, 2.0), Box(1.0, 3.0)]
        return area(shapes, x) + area({"shape": shapes[k], "scale": k + 1}, x) + area({"shape": (shapes[0], {"shape": shapes[1]})}, x)

    return outer, [call(count(3), 0), call(count(3), 2), call(count(3), 1), call(count(4), 0)]


def rows(x):
    for i in range(x.shape[0]):
        yield x[i]


def mapped(values, function):
    for value in values:
        yield function(value)


def pairs(values):
    previous = None
    for value in values:
        if previous is not None:
            yield previous + value
        previous = value


@program
def generators_that_feed_each_other():
    def outer(x):
        chain = pairs(mapped(rows(x), torch.sin))
        first = next(chain)
        return first, list(chain), torch.stack(list(mapped(pairs(rows(x)), lambda value: value * 2))), next(chain, "empty")

    return outer, [call(normal(4, 3)), call(normal(5, 3)), call(normal(2, 3))]


@program
def two_loops_of_lbfgs():
    def outer(x, y, steps):
        w, memory, previous = torch.zeros(3), collections.deque(maxlen=2), None
        for _ in range(steps):
            gradient = x.T @ (x @ w - y)
            if previous is not None:
                memory.append((w - previous[0], gradient - previous[1]))
            direction, factors = gradient.clone(), []
            for s, t in reversed(memory):
                factors.append((s @ direction) / (t @ s + 1.0))
                direction = direction - factors[-1] * t
            for (s, t), factor in zip(memory, reversed(factors)):
                direction = direction + s * (factor - (t @ direction) / (t @ s + 1.0))
            previous, w = (w, gradient), w - 0.1 * direction
        return w, len(memory)

    return outer, [call(normal(6, 3), normal(6), 4), call(normal(7, 3), normal(7), 4), call(normal(6, 3), normal(6), 1)]


@program
def attention_to_neighbouring_windows():
    def outer(q, k, v):
        batch, length, width = q.shape
        blocks = q.view(batch, length // 4, 4, width)
        near_k, near_v = (F.pad(t, (0, 0, 4, 4)).unfold(1, 12, 4).transpose(-1, -2) for t in (k, v))
        inside = F.pad(torch.ones(length, dtype=torch.bool), (4, 4)).unfold(0, 12, 4)
        scores = torch.einsum("bnqd,bnkd->bnqk", blocks, near_k) / math.sqrt(width)
        weights = scores.masked_fill(~inside[None, :, None], -1e9).softmax(-1)
        return torch.einsum("bnqk,bnkd->bnqd", weights, near_v).reshape(batch, length, width)

    return outer, [call(*(normal(2, length, 8) for _ in range(3))) for length in (16, 12, 20)]


@program
def events_handled_in_order_of_time():
    handlers = {}

    def handles(kind):
        return lambda function: handlers.setdefault(kind, function)

    @dataclasses.dataclass
    class Event:
        time: float
        kind: str
        payload: torch.Tensor

        def __lt__(self, other):
            return self.time < other.time

    class Simulation:
        def __init__(self):
            self.log, self.queue, self.totals = [], collections.deque(), collections.defaultdict(lambda: torch.zeros(3))

        def push(self, event):
            place = 0
            while place < len(self.queue) and self.queue[place] < event:
                place += 1
            self.queue.insert(place, event)

        def run(self, limit):
            count = 0
            while self.queue and count < limit:
                event = self.queue.popleft()
                count += 1
                for new in handlers[event.kind](self, event) or ():
                    self.push(new)
                self.log.append(f"{event.kind}@{event.time:.2f}:{tuple(event.payload.shape)}")
            return sum(self.totals.values(), torch.zeros(3)), count

    @handles("grow")
    def grow(simulation, event):
        simulation.totals["grow"] += event.payload.sin()
        if event.time < 3:
            yield Event(event.time + 1, "decay", event.payload * 2)

    @handles("decay")
    def decay(simulation, event):
        simulation.totals["decay"] = simulation.totals["decay"] - event.payload.tanh()
        return [Event(event.time * 1.5, "grow", event.payload.flip(0))] if len(simulation.log) % 2 else []

    def f(x, count):
        simulation = Simulation()
        for number in range(count):
            simulation.push(Event(number * 0.7, "grow", x + number))
        total, handled = simulation.run(count + 3)
        return total, handled, simulation.log, list(simulation.totals), [event.kind for event in simulation.queue]

    return f, [call(normal(3), 2), call(normal(3), 2), call(normal(3), 3), call(normal(3), 1)]
