"""A schedule computes what the lowered graph computes, whatever was inlined, split, fused, tiled and reused."""

from __future__ import annotations

import pytest

from minicompile.ir.schedule import DeviceProperties, KernelGroup
from minicompile.scheduling import domain, split, tiling
from tests.scheduling.many_programs import check_program


@pytest.mark.parametrize("block", range(6))
def test_random_programs_keep_their_values(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        check_program(seed, length=4 + seed % 20)


def test_kernels_of_random_programs_compute_the_same() -> None:
    for seed in range(5000, 5040):
        check_program(seed, length=4 + seed % 20, kernels=True)


def test_random_programs_keep_their_values_when_rows_never_fit_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "ROW_REGISTERS", 0)
    for seed in range(1000, 1060):
        check_program(seed, length=4 + seed % 20)


def test_a_number_loaded_under_a_condition_that_varies_is_loaded_in_every_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "ROW_REGISTERS", 0)
    check_program(5673, length=4 + 5673 % 20, kernels=True)


def test_random_programs_keep_their_values_when_rows_share_what_holds_for_all_their_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain, "LEAST_ROW", 2)
    monkeypatch.setattr(domain, "VALUES_OF_A_ROW", 1)
    in_rows = 0
    for seed in range(7000, 7060):
        schedule = check_program(seed, length=4 + seed % 20, kernels=seed % 3 == 0)
        kernels = [step for step in schedule.steps if isinstance(step, KernelGroup)]
        in_rows += sum("parts of rows" in kernel.tile.reason for kernel in kernels)
    assert in_rows > 0


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_random_programs_keep_their_values_when_reductions_are_split(
    monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    def always(results: int, length: int, *_: object) -> int:
        return splits if length >= splits else 1

    monkeypatch.setattr(split, "choose_splits", always)
    for seed in range(2000, 2040):
        check_program(seed, length=4 + seed % 20)


@pytest.mark.parametrize("chunk", [2, 3])
def test_random_programs_keep_their_values_when_rows_and_columns_are_folded_in_one_walk(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    def chunks_of_rows(rows: int, columns: int, itemsize: int, device: DeviceProperties) -> int:
        return rows // chunk if rows % chunk == 0 else 1

    monkeypatch.setattr(split, "choose_row_chunks", chunks_of_rows)
    crossed = 0
    for seed in range(3000, 3060):
        schedule = check_program(seed, length=8 + seed % 20)
        crossed += sum(isinstance(step, KernelGroup) and step.tile.strategy == "crossed" for step in schedule.steps)
    assert crossed > 0
