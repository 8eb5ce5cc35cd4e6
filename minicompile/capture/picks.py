"""Tensors indexed by 0-d tensors of integers (`score[tags[t]]`), as programs over states and labels do.

Eager looks at the value and makes a view. A graph takes a copy, which is as good while nobody writes either of the two and
the copy stays inside; otherwise the call is traced again, and the index is a graph break.
"""

import operator
from typing import Any

import torch

from minicompile.capture.side_effects import MISSING
from minicompile.capture.symbolic_size import is_symbolic
from minicompile.capture.torch_interface import FakeTensor
from minicompile.capture.tracer import TraceAgain, Tracer
from minicompile.ir.fake_mode import storage_key

INDICES = (torch.int8, torch.int16, torch.int32, torch.int64)


def picked(tracer: Tracer, owner: Any, key: Any) -> Any:
    """`owner[key]`, of a copy of what 0-d tensors in the key pick, or `MISSING` if there are none or a view is needed."""
    parts = [tracer.resolve(part) for part in (key if type(key) is tuple else (key,))]
    rest = tuple(part for part in parts if not is_pick(part, owner))
    dims = sum(part is not None and part is not Ellipsis for part in parts)
    if len(rest) == len(parts) or dims > owner.dim() or not all(map(is_plain, rest)) or (
            not tracer.picks or tracer.graph.inside is not None or not owner.is_contiguous()
            or owner.is_inference() or torch.is_inference_mode_enabled()):  # where nothing counts writes
        return MISSING
    indices: list[Any] = []
    for part in parts:
        if part is not None:
            indices += [None] * (owner.dim() - dims) if part is Ellipsis else [part if is_pick(part, owner) else None]
    copy = tracer.operation("call_function", torch.ops.aten.index.Tensor, (owner, indices))
    tracer.graph.picks.append((owner, copy, owner._version))
    return tracer.operation("call_function", operator.getitem, (copy, rest)) if rest else copy


def is_pick(part: Any, owner: Any) -> bool:
    """Whether a part of a key stands for one place along a dimension, which only its value tells."""
    return isinstance(part, FakeTensor) and part.dim() == 0 and part.dtype in INDICES and part.device == owner.device


def is_plain(part: Any) -> bool:
    """Whether a part of a key stands for one dimension, a new one or the remaining ones."""
    return part is None or type(part) in (type(...), int, slice) or is_symbolic(part) or (
        isinstance(part, FakeTensor) and part.dtype in INDICES)


def check_picks(tracer: Tracer, outputs: list[Any]) -> None:
    """Trace again where a view cannot be told from a copy no more: it was written, or what it was made of, or is seen outside."""
    graph = tracer.graph
    seen = {storage_key(value) for value in outputs if isinstance(value, FakeTensor)} if graph.picks else set()
    for owner, copy, version in graph.picks:
        if graph.data_aliases or graph.replaced or owner._version != version or copy._version or storage_key(copy) in seen:
            raise TraceAgain(picks=False)
