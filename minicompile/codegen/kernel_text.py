"""A kernel between its writer and its template, and what a writer knows of the graph around the kernel.

This module must not compute anything.
"""

import dataclasses
from collections.abc import Mapping

from minicompile.ir.index import Index
from minicompile.ir.loops import Buffer
from minicompile.ir.program import KernelArgument
from minicompile.ir.schedule import DeviceProperties


@dataclasses.dataclass(frozen=True)
class KernelText:
    """What the template of kernels prints.

    Attributes:
        arguments: run-time parameters: one per buffer of `pointers`, then sizes.
        constants: compile-time parameters.
        setup: lines that define positions and masks.
        body: the other statements.
        functions: device functions called.
        grid: three Python expressions.
        limits: expressions over symbols that must not exceed a number for the kernel to be right.
        row: where the block of the reduction axis is chosen at every launch, the expression of the row's length.
    """

    name: str
    arguments: tuple[KernelArgument, ...]
    pointers: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    setup: tuple[str, ...]
    body: tuple[str, ...]
    functions: tuple[str, ...]
    grid: tuple[str, str, str]
    limits: frozenset[tuple[Index, int]] = frozenset()
    row: str = ""


@dataclasses.dataclass(frozen=True)
class KernelContext:
    """What a kernel needs to know of the graph around it.

    Attributes:
        buffers: every buffer.
        names: identifier of every buffer.
        storage: buffers that share memory have the same value here.
        device: the chip, or the interpreter.
        round_each: round 16-bit values after every operation, as eager does.
        any_size: symbolic sizes may have any value, so that positions over them take 64 bits.
    """

    buffers: Mapping[str, Buffer]
    names: Mapping[str, str]
    storage: Mapping[str, str]
    device: DeviceProperties
    round_each: bool = False
    any_size: bool = False
