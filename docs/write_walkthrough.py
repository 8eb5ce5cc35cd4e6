"""Writes the dumps of one small function into `architecture.md`, between its two markers.

    python docs/write_walkthrough.py

Run it after a change that alters what a stage prints.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- walkthrough: begin -->\n", "<!-- walkthrough: end -->\n"

PROGRAM = """\
import torch
import minicompile


def rms_norm(x, weight):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale * weight


compiled = minicompile.compile(rms_norm)
x = torch.randn(64, 256, requires_grad=True)
weight = torch.randn(256, requires_grad=True)
compiled(x, weight).sum().backward()
"""

STEPS = {
    "captured_graph.py": "**Captured.** Operations as the user wrote them, each with its line and variable.",
    "guards.txt": "**Guards.** What the captured variant depends on, as a sentence and as the condition.",
    "variant.py": "**What runs in place of the frame**: guards, then the graph. `A` and `K` are the arguments.",
    "partition.py": """\
**Forward and backward**, after tracing both together and cutting. The forward saves one small tensor; the backward
computes the rest again from it and the inputs.""",
    "forward_loops.txt": "**Loops.** One loop nest an operation, before fusion.",
    "forward_schedule.txt": "**Scheduled.** One kernel: the row stays in registers between the sum and its use.",
    "forward_program.py": "**The forward's file**, without its header and its `main`.",
    "backward_schedule.txt": """\
**The backward**: two kernels, because its two sums fold different axes, and the record of what was not fused.""",
}
"""File of the dump to what it shows, in the order of the stages."""


def main() -> None:
    """Compile the function in a fresh process with dumps on, and replace the section."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder).resolve()
        (place / "norm.py").write_text(PROGRAM + 'open("variant.py", "w").write(compiled.records.sources[0])\n')
        root = str(PAGE.parents[1])
        environment = dict(os.environ, MINICOMPILE_DUMP="dump", PYTHONPATH=root)
        subprocess.run([sys.executable, str(place / "norm.py")], cwd=place, env=environment, check=True)
        (dump,) = (place / "dump").iterdir()
        (place / "variant.py").rename(dump / "variant.py")
        parts = [f"The program `norm.py`, run with `MINICOMPILE_DUMP=dump`:\n\n```python\n{PROGRAM}```\n"]
        for name, explanation in STEPS.items():
            text = shown(name, (dump / name).read_text()).replace(f"{place}/", "")
            language = "python" if name.endswith("variant.py") or name.endswith("program.py") else ""
            file = "" if name == "variant.py" else f" (`{name}`)"
            parts.append(f"{explanation}{file}\n\n```{language}\n{text.strip()}\n```\n")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(parts) + END + rest.split(END)[1])


def shown(name: str, text: str) -> str:
    """The part of a dump that is worth reading; addresses in memory are left out."""
    if name.endswith("program.py"):
        text = text[text.index("\n# /") + 1 :] if "\n# /" in text else text
        text = text[: text.index("\n\n\ndef sample")]
    return re.sub(r"<code object (\w+) at 0x[0-9a-f]+, [^>]*>", r"<code of \1>", text)


if __name__ == "__main__":
    main()
