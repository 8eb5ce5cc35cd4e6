"""A generated program's file becomes a module; its kernels are compiled side by side and bound to fast launchers.

The file is complete by itself. Loading only replaces its `run_*` launchers, which would go through Triton's dispatcher,
by precompiled ones. On a CPU they are left alone: the file runs its kernels under Triton's interpreter.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import hashlib
import importlib.util
import marshal
import os
import pathlib
import shutil
import tempfile
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

from minicompile.ir.program import FlatCall, KernelSource, Program
from minicompile.kernels import interpret
from minicompile.runtime.code_cache import CodeCache, write_atomically
from minicompile.runtime.kernel_binary import binary_key, compile_kernel, for_sizes, is_kept, row_length
from minicompile.runtime.launcher import SizedLaunch, load_launch
from minicompile.runtime.recorded_call import FixedCall, RecordedCall
from minicompile.runtime.worker_pool import MOST_HERE, POOL, most_workers

RECORDED = ("attention_forward", "attention_backward", "mask_bounds", "fused_matmul")

# Private, the same in torch 2.11 to 2.15.
_autocast_is_on = torch._C._is_any_autocast_enabled
_autocast_off = torch._C._DisableAutocast


def load_program(
    program: Program, cache: CodeCache | None, overwritten_inputs: Sequence[int] = (),
    other: Callable[[], FlatCall] | None = None,
) -> tuple[FlatCall, pathlib.Path]:
    """Import the program's file, compile its kernels, and return its `call` and where the file lies.

    `overwritten_inputs` are the positions of inputs whose memory the program changes. `other` makes the call for sizes that a
    limited program refuses.
    """
    module = bound_module(program, cache)
    call = for_any_size(module.call, other) if program.limited and other is not None else module.call
    aligned = align_inputs(call, program.aligned_inputs, frozenset(overwritten_inputs), program.name)
    if program.device.type == "cpu":
        aligned = undone_on_failure(aligned, overwritten_inputs)
    if program.extern_calls:
        aligned = without_autocast(aligned)
    return aligned, pathlib.Path(str(module.__file__))


def bound_module(program: Program, cache: CodeCache | None) -> types.ModuleType:
    """The program's file as a module whose kernels are compiled, and launched in the cheapest way."""
    module = _import_file(program, _write_file(program, cache), cache)
    for name, constant in program.constants:
        module.CONSTANTS[name] = constant if name in program.host_constants else constant.to(program.device)
    if program.device.type == "cuda":
        _bind_kernels(program, module, cache)
        _bind_handwritten(program, module)
    elif program.device.type == "cpu":
        _bind_interpreter(program, module)
    return module


def _write_file(program: Program, cache: CodeCache | None) -> pathlib.Path:
    """The file on disk: in the cache if that can be used, otherwise in a temporary folder of this process."""
    content = program.text.encode()
    if cache is not None and cache.usable:
        path = cache.directory / "programs" / program.key[:2] / program.key / f"{program.name}.py"
        if _kept(path, content):
            return path
    path = _own_folder(os.getpid()) / program.key / f"{program.name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@functools.cache
def _own_folder(process: int) -> pathlib.Path:
    """A temporary folder that goes when `process`, this one, ends; a child that it forks gets one of its own."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="minicompile-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == process else None)
    return folder


def _kept(path: pathlib.Path, content: bytes) -> bool:
    """Whether a file has this content, written now if need be."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return True
    return write_atomically(path, content)


def _import_file(program: Program, path: pathlib.Path, cache: CodeCache | None) -> types.ModuleType:
    """The file as a module that lives as long as its functions; its bytecode is kept in the cache, not beside it."""
    module = types.ModuleType(f"minicompile_program_{program.key[:16]}_{program.name}")
    module.__file__ = str(path)
    exec(_bytecode(program, path, cache), module.__dict__)
    return module


def _bytecode(program: Program, path: pathlib.Path, cache: CodeCache | None) -> types.CodeType:
    magic = importlib.util.MAGIC_NUMBER
    key = hashlib.sha256(repr((program.text, str(path), magic)).encode()).hexdigest()
    stored = cache.read("bytecode", key) if cache else None
    if stored is not None:
        return marshal.loads(stored)
    code = compile(program.text, str(path), "exec", dont_inherit=True)
    if cache:
        cache.write("bytecode", key, marshal.dumps(code))
    return code


def _bind_kernels(program: Program, module: types.ModuleType, cache: CodeCache | None) -> None:
    """Compile every kernel, in threads, some of which wait for worker processes, and rebind the launchers."""
    with torch.cuda.device(program.device):
        target = triton.runtime.driver.active.get_current_target()
    bind = functools.partial(_bind_kernel, module=module, target=target, device=program.device, cache=cache)
    if len(program.kernels) <= 1:
        list(map(bind, program.kernels))
        return
    POOL.prepare(sum(not is_kept(kernel, target, cache) for kernel in program.kernels))
    workers = min(len(program.kernels), max(os.cpu_count() or 1, most_workers() + MOST_HERE), 32)
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="minicompile-kernels") as pool:
        list(pool.map(bind, program.kernels))


def _bind_handwritten(program: Program, module: types.ModuleType) -> None:
    """Remember what the wrappers of hand-written kernels launch, so that later calls only launch."""
    recorded = FixedCall if program.fixed_calls else RecordedCall
    for name in program.fixed_calls or RECORDED:
        function: Any = getattr(module, name, None)
        if getattr(function, "__name__", "") in RECORDED:
            setattr(module, name, recorded(function))


def _bind_interpreter(program: Program, module: types.ModuleType) -> None:
    """Run the kernels on CPU tensors through our own use of Triton's interpreter, which knows more dtypes and sizes."""
    for kernel in program.kernels:
        launch = functools.partial(interpret.interpret, getattr(module, kernel.name))
        made = functools.partial(_interpreted, kernel, launch)
        bound = SizedLaunch(len(kernel.sizes), made) if kernel.row else made(())
        setattr(module, f"run_{kernel.name}", bound)


def _interpreted(kernel: KernelSource, launch: Callable[..., None], sizes: Sequence[int]) -> Callable[..., None]:
    """The launch under the interpreter, for which a row's block is exactly as long as the row."""
    row = {"RBLOCK": max(1, row_length(kernel, sizes))} if kernel.row else {}
    return functools.partial(launch, **(dict(kernel.constants) | row))


def _bind_kernel(
    kernel: KernelSource, module: types.ModuleType, target: Any, device: torch.device, cache: CodeCache | None
) -> None:
    function, fallback = getattr(module, kernel.name), getattr(module, f"run_{kernel.name}")
    known: dict[KernelSource, Callable[..., None]] = {}
    lock = threading.Lock()

    def launch(sizes: tuple[int, ...]) -> Callable[..., None]:
        with lock:
            special = for_sizes(kernel, sizes)
            if special not in known:
                binary = compile_kernel(special, function, target, cache, module.__file__)
                path = _binary_file(special, binary.code, target, cache)
                known[special] = load_launch(special, binary, device, path) or fallback
            return known[special]

    launched = launch(kernel.hints)
    setattr(module, f"run_{kernel.name}", SizedLaunch(len(kernel.sizes), launch) if kernel.sizes else launched)


def _binary_file(kernel: KernelSource, code: bytes, target: Any, cache: CodeCache | None) -> pathlib.Path | None:
    """A file with just the machine code, beside the cached kernel, for the driver to load."""
    if cache is None or not cache.usable:
        return None
    path = cache.path("cubins", binary_key(kernel, target))
    return path if _kept(path, code) else None


def without_autocast(call: FlatCall) -> FlatCall:
    """`call` with autocast switched off on every device.

    The casts that autocast asks for stand in the graph, put there when it was captured. An extern kernel called under an
    autocast that is still on would cast a second time, also where the user had switched autocast off inside.
    """

    @functools.wraps(call)
    def run(inputs: list[Any]) -> tuple[Any, ...]:
        if not _autocast_is_on():
            return call(inputs)
        with _autocast_off():
            return call(inputs)

    return run


def for_any_size(call: FlatCall, other: Callable[[], FlatCall]) -> FlatCall:
    """`call`, and for sizes that it refuses the call that `other` makes, once."""
    made: list[FlatCall] = []

    @functools.wraps(call)
    def either(inputs: list[Any]) -> tuple[Any, ...]:
        try:
            return call(inputs)
        except OverflowError:
            if not inputs:
                raise  # not a refusal: the program had begun
            if not made:
                made.append(other())
            return made[0](inputs)

    return either


def undone_on_failure(call: FlatCall, overwritten: Sequence[int]) -> FlatCall:
    """`call`, after a failure of which inputs that it had begun to change and random numbers are as before: eager runs then."""

    @functools.wraps(call)
    def run(inputs: list[Any]) -> tuple[Any, ...]:
        before, random = [(inputs[position], inputs[position].clone()) for position in overwritten], torch.get_rng_state()
        try:
            return call(inputs)
        except Exception:  # of a kernel's assertion or of an operator of PyTorch
            torch.set_rng_state(random)
            for tensor, value in before:
                tensor.copy_(value)
            raise

    return run


def align_inputs(
    call: FlatCall, aligned_inputs: Sequence[int], overwritten: frozenset[int] = frozenset(), name: str = "program"
) -> FlatCall:
    """`call`, with inputs at odd addresses moved to aligned memory first and, if written to, moved back afterwards.

    Under PyTorch's profiler it is a range called `name`.
    """
    positions = tuple(aligned_inputs)
    profiling, record = torch.autograd._profiler_enabled, torch.profiler.record_function

    @functools.wraps(call)
    def aligned_call(inputs: list[Any]) -> tuple[Any, ...]:
        if profiling():
            with record(name):
                return _call_with_copies(call, inputs, positions, overwritten)
        for position in positions:
            if inputs[position].data_ptr() & 15:
                return _call_with_copies(call, inputs, positions, overwritten)
        return call(inputs)

    return aligned_call


def _call_with_copies(
    call: FlatCall, inputs: list[Any], positions: Sequence[int], overwritten: frozenset[int]
) -> tuple[Any, ...]:
    moved_back = []
    for position in positions:
        original = inputs[position]
        if original.data_ptr() & 15:
            inputs[position] = copy = _aligned_copy(original)
            if position in overwritten:
                moved_back.append((original, copy))
    outputs = call(inputs)
    for original, copy in moved_back:
        original.copy_(copy)
    return outputs


def _aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, sizes and strides in fresh memory (expanded dimensions stay expanded)."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    storage = torch.empty(max(extent, 0) if tensor.numel() else 0, dtype=tensor.dtype, device=tensor.device)
    copy = storage.as_strided(tensor.shape, tensor.stride())
    storage.copy_(torch.as_strided(tensor, storage.shape, (1,), tensor.storage_offset()))
    return copy
