"""Every operator of PyTorch's OpInfo database through the whole compiler.

    python -m tests.end_to_end.opinfo_sweep [--ops add,softmax] [--dtypes fp32,bf16] [--samples 4] [--seconds 30]
        [--slice 0/8] [--device cuda] [--record FILE] [--markdown docs/operators.md] [--limit 20] [--torch] [--verbose]

Prints every operator that is wrong, crashes, or runs in eager. `--record` appends verdicts to a JSON-lines file;
`--markdown` writes the table of such a file (with `--ops none` without running anything).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
import time
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.end_to_end.operator_table import markdown
from tests.end_to_end.operator_verdict import DTYPES, Verdict, full_name, judge


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="names, with commas; all by default")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=30, help="time limit for one operator and dtype")
    parser.add_argument("--limit", type=int, default=None, help="stop after so many operators")
    parser.add_argument("--device", default="cpu", help="cpu, whose kernels run in Triton's interpreter, or cuda")
    parser.add_argument("--slice", default="0/1", help="every n-th operator")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--torch", action="store_true", help="judge torch.compile(backend='aot_eager') instead")
    parser.add_argument("--torch-record", type=pathlib.Path, help="with --markdown: such a run's record, for the totals")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    verdicts = sweep(given)
    if given.markdown is not None:
        beside = recorded(given.torch_record)
        given.markdown.write_text(markdown(recorded(given.record) or verdicts, torch.__version__.partition("+")[0], beside))
    return 1 if any(verdict.kind in ("wrong", "crash") for verdict in verdicts) else 0


def sweep(given: argparse.Namespace) -> list[Verdict]:
    """Judge the chosen operators, printing and recording as it goes."""
    start, verdicts = time.time(), []
    names = [name for name in given.ops.split(",") if name]
    part, parts = map(int, given.slice.split("/"))
    chosen = [op for op in op_db if not names or op.name in names or full_name(op) in names][part::parts][: given.limit]
    done = {(verdict.operator, verdict.dtype) for verdict in recorded(given.record)}
    for op in chosen:
        for dtype_name in given.dtypes.split(","):
            if DTYPES[dtype_name] not in op.supported_dtypes(given.device) or (full_name(op), dtype_name) in done:
                continue
            verdict = judge(op, dtype_name, given.samples, given.seconds, given.torch, given.device)
            verdicts.append(verdict)
            show(verdict, given.verbose)
            if given.record is not None:
                with given.record.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
    counts = collections.Counter(verdict.kind for verdict in verdicts)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()), f"in {time.time() - start:.0f} s")
    return verdicts


def recorded(path: pathlib.Path | None) -> list[Verdict]:
    """The verdicts in a file: a sweep that was cut off goes on after them."""
    if path is None or not path.exists():
        return []
    return [Verdict(**json.loads(line)) for line in path.read_text().splitlines()]


def show(verdict: Verdict, verbose: bool) -> None:
    """Print a verdict worth looking at."""
    if verbose or verdict.kind in ("wrong", "crash", "slow", "eager", "graph break", "not run"):
        print(f"{verdict.kind:12} {verdict.operator} {verdict.dtype}: {' | '.join(verdict.reasons)[:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
