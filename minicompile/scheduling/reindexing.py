"""Writing one loop nest over the axes of another: inverting accesses, and proving that a change of axes is one to one.

A change of axes is an `AxisMap`: for each old axis its value over the new axes. This module must not know about loops,
groups or profit.
"""

import functools

from minicompile.ir.expr import Expr, IndexValue, Load, Random, rewrite_index, walk
from minicompile.ir.index import (
    ONE,
    ZERO,
    Axis,
    FloorDiv,
    Index,
    Indirect,
    Mod,
    Monomial,
    Symbol,
    as_index,
    atoms,
    coefficient_of,
    digits,
    floor_divide,
    hint,
    product,
    remainder,
    row_major,
)

AxisMap = tuple[tuple[Axis, Index], ...]
Digit = tuple[Axis, Index, Index]


@functools.lru_cache(maxsize=1 << 16)
def move(index: Index, changes: AxisMap) -> Index:
    """`index` over the new axes."""
    if not changes or not index.terms:
        return index
    return rewrite_index(index, dict(changes))


@functools.lru_cache(maxsize=1 << 14)
def compose(first: AxisMap, second: AxisMap) -> AxisMap:
    """The change of axes that does `first` and then `second`."""
    return tuple((axis, move(image, second)) for axis, image in first)


@functools.lru_cache(maxsize=1 << 12)
def identity(axes: tuple[Axis, ...]) -> AxisMap:
    """The change of axes that changes nothing."""
    return tuple((axis, as_index(axis)) for axis in axes)


@functools.lru_cache(maxsize=1 << 14)
def axes_in(index: Index) -> frozenset[Axis]:
    """The axes an index depends on, those of values it reads from memory included."""
    found: set[Axis] = set()
    for atom in atoms(index):
        if isinstance(atom, Axis):
            found.add(atom)
        elif isinstance(atom, Indirect):
            found |= axes_in_value(atom.value)
    return frozenset(found)


def axes_in_value(value: Expr) -> frozenset[Axis]:
    """The axes that a scalar expression depends on."""
    indices = [part.index for part in walk(value) if isinstance(part, (Load, IndexValue, Random))]
    return frozenset().union(*map(axes_in, indices))


@functools.lru_cache(maxsize=1 << 12)
def flatten(axes: tuple[Axis, ...]) -> Index:
    """The position in the row-major order of `axes`."""
    return row_major(map(as_index, axes), (axis.size for axis in axes))


@functools.lru_cache(maxsize=1 << 12)
def unflatten(position: Index, axes: tuple[Axis, ...]) -> AxisMap:
    """The value of each axis at a row-major position."""
    images = digits(position, [axis.size for axis in axes])
    return tuple((axis, ZERO if axis.size is ONE else image) for axis, image in zip(axes, images, strict=True))


@functools.lru_cache(maxsize=1 << 14)
def strides_of(access: Index, axes: tuple[Axis, ...]) -> tuple[Index, tuple[tuple[Axis, Index], ...]] | None:
    """The offset and the non-zero strides, largest first, of an access that is affine in `axes`; else `None`."""
    rest, strides = access, []
    for axis in axes:
        stride = coefficient_of(access, axis)
        if stride is None or axes_in(stride):
            return None
        if stride.terms and axis.size is not ONE:
            strides.append((axis, stride))
            rest = rest - stride * as_index(axis)
    if any(axis in axes_in(rest) and axis.size is not ONE for axis in axes):
        return None
    return rest, tuple(sorted(strides, key=lambda item: -hint(item[1])))


@functools.lru_cache(maxsize=1 << 14)
def step_of(access: Index, axis: Axis) -> int | None:
    """How far apart neighbouring places of `axis` lie, but where a division or remainder of it passes a boundary; `None` if
    that cannot be said. Symbols count as their hints."""
    step = ZERO
    for monomial, coefficient in access.terms:
        if axis not in axes_in(Index(((monomial, 1),))):
            continue
        found = _digit(monomial)
        if found is None:
            return None
        (_, low, _), factor = found
        step = step + factor * coefficient if low is ONE else step
    return hint(step)


@functools.lru_cache(maxsize=1 << 14)
def is_nested(access: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether different points of `axes` surely give different elements: each stride spans all smaller ones."""
    found = strides_of(access, axes)
    if found is None or len(found[1]) != sum(axis.size is not ONE for axis in axes):
        return False
    span = ONE
    for axis, stride in reversed(found[1]):
        number, least = stride.constant, span.constant
        if stride is not span and (number is None or least is None or number < least):
            return False
        span = stride * axis.size
    return True


@functools.lru_cache(maxsize=1 << 16)
def solve(access: Index, axes: tuple[Axis, ...], target: Index) -> tuple[tuple[Axis, Index], ...] | None:
    """Values of the axes that `access` depends on for which it equals `target`; `None` if it is not affine.

    Right wherever the strides are nested and `target` is an element that `access` reaches.
    """
    found = strides_of(access, axes)
    if found is None:
        return None
    offset, strides = found
    rest = target - offset
    images: list[tuple[Axis, Index]] = []
    for number, (axis, stride) in enumerate(strides):
        images.append((axis, floor_divide(rest, stride)))
        if number < len(strides) - 1 or stride is not ONE:
            rest = remainder(rest, stride)
    return tuple(images)


def _digit(monomial: Monomial) -> tuple[Digit, Index] | None:
    """The part of an axis that a product of atoms stands for (`low` to `high` of its place value), and its factor."""
    factor, digit = ONE, None
    for atom in monomial:
        if isinstance(atom, Symbol):
            factor = factor * as_index(atom)
        elif digit is not None:
            return None
        else:
            digit = _place(atom)
            if digit is None:
                return None
    return None if digit is None else (digit, factor)


def _place(atom: object) -> Digit | None:
    match atom:
        case Axis():
            return atom, ONE, atom.size
        case FloorDiv():
            inner = _only_place(atom.numerator)
            return None if inner is None else (inner[0], inner[1] * atom.divisor, inner[2])
        case Mod():
            inner = _only_place(atom.numerator)
            return None if inner is None else (inner[0], inner[1], inner[1] * atom.divisor)
    return None


def _only_place(index: Index) -> Digit | None:
    if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        return _place(index.terms[0][0][0])
    return None


@functools.lru_cache(maxsize=1 << 14)
def digits_of(image: Index, size: Index) -> tuple[Digit, ...] | None:
    """The axis parts that make up `image` if it counts through exactly `size` values, each once; else `None`."""
    by_factor: dict[Index, Digit] = {}
    for monomial, coefficient in image.terms:
        found = _digit(monomial)
        if found is None or coefficient < 0:
            return None
        digit, factor = found
        by_factor[factor * coefficient] = digit
    if len(by_factor) != len(image.terms):
        return None
    place, digits = ONE, []
    while by_factor:
        lowest = by_factor.pop(place, None)
        if lowest is None or floor_divide(lowest[2], lowest[1]) * lowest[1] is not lowest[2]:
            return None
        digits.append(lowest)
        place = place * floor_divide(lowest[2], lowest[1])
    return tuple(digits) if place is size else None


@functools.lru_cache(maxsize=1 << 14)
def is_one_to_one(changes: AxisMap, axes: tuple[Axis, ...]) -> bool:
    """Whether the points of `axes` and those of the old axes correspond one to one (and onto)."""
    places: dict[Axis, dict[Index, Index]] = {}
    for axis, image in changes:
        digits = digits_of(image, axis.size)
        if digits is None:
            return False
        for whole, low, high in digits:
            if low in places.setdefault(whole, {}):
                return False
            places[whole][low] = high
    for axis in axes:
        chain, place = places.pop(axis, {}), ONE
        while chain:
            if place not in chain:
                return False
            place = chain.pop(place)
        if place is not axis.size:
            return False
    return not places


@functools.lru_cache(maxsize=1 << 14)
def match_axes(axes: tuple[Axis, ...], access: Index, target_axes: tuple[Axis, ...], target: Index) -> AxisMap | None:
    """The change from `axes` to `target_axes` under which `access` is `target`, one to one; `None` if there is none.

    Axes that the access does not depend on are matched, in row-major order, with those that the target does not.
    """
    if axes == target_axes and access is target:
        return identity(axes)
    solved = solve(access, axes, target)
    if solved is None:
        return None
    images = dict(solved)
    used = frozenset().union(*(axes_in(image) for image in images.values())) if images else frozenset()
    left = tuple(a for a in axes if a not in images)
    left_target = tuple(a for a in target_axes if a not in used and a.size is not ONE)
    if product(a.size for a in left) is not product(a.size for a in left_target):
        return None
    images.update(unflatten(flatten(left_target), left))
    changes = tuple((axis, images[axis]) for axis in axes)
    return changes if is_one_to_one(changes, target_axes) and move(access, changes) is target else None

