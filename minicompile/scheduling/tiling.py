"""Block sizes, warps and strategy of a kernel, from a deterministic cost model; nothing is measured here.

On a GPU a program should have enough bytes in flight to hide latency (about `BYTES_PER_THREAD` per thread, in 16-byte
vectors), there should be enough programs for every multiprocessor, and a row that fits the registers is read once
(`persistent`). Under the interpreter, where each program costs about a millisecond however small it is, the code generator
makes the tiles as large as the problem. `plan_tile` is a pure function of `TileFacts`.
"""

import dataclasses

from minicompile.ir.index import Axis, hint
from minicompile.ir.schedule import DeviceProperties, Strategy, TileAxis, TilePlan

ROW_REGISTERS = 49152
SECTOR_BYTES = 32
BYTES_PER_THREAD = 32
ROW_BYTES_PER_THREAD = 128
"""Of a row that a program keeps: fewer and fuller threads spend less time waiting for each other's sums."""
LOOPED_BLOCK = 4096
COLUMN_BYTES = 128
COLUMN_BYTES_PER_THREAD = 256
"""Of columns that a program keeps: with 128, the variance of 32768 x 8192 16-bit elements takes 1.5 times as long on an H200."""
COLUMN_TILE = 4096
LEAST_COLUMN_TILE = 2048
SYMBOLIC_ROWS = 4
"""Rows per program at most where their length varies, so that much longer ones fit too."""
CROSSED_TILE = 2048
UNROLLED_OPERATIONS = 2048
"""Of the elements of a thread, in additions: more do not stay in the cache for instructions."""
MOST_THREADS = 512
WARPS_OF_A_WALK = 8
"""Fewer on a multiprocessor wait for memory most of the time."""
THREAD_REGISTERS = 256
"""For rows, of which some are loaded when others are done with."""


@dataclasses.dataclass(frozen=True)
class TileFacts:
    """What the model knows about a kernel.

    Attributes:
        parallel, stepped, folded: its axes.
        folded_first: memory is contiguous along the folded axis.
        crosswise: the size of the narrowest elements that are, though, contiguous from row to row; 0 if none are.
        in_rows: of two parallel axes the second is a row, of which several values hold for all elements.
        itemsize: of the widest element moved over the whole space, in bytes.
        live_rows: values over the folded axis that stay in registers from one pass to the next.
        must_persist: a scan whose result other loops use.
        any_size: symbolic sizes may have any value, however far from their hints.
        cost: arithmetic for each element, in additions.
        one_pass: nothing along the folded axis waits for what is folded along it.
    """

    parallel: tuple[Axis, ...]
    folded: Axis | None
    folded_first: bool
    itemsize: int
    live_rows: int
    must_persist: bool = False
    stepped: Axis | None = None
    any_size: bool = False
    crosswise: int = 0
    in_rows: bool = False
    cost: int = 1
    one_pass: bool = False

    def may_persist(self) -> bool:
        """Whether a row may be kept whole: its length is known, or rows of lengths far from the hint are not expected."""
        assert self.folded is not None
        return self.folded.size.constant is not None or not self.any_size

    def longest(self, elements: int) -> int:
        """The longest row of an unknown length for which `elements` registers suffice; 0 for one of known length."""
        assert self.folded is not None
        if self.folded.size.constant is not None or self.any_size:
            return 0
        return 1 << max(elements, hint(self.folded.size)).bit_length() - 1

    def rows_of_a_sector(self, block: int) -> int:
        """The number of rows with which a program makes use of all that it moves, or as many as the registers allow."""
        rows = SECTOR_BYTES // self.crosswise if self.crosswise else 1
        while rows > 1 and rows * block * self.live_rows > ROW_REGISTERS:
            rows //= 2
        return rows


def plan_tile(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    """Block sizes for a kernel on `device`."""
    if facts.stepped is not None:
        return _plan_crossed(facts, device)
    if facts.folded is None:
        if len(facts.parallel) == 1:
            return _plan_line(facts, device)
        return _plan_parts_of_rows(facts, device) if facts.in_rows else _plan_plane(facts, device)
    return _plan_rows(facts, device) if facts.folded_first else _plan_columns(facts, device)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number` (at least 1)."""
    return 1 << max(0, number - 1).bit_length()


def _plan_line(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    (axis,) = facts.parallel
    size = hint(axis.size)
    per_thread = max(1, BYTES_PER_THREAD // facts.itemsize)
    warps = 4
    while warps > 1 and size < device.multiprocessors * warps * 32 * per_thread:
        warps //= 2
    while per_thread > 1 and (
        size < device.multiprocessors * warps * 32 * per_thread or per_thread * facts.cost > UNROLLED_OPERATIONS
    ):
        per_thread //= 2
    block = min(next_power_of_two(size), warps * 32 * per_thread)
    return _plan(facts, [block], "pointwise", warps, f"{per_thread} elements of {facts.itemsize} bytes per thread")


def _plan_parts_of_rows(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    """As for a line, but no program computes parts of two rows."""
    rows, row = (hint(axis.size) for axis in facts.parallel)
    per_thread, warps = max(1, BYTES_PER_THREAD // facts.itemsize), 4
    while warps > 1 and rows * row < device.multiprocessors * warps * 32 * per_thread:
        warps //= 2
    block = warps * 32 * per_thread
    while block > 256 and -row % block > row // 8:
        block //= 2
    warps = min(warps, max(1, block // (32 * per_thread)))
    return _plan(facts, [1, block], "pointwise", warps, f"parts of rows of {row}, of which a program has the values once")


def _plan_plane(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    slow, fast = (next_power_of_two(hint(axis.size)) for axis in facts.parallel)
    side = 64 if facts.itemsize <= 4 else 32
    x = min(fast, side)
    y = min(slow, side * side // x)
    x = min(fast, side * side // y)
    programs = -(-hint(facts.parallel[0].size) // y) * -(-hint(facts.parallel[1].size) // x)
    while programs < device.multiprocessors and x * y > 1024:
        x, y = (x // 2, y) if x >= y else (x, y // 2)
        programs *= 2
    warps = max(1, min(8, x * y // 512))
    return _plan(facts, [y, x], "pointwise", warps, f"{y} x {x}: both sides of the transpose move whole sectors")


def _plan_rows(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    assert facts.folded is not None
    length, rows = hint(facts.folded.size), hint(facts.parallel[-1].size)
    block = next_power_of_two(length)
    fits = block * facts.live_rows <= ROW_REGISTERS and facts.may_persist()
    fits &= not facts.one_pass or block * facts.cost <= MOST_THREADS * UNROLLED_OPERATIONS
    if not fits and not facts.must_persist:
        x = facts.rows_of_a_sector(1)
        while x > 1 and rows < x * device.multiprocessors:
            x //= 2
        r = min(block, LOOPED_BLOCK // x)
        warps = max(4, min(16, x * r * facts.itemsize // (32 * BYTES_PER_THREAD)))
        return _plan(facts, [x, r], "looped", warps, f"a row of {length} in steps of {r}")
    x = least = facts.rows_of_a_sector(block)
    while x * block < 1024 and x < 64 and rows >= 2 * x * 4 * device.multiprocessors:
        x *= 2
    if facts.folded.size.constant is None:
        x = min(x, max(least, SYMBOLIC_ROWS))
    per_thread = max(8, (ROW_BYTES_PER_THREAD if x == 1 else BYTES_PER_THREAD) // facts.itemsize)
    while per_thread > 8 and (
        per_thread * facts.live_rows > THREAD_REGISTERS or rows * block < device.multiprocessors * 512 * per_thread
    ):
        per_thread //= 2
    warps = max(1, min(16, x * block // (32 * per_thread)))
    return _plan(facts, [x, block], "persistent", warps, f"a row of {length} stays in registers",
                 longest=ROW_REGISTERS // (x * facts.live_rows))


def _plan_crossed(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    """A few rows a step, loaded while the step before is computed."""
    assert facts.folded is not None and facts.stepped is not None
    block, rows = next_power_of_two(hint(facts.folded.size)), hint(facts.stepped.size)
    w, least = 1, facts.rows_of_a_sector(block)
    while (w * block < CROSSED_TILE or w < least) and rows % (2 * w) == 0:
        w *= 2
    aligned = facts.folded.size.constant is not None and facts.folded.size.constant % 8 == 0
    warps = max(1, min(16, w * block // (32 * (32 if aligned else 16))))  # what is not aligned is loaded one by one
    programs = hint(facts.parallel[0].size)
    while programs * warps < WARPS_OF_A_WALK * device.multiprocessors and 2 * warps <= min(w, w * block // (32 * 8)):
        warps *= 2  # but no two for a row, whose sum would wait for both
    step_bytes, room = (facts.live_rows - 1) * w * block * facts.itemsize, device.shared_bytes * 7 // 8
    stages = next((stages for stages in (3, 2) if (stages - 1) * step_bytes <= room and rows // w >= 4), 1)
    reason = f"{rows} rows of {block} per program, {w} a step; the columns are folded on the way"
    return _plan(facts, [1, w, block], "crossed", warps, reason, stages, longest=ROW_REGISTERS // (w * facts.live_rows))


def _plan_columns(facts: TileFacts, device: DeviceProperties) -> TilePlan:
    assert facts.folded is not None
    length, columns = hint(facts.folded.size), hint(facts.parallel[-1].size)
    x = min(next_power_of_two(columns), COLUMN_BYTES // facts.itemsize)
    block = next_power_of_two(length)
    while x * block < LEAST_COLUMN_TILE and columns >= 2 * x * 4 * device.multiprocessors:
        x *= 2
    persistent = x * block * facts.live_rows <= ROW_REGISTERS * 2 // 3 and facts.may_persist()
    if persistent or facts.must_persist:
        per_thread = min(128, COLUMN_BYTES_PER_THREAD // facts.itemsize)
        while per_thread > 32 and per_thread * facts.live_rows > THREAD_REGISTERS:
            per_thread //= 2
        warps = max(2, min(16, x * block // (32 * per_thread)))
        return _plan(facts, [x, block], "persistent", warps, f"columns of {length} stay in registers",
                     longest=ROW_REGISTERS * 2 // 3 // (x * facts.live_rows))
    while x > SECTOR_BYTES // (facts.crosswise or facts.itemsize) and columns < x * device.multiprocessors:
        x //= 2  # few programs walk: each along what uses whole sectors still
    r = max(1, min(block, COLUMN_TILE // x))
    return _plan(facts, [x, r], "looped", 8, f"{x} neighbouring columns of {length} per program")


def _plan(
    facts: TileFacts, blocks: list[int], strategy: Strategy, warps: int, reason: str, stages: int = 1, longest: int = 0
) -> TilePlan:
    axes = [TileAxis(axis, block, "parallel") for axis, block in zip(facts.parallel, blocks, strict=False)]
    if facts.stepped is not None:
        axes.append(TileAxis(facts.stepped, blocks[-2], "stepped"))
    if facts.folded is not None:
        axes.append(TileAxis(facts.folded, blocks[-1], "reduction"))
    longest = facts.longest(longest) if strategy in ("persistent", "crossed") else 0
    return TilePlan(tuple(axes), strategy, warps, stages, reason, longest)
