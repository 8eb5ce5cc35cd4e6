"""Fake tensors and dispatch modes without `torch._dynamo`, whose import takes longer than compiling a small function.

PyTorch's fake tensors import it for three settings, and they and its dispatch modes to keep `torch.compile` out of element-wise
fake kernels and of `__torch_dispatch__` (`torch._compile._disable_dynamo`). Until somebody else has imported it, nobody has
changed those settings, and there is nothing to keep out. Where a version of PyTorch differs from what is written here, it is
imported after all.

Written against torch 2.11, 2.13 and 2.15; private: the two methods of `FakeTensorMode`, `_disable_dynamo`,
`TorchDispatchMode._should_skip_dynamo`. Must not know fake kernels.
"""

import builtins
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch._decomp import global_decomposition_table
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

DYNAMO = "torch._dynamo"
KEPT_OUT = _disable_dynamo(len).__code__
EMPTY = types.CellType()


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import `torch._dynamo` to keep `torch.compile` out of it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Settings:
    """The settings of `torch._dynamo.config` that fake tensors read, as they are before anybody changes them."""

    fake_tensor_cache_enabled = True
    fake_tensor_cache_crosscheck_enabled = False
    _custom_ops_profile = None

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._dynamo.config, name)


class Torch:
    """`torch` as the methods of `FakeTensorMode` see it: as it is, but for those settings."""

    settings = types.SimpleNamespace(config=Settings())

    def __getattr__(self, name: str) -> Any:
        return self.settings if name == "_dynamo" and DYNAMO not in sys.modules else getattr(torch, name)

    def importing(self, name: str, *rest: Any) -> Any:
        """`__import__` in those methods."""
        settings = name == f"{DYNAMO}.config" and DYNAMO not in sys.modules
        module = torch if settings else builtins.__import__(name, *rest)
        return self if module is torch else module


def method(original: Any) -> Any:
    """A method of `FakeTensorMode` that does not import `torch._dynamo` for settings."""
    seen = Torch()
    names = vars(fake_tensor) | {"torch": seen, "__builtins__": vars(builtins) | {"__import__": seen.importing}}
    made = types.FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    made.__kwdefaults__ = original.__kwdefaults__
    return made


def unguarded(function: Any) -> Callable[..., Any]:
    """A fake kernel that `torch.compile` is kept out of from when `torch._dynamo` is there."""

    @functools.wraps(function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        vars(function).pop("__dynamo_disable", None)
        return _disable_dynamo(function)(*args, **kwargs)

    return kernel


@functools.cache
def spare_fake_kernels() -> None:
    """Let element-wise fake kernels run without `torch._dynamo` as long as it is not there."""
    functions = [kernel for table in global_decomposition_table.values() for kernel in table.values()]
    met = set()
    while functions:
        function = functions.pop()
        if not isinstance(function, types.FunctionType) or function in met:
            continue
        met.add(function)
        within = [cell.cell_contents for cell in function.__closure__ or () if cell != EMPTY]
        functions += within
        if function.__code__ is KEPT_OUT and not hasattr(within[0], "__dynamo_disable"):
            within[0].__dynamo_disable = unguarded(within[0])
