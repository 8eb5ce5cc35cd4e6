"""Everything that an explanation holds, as frozen dataclasses: what was done, what it costs, how near the roofs it is.

Numbers are in bytes, operations, microseconds, seconds or ulp, as their names say; `None` means "not measured". This
module must not compute more than sums over its own fields.
"""

import dataclasses
from typing import Literal

from minicompile.errors import Location
from minicompile.ir.graph import GraphBreak, GuardRecord

Bound = Literal["compute", "bandwidth", "latency", "launch"]
Nearer = Literal["compiled", "eager", "equal"]


@dataclasses.dataclass(frozen=True)
class GraphSummary:
    """One captured graph: where it starts, how large it is, what of it runs eagerly, its text."""

    name: str
    location: Location | None
    operations: int
    inputs: int
    fallbacks: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Patch:
    """A rewrite of the user's code as a unified diff.

    `verified`: it was captured again, the break is gone, and the outputs agree with the original's; `note` says what
    else changes, or what went wrong.
    """

    diff: str
    verified: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ExplainedBreak(GraphBreak):
    """A graph break with the user's own line, and its rewrite as a patch where that is mechanical."""

    location: Location | None = None
    patch: Patch | None = None

    @property
    def callers(self) -> tuple[Location, ...]:
        """The user's lines through which the program came to the line, outermost first."""
        return tuple(place for place in self.stack if "site-packages" not in place.file and place != self.location)


@dataclasses.dataclass(frozen=True)
class GuardCost(GuardRecord):
    """A guard and the time it takes alone, its attribute look-ups included."""

    nanoseconds: float | None = None


@dataclasses.dataclass(frozen=True)
class ExplainedRecompile:
    """Why another variant was compiled, in words, and the annotation that avoids it."""

    what: str
    seconds: float
    annotation: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits one kernel. `share` is the attained part of that roof; `least_us` the time at the roof."""

    bound: Bound
    least_us: float
    share: float | None
    text: str


@dataclasses.dataclass(frozen=True)
class MatmulShape:
    """One matrix product and what its shape loses.

    Attributes:
        batch, m, n, k: its sizes; tile: rows and columns of a tile; estimated_us: the time that the library is estimated to take.
        tile_loss, wave_loss: share of the work that is padding of the last tiles, and idle processors of the last wave.
        aligned: whether rows of every operand and of the result are multiples of 16 bytes.
        advice: the nearest better shape with its estimated gain, or an empty string.
    """

    batch: int
    m: int
    n: int
    k: int
    tile: tuple[int, int]
    tile_loss: float
    wave_loss: float
    aligned: bool
    estimated_us: float
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.batch}x" * (self.batch > 1) + f"{self.m}x{self.n}x{self.k}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a compiled graph: a generated kernel, or a call of one that is not generated.

    Attributes:
        graph, half, number: where it is.
        module: the innermost user module whose work it is.
        operators, lines: the user's operations and lines.
        held_bytes: what the graph's own buffers hold while it runs, by the memory plan.
        reason: for a kernel the argument for its tiles, for an extern call why it is extern.
        registers, spilled_bytes: per thread, from the compiled binary.
        dtype: of what it computes, for the roof of matrix products.
    """

    graph: str
    half: str
    number: int
    kind: Literal["kernel", "extern"]
    name: str
    module: str
    operators: tuple[str, ...]
    lines: tuple[Location, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    flops: int
    dtype: str
    held_bytes: int = 0
    reason: str = ""
    source: str = ""
    registers: int | None = None
    spilled_bytes: int | None = None
    matmul: MatmulShape | None = None
    microseconds: float | None = None
    verdict: Verdict | None = None

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


@dataclasses.dataclass(frozen=True)
class Fusion:
    """One entry of the fusion ledger: operations in one kernel, or a pair that stays apart and why.

    `between` are the two buffers of a pair, by their names in the schedule.
    """

    half: str
    verdict: Literal["fused", "illegal", "unprofitable"]
    what: str
    reason: str
    bytes_saved: int | None = None
    between: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.verdict}: {self.what}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Roofs:
    """What a machine can do at best. `measured`: here; otherwise the figures are those recorded for `device`."""

    device: str
    measured: bool
    bytes_per_second: float
    flops_per_second: dict[str, float]
    launch_us: float


@dataclasses.dataclass(frozen=True)
class FunctionVerdict:
    """The whole function: device time, host time, what limits it, what would help most.

    `doubled` is the time of a call with twice the batch over that of one call; near one means overhead.
    """

    bound: str
    text: str
    call_us: float
    device_us: float | None
    host_us: float
    doubled: float | None
    helps: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class SizePoint:
    """Eager and compiled time at one size of the swept dimension."""

    size: int
    eager_us: float
    compiled_us: float


@dataclasses.dataclass(frozen=True)
class BreakEven:
    """When compiling has paid for itself; `calls` and `pays_from` are `None` where it never does."""

    compile_seconds: float
    eager_us: float
    compiled_us: float
    calls: int | None
    sweep: tuple[SizePoint, ...] = ()
    pays_from: int | None = None


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors against fp64 in units in the last place: histogram over `BUCKETS`, mean, worst and its index."""

    histogram: tuple[int, ...]
    mean_ulp: float
    worst_ulp: float
    worst_index: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How far the compiled and the eager value of one output, or of one buffer of a kernel, are from fp64."""

    name: str
    kernel: str
    dtype: str
    elements: int
    compiled: Errors
    eager: Errors
    nearer: Nearer


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The accuracy of every output and every kernel; `note` says what could not be judged, and what would change it."""

    outputs: tuple[Accuracy, ...]
    kernels: tuple[Accuracy, ...]
    note: str = ""
