"""What scheduling decides: which loops share a kernel, over which tiles, in what order, in which memory, and why not more.

The loops of a `KernelGroup` are rewritten over the group's own axes, so that the code generator only prints them. This
module must not know how a kernel is printed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

from minicompile.ir.index import Axis
from minicompile.ir.loops import ExternKernel, Loop, LoweredGraph, num_bytes

Strategy = Literal["pointwise", "persistent", "looped", "crossed"]


@dataclasses.dataclass(frozen=True)
class TileAxis:
    """One axis of a kernel's iteration space.

    Attributes:
        axis: the axis that the group's loops are written over (`x`, `y`, `r`).
        block: elements per program (a power of two), for reduction axes elements per step.
        role: `parallel` axes become the grid, `reduction` axes are folded inside the program, a `stepped` axis is walked
            by the program beside a reduction axis that stays in registers.
    """

    axis: Axis
    block: int
    role: Literal["parallel", "stepped", "reduction"]


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """How a group is cut into programs.

    Attributes:
        axes: parallel axes, slowest first, then at most one stepped axis (`row`), then at most one reduction axis (`r`).
        strategy: `pointwise`; `persistent` (the reduction axis fits one block and stays in registers); `looped`;
            `crossed` (persistent rows along the stepped axis, which other reductions fold on the way).
        num_warps, num_stages: launch options.
        reason: the model's argument for this plan, for the report.
        longest: where a persistent block is as long as a symbolic row, the longest row for which that is right; else 0.
    """

    axes: tuple[TileAxis, ...]
    strategy: Strategy
    num_warps: int
    num_stages: int
    reason: str = ""
    longest: int = 0

    @property
    def parallel(self) -> tuple[TileAxis, ...]:
        """The axes that form the grid."""
        return tuple(a for a in self.axes if a.role == "parallel")

    @property
    def stepped(self) -> TileAxis | None:
        """The axis that a crossed kernel walks."""
        return next((a for a in self.axes if a.role == "stepped"), None)

    @property
    def reduction(self) -> TileAxis | None:
        """The axis folded inside the program, if any."""
        return next((a for a in self.axes if a.role == "reduction"), None)


@dataclasses.dataclass(frozen=True)
class KernelGroup:
    """Loops that become one kernel.

    Every loop is written over the axes of `tile`: a loop whose value or store mentions the reduction axis (or folds it)
    is of the full space, the others are of the parallel axes only (in a crossed kernel with the stepped axis, unless
    they fold it). `Reduction.axes` is exactly the reduction axis, or the stepped axis.
    A load of a buffer that an earlier loop of the group computes at the same index is served from registers.

    Attributes:
        name: the kernel's name, from the user's operations (`add_rms_norm`).
        loops: in an order that respects dependence.
        tile: the iteration space.
        stored: buffers that other kernels or the graph's outputs read; the rest never reach memory.
        batch: kernels of one body over other buffers and sizes that one launch does; `loops` are then those of all,
            `tile` is the first one's.
        bytes_read, bytes_written: exact, at the hinted sizes.
        flops: scalar operations, at the hinted sizes.
    """

    name: str
    loops: tuple[Loop, ...]
    tile: TilePlan
    stored: frozenset[str]
    batch: tuple[KernelGroup, ...] = ()
    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that reach memory, in the order of the loops."""
        return tuple(loop.buffer for loop in self.loops if loop.buffer in self.stored)

    @property
    def inherits(self) -> dict[str, str]:
        """Buffers written to the older ones in whose storage they lie."""
        return {new: old for loop in self.loops for new, old in loop.inherits.items()}

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers read from memory: not those computed by an earlier loop of the group."""
        computed: set[str] = set()
        found: dict[str, None] = {}
        for loop in self.loops:
            found.update(dict.fromkeys(name for name in loop.reads if name not in computed))
            computed.add(loop.buffer)
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class FusionRefusal:
    """Why two operations are not in one kernel: `illegal` names the dependence, `unprofitable` the bytes.

    `fused` is the answer to a question about two operations that are in one.
    """

    producer: str
    consumer: str
    verdict: Literal["illegal", "unprofitable", "fused"]
    reason: str
    bytes_fused: int | None = None
    bytes_apart: int | None = None

    def __str__(self) -> str:
        moved = "" if self.bytes_apart is None else f" ({self.bytes_fused:,} bytes in one kernel, {self.bytes_apart:,} in two)"
        return f"{self.producer} and {self.consumer}: {self.verdict}, {self.reason}{moved}"


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Where a computed buffer lives.

    Attributes:
        buffer: its name.
        reuses: the dead buffer whose storage it takes over (at least as large, same device), or `None` for a new one.
        first_step, last_step: the steps between which it is alive.
    """

    buffer: str
    reuses: str | None
    first_step: int
    last_step: int


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Allocations by buffer, and what may be freed after each step."""

    allocations: Mapping[str, Allocation]
    freed_after: Mapping[int, tuple[str, ...]]

    @functools.cached_property
    def roots(self) -> dict[str, str]:
        """Buffer to the buffer whose memory it first was."""
        found: dict[str, str] = {}
        for name, allocation in self.allocations.items():
            older = allocation.reuses or name
            found[name] = found.get(older, older)
        return found


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The whole graph as an ordered list of kernels.

    Attributes:
        graph: buffers, inputs, outputs and constants (its `operations` are superseded by `steps`).
        steps: kernels in execution order.
        memory: the memory plan over those steps.
        refusals: the fusion ledger.
    """

    graph: LoweredGraph
    steps: tuple[KernelGroup | ExternKernel, ...]
    memory: MemoryPlan
    refusals: tuple[FusionRefusal, ...] = ()

    def held_bytes(self) -> list[int]:
        """Bytes of computed buffers held during each step; memory that is taken over is held until the last of its buffers."""
        allocations, last = self.memory.allocations, dict[str, int]()
        for name, root in self.memory.roots.items():
            last[root] = max(last.get(root, 0), allocations[name].last_step)
        spans = [(allocations[root].first_step, end, num_bytes(self.graph.buffers[root]))
                 for root, end in last.items() if root in allocations]  # fmt: skip
        return [sum(size for first, end, size in spans if first <= n <= end) for n in range(len(self.steps))]


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """The chip's properties that policies read. The defaults describe one H200."""

    name: str = "cpu"
    kind: Literal["cuda", "hip", "cpu"] = "cpu"
    multiprocessors: int = 132
    l2_bytes: int = 60 * 2**20
    shared_bytes: int = 227 * 2**10
