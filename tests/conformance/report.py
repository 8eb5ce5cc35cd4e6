"""Counts the programs that each compiler runs right: `python -m tests.conformance.report [--compilers capture torch]`.

Each compiler runs in a process of its own, so that one cannot spoil another's run. `--failures` lists what differs,
`--json FILE` keeps everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from tests.conformance.catalogue import PROGRAMS, all_programs
from tests.conformance.compilers import COMPILERS, compiler, default
from tests.conformance.harness import ProgramIsBroken, check

MARK = "conformance:"


def run_all(name: str, pattern: str, core: bool, skip: int) -> None:
    """Run the chosen programs but the first `skip` with one compiler; print one JSON line before and after each."""
    chosen = [program for program in all_programs() if pattern in f"{program.topic}-{program.name}"]
    for program in [program for program in chosen if program.core or not core][skip:]:
        print(MARK + json.dumps({"program": program.name, "found": ["the process died"], "seconds": 0.0}), flush=True)
        start = time.perf_counter()
        try:
            with compiler(name) as compile:
                found = check(program, compile)
        except (ProgramIsBroken, KeyboardInterrupt):
            raise
        except BaseException as error:
            found = [f"the harness stopped: {type(error).__name__}: {str(error)[:300]}"]
        seconds = round(time.perf_counter() - start, 3)
        print(MARK + json.dumps({"program": program.name, "found": found, "seconds": seconds}), flush=True)
    print(MARK + "{}", flush=True)


def run_in_processes(name: str, pattern: str, core: bool) -> dict[str, Any]:
    """What differs and how long it took, by program; a program that kills the interpreter costs only itself."""
    results: dict[str, Any] = {}
    while True:
        command = [sys.executable, "-m", "tests.conformance.report", "--worker", name, "--only", pattern]
        command += ["--skip", str(len(results)), *(["--core"] if core else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        entries = [json.loads(line[len(MARK) :]) for line in done.stdout.splitlines() if line.startswith(MARK)]
        if not entries:
            raise SystemExit(f"the run with {name} did not start (exit code {done.returncode})")
        results.update({entry["program"]: entry for entry in entries if entry})
        if not entries[-1]:
            return results


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
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=COMPILERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_all(options.worker, options.only, options.core, options.skip)
        return
    all_programs()
    results = {name: run_in_processes(name, options.only, options.core) for name in options.compilers}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    if options.failures:
        print(failures(results), end="\n\n")
    print(table(results))


if __name__ == "__main__":
    main()
