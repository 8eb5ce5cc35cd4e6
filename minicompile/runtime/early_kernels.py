"""Hand-written kernels compiled beside the stages: a lowered graph says with what they will be called, long before they are.

Their wrappers run in threads, on memory that holds nothing, and launch nothing; a process compiles each kind of call once, so
that the call itself finds it done. Calls of symbolic size are left alone. This module must not run a kernel.
"""

import contextlib
import functools
import os
import threading
from typing import Any, NamedTuple

import torch

import minicompile.kernels as kernels
from minicompile.ir.index import Index
from minicompile.ir.loops import BufferView, ExternKernel, LoweredGraph
from minicompile.kernels.interpret import compile_launches
from minicompile.runtime.library_kernels import share_with_workers

WRAPPERS = frozenset({"attention_forward", "attention_backward", "mask_bounds"})


class Memory(NamedTuple):
    """A tensor that a wrapper will be given."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class SizesVary(Exception):
    """A call cannot be told before its sizes are known."""


class EarlyKernels:
    """What is being compiled, and what was."""

    def __init__(self) -> None:
        self._running: list[tuple[str, threading.Thread]] = []
        self._known: dict[Any, threading.Thread] = {}

    def start(self, lowered: LoweredGraph, ahead: bool = False) -> None:
        """Compile what the hand-written kernels of a graph will launch, without waiting for it.

        `ahead`: long before that, and so only where they are many and workers help.
        """
        for step in lowered.operations:
            if isinstance(step, ExternKernel) and step.target.removeprefix("kernels.") in WRAPPERS:
                try:
                    call = step.target.removeprefix("kernels."), described(step.args), described(step.kwargs)
                except SizesVary:
                    continue
                if (call, lowered.device, ahead) not in self._known:
                    earlier = self._known.get((call, lowered.device, True))
                    thread = threading.Thread(target=compile_call, args=(*call, lowered.device, ahead, earlier), daemon=True)
                    self._known[call, lowered.device, ahead] = thread
                    self._running.append((call[0], thread))
                    thread.start()

    def wait(self, wrapper: str | None = None) -> None:
        """Wait for everything that was started, or all that one wrapper launches."""
        for entry in [entry for entry in self._running if wrapper in (None, entry[0])]:
            entry[1].join()
            with contextlib.suppress(ValueError):  # another thread has waited for it too
                self._running.remove(entry)


def described(value: Any) -> Any:
    """An argument of an extern kernel without the names of its buffers; raises `SizesVary`."""
    if isinstance(value, BufferView):
        return Memory(described(value.sizes), described(value.strides), described(value.offset), value.dtype)
    if isinstance(value, Index):
        if value.constant is None:
            raise SizesVary
        return value.constant
    return tuple(map(described, value)) if isinstance(value, (tuple, list)) else value


def compile_call(
    name: str, args: Any, kwargs: Any, device: torch.device, ahead: bool, earlier: threading.Thread | None
) -> None:
    """Compile what one call of a wrapper launches, but for what an earlier thread does; what goes wrong is left to the call."""
    if earlier is not None:
        earlier.join()

    def given(value: Any) -> Any:
        if isinstance(value, Memory):
            extent = value.offset + 1 + sum((size - 1) * stride for size, stride in zip(value.sizes, value.strides, strict=True))
            return torch.empty(max(extent, 0), dtype=value.dtype, device=device).as_strided(*value[:3])
        return tuple(map(given, value)) if isinstance(value, tuple) else value

    def call() -> None:
        getattr(kernels, name)(*given(args), **dict(given(kwargs)))

    compile_launches(call, device, functools.partial(share_with_workers, only_many=ahead))


EARLY = EarlyKernels()
os.register_at_fork(before=EARLY.wait)  # a child would wait for ever for threads that it does not have
