"""What a kernel moves in vain: of the sectors that memory comes in, a walk along rows uses one element each where something
lies in another order than the rest. A pointwise kernel has two parallel axes then, and none of this, but where its loops
agree on one axis only.

This module must not decide anything.
"""

from collections.abc import Container, Mapping

from minicompile.ir.loops import Buffer
from minicompile.scheduling.cluster import Cluster
from minicompile.scheduling.domain import CONFLICT_SIZE, Access, accesses_of, by_steps, neighbours_are_folded
from minicompile.scheduling.tiling import ROW_REGISTERS, SECTOR_BYTES, next_power_of_two
from minicompile.scheduling.traffic import points, size_of


def bytes_in_vain(cluster: Cluster, buffers: Mapping[str, Buffer], moved: Container[str]) -> int:
    """Bytes that a cluster moves beyond those that it uses, if the buffers `moved` are read and written; 0 for one that folds
    columns, or both, whose tiles have two sides."""
    accesses = [access for access in accesses_of(cluster, buffers) if access.buffer in moved]
    if not cluster.inner and len(cluster.outer) == 1:
        (line,) = cluster.outer
        return sum(a.bytes * (_elements_of_a_sector(a) - 1) for a in accesses if a.steps[line] not in (0, 1, -1, None))
    wide = [axis for axis in by_steps(cluster.inner, accesses) if size_of(axis) > 1]
    if not wide or cluster.stepped or not neighbours_are_folded(cluster.outer, cluster.inner, accesses):
        return 0
    fastest = wide[-1]
    along = [access for access in accesses if access.steps[fastest] != 0]
    rows = ROW_REGISTERS // ((len(along) + 1) * next_power_of_two(points(cluster.inner)))
    return sum(access.bytes * (_elements_of_a_sector(access) // _used(access, cluster, rows) - 1)
               for access in along if access.steps[fastest] not in (1, -1, None))  # fmt: skip


def _elements_of_a_sector(access: Access) -> int:
    return max(1, SECTOR_BYTES // access.itemsize)


def _used(access: Access, cluster: Cluster, rows: int) -> int:
    """Elements of a sector that one program uses, which may hold `rows` at once: neighbours that are in different rows."""
    is_crosswise = any(access.steps[axis] == 1 and size_of(axis) >= CONFLICT_SIZE for axis in cluster.outer)
    return max(1, min(rows, _elements_of_a_sector(access))) if is_crosswise else 1
