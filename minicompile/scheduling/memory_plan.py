"""Lifetimes of buffers over the steps of a schedule, reuse of dead storage, and where references can be dropped.

Only storage that the generated code allocates itself is ever reused: what an extern kernel returns may be an alias of
something else, and inputs belong to the caller. This module must not change the order of steps.
"""

from collections.abc import Mapping, Sequence

from minicompile.ir.loops import Buffer, ExternKernel, extent, num_bytes
from minicompile.ir.schedule import Allocation, KernelGroup, MemoryPlan

WASTE = 1.25


class _Lives:
    """First and last step of every storage, known by the buffer that created it; `end` is one past the last step."""

    def __init__(self, steps: Sequence[KernelGroup | ExternKernel], outputs: frozenset[str]) -> None:
        self.end = len(steps)
        self.root: dict[str, str] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.last_of_buffer: dict[str, int] = {}
        for number, step in enumerate(steps):
            for name in step.reads:
                self.last[self.root.setdefault(name, name)] = self.last_of_buffer[name] = number
            for name in step.writes:
                older = step.inherits.get(name)
                root = self.root[name] = name if older is None else self.root.get(older, older)
                self.first.setdefault(root, number)
                self.last[root] = self.last_of_buffer[name] = number
        for name in outputs:
            self.last[self.root.get(name, name)] = self.last_of_buffer[name] = self.end


def plan_memory(
    steps: Sequence[KernelGroup | ExternKernel], buffers: Mapping[str, Buffer], outputs: frozenset[str]
) -> MemoryPlan:
    """Allocations for every computed buffer that reaches memory, and what dies after each step."""
    lives = _Lives(steps, outputs)
    allocations: dict[str, Allocation] = {}
    free: list[str] = []  # names of storage of ours that nobody uses any more
    storage: dict[str, Buffer] = {}  # for each buffer that we allocate and none has taken over, the one its storage was made for
    dying: dict[int, list[str]] = {}
    for name in lives.first:
        dying.setdefault(lives.last[name], []).append(name)
    for number, step in enumerate(steps):
        for name in step.writes:
            donor = step.inherits.get(name)
            if donor is None and (isinstance(step, KernelGroup) or step.out_argument):
                exact = lives.last[name] == lives.end
                in_place = [other for other in _dying_in_place(step, number, name, lives) if other in storage]
                donor = next((c for c in in_place if _fits(buffers[name], storage[c], exact)), None)
                if donor is None:
                    fitting = [c for c in free if c in storage and _fits(buffers[name], storage[c], exact)]
                    donor = min(fitting, key=lambda c: (num_bytes(storage[c]), -lives.last[c]), default=None)
                storage[name] = buffers[name] if donor is None else storage.pop(donor)
            allocations[name] = Allocation(name, donor, number, lives.last_of_buffer.get(name, number))
        free = [name for name in (*free, *dying.get(number, ())) if name in storage]
    freed: dict[int, list[str]] = {}
    for name, number in lives.last_of_buffer.items():
        if number < lives.end:  # a storage handed on is freed under its new name too
            freed.setdefault(number, []).append(name)
    return MemoryPlan(allocations, {number: tuple(sorted(names)) for number, names in sorted(freed.items())})


def _fits(new: Buffer, old: Buffer, exact: bool) -> bool:
    """Whether `new` can live in the storage made for `old`; `exact` if that must not be larger than `new` needs."""
    if new.dtype != old.dtype or new.device != old.device:
        return False
    if new.sizes == old.sizes and new.strides == old.strides:
        return True
    needed, there = extent(new.sizes, new.strides), extent(old.sizes, old.strides)
    return needed is not None and there is not None and (needed == there or not exact and needed <= there <= WASTE * needed)


def _dying_in_place(group: KernelGroup | ExternKernel, number: int, name: str, lives: _Lives) -> list[str]:
    """Storage last read here, by a pointwise kernel over one axis, only where `name` is stored and not after that."""
    if isinstance(group, ExternKernel) or group.tile.strategy != "pointwise" or len(group.tile.axes) != 1 or group.batch:
        return []
    writer = next(number for number, loop in enumerate(group.loops) if loop.buffer == name)
    place = group.loops[writer].store
    reads: dict[str, set[object]] = {}
    for number_in_group, member in enumerate(group.loops):
        if member.accumulate or member.condition is not None:
            return []
        for load in member.loads:
            places = reads.setdefault(lives.root.get(load.buffer, load.buffer), set())
            places.add(load.index if number_in_group <= writer else None)
    written = {lives.root[other] for other in group.writes}
    return [
        root for root, indices in reads.items()
        if indices == {place} and root not in written and lives.last.get(root) == number
    ]  # fmt: skip
