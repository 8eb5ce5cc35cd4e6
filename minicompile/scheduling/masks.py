"""What masks say about the axes: in which range of an axis a load under a mask happens at all.

Concatenations, paddings and scattered slices load at places such as `j - 8` that are inside the buffer only where the
mask holds; knowing the range turns divisions of such places into plain indices. This module must not rewrite loops.
"""

from minicompile.ir.expr import Apply, Constant, Expr, IndexValue, Load, Masked, children, walk
from minicompile.ir.index import Axis, Index, as_index, hint
from minicompile.scheduling.reindexing import AxisMap, move, solve

Ranges = tuple[tuple[Axis, int, int], ...]
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq"}


def ranges_of_loads(value: Expr) -> dict[Load, Ranges]:
    """For loads that happen only under masks, the ranges `low <= axis < high` that those imply."""
    if not any(isinstance(part, Masked) for part in walk(value)):
        return {}
    found: dict[Load, Ranges] = {}
    seen: set[tuple[Expr, Ranges]] = set()
    stack: list[tuple[Expr, Ranges]] = [(value, ())]
    while stack:
        current, ranges = stack.pop()
        if (current, ranges) in seen:
            continue
        seen.add((current, ranges))
        if isinstance(current, Load):
            found[current] = ranges if found.get(current, ranges) == ranges else ()
        if isinstance(current, Masked):
            stack.append((current.value, _tightened(ranges, current.condition)))
            stack += [(current.condition, ranges), (current.other, ranges)]
        else:
            stack += [(child, ranges) for child in children(current)]
    return {load: ranges for load, ranges in found.items() if ranges}


def solve_within(access: Index, axes: tuple[Axis, ...], target: Index, ranges: Ranges) -> AxisMap | None:
    """`solve` with the knowledge that the axes of `target` are in `ranges`."""
    tight = [(axis, low, Axis(f"{axis.name}_from_{low}", high - low)) for axis, low, high in ranges if low < high]
    moved = move(target, tuple((axis, as_index(inner) + low) for axis, low, inner in tight))
    solved = solve(access, axes, moved)
    if solved is None:
        return None
    back = tuple((inner, as_index(axis) - low) for axis, low, inner in tight)
    return tuple((axis, move(image, back)) for axis, image in solved)


def _tightened(ranges: Ranges, condition: Expr) -> Ranges:
    """`ranges` where `condition` holds too."""
    bounds = {axis: (low, high) for axis, low, high in ranges}
    pending = [condition]
    while pending:
        current = pending.pop()
        if not isinstance(current, Apply) or len(current.arguments) != 2:
            continue
        left, right = current.arguments
        if current.operation in ("logical_and", "bitwise_and", "mul"):
            pending += [left, right]
        elif current.operation in MIRRORED and isinstance(right, Constant):
            _note(bounds, current.operation, left, right.value)
        elif current.operation in MIRRORED and isinstance(left, Constant):
            _note(bounds, MIRRORED[current.operation], right, left.value)
    return tuple((axis, low, high) for axis, (low, high) in sorted(bounds.items(), key=lambda item: item[0].name))


def _note(bounds: dict[Axis, tuple[int, int]], comparison: str, value: Expr, limit: int | float | bool) -> None:
    """Narrow the range of the only axis of `value`, if it is an axis plus a constant."""
    if not isinstance(value, IndexValue) or not isinstance(limit, int):
        return
    constant = dict(value.index.terms).get((), 0)
    variable = value.index - constant
    if len(variable.terms) != 1 or variable.terms[0][1] != 1 or len(variable.terms[0][0]) != 1:
        return
    axis = variable.terms[0][0][0]
    if not isinstance(axis, Axis) or axis.size.constant is None:
        return
    low, high = bounds.get(axis, (0, hint(axis.size)))
    place = limit - constant
    if comparison in ("ge", "gt", "eq"):
        low = max(low, place + (comparison == "gt"))
    if comparison in ("lt", "le", "eq"):
        high = min(high, place + (comparison != "lt"))
    bounds[axis] = (low, high)
