"""What code generation hands to the runtime: one standalone Python file per graph, and what is needed to load it.

The file imports only torch and triton. It defines the kernels, a function `call(inputs)` that takes a list of the
graph's inputs (which it empties, so that memory is freed early) and returns a tuple of the graph's outputs, and a
`__main__` that checks the result and times it. This module must not import Triton.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

FlatCall = Callable[[list[Any]], tuple[Any, ...]]
"""The `call` of a program: takes a list of inputs, which it empties, and gives the outputs."""


@dataclasses.dataclass(frozen=True)
class KernelArgument:
    """A parameter of a kernel: a pointer to a dtype, or an integer size.

    `divisible_by_16` holds for every call: pointers are 16-byte aligned, sizes multiples of 16. `wide`: a size of 64 bits.
    `hint`: a size when the kernel was made.
    """

    name: str
    dtype: torch.dtype | None
    divisible_by_16: bool = True
    wide: bool = False
    hint: int = 0


@dataclasses.dataclass(frozen=True)
class KernelSource:
    """One Triton kernel.

    Attributes:
        name: name of the `@triton.jit` function.
        text: its source, decorator included.
        arguments: run-time parameters in order.
        constants: compile-time parameters (block sizes), name to value.
        num_warps, num_stages: launch options.
        bytes_read, bytes_written: at the hinted sizes.
        row: Python text over the size arguments for the length of a row that is held whole, in a block `RBLOCK` that is
            chosen at every launch; empty where `constants` has the block.
    """

    name: str
    text: str
    arguments: tuple[KernelArgument, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    bytes_read: int = 0
    bytes_written: int = 0
    row: str = ""

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the size arguments, which come last."""
        return tuple(argument.name for argument in self.arguments if argument.dtype is None)

    @property
    def hints(self) -> tuple[int, ...]:
        """Those sizes when the kernel was made."""
        return tuple(argument.hint for argument in self.arguments if argument.dtype is None)


@dataclasses.dataclass(frozen=True)
class Program:
    """A generated graph.

    Attributes:
        name: the file's stem.
        text: the whole standalone file.
        kernels: the kernels in it, each once however often it is launched.
        launches: name of each kernel launched, in order.
        extern_calls: target of each extern call, in order, with the reason.
        aligned_inputs: positions of tensor inputs that kernels assume to be 16-byte aligned; the runtime copies others.
        constants: tensors the file expects as `CONSTANTS[name]`; on `device`, but for the `host_constants`.
        device: where it runs.
        key: content hash over text and constants.
        limited: `call` raises `OverflowError`, its list of inputs untouched, for sizes too far from the hints.
        steps: for every step of the schedule the module-level function of the file that runs it (empty: nothing to do),
            and, for a kernel, the buffers behind its tensor arguments.
        fixed_calls: module-level names of hand-written kernels' wrappers, if no size varies: each is always called with
            the same options and tensors of the same sizes and strides.
    """

    name: str
    text: str
    kernels: tuple[KernelSource, ...]
    launches: tuple[str, ...]
    extern_calls: tuple[tuple[str, str], ...]
    aligned_inputs: tuple[int, ...]
    constants: tuple[tuple[str, torch.Tensor], ...]
    device: torch.device
    key: str = ""
    steps: tuple[tuple[str, tuple[str, ...]], ...] = ()
    limited: bool = False
    fixed_calls: tuple[str, ...] = ()
    host_constants: tuple[str, ...] = ()

    @property
    def bytes_moved(self) -> int:
        """Bytes that the kernels read and write in one call, at the sizes seen at compile time."""
        by_name = {kernel.name: kernel.bytes_read + kernel.bytes_written for kernel in self.kernels}
        return sum(map(by_name.__getitem__, self.launches))
