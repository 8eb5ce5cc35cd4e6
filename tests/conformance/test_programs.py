"""Every program of the catalogue shows its caller the same things compiled as plain.

`pytest tests/conformance --compiler capture` (or `MINICOMPILE_CONFORMANCE=capture`) chooses the compiler.
"""

from __future__ import annotations

import pytest

from tests.conformance.catalogue import Program, all_programs
from tests.conformance.compilers import chosen, compiler
from tests.conformance.harness import check


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=f"{program.topic}-{program.name}", marks=[pytest.mark.core] if program.core else [])
        for program in all_programs()
    ],
)
def test_the_compiled_program_shows_what_the_plain_one_shows(program: Program) -> None:
    with compiler(chosen()) as compile:
        found = check(program, compile)
    assert not found, "\n".join(found)
