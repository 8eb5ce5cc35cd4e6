"""Options and markers of the whole test suite."""

from __future__ import annotations

import os

import pytest
import torch

from tests.conformance.compilers import COMPILERS, ENVIRONMENT_VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiler", choices=COMPILERS, help="the compiler that the conformance suite is run with")
    parser.addoption("--update-golden", action="store_true", help="write the texts in tests/golden anew")
    parser.addoption("--core", action="store_true", help="of the conformance suite, run only the core programs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--compiler"):
        os.environ[ENVIRONMENT_VARIABLE] = config.getoption("--compiler")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU"))
    if config.getoption("--core"):
        programs = "test_the_compiled_program_shows_what_the_plain_one_shows"
        dropped = [item for item in items if programs in item.nodeid and not item.get_closest_marker("core")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
