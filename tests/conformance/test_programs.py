"""Every program of the catalogue shows its caller the same things compiled as plain.

`pytest tests/conformance --compiler capture` (or `MINICOMPILE_CONFORMANCE=capture`) chooses the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.conformance.catalogue import Program, all_programs
from tests.conformance.compilers import chosen, compiler
from tests.conformance.harness import check


@pytest.fixture(autouse=True)
def settings_may_be_changed() -> Iterator[None]:
    """PyTorch's helpers for tests, which other tests import, freeze `torch.backends`."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield


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
