"""Exceptions of the compiler. Each says what was asked, what was found, where in the user's code, and what to do.

This module imports nothing of ours; warnings are made here, too. An exception here never reaches the user's values:
`compiler.py` turns it into eager execution with one warning, unless the user asked for `fullgraph=True`.
"""

import dataclasses
import difflib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Iterator

OURS = tuple(os.path.dirname(spec.origin) + os.sep for spec in map(importlib.util.find_spec, ("minicompile", "torch"))
             if spec is not None and spec.origin is not None)  # fmt: skip


def warn_user(text: str) -> None:
    """Warn at the user's line: the innermost one that is neither ours, nor generated, nor PyTorch's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*OURS, "<")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of the user's code; `module` is the path of the innermost module that it runs for, as the user writes it."""

    file: str
    line: int
    function: str = ""
    text: str = ""
    module: str = dataclasses.field(default="", compare=False)

    @property
    def short(self) -> str:
        """`file.py:12`, without the folder."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{inside}"


def stack_lines(stack: Iterable[Location], indent: str) -> Iterator[str]:
    """Frames as in a traceback: each place, and below it the line itself where it is known."""
    for place in stack:
        yield f"{indent}at {place}"
        if place.text:
            yield f"{indent}    {place.text.strip()}"


class MinicompileError(Exception):
    """Base of every error of the compiler."""


class InvalidOption(MinicompileError, ValueError):
    """An option that does not exist, or a value it cannot take."""

    def __init__(self, name: str, value: object, valid: tuple[object, ...], unknown: bool = False, kind: str = "option") -> None:
        if unknown:
            (nearest,) = difflib.get_close_matches(name, map(str, valid), n=1, cutoff=0.0)
            message = f"there is no {kind} {name!r}; the nearest valid one is {nearest!r}"
        else:
            message = f"option {name!r} cannot be {value!r}; it takes {', '.join(map(repr, valid))}"
        super().__init__(message)


class Unsupported(MinicompileError):
    """Something that capture cannot put into a graph.

    Attributes:
        kind: the registered name of the graph break.
        reason: what was found, in the user's terms.
        hint: a rewrite that removes the break, or an empty string.
        stack: the user's frames, outermost first.
        why: what the kind of graph break means.
    """

    def __init__(self, kind: str, reason: str, hint: str = "", stack: tuple[Location, ...] = (), why: str = "") -> None:
        self.kind, self.reason, self.hint, self.stack, self.why = kind, reason, hint, stack, why
        lines = [f"graph break ({kind}): {reason}", *stack_lines(stack, "  ")]
        lines += [f"  {label}: {text}" for label, text in (("why", why), ("what to do", hint)) if text]
        super().__init__("\n".join(lines))


class CompileFailed(MinicompileError):
    """A stage of the compiler failed on a captured graph; carries the stage's name and the user's line."""

    def __init__(self, stage: str, cause: BaseException, location: Location | None = None) -> None:
        self.stage, self.cause, self.location = stage, cause, location
        where = f" at {location}" if location else ""
        super().__init__(f"the {stage} stage failed{where}: {type(cause).__name__}: {cause}")


class VerificationFailed(MinicompileError):
    """A verifier found an IR that breaks its own rules; prints the neighbourhood of the fault."""

    def __init__(self, what: str, neighbourhood: str = "") -> None:
        super().__init__(f"{what}\n{neighbourhood}" if neighbourhood else what)
