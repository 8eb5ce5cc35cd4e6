"""One handler per opcode: loads, stores, building, control flow. Calls and exceptions are in `opcodes_calls`.

A handler takes (tracer, frame, instruction), changes the frame's stack, and returns `None` or the frame's outcome.
It must leave all rules about values to the modules that own them.
"""

import builtins
import itertools
import types
from collections.abc import Callable
from typing import Any

from minicompile.capture.attributes import get_attribute, set_attribute
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.builtin_rules import cell_value, rule_super, update_dict
from minicompile.capture.calls import call, run_native
from minicompile.capture.expectations import truth_for_jump
from minicompile.capture.guards import is_empty_cell
from minicompile.capture.instruction import BINARY_SYMBOLS, VERSION, Instruction
from minicompile.capture.iteration import advance, drain, get_iterator, native_iterable
from minicompile.capture.kinds import isinstance
from minicompile.capture.made_classes import bind_in_class, is_body_of_class
from minicompile.capture.operators import (
    binary,
    compare,
    contains,
    delete_item,
    get_item,
    insert,
    is_same,
    set_item,
    truth,
    unary,
)
from minicompile.capture.resume import Holder, one_instruction
from minicompile.capture.selections import by_instruction, select, selections_among, watch
from minicompile.capture.side_effects import MISSING, Lazy, put
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.texts import is_tensor_text, joined, lazy_text, shown_later
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import NULL, Frame, Generator, Handler, Outcome, Tracer, stop_as_error
from minicompile.capture.values import force

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def callable_slots(value: Any, empty: Any) -> tuple[Any, Any]:
    """A callable and the empty slot beside it, in the order in which a call of this version of Python finds them."""
    return (value, empty) if VERSION >= (3, 13) else (empty, value)


def is_method_form(instruction: Instruction) -> bool:
    """Whether a load pushes the empty slot of a call too."""
    return instruction.name == "LOAD_METHOD" or (instruction.name in WITH_METHOD_FORM and bool(instruction.arg & 1))


WITH_METHOD_FORM = ("LOAD_GLOBAL", "LOAD_SUPER_ATTR", *(("LOAD_ATTR",) if VERSION >= (3, 12) else ()))


def unbound(name: str) -> RaisedInUserCode:
    """The error for a local variable that has no value."""
    return RaisedInUserCode(UnboundLocalError(
        f"cannot access local variable '{name}' where it is not associated with a value"))


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push a local variable (or, to make a closure, a cell)."""
    name = instruction.value
    value = frame.variables.get(name, MISSING)
    if value is MISSING or instruction.name == "LOAD_CLOSURE":
        value = frame.cells.get(name, MISSING)
        if value is MISSING:
            raise unbound(name)
    elif type(value) is Lazy and value.resolved is not MISSING:
        value = frame.variables[name] = value.resolved
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Save a local variable, bound or not, around an inlined comprehension."""
    name = instruction.value
    frame.stack.append(frame.cells.pop(name) if name in frame.cells else frame.variables.pop(name, NULL))


@opcode("STORE_FAST")
def store_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Bind a local variable; a tensor's node learns its name."""
    value = frame.stack.pop()
    name = instruction.value
    if value is NULL:
        frame.variables.pop(name, None)
        return
    if isinstance(value, types.CellType) and name in frame.code.co_cellvars:
        frame.cells[name] = value
        return
    frame.variables[name] = value
    if isinstance(value, FakeTensor):
        entry = tracer.graph.traced.get(id(value))
        if entry is not None and entry.node is not None:
            entry.node.meta.setdefault("variable", name)


@opcode("DELETE_FAST")
def delete_fast(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Unbind a local variable."""
    if frame.variables.pop(instruction.value, MISSING) is MISSING:
        raise unbound(instruction.value)


@opcode("MAKE_CELL")
def make_cell(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Make a cell in the middle of a frame, for an inlined comprehension."""
    name = instruction.value
    value = frame.variables.pop(name, MISSING)
    frame.cells[name] = tracer.made(types.CellType() if value is MISSING else types.CellType(value))


def filled_cell(frame: Frame, name: str) -> types.CellType:
    """The cell of a variable that has a value."""
    cell: types.CellType | None = frame.cells.get(name)
    if cell is None or is_empty_cell(cell):
        if name not in frame.code.co_freevars:
            raise unbound(name)
        raise RaisedInUserCode(NameError(
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope", name=name))
    return cell


@opcode("STORE_DEREF")
def store_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Store into a cell."""
    cell = frame.cells.get(instruction.value)
    if cell is None:
        cell = frame.cells[instruction.value] = tracer.made(types.CellType())
    cell.cell_contents = frame.stack.pop()


@opcode("DELETE_DEREF")
def delete_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Empty a cell."""
    del filled_cell(frame, instruction.value).cell_contents


@opcode("POP_TOP", "END_FOR")
def pop_top(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Drop the top of the stack (`END_FOR` of 3.12 never runs: `FOR_ITER` jumps past it); a generator may have to be closed."""
    value = frame.stack.pop()
    if type(value) is Generator and value.waits_in_a_block() and value.references() == 0:
        value.close()
    if type(value) is Holder:
        raise Break("iterator", "a loop over a generator is left")


@opcode("COPY")
def copy_top(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push a deeper element again."""
    frame.stack.append(frame.stack[-instruction.arg])


@opcode("SWAP")
def swap(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Exchange the top with a deeper element."""
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def top(tracer: Tracer, frame: Frame) -> Any:
    """The top of the stack, no longer lazy."""
    value = frame.stack[-1] = tracer.resolve(frame.stack[-1])
    return value


def take(tracer: Tracer, frame: Frame, count: int) -> list[Any]:
    """Pop `count` values, in the order in which they were pushed."""
    if count == 0:
        return []
    values = frame.stack[-count:]
    del frame.stack[-count:]
    return [tracer.resolve(value) for value in values]


def formatted(tracer: Tracer, at: Instruction, value: Any, specification: Any = "") -> Any:
    """One value of an f-string."""
    if at.name == "FORMAT_VALUE" and at.arg & 3:
        value = call(tracer, CONVERSIONS[at.arg & 3], (value,), {})
    if shown_later(tracer, value, specification):
        return lazy_text((value, specification, value._version))
    return call(tracer, format, (value, specification), {})


@opcode("BUILD_STRING")
def build_string(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An f-string made of its parts."""
    first = len(frame.stack) - instruction.arg
    frame.stack[first:] = [joined(tracer, frame.stack[first:])]


def attribute_of_super(tracer: Tracer, at: Instruction, function: Any, kind: Any, instance: Any) -> Any:
    """An attribute of `super()`."""
    owner = rule_super(tracer, (kind, instance), {}) if function is super else call(tracer, function, (kind, instance), {})
    return get_attribute(tracer, owner, at.value)


def load_name(tracer: Tracer, name: str) -> Any:
    """A name in the body of a class, or in an expression that `eval` reads: of there, of `eval`'s caller, or a global."""
    variables = tracer.frames[-1].variables
    return tracer.resolve(variables[name]) if name in variables else tracer.load_global(tracer.frames[-1].globals, name)


def write_name(tracer: Tracer, name: str, value: Any) -> None:
    """Bind a name in the body of a class, or delete it; elsewhere it is a global."""
    if is_body_of_class(tracer.frames[-1]):
        bind_in_class(tracer.frames[-1], name, value)
    else:
        write_global(tracer, name, value)


def name_or_cell(tracer: Tracer, at: Instruction, names: Any = None) -> Any:
    """A name in the body of a class (`names`), or else the variable of a function around it."""
    names = tracer.frames[-1].variables if names is None else names
    return names[at.value] if at.value in names else cell_value(tracer, filled_cell(tracer.frames[-1], at.value))


def write_global(tracer: Tracer, name: str, value: Any) -> None:
    """Write a global, or delete it, later."""
    namespace = tracer.frames[-1].globals
    if value is MISSING:
        tracer.load_global(namespace, name)  # guards whether there is one, and raises if there is not even a builtin
        if tracer.effects.globals.get((id(namespace), name), (None, namespace.get(name, MISSING)))[1] is MISSING:
            raise RaisedInUserCode(NameError(f"name '{name}' is not defined", name=name))
    tracer.effects.globals[(id(namespace), name)] = (namespace, value)
    tracer.keep.append(namespace)


def table_of(tracer: Tracer, keys: Any, *values: Any) -> Any:
    """The dictionary or set that a display makes."""
    result: Any = tracer.made({} if values else set())
    for entry in zip(keys, *values, strict=True):
        insert(tracer, result, *entry)
    return result


CONVERSIONS = (None, str, repr, ascii)
# What an instruction computes from the values that it pops (how many, or a function of its argument that tells; and a function
# of the tracer, the instruction and the values in the order in which they were pushed); the result is pushed.
COMPUTED: dict[str, tuple[int | Callable[[int], int], Callable[..., Any]]] = {
    "LOAD_CONST": (0, lambda tracer, at: at.value),
    "PUSH_NULL": (0, lambda tracer, at: NULL),
    "LOAD_ASSERTION_ERROR": (0, lambda tracer, at: AssertionError),
    "LOAD_BUILD_CLASS": (0, lambda tracer, at: builtins.__build_class__),
    "LOAD_CLASSDEREF": (0, name_or_cell),
    "LOAD_LOCALS": (0, lambda tracer, at: tracer.frames[-1].variables),
    "LOAD_FROM_DICT_OR_DEREF": (1, name_or_cell),
    "LOAD_GLOBAL": (0, lambda tracer, at: tracer.load_global(tracer.frames[-1].globals, at.value)),
    "LOAD_NAME": (0, lambda tracer, at: load_name(tracer, at.value)),
    "LOAD_DEREF": (0, lambda tracer, at: cell_value(tracer, filled_cell(tracer.frames[-1], at.value))),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), (1, lambda tracer, at, owner: get_attribute(tracer, owner, at.value))),
    "LOAD_SUPER_ATTR": (3, attribute_of_super),
    "RETURN_GENERATOR": (0, lambda tracer, at: None),  # is already suspended when it is made; what follows pops a value
    "BUILD_TUPLE": (int, lambda tracer, at, *values: values),
    "BUILD_LIST": (int, lambda tracer, at, *values: tracer.made(list(values))),
    "BUILD_SET": (int, lambda tracer, at, *values: table_of(tracer, values)),
    "BUILD_MAP": (lambda count: 2 * count, lambda tracer, at, *values: table_of(tracer, values[::2], values[1::2])),
    "BUILD_CONST_KEY_MAP": (lambda count: count + 1, lambda tracer, at, *values: table_of(tracer, values[-1], values[:-1])),
    "BUILD_SLICE": (int, lambda tracer, at, *values: slice(*values)),
    "FORMAT_VALUE": (lambda flags: 2 if flags & 4 else 1, formatted),
    "BINARY_OP": (2, lambda tracer, at, left, right: binary(tracer, BINARY_SYMBOLS[at.arg], left, right)),
    "COMPARE_OP": (2, lambda tracer, at, left, right: compare_values(tracer, at, left, right)),
    "IS_OP": (2, lambda tracer, at, left, right: is_same(tracer, left, right) is not bool(at.arg)),
    "CONTAINS_OP": (2, lambda tracer, at, item, holder: bool(contains(tracer, item, holder)) is not bool(at.arg)),
    "BINARY_SUBSCR": (2, lambda tracer, at, owner, key: subscript(tracer, owner, key)),
    "BINARY_SLICE": (3, lambda tracer, at, owner, start, stop: get_item(tracer, owner, slice(start, stop))),
    "UNARY_NEGATIVE": (1, lambda tracer, at, value: unary(tracer, "neg", value)),
    "UNARY_POSITIVE": (1, lambda tracer, at, value: unary(tracer, "pos", value)),
    "UNARY_INVERT": (1, lambda tracer, at, value: unary(tracer, "invert", value)),
    "UNARY_NOT": (1, lambda tracer, at, value: not truth(tracer, value)),
    "TO_BOOL": (1, truth_for_jump),
    "GET_ITER": (1, lambda tracer, at, value: get_iterator(tracer, value)),
    "GET_YIELD_FROM_ITER": (1, lambda tracer, at, it: it if isinstance(it, Generator) else get_iterator(tracer, it)),
    "CALL_INTRINSIC_1": (1, lambda tracer, at, value: call_intrinsic(tracer, at, value)),
    "STOPITERATION_ERROR": (1, lambda tracer, at, value: stop_as_error(value)),
    "LIST_TO_TUPLE": (1, lambda tracer, at, value: call(tracer, tuple, (value,), {})),
    "CONVERT_VALUE": (1, lambda tracer, at, value: call(tracer, CONVERSIONS[at.arg], (value,), {})),
    "FORMAT_SIMPLE": (1, formatted),
    "FORMAT_WITH_SPEC": (2, formatted),
}
# What an instruction does with the values that it pops; nothing is pushed.
EFFECTS: dict[str, tuple[int, Callable[..., Any]]] = {
    "STORE_ATTR": (2, lambda tracer, at, value, owner: set_attribute(tracer, owner, at.value, value)),
    "DELETE_ATTR": (1, lambda tracer, at, owner: set_attribute(tracer, owner, at.value, MISSING)),
    "STORE_SUBSCR": (3, lambda tracer, at, value, owner, key: set_item(tracer, owner, key, value)),
    "STORE_SLICE": (4, lambda tracer, at, value, owner, start, stop: set_item(tracer, owner, slice(start, stop), value)),
    "DELETE_SUBSCR": (2, lambda tracer, at, owner, key: delete_item(tracer, owner, key)),
    "STORE_GLOBAL": (1, lambda tracer, at, value: write_global(tracer, at.value, value)),
    "STORE_NAME": (1, lambda tracer, at, value: write_name(tracer, at.value, value)),
    "DELETE_NAME": (0, lambda tracer, at: write_name(tracer, at.value, MISSING)),
    "SETUP_ANNOTATIONS": (0, lambda tracer, at: tracer.frames[-1].variables.setdefault("__annotations__", tracer.made({}))),
    "DELETE_GLOBAL": (0, lambda tracer, at: write_global(tracer, at.value, MISSING)),
}


def computed(count: int | Callable[[int], int], *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what some instructions compute."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            COMPUTED[name], HANDLERS[name] = (count, function), compute
        return function

    return register


@opcode(*COMPUTED)
def compute(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An instruction that only computes; the method form of a load pushes the empty slot too."""
    count, function = COMPUTED[instruction.name]
    values = take(tracer, frame, count if isinstance(count, int) else count(instruction.arg))
    value = apply(tracer, function, instruction, values)
    frame.stack.extend(callable_slots(value, NULL) if is_method_form(instruction) else (value,))


@opcode(*EFFECTS)
def act(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An instruction that only changes something."""
    count, function = EFFECTS[instruction.name]
    apply(tracer, function, instruction, take(tracer, frame, count))


def apply(tracer: Tracer, function: Callable[..., Any], at: Instruction, values: list[Any]) -> Any:
    """What an instruction makes of values, which a mask may have selected."""
    if tracer.selections and selections_among(*values):
        function = by_instruction
    return function(tracer, at, *values)


def subscript(tracer: Tracer, owner: Any, key: Any) -> Any:
    """`owner[key]`, where it is written so."""
    selection = select(tracer, owner, key)
    return get_item(tracer, owner, key) if selection is MISSING else selection


def watch_selections(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Let no instruction touch what masks have selected but those that know it: all that `apply` runs, and some others."""
    if instruction.name not in COMPUTED and instruction.name not in EFFECTS:
        count = DISPLAYS[instruction.name][0] if instruction.name in DISPLAYS else len(frame.stack)
        watch(tracer, frame, instruction, frame.stack[len(frame.stack) - count :])


def compare_values(tracer: Tracer, instruction: Instruction, left: Any, right: Any) -> Any:
    """A comparison (3.13 can ask for its truth at once)."""
    result = compare(tracer, instruction.value, left, right)
    return truth_for_jump(tracer, instruction, result) if VERSION >= (3, 13) and instruction.arg & 16 else result


def function_text(function: Any) -> str:
    """How Python names a callable in the errors of a call."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    return str(function) if name is None else f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def refuse_unless(value: Any, method: str, message: str) -> None:
    """Raise what Python raises for a value that cannot be unpacked in a display or a call."""
    if not hasattr(type(value), method) and not (method == "__iter__" and hasattr(type(value), "__getitem__")):
        name = "Tensor" if type(value) is FakeTensor else type(concrete(value)).__name__
        raise RaisedInUserCode(TypeError(message.format(name)))


def extend(tracer: Tracer, frame: Frame, target: Any, value: Any) -> None:
    """`[*value]`."""
    refuse_unless(value, "__iter__", "Value after * must be an iterable, not {}")
    target.extend(native_iterable(tracer, value))


def merge(tracer: Tracer, frame: Frame, target: Any, value: Any) -> None:
    """The keyword arguments of `f(**a, **b)`."""
    place = next(place for place, item in enumerate(frame.stack) if item is target)
    called = function_text(tracer.resolve(frame.stack[place - (3 if VERSION >= (3, 13) else 2)]))
    refuse_unless(value, "keys", f"{called} argument after ** must be a mapping, not {{}}")
    given: dict[Any, Any] = {}
    update_dict(tracer, given, (value,), {})
    for key, item in given.items():
        if key in target:
            raise RaisedInUserCode(TypeError(f"{called} got multiple values for keyword argument '{key}'"))
        put(target, key, item)


def update(tracer: Tracer, frame: Frame, target: Any, value: Any) -> None:
    """`{**value}`."""
    refuse_unless(value, "keys", "'{}' object is not a mapping")
    update_dict(tracer, target, (value,), {})


def update_set(tracer: Tracer, frame: Frame, target: Any, value: Any) -> None:
    """`{*value}`."""
    for item in run_native(tracer, list, (native_iterable(tracer, value),), {}):
        insert(tracer, target, item)


# What an instruction does to a display or comprehension below the values that it pops.
DISPLAYS: dict[str, tuple[int, Callable[..., Any]]] = {
    "LIST_APPEND": (1, lambda tracer, frame, target, value: target.append(value)),
    "SET_ADD": (1, lambda tracer, frame, target, value: insert(tracer, target, value)),
    "MAP_ADD": (2, lambda tracer, frame, target, key, value: insert(tracer, target, key, value)),
    "LIST_EXTEND": (1, extend), "DICT_UPDATE": (1, update), "DICT_MERGE": (1, merge),
    "SET_UPDATE": (1, update_set),
}


@opcode(*DISPLAYS)
def fill(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Put something into the list, set or dictionary that is being built; after a graph break it comes from outside."""
    count, function = DISPLAYS[instruction.name]
    values = take(tracer, frame, count)
    target = frame.stack[-instruction.arg] = tracer.resolve(frame.stack[-instruction.arg])
    if not isinstance(target, list):
        force(tracer, target, False)
    function(tracer, frame, target, *values)


def call_intrinsic(tracer: Tracer, at: Instruction, value: Any) -> Any:
    """The small operations that 3.12 folded into one instruction."""
    if at.arg not in INTRINSICS:
        raise Break("unsupported instruction", f"intrinsic {at.arg}")
    return INTRINSICS[at.arg](tracer, value)


INTRINSICS: dict[int, Callable[..., Any]] = {
    3: lambda tracer, value: stop_as_error(value), 5: lambda tracer, value: unary(tracer, "pos", value),
    6: lambda tracer, value: call(tracer, tuple, (value,), {}),
}


@opcode("UNPACK_SEQUENCE", "UNPACK_EX")
def unpack(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a, b = value` and `a, *b, c = value`."""
    value, starred = tracer.resolve(frame.stack.pop()), instruction.name == "UNPACK_EX"
    if type(value) is Holder:
        frame.stack.append(value)
        return
    before, after = (instruction.arg & 0xFF, instruction.arg >> 8) if starred else (instruction.arg, 0)
    if hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__"):
        items = drain(tracer, value)
        value = list(itertools.islice(items, before + (not starred)))
        if starred and len(value) == before:
            value.extend(drain(tracer, items.iterator))  # which asks the iterator for its iterator, as Python does
    parts = by_python(tracer, instruction, (value,), before + starred + after)
    if starred:
        tracer.made(parts[after])
    frame.stack.extend(parts)


def by_python(tracer: Tracer, at: Instruction, values: tuple[Any, ...], given: int) -> tuple[Any, ...]:
    """What an instruction that Python executes leaves of some values on its stack; its errors are Python's."""
    made: tuple[Any, ...] = run_native(tracer, one_instruction(at.name, at.arg, len(values), given), values, {}, False)
    return made


@opcode("GET_LEN")
def get_len(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`len(value)` of a sequence pattern."""
    frame.stack.append(call(tracer, len, (top(tracer, frame),), {}))


@opcode("FOR_ITER")
def for_iter(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push the next element, or leave the loop."""
    frame.begin_loop(frame.index - 1)
    try:
        frame.stack.append(advance(tracer, top(tracer, frame)))
    except StopIteration:
        frame.index = after_end_for(frame, instruction.target)
        tracer.resolve(frame.stack.pop())


def after_end_for(frame: Frame, target: int) -> int:
    """The instruction after the `END_FOR` (and, in 3.13, the `POP_TOP`) that closes a loop."""
    instructions = frame.program.instructions
    if instructions[target].name == "END_FOR":
        target += 1
        if VERSION >= (3, 13) and instructions[target].name == "POP_TOP":
            target += 1
    return target


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump_always(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An unconditional jump."""
    frame.index = instruction.target


@opcode(*(f"POP_JUMP_{way}IF_{test}" for way in ("", "FORWARD_", "BACKWARD_") for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")))
def pop_jump(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Jump if a value is true, false, `None`, or anything else."""
    value, name = tracer.resolve(frame.stack.pop()), instruction.name
    if name.endswith("NONE"):
        taken = (value is None) is not name.endswith("NOT_NONE")
    else:
        taken = truth_for_jump(tracer, instruction, value) is name.endswith("TRUE")
    if taken:
        frame.index = instruction.target


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a or b`, `a and b` (3.11)."""
    if truth(tracer, top(tracer, frame)) is ("TRUE" in instruction.name):
        frame.index = instruction.target
    else:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def return_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> Outcome:
    """Leave the frame."""
    value = frame.stack.pop()
    # Native code that asked for a `__str__` would look at the stand-in of its text.
    return Outcome(tracer.resolve(value) if len(tracer.frames) > 1 and is_tensor_text(value) else value)


@opcode("YIELD_VALUE")
def yield_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> Outcome:
    """Suspend a generator."""
    return Outcome(tracer.resolve(frame.stack.pop()), yielded=True)
