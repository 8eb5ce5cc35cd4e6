"""Runs cases, each in a process of its own with its own caches, prints a table and writes JSON.

A case that fails or takes too long is reported and the rest goes on.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

import minicompile
from minicompile.bench.cases import CASES, COMPILE_CASES
from minicompile.bench.table import print_case, print_header, print_means
from minicompile.bench.worker import MARK

SECTIONS = ("roofs", "fusion", "fusion-bf16", "backward", "optimizer", "attention", "lm", "memory", "overhead", "compile",
            "models", "hf", "timm", "dynamic")  # fmt: skip
LONG = ("hf", "timm")
"""Sections that only run when asked for: they take most of an hour and need other libraries."""
COMPILERS = "eager,torch,minicompile"


def run_bench(
    names: Sequence[str] = (),
    *,
    json_path: str | None = None,
    quick: bool = False,
    device: str | None = None,
    timeout: float = 120.0,
    compilers: str = COMPILERS,
) -> int:
    """Run the named sections or cases (without names all but the long ones); non-zero when minicompile failed somewhere."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and not quick:
        print("without a GPU only --quick makes sense: its sizes are tiny and its times say nothing about a GPU")
        return 2
    jobs = select(names)
    record = provenance(device, quick)
    print(", ".join(f"{key} {value}" for key, value in record.items()), flush=True)
    cases: dict[str, Any] = {}
    section = ""
    for job in jobs:
        if job.split("/")[0] != section:
            section = job.split("/")[0]
            print_header(section, compilers.split(","))
        start = time.perf_counter()
        cases[job] = run_case(job, device, quick, timeout, compilers)
        cases[job]["seconds"] = round(time.perf_counter() - start, 1)
        print_case(job, cases[job], compilers.split(","))
        if json_path:
            pathlib.Path(json_path).write_text(json.dumps({**record, "cases": cases}, indent=1) + "\n")
    print_means(cases)
    failed = [job for job, result in cases.items() if any("failure" in r for n, r in figures(result) if is_ours(n))]
    if failed:
        print(f"\nminicompile failed in: {', '.join(failed)}")
    return 1 if failed else 0


def select(names: Sequence[str]) -> list[str]:
    """Job names in a fixed order; sections stand for their cases, and a name that is neither raises `SystemExit`."""
    jobs = ["roofs", *CASES, *(f"compile/{case}" for case in COMPILE_CASES)]
    jobs.sort(key=lambda job: SECTIONS.index(job.split("/")[0]))
    for name in names:
        if name not in SECTIONS and name not in jobs:
            raise SystemExit(f"no section or case {name!r}; sections: {', '.join(SECTIONS)}; cases: {', '.join(jobs)}")
    wanted = names or [section for section in SECTIONS if section not in LONG]
    return [job for job in jobs if job in wanted or job.split("/")[0] in wanted]


def run_case(job: str, device: str, quick: bool, timeout: float, compilers: str) -> dict[str, Any]:
    """The figures of one job by compiler; for `compile/...` by compiler and by cold or warm cache."""
    if not job.startswith("compile/"):
        with tempfile.TemporaryDirectory() as caches:
            return run_worker(job, device, quick, timeout, compilers, caches)
    case = job.removeprefix("compile/")
    result: dict[str, Any] = {}
    for compiler in compilers.split(","):
        if compiler == "eager":
            continue
        with tempfile.TemporaryDirectory() as caches:
            for state in ("cold", "warm"):
                run = run_worker(case, device, quick, timeout, compiler, caches, first_only=True)
                result[f"{compiler} {state}"] = run[compiler]
    return result


def run_worker(
    case: str, device: str, quick: bool, timeout: float, compilers: str, caches: str, first_only: bool = False
) -> dict[str, Any]:
    """Run the worker process and collect what it printed before it ended, was killed, or died."""
    command = [sys.executable, "-m", "minicompile.bench.worker", case, "--device", device, "--compilers", compilers]
    command += ["--quick"] if quick else []
    command += ["--first-only"] if first_only else []
    environment = dict(
        os.environ,
        TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor",
        TRITON_CACHE_DIR=f"{caches}/triton",
        MINICOMPILE_CACHE_DIR=f"{caches}/minicompile",
        PYTHONPATH=os.pathsep.join([str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    )
    failure = "died"
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            run = subprocess.run(command, env=environment, stdout=output, stderr=errors, timeout=timeout)
            if run.returncode:
                failure = f"died with status {run.returncode}"
        except subprocess.TimeoutExpired:
            failure = f"not done after {timeout:.0f} s"
        output.seek(0)
        errors.seek(0)
        lines, complaint = output.read().splitlines(), errors.read()
    result: dict[str, Any] = {}
    for line in lines:
        if line.startswith(MARK):
            parsed = json.loads(line.removeprefix(MARK))
            result[parsed.pop("compiler")] = parsed
    for compiler in [case] if case == "roofs" else compilers.split(","):
        result.setdefault(compiler, {"failure": failure})
    if any("failure" in r for r in result.values()):
        result["stderr"] = complaint[-3000:]
    return result


def figures(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The entries of a result that are figures of a compiler."""
    return [(name, value) for name, value in result.items() if isinstance(value, dict)]


def is_ours(name: str) -> bool:
    """Whether an entry belongs to minicompile."""
    return name.startswith("minicompile")


def provenance(device: str, quick: bool) -> dict[str, Any]:
    """What must be known to compare the figures with others: when, what, where."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "minicompile": minicompile.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "quick": quick,
    }


def triton_version() -> str:
    """Triton's version, if it is installed."""
    try:
        import triton  # optional: there is none on some platforms
    except ImportError:
        return "none"
    return triton.__version__
