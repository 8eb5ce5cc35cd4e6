"""Gives an exception that generated code raises for the user the line of the user's code that it belongs to.

Must not decide what is raised or where execution goes on.
"""

from __future__ import annotations

import sys
import types

NO_POSITION, UNITS_PER_ENTRY = 0x80 | 15 << 3 | 7, 8  # an entry of a line table: eight code units without a position


class UserLine:
    """Puts one line of the user's code into a traceback, in place of the generated frame that ran for it."""

    def __init__(self, code: types.CodeType, line: int) -> None:
        self.code, self.line = code, line

    def __call__(self, error: BaseException) -> BaseException:
        """The same exception, its traceback starting at the user's line."""
        generated = error.__traceback__
        inner = generated.tb_next if generated is not None else None
        error.__traceback__ = types.TracebackType(inner, stand_in_frame(self.code), 0, self.line)
        return error


def stand_in_frame(code: types.CodeType) -> types.FrameType:
    """A frame that claims to run `code`, for tracebacks only; without positions, so that the traceback's line counts."""
    nowhere = bytes([NO_POSITION]) * (len(stand_in.__code__.co_code) // (2 * UNITS_PER_ENTRY) + 1)
    claimed = stand_in.__code__.replace(co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
                                        co_firstlineno=code.co_firstlineno, co_linetable=nowhere)
    frame: types.FrameType = types.FunctionType(claimed, stand_in.__globals__)()
    return frame


def stand_in() -> types.FrameType:
    """Returns its own frame."""
    return sys._getframe()
