"""Inlining: a pointwise producer is computed again inside its consumers, so that its result never reaches memory.

`should_inline` is the policy, a pure function of `InlineFacts`; everything else is mechanism. This module must not
inline through a reduction, a scan, a scatter or an extern kernel, and never moves a read behind the write that
overwrites what it reads.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from minicompile.ir.expr import Expr, Load, cast, cost, loads, rewrite, rewrite_index, walk
from minicompile.ir.index import ZERO, Axis, Index, as_index
from minicompile.ir.loops import BufferView, ExternKernel, Loop, LoweredGraph, Operation, Reduction
from minicompile.scheduling.dependencies import Dependences, find_dependences, is_scatter
from minicompile.scheduling.masks import Ranges, ranges_of_loads, solve_within
from minicompile.scheduling.reindexing import axes_in, is_nested, move, solve
from minicompile.scheduling.traffic import access_bytes, loads_by_buffer, points, read_bytes, space_of

OPERATIONS_PER_BYTE = 6
OPERATIONS_PER_LOAD = 4
LAUNCH_BYTES = 4 << 20
MAXIMUM_NODES = 320
MAXIMUM_LOADS = 24
MAXIMUM_SHARED_NODES = 96
MAXIMUM_SHARED_LOADS = 6


@dataclasses.dataclass(frozen=True)
class InlineFacts:
    """What the policy knows about a producer and all its consumers.

    Attributes:
        consumers: loops that read the result.
        result_bytes, input_bytes: of the producer; every input counts, however small.
        arithmetic: cost of one point; 0 for a value that does not vary.
        reloads: what is loaded again where one consumer computes several points for one of its own, as a stencil does.
        computed_points, inlined_points: how often it is computed apart, and inside the consumers together.
        nodes, loads: size of its body.
        fusible: some consumer could share the producer's kernel instead.
        shared_bytes: what consumers read that a reduction behind the producer reads too, with whose rows it is not computed.
        kept: it is a result of the graph, and will be computed apart in any case.
        epilogue: it reads several results of one shape with its own, computed here, and a reduction consumes it.
        measured: the dtype of the largest of its values in 16 bits, if these are measured by it. One in fp32 is that of values
            that no memory has rounded; one that memory rounds is the largest of rounded values.
    """

    consumers: int
    result_bytes: int
    input_bytes: int
    arithmetic: int
    reloads: int
    computed_points: int
    inlined_points: int
    nodes: int
    loads: int
    fusible: bool
    shared_bytes: int
    kept: bool
    epilogue: bool
    measured: torch.dtype | None


def should_inline(facts: InlineFacts) -> bool:
    """Whether recomputing costs less than a round trip through memory.

    Kept apart, the result is written once and read by each consumer but one that can share its kernel, the inputs are
    read once. Inlined, each consumer reads the inputs. Additional arithmetic is weighed at `OPERATIONS_PER_BYTE`; a
    launch saved counts as bytes when no consumer could take the producer into its kernel. So do data that a consumer
    can read together with the reduction behind the producer, once nothing stands between the two: the scale and offset
    of a group norm. An epilogue of what computes its inputs stays one: one result is then stored instead of several.
    """
    if facts.nodes > MAXIMUM_NODES or facts.loads > MAXIMUM_LOADS or facts.epilogue:
        return False
    if facts.measured is not None:
        return facts.measured == torch.float32
    repeated = facts.arithmetic * max(0, facts.inlined_points - facts.computed_points)
    extra = (repeated + OPERATIONS_PER_LOAD * facts.reloads) // OPERATIONS_PER_BYTE
    launch = 0 if facts.fusible else LAUNCH_BYTES
    if facts.kept:
        return extra < facts.shared_bytes
    if facts.consumers == 1:
        saved = 2 * facts.result_bytes + launch + facts.shared_bytes
        return facts.inlined_points <= facts.computed_points or extra < saved
    if facts.nodes > MAXIMUM_SHARED_NODES or facts.loads > MAXIMUM_SHARED_LOADS:
        return False
    apart = facts.result_bytes * (facts.consumers + (not facts.fusible)) + facts.shared_bytes
    inlined = facts.input_bytes * (facts.consumers - 1)
    return inlined + extra < apart + (launch if facts.input_bytes == 0 else 0)


def inline_producers(graph: LoweredGraph) -> tuple[Operation, ...]:
    """The operations with every producer worth it substituted into its consumers, and unread results dropped.

    What was inlined leaves other producers with fewer consumers, so they are judged again until nothing changes.
    """
    operations: tuple[Operation, ...] = ()
    while len(operations) != len(graph.operations):
        operations = graph.operations
        graph = dataclasses.replace(graph, operations=_Inliner(graph).run())
    return graph.operations


class _Inliner:
    """One pass over the operations in order; `recipes` holds the producers that will not be kernels of their own."""

    def __init__(self, graph: LoweredGraph) -> None:
        self.graph = graph
        self.dependences: Dependences = find_dependences(graph.operations)
        self.recipes: dict[str, Loop] = {}
        self.inlined: dict[tuple[str, Index, Ranges], Expr] = {}
        self.kept_alive = output_buffers(graph)
        self.loads: list[dict[str, tuple[Index, ...]]] = [
            loads_by_buffer(op.loads) if isinstance(op, Loop) else {} for op in graph.operations
        ]
        self.reduced = self.find_reduced()

    def run(self) -> tuple[Operation, ...]:
        kept: list[Operation] = []
        for position, operation in enumerate(self.graph.operations):
            if isinstance(operation, Loop):
                operation = self.with_producers(operation, self.loads[position])
                if self.may_inline(operation) and should_inline(self.facts(operation, position)):
                    self.recipes[operation.buffer] = operation
                    if operation.buffer not in self.kept_alive:
                        continue
            kept.append(operation)
        return drop_unread(kept, self.graph)

    def find_reduced(self) -> dict[str, dict[str, int]]:
        """Each loop's result to the buffers that the reductions behind it read, and how many results these have."""
        reduced: dict[str, dict[str, int]] = {}
        for operation, read in zip(self.graph.operations, self.loads, strict=True):
            if isinstance(operation, Loop) and isinstance(operation.fold, Reduction):
                reduced[operation.buffer] = dict.fromkeys(read, points(operation.axes))
            elif behind := self.behind(read, reduced):
                assert isinstance(operation, Loop)
                reduced[operation.buffer] = behind
        return reduced

    @staticmethod
    def behind(names: Iterable[str], reduced: Mapping[str, dict[str, int]]) -> dict[str, int]:
        """What `find_reduced` knows of a loop that reads `names`."""
        return {source: rows for name in names for source, rows in reduced.get(name, {}).items()}

    def with_producers(self, loop: Loop, read: Mapping[str, tuple[Index, ...]]) -> Loop:
        """The loop with its inlined producers' bodies in place of loads."""
        producers = [self.recipes[name] for name in read if name in self.recipes]
        if not producers:
            return loop
        ranges = ranges_of_loads(loop.value)
        value = rewrite(loop.value, on_load=lambda load: self.replaced(load, ranges.get(load, ())))
        condition = None if loop.condition is None else rewrite(loop.condition, on_load=self.replaced)
        store = rewrite_index(loop.store, on_load=self.replaced) if is_scatter(loop) else loop.store
        origins = dict.fromkeys(origin for part in (*producers, loop) for origin in part.origins)
        return dataclasses.replace(loop, value=value, condition=condition, store=store, origins=tuple(origins))

    def replaced(self, load: Load, ranges: Ranges = ()) -> Expr:
        """The producer's body at the point whose result `load` reads, which happens only where axes are in `ranges`."""
        producer = self.recipes.get(load.buffer)
        if producer is None:
            return load
        found = self.inlined.get((load.buffer, load.index, ranges))
        if found is None:
            changes = solve_within(producer.store, producer.axes, load.index, ranges)
            assert changes is not None, "a recipe's store is affine"
            changes = _with_units(changes, producer.axes)
            unmoved = all(image is as_index(axis) for axis, image in changes)
            found = producer.value if unmoved else rewrite(producer.value, dict(changes))
            found = self.inlined[load.buffer, load.index, ranges] = cast(found, load.dtype)
        return found

    def may_inline(self, loop: Loop) -> bool:
        """Whether inlining into all consumers is possible and safe."""
        name = loop.buffer
        if loop.fold is not None or loop.overwrites is not None or is_scatter(loop):
            return False
        readers = self.dependences.readers.get(name, ())
        operations = self.graph.operations
        if not readers or name in self.dependences.overwriters or not is_nested(loop.store, loop.axes):
            return False
        if any(isinstance(operations[reader], ExternKernel) for reader in readers):
            return False
        return all(
            self.reads_before_overwrite(loop, load, readers)
            for load in loads(loop.value)
            if load.buffer in self.dependences.overwriters
        )

    def reads_before_overwrite(self, loop: Loop, load: Load, readers: list[int] | tuple[int, ...]) -> bool:
        """Whether every consumer would read what `load` reads before it is overwritten, or just as it is."""
        overwriter = self.dependences.overwriters[load.buffer]
        writing = self.graph.operations[overwriter]
        for reader in readers:
            if reader > overwriter:
                return False
            if reader == overwriter:
                if not isinstance(writing, Loop) or is_scatter(writing):
                    return False
                if any(masked.buffer == loop.buffer for masked in ranges_of_loads(writing.value)):
                    return False  # where a mask narrows the axes, the places would be written differently
                for index in self.loads[reader].get(loop.buffer, ()):
                    changes = solve(loop.store, loop.axes, index)
                    if changes is None or move(load.index, _with_units(changes, loop.axes)) is not writing.store:
                        return False
        return True

    def facts(self, loop: Loop, position: int) -> InlineFacts:
        """What the policy wants to know about `loop` and its consumers."""
        buffers = self.graph.buffers
        read = loads_by_buffer(loads(loop.value))
        readers = self.dependences.readers[loop.buffer]
        behind = self.behind(read, self.reduced)
        inlined_points, shared_bytes, alike, computed_points = 0, 0, list[int](), points(loop.axes)
        wide = sum(points(axes_in(index)) == computed_points for indices in read.values() for index in indices)
        reloads = 0
        for reader in readers:
            consumer = self.graph.operations[reader]
            assert isinstance(consumer, Loop)
            consumed_points = points(space_of(consumer))
            places = len(self.loads[reader][loop.buffer])
            inlined_points += consumed_points * places
            reloads += wide * max(0, consumed_points * places - max(consumed_points, computed_points))
            shared = [name for name in self.loads[reader] if behind.get(name, computed_points) != computed_points]
            shared_bytes += sum(read_bytes(buffers[name], self.loads[reader][name]) for name in shared)
            if consumed_points == computed_points or (
                isinstance(consumer.fold, Reduction) and points(consumer.axes) == computed_points
            ):
                alike.append(reader)
        varies = any(axis.size.constant != 1 for axis in loop.axes)
        body = list(walk(loop.value))
        return InlineFacts(
            consumers=len(readers),
            result_bytes=access_bytes(buffers[loop.buffer], loop.store),
            input_bytes=sum(read_bytes(buffers[name], indices) for name, indices in read.items()),
            arithmetic=cost(loop.value) if varies else 0,
            reloads=reloads,
            computed_points=computed_points,
            inlined_points=inlined_points,
            nodes=len(body),
            loads=sum(map(len, read.values())),
            fusible=bool(alike) and (len(alike) == len(readers) or self.comes_before_others(alike, readers)),
            shared_bytes=shared_bytes,
            kept=loop.buffer in self.kept_alive,
            epilogue=self.is_epilogue(loop, read, readers),
            measured=self.measured(readers) if buffers[loop.buffer].dtype in (torch.float16, torch.bfloat16) else None,
        )

    def comes_before_others(self, alike: list[int], readers: Iterable[int]) -> bool:
        """Whether one of the readers `alike` a producer waits for none of its other readers, and so can be in its kernel."""
        late = {name for reader in readers if reader not in alike for name in self.graph.operations[reader].writes}
        for position in range(min(readers), max(alike) + 1):
            operation = self.graph.operations[position]
            if not late.isdisjoint(operation.reads):
                late.update(operation.writes)
            elif position in alike:
                return True
        return False

    def measured(self, readers: Sequence[int]) -> torch.dtype | None:
        """The dtype of the largest that one of the readers finds and another one reads too."""
        read = {name for reader in readers for name in self.loads[reader]}
        for consumer in map(self.graph.operations.__getitem__, readers):
            if isinstance(consumer, Loop) and isinstance(consumer.fold, Reduction) and consumer.fold.kind == "max":
                if consumer.buffer in read:
                    return self.graph.buffers[consumer.buffer].dtype
        return None

    def is_epilogue(self, loop: Loop, read: Mapping[str, tuple[Index, ...]], readers: list[int]) -> bool:
        """Whether `loop` turns several results of its own shape into one that is then reduced."""
        reduced = any(
            isinstance(consumer, Loop) and consumer.fold is not None and points(consumer.axes) < points(loop.axes)
            for consumer in (self.graph.operations[reader] for reader in readers)
        )
        if not reduced:
            return False
        writers = (self.dependences.writer.get(name) for name in read)
        sources = [self.graph.operations[writer] for writer in writers if writer is not None]
        return sum(isinstance(s, Loop) and points(s.axes) == points(loop.axes) for s in sources) > 1


def _with_units(changes: tuple[tuple[Axis, Index], ...], axes: tuple[Axis, ...]) -> tuple[tuple[Axis, Index], ...]:
    """`changes` with axes of size 1, which no access depends on, at their only position."""
    solved = {axis for axis, _ in changes}
    return changes + tuple((axis, ZERO) for axis in axes if axis not in solved)


def output_buffers(graph: LoweredGraph) -> frozenset[str]:
    """Buffers that must be in memory at the end."""
    return frozenset(output.buffer for output in graph.outputs if isinstance(output, BufferView))


def drop_unread(operations: list[Operation], graph: LoweredGraph) -> tuple[Operation, ...]:
    """Without operations whose results nobody reads; writes into storage of the caller's stay."""
    needed = set(output_buffers(graph))
    visible = {name for name, buffer in graph.buffers.items() if buffer.role != "computed"}
    for operation in operations:
        if not visible.isdisjoint(operation.inherits.values()):
            visible.update(operation.writes)
    kept: list[Operation] = []
    for operation in reversed(operations):
        unread = not any(name in needed or name in visible for name in operation.writes)
        effects = isinstance(operation, ExternKernel) and (not operation.pure or operation.overwrites)
        if unread and not effects and operation.writes:
            continue
        needed.update(operation.reads)
        kept.append(operation)
    return tuple(reversed(kept))
