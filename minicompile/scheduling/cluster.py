"""Clusters: loops that will share a kernel, written over one iteration space. No policy here.

A cluster keeps, for each of its loops, the change from the loop's own axes to the cluster's; bodies are rewritten only
once, at the end. The space is `outer` axes, over which programs run in parallel, and `inner` axes, which reductions
fold; a loop of the cluster lives on all of them or on the outer ones alone.

Rows and columns of the same data can be folded in one walk: the column sums, cut into chunks of rows, are *crossed* with
the row reductions. The rows of a chunk are then `stepped` through by one program.
"""

import dataclasses

from minicompile.ir.index import ONE, Axis, Index, as_index, coefficient_of, product
from minicompile.ir.loops import Loop, Reduction, Scan
from minicompile.scheduling.dependencies import is_scatter
from minicompile.scheduling.reindexing import (
    AxisMap,
    axes_in,
    compose,
    flatten,
    identity,
    is_one_to_one,
    match_axes,
    move,
    unflatten,
)
from minicompile.scheduling.traffic import loads_by_buffer, points

MAXIMUM_ALIGNMENTS = 4


@dataclasses.dataclass
class Cluster:
    """One or more loops over one space.

    Attributes:
        key: position of the first loop; the cluster's name while fusing.
        mask: bit set of the loops' positions.
        outer, inner: the space.
        maps: position of a loop to the change from its axes to the space.
        stores: buffer computed here to the place of its elements, over the space.
        loads: buffer read to the distinct places, over the space.
        overwrites: older buffer to the newer one that takes its storage.
        folds: buffers computed by reductions.
        stepped: the outer axes that one program walks, in a crossed cluster.
        crossed: buffers computed by reductions over the stepped axes.
        alone: scatters share a kernel with nothing.
        scans, ordered: has a scan, something that depends on the order of the inner axes.
    """

    key: int
    mask: int
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    maps: dict[int, AxisMap]
    stores: dict[str, Index]
    loads: dict[str, tuple[Index, ...]]
    overwrites: dict[str, str]
    folds: frozenset[str] = frozenset()
    stepped: tuple[Axis, ...] = ()
    crossed: frozenset[str] = frozenset()
    alone: bool = False
    scans: bool = False
    ordered: bool = False

    @property
    def space(self) -> tuple[Axis, ...]:
        """All axes, outer first."""
        return self.outer + self.inner

    @property
    def reduces(self) -> bool:
        """Whether it has a reduction."""
        return bool(self.folds)

    @property
    def rows(self) -> int:
        """Points of the outer axes."""
        return points(self.outer)

    @property
    def row_length(self) -> int:
        """Points of the inner axes."""
        return points(self.inner)


def cluster_of(position: int, loop: Loop) -> Cluster:
    """The cluster of one loop, over its own axes."""
    outer, inner = loop.axes, loop.reduction_axes
    if isinstance(loop.fold, Scan):
        outer, inner = tuple(a for a in loop.axes if a is not loop.fold.axis), (loop.fold.axis,)
    return Cluster(
        key=position,
        mask=1 << position,
        outer=outer,
        inner=inner,
        maps={position: identity(outer + inner)},
        stores={loop.buffer: loop.store},
        loads=loads_by_buffer(loop.loads),
        overwrites={} if loop.overwrites is None else {loop.overwrites: loop.buffer},
        alone=is_scatter(loop),
        folds=frozenset({loop.buffer}) if isinstance(loop.fold, Reduction) else frozenset(),
        scans=isinstance(loop.fold, Scan),
        ordered=isinstance(loop.fold, Scan) or (loop.fold is not None and loop.fold.kind in ("argmax", "argmin")),
    )


@dataclasses.dataclass(frozen=True)
class Alignment:
    """How `source` is written over the space of `target`, for two clusters that may share a kernel."""

    source: Cluster
    target: Cluster
    changes: AxisMap


def align(first: Cluster, second: Cluster) -> Alignment | str:
    """A change of axes under which the clusters, `first` before `second`, can share a kernel, or why none exists."""
    if first.alone or second.alone:
        return "a scatter stores at places known only at run time"
    if (first.scans and (second.scans or second.reduces)) or (second.scans and first.reduces):
        return "a scan shares a kernel with pointwise operations only"
    if _overwrites_rows(first, second):
        return "a kernel that reduces may walk its rows twice, and one of the two overwrites storage along them"
    for old in second.overwrites:
        if old in first.stores:
            return f"{old} must be complete before {second.overwrites[old]} overwrites part of it"
    for name in first.crossed:
        if name in second.loads:
            return f"{name} is complete only when all rows have been walked"
    source, target = (first, second) if second.inner or not first.inner else (second, first)
    if source.stepped and not target.stepped:
        source, target = target, source
    if not second.inner and not first.inner and len(first.maps) > len(second.maps):
        source, target = second, first
    reason = _spaces_differ(source, target)
    if reason is not None:
        crossed = _cross(first, second) if first.reduces and second.reduces else None
        return crossed or reason
    found = _align(source, target, first, second)
    if isinstance(found, str) and not target.inner and len(target.outer) > 1:
        flat = _flat(target)
        pair = (source, flat) if source is first else (flat, source)
        over_one_axis = _align(source, flat, *pair)
        return found if isinstance(over_one_axis, str) else over_one_axis
    return found


def _cross(first: Cluster, second: Cluster) -> Alignment | None:
    """The alignment of a cluster that folds rows with one that folds chunks of the same rows' columns."""
    for rows, columns in ((first, second), (second, first)):
        stray = [n for n, place in columns.stores.items() if n not in columns.folds and not _varies(place, columns.inner)]
        used_early = [name for name in columns.folds if name in columns.loads or name in rows.loads]
        if columns.stepped or columns.ordered or stray or used_early:
            continue
        for mine, theirs in _shared_places(rows, columns, first, second)[:MAXIMUM_ALIGNMENTS]:
            changes = match_axes(rows.space, mine, columns.space, theirs)
            target = None if changes is None else _crossed_space(rows, columns, changes)
            if target is not None and not any(coefficient_of(theirs, axis) is ONE for axis in target.inner):
                continue  # neighbouring elements would belong to different rows
            if target is not None and changes is not None and _disagreement(first, second, rows, changes) is None:
                return Alignment(rows, target, changes)
    return None


def _crossed_space(rows: Cluster, columns: Cluster, changes: AxisMap) -> Cluster | None:
    """`columns` over chunks and the rows within them, one row at a time, if `changes` writes `rows` over its axes so."""
    within, stepped = _part(changes, rows.inner), _part(changes, rows.stepped)
    kept = frozenset[Axis]().union(*(axes_in(image) for _, image in within))
    inner = tuple(axis for axis in columns.outer if axis in kept)
    parts = tuple(axis for axis in columns.outer if axis not in kept)
    if not parts or not is_one_to_one(within, inner):
        return None
    if rows.ordered and move(flatten(rows.inner), within) is not flatten(inner):
        return None
    if stepped and not is_one_to_one(stepped, columns.inner):
        return None
    return dataclasses.replace(
        columns, outer=parts + columns.inner, inner=inner, stepped=columns.inner, crossed=columns.folds
    )


def _part(changes: AxisMap, axes: tuple[Axis, ...]) -> AxisMap:
    """What becomes of some of the axes."""
    images = dict(changes)
    return tuple((axis, images[axis]) for axis in axes)


def _varies(place: Index, axes: tuple[Axis, ...]) -> bool:
    return not axes_in(place).isdisjoint(axes)


def _overwrites_rows(first: Cluster, second: Cluster) -> bool:
    """Whether one of the two would overwrite storage along the rows that the other, or it, reduces."""
    walks = first if first.inner else second
    for cluster in (first, second):
        along = any(_varies(cluster.stores[new], cluster.inner) for new in cluster.overwrites.values())
        if cluster.overwrites and walks.inner and (along if cluster.inner else cluster.rows != walks.rows):
            return True
    return False


def _flat(cluster: Cluster) -> Cluster:
    """A pointwise cluster over a single axis, for shapes that have no common factors."""
    axis = Axis("flat", product(axis.size for axis in cluster.outer))
    return dataclasses.replace(_moved(cluster, unflatten(as_index(axis), cluster.outer)), outer=(axis,))


def _align(source: Cluster, target: Cluster, first: Cluster, second: Cluster) -> Alignment | str:
    reason = "no change of axes makes their accesses agree"
    for changes in _candidates(source, target, first, second):
        problem = _disagreement(first, second, source, changes)
        if problem is None:
            return Alignment(source, target, changes)
        reason = problem
    return reason


def _spaces_differ(source: Cluster, target: Cluster) -> str | None:
    """Whether the numbers of points already exclude fusion."""
    if source.inner:
        if source.rows != target.rows or source.row_length != target.row_length:
            return (
                f"they reduce different spaces: {source.rows} rows of {source.row_length} and "
                f"{target.rows} rows of {target.row_length}"
            )
    elif source.rows != target.rows * target.row_length and source.rows != target.rows:
        return f"their iteration spaces differ: {source.rows} points and {target.rows} x {target.row_length}"
    return None


def _candidates(source: Cluster, target: Cluster, first: Cluster, second: Cluster) -> list[AxisMap]:
    """Changes of axes suggested by buffers that both touch, then by row-major order; each is one to one."""
    levels = dict.fromkeys((target.space,) if source.inner else (target.space, target.outer))
    spaces = [axes for axes in levels if points(axes) == points(source.space)]
    found: dict[AxisMap, None] = {}
    for mine, theirs in _shared_places(source, target, first, second)[:MAXIMUM_ALIGNMENTS]:
        for axes in spaces:
            matched = match_axes(source.space, mine, axes, theirs)
            if matched is not None and _keeps_levels(source, target, matched):
                found[matched] = None
    for axes in spaces:
        if len(found) < MAXIMUM_ALIGNMENTS:
            changes = unflatten(flatten(axes), source.space)
            if is_one_to_one(changes, axes) and _keeps_levels(source, target, changes):
                found.setdefault(changes)
    return list(found)


def _shared_places(source: Cluster, target: Cluster, first: Cluster, second: Cluster) -> list[tuple[Index, Index]]:
    """Where both touch one buffer: the places of the source and of the target."""
    pairs: dict[tuple[Index, Index], None] = {}
    for name, place in first.stores.items():
        for read in second.loads.get(name, ()):
            pairs[(place, read) if source is first else (read, place)] = None
    for name, reads in source.loads.items():
        for mine in reads[:2]:
            for theirs in target.loads.get(name, ())[:2]:
                pairs.setdefault((mine, theirs))
    return list(pairs)


def _keeps_levels(source: Cluster, target: Cluster, changes: AxisMap) -> bool:
    """Whether reductions of the source fold the inner axes of the target, in the same order where that matters."""
    if not source.inner:
        return True
    outer, inner = changes[: len(source.outer)], changes[len(source.outer) :]
    if not is_one_to_one(outer, target.outer) or not is_one_to_one(inner, target.inner):
        return False
    if source.stepped and not is_one_to_one(_part(changes, source.stepped), target.stepped):
        return False
    return not source.ordered or move(flatten(source.inner), inner) is flatten(target.inner)


def _disagreement(first: Cluster, second: Cluster, source: Cluster, changes: AxisMap) -> str | None:
    """Why the accesses conflict once written over one space, or `None`."""
    of_first, of_second = (changes, ()) if source is first else ((), changes)
    for name, place in first.stores.items():
        reads = second.loads.get(name, ())
        if reads:
            stored = move(place, of_first)
            if any(move(read, of_second) is not stored for read in reads):
                return f"{name} is read elsewhere than at the point that computes it"
    for old, new in second.overwrites.items():
        stored = move(second.stores[new], of_second)
        if any(move(read, of_first) is not stored for read in first.loads.get(old, ())):
            return f"{new} overwrites {old}, which is read at other places"
    return None


def merge(first: Cluster, second: Cluster, alignment: Alignment) -> Cluster:
    """Both clusters as one, over the target's space."""
    source, target, changes = alignment.source, alignment.target, alignment.changes
    moved = _moved(source, changes)
    early, late = (moved, target) if source is first else (target, moved)
    loads = dict(early.loads)
    for name, reads in late.loads.items():
        known = loads.get(name, ())
        loads[name] = known + tuple(read for read in reads if read not in known)
    return Cluster(
        key=min(first.key, second.key),
        mask=first.mask | second.mask,
        outer=target.outer,
        inner=target.inner,
        maps=early.maps | late.maps,
        stores=early.stores | late.stores,
        loads=loads,
        overwrites=early.overwrites | late.overwrites,
        folds=first.folds | second.folds,
        stepped=target.stepped,
        crossed=source.crossed | target.crossed,
        scans=first.scans or second.scans,
        ordered=first.ordered or second.ordered,
    )


def _moved(cluster: Cluster, changes: AxisMap) -> Cluster:
    """The cluster's accesses and maps over new axes."""
    if all(len(image.terms) == 1 and image.terms[0] == ((axis,), 1) for axis, image in changes):
        return cluster
    return dataclasses.replace(
        cluster,
        maps={position: compose(own, changes) for position, own in cluster.maps.items()},
        stores={name: move(place, changes) for name, place in cluster.stores.items()},
        loads={name: tuple(dict.fromkeys(move(i, changes) for i in reads)) for name, reads in cluster.loads.items()},
    )
