"""Lowers what eager does, evaluates the loops, and compares."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from minicompile.config import Config
from minicompile.graph.decompositions import log_softmax, softmax
from minicompile.graph.torch_interface import core_decompositions
from minicompile.ir import verify
from minicompile.ir.loops import ExternKernel, LoweredGraph
from minicompile.lowering.lower import lower_graph
from tests.evaluate import evaluate_graph

functional = functools.partial(torch.func.functionalize, remove="mutations")
TABLE = core_decompositions() | {
    torch.ops.aten._softmax.default: softmax, torch.ops.aten._log_softmax.default: log_softmax,
}  # fmt: skip
TOLERANCE = {
    torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2), torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-9, 1e-9), torch.complex64: (1e-5, 1e-5), torch.complex128: (1e-9, 1e-9),
}  # fmt: skip


def lower(
    function: Callable[..., Any], args: Sequence[Any], decompose: bool = True, mutates: bool = True, config: Config | None = None
) -> LoweredGraph:
    """The lowered, verified graph of a function of tensors; one that `mutates` is made functional first."""
    flat, structure = pytree.tree_flatten(tuple(args))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]

    def of_tensors(*given: torch.Tensor) -> Any:
        remaining = iter(given)
        filled = [next(remaining) if isinstance(value, torch.Tensor) else value for value in flat]
        result = function(*pytree.tree_unflatten(filled, structure))
        return tuple(r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor))

    module = make_fx(functional(of_tensors) if mutates else of_tensors, decomposition_table=TABLE if decompose else {}, tracing_mode="fake")(*tensors)
    module.graph.eliminate_dead_code()
    graph = lower_graph(module, config or Config(), "test")
    verify.verify_lowered(graph)
    return graph


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of nested arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def check(
    function: Callable[..., Any], *args: Any, decompose: bool = True, mutates: bool = True, slack: float = 1.0,
    strides: bool = True,
) -> LoweredGraph:  # fmt: skip
    """Compare values, dtypes, sizes and strides with eager's; return the graph."""
    graph = lower(function, args, decompose, mutates)
    expected = tensors_of(function(*copy.deepcopy(args)))
    found = evaluate_graph(graph, tensors_of(args))
    assert len(found) == len(expected)
    for ours, eager in zip(found, expected):
        compare(ours, eager, slack, strides)
    return graph


def compare(ours: torch.Tensor, eager: torch.Tensor, slack: float = 1.0, strides: bool = True) -> None:
    """Dtype, sizes, strides (of more than one element) and values."""
    assert ours.dtype == eager.dtype and ours.shape == eager.shape
    if eager.numel() > 1 and strides:
        assert [s for n, s in zip(ours.shape, ours.stride()) if n > 1] == [
            s for n, s in zip(eager.shape, eager.stride()) if n > 1
        ]
    relative, absolute = TOLERANCE.get(eager.dtype, (0.0, 0.0))
    torch.testing.assert_close(ours, eager, rtol=relative * slack, atol=absolute * slack, equal_nan=True)


def externs(graph: LoweredGraph) -> list[str]:
    """Targets of the extern kernels, without the ATen prefix."""
    return [o.target.removeprefix("torch.ops.aten.") for o in graph.operations if isinstance(o, ExternKernel)]
