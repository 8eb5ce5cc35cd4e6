"""A kernel that Triton's compiler fails on with one number of warps is compiled with another."""

from __future__ import annotations

import types
from typing import Any

import pytest
import triton

from minicompile.ir.program import KernelSource
from minicompile.runtime import kernel_binary


def compiler(good: set[int], seen: list[int]) -> Any:
    def compile(source: Any, target: Any, options: dict[str, Any]) -> int:
        seen.append(options["num_warps"])
        if options["num_warps"] not in good:
            raise RuntimeError(f"PassManager::run failed with {options['num_warps']}")
        return options["num_warps"]

    return compile


@pytest.mark.parametrize(("asked", "good", "tried"), [(1, {1}, [1]), (1, {2, 4}, [1, 2]), (8, {4}, [8, 16, 32, 4])])
def test_other_numbers_of_warps(monkeypatch: pytest.MonkeyPatch, asked: int, good: set[int], tried: list[int]) -> None:
    seen: list[int] = []
    monkeypatch.setattr(kernel_binary, "triton_source", lambda kernel, function: None)
    monkeypatch.setattr(triton, "compile", compiler(good, seen))
    kernel: KernelSource = types.SimpleNamespace(num_warps=asked, num_stages=1)  # type: ignore[assignment]
    assert kernel_binary.compiled_by_triton(kernel, None, None) == tried[-1]
    assert seen == tried


def test_the_first_failure_is_the_one_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_binary, "triton_source", lambda kernel, function: None)
    monkeypatch.setattr(triton, "compile", compiler(set(), []))
    kernel: KernelSource = types.SimpleNamespace(num_warps=2, num_stages=1)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="with 2"):
        kernel_binary.compiled_by_triton(kernel, None, None)
