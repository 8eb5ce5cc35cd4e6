"""Writes the generated parts of `architecture.md`, between their markers: the dumps of one function, the list of files.

    python docs/write_walkthrough.py

Run it after a change that alters what a stage prints, or that adds a file.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).parent / "architecture.md"
PACKAGES = "ir capture graph lowering scheduling codegen runtime kernels report".split()

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
    replace("walkthrough", "\n".join(parts))
    replace("files", "\n".join(map(listed, PACKAGES)))


def replace(section: str, text: str) -> None:
    """Put `text` between the section's two markers."""
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->\n"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + text + end + rest.split(end)[1])


def listed(package: str) -> str:
    """The package's files, each with the first sentence of its docstring."""
    lines = [f"**{package}/**\n"]
    for path in sorted((PAGE.parents[1] / "minicompile" / package).glob("[a-z]*.py")):
        paragraph = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
        lines.append(f"- `{path.name}`: {re.split(r'(?<=[a-z`)])[.] ', paragraph)[0].rstrip('.')}.")
    return "\n".join(lines) + "\n"


def shown(name: str, text: str) -> str:
    """The part of a dump that is worth reading; addresses in memory are left out."""
    if name.endswith("program.py"):
        text = text[text.index("\n# /") + 1 :] if "\n# /" in text else text
        text = text[: text.index("\n\n\ndef sample")]
    return re.sub(r"<code object (\w+) at 0x[0-9a-f]+, [^>]*>", r"<code of \1>", text)


if __name__ == "__main__":
    main()
