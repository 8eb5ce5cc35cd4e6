"""The text of representative kernels is what `tests/golden` holds; `--update-golden` writes it anew."""

from __future__ import annotations

import pathlib

import pytest

from tests.codegen.build import programs
from tests.codegen.catalogue import CATALOGUE, CONFIGURATION

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def check(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.exists(), f"no golden text {path.name}: run pytest with --update-golden"
    assert path.read_text() == text, f"{path.name} differs: read the change, then run pytest with --update-golden"


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_text_of_a_kernel(name: str, request: pytest.FixtureRequest) -> None:
    _, program = programs(CATALOGUE[name](), **CONFIGURATION.get(name, {}))
    check(name, "\n\n".join(kernel.text for kernel in program.kernels), request)


@pytest.mark.parametrize("name", ["gelu_mul", "dynamic_rows"])
def test_the_text_of_a_whole_file(name: str, request: pytest.FixtureRequest) -> None:
    _, program = programs(CATALOGUE[name]())
    check(f"{name}_file", program.text, request)
