"""Counts the programs that each compiler runs right: `python -m tests.conformance.report [--compilers capture torch]`.

Each compiler runs in a process of its own, so that one cannot spoil another's run. `--failures` lists what differs,
`--json FILE` keeps everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tests.conformance.catalogue import PROGRAMS, Program, all_programs
from tests.conformance.compilers import COMPILERS, compiler, default
from tests.conformance.harness import ProgramIsBroken, check

MARK = "conformance:"
NOT_HERE = "the plain program fails on this device"


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which programs a worker runs, and where: every `parts`-th of those whose topic and name contain `pattern`."""

    pattern: str
    core: bool
    device: str | None
    part: int
    parts: int

    def programs(self) -> list[Program]:
        """Those programs, in the order of the catalogue."""
        chosen = [program for program in all_programs() if self.pattern in f"{program.topic}-{program.name}"]
        return [program for program in chosen if program.core or not self.core][self.part :: self.parts]


def run_all(name: str, selection: Selection, skip: int) -> None:
    """Run the chosen programs but the first `skip` with one compiler; print one JSON line before and after each."""
    for program in selection.programs()[skip:]:
        print(MARK + json.dumps({"program": program.name, "found": ["the process died"], "seconds": 0.0}), flush=True)
        start = time.perf_counter()
        try:
            with compiler(name) as compile:
                found = check(program, compile, selection.device)
        except (ProgramIsBroken, KeyboardInterrupt) as error:
            if selection.device is None or isinstance(error, KeyboardInterrupt):
                raise
            found = [NOT_HERE]
        except BaseException as error:
            found = [f"the harness stopped: {type(error).__name__}: {str(error)[:300]}"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what a failed assertion leaves of the device is of no use: the process dies here
        seconds = round(time.perf_counter() - start, 3)
        print(MARK + json.dumps({"program": program.name, "found": found, "seconds": seconds}), flush=True)
    print(MARK + "{}", flush=True)


def run_in_processes(name: str, selection: Selection) -> dict[str, Any]:
    """What differs and how long it took, by program; a program that kills the interpreter costs only itself."""
    results: dict[str, Any] = {}
    while True:
        command = [sys.executable, "-m", "tests.conformance.report", "--worker", name, "--skip", str(len(results))]
        command += ["--only", selection.pattern, "--part", str(selection.part), "--jobs", str(selection.parts)]
        command += ["--core"] if selection.core else []
        command += ["--device", selection.device] if selection.device else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        entries = [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
        if not entries:
            raise SystemExit(f"the run with {name} did not start (exit code {done.returncode})")
        results.update({entry["program"]: entry for entry in entries if entry})
        if not entries[-1]:
            return results


def run_side_by_side(name: str, selection: Selection) -> dict[str, Any]:
    """The same, by several workers at once."""
    parts = [dataclasses.replace(selection, part=part) for part in range(selection.parts)]
    with ThreadPoolExecutor(selection.parts) as pool:
        found = list(pool.map(lambda part: run_in_processes(name, part), parts))
    return {program: entry for results in found for program, entry in results.items() if entry["found"] != [NOT_HERE]}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Passed programs by topic and compiler, as Markdown."""
    names = list(results)
    topics: dict[str, list[str]] = {}
    for program in all_programs():
        if all(program.name in results[name] for name in names):
            topics.setdefault(program.topic, []).append(program.name)
    lines = [f"| topic | programs | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for topic, programs in topics.items():
        passed = [sum(not results[name][program]["found"] for program in programs) for name in names]
        lines.append(f"| {topic.replace('_', ' ')} | {len(programs)} | {' | '.join(map(str, passed))} |")
    totals = [sum(not entry["found"] for entry in results[name].values()) for name in names]
    lines.append(f"| **all** | **{sum(map(len, topics.values()))}** | {' | '.join(f'**{n}**' for n in totals)} |")
    seconds = [sum(entry["seconds"] for entry in results[name].values()) for name in names]
    lines.append(f"| seconds | | {' | '.join(f'{s:.0f}' for s in seconds)} |")
    return "\n".join(lines)


def failures(results: dict[str, dict[str, Any]]) -> str:
    """What differs, by program and compiler."""
    lines = []
    for name, programs in results.items():
        for program, entry in programs.items():
            for sentence in entry["found"][:4]:
                lines.append(f"{name}: {PROGRAMS[program].topic}-{program}: {sentence}")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=[default(), "torch"])
    parser.add_argument("--only", default="", help="programs whose topic and name contain this")
    parser.add_argument("--core", action="store_true", help="only the core programs")
    parser.add_argument("--failures", action="store_true", help="list what differs")
    parser.add_argument("--json", help="write all results here")
    parser.add_argument("--device", help="PyTorch's default device; programs that fail on it in eager are left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=COMPILERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    selection = Selection(options.only, options.core, options.device, options.part, options.jobs)
    if options.worker:
        run_all(options.worker, selection, options.skip)
        return
    all_programs()
    results = {name: run_side_by_side(name, selection) for name in options.compilers}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    if options.failures:
        print(failures(results), end="\n\n")
    print(table(results))


if __name__ == "__main__":
    main()
