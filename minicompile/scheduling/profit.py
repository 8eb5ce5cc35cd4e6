"""Which legal fusions are worth it: a pure function of facts about a pair of clusters. No mechanism here."""

import dataclasses

MAXIMUM_BUFFERS = 40
MAXIMUM_LOOPS = 64
MAXIMUM_FUSED_SCAN = 16384
SMALL_KERNEL_BYTES = 4 << 20
SIBLING_SHARE = 8
SIBLING_DISTANCE = 48
MAXIMUM_CROSSED_ROW = 8192
LEAST_PROGRAMS = 100
LONGEST_SMALL_WALK = 1 << 15
"""Elements: few programs walk over so many in the time that another kernel costs (59,000 took one 80 µs on an H200)."""


@dataclasses.dataclass(frozen=True)
class PairFacts:
    """What the policy knows about two clusters that could legally share a kernel.

    Attributes:
        bytes_apart, bytes_fused: traffic of both, as two kernels and as one.
        vertical: one reads what the other computes.
        distance: operations between them in program order.
        buffers: distinct buffers that the kernel would touch.
        loops: in both.
        scan_length: elements along a scan whose result other loops of the kernel would use; 0 without one.
        rows, row_length: the fused iteration space.
        second_pass: a loop over the whole space would follow a reduction over it.
        in_vain: bytes that would be moved unused, as parts of sectors, by one kernel and not by two.
        crossed: rows and columns would be folded in one walk.
        programs, programs_apart: how many programs would walk, and at least do if the two stay apart; 0 where nothing is folded.
    """

    bytes_apart: int
    bytes_fused: int
    vertical: bool
    distance: int
    buffers: int
    loops: int
    scan_length: int
    rows: int
    row_length: int
    second_pass: bool
    in_vain: int = 0
    crossed: bool = False
    programs: int = 0
    programs_apart: int = 0


def refusal(facts: PairFacts) -> str | None:
    """Why the pair should stay apart, or `None` if fusing it pays."""
    saved = facts.bytes_apart - facts.bytes_fused
    small = facts.bytes_apart <= SMALL_KERNEL_BYTES
    if saved <= 0 and (facts.vertical or not small):
        return "nothing that both touch would be read or written less"
    if facts.in_vain > max(saved, 0):
        return f"{facts.in_vain} bytes would be moved in vain along rows, a sector for each element that lies in another order"
    if facts.buffers > MAXIMUM_BUFFERS:
        return f"one kernel would touch {facts.buffers} buffers; registers hold about {MAXIMUM_BUFFERS}"
    if facts.loops > MAXIMUM_LOOPS:
        return f"one kernel would hold {facts.loops} operations; the limit is {MAXIMUM_LOOPS}"
    if facts.scan_length > MAXIMUM_FUSED_SCAN:
        return f"a scan over {facts.scan_length} elements does not stay in registers"
    if facts.crossed and facts.row_length > MAXIMUM_CROSSED_ROW:
        return f"a row of {facts.row_length} and its column sums do not stay in registers"
    long_walk = facts.rows * facts.row_length > LONGEST_SMALL_WALK * max(1, facts.programs)
    if facts.crossed and (long_walk or not small) and facts.programs < LEAST_PROGRAMS:
        return f"only {facts.programs} programs would walk over {facts.rows} rows"
    if not small and facts.programs < min(LEAST_PROGRAMS, facts.programs_apart):
        return f"only {facts.programs} programs would walk over {facts.rows} columns, in place of {facts.programs_apart}"
    if facts.second_pass and facts.rows < 16 and facts.rows * facts.row_length > 1 << 16:
        return f"only {facts.rows} rows would run in parallel over {facts.row_length} elements each"
    if not facts.vertical:
        if not small and saved * SIBLING_SHARE < facts.bytes_apart:
            return f"only {saved} of {facts.bytes_apart} bytes are shared"
        if facts.distance > SIBLING_DISTANCE:
            return f"{facts.distance} operations lie between them, whose tensors would stay alive"
    return None
