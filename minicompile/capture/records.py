"""What capture tells about itself: graphs, graph breaks, recompiles, fallbacks, generated sources. Data only."""

import dataclasses
from typing import Any

from minicompile.errors import Location
from minicompile.ir.graph import CapturedGraph, GraphBreak


@dataclasses.dataclass(frozen=True)
class Recompile:
    """Why a compiled variant could not be used.

    Attributes:
        function: the user's function; sentence: the guard that failed; old, new: the value then and now, where known.
        location: the line that needed the guard; seconds: what compiling the new variant took.
    """

    function: str
    sentence: str
    old: Any
    new: Any
    location: Location | None
    seconds: float

    def __str__(self) -> str:
        needed = f" (needed at {self.location})" if self.location else ""
        was = f"was {str(self.old)[:200]}, " if self.old is not None else ""
        now = f"; {was}is {str(self.new)[:200]}" if self.old is not None or self.new is not None else ""
        return f"{self.function}: {self.sentence}{needed}{now}; {self.seconds:.2f} s"


@dataclasses.dataclass(frozen=True)
class Fallback:
    """A frame or a graph that runs in eager, and why."""

    function: str
    reason: str
    location: Location | None = None


@dataclasses.dataclass
class Records:
    """Everything recorded for one compiled callable, its resume functions and cut-out callees included."""

    graphs: list[CapturedGraph] = dataclasses.field(default_factory=list)
    graph_breaks: list[GraphBreak] = dataclasses.field(default_factory=list)
    recompiles: list[Recompile] = dataclasses.field(default_factory=list)
    fallbacks: list[Fallback] = dataclasses.field(default_factory=list)
    sources: list[str] = dataclasses.field(default_factory=list)
