"""Decodes a code object into one normalised instruction stream for CPython 3.11, 3.12 and 3.13.

Handlers see neither caches nor prefixes nor superinstructions, and jump targets are indices into the stream. This module
must not know what an instruction does; it only says what is written there.
"""

import bisect
import dataclasses
import dis
import functools
import sys
import types
import weakref
from typing import Any

VERSION = sys.version_info[:2]
SUPPORTED_VERSIONS = ((3, 11), (3, 12), (3, 13))
SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "COPY_FREE_VARS"})
UNCOUNTED = frozenset({"CACHE", "EXTENDED_ARG"})


class Instruction:
    """One normalised instruction.

    Attributes:
        name: the opcode's name; superinstructions are split.
        arg: the raw argument.
        value: the decoded argument (a name, a constant, a tuple of names).
        target: stream index of a jump's target, or -1.
        line: source line, or 0.
        offset: byte offset in the code object.
        ordinal: position among all instructions that are not caches or prefixes.
    """

    __slots__ = ("name", "arg", "value", "target", "line", "offset", "ordinal")

    def __init__(self, name: str, arg: int, value: Any, line: int, offset: int, ordinal: int) -> None:
        self.name, self.arg, self.value = name, arg, value
        self.target, self.line, self.offset, self.ordinal = -1, line, offset, ordinal

    def __repr__(self) -> str:
        return f"{self.name} {self.value!r}"


@dataclasses.dataclass(frozen=True)
class ExceptionRange:
    """A range of stream indices whose exceptions go to `target` with the stack cut to `depth`."""

    start: int
    end: int
    target: int
    depth: int
    push_offset: bool


def bound_names() -> dict[str, Any]:
    """What the body of a function is replaced by, to have Python bind a call's arguments to its parameters."""
    return locals()


@dataclasses.dataclass(frozen=True)
class Program:
    """A decoded code object."""

    code: types.CodeType
    instructions: tuple[Instruction, ...]
    exception_ranges: tuple[ExceptionRange, ...]

    def handler_of(self, index: int) -> ExceptionRange | None:
        """The exception range that covers the instruction at `index`."""
        return next((entry for entry in self.exception_ranges if entry.start <= index < entry.end), None)

    @functools.cached_property
    def signature(self) -> types.CodeType:
        """Code with the same parameters that returns what they are bound to, by name."""
        code = self.code
        count = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & 0x0C).bit_count()
        return bound_names.__code__.replace(
            co_argcount=code.co_argcount, co_posonlyargcount=code.co_posonlyargcount, co_kwonlyargcount=code.co_kwonlyargcount,
            co_nlocals=count, co_varnames=code.co_varnames[:count], co_flags=code.co_flags & 0x0F,
        )  # fmt: skip


def split_superinstruction(name: str, value: Any) -> list[tuple[str, Any]]:
    """The plain instructions that one of 3.13's paired instructions stands for."""
    if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"):
        first, second = name[: name.index("_FAST") + 5], name[name.index("_FAST") + 6 :]
        return [(first, value[0]), (second, value[1])]
    if name == "RETURN_CONST":
        return [("LOAD_CONST", value), ("RETURN_VALUE", None)]
    return [(name, value)]


_decoded: weakref.WeakKeyDictionary[types.CodeType, Program] = weakref.WeakKeyDictionary()


def decode(code: types.CodeType) -> Program:
    """Decode `code`, once per code object."""
    program = _decoded.get(code)
    if program is None or program.code is not code:
        program = decode_afresh(code)
        _decoded[code] = program
    return program


def decode_afresh(code: types.CodeType) -> Program:
    """Decode `code` without looking at what was decoded before."""
    stream: list[Instruction] = []
    jumps: list[tuple[Instruction, int]] = []
    starts: list[int] = []
    first_index: list[int] = []
    line, ordinal, begun = code.co_firstlineno, 0, False
    for raw in dis.get_instructions(code):
        positions = raw.positions
        if positions is not None and positions.lineno is not None:
            line = positions.lineno
        starts.append(raw.offset)
        first_index.append(len(stream))
        begun = begun or raw.opname == "RESUME"
        if raw.opname not in SKIPPED and (begun or raw.opname != "MAKE_CELL"):
            for name, value in split_superinstruction(raw.opname, raw.argval):
                instruction = Instruction(name, raw.arg or 0, value, line, raw.offset, ordinal)
                if raw.opcode in dis.hasjrel or raw.opcode in dis.hasjabs:
                    jumps.append((instruction, raw.argval))
                stream.append(instruction)
        if raw.opname not in UNCOUNTED:
            ordinal += 1

    def index_of(offset: int) -> int:
        position = bisect.bisect_left(starts, offset)
        return first_index[position] if position < len(starts) else len(stream)

    for instruction, target in jumps:
        instruction.target = index_of(target)
    ranges = tuple(
        ExceptionRange(index_of(entry.start), index_of(entry.end), index_of(entry.target), entry.depth, entry.lasti)
        for entry in dis._parse_exception_table(code)
    )
    return Program(code, tuple(stream), ranges)


BINARY_SYMBOLS: tuple[str, ...] = tuple(symbol for _, symbol in dis._nb_ops)
