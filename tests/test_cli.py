"""The command line, the demo and the benchmark run on a machine without a GPU."""

from __future__ import annotations

import io
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

import minicompile
from minicompile import cli
from minicompile.bench import run, table, worker
from minicompile.bench.cases import CASES, COMPILE_CASES
from minicompile.bench.timing import largest_error
from minicompile.demo.eager_work import eager_work
from minicompile.demo.progress import ProgressBar
from minicompile.demo.run import run_demo

REPOSITORY = pathlib.Path(__file__).parents[1]


def test_version(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert minicompile.__version__ in capsys.readouterr().out


def test_the_module_runs_as_a_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "minicompile", "--help"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert run.returncode == 0 and "demo" in run.stdout and "bench" in run.stdout


def test_the_demo_trains_samples_and_compares(capsys) -> None:
    assert run_demo("tiny", "cpu", seconds=1.0, characters=8) == 0
    printed = capsys.readouterr().out
    for part in (
        "training [",
        "sampled:",
        "gradients, error against fp64",
        "bytes moved",
        "generated files:",
        "as exact as",
    ):
        assert part in printed
    listed = re.findall(r"^  (\S+\.py)$", printed, re.MULTILINE)
    assert listed and all(pathlib.Path(path).is_file() for path in listed)


def test_eager_work_counts_kernels_and_bytes_but_no_views() -> None:
    x = torch.ones(10, 10)
    assert eager_work(lambda: (x.t() + 1).t()) == (1, 800)
    leaf = torch.ones(10, requires_grad=True)
    kernels, _ = eager_work(lambda: leaf.exp().sum().backward())
    assert kernels > 2


def test_the_progress_bar_prints_few_lines_into_a_file() -> None:
    stream = io.StringIO()
    bar = ProgressBar(100, "training", stream)
    for done in range(1, 101):
        bar.update(done, "loss 1.0")
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 7 and "100/100" in lines[-1]


def test_the_benchmark_writes_a_table_and_json(tmp_path, capsys) -> None:
    path = tmp_path / "figures.json"
    status = run.run_bench(
        ["roofs", "fusion/softmax", "compile/fusion/softmax"],
        json_path=str(path), quick=True, device="cpu", compilers="eager,minicompile",
    )  # fmt: skip
    assert status == 0
    record = json.loads(path.read_text())
    assert set(record["cases"]) == {"roofs", "fusion/softmax", "compile/fusion/softmax"}
    assert {"date", "commit", "torch", "triton", "device", "python"} <= set(record)
    ours = record["cases"]["fusion/softmax"]["minicompile"]
    assert ours["ms"] > 0 and ours["error"] < 1e-5 and ours["stats"]["kernels"] == 1
    assert record["cases"]["compile/fusion/softmax"]["minicompile warm"]["first_s"] > 0
    assert "fusion/softmax ms" in capsys.readouterr().out


def test_the_memory_section_runs_a_training_step(capsys) -> None:
    assert run.run_bench(["memory/small_autocast"], quick=True, device="cpu", compilers="eager") == 0
    assert "memory/small_autocast train_ms" in capsys.readouterr().out


def test_a_slow_case_is_reported_and_the_rest_goes_on(capsys) -> None:
    status = run.run_bench(["roofs"], quick=True, device="cpu", timeout=1e-6)
    assert status == 0 and "not done after" in capsys.readouterr().out
    assert run.run_bench(["fusion/gelu"], quick=True, device="cpu", timeout=1e-6, compilers="minicompile") == 1


def test_a_failing_compiler_does_not_hide_the_others(tmp_path, capsys) -> None:
    path = tmp_path / "figures.json"
    run.run_bench(
        ["fusion/gelu"], json_path=str(path), quick=True, device="cpu", compilers="eager,minicompile:nonsense"
    )
    result = json.loads(path.read_text())["cases"]["fusion/gelu"]
    assert result["eager"]["ms"] > 0 and "nonsense" in result["minicompile:nonsense"]["failure"]
    assert "failed" in capsys.readouterr().out


def test_names_select_sections_and_cases() -> None:
    sizes = ("small", "medium", "large", "xl", "2.7b", "deep")
    assert run.select(["lm"]) == ["lm/small_bf16", "lm/small_tf32", *(f"lm/{size}_bf16" for size in sizes[1:])]
    assert {job.split("/")[0] for job in run.select([])} == set(run.SECTIONS) - set(run.LONG)
    long = run.select(run.LONG)
    assert {"hf/gpt2", "timm/resnet50"} < set(long) and len(long) >= 30
    assert len(run.select([])) == 1 + len(CASES) + len(COMPILE_CASES) - len(long)
    with pytest.raises(SystemExit, match="no section or case 'softmacks'"):
        run.select(["softmacks"])


def test_full_sizes_are_refused_without_a_gpu(capsys) -> None:
    assert run.run_bench(["roofs"], device="cpu") == 2
    assert "--quick" in capsys.readouterr().out


def test_each_place_measures_one_case_at_a_time_and_results_keep_their_order() -> None:
    busy: list[str] = []

    def work(job: str, seat: dict[str, str]) -> str:
        busy.append(seat["gpu"])
        assert busy.count(seat["gpu"]) == 1
        time.sleep(0.02 if job == "first" else 0.005)
        busy.remove(seat["gpu"])
        return job

    jobs = ["first", *(str(number) for number in range(8))]
    assert list(run.on_each([{"gpu": "0"}, {"gpu": "1"}], jobs, work)) == jobs


def test_caches_are_filled_before_anything_is_measured(monkeypatch) -> None:
    calls: list[tuple[str, list[str], bool]] = []

    def work(plan: run.Plan, case: str, seat: dict[str, str], first_only: bool = False) -> dict[str, Any]:
        calls.append((case, plan.compilers, first_only))
        return {name: {} for name in plan.compilers}

    monkeypatch.setattr(run.Plan, "work", work)
    run.run_bench(["fusion/gelu", "fusion/mean"], quick=True, device="cpu", prefill=True)
    everyone = ["eager", "torch", "minicompile"]
    assert sorted(calls[:2]) == [("fusion/gelu", ["torch"], True), ("fusion/mean", ["torch"], True)]
    assert sorted(calls[2:]) == [("fusion/gelu", everyone, False), ("fusion/mean", everyone, False)]


def test_workers_of_one_place_take_turns(tmp_path) -> None:
    """The one that waits has imported everything before, and says nothing."""
    command = [sys.executable, "-m", "minicompile.bench.worker", "roofs", "--device", "cpu", "--quick"]
    with worker.turn(tmp_path / "cpu"):
        waiting = subprocess.Popen([*command, "--turn", str(tmp_path / "cpu")], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=8)
    assert worker.MARK in waiting.communicate(timeout=60)[0]


def test_the_table_compares_with_torch() -> None:
    assert "2.00x" in table.comparison("ms", {"torch": {"ms": 2.0}, "minicompile": {"ms": 1.0}})
    assert table.comparison("ms", {"torch": {"failure": "x"}, "minicompile": {"ms": 1.0}}) == ""


def test_an_error_that_is_not_a_number_is_infinite() -> None:
    nan = torch.tensor([float("nan")])
    assert largest_error([nan], [torch.ones(1, dtype=torch.float64)]) == float("inf")


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    commands = [line.strip() for line in readme.splitlines() if "pytest" in line and line.startswith("    ")]
    assert len(commands) == 1
    assert commands[0] in (REPOSITORY / ".ci" / "run").read_text().splitlines()
