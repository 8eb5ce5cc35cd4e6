"""Launching a compiled kernel with as little Python as possible.

`torch._C._StaticCudaLauncher` (torch 2.11 to 2.15) loads a cubin and launches it without a C compiler at run time; where
it is missing, Triton's own dispatcher launches the kernel. This module is the only one that touches either.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from minicompile.ir.program import KernelSource
from minicompile.runtime.kernel_worker import Machine

Launch = Callable[..., None]

_REMEMBERED_SIZES = 4096


class SizedLaunch:
    """Launches a kernel that takes sizes: `made(sizes)` gives the launch for sizes like these, and is asked once for each."""

    def __init__(self, count: int, made: Callable[[tuple[int, ...]], Launch]) -> None:
        self._start, self._made = -count, made
        self._by_sizes: dict[tuple[int, ...], Launch] = {}

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        sizes = arguments[self._start :]
        launch = self._by_sizes.get(sizes)
        if launch is None:
            if len(self._by_sizes) >= _REMEMBERED_SIZES:
                self._by_sizes.clear()
            launch = self._by_sizes[sizes] = self._made(sizes)
        launch(grid, *arguments)


def load_launch(
    kernel: KernelSource, binary: Machine, device: torch.device, binary_path: pathlib.Path | None
) -> Launch | None:
    """A function `launch(grid, *arguments)` on the current stream of `device`; `None` if Triton must do it.

    `binary_path` is a file that holds exactly the binary's code, if there is one; otherwise a temporary one is made.
    """
    implementation = getattr(torch._C, "_StaticCudaLauncher", None)  # none in a build without CUDA
    metadata = binary.metadata
    if implementation is None or metadata["global_scratch_size"]:
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    function = _load(implementation, binary, index, binary_path)
    types = "".join("O" if argument.dtype is not None else "l" if argument.wide else "i" for argument in kernel.arguments)
    # Written out for this number of arguments, which is a fifth faster than unpacking them. Of a tensor, rather than its
    # address, the launcher would ask the driver on which device it lies.
    names = [f"argument_{place}" for place in range(len(types))]
    values = [f"address({name})" if code == "O" else name for name, code in zip(names, types, strict=True)]
    given = f"({', '.join([*values, 'None', 'None'])})"  # no scratch memory
    settings = f"{metadata['num_warps']}, {metadata['shared']}, {types + 'OO'!r}"
    used = {"run": implementation._launch_kernel, "address": torch.Tensor.data_ptr, "stream": torch._C._cuda_getCurrentRawStream}
    return eval(f"lambda grid, {', '.join(names)}: run({function}, *grid, {settings}, {given}, stream({index}))", used)


def _load(implementation: Any, binary: Machine, index: int, binary_path: pathlib.Path | None) -> int:
    """The `CUfunction` handle. torch 2.11 returns (function, registers, spills), later ones the module first."""
    with torch.cuda.device(index), contextlib.ExitStack() as stack:
        if binary_path is None:
            file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".cubin"))
            file.write(binary.code)
            file.flush()
            binary_path = pathlib.Path(file.name)
        return int(implementation._load_kernel(str(binary_path), binary.metadata["name"], binary.metadata["shared"], index)[-3])
