"""One handler per opcode: loads, stores, building, control flow. Calls and exceptions are in `opcodes_calls`.

A handler takes (tracer, frame, instruction), changes the frame's stack, and returns `None` or the frame's outcome.
It must leave all rules about values to the modules that own them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from minicompile.capture.attributes import get_attribute, set_attribute
from minicompile.capture.break_kinds import Break, RaisedInUserCode
from minicompile.capture.builtin_rules import cell_value, rule_super, update_dict
from minicompile.capture.calls import call
from minicompile.capture.instruction import BINARY_SYMBOLS, VERSION, Instruction
from minicompile.capture.iteration import advance, drain, get_iterator, native_iterable
from minicompile.capture.operators import (
    binary,
    compare,
    contains,
    delete_item,
    get_item,
    is_same,
    set_item,
    truth,
    unary,
)
from minicompile.capture.side_effects import MISSING, Lazy
from minicompile.capture.symbolic_size import concrete
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import NULL, Frame, Handler, Outcome, Tracer
from minicompile.capture.values import force

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def unbound(name: str) -> RaisedInUserCode:
    """The error for a local variable that has no value."""
    return RaisedInUserCode(UnboundLocalError(
        f"cannot access local variable '{name}' where it is not associated with a value"))


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE", "LOAD_FAST_BORROW")
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
    if name in frame.cells:
        value: Any = frame.cells.pop(name)
    else:
        value = frame.variables.pop(name, NULL)
    frame.stack.append(value)


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


@opcode("LOAD_CONST")
def load_const(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push a constant."""
    frame.stack.append(instruction.value)


@opcode("LOAD_DEREF")
def load_deref(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push what a cell holds."""
    cell = frame.cells.get(instruction.value)
    if cell is None:
        raise unbound(instruction.value)
    frame.stack.append(cell_value(tracer, cell))


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
    del frame.cells[instruction.value].cell_contents


@opcode("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_LOCALS", "LOAD_BUILD_CLASS",
        "SETUP_ANNOTATIONS")
def class_body(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Class bodies are left to Python."""
    raise Break("unsupported value", "a class is made")


@opcode("LOAD_GLOBAL", "LOAD_NAME")
def load_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push a global, with the empty slot of a call where the instruction says so."""
    value = tracer.load_global(frame.globals, instruction.value)
    if instruction.name == "LOAD_GLOBAL" and instruction.arg & 1:
        frame.stack.extend((value, NULL) if VERSION >= (3, 13) else (NULL, value))
    else:
        frame.stack.append(value)


@opcode("STORE_GLOBAL", "STORE_NAME")
def store_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Write a global, later."""
    tracer.effects.globals[(id(frame.globals), instruction.value)] = (frame.globals, tracer.resolve(frame.stack.pop()))
    tracer.keep.append(frame.globals)


@opcode("DELETE_GLOBAL")
def delete_global(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Delete a global, later."""
    tracer.load_global(frame.globals, instruction.value)
    tracer.effects.globals[(id(frame.globals), instruction.value)] = (frame.globals, MISSING)


@opcode("POP_TOP", "END_FOR", "POP_ITER")
def pop_top(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Drop the top of the stack (`END_FOR` of 3.12 never runs: `FOR_ITER` jumps past it)."""
    frame.stack.pop()


@opcode("PUSH_NULL")
def push_null(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push the empty slot of a call."""
    frame.stack.append(NULL)


@opcode("COPY")
def copy_top(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push a deeper element again."""
    frame.stack.append(frame.stack[-instruction.arg])


@opcode("SWAP")
def swap(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Exchange the top with a deeper element."""
    stack, depth = frame.stack, instruction.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("LOAD_ATTR", "LOAD_METHOD")
def load_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push an attribute; the method form pushes the empty slot too."""
    owner = tracer.resolve(frame.stack.pop())
    method = instruction.name == "LOAD_METHOD" or (VERSION >= (3, 12) and instruction.arg & 1)
    value = get_attribute(tracer, owner, instruction.value)
    if method:
        frame.stack.extend((value, NULL) if VERSION >= (3, 13) else (NULL, value))
    else:
        frame.stack.append(value)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push an attribute of `super()`."""
    function, kind, instance = (tracer.resolve(value) for value in frame.stack[-3:])
    del frame.stack[-3:]
    owner = rule_super(tracer, (kind, instance), {}) if function is super else call(tracer, function, (kind, instance), {})
    value = get_attribute(tracer, owner, instruction.value)
    if instruction.arg & 1:
        frame.stack.extend((value, NULL) if VERSION >= (3, 13) else (NULL, value))
    else:
        frame.stack.append(value)


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


CONVERSIONS = (None, str, repr, ascii)
# What an instruction computes from the values that it pops (how many, and a function of the tracer, the instruction and the
# values in the order in which they were pushed); the result is pushed.
COMPUTED: dict[str, tuple[int, Callable[..., Any]]] = {
    "BINARY_OP": (2, lambda tracer, at, left, right: binary(tracer, BINARY_SYMBOLS[at.arg], left, right)),
    "COMPARE_OP": (2, lambda tracer, at, left, right: compare_values(tracer, at, left, right)),
    "IS_OP": (2, lambda tracer, at, left, right: is_same(tracer, left, right) is not bool(at.arg)),
    "CONTAINS_OP": (2, lambda tracer, at, item, holder: bool(contains(tracer, item, holder)) is not bool(at.arg)),
    "BINARY_SUBSCR": (2, lambda tracer, at, owner, key: get_item(tracer, owner, key)),
    "BINARY_SLICE": (3, lambda tracer, at, owner, start, stop: get_item(tracer, owner, slice(start, stop))),
    "UNARY_NEGATIVE": (1, lambda tracer, at, value: unary(tracer, "neg", value)),
    "UNARY_POSITIVE": (1, lambda tracer, at, value: unary(tracer, "pos", value)),
    "UNARY_INVERT": (1, lambda tracer, at, value: unary(tracer, "invert", value)),
    "UNARY_NOT": (1, lambda tracer, at, value: not truth(tracer, value)),
    "TO_BOOL": (1, lambda tracer, at, value: truth(tracer, value)),
    "GET_ITER": (1, lambda tracer, at, value: get_iterator(tracer, value)),
    "LIST_TO_TUPLE": (1, lambda tracer, at, value: tuple(value)),
    "CONVERT_VALUE": (1, lambda tracer, at, value: call(tracer, CONVERSIONS[at.arg], (value,), {})),
    "FORMAT_SIMPLE": (1, lambda tracer, at, value: call(tracer, format, (value, ""), {})),
    "FORMAT_WITH_SPEC": (2, lambda tracer, at, value, form: call(tracer, format, (value, form), {})),
}
# What an instruction does with the values that it pops; nothing is pushed.
EFFECTS: dict[str, tuple[int, Callable[..., Any]]] = {
    "STORE_ATTR": (2, lambda tracer, at, value, owner: set_attribute(tracer, owner, at.value, value)),
    "DELETE_ATTR": (1, lambda tracer, at, owner: set_attribute(tracer, owner, at.value, MISSING)),
    "STORE_SUBSCR": (3, lambda tracer, at, value, owner, key: set_item(tracer, owner, key, value)),
    "STORE_SLICE": (4, lambda tracer, at, value, owner, start, stop: set_item(tracer, owner, slice(start, stop), value)),
    "DELETE_SUBSCR": (2, lambda tracer, at, owner, key: delete_item(tracer, owner, key)),
}


@opcode(*COMPUTED)
def compute(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An instruction that only computes."""
    count, function = COMPUTED[instruction.name]
    frame.stack.append(function(tracer, instruction, *take(tracer, frame, count)))


@opcode(*EFFECTS)
def act(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An instruction that only changes something."""
    count, function = EFFECTS[instruction.name]
    function(tracer, instruction, *take(tracer, frame, count))


def compare_values(tracer: Tracer, instruction: Instruction, left: Any, right: Any) -> Any:
    """A comparison (3.13 can ask for its truth at once)."""
    result = compare(tracer, instruction.value, left, right)
    return truth(tracer, result) if VERSION >= (3, 13) and instruction.arg & 16 else result


@opcode("BUILD_TUPLE")
def build_tuple(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`(a, b)`."""
    frame.stack.append(tuple(take(tracer, frame, instruction.arg)))


@opcode("BUILD_LIST")
def build_list(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`[a, b]`."""
    frame.stack.append(tracer.made(take(tracer, frame, instruction.arg)))


@opcode("BUILD_SET")
def build_set(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`{a, b}`."""
    frame.stack.append(tracer.made(set(map(concrete, take(tracer, frame, instruction.arg)))))


@opcode("BUILD_MAP")
def build_map(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`{a: b}`."""
    values = take(tracer, frame, 2 * instruction.arg)
    frame.stack.append(tracer.made(dict(zip(map(concrete, values[::2]), values[1::2], strict=True))))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """A dictionary with constant keys."""
    keys = frame.stack.pop()
    frame.stack.append(tracer.made(dict(zip(keys, take(tracer, frame, instruction.arg), strict=True))))


@opcode("BUILD_SLICE")
def build_slice(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a:b` or `a:b:c`."""
    frame.stack.append(slice(*take(tracer, frame, instruction.arg)))


@opcode("BUILD_STRING")
def build_string(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The parts of an f-string."""
    frame.stack.append("".join(take(tracer, frame, instruction.arg)))


@opcode("FORMAT_VALUE")
def format_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """One value of an f-string (3.11, 3.12)."""
    specification = tracer.resolve(frame.stack.pop()) if instruction.arg & 4 else ""
    value = tracer.resolve(frame.stack.pop())
    conversion = {0: None, 1: str, 2: repr, 3: ascii}[instruction.arg & 3]
    if conversion is not None:
        value = call(tracer, conversion, (value,), {})
    frame.stack.append(call(tracer, format, (value, specification), {}))


def display(tracer: Tracer, frame: Frame, depth: int) -> Any:
    """The list, set or dictionary that a display or comprehension builds; after a graph break it comes from outside."""
    value = frame.stack[-depth] = tracer.resolve(frame.stack[-depth])
    if not isinstance(value, list):
        force(tracer, value, False)
    return value


@opcode("LIST_APPEND")
def list_append(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Append in a comprehension."""
    value = tracer.resolve(frame.stack.pop())
    display(tracer, frame, instruction.arg).append(value)


@opcode("SET_ADD")
def set_add(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Add in a comprehension."""
    value = tracer.resolve(frame.stack.pop())
    display(tracer, frame, instruction.arg).add(concrete(value))


@opcode("MAP_ADD")
def map_add(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Set in a comprehension."""
    value, key = tracer.resolve(frame.stack.pop()), tracer.resolve(frame.stack.pop())
    display(tracer, frame, instruction.arg)[concrete(key)] = value


@opcode("LIST_EXTEND")
def list_extend(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`[*a, *b]`."""
    value = tracer.resolve(frame.stack.pop())
    display(tracer, frame, instruction.arg).extend(native_iterable(tracer, value))


@opcode("SET_UPDATE")
def set_update(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`{*a, *b}`."""
    value = tracer.resolve(frame.stack.pop())
    display(tracer, frame, instruction.arg).update(native_iterable(tracer, value))


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`{**a}` and the keyword arguments of `f(**a)`."""
    value = tracer.resolve(frame.stack.pop())
    target = display(tracer, frame, instruction.arg)
    if instruction.name == "DICT_MERGE":
        for key in list(native_iterable(tracer, value)):
            if key in target:
                raise RaisedInUserCode(TypeError(f"got multiple values for keyword argument '{key}'"))
    update_dict(tracer, target, (value,), {})


@opcode("CALL_INTRINSIC_1")
def call_intrinsic(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The small operations that 3.12 folded into one instruction."""
    value = tracer.resolve(frame.stack.pop())
    if instruction.arg == 3:
        if isinstance(value, StopIteration):
            value = RuntimeError("generator raised StopIteration")
        frame.stack.append(value)
    elif instruction.arg == 5:
        frame.stack.append(unary(tracer, "pos", value))
    elif instruction.arg == 6:
        frame.stack.append(tuple(value))
    else:
        raise Break("unsupported instruction", f"intrinsic {instruction.arg}")


@opcode("STOPITERATION_ERROR")
def stopiteration_error(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """A `StopIteration` that leaves a generator becomes a `RuntimeError`."""
    if isinstance(frame.stack[-1], StopIteration):
        frame.stack[-1] = RuntimeError("generator raised StopIteration")


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a, b = value`."""
    values = list(drain(tracer, tracer.resolve(frame.stack.pop())))
    count = instruction.arg
    if len(values) < count:
        raise RaisedInUserCode(ValueError(f"not enough values to unpack (expected {count}, got {len(values)})"))
    if len(values) > count:
        raise RaisedInUserCode(ValueError(f"too many values to unpack (expected {count})"))
    frame.stack.extend(reversed(values))


@opcode("UNPACK_EX")
def unpack_ex(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a, *b, c = value`."""
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    values = list(drain(tracer, tracer.resolve(frame.stack.pop())))
    if len(values) < before + after:
        raise RaisedInUserCode(ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(values)})"))
    end = len(values) - after
    frame.stack.extend(reversed([*values[:before], tracer.made(values[before:end]), *values[end:]]))


@opcode("GET_LEN")
def get_len(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`len(value)` of a sequence pattern."""
    frame.stack.append(call(tracer, len, (top(tracer, frame),), {}))


@opcode("FOR_ITER")
def for_iter(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Push the next element, or leave the loop."""
    try:
        frame.stack.append(advance(tracer, top(tracer, frame)))
    except StopIteration:
        frame.index = instruction.target
        if VERSION >= (3, 12):
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


def jump(frame: Frame, instruction: Instruction) -> None:
    """Go to the target."""
    frame.index = instruction.target


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP")
def jump_always(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """An unconditional jump."""
    jump(frame, instruction)


@opcode(*(f"POP_JUMP_{way}IF_{test}" for way in ("", "FORWARD_", "BACKWARD_") for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")))
def pop_jump(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """Jump if a value is true, false, `None`, or anything else."""
    value, name = tracer.resolve(frame.stack.pop()), instruction.name
    if name.endswith("NONE"):
        taken = (value is None) is not name.endswith("NOT_NONE")
    else:
        taken = truth(tracer, value) is name.endswith("TRUE")
    if taken:
        jump(frame, instruction)


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """`a or b`, `a and b` (3.11)."""
    if truth(tracer, top(tracer, frame)) is ("TRUE" in instruction.name):
        jump(frame, instruction)
    else:
        frame.stack.pop()


@opcode("RETURN_VALUE")
def return_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> Outcome:
    """Leave the frame."""
    return Outcome(frame.stack.pop())


@opcode("RETURN_GENERATOR")
def return_generator(tracer: Tracer, frame: Frame, instruction: Instruction) -> None:
    """The frame is already suspended when its generator is made; what follows pops a value."""
    frame.stack.append(None)


@opcode("YIELD_VALUE")
def yield_value(tracer: Tracer, frame: Frame, instruction: Instruction) -> Outcome:
    """Suspend a generator."""
    return Outcome(tracer.resolve(frame.stack.pop()), yielded=True)
