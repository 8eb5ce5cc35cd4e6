"""Whatever the disk does, a compiled function returns what eager returns: other processes, kills, damage, no room."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import tarfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minicompile
from minicompile import cli
from minicompile.runtime import code_cache
from minicompile.runtime.code_cache import CodeCache

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.usefixtures("one_thread")


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, -1) * y.sum(0)


def answer_is_right(folder: pathlib.Path, function: Callable[..., Any] = program) -> bool:
    """Compiled anew in this process, from whatever lies in `folder`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = torch.rand(6, 6), torch.rand(6, 6)
        result = minicompile.compile(function, options={"cache_directory": folder, "verify": False})(x, y)
    return torch.allclose(result, function(x, y), rtol=1e-4, atol=1e-5)


def in_child(work: Callable[..., bool], *arguments: Any) -> int:
    """The exit status of a process that runs `work`: 0 if it returned `True`."""
    child = FORK.Process(target=_exit_with, args=(work, arguments))
    child.start()
    child.join(60)
    return -1 if child.exitcode is None else child.exitcode


def _exit_with(work: Callable[..., bool], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os._exit(0 if work(*arguments) else 1)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_sixteen_processes_compile_the_same_thing_at_once(tmp_path: pathlib.Path) -> None:
    children = [FORK.Process(target=_exit_with, args=(answer_is_right, (tmp_path,))) for _ in range(16)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 16
    assert not [path for path in files(tmp_path) if path.name.startswith(".writing")]


def test_processes_killed_while_they_write_leave_nothing_wrong(tmp_path: pathlib.Path) -> None:
    dice = random.Random(0)
    for _ in range(12):
        child = FORK.Process(target=_keep_writing, args=(tmp_path,))
        child.start()
        time.sleep(dice.uniform(0.0, 0.08))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        cache = CodeCache(tmp_path)
        for number in range(4):
            found = cache.read("graphs", f"{number}" * 64)
            assert found is None or found == bytes([number]) * 300_000
        assert answer_is_right(tmp_path)


def _keep_writing(folder: pathlib.Path) -> None:
    cache = CodeCache(folder)
    while True:
        answer_is_right(folder)
        for number in range(4):
            cache.write("graphs", f"{number}" * 64, bytes([number]) * 300_000)
        cache.clear()


def test_every_file_truncated_flipped_emptied_or_replaced(tmp_path: pathlib.Path) -> None:
    assert answer_is_right(tmp_path)
    dice = random.Random(1)
    damages: list[Callable[[bytes], bytes]] = [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\x80\x04\x95 not ours",
        lambda content: _flipped(content, dice.randrange(len(content) or 1)),
        lambda content: _flipped(content, len(content) - 1),
    ]
    for path in files(tmp_path):
        for damage in damages:
            whole = path.read_bytes() if path.exists() else b"x"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(damage(whole))
            assert answer_is_right(tmp_path), path
    assert answer_is_right(tmp_path)


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def _without_room(folder: pathlib.Path) -> bool:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    return answer_is_right(folder)


def test_a_full_disk_costs_only_the_cache(tmp_path: pathlib.Path) -> None:
    assert in_child(_without_room, tmp_path / "cache") == 0
    assert not files(tmp_path)
    assert answer_is_right(tmp_path / "cache")


def test_a_disk_that_fills_up_while_the_cache_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = code_cache.tempfile.mkstemp, [2]

    def mkstemp(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(code_cache.tempfile, "mkstemp", mkstemp)
    for _ in range(3):
        assert answer_is_right(tmp_path)


def test_the_folder_of_another_user_is_not_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getuid()
    monkeypatch.setattr(code_cache.os, "getuid", lambda: me + 1)
    assert answer_is_right(tmp_path / "theirs")
    assert not files(tmp_path)


def _read_only(folder: pathlib.Path) -> bool:
    if os.getuid() == 0:
        os.setuid(65534)
    return answer_is_right(folder)


def test_a_folder_that_is_gone_or_read_only(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "cache"
    assert answer_is_right(folder)
    shutil.rmtree(folder)
    assert answer_is_right(folder)
    folder.chmod(0o500)
    try:
        assert in_child(_read_only, folder) == 0
    finally:
        folder.chmod(0o700)


def test_the_folder_itself_is_not_emptied(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_text("cat")
    assert answer_is_right(tmp_path)
    with minicompile.config.patch(cache_directory=tmp_path, cache_megabytes=0):
        assert cli.main(["cache", "info"]) == 0
        assert "graphs" in capsys.readouterr().out
        CodeCache(tmp_path, 0).trim()
        assert cli.main(["cache", "clear"]) == 0
    assert sorted(path.name for path in files(tmp_path)) == ["cat", "mine.txt"]


def test_a_warm_cache_is_shipped_and_nothing_else(tmp_path: pathlib.Path, capsys: Any) -> None:
    here, there, archive = tmp_path / "here", tmp_path / "there", str(tmp_path / "warm.tar.gz")
    assert answer_is_right(here)
    with minicompile.config.patch(cache_directory=here):
        assert cli.main(["cache", "export", archive]) == 0
        assert cli.main(["cache", "export"]) == 2
    hostile = tmp_path / "hostile.tar"
    (tmp_path / "payload").write_text("x")
    with tarfile.open(hostile, "w") as packed:
        for name in ("../../outside", "graphs/../../outside", "graphs/" + "a" * 64, "/etc/outside", "programs/" + "b" * 64):
            packed.add(tmp_path / "payload", name)
    with minicompile.config.patch(cache_directory=there):
        assert cli.main(["cache", "import", str(hostile)]) == 0
        assert not files(there)
        assert cli.main(["cache", "import", archive]) == 0
    shipped = {path.name for path in files(here / "graphs")}
    assert shipped and {path.name for path in files(there)} == shipped
    assert answer_is_right(there)
    assert not functools.reduce(lambda found, path: found or path.name == "outside", files(tmp_path), False)
