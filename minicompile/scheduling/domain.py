"""Writing the loops of a cluster over the axes of its kernel: `x` (and `y`), and `r` for what is folded.

The order in which axes are flattened follows the strides, so that neighbouring lanes touch neighbouring elements;
where two accesses want different neighbours (a transpose) the kernel gets two parallel axes. This module must not
choose block sizes.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from minicompile.ir.expr import Load
from minicompile.ir.index import ZERO, Axis, Index, hint, product
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction, Scan, rewrite_loop
from minicompile.scheduling.cluster import Cluster
from minicompile.scheduling.reindexing import AxisMap, axes_in, compose, flatten, step_of, unflatten
from minicompile.scheduling.traffic import access_bytes, size_of

CONFLICT_SHARE = 0.15
CROSSWISE_SHARE = 0.03
CONFLICT_BYTES = 1 << 14
CONFLICT_SIZE = 4
RUN_BYTES = 12 << 20
"""Of what is transposed in runs whose axes are shorter than that (the taps of filters): kernels with two axes are not batched."""
VALUES_OF_A_ROW = 3
LEAST_ROW = 1024


@dataclasses.dataclass(frozen=True)
class Domain:
    """The loops of a kernel over its own axes: `parallel` slowest first, the folded axis if there is one, and in a crossed
    kernel the axis that a program steps through.

    `folded_first` says that neighbouring elements lie along the folded axis, not along the last parallel one; `crosswise` is the
    size of the narrowest elements for which it is the other way round, 0 if there are none. `in_rows` says that of two parallel
    axes the first one counts rows of which several values hold for all elements.
    """

    loops: tuple[Loop, ...]
    parallel: tuple[Axis, ...]
    folded: Axis | None
    folded_first: bool
    stepped: Axis | None = None
    crosswise: int = 0
    in_rows: bool = False

    @property
    def outer(self) -> tuple[Axis, ...]:
        """All axes but the folded one."""
        return self.parallel if self.stepped is None else (*self.parallel, self.stepped)


@dataclasses.dataclass(frozen=True)
class Access:
    """Bytes moved at one place of a buffer, those of an element, and how far apart neighbours along every axis mostly lie."""

    buffer: str
    bytes: int
    itemsize: int
    steps: Mapping[Axis, int | None]


def write_over_tiles(cluster: Cluster, operations: Sequence[Operation], buffers: Mapping[str, Buffer]) -> Domain:
    """The cluster's loops over tile axes."""
    accesses = accesses_of(cluster, buffers)
    stepped: Axis | None = None
    in_rows = False
    parallel: tuple[Axis, ...]
    if cluster.stepped:
        parts = tuple(axis for axis in cluster.outer if axis not in cluster.stepped)
        (x, stepped, folded), changes = _flattened(("x", "row", "r"), (parts, cluster.stepped, cluster.inner))
        parallel, folded_first = (x,), True
    elif cluster.inner:
        outer = _with_neighbours_last(by_steps(cluster.outer, accesses), accesses)
        inner = cluster.inner if cluster.ordered else by_steps(cluster.inner, accesses)
        parallel, changes = _flattened(("x",), (outer,))
        (folded,), inner_changes = _flattened(("r",), (inner,))
        changes += inner_changes
        folded_first = neighbours_are_folded(outer, inner, accesses)
    else:
        order = by_steps(cluster.outer, accesses)
        slow, fast = _split_where_strides_conflict(order, accesses)
        if not slow:
            slow, fast = _split_into_rows(order, accesses)
            in_rows = bool(slow)
        parallel, changes = _flattened(("y", "x"), (slow, fast)) if slow else _flattened(("x",), (fast,))
        folded, folded_first = None, False
    crosswise = _narrowest_crosswise(accesses, cluster)
    domain = Domain((), parallel, folded, folded_first, stepped, crosswise, in_rows)
    loops: list[Loop] = []
    places: dict[str, Index] = {}
    for position in sorted(cluster.maps):
        loop = operations[position]
        assert isinstance(loop, Loop)
        loop = _rewritten(loop, compose(cluster.maps[position], changes), places)
        axes, fold = _axes_and_fold(loop, cluster.maps[position], cluster, domain)
        loops.append(dataclasses.replace(loop, axes=axes, fold=fold))
        places[loop.buffer] = loop.store
    return dataclasses.replace(domain, loops=tuple(loops))


def _rewritten(loop: Loop, changes: AxisMap, places: Mapping[str, Index]) -> Loop:
    """One loop's expressions over the tile axes.

    Alignment has proven that loads of what the kernel computes (`places`) are at the point that computes it; they get
    the very index of the store, however the change of axes wrote it.
    """

    def at_its_place(load: Load) -> Load:
        place = places.get(load.buffer)
        return load if place is None else Load(load.buffer, place, load.dtype)

    return rewrite_loop(loop, dict(changes), at_its_place if any(name in places for name in loop.reads) else None)


def _axes_and_fold(
    loop: Loop, own: AxisMap, cluster: Cluster, domain: Domain
) -> tuple[tuple[Axis, ...], Reduction | Scan | None]:
    """The tile axes that a loop runs over, and its fold over them."""
    outer, folded = domain.outer, domain.folded
    if folded is not None:
        if isinstance(loop.fold, Reduction):
            if loop.buffer in cluster.crossed and domain.stepped is not None:
                return (*domain.parallel, folded), Reduction(loop.fold.kind, (domain.stepped,))
            return outer, Reduction(loop.fold.kind, (folded,))
        if isinstance(loop.fold, Scan):
            return (*outer, folded), Scan(loop.fold.kind, folded)
        if _spans(own, cluster.inner):
            return (*outer, folded), loop.fold
    return outer, loop.fold


def _spans(own: AxisMap, inner: tuple[Axis, ...]) -> bool:
    """Whether the loop runs over the inner axes too."""
    used = frozenset[Axis]().union(*(axes_in(image) for _, image in own))
    return any(axis in used for axis in inner)


def _flattened(names: tuple[str, ...], parts: tuple[tuple[Axis, ...], ...]) -> tuple[tuple[Axis, ...], AxisMap]:
    """One axis per part, and the old axes as functions of them."""
    axes: list[Axis] = []
    changes: AxisMap = ()
    for name, part in zip(names, parts, strict=True):
        axis = Axis(name, product(a.size for a in part))
        axes.append(axis)
        changes += unflatten(flatten((axis,)) if axis.size.constant not in (0, 1) else ZERO, part)
    return tuple(axes), changes


def accesses_of(cluster: Cluster, buffers: Mapping[str, Buffer]) -> list[Access]:
    """All accesses of the cluster to memory, stores first, then by bytes."""
    stores = [_access(name, buffers[name], index, cluster.space) for name, index in cluster.stores.items()]
    loads = [
        _access(name, buffers[name], index, cluster.space)
        for name, indices in cluster.loads.items()
        if name not in cluster.stores
        for index in indices
    ]
    stores.sort(key=lambda access: -access.bytes)
    loads.sort(key=lambda access: -access.bytes)
    return stores + loads if not cluster.alone else loads + stores


def _access(name: str, buffer: Buffer, index: Index, axes: tuple[Axis, ...]) -> Access:
    return Access(name, access_bytes(buffer, index), buffer.dtype.itemsize, {axis: step_of(index, axis) for axis in axes})


def by_steps(axes: tuple[Axis, ...], accesses: list[Access]) -> tuple[Axis, ...]:
    """`axes`, slowest first, by their steps in the access that moves most bytes and has them all; size 1 first."""
    wide = [axis for axis in axes if axis.size.constant != 1]
    best: Access | None = None
    for access in accesses:
        if all(access.steps[axis] for axis in wide) and (best is None or access.bytes > best.bytes):
            best = access
    if best is None:
        return axes
    steps = best.steps
    return tuple(sorted(axes, key=lambda axis: (axis in wide, -abs(steps[axis] or 0))))


def _with_neighbours_last(order: tuple[Axis, ...], accesses: list[Access]) -> tuple[Axis, ...]:
    """`order` with that axis last along which most bytes lie side by side, if they are much of what is moved."""
    weights = {axis: sum(a.bytes for a in accesses if a.steps[axis] == 1) for axis in order if size_of(axis) >= CONFLICT_SIZE}
    axis = max(weights, key=lambda a: weights[a], default=None)
    if axis is None or weights[axis] < max(CONFLICT_BYTES, CONFLICT_SHARE * sum(access.bytes for access in accesses)):
        return order
    return (*(other for other in order if other is not axis), axis)


def _split_where_strides_conflict(
    order: tuple[Axis, ...], accesses: list[Access]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """`order` in two parts where much is read along another axis than the fastest; the first part is empty if not."""
    wide = [axis for axis in order if size_of(axis) > 1]
    if len(wide) < 2:
        return (), order
    fastest = wide[-1]
    weights: dict[Axis, float] = {}
    times = collections.Counter(access.buffer for access in accesses)
    total = sum(access.bytes / times[access.buffer] for access in accesses)  # what is read again lies in a cache
    for access in accesses:
        if access.bytes < CONFLICT_BYTES or access.steps[fastest] in (0, 1, None):
            continue
        run = math.prod(size_of(axis) for axis in wide[:-1] if 0 < (access.steps[axis] or 0) < (access.steps[fastest] or 0))
        for axis in wide[:-1]:
            in_a_run = run == access.steps[fastest] and access.bytes >= RUN_BYTES
            if access.steps[axis] == 1 and (size_of(axis) >= CONFLICT_SIZE or in_a_run):
                weights[axis] = weights.get(axis, 0) + access.bytes / times[access.buffer]
    if not weights:
        return (), order
    axis = max(weights, key=lambda a: weights[a])
    if weights[axis] < CONFLICT_SHARE * total:
        return (), order
    place = order.index(axis) + 1
    return order[:place], order[place:]


def _split_into_rows(order: tuple[Axis, ...], accesses: list[Access]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """`order` in two parts where several values hold for all that the second part, long enough, runs over; else the first is
    empty. A program that computes part of one row loads and computes them once, not for each of its elements."""
    for place in range(1, len(order)):
        row = order[place:]
        shared = [a for a in accesses if all(a.steps[axis] == 0 for axis in row) and any(a.steps[axis] for axis in order[:place])]
        if len(shared) >= VALUES_OF_A_ROW:
            return (order[:place], row) if hint(product(axis.size for axis in row)) >= LEAST_ROW else ((), order)
    return (), order


def neighbours_are_folded(outer: tuple[Axis, ...], inner: tuple[Axis, ...], accesses: list[Access]) -> bool:
    """Whether most bytes lie contiguous along the folded axes rather than along the parallel ones."""
    balance = 0
    for access in accesses:
        if any(access.steps[axis] == 1 and size_of(axis) > 1 for axis in inner):
            balance += access.bytes
        elif any(access.steps[axis] == 1 and size_of(axis) > 1 for axis in outer):
            if any(access.steps[axis] != 0 for axis in inner):
                balance -= access.bytes
    return balance >= 0


def _narrowest_crosswise(accesses: list[Access], cluster: Cluster) -> int:
    """The size of the narrowest elements among those that lie crosswise, if that is not next to nothing; else 0."""
    found = [access for access in accesses if _is_crosswise(access, cluster)]
    if sum(access.bytes for access in found) < CROSSWISE_SHARE * sum(access.bytes for access in accesses):
        return 0
    return min((access.itemsize for access in found), default=0)


def _is_crosswise(access: Access, cluster: Cluster) -> bool:
    """Whether much is moved that is contiguous along the outer axes and not along the inner ones."""
    conflicts = any(access.steps[axis] not in (0, 1, None) for axis in cluster.inner if size_of(axis) > 1)
    along = any(access.steps[axis] == 1 and size_of(axis) >= CONFLICT_SIZE for axis in cluster.outer)
    return conflicts and along and access.bytes >= CONFLICT_BYTES
