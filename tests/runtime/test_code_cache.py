"""The disk cache returns what was written or nothing, whatever happened to the files."""

from __future__ import annotations

import multiprocessing
import os
import pathlib

import pytest

from minicompile.runtime.code_cache import CodeCache, write_atomically


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> CodeCache:
    return CodeCache(tmp_path / "cache")


def test_an_entry_comes_back_as_written(cache: CodeCache) -> None:
    cache.write("kernels", "abc123", b"payload\x00\xff")
    assert cache.read("kernels", "abc123") == b"payload\x00\xff"
    assert cache.read("kernels", "abc124") is None
    assert cache.read("programs", "abc123") is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_a_damaged_entry_is_not_returned_and_can_be_written_again(cache: CodeCache, damage: str) -> None:
    cache.write("kernels", "abc123", b"x" * 100)
    path = cache.path("kernels", "abc123")
    content = path.read_bytes()
    damaged = {
        "truncate": content[:-3],
        "flip": content[:60] + bytes([content[60] ^ 1]) + content[61:],
        "empty": b"",
        "foreign": b"something else entirely",
    }[damage]
    path.write_bytes(damaged)
    assert cache.read("kernels", "abc123") is None
    assert not path.exists()
    cache.write("kernels", "abc123", b"again")
    assert cache.read("kernels", "abc123") == b"again"


def test_a_folder_that_others_may_write_is_not_trusted(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    cache = CodeCache(folder)
    cache.write("kernels", "abc123", b"payload")
    assert not cache.usable
    assert cache.read("kernels", "abc123") is None
    assert list(folder.iterdir()) == []


def test_a_new_folder_is_private(cache: CodeCache) -> None:
    assert cache.directory.stat().st_mode & 0o077 == 0


def test_a_path_that_cannot_be_a_folder_costs_only_the_cache(tmp_path: pathlib.Path) -> None:
    blocking = tmp_path / "file"
    blocking.write_text("in the way")
    cache = CodeCache(blocking / "cache")
    cache.write("kernels", "abc123", b"payload")
    assert cache.read("kernels", "abc123") is None


def test_a_failed_write_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "entry"
    target.mkdir()
    (target / "occupied").write_text("")
    assert not write_atomically(target, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_the_least_recently_used_entries_go_first(tmp_path: pathlib.Path) -> None:
    cache = CodeCache(tmp_path / "cache", megabytes=1)
    for number in range(5):
        cache.write("kernels", f"k{number}", bytes(200_000))
        os.utime(cache.path("kernels", f"k{number}"), (number, number))
    cache.read("kernels", "k0")
    cache.write("kernels", "k5", bytes(200_000))
    assert sum(status.st_size for _, status in cache.entries()) <= 2**20
    kept = {number for number in range(6) if cache.read("kernels", f"k{number}") is not None}
    assert kept == {0, 2, 3, 4, 5}


def test_clear_removes_everything(cache: CodeCache) -> None:
    cache.write("kernels", "abc123", b"payload")
    cache.clear()
    assert cache.read("kernels", "abc123") is None


def _write_and_read(directory: str, worker: int) -> bool:
    cache = CodeCache(pathlib.Path(directory))
    for round_number in range(30):
        key = f"key{round_number % 5}"
        cache.write("kernels", key, key.encode() * 1000)
        found = cache.read("kernels", key)
        if found is not None and found != key.encode() * 1000:
            return False
    return True


def test_processes_that_write_the_same_entry_at_once_never_read_half_of_one(tmp_path: pathlib.Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.starmap(_write_and_read, [(str(tmp_path / "cache"), worker) for worker in range(8)])
    assert results == [True] * 8
