"""The table of operators in the documentation, from the verdicts of a sweep. Must not run anything."""

from __future__ import annotations

import collections
import datetime
import re
from collections.abc import Iterable, Sequence

from tests.end_to_end.operator_verdict import DTYPES, RANKS, Verdict

FLOATS = ("fp32", "bf16", "fp16")
LOCATION = re.compile(r" at \S+:\d+ in \w+")
EXPLANATION = """# Operators

What `minicompile.compile` makes of every operator in PyTorch's OpInfo database (torch {torch}), written on {date} by
`python -m tests.end_to_end.opinfo_sweep --record FILE --markdown docs/operators.md`. Each operator ran on a few of its
sample inputs, compiled and eager, on the CPU (kernels under Triton's interpreter): values against an fp64 run (error at
most twice eager's plus a few units in the last place; integers and booleans exact; NaN and infinity in place), dtypes,
shapes, strides, shared memory, changed arguments, in-place forms, and gradients (values, not layout) in fp32. Random
operators give eager's numbers under `fallback_random=True`; their own numbers are compared in shape and layout.

- **fused**: every computation is in generated kernels. **fused+extern**: some of it. **extern**: calls of PyTorch's kernels only.
- **views**: nothing is computed. **graph break**: the operator itself runs eagerly, the code around it is compiled.
- **eager**: the graph that holds it is refused, cleanly, and runs eagerly. **slow**: not finished within the sweep's time limit.
- **crash**: a stage fails in a way nobody foresaw; eager takes over, values are right. **wrong**: differs from eager.
- **near**: right as `torch.testing.assert_close` judges, yet a few rounding errors above the rule (another order of summation).
- **not run**: eager refuses the samples, or there are none.

"""


BESIDE = """
The same operators, one or two samples each, through `torch.compile(backend="aot_eager", dynamic=False)`, which stands for its capture and its graphs
(its kernels there are eager's own, so that **right** says nothing of fusion; Inductor's kernels were not run):
"""


def markdown(verdicts: Sequence[Verdict], torch_version: str, beside: Sequence[Verdict] = ()) -> str:
    """The page: totals by dtype, those of `torch.compile` beside them, then a row for each operator and outcome."""
    reference = [BESIDE, *totals(beside)] if beside else []
    lines = [EXPLANATION.format(torch=torch_version, date=datetime.date.today()), *totals(verdicts), *errors(verdicts), *reference, "", "| operator | dtypes | outcome | why not (all) fused |", "|---|---|---|---|"]
    by_operator: dict[str, list[Verdict]] = collections.defaultdict(list)
    for verdict in verdicts:
        by_operator[verdict.operator].append(verdict)
    for name in sorted(by_operator):
        lines.extend(rows(name, by_operator[name]))
    return "\n".join(lines) + "\n"


def totals(verdicts: Sequence[Verdict]) -> list[str]:
    """How many operators came to what, by dtype."""
    counts = collections.Counter((verdict.kind, verdict.dtype) for verdict in verdicts)
    dtypes = [name for name in DTYPES if any(verdict.dtype == name for verdict in verdicts)]
    kinds = [kind for kind in (*RANKS, "not run") if any(verdict.kind == kind for verdict in verdicts)]
    lines = [f"| outcome | {' | '.join(dtypes)} |", f"|---|{'---:|' * len(dtypes)}"]
    lines += [f"| {kind} | {' | '.join(str(counts[kind, dtype]) for dtype in dtypes)} |" for kind in kinds]
    sums = [sum(counts[kind, dtype] for kind in kinds) for dtype in dtypes]
    return [*lines, f"| all | {' | '.join(map(str, sums))} |"]


def errors(verdicts: Sequence[Verdict]) -> list[str]:
    """How far from fp64 the compiled operators are, in units of eager's distance."""
    lines = ["", "The largest error against fp64 over eager's largest (a rounding of the result added to both), operator by operator:", "",
             "| | " + " | ".join(FLOATS) + " |", f"|---|{'---:|' * len(FLOATS)}"]  # fmt: skip
    ratios = {dtype: sorted(v.ratio for v in verdicts if v.dtype == dtype and v.ratio and not v.random) for dtype in FLOATS}
    for label, share in (("median", 0.5), ("99 of 100 below", 0.99), ("worst", 1.0)):
        found = [f"{values[min(int(share * len(values)), len(values) - 1)]:.2f}" if values else "" for values in ratios.values()]
        lines.append(f"| {label} | {' | '.join(found)} |")
    return lines


def rows(name: str, verdicts: Iterable[Verdict]) -> list[str]:
    """The rows of one operator: dtypes with the same outcome for the same reasons share one."""
    grouped: dict[tuple[str, str, bool], list[str]] = collections.defaultdict(list)
    for verdict in verdicts:
        grouped[verdict.kind, cell(verdict), verdict.random].append(verdict.dtype)
    return [
        f"| `{name}` | {', '.join(sorted(dtypes, key=[*DTYPES].index))} | {kind}{' (random)' if random else ''} | {why} |"
        for (kind, why, random), dtypes in grouped.items()
    ]


def cell(verdict: Verdict) -> str:
    """The reasons, short and safe inside a table."""
    short = dict.fromkeys(shortened(reason) for reason in verdict.reasons)
    shown = [*short][:6] + ([f"and {len(short) - 6} more"] if len(short) > 6 else [])
    return "; ".join(shown).replace("|", "\\|")


def shortened(reason: str) -> str:
    """A reason without what every reader knows."""
    reason = LOCATION.sub("", reason)
    operator, _, why = reason.partition(": ")
    return operator if why in ("no rule for this operator", "a matrix product") else reason[:160]
