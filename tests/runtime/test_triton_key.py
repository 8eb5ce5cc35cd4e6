"""Triton's hash of its files is taken from the disk while they are the same, and is what Triton computes."""

from __future__ import annotations

import os
import pathlib

import pytest
import triton

from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.triton_key import give_triton_key, state_of


def test_the_hash_is_computed_once_and_then_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def compute() -> str:
        computed.append("3.6-abc")
        return computed[-1]

    monkeypatch.setattr(triton.runtime.cache, "triton_key", compute)
    for _ in range(2):
        give_triton_key(CodeCache(tmp_path))
        assert triton.runtime.cache.triton_key() == "3.6-abc"
    assert len(computed) == 2  # by the first call, and where the test asked; the second one read it
    monkeypatch.setattr(triton.runtime.cache, "triton_key", compute)
    give_triton_key(None)
    assert triton.runtime.cache.triton_key is compute


def test_a_file_of_another_size_or_time_is_another_state(tmp_path: pathlib.Path) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "code.py"
    file.write_text("a = 1")
    (tmp_path / "notes.txt").write_text("x")
    os.utime(file, (1000, 1000))
    states = [state_of(tmp_path), state_of(tmp_path)]
    file.write_text("a = 22")
    os.utime(file, (1000, 1000))
    states.append(state_of(tmp_path))
    os.utime(file, (2000, 2000))
    states.append(state_of(tmp_path))
    (tmp_path / "notes.txt").write_text("y")
    states.append(state_of(tmp_path))
    assert [states.index(state) for state in states] == [0, 0, 2, 3, 3]
