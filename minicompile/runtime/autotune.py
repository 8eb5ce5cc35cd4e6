"""`mode="max-autotune"`: the neighbours of the cost model's tiles, measured on the device, the best remembered.

All kernels of a graph try their first neighbour in one program, then their second in another, so a graph costs as many
programs as a kernel has neighbours. A kernel measured once is never measured again on such a device: the choice is kept in
the cache. When the time is over, the best so far is taken. How a tile becomes a program, and how a program is timed, is
handed in; nothing here knows a GPU, and on a CPU nothing is measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minicompile.ir.index import hint
from minicompile.ir.program import KernelSource, Program
from minicompile.ir.schedule import DeviceProperties, KernelGroup, Schedule, TileAxis, TilePlan
from minicompile.runtime.code_cache import CodeCache
from minicompile.runtime.graph_key import environment, library_sources
from minicompile.runtime.program_loader import bound_module

LARGEST_TILE = 1 << 16
LEAST_GAIN = 0.97
REPEATS = 12
FLUSH_BYTES = 1 << 28
Measure = Callable[[Program], Mapping[str, float]]


@dataclasses.dataclass
class Tuner:
    """Tunes the schedules of one compiler, within one allowance of time.

    Attributes:
        seconds: what is left of the allowance.
        cache: where choices are remembered.
        measure: seconds of every kernel of a program, by the name of its launcher.
        now: the clock.
    """

    seconds: float
    cache: CodeCache | None
    measure: Measure
    now: Callable[[], float] = time.monotonic

    def tuned(
        self, schedule: Schedule, generate: Callable[[Schedule], Program], device: DeviceProperties
    ) -> tuple[Schedule, str]:
        """The schedule with the best tiles found, and a sentence on what was done."""
        if device.kind == "cpu":
            return schedule, "nothing was measured: on a CPU the kernels run under Triton's interpreter"
        begin = self.now()
        program = generate(schedule)
        kernels = Kernels(schedule, program, device)
        best = {name: plan for name in kernels.steps if (plan := self._remembered(kernels, name)) is not None}
        left = {name: neighbours(kernels.plan(name)) for name in kernels.steps if name not in best}
        times = dict(self.measure(program)) if left else {}
        rounds = max(map(len, left.values()), default=0)
        complete = True
        for number in range(rounds):
            complete = self.now() - begin < self.seconds
            if not complete:
                break
            tried = {name: plans[number] for name, plans in left.items() if number < len(plans)}
            print(f"autotune {schedule.graph.name}: {number + 1} of {rounds}, {self.now() - begin:.1f} of "
                  f"{self.seconds:.0f} s", file=sys.stderr)  # fmt: skip
            for name, seconds in self._times(kernels, tried, generate).items():
                if seconds < LEAST_GAIN * times.get(name, 0.0):
                    times[name], best[name] = seconds, tried[name]
        if complete:
            for name in left:
                self._remember(kernels, name, best.get(name, kernels.plan(name)))
        spent = self.now() - begin
        self.seconds -= spent
        changed = sum(plan != kernels.plan(name) for name, plan in best.items())
        what = f"{len(left)} kernels measured in {spent:.1f} s, {len(kernels.steps) - len(left)} remembered"
        return kernels.with_plans(best), f"{what}, {changed} changed{'' if complete else '; the time was over'}"

    def _times(
        self, kernels: Kernels, tried: Mapping[str, TilePlan], generate: Callable[[Schedule], Program]
    ) -> dict[str, float]:
        """Seconds by kernel under other plans; a program that cannot be made or run has none."""
        try:
            program = generate(kernels.with_plans(tried))
            found = self.measure(program)
        except Exception:  # a tile too large for the chip, or for the generator: the present one stays
            return {}
        launchers = {name: program.steps[kernels.steps[name][0]][0] for name in tried}
        return {name: found[launcher] for name, launcher in launchers.items() if launcher in found}

    def _remembered(self, kernels: Kernels, name: str) -> TilePlan | None:
        stored = self.cache.read("tunings", kernels.keys[name]) if self.cache else None
        if stored is None:
            return None
        blocks, warps, stages = json.loads(stored)
        return with_blocks(kernels.plan(name), blocks, warps, stages)

    def _remember(self, kernels: Kernels, name: str, plan: TilePlan) -> None:
        if self.cache:
            choice = [[axis.block for axis in plan.axes], plan.num_warps, plan.num_stages]
            self.cache.write("tunings", kernels.keys[name], json.dumps(choice).encode())


class Kernels:
    """The distinct kernels of a schedule that may be cut differently.

    Attributes:
        steps: launcher to the steps that run it.
        keys: launcher to the key of its choice.
    """

    def __init__(self, schedule: Schedule, program: Program, device: DeviceProperties) -> None:
        self._schedule = schedule
        self.steps: dict[str, list[int]] = {}
        sources = {f"run_{kernel.name}": kernel for kernel in program.kernels}
        for number, (step, (launcher, _)) in enumerate(zip(schedule.steps, program.steps, strict=True)):
            if isinstance(step, KernelGroup) and launcher in sources and not step.batch:
                self.steps.setdefault(launcher, []).append(number)
        self.keys = {name: tuning_key(sources[name], self.plan(name), device) for name in self.steps}

    def plan(self, name: str) -> TilePlan:
        """The cost model's plan of a kernel."""
        step: Any = self._schedule.steps[self.steps[name][0]]
        return step.tile

    def with_plans(self, plans: Mapping[str, TilePlan]) -> Schedule:
        """The schedule with some kernels cut differently."""
        by_step = {number: plan for name, plan in plans.items() for number in self.steps[name]}
        steps: list[Any] = list(self._schedule.steps)
        for number, plan in by_step.items():
            steps[number] = dataclasses.replace(steps[number], tile=plan)
        return dataclasses.replace(self._schedule, steps=tuple(steps))


def tuning_key(kernel: KernelSource, plan: TilePlan, device: DeviceProperties) -> str:
    """What a choice holds for: the kernel as the cost model cuts it, its sizes, the chip, the versions."""
    sizes = [(hint(axis.axis.size), axis.block) for axis in plan.axes]
    parts = kernel.text, kernel.arguments, kernel.constants, kernel.bytes_read, sizes, device, environment(), library_sources()[0]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def neighbours(plan: TilePlan) -> list[TilePlan]:
    """Other ways to cut the same kernel, all of them legal, the likeliest first."""
    blocks, warps, stages = [axis.block for axis in plan.axes], plan.num_warps, plan.num_stages
    wishes = [(blocks, warps * 2, stages), (blocks, warps // 2, stages)]
    for number, axis in reversed(list(enumerate(plan.axes))):
        if not _may_change(plan, axis):
            continue
        for block in (axis.block * 2, axis.block // 2):
            changed = [*blocks[:number], block, *blocks[number + 1 :]]
            wishes.append((changed, warps, stages))
            wishes.append((changed, warps * 2 if block > axis.block else warps // 2, stages))
    if plan.strategy == "looped":
        wishes += [(blocks, warps, stages + 1), (blocks, warps, stages + 2)]
    found = [plan]
    for wish in wishes:
        new = with_blocks(plan, *wish)
        if new is not None and new not in found:
            found.append(new)
    return found[1:]


def with_blocks(plan: TilePlan, blocks: list[int], warps: int, stages: int) -> TilePlan | None:
    """The plan with other numbers, or `None` if they are not legal for it."""
    tile, present = math.prod(blocks), math.prod(axis.block for axis in plan.axes)
    for axis, block in zip(plan.axes, blocks, strict=True):
        if block != axis.block and not (_may_change(plan, axis) and 1 <= block < 2 * hint(axis.axis.size)):
            return None
    if not 1 <= warps <= 32 or tile > max(LARGEST_TILE, present) or tile < 32 * warps and warps > plan.num_warps:
        return None
    axes = tuple(dataclasses.replace(axis, block=block) for axis, block in zip(plan.axes, blocks, strict=True))
    return dataclasses.replace(plan, axes=axes, num_warps=warps, num_stages=stages, reason="measured")


def _may_change(plan: TilePlan, axis: TileAxis) -> bool:
    """A row that stays in registers must stay whole, and so must what is walked beside it."""
    return plan.strategy != "crossed" and (axis.role == "parallel" or plan.strategy == "looped")


def measure_on_device(program: Program, cache: CodeCache | None) -> dict[str, float]:
    """Seconds of each kernel in a run of the program on made-up inputs: the median of launches with a cold L2."""
    module = bound_module(program, cache)
    seconds: dict[str, float] = {}
    for kernel in program.kernels:
        setattr(module, f"run_{kernel.name}", _timed(f"run_{kernel.name}", module, seconds))
    with torch.cuda.device(program.device), torch.no_grad():
        module.call(module.make_inputs())
        torch.cuda.synchronize()
    return seconds


def _timed(name: str, module: Any, seconds: dict[str, float]) -> Callable[..., None]:
    launch = getattr(module, name)

    def run(grid: Any, *arguments: Any) -> None:
        launch(grid, *arguments)
        if name in seconds:
            return
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
        for start, end in events:
            flush.zero_()
            start.record()
            launch(grid, *arguments)
            end.record()
        torch.cuda.synchronize()
        seconds[name] = sorted(start.elapsed_time(end) for start, end in events)[REPEATS // 2] / 1e3

    return run
