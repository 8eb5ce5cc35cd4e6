"""Writes the Python source that runs in place of a frame after its guards: the graph call, side effects, the result.

Values on the symbolic stack are turned into expressions; objects made while tracing are built once and filled later,
so that aliases and cycles survive. Must not decide what is captured.
"""

import collections
import contextlib
import contextvars
import dataclasses
import datetime
import enum
import functools
import gc
import itertools
import operator
import re
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minicompile.capture.attributes import instance_dict
from minicompile.capture.break_kinds import RunEager
from minicompile.capture.builtin_rules import Predicate
from minicompile.capture.calls import KEY_WRAPPER, Callback, KeyFunction
from minicompile.capture.comparing import is_compared_in_python
from minicompile.capture.cpython_interface import HEAP_TYPE, NEVER_INSTANTIATED
from minicompile.capture.guards import Writer
from minicompile.capture.instruction import VERSION
from minicompile.capture.iteration import Iterables, Remaining
from minicompile.capture.kinds import isinstance
from minicompile.capture.liveness import live_locals, reads_all_variables
from minicompile.capture.named_tuples import MAKER
from minicompile.capture.remade_classes import is_remade
from minicompile.capture.resume import FIRST, RAISED, STACK_PREFIX, Holder, ResumeShape
from minicompile.capture.selections import Selection, SelectionMethod, escape
from minicompile.capture.side_effects import (
    MISSING,
    Lazy,
    Shadow,
    contents,
    elements,
    entries,
    is_changed,
    native_base,
    same,
    typed,
)
from minicompile.capture.source import PLAIN_VALUE, literal, plain_value
from minicompile.capture.symbolic_float import SymbolicFloat
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.texts import TensorText, is_of_users_class, is_tensor_text
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import NULL, Frame, Generator, Handling, TraceAgain, Tracer
from minicompile.capture.values import (
    CONSTANT_TYPES,
    DATES_AND_FRACTIONS,
    IDENTITY_TYPES,
    NUMBER_LIMITS,
    PARTS,
    TensorMethod,
    is_outside,
    overruled,
)

TABLE_ITERATORS = {type(iter(set())): (iter, set, "__iter__")} | {
    type(made(getattr({}, view)())): (made, dict, view) for made in (iter, reversed) for view in ("keys", "values", "items")}
"""How an iterator over a dictionary or set is made, and of which view."""
ORDERED = collections.OrderedDict
ORDERED_ITERATOR = type(iter(ORDERED()))
ITERATORS = (reversed, type(iter([])), type(iter(())), type(iter(range(0))), type(reversed([])), enumerate, zip, map, filter,
             type(iter("")), type(iter("é")), type(reversed(range(0))), *TABLE_ITERATORS, ORDERED_ITERATOR, itertools.accumulate,
             itertools.chain, itertools.combinations, itertools.combinations_with_replacement, itertools.compress,
             itertools.count, itertools.cycle, itertools.dropwhile, itertools.filterfalse, itertools.islice,
             itertools.permutations, itertools.product, itertools.repeat, itertools.starmap, itertools.takewhile,
             itertools.zip_longest, itertools._grouper, itertools._tee, itertools._tee_dataobject, type(iter(NULL.__repr__, "")),
             type(iter(b"")), type(iter(range(1 << 99))))
CALENDAR_DATE = type(datetime.date.min.isocalendar())  # which `tuple.__new__` does not make
DEQUE_ITERATORS = (type(iter(collections.deque())), type(reversed(collections.deque())))
UNWATCHED = (*IDENTITY_TYPES, types.FunctionType, types.MethodType, enum.Enum, list, tuple, dict, set, frozenset,
             collections.deque)
"""Types of which no object ends anything when it dies."""
HELD_AS_THEY_ARE = (types.CodeType, types.TracebackType, re.Match, datetime.timezone, *NUMBER_LIMITS,
                    type(dataclasses.MISSING), type(dataclasses._FIELD))
VIEWS = {type(getattr(owner(), view)()): (owner, view) for owner in (dict, ORDERED) for view in ("keys", "values", "items")}


class Emitter:
    """Turns values into expressions over the variables of a `Writer`.

    Attributes:
        body: statements after the graph call.
        outputs: the graph's outputs in order; each is the variable `output_k`.
        memo: the expressions of the objects that are `alive`, by id.
        held: the generators whose expressions are those of holders.
        late: statements after the side effects.
        unfinished: what has to follow where a class is made, by the id of its twin, while its parts are being built.
        makes_classes: whether a class is made, another one in each call, which fits nothing that is captured behind it.
    """

    def __init__(self, tracer: Tracer, writer: Writer, resume_point: Callable[..., Any]) -> None:
        self.tracer, self.writer, self.resume_point = tracer, writer, resume_point
        self.body: list[str] = []
        self.late: list[str] = []
        self.outputs: list[Any] = []
        self.memo: dict[int, str] = {}
        self.alive: list[Any] = []
        self.held: list[Generator] = []
        self.unfinished: dict[int, list[str]] = {}
        self.makes_classes = False

    def constant(self, value: Any, hint: str = "constant") -> str:
        """The name of an object that the generated code holds."""
        return self.writer.constant(value, hint)

    def held_as_it_is(self, value: Any, hint: str) -> str:
        """The name of an object that is nobody's to make anew, and so must not know a class that is."""
        if knows_made_class(self.tracer, value):
            raise RunEager("a class that the function makes is part of a type or has a descriptor that is held as it is")
        return self.constant(value, hint)

    def assign(self, text: str, hint: str) -> str:
        """A new variable in the body."""
        name = self.writer.unique(hint)
        self.body.append(f"{name} = {text}")
        return name

    def row(self, values: Iterable[Any]) -> str:
        """Expressions for several values, each with a comma behind it: what stands between the parentheses of a tuple."""
        return "".join(f"{self.value(value)}, " for value in values)

    def value(self, value: Any) -> str:
        """An expression for a value on the symbolic stack."""
        kind = type(value)
        if kind is Lazy:
            if is_tensor_text(value):
                return self.value(value.real)
            if value.resolved is MISSING:
                return self.writer.fetch(value.source)
            return self.value(value.resolved)
        if kind is torch.Size and any(map(is_symbolic, value)):
            return f"{self.constant(torch.Size, 'Size')}(({self.row(value)}))"
        if kind in CONSTANT_TYPES and kind not in (slice, *DATES_AND_FRACTIONS):
            return exact_literal(value) or self.constant(value, kind.__name__)
        if kind is SymbolicFloat:
            return self.writer.fetch(value.source)
        known = self.memo.get(id(value))
        if known is not None:
            return known
        self.alive.append(value)
        source = self.tracer.sources.get(id(value))
        if source is not None:
            return self.writer.fetch(source)
        data_alias = self.tracer.graph.data_aliases.get(id(value))
        if data_alias is not None and not value.requires_grad and self.tracer.graph.is_data_of(value, data_alias[1]):
            name = self.assign(f"{self.value(data_alias[1])}.data", "data")
        elif isinstance(value, FakeTensor) or is_symbolic(value):
            name = self.output(value)
        else:
            name = self.build(value)
        return self.memo.setdefault(id(value), name)  # a part of it may hold the object itself, and have had it built

    def output(self, value: Any) -> str:
        """The variable of a graph output."""
        if is_symbolic(value):
            return self.tracer.dynamic.expression(self.tracer, self.writer, value)
        if id(value) not in self.tracer.graph.traced:
            raise RunEager("a tensor was made outside of the traced operations")
        self.outputs.append(value)
        return f"output_{len(self.outputs) - 1}"

    def build(self, value: Any) -> str:
        """Statements that build an object made while tracing; returns its variable."""
        kind = type(value)
        owner, name = self.tracer.owners.get(id(value), (None, ""))
        if owner is not None and object.__getattribute__(owner, name) is value:
            return self.assign(own_attribute(owner, self.value(owner), name), "part")
        refuse_changed_keys(value)
        builder = BUILDERS.get(kind)
        if builder is not None:
            return builder(self, value)
        if isinstance(value, (*IDENTITY_TYPES, enum.Enum)) and id(value) not in self.tracer.fresh:
            owner = value.__self__ if isinstance(value, types.BuiltinFunctionType) else None
            if not isinstance(owner, (types.ModuleType, type, type(None))) or knows_made_class(self.tracer, owner):
                return bound_native_method(self, value)
            return self.held_as_it_is(value, getattr(value, "__name__", kind.__name__))
        if isinstance(value, type):
            return build_class(self, value) if len(self.tracer.arguments[id(value)][0]) == 3 else build_namedtuple(self, value)
        if kind in ITERATORS:
            return build_iterator(self, value)
        if kind in VIEWS:
            (table,), (owner, view) = gc.get_referents(value), VIEWS[kind]
            return self.assign(f"{self.constant(owner, owner.__name__)}.{view}({self.value(table)})", view)
        if isinstance(value, tuple):
            if hasattr(kind, "n_sequence_fields"):
                made = self.row(value.__reduce__()[1])  # with what is no element of it
                return self.assign(f"{self.constant(kind, kind.__name__)}({made})", "made")
            items = self.row(elements(value))
            if kind is CALENDAR_DATE:
                return self.assign(f"{self.constant(kind, kind.__name__)}({items})", "made")
            known = id(kind) in self.tracer.arguments or is_remade(kind)
            maker = self.value(kind) if known else self.constant(kind, kind.__name__)
            made = self.assign(f"tuple.__new__({maker}, ({items}))", "made")
            name = self.memo.setdefault(id(value), made)
            fill_attributes(self, value, name)
            return name
        claimed = {"types": types, "typing": typing}.get(kind.__module__)  # by classes that a function made, too
        is_enum = type(kind).__name__ == "pybind11_type" and hasattr(kind, "__members__")
        if getattr(claimed, kind.__name__, None) is kind or is_enum or isinstance(value, HELD_AS_THEY_ARE):
            return self.held_as_it_is(value, "made")
        built = (list, dict, set, frozenset, collections.deque, BaseException, *PLAIN_VALUE)
        if (isinstance(value, built) or has_plain_layout(value)) and id(value) in self.tracer.fresh:
            return build_instance(self, value)
        raise RunEager(f"an object of type {kind.__name__} crosses the end of the captured code")

    def frame_state(self, frame: Frame, index: int, stack: list[Any]) -> tuple[str, list[str], tuple[str, ...], list[str]]:
        """A frame's stack and what is live of it at an instruction: kinds and texts of the stack, names and texts of locals."""
        own, free = {*frame.code.co_cellvars}, {*frame.code.co_freevars}
        if own & free or not frame.cells.keys() >= own | free or any(isinstance(value, types.CellType) for value in stack):
            raise RunEager("a name is that of a comprehension's variable and of a closure's")
        kinds = "".join("n" if value is NULL else "h" if isinstance(value, Handling) else "g" if self.is_held(value) else "v"
                        for value in stack)
        saved = [self.value(value.error if isinstance(value, Handling) else value) for value in stack if value is not NULL]
        for cell in frame.cells.values():
            self.value(cell)
        live = live_locals(frame.program, index) if index < len(frame.program.instructions) else ()
        all_names = [name for name in frame.code.co_varnames if not name.startswith((STACK_PREFIX, RAISED, FIRST))]
        known = [name for name in all_names if name in frame.variables]
        if reads_all_variables(frame.program):
            if frame.namespace is not None and VERSION < (3, 13) and reads_all_variables(frame.program, index):
                raise RunEager("`locals()` is called before and after a graph break")  # and gives one dictionary
            if all_names[: len(known)] != known or not frame.cells.keys().isdisjoint(all_names):
                raise RunEager("a function that reads all its variables would find them in another order")
            live = frozenset(known)
        names = tuple(name for name in known if name in live or self.may_be_watched(frame.variables[name]))
        return kinds, saved, names, [self.value(frame.variables[name]) for name in names]

    def hold_generators(self, frame: Frame) -> None:
        """Put the generators into holders over which a frame's loops go, and that nothing else refers to."""
        for height, loop in frame.loops.items():
            value = frame.stack[height - 1] if frame.index in loop and height <= len(frame.stack) else None
            if type(value) is Generator and value.references() == 1:
                self.held.append(value)
                holder = self.constant(Holder, "Holder")
                self.memo[id(value)] = self.assign(f"{holder}({build_generator(self, value, True)})", "holder")

    def is_held(self, value: Any) -> bool:
        """Whether the expression for a value is that of a generator's holder."""
        return type(value) is Holder or any(value is held for held in self.held)

    def may_be_watched(self, value: Any) -> bool:
        """Whether the user could notice that an object is gone: a generator, a temporary file, a module, one weakly held."""
        known = type(value) is Lazy and not is_tensor_text(value) or id(value) in self.memo or is_outside(self.tracer, value)
        real = value.real if type(value) is Lazy else value
        if not known or type(real) in CONSTANT_TYPES or isinstance(real, torch.Tensor):
            return False
        return is_of_users_class(real) or not isinstance(real, UNWATCHED)

    def resumption(self, frame: Frame, index: int, stack: list[Any], pushes: list[str | None], raised: str = "",
                   generator: bool = False, eager: bool = False) -> str:
        """The call that goes on with a frame at an instruction, with its stack and then some expressions pushed."""
        kinds, saved, names, values = self.frame_state(frame, index, stack)
        kinds += "".join("n" if text is None else "v" for text in pushes)
        code, asked = frame.code, "super" in frame.code.co_names and "__class__" in frame.cells
        named = (frame.function.__name__, frame.function.__qualname__) if generator else ()
        shape = ResumeShape(index, kinds, names, tuple(frame.cells), bool(raised), named, asked, eager)
        point = self.constant(self.resume_point(frame.program, frame.globals, shape), "resume")
        closure = self.row(frame.cells.values())
        if asked:
            name = code.co_varnames[0]
            saved.insert(0, self.value(contents(frame.cells[name])[0] if name in frame.cells else frame.variables.get(name)))
        args = [*saved, *(text for text in pushes if text is not None), *values, *([raised] if raised else [])]
        return f"{point}(({closure}){''.join(', ' + text for text in args)})"


def knows_made_class(tracer: Tracer, value: Any) -> bool:
    """Whether a value is a class that the function makes, a descriptor of one, or a type that is written with one."""
    if isinstance(value, (type, types.ModuleType)):
        return id(value) in tracer.arguments
    known = getattr(value, "__objclass__", None), getattr(value, "__origin__", None), *(getattr(value, "__args__", None) or ())
    return any(one is not None and knows_made_class(tracer, one) for one in known)


def has_plain_layout(value: Any) -> bool:
    """Whether an object can be rebuilt from its instance dictionary and slots."""
    kind = type(value)
    made_by_python = kind is object or kind.__flags__ & HEAP_TYPE and not kind.__flags__ & NEVER_INSTANTIATED
    return bool(made_by_python) and (kind.__new__ is object.__new__ or isinstance(kind.__new__, types.FunctionType))


def bound_native_method(emitter: Emitter, method: types.BuiltinFunctionType) -> str:
    """A method written in C, bound to an object."""
    owner, native = emitter.value(method.__self__), overruled(method)
    made = f"({owner}).{method.__name__}" if native is None else f"{emitter.constant(native, method.__name__)}.__get__({owner})"
    return emitter.assign(made, "method")


def build_by_reduction(emitter: Emitter, value: Any) -> str:
    """A date, a duration, a fraction or a getter, made anew as Python would."""
    maker, args = value.__reduce__()[:2]
    return emitter.assign(f"{emitter.value(maker)}({emitter.row(args)})", "made")


def build_method_of_type(emitter: Emitter, value: Any) -> str:
    """A special method written in C, bound to an object."""
    if value.__self__ is None:  # to which no descriptor binds
        return f"None.{value.__name__}"
    method = emitter.constant(vars(value.__objclass__)[value.__name__], value.__name__)
    return emitter.assign(f"{method}.__get__({emitter.value(value.__self__)})", "method")


def build_key(emitter: Emitter, value: Any) -> str:
    """What `functools.cmp_to_key` gives, or a key that it has made."""
    function, *compared = held_by(value)
    made = f"{emitter.constant(functools.cmp_to_key, 'cmp_to_key')}({emitter.value(function)})"
    return emitter.assign(f"{made}({emitter.value(compared[0])})" if compared else made, "key")


def build_list(emitter: Emitter, value: list[Any]) -> str:
    """A list: made empty, then filled, so that it may contain itself."""
    if not any(isinstance(item, (list, dict, set)) or type(item).__flags__ & HEAP_TYPE for item in value):
        return emitter.assign(f"[{emitter.row(value)}]", "items")
    name = emitter.assign("[]", "items")
    emitter.memo[id(value)] = name
    emitter.body.append(f"{name}.extend(({emitter.row(value)}))")
    return name


def build_dict(emitter: Emitter, value: dict[Any, Any]) -> str:
    """A dictionary: made empty, then filled."""
    name = emitter.assign("{}", "table")
    emitter.memo[id(value)] = name
    for key, item in dict.items(value):
        emitter.body.append(f"{name}[{emitter.value(key)}] = {emitter.value(item)}")
    return name


def build_set(emitter: Emitter, value: Any) -> str:
    """A set or frozenset."""
    kind = type(value).__name__
    return emitter.assign(f"{kind}(({emitter.row(value)}))", "elements")


def build_tuple(emitter: Emitter, value: tuple[Any, ...]) -> str:
    """A tuple."""
    return exact_literal(value) or emitter.assign(f"({emitter.row(value)})", "row")


def exact_literal(value: Any) -> str | None:
    """The text of a constant; none of a NaN: a list finds the one that is in it, no other."""
    text = literal(value)
    return None if text is None or "float('nan')" in text else text


def build_function(emitter: Emitter, value: types.FunctionType) -> str:
    """A function made while tracing; library functions without a source are held as they are."""
    if id(value) not in emitter.tracer.fresh:
        return emitter.constant(value, value.__name__)
    maker = emitter.constant(types.FunctionType, "FunctionType")
    closure = f"({emitter.row(value.__closure__)})" if value.__closure__ else "None"
    defaults = emitter.value(value.__defaults__)
    if id(value) in emitter.memo:  # its closure holds the function itself
        return emitter.memo[id(value)]
    name = emitter.assign(
        f"{maker}({emitter.constant(value.__code__, 'code')}, {emitter.constant(value.__globals__, 'namespace')}, "
        f"{value.__name__!r}, {defaults}, {closure})", value.__name__)
    emitter.memo[id(value)] = name
    emitter.body.append(f"{name}.__qualname__ = {value.__qualname__!r}")
    if value.__kwdefaults__:
        emitter.body.append(f"{name}.__kwdefaults__ = {build_dict(emitter, value.__kwdefaults__)}")
    known = any(knows_made_class(emitter.tracer, item) for item in value.__annotations__.values())
    owner, _ = emitter.tracer.owners.get(id(value.__annotations__), (None, ""))
    if owner not in (None, value):
        emitter.body.append(f"{name}.__annotations__ = {emitter.value(value.__annotations__)}")
    elif known or owner is value:
        emitter.body.append(f"{name}.__annotations__ = {build_dict(emitter, value.__annotations__)}")
    elif value.__annotations__:
        emitter.body.append(f"{name}.__annotations__ = {emitter.constant(value.__annotations__, 'annotations')}.copy()")
    for attribute in ("__doc__", "__module__"):
        emitter.body.append(f"{name}.{attribute} = {emitter.value(getattr(value, attribute))}")
    return with_attributes(emitter, name, value)


def with_attributes(emitter: Emitter, name: str, value: Any) -> str:
    """A function or partial call that was made, once it has what is in the dictionary of the traced one."""
    emitter.memo[id(value)] = name
    for key, item in value.__dict__.items():
        emitter.body.append(f"{name}.__dict__[{key!r}] = {emitter.value(item)}")
    return name


def build_cell(emitter: Emitter, value: types.CellType) -> str:
    """A cell: made empty, then filled."""
    name = emitter.assign(f"{emitter.constant(types.CellType, 'CellType')}()", "cell")
    emitter.memo[id(value)] = name
    held = contents(value)
    if held and id(held[0]) in emitter.unfinished:
        emitter.unfinished[id(held[0])].append(f"{name}.cell_contents = {{}}")
    elif held:
        emitter.body.append(f"{name}.cell_contents = {emitter.value(held[0])}")
    return name


def build_of_parts(emitter: Emitter, value: Any) -> str:
    """A bound method, a slice, or what `super()` gave: made of its parts."""
    kind = type(value)
    if kind is types.MethodType and isinstance(value.__self__, Generator):
        return emitter.assign(f"{emitter.value(value.__self__)}.{value.__func__.__name__}", "method")
    parts = emitter.row(getattr(value, name) for name in PARTS[kind])
    return emitter.assign(f"{emitter.constant(kind, kind.__name__)}({parts})", kind.__name__)


def build_namedtuple(emitter: Emitter, twin: Any) -> str:
    """The class that `namedtuple` made, made anew, with the defaults that its twin has got since."""
    args, keywords = emitter.tracer.arguments[id(twin)]
    given = "".join(f", {key}={emitter.value(item)}" for key, item in keywords.items())
    name = emitter.assign(f"{emitter.constant(MAKER, 'namedtuple')}({emitter.row(args)[:-2]}{given})", twin.__name__)
    if twin.__new__.__defaults__ is not None and twin.__new__.__defaults__ != keywords.get("defaults"):
        emitter.body.append(f"{name}.__new__.__defaults__ = {emitter.value(twin.__new__.__defaults__)}")
    return name


def build_class(emitter: Emitter, twin: Any) -> str:
    """A class that the function made, made anew of its parts; it fills the cell that its methods know it by itself."""
    if id(twin) in emitter.unfinished:
        raise RunEager("a class that the function makes is held by its parts")
    (name, bases, namespace), decorations = emitter.tracer.arguments[id(twin)]
    emitter.makes_classes = True
    emitter.unfinished[id(twin)] = []
    table = build_dict(emitter, namespace)
    made = emitter.assign(f"type({name!r}, {emitter.value(bases)}, {table})", name)
    for options in decorations.values():
        given = "".join(f"{key}={emitter.value(item)}, " for key, item in options.items())
        emitter.body.append(f"{emitter.constant(dataclasses.dataclass, 'dataclass')}({made}, {given})")
    emitter.body.extend(line.format(made) for line in emitter.unfinished.pop(id(twin)))
    return made


def build_field(emitter: Emitter, value: dataclasses.Field[Any]) -> str:
    """A field of a dataclass, or of a class that is to become one, with all that it says of itself."""
    name = emitter.assign(f"{emitter.constant(dataclasses.field, 'field')}()", "field")
    emitter.memo[id(value)] = name
    fill_attributes(emitter, value, name)
    return name


def build_partial(emitter: Emitter, value: functools.partial[Any]) -> str:
    """A partial call."""
    parts = [emitter.value(value.func), *(emitter.value(item) for item in value.args)]
    parts.extend(f"**{{{key!r}: {emitter.value(item)}}}" for key, item in value.keywords.items())
    name = emitter.assign(f"{emitter.constant(functools.partial, 'partial')}({', '.join(parts)})", "partial_call")
    return with_attributes(emitter, name, value)


def build_text(emitter: Emitter, value: TensorText) -> str:
    """The text of an f-string that shows tensors."""
    graph = emitter.tracer.graph
    aliased = graph.data_aliases or graph.replaced or graph.switched  # which count as no changes
    if aliased or any(type(part) is tuple and part[0]._version != part[2] for part in value):
        raise TraceAgain(picks=False)
    parts = [f"format({emitter.value(part[0])}, {part[1]!r})" if type(part) is tuple else emitter.value(part)
             for part in value]
    return emitter.assign(f"''.join(({', '.join(parts)},))", "text")


def build_generator(emitter: Emitter, value: Generator, held: bool = False) -> str:
    """A generator of the traced program: one that goes on where it is."""
    frame = value.frame
    value.handed_over = True
    if not held and value.waits_in_a_block() and not any(getattr(one, "gen", None) is value for one in emitter.tracer.keep
                                                         if isinstance(one, contextlib._GeneratorContextManager)):
        raise RunEager("a generator waits inside a `try` or `with` where the graph breaks")
    if value.finished:
        return emitter.assign("(item for item in ())", "generator")
    emitter.hold_generators(frame)
    place = (frame.index - 1, frame.stack, ["None"]) if frame.started else (2, [], [])  # after RETURN_GENERATOR and POP_TOP
    made = emitter.resumption(frame, *place, generator=True)
    return made if held else emitter.assign(made, "generator")


def build_remaining(emitter: Emitter, value: Remaining) -> str:
    """An iterator that native code reads; if its class is the user's, its `__iter__` must not run once more."""
    text = emitter.value(value.iterator)
    if isinstance(getattr(type(value.iterator), "__next__", None), types.FunctionType) and type(value.iterator) not in BUILDERS:
        return emitter.assign(f"iter({text}.__next__, {emitter.constant(NULL, 'end')})", "iterator")
    return text


def quietly(iterator: Any) -> contextlib.AbstractContextManager[Any]:
    """A block in which an iterator may be asked for its place: those of `itertools` warn of that since 3.12."""
    return warnings.catch_warnings(action="ignore") if type(iterator).__module__ == "itertools" else contextlib.nullcontext()


def written_down(iterator: Any) -> tuple[Any, ...]:
    """How an iterator says that it is made anew at its place: a class, arguments and perhaps a state."""
    with quietly(iterator):
        reduced: tuple[Any, ...] = iterator.__reduce__()
        return reduced


def put_at(iterator: Any, state: Any) -> None:
    """Put an iterator that was made anew at its place."""
    with quietly(iterator):
        iterator.__setstate__(state)


def build_token(emitter: Emitter, value: contextvars.Token[Any]) -> str:
    """The token of a `ContextVar` that was set to what it was: of setting it so again."""
    variable = emitter.constant(value.var, "variable")
    return emitter.assign(f"{variable}.set({variable}.get())", "token")


def build_iterator(emitter: Emitter, value: Any) -> str:
    """A builtin iterator at its present position."""
    try:
        reduced = written_down(value)
    except RuntimeError:
        raise RunEager("a dictionary or set has changed while it is iterated over") from None
    table = next((held for held in gc.get_referents(value) if isinstance(held, (dict, set))), None)
    known = isinstance(table, dict) or id(table) in emitter.tracer.sources  # a set made anew may have another order
    if table is not None and known and type(value) in (*TABLE_ITERATORS, ORDERED_ITERATOR):
        return build_table_iterator(emitter, value, table, reduced[1][0])
    maker, args = reduced[0], reduced[1]
    name = emitter.assign(f"{emitter.constant(maker, maker.__name__)}({emitter.row(args)})", "iterator")
    if len(reduced) > 2 and reduced[2] is not None:
        grown = any(id(item) in emitter.tracer.effects.shadows for item in args)  # a place beyond its end would be lost
        (emitter.late if grown else emitter.body).append(
            f"{emitter.constant(put_at, 'put_at')}({name}, {emitter.value(reduced[2])})")
    return name


def held_by(iterator: Any) -> list[Any]:
    """The objects that an iterator holds, in the order of its fields."""
    return [held for held in gc.get_referents(iterator) if held is not type(iterator)]  # which it holds since 3.12


def build_groups(emitter: Emitter, value: Any) -> str:
    """A `groupby`: with the key of the group that it is in, which it does not write down once the group's element was taken."""
    iterator, function, *state = held_by(value)
    name = emitter.assign(f"{emitter.constant(itertools.groupby, 'groupby')}({emitter.row((iterator, function))})", "groups")
    if state:
        group = state[0]
        key, item = state[1:] if state[2:] else (group, None)
        emitter.body.append(f"{emitter.constant(put_at, 'put_at')}({name}, ({emitter.row((key, item, group))}))")
        if not state[2:]:
            emitter.body.append(f"next({emitter.constant(itertools._grouper, 'group')}({name}, {emitter.value(group)}))")
    return name


def build_pairs(emitter: Emitter, value: Any) -> str:
    """A `pairwise`: over the first element of its next pair, and what follows it."""
    iterator, *first = held_by(value)[: 3 if VERSION < (3, 13) else -1] or [()]
    chain = emitter.constant(itertools.chain, "chain")
    return emitter.assign(f"{emitter.constant(itertools.pairwise, 'pairwise')}"
                          f"({chain}(({emitter.row(first)}), {emitter.value(iterator)}))", "pairs")


def build_batches(emitter: Emitter, value: Any) -> str:
    """A `batched`, which keeps nothing but how it was made."""
    args, keywords = emitter.tracer.arguments[id(value)]
    iterator = held_by(value) or [()]
    given = "".join(f"{key}={emitter.value(item)}, " for key, item in keywords.items() if key != "iterable")
    return emitter.assign(f"{emitter.constant(type(value), 'batched')}"
                          f"({emitter.row((*iterator, *args[1:]))}{given})", "batches")


def build_deque_iterator(emitter: Emitter, value: Any) -> str:
    """An iterator over a deque, which has not changed since: else it raises."""
    maker, (queue, place) = value.__reduce__()
    shadow = emitter.tracer.effects.shadows.get(id(queue))
    try:
        changed = shadow is not None and is_changed(shadow) or next(value, None) is MISSING
    except RuntimeError:
        changed = True
    if changed:
        raise RunEager("a deque has changed while it is iterated over")
    return emitter.assign(f"{emitter.constant(maker, 'deque_iterator')}({emitter.value(queue)}, {place})", "iterator")


def build_table_iterator(emitter: Emitter, value: Any, table: Any, left: list[Any]) -> str:
    """An iterator over a dictionary or set of which some elements are left; like the original it notices changes."""
    shadow = emitter.tracer.effects.shadows.get(id(table))
    maker, owner, view = TABLE_ITERATORS.get(type(value)) or ordered_view(table, left)
    if shadow is not None and (table != shadow.before if owner is set else [*owner.__iter__(table)] != [*shadow.before]):
        raise RunEager("a dictionary or set has changed while it is iterated over")
    made = f"{maker.__name__}({emitter.constant(owner, owner.__name__)}.{view}({emitter.value(table)}))"
    name = emitter.assign(made, "iterator")
    emitter.body.extend([f"next({name})"] * (len(table) - len(left)))
    return name


def ordered_view(table: Any, left: list[Any]) -> tuple[Any, type, str]:
    """How an iterator over an `OrderedDict` is made: those over all its views have one type, and differ in what is left."""
    for maker, _, view in (way for way in TABLE_ITERATORS.values() if way[1] is dict):
        rest = [*maker(getattr(ORDERED, view)(table))][-len(left) :]
        if all(one is other or type(one) is type(other) is tuple and [*map(id, one)] == [*map(id, other)]
               for one, other in zip(rest, left, strict=False)):
            return maker, ORDERED, view
    raise RunEager("an iterator over a dictionary whose elements were replaced crosses the end of the captured code")


def build_instance(emitter: Emitter, value: Any) -> str:
    """An instance of a user class, a namespace, or of a subclass of a builtin container or exception."""
    kind = type(value)
    cls = emitter.value(kind) if id(kind) in emitter.tracer.fresh else emitter.constant(kind, kind.__name__)
    base = next((one for one in (collections.OrderedDict, dict, list, set, collections.deque) if isinstance(value, one)), None)
    native = next(one for one in kind.__mro__ if isinstance(one.__dict__.get("__new__"), types.BuiltinFunctionType))
    if isinstance(value, BaseException):
        given = emitter.row(ARGS_OF_EXCEPTION.__get__(value))
    elif isinstance(value, tuple(PLAIN_VALUE)):
        given = emitter.value(plain_value(value))
    else:
        given = f"({emitter.row(elements(value))})" if isinstance(value, frozenset) else ""
    maker = cls if native is kind else emitter.constant(native, native.__name__)
    name = emitter.assign(f"{maker}.__new__({cls}, {given})", kind.__name__)
    emitter.memo[id(value)] = name
    if isinstance(value, BaseException):
        fill_exception(emitter, value, name)
    elif isinstance(value, collections.defaultdict):
        emitter.body.append(f"{name}.default_factory = {emitter.value(value.default_factory)}")
    elif isinstance(value, collections.deque):
        emitter.body.append(f"{emitter.constant(collections.deque, 'deque')}.__init__({name}, (), {value.maxlen})")
    if isinstance(value, dict):
        owner = "dict" if base is dict else emitter.constant(collections.OrderedDict, "OrderedDict")
        for key, item in entries(value):
            emitter.body.append(f"{owner}.__setitem__({name}, {emitter.value(key)}, {emitter.value(item)})")
    elif base is not None:
        verb = "update" if base is set else "extend"
        emitter.body.append(f"{emitter.constant(base, base.__name__)}.{verb}({name}, ({emitter.row(elements(value))}))")
    fill_attributes(emitter, value, name)
    return name


ARGS_OF_EXCEPTION: Any = vars(BaseException)["args"]
"""Reads and writes them where a class of the user's has other `args`."""


def fill_exception(emitter: Emitter, value: BaseException, name: str) -> None:
    """The arguments and the cause of an exception."""
    args = emitter.value(ARGS_OF_EXCEPTION.__get__(value))
    emitter.body.append(f"{emitter.constant(ARGS_OF_EXCEPTION, 'args')}.__set__({name}, {args})")
    if value.__cause__ is not None:
        emitter.body.append(f"{name}.__cause__ = {emitter.value(value.__cause__)}")
    if value.__traceback__ is not None:
        emitter.body.append(f"{name}.__traceback__ = {emitter.constant(value.__traceback__, 'trace_of_error')}")
    if value.__context__ is not None:
        emitter.body.append(f"{name}.__context__ = {emitter.value(value.__context__)}")
    for base in type(value).__mro__:
        for attribute, raw in base.__dict__.items():  # `StopIteration.value`, `AttributeError.name`
            if isinstance(raw, types.MemberDescriptorType) and base.__module__ == "builtins" and base is not BaseExceptionGroup:
                held = raw.__get__(value)
                if held is not None and held is not False:
                    emitter.body.append(f"{name}.{attribute} = {emitter.value(held)}")


def own_attribute(value: Any, text: str, name: str) -> str:
    """The expression for what Python itself keeps for an object."""
    plain = type(value).__getattribute__ is object.__getattribute__
    return f"{text}.{name}" if plain else f"object.__getattribute__({text}, {name!r})"


def fill_attributes(emitter: Emitter, value: Any, name: str) -> None:
    """The instance dictionary and the slots of an object."""
    held = own_attribute(value, name, "__dict__")
    for key, item in (instance_dict(emitter.tracer, value) or {}).items():
        emitter.body.append(f"{held}[{key!r}] = {emitter.value(item)}")
    for base in type(value).__mro__:
        for attribute, raw in base.__dict__.items():
            is_slot = isinstance(raw, types.MemberDescriptorType) and raw.__objclass__.__module__ != "builtins"
            if is_slot and attribute != "__dict__":
                try:
                    item = raw.__get__(value)
                except AttributeError:
                    continue
                emitter.body.append(f"object.__setattr__({name}, {attribute!r}, {emitter.value(item)})")


Builder = Callable[[Emitter, Any], str]
BUILDERS: dict[type, Builder] = {
    list: build_list, dict: build_dict, set: build_set, frozenset: build_set, tuple: build_tuple,
    **dict.fromkeys((collections.deque, ORDERED, collections.defaultdict), build_instance), types.FunctionType: build_function,
    types.CellType: build_cell,
    functools.partial: build_partial, TensorText: build_text, types.SimpleNamespace: build_instance, Generator: build_generator,
    itertools.groupby: build_groups, itertools.pairwise: build_pairs, getattr(itertools, "batched", Remaining): build_batches,
    **dict.fromkeys(DEQUE_ITERATORS, build_deque_iterator), **dict.fromkeys((Remaining, Iterables), build_remaining),
    contextvars.Token: build_token,
    **dict.fromkeys(PARTS, build_of_parts),
    TensorMethod: lambda emitter, value: emitter.assign(f"{emitter.value(value.tensor)}.{value.name}", "method"),
    weakref.ref: lambda emitter, value: f"{emitter.constant(weakref.ref, 'ref')}({emitter.value(value())})",
    **dict.fromkeys((*DATES_AND_FRACTIONS, operator.itemgetter, operator.attrgetter, operator.methodcaller), build_by_reduction),
    types.MethodWrapperType: build_method_of_type, dataclasses.Field: build_field, KEY_WRAPPER: build_key,
    **dict.fromkeys((Selection, SelectionMethod), lambda emitter, value: escape(emitter.tracer, value)),
    **dict.fromkeys((Callback, KeyFunction, Predicate), lambda emitter, value: emitter.value(value.function)),
}


def write_side_effects(emitter: Emitter) -> None:
    """Statements that bring the user's objects to the state that tracing gave their stand-ins."""
    effects = emitter.tracer.effects
    pending: list[str] = []
    for shadow in effects.changed_shadows():
        pending.extend(write_shadow(emitter, shadow, emitter.writer.fetch(shadow.source)))
    for (_, attribute), (owner, value) in effects.attributes.items():
        text = emitter.value(owner)
        setter = "object.__setattr__" if not isinstance(owner, (type, torch.Tensor)) else "setattr"
        pending.append(f"{setter}({text}, {attribute!r}, {emitter.value(value)})")
    for (_, name), (namespace, value) in effects.globals.items():
        table = emitter.constant(namespace, "namespace")
        pending.append(f"{table}.pop({name!r}, None)" if value is MISSING else f"{table}[{name!r}] = {emitter.value(value)}")
    pending.extend(f"{emitter.value(generator)}.close()" for generator, _ in effects.generators.values())
    emitter.body.extend([*pending, *emitter.late])


def write_shadow(emitter: Emitter, shadow: Shadow, name: str) -> list[str]:
    """Statements that bring one container up to date."""
    now = contents(shadow.copy)
    refuse_changed_keys(shadow.copy)
    if isinstance(shadow.copy, types.CellType):
        return [f"{name}.cell_contents = {emitter.value(now[0])}" if now else f"del {name}.cell_contents"]
    if isinstance(shadow.copy, dict):
        return write_dict(emitter, shadow, now, name)
    if isinstance(shadow.copy, list):
        return write_list(emitter, shadow, now, name)
    if isinstance(shadow.copy, collections.deque):
        owner = emitter.constant(collections.deque, "deque")
        if len(now) == len(shadow.before):  # an iterator over it goes on
            return [f"{owner}.__setitem__({name}, {place}, {emitter.value(item)})"
                    for place, item in enumerate(now) if not same(item, shadow.before[place])]
        return [f"{owner}.clear({name})", f"{owner}.extend({name}, [{emitter.row(now)}])"]
    kept = set(map(typed, now)) & set(map(typed, shadow.before))  # to clear it would give it another order
    return [f"set.{verb}({name}, [{emitter.row(item for item in held if typed(item) not in kept)}])"
            for verb, held in (("difference_update", shadow.before), ("update", now))]


def refuse_changed_keys(table: Any) -> None:
    """Refuse a table or set with an object that has changed since it was put there: it would be put elsewhere now."""
    if isinstance(table, (dict, set, frozenset)):
        kind = native_base(table)
        for key in filter(is_compared_in_python, elements(table)):
            try:
                found = kind.__contains__(table, key)
            except Exception:  # what a method of the user's raises
                found = False
            if not found:
                raise RunEager(f"an object of type {type(key).__name__} was changed after it was hashed")


def write_list(emitter: Emitter, shadow: Shadow, now: list[Any], name: str) -> list[str]:
    """Statements for a list: what was appended, which asks nothing of the rest, or the whole."""
    kept = len(shadow.before)
    if len(now) >= kept and all(map(same, now, shadow.before)):
        return [f"list.extend({name}, [{emitter.row(now[kept:])}])"]
    return [f"list.__setitem__({name}, slice(None), [{emitter.row(now)}])"]


def write_dict(emitter: Emitter, shadow: Shadow, now: dict[Any, Any], name: str) -> list[str]:
    """Statements for the entries of a dictionary that changed, in an order that keeps its order."""
    before: dict[Any, Any] = shadow.before
    owner = "dict"
    if isinstance(shadow.copy, collections.OrderedDict):
        owner = emitter.constant(collections.OrderedDict, "OrderedDict")
    kept = [key for key in before if key in now]
    if list(map(typed, now))[: len(kept)] != list(map(typed, kept)):
        lines, before = [f"{owner}.clear({name})"], {}
    else:
        lines = [f"{owner}.__delitem__({name}, {emitter.value(key)})" for key in before if key not in now]
    for key, item in now.items():
        if key not in before or not same(item, before[key]):
            lines.append(f"{owner}.__setitem__({name}, {emitter.value(key)}, {emitter.value(item)})")
    return lines
