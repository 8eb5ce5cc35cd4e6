"""The scheduling stage: inline, write out, split, fuse, write over tiles, choose tiles, plan memory; one function runs them all.

Each step is a pure function in a module of its own. This module must not contain a policy.
"""

import dataclasses
from collections.abc import Mapping

from minicompile.config import Config
from minicompile.ir.expr import cost
from minicompile.ir.loops import Buffer, ExternKernel, LoweredGraph, Reduction, Scan
from minicompile.ir.schedule import DeviceProperties, KernelGroup, Schedule
from minicompile.scheduling.batch import batch_steps
from minicompile.scheduling.domain import Domain, write_over_tiles
from minicompile.scheduling.fusion import Fuser
from minicompile.scheduling.inline import inline_producers, output_buffers
from minicompile.scheduling.matmul import Chooser, route_matmuls
from minicompile.scheduling.memory_plan import plan_memory
from minicompile.scheduling.naming import kernel_name
from minicompile.scheduling.one_hot import without_one_hot_sums
from minicompile.scheduling.reindexing import axes_in
from minicompile.scheduling.split import split_reductions
from minicompile.scheduling.tiling import TileFacts, plan_tile
from minicompile.scheduling.traffic import loop_flops, space_of
from minicompile.scheduling.unroll import write_out_short_folds
from minicompile.scheduling.verify import verify_schedule


def schedule_graph(
    lowered: LoweredGraph, config: Config, device: DeviceProperties, choose_matmul: Chooser | None = None,
    any_size: bool = False,
) -> Schedule:
    """Decide which loops of `lowered` share a kernel, over which tiles, in which order and memory.

    Without `choose_matmul` every matrix product is the vendor's. `any_size`: right for all values of symbolic sizes, where
    otherwise only those near the hints may be, as the plans say.
    """
    outputs = output_buffers(lowered)
    inlined = inline_producers(lowered)
    written_out = write_out_short_folds(inlined, lowered.buffers, device)
    if written_out != inlined:
        inlined = inline_producers(dataclasses.replace(lowered, operations=written_out))
    operations, buffers = split_reductions(without_one_hot_sums(inlined, lowered.buffers), lowered.buffers, device)
    if choose_matmul is not None:
        operations = route_matmuls(operations, buffers, outputs, choose_matmul)
    fuser = Fuser(operations, buffers, outputs, config.fuse)
    steps = tuple(_finish(fuser, owner, device, any_size) for owner, *_ in fuser.order.groups())
    steps = batch_steps(steps, buffers, device)
    schedule = Schedule(
        graph=dataclasses.replace(lowered, operations=operations, buffers=buffers),
        steps=steps,
        memory=plan_memory(steps, buffers, outputs),
        refusals=tuple(fuser.refusals.values()),
    )
    if config.verify:
        verify_schedule(schedule)
    return schedule


def _finish(fuser: Fuser, owner: int, device: DeviceProperties, any_size: bool) -> KernelGroup | ExternKernel:
    """The kernel of a cluster, or the extern kernel."""
    cluster = fuser.clusters.get(owner)
    if cluster is None:
        operation = fuser.operations[owner]
        assert isinstance(operation, ExternKernel)
        return operation
    stored = frozenset(name for name in cluster.stores if fuser.is_stored(name, cluster.mask))
    domain = write_over_tiles(cluster, fuser.operations, fuser.buffers)
    origins = dict.fromkeys(origin for loop in domain.loops for origin in loop.origins)
    bytes_read, bytes_written = fuser.reads_and_writes(cluster)
    return KernelGroup(
        name=kernel_name(origins),
        loops=domain.loops,
        tile=plan_tile(_tile_facts(domain, fuser.buffers, stored, any_size), device),
        stored=stored,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        flops=sum(map(loop_flops, domain.loops)),
    )


def _tile_facts(domain: Domain, buffers: Mapping[str, Buffer], stored: frozenset[str], any_size: bool) -> TileFacts:
    """What the tile model wants to know about a kernel."""
    computed = {loop.buffer for loop in domain.loops}
    everywhere = {*domain.outer, *filter(None, [domain.folded])}
    moved = [
        (load.buffer, load.index) for loop in domain.loops for load in loop.loads if load.buffer not in computed
    ] + [(loop.buffer, loop.store) for loop in domain.loops if loop.buffer in stored]
    wide = {(name, index) for name, index in moved if axes_in(index) >= everywhere}
    sizes = [buffers[name].dtype.itemsize for name, _ in wide] or [buffers[name].dtype.itemsize for name, _ in moved]
    rows = {(name, index) for name, index in moved if name not in computed and domain.folded in axes_in(index)}
    scans = any(isinstance(loop.fold, Scan) for loop in domain.loops)
    sums = {loop.buffer for loop in domain.loops if isinstance(loop.fold, Reduction)}
    return TileFacts(
        parallel=domain.parallel,
        folded=domain.folded,
        folded_first=domain.folded_first,
        crosswise=domain.crosswise,
        stepped=domain.stepped,
        in_rows=domain.in_rows,
        itemsize=max(sizes, default=4),
        live_rows=len(rows) + 1,
        must_persist=scans and len(domain.loops) > 1,
        any_size=any_size,
        cost=sum(cost(loop.value) for loop in domain.loops if everywhere <= set(space_of(loop))),
        one_pass=not any(sums.intersection(loop.reads) for loop in domain.loops if domain.folded in space_of(loop)),
    )
