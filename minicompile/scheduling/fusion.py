"""Fusion: clusters grow while a legal and profitable pair is left; each pair that stays apart leaves a reason.

Candidates come from shared buffers only: the writer of a buffer with its readers, and neighbouring readers of one
buffer. The pair that saves most bytes goes first. Legality is dependence (`Fuser`) and geometry (`cluster.align`);
profit is `profit.refusal`. This module must not rewrite loop bodies.
"""

from collections.abc import Mapping, Sequence

from minicompile.ir.expr import cost
from minicompile.ir.loops import Buffer, ExternKernel, Loop, Operation
from minicompile.ir.schedule import FusionRefusal, Schedule
from minicompile.scheduling.cluster import Alignment, Cluster, align, cluster_of, merge
from minicompile.scheduling.dependencies import Order, bits, find_dependences
from minicompile.scheduling.domain import accesses_of, neighbours_are_folded
from minicompile.scheduling.inline import output_buffers
from minicompile.scheduling.naming import is_called
from minicompile.scheduling.profit import SMALL_KERNEL_BYTES, PairFacts, refusal
from minicompile.scheduling.sectors import bytes_in_vain
from minicompile.scheduling.tiling import COLUMN_BYTES
from minicompile.scheduling.traffic import access_bytes, points, read_bytes

MAXIMUM_ROUNDS = 6
SIBLINGS = 2
LEAST_SHARED = 256


def why_not_fused(schedule: Schedule, first: str, second: str) -> tuple[FusionRefusal, ...]:
    """Why the operations that the user calls `first` and `second` are in different kernels, a record for each two kernels.

    Names are an operator (`softmax`), a variable, or a line (`model.py:12`). What shares a kernel leaves a record with the
    verdict `fused`. Fusion is run again, so that the answer is about the kernels that there are.
    """
    graph = schedule.graph
    fuser = Fuser(graph.operations, graph.buffers, output_buffers(graph))
    order, found = fuser.order, dict[tuple[int, int], FusionRefusal]()
    for left in bits(fuser.called(first)):
        for right in bits(fuser.called(second)):
            a, b = order.owner[left], order.owner[right]
            a, b = (b, a) if order.masks[b] & order.before[a] or b < a and not order.masks[a] & order.before[b] else (a, b)
            if (a, b) not in found and left != right:
                found[a, b] = fuser.answer(a, b)
    return tuple(found.values())


class Fuser:
    """Groups the loops of `operations` into clusters; pairs of operations in `forced` wherever that is legal.

    Its state: the clusters by their first operation, the order of operations, and the ledger of refusals.
    """

    def __init__(
        self, operations: Sequence[Operation], buffers: Mapping[str, Buffer], outputs: frozenset[str],
        forced: Sequence[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        self.operations, self.buffers, self.outputs = operations, buffers, outputs
        self.forced = [(self.called(one), self.called(other)) for one, other in forced]
        self.dependences = find_dependences(operations)
        self.order = Order(self.dependences)
        self.clusters = {i: cluster_of(i, op) for i, op in enumerate(operations) if isinstance(op, Loop)}
        self.overwriting = {op.buffer for op in operations if isinstance(op, Loop) and op.overwrites is not None}
        self.reader_masks = {
            name: sum(1 << reader for reader in readers) for name, readers in self.dependences.readers.items()
        }
        self.refusals: dict[tuple[int, int], FusionRefusal] = {}
        self.bytes: dict[int, int] = {}
        # Pairs, best first, until none is left that could be fused; then small kernels that share nothing.
        self.fuse_pairs([(a, b) for one, other in self.forced for a in bits(one) for b in bits(other)])
        self.fuse_pairs(self.candidate_pairs())
        self.fuse_pairs(self.small_neighbours())
        self.refusals = {k: r for k, r in self.refusals.items() if self.order.owner[k[0]] != self.order.owner[k[1]]}

    def fuse_pairs(self, pairs: list[tuple[int, int]]) -> None:
        """Try `pairs` until nothing changes."""
        tried: dict[tuple[int, int], tuple[int, int]] = {}
        for _ in range(MAXIMUM_ROUNDS):
            changed = False
            for left, right in pairs:
                a, b = self.order.owner[left], self.order.owner[right]
                if a == b or a not in self.clusters or b not in self.clusters:
                    continue
                key = (min(a, b), max(a, b))
                sizes = (len(self.clusters[key[0]].maps), len(self.clusters[key[1]].maps))
                if tried.get(key) == sizes:
                    continue
                tried[key] = sizes
                changed |= self.try_pair(*key)
            if not changed:
                break

    def candidate_pairs(self) -> list[tuple[int, int]]:
        """Pairs of loops that touch the same buffer, those that would save most bytes first."""
        scores: dict[tuple[int, int], int] = {}
        for name, readers in self.dependences.readers.items():
            loops = [reader for reader in readers if reader in self.clusters]
            if not loops:
                continue
            read = {i: read_bytes(self.buffers[name], self.clusters[i].loads.get(name, ())) for i in loops}
            writer = self.dependences.writer.get(name)
            if writer in self.clusters:
                for reader in loops:
                    pair = (writer, reader)
                    scores[pair] = scores.get(pair, 0) + 2 * read[reader]
            for number, reader in enumerate(loops):
                for other in loops[number + 1 : number + 1 + SIBLINGS]:
                    shared = min(read[reader], read[other])
                    if shared >= LEAST_SHARED:
                        scores[reader, other] = scores.get((reader, other), 0) + shared
        return sorted(scores, key=lambda pair: (-scores[pair], pair))

    def small_neighbours(self) -> list[tuple[int, int]]:
        """Pairs of small clusters over equal spaces that follow each other: one launch instead of two.

        Independent clusters that look alike are left to be batched.
        """
        alike: dict[tuple[object, ...], list[int]] = {}
        for key, cluster in self.clusters.items():
            alike.setdefault(self.kind(cluster), []).append(key)
        last: dict[tuple[object, ...], int] = {}
        found: list[tuple[int, int]] = []
        for key, cluster in self.clusters.items():
            if cluster.alone or self.cluster_bytes(cluster) > SMALL_KERNEL_BYTES:
                continue
            ordered = self.order.before[key] | self.order.after[key] | self.order.masks[key]
            if any(self.order.masks[other] & ~ordered for other in alike[self.kind(cluster)]):
                continue
            space = (cluster.rows, cluster.row_length if cluster.inner else 0)
            if space in last:
                found.append((last[space], key))
            last[space] = key
        return found

    def kind(self, cluster: Cluster) -> tuple[object, ...]:
        """A key that clusters share if they run the same body over different buffers."""
        loops = [self.operations[position] for position in cluster.maps]
        return tuple((cost(op.value), len(op.loads), op.value.dtype) for op in loops if isinstance(op, Loop))

    def called(self, name: str) -> int:
        """The bit set of the operations that the user calls `name`."""
        return sum(1 << position for position, operation in enumerate(self.operations) if is_called(operation, name))

    def answer(self, a: int, b: int) -> FusionRefusal:
        """Why two owners of operations, `a` before `b`, are not one; `fused` if they are."""
        one, other = self.operations[a], self.operations[b]
        if a == b:
            return FusionRefusal(one.writes[0], other.writes[0], "fused", "they share a kernel")
        for operation in (one, other):
            if isinstance(operation, ExternKernel):
                reason = f"{operation.target} is not generated code{': ' if operation.reason else ''}{operation.reason}"
                return FusionRefusal(one.writes[0], other.writes[0], "illegal", reason)
        verdict = self.judge(a, b)
        if isinstance(verdict, FusionRefusal):
            return verdict
        apart, fused = self.traffic(self.clusters[a], self.clusters[b])
        reason = "they touch no buffer in common, and neither is small"
        return FusionRefusal(one.writes[0], other.writes[0], "unprofitable", reason, fused, apart)

    def try_pair(self, a: int, b: int) -> bool:
        """Fuse two clusters if that is legal and pays; else record why not."""
        if self.order.masks[b] & self.order.before[a]:
            a, b = b, a
        verdict = self.judge(a, b)
        if isinstance(verdict, FusionRefusal):
            self.refusals[self.clusters[a].key, self.clusters[b].key] = verdict
            return False
        self.order.join(a, b)
        self.clusters[min(a, b)] = merge(self.clusters[a], self.clusters[b], verdict)
        del self.clusters[max(a, b)]
        return True

    def judge(self, a: int, b: int) -> Alignment | FusionRefusal:
        """How two clusters, `a` before `b`, would share a kernel, or why they should not."""
        first, second = self.clusters[a], self.clusters[b]
        apart, fused = self.traffic(first, second)
        names = next(iter(first.stores)), next(iter(second.stores))
        between = self.order.after[a] & self.order.before[b] & ~(self.order.masks[a] | self.order.masks[b])
        if between:
            middle = self.operations[next(bits(between))]
            reason = f"{', '.join(middle.writes[:1]) or 'a call without results'} depends on one and the other on it"
            return FusionRefusal(*names, "illegal", reason, fused, apart)
        alignment = align(first, second)
        if isinstance(alignment, str):
            return FusionRefusal(*names, "illegal", alignment, fused, apart)
        unprofitable = refusal(self.facts(first, second, alignment, apart, fused))
        if unprofitable is None or self.is_forced(first, second):
            return alignment
        return FusionRefusal(*names, "unprofitable", unprofitable, fused, apart)

    def is_forced(self, first: Cluster, second: Cluster) -> bool:
        """Whether the user asked for these two to be fused."""
        pairs = ((one, other) for a, b in self.forced for one, other in ((a, b), (b, a)))
        return any(first.mask & one and second.mask & other for one, other in pairs)

    def traffic(self, first: Cluster, second: Cluster) -> tuple[int, int]:
        """Bytes moved by two kernels, and by one."""
        apart = self.cluster_bytes(first) + self.cluster_bytes(second)
        saved = 0
        both = first.mask | second.mask
        for name, reads in second.loads.items():
            if name in first.stores:
                saved += read_bytes(self.buffers[name], reads)
            elif name in first.loads:
                mine = read_bytes(self.buffers[name], reads)
                saved += min(mine, read_bytes(self.buffers[name], first.loads[name]))
        for name in first.stores:
            if name in second.loads and self.is_stored(name, first.mask) and not self.is_stored(name, both):
                saved += access_bytes(self.buffers[name], first.stores[name])
        return apart, apart - saved

    def cluster_bytes(self, cluster: Cluster) -> int:
        """Bytes that a cluster moves as one kernel."""
        if cluster.mask not in self.bytes:
            self.bytes[cluster.mask] = sum(self.reads_and_writes(cluster))
        return self.bytes[cluster.mask]

    def reads_and_writes(self, cluster: Cluster) -> tuple[int, int]:
        """Bytes that a cluster reads and writes as one kernel."""
        buffers = self.buffers
        reads = sum(read_bytes(buffers[n], i) for n, i in cluster.loads.items() if n not in cluster.stores)
        writes = sum(access_bytes(buffers[n], i) for n, i in cluster.stores.items() if self.is_stored(n, cluster.mask))
        return reads, writes

    def is_stored(self, name: str, inside: int) -> bool:
        """Whether a buffer must reach memory if the operations `inside` are one kernel."""
        return (
            name in self.outputs
            or name in self.dependences.overwriters
            or name in self.overwriting
            or self.buffers[name].role != "computed"
            or bool(self.reader_masks.get(name, 0) & ~inside)
        )

    def in_vain(self, first: Cluster, second: Cluster, alignment: Alignment) -> int:
        """Bytes that a reduction and what runs over its whole space, or loops that agree on one axis only, would move as one
        kernel, and not as two, for nothing."""
        flattened = not alignment.target.inner and len(alignment.target.outer) == 1
        if first.reduces == second.reduces and not flattened:
            return 0
        merged = merge(first, second, alignment)
        apart, together = (
            sum(bytes_in_vain(c, self.buffers, self.moved(c)) for c in clusters if flattened or c.reduces)
            for clusters in ((first, second), (merged,))
        )
        return together - apart

    def programs(self, cluster: Cluster) -> int:
        """How many programs would walk, each along the rows of one step, or along neighbouring columns."""
        moved = self.moved(cluster)
        accesses = [access for access in accesses_of(cluster, self.buffers) if access.buffer in moved]
        if cluster.stepped or neighbours_are_folded(cluster.outer, cluster.inner, accesses):
            return cluster.rows // points(cluster.stepped)
        return cluster.rows * max((access.itemsize for access in accesses), default=1) // COLUMN_BYTES

    def moved(self, cluster: Cluster) -> set[str]:
        """The buffers that a cluster reads from memory or writes there."""
        stored = {name for name in cluster.stores if self.is_stored(name, cluster.mask)}
        return stored.union(name for name in cluster.loads if name not in cluster.stores)

    def facts(self, first: Cluster, second: Cluster, alignment: Alignment, apart: int, fused: int) -> PairFacts:
        """What the policy wants to know about a legal pair."""
        target = alignment.target
        buffers = {**first.loads, **second.loads, **first.stores, **second.stores}
        whole = [c for c in (first, second) if not c.reduces and c.rows * c.row_length > target.rows]
        small = apart <= SMALL_KERNEL_BYTES
        together = merge(first, second, alignment) if target.inner and not small else None
        return PairFacts(
            bytes_apart=apart,
            bytes_fused=fused,
            vertical=any(name in second.loads for name in first.stores),
            distance=abs(second.key - first.key),
            buffers=len(buffers),
            loops=len(first.maps) + len(second.maps),
            scan_length=target.row_length if first.scans else 0,
            rows=target.rows,
            row_length=target.row_length,
            second_pass=bool(whole) and first.reduces and second in whole,
            in_vain=0 if small else self.in_vain(first, second, alignment),
            crossed=bool(target.stepped),
            programs=0 if together is None else self.programs(together),
            programs_apart=0 if together is None else min(self.programs(c) for c in (first, second) if c.inner),
        )
