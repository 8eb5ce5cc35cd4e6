"""The callable that stands for one captured graph, with the records of how it came to be.

This module holds results; it takes no decision and knows no stage.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from minicompile.ir.graph import Binding, CapturedGraph, PartitionedGraph
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.program import Program
from minicompile.ir.schedule import Schedule
from minicompile.runtime.call_plan import CallPlan
from minicompile.runtime.graph_key import GraphKey


@dataclasses.dataclass(frozen=True)
class CompiledPart:
    """The forward or the backward half of a graph: each stage's product, and the flat callable.

    `tuning` is what `max-autotune` did. `fallback` says why the half runs its ATen graph eagerly instead; the products after
    the failed stage are `None`.
    """

    call: Callable[[list[Any]], tuple[Any, ...]]
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


class CompiledGraph:
    """One compiled graph: call it with the captured graph's inputs; it returns the user's flat outputs.

    Attributes:
        captured: the first stage's product.
        plan: how the parts are called.
        key: where the programs may be kept for later processes, if anywhere.
        parts: the forward half, and the backward half once it was needed.
        timings: seconds by stage, summed over the halves.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        plan: CallPlan,
        partition: Callable[[], PartitionedGraph],
        reduced: Callable[[Any, Binding, tuple[int, ...]], Any],
        timings: Mapping[str, float],
        key: GraphKey | None = None,
    ) -> None:
        self.captured = captured
        self.plan = plan
        self.key = key
        self._partition = partition
        self._reduced = reduced
        self.parts: dict[str, CompiledPart] = {}
        self._own_timings = dict(timings)
        self._run: Callable[..., Any] | None = None

    def bind(self, run: Callable[..., Any]) -> None:
        """Set what a call runs."""
        self._run = run

    def __call__(self, *inputs: Any) -> Any:
        assert self._run is not None
        return self._run(*inputs)

    @property
    def run(self) -> Callable[..., Any]:
        """The bare function behind a call."""
        assert self._run is not None
        return self._run

    @property
    def writes_last(self) -> bool:
        """Whether no input has changed when a call raises; on the CPU what had changed is undone."""
        program = self.parts["forward"].program
        return not self.plan.overwritten or program is not None and program.device.type == "cpu"

    @functools.cached_property
    def partitioned(self) -> PartitionedGraph:
        """The graph stage's product; made anew, for the report, if the programs came from the disk."""
        return self._partition()

    def module(self, half: str) -> Any:
        """The operators of a half; a backward's name may end in `_of_` and the numbers of the tangents that come in."""
        name, _, given = half.partition("_of_")
        module = getattr(self.partitioned, name)
        return self._reduced(module, self.plan.binding, tuple(map(int, given.split("_")))) if given else module

    @property
    def programs(self) -> tuple[Program, ...]:
        """The generated programs so far, forward first."""
        return tuple(part.program for part in self.parts.values() if part.program is not None)

    @property
    def sources(self) -> list[tuple[str, str]]:
        """(file name, text) of every generated file so far."""
        return [(f"{program.name}.py", program.text) for program in self.programs]

    @property
    def paths(self) -> tuple[pathlib.Path, ...]:
        """Where the generated files lie."""
        return tuple(part.path for part in self.parts.values() if part.path is not None)

    @property
    def kernels(self) -> int:
        """Generated kernels launched by one call of every half compiled so far."""
        return sum(len(program.launches) for program in self.programs)

    @property
    def extern_calls(self) -> int:
        """Calls of kernels that are not generated, per call of every half compiled so far."""
        return sum(len(program.extern_calls) for program in self.programs)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why halves run their ATen graph eagerly."""
        return tuple(part.fallback for part in self.parts.values() if part.fallback)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the generated kernels read and write in one call, at the sizes seen at compile time."""
        by_name = {kernel.name: kernel for program in self.programs for kernel in program.kernels}
        return sum(
            by_name[name].bytes_read + by_name[name].bytes_written
            for program in self.programs
            for name in program.launches
        )

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by stage."""
        total = dict(self._own_timings)
        for part in self.parts.values():
            for stage, seconds in part.timings.items():
                total[stage] = total.get(stage, 0.0) + seconds
        return total
