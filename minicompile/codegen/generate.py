"""A schedule to one standalone Python file and what the runtime needs to know of it.

This module must not know Triton's syntax or the host's: `triton_kernel` and `wrapper` do.
"""

import dataclasses
import hashlib
from collections.abc import Mapping

import torch

from minicompile.codegen import device_sources
from minicompile.codegen.epilogue import EpilogueText, EpilogueWriter
from minicompile.codegen.kernel_text import KernelContext, KernelText
from minicompile.codegen.looped_kernel import write_kernel
from minicompile.codegen.naming import Namer, buffer_names
from minicompile.codegen.render import kernel_source, render
from minicompile.codegen.wrapper import FUSED_MATMUL, HostWriter, Launch, sizes_text
from minicompile.config import Config
from minicompile.ir.index import Index, as_index, hint
from minicompile.ir.loops import Buffer, ExternKernel, LoweredGraph, numbered
from minicompile.ir.program import KernelSource, Program
from minicompile.ir.schedule import DeviceProperties, KernelGroup, Schedule

EMBEDDED_CONSTANT = 64
"""Constants of at most this many elements are written into the file, so that it runs by itself."""


@dataclasses.dataclass(frozen=True)
class _Printed:
    """A kernel in the file: what the runtime is told, its parts, the comment above it, its pointers by number."""

    source: KernelSource
    text: KernelText
    definition: str
    comment: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def settings(self) -> str:
        """How the file launches it."""
        values: dict[str, int | str] = dict(self.source.constants)
        if self.source.row:
            values["RBLOCK"] = f"lambda {', '.join(self.source.sizes)}: {self.source.row}"
        constants = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"dict({constants}), num_warps={self.source.num_warps}, num_stages={self.source.num_stages}"


def generate_program(
    schedule: Schedule, config: Config, device: DeviceProperties, reference: str | None = None, any_size: bool = False
) -> Program:
    """The program of a whole graph; with `any_size` (as for the schedule) its positions over symbolic sizes take 64 bits.

    `reference` is the text of a function `reference(*inputs)` that computes the graph's outputs with torch's own
    operators; the file's `__main__` checks against it.
    """
    target = schedule.graph.device
    names = buffer_names(schedule)
    storage, emulated = schedule.memory.roots, config.emulate_precision_casts
    context = KernelContext(schedule.graph.buffers, names, storage, device, emulated, any_size)
    namer = Namer({*names.values(), *(name.removeprefix("run_") for name in names.values())})
    printed, launches, launched = _print_kernels(schedule, context, namer)
    epilogues = EpilogueWriter(context, namer)
    for number, step in enumerate(schedule.steps):
        if isinstance(step, ExternKernel) and step.epilogue is not None:
            made = epilogues.write(step)
            launches[number] = Launch(made.name, ("1", "1", "1"), made.pointers, ())
    kernel_names = tuple(kernel.source.name for kernel in printed) + tuple(e.name for e in epilogues.written)
    limits = frozenset[tuple[Index, int]]().union(*(kernel.text.limits for kernel in printed))
    host = HostWriter(schedule, names, kernel_names, target, limits)
    host.write(launches)
    text = _file_text(schedule, printed, epilogues.written, host, target, reference)
    constants = tuple(schedule.graph.constants.items())
    return Program(
        name=schedule.graph.name,
        text=text,
        kernels=tuple(kernel.source for kernel in printed),
        launches=tuple(launched),
        extern_calls=tuple((s.target, s.reason) for s in schedule.steps if isinstance(s, ExternKernel)),
        aligned_inputs=_aligned_inputs(schedule, launches),
        constants=constants,
        device=target,
        key=_content_key(text, constants),
        steps=tuple(host.steps),
        limited=bool(limits),
        fixed_calls=tuple(host.fixed.values()),
        host_constants=tuple(name for name, _ in constants if schedule.graph.buffers[name].device.type == "cpu"),
    )


def _print_kernels(
    schedule: Schedule, context: KernelContext, namer: Namer
) -> tuple[list[_Printed], dict[int, Launch | None], list[str]]:
    """Every distinct kernel once, how each step launches its own, and the names in launch order."""
    printed: dict[object, _Printed] = {}
    launches: dict[int, Launch | None] = {}
    launched: list[str] = []
    for number, group in enumerate(schedule.steps):
        if not isinstance(group, KernelGroup):
            continue
        if any(tile.axis.size.constant == 0 for tile in group.tile.parallel):
            launches[number] = None
            continue
        key, buffers = kernel_shape(group, context)
        kernel = printed.get(key)
        if kernel is None:
            kernel = printed[key] = _print_kernel(group, namer.fresh(f"{group.name}_kernel"), context, buffers)
        pointers = tuple(buffers[n] for n in kernel.numbers)
        launches[number] = Launch(kernel.source.name, kernel.text.grid, pointers, kernel.source.sizes)
        launched.append(kernel.source.name)
    return list(printed.values()), launches, launched


def kernel_shape(group: KernelGroup, context: KernelContext) -> tuple[object, list[str]]:
    """Everything that a kernel's text depends on but the names of buffers, and these in order: equal shapes share a kernel.

    Expressions are interned, so that comparing shapes is comparing identities.
    """
    loops, names = numbered(group.loops)
    facts = tuple((new, context.buffers[loop.buffer].dtype, loop.buffer in group.stored) for new, loop in zip(loops, group.loops))
    roots: dict[str, int] = {}
    shared = tuple(roots.setdefault(context.storage.get(name, name), len(roots)) for name in names)
    plan = (group.tile.axes, group.tile.strategy, group.tile.num_warps, group.tile.num_stages)
    return (facts, shared, plan), names


def _print_kernel(group: KernelGroup, name: str, context: KernelContext, order: list[str]) -> _Printed:
    text = write_kernel(group, name, context)
    definition = kernel_source(text)
    source = KernelSource(
        name=name,
        text="\n\n\n".join([*device_sources.sources(text.functions), definition]),
        arguments=text.arguments,
        constants=text.constants,
        num_warps=group.tile.num_warps,
        num_stages=group.tile.num_stages,
        bytes_read=group.bytes_read,
        bytes_written=group.bytes_written,
        row=text.row,
    )
    return _Printed(source, text, definition, _comment(group), tuple(order.index(buffer) for buffer in text.pointers))


def _comment(group: KernelGroup) -> tuple[str, ...]:
    """The user's lines behind a kernel."""
    lines: dict[str, None] = {}
    for origin in dict.fromkeys(origin for loop in group.loops for origin in loop.origins):
        if origin.location is not None:
            code = f": {origin.location.text.strip()}" if origin.location.text.strip() else ""
            lines[f"{origin.location}{code}".splitlines()[0]] = None
    return tuple(lines)


def _aligned_inputs(schedule: Schedule, launches: Mapping[int, Launch | None]) -> tuple[int, ...]:
    passed = {name for launch in launches.values() if launch is not None for name in launch.pointers}
    for step in schedule.steps:
        if isinstance(step, ExternKernel) and step.target == FUSED_MATMUL:
            passed.update(step.reads)
    return tuple(position for position, name in enumerate(schedule.graph.inputs) if name in passed)


def _content_key(text: str, constants: tuple[tuple[str, torch.Tensor], ...]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in constants:
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return digest.hexdigest()


def _file_text(
    schedule: Schedule,
    printed: list[_Printed],
    epilogues: list[EpilogueText],
    host: HostWriter,
    device: torch.device,
    reference: str | None,
) -> str:
    called = {name for kernel in printed for name in kernel.text.functions}.union(*(e.functions for e in epilogues))
    definitions = [*device_sources.sources(called), *(epilogue.text for epilogue in epilogues)]
    graph = schedule.graph
    guarded = device.type == "cuda" and torch.cuda.device_count() != 1
    steps = [step for step in schedule.steps if isinstance(step, KernelGroup)]
    return render(
        "program",
        name=graph.name,
        definitions=definitions,
        kernels=printed,
        host=host,
        device=device,
        fast_helpers=_fast_helpers(host, device),
        guarded=guarded,
        indent="        " if guarded else "    ",
        checks="checked" in called,
        uses_libdevice=any("libdevice." in text for text in (*definitions, *(kernel.source.text for kernel in printed))),
        inputs=[_input_text(graph, name) for name in graph.inputs],
        constants=[(n, _constant_text(graph.buffers[n], t), graph.buffers[n].device) for n, t in graph.constants.items()],
        reference=reference.strip() if reference else "",
        bytes_moved=sum(step.bytes_read + step.bytes_written for step in steps),
        summary=_summary(schedule),
    )


def _fast_helpers(host: HostWriter, device: torch.device) -> list[str]:
    """Imports that replace the file's own helper functions (torch 2.11 to 2.15)."""
    names = {"reinterpret": "_reinterpret_tensor as reinterpret"}
    if device.type in ("cuda", "cpu"):
        names["empty_strided"] = f"_empty_strided_{device.type} as empty_strided"
    return [names[helper] for helper in sorted(host.helpers & names.keys())]


def _summary(schedule: Schedule) -> str:
    kernels = sum(isinstance(step, KernelGroup) for step in schedule.steps)
    externs = len(schedule.steps) - kernels
    parts = [f"{kernels} kernel launch{'es' if kernels != 1 else ''}"]
    if externs:
        parts.append(f"{externs} call{'s' if externs != 1 else ''} of other libraries")
    return ", ".join(parts) + "."


def _input_text(graph: LoweredGraph, name: str) -> str:
    """An expression that makes an input of the recorded kind."""
    if name in graph.size_inputs:
        return str(hint(graph.size_inputs[name]))
    return _sample_text(graph.buffers[name])


def _sample_text(buffer: Buffer) -> str:
    sizes, strides = (sizes_text(tuple(as_index(hint(v)) for v in values)) for values in (buffer.sizes, buffer.strides))
    where = ', device="cpu"' if buffer.device.type == "cpu" else ""
    return f"sample({sizes}, {strides}, {buffer.dtype}{where})"


def _constant_text(buffer: Buffer, tensor: torch.Tensor) -> str:
    if tensor.numel() <= EMBEDDED_CONSTANT and not tensor.is_complex():
        values = tensor.tolist()
        text = repr(values).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
        return f"torch.tensor({text}, dtype={tensor.dtype})"
    return _sample_text(buffer)
