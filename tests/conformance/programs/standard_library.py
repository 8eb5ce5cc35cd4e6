"""Programs that use built-ins and the standard library around tensors."""

from __future__ import annotations

import collections.abc
import copy
import datetime
import functools
import hashlib
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import textwrap
import time
import types
import typing
import uuid
import warnings

import numpy as np
import torch

from tests.conformance.catalogue import after, call, count, integers, normal, program


@program(core=True)
def math_on_sizes():
    def outer(q):
        scale = 1 / math.sqrt(q.shape[-1])
        half = math.ceil(q.shape[0] / 2) + math.floor(2.7) + math.gcd(12, q.shape[0]) + math.prod(q.shape)
        return q * scale, half, math.log(q.shape[0]), math.pi, math.isinf(math.inf), math.exp(1.0), math.hypot(3, 4)

    return outer, [call(normal(3, 4)), call(normal(4, 16))]


@program
def math_of_a_tensor():
    def outer(x):
        return math.sqrt(x.sum()), math.floor(x[0]), math.isnan(x[1])

    return outer, [call(count(3) + 1), call(count(4))]


@program(core=True)
def builtin_reductions():
    def outer(xs, numbers):
        largest = max(xs, key=lambda t: t.shape[0])
        return (
            sum(xs[0] for _ in numbers),
            largest,
            min(numbers),
            max(numbers, default=0),
            min(3, 1, 2),
            any(numbers),
            all(numbers),
            sum(numbers, 10),
            abs(min(numbers)),
        )

    return outer, [call([normal(1), normal(3)], [1, -2]), call([normal(2), normal(1)], [0, 5, 7])]


@program
def max_over_a_list_of_tensors():
    def outer(xs):
        return max(xs), min(xs[0], xs[1]), sorted(xs)

    return outer, [call([torch.tensor(1.0), torch.tensor(3.0), torch.tensor(2.0)])]


@program
def sum_of_a_tensor():
    def outer(x):
        return sum(x), len(x), list(x), sum(x.tolist())

    return outer, [call(count(3)), call(count(2, 2)[0])]


@program
def sorted_with_key():
    def outer(xs):
        by_size = sorted(xs, key=lambda x: x.numel(), reverse=True)
        by_name = sorted({"b": 1, "a": 2}.items(), key=operator.itemgetter(0))
        return by_size, by_name, sorted("bca"), sorted([3, 1], key=lambda n: -n)

    return outer, [call([normal(1), normal(3), normal(2)]), call([normal(2), normal(2)])]


@program
def type_conversions():
    def outer(x, text):
        return x * int(text), float("1.5"), str(3), bool([]), list("ab"), tuple([1]), dict(a=1), set(text), chr(ord("a") + 1)

    return outer, [call(normal(1), "12"), call(normal(1), "3")]


@program
def type_of_values():
    def outer(x, value):
        kinds = [type(x) is torch.Tensor, type(value), type(None), type(x).__name__, type(x.dtype)]
        return x + 1, kinds, type(value)(), type(value) == int  # noqa: E721

    return outer, [call(normal(1), 3), call(normal(1), 3.5), call(normal(1), "a"), call(normal(1), [1])]


@program
def hasattr_getattr_callable():
    def outer(x, name):
        operation = getattr(x, name, None)
        if operation is None:
            return hasattr(x, name)
        return operation() if callable(operation) else operation

    return outer, [call(normal(2), "sum"), call(normal(2), "shape"), call(normal(2), "missing"), call(normal(2), "relu")]


@program
def getattr_on_modules():
    def outer(x, name):
        return getattr(torch, name)(x), getattr(torch.nn.functional, "gelu")(x), hasattr(torch, "no_such_function")

    return outer, [call(normal(2), "exp"), call(normal(2), "sin")]


@program
def id_hash_and_identity():
    def outer(x, y):
        return id(x) == id(y), hash(x) == hash(x), hash((1, 2)) == hash((1, 2)), id(None) == id(None), x + y

    x = normal(1)
    return outer, [call(x, x), call(x, normal(1))]


@program
def itertools_chain_product_combinations():
    def outer(xs, ys):
        chained = torch.cat(list(itertools.chain(xs, ys)))
        products = [x * y for x, y in itertools.product(xs, ys)]
        pairs = [a + b for a, b in itertools.combinations(xs, 2)]
        orders = list(itertools.permutations(range(3), 2))
        return chained, products, pairs, orders, list(itertools.chain.from_iterable(["ab", "c"]))

    return outer, [call([normal(1), normal(1)], [normal(1)]), call([normal(2)] * 3, [normal(2)])]


@program
def itertools_windows():
    def outer(xs):
        taken = list(itertools.islice(xs, 1, None))
        paired = [b - a for a, b in itertools.pairwise(xs)]
        running = list(itertools.accumulate(xs))
        products = list(itertools.accumulate([1, 2, 3], operator.mul, initial=10))
        return taken, paired, running, products

    return outer, [call([normal(2) for _ in range(3)]), call([normal(2) for _ in range(4)])]


@program
def itertools_infinite():
    def outer(x, n):
        counted = [x * i for i in itertools.islice(itertools.count(2, 3), n)]
        cycled = [s for _, s in zip(range(5), itertools.cycle("ab"))]
        repeated = list(itertools.repeat(x, n))
        return counted, cycled, repeated

    return outer, [call(normal(1), 2), call(normal(1), 3)]


@program
def itertools_filters_and_groups():
    def outer(x, numbers):
        groups = {key: list(group) for key, group in itertools.groupby(sorted(numbers), key=lambda n: n % 2)}
        small = list(itertools.takewhile(lambda n: n < 3, numbers))
        rest = list(itertools.dropwhile(lambda n: n < 3, numbers))
        picked = list(itertools.compress("abc", [1, 0, 1]))
        return x * len(groups), groups, small, rest, picked, list(itertools.starmap(pow, [(2, 3), (3, 2)]))

    return outer, [call(normal(1), [1, 2, 5, 0]), call(normal(1), [4])]


@program
def itertools_zip_longest_and_tee():
    def outer(xs, y):
        filled = [a + b for a, b in itertools.zip_longest(xs, [y], fillvalue=1.0)]
        first, second = itertools.tee(iter(xs))
        return filled, list(first), next(second)

    return outer, [call([normal(1), normal(1)], normal(1)), call([normal(1)], normal(1))]


@program(core=True)
def functools_reduce():
    def outer(xs):
        return functools.reduce(torch.add, xs), functools.reduce(lambda a, b: a * b + 1, xs, 2.0)

    return outer, [call([normal(2), normal(2), normal(2)]), call([normal(2)])]


@program
def lru_cache_of_constants():
    calls = []

    @functools.lru_cache(maxsize=None)
    def table(n):
        calls.append(n)
        return torch.arange(float(n))

    def outer(x):
        return x * table(x.shape[0]) + table(x.shape[0])

    return outer, [call(normal(3)), call(normal(4)), call(normal(3))], calls


@program
def lru_cache_of_tuples_of_constants():
    made = []

    @functools.lru_cache
    def plan(sizes, axes=()):
        made.append(sizes)
        return [sum(sizes), *axes]

    scaled = functools.lru_cache(functools.partial(lambda factor, sizes: factor * len(sizes), 3))

    def outer(x, sizes):
        found = plan((2, 3.0), axes=("a", (True, None)))
        return x * found[0] + scaled((1, x.dim())), found is plan((2, 3), axes=("a", (1, None))), plan(sizes), plan(x.shape)

    return outer, [call(normal(2), (2, 3)), call(normal(2, 3), (2.0, 3)), call(normal(3, 3), (4,)), call(normal(2), (2, 3))], made


@program
def functools_cache_of_numbers():
    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def outer(x, n):
        return x * fibonacci(n)

    return outer, [call(count(2), 10), call(count(2), 12)]


@program
def single_dispatch():
    @functools.singledispatch
    def scale(value, x):
        return x

    @scale.register
    def _(value: int, x):
        return x * value

    @scale.register
    def _(value: str, x):
        return x * len(value)

    def outer(value, x):
        return scale(value, x)

    return outer, [call(3, count(2)), call("abcd", count(2)), call(None, count(2))]


@program
def partial_method_and_wraps_metadata():
    class Layer:
        def apply(self, x, factor, shift=0):
            return x * factor + shift

        double = functools.partialmethod(apply, 2.0)

    def outer(x):
        return Layer().double(x, shift=1)

    return outer, [call(count(2))]


@program
def operator_functions():
    def outer(x, pairs, obj):
        total = operator.add(x, operator.mul(x, 2))
        first = operator.itemgetter(0, 1)(pairs)
        shape = operator.attrgetter("shape")(x)
        reshaped = operator.methodcaller("reshape", -1)(x)
        operator.setitem(obj, "k", operator.getitem(pairs, 0))
        return total, first, shape, reshaped, operator.lt(1, 2), operator.neg(x), operator.truediv(x, 2), operator.index(3)

    return outer, [call(normal(2, 2), ["a", "b"], {}), call(normal(3, 1), [1, 2], {})]


@program
def operator_inplace_functions():
    def outer(x, xs):
        y = operator.iadd(x, 1)
        operator.imul(x, 2)
        return y is x, operator.iconcat(xs, [y]) is xs, operator.matmul(x, x)

    return outer, [call(count(3), []), call(count(2), [1])]


@program
def copy_and_deepcopy():
    def outer(batch):
        shallow, deep = copy.copy(batch), copy.deepcopy(batch)
        shallow["n"] = 1
        deep["xs"][0].add_(1)
        return shallow, deep, shallow["xs"] is batch["xs"], deep["xs"] is batch["xs"]

    return outer, [call({"xs": [count(2)]}), call({"xs": [count(2), count(1)]})]


@program
def copy_of_objects_and_tensors():
    class Box:
        def __init__(self, x):
            self.x = x
            self.names = ["a"]

    def outer(box):
        shallow, deep = copy.copy(box), copy.deepcopy(box)
        shallow.names.append("b")
        deep.x = copy.copy(deep.x) + 1
        return shallow, deep, shallow.x is box.x, deep.x is box.x

    return outer, [call(Box(count(2)))]


@program(core=True)
def warning_from_the_frame():
    def outer(x, loud):
        y = x * 2
        if loud:
            warnings.warn("loud", UserWarning, stacklevel=1)
            warnings.warn("old", DeprecationWarning)
        return y + 1

    return outer, [call(normal(1), True), call(normal(1), False), call(normal(1), True)]


@program
def warnings_caught_in_the_frame():
    def outer(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("inside")
            y = x + len(caught)
        return y, [str(warning.message) for warning in caught]

    return outer, [call(count(2))]


@program
def logging_in_the_frame():
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((record.levelname, record.getMessage()))

    logger = logging.Logger("conformance", logging.INFO)
    logger.addHandler(Keep())

    def outer(x):
        logger.info("shape %s", tuple(x.shape))
        y = x * 2
        logger.debug("not shown")
        logger.warning("done %d", y.dim())
        return y

    return outer, [call(normal(2)), call(normal(3))], records


@program
def time_and_dates():
    def outer(x):
        start = time.perf_counter()
        y = x * 2
        elapsed = time.perf_counter() - start
        day = datetime.date(2024, 2, 28) + datetime.timedelta(days=2)
        return y, elapsed >= 0, time.time() > 1e9, day.isoformat(), datetime.timedelta(seconds=90).total_seconds()

    return outer, [call(normal(1)), call(normal(1))]


@program
def environment_variable():
    os.environ["CONFORMANCE_SCALE"] = "2"

    def outer(x):
        return x * int(os.environ.get("CONFORMANCE_SCALE", "1")), os.getenv("NOT_SET_ANYWHERE"), os.path.join("a", "b")

    return outer, [call(count(2)), after(lambda: os.environ.update(CONFORMANCE_SCALE="5"), count(2))]


@program
def regular_expressions():
    pattern = re.compile(r"layer\.(\d+)\.(?P<kind>\w+)")

    def outer(x, name):
        found = pattern.match(name)
        if not found:
            return x, re.sub(r"\d", "#", name)
        return x * int(found.group(1)), found["kind"], re.findall(r"[a-z]+", name), re.split(r"\.", name)

    return outer, [call(count(2), "layer.3.weight"), call(count(2), "head2")]


@program
def json_and_text_io():
    def outer(x, text):
        settings = json.loads(text)
        buffer = io.StringIO()
        buffer.write(textwrap.dedent("  a\n  b"))
        return x * settings["scale"], json.dumps({"shape": list(x.shape)}), buffer.getvalue(), string.ascii_lowercase[:3]

    return outer, [call(count(2), '{"scale": 2}'), call(count(3), '{"scale": 3.5}')]


@program
def hashes_and_identifiers():
    def outer(x, data):
        return x + 1, hashlib.sha256(data).hexdigest()[:8], uuid.UUID(int=5).hex, statistics.mean([1, 2, 3]), sys.version_info >= (3, 8)

    return outer, [call(normal(1), b"abc"), call(normal(1), b"")]


@program
def python_random_in_the_frame():
    def outer(x, p):
        if random.random() < p:
            x = x * 2
        order = list(range(4))
        random.shuffle(order)
        return x + random.randint(1, 6), random.choice("abc"), order, random.gauss(0, 1)

    return outer, [call(count(2), 0.5), call(count(2), 0.5), call(count(2), 1.0)]


@program
def python_random_with_own_generator():
    generator = random.Random(3)

    def outer(x):
        return x * generator.random(), generator.sample(range(10), 3)

    return outer, [call(count(2)), call(count(2))]


@program
def numpy_random_in_the_frame():
    def outer(x):
        noise = np.random.rand(2)
        return x + float(noise[0]), noise

    return outer, [call(count(2)), call(count(2))]


@program(core=True)
def numpy_round_trip():
    def outer(x):
        y = x * 2
        array = y.detach().numpy()
        return torch.from_numpy(np.sort(array)[::-1].copy()) + 1, array.shape, y

    return outer, [call(normal(4)), call(normal(3))]


@program
def numpy_shares_memory():
    def outer(x):
        array = x.numpy()
        array[0] = 42.0
        y = x + 1
        x[1] = -1
        return y, array

    return outer, [call(count(3)), call(count(2))]


@program
def numpy_scalars_and_array_arguments():
    def outer(x, array, scalar):
        return x * torch.as_tensor(array) + scalar, array.mean(), np.float32(2) * 3, np.argmax(array), array[1:] * 2

    return outer, [
        call(normal(3), np.ones(3, dtype=np.float32), np.float32(2.0)),
        call(normal(2), np.arange(2.0), np.int64(3)),
    ]


@program
def numpy_functions_on_shapes():
    def outer(x):
        sizes = np.cumsum([0, *x.shape])
        return x.reshape(int(np.prod(x.shape))), int(sizes[-1]), np.arange(x.shape[0]), np.pi * x.shape[0]

    return outer, [call(normal(2, 3)), call(normal(3, 1))]


@program
def inspect_and_frames():
    def inner(x, scale=2):
        return x * scale

    def outer(x):
        names = list(inspect.signature(inner).parameters)
        return inner(x), names, inspect.isfunction(inner), inner.__code__.co_argcount

    return outer, [call(normal(1))]


@program
def locals_and_vars():
    def outer(x, n):
        y = x * n
        return sorted(locals()), y, "outer" in globals()

    return outer, [call(normal(1), 2)]


@program
def eval_and_exec():
    def outer(x, expression):
        space = {"x": x}
        exec("y = x * 2", space)
        return eval(expression, {"x": x, "torch": torch}), space["y"]

    return outer, [call(count(2), "x + 1"), call(count(2), "torch.relu(x) * 3")]


@program
def import_inside_the_function():
    def outer(x):
        import cmath
        from math import tau as full_turn

        import torch.nn.functional as functional

        return functional.relu(x) * full_turn, cmath.phase(-1)

    return outer, [call(normal(2))]


@program
def typing_at_run_time():
    def outer(x, value: typing.Optional[int] = None):
        if typing.TYPE_CHECKING:
            raise AssertionError
        hints = typing.get_origin(typing.List[int]), typing.get_args(dict[str, int])
        return x, hints, isinstance(value, typing.Hashable), isinstance([], collections.abc.Sequence)

    return outer, [call(normal(1)), call(normal(1), 3)]


@program
def simple_namespace():
    def outer(x, config):
        local = types.SimpleNamespace(scale=2, **vars(config))
        config.seen = True
        return x * local.scale + local.shift, local

    return outer, [call(count(2), types.SimpleNamespace(shift=1)), call(count(2), types.SimpleNamespace(shift=2, more=3))]


@program
def nested_configuration_object():
    class Config:
        def __init__(self):
            self.model = types.SimpleNamespace(width=4, layers=[1, 2], names={"a": 1.5})

    config = Config()

    def change():
        config.model.layers.append(3)
        config.model.names["a"] = 9.0

    def outer(x):
        for layer in config.model.layers:
            x = x * layer + config.model.names["a"]
        return x / config.model.width

    return outer, [call(count(2)), after(change, count(2)), after(lambda: setattr(config.model, "width", 1), count(2))]


@program
def struct_of_bits():
    def outer(x, flags):
        names = [name for bit, name in enumerate(("relu", "double", "negate")) if flags >> bit & 1]
        for name in names:
            x = {"relu": torch.relu, "double": lambda t: t * 2, "negate": torch.neg}[name](x)
        return x, names

    return outer, [call(normal(2), flags) for flags in (0, 3, 5, 3)]


@program
def int_of_a_tensor_in_a_format():
    def outer(x):
        return f"{int(x.sum()):04d}", "%.3f" % x.mean(), f"{x.max():.1f}", x * 2

    return outer, [call(integers(3).float()), call(count(3))]


@program
def bisect_and_heapq():
    import bisect
    import heapq

    def outer(x, values):
        heap = list(values)
        heapq.heapify(heap)
        smallest = heapq.heappop(heap)
        heapq.heappush(heap, 100)
        return x + bisect.bisect_left(sorted(values), 3), smallest, heapq.nlargest(2, values)

    return outer, [call(count(1), [5, 1, 4]), call(count(1), [2, 9])]


LEVELS = logging.getLogger("levels")


@program
def levels_of_a_logger_that_vary():
    def f(x, level):
        found = [LEVELS.isEnabledFor(level), LEVELS.isEnabledFor(level=level + 1)]
        try:
            LEVELS.isEnabledFor([level])
        except TypeError as error:
            found.append(str(error))
        return x + 1 if LEVELS.isEnabledFor(level) else x, found

    return f, [call(normal(2), level) for level in (10, 20, 30, 40, 20)]


def annotated(a: int, b: str = "b") -> None:
    """For its annotations."""


@program
def hints_of_a_function():
    def f(x, log):
        try:
            log.append(typing.get_type_hints(annotated))
        except TypeError as error:
            log.append(str(error))
        return x * len(log)

    return f, [call(normal(2), []) for _ in range(2)]
