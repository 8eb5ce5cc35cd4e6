"""A compiled graph as JSON: the call plan and the generated programs, without any stage's products.

Reading builds only the record types listed here, and names only functions that `function_name` accepts: an entry is data.
The kernels' machine code lies beside it in the same cache, under keys of its own.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as of_sizes

from minicompile.ir import graph as graph_ir
from minicompile.ir.program import KernelArgument, KernelSource, Program
from minicompile.runtime.call_plan import CallPlan, Tangent
from minicompile.runtime.graph_key import LARGEST_CONSTANT, NotKeyed, function_name, named_function


@dataclasses.dataclass(frozen=True)
class StoredGraph:
    """What is kept of one compiled graph: the forward's program, and those of the backwards that were needed, by name; and
    what they assume of sizes that vary."""

    plan: CallPlan
    halves: tuple[str, ...]
    programs: tuple[Program, ...]
    assumptions: tuple[sympy.Basic, ...] = ()

    def to_bytes(self) -> bytes | None:
        """A form for the disk, or `None` if some part has none."""
        try:
            return json.dumps(encoded(self), separators=(",", ":")).encode()
        except NotKeyed:
            return None

    @classmethod
    def from_bytes(cls, stored: bytes) -> StoredGraph | None:
        """The inverse of `to_bytes`; `None` for anything that is not such a graph."""
        try:
            value = decoded(json.loads(stored))
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError):
            return None
        return value if isinstance(value, cls) and len(value.programs) == len(value.halves) else None


RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (
        CallPlan, KernelArgument, KernelSource, Program, StoredGraph, Tangent, graph_ir.Binding,
        graph_ir.Connection, graph_ir.ConstantOutput, graph_ir.FreshOutput, graph_ir.History, graph_ir.InputOutput,
        graph_ir.MutatedInput, graph_ir.RepeatedOutput, graph_ir.SizeOutput, graph_ir.ViewOutput,
    )
}  # fmt: skip


def encoded(value: Any) -> Any:
    """A value as JSON: plain values as they are, everything else as an object with one key that names its kind."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (tuple, torch.Size):
        return {"tuple": [encoded(item) for item in value]}
    if isinstance(value, list):
        return {"list": [encoded(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    if kind in (torch.dtype, torch.memory_format):
        return {kind.__name__: str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is torch.Tensor:
        return {"tensor": encoded_tensor(value)}
    if isinstance(value, sympy.Symbol):
        return {"symbol": [value.name, dict(value._assumptions_orig)]}
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, sympy.Basic) and value.args:
        return {"expression": [kind.__name__, *map(encoded, value.args)]}
    if RECORDS.get(kind.__name__) is kind:
        return {kind.__name__: {f.name: encoded(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if callable(value):
        return {"function": function_name(value)}
    raise NotKeyed(kind)


def decoded(value: Any) -> Any:
    """The inverse of `encoded`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in RECORDS:
        return RECORDS[kind](**{name: decoded(item) for name, item in content.items()})
    if kind in ("dtype", "memory_format"):
        return trusted(getattr(torch, content), lambda found: type(found).__name__ == kind)
    if kind == "function":
        return trusted(named_function(content), lambda found: found is not None and function_name(found) == content)
    if kind == "tensor":
        content_bytes, dtype = bytearray(base64.b64decode(content["bytes"])), getattr(torch, content["dtype"])
        flat = torch.frombuffer(content_bytes, dtype=torch.uint8) if content_bytes else torch.empty(0, dtype=torch.uint8)
        return flat.view(dtype).reshape(content["shape"])
    if kind == "device":
        return torch.device(content)
    if kind == "symbol":
        return sympy.Symbol(content[0], **content[1])
    if kind == "expression":
        named = getattr(of_sizes, content[0], None) or getattr(sympy, content[0])
        made = trusted(named, lambda found: isinstance(found, type) and issubclass(found, sympy.Basic))
        return made(*map(decoded, content[1:]))
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in content}
    return {"tuple": tuple, "list": list}[kind](decoded(item) for item in content)


def trusted(found: Any, is_right: Callable[[Any], bool]) -> Any:
    """What was found under a name, if it is of the kind that an entry may name."""
    if not is_right(found):
        raise ValueError(found)
    return found


def encoded_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """A small contiguous constant with its values."""
    size = tensor.numel() * tensor.element_size()
    if size > LARGEST_CONSTANT or not tensor.is_contiguous() or tensor.requires_grad:
        raise NotKeyed("a constant")
    content = tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "bytes": base64.b64encode(content).decode()}
