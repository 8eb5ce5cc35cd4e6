"""Tiles are measured once, within their time, and the best of them is remembered."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import minicompile
from minicompile import compiler as pipeline
from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.index import Axis, as_index
from minicompile.ir.program import Program
from minicompile.ir.schedule import DeviceProperties, Schedule, TileAxis, TilePlan
from minicompile.runtime.autotune import Tuner, neighbours, with_blocks
from minicompile.runtime.code_cache import CodeCache

GPU = DeviceProperties(name="NVIDIA H200", kind="cuda")


def schedule_of(function: Any, *inputs: torch.Tensor) -> Schedule:
    """What the stages make of a function for a GPU."""
    found: list[Schedule] = []
    real = pipeline.schedule_graph

    def for_gpu(lowered: Any, config: Any, device: Any, *rest: Any, **options: Any) -> Any:
        found.append(real(lowered, config, GPU, *rest, **options))
        return real(lowered, config, device, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "schedule_graph", for_gpu)
        minicompile.compile(function, options={"cache": False})(*inputs)
    return found[0]


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return (x * 2).sin().mm(x), (y.softmax(-1) * 3).mm(y), z.t() + 1

    return schedule_of(program, torch.ones(256, 256), torch.ones(512, 512), torch.ones(64, 128))


def generate(schedule: Schedule) -> Program:
    return generate_program(schedule, Config(), GPU)


class FakeDevice:
    """Kernels are faster the more warps they have, and a clock that a measurement moves."""

    def __init__(self, cost: float = 1.0) -> None:
        self.programs = 0
        self.time = 0.0
        self.cost = cost

    def measure(self, program: Program) -> dict[str, float]:
        self.programs += 1
        self.time += self.cost
        return {f"run_{kernel.name}": 1.0 / kernel.num_warps for kernel in program.kernels}

    def tuner(self, seconds: float, cache: CodeCache | None) -> Tuner:
        return Tuner(seconds, cache, self.measure, lambda: self.time)


def warps(schedule: Schedule) -> list[int]:
    return [step.tile.num_warps for step in schedule.steps if hasattr(step, "tile")]


def test_the_best_measured_plan_is_taken_and_remembered(tmp_path: pathlib.Path, schedule: Schedule, capsys: Any) -> None:
    device = FakeDevice()
    tuned, note = device.tuner(60, CodeCache(tmp_path)).tuned(schedule, generate, GPU)
    assert all(new >= old for new, old in zip(warps(tuned), warps(schedule), strict=True)) and warps(tuned) != warps(schedule)
    assert "3 kernels measured" in note and "autotune" in capsys.readouterr().err
    assert "def call" in generate(tuned).text
    other = FakeDevice()
    again, note = other.tuner(60, CodeCache(tmp_path)).tuned(schedule, generate, GPU)
    assert again == tuned and other.programs == 0 and "3 remembered" in note
    another_chip = dataclasses.replace(GPU, name="NVIDIA A100")
    other.tuner(60, CodeCache(tmp_path)).tuned(schedule, generate, another_chip)
    assert other.programs > 0


def test_the_time_is_kept_and_what_was_not_finished_is_not_remembered(tmp_path: pathlib.Path, schedule: Schedule) -> None:
    device = FakeDevice(cost=10.0)
    tuner = device.tuner(25, CodeCache(tmp_path))
    _, note = tuner.tuned(schedule, generate, GPU)
    assert device.time <= 40 and "the time was over" in note
    _, note = tuner.tuned(schedule, generate, GPU)
    assert "0 remembered" in note and device.time <= 60


def test_a_plan_that_cannot_be_made_or_run_costs_nothing_else(schedule: Schedule) -> None:
    device = FakeDevice()

    def refusing(changed: Schedule) -> Program:
        if changed != schedule:
            raise RuntimeError("out of resources: shared memory")
        return generate(changed)

    tuned, _ = device.tuner(60, None).tuned(schedule, refusing, GPU)
    assert warps(tuned) == warps(schedule)


def test_on_a_cpu_nothing_is_measured_and_the_reason_is_told(tmp_path: pathlib.Path) -> None:
    options = {"mode": "max-autotune", "autotune_seconds": 1.0, "cache_directory": tmp_path}
    compiled = minicompile.compile(lambda x: x.sin() * 2, options=options)
    x = torch.ones(8)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    assert "on a CPU" in compiled.compiler.graphs[0].parts["forward"].tuning


def plans() -> Iterator[TilePlan]:
    x, y, r = (Axis(name, as_index(size)) for name, size in (("x", 100), ("y", 3000), ("r", 5000)))
    yield TilePlan((TileAxis(x, 128, "parallel"),), "pointwise", 4, 1)
    yield TilePlan((TileAxis(y, 64, "parallel"), TileAxis(x, 64, "parallel")), "pointwise", 8, 1)
    yield TilePlan((TileAxis(x, 1, "parallel"), TileAxis(r, 8192, "reduction")), "persistent", 16, 1)
    yield TilePlan((TileAxis(x, 1, "parallel"), TileAxis(r, 2048, "reduction")), "looped", 8, 2)
    yield TilePlan((TileAxis(y, 4, "stepped"), TileAxis(r, 1024, "reduction")), "crossed", 4, 2)


@pytest.mark.parametrize("plan", list(plans()), ids=lambda plan: plan.strategy)
def test_neighbours_are_other_legal_plans(plan: TilePlan) -> None:
    found = neighbours(plan)
    assert 1 <= len(found) <= 14 and plan not in found and len(set(found)) == len(found)
    for new in found:
        assert new.strategy == plan.strategy and 1 <= new.num_warps <= 32
        for old_axis, axis in zip(plan.axes, new.axes, strict=True):
            assert axis.block & (axis.block - 1) == 0 and axis.axis == old_axis.axis
            if plan.strategy == "crossed" or (plan.strategy == "persistent" and axis.role == "reduction"):
                assert axis.block == old_axis.block
    whole = plan.strategy in ("persistent", "crossed")
    assert not whole or with_blocks(plan, [axis.block * 2 for axis in plan.axes], 4, 1) is None


@pytest.mark.gpu
def test_autotuned_functions_are_right_and_deterministic(tmp_path: pathlib.Path) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (1024,), weight).relu().t().contiguous().softmax(0)

    x, weight = torch.randn(512, 1024, device="cuda"), torch.randn(1024, device="cuda")
    options = {"mode": "max-autotune-no-cudagraphs", "autotune_seconds": 20.0, "cache_directory": tmp_path}
    texts = []
    for _ in range(2):
        compiled = minicompile.compile(program, options=options)
        torch.testing.assert_close(compiled(x, weight), program(x, weight), rtol=1e-4, atol=1e-5)
        texts.append(str(minicompile.sources(compiled)))
    assert texts[0] == texts[1]
