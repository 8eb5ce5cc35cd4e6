"""Processes that compile kernels beside this one: started when a graph has many, idle ones end by themselves.

They help and are never needed: this process compiles as well, all of it where there are no workers (`MINICOMPILE_WORKERS=0`, one
core, no interpreter to start) or one fails. They end with this process, however it ends, because their input ends. A fork's
child has none. This module must not know what a kernel is.
"""

import atexit
import contextlib
import os
import pathlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import triton

from minicompile.runtime import kernel_worker
from minicompile.runtime.kernel_worker import Job, LibraryJob, Machine

MOST_WORKERS = 16
# Threads that compile in this process beside workers: half of the work is Python, of which one thread runs at a time.
MOST_HERE = 2
# Fewer take less time here than a worker takes to start.
KERNELS_A_WORKER = 3
COMMAND = (sys.executable, "-I", str(pathlib.Path(kernel_worker.__file__).resolve()))


class Worker:
    """One process. It is asked by one thread at a time."""

    def __init__(self) -> None:
        pipe, group = subprocess.PIPE, 0  # a group of its own, so that Ctrl-C is for this process alone
        self.process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, process_group=group)

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()


class WorkerPool:
    """Workers, those of them that have nothing to do, and how many threads compile in this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._starting = self._here = 0

    def prepare(self, kernels: int) -> None:
        """Start workers, in threads, as far as so many kernels are worth them."""
        with self._changed:
            wanted = min(most_workers(), kernels // KERNELS_A_WORKER) - len(self._workers) - self._starting
            self._starting += max(wanted, 0)
        for _ in range(wanted):
            threading.Thread(target=self._start, name="minicompile-worker", daemon=True).start()

    def _start(self) -> None:
        worker = None
        try:
            worker = Worker()
            ready = worker.ask(list(sys.path)) == (triton.__version__, triton.__file__)
        except Exception:  # no process can be started here, or it has no Triton
            ready = False
        if worker is not None and not ready:
            worker.end()
        with self._changed:
            self._starting -= 1
            if worker is not None and ready:
                self._workers.append(worker)
                self._idle.append(worker)
            self._changed.notify_all()

    @contextlib.contextmanager
    def _place(self) -> Iterator[Worker | None]:
        """A worker that has nothing to do, or this process, which does not do much at once while there are workers."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._here < MOST_HERE or not (self._workers or self._starting))
            worker = self._idle.pop() if self._idle else None
            self._here += worker is None
        try:
            yield worker
        finally:
            with self._changed:
                self._here -= worker is None
                if worker in self._workers:
                    self._idle.append(worker)
                self._changed.notify_all()

    def compiled(self, job: Job, here: Callable[[], Machine]) -> Machine:
        """What a worker makes of a job, or what `here()` does in this process if none is free, or it fails."""
        return self._done(job, lambda answer: Machine(*answer), here)

    def file(self, job: LibraryJob, here: Callable[[], Any]) -> Any:
        """What `here()` gives, after a worker has compiled a job for it if one is free."""
        return self._done(job, lambda _: here(), here)

    def _done(self, job: Job | LibraryJob, take: Callable[[Any], Any], here: Callable[[], Any]) -> Any:
        while True:
            with self._place() as worker:
                if worker is None:
                    return here()
                try:
                    answer = worker.ask((type(job).__name__, *job))
                except Exception:  # it ended, having been idle for long or by force
                    with self._changed:
                        self._workers = [other for other in self._workers if other is not worker]
                    worker.end()
                    continue
            return here() if isinstance(answer, str) else take(answer)

    def end(self) -> None:
        """End every worker."""
        with self._changed:
            workers, self._workers, self._idle = self._workers, [], []
        for worker in workers:
            worker.end()

    def forget(self) -> None:
        """In a fork's child: the workers are the parent's, and must see the end of their input when that ends."""
        workers, self._workers, self._idle = self._workers, [], []
        self._changed, self._starting, self._here = threading.Condition(), 0, 0
        for worker in workers:
            worker.process.returncode = 0
            worker.let_go()


def most_workers() -> int:
    """How many processes may help: the cores that this one has no use for, or what `MINICOMPILE_WORKERS` says."""
    asked = os.environ.get("MINICOMPILE_WORKERS", "")
    if asked.isdigit():
        return int(asked)
    return min(len(os.sched_getaffinity(0)) - 1, MOST_WORKERS) if sys.executable else 0


POOL = WorkerPool()
atexit.register(POOL.end)
os.register_at_fork(after_in_child=POOL.forget)
