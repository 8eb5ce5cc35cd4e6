"""The pictures of the HTML page as SVG text: the graph of steps, the roofline, memory over the steps.

Colours are CSS classes of the page. This module must not know the page around the pictures.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from minicompile.report.document import Kernel, amount, duration
from minicompile.report.records import Roofs, Step

ROW, WIDTH, LEFT, INDENT = 46, 560, 24, 14


def svg(width: float, height: float, label: str, parts: Sequence[str]) -> Markup:
    """One picture."""
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" data-zoom>'
    return Markup("\n".join([head, *parts, "</svg>"]))


def text(x: float, y: float, content: object, style: str = "", anchor: str = "start") -> str:
    """A label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def graph(steps: Sequence[Step]) -> Markup:
    """Steps from top to bottom in the order of execution, boxed by module, with an arc for every value passed on."""
    depth = max((step.module.count(".") + 1 for step in steps if step.module), default=0)
    box_left = LEFT + INDENT * depth + 8
    parts = [cluster(steps, level, box_left) for level in range(depth)]
    written = {(s.graph, s.half, name): row for row, s in enumerate(steps) for name in s.writes}
    for row, step in enumerate(steps):
        for name in step.reads:
            source = written.get((step.graph, step.half, name))
            if source is not None and source < row:
                reach = min(90.0, 10 + 5 * (row - source)) * (row - source > 1)
                top, bottom, right = source * ROW + 38, row * ROW + 10, box_left + WIDTH
                start = right if reach else box_left + 30
                parts.append(f'<path class="edge" d="M{start} {top - 16 * bool(reach)} C{start + reach} {top}, {start + reach} '
                             f'{bottom}, {start} {bottom + 14 * bool(reach)}"><title>{escape(name)}</title></path>')  # fmt: skip
    for row, step in enumerate(steps):
        kind = "extern" if step.kind == "extern" else "fused" if len(step.operators) > 1 else "single"
        where = "; ".join(dict.fromkeys(f"{p.short} {p.text.strip()}" for p in step.lines))
        chips = " · ".join(step.operators)
        took = duration(step.microseconds) if step.microseconds is not None else ""
        parts += [
            f'<g class="{kind}"><title>{escape(where)}</title>',
            f'<rect x="{box_left}" y="{row * ROW + 6}" width="{WIDTH}" height="{ROW - 12}" rx="5"/>',
            text(box_left + 10, row * ROW + 21, f"{step.name}  ({step.half})", "name"),
            text(box_left + 10, row * ROW + 34, chips if len(chips) < 80 else chips[:79] + "…", "small"),
            text(box_left + WIDTH - 10, row * ROW + 21, f"{amount(step.bytes_moved)} {took}", "small", "end"),
            "</g>",
        ]
    return svg(box_left + WIDTH + 100, len(steps) * ROW + 10, "steps in the order of execution", parts)


def cluster(steps: Sequence[Step], level: int, box_left: int) -> str:
    """The boxes around neighbouring steps of one module, at one depth of its path."""
    paths = [".".join(step.module.split(".")[: level + 1]) if step.module.count(".") >= level else "" for step in steps]
    parts, start = [], 0
    for row in range(1, len(paths) + 1):
        if row == len(paths) or paths[row] != paths[start] or steps[row].half != steps[start].half:
            if paths[start]:
                left, height = LEFT + INDENT * level - 12, (row - start) * ROW - 4
                parts.append(f'<rect class="module" x="{left}" y="{start * ROW + 2}" width="{box_left + WIDTH + 8 - left}" '
                             f'height="{height}" rx="7"/>')  # fmt: skip
                name = paths[start].rsplit(".", 1)[-1] if height < 60 else paths[start]
                middle = start * ROW + height / 2
                parts.append(f'<text class="small" transform="translate({left + 10},{middle:.0f}) rotate(-90)" '
                             f'text-anchor="middle">{escape(name)}</text>')  # fmt: skip
            start = row
    return "\n".join(parts)


def roofline(kernels: Sequence[Kernel], roofs: Roofs) -> Markup:
    """Operations per second over operations per byte, both logarithmic, below the roofs of the machine."""
    width, height, left, bottom = 680, 380, 62, 40
    rates = sorted(roofs.flops_per_second.items(), key=lambda item: item[1])
    low_x, high_x = -3.0, 4.0
    high_y = math.log10(rates[-1][1]) + 0.3
    low_y = high_y - 6

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = left + (math.log10(max(intensity, 1e-3)) - low_x) / (high_x - low_x) * (width - left - 10)
        share = (math.log10(max(rate, 1.0)) - low_y) / (high_y - low_y)
        return x, (height - bottom) - min(max(share, 0.0), 1.0) * (height - bottom - 10)

    parts = []
    for power in range(math.ceil(low_y), math.floor(high_y) + 1):
        y = at(1, 10.0**power)[1]
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width}"/>')
        parts.append(text(left - 6, y + 4, amount(10.0**power, ""), "small", "end"))
    for power in range(-3, 5):
        parts.append(text(at(10.0**power, 1)[0], height - bottom + 16, f"{10.0**power:g}", "small", "middle"))
    parts += [text(width / 2, height - 4, "FLOP per byte", "small", "middle"), text(4, 12, "FLOP/s", "small")]
    for name, rate in rates:
        ridge, end = at(rate / roofs.bytes_per_second, rate), at(10**high_x, rate)
        parts.append(f'<path class="roof" d="M{ridge[0]:.1f} {ridge[1]:.1f}H{end[0]:.1f}"/>')
        names = [other for other, same in rates if same == rate]
        if names[-1] == name:
            parts.append(text(end[0], end[1] - 4 if rate == rates[-1][1] else end[1] + 13, ", ".join(names), "small", "end"))
    slope = at(1e-3, 1e-3 * roofs.bytes_per_second), at(rates[-1][1] / roofs.bytes_per_second, rates[-1][1])
    parts.append(f'<path class="roof" d="M{slope[0][0]:.1f} {slope[0][1]:.1f}L{slope[1][0]:.1f} {slope[1][1]:.1f}"/>')
    for kernel in kernels:
        if kernel.flops and kernel.bytes_moved:
            least = sum(step.verdict.least_us for step in kernel.steps if step.verdict)
            measured = roofs.measured and kernel.microseconds
            x, y = at(kernel.flops / kernel.bytes_moved, kernel.flops / ((kernel.microseconds if measured else least) or 1) * 1e6)
            style = "measured" if measured else "expected"
            parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="6" tabindex="0"><title>'
                         f"{escape(kernel.first.name)}: {kernel.bound}</title></circle>")  # fmt: skip
    return svg(width + 14, height, f"roofline of {roofs.device}", parts)


def memory(points: Sequence[Step]) -> Markup:
    """Bytes held by the graph's own buffers, step by step."""
    width, height, left = 680, 200, 62
    highest = max((point.held_bytes for point in points), default=0) or 1
    step = (width - left) / max(len(points), 1)
    parts = [f'<path class="grid" d="M{left} {height - 20}H{width}"/>', text(left - 6, 14, amount(highest), "small", "end")]
    for number, point in enumerate(points):
        tall = point.held_bytes / highest * (height - 30)
        parts.append(f'<rect class="{point.half}" x="{left + number * step:.2f}" y="{height - 20 - tall:.1f}" '
                     f'width="{max(step - 0.5, 0.5):.2f}" height="{tall:.1f}"><title>{escape(point.name)}: '
                     f"{amount(point.held_bytes)}</title></rect>")  # fmt: skip
    parts.append(text(left, height - 5, "steps, forward then backward", "small"))
    return svg(width, height, "memory over the steps", parts)
