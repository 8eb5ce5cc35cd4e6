"""The iteration space of one kernel: its axes as Triton variables, masks, program ids and grid.

This module must not know what the kernel computes.
"""

import dataclasses
import functools
from collections.abc import Iterable

from minicompile.codegen.index_text import host
from minicompile.codegen.triton_text import Text, infix
from minicompile.ir.index import Axis, Index, Symbol, as_index, atoms, hint, product
from minicompile.ir.schedule import DeviceProperties, TileAxis, TilePlan

GRID_LIMIT = 65535
"""Programs along the second and third dimension of a grid."""

INTERPRETED_TILE = 1 << 22
"""Elements per program under Triton's interpreter, where each program costs milliseconds."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A tile plan with the facts that printing needs.

    Attributes:
        plan: the tiles.
        wide: positions and offsets need 64 bits.
        block_number: the variable that says which block a program computes, if that is not the program's number.
    """

    plan: TilePlan
    wide: bool
    block_number: str = ""

    @functools.cached_property
    def live(self) -> tuple[Axis, ...]:
        """Axes that are a dimension of the program's blocks; the others are a single position per program."""
        return tuple(a.axis for a in self.plan.axes if a.block > 1 or a.role == "reduction")

    def names(self) -> set[str]:
        """Every variable that may say where in the iteration space a program is."""
        words = (position_name, mask_name, start_name, block_name)
        return {"program"} | {word(tile.axis) for tile in self.plan.axes for word in words}

    @functools.cached_property
    def tiles(self) -> dict[Axis, TileAxis]:
        """Tile axis by axis."""
        return {a.axis: a for a in self.plan.axes}

    @property
    def reduction(self) -> Axis | None:
        """The axis folded inside the program."""
        return self.plan.reduction.axis if self.plan.reduction else None

    @property
    def looped(self) -> bool:
        """Whether the reduction axis is walked in steps."""
        return self.plan.strategy == "looped" and self.plan.reduction is not None

    def constants(self) -> tuple[tuple[str, int], ...]:
        """Compile-time parameters of the kernel."""
        return tuple((block_name(axis), self.tiles[axis].block) for axis in self.live)

    def varying_row(self) -> str:
        """The length of a row that is held whole but whose size is known at run time only, as text; else empty."""
        row = self.plan.reduction
        return "" if row is None or self.looped or row.axis.size.constant is not None else host(row.axis.size).text

    def is_masked(self, axis: Axis) -> bool:
        """Whether a block of this axis may reach over its end."""
        block, size = self.tiles[axis].block, axis.size.constant
        if axis not in self.live:
            return False
        return size is None or size % block != 0 or (axis is self.reduction and size == 0)

    def masks(self, axes: Iterable[Axis]) -> list[Axis]:
        """Those of `axes` that need a mask, in the kernel's order."""
        wanted = set(axes)
        return [axis for axis in self.live if axis in wanted and self.is_masked(axis)]

    def shape(self, axes: Iterable[Axis]) -> str:
        """Block shape of a value that varies along `axes`."""
        wanted = set(axes)
        return "[" + ", ".join(block_name(a) if a in wanted else "1" for a in self.live) + "]"

    def expand(self, axis: Axis) -> str:
        """What puts a one-dimensional range into the dimension of `axis`."""
        if len(self.live) == 1:
            return ""
        return "[" + ", ".join(":" if a is axis else "None" for a in self.live) + "]"

    def dimension(self, axis: Axis) -> int:
        """Which dimension of the blocks an axis is."""
        return self.live.index(axis)

    @functools.cached_property
    def linear(self) -> bool:
        """Whether all programs share the first grid dimension (the others are too small or of unknown size)."""
        counts = [self.programs(tile).constant for tile in self.plan.parallel[:-1]]
        return any(count is None or count > GRID_LIMIT for count in counts)

    def programs(self, tile: TileAxis) -> Index:
        """Programs along one axis."""
        if tile.block == 1:
            return tile.axis.size
        return (tile.axis.size + (tile.block - 1)) // as_index(tile.block)

    def grid(self) -> tuple[str, str, str]:
        """Three Python expressions over the size symbols."""
        counts = [self.programs(tile) for tile in reversed(self.plan.parallel)]
        if self.linear:
            return (host(product(counts)).text, "1", "1")
        texts = [host(count).text for count in counts] + ["1", "1", "1"]
        return (texts[0], texts[1], texts[2])

    def symbols(self) -> set[Symbol]:
        """Size symbols that the kernel's own bookkeeping needs."""
        found: set[Symbol] = set()
        for tile in self.plan.axes:
            if self.is_masked(tile.axis) or self.linear or tile.role != "parallel":
                found |= {atom for atom in atoms(tile.axis.size) if isinstance(atom, Symbol)}
        return found

    def setup(self, used: set[Axis], masked: set[Axis]) -> list[str]:
        """Lines that define the positions `used` and masks `masked` of the axes that no loop walks."""
        lines, used = list[str](), used | masked
        if self.linear and any(tile.axis in used for tile in self.plan.parallel):
            lines.append("program = " + self._program_id(0))
        positions = {tile.axis: self._position(tile) for tile in reversed(self.plan.parallel)}
        if self.reduction is not None and not self.looped:
            positions[self.reduction] = self.block_range(self.reduction)
        for axis, position in positions.items():
            if axis in used:
                lines.append(f"{position_name(axis)} = {position}")
            if axis in masked:
                lines.append(self.mask_line(axis))
        return lines

    def mask_line(self, axis: Axis) -> str:
        """The line that defines an axis's mask."""
        return f"{mask_name(axis)} = {position_name(axis)} < {host(axis.size).text}"

    def block_range(self, axis: Axis) -> str:
        """The positions of one block, counted from its start."""
        alone = axis is self.reduction or self.programs(self.tiles[axis]).constant == 1
        wide = ".to(tl.int64)" if self.wide and alone else ""
        return f"tl.arange(0, {block_name(axis)}){self.expand(axis)}{wide}"

    def _program_id(self, dimension: int) -> str:
        return (self.block_number or f"tl.program_id({dimension})") + (".to(tl.int64)" if self.wide else "")

    def _position(self, tile: TileAxis) -> str:
        program = self._program(tile)
        if tile.axis not in self.live:
            return program.text
        inside = Text(self.block_range(tile.axis))
        if self.programs(tile).constant == 1:
            return inside.text
        return infix(infix(program, "*", Text(block_name(tile.axis))), "+", inside).text

    def _program(self, tile: TileAxis) -> Text:
        fastest_first = tuple(reversed(self.plan.parallel))
        place = fastest_first.index(tile)
        if not self.linear:
            return Text(self._program_id(place))
        program = Text("program")
        for faster in fastest_first[:place]:
            program = infix(program, "//", host(self.programs(faster)))
        if place + 1 < len(fastest_first):
            program = infix(program, "%", host(self.programs(tile)))
        return program


def position_name(axis: Axis) -> str:
    """The variable that holds the positions along an axis."""
    return f"{axis.name}_index"


def mask_name(axis: Axis) -> str:
    """The variable that says which positions exist."""
    return f"{axis.name}_mask"


def start_name(axis: Axis) -> str:
    """The variable that holds where a step along an axis begins."""
    return f"{axis.name}_start"


def block_name(axis: Axis) -> str:
    """The compile-time parameter with the size of a block."""
    return f"{axis.name.upper()}BLOCK"


def plan_for_device(plan: TilePlan, device: DeviceProperties) -> TilePlan:
    """`plan`, or under the interpreter the same plan with tiles as large as the problem."""
    if device.kind != "cpu":
        return plan
    budget = INTERPRETED_TILE
    sized: dict[Axis, int] = {}
    for tile in reversed(plan.axes):
        wanted = max(hint(tile.axis.size), 1)
        if tile.role == "reduction" and plan.strategy in ("persistent", "crossed"):
            sized[tile.axis] = wanted if tile.axis.size.constant is not None else tile.block
        else:
            sized[tile.axis] = max(1, min(wanted, budget))
        budget = max(1, budget // sized[tile.axis])
    return dataclasses.replace(
        plan, axes=tuple(dataclasses.replace(tile, block=sized[tile.axis]) for tile in plan.axes)
    )
