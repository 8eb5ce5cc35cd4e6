"""The object that `minicompile.explain` returns: every record as data, printed as a page, saved as JSON or HTML."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from minicompile.report import html_page, text_page
from minicompile.report.records import (
    BreakEven,
    BreakSummary,
    Certificate,
    FunctionVerdict,
    Fusion,
    GraphSummary,
    GuardCost,
    Kept,
    MemoryPoint,
    RecompileSummary,
    Roofs,
    Step,
)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What was done with one function, and why it is fast or not.

    Attributes:
        function, device: what was explained, where it ran.
        graphs, breaks, guards, recompiles, fallbacks: what capture did; `guards_ns`: all guards of the entry together.
        kept: what the forward saves and the backward recomputes.
        steps: every kernel and extern call in order, timed and judged.
        fusions: the ledger; patterns: attention found or not.
        compile_seconds: by stage; first_call_seconds: the whole first call, backward included.
        memory: bytes of the graph's own buffers over the steps; peak_bytes: measured by the allocator, on a GPU.
        roofs, verdict, break_even, accuracy: the judgement.
        notes: what could not be found out, and why.
        files: the user's source files that occur, by name.
    """

    function: str
    device: str
    graphs: tuple[GraphSummary, ...]
    breaks: tuple[BreakSummary, ...]
    guards: tuple[GuardCost, ...]
    guards_ns: float | None
    recompiles: tuple[RecompileSummary, ...]
    fallbacks: tuple[str, ...]
    kept: tuple[Kept, ...]
    steps: tuple[Step, ...]
    fusions: tuple[Fusion, ...]
    patterns: tuple[str, ...]
    compile_seconds: dict[str, float]
    first_call_seconds: float
    memory: tuple[MemoryPoint, ...]
    peak_bytes: int | None
    roofs: Roofs
    verdict: FunctionVerdict
    break_even: BreakEven
    accuracy: Certificate
    notes: tuple[str, ...] = ()
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return text_page.page(self)

    def to_json(self) -> str:
        """Every record as JSON."""
        return json.dumps(self.as_dict(), indent=1)

    def as_dict(self) -> dict[str, Any]:
        """Every record as dictionaries and lists."""
        return dataclasses.asdict(self)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write one self-contained HTML page, or JSON if the name ends so; returns the path."""
        target = pathlib.Path(path)
        target.write_text(self.to_json() if target.suffix == ".json" else html_page.page(self), encoding="utf-8")
        return target
