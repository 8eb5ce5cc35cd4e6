"""What looks at the caller's frame, at files, folders and settings of torch, or makes a class: none of it may happen while a
call is captured.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import io
import itertools
import json
import logging
import operator
import os
import pathlib
import pickle
import re
import sys
import tempfile
import traceback
import typing
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conformance.catalogue import after, call, count, program


class Recorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.levelname, record.getMessage(), record.lineno, record.funcName))


@program(core=True)
def log_records_name_the_user_line():
    name, recorder = "tests.conformance.seen", Recorder()
    logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(name).propagate = False
    logging.getLogger(name).handlers = [recorder]

    def say(text):
        logging.getLogger(name).info(text, stacklevel=2)

    def helper(x):
        logging.getLogger(name).info("helper %s", tuple(x.shape))
        say("from helper")
        return x * 2

    def f(x, k):
        log = logging.getLogger(name)
        say("from f")
        log.debug("not shown")
        y = helper(x)
        logging.LoggerAdapter(log, {}).warning("adapted")
        try:
            1 / k
        except ZeroDivisionError:
            log.exception("zero")
        log.log(logging.ERROR, "k is %d", k)
        return y + 1

    return f, [call(count(3), k) for k in (0, 1, 2)], recorder.seen


@program(core=True)
def warnings_name_the_caller():
    def deep(x):
        warnings.warn("from deep", stacklevel=3)
        return x + 1

    def middle(x):
        warnings.warn("from middle", FutureWarning, stacklevel=2)
        return deep(x)

    class Made:
        def __init__(self):
            warnings.warn("when made", stacklevel=2)

        @property
        def scale(self):
            warnings.warn("of the property", DeprecationWarning, stacklevel=2)
            return 2

    def f(x):
        y = middle(x) * 2
        made = Made()
        return y * made.scale

    return f, [call(count(3)), call(count(3)), call(count(4))]


@program
def warnings_once_for_each_line():
    def helper(x):
        warnings.warn("again", UserWarning, stacklevel=2)
        return x + 1

    def f(x, n):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(n):
                x = helper(x)
            x = helper(x)
        return x, [(str(one.message), one.lineno) for one in caught]

    return f, [call(count(3), n) for n in (1, 2, 3)]


@program
def functions_that_ask_who_called():
    def who():
        return sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno

    def back():
        return inspect.currentframe().f_back.f_code.co_name

    def stack():
        return inspect.stack()[1].function, inspect.stack()[0].function

    def inner(x, k):
        return x + 1, (who, back, stack)[k]()

    def f(x, k):
        return inner(x * 2, k)

    return f, [call(count(3), k) for k in (0, 1, 2)]


@program
def own_name_and_line():
    def f(x):
        return x + 1, inspect.currentframe().f_code.co_name, sys._getframe().f_lineno, inspect.stack()[0].function

    return f, [call(count(3)), call(count(3)), call(count(4))]


@program
def one_line_in_the_traceback_of_native_code():
    def inner(data):
        return pickle.loads(data)

    def f(x, data):
        try:
            return x, pickle.loads(data) if len(data) < 3 else inner(data)
        except Exception as error:
            return x + 1, [(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)]

    return f, [call(count(3), b"a"), call(count(3), b"abcd")]


@program(core=True)
def json_in_files():
    given = io.StringIO()

    def f(x, path, k):
        with open(path, "w") as file:
            json.dump({"k": k, "shape": list(x.shape)}, file)
        with open(path) as file:
            read = json.load(file)
        json.dump([k], given)
        return x * read["k"], read["shape"], given.getvalue(), json.loads(pathlib.Path(path).read_text())

    path = os.path.join(tempfile.gettempdir(), f"seen_by_others_{os.getpid()}.json")
    return f, [call(count(3), path, k) for k in (1, 2, 2)]


@program
def folder_and_environment_in_paths():
    start, elsewhere = os.getcwd(), os.path.dirname(os.path.abspath(__file__))

    def move(folder, value):
        os.chdir(folder)
        os.environ["SEEN_BY_OTHERS"] = value

    def f(x):
        return x + 1, os.path.abspath("q"), os.path.relpath(elsewhere), os.path.expandvars("$SEEN_BY_OTHERS")

    return f, [after(lambda: move(elsewhere, "1"), count(3)), after(lambda: move(start, "2"), count(3)), call(count(3))]


@program(core=True)
def classes_made_by_functions():
    def f(x, k):
        pair = collections.namedtuple("pair", "a b", defaults=[k])
        typed = typing.NamedTuple("typed", [("a", int)])
        data = dataclasses.make_dataclass("data", [("a", int), ("b", list, dataclasses.field(default_factory=list))])
        kind = enum.Enum("kind", {"ONE": k, "OTHER": 0})
        plain = type("plain", (), {"v": k, "get": lambda self: self.v})
        modules = [made.__module__ == __name__ for made in (pair, typed, kind, plain)]
        return x * k, modules, pair(1).b, typed(k).a, data(k).a, data(k).b, kind.ONE.value, plain().get()

    return f, [call(count(3), k) for k in (1, 2, 3)]


@program
def instances_of_a_class_that_a_function_made():
    data = dataclasses.make_dataclass("data", [("a", int), ("b", list, dataclasses.field(default_factory=list))])

    def f(x, k):
        made = data(k)
        made.b.append(x)
        return made, x * k

    return f, [call(count(3), k) for k in (1, 2, 3)]


@program
def enums_made_by_helpers():
    def options(k):
        return enum.Enum("options", {"ONE": k, "OTHER": 0})

    def f(x, k):
        made = options(k)
        return x * made.ONE.value, made.ONE.value, made.__module__, len(made)

    return f, [call(count(3), k) for k in (1, 2, 3)]


@program(core=True)
def matrix_product_by_assignment():
    def f(x, w):
        before = y = x
        y @= w
        x //= 2
        z = operator.imatmul(x, w)
        x += 1
        return before is x, x, y, z

    return f, [call(count(3), torch.eye(3) * 2), call(count(2, 2), torch.ones(2, 2)), call(count(2), torch.eye(2))]


@program
def numbers_that_vary_changed_by_assignment():
    def f(x, n):
        before = n
        n += x
        m = before * 2
        m -= x
        before *= 2
        return x * before, n, m, before

    return f, [call(count(3), n) for n in (1, 2, 3, 5)]


@program
def matches_around_breaks():
    pattern = re.compile(r"(?P<name>[a-z]+)\((?P<value>\d+)\)")

    def f(x, text):
        first = pattern.search(text)
        for found in pattern.finditer(text):
            print(found["name"], found.span())
            x = x + int(found["value"])
        names = [found.group(1) for found in re.finditer(r"([a-z])\(", text)]
        return x, first and first.groupdict(), names, list(itertools.islice(pattern.finditer(text), 1))[:0]

    return f, [call(count(3), "add(1) mul(2)"), call(count(3), "mul(3)"), call(count(3), "")]


@program
def settings_of_torch_that_are_properties_of_modules():
    settings = torch.backends.cudnn

    def f(x, value):
        before = settings.deterministic, settings.benchmark
        settings.deterministic = value
        torch.backends.cuda.matmul.allow_tf32 = value
        y = x * 2 if settings.deterministic else x * 3
        return y, before, settings.deterministic, torch.backends.cuda.matmul.allow_tf32, settings.enabled

    def switch(value):
        settings.benchmark = value

    return f, [
        call(count(3), True),
        call(count(3), False),
        after(lambda: switch(True), count(3), False),
        after(lambda: switch(False), count(3), False),
    ]


@program
def batch_norm_while_a_setting_changes():
    norm = torch.nn.BatchNorm1d(3)

    def f(x):
        return norm(x) if torch.backends.cudnn.enabled else x + 1

    def switch(value):
        torch.backends.cudnn.enabled = value

    return f, [call(count(2, 3)), after(lambda: switch(False), count(2, 3)), after(lambda: switch(True), count(2, 3))]


@program
def attention_with_chosen_backends():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = torch.nn.Linear(4, 12)

        def forward(self, x, backends):
            q, k, v = self.heads(x).chunk(3, -1)
            with sdpa_kernel(backends):
                y = F.scaled_dot_product_attention(q, k, v)
            return x + y, torch.backends.cuda.flash_sdp_enabled()

    layer = Layer()

    def f(x, backends):
        y, enabled = layer(x, backends)
        return layer(y * 2, SDPBackend.MATH)[0], enabled

    both = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    return f, [call(count(1, 3, 4), SDPBackend.MATH), call(count(1, 3, 4), both), call(count(1, 5, 4), SDPBackend.MATH)]
