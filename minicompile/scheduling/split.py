"""Reductions with too few results to fill the chip become two: partial results over chunks, then the fold of those.

`choose_splits` is the policy, a pure function; the rest is mechanism. This module must not split reductions whose
result is a position (argmax), nor anything for the interpreter, where every program costs the same.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from minicompile.ir.expr import Constant, IndexValue, Load, Masked, apply, cast, loads, rewrite
from minicompile.ir.index import Axis, Index, as_index, product
from minicompile.ir.loops import Buffer, Loop, Operation, Reduction, fold_identity
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.profit import MAXIMUM_CROSSED_ROW
from minicompile.scheduling.reindexing import AxisMap, axes_in, flatten, identity, step_of, unflatten
from minicompile.scheduling.tiling import COLUMN_BYTES, ROW_REGISTERS, SECTOR_BYTES, next_power_of_two
from minicompile.scheduling.traffic import points
from minicompile.scheduling.variance import Chunks, find_exponentials, find_squares, in_chunks, partial_name

WORTH_A_LAUNCH = 1 << 18
WORTH_A_SECOND_READ = 1 << 23
WORTH_CROSSING = 1 << 20
LEAST_CHUNK = 8
PROGRAMS_PER_MULTIPROCESSOR = 4
CHUNK_BYTES = 1 << 15
LEAST_SHARE_OF_A_SECTOR, LEAST_SHARE_IN_PARTS = 3, 2
"""A walk that uses no more than one part in so many of what it moves is made along other axes: one of whole rows, and of rows
that are cut in any case."""
LINE_BYTES, COST_OF_PIECES = 128, 8
"""Shorter pieces of what is folded cost a program so many times what long ones do, in instructions for their addresses."""
SPLITTABLE = ("sum", "prod", "max", "min", "any")


def choose_splits(
    results: int, length: int, itemsize: int, columns: bool, device: DeviceProperties, scattered: bool = False
) -> int:
    """Into how many parts each of `results` reductions over `length` elements is cut; 1 leaves it whole.

    `columns`: neighbouring elements belong to different results, so that a program computes several at once. `scattered`: the
    elements of a result lie in pieces so short that a program spends its time on finding them; too few to keep the chip busy are
    then cut sooner.
    """
    if device.kind == "cpu":
        return 1
    width = max(1, min(next_power_of_two(results), COLUMN_BYTES // itemsize)) if columns else 1
    programs = -(-results // width)
    per_program = width * length * itemsize * (COST_OF_PIECES if scattered and programs < device.multiprocessors else 1)
    enough = PROGRAMS_PER_MULTIPROCESSOR * device.multiprocessors
    if 2 * programs >= enough or per_program < WORTH_A_LAUNCH:
        return 1
    wanted = -(-enough // programs)
    return min(next_power_of_two(wanted), max(1, per_program // CHUNK_BYTES))


def choose_chunks(
    results: int, length: int, itemsize: int, columns: bool, splits: int, device: DeviceProperties
) -> int:
    """Into how many parts a sum is cut whose variance is wanted too: chunks then stay in registers, and the values are
    read once instead of twice. `splits` is what `choose_splits` wants for the sum alone.

    Rows that are in the cache when they are read again are left whole.
    """
    width = COLUMN_BYTES // itemsize if columns else 1
    chunk = next_power_of_two(ROW_REGISTERS // 3) // width
    at_once = min(results, 2 * device.multiprocessors) * length * itemsize
    worthwhile = columns or splits > 1 or at_once > device.l2_bytes
    if length <= chunk or not worthwhile or results * length * itemsize < WORTH_A_SECOND_READ:
        return splits
    return max(splits, -(-length // chunk))


def choose_row_chunks(rows: int, columns: int, itemsize: int, device: DeviceProperties) -> int:
    """Into how many chunks of rows a column sum is cut that shares its walk over the data with row reductions; 1 if it
    should not. Each chunk is a program, and writes a row of partial sums.
    """
    if device.kind == "cpu" or columns > MAXIMUM_CROSSED_ROW or rows * columns * itemsize < WORTH_CROSSING:
        return 1
    wanted = max(LEAST_CHUNK, rows // (PROGRAMS_PER_MULTIPROCESSOR * device.multiprocessors))
    chunk = next_power_of_two(wanted)
    while chunk * 2 > wanted and rows % chunk:
        chunk //= 2
    if rows % chunk:
        chunk = next((n for n in range(wanted, 2 * wanted) if rows % n == 0), rows)
    return rows // chunk


def split_reductions(
    operations: Sequence[Operation], buffers: Mapping[str, Buffer], device: DeviceProperties
) -> tuple[tuple[Operation, ...], dict[str, Buffer]]:
    """The operations with long, few reductions in two stages, and all buffers with those of the partial results."""
    known = dict(buffers)
    result: list[Operation] = []
    squares = find_squares(operations) if device.kind != "cpu" else {}
    partners = squares | find_exponentials(operations) if device.kind != "cpu" else {}
    with_squares = set(squares.values())
    row_folds = _row_folds(operations)
    chunked: dict[int, Chunks] = {}
    for position, loop in enumerate(operations):
        run, splits = _cuts(loop, buffers, device, position in with_squares, row_folds) if isinstance(loop, Loop) else ((), 1)
        partner = chunked.get(partners.get(position, -1))
        if not isinstance(loop, Loop) or (splits == 1 and not run and partner is None):
            result.append(loop)
            continue
        if partner is not None:
            first, second, partial = in_chunks(loop, partner, known)
        else:
            first, second, partial, chunks = _in_two_stages(loop, splits, run, known)
            if chunks is not None:
                chunked[position] = chunks
        known[partial.name] = partial
        result += [first, second]
    return tuple(result), known


def _cuts(
    loop: Loop, buffers: Mapping[str, Buffer], device: DeviceProperties, with_squares: bool, row_folds: set[tuple[str, int, int]]
) -> tuple[tuple[Axis, ...], int]:
    """The short run that is folded last, and into how many parts the rest is cut."""
    run = _short_run(loop, buffers, device, LEAST_SHARE_OF_A_SECTOR)
    splits = _splits(loop, run, buffers, device, with_squares, row_folds)
    if splits > 1 and not run and (run := _short_run(loop, buffers, device, LEAST_SHARE_IN_PARTS)):
        splits = _splits(loop, run, buffers, device, with_squares, row_folds)
    return run, splits


def _row_folds(operations: Sequence[Operation]) -> set[tuple[str, int, int]]:
    """What reductions read: the buffer, the number of results, and the elements folded into each."""
    return {
        (load.buffer, points(loop.axes), points(loop.fold.axes))
        for loop in operations
        if isinstance(loop, Loop) and isinstance(loop.fold, Reduction)
        for load in loop.loads
    }


def _short_run(loop: Loop, buffers: Mapping[str, Buffer], device: DeviceProperties, share: int) -> tuple[Axis, ...]:
    """The folded axis along which all that is folded lies side by side, but for so few elements that a walk along it would use
    no more than one part in `share` of each sector; the rest belongs to other results: the channels of a group, where all
    channels of a pixel lie together. It is folded last, from partial results that are neighbours."""
    fold = loop.fold
    if device.kind == "cpu" or not isinstance(fold, Reduction) or fold.kind not in SPLITTABLE or loop.overwrites is not None:
        return ()
    axes = (*loop.axes, *fold.axes)
    read = [load for load in loads(loop.value) if axes_in(load.index) >= frozenset(fold.axes)]
    if len(fold.axes) < 2 or not read or any(axis.size.constant is None for axis in axes):
        return ()
    itemsize = max(buffers[load.buffer].dtype.itemsize for load in read)
    if points(axes) * itemsize < WORTH_A_SECOND_READ:
        return ()
    for run in fold.axes:
        length = points((run,))
        steps = [(step_of(load.index, run), {step_of(load.index, axis) for axis in loop.axes}) for load in read]
        if 1 < length <= SECTOR_BYTES // (share * itemsize) and all(
            own == 1 and length in others for own, others in steps
        ):
            return (run,)
    return ()


def _splits(
    loop: Loop,
    run: tuple[Axis, ...],
    buffers: Mapping[str, Buffer],
    device: DeviceProperties,
    with_squares: bool,
    row_folds: set[tuple[str, int, int]],
) -> int:
    """How often to split one loop, beside a short `run`; 1 for what cannot be split. `with_squares`: a variance needs the same
    values."""
    if not isinstance(loop.fold, Reduction) or loop.fold.kind not in SPLITTABLE or loop.overwrites is not None:
        return 1
    symbolic = any(axis.size.constant is None for axis in loop.fold.axes)
    folded = frozenset(loop.fold.axes)
    read = [load for load in loads(loop.value) if axes_in(load.index) & folded]
    itemsize = max((buffers[load.buffer].dtype.itemsize for load in read), default=4)
    columns = bool(run) or _neighbours_are_results(loop, read)
    length = points(loop.fold.axes) // points(run)
    results = points(loop.axes) * points(run)
    if columns and not symbolic and loop.fold.kind == "sum" and any((load.buffer, length, results) in row_folds for load in read):
        chunks = choose_row_chunks(length, results, itemsize, device)
        if chunks > 1:
            return chunks
    scattered = not columns and not symbolic and _piece(loop, read) * itemsize < LINE_BYTES
    splits = choose_splits(results, length, itemsize, columns, device, scattered)
    if with_squares and not symbolic:
        splits = choose_chunks(results, length, itemsize, columns, splits, device)
    return splits if 2 * splits <= length else 1


def _piece(loop: Loop, read: Sequence[Load]) -> int:
    """How many elements that are folded into one result lie side by side where the most is read."""
    if not read:
        return points(loop.reduction_axes)
    load, length = max(read, key=lambda load: points(axes_in(load.index))), 1
    for axis in sorted(loop.reduction_axes, key=lambda axis: abs(step_of(load.index, axis) or 0)):
        if step_of(load.index, axis) != length:
            break
        length *= points((axis,))
    return length


def _neighbours_are_results(loop: Loop, read: Sequence[Load]) -> bool:
    """Whether half or more of what is loaded over the whole space is contiguous along the axes of the result."""
    votes = 0
    space = frozenset(loop.axes) | frozenset(loop.reduction_axes)
    for load in [load for load in read if axes_in(load.index) >= space] or read:
        folded = [step_of(load.index, axis) for axis in loop.reduction_axes]
        if 1 in folded:
            votes -= points(axes_in(load.index))
        elif any(step_of(load.index, axis) == 1 for axis in loop.axes):
            votes += points(axes_in(load.index)) * any(step != 0 for step in folded)
    return votes >= 0


def _slowest_first(folded: tuple[Axis, ...], loop: Loop) -> tuple[Axis, ...]:
    """Folded axes by their steps in what is read, so that what a chunk reads lies together."""
    for load in loads(loop.value):
        steps = {axis: step_of(load.index, axis) for axis in folded}
        if all(steps.values()):
            return tuple(sorted(folded, key=lambda axis: -abs(steps[axis] or 0)))
    return folded


def _chunks(axes: tuple[Axis, ...], splits: int) -> tuple[Axis, tuple[Axis, ...], AxisMap, Index | None]:
    """A new axis over about `splits` chunks, the axes inside a chunk, the old axes over these, and, where the last
    chunk is not full, the position that must stay below the number of elements."""
    whole, number = product(axis.size for axis in axes), splits
    if (length := whole.constant) is not None:
        first, rest = axes[0], axes[1:]
        size = points((first,))
        for number in range(splits, 2 * splits):
            if size % number == 0 and (size > number or rest):
                part, within = Axis("part", number), Axis("within", size // number)
                place = as_index(part) * within.size + as_index(within)
                inside = (within, *rest) if size > number else rest
                changes = ((first, place if size > number else as_index(part)), *identity(rest))
                return part, inside, changes, None
        number = next((n for n in range(splits, 2 * splits) if length % n == 0 and n < length), splits)
    part, within = Axis("part", number), Axis("within", (whole + (number - 1)) // number)
    position = flatten((part, within))
    return part, (within,), unflatten(position, axes), None if length is not None and length % number == 0 else position


def _in_two_stages(
    loop: Loop, splits: int, run: tuple[Axis, ...], buffers: Mapping[str, Buffer]
) -> tuple[Loop, Loop, Buffer, Chunks | None]:
    """The loop over chunks, none of which has more than one place of a `run`, the loop over its partial results, the buffer
    between them, and the chunks if equal."""
    assert isinstance(loop.fold, Reduction)
    kind, rest = loop.fold.kind, _slowest_first(tuple(axis for axis in loop.fold.axes if axis not in run), loop)
    part, within, changes, position = _chunks(rest, splits) if splits > 1 else (None, rest, identity(rest), None)
    parts, changes = run if part is None else (part, *run), (*changes, *identity(run))
    dtype = accumulator_dtype(loop.value.dtype, kind, buffers[loop.buffer].dtype)
    value = cast(rewrite(loop.value, dict(changes)), dtype)
    if position is not None:
        length = product(axis.size for axis in rest)
        limit = IndexValue(length, torch.int64) if length.constant is None else Constant(int(length), torch.int64)
        inside = apply("lt", IndexValue(position, torch.int64), limit, dtype=torch.bool)
        value = Masked(inside, value, Constant(fold_identity(kind, dtype), dtype), dtype)
    sizes = tuple(axis.size for axis in (*parts, *loop.axes))
    strides = tuple(product(sizes[i + 1 :]) for i in range(len(sizes)))
    name = partial_name(loop, buffers)
    partial = Buffer(name, dtype, buffers[loop.buffer].device, sizes, strides)
    place = flatten((*parts, *loop.axes))
    first = Loop(name, (*parts, *loop.axes), value, place, Reduction(kind, within), origins=loop.origins)
    second = dataclasses.replace(loop, value=Load(name, place, dtype), fold=Reduction(kind, parts))
    whole = position is None and dtype == loop.value.dtype
    return first, second, partial, Chunks(parts, within, changes, place, partial) if whole else None


def accumulator_dtype(value: torch.dtype, kind: str, result: torch.dtype) -> torch.dtype:
    """The dtype that partial results keep, so that nothing is rounded twice."""
    if kind not in ("sum", "prod"):
        return value
    if value.is_floating_point:
        return torch.float32 if value.itemsize < 4 else value
    return torch.int64 if not result.is_floating_point else result
