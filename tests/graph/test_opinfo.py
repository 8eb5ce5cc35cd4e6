"""A fixed part of the OpInfo sweep; the whole of it is `python -m tests.graph.opinfo_sweep`."""

from __future__ import annotations

import pytest

from tests.graph.opinfo_sweep import QUICK, sweep


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_operators_come_out_as_in_eager(dtype: str) -> None:
    verdicts = sweep(list(QUICK), [dtype], samples=3)
    assert not verdicts["wrong"]
    assert len(verdicts["right"]) + len(verdicts["random"]) > 25
