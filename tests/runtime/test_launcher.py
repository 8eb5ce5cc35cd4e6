"""Kernels that take sizes are launched with machine code made for sizes like those of the call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minicompile.ir.program import KernelArgument, KernelSource
from minicompile.runtime import launcher
from minicompile.runtime.kernel_binary import for_sizes, triton_type
from minicompile.runtime.kernel_worker import Machine
from minicompile.runtime.launcher import SizedLaunch

KERNEL = KernelSource(
    "rows", "", (KernelArgument("x", torch.float32), KernelArgument("s0", None, False), KernelArgument("s1", None, False)),
    (("XBLOCK", 4), ("RBLOCK", 128)), 4, 1, row="s1 * 2",
)  # fmt: skip


def test_the_launch_for_sizes_is_asked_for_once() -> None:
    asked, launched = [], []

    def made(sizes: tuple[int, ...]) -> Any:
        asked.append(sizes)
        return lambda grid, *arguments: launched.append((grid, arguments))

    launch = SizedLaunch(2, made)
    for sizes in ((3, 16), (4, 16), (3, 16)):
        launch((1, 1, 1), "x", *sizes)
    assert asked == [(3, 16), (4, 16)]
    assert launched == [((1, 1, 1), ("x", 3, 16)), ((1, 1, 1), ("x", 4, 16)), ((1, 1, 1), ("x", 3, 16))]


def test_machine_code_is_special_in_divisibility_and_in_the_length_of_a_row() -> None:
    special = for_sizes(KERNEL, (32, 100))
    assert [argument.divisible_by_16 for argument in special.arguments] == [True, True, False]
    assert dict(special.constants) == {"XBLOCK": 4, "RBLOCK": 256} and special.num_warps == 8
    assert for_sizes(KERNEL, (48, 65)) == for_sizes(KERNEL, (64, 127)) == special
    assert for_sizes(KERNEL, (48, 64)) != special
    assert dict(for_sizes(KERNEL, (3, 4)).constants)["RBLOCK"] == 8 and for_sizes(KERNEL, (3, 4)).num_warps == 1


def test_sizes_are_32_bits_wide_unless_they_need_more() -> None:
    assert triton_type(KERNEL.arguments[1]) == "i32"
    assert triton_type(KernelArgument("s0", None, wide=True)) == "i64"


def test_a_launch_passes_addresses_numbers_and_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[Any, ...]] = []
    driver = SimpleNamespace(_launch_kernel=lambda *arguments: launched.append(arguments))
    monkeypatch.setattr(torch._C, "_StaticCudaLauncher", driver, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False)
    monkeypatch.setattr(launcher, "_load", lambda *arguments: 5)
    machine = Machine(b"", {"name": "k", "shared": 16, "num_warps": 4, "global_scratch_size": None})
    arguments = *map(KernelArgument, "xy", (torch.float32, torch.int64)), *(KernelArgument("s", None, wide=wide) for wide in (False, True))
    kernel = KernelSource("k", "", arguments, (), 4, 1)
    x, y = torch.ones(4), torch.ones(4, dtype=torch.int64)
    launch = launcher.load_launch(kernel, machine, torch.device("cuda", 1), None)
    assert launch is not None
    launch((2, 3, 1), x, y, 9, 1 << 40)
    values = (x.data_ptr(), y.data_ptr(), 9, 1 << 40, None, None)
    assert launched == [(5, 2, 3, 1, 4, 16, "OOilOO", values, 71)]
