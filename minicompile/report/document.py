"""What an explanation says, as sections of paragraphs, code and tables; the terminal and the HTML page both show these.

This module must not know how a section is laid out.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from minicompile.errors import Location
from minicompile.report.accuracy import BUCKETS
from minicompile.report.records import Step


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number of a table, as it is sorted and as it is shown."""

    value: float
    shown: str

    def __str__(self) -> str:
        return self.shown


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a header, dearest first; a terminal shows as many rows and columns as fit."""

    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Section:
    """One part of the report; `blocks` are paragraphs (`str`), code (`list` of lines) and tables."""

    title: str
    heading: str
    blocks: list[Any]


def scaled(value: float | None, units: Sequence[tuple[float, str]]) -> Cell:
    """A number in the largest unit that leaves at least one before the point."""
    if value is None:
        return Cell(0.0, "-")
    factor, unit = next(((f, u) for f, u in reversed(units) if abs(value) >= f), units[0])
    return Cell(value, f"{value / factor:.3g} {unit}".rstrip())


def amount(count: float | None, unit: str = "B") -> Cell:
    """`12.3 MB`; powers of a thousand."""
    return scaled(count, [(1000.0**power, f"{prefix}{unit}") for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))])


def duration(microseconds: float | None) -> Cell:
    """`12.3 µs`."""
    return scaled(microseconds, [(1.0, "µs"), (1e3, "ms"), (1e6, "s")])


def number(value: float | None, form: str = "{:,.0f}") -> Cell:
    """A plain number."""
    return Cell(0.0, "-") if value is None else Cell(value, form.format(value))


def count_of(count: int, noun: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def place(location: Location | None) -> str:
    """`file.py:12 in forward`, without the folder."""
    return "" if location is None else location.short + (f" in {location.function}" if location.function else "")


class Kernel:
    """Every step that runs the same kernel."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps, self.first = steps, steps[0]
        times = [step.microseconds for step in steps if step.microseconds is not None]
        self.microseconds = sum(times) if times else None
        self.bytes_moved, self.flops = sum(s.bytes_moved for s in steps), sum(s.flops for s in steps)
        labels = [step.verdict.bound for step in steps if step.verdict]
        shares = [step.verdict.share for step in steps if step.verdict and step.verdict.share is not None]
        self.bound = max(labels, key=labels.count, default="") + (f" {sum(shares) / len(shares):.0%}" if shares else "")

    def row(self) -> tuple[Any, ...]:
        """The row of the table of kernels."""
        spilled = f"+{self.first.spilled_bytes} B" if self.first.spilled_bytes else ""
        registers = "-" if self.first.registers is None else f"{self.first.registers}{spilled}"
        return (
            self.first.name + (" (extern)" if self.first.kind == "extern" else ""), number(len(self.steps)),
            amount(self.bytes_moved), amount(self.flops, ""), duration(self.microseconds), self.bound, registers,
            self.first.half, self.first.module,
        )  # fmt: skip


def kernels_of(steps: Iterable[Step]) -> list[Kernel]:
    """Steps by kernel, longest time (or most bytes) first."""
    groups: dict[Any, list[Step]] = collections.defaultdict(list)
    for step in steps:
        groups[step.graph, step.half, step.kind, step.name].append(step)
    return sorted(map(Kernel, groups.values()), key=lambda k: (-(k.microseconds or 0), -k.bytes_moved))


def sections(it: Any) -> list[Section]:
    """The whole report in order."""
    return [make(it) for make in (verdict, capture, guards, steps, fusion, memory, accuracy)]


def verdict(it: Any) -> Section:
    """What limits the function, what would help, when compiling pays."""
    judged, even = it.verdict, it.break_even
    where = f"kernels {duration(judged.device_us)}, host {duration(judged.host_us)}"
    repaid = f"repaid after {even.calls:,} calls" if even.calls else "which calls of this size do not repay"
    blocks: list[Any] = [
        f"{judged.bound}-bound: {judged.text}.",
        f"eager {duration(even.eager_us)}, compiled {duration(even.compiled_us)} a call "
        f"({where if it.roofs.measured else INTERPRETED}); compiling took {even.compile_seconds:.2f} s, {repaid}.",
        *(f"{place}. {text}" for place, text in enumerate(judged.helps, 1)),
    ]
    if even.sweep:
        pays = f"from size {even.pays_from}" if even.pays_from else "at none of these sizes"
        rows = [(number(p.size), duration(p.eager_us), duration(p.compiled_us)) for p in even.sweep]
        blocks += [f"Compiling pays {pays} of the first dimension:", Table(("size", "eager", "compiled"), rows)]
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in it.compile_seconds.items())
    blocks.append(f"First call {it.first_call_seconds:.2f} s; compiling by stage, in seconds: {stages}.")
    return Section("Verdict", f"{it.function} on {it.device}", [*blocks, *(f"Note: {note}." for note in it.notes)])


INTERPRETED = "under Triton's interpreter"


def capture(it: Any) -> Section:
    """Graphs, breaks, recompiles, what is left to eager."""
    blocks: list[Any] = [
        f"{g.name}: {count_of(g.operations, 'operation')}, {count_of(g.inputs, 'input')}; {place(g.location)}"
        + "".join(f"; runs eagerly: {reason}" for reason in g.fallbacks)
        for g in it.graphs
    ]
    blocks += [f"Left to eager: {text}" for text in it.fallbacks]
    shown: set[str] = set()
    for record in it.breaks:
        callers = "".join(f", called at {place(caller)}" for caller in reversed(record.callers))
        blocks.append(f"Break at {place(record.location)}{callers}: {record.kind}: {record.reason}")
        blocks.append([record.location.text.strip()] if record.location is not None else [])
        if record.patch is not None and record.patch.verified and record.patch.diff in shown:
            blocks.append("The change above removes this break, too.")
        elif record.patch is not None and record.patch.verified:
            shown.add(record.patch.diff)
            note = f" ({record.patch.note})" if record.patch.note else ""
            blocks.append(f"Captured again with this change, the break is gone and the outputs agree{note}:")
            blocks.append(record.patch.diff.splitlines()[2:])
        elif record.hint:
            blocks.append(f"What to do: {record.hint}")
    blocks += [f"Recompiled: {r.what}. To avoid it: {r.annotation}" for r in it.recompiles]
    return Section("Capture", f"{count_of(len(it.graphs), 'graph')}, {count_of(len(it.breaks), 'break')}", blocks)


def guards(it: Any) -> Section:
    """What the compiled code depends on, dearest first."""
    total = f", {it.guards_ns:,.0f} ns for those of the entry together" if it.guards_ns is not None else ""
    ordered = sorted(it.guards, key=lambda guard: -(guard.nanoseconds or 0.0))
    rows = [(guard.sentence, number(guard.nanoseconds), place(guard.location)) for guard in ordered]
    return Section("Guards", f"{count_of(len(rows), 'guard')}{total}", [Table(("guard", "ns alone", "needed at"), rows)])


def steps(it: Any) -> Section:
    """Kernels and extern calls, and products that lose to their shape."""
    kernels = sum(step.kind == "kernel" for step in it.steps)
    header = ("kernel", "runs", "bytes", "FLOP", "time", "bound", "registers", "half", "module")
    blocks: list[Any] = [Table(header, [kernel.row() for kernel in kernels_of(it.steps)])]
    reasons = dict.fromkeys(step.reason for step in it.steps if step.kind == "extern" and step.reason)
    blocks += [f"extern because: {reason}" for reason in reasons]
    for shape in dict.fromkeys(step.matmul for step in it.steps if step.matmul and step.matmul.advice):
        rows = "" if shape.aligned else ", rows are not multiples of 16 bytes"
        blocks.append(
            f"product {shape}: tiles of {shape.tile[0]}x{shape.tile[1]} pad {shape.tile_loss:.0%}, the last wave idles "
            f"{shape.wave_loss:.0%}{rows}; {shape.advice}"
        )
    externs = count_of(len(it.steps) - kernels, "extern call")
    return Section("Kernels", f"{count_of(kernels, 'kernel launch')}, {externs}", blocks)


def fusion(it: Any) -> Section:
    """The ledger: pairs that stay apart, dearest first, then what shares a kernel."""
    alike = collections.Counter((f.verdict, f.what, f.reason, f.bytes_saved, f.half) for f in it.fusions)
    rows = [
        (what + (f", {count} times" if count > 1 else ""), kind, amount(saved), reason, half)
        for (kind, what, reason, saved, half), count in alike.items()
    ]
    fused = sum(entry.verdict == "fused" for entry in it.fusions)
    table = Table(("what", "verdict", "bytes more", "why", "half"), sorted(rows, key=lambda row: -row[2].value))
    heading = f"{count_of(fused, 'fused kernel')}, {count_of(len(it.fusions) - fused, 'pair')} apart"
    return Section("Fusion", heading, [table, *it.patterns])


def memory(it: Any) -> Section:
    """Saved, recomputed, peak."""
    saved, again = (sum(entry.num_bytes for entry in kept) for kept in (it.saved, it.recomputed))
    highest = max(it.steps, key=lambda step: step.held_bytes, default=None)
    blocks: list[Any] = []
    if highest is not None:
        held = amount(highest.held_bytes)
        blocks.append(f"Peak of the graph's own buffers {held}, in {highest.name} ({highest.graph} {highest.half})")
    if it.peak_bytes is not None:
        blocks.append(f"Peak of the whole step, measured: {amount(it.peak_bytes)}")
    alike = collections.Counter(
        (re.sub(r"(_default|_[A-Z]\w*)?(_\d+)?$", "", e.name), e.num_bytes, action, place(e.location), e.reason)
        for action, kept in (("saved", it.saved), ("recomputed", it.recomputed)) for e in kept
    )  # fmt: skip
    rows = [(name + (f", {n} times" if n > 1 else ""), amount(size * n), *rest) for (name, size, *rest), n in alike.items()]
    rows.sort(key=lambda row: -row[1].value)
    blocks += [Table(("kept for the backward", "bytes", "how", "made at", "why"), rows)] if rows else []
    return Section("Memory", f"{amount(saved)} saved for the backward, {amount(again)} recomputed", blocks)


def accuracy(it: Any) -> Section:
    """Errors against fp64, in units in the last place."""
    certificate = it.accuracy
    header = ("value", "compiled", "worst", "eager", "worst", "nearer", "worst at", "kernel",
              *(f"<={edge:g}" for edge in BUCKETS), "more")  # fmt: skip
    figure = functools.partial(number, form="{:.3g}")
    rows = [
        (f"{e.name} {e.dtype}", figure(e.compiled.mean_ulp), figure(e.compiled.worst_ulp), figure(e.eager.mean_ulp),
         figure(e.eager.worst_ulp), e.nearer, str(list(e.compiled.worst_index)), e.kernel, *e.compiled.histogram)
        for e in (*certificate.outputs, *certificate.kernels)
    ]  # fmt: skip
    nearer = collections.Counter(entry.nearer for entry in (*certificate.outputs, *certificate.kernels))
    heading = "ulp against fp64; nearer: " + ", ".join(f"{who} {n}" for who, n in nearer.items())
    return Section("Accuracy", heading, [Table(header, rows), *filter(None, [certificate.note])])
