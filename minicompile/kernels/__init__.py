"""Hand-written Triton kernels, usable without the compiler: attention and matrix products.

They know nothing of the compiler and import only torch, Triton and `minicompile.errors`. Importing this package is cheap: Triton is
imported when a kernel is first asked for. `configs` and `registry` are plain data.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "flash_attention": "flash_attention",
    "attention_forward": "flash_attention",
    "attention_backward": "flash_attention",
    "attention_reference": "flash_attention",
    "flash_decode": "flash_decode",
    "matmul": "matmul",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The kernel's module carries the name of its function: set the attribute so that the function wins over the module.
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


__all__ = sorted(_HOMES)
