"""CPU tensors by the routes that only a GPU takes: planned and lowered as for an H200, run by Triton's interpreter.

    with planned_for_gpu(): check(F.scaled_dot_product_attention, q, k, v)

Attention goes to our kernels, forward, backward and decode, with the tiles of their tables; convolutions get `channels_last`
and their biases apart; small products are loops and the others are given out by the model of the chip; generated kernels
have the chip's tiles, splits and batches. `thresholds_lowered` lets small tensors take what only large ones would.

What stays the CPU's: the tensors, PyTorch's own kernels, and what imitates them. Warp-specialised kernels (Gluon) do not run
under the interpreter, nor do TMA's own rules and rounding by tensor cores show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from minicompile import compiler, gpu
from minicompile.graph import layout, linear_cross_entropy
from minicompile.ir import operators
from minicompile.ir.program import KernelSource
from minicompile.ir.schedule import DeviceProperties
from minicompile.kernels import attention_problem
from minicompile.lowering import attention, indexing, products
from minicompile.runtime import program_loader
from minicompile.runtime.kernel_binary import for_sizes
from minicompile.scheduling import batch, domain, split, tiling, unroll

loss_kernels = importlib.import_module("minicompile.kernels.linear_cross_entropy")  # a function has the module's name
H200 = DeviceProperties(name="NVIDIA H200", kind="cuda")
SMALL_CHIP = dataclasses.replace(H200, multiprocessors=2)


def launched_as_on_gpu(kernel: KernelSource, launch: Callable[..., None], sizes: Sequence[int]) -> Callable[..., None]:
    """A launch with the blocks that a GPU's would have for rows of varying lengths."""
    constants = dict(for_sizes(kernel, tuple(sizes)).constants)
    return lambda *args, **meta: launch(*args, **constants, **meta)


ROUTES: tuple[tuple[Any, str, Any], ...] = (
    (compiler, "device_properties", lambda device: H200),
    (gpu, "holds", lambda value: True),
    (operators, "_fused_in_eager", lambda query, value: True),
    (gpu, "processors", lambda tensor: H200.multiprocessors),
    (program_loader, "_interpreted", launched_as_on_gpu),
    (compiler, "graph_key", lambda captured, config: None),  # the disk's graphs of CPU tensors are planned for the CPU
)

THRESHOLDS: tuple[tuple[Any, str, Any], ...] = (
    (compiler, "device_properties", lambda device: SMALL_CHIP),
    (layout, "LEAST_CHANNELS", 1),
    (linear_cross_entropy, "LEAST_BYTES", 0),
    (loss_kernels, "LEAST_ROWS", 4),
    (loss_kernels, "CHUNK_ELEMENTS", 16),
    (loss_kernels, "BLOCK", 8),
    (attention, "SHORTEST_BOUNDED", 8),
    (attention_problem, "HALVES_FROM", 32),
    (attention_problem, "ONE_HALF_FROM", 32),
    (products, "LEAST_OPERATIONS_A_BYTE", {2: 0, 4: 0}),
    (products, "SMALL", 64),
    (indexing, "MANY_TO_A_ROW", 2),
    (unroll, "LEAST_RESULTS", 1),
    (split, "WORTH_A_LAUNCH", 64),
    (split, "WORTH_A_SECOND_READ", 256),
    (split, "WORTH_CROSSING", 64),
    (split, "LEAST_CHUNK", 2),
    (split, "CHUNK_BYTES", 16),
    (split, "ROW_REGISTERS", 768),
    (tiling, "ROW_REGISTERS", 256),
    (tiling, "LOOPED_BLOCK", 32),
    (tiling, "COLUMN_TILE", 64),
    (batch, "SMALL_RESULT", 64),
    (domain, "LEAST_ROW", 4),
    (domain, "VALUES_OF_A_ROW", 1),
)


@contextlib.contextmanager
def _changed(changes: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def planned_for_gpu() -> contextlib.AbstractContextManager[None]:
    """Every route that is chosen inside is a GPU's."""
    return _changed(ROUTES)


def thresholds_lowered() -> contextlib.AbstractContextManager[None]:
    """Splits, crossed walks, looped rows, chunked losses and padded products begin at a few elements."""
    return _changed(THRESHOLDS)
