"""The command line: `minicompile demo`, `bench`, `explain`, `compare`, `cache`. This module must only parse and delegate."""

import argparse
import pathlib
from collections.abc import Callable, Sequence

import minicompile
from minicompile import config, explain_command
from minicompile.bench.run import COMPILERS, SECTIONS, run_bench
from minicompile.demo.run import SIZES, run_demo
from minicompile.runtime.code_cache import CodeCache


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is returned."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if rest and not getattr(options, "target", "").endswith(".py"):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command in ("explain", "compare"):
        return explain_command.run(options, rest[1:] if rest[:1] == ["--"] else rest)
    given = vars(options)
    commands: dict[str, Callable[..., int]] = {"demo": run_demo, "cache": run_cache, "bench": run_bench}
    return commands[given.pop("command")](**given)


def run_cache(action: str, file: str | None) -> int:
    """Describe, empty, pack or fill the disk cache of this user."""
    settings = config.current()
    cache = CodeCache(settings.cache_directory, settings.cache_megabytes)
    if not cache.usable:
        print(f"{cache.directory} cannot be used: it must be a folder of yours that nobody else may write")
        return 1
    if action in ("export", "import"):
        if file is None:
            print(f"minicompile cache {action} needs a FILE")
            return 2
        work = cache.export_to if action == "export" else cache.import_from
        print(f"{work(pathlib.Path(file))} entries {action}ed; their code runs where they are used")
        return 0
    if action == "clear":
        cache.clear()
    sizes = [(path.relative_to(cache.directory).parts[0], status.st_size) for path, status in cache.entries()]
    print(f"{cache.directory}: {sum(size for _, size in sizes) / 2**20:.1f} of {settings.cache_megabytes} MB")
    for kind in sorted({kind for kind, _ in sizes}):
        found = [size for name, size in sizes if name == kind]
        print(f"  {kind:10} {len(found):6} files {sum(found) / 2**20:9.1f} MB")
    return 0


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
    bench.add_argument("--json", dest="json_path", metavar="FILE", help="also write the figures here")
    bench.add_argument("--quick", action="store_true", help="tiny sizes; runs without a GPU too")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    bench.add_argument("--timeout", type=float, default=120.0, help="seconds for one case (default %(default)s)")
    bench.add_argument(
        "--compilers", default=COMPILERS, help="each with its mode, as in torch:max-autotune (default %(default)s)"
    )

    bench.add_argument("--prefill", action="store_true", help="fill torch.compile's caches first, several cases at once")

    explain_command.add_options(commands)

    cache = commands.add_parser("cache", help="the compiled graphs and kernels on disk")
    cache.add_argument("action", choices=("info", "clear", "export", "import"))
    cache.add_argument("file", nargs="?", metavar="FILE", help="the archive to export to or import from")
    return top
