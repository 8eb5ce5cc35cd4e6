"""Triton's hash of its own files, by which it names what it compiled, remembered between processes.

Triton reads its whole library for it, 400 MB, in every process that launches a hand-written kernel: 0.4 s. While none of its
files has another size or time of change, the hash is taken from the disk; otherwise it is computed beside whatever goes on.

Private: `triton.runtime.cache.triton_key`, the same in Triton 3.6 to 3.9. This module must not change what the hash is.
"""

import functools
import hashlib
import pathlib
import threading

import triton

from minicompile.runtime.code_cache import CodeCache

KIND = "hashes"
STARTED = threading.Lock()
"""Held from the first preparation on: one is enough for a process."""


def prepare_triton_key(cache: CodeCache | None) -> None:
    """Start to give Triton its hash, beside whatever goes on."""
    if STARTED.acquire(blocking=False):
        threading.Thread(target=give_triton_key, args=(cache,), name="minicompile-triton-key", daemon=True).start()


def give_triton_key(cache: CodeCache | None) -> None:
    """Give Triton its hash as it was kept, or have it computed, and keep it."""
    module = triton.runtime.cache
    name = state_of(pathlib.Path(triton.__file__).parent)
    kept = cache.read(KIND, name) if cache else None
    if kept is not None:
        module.triton_key = functools.cache(kept.decode)
    else:
        value = module.triton_key()
        if cache:
            cache.write(KIND, name, value.encode())


def state_of(folder: pathlib.Path) -> str:
    """A hash over the paths, sizes and times of change of the code in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".so", ".c"))
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
