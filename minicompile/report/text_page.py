"""The explanation as a page that fits a terminal. This module must not compute anything but sums and widths."""

from __future__ import annotations

import collections
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from minicompile.errors import Location
from minicompile.report.accuracy import BUCKETS
from minicompile.report.records import Accuracy, Step

MANY = 8
INTERPRETER = "under Triton's interpreter"


def amount(count: float, unit: str = "B") -> str:
    """`12.3 MB`; powers of a thousand."""
    for prefix in ("", "k", "M", "G"):
        if abs(count) < 1000:
            return f"{count:.3g} {prefix}{unit}"
        count /= 1000
    return f"{count:.3g} T{unit}"


def duration(microseconds: float | None) -> str:
    """`12.3 µs`."""
    if microseconds is None:
        return "-"
    for limit, factor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if microseconds < limit:
            return f"{microseconds / factor:.3g} {unit}"
    return f"{microseconds / 1e6:.3g} s"


def count_of(count: int, noun: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def place(location: Location | None) -> str:
    """`file.py:12 in forward`, without the folder."""
    if location is None:
        return ""
    inside = f" in {location.function}" if location.function else ""
    return f"{location.file.rsplit('/', 1)[-1]}:{location.line}{inside}"


class Kernel:
    """One row of the kernel table: every step that runs the same kernel."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps, self.first = steps, steps[0]
        self.launches = len(steps)
        self.bytes_moved = sum(step.bytes_moved for step in steps)
        self.flops = sum(step.flops for step in steps)
        self.microseconds = sum(s.microseconds for s in steps if s.microseconds is not None) if self.timed else None

    @property
    def timed(self) -> bool:
        """Whether any of the steps has a time."""
        return any(step.microseconds is not None for step in self.steps)

    @property
    def bound(self) -> str:
        """The label of most of the steps, with the mean share of its roof."""
        labels = [step.verdict.bound for step in self.steps if step.verdict]
        shares = [step.verdict.share for step in self.steps if step.verdict and step.verdict.share is not None]
        label = max(labels, key=labels.count, default="")
        return f"{label} {sum(shares) / len(shares):.0%}" if shares else label


def kernel_rows(steps: Iterable[Step]) -> list[Kernel]:
    """Steps by kernel, longest time (or most bytes) first."""
    groups: dict[Any, list[Step]] = collections.defaultdict(list)
    for step in steps:
        shape = (step.matmul.m, step.matmul.n, step.matmul.k) if step.matmul else ()
        groups[step.graph, step.half, step.kind, step.name, shape].append(step)
    return sorted((Kernel(group) for group in groups.values()), key=lambda k: (-(k.microseconds or 0), -k.bytes_moved))


def page(explanation: Any, width: int | None = None) -> str:
    """The whole page."""
    return "\n".join(Page(explanation, width or shutil.get_terminal_size((80, 24)).columns).lines()) + "\n"


class Page:
    """Lines of one page at a given width."""

    def __init__(self, explanation: Any, width: int) -> None:
        self.it, self.width = explanation, max(width, 60)

    def lines(self) -> Iterator[str]:
        """Every section, the verdict first."""
        it = self.it
        yield f"{it.function} on {it.device}"
        yield "=" * len(f"{it.function} on {it.device}")
        for part in (self.verdict, self.capture, self.kernels, self.products, self.ledger, self.memory, self.costs,
                     self.certificate):  # fmt: skip
            yield from part()
        for note in it.notes:
            yield from self.wrapped(f"Note: {note}.", "      ")

    def wrapped(self, text: str, indent: str = "  ", first: str = "") -> list[str]:
        """A paragraph."""
        return textwrap.wrap(text, self.width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)

    def section(self, title: str) -> Iterator[str]:
        """A heading."""
        yield ""
        yield f"-- {title} " + "-" * max(0, self.width - len(title) - 4)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Aligned columns; the first is cut so that a row fits the width."""
        cells = [header, *rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        widths[0] = max(12, min(widths[0], self.width - sum(widths[1:]) - 2 * (len(widths) - 1)))
        for row in cells:
            name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
            rest = "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:]))
            yield f"{name:<{widths[0]}}{rest}".rstrip()

    def verdict(self) -> Iterator[str]:
        """What limits the function and what would help."""
        verdict, even, it = self.it.verdict, self.it.break_even, self.it
        yield from self.wrapped(f"{verdict.bound}-bound: {verdict.text}.", first="")
        parts = f"kernels {duration(verdict.device_us)}, host {duration(verdict.host_us)}"
        repaid = f", repaid after {even.calls:,} calls" if even.calls else ", which calls of this size do not repay"
        yield from self.wrapped(
            f"eager {duration(even.eager_us)}, compiled {duration(even.compiled_us)} a call "
            f"({parts if it.roofs.measured else INTERPRETER}); "
            f"compiling took {even.compile_seconds:.2f} s{repaid}."
        )
        if even.sweep:
            sizes = ", ".join(f"{p.size}: {duration(p.eager_us)} / {duration(p.compiled_us)}" for p in even.sweep)
            pays = f"compiling pays from size {even.pays_from}" if even.pays_from else "compiling pays at none of these"
            yield from self.wrapped(f"By batch size, eager / compiled: {sizes}; {pays}.")
        for number, text in enumerate(verdict.helps, 1):
            yield from self.wrapped(f"{number}. {text}", "   ", "" if number > 1 else "")

    def capture(self) -> Iterator[str]:
        """Graphs, breaks, guards, recompiles."""
        it = self.it
        yield from self.section(
            f"Capture: {count_of(len(it.graphs), 'graph')}, {count_of(len(it.breaks), 'break')}, "
            f"{count_of(len(it.guards), 'guard')}"
        )
        for graph in it.graphs[:MANY]:
            yield (f"{graph.name}: {count_of(graph.operations, 'operation')}, {count_of(graph.inputs, 'input')}; "
                   f"{place(graph.location)}")  # fmt: skip
            for fallback in graph.fallbacks:
                yield from self.wrapped(f"runs eagerly: {fallback}", "    ", "  ")
        for fallback in it.fallbacks:
            yield from self.wrapped(f"left to eager: {fallback}", "    ", "  ")
        for record in it.breaks:
            yield from self.wrapped(f"break at {place(record.location)}: {record.kind}: {record.reason}")
            if record.location is not None and record.location.text:
                yield f"    {record.location.text.strip()}"[: self.width]
            if record.patch is not None and record.patch.verified:
                yield from self.wrapped("captured again with this change, the break is gone and the outputs agree"
                                        + (f" ({record.patch.note})" if record.patch.note else "") + ":")  # fmt: skip
                yield from (f"    {line}" for line in record.patch.diff.splitlines()[2:])
            elif record.hint:
                yield from self.wrapped(f"what to do: {record.hint}", "    ", "  ")
        for record in it.recompiles:
            yield from self.wrapped(f"recompiled {record.function}: {record.sentence}; was {record.old}, is {record.new}"
                                    f" ({record.seconds:.2f} s); to avoid it: {record.annotation}")  # fmt: skip
        if it.guards:
            costly = sorted((g for g in it.guards if g.nanoseconds is not None), key=lambda g: -g.nanoseconds)
            total = f"all guards of the entry: {it.guards_ns:,.0f} ns; " if it.guards_ns is not None else ""
            yield from self.wrapped(total + "the dearest, each alone:")
            for guard in costly[:3]:
                text = f"{guard.nanoseconds:6,.0f} ns  {guard.sentence}"
                text += f" ({place(guard.location)})" if guard.location else ""
                yield from self.wrapped(text, "             ", "  ")

    def kernels(self) -> Iterator[str]:
        """The kernel table."""
        rows = kernel_rows(self.it.steps)
        kernels = sum(step.kind == "kernel" for step in self.it.steps)
        yield from self.section(
            f"Steps: {count_of(kernels, 'kernel launch')}, {count_of(len(self.it.steps) - kernels, 'extern call')}"
        )
        header = ("kernel", "runs", "bytes", "FLOP", "regs", "time", "bound, of roof")
        cells = []
        for row in rows[: 3 * MANY]:
            registers = "" if row.first.registers is None else str(row.first.registers)
            registers += f"+{row.first.spilled_bytes}B" if row.first.spilled_bytes else ""
            name = row.first.name + (" (extern)" if row.first.kind == "extern" else "")
            cells.append((name, str(row.launches), amount(row.bytes_moved), amount(row.flops, ""), registers,
                          duration(row.microseconds), row.bound))  # fmt: skip
        yield from self.table(header, cells)
        if len(rows) > 3 * MANY:
            yield f"and {len(rows) - 3 * MANY} more"
        for reason in dict.fromkeys(step.reason for step in self.it.steps if step.kind == "extern" and step.reason):
            yield from self.wrapped(f"extern: {reason}")

    def products(self) -> Iterator[str]:
        """Matrix products that lose to their shape."""
        shapes = dict.fromkeys(s.matmul for s in self.it.steps if s.matmul and (s.matmul.advice or not s.matmul.aligned))
        if shapes:
            yield from self.section("Matrix products")
        for shape in list(shapes)[:MANY]:
            size = f"{shape.batch}x" * (shape.batch > 1) + f"{shape.m}x{shape.n}x{shape.k}"
            yield from self.wrapped(
                f"{size}: tiles of {shape.tile[0]}x{shape.tile[1]} lose {shape.tile_loss:.0%}, the last wave "
                f"{shape.wave_loss:.0%}" + ("" if shape.aligned else ", rows are not multiples of 16 bytes")
                + (f"; {shape.advice}" if shape.advice else "")
            )  # fmt: skip

    def ledger(self) -> Iterator[str]:
        """Fusions done and the dearest refused."""
        fused = [f for f in self.it.fusions if f.verdict == "fused"]
        apart = [f for f in self.it.fusions if f.verdict != "fused"]
        yield from self.section(f"Fusion: {count_of(len(fused), 'fused kernel')}, {count_of(len(apart), 'pair')} apart")
        alike = collections.Counter(entry.reason for entry in fused)
        for joined, count in list(alike.items())[:MANY]:
            yield from self.wrapped(f"fused{f' {count} times' if count > 1 else ''}: {joined}")
        for entry in apart[: MANY // 2]:
            saved = f" ({amount(entry.bytes_saved)} more traffic)" if entry.bytes_saved else ""
            yield from self.wrapped(f"{entry.verdict}: {entry.what}: {entry.reason}{saved}")
        for pattern in self.it.patterns:
            yield from self.wrapped(pattern)

    def memory(self) -> Iterator[str]:
        """Saved, recomputed, peak."""
        saved = sum(entry.num_bytes for entry in self.it.kept if entry.action == "saved")
        again = sum(entry.num_bytes for entry in self.it.kept if entry.action == "recomputed")
        highest = max(self.it.memory, key=lambda point: point.num_bytes, default=None)
        yield from self.section("Memory")
        if self.it.kept:
            yield f"saved for the backward {amount(saved)}, recomputed instead {amount(again)}"
        if highest is not None:
            yield from self.wrapped(f"peak of the graph's own buffers {amount(highest.num_bytes)}, in {highest.step} "
                                    f"({highest.graph} {highest.half})")  # fmt: skip
        if self.it.peak_bytes is not None:
            yield f"peak of the whole step, measured: {amount(self.it.peak_bytes)}"

    def costs(self) -> Iterator[str]:
        """Compile time by stage."""
        yield from self.section("Compile time")
        stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in self.it.compile_seconds.items())
        yield from self.wrapped(f"first call {self.it.first_call_seconds:.2f} s; by stage in seconds: {stages}")

    def certificate(self) -> Iterator[str]:
        """Errors against fp64."""
        certificate = self.it.accuracy
        yield from self.section("Accuracy against fp64, in ulp")
        shown = sorted(certificate.outputs, key=lambda entry: (entry.name.startswith("gradient"), -entry.compiled.mean_ulp))
        if shown:
            yield from self.table(
                ("value", "dtype", "compiled", "worst", "eager", "worst", "nearer"), map(self.judged, shown[:MANY])
            )
        if len(shown) > MANY:
            nearer = collections.Counter(entry.nearer for entry in shown)
            counts = ", ".join(f"{who} {count}" for who, count in nearer.items())
            yield from self.wrapped(f"nearer to fp64, of {len(shown)} values: {counts}")
        for entry in sorted(certificate.outputs, key=lambda entry: -entry.compiled.worst_ulp)[:1]:
            buckets = zip((*(f"<={edge:g}" for edge in BUCKETS), "more"), entry.compiled.histogram)
            spread = ", ".join(f"{edge}: {count:,}" for edge, count in buckets if count)
            yield from self.wrapped(f"{entry.name} is worst at {list(entry.compiled.worst_index)}; elements by error: {spread}")
        farther = [entry for entry in certificate.kernels if entry.nearer == "eager"]
        if certificate.kernels:
            yield from self.wrapped(f"{len(certificate.kernels)} buffers of kernels judged, {len(farther)} farther than eager's")
        if certificate.note:
            yield from self.wrapped(certificate.note)

    @staticmethod
    def judged(entry: Accuracy) -> tuple[str, ...]:
        """One row."""
        figures = (entry.compiled.mean_ulp, entry.compiled.worst_ulp, entry.eager.mean_ulp, entry.eager.worst_ulp)
        shown = [f"{figure:.3g}" for figure in figures]
        return entry.name, entry.dtype, *shown, entry.nearer
