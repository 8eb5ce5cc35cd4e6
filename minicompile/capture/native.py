"""Which native functions may run while tracing, on stand-ins that they may change, how many arguments they take, and what kind
of graph break the others are.

A table, not a mechanism: it must not look at arguments.
"""

import bisect
import builtins
import cmath
import collections
import functools
import heapq
import inspect
import itertools
import math
import operator
import struct
import types
from typing import Any

import numpy as np
import torch

BREAKING_MODULES: dict[str, str] = {name: kind for kind, names in {
    "input or output": """
        logging warnings subprocess os pathlib io tempfile traceback genericpath shutil pprint codecs _warnings posix _io""",
    "random numbers": "random uuid secrets _random",
    "NumPy": "numpy",
    "pure": """
        json inspect re string textwrap fractions decimal statistics typing enum abc posixpath keyword difflib ast
        datetime fnmatch""",
    "unknown call": "threading triton pickle sympy atexit gc sys concurrent multiprocessing queue weakref",
    "imports": "importlib",
    "asynchronous code": "asyncio",
    "time": "sched time",
}.items() for name in names.split()}
"""The kind of graph break that a call into a package is; of a pure one, what is written in Python may run while tracing."""
INLINED = ("typing.cast", "os._Environ.__getitem__", "os._createenviron.", "os.getenv", "enum.property.__get__",
           "enum.Enum.name", "enum.Enum.value", "enum.EnumType.__iter__", "enum.EnumType.__reversed__",
           "typing.final", "typing.override", "typing.no_type_check", "typing.overload", "typing.get_overloads",
           "typing.clear_overloads", "typing.dataclass_transform", "typing.runtime_checkable", "typing.reveal_type",
           "abc.abstractmethod", "abc.update_abstractmethods", "inspect.markcoroutinefunction",
           "logging.Logger.debug", "logging.Logger.info", "logging.Logger.warning",
           "numpy._core.getlimits.iinfo.", "numpy.core.getlimits.iinfo.")
"""The functions of such modules that are traced like any other: they end the graph where they do more than to look."""
LOOK_OUTSIDE = frozenset("""
    json.dump json.load inspect.currentframe inspect.stack inspect.trace posixpath.abspath posixpath.realpath posixpath.relpath
    posixpath.expanduser posixpath.expandvars posixpath.islink posixpath.ismount posixpath.lexists""".split())
"""The functions of pure modules that ask for more than their arguments: files, folders, the environment, frames."""
NATIVE_KINDS: dict[str, str] = {
    "print": "input or output", "input": "input or output", "open": "input or output", "exec": "unknown call",
    "breakpoint": "input or output", "compile": "unknown call",
    "__import__": "imports", "write": "input or output", "flush": "input or output",
}


def collect_pure() -> frozenset[int]:
    """Identities of the native functions that are free of side effects."""
    found = set(map(id, (bin, chr, hex, oct, ord)))  # the rules of other builtins know what they may do
    for module in (math, cmath, operator, itertools, heapq, bisect):
        found.update(id(value) for value in vars(module).values() if callable(value))
    found.update(map(id, (str.maketrans, float.fromhex, int.from_bytes, bytes.fromhex, functools.cmp_to_key,
                          struct.pack, struct.unpack, struct.unpack_from, struct.calcsize)))
    return frozenset(found - {id(getattr(operator, name, None)) for name in ("setitem", "delitem", "call")})


PURE = collect_pure()


def is_pure_native(function: Any) -> bool:
    """Whether a native function may run while tracing."""
    owner = getattr(function, "__self__", None)
    return id(function) in PURE or isinstance(function, operator.itemgetter) or (
        isinstance(owner, type) and owner in PURE_CLASS_METHODS)


NUMPY_FUNCTIONS = frozenset(map(id, (np.prod, np.sum, np.mean, np.max, np.min, np.round, np.clip)))


def is_numpy_arithmetic(function: Any) -> bool:
    """Whether a function of NumPy makes a number of numbers and does nothing else."""
    return isinstance(function, np.ufunc) or id(function) in NUMPY_FUNCTIONS


PURE_CLASS_METHODS = (int, float, str, bytes, dict, tuple, list, complex, object)


def native_name(function: Any) -> tuple[str, str]:
    """The kind of graph break that a native callable is, and a name for it."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or ""
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    elif owner is not None and not isinstance(owner, type):
        module = type(owner).__module__
    package = module.partition(".")[0]
    kind = NATIVE_KINDS.get(name) if package in ("builtins", "") else None
    if kind is None:
        kind = BREAKING_MODULES.get(package, "unknown call")
    return "unknown call" if kind == "pure" else kind, f"{module}.{name}" if module and module != "builtins" else name


def is_known_to_break(function: Any) -> bool:
    """Whether a builtin always ends the graph, whatever its arguments are."""
    return getattr(builtins, getattr(function, "__name__", ""), None) is function and function.__name__ in NATIVE_KINDS


CONTAINERS = (list, dict, set, frozenset, tuple)
NATIVE_OWNERS = (*CONTAINERS, str, bytes, int, float, complex, types.GeneratorType, slice, range, type(None), BaseException,
                 collections.deque)
NATIVE_PACKAGES = frozenset({"builtins", "itertools", "re", "datetime", "decimal", "fractions", "collections", "operator",
                             "types", "functools"})


@functools.cache
def fits(function: Any, count: int, *keywords: str) -> bool:
    """Whether a function takes so many arguments by position, and keywords, as far as it says what it takes."""
    try:
        return inspect.signature(function, follow_wrapped=False).bind(*[None] * count, **dict.fromkeys(keywords)) is not None
    except ValueError:  # it does not
        of_container = isinstance(function, types.MethodDescriptorType) and function.__objclass__ in NATIVE_OWNERS
        named = function in WITH_KEYWORDS or not of_container and function not in AT_MOST
        return (named or not keywords) and count <= AT_MOST.get(function, count)
    except TypeError:
        return False


AT_MOST: dict[Any, int] = {
    bool: 1, getattr: 3, iter: 2, next: 2, vars: 1, range: 3, slice: 3, torch.Size.numel: 1,
    **{getattr(kind, name): 2 for kind in (dict, list, set, frozenset, collections.deque) for name in """
        count remove extend extendleft __getitem__ __contains__ symmetric_difference symmetric_difference_update
        issubset issuperset isdisjoint""".split() if hasattr(kind, name)},
}
"""Builtins that take no keywords and do not say so, and how many arguments they take at most, a method's object with them."""
WITH_KEYWORDS = (dict.update, collections.OrderedDict.update, str.format)
"""Methods of containers and texts that take any and do not say so; the others take none."""
