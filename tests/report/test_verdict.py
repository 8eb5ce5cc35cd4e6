"""Verdicts follow from counts and times; times here are recorded ones, no GPU is needed."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import minicompile
from minicompile.kernels.matmul_model import MatmulProblem
from minicompile.report import explain, roofs, verdict
from minicompile.report.clock import Clock
from minicompile.report.explanation import Explanation
from minicompile.report.matmul_shapes import judge
from minicompile.report.records import Fusion, Roofs, SizePoint, Step

H200 = Roofs("H200", True, 4.0e12, {"bf16": 800e12, "f32": 50e12, "tf32": 400e12, "vector": 60e12}, 3.0)


def step(**changes) -> Step:
    made = Step("f", "forward", 0, "kernel", "add_kernel", "", ("add",), (), (), (), 0, 0, 0, "f32")
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "bound", "share"),
    [
        ({"bytes_read": 2 * 10**9, "bytes_written": 2 * 10**9, "microseconds": 1250.0}, "bandwidth", 0.8),
        ({"bytes_read": 10**6, "flops": 48 * 10**9, "microseconds": 1000.0}, "compute", 0.8),
        ({"bytes_read": 4 * 10**8, "microseconds": 1000.0}, "latency", 0.1),
        ({"bytes_read": 4096, "microseconds": 4.0}, "launch", 0.75),
    ],
)
def test_a_kernel_is_placed_against_its_roof(changes, bound, share) -> None:
    found = verdict.judge_step(step(**changes), H200, tf32=False)
    assert found.bound == bound and found.share == pytest.approx(share)


def test_a_product_is_judged_by_the_matrix_rate_of_its_dtype() -> None:
    shape = judge(MatmulProblem(1, 4096, 4096, 4096, 2, False, "ieee", True))
    product = step(kind="extern", name="mm", dtype="bf16", matmul=shape, flops=2 * 4096**3, microseconds=200.0)
    found = verdict.judge_step(product, H200, tf32=False)
    assert found.bound == "compute" and found.share == pytest.approx(0.859, abs=0.01) and "TFLOP/s" in found.text


def test_without_times_the_verdict_is_an_expectation() -> None:
    found = verdict.judge_step(step(bytes_read=10**9), roofs.RECORDED, tf32=False)
    assert found.bound == "bandwidth" and found.share is None and "expected" in found.text


def judged(call_us: float, device_us: float, doubled: float | None = None, fusions=()):
    one = step(microseconds=device_us, bytes_read=int(device_us * 3e6))
    one = dataclasses.replace(one, verdict=verdict.judge_step(one, H200, False))
    return verdict.judge_function([one], fusions, call_us, 50.0, doubled, H200)


def test_a_host_gap_is_overhead_and_doubling_the_batch_confirms_it() -> None:
    found = judged(call_us=100.0, device_us=20.0, doubled=1.05)
    assert found.bound == "overhead" and "confirms" in found.text and "reduce-overhead" in found.helps[0]
    assert judged(call_us=100.0, device_us=95.0, doubled=1.95).bound == "bandwidth"
    assert judged(call_us=100.0, device_us=95.0, doubled=1.1).bound == "overhead"


def test_what_helps_most_is_in_bytes_or_microseconds() -> None:
    refused = Fusion("forward", "unprofitable", "a and b", "too many registers", 10**9)
    assert judged(1000.0, 990.0, fusions=[refused]).helps[0].startswith("1,000,000,000 bytes if a and b")


def test_break_even_counts_calls_and_finds_the_size_that_pays() -> None:
    sweep = (SizePoint(1, 10.0, 30.0), SizePoint(8, 40.0, 35.0), SizePoint(64, 200.0, 80.0))
    found = verdict.break_even(2.0, eager_us=200.0, compiled_us=100.0, sweep=sweep)
    assert found.calls == 20_000 and found.pays_from == 8
    assert verdict.break_even(2.0, 100.0, 200.0).calls is None
    assert verdict.break_even(2.0, 200.0, 100.0, (SizePoint(1, 1.0, 2.0),)).pays_from is None


def test_a_product_with_odd_sizes_is_told_a_better_one() -> None:
    odd = judge(MatmulProblem(1, 2048, 50257, 768, 2, False, "ieee", True))
    assert not odd.aligned and odd.advice.startswith("n = 502") and "less time" in odd.advice
    even = judge(MatmulProblem(1, 4096, 4096, 4096, 2, False, "ieee", True))
    assert even.aligned and even.tile_loss == 0.0 and 0.0 <= even.wave_loss < 0.1
    past = judge(MatmulProblem(1, 4097, 4096, 4096, 2, False, "ieee", True))
    assert past.tile_loss > even.tile_loss


class RecordedClock(Clock):
    """Times as a GPU gave them."""

    is_gpu = True

    def call_us(self, function):
        function()
        return 120.0

    host_us = call_us

    def steps_us(self, run, watching):
        keys = []

        def around(key, step):
            keys.append(key)
            return step()

        with watching(around):
            run()
        return dict.fromkeys(keys, 40.0)


def test_the_whole_explanation_with_recorded_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "roofs_of", lambda *_: H200)
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 12345)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    tools = dataclasses.replace(minicompile.api.report_tools({}), clock=RecordedClock)
    found = explain.explain(lambda x: x.softmax(-1), (torch.randn(8, 16),), {}, tools)
    assert [entry.microseconds for entry in found.steps] == [40.0] and found.steps[0].verdict.bound == "latency"
    assert found.verdict.bound == "overhead" and found.verdict.doubled == 1.0
    assert [point.size for point in found.break_even.sweep] == [2, 4, 8, 16, 32]
    assert "kernels 40 µs" in str(found) and found.peak_bytes == 12345


def test_roofs_are_measured_once_and_kept_on_disk(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU/1")
    figures = {"copy TB/s": 4.0, "bf16 8192 TFLOP/s": 700.0, "bf16 1024 TFLOP/s": 300.0, "launch us": 2.5}
    monkeypatch.setattr(roofs, "measure_roofs", lambda *_: asked.append(1) or figures)
    for _ in range(2):
        found = roofs.roofs_of("cuda", tmp_path, None)
    assert asked == [1] and found.flops_per_second["bf16"] == 700e12 and found.launch_us == 2.5
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text()) == figures
    path.write_text("damaged")
    roofs.roofs_of("cuda", tmp_path, None)
    assert asked == [1, 1]


def expected_bound(found: Explanation, step: Step) -> str:
    """What limits `step` by its counts and the roofs alone: its time is another's too when tests share the GPU."""
    return verdict.judge_step(dataclasses.replace(step, microseconds=None), found.roofs, tf32=False).bound


@pytest.mark.gpu
def test_a_large_copy_is_measured_against_the_roof_of_bandwidth_on_a_gpu() -> None:
    found = minicompile.explain(lambda x: x + 1, sweep=False)(torch.randn(1 << 28, device="cuda"))
    (only,) = found.steps
    assert found.roofs.measured and expected_bound(found, only) == "bandwidth"
    assert only.verdict.share == pytest.approx(only.verdict.least_us / only.microseconds)
    assert only.registers > 0 and only.spilled_bytes == 0


@pytest.mark.gpu
def test_a_tiny_call_is_all_launch_on_a_gpu() -> None:
    found = minicompile.explain(lambda x: x + 1)(torch.randn(64, device="cuda"))
    assert expected_bound(found, found.steps[0]) == "launch" and found.steps[0].microseconds > 0
    assert found.break_even.sweep and found.verdict.doubled is not None


@pytest.mark.gpu
def test_a_large_product_is_measured_against_the_roof_of_the_matrix_units_on_a_gpu() -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    found = minicompile.explain(lambda a: a @ a, sweep=False)(a)
    product = found.steps[-1]
    assert expected_bound(found, product) == "compute" and product.flops == 2 * 8192**3
    assert product.verdict.share == pytest.approx(product.verdict.least_us / product.microseconds)
