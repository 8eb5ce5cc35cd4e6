"""The cost model's choices: rows in registers where they fit, whole sectors, enough programs, big tiles when interpreted."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from minicompile.codegen.geometry import INTERPRETED_TILE, plan_for_device
from minicompile.ir.index import Axis, Symbol, as_index
from minicompile.ir.schedule import DeviceProperties, TilePlan
from minicompile.scheduling.tiling import TileFacts, plan_tile

GPU = DeviceProperties(name="H200", kind="cuda")
CPU = DeviceProperties()


def facts(parallel: tuple[int, ...], folded: int | None = None, folded_first: bool = True, itemsize: int = 4,
          live_rows: int = 2) -> TileFacts:
    """Facts of a kernel with axes of these sizes."""
    names = ("y", "x")[-len(parallel):]
    axes = tuple(Axis(name, size) for name, size in zip(names, parallel, strict=True))
    return TileFacts(axes, None if folded is None else Axis("r", folded), folded_first, itemsize, live_rows)


def programs(plan: TilePlan) -> int:
    """Programs in the grid."""
    return math.prod(-(-int(tile.axis.size) // tile.block) for tile in plan.parallel)


@pytest.mark.parametrize("length", [128, 1000, 4096, 8192])
def test_rows_that_fit_the_registers_are_read_once(length: int) -> None:
    plan = plan_tile(facts((16384,), length), GPU)
    assert plan.strategy == "persistent" and plan.reduction is not None and plan.reduction.block >= length


def test_rows_of_which_some_lie_crosswise_come_in_whole_sectors() -> None:
    for rows, most in ((1568, 16), (12544, 16), (12544, 4)):
        row = facts((rows,), 768, itemsize=2, live_rows=48 // most)
        plan = plan_tile(dataclasses.replace(row, crosswise=2), GPU)
        assert plan.strategy == "persistent" and plan.parallel[-1].block == most
        assert plan_tile(row, GPU).parallel[-1].block <= 2


@pytest.mark.parametrize("length", [50257, 262144])
def test_longer_rows_are_walked_in_large_steps(length: int) -> None:
    plan = plan_tile(facts((1024,), length), GPU)
    assert plan.strategy == "looped" and plan.reduction is not None and plan.reduction.block >= 2048


def test_many_live_values_make_a_row_too_long() -> None:
    assert plan_tile(facts((1024,), 16384, live_rows=2), GPU).strategy == "persistent"
    assert plan_tile(facts((1024,), 16384, live_rows=8), GPU).strategy == "looped"


def test_short_rows_share_a_program_as_long_as_there_are_enough_programs() -> None:
    many, few = plan_tile(facts((1 << 20,), 64), GPU), plan_tile(facts((256,), 64), GPU)
    assert many.parallel[0].block > 1 and programs(many) >= 2 * GPU.multiprocessors
    assert few.parallel[0].block == 1


def test_neighbouring_columns_fill_whole_sectors() -> None:
    for itemsize in (2, 4, 8):
        plan = plan_tile(facts((8192,), 16384, folded_first=False, itemsize=itemsize), GPU)
        assert plan.parallel[0].block * itemsize >= 64


def test_a_small_pointwise_kernel_still_spreads_over_the_chip() -> None:
    plan = plan_tile(facts((1 << 15,)), GPU)
    assert programs(plan) >= GPU.multiprocessors


def test_a_large_pointwise_kernel_moves_sixteen_byte_vectors() -> None:
    for itemsize in (1, 2, 4, 8):
        plan = plan_tile(facts((1 << 27,), itemsize=itemsize), GPU)
        per_thread = plan.parallel[0].block // (32 * plan.num_warps)
        assert per_thread * itemsize >= 16


def test_the_interpreter_gets_tiles_as_large_as_the_problem() -> None:
    def plan(*known: Any) -> TilePlan:
        return plan_for_device(plan_tile(facts(*known), CPU), CPU)

    assert programs(plan((300, 500))) == 1
    rows = plan((300,), 500)
    assert programs(rows) == 1 and rows.strategy == "persistent"
    large = plan((1 << 24,))
    assert large.parallel[0].block == INTERPRETED_TILE < 1 << 24


def test_a_row_of_symbolic_length_is_persistent_up_to_a_length_but_not_for_any() -> None:
    symbolic = dataclasses.replace(facts((64,), 8), folded=Axis("r", as_index(Symbol("s0", 100, 2))))
    for device in (GPU, CPU):
        plan = plan_tile(symbolic, device)
        assert plan.strategy == "persistent" and plan.longest >= 4096
        assert plan_tile(dataclasses.replace(symbolic, any_size=True), device).strategy == "looped"
    long = dataclasses.replace(symbolic, folded=Axis("r", as_index(Symbol("s0", 1 << 17, 2))))
    assert plan_tile(long, GPU).strategy == "looped" and plan_tile(facts((64,), 100), GPU).longest == 0


def test_every_block_is_a_power_of_two() -> None:
    for shape in ((1,), (3,), (1000,), (77, 5), (1, 9)):
        for device in (GPU, CPU):
            assert all(t.block & (t.block - 1) == 0 for t in plan_tile(facts(shape), device).axes)


def test_a_walk_loads_no_more_ahead_than_a_multiprocessor_holds() -> None:
    def stages(live_rows: int) -> int:
        return plan_tile(dataclasses.replace(facts((128,), 16, live_rows=live_rows), stepped=Axis("row", 1024)), GPU).num_stages

    assert [stages(live_rows) for live_rows in (4, 16, 40)] == [3, 2, 1]


def test_a_walk_of_few_programs_has_more_warps() -> None:
    def warps(programs: int) -> int:
        return plan_tile(dataclasses.replace(facts((programs,), 64), stepped=Axis("row", 256)), GPU).num_warps

    assert warps(8 * GPU.multiprocessors) < warps(GPU.multiprocessors) <= 8
