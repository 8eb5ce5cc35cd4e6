"""The standard library as training scripts and services use it, beside tensors."""

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import inspect
import itertools
import json
import logging
import math
import operator
import pickle
import re
import string
import struct
import types
import typing
import warnings
import weakref

import torch

from tests.conformance.catalogue import after, call, count, leaf, normal, program


@dataclasses.dataclass(order=True)
class Job:
    """A thing with a priority."""

    cost: float
    name: str = dataclasses.field(compare=False)
    tags: list = dataclasses.field(default_factory=list, compare=False)


class Mode(enum.Flag):
    """What to do with a batch."""

    NONE = 0
    SCALE = enum.auto()
    SHIFT = enum.auto()
    BOTH = SCALE | SHIFT


@program(core=True)
def jobs_in_a_heap():
    def f(x, jobs):
        heap = list(jobs)
        heapq.heapify(heap)
        heapq.heappush(heap, Job(0.5, "new"))
        order = [heapq.heappop(heap).name for _ in range(len(heap))]
        return x * len(order), order

    return f, [
        call(normal(2), [Job(2.0, "b"), Job(1.0, "a")]),
        call(normal(2), [Job(0.1, "b"), Job(1.0, "a"), Job(0.7, "c")]),
        call(normal(2), []),
    ]


@program
def best_of_a_heap():
    def f(x, jobs):
        top = heapq.nlargest(2, jobs)
        low = heapq.nsmallest(1, jobs, key=lambda job: -job.cost)
        merged = list(heapq.merge([1, 4], [2, 3]))
        replaced = [3, 5, 9]
        return x + merged[1], [job.name for job in top], low[0].name, heapq.heappushpop(replaced, 4), heapq.heapreplace(replaced, 8)

    jobs = [Job(1.0, "a"), Job(3.0, "b"), Job(2.0, "c")]
    return f, [call(count(2), jobs), call(count(2), jobs[:2]), after(lambda: setattr(jobs[0], "cost", 9.0), count(2), jobs)]


@program
def thresholds_by_bisection():
    def f(x, edges, value):
        place = bisect.bisect(edges, value)
        bisect.insort(edges, value)
        found = bisect.bisect_left([Job(1.0, "a"), Job(2.0, "b")], Job(value, "?"))
        keyed = bisect.bisect_right([(1, "a"), (3, "b")], 2, key=lambda pair: pair[0])
        return x * place, edges, found, keyed

    return f, [call(count(2), [0.5, 1.5], 1.0), call(count(2), [0.5, 1.5], 2.0), call(count(2), [], 1.5)]


@program
def flags_of_an_enum():
    def f(x, mode):
        if Mode.SCALE in mode:
            x = x * 2
        if mode & Mode.SHIFT:
            x = x + 1
        return x, mode | Mode.SHIFT, ~mode, bool(mode), [member.name for member in Mode], mode ^ Mode.SCALE, Mode(3), mode.value

    return f, [call(count(2), mode) for mode in (Mode.NONE, Mode.SCALE, Mode.BOTH, Mode.NONE)]


@program
def enums_with_methods_and_aliases():
    class Color(enum.Enum):
        RED = 1
        CRIMSON = 1
        BLUE = "b"

        @property
        def weight(self):
            return {"RED": 2.0, "BLUE": 3.0}[self.name]

        @classmethod
        def parse(cls, text):
            return cls[text.upper()] if text.upper() in cls.__members__ else cls(text)

        def __str__(self):
            return f"<{self.name.lower()}>"

    def f(x, text):
        color = Color.parse(text)
        return x * color.weight, str(color), f"{color}", repr(color), color is Color.RED, list(Color.__members__), {color: 1}

    return f, [call(count(2), text) for text in ("red", "crimson", "b", "red")]


@program(raises=ValueError)
def enum_of_an_unknown_value():
    def f(x, value):
        return x, Mode(value), enum.IntEnum("Level", "low high")(value)

    return f, [call(count(2), 1), call(count(2), 3)]


@program
def dataclasses_replaced_and_listed():
    @dataclasses.dataclass(frozen=True)
    class Config:
        width: int
        rate: float = 0.1
        name: str = dataclasses.field(default="x", metadata={"help": "a name"})
        extra: dict = dataclasses.field(default_factory=dict, hash=False, compare=False, repr=False)

        @property
        def double(self):
            return self.width * 2

    def f(x, config):
        wider = dataclasses.replace(config, width=config.double, extra={"from": config.name})
        names = {field.name: field.metadata.get("help") for field in dataclasses.fields(wider)}
        return x * wider.width, wider, dataclasses.asdict(wider), dataclasses.astuple(config), names, wider == config, hash(config) == hash(config)

    return f, [call(count(2), Config(1)), call(count(2), Config(2, name="y")), call(count(2), Config(2, 0.5))]


@program
def dataclass_tree_of_tensors():
    @dataclasses.dataclass
    class State:
        mean: torch.Tensor
        history: list = dataclasses.field(default_factory=list)
        child: State | None = None

    def f(x, state):
        state.history.append(x.mean())
        fresh = State(x + state.mean, child=state)
        listed = dataclasses.asdict(fresh)
        return fresh, listed["child"]["history"][-1], dataclasses.is_dataclass(fresh), listed["mean"] is fresh.mean

    state = State(torch.ones(2))
    return f, [call(normal(2), state), call(normal(2), state), call(normal(3), State(torch.ones(3)))], state


@program(raises=dataclasses.FrozenInstanceError)
def frozen_dataclass_changed():
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: float

    def f(x, point):
        y = x * point.x
        object.__setattr__(point, "x", point.x + 1)
        if point.x > 2:
            point.x = 0.0
        return y

    point = Point(1.0)
    return f, [call(count(2), point), call(count(2), point)], point


@program
def named_tuples_of_typing():
    class Step(typing.NamedTuple):
        """One step."""

        action: int
        reward: float = 0.0
        info: dict = {}

        def discounted(self, gamma):
            return self._replace(reward=self.reward * gamma)

    def f(x, steps):
        later = [step.discounted(0.5) for step in steps]
        action, reward, _ = later[0]
        return x * reward + action, later, later[0]._asdict(), Step._fields, Step._field_defaults, Step(1) == (1, 0.0, {}), Step._make([1, 2, 3])

    return f, [call(count(2), [Step(1, 2.0)]), call(count(2), [Step(2, 4.0), Step(3)]), call(count(2), [Step(1, 2.0)])]


@program
def chain_maps_of_settings():
    defaults = {"rate": 0.1, "depth": 2}

    def f(x, overrides):
        settings = collections.ChainMap(overrides, defaults)
        local = settings.new_child({"rate": 1.0})
        local["depth"] = settings["depth"] + 1
        return x * settings["rate"], dict(local), settings.maps[1] is defaults, list(settings), local.parents["depth"], "rate" in settings, len(local)

    return f, [call(count(2), {}), call(count(2), {"rate": 3.0}), after(lambda: defaults.update(rate=5.0), count(2), {})], defaults


@program
def user_dict_and_user_list():
    class Registry(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(key.lower(), value)

        def __missing__(self, key):
            return self.get("default", 0.0)

    class Stack(collections.UserList):
        def peek(self):
            return self[-1]

    def f(x, name):
        registry = Registry(A=1.0, Default=4.0)
        registry["B"] = 2.0
        stack = Stack([1, 2])
        stack.append(registry[name])
        return x * stack.peek(), registry.data, list(stack), len(registry), "a" in registry, stack[:2], registry.pop("a")

    return f, [call(count(2), name) for name in ("a", "b", "c", "a")]


@program
def read_only_views_and_namespaces():
    table = {"scale": 2.0}
    view = types.MappingProxyType(table)
    options = types.SimpleNamespace(shift=1.0, nested=types.SimpleNamespace(deep=[1]))

    def f(x):
        options.nested.deep.append(len(view))
        options.fresh = x.shape[0]
        return x * view["scale"] + options.shift, dict(view), view.get("none"), sorted(vars(options)), "scale" in view, list(view.items())

    return f, [call(count(2)), after(lambda: table.update(scale=3.0), count(2)), after(lambda: table.update(more=1), count(3))], (table, options)


@program(raises=TypeError)
def read_only_view_written():
    table = {"scale": 2.0}

    def f(x, write):
        view = types.MappingProxyType(table)
        if write:
            view["scale"] = 3.0
        return x * view["scale"]

    return f, [call(count(2), False), call(count(2), True)], table


@program
def method_callers_and_getters():
    def f(x, names):
        add = operator.methodcaller("add", 1.0, alpha=2)
        pick = operator.itemgetter(1, -1)
        deep = operator.attrgetter("shape", "dtype.is_floating_point")
        return add(x), pick(names), deep(x), operator.itemgetter(slice(1, None))(names), operator.methodcaller("upper")(names[0])

    return f, [call(count(2), ["a", "b"]), call(count(3), ["c", "d", "e"]), call(count(2), ["a", "b"])]


@program
def signatures_bound():
    def target(x, *, scale=1.0, **rest):
        return x * scale

    def f(x, **options):
        signature = inspect.signature(target)
        bound = signature.bind(x, **options)
        bound.apply_defaults()
        known = {name: value for name, value in options.items() if name in signature.parameters}
        return target(x, **known), bound.arguments["scale"], list(signature.parameters), bound.kwargs.keys() - {"scale"}

    return f, [call(count(2)), call(count(2), scale=2.0), call(count(2), scale=2.0, other=1)]


@program
def warnings_turned_into_errors():
    def risky(level):
        if level > 1:
            warnings.warn(f"level {level}", RuntimeWarning, stacklevel=2)
        return level

    def f(x, level):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                factor = risky(level)
            except RuntimeWarning as warning:
                factor = len(str(warning))
        return x * factor

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 1)]


@program
def warnings_recorded():
    def f(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("first")
            y = x + 1
            warnings.warn("second", DeprecationWarning)
        return y, [(item.category.__name__, str(item.message)) for item in caught]

    return f, [call(count(2)), call(count(2)), call(count(3))]


@program
def logger_with_its_own_handler():
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.levelname, record.getMessage()))

    name = "conformance.every_day"
    logging.getLogger(name).handlers, logging.getLogger(name).propagate = [Keep()], False
    logging.getLogger(name).setLevel(logging.INFO)

    def f(x, step):
        logger = logging.getLogger(name)
        logger.debug("never %d", step)
        y = x * 2
        logger.info("step %d of %s", step, tuple(y.shape))
        if step % 2:
            logger.warning("odd")
        return y + 1

    return f, [call(count(2), 0), call(count(2), 1), call(count(2), 2)], records


@program
def templates_and_formats():
    class Money:
        def __init__(self, amount):
            self.amount = amount

        def __format__(self, spec):
            return f"{self.amount:{spec or '.1f'}} EUR"

    class Quiet(string.Formatter):
        def get_value(self, key, args, kwargs):
            return kwargs.get(key, "?") if isinstance(key, str) else args[key]

    def f(x, name, amount):
        text = string.Template("$who owes ${what}").safe_substitute(who=name)
        quiet = Quiet().format("{0} {missing} {a!r}", 1, a=name)
        return x * len(text), text, f"{Money(amount)} {Money(amount):08.3f} {amount=:.2f} {name!r:>6}", quiet, "{:{}}|{:<{w}}".format(amount, ".1f", name, w=4)

    return f, [call(count(2), "ann", 1.5), call(count(2), "bob", 2.25), call(count(3), "ann", 3.0)]


@program
def patterns_of_texts():
    pattern = re.compile(r"(?P<name>[a-z]+)\.(?P<index>\d+)\.weight")

    def f(x, names):
        total = 0
        groups = collections.defaultdict(list)
        for name in names:
            if found := pattern.fullmatch(name):
                groups[found["name"]].append(int(found["index"]))
                total += int(found.group("index"))
        spans = [match.span() for match in re.finditer(r"\d", "".join(names))]
        return x + total, dict(groups), spans, re.sub(r"\d+", lambda m: str(int(m[0]) + 1), names[0]), re.split(r"\.", names[-1])

    return f, [call(count(2), ["a.1.weight", "b.x"]), call(count(2), ["a.1.weight", "a.12.weight"]), call(count(2), ["a.1.weight", "b.x"])]


@program
def texts_of_json():
    def f(x, text):
        settings = json.loads(text)
        settings["shape"] = list(x.shape)
        return x * settings.get("scale", 1.0), json.dumps(settings, sort_keys=True, indent=None), json.dumps({"a": (1, None, True)}, separators=(",", ":"))

    return f, [call(count(2), '{"scale": 2.5}'), call(count(2), '{"scale": 3, "x": [1, {"y": null}]}'), call(count(3), "{}")]


@program(raises=json.JSONDecodeError)
def text_that_is_no_json():
    def f(x, text):
        return x * json.loads(text)

    return f, [call(count(2), "3"), call(count(2), "{")]


@program
def dates_and_durations():
    start = datetime.datetime(2024, 1, 31, 12)

    def f(x, days):
        then = start + datetime.timedelta(days=days, hours=1)
        return x * (then - start).days, then.isoformat(), then.strftime("%Y-%m"), then.date() < datetime.date(2024, 2, 2), then.weekday()

    return f, [call(count(2), 1), call(count(2), 2), call(count(2), 30), call(count(2), 1)]


@program
def exact_numbers():
    def f(x, numerator, denominator):
        third = fractions.Fraction(numerator, denominator)
        price = decimal.Decimal("1.10") * numerator
        return x * float(third), third + fractions.Fraction(1, 2), price, str(price), third.limit_denominator(2), round(third, 1), third > 0.5

    return f, [call(count(2), 1, 3), call(count(2), 2, 3), call(count(2), 5, 4)]


@program(raises=ZeroDivisionError)
def exact_division_by_zero():
    def f(x, n):
        return x * float(fractions.Fraction(1, n))

    return f, [call(count(2), 2), call(count(2), 0)]


@program
def packed_bytes():
    def f(x, values):
        packed = struct.pack(f"<{len(values)}h", *values)
        back = struct.unpack_from("<h", packed, 2)
        return x + back[0], packed, len(packed), struct.calcsize("<ihb"), packed[::-1].hex(), list(memoryview(packed)[:3])

    return f, [call(count(2), [1, 2]), call(count(2), [3, 4, 5]), call(count(2), [1, -2])]


@program
def bytes_and_views_of_memory():
    def f(x, data):
        buffer = bytearray(data)
        buffer[0] = 255
        buffer += b"xy"
        view = memoryview(buffer)
        view[1:3] = b"__"
        return x * len(buffer), bytes(buffer), data.split(b","), buffer.find(b"x"), view.nbytes, bytes(view[::-1])

    return f, [call(count(2), b"a,bc"), call(count(2), b"abcd,e"), call(count(2), b"a,bc")]


@program
def copies_by_the_users_methods():
    class Tree:
        def __init__(self, value, children=()):
            self.value, self.children = value, list(children)

        def __copy__(self):
            made = type(self)(self.value)
            made.children = self.children
            return made

        def __deepcopy__(self, memo):
            return type(self)(self.value.clone(), [copy.deepcopy(child, memo) for child in self.children])

    def f(x, tree):
        shallow, deep = copy.copy(tree), copy.deepcopy(tree)
        deep.value.mul_(2)
        deep.children.append(Tree(x))
        return shallow.children is tree.children, deep.value + x, len(deep.children), len(tree.children), deep

    tree = Tree(torch.ones(2), [Tree(torch.zeros(2))])
    return f, [call(normal(2), tree), call(normal(2), tree), call(normal(2), Tree(torch.ones(2)))], tree


@program
def deep_copies_of_parameters():
    model = torch.nn.Linear(2, 2)

    def f(x):
        twin = copy.deepcopy(model)
        weights = copy.deepcopy(dict(model.named_parameters()))
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                theirs.mul_(0.5).add_(mine, alpha=0.5)
        return twin(x), weights["bias"].requires_grad, twin.weight is model.weight

    return f, [call(normal(3, 2)), call(normal(3, 2)), call(normal(1, 2))], model


@program
def caches_of_functions():
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(n):
        calls.append(n)
        return torch.arange(float(n))

    @functools.cache
    def label(kind, n=1):
        calls.append((kind, n))
        return f"{kind}{n}"

    def f(x, n):
        return x + table(n).sum(), table(n), label("a"), label("a", n=n), table.cache_info().maxsize

    return f, [call(count(2), 2), call(count(2), 2), call(count(2), 3), call(count(2), 4), call(count(2), 2)], calls


@program
def cached_methods_and_properties():
    class Grid:
        def __init__(self, n):
            self.n, self.made = n, 0

        @functools.cached_property
        def points(self):
            self.made += 1
            return torch.linspace(0, 1, self.n)

        @functools.lru_cache
        def power(self, p):
            self.made += 10
            return p**2

    def f(x, grid, reset):
        if reset and "points" in vars(grid):
            del grid.points
        return x + grid.points.sum() + grid.power(2), grid.made, "points" in grid.__dict__

    grid = Grid(3)
    return f, [call(count(2), grid, False), call(count(2), grid, False), call(count(2), grid, True), call(count(2), Grid(4), True)], grid


@program
def generic_functions_by_type():
    @functools.singledispatch
    def scale(value, x):
        raise TypeError(f"no rule for {type(value).__name__}")

    @scale.register(int)
    @scale.register(float)
    def _(value, x):
        return x * value

    @scale.register
    def _(value: list, x):
        return [scale(item, x) for item in value]

    def f(x, value):
        try:
            return scale(value, x), scale.dispatch(bool).__name__
        except TypeError as error:
            return str(error)

    return f, [call(count(2), 2), call(count(2), [1, 2.0]), call(count(2), True), call(count(2), "a"), call(count(2), 2)]


@program
def exit_stacks_of_callbacks():
    log = []

    @contextlib.contextmanager
    def named(name):
        log.append(f"+{name}")
        try:
            yield name
        except ValueError as error:
            log.append(f"!{name}:{error}")
            raise
        finally:
            log.append(f"-{name}")

    def f(x, names, fail):
        try:
            with contextlib.ExitStack() as stack:
                entered = [stack.enter_context(named(name)) for name in names]
                stack.callback(log.append, "callback")
                stack.push(lambda kind, error, trace: log.append(kind.__name__ if kind else None))
                if fail:
                    raise ValueError("stop")
                x = x * len(entered)
                kept = stack.pop_all()
            kept.close()
        except ValueError:
            x = -x
        return x

    return f, [call(count(2), ["a"], False), call(count(2), ["a", "b"], True), call(count(2), ["a"], False)], log


@program
def managers_of_contextlib():
    class Res(contextlib.AbstractContextManager, contextlib.ContextDecorator):
        def __init__(self, log):
            self.log = log

        def __exit__(self, kind, error, trace):
            self.log.append(kind and kind.__name__)
            return kind is KeyError

    class Closes:
        def __init__(self, log):
            self.log = log

        def close(self):
            self.log.append("closed")

    def f(x, log, key):
        table = {"a": 2.0}
        y = x
        with Res(log) as res, contextlib.closing(Closes(log)):
            y = x * table[key]
        with contextlib.suppress(ZeroDivisionError, IndexError):
            y = y + 1 / (len(log) - 2)

        @Res(log)
        def inner(v):
            return v + table["b"]

        return y, inner(x), res is not None

    return f, [call(count(2), [], "a"), call(count(2), [], "zz"), call(count(2), [1], "a")]


@program
def weak_references_in_a_registry():
    class Node:
        def __init__(self, name, parent=None):
            self.name = name
            self.parent = weakref.ref(parent) if parent else None
            self.children = weakref.WeakKeyDictionary()

    def f(x, root, node):
        root.children[node] = len(root.children)
        owner = node.parent() if node.parent else None
        return x * len(root.children), owner is root, node.name

    root = Node("root")
    first, second = Node("kid", root), Node("other", root)
    return f, [call(count(2), root, first), call(count(2), root, first), call(count(2), root, second)], [first.name]


@program
def abstract_classes_of_layers():
    class Layer(abc.ABC):
        registry = {}

        def __init_subclass__(cls, name=None, **rest):
            super().__init_subclass__(**rest)
            cls.registry[name or cls.__name__] = cls

        @property
        @abc.abstractmethod
        def gain(self): ...

        @abc.abstractmethod
        def apply(self, x):
            return x * self.gain

    class Twice(Layer, name="twice"):
        gain = 2

        def apply(self, x):
            return super().apply(x) + 1

    class Partial(Layer):
        gain = 3

    def f(x, name):
        try:
            layer = Layer.registry[name]()
        except TypeError as error:
            return x, "abstract" in str(error), sorted(Layer.registry)
        return layer.apply(x), isinstance(layer, Layer), Layer.__abstractmethods__

    return f, [call(count(2), "twice"), call(count(2), "Partial"), call(count(2), "twice")]


@program
def context_variables_written():
    level = contextvars.ContextVar("level", default=1)

    def f(x, value):
        token = level.set(value)
        try:
            y = x * level.get()
        finally:
            level.reset(token)
        return y + level.get(), token.old_value is contextvars.Token.MISSING

    return f, [call(count(2), 3), call(count(2), 4), after(lambda: level.set(7), count(2), 3)]


@program
def every_iterator_of_itertools():
    def f(x, items):
        return (
            x + sum(itertools.islice(itertools.count(2, 3), 3)),
            list(itertools.islice(itertools.cycle(items), 5)),
            list(itertools.accumulate(items, lambda a, b: a + 2 * b, initial=1)),
            ["".join(map(str, pair)) for pair in itertools.combinations_with_replacement(items, 2)],
            list(itertools.permutations(items, 2)),
            [(key, len(list(group))) for key, group in itertools.groupby(sorted(items), key=lambda item: item % 2)],
            list(itertools.compress(items, [True, False, True])),
            list(itertools.dropwhile(lambda item: item < 2, items)),
            list(itertools.takewhile(lambda item: item < 3, items)),
            list(itertools.filterfalse(lambda item: item % 2, items)),
            list(itertools.starmap(pow, zip(items, itertools.repeat(2)))),
            list(itertools.zip_longest(items, "ab", fillvalue=0)),
            list(itertools.pairwise(items)),
            [list(part) for part in itertools.tee(items, 2)],
            list(itertools.product(items[:2], repeat=2)),
            list(itertools.chain(items, [9], itertools.chain.from_iterable([items[:1], "z"]))),
        )

    return f, [call(count(2), [1, 2, 3]), call(count(2), [3, 1]), call(count(2), [1, 2, 3])]


@program
def iterators_from_outside():
    def f(x, ids, batches, squares, evens):
        first = next(ids)
        total = x * first
        for batch in batches:
            total = total + batch
            break
        return total, next(squares), list(itertools.islice(ids, 2)), next(evens, None)

    ids = itertools.count(1)
    batches = iter([torch.ones(2), torch.zeros(2), torch.ones(2)])
    squares = map(lambda n: n * n, itertools.count(1))
    evens = filter(lambda n: n % 2 == 0, range(5))
    arguments = (ids, batches, squares, evens)
    return f, [call(count(2), *arguments) for _ in range(3)], arguments


@program
def every_function_of_math():
    def f(x, a, n):
        whole = (math.gcd(n, 12), math.lcm(n, 4), math.comb(n, 2), math.perm(n, 2), math.factorial(n), math.isqrt(n * 7))
        real = (math.hypot(a, 1.0), math.copysign(1.0, -a), math.fsum([0.1] * 10), math.prod([a, 2]), math.dist((a, 0), (0, 1)),
                math.remainder(a, 0.7), math.fmod(-a, 0.7), math.modf(a), math.frexp(a), math.ldexp(a, 3), math.log(a, 2), math.log1p(a),
                math.expm1(a), math.erf(a), math.gamma(a), math.degrees(a), math.atan2(a, -1), math.cbrt(a), math.nextafter(a, 2),
                math.ulp(a), math.trunc(-a), math.floor(-a), math.ceil(a))
        return x * real[0], whole, real, math.isclose(a, a + 1e-10), math.isnan(a), math.inf > a, math.tau

    return f, [call(count(2), 0.5, 4), call(count(2), 1.25, 6), call(count(2), 2.5, 5)]


@program(raises=ValueError)
def math_outside_of_its_domain():
    def f(x, a):
        return x * math.sqrt(a), math.acos(min(a, 1))

    return f, [call(count(2), 4.0), call(count(2), 0.25), call(count(2), -1.0)]


@program
def classes_with_slots_and_names():
    class Bounded:
        def __set_name__(self, owner, name):
            self.slot = "_" + name
            owner.bounded = [*getattr(owner, "bounded", ()), name]

        def __get__(self, instance, owner=None):
            return self if instance is None else getattr(instance, self.slot)

        def __set__(self, instance, value):
            if not 0 <= value <= 10:
                raise ValueError(f"{self.slot[1:]}={value}")
            setattr(instance, self.slot, value)

    class Layer:
        __slots__ = ("_width", "_depth", "extra")
        width = Bounded()
        depth = Bounded()

        def __init__(self, width, depth):
            self.width, self.depth = width, depth

    def f(x, layer, width):
        try:
            layer.width = width
        except ValueError as error:
            return x, str(error), hasattr(layer, "extra")
        layer.extra = x.sum()
        return x * layer.width * layer.depth, Layer.bounded, Layer.width.slot, layer.extra

    layer = Layer(1, 2)
    return f, [call(count(2), layer, 3), call(count(2), layer, 11), call(count(2), layer, 4)], layer


@program
def a_class_made_inside():
    def f(x, gain):
        class Scaled:
            factor = gain

            def __call__(self, value):
                return value * self.factor

        Pair = collections.namedtuple("Pair", "left right")
        pair = Pair(x, Scaled()(x))
        Dynamic = type("Dynamic", (Scaled,), {"factor": gain + 1})
        return pair.right, Dynamic()(x), Scaled.__name__, issubclass(Dynamic, Scaled)

    return f, [call(count(2), 2.0), call(count(2), 3.0), call(count(3), 2.0)]


@program
def coroutines_driven_by_hand():
    class Later:
        def __init__(self, value):
            self.value = value

        def __await__(self):
            got = yield self.value
            return got * 2

    async def work(x):
        first = await Later(x + 1)
        second = await Later(first.sum())
        return first + second

    def f(x):
        routine = work(x)
        request = routine.send(None)
        request = routine.send(request * 3)
        try:
            routine.send(request)
        except StopIteration as stop:
            return stop.value

    return f, [call(count(2)), call(count(3)), call(leaf(2))]


@program
def module_attributes_deleted():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.cache = None
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x, reset):
            if reset and hasattr(self, "cache"):
                del self.cache
            elif not hasattr(self, "cache"):
                self.cache = x.sum()
            self.steps += 1
            return self.linear(x) * self.steps

    block = Block()
    return block, [call(normal(2), True), call(normal(2), False), call(normal(2), True), call(normal(2), True)], block


@program
def objects_in_sets_combined():
    @dataclasses.dataclass(frozen=True)
    class Tag:
        name: str

    def f(x, mine, theirs):
        both, either, only = mine & theirs, mine | theirs, mine - theirs
        return x * len(both) + len(either), sorted(tag.name for tag in only), mine <= either, mine.isdisjoint({Tag("zz")}), len(mine ^ theirs)

    a, b, c = Tag("a"), Tag("b"), Tag("c")
    return f, [call(count(2), {a, b}, {b, c}), call(count(2), {a}, {c}), call(count(2), {Tag("a")}, {Tag("a")})]


@program
def random_choices_by_python():
    import random

    def f(x, seed):
        generator = random.Random(seed)
        order = list(range(4))
        generator.shuffle(order)
        return x[order], generator.random(), generator.choice("abc"), random.randint(1, 100), generator.sample(range(10), 3)

    return f, [call(count(4), 0), call(count(4), 1), call(count(4), 0)]


class Remembering:
    """Methods whose results are kept by their arguments, as pickled."""

    def __init__(self):
        self.kept = {}

    @staticmethod
    def remembered(method):
        @functools.wraps(method)
        def call_once(self, *args, **kwargs):
            key = method.__name__, args, pickle.dumps(kwargs)
            if key not in self.kept:
                self.kept[key] = method(self, *args, **kwargs)
            return self.kept[key]

        return call_once

    @remembered
    def ramp(self, length, **options):
        return torch.arange(length) * options.get("scale", 1.0) + len(self.kept)


@program(core=True)
def results_kept_by_pickled_arguments():
    def f(x):
        store = Remembering()
        total = x + store.ramp(3) + store.ramp(3, scale=2.0) + store.ramp(3) + store.ramp(3, shape=(2, None, True), name="a")
        return total, sorted(map(repr, store.kept))

    return f, [call(count(3)), call(count(3) * 2)]


@program
def pickled_containers():
    outside = [1, "a"]

    def f(x, k):
        own = [k, ("a", 2.5), {"b": b"c"}]
        same = ["d", "d"]
        round_ = [1]
        round_.append(round_)
        return x + len(own), *map(pickle.dumps, (own, outside, (), -0.0, None, k)), len(pickle.dumps(round_)), pickle.loads(pickle.dumps(same))

    return f, [call(count(3), 1), after(lambda: outside.append(2), count(3), 1), call(count(3), True), call(count(3), 7), call(count(3), 9)]
