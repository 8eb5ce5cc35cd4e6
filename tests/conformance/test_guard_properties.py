"""Change any one thing that a program read and the result is right; change what it did not read and nothing recompiles.

Programs are put together at random from aspects of one world. An aspect is an expression that reads one thing, and
changes of exactly that thing: the length of a dictionary is another aspect than one of its entries.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import operator
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conformance.compilers import chosen

SCALE = 1.0
SIZE = 3
Pair = collections.namedtuple("Pair", ["left", "right"])


class Steps:
    """A class with a method, a class attribute and a property."""

    factor = 2.0

    def __init__(self) -> None:
        self.bias = 1.0

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @property
    def shift(self) -> float:
        return self.bias + 1


class Slots:
    """Attributes without a dictionary."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 3.0


class Dynamic:
    """Attributes found by `__getattr__`."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table

    def __getattr__(self, name: str) -> float:
        return self.table.get(name, 0.0)


class Level(enum.Enum):
    """Two members."""

    LOW = 1
    HIGH = 2


class World:
    """Everything that a program may read."""

    def __init__(self) -> None:
        self.number, self.rate, self.name, self.flag, self.maybe = 2, 0.5, "a", True, None
        self.table: dict[str, Any] = {"a": 1.0, "b": 2.0, "nested": {"deep": [1.0, 2.0]}}
        self.items: list[Any] = [1.0, 2.0, 3.0]
        self.names, self.pair, self.dtype = {"relu"}, Pair(1.0, 2.0), torch.float32
        self.tensor, self.tensors = torch.ones(SIZE), [torch.ones(SIZE), torch.ones(SIZE)]
        self.module = torch.nn.Linear(SIZE, SIZE)
        self.steps, self.kind, self.other = type("Steps", (Steps,), {})(), Steps, Steps()
        self.function: Callable[..., Any] = lambda x: x + 1
        self.namespace = types.SimpleNamespace(scale=2.0, unused=0)
        self.net = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU())
        self.hooked, self.plain = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE)
        self.plain.scale = 2.0
        self.place, self.order, self.numbers = torch.ones(SIZE), {"a": 1.0, "b": 2.0}, {3, 1}
        self.scaled: Callable[..., Any] = lambda x, factor=2.0, *, shift=1.0: x * factor + shift
        self.slots, self.dynamic, self.queue = Slots(), Dynamic({"a": 1.0}), collections.deque([1.0, 2.0])
        self.level, self.partial = Level.LOW, functools.partial(torch.mul, other=2.0)


@dataclasses.dataclass(frozen=True)
class Aspect:
    """One thing that can be read, and ways to change exactly it."""

    read: str
    changes: tuple[str, ...]


ASPECTS = {
    "an integer": Aspect("y * w.number", ("w.number = 3", "w.number = 4", "w.number = 2.5", "w.number = True")),
    "a float": Aspect("y * w.rate", ("w.rate = 0.25", "w.rate = float('inf')", "w.rate = 1")),
    "a string": Aspect("y if w.name == 'a' else -y", ("w.name = 'b'", "w.name = 'c'")),
    "a flag": Aspect("y + 1 if w.flag else y", ("w.flag = False", "w.flag = True")),
    "an optional value": Aspect("y if w.maybe is None else y * w.maybe", ("w.maybe = 2.0", "w.maybe = torch.ones(3) * 4")),
    "an entry of a dictionary": Aspect("y + w.table['a']", ("w.table['a'] = 5.0", "w.table['a'] = torch.ones(3)")),
    "the size of a dictionary": Aspect("y * len(w.table)", ("w.table['new'] = 1", "w.table['newer'] = 1")),
    "a value deep inside": Aspect("y * w.table['nested']['deep'][1]", ("w.table['nested']['deep'][1] = 7.0",)),
    "an element of a list": Aspect("y * w.items[0]", ("w.items[0] = 9.0", "w.items[0] = 2")),
    "the length of a list": Aspect("y * len(w.items)", ("w.items.append(4.0)", "w.items.append(5.0)")),
    "membership in a set": Aspect("y if 'relu' in w.names else -y", ("w.names.remove('relu')", "w.names.add('relu')")),
    "a named tuple": Aspect("y * w.pair.left", ("w.pair = w.pair._replace(left=3.0)",)),
    "a dtype": Aspect("y.to(w.dtype)", ("w.dtype = torch.float64", "w.dtype = torch.float32")),
    "a tensor": Aspect("y + w.tensor", ("w.tensor = torch.ones(3) * 2", "w.tensor = torch.ones(1)", "w.tensor = torch.ones(3).double()", "w.tensor = torch.ones(3, requires_grad=True)", "w.tensor = torch.arange(3)", "w.tensor = torch.ones(6)[::2]")),
    "a tensor's values": Aspect("y + w.tensors[1]", ("w.tensors[1].mul_(3)", "w.tensors[1][0] = 5")),
    "a parameter": Aspect("y + w.module.weight[0]", ("w.module.weight = torch.nn.Parameter(torch.ones(3, 3))", "w.module.weight.data.mul_(2)", "w.module.weight.requires_grad_(False)")),
    "a training flag": Aspect("y * 2 if w.module.training else y", ("w.module.eval()", "w.module.train()")),
    "a class attribute": Aspect("y * w.steps.factor", ("type(w.steps).factor = 5.0", "w.steps.factor = 6.0")),
    "a method": Aspect("w.steps.apply(y)", ("type(w.steps).apply = lambda self, x: x - 1", "w.steps.apply = lambda x: x * 4")),
    "a property": Aspect("y + w.steps.shift", ("w.steps.bias = 2.0", "type(w.steps).shift = property(lambda self: 10.0)")),
    "a function": Aspect("w.function(y)", ("w.function = lambda x: x - 2", "w.function = torch.neg")),
    "a class": Aspect("y + isinstance(w.steps, w.kind)", ("w.kind = int", "w.kind = (int, type(w.steps))")),
    "an attribute that is not there": Aspect("y * getattr(w, 'extra', 1.0)", ("w.extra = 3.0", "del w.extra")),
    "an attribute of a namespace": Aspect("y * w.namespace.scale", ("w.namespace.scale = 4.0", "w.namespace.scale = torch.ones(3)")),
    "another attribute of it": Aspect("y + w.namespace.unused", ("w.namespace.unused = 5",)),
    "a global": Aspect("y * SCALE", ("space['SCALE'] = 4.0", "space['SCALE'] = torch.ones(3)")),
    "a closure cell": Aspect("y * cell", ("program.set(3.0)", "program.set(7)", "program.set(torch.ones(3))")),
    "a submodule": Aspect("w.net(y)", ("w.net[1] = torch.nn.Tanh()", "w.net[0] = torch.nn.Linear(3, 3)", "w.net.append(torch.nn.Sigmoid())", "del w.net[0]", "w.net[0].forward = lambda x: x * 3")),
    "the hooks of a module": Aspect("w.hooked(y)", ("w.hooked.register_forward_hook(lambda m, i, o: o * 2)", "w.hooked.register_forward_pre_hook(lambda m, i: (i[0] + 1,))", "w.hooked._forward_hooks.clear()")),
    "an attribute of a module": Aspect("y * w.plain.scale", ("w.plain.scale = 3.0", "w.plain.scale = torch.ones(3)", "del w.plain.scale", "w.plain.register_buffer('scale', torch.ones(3) * 5)")),
    "a device": Aspect("y * (2 if w.place.device.type == 'cpu' else 3)", ("w.place = torch.ones(3, device='meta')",)),
    "the order of a dictionary": Aspect("y + [*w.order.values()][0]", ("w.order['a'] = w.order.pop('a')", "w.order['b'] = 9.0")),
    "the elements of a set": Aspect("y + sum(place * number for place, number in enumerate(w.numbers))", ("w.numbers.add(8)", "w.numbers.discard(1)", "w.numbers = {24, 16, 8}", "w.numbers = {8, 16, 24}")),
    "the defaults of a function": Aspect("w.scaled(y)", ("w.scaled.__defaults__ = (4.0,)", "w.scaled.__kwdefaults__ = {'shift': 5.0}", "w.scaled.__code__ = (lambda x, factor=2.0, *, shift=1.0: x - factor).__code__")),
    "a slot": Aspect("y * w.slots.value", ("w.slots.value = 5.0", "w.slots.value = torch.ones(3)")),
    "what `__getattr__` finds": Aspect("y + w.dynamic.anything", ("w.dynamic.table['anything'] = 4.0", "w.dynamic.anything = 5.0")),
    "a deque": Aspect("y * w.queue[0] + len(w.queue)", ("w.queue.append(1.0)", "w.queue.popleft()")),
    "a member of an enumeration": Aspect("y * w.level.value if w.level is Level.LOW else -y", ("w.level = Level.HIGH",)),
    "a partial call": Aspect("w.partial(y)", ("w.partial = functools.partial(torch.mul, other=3.0)", "w.partial = functools.partial(torch.add, other=3.0)")),
    "the type of an object": Aspect("y + hasattr(w.other, 'apply') * w.other.bias", ("w.other = types.SimpleNamespace(bias=3.0)",)),
    "autocast": Aspect("y + torch.mm(torch.ones(3, 3), torch.full((3, 3), 1.001))[0].to(torch.float32)", ("torch.set_autocast_enabled('cpu', True)", "torch.set_autocast_dtype('cpu', torch.float16)", "torch.set_autocast_enabled('cpu', False)")),
    "deterministic algorithms": Aspect("y + torch.are_deterministic_algorithms_enabled()", ("torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)")),
    "the precision of matrix products": Aspect("y + (torch.get_float32_matmul_precision() == 'high')", ("torch.set_float32_matmul_precision('high')", "torch.set_float32_matmul_precision('highest')")),
    "hooks on all modules": Aspect("w.plain(y) + len(torch.nn.modules.module._global_forward_hooks)", ("space['handles'].append(torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2))", "space['handles'].pop().remove()")),
    "the grad mode": Aspect("y + 1 if torch.is_grad_enabled() else y", ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)")),
    "the default dtype": Aspect("y + torch.ones(3).mul(2)", ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)")),
}
# These change what every graph means, or every call of a module.
ALWAYS_GUARDED = {
    "the grad mode", "the default dtype", "autocast", "deterministic algorithms", "the precision of matrix products",
    "hooks on all modules",
}
SHARED = {"a class attribute", "a method", "a property"}  # changes of one class: adding an attribute may be seen by the others


class Trial:
    """One random program over one world, compiled."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.space: dict[str, Any] = {"torch": torch, "SCALE": SCALE, "Level": Level, "handles": []}
        self.read = self.random.sample(sorted(ASPECTS), 4)
        lines = "".join(f"    y = {ASPECTS[name].read}\n" for name in self.read)
        source = (
            "def make(w):\n  cell = 2.0\n"
            f"  def program(x):\n    y = x * 1\n    if x.shape[0] == 0:\n      return cell\n{lines}    return y\n"
            "  def set(value):\n    nonlocal cell\n    cell = value\n  program.set = set\n  return program\n"
        )
        exec(source, self.space)
        self.program = self.space["make"](self.world)
        self.compiled = compiled(self.program)

    def change(self, name: str, step: int) -> bool:
        """Change an aspect in its next way; whether there was one."""
        changes = ASPECTS[name].changes
        if step >= len(changes):
            return False
        names = {"torch": torch, "functools": functools, "types": types, "Level": Level, "program": self.program}
        exec(changes[step], names | {"w": self.world, "space": self.space})
        return True

    def check(self, after: str) -> None:
        """The compiled program shows what the plain one shows."""
        x = torch.arange(3.0) + 1
        expected, actual = outcome(self.program, x), outcome(self.compiled, x)
        assert type(expected) is type(actual), f"{self.read} after {after}: {expected} in eager, {actual} compiled"
        if isinstance(expected, torch.Tensor):
            same = expected.dtype == actual.dtype and expected.requires_grad == actual.requires_grad
            close = torch.allclose(expected, actual, rtol=1e-6, atol=0, equal_nan=True)
            assert same and close, f"{self.read} after {after}: {expected} in eager, {actual} compiled"


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    """The result, or the text of the exception."""
    try:
        return function(x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def compiled(function: Callable[..., Any]) -> Any:
    """The tracer with an eager backend and room for many variants."""
    from minicompile import config  # here: the suite's own tests run without the package
    from minicompile.capture.entry import CompiledCallable

    return CompiledCallable(function, operator.attrgetter("module.forward"), config.current().replace(recompile_limit=200, suppress_errors=False))


@pytest.fixture(autouse=True)
def put_back_global_state() -> Any:
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.nn.modules.module._global_forward_hooks.clear()


tracer_only = pytest.mark.skipif(chosen() == "eager", reason="needs the tracer")


@tracer_only
@pytest.mark.parametrize("seed", range(40))
def test_a_change_of_anything_gives_the_right_result(seed: int) -> None:
    trial = Trial(seed)
    trial.check("nothing")
    order = [name for name in ASPECTS for _ in ASPECTS[name].changes]
    trial.random.shuffle(order)
    steps: collections.Counter[str] = collections.Counter()
    for name in order:
        if trial.change(name, steps[name]):
            steps[name] += 1
            trial.check(f"a change of {name}")


@tracer_only
@pytest.mark.parametrize("seed", range(40))
def test_a_change_of_what_was_not_read_recompiles_nothing(seed: int) -> None:
    trial = Trial(seed)
    trial.check("nothing")
    related = SHARED if SHARED & set(trial.read) else set()
    others = sorted(set(ASPECTS) - set(trial.read) - ALWAYS_GUARDED - related)
    trial.random.shuffle(others)
    for name in others:
        before = len(trial.compiled.records.sources)
        trial.change(name, 0)
        trial.check(f"a change of {name}")
        after = len(trial.compiled.records.sources)
        assert after == before, f"{trial.read}: recompiled after a change of {name}: {trial.compiled.records.recompiles[-1]}"
