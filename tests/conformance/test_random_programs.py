"""Programs made at random show their caller the same things captured as plain; `random_programs` makes as many as one likes."""

from __future__ import annotations

import pytest

from tests.conformance.random_programs import differences


@pytest.mark.parametrize("seed", range(30))
def test_a_random_program_shows_what_the_plain_one_shows(seed: int) -> None:
    assert differences(seed) == []
