"""The accuracy certificate: how far compiled and eager values are from fp64, in units in the last place.

Outputs are compared with the user's function run in fp64; the buffers of every kernel with the graph's operators run
one by one, in their own dtypes (eager) and in fp64. This module must not decide what error is allowed.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from minicompile.ir.printer import dtype_text
from minicompile.report.records import Accuracy, Errors, Nearer

BUCKETS = (0.5, 1.0, 2.0, 4.0, 16.0, 256.0)
"""Upper ends of the histogram's buckets, in ulp; the last bucket is everything above."""


SMALLEST = 2.0**-12
"""An element this much smaller than the tensor's largest is judged in the ulp of that size: it is a difference of others."""


def ulp_errors(value: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The distance of every element from the fp64 one, in units in the last place of the value's dtype."""
    limits = torch.finfo(value.dtype)
    exact, found = exact.double(), value.double()
    finite = exact.abs()[torch.isfinite(exact)]
    largest = float(finite.max()) if finite.numel() else 0.0
    smallest = math.log2(max(limits.tiny, largest * SMALLEST))
    exponent = torch.floor(torch.log2(exact.abs()).clamp(min=smallest))
    unit = torch.exp2(exponent) * limits.eps
    error = (found - exact).abs() / torch.where(torch.isfinite(exact), unit, 1.0)
    same = (found == exact) | (found.isnan() & exact.isnan()) | (found == exact.to(value.dtype).double())
    return torch.where(same & ~torch.isfinite(error), torch.zeros_like(error), error.nan_to_num(nan=math.inf, posinf=math.inf))


def errors(value: torch.Tensor, exact: torch.Tensor) -> Errors:
    """Histogram, mean and worst error."""
    found = ulp_errors(value, exact)
    if not found.numel():
        return Errors((0,) * (len(BUCKETS) + 1), 0.0, 0.0, ())
    edges = torch.tensor(BUCKETS, dtype=torch.float64, device=found.device)
    counts = torch.bincount(torch.bucketize(found.flatten(), edges), minlength=len(BUCKETS) + 1)
    place = int(found.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), found.shape))
    return Errors(tuple(counts.tolist()), float(found.mean()), float(found.max()), index)


def accuracy(name: str, kernel: str, compiled: Any, eager: Any, exact: Any) -> Accuracy | None:
    """The entry of one floating-point tensor; `None` for integers and tensors that do not correspond."""
    if not all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in (compiled, eager, exact)):
        return None
    if not compiled.shape == eager.shape == exact.shape:
        return None
    ours, theirs = errors(compiled, exact), errors(eager, exact)
    means = ours.mean_ulp, theirs.mean_ulp
    nearer: Nearer = "equal" if means[0] == means[1] else "compiled" if means[0] < means[1] else "eager"
    return Accuracy(name, kernel, dtype_text(compiled.dtype), compiled.numel(), ours, theirs, nearer)


def output_accuracies(
    compiled: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any], names: Sequence[str]
) -> list[Accuracy]:
    """One entry per floating-point output and gradient."""
    found = (accuracy(name, "", *values) for name, *values in zip(names, compiled, eager, exact))
    return [entry for entry in found if entry is not None]


class Values(torch.fx.Interpreter):
    """Runs an ATen graph operator by operator and keeps every node's value; in fp64 if asked."""

    def __init__(self, module: torch.fx.GraphModule, double: bool) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.double = double
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node, with floating dtypes among its arguments replaced."""
        value = self.widened(super().run_node(n))
        self.values[n.name] = value.clone() if isinstance(value, torch.Tensor) else value
        return value

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
        """The arguments of a node."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return self.widened(args), self.widened(kwargs)

    def widened(self, value: Any) -> Any:
        """Floating tensors and dtypes as fp64."""
        if not self.double:
            return value

        def wide(part: Any) -> Any:
            if isinstance(part, torch.Tensor) and part.is_floating_point():
                return part.double()
            return torch.float64 if isinstance(part, torch.dtype) and part.is_floating_point else part

        return tree_map(wide, value)


def node_values(module: torch.fx.GraphModule, inputs: Sequence[Any], double: bool) -> dict[str, Any] | None:
    """Every node's value by name, or `None` where the graph does not run that way."""
    interpreter = Values(module, double)
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            interpreter.run(*(interpreter.widened(copies)))
    except Exception:  # an operator without an fp64 form leaves the certificate without this graph
        return None
    return interpreter.values


def named(values: dict[str, Any], buffer: str) -> Any:
    """The value of the node behind a buffer: `var_mean_0` is the first result of `var_mean`."""
    if buffer in values:
        return values[buffer]
    node, _, number = buffer.rpartition("_")
    several = values.get(node)
    if not isinstance(several, (tuple, list)) or not number.isdecimal():
        return None
    return several[int(number)] if int(number) < len(several) else None
