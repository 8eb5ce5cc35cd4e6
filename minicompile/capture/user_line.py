"""Makes what generated code does for the user look as if the user's own line did it: exceptions, warnings, calls.

Must not decide what is raised or where execution goes on.
"""

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from minicompile.capture import torch_interface

# Entries of a line table that cover eight code units: without any position; on the first line, without columns.
UNITS_PER_ENTRY, NO_POSITION, FIRST_LINE = 8, bytes([0x80 | 15 << 3 | 7]), bytes([0x80 | 13 << 3 | 7, 0])


def with_user_line(code: types.CodeType, line: int, error: BaseException) -> BaseException:
    """The same exception, its traceback starting at a line of the user's code in place of the generated frame that ran for it."""
    entries, entry, inner = [], error.__traceback__, None
    while entry is not None:
        if not is_ours(entry.tb_frame.f_code):
            entries.append(entry)
        if entry.tb_frame.f_code is torch_interface.FORGETFUL_CHECKPOINT and "gen" in entry.tb_frame.f_locals:
            entry.tb_frame.f_locals["gen"].close()
        entry = entry.tb_next
    for entry in reversed(entries):
        inner = types.TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = as_if_raised_at(inner, code, line)
    return error


OURS = ("<minicompile ", os.path.dirname(os.path.dirname(__file__)) + os.sep)


def is_ours(code: types.CodeType) -> bool:
    """Whether the code is of this package or generated, and not the user's."""
    return code.co_filename.startswith(OURS) or code.co_consts == call_here.__code__.co_consts


def as_if_raised_at(inner: types.TracebackType | None, code: types.CodeType, line: int) -> types.TracebackType:
    """A traceback that begins at a line of the user's code and goes on as `inner`."""
    return types.TracebackType(inner, stand_in_frame(code), 0, line)


def stand_in_frame(code: types.CodeType) -> types.FrameType:
    """A frame that claims to run `code`, for tracebacks only; without positions, so that the traceback's line counts.

    A generator's: the frame of a call would keep its callers' alive, the one that holds the exception among them.
    """
    claimed = claiming(stand_in.__code__, code, code.co_firstlineno, NO_POSITION)
    frame: types.FrameType = types.FunctionType(claimed, stand_in.__globals__)().gi_frame
    return frame


def call_at(code: types.CodeType, line: int, namespace: dict[str, Any]) -> Callable[..., Any]:
    """A function that calls its first argument from the user's line and module, for callees that look at their caller."""
    return types.FunctionType(claiming(call_here.__code__, code, line, FIRST_LINE), namespace)


def seen_from_user_lines(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that looks at its callers: these are copies of the user's frames, with none of ours between them."""
    frame, called = sys._getframe(1), functools.partial(function, *args, **kwargs)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            called = functools.partial(call_at(frame.f_code, frame.f_lineno, frame.f_globals), called)
        frame = frame.f_back
    return called()


def looks_at_callers(function: Any) -> bool:
    """Whether it tells where it was called: warnings and log records name a file and a line."""
    target = function.__func__ if isinstance(function, types.MethodType) else function
    return isinstance(target, NAMED) and target.__module__ in ("_warnings", "logging")


def claiming(template: types.CodeType, code: types.CodeType, line: int, entry: bytes) -> types.CodeType:
    """The template's instructions under the name, file and line of the user's code."""
    table = entry * (len(template.co_code) // (2 * UNITS_PER_ENTRY) + 1)
    return template.replace(co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
                            co_firstlineno=line, co_linetable=table)


def stand_in() -> Iterator[None]:
    """Never runs."""
    yield


def call_here(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function."""
    return function(*args, **kwargs)


NAMED = type, types.FunctionType, types.BuiltinFunctionType, types.MethodType  # what else has a name says it by user code


def name_of(function: Any) -> str:
    """The name of a callable; of an object, that of its class."""
    return str(function.__name__ if isinstance(function, NAMED) else type(function).__name__)
