"""The text of a graph as plain torch calls, against which a generated file checks itself.

This module must not run the graph.
"""

import re

import torch

from minicompile.ir.graph import python_text

_FROM_TORCH = ("device", "inf", "nan")


def reference_text(module: torch.fx.GraphModule) -> str | None:
    """A function `reference(*inputs)` that runs `module`'s operators one by one; `None` if it needs more than torch."""
    text, used = python_text(module.graph)
    head, body = text.split(":\n", 1)
    if re.search(r"\bself\.", body) or "torch.ops.minicompile" in body or not used.keys() <= {"torch", *_FROM_TORCH}:
        return None
    parameters = re.sub(r"^def forward\(self(, )?|\).*$", "", head)
    imports = ", ".join(name for name in _FROM_TORCH if name in used)
    definition = f"def reference({parameters}):\n{body.rstrip()}\n"
    return f"from torch import {imports}\n\n\n{definition}" if imports else definition
