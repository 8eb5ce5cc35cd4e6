"""Rules for single builtins: those that look at the symbolic stack differently from Python itself."""

import builtins
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import math
import operator
import sys
import types
import typing
import weakref
from typing import Any

import torch

from minicompile.capture.attributes import (
    bind_descriptor,
    class_lookup,
    class_value,
    defines,
    generic_attribute,
    generic_set,
    get_attribute,
    python_method,
    set_attribute,
    tensor_class,
)
from minicompile.capture.break_kinds import CLASS_MADE, Break, RaisedInUserCode, RunEager
from minicompile.capture.calls import (
    SPECIAL,
    Callback,
    KeyFunction,
    call,
    call_pure,
    direct,
    invoke_special,
    method,
    native_argument,
    ruled,
    run_native,
    special,
)
from minicompile.capture.comparing import refuse_objects, refuse_own_items, settled, settled_all
from minicompile.capture.comparing_rules import ordering_key
from minicompile.capture.constant_tensors import known_value
from minicompile.capture.cpython_interface import IMMUTABLE
from minicompile.capture.guards import is_empty_cell
from minicompile.capture.instruction import VERSION
from minicompile.capture.iteration import Iterables, advance, drain, get_iterator, native_iterable
from minicompile.capture.kinds import isinstance
from minicompile.capture.made_classes import call_type
from minicompile.capture.operators import as_index, binary, get_item, insert, is_native, judged, look_up, truth
from minicompile.capture.resume import FIRST, RAISED, STACK_PREFIX
from minicompile.capture.side_effects import MISSING, NATIVE_BASES, elements, entries, put
from minicompile.capture.source import Baked, Source, is_trusted_module
from minicompile.capture.symbolic_float import OPERANDS, SymbolicFloat, in_python, summed
from minicompile.capture.symbolic_size import EXAMPLES, concrete, is_symbolic, spelled_out
from minicompile.capture.texts import check_printable, leaves, refuse_addresses
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import Args, Frame, Generator, Keywords, Tracer
from minicompile.capture.values import (
    CONSTANT_TYPES,
    DATES_AND_FRACTIONS,
    NUMBER_LIMITS,
    NUMPY_NUMBERS,
    PLAIN_ITERATION,
    VALUES,
    TensorMethod,
    force,
    is_outside,
    length,
)


@special(builtins.isinstance)
def rule_isinstance(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`isinstance(value, classes)`."""
    if not is_symbolic(args[0]):
        tracer.class_orders.add(type(args[0]))
    return belongs(tracer, builtins.isinstance, "__instancecheck__", *args)


def is_stand_in(value: Any) -> bool:
    """Whether a value is of another class than the one that the user sees."""
    return isinstance(value, (FakeTensor, TensorMethod)) or is_symbolic(value) or isinstance(value, Generator)


def stands_for(tracer: Tracer, value: Any, one: Any) -> bool:
    """`isinstance(value, one)` for what a stand-in stands for."""
    if isinstance(value, FakeTensor):
        if one is torch.nn.Buffer:  # a tensor with a mark
            return truth(tracer, rule_getattr(tracer, (value, "_is_buffer", False), {}))
        if isinstance(one, type) and "_is_protocol" not in vars(one) and issubclass(tensor_class(tracer, value), one):
            return True
        return isinstance(value, one) and one is not torch.Tensor and one is not FakeTensor
    generator: Any = (_ for _ in ())
    return isinstance(generator if isinstance(value, Generator) else EXAMPLES.get(type(value), [].append), one)


def belongs(tracer: Tracer, function: Any, hook: str, value: Any, classes: Any) -> bool:
    """`isinstance` or `issubclass`: hooks of the user's classes are traced, answers of the standard library's are guarded."""
    kind, stand_in = value if function is issubclass else type(value), function is builtins.isinstance and is_stand_in(value)
    for one in flatten(classes):
        known = not isinstance(one, type) or stand_in and is_trusted_module(one.__module__)
        raw, base = (MISSING, None) if known else class_lookup(tracer, type(one), hook)
        asked = isinstance(raw, types.FunctionType) and kind is not one
        if asked and not is_trusted_module(base.__module__):
            found = truth(tracer, call(tracer, class_value(tracer, base, hook, raw), (one, value), {}))
        elif stand_in:
            found = stands_for(tracer, value, one)
        else:
            if asked and any(isinstance(changed, type) and changed in kind.__mro__
                             for changed, _ in tracer.effects.attributes.values()):
                raise Break("unsupported value", f"an abstract class looks at the class {kind.__name__}, which was changed")
            found = run_native(tracer, function, (value, one), {})
            if asked:
                guard_belonging(tracer, function, value, one, found)
        if found:
            return True
    return False


def guard_belonging(tracer: Tracer, function: Any, value: Any, one: Any, found: bool) -> None:
    """Guard the answer of a protocol, which asks for attributes of the object, or of an abstract class, which knows classes."""
    kind, source = value if function is issubclass else type(value), tracer.sources.get(id(value))
    if function is issubclass or not getattr(one, "_is_protocol", False):
        if is_trusted_module(one.__module__) and kind.__flags__ & IMMUTABLE or id(kind) in tracer.fresh:
            return
        function, source = issubclass, Baked(kind, kind.__name__)
    elif tracer.effects.any_pending() and source is not None:
        raise Break("unsupported value", "attributes of an object are looked for after something was changed")
    if source is not None:
        tracer.guards.test(source, f"{function.__name__}({{0}}, {{1}}) is {found}", (one,),
                           f"`{{0}}` is {'' if found else 'not '}a {one.__name__}", "type")


def flatten(classes: Any) -> list[Any]:
    """The classes of a possibly nested tuple."""
    if isinstance(classes, tuple):
        return [one for part in classes for one in flatten(part)]
    return list(classes.__args__) if isinstance(classes, types.UnionType) else [classes]


@special(issubclass)
def rule_issubclass(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`issubclass(kind, classes)`."""
    if isinstance(args[0], type):
        tracer.class_orders.add(args[0])
        return belongs(tracer, issubclass, "__subclasscheck__", *args)
    return run_native(tracer, issubclass, args, kwargs)


@special(type)
def rule_type(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`type(value)`, or `type(name, bases, names)`, which makes a class."""
    if len(args) != 1:
        return call_type(tracer, args, kwargs)
    value = args[0]
    if isinstance(value, FakeTensor):
        return tensor_class(tracer, value)
    if is_symbolic(value):
        return type(EXAMPLES[type(value)])
    return types.GeneratorType if isinstance(value, Generator) else type(value)


@special(super)
def rule_super(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`super()` and `super(kind, instance)`."""
    if not args:
        frame = tracer.frames[-1]
        cell = frame.cells.get("__class__")
        first = frame.code.co_varnames[0] if frame.code.co_argcount else None
        instance = frame.cells[first].cell_contents if first in frame.cells else frame.variables.get(first)
        if first is None or cell is None:
            missing = "no arguments" if first is None else "__class__ cell not found"
            raise RaisedInUserCode(RuntimeError(f"super(): {missing}"))
        args = (tracer.resolve(cell_value(tracer, cell)), tracer.resolve(instance))
    return run_native(tracer, super, args, {})


def cell_value(tracer: Tracer, cell: Any) -> Any:
    """The contents of a cell, no longer lazy."""
    try:
        value = tracer.resolve(cell.cell_contents)
    except ValueError:
        raise RaisedInUserCode(RuntimeError("super(): empty __class__ cell")) from None
    cell.cell_contents = value
    return value


@special(getattr)
def rule_getattr(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`getattr(owner, name[, default])`."""
    try:
        return get_attribute(tracer, args[0], args[1])
    except RaisedInUserCode as error:
        if len(args) == 3 and isinstance(error.value, AttributeError):
            return args[2]
        raise


@special(hasattr)
def rule_hasattr(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`hasattr(owner, name)`."""
    of_tensors = isinstance(args[0], FakeTensor) and hasattr(torch.Tensor, args[1])
    return of_tensors or rule_getattr(tracer, (*args, MISSING), {}) is not MISSING


@special(object.__new__, tuple.__new__, dict.__new__, list.__new__, set.__new__, *(kind.__new__ for kind in VALUES))
def rule_new(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """Allocate an instance."""
    kind = args[0]
    makers = ((base, base.__dict__["__new__"]) for base in kind.__mro__ if "__new__" in base.__dict__)
    maker = next(base.__new__ for base, raw in makers if not isinstance(raw, staticmethod | types.FunctionType))
    if maker is object.__new__:  # which looks at arguments only to refuse them where nobody else takes them
        return tracer.made(run_native(tracer, maker, (kind, *[None] * len(args[1:])), dict.fromkeys(kwargs)))
    if issubclass(kind, MADE_OF_ARGUMENTS):
        return tracer.made(run_native(tracer, maker, (kind, *held_by(tracer, kind, args[1:])), kwargs))
    return tracer.made(run_native(tracer, maker, (kind,), {}))


MADE_OF_ARGUMENTS = (tuple, frozenset, *VALUES)
"""Classes of immutable values, which `__new__` makes of its arguments."""


def held_by(tracer: Tracer, kind: type, args: Args) -> Args:
    """The arguments of which `__new__` makes an immutable value."""
    if issubclass(kind, frozenset):
        return tuple(distinct(tracer, item) for item in args)
    if issubclass(kind, VALUES) and not all(type(item) in CONSTANT_TYPES or is_symbolic(item) for item in args):
        raise Break("unknown call", f"a `{kind.__name__}` is made of an object")
    return tuple(native_iterable(tracer, item) for item in args)


@special(len)
def rule_len(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`len(value)`."""
    value = args[0]
    if isinstance(value, FakeTensor):
        if value.dim() == 0:
            raise RaisedInUserCode(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    if defines(tracer, type(value), "__len__"):
        return judged(tracer, len, "__len__", invoke_special(tracer, value, "__len__"))
    if isinstance(value, (list, dict)):
        return length(tracer, value)
    force(tracer, value, False)
    return run_native(tracer, len, (value,), {})


def generator_method(function: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a method of a traced generator."""
    try:
        return tracer.resolve(function(*args))
    except StopIteration as stop:
        raise RaisedInUserCode(StopIteration(*stop.args)) from None


for _function in (Generator.__next__, Generator.send, Generator.throw, Generator.close):
    special(_function)(functools.partial(generator_method, _function))


@special(iter)
def rule_iter(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`iter(value)`."""
    if len(args) == 2:
        return tracer.made(iter(KeyFunction(tracer, args[0]), refuse_objects(tracer, args[1])))
    return get_iterator(tracer, args[0])


@special(next)
def rule_next(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`next(iterator[, default])`."""
    try:
        return tracer.resolve(advance(tracer, args[0]))
    except StopIteration as error:
        if len(args) == 2:
            return args[1]
        raise RaisedInUserCode(StopIteration(*error.args)) from None


def over_iterables(function: Any, count: int | None, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """A rule that makes the first `count` arguments iterable by native code and runs the builtin."""
    if function in (min, max) and len(args) > 1 and not kwargs and any(type(item) is SymbolicFloat for item in args):
        return call_pure(tracer, function, args, kwargs)
    limit = len(args) if count is None else count if len(args) == 1 or function not in (min, max) else 0
    merged = (set, frozenset) if function in (set, frozenset) else ()  # of which no `__iter__` is asked
    values = tuple(native_iterable(tracer, item) if place < limit and not isinstance(item, merged) else item
                   for place, item in enumerate(args))
    keywords = dict(kwargs)
    if function in COMPARING and len(args) >= 1:
        for item in args:
            force(tracer, item)
    if function in (sorted, min, max):
        keywords["key"] = ordering_key(tracer, kwargs.get("key"))
    if function in (set, frozenset) and values:
        if function is frozenset is type(values[0]):
            return values[0]
        values = (distinct(tracer, elements(values[0]) if isinstance(values[0], merged) else values[0]), *values[1:])
    if function is sum and values:
        values = (run_native(tracer, list, values[:1], {}), *values[1:])
        numbers = tuple(in_python(tracer, item) for item in (*(args[1:] or kwargs.values() or (0,)), *values[0]))
        for item in numbers:
            force(tracer, item, False)
        first = tuple(itertools.takewhile(lambda item: type(item) in OPERANDS, numbers))  # which Python rounds together
        varies = any(type(item) is SymbolicFloat for item in numbers)
        if varies and first:
            numbers = (call_pure(tracer, summed, first, {}), *numbers[len(first) :])
        if varies or not all(is_native(item) or isinstance(item, FakeTensor) for item in numbers):
            return functools.reduce(functools.partial(binary, tracer, "+"), numbers)
    result = run_native(tracer, function, values, keywords)
    return tracer.made(result) if isinstance(function, type) or function is sorted else tracer.resolve(result)


COMPARING = (sum, sorted, min, max, set, frozenset)
for _function in (list, tuple, set, frozenset, enumerate, collections.deque, sum, sorted, min, max):
    special(_function)(functools.partial(over_iterables, _function, 1))
special(zip)(functools.partial(over_iterables, zip, None))


@special(reversed)
def rule_reversed(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`reversed(value)`: by the user's `__reversed__`, else by the user's `__len__` and `__getitem__`."""
    value = args[0]
    method, _ = class_lookup(tracer, type(value), "__reversed__")
    if method is None:
        return run_native(tracer, reversed, args, {})  # raises
    if isinstance(method, types.FunctionType):
        return call(tracer, get_attribute(tracer, value, "__reversed__"), (), {})
    if method is MISSING and defines(tracer, type(value), "__getitem__"):
        places = reversed(range(concrete(rule_len(tracer, (value,), {}))))
        return tracer.made(map(Callback(tracer, get_attribute(tracer, value, "__getitem__")), places))
    if isinstance(value, NATIVE_BASES):  # whose `__iter__` is not asked
        force(tracer, value, False)
        return tracer.made(run_native(tracer, reversed, args, {}))
    return over_iterables(reversed, None, tracer, args, kwargs)


def distinct(tracer: Tracer, items: Any) -> list[Any]:
    """The elements of a set, or the keys of a dictionary, made of an iterable."""
    return settled_all(tracer, run_native(tracer, list, (native_iterable(tracer, items),), {}))


class Predicate(Callback):
    """A traced predicate whose result is asked for its truth through the tracer."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self.tracer.resolve(args[0]) if self.function is None else super().__call__(*args, **kwargs)
        return truth(self.tracer, result)


def calling_back(function: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of an iterator that calls one of its arguments, which goes through the tracer."""
    place, stand_in = CALLS_BACK[function]
    if function is itertools.accumulate:
        function_of_two = kwargs.get("func") if len(args) == 1 else args[1]
        args = (args[0], operator.add if function_of_two is None else function_of_two)
        kwargs = {"initial": kwargs.get("initial")}
    values = [stand_in(tracer, item) if at == place else native_iterable(tracer, item) for at, item in enumerate(args)]
    return tracer.made(run_native(tracer, function, tuple(values), kwargs))


CALLS_BACK: dict[Any, tuple[int, Any]] = {
    map: (0, Callback), itertools.starmap: (0, Callback), itertools.accumulate: (1, Callback),
    **dict.fromkeys((filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile), (0, Predicate)),
}
"""The place of the argument that is called, and what stands for it."""
for _function in CALLS_BACK:
    special(_function)(functools.partial(calling_back, _function))


@special(itertools.groupby)
def rule_groupby(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`groupby(iterable[, key])`, whose keys native code compares."""
    key = KeyFunction(tracer, args[1] if args[1:] else kwargs.get("key"))
    return tracer.made(run_native(tracer, itertools.groupby, (native_iterable(tracer, args[0]), key), {}))


@special(dict)
def rule_dict(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`dict(...)`."""
    result: dict[Any, Any] = {}
    update_dict(tracer, result, args, kwargs)
    return tracer.made(result)


def is_copied_as_it_is(tracer: Tracer, target: Any, kind: type) -> bool:
    """Whether `target.update` copies dictionaries of a class without asking them for their items."""
    given = class_lookup(tracer, kind, "__iter__")[0]
    asks = given is not dict.__iter__ or isinstance(target, collections.OrderedDict)
    return given in PLAIN_ITERATION and not (asks and any(defines(tracer, kind, name) for name in ("__getitem__", "keys")))


def update_dict(tracer: Tracer, target: Any, args: Args, kwargs: Keywords) -> None:
    """`target.update(*args, **kwargs)` with traced arguments."""
    if len(args) > 1:
        run_native(tracer, dict.update, ({}, *args), kwargs)  # raises
    for item in args:
        if isinstance(item, dict) and is_copied_as_it_is(tracer, target, type(item)):
            force(tracer, item, False)
            for key, value in entries(item):
                put(target, settled(tracer, target, key), value)
        elif hasattr(type(item), "keys") and not isinstance(item, Generator):
            for key in list(native_iterable(tracer, call(tracer, get_attribute(tracer, item, "keys"), (), {}))):
                insert(tracer, target, key, get_item(tracer, item, key))
        else:
            for position, pair in enumerate(drain(tracer, item)):
                part = native_iterable(tracer, pair)
                part = tuple(part) if hasattr(type(part), "__iter__") else part
                if type(part) is not tuple or len(part) != 2:
                    run_native(tracer, dict, ([*[("", "")] * position, part],), {})  # raises
                insert(tracer, target, *part)
    for key, value in kwargs.items():
        put(target, key, value)


def conversion(function: Any, names: tuple[str, ...], tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a builtin that calls one special method of its argument."""
    if not args:
        return run_native(tracer, function, (), spelled_out(kwargs))
    value = in_python(tracer, args[0])
    if type(value) is SymbolicFloat and function is not hash:
        args = (value, *args[1:])
        return value if function is float else call_pure(tracer, function, args, kwargs)
    if isinstance(value, FakeTensor):
        if function is hash:
            raise Break("real memory", "the hash of a tensor is its address")
        if function in (abs, pow, divmod):
            return run_native(tracer, function, args, kwargs)
        if not args[1:] and not kwargs and (known := known_value(tracer, value, f"__{function.__name__}__")) is not MISSING:
            return known
        shows = function in (str, repr, format, ascii)
        raise Break("input or output" if shows else "tensor value", f"`{function.__name__}` of a tensor")
    if type(value) is torch.SymInt and function is int and len(args) == 1:
        return value
    if is_symbolic(value):
        return call_pure(tracer, function, args, kwargs)
    for name in names:
        method, base = class_lookup(tracer, type(value), name)
        if isinstance(method, types.FunctionType) and not isinstance(value, type) and (function is round or len(args) == 1):
            answer = call(tracer, get_attribute(tracer, value, name), args[1:], kwargs)
            is_made = function in (float, complex) and name != f"__{function.__name__}__"
            return run_native(tracer, function, (answer,), {}) if is_made else answer
        if method is None:
            return run_native(tracer, function, args, kwargs)  # raises
        if base in VALUES and len(args) == 1 and not kwargs:
            return run_native(tracer, function, args, {})
        if method is not MISSING and base is not object:
            break
    if function in (str, repr, ascii, format, hash) and type(value) not in CONSTANT_TYPES:
        force(tracer, args[0])
        known = not any(map(is_symbolic, leaves(spelled_out(args[0]))))
        (refuse_addresses if function is hash else check_printable)(tracer, args[0], known)
    return call_pure(tracer, function, spelled_out(args), kwargs)


for _function, _names in ((int, ("__int__", "__index__")), (float, ("__float__", "__index__")),
                          (complex, ("__complex__", "__float__", "__index__")), (str, ("__str__", "__repr__")),
                          (repr, ("__repr__",)), (ascii, ()), (bytes, ()), (abs, ("__abs__",)), (round, ("__round__",)),
                          (hash, ("__hash__",)), (pow, ())):
    special(_function)(functools.partial(conversion, _function, _names))


@special(divmod)
def rule_divmod(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`divmod(left, right)`, which for sizes are two operators."""
    if torch.SymInt in map(type, args) and all(type(item) in (int, torch.SymInt) for item in args):
        return binary(tracer, "//", *args), binary(tracer, "%", *args)
    return conversion(divmod, (), tracer, args, kwargs)


@special(math.prod)
def rule_prod(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`math.prod(iterable, start=1)`."""
    return functools.reduce(functools.partial(binary, tracer, "*"), drain(tracer, args[0]), kwargs.get("start", 1))


method(torch.Size, "numel")(lambda tracer, owner, args, kwargs: rule_prod(tracer, (owner,), {}))


@special(format)
def rule_format(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`format(value, spec)`."""
    value = args[0]
    if is_symbolic(value):
        return run_native(tracer, format, args, {})
    method, _ = class_lookup(tracer, type(value), "__format__")
    if isinstance(method, types.FunctionType) and method is not enum.Enum.__format__:
        return call(tracer, get_attribute(tracer, value, "__format__"), (args[1] if len(args) > 1 else "",), {})
    itself = isinstance(value, VALUES) and any(args[1:])  # the number, whatever `__str__` says
    if type(value) in CONSTANT_TYPES or (method is not enum.Enum.__format__ if isinstance(value, enum.Enum) else itself):
        return run_native(tracer, format, args, {})
    refused = method is object.__format__ and any(args[1:])
    text = type(type(value).__name__, (), {})() if refused else call(tracer, str, (value,), {})
    return run_native(tracer, format, (text, *args[1:]), {})


def simple(function: Any, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a builtin that only keeps its arguments."""
    if function is range:
        if any(isinstance(item, FakeTensor) for item in args):
            raise Break("tensor value", "`range` of a tensor")
        args = tuple(int(item) if is_symbolic(item) else as_index(tracer, item) for item in args)
    return tracer.made(run_native(tracer, function, args, kwargs))


for _function in (range, property, staticmethod, classmethod, functools.partial,
                  operator.attrgetter, operator.itemgetter, operator.methodcaller, types.SimpleNamespace, types.MethodType,
                  object):
    special(_function)(functools.partial(simple, _function))


def variables_of_caller(tracer: Tracer) -> dict[str, Any]:
    """What `locals()` gives: up to Python 3.12 one dictionary for a frame, which each call brings up to date, then a new one."""
    frame, code = tracer.frames[-1], tracer.frames[-1].code
    if frame.namespace is frame.variables:  # the body of a class
        return frame.variables
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise Break("unsupported value", "a whole namespace is read")
    if frame.namespace is None or VERSION >= (3, 13):
        frame.namespace = tracer.made({})
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        cell, value = frame.cells.get(name), frame.variables.get(name, MISSING)
        if value is MISSING and cell is not None and not is_empty_cell(cell):
            value = cell_value(tracer, cell)
        if value is MISSING:
            frame.namespace.pop(name, None)
        elif not name.startswith((STACK_PREFIX, RAISED, FIRST)):
            frame.namespace[name] = tracer.resolve(value)
    return frame.namespace


def attributes_of(tracer: Tracer, *values: Any) -> Any:
    """`vars(value)`, `vars()`."""
    if not values:
        return variables_of_caller(tracer)
    found = rule_getattr(tracer, (*values, "__dict__", MISSING), {})
    return found if found is not MISSING else run_native(tracer, vars, (1,), {})  # raises


def handled_parts(tracer: Tracer) -> tuple[Any, Any, Any]:
    """`sys.exc_info()`."""
    error = tracer.handled()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@special(logging.Logger.isEnabledFor)
def rule_is_enabled(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`logger.isEnabledFor(level)`, which keeps what it finds in a cache of the logger."""
    logger, level = args[0], concrete(args[1] if len(args) > 1 else kwargs.get("level"))
    if id(logger) not in tracer.sources:
        raise Break("input or output", "a logger is made")
    enabled = run_native(tracer, logging.Logger.isEnabledFor, args, kwargs)
    tracer.guards.test(tracer.sources[id(logger)], f"{{0}}.isEnabledFor({{1}}) is {enabled}", (level,),
                       f"`{{0}}` is {'' if enabled else 'not '}enabled for the level {level}", "constant", enabled)
    return enabled


@special(id)
def rule_id(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`id(module)` of a module from outside: the guard is on the number, and keeps no module alive."""
    if len(args) != 1 or kwargs:
        return run_native(tracer, id, args, kwargs)  # raises
    (value,) = args
    if not isinstance(value, torch.nn.Module) or id(value) not in tracer.sources:
        raise Break("real memory", "`id` is called")
    number = id(value)
    tracer.guards.test(tracer.sources[number], "{1}({0}) == {2}", (id, number), "`{0}` is the same module", "identity")
    return number


@special(functools.reduce)
def rule_reduce(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`functools.reduce(function, iterable[, initial])`."""
    function, iterable, *rest = args
    items = drain(tracer, iterable)
    result = rest[0] if rest else next(items, MISSING)
    if result is MISSING:
        raise RaisedInUserCode(TypeError("reduce() of empty iterable with no initial value"))
    for item in items:
        result = call(tracer, function, (result, item), {})
    return result


def refused(reason: str, tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """The rule of a builtin that capture leaves to Python."""
    raise Break("unsupported value", reason)


direct({
    callable: lambda tracer, value: isinstance(value, (TensorMethod, type)) or not isinstance(value, FakeTensor) and (
        python_method(tracer, type(value), "__call__") or class_lookup(tracer, type(value), "__call__")[0]) is not MISSING,
    setattr: set_attribute, delattr: lambda tracer, owner, name: set_attribute(tracer, owner, name, MISSING),
    types.WrapperDescriptorType.__get__: lambda tracer, method, owner, kind=None: method.__get__(owner, kind),
    object.__setattr__: generic_set, object.__delattr__: lambda tracer, owner, name: generic_set(tracer, owner, name, MISSING),
    object.__getattribute__: lambda tracer, owner, name: generic_attribute(tracer, owner, type(owner), name),
    vars: attributes_of, locals: variables_of_caller, slice: lambda tracer, *numbers: slice(*numbers),  # which may be symbolic
    dict.fromkeys: lambda tracer, items, *value: tracer.made(
        run_native(tracer, dict.fromkeys, (distinct(tracer, items), *value), {})),
    torch.profiler.record_function: lambda tracer, *_: tracer.call(contextlib.nullcontext, ()),  # a graph has no such ranges
    sys.exception: Tracer.handled, sys.exc_info: handled_parts,
    collections.deque.extendleft: lambda tracer, owner, items: collections.deque.extendleft(owner, drain(tracer, items)),
    types.FunctionType.__get__: lambda tracer, function, owner, *_: (
        function if owner is None else tracer.made(types.MethodType(function, owner))),
    itertools.chain.from_iterable: lambda tracer, items: tracer.made(
        itertools.chain.from_iterable(Iterables(tracer, get_iterator(tracer, items)))),
})
special(object.__init__)(lambda tracer, args, kwargs: run_native(tracer, object.__init__, args, kwargs))
special(object.__init_subclass__, dataclasses.make_dataclass, typing.NamedTuple,
        typing.TypedDict, types.new_class)(functools.partial(refused, CLASS_MADE))
special(typing.NewType, typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec)(
    functools.partial(refused, "a type is made that notes the module of its caller"))
special(globals, dir)(functools.partial(refused, "a whole namespace is read"))


@special(eval)
def rule_eval(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`eval(text)` of an expression that only reads: traced as part of the frame that calls it, over its variables."""
    caller = tracer.frames[-1]
    try:
        (text,) = (*args, *kwargs.values())
        code = compile(text.lstrip(" \t"), "<string>", "eval")
    except (AttributeError, SyntaxError, ValueError):  # for Python to raise, or with other variables
        raise Break("unknown call", "`eval` is called") from None
    cells = {name: cell.cell_contents for name, cell in caller.cells.items() if not is_empty_cell(cell)}
    frame = Frame(types.FunctionType(code, caller.globals), caller.variables | cells)
    if any(step.name == "STORE_NAME" for step in frame.program.instructions):
        raise Break("unknown call", "`eval` assigns a variable")
    return tracer.run(frame).value


@method((dict, contextvars.ContextVar), "get")
def rule_get(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`d.get(key[, default])` reads one entry; of a context variable, `get([default])` its value."""
    if isinstance(owner, contextvars.ContextVar):
        return context_value(tracer, owner, *args)
    found = look_up(tracer, owner, concrete(args[0]))
    return found if found is not MISSING else args[1] if len(args) > 1 else None


def context_value(tracer: Tracer, variable: contextvars.ContextVar[Any], *default: Any) -> Any:
    """The value of a context variable from outside, which the captured code cannot set."""
    source = tracer.sources.get(id(variable))
    if source is None:
        raise Break("unknown call", "a context variable is made")
    unset = variable.get(MISSING) is MISSING
    tracer.guards.test(source, f"({{0}}.get({{1}}) is {{1}}) is {unset}", (MISSING,),
                       f"`{{0}}` is {'not ' if unset else ''}set", "structure")
    if unset and default:
        return default[0]
    return tracer.wrap(run_native(tracer, variable.get, (), {}), Source(source, "{0}.get()"))


@method(dict, "update")
def rule_dict_update(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`d.update(...)`."""
    refuse_own_items("update", owner, (), {})
    force(tracer, owner, False)
    update_dict(tracer, owner, args, kwargs)


@method((list, collections.deque), "extend")
def rule_extend(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`l.extend(iterable)`."""
    force(tracer, owner, False)
    (list if isinstance(owner, list) else collections.deque).extend(
        owner, list(owner) if args[0] is owner else drain(tracer, args[0]))


@method(str, "format")
def rule_str_format(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`text.format(...)`."""
    check_printable(tracer, [*args, *kwargs.values()])
    return call_pure(tracer, owner.format, spelled_out(args), {key: spelled_out(item) for key, item in kwargs.items()})


@method(str, "join")
def rule_join(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`text.join(iterable)`."""
    force(tracer, args[0])
    return run_native(tracer, owner.join, (native_iterable(tracer, args[0]),), {})


@method(dict, "setdefault")
def rule_setdefault(tracer: Tracer, owner: Any, args: Args, kwargs: Keywords) -> Any:
    """`d.setdefault(key, default)`."""
    refuse_own_items("setdefault", owner, (), {})
    key, default = concrete(args[0] if args else kwargs["key"]), args[1] if len(args) > 1 else kwargs.get("default")
    found = look_up(tracer, owner, key)
    if found is MISSING:
        put(owner, key, default)
    return default if found is MISSING else found


def call_class(tracer: Tracer, kind: type, args: Args, kwargs: Keywords) -> Any:
    """Make an instance of a class."""
    rule = SPECIAL.get(kind)
    if rule is not None:
        return ruled(tracer, rule, kind, args, kwargs)
    meta_call, meta_base = class_lookup(tracer, type(kind), "__call__")
    if issubclass(kind, enum.Enum) and len(args) == 1 and not kwargs:
        return enum_member(tracer, kind, args[0])
    if issubclass(kind, enum.Enum) and not kind.__members__:
        return refused(CLASS_MADE, tracer, args, kwargs)
    if issubclass(kind, enum.Enum) or kind in NATIVE_CLASSES or (
            kind in NUMPY_NUMBERS and all(type(item) in CONSTANT_TYPES for item in args)):
        return run_native(tracer, kind, tuple(native_argument(tracer, item) for item in args), spelled_out(kwargs))
    if kind.__module__ == "itertools":
        if kind is not itertools.repeat and any(isinstance(item, FakeTensor) and item.dim() == 0 for item in args):
            raise Break("tensor value", f"`{kind.__name__}` of a number in a tensor")
        values = args if kind is itertools.repeat else tuple(
            native_iterable(tracer, item) if hasattr(type(item), "__iter__") else item for item in args)
        made = tracer.made(run_native(tracer, kind, values, kwargs))
        tracer.arguments[id(made)] = values, kwargs
        return made
    if isinstance(meta_call, type):  # of a `TypedDict` it is `dict`
        return call(tracer, meta_call, args, kwargs)
    if isinstance(meta_call, types.FunctionType):
        function = class_value(tracer, meta_base, "__call__", meta_call)
        return call(tracer, function, (kind, *args), kwargs)
    return instance_of(tracer, kind, args, kwargs)


def enum_member(tracer: Tracer, kind: Any, value: Any) -> Any:
    """The member of an enum for a value."""
    value = spelled_out(native_argument(tracer, value))
    missing = class_lookup(tracer, kind, "_missing_")[1]
    unknown = not isinstance(value, FakeTensor) and not any(value == known for known in kind._value2member_map_)
    if unknown and not is_trusted_module((missing or kind).__module__):
        raise Break("user object", f"`_missing_` of {kind.__name__} would run in C")
    return run_native(tracer, kind, (value,), {})


@special(typing._BaseGenericAlias.__call__)
def rule_generic(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`Box[int](...)`: an instance of the class, which knows the alias if it can."""
    if not args[0]._inst:
        return run_native(tracer, typing._BaseGenericAlias.__call__, args, kwargs)  # raises
    made = call(tracer, get_attribute(tracer, args[0], "__origin__"), args[1:], kwargs)
    with contextlib.suppress(RaisedInUserCode):
        set_attribute(tracer, made, "__orig_class__", args[0])
    return made


def instance_of(tracer: Tracer, kind: type, args: Args, kwargs: Keywords) -> Any:
    """What `type.__call__` makes of a class: `__new__`, then `__init__`."""
    if issubclass(kind, (torch.Tensor, torch.autograd.Function, torch.Generator, type)):
        raise Break("unknown call", f"`{kind.__name__}` is made")
    instance = allocate(tracer, kind, args, kwargs)
    if not any(base is kind for base in type(instance).__mro__):  # without asking metaclasses
        return instance
    initialise, base = class_lookup(tracer, kind, "__init__")
    if isinstance(initialise, types.FunctionType):
        call(tracer, class_value(tracer, base, "__init__", initialise), (instance, *args), kwargs)
    elif issubclass(kind, (dict, list, set, collections.deque)):
        if issubclass(kind, dict):
            if isinstance(instance, collections.defaultdict) and args:
                instance.default_factory = args[0]
                args = args[1:]
            if args or kwargs:
                refuse_own_items("__init__", instance, (), {})
            update_dict(tracer, instance, args, kwargs)
        elif args:
            items = (distinct if issubclass(kind, set) else native_iterable)(tracer, args[0])
            run_native(tracer, initialise, (instance, items, *args[1:]), kwargs)
    elif initialise is not object.__init__ and issubclass(kind, BaseException):
        run_native(tracer, initialise, (instance, *args), kwargs)
    return instance


special(type.__call__)(lambda tracer, args, kwargs: instance_of(tracer, args[0], args[1:], kwargs))
NATIVE_CLASSES = frozenset({torch.Size, torch.device, *NUMBER_LIMITS, *DATES_AND_FRACTIONS})


def allocate(tracer: Tracer, kind: type, args: Args, kwargs: Keywords) -> Any:
    """What `kind.__new__` returns."""
    maker, base = class_lookup(tracer, kind, "__new__")
    if isinstance(maker.__func__ if isinstance(maker, staticmethod) else maker, types.FunctionType):
        function = bind_descriptor(tracer, class_value(tracer, base, "__new__", maker), MISSING, kind)
        return call(tracer, function, (kind, *args), kwargs)
    if issubclass(kind, BaseException):
        if issubclass(kind, (BaseExceptionGroup, SyntaxError)):  # which look into what they are given
            args = tuple(native_argument(tracer, item, False) for item in args)
        return tracer.made(run_native(tracer, kind.__new__, (kind, *args), {}))
    if defines(tracer, kind, "__del__"):
        raise RunEager(f"an object of type {kind.__name__} is made, and `__del__` would run when capture drops it")
    if kind.__new__ is object.__new__ or issubclass(kind, (dict, list, set, collections.deque, *MADE_OF_ARGUMENTS)):
        return rule_new(tracer, (kind, *args), kwargs)
    library = is_trusted_module(tracer.frames[-1].globals.get("__name__"))  # where nobody waits for an object to die
    if kind is weakref.ref and len(args) == 1 and (is_outside(tracer, args[0]) or library):  # so the user keeps it alive
        return tracer.made(weakref.ref(args[0]))
    raise Break("unknown call", f"an object of type `{kind.__qualname__}` is made")
