"""Hand-written Triton kernels, usable without the compiler: attention and matrix products.

They know nothing of the compiler and import only torch, Triton, `minicompile.errors` and `minicompile.gpu`. Importing this
package is cheap: Triton is imported when a kernel is first asked for; `configs` and `matmul_model` never import it.

`flash_attention` and `matmul` name both a function and the module that holds it. As attributes of this package they are
always the function; the modules are reached by `from minicompile.kernels.matmul import ...`.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicompile.kernels.flash_attention import attention_backward, attention_forward, flash_attention
    from minicompile.kernels.flash_decode import flash_decode
    from minicompile.kernels.linear_cross_entropy import linear_cross_entropy
    from minicompile.kernels.mask_bounds import mask_bounds
    from minicompile.kernels.matmul import fused_matmul, matmul

_HOMES = {
    **{name: name for name in ("flash_attention", "flash_decode", "linear_cross_entropy", "mask_bounds", "matmul")},
    "attention_forward": "flash_attention", "attention_backward": "flash_attention", "fused_matmul": "matmul",
}  # fmt: skip


class _Package(types.ModuleType):
    """A module whose functions are found on first use, and are not hidden by the submodules of the same name."""


def _lazy(name: str) -> property:
    def get(package: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

    def ignore(package: Any, module: Any) -> None:
        """The import system binds a submodule to its package here; the function stays."""

    return property(get, ignore)


for _name in _HOMES:
    setattr(_Package, _name, _lazy(_name))
sys.modules[__name__].__class__ = _Package

__all__ = ["attention_backward", "attention_forward", "flash_attention", "flash_decode", "fused_matmul",
           "linear_cross_entropy", "mask_bounds", "matmul"]
