"""The benchmark's table: one line per case and figure, one column per compiler."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = (
    "ms",
    "TB/s",
    "fwd_ms",
    "bwd_ms",
    "infer_ms",
    "train_ms",
    "static_ms",
    "dynamic_ms",
    "dynamic/static",
    "launches",
    "infer_launches",
    "train_launches",
    "host_us",
    "entry_us",
    "capture_s",
    "fake_s",
    "peak_gb",
    "kept_gb",
    "step_gb",
    "error",
    "first_s",
    "first_step_s",
)
LOWER_IS_BETTER = {"ms", "static_ms", "dynamic_ms",
                   "fwd_ms", "bwd_ms", "infer_ms", "train_ms", "host_us", "entry_us", "capture_s", "peak_gb", "kept_gb",
                   "step_gb", "launches", "infer_launches", "train_launches"}  # fmt: skip


def print_header(section: str, compilers: Sequence[str]) -> None:
    """The section's name and the columns."""
    print(f"\n== {section}")
    if section == "compile":
        compilers = [f"{name} {state}" for name in compilers if name != "eager" for state in ("cold", "warm")]
    if section != "roofs":
        print(f"{'':<44}" + "".join(f"{name:>22}" for name in compilers) + "   ours against torch", flush=True)


def print_case(job: str, result: dict[str, Any], compilers: Sequence[str]) -> None:
    """Every figure of one case."""
    if job == "roofs":
        for name, value in result["roofs"].items():
            print(f"{name:<44}{value:>22.4g}" if isinstance(value, float) else f"{name}: {value}")
        return
    if job.startswith("compile/"):
        compilers = [f"{name} {state}" for name in compilers if name != "eager" for state in ("cold", "warm")]
    for figure in SHOWN:
        values = [result[name].get(figure) for name in compilers]
        if any(value is not None for value in values):
            cells = "".join(f"{'-' if value is None else f'{value:.4g}':>22}" for value in values)
            print(f"{job + ' ' + figure:<44}{cells}{comparison(figure, result)}", flush=True)
    by_shape = {name: result[name].get("shapes_us", {}) for name in compilers}
    for shape in next(iter(by_shape.values())):
        cells = "".join(f"{by_shape[name][shape]:>22.4g}" if shape in by_shape[name] else f"{'-':>22}" for name in compilers)
        print(f"{job.split('/')[1] + ' ' + shape + ' us':<44}{cells}", flush=True)
    for name in compilers:
        if "failure" in result[name]:
            print(f"{job}: {name} failed: {result[name]['failure']}", flush=True)


def print_means(cases: Mapping[str, dict[str, Any]]) -> None:
    """Geometric means of our speed over networks, against the other compilers, and of what sizes that vary cost."""
    for name in ("torch", "minicompile"):
        varying = [result.get(name, {}).get("dynamic/static") for result in cases.values()]
        slower = [ratio for ratio in varying if ratio]
        if slower:
            print(f"dynamic: {name} takes {statistics.geometric_mean(slower):.3f} times as long for any size as for one "
                  f"(up to {max(slower):.2f})", flush=True)  # fmt: skip
    for other in ("eager", "torch"):
        ratios = [theirs / result["minicompile"]["shapes_us"][shape] for result in cases.values()
                  for shape, theirs in result.get(other, {}).get("shapes_us", {}).items()
                  if shape in result.get("minicompile", {}).get("shapes_us", {})]  # fmt: skip
        if ratios:
            print(f"products: {len(ratios)} shapes, {statistics.geometric_mean(ratios):.3f} times as fast as {other} "
                  f"(from {min(ratios):.2f} to {max(ratios):.2f})", flush=True)  # fmt: skip
    for section in sorted({job.split("/")[0] for job in cases} & {"models", "hf", "timm"}):
        found = [result for job, result in cases.items() if job.split("/")[0] == section]
        for figure in ("infer_ms", "train_ms", "peak_gb", "first_s", "first_step_s"):
            for other in ("eager", "torch"):
                pairs = [(r.get(other, {}).get(figure), r.get("minicompile", {}).get(figure)) for r in found]
                ratios = [theirs / ours for theirs, ours in pairs if theirs and ours]
                if ratios and not (other == "eager" and figure.startswith("first")):
                    print(f"{section}: {figure} of {len(ratios)} networks, {statistics.geometric_mean(ratios):.3f} times as "
                          f"good as {other} (from {min(ratios):.2f} to {max(ratios):.2f})", flush=True)  # fmt: skip


def comparison(figure: str, result: dict[str, Any]) -> str:
    """How many times faster (or smaller) we are than `torch.compile`."""
    theirs, ours = (result.get(name, {}).get(figure) for name in ("torch", "minicompile"))
    if figure not in LOWER_IS_BETTER or not theirs or not ours:
        return ""
    return f"   {theirs / ours:.2f}x"
