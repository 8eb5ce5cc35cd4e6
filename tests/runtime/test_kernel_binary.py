"""A kernel that Triton's compiler fails on with one number of warps is compiled with another."""

from __future__ import annotations

from typing import Any

import pytest

from minicompile.runtime import kernel_worker
from minicompile.runtime.kernel_worker import Job


def compiler(good: set[int], seen: list[int]) -> Any:
    def compiled_with(job: Job, function: Any, num_warps: int) -> int:
        seen.append(num_warps)
        if num_warps not in good:
            raise RuntimeError(f"PassManager::run failed with {num_warps}")
        return num_warps

    return compiled_with


def job(num_warps: int) -> Job:
    return Job("", "kernel", ("cuda", 90, 32), {}, {}, (), num_warps, 1)


@pytest.mark.parametrize(("asked", "good", "tried"), [(1, {1}, [1]), (1, {2, 4}, [1, 2]), (8, {4}, [8, 16, 32, 4])])
def test_other_numbers_of_warps(monkeypatch: pytest.MonkeyPatch, asked: int, good: set[int], tried: list[int]) -> None:
    seen: list[int] = []
    monkeypatch.setattr(kernel_worker, "compiled_with", compiler(good, seen))
    assert kernel_worker.compiled(job(asked), None) == tried[-1]  # type: ignore[comparison-overlap]
    assert seen == tried


def test_the_first_failure_is_the_one_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_worker, "compiled_with", compiler(set(), []))
    with pytest.raises(RuntimeError, match="with 2"):
        kernel_worker.compiled(job(2), None)
