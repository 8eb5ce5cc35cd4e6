"""What eager execution does for the same result: kernels launched and bytes moved, counted operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class EagerWork(TorchDispatchMode):
    """Counts every ATen operator that is not a view, with the bytes of the tensors that it takes and returns.

    Attributes:
        kernels: operators that launch at least one kernel.
        num_bytes: bytes read and written, each tensor of a call once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace == "aten":
            tensors = {id(t): t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)}
            self.kernels += 1
            self.num_bytes += sum(t.numel() * t.element_size() for t in tensors.values())
        return result


def eager_work(function: Callable[[], Any]) -> tuple[int, int]:
    """Kernels and bytes of one call of `function`, its backward included if it runs one."""
    with EagerWork() as work:
        function()
    return work.kernels, work.num_bytes
