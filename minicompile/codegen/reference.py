"""The text of a graph as plain torch calls, against which a generated file checks itself.

This module must not run the graph.
"""

from __future__ import annotations

import re

import torch

_FROM_TORCH = ("device", "inf", "nan")


def reference_text(module: torch.fx.GraphModule) -> str | None:
    """A function `reference(*inputs)` that runs `module`'s operators one by one; `None` if it needs more than torch."""
    code = module.graph.python_code("self")
    head, body = code.src.strip().split(":\n", 1)
    body = re.sub(r";  [\w, =]+= None", "", body)
    used = {name for name in code.globals if re.search(rf"\b{re.escape(name)}\b", body)}
    if re.search(r"\bself\.", body) or "torch.ops.minicompile" in body or not used <= {"torch", *_FROM_TORCH}:
        return None
    parameters = re.sub(r"^def forward\(self(, )?|\).*$", "", head)
    imports = ", ".join(name for name in _FROM_TORCH if name in used)
    definition = f"def reference({parameters}):\n{body.rstrip()}\n"
    return f"from torch import {imports}\n\n\n{definition}" if imports else definition
