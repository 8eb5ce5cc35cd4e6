"""The command line: `minicompile demo`, `minicompile bench`. This module must only parse and delegate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import minicompile
from minicompile.bench.run import COMPILERS, SECTIONS, run_bench
from minicompile.demo.run import SIZES, run_demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is returned."""
    options = parser().parse_args(arguments)
    if options.command == "demo":
        return run_demo(options.size, options.device, options.seconds, options.characters)
    return run_bench(
        options.names,
        json_path=options.json,
        quick=options.quick,
        device=options.device,
        timeout=options.timeout,
        compilers=options.compilers,
    )


def parser() -> argparse.ArgumentParser:
    """The options of every command."""
    top = argparse.ArgumentParser(prog="minicompile", description="A small, readable compiler for PyTorch.")
    top.add_argument("--version", action="version", version=f"minicompile {minicompile.__version__}")
    commands = top.add_subparsers(dest="command", required=True)

    demo = commands.add_parser("demo", help="compile, train and sample a small GPT, beside eager")
    demo.add_argument("--size", choices=sorted(SIZES), help="default: small on the CPU, large on a GPU")
    demo.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    demo.add_argument("--seconds", type=float, default=15.0, help="how long to train (default %(default)s)")
    demo.add_argument("--characters", type=int, default=200, help="how much to sample (default %(default)s)")

    bench = commands.add_parser("bench", help="measure eager, torch.compile and minicompile side by side")
    bench.add_argument(
        "names", nargs="*", metavar="NAME", help=f"sections or cases (default: all): {', '.join(SECTIONS)}"
    )
    bench.add_argument("--json", metavar="FILE", help="also write the figures here")
    bench.add_argument("--quick", action="store_true", help="tiny sizes; runs without a GPU too")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    bench.add_argument("--timeout", type=float, default=120.0, help="seconds for one case (default %(default)s)")
    bench.add_argument(
        "--compilers", default=COMPILERS, help="each with its mode, as in torch:max-autotune (default %(default)s)"
    )
    return top
