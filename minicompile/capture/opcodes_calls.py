"""Handlers of the opcodes that call, make functions, import, match, and handle exceptions and `with` blocks.

Importing this module fills the table in `opcodes`.
"""

import builtins
import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from minicompile.capture import torch_interface
from minicompile.capture.attributes import get_attribute
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.calls import call, special
from minicompile.capture.cpython_interface import MATCHES_ITSELF
from minicompile.capture.instruction import VERSION, Instruction
from minicompile.capture.iteration import advance, native_iterable
from minicompile.capture.kinds import isinstance
from minicompile.capture.opcodes import by_python, computed, function_text, opcode, refuse_unless, take, top
from minicompile.capture.operators import get_item, truth
from minicompile.capture.selections import called, selections_among
from minicompile.capture.source import Baked, Item, is_trusted_module
from minicompile.capture.tracer import NULL, Args, Frame, Generator, Handling, Keywords, Tracer
from minicompile.capture.values import force


@opcode("KW_NAMES")
def kw_names(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Names of the keyword arguments of the next call (3.11, 3.12)."""
    value = instruction.value
    frame.keyword_names = value if isinstance(value, tuple) else frame.code.co_consts[instruction.arg]


def call_parts(frame: Frame, instruction: Instruction, remove: bool) -> tuple[Any, list[Any], dict[str, Any]]:
    """The callable and the arguments of a `CALL` or `CALL_KW` on top of the stack."""
    stack = frame.stack
    names, top = frame.keyword_names, len(stack)
    if instruction.name == "CALL_KW":
        names, top = stack[-1], top - 1
    count = instruction.arg
    args = stack[top - count : top]
    first, second = stack[top - count - 2], stack[top - count - 1]
    if VERSION >= (3, 13):
        function = first
        if second is not NULL:
            args = [second, *args]
    elif first is NULL:
        function = second
    else:
        function, args = first, [second, *args]
    if remove:
        del stack[top - count - 2 :]
        frame.keyword_names = ()
    positional = len(args) - len(names)
    return function, args[:positional], dict(zip(names, args[positional:], strict=True))


@opcode("CALL", "CALL_KW")
def call_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """A call with the arguments on the stack."""
    function, args, kwargs = call_parts(frame, instruction, True)
    selected = tracer.selections and selections_among(function, *args, *kwargs.values())
    frame.stack.append((called if selected else call)(tracer, tracer.resolve(function), tuple(args), kwargs))


@computed(lambda flags: 3 + (flags & 1), "CALL_FUNCTION_EX")
def call_function_ex(tracer: Tracer, at: Instruction, first: Any, second: Any, args: Any, kwargs: Any = None) -> Any:
    """`f(*args, **kwargs)`."""
    function = first if VERSION >= (3, 13) else second
    refuse_unless(args, "__iter__", f"{function_text(function)} argument after * must be an iterable, not {{}}")
    positional = tuple(tracer.resolve(item) for item in native_iterable(tracer, args))
    keywords = {}
    if kwargs:
        for key in list(native_iterable(tracer, kwargs)):
            if not isinstance(key, str):
                raise RaisedInUserCode(TypeError("keywords must be strings"))
            keywords[key] = get_item(tracer, kwargs, key)
    return call(tracer, function, positional, keywords)


@computed(lambda flags: 1 + flags.bit_count(), "MAKE_FUNCTION")
def make_function(tracer: Tracer, at: Instruction, *values: Any) -> Any:
    """Make a function object, for real."""
    *values, code = values
    function = function_of(code, tracer.frames[-1].globals, tuple(types.CellType() for _ in code.co_freevars))
    for flag, value in zip([flag for flag in (1, 2, 4, 8) if at.arg & flag], values, strict=True):
        function = with_part(function, flag, value)
    return tracer.made(function)


@computed(2, "SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(tracer: Tracer, at: Instruction, value: Any, function: Any) -> Any:
    """Defaults, annotations or closure of a function just made (3.13)."""
    return tracer.made(with_part(function, at.arg, value))


def function_of(code: types.CodeType, namespace: dict[str, Any], closure: tuple[Any, ...]) -> types.FunctionType:
    """A function without defaults and annotations."""
    function = types.FunctionType(code, namespace, code.co_name, None, closure or None)
    function.__qualname__ = code.co_qualname
    return function


def with_part(function: types.FunctionType, flag: int, value: Any) -> types.FunctionType:
    """The function with its defaults (1), keyword defaults (2), annotations (4) or closure (8), which makes another one."""
    if flag == 8:
        made = function_of(function.__code__, function.__globals__, value)
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        made.__annotations__ = function.__annotations__
        return made
    if flag == 4:
        function.__annotations__ = dict(zip(value[::2], value[1::2], strict=True))
    else:
        setattr(function, {1: "__defaults__", 2: "__kwdefaults__"}[flag], value)
    return function


@computed(2, "IMPORT_NAME")
def import_name(tracer: Tracer, at: Instruction, level: Any, from_list: Any) -> Any:
    """Import a module that is loaded, or can be while capturing."""
    name = at.value
    if level:
        package = tracer.frames[-1].globals.get("__package__") or ""
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        name = f"{base}.{name}" if name else base
    return loaded_module(tracer, name, name if from_list or level else name.partition(".")[0])


@special(importlib.import_module)
def rule_import_module(tracer: Tracer, args: Args, kwargs: Keywords) -> Any:
    """`importlib.import_module` of the full name of a module that is loaded, or can be while capturing."""
    name = args[0] if len(args) == 1 and not kwargs else None
    if type(name) is not str or name.startswith("."):
        raise Break("imports", "`importlib.import_module` is called")
    return loaded_module(tracer, name, name)


def loaded_module(tracer: Tracer, name: str, key: str) -> types.ModuleType:
    """The module `key`, where `name` has been imported."""
    load_trusted(name)
    module = sys.modules.get(key)
    if module is None or sys.modules.get(name) is None:
        raise Break("imports", f"the module `{name}` is not loaded yet")
    if not is_trusted_module(key):
        tracer.wrap(module, Item(Baked(sys.modules, "sys.modules"), key))
    elif id(module) not in tracer.sources:
        tracer.register(module, module, Baked(module, module.__name__))
    return module


def load_trusted(name: str) -> None:
    """Import a module of torch or of the standard library now if it is not loaded: the program would, once, and its code is known
    not to look at the program."""
    if name not in sys.modules and is_trusted_module(name):
        with torch_interface.compiling(False), contextlib.suppress(Exception):  # the program's own import will raise
            importlib.import_module(name)


@opcode("IMPORT_FROM")
def import_from(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`from module import name`."""
    module, name = top(tracer, frame), instruction.value
    try:
        frame.stack.append(get_attribute(tracer, module, name))
    except RaisedInUserCode:
        full = f"{module.__name__}.{name}"
        if hasattr(module, "__path__"):
            load_trusted(full)
        if full not in sys.modules:
            raise Break("imports", f"the module `{full}` is not loaded yet") from None
        frame.stack.append(sys.modules[full])


@opcode("BEFORE_WITH")
def before_with(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Enter a context manager: push its exit, then what `__enter__` returned."""
    manager = tracer.resolve(frame.stack.pop())
    if not (hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__")):
        by_python(tracer, instruction, (manager,), 2)  # raises
    leave = get_attribute(tracer, manager, "__exit__")
    result = call(tracer, get_attribute(tracer, manager, "__enter__"), (), {})
    frame.stack.extend((leave, result))


@opcode("WITH_EXCEPT_START")
def with_except_start(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Call the exit of a context manager with the exception."""
    error = top(tracer, frame)
    frame.stack.append(call(tracer, tracer.resolve(frame.stack[-4]), (type(error), error, error.__traceback__), {}))


@opcode("PUSH_EXC_INFO")
def push_exc_info(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Begin to handle an exception."""
    error = tracer.resolve(frame.stack.pop())
    frame.stack.extend((Handling(error), error))


@opcode("POP_EXCEPT")
def pop_except(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The exception is handled."""
    frame.stack.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Whether an `except` clause matches."""
    kinds = tracer.resolve(frame.stack.pop())
    frame.stack.extend(by_python(tracer, instruction, (tracer.resolve(frame.stack.pop()), kinds), 2))


@opcode("CHECK_EG_MATCH")
def check_group_match(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Split an exception into what an `except*` clause leaves and what it catches, which is handled from there on."""
    error, kinds = take(tracer, frame, 2)
    break_unless_made_here(tracer, error)
    # Python's instruction sets what is being handled: a generator's own, which ends with it.
    rest, match = next(by_python(tracer, instruction, (error, kinds), 2) for _ in "1")
    frame.stack.extend((remember_groups(tracer, rest), remember_groups(tracer, match)))
    if match is not None:
        frame.stack[-5] = Handling(match)


@computed(2, "PREP_RERAISE_STAR", "CALL_INTRINSIC_2")
def raised_by_group_handlers(tracer: Tracer, at: Instruction, original: Any, raised: Any) -> Any:
    """What a `try` with `except*` clauses raises in the end, or `None`."""
    if at.name == "CALL_INTRINSIC_2" and at.arg != 1:
        raise Break("unsupported instruction", f"intrinsic {at.arg} of two values")  # parts of generic functions
    force(tracer, raised)
    if any(error is not None for error in raised):
        break_unless_made_here(tracer, original)
    return remember_groups(tracer, *by_python(tracer, at, (original, raised), 1))


def break_unless_made_here(tracer: Tracer, error: Any) -> None:
    """Leave it to Python to take a group of exceptions apart, unless all of it is known here and C alone will do it."""
    if isinstance(error, BaseExceptionGroup):
        notes, kind = getattr(error, "__notes__", None), type(error)
        own_methods = kind.derive is not BaseExceptionGroup.derive or kind.split is not BaseExceptionGroup.split
        if own_methods or id(error) in tracer.sources or id(notes) in tracer.sources:
            raise Break("unsupported value", "`except*` takes a group of exceptions apart that it cannot see into")
        for part in error.exceptions:
            break_unless_made_here(tracer, part)


def remember_groups(tracer: Tracer, error: Any) -> Any:
    """The exception; the groups in it, of which C may have made some, are remembered as made while tracing."""
    if isinstance(error, BaseExceptionGroup) and id(error) not in tracer.sources:
        tracer.made(error)
        for part in error.exceptions:
            remember_groups(tracer, part)
    return error


@opcode("RERAISE")
def reraise(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Raise again what was being handled."""
    raise RaisedInUserCode(tracer.resolve(frame.stack.pop()), again=True)


@opcode("CLEANUP_THROW")
def cleanup_throw(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An exception was thrown into a generator that delegates."""
    error = top(tracer, frame)
    if not isinstance(error, StopIteration):
        raise RaisedInUserCode(error)
    del frame.stack[-3:]
    frame.stack.extend((None, error.value))


@opcode("RAISE_VARARGS")
def raise_varargs(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`raise`, `raise error`, `raise error from cause`."""
    if instruction.arg == 0:
        error = tracer.handled()
        if error is None:
            raise RaisedInUserCode(RuntimeError("No active exception to reraise"))
        raise RaisedInUserCode(error, again=True)
    cause = tracer.resolve(frame.stack.pop()) if instruction.arg == 2 else None
    error = make_exception(tracer, tracer.resolve(frame.stack.pop()), "exceptions")
    cause = cause if cause is None else make_exception(tracer, cause, "exception causes")
    if id(error) in tracer.sources:
        raise Break("unsupported value", "an exception made outside is raised, and its traceback and context change")
    if instruction.arg == 2:
        error.__cause__ = cause
    tracer.add_context(error)
    tracer.add_line(frame, error)
    raise RaisedInUserCode(error, again=True)


def make_exception(tracer: Tracer, value: Any, role: str) -> Any:
    """An exception instance from what `raise` was given."""
    if isinstance(value, type) and issubclass(value, BaseException):
        value = call(tracer, value, (), {})
    if not isinstance(value, BaseException):
        raise RaisedInUserCode(TypeError(f"{role} must derive from BaseException"))
    return value


@opcode("SEND")
def send(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """One step of `yield from`."""
    value = tracer.resolve(frame.stack.pop())
    iterator = top(tracer, frame)
    frame.begin_loop(frame.index - 1)
    try:
        if isinstance(iterator, Generator):
            frame.stack.append(iterator.resume(value))
        elif value is None:
            frame.stack.append(advance(tracer, iterator))
        else:
            frame.stack.append(call(tracer, get_attribute(tracer, iterator, "send"), (value,), {}))
    except StopIteration as stop:
        if VERSION < (3, 12):
            tracer.resolve(frame.stack.pop())
        frame.stack.append(stop.value)
        frame.index = instruction.target


@opcode("END_SEND")
def end_send(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Drop the iterator under the result of `yield from` (3.12)."""
    del frame.stack[-2]


FLAGS_OF_PATTERNS = {"MATCH_SEQUENCE": 1 << 5, "MATCH_MAPPING": 1 << 6}  # CPython's flags of sequences and of mappings


@opcode(*FLAGS_OF_PATTERNS)
def match_kind(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Whether a value is a sequence or a mapping for a pattern."""
    frame.stack.append(bool(type(top(tracer, frame)).__flags__ & FLAGS_OF_PATTERNS[instruction.name]))


def all_found(look: Callable[[Any, Any], Any], keys: Iterable[Any]) -> tuple[Any, ...] | None:
    """What `look(key, absent)` finds for each of the keys; `None` if there is nothing for one of them."""
    absent, values = object(), list[Any]()
    for key in keys:
        values.append(look(key, absent))
        if values[-1] is absent:
            return None
    return tuple(values)


@opcode("MATCH_KEYS")
def match_keys(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The values of a mapping pattern's keys, or `None`."""
    keys, subject = top(tracer, frame), tracer.resolve(frame.stack[-2])
    frame.stack.append(all_found(
        lambda key, absent: call(tracer, get_attribute(tracer, subject, "get"), (key, absent), {}), keys))


@computed(3, "MATCH_CLASS")
def match_class(tracer: Tracer, at: Instruction, subject: Any, kind: Any, names: Any) -> Any:
    """The attributes of a class pattern, or `None`."""
    if not truth(tracer, call(tracer, builtins.isinstance, (subject, kind), {})):
        return None
    itself, positional = False, ()
    if at.arg:
        positional = call(tracer, getattr, (kind, "__match_args__", None), {})
        itself = positional is None and bool(kind.__flags__ & MATCHES_ITSELF)
        accepted = 1 if itself else len(positional or ())
        if type(positional) is not tuple and positional is not None:
            raise RaisedInUserCode(TypeError(
                f"{kind.__name__}.__match_args__ must be a tuple (got {type(positional).__name__})"))
        if at.arg > accepted:
            raise RaisedInUserCode(TypeError(f"{kind.__name__}() accepts {accepted} positional sub-pattern"
                                             f"{'' if accepted == 1 else 's'} ({at.arg} given)"))
        positional = (positional or ())[: at.arg]
    found = all_found(lambda name, absent: call(tracer, getattr, (subject, name, absent), {}), (*positional, *names))
    return (subject, *found) if itself and found is not None else found
