"""Worker processes give the machine code that this process would give, and never outlive it."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from minicompile.runtime import worker_pool
from minicompile.runtime.kernel_worker import Job, Machine, compiled, kernels_of
from minicompile.runtime.worker_pool import WorkerPool

FILE = '''
import sys
import torch_that_is_not_there
import triton
import triton.language as tl

not_a_kernel = torch_that_is_not_there.anything


@triton.jit
def twice(x):
    return x * 2


@triton.jit
def double_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out_ptr + index, twice(tl.load(x_ptr + index)))
'''


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Job:
    pytest.importorskip("triton")
    path = tmp_path / "program.py"
    path.write_text(FILE)
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "BLOCK": "constexpr"}
    return Job(str(path), "double_kernel", ("cuda", 90, 32), signature, {2: 64}, (0, 1), 4, 1)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.setenv("MINICOMPILE_WORKERS", "2")
    made = WorkerPool()
    yield made
    made.end()


def ready(pool: WorkerPool) -> None:
    pool.prepare(100)
    with pool._changed:
        assert pool._changed.wait_for(lambda: not pool._starting, 60)


def refuse() -> Machine:
    raise AssertionError("compiled in this process")


HERE = Machine(b"here", {})
ROOT = pathlib.Path(worker_pool.__file__).parents[2]


def test_a_worker_gives_what_this_process_gives(pool: WorkerPool, job: Job) -> None:
    ready(pool)
    assert len(pool._idle) == 2
    found = pool.compiled(job, refuse)
    assert found == compiled(job, kernels_of_without_the_rest(job))
    assert found.metadata["name"] == "double_kernel" and len(found.code) > 500


def kernels_of_without_the_rest(job: Job) -> object:
    scope = kernels_of(job.path)
    assert "not_a_kernel" not in scope and "sys" not in scope
    return scope[job.name]


def test_what_a_worker_cannot_do_is_done_here(pool: WorkerPool, job: Job) -> None:
    ready(pool)
    assert pool.compiled(job._replace(name="missing"), lambda: HERE) == HERE
    assert pool.compiled(job._replace(path="/nowhere"), lambda: HERE) == HERE
    assert pool.compiled(job, refuse).metadata["shared"] == 0
    for worker in list(pool._workers):
        worker.process.kill()
    assert pool.compiled(job, lambda: HERE) == HERE
    assert not pool._workers and not pool._idle


def test_nothing_is_started_when_switched_off_or_impossible(
    pool: WorkerPool, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "COMMAND", ("/nowhere/python",))
    ready(pool)
    assert not pool._workers and pool.compiled(job, lambda: HERE) == HERE
    monkeypatch.setattr(worker_pool, "COMMAND", (sys.executable, "-c", "raise SystemExit"))
    ready(pool)
    assert not pool._workers and pool.compiled(job, lambda: HERE) == HERE
    monkeypatch.setenv("MINICOMPILE_WORKERS", "0")
    pool.prepare(100)
    assert not pool._workers and not pool._starting


def test_few_kernels_start_no_worker(pool: WorkerPool) -> None:
    pool.prepare(2)
    assert not pool._starting and not pool._workers


def gone(pids: list[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import os, sys, time, types
for name in ("minicompile", "minicompile.runtime"):  # without what the packages import, which takes seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(sys.argv[2], name.replace(".", "/"))]
from minicompile.runtime.worker_pool import POOL
POOL.prepare(100)
with POOL._changed:
    POOL._changed.wait_for(lambda: not POOL._starting, 60)
if sys.argv[1] == "fork" and os.fork() == 0:
    assert not POOL._workers
    time.sleep(60)
print(*[worker.process.pid for worker in POOL._workers], flush=True)
if sys.argv[1] in ("fork", "_exit"):
    os._exit(0)
if sys.argv[1] == "kill":
    time.sleep(60)
"""


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("way", ["exit", "_exit", "kill", "fork"])
def test_workers_end_with_their_process(way: str) -> None:
    environment = {**os.environ, "MINICOMPILE_WORKERS": "2"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, way, str(ROOT)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        if way == "kill":
            assert all(running(pid) for pid in pids)
            process.kill()
        process.wait(60)
        assert gone(pids)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if way == "fork" else process.kill()
        process.communicate()


def in_a_daemon(queue: object, job: Job) -> None:
    pool = WorkerPool()
    ready(pool)
    queue.put(len(pool.compiled(job, refuse).code))  # type: ignore[attr-defined]
    pool.end()


def test_a_process_that_may_have_no_children_of_its_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICOMPILE_WORKERS", "1")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_a_daemon, args=(queue, job), daemon=True)
    child.start()
    assert queue.get(timeout=120) > 500
    child.join(60)
