"""The names under which Triton keeps what it compiled, the same in every process.

The name of a kernel depends on the constants that it reads. Up to Triton 3.6 it depends on those that the functions it calls
read only if these were named before, and so on the order in which kernels are first launched. Here what a kernel calls is
named first, so that a later process finds what an earlier one compiled. Worker processes read this module too, and have
neither torch nor the rest of the library: it must import nothing but the standard library.

Private interfaces, the same in Triton 3.6 to 3.9: `hash`, `cache_key` and `used_global_vals` of what `@triton.jit` makes.
"""

import types
from collections.abc import Iterator
from typing import Any


def settle(function: Any) -> None:
    """Name a `@triton.jit` function after all that it calls."""
    if function.hash is not None:
        return
    seen: set[int] = set()

    def name(called: Any) -> str | None:
        if called.hash is None and id(called) not in seen:
            seen.add(id(called))
            for further in called_by(called):
                name(further)
            return str(called.cache_key)  # computed when it is first read
        return None

    name(function)


def called_by(function: Any) -> Iterator[Any]:
    """The functions of Triton that a function may call: those of its globals, and of modules among them, that it names."""
    names, scope = function.fn.__code__.co_names, function.fn.__globals__
    for value in [scope[name] for name in names if name in scope]:
        parts = [getattr(value, name, None) for name in names] if isinstance(value, types.ModuleType) else [value]
        yield from (part for part in parts if hasattr(type(part), "cache_key") and hasattr(part, "used_global_vals"))
