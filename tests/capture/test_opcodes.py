"""Every instruction that the compiler writes for functions is followed, and where that can fail the frame is cut in its place.

The corpus is the standard library of the Python that runs the test, with its own tests where they are installed.
"""

from __future__ import annotations

import inspect
import pathlib
import sysconfig
import types
import warnings
from collections.abc import Iterator

import pytest

from minicompile.capture.graph_break import STEPS
from minicompile.capture.instruction import decode_afresh
from minicompile.capture.opcodes import HANDLERS

STANDARD_LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])
ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# They move values, make functions or exceptions known here, or belong to generators, which are cut in the frame that runs them.
NEVER_BREAK = frozenset({
    "BUILD_SLICE", "BUILD_STRING", "CHECK_EG_MATCH", "CHECK_EXC_MATCH", "CLEANUP_THROW", "COPY", "DELETE_DEREF", "DELETE_FAST",
    "DELETE_GLOBAL", "END_FOR", "END_SEND", "GET_YIELD_FROM_ITER", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD",
    "KW_NAMES", "LOAD_ASSERTION_ERROR", "LOAD_BUILD_CLASS", "LOAD_CLOSURE", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_AND_CLEAR",
    "LOAD_FAST_CHECK", "MAKE_CELL", "MAKE_FUNCTION", "POP_EXCEPT", "POP_TOP", "PREP_RERAISE_STAR", "PUSH_EXC_INFO", "PUSH_NULL",
    "RERAISE", "RETURN_GENERATOR", "RETURN_VALUE", "SEND", "SET_FUNCTION_ATTRIBUTE", "STORE_DEREF", "STORE_FAST", "SWAP",
    "YIELD_VALUE",
})
# Cut by code of their own. `MAP_ADD` breaks only for keys whose hash has side effects: those frames are left to Python whole.
WRITTEN_APART = frozenset({"FOR_ITER", "RAISE_VARARGS", "MAP_ADD"})


def functions(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of all functions inside, without coroutines, class bodies and the scopes of type parameters."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            of_types = constant.co_name.startswith("<generic parameters") or "__classdict__" in constant.co_freevars
            if constant.co_flags & inspect.CO_OPTIMIZED and not constant.co_flags & ASYNCHRONOUS and not of_types:
                yield constant
            yield from functions(constant)


@pytest.mark.parametrize("files", [
    "[a-m]*.py", "[n-z]*.py", "test/test_grammar.py", "test/test_except_star.py", "test/test_patma.py", "test/test_generators.py",
    "test/test_unpack_ex.py", "test/test_with.py", "test/test_fstring.py", "test/test_functools.py",
])
def test_every_instruction_of_the_standard_library_is_known(files: str) -> None:
    seen: dict[str, str] = {}
    for path in STANDARD_LIBRARY.glob(files):
        with warnings.catch_warnings(action="ignore"):
            module = compile(path.read_bytes(), str(path), "exec")
        for code in functions(module):
            for instruction in decode_afresh(code).instructions:
                seen.setdefault(instruction.name, f"{path}:{instruction.line}")
    assert {name: place for name, place in seen.items() if name not in HANDLERS} == {}
    cut = {*STEPS, *NEVER_BREAK, *WRITTEN_APART}
    assert {name: place for name, place in seen.items() if name not in cut and "_IF_" not in name} == {}
