"""Who writes and reads what, and what must come before what, as bit sets over the operations of a graph.

Three things order two operations: one reads what the other writes; one overwrites storage that the other still reads;
both have side effects. This module must not decide anything: it only states facts.
"""

import dataclasses
import functools
import graphlib
import heapq
import operator
from collections.abc import Iterator, Sequence

from minicompile.errors import VerificationFailed
from minicompile.ir.expr import indirect_values
from minicompile.ir.loops import ExternKernel, Loop, Operation
from minicompile.ir.schedule import KernelGroup


@dataclasses.dataclass(frozen=True)
class Dependences:
    """Dependences of a list of operations; an operation is known by its position.

    Attributes:
        writer: buffer to the operation that computes it.
        readers: buffer to the operations that read it, in order.
        overwriters: buffer to the operation that takes over its storage.
        predecessors: for each operation, the bit set of those that must come directly before it.
    """

    writer: dict[str, int]
    readers: dict[str, list[int]]
    overwriters: dict[str, int]
    predecessors: list[int]


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Order:
    """What must come before and after what, while groups of operations grow. The first of a group stands for it.

    Attributes:
        owner: for each operation, the first of its group.
        masks: by owner, the bit set of the group.
        before, after: by owner, the bit sets of all operations that must come before, and after, the group.
    """

    def __init__(self, dependences: Dependences) -> None:
        self._predecessors = dependences.predecessors
        self.owner = list(range(len(self._predecessors)))
        self.masks = [1 << position for position in self.owner]
        self.before: list[int] = []
        self.after = [0] * len(self.owner)
        for direct in self._predecessors:
            self.before.append(direct | functools.reduce(operator.or_, (self.before[i] for i in bits(direct)), 0))
        for position in reversed(self.owner):
            for earlier in bits(self._predecessors[position]):
                self.after[earlier] |= self.after[position] | self.masks[position]

    def join(self, a: int, b: int) -> None:
        """Make one group of two."""
        mask = self.masks[a] | self.masks[b]
        before, after = (self.before[a] | self.before[b]) & ~mask, (self.after[a] | self.after[b]) & ~mask
        for owner in {self.owner[i] for i in bits((self.after[a] ^ self.after[b]) & ~mask)}:
            self.before[owner] |= before | mask
        for owner in {self.owner[i] for i in bits((self.before[a] ^ self.before[b]) & ~mask)}:
            self.after[owner] |= after | mask
        keep = min(a, b)
        self.before[keep], self.after[keep], self.masks[keep] = before, after, mask
        for position in bits(mask):
            self.owner[position] = keep

    def groups(self) -> list[list[int]]:
        """The groups, in an order that respects dependence and is close to that of the operations."""
        members: dict[int, list[int]] = {}
        for position, own in enumerate(self.owner):
            members.setdefault(own, []).append(position)
        before = {own: {self.owner[i] for position in positions for i in bits(self._predecessors[position])} - {own}
                  for own, positions in members.items()}  # fmt: skip
        sorter = graphlib.TopologicalSorter(before)
        sorter.prepare()
        ready: list[tuple[int, int]] = []
        order: list[list[int]] = []
        while sorter.is_active():
            for own in sorter.get_ready():
                heapq.heappush(ready, (members[own][-1], own))
            _, own = heapq.heappop(ready)
            order.append(members[own])
            sorter.done(own)
        return order


def find_dependences(operations: Sequence[Operation | KernelGroup]) -> Dependences:
    """The dependences of `operations`, which must be in an order that respects them."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    overwriters: dict[str, int] = {}
    predecessors: list[int] = []
    last_impure: int | None = None
    for position, operation in enumerate(operations):
        before = 0
        for name in operation.reads:
            if name in overwriters:
                raise VerificationFailed(f"{operation.writes} reads {name} after its storage was overwritten")
            if name in writer:
                before |= 1 << writer[name]
            readers.setdefault(name, []).append(position)
        for name in operation.inherits.values():
            overwriters[name] = position
            for reader in readers[name]:
                before |= 1 << reader
        if isinstance(operation, ExternKernel) and not operation.pure:
            if last_impure is not None:
                before |= 1 << last_impure
            last_impure = position
        for name in operation.writes:
            writer[name] = position
        predecessors.append(before & ~(1 << position))
    return Dependences(writer, readers, overwriters, predecessors)


def is_scatter(loop: Loop) -> bool:
    """Whether the loop stores at places it learns at run time, or only at some points of its space."""
    return loop.accumulate or loop.condition is not None or bool(indirect_values(loop.store))
