"""The symbolic interpreter: frames, the step loop, exceptions, inlining and generators.

Values on a symbolic stack are ordinary Python objects, with four stand-ins: fake tensors for tensors, symbolic numbers
for numbers that vary, shadows for containers and cells from outside, and `Lazy` for what nobody has looked at. Objects
from outside are never changed while tracing; objects made while tracing are real. The tracer must not write code.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from minicompile.capture import torch_interface
from minicompile.capture.break_kinds import Break, Control, CutHere, RaisedInUserCode, RunEager, Stop
from minicompile.capture.guards import GuardSet
from minicompile.capture.instruction import Instruction, Program, decode
from minicompile.capture.kinds import isinstance
from minicompile.capture.output_graph import OutputGraph
from minicompile.capture.resume import Holder
from minicompile.capture.side_effects import MISSING, Lazy, SideEffects
from minicompile.capture.source import Attribute, Baked, Item, Source, is_trusted_module
from minicompile.capture.user_line import as_if_raised_at
from minicompile.config import Config
from minicompile.errors import Location
from minicompile.ir import autocast

Args = tuple[Any, ...]
Keywords = dict[str, Any]
MAXIMUM_DEPTH = 150
GENERATOR_FLAG, COROUTINE_FLAGS = 0x20, 0x80 | 0x200


class Frame:
    """One symbolic activation of a code object."""

    __slots__ = ("program", "index", "stack", "variables", "cells", "function", "globals", "keyword_names", "started",
                 "step", "stop", "loops", "namespace")

    def __init__(self, function: types.FunctionType, variables: dict[str, Any]) -> None:
        code = function.__code__
        self.program: Program = decode(code)
        self.function, self.globals = function, function.__globals__
        self.variables = variables
        self.cells: dict[str, Any] = {}
        self.index, self.step, self.stop = 0, 0, -1
        self.stack: list[Any] = []
        self.loops: dict[int, range] = {}  # by the height of the stack: the instructions of the loop over what is on top
        self.keyword_names: tuple[str, ...] = ()
        self.namespace: dict[str, Any] | None = None
        self.started = False

    @property
    def code(self) -> types.CodeType:
        """The code object."""
        return self.program.code

    def handled(self) -> BaseException | None:
        """The exception that the frame's innermost handler handles."""
        return next((item.error for item in reversed(self.stack) if type(item) is Handling), None)

    def begin_loop(self, start: int) -> None:
        """Remember that what is on top of the stack is advanced by the instruction at `start`, and only by that."""
        self.loops[len(self.stack)] = range(start, self.program.instructions[start].target + 1)

    def line(self) -> int:
        """The source line of the instruction that is being executed."""
        position = min(max(self.index - 1, 0), len(self.program.instructions) - 1)
        return self.program.instructions[position].line


class Null:
    """The empty slot that CPython pushes beside a callable."""

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()


class Handling:
    """What CPython keeps on the stack below an exception that is handled: here, which one that is."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def stop_as_error(value: Any) -> Any:
    """What a generator raises for the `value` that it did not catch: a `StopIteration` is an error there."""
    if not isinstance(value, StopIteration):
        return value
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = error.__context__ = value
    return error


class Outcome(NamedTuple):
    """How a frame stopped: with a value that it returned or yielded."""

    value: Any
    yielded: bool = False


Handler = Callable[["Tracer", Frame, Instruction], Outcome | None]


@dataclasses.dataclass(frozen=True)
class Rules:
    """What the tracer asks of the modules above it, all of which import it.

    Attributes:
        handlers: what each opcode does, by name.
        wrap: the stand-in for a value from outside; call: the value of a call; make: an instance of a class.
        call_overridden: what classes that override torch functions make of an operation.
        watch: looks at each instruction before it runs, where a mask has selected something.
    """

    handlers: dict[str, Handler]
    wrap: Callable[[Tracer, Any, Source], Any]
    call: Callable[[Tracer, Any, Args, Keywords], Any]
    make: Callable[[Tracer, type, Args, Keywords], Any]
    call_overridden: Callable[[Tracer, Any, Args, Keywords], Any]
    watch: Callable[[Tracer, Frame, Instruction], None]


def overrides_torch(value: Any) -> bool:
    """Whether an object is no tensor and its class overrides torch functions, or a list or tuple holds one."""
    kind = type(value)
    if kind in (list, tuple):
        return any(map(overrides_torch, value))
    return type(getattr(kind, "__torch_function__", None)) is types.MethodType


class Generator:
    """A generator of the traced program: a suspended frame. Native code may iterate over it."""

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        self.finished = False
        self.handed_over = False
        tracer.generators.append(self)

    def waits_in_a_block(self) -> bool:
        """Whether it has stopped inside a `try` or `with`, so that Python would run code where it is dropped."""
        if self.finished or not self.frame.started:
            return False
        program = self.frame.program
        entry = program.handler_of(self.frame.index - 1)
        while entry is not None and program.instructions[entry.target].name == "CLEANUP_THROW":  # of a `yield from`
            entry = program.handler_of(entry.target)
        return entry is not None and program.instructions[entry.target].name != "CALL_INTRINSIC_1"

    def references(self) -> int:
        """How many there are, without those of the tracer and of the caller's variable."""
        return sys.getrefcount(self) - 4 - sum(kept is self for kept in self.tracer.keep)

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> Any:
        return self.resume(None)

    def resume(self, sent: Any, raised: BaseException | None = None) -> Any:
        """Run to the next `yield`; raises `StopIteration` at the end."""
        frame = self.frame
        if frame in self.tracer.frames:
            raise RaisedInUserCode(ValueError("generator already executing"))
        if self.finished:
            raise StopIteration if raised is None else RaisedInUserCode(raised)
        if frame.started:
            frame.stack.append(sent)
        elif frame.index == 0 and sent is not None:
            raise RaisedInUserCode(TypeError("can't send non-None value to a just-started generator"))
        frame.started = self.finished = True
        try:
            outcome = self.tracer.run(frame, raised)
        except RaisedInUserCode as error:
            raise RaisedInUserCode(stop_as_error(error.value), error.again) from None
        if outcome.yielded:
            self.finished = False
            return outcome.value
        raise StopIteration(*(() if outcome.value is None else (outcome.value,)))

    def send(self, value: Any) -> Any:
        """As `generator.send(value)`."""
        return self.resume(value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """As `generator.throw(error)`, or with a type, a value and a traceback."""
        error = kind if not isinstance(value, BaseException) else value
        if isinstance(error, type) and issubclass(error, BaseException):
            args = () if value is None else value if isinstance(value, tuple) else (value,)
            error = self.tracer.rules.make(self.tracer, error, args, {})
        if not isinstance(error, BaseException):
            words = f"exceptions must be classes or instances deriving from BaseException, not {type(error).__name__}"
            raise RaisedInUserCode(TypeError(words))
        return self.resume(None, error)

    def close(self) -> None:
        """As `generator.close()`."""
        if self.finished or not self.frame.started:
            self.finished = True
            return
        try:
            self.resume(None, GeneratorExit())
        except StopIteration:
            return
        except RaisedInUserCode as raised:
            if not isinstance(raised.value, GeneratorExit):
                raise
            return
        raise RaisedInUserCode(RuntimeError("generator ignored GeneratorExit"))


def unknown_instruction(tracer: Tracer, frame: Frame, instruction: Instruction) -> Outcome | None:
    """What stands for the handler of an instruction that has none."""
    raise Break("unsupported instruction", f"the instruction {instruction.name}")


class TraceAgain(Control):
    """The call has to be traced once more, without what `changes` (fields of its context) switches off."""

    def __init__(self, **changes: int) -> None:
        super().__init__()
        self.changes = changes


class Tracer:
    """All state of one attempt to capture one call.

    Attributes:
        sources: id of a value to where it came from; reals: id of a value to the user's own object behind it.
        arguments: id of an iterator of `itertools`, or of a class that the function makes, to what it was made of.
        fresh: ids of the objects made while tracing.
        owners: the object and the name by which a part of it was read (`__dict__`), by the id of the part.
        known: id of a user's object to (stand-in, source).
        native: native code runs, and what it does to tensors is to be recorded.
        floats: there are floats that stay symbolic.
        failed: a tensor that says whether something had to be raised; expects: whether there may be one.
        begins: whether generators from outside may begin while tracing.
        picks: whether 0-d tensors may be indices, results leaves, and text that shows tensors be made behind the graph.
        selections: what masks have selected; selects: how many of these there may be.
        told_compiling: the program has asked whether it is being compiled, and was told that it is.
        held_numbers: sources and stand-ins of what tensors of the host hold, by what was added and the number before.
        computed_floats: the float that an expression over some sources gives, by both.
        handled_at_call: what is being handled where the call is made.
        inference_scopes: ids of open `torch.inference_mode`s; the grad mode before, or `None` if the graph runs under it.
    """

    def __init__(self, config: Config, rules: Rules, dynamic: Any = None) -> None:
        self.config, self.rules, self.dynamic = config, rules, dynamic
        self.guards = GuardSet(self.location)
        self.graph = OutputGraph()
        self.effects = SideEffects()
        self.frames: list[Frame] = []
        self.handled_at_call = sys.exception()
        self.generators: list[Generator] = []
        self.sources: dict[int, Source] = {}
        self.arguments: dict[int, tuple[Args, Keywords]] = {}
        self.reals: dict[int, Any] = {}
        self.fresh: set[int] = set()
        self.owners: dict[int, tuple[Any, str]] = {}
        self.known: dict[int, tuple[Any, Source]] = {}
        self.global_values: dict[tuple[int, str], Any] = {}
        self.absent_globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.absent_in_classes: dict[type, set[str]] = {}
        self.class_orders: set[type] = set()
        self.library_reads: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.global_sources: dict[int, Source] = {}
        self.locations: dict[tuple[str, int, str, str], Location] = {}
        self.keep: list[Any] = []
        self.native = self.floats = self.told_compiling = False
        self.failed: Any = None
        self.expects = self.picks = self.begins = True
        self.selections, self.selects = list[Any](), sys.maxsize
        self.held_numbers: dict[tuple[float, float], Any] = {}
        self.computed_floats: dict[tuple[Any, ...], Any] = {}
        self.inference_scopes: dict[int, bool | None] = {}
        self.state, self.autocast = torch_interface.torch_state(), (autocast.settings(), autocast.open_blocks())
        self.symbols: dict[Any, tuple[Source, Any]] = {}
        self.symbol_nodes: dict[Any, Any] = {}
        self.stride_relations: list[tuple[Source, Any, Location | None]] = []
        self.marked_sizes: list[Any] = []

    # Values from outside.

    def wrap(self, real: Any, source: Source) -> Any:
        """The stand-in for a value from outside; records what has to be guarded."""
        return self.rules.wrap(self, real, source)

    def wrapped_once(self, key: tuple[int, str], real: Any, source: Source) -> Any:
        """The stand-in for what is read from one place, of an object by its id, again and again."""
        if key not in self.global_values:
            self.global_values[key] = self.wrap(real, source)
        return self.global_values[key]

    def resolve(self, value: Any) -> Any:
        """The stand-in behind a lazy value; anything else as it is."""
        if type(value) is Lazy:
            if value.resolved is MISSING:
                value.resolved = self.rules.wrap(self, value.real, value.source)
            return value.resolved
        return value

    def register(self, value: Any, real: Any, source: Source) -> Any:
        """A value, remembered with where it came from."""
        self.sources[id(value)] = source
        self.reals[id(value)] = real
        self.known[id(real)] = (value, source)
        self.keep.append((value, real))
        return value

    def made(self, value: Any) -> Any:
        """Remember that an object was made while tracing."""
        self.fresh.add(id(value))
        self.keep.append(value)
        return value

    def globals_source(self, namespace: dict[str, Any]) -> Source:
        """The source of a module's globals."""
        if id(namespace) not in self.global_sources:
            self.global_sources[id(namespace)] = Baked(namespace, f"globals of {namespace.get('__name__', 'a module')}")
            self.keep.append(namespace)
        return self.global_sources[id(namespace)]

    def load_global(self, namespace: dict[str, Any], name: str) -> Any:
        """The value of a global or builtin name."""
        key = (id(namespace), name)
        written = self.effects.globals.get(key)
        if written is not None:
            return self.load_builtin(namespace, name) if written[1] is MISSING else written[1]
        if key in self.global_values:
            return self.global_values[key]
        if name in namespace:
            value = self.wrap(namespace[name], Item(self.globals_source(namespace), name))
            if is_trusted_module(namespace.get("__name__")):
                self.read_of_library(namespace, name, namespace[name])
        else:
            if not torch_interface.is_library(namespace.get("__name__")):
                self.absent_globals.setdefault(id(namespace), (namespace, set()))[1].add(name)
            return self.load_builtin(namespace, name)
        self.global_values[key] = value
        return value

    def load_builtin(self, namespace: dict[str, Any], name: str) -> Any:
        """The value of a name that is not among some globals."""
        scope = namespace.get("__builtins__", builtins)
        table = scope if isinstance(scope, dict) else vars(scope)
        _, value = self.effects.globals.get((id(table), name), (table, table.get(name, MISSING)))
        if value is MISSING:
            raise RaisedInUserCode(NameError(f"name '{name}' is not defined", name=name))
        if value is table.get(name):
            self.read_of_library(table, name, value)
        return value

    def read_of_library(self, owner: Any, name: str, value: Any) -> None:
        """Remember a function or class read from a trusted module or class; one guard tests all reads of an owner."""
        if callable(value) or hasattr(type(value), "__get__"):
            self.library_reads.setdefault(id(owner), (owner, {}))[1][name] = value

    def fixed_numbers(self) -> int:
        """How many of the sizes and numbers that vary the program has asked for, so that they are constants after all."""
        env = self.graph.fake_mode.shape_env
        return 0 if env is None else sum(env.replace(symbol).is_number for symbol in self.symbols)

    # Where we are.

    def forget_places(self) -> None:
        """Let go of the tracer in what lives as long as the graph."""
        if self.graph.fake_mode.shape_env is not None:
            self.graph.fake_mode.shape_env.guards.here = lambda: None

    def location_of(self, frame: Frame, module: str = "") -> Location:
        """The user's line that a frame is at, in a module of that path."""
        file, line, function = frame.code.co_filename, frame.line(), frame.code.co_name
        key = (file, line, function, module)  # hashing the code would read all of it
        if key not in self.locations:
            self.locations[key] = Location(file, line, function, linecache.getline(file, line).strip(), module)
        return self.locations[key]

    def location(self, module: str = "") -> Location | None:
        """The innermost line of the user's code, torch's own modules left out."""
        for frame in reversed(self.frames):
            if not torch_interface.is_library(frame.globals.get("__name__")):
                return self.location_of(frame, module)
        return self.location_of(self.frames[-1], module) if self.frames else None

    def module_path(self) -> str:
        """The innermost module whose method is running, as the user knows it; empty outside of modules."""
        for frame in reversed(self.frames):
            owner = next(iter(frame.variables.values()), None)
            real = owner.real if type(owner) is Lazy else self.reals.get(id(owner))
            if isinstance(real, torch.nn.Module):
                return (owner.source if type(owner) is Lazy else self.sources[id(owner)]).words()
        return ""

    def user_stack(self) -> tuple[Location, ...]:
        """The lines of all active frames, outermost first."""
        return tuple(self.location_of(frame) for frame in self.frames)

    # Running.

    def operation(self, op: str, target: Any, args: Args, kwargs: Keywords | None = None) -> Any:
        """Record a torch operation, or leave it to the class of an argument that overrides it."""
        if any(map(overrides_torch, (*args, *(kwargs or {}).values()))):
            return self.rules.call_overridden(self, target, args, kwargs or {})
        place = self.location(self.module_path())
        if self.floats:
            record = functools.partial(self.graph.call, op, target, location=place)
            return self.dynamic.operation(self, record, args, kwargs or {})
        return self.graph.call(op, target, args, kwargs or {}, place)

    def run(self, frame: Frame, raised: BaseException | None = None) -> Outcome:
        """Execute a frame until it returns, yields or raises."""
        if len(self.frames) > MAXIMUM_DEPTH:
            raise Break("recursion", f"more than {MAXIMUM_DEPTH} calls are nested")
        self.frames.append(frame)
        native, self.native = self.native, False
        instructions, handlers = frame.program.instructions, self.rules.handlers
        try:
            if raised is not None and not self.unwind(frame, RaisedInUserCode(raised)):
                raise RaisedInUserCode(raised)
            while True:
                if frame.step == frame.stop:
                    raise CutHere
                frame.step += 1
                instruction = instructions[frame.index]
                frame.index += 1
                if self.selections:
                    self.rules.watch(self, frame, instruction)
                try:
                    outcome = handlers.get(instruction.name, unknown_instruction)(self, frame, instruction)
                except RaisedInUserCode as error:
                    if not self.unwind(frame, error):
                        raise
                    continue
                except RecursionError:  # of the tracer, which takes several of Python's frames for one
                    raise RunEager("the calls are nested too deep to be traced", "recursion") from None
                except Stop as stop:
                    if not stop.stack:
                        stop.stack, stop.depth = self.user_stack(), len(self.frames)
                    raise
                if outcome is not None:
                    return outcome
        finally:
            self.frames.pop()
            self.native = native

    def unwind(self, frame: Frame, error: RaisedInUserCode) -> bool:
        """Continue at the handler that covers the current instruction; whether there is one.

        It does not raise the error itself: its frame would then be kept by the error's traceback, and with it the error, all
        calls that are running and their results, until Python looks for cycles.
        """
        position, value = frame.index - 1, error.value
        if id(value) not in self.sources and not error.again:
            if value.__traceback__ is None and value.__cause__ is None:
                value.__context__ = None  # of native code, which the tracer may have run while it handled something
                self.add_context(value)
            self.add_line(frame, value)
        error.again = False
        entry = frame.program.handler_of(position)
        if entry is None:
            return False
        if any(type(item) is Holder for item in frame.stack[entry.depth :]):
            raise RunEager("an exception ends a loop over a generator")
        del frame.stack[entry.depth:]
        if entry.push_offset:
            frame.stack.append(frame.program.instructions[max(position, 0)].offset)
        frame.stack.append(error.value)
        if id(error.value) not in self.sources:
            self.made(error.value)
        frame.index = entry.target
        return True

    def add_line(self, frame: Frame, error: BaseException) -> None:
        """Put the line that a frame is at before the traceback of an exception that comes out of it."""
        error.__traceback__ = as_if_raised_at(error.__traceback__, frame.code, frame.line())

    def add_context(self, error: BaseException) -> None:
        """What is being handled becomes the context of an exception that is raised; no chain of contexts leads back to it."""
        handled = link = self.handled()
        if handled is None or handled is error:
            return
        seen = {id(None)}
        while id(link) not in seen:
            seen.add(id(link))
            if link.__context__ is error:
                link.__context__ = None
            link = link.__context__
        error.__context__ = handled

    def handled(self) -> BaseException | None:
        """The exception that the innermost handler handles, as `sys.exception()` gives it."""
        for frame in reversed(self.frames):
            if (error := frame.handled()) is not None:
                return error
        place = Source(Baked(sys.exception, "sys.exception"), "{0}()", "the exception that is handled at the call")
        outer: BaseException | None = self.wrapped_once((id(sys), "exception"), self.handled_at_call, place)
        return outer

    def call(self, function: Any, args: Args, kwargs: Keywords | None = None) -> Any:
        """The value of `function(*args, **kwargs)`."""
        return self.rules.call(self, function, args, kwargs or {})

    def call_from_native(self, function: Any, args: Args, kwargs: Keywords | None = None) -> Any:
        """The same, for native code that runs while tracing."""
        native, self.native = self.native, False
        try:
            return self.call(function, args, kwargs)
        finally:
            self.native = native

    def inline(self, function: types.FunctionType, args: Args, kwargs: Keywords) -> Any:
        """Interpret a call of a Python function."""
        frame = self.enter(function, args, kwargs)
        flags = frame.code.co_flags
        if flags & COROUTINE_FLAGS:
            raise Break("asynchronous code", f"`{function.__qualname__}` is a coroutine")
        if flags & GENERATOR_FLAG:
            return self.made(Generator(self, frame))
        return self.run(frame).value

    def enter(self, function: types.FunctionType, args: Args, kwargs: Keywords) -> Frame:
        """A frame with the arguments bound and the cells made."""
        return self.with_cells(Frame(function, self.bind(function, args, kwargs)))

    def with_cells(self, frame: Frame) -> Frame:
        """A frame, with the cells that its code shares with those that it makes and those around it."""
        function, code = frame.function, frame.code
        for name in code.co_cellvars:
            frame.cells[name] = self.made(types.CellType(frame.variables.pop(name))
                                          if name in frame.variables else types.CellType())
        if code.co_freevars:
            source = self.sources.get(id(function)) or Baked(function, function.__qualname__)
            for position, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True)):
                frame.cells[name] = cell
                if id(function) not in self.fresh:
                    place = Attribute(source, f"__closure__[{position}]", name)
                    frame.cells[name] = self.wrapped_once((id(function), place.text), cell, place)
        return frame

    def bind(self, function: types.FunctionType, args: Args, kwargs: Keywords) -> dict[str, Any]:
        """What a call binds the parameters to: Python binds them, in a function with the same ones that returns them."""
        code, defaults, by_keyword = function.__code__, function.__defaults__, function.__kwdefaults__
        if id(function) not in self.fresh:
            source = self.sources.get(id(function)) or Baked(function, function.__qualname__)
            by_place, by_name = Attribute(source, "__defaults__"), Attribute(source, "__kwdefaults__")
            places = enumerate(defaults or (), -len(defaults or ()))
            defaults = tuple(Lazy(Item(by_place, place), value) for place, value in places)
            if id(by_keyword) in self.known:  # and perhaps changed
                by_keyword = self.wrap(by_keyword, by_name)
            else:
                by_keyword = {name: Lazy(Item(by_name, name), value) for name, value in (by_keyword or {}).items()}
        bind = types.FunctionType(decode(code).signature, vars(builtins), code.co_name, defaults)
        bind.__kwdefaults__, bind.__qualname__ = by_keyword, function.__qualname__
        try:
            bound: dict[str, Any] = bind(*args, **kwargs)
        except TypeError as error:
            raise RaisedInUserCode(error.with_traceback(None)) from None
        for name in list(bound)[code.co_argcount + code.co_kwonlyargcount :]:
            bound[name] = tuple(map(self.resolve, bound[name])) if type(bound[name]) is tuple else self.made(bound[name])
        return bound
