"""Runs random programs by the thousand: `python -m tests.random_programs --seeds 0:1000 --compiler capture`.

Each failure is printed, shrunk to the statements that it needs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

from tests.conformance.compilers import STRICT, compiler
from tests.random_programs.running import differences, shrunk, written
from tests.random_programs.writer import lines


def main() -> int:
    """Run the seeds asked for; print what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST")
    parser.add_argument("--compiler", default="capture", choices=STRICT)
    parser.add_argument("--vocabulary", default="language", choices=["language", "operators"])
    parser.add_argument("--length", type=int, default=14)
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--show", action="store_true", help="print every program")
    chosen = parser.parse_args()
    first, last = (int(part) for part in chosen.seeds.split(":"))
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    failed = 0
    for seed in range(first, last):
        statements = written(seed, chosen.vocabulary, chosen.length)
        if chosen.show:
            print(f"=== seed {seed}\n" + "\n".join(lines(statements, 1)), flush=True)
        with compiler(chosen.compiler) as compile:
            found = differences(statements, seed, chosen.vocabulary, compile)
            if not found:
                continue
            failed += 1
            if chosen.shrink:
                statements = shrunk(
                    statements, lambda given: bool(differences(given, seed, chosen.vocabulary, compile))
                )
                found = differences(statements, seed, chosen.vocabulary, compile)
        print(f"=== seed {seed}\n" + "\n".join(lines(statements, 1)) + "\n--- " + "\n--- ".join(found[:4]), flush=True)
    print(f"{last - first} programs, {failed} differ", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
