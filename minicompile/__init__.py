"""minicompile: a deep-learning compiler for PyTorch in readable Python. `minicompile.compile(fn)` is the way in."""

from minicompile import config, errors
from minicompile.api import (
    compare,
    compile,
    disable,
    explain,
    is_compiling,
    mark_dynamic,
    mark_static,
    profile,
    reset,
    source_paths,
    sources,
    stages,
    stats,
    why_not_fused,
)
from minicompile.compiled_module import CompiledModule

__version__ = "0.1.0"

__all__ = ["CompiledModule", "compare", "compile", "config", "disable", "errors", "explain", "is_compiling",
           "mark_dynamic", "mark_static", "profile", "reset", "source_paths", "sources", "stages", "stats",
           "why_not_fused"]  # fmt: skip
