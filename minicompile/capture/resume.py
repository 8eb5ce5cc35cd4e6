"""Resume functions: the user's own bytecode with a jump at its start.

A resume function takes the saved stack and the live locals, pushes the stack, and goes on at one instruction of the
original code. Since exception tables are by range, `with` and `try` blocks around that instruction stay in force.
Must not know about symbolic values.
"""

import dataclasses
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import bytecode
from bytecode import Bytecode, CellVar, FreeVar, Instr, Label

from minicompile.capture.instruction import UNCOUNTED, VERSION, Program, split_superinstruction

STACK_PREFIX = ".stack_"
RAISED = ".raised"
FIRST = ".first_argument"
PUSHES: dict[str, list[tuple[Any, ...]]] = {"v": [], "h": [("PUSH_EXC_INFO",), ("POP_TOP",)], "g": [("UNPACK_SEQUENCE", 1)]}


@dataclasses.dataclass(frozen=True)
class ResumeShape:
    """What distinguishes the resume functions of one code object.

    Attributes:
        index: the instruction to go on at (index into the decoded stream).
        stack: one letter per stack element: a value (`v`), an empty slot (`n`), an exception that is being handled (`h`), a
            generator in a holder (`g`).
        names: the live locals that are passed.
        cells: the cells that are passed, in the order of the closure.
        raises: the function raises its last argument at the instruction instead of executing it.
        generator: if the function makes a generator, which goes on there when it is first advanced: its name and qualified one.
        first: its first argument is that of the original, which `super()` asks its frame for.
        eager: nothing of it is captured.
    """

    index: int
    stack: str
    names: tuple[str, ...]
    cells: tuple[str, ...]
    raises: bool = False
    generator: tuple[str, ...] = ()
    first: bool = False
    eager: bool = False

    @property
    def prologue(self) -> int:
        """How many instructions put the stack in place and jump."""
        count = self.stack.count
        return 2 * len(self.stack) - count("n") + count("g") + 2 * count("h") + 1


def build_resume_code(program: Program, shape: ResumeShape) -> types.CodeType:
    """Assemble the code of a resume function."""
    code = program.code
    block = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    target_ordinal = program.instructions[shape.index].ordinal
    stack = [f"{STACK_PREFIX}{place}" for place, kind in enumerate(shape.stack) if kind != "n"]
    parameters = [*([FIRST] if shape.first else []), *stack, *shape.names, *([RAISED] if shape.raises else [])]
    body, label = split_body(block, target_ordinal, shape)
    line = program.instructions[shape.index].line
    result = Bytecode()
    result.name, result.qualname = code.co_name, code.co_qualname  # tracebacks show them
    result.filename, result.first_lineno, result.docstring = code.co_filename, code.co_firstlineno, None
    result.argnames, result.argcount, result.posonlyargcount, result.kwonlyargcount = parameters, len(parameters), 0, 0
    result.freevars, result.cellvars = list(shape.cells), []
    flags = bytecode.CompilerFlags
    kept = flags(code.co_flags) & ~(flags.VARARGS | flags.VARKEYWORDS)
    result.flags = kept | flags.OPTIMIZED | flags.NEWLOCALS
    if shape.cells:
        result.flags |= flags.NESTED
        result.append(Instr("COPY_FREE_VARS", len(shape.cells), lineno=line))
    if shape.generator:
        result.extend((Instr("RETURN_GENERATOR", lineno=line), Instr("POP_TOP", lineno=line)))
    result.append(Instr("RESUME", 0, lineno=line))
    for place, kind in enumerate(shape.stack):
        moved = [(step, f"{STACK_PREFIX}{place}") for step in ("LOAD_FAST", "DELETE_FAST")]  # `locals()` does not show it
        result.extend(Instr(*step, lineno=line) for step in ([("PUSH_NULL",)] if kind == "n" else [*moved, *PUSHES[kind]]))
    result.append(Instr("JUMP_FORWARD", label, lineno=line))
    result.extend(body)
    # The depths of exception handlers are the original's: what is left of the code before the target cannot tell them.
    return result.to_code(stacksize=code.co_stacksize + 1, compute_exception_stack_depths=False)


def split_body(block: Any, target_ordinal: int, shape: ResumeShape) -> tuple[list[Any], Label]:
    """The original instructions without their prologue, with a label at the target.

    The pairs of 3.13 have room for the first sixteen variables only; a resume function may have more than the original.
    """
    label, body = Label(), []
    ordinal, in_prologue = 0, True
    cells = set(shape.cells)
    for item in block:
        if not isinstance(item, Instr):
            body.append(item)
            continue
        if ordinal == target_ordinal:
            after = Label()  # a loop that comes here again does not raise
            raising = [Instr("JUMP_FORWARD", after), label, Instr("LOAD_FAST", RAISED), Instr("DELETE_FAST", RAISED),
                       Instr("RERAISE", 0), after]
            for step in raising if shape.raises else [label]:
                body.append(step if isinstance(step, Label) else Instr(step.name, step.arg, location=item.location))
        if item.name not in UNCOUNTED:
            ordinal += 1
        if in_prologue and item.name in ("MAKE_CELL", "COPY_FREE_VARS", "RESUME", "RETURN_GENERATOR"):
            in_prologue = item.name != "RESUME"
            continue
        parts = split_superinstruction(item.name, item.arg) if item.name.count("_FAST") == 2 else []
        body.extend([Instr(*part, location=item.location) for part in parts] or [converted(item, cells)])
    return body, label


def converted(item: Instr, cells: set[str]) -> Instr:
    """An instruction whose cells have become free variables of the resume function."""
    arg = item.arg
    if isinstance(arg, CellVar) and arg.name in cells:
        return Instr(item.name, FreeVar(arg.name), location=item.location)
    if isinstance(arg, str) and arg in cells and VERSION >= (3, 13) and item.name == "LOAD_FAST":
        return Instr(item.name, FreeVar(arg), location=item.location)
    return item


@functools.cache
def one_instruction(name: str, arg: int, taken: int, given: int) -> Callable[..., tuple[Any, ...]]:
    """A function that executes one instruction on a stack of its arguments, and returns what is then on the stack."""
    sizes: Any = dis._inline_cache_entries
    caches = [("CACHE", 0)] * (sizes.get(name, 0) if VERSION >= (3, 13) else sizes[dis.opmap[name]])
    steps = [("RESUME", 0), *(("LOAD_FAST", place) for place in range(taken)), ("EXTENDED_ARG", arg >> 8), (name, arg & 255),
             *caches, ("BUILD_TUPLE", given), ("RETURN_VALUE", 0)]
    code = one_instruction.__wrapped__.__code__.replace(
        co_code=b"".join(bytes((dis.opmap[step], value)) for step, value in steps), co_name=name.lower(), co_consts=(),
        co_names=(), co_varnames=tuple(f"{STACK_PREFIX}{place}" for place in range(taken)), co_nlocals=taken, co_argcount=taken,
        co_stacksize=max(taken, given) + 1, co_linetable=b"", co_exceptiontable=b"")
    return types.FunctionType(code, {})


class Holder:
    """The only reference to a generator over which a loop goes, so that it can be dropped where the loop is left.

    To unpack it leaves the reference to who unpacks it; the tracer takes it for the generator.
    """

    __slots__ = ("generator",)

    def __init__(self, generator: Iterator[Any]) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        held = [self.generator]
        del self.generator
        yield held.pop()


class GeneratorPoint:
    """Makes a generator that goes on where one that was traced has stopped."""

    def __init__(self, code: types.CodeType, namespace: dict[str, Any], names: tuple[str, ...], started: bool) -> None:
        self.code, self.namespace, self.names, self.started = code, namespace, names, started

    def __call__(self, closure: tuple[Any, ...], *args: Any) -> Any:
        """The generator, advanced to the `yield` at which it waits."""
        generator = types.FunctionType(self.code, self.namespace, None, None, closure)(*args)
        generator.__name__, generator.__qualname__ = self.names
        if self.started:
            next(generator)
        return generator


class ResumePoint:
    """One resume function, made anew for each call because its cells differ; compiled through its own cache."""

    def __init__(self, code: types.CodeType, namespace: dict[str, Any], cache: Any) -> None:
        self.code, self.namespace, self.cache = code, namespace, cache
        self.__name__ = cache.name

    def __call__(self, closure: tuple[Any, ...], *args: Any) -> "Resumption":
        """What is left to do after the break."""
        return Resumption(self.cache, types.FunctionType(self.code, self.namespace, self.__name__, None, closure), args)


class Resumption(NamedTuple):
    """A call of a resume function that is left to whoever called what ends in it, so that the breaks of a loop do not nest."""

    cache: Any
    function: types.FunctionType
    args: tuple[Any, ...]


def finished(result: Any) -> Any:
    """What a call gives, once nothing is left to do."""
    while type(result) is Resumption:
        result = result.cache.call(result.function, result.args, {})
    return result
