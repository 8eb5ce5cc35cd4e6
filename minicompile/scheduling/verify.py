"""The rules that a schedule must keep, checked kernel by kernel. This module must not repair anything."""

from collections.abc import Sequence

from minicompile.errors import VerificationFailed
from minicompile.ir.index import Axis
from minicompile.ir.loops import ExternKernel, Loop, Reduction, Scan
from minicompile.ir.schedule import KernelGroup, Schedule
from minicompile.scheduling.dependencies import is_scatter
from minicompile.scheduling.inline import output_buffers
from minicompile.scheduling.reindexing import axes_in, axes_in_value


def verify_schedule(schedule: Schedule) -> None:
    """Raise `VerificationFailed` if a kernel, the order of kernels or the memory plan breaks a rule."""
    available = {name for name, buffer in schedule.graph.buffers.items() if buffer.role != "computed"}
    dead: set[str] = set()
    for step in schedule.steps:
        for name in step.reads:
            _require(name in available, f"{name} is read before it is written", step)
            _require(name not in dead, f"{name} is read after its storage was overwritten", step)
        if isinstance(step, KernelGroup):
            verify_group(step)
        dead.update(step.inherits.values())
        for name in step.writes:
            _require(name in schedule.memory.allocations, f"{name} has no memory", step)
        available.update(step.writes)
    for name in output_buffers(schedule.graph):
        if name not in available:
            raise VerificationFailed(f"the output {name} is never stored")
    _verify_memory(schedule)


def verify_group(group: KernelGroup) -> None:
    """Raise `VerificationFailed` if a kernel breaks the rules of `KernelGroup`."""
    for member in group.batch:
        verify_group(member)
    if group.batch:
        _require(group.loops == tuple(loop for m in group.batch for loop in m.loops), "loops of no member", group)
        return
    tile = group.tile
    parallel = tuple(a.axis for a in tile.parallel)
    folded = None if tile.reduction is None else tile.reduction.axis
    stepped = None if tile.stepped is None else tile.stepped.axis
    _require((folded is None) == (tile.strategy == "pointwise"), "strategy and axes disagree", group)
    _require((stepped is None) == (tile.strategy != "crossed"), "strategy and axes disagree", group)
    outer = parallel if stepped is None else (*parallel, stepped)
    whole = outer if folded is None else (*outer, folded)
    _require(all(a.block & (a.block - 1) == 0 and a.block > 0 for a in tile.axes), "a block is no power of 2", group)
    computed: dict[str, Loop] = {}
    for loop in group.loops:
        if isinstance(loop.fold, Reduction):
            kept = tuple(axis for axis in whole if axis not in loop.fold.axes)
            _require(loop.axes == kept and loop.fold.axes in ((folded,), (stepped,)), "a reduction off the axes", group)
        elif isinstance(loop.fold, Scan):
            _require(loop.axes == whole and loop.fold.axis is folded, "a scan off the axes", group)
        else:
            _require(loop.axes in (outer, whole), f"{loop.buffer} is not over the kernel's axes", group)
        inside = set(loop.axes) | set(loop.reduction_axes)
        used: set[Axis] = set(axes_in_value(loop.value) | axes_in(loop.store))
        _require(used <= inside, f"{loop.buffer} uses axes it does not run over", group)
        for load in loop.loads:
            source, name = computed.get(load.buffer), load.buffer
            if source is not None:
                _require(load.index is source.store, f"{name} is read elsewhere than it is computed", group)
                _require(not is_scatter(source), f"{name} is read in the kernel that scatters it", group)
                _require(stepped is None or stepped in source.axes, f"{name} is read before it is complete", group)
        computed[loop.buffer] = loop
    _verify_overwrites(group.loops, computed)
    _require(group.stored <= set(computed), "stores what it does not compute", group)


def _verify_overwrites(loops: Sequence[Loop], computed: dict[str, Loop]) -> None:
    """Readers of storage that this kernel overwrites must read just the element that they stand on."""
    for writer in loops:
        old = writer.overwrites
        if old is None:
            continue
        if old in computed:
            raise VerificationFailed(f"one kernel writes {old} and overwrites it as {writer.buffer}")
        for loop in loops:
            if any(load.buffer == old and load.index is not writer.store for load in loop.loads):
                raise VerificationFailed(f"{loop.buffer} reads {old} elsewhere than {writer.buffer} overwrites it")


def _verify_memory(schedule: Schedule) -> None:
    """No storage may have two tenants at once."""
    busy: dict[str, tuple[str, int]] = {}
    for name, allocation in schedule.memory.allocations.items():
        root = schedule.memory.roots[name]
        tenant, until = busy.get(root, (name, -1))
        if allocation.first_step < until:
            raise VerificationFailed(f"{name} takes the storage of {root} while {tenant} lives in it")
        busy[root] = (name, allocation.last_step)


def _require(condition: bool, what: str, step: KernelGroup | ExternKernel) -> None:
    if not condition:
        raise VerificationFailed(what, str(step))
