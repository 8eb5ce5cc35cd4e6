"""The object that `minicompile.explain` returns: every record as data, printed as a page, saved as JSON or HTML."""

import dataclasses
import json
import pathlib

from minicompile.ir.graph import ForwardValue
from minicompile.report import document, html_page, records, text_page


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What was done with one function, and why it is fast or not.

    Attributes:
        function, device: what was explained, where it ran.
        graphs, breaks, guards, recompiles, fallbacks: what capture did; `guards_ns`: all guards of the entry together.
        saved, recomputed: what the forward keeps for the backward, and what the backward computes again.
        steps: every kernel and extern call in order, timed and judged.
        fusions: the ledger; patterns: attention found or not.
        compile_seconds: by stage; first_call_seconds: the whole first call, backward included.
        peak_bytes: of the whole step, measured by the allocator on a GPU.
        roofs, verdict, break_even, accuracy: the judgement.
        notes: what could not be found out, and why.
        files: the user's source files that occur, by name.
    """

    function: str
    device: str
    graphs: tuple[records.GraphSummary, ...]
    breaks: tuple[records.ExplainedBreak, ...]
    guards: tuple[records.GuardCost, ...]
    guards_ns: float | None
    recompiles: tuple[records.ExplainedRecompile, ...]
    fallbacks: tuple[str, ...]
    saved: tuple[ForwardValue, ...]
    recomputed: tuple[ForwardValue, ...]
    steps: tuple[records.Step, ...]
    fusions: tuple[records.Fusion, ...]
    patterns: tuple[str, ...]
    compile_seconds: dict[str, float]
    first_call_seconds: float
    peak_bytes: int | None
    roofs: records.Roofs
    verdict: records.FunctionVerdict
    break_even: records.BreakEven
    accuracy: records.Certificate
    notes: tuple[str, ...]
    files: dict[str, str]

    def __str__(self) -> str:
        return text_page.page(document.sections(self))

    def to_json(self) -> str:
        """Every record as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write one self-contained HTML page, or JSON if the name ends so; returns the path."""
        target = pathlib.Path(path)
        target.write_text(self.to_json() if target.suffix == ".json" else html_page.page(self), encoding="utf-8")
        return target
