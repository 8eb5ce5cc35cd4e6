"""Hand-written kernels compiled by worker processes: Triton in this one finds what they have put into its folder.

Half of what Triton does is Python, so kernels that are compiled in threads wait for each other, and hold up the stages that
run beside them. This module must not know which kernels there are.

Private interfaces, the same in Triton 3.6 to 3.9: `device_caches` and `compile` of a `JITFunction`, `get_cache_key`,
`get_cache_manager`.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import threading
from typing import Any

import triton

import minicompile.kernels
from minicompile.runtime.kernel_worker import LibraryJob
from minicompile.runtime.worker_pool import KERNELS_A_WORKER, MOST_HERE, POOL

FOLDER = str(pathlib.Path(minicompile.kernels.__file__).parent)
MANY = 4
"""Fewer kernels take less time here: a worker has to read the library before its first one."""
PLAIN = (int, float, str, type(None), triton.language.dtype)
"""Types of the constants of a kernel that a worker, which has no torch, can read."""


class Waiting:
    """How many compilations are asked for and not done."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            count = self._count
        with contextlib.suppress(RuntimeError):  # no thread can be started any more
            POOL.prepare(KERNELS_A_WORKER * (count - MOST_HERE))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._count -= 1

    def forget(self) -> None:
        """In a fork's child: whoever waited, or held the lock, did so in the parent."""
        self._lock, self._count = threading.Lock(), 0


WAITING = Waiting()
os.register_at_fork(after_in_child=WAITING.forget)


def share_with_workers(kernels: list[Any], device: int, only_many: bool = False) -> bool:
    """Have workers help with the kernels of a call if they are many; whether they are to be compiled: with `only_many`, if so."""
    many = len(kernels) >= MANY
    for kernel in kernels if many else ():
        ask_workers(kernel, device)
    return many or not only_many


def ask_workers(kernel: Any, device: int) -> None:
    """Have a `@triton.jit` function, when it is compiled for a device, ask a worker for what is not in Triton's folder."""
    kernel.device_caches[device]  # which sets what compiles it
    if not isinstance(kernel.compile, functools.partial):
        kernel.compile = functools.partial(compiled, kernel.compile)


def compiled(compile: Any, source: Any, target: Any, options: dict[str, Any], **rest: Any) -> Any:
    """What `compile` gives, after a worker has done its work if it can."""
    here = functools.partial(compile, source, target=target, options=options, **rest)
    job = library_job(source, target, options)
    if job is None or is_filed(source, target, options):
        return here()
    with WAITING:
        return POOL.file(job, here)


def library_job(source: Any, target: Any, options: dict[str, Any]) -> LibraryJob | None:
    """What a worker has to know to compile a kernel of ours; `None` for others, and for constants that are no plain values."""
    path, name = source.fn.fn.__code__.co_filename, source.fn.fn.__name__
    if str(pathlib.Path(path).parent) != FOLDER or not all(map(is_plain, source.constants.values())):
        return None
    return LibraryJob(
        path, name, (target.backend, target.arch, target.warp_size), source.signature, source.constants, source.attrs, options,
        triton.runtime.cache.triton_key(), triton.knobs.cache.dir,
    )  # fmt: skip


def is_plain(value: Any) -> bool:
    """Whether a constant is a plain value, or a tuple of such."""
    return all(map(is_plain, value)) if type(value) is tuple else isinstance(value, PLAIN)


def is_filed(source: Any, target: Any, options: dict[str, Any]) -> bool:
    """Whether Triton's folder has a kernel already."""
    cache, backend = triton.runtime.cache, triton.compiler.compiler.make_backend(target)
    parsed = backend.parse_options({**options, **source.parse_options()})
    key = cache.get_cache_key(source, backend, parsed, env_vars=triton.compiler.compiler.get_cache_invalidating_env_vars())
    group = cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(f"{source.name[:150]}.json")
    return bool(group)
