"""Why it is fast or not: pure functions from counts, times and roofs to a label, a share and what would help.

This module must not measure or run anything.
"""

import math
from collections.abc import Iterable, Sequence

from minicompile.report.records import Bound, BreakEven, FunctionVerdict, Fusion, Roofs, SizePoint, Step, Verdict

LAUNCH_BOUND = 2.0
"""A kernel with little to do that takes less than this many launch latencies is bound by the launch."""
SHARE_OF_A_ROOF = 0.5
"""A kernel below this share of both its roofs waits for something else: latency."""
OVERHEAD = 1.4
"""Doubling the batch costs less than this factor: overhead."""


def judge_step(step: Step, roofs: Roofs, tf32: bool) -> Verdict:
    """Which roof limits one kernel, and how near it comes."""
    kind = ("tf32" if tf32 else "f32") if step.dtype == "f32" else step.dtype
    rate = roofs.flops_per_second.get(kind, roofs.flops_per_second["vector"])
    if step.matmul is None and "attention" not in step.name and "convolution" not in step.name:
        rate = roofs.flops_per_second["vector"]
    moving = step.bytes_moved / roofs.bytes_per_second * 1e6
    computing = step.flops / rate * 1e6
    least = max(moving, computing, roofs.launch_us)
    roof: Bound = "compute" if computing > moving else "bandwidth"
    at_best = max(moving, computing)
    if step.microseconds is None:
        bound: Bound = "launch" if at_best < roofs.launch_us else roof
        return Verdict(bound, least, None, f"expected {bound}-bound: at least {least:.1f} µs on {roofs.device}")
    share = at_best / step.microseconds if step.microseconds else 0.0
    if at_best < roofs.launch_us and step.microseconds < LAUNCH_BOUND * roofs.launch_us:
        text = f"the smallest kernel takes {roofs.launch_us:.1f} µs"
        return Verdict("launch", least, min(1.0, roofs.launch_us / step.microseconds), text)
    if share < SHARE_OF_A_ROOF:
        return Verdict("latency", least, share, f"reaches {share:.0%} of its {roof} roof: waits, not work")
    attained = (
        f"{step.bytes_moved / step.microseconds / 1e6:.2f} of {roofs.bytes_per_second / 1e12:.2f} TB/s"
        if roof == "bandwidth"
        else f"{step.flops / step.microseconds / 1e6:.0f} of {rate / 1e12:.0f} TFLOP/s"
    )
    return Verdict(roof, least, share, attained)


def judge_function(
    steps: Sequence[Step],
    fusions: Iterable[Fusion],
    call_us: float,
    host_us: float,
    doubled: float | None,
    roofs: Roofs,
) -> FunctionVerdict:
    """What limits the whole function, and the few changes that would help most."""
    times = [step.microseconds for step in steps]
    device_us = sum(t for t in times if t is not None) if any(t is not None for t in times) else None
    shares = dict.fromkeys(("compute", "bandwidth", "latency", "launch"), 0.0)
    for step in steps:
        if step.verdict is not None:
            shares[step.verdict.bound] += step.microseconds or step.verdict.least_us
    bound = max(shares, key=lambda name: shares[name]) if steps else "nothing compiled"
    text = f"most device time is in {bound}-bound kernels"
    if not roofs.measured:
        text = f"on {roofs.device} most device time would be in {bound}-bound kernels"
    gap = (call_us - device_us) if roofs.measured and device_us is not None else 0.0
    overhead = gap > 0.3 * call_us
    if overhead:
        bound, text = "overhead", f"the device waits for the host {gap:.0f} of {call_us:.0f} µs"
    if doubled is not None:
        grows = f"twice the batch takes {doubled:.2f} times as long"
        text += f"; {grows}" + (", which confirms overhead" if doubled < OVERHEAD and overhead else "")
        if doubled < OVERHEAD and not overhead:
            bound, text = "overhead", f"{grows}: the time does not come from the data"
    helps = what_helps(steps, fusions, gap if overhead else 0.0, roofs)
    return FunctionVerdict(bound, text, call_us, device_us, host_us, doubled, tuple(helps))


def what_helps(steps: Sequence[Step], fusions: Iterable[Fusion], gap: float, roofs: Roofs) -> list[str]:
    """The largest possible gains, in µs or bytes, largest first."""
    gains: list[tuple[float, str]] = []
    if gap:
        gains.append((gap, f"{gap:.0f} µs of host gap: mode='reduce-overhead' replays one CUDA graph"))
    for step in steps:
        if step.microseconds is not None and roofs.measured and step.verdict is not None:
            lost = step.microseconds - step.verdict.least_us
            gains.append((lost, f"{lost:.0f} µs between {step.name} and its {step.verdict.bound} roof"))
        if step.matmul is not None and step.matmul.advice:
            gained = (step.microseconds or step.matmul.estimated_us) * 0.05
            gains.append((gained, f"{step.name}: {step.matmul.advice}"))
    for fusion in fusions:
        apart = "depends on one and the other on it" in fusion.reason  # for which nobody can do anything
        if fusion.verdict != "fused" and fusion.bytes_saved and fusion.bytes_saved > 0 and not apart:
            gained = fusion.bytes_saved / roofs.bytes_per_second * 1e6
            gains.append((gained, f"{fusion.bytes_saved:,} bytes if {fusion.what} shared a kernel ({fusion.reason})"))
    merged: dict[str, float] = {}
    for gained, text in gains:
        merged[text] = merged.get(text, 0.0) + gained
    return sorted(merged, key=lambda text: -merged[text])[:3]


def break_even(
    compile_seconds: float, eager_us: float, compiled_us: float, sweep: tuple[SizePoint, ...] = ()
) -> BreakEven:
    """Calls that repay the compile time, and the smallest swept size from which compiled calls are faster."""
    saved = eager_us - compiled_us
    calls = math.ceil(compile_seconds * 1e6 / saved) if saved > 0 else None
    pays_from = None
    for point in sorted(sweep, key=lambda point: -point.size):
        if point.compiled_us >= point.eager_us:
            break
        pays_from = point.size
    return BreakEven(compile_seconds, eager_us, compiled_us, calls, sweep, pays_from)
