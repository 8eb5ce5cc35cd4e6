"""Runs cases, each in a process of its own with its own caches, prints a table and writes JSON.

A case that fails or takes too long is reported and the rest goes on.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import minicompile
from minicompile.bench.cases import CASES, COMPILE_CASES
from minicompile.bench.table import print_case, print_header, print_means
from minicompile.bench.worker import MARK

SECTIONS = ("roofs", "fusion", "fusion-bf16", "backward", "optimizer", "functions", "attention", "products", "lm", "memory",
            "overhead", "compile", "models", "hf", "timm", "dynamic")  # fmt: skip
LONG = ("hf", "timm")
"""Sections that only run when asked for: they take most of an hour and need other libraries."""
COMPILERS = "eager,torch,minicompile"
FILLS_AT_ONCE = 5
"""How many cases a GPU's share of the host compiles at once where nothing is timed."""
STARTED_AT_ONCE = 2
"""How many workers a place has: one measures, the next starts Python and imports what it needs."""


def run_bench(
    names: Sequence[str] = (),
    *,
    json_path: str | None = None,
    quick: bool = False,
    device: str | None = None,
    timeout: float = 120.0,
    compilers: str = COMPILERS,
    prefill: bool = False,
) -> int:
    """Run the named sections or cases (without names all but the long ones); non-zero when minicompile failed somewhere.

    Each GPU measures one case at a time, while the next one starts. With `prefill` the caches of `torch.compile` are filled
    before, several cases at once, which saves most of the time; its first calls are then those with a filled cache.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and not quick:
        print("without a GPU only --quick makes sense: its sizes are tiny and its times say nothing about a GPU")
        return 2
    jobs = select(names)
    record = provenance(device, quick)
    print(", ".join(f"{key} {value}" for key, value in record.items()), flush=True)
    columns = compilers.split(",")
    seats = places(device)
    cases: dict[str, Any] = {}
    section = ""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(device, quick, timeout, columns, pathlib.Path(folder), pathlib.Path(folder))
        if prefill:
            plan.fill(jobs, seats)
        for job, result in zip(jobs, on_each([*seats] * STARTED_AT_ONCE, jobs, plan.case), strict=True):
            if job.split("/")[0] != section:
                section = job.split("/")[0]
                print_header(section, columns)
            cases[job] = result
            print_case(job, result, columns)
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


def places(device: str) -> list[dict[str, str]]:
    """The environment of the workers of each place to measure at: a GPU each, or the one CPU."""
    if device == "cpu":
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [
        {"CUDA_VISIBLE_DEVICES": visible.split(",")[index] if visible else str(index)}
        for index in range(torch.cuda.device_count())
    ]


def on_each(
    seats: Sequence[dict[str, str]], jobs: Sequence[str], work: Callable[[str, dict[str, str]], Any]
) -> Iterator[Any]:
    """`work(job, seat)` of every job in their order, each job on a seat that is free."""
    free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for seat in seats:
        free.put(seat)

    def seated(job: str) -> Any:
        seat = free.get()
        try:
            return work(job, seat)
        finally:
            free.put(seat)

    with concurrent.futures.ThreadPoolExecutor(len(seats)) as pool:
        yield from pool.map(seated, jobs)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How every case is run: where, for how long at most, by which compilers, with caches in which folder."""

    device: str
    quick: bool
    timeout: float
    compilers: list[str]
    folder: pathlib.Path
    turns: pathlib.Path | None
    """Where the files lie by which workers take turns; `None`: all at once."""

    def fill(self, jobs: Sequence[str], seats: Sequence[dict[str, str]]) -> None:
        """Run the first calls of `torch.compile`, several jobs at once, for what they leave in its caches."""
        compilers = [name for name in self.compilers if name.startswith("torch")]
        theirs = dataclasses.replace(self, compilers=compilers, turns=None)
        slow = [job for job in jobs if job in CASES] if theirs.compilers else []
        fills = on_each([*seats] * FILLS_AT_ONCE, slow, lambda job, seat: theirs.work(job, seat, first_only=True))
        collections.deque(fills, maxlen=0)

    def case(self, job: str, seat: dict[str, str]) -> dict[str, Any]:
        """The figures of one job by compiler; for `compile/...` by compiler and by cold or warm cache."""
        return self.first_calls(job, seat) if job.startswith("compile/") else self.work(job, seat)

    def first_calls(self, job: str, seat: dict[str, str]) -> dict[str, Any]:
        """The first calls of one workload in new processes, each compiler with empty and then with filled caches."""
        result: dict[str, Any] = {}
        for compiler in self.compilers:
            alone = dataclasses.replace(self, compilers=[compiler], folder=self.folder / compiler)
            for state in ("cold", "warm") if compiler != "eager" else ():
                run = alone.work(job.removeprefix("compile/"), seat, first_only=True)
                result[f"{compiler} {state}"] = run[compiler]
        return result

    def work(self, case: str, seat: dict[str, str], first_only: bool = False) -> dict[str, Any]:
        """Run the worker process and collect what it printed before it ended, was killed, or died."""
        command = [sys.executable, "-m", "minicompile.bench.worker", case, "--device", self.device]
        command += ["--compilers", ",".join(self.compilers)]
        command += ["--quick"] if self.quick else []
        command += ["--first-only"] if first_only else []
        command += ["--timeout", str(self.timeout)]
        command += ["--turn", str(self.turns / seat.get("CUDA_VISIBLE_DEVICES", "cpu"))] if self.turns else []
        caches = self.folder / case
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor",
            TRITON_CACHE_DIR=f"{caches}/triton",
            MINICOMPILE_CACHE_DIR=f"{caches}/minicompile",
            PYTHONPATH=os.pathsep.join([str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
            **seat,
        )
        failure = "died"
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            run = subprocess.run(command, env=environment, stdout=output, stderr=errors)
            if run.returncode == -signal.SIGALRM:
                failure = f"not done after {self.timeout:.0f} s"
            elif run.returncode:
                failure = f"died with status {run.returncode}"
            output.seek(0)
            errors.seek(0)
            lines, complaint = output.read().splitlines(), errors.read()
        result: dict[str, Any] = {}
        for line in lines:
            if line.startswith(MARK):
                parsed = json.loads(line.removeprefix(MARK))
                result[parsed.pop("compiler")] = parsed
        for compiler in [case] if case == "roofs" else self.compilers:
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
        "places": len(places(device)),
        "quick": quick,
    }


def triton_version() -> str:
    """Triton's version, if it is installed."""
    try:
        import triton  # optional: there is none on some platforms
    except ImportError:
        return "none"
    return triton.__version__
