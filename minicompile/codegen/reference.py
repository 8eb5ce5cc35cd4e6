"""The text of a graph as plain torch calls, against which a generated file checks itself.

This module must not run the graph.
"""

from __future__ import annotations

import re

import torch


def reference_text(module: torch.fx.GraphModule) -> str | None:
    """A function `reference(*inputs)` that runs `module`'s operators one by one; `None` if it needs more than torch."""
    code = module.graph.python_code("self")
    if re.search(r"\bself\.", code.src) or "torch.ops.minicompile" in code.src:
        return None
    body = re.sub(r"def forward\(self(, )?", "def reference(", code.src.strip(), count=1)
    body = re.sub(r";  [\w, =]+= None", "", body)
    names = [name for name in ("device", "inf", "nan") if re.search(rf"\b{name}\b", body)]
    if not body.startswith("def reference(") or _unknown_globals(code.globals):
        return None
    return (f"from torch import {', '.join(names)}\n\n\n" if names else "") + body


def _unknown_globals(names: dict[str, object]) -> bool:
    """Whether the code uses objects that the file would not know."""
    known = {"torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree", "tuple", "list"}
    return bool(set(names) - known)
