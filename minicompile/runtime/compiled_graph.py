"""The callable that stands for one captured graph, with the records of how it came to be.

This module holds results; it takes no decision and knows no stage.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from minicompile.ir.graph import Binding, CapturedGraph, PartitionedGraph
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.program import FlatCall, Program
from minicompile.ir.schedule import Schedule
from minicompile.runtime.call_plan import CallPlan
from minicompile.runtime.graph_key import GraphKey


@dataclasses.dataclass(frozen=True)
class CompiledPart:
    """The forward or the backward half of a graph: each stage's product, and the flat callable.

    `tuning` is what `max-autotune` did. `fallback` says why the half runs its ATen graph eagerly instead; the products after
    the failed stage are `None`.
    """

    call: FlatCall
    lowered: LoweredGraph | None = None
    schedule: Schedule | None = None
    program: Program | None = None
    path: pathlib.Path | None = None
    fallback: str = ""
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    never_replayed: str = ""
    tuning: str = ""

    @property
    def not_replayed(self) -> str:
        """Why the half is no CUDA graph although one was asked for, as far as is known by now."""
        return self.never_replayed or getattr(self.call, "fallback", "")


@dataclasses.dataclass(eq=False)
class CompiledGraph:
    """One compiled graph: call it with the captured graph's inputs; it returns the user's flat outputs.

    Attributes:
        captured: the first stage's product.
        plan: how the parts are called.
        partition: makes the graph stage's product; reduced: a backward for some of its tangents.
        key: where the programs may be kept for later processes, if anywhere.
        run: the bare function behind a call.
        parts: the forward half, and the backward half once it was needed.
        own_timings: seconds by stage before there were halves.
    """

    captured: CapturedGraph
    plan: CallPlan
    partition: Callable[[], PartitionedGraph]
    reduced: Callable[[Any, Binding, tuple[int, ...]], Any]
    own_timings: Mapping[str, float]
    key: GraphKey | None = None
    run: Callable[..., Any] = dataclasses.field(init=False)
    parts: dict[str, CompiledPart] = dataclasses.field(default_factory=dict, init=False)

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    @property
    def writes_last(self) -> bool:
        """Whether no input has changed when a call raises; on the CPU what had changed is undone."""
        program = self.parts["forward"].program
        return not self.plan.overwritten or program is not None and program.device.type == "cpu"

    @functools.cached_property
    def partitioned(self) -> PartitionedGraph:
        """The graph stage's product; made anew, for the report, if the programs came from the disk."""
        return self.partition()

    def module(self, half: str) -> Any:
        """The operators of a half; a backward's name may end in `_of_` and the numbers of the tangents that come in."""
        name, _, given = half.partition("_of_")
        module = getattr(self.partitioned, name)
        return self.reduced(module, self.plan.binding, tuple(map(int, given.split("_")))) if given else module

    @property
    def programs(self) -> tuple[Program, ...]:
        """The generated programs so far, forward first."""
        return tuple(part.program for part in self.parts.values() if part.program is not None)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why halves run their ATen graph eagerly."""
        return tuple(part.fallback for part in self.parts.values() if part.fallback)

    @property
    def timings(self) -> collections.Counter[str]:
        """Seconds by stage."""
        return sum((collections.Counter(part.timings) for part in self.parts.values()), collections.Counter(self.own_timings))
