"""Loading a program: its file, its launchers, inputs at odd addresses."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from minicompile.ir.program import KernelArgument, KernelSource, Program
from minicompile.runtime import kernel_worker
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.kernel_binary import compile_kernel
from minicompile.runtime.program_loader import align_inputs, for_any_size, load_program

KERNEL = '''@triton.jit
def double_kernel(source, target, BLOCK: tl.constexpr):
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + x, tl.load(source + x, mask=x < 100, other=0.0) * 2.0, mask=x < 100)
'''

FILE = f'''import torch
import triton
import triton.language as tl

CONSTANTS = {{}}


{KERNEL}

def run_double_kernel(grid, *arguments):
    double_kernel[grid](*arguments, BLOCK=128)


def call(inputs):
    (source,) = inputs
    inputs.clear()
    target = torch.empty_strided((100,), (1,), dtype=torch.float32, device=source.device)
    run_double_kernel((1, 1, 1), source, target)
    return (target + CONSTANTS["shift"],)
'''


def program(device: str) -> Program:
    kernel = KernelSource(
        name="double_kernel",
        text=KERNEL,
        arguments=(KernelArgument("source", torch.float32), KernelArgument("target", torch.float32)),
        constants=(("BLOCK", 128),),
        num_warps=4,
        num_stages=1,
    )
    return Program(
        name="doubling",
        text=FILE,
        kernels=(kernel,),
        launches=("double_kernel",),
        extern_calls=(),
        aligned_inputs=(0,),
        constants=(("shift", torch.tensor(0.5)),),
        device=torch.device(device),
        key="0123456789abcdef" * 4,
    )


def check(device: str, cache: CodeCache | None) -> pathlib.Path:
    call, path = load_program(program(device), cache)
    for offset in (0, 1, 3):
        source = torch.randn(104, device=device)[offset : offset + 100]
        inputs = [source]
        torch.testing.assert_close(call(inputs)[0], source * 2 + 0.5)
        assert inputs == []
    return path


def test_a_program_runs_on_the_cpu_from_the_cache_folder(tmp_path: pathlib.Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    path = check("cpu", cache)
    assert path.is_relative_to(cache.directory) and path.read_text() == FILE


def test_a_damaged_program_file_is_written_again(tmp_path: pathlib.Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    path = check("cpu", cache)
    path.write_text("raise SystemExit('foreign code')")
    check("cpu", cache)
    assert path.read_text() == FILE


def test_without_a_cache_a_program_still_runs() -> None:
    assert check("cpu", None).read_text() == FILE


WITHOUT_A_CACHE = """
import os, pathlib, sys, torch, minicompile
compiled = minicompile.compile(lambda x: x + 1, options={"cache": False})
compiled(torch.ones(3))
if os.fork() == 0:
    sys.exit()
os.wait()
print([pathlib.Path(path).exists() for path in minicompile.source_paths(compiled)])
"""


def test_without_a_cache_files_last_as_long_as_the_process_that_wrote_them(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", WITHOUT_A_CACHE]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout == "[True]\n", done.stderr
    assert not list(tmp_path.glob("minicompile-*"))



@pytest.mark.gpu
def test_a_program_runs_on_the_gpu_from_machine_code(tmp_path: pathlib.Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    check("cuda", cache)
    check("cuda", cache)
    check("cuda", None)


def test_machine_code_is_compiled_once_and_then_read_from_the_cache(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    cache = CodeCache(tmp_path / "cache")
    described = program("cpu")
    file = tmp_path / "doubling.py"
    file.write_text(FILE)
    namespace: dict[str, object] = {"__name__": "doubling"}
    exec(compile(FILE, str(file), "exec"), namespace)
    target = GPUTarget("cuda", 90, 32)
    first = compile_kernel(described.kernels[0], namespace["double_kernel"], target, cache)
    assert first.metadata["name"] == "double_kernel" and b"\n" in first.code and len(first.code) > 500

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(kernel_worker, "compiled", refuse)
    assert compile_kernel(described.kernels[0], namespace["double_kernel"], target, cache) == first


def test_an_overwritten_input_at_an_odd_address_is_changed_in_place() -> None:
    def add_one(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        assert all(tensor.data_ptr() % 16 == 0 for tensor in inputs)
        inputs[0].add_(1)
        return ()

    storage = torch.zeros(40)
    view = storage[1:31].view(5, 6).t()
    align_inputs(add_one, (0,), frozenset({0}))([view])
    assert storage.sum() == 30 and storage[0] == 0 and storage[31] == 0
    expanded = storage[3:4].expand(4, 1)
    assert align_inputs(lambda inputs: (inputs[0] * 2,), (0,))([expanded])[0].tolist() == [[2.0]] * 4


@pytest.mark.gpu
def test_a_program_without_kernels_of_its_own_runs_on_the_gpu() -> None:
    text = "CONSTANTS = {}\n\n\ndef call(inputs):\n    return (inputs[0] @ inputs[0],)\n"
    only_extern = dataclasses.replace(program("cuda"), text=text, kernels=(), launches=(), constants=(), key="f" * 64)
    call, _ = load_program(only_extern, None)
    x = torch.randn(8, 8, device="cuda")
    torch.testing.assert_close(call([x])[0], x @ x)


def test_a_program_that_refuses_sizes_is_replaced_for_those_alone() -> None:
    made = []

    def limited(inputs: list[Any]) -> tuple[Any, ...]:
        if inputs[0] > 10:
            raise OverflowError
        (value,) = inputs
        inputs.clear()
        if value < 0:
            raise OverflowError("not a refusal")
        return (value,)

    def other() -> Any:
        made.append(1)
        return lambda inputs: (-inputs[0],)

    call = for_any_size(limited, other)
    assert call([3]) == (3,) and not made
    assert call([11]) == (-11,) and call([12]) == (-12,) and made == [1]
    with pytest.raises(OverflowError, match="not a refusal"):
        call([-1])
