"""Eager, `torch.compile` and minicompile side by side on one call: time, kernels, bytes, memory, compile time, error.

Compilers are handed in. This module must not print.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minicompile.report import text_page
from minicompile.report.accuracy import output_accuracies
from minicompile.report.clock import Clock, synchronize
from minicompile.report.collect import steps_of
from minicompile.report.document import Section, Table, amount, duration, number
from minicompile.report.sandbox import Sandbox, leaves

NO_KERNEL = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})


@dataclasses.dataclass(frozen=True)
class Column:
    """The figures of one compiler; `None` where a figure cannot be had, `failure` where it does not run."""

    name: str
    call_us: float | None = None
    kernels: int | None = None
    bytes_moved: int | None = None
    peak_bytes: int | None = None
    compile_seconds: float | None = None
    worst_ulp: float | None = None
    mean_ulp: float | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One function under several compilers; prints as a table."""

    function: str
    device: str
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        header = ("compiler", "call", "kernels", "bytes", "peak", "compile s", "mean ulp", "worst ulp")
        rows = [
            (c.name, duration(c.call_us), number(c.kernels), amount(c.bytes_moved), amount(c.peak_bytes),
             number(c.compile_seconds, "{:.2f}"), number(c.mean_ulp, "{:.3g}"), number(c.worst_ulp, "{:.3g}"))
            for c in self.columns
        ]  # fmt: skip
        notes = [f"{column.name} failed: {column.failure}" for column in self.columns if column.failure]
        if self.device == "cpu":
            notes.append("without a GPU, minicompile's time is that of Triton's interpreter")
        return text_page.page([Section("Comparison", f"{self.function} on {self.device}", [Table(header, rows), *notes])])

    def to_json(self) -> str:
        """Every figure as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def compare(
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compilers: dict[str, Callable[[Any], Any]],
    graphs: Callable[[Any], Any],
    clock: Callable[[str], Clock] = Clock,
) -> Comparison:
    """One call of `target` under every compiler; `graphs` gives what minicompile made, `None` for others."""
    target = getattr(target, "__wrapped__", target)
    sandbox = Sandbox(target, args, kwargs)
    watch = clock(sandbox.device)
    try:
        exact = sandbox.once(sandbox.in_double(), double=True)
    except Exception:  # no fp64 form: no errors
        exact = None
    columns = []
    for name, compiler in compilers.items():
        try:
            columns.append(measured(name, compiler, sandbox, watch, exact, graphs))
        except Exception as failure:  # one compiler's failure must not hide the others' figures
            columns.append(Column(name, failure=f"{type(failure).__name__}: {str(failure).splitlines()[0][:120]}"))
    label = torch.cuda.get_device_name() if watch.is_gpu else "cpu"
    return Comparison(getattr(target, "__qualname__", type(target).__name__), label, tuple(columns))


def measured(
    name: str, compiler: Callable[[Any], Any], sandbox: Sandbox, clock: Clock, exact: Any, graphs: Callable[[Any], Any]
) -> Column:
    """The figures of one compiler."""
    function = compiler(sandbox.target)
    start = time.perf_counter()
    found = sandbox.once(function)
    synchronize(sandbox.device)
    first = time.perf_counter() - start
    with sandbox.untouched():
        call = sandbox.prepared(function)
        call_us = clock.call_us(call)
        kernels, moved = None, None
        if (made := graphs(function)) is not None:
            steps = [step for _, _, step in steps_of(made)]
            kernels, moved = len(steps), sum(step.bytes_moved for step in steps)
        elif name == "eager" or clock.is_gpu:
            kernels, moved = counted(call, sandbox.device)
        peak = clock.peak_bytes(call)
    judged = output_accuracies(found, found, exact, [""] * len(found)) if exact is not None else []
    return Column(
        name, call_us, kernels, moved if name != "torch.compile" else None, peak,
        None if name == "eager" else max(0.0, first - call_us / 1e6),
        max((entry.compiled.worst_ulp for entry in judged), default=None),
        max((entry.compiled.mean_ulp for entry in judged), default=None),
    )  # fmt: skip


class Work(TorchDispatchMode):
    """Counts operators that launch something, and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.num_bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator."""
        result = function(*args, **(kwargs or {}))
        if not function.is_view and function.overloadpacket.__name__ not in NO_KERNEL:
            tensors = leaves((args, kwargs or {}, result))
            self.kernels += 1
            self.num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def counted(call: Callable[[], Any], device: str) -> tuple[int, int | None]:
    """Kernels of one call by the profiler on a GPU, operators elsewhere; bytes of the operators' tensors."""
    with Work() as work:
        call()
    if device != "cuda":
        return work.kernels, work.num_bytes
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        synchronize(device)
    kernels = sum("mem" not in event.name.lower()[:4] for event in profile.events() if event.device_type.name == "CUDA")
    return kernels, work.num_bytes
