"""Every operator of PyTorch's OpInfo database through the graph stage: `python -m tests.graph.opinfo_sweep [options]`.

For each sample: trace, simplify, split, run both halves operator by operator, compare outputs, mutated inputs and fp32
gradients with eager. An operator is `right`, `refused` (a clean `CompileFailed`: it would run eagerly), `random` (only
shapes are compared) or `wrong`.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import time
import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from minicompile.config import Config
from minicompile.errors import CompileFailed
from minicompile.graph.build import build_graph
from minicompile.ir.graph import CapturedGraph, GraphInput
from minicompile.runtime.autograd_function import run_partitioned_eagerly

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64, "bool": torch.bool}
RANDOM = ("drop", "empty", "fractional_max_pool", "rrelu", "multi_head_attention", "normal", "multinomial")
QUICK = (
    "add mul div softmax log_softmax nn.functional.layer_norm nn.functional.batch_norm nn.functional.group_norm "
    "nn.functional.cross_entropy nn.functional.gelu nn.functional.embedding var_mean cumsum sort topk gather scatter_add "
    "index_put index_add nn.functional.scaled_dot_product_attention nn.functional.conv2d nn.functional.max_pool2d "
    "nn.functional.interpolate cat split unfold as_strided where masked_fill norm linalg.vector_norm einsum"
).split()


def capture(op: Any, sample: Any) -> tuple[CapturedGraph, list[torch.Tensor], Any]:
    """One call of an operator as a captured graph, with the real inputs and the structure of its result."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors, inputs, nodes = [], [], []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            node = graph.placeholder(f"input_{position}")
            tensors.append(leaf)
            fake = mode.from_tensor(leaf)
            inputs.append(GraphInput(node.name, node.name, "tensor", fake))
            nodes.append(node)
        else:
            nodes.append(leaf)
    flat: list[Any] = [None]

    def call(*given: torch.Tensor) -> Any:
        remaining = iter(given)
        filled = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, tree)
        results, flat[0] = pytree.tree_flatten(op.op(*args, **kwargs))
        return tuple(results)

    reference = call(*[t.detach().clone() for t in tensors])
    whole = graph.call_function(call, tuple(n for n in nodes if isinstance(n, torch.fx.Node)))
    graph.output(tuple(graph.call_function(lambda r, i: r[i], (whole, i)) for i in range(len(reference))))
    return CapturedGraph(torch.fx.GraphModule(torch.nn.Module(), graph), tuple(inputs), name="op"), tensors, call


def twins(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Independent leaves with the same values and strides."""
    return [t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad) for t in tensors]


def gradients_of(results: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """Gradients of a fixed weighting of the results."""
    outs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    if not outs or not wanted:
        return []
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outs]
    return list(torch.autograd.grad(outs, wanted, weights, allow_unused=True))


def judge(op: Any, sample: Any, random: bool) -> tuple[str, str]:
    """The verdict on one sample, and why."""
    try:
        captured, tensors, call = capture(op, sample)
        eager_inputs, inputs = twins(tensors), twins(tensors)
        expected = call(*eager_inputs)
        expected_gradients = gradients_of(expected, eager_inputs)
    except Exception as failure:
        return "skipped", f"eager: {failure}"
    try:
        run = run_partitioned_eagerly(build_graph(captured, Config(verify=True)))
    except CompileFailed as failure:
        return "refused", str(failure)
    try:
        actual = run(*inputs)
        actual_gradients = gradients_of(actual, inputs)
        pairs = [*zip(actual, expected, strict=True), *zip(actual_gradients, expected_gradients, strict=True),
                 *zip(inputs, eager_inputs, strict=True)]  # fmt: skip
        for number, (a, e) in enumerate(pairs):
            compare(a, e, random, layout=number < len(expected))
    except Exception as failure:
        return "wrong", f"{type(failure).__name__}: {failure}"
    return ("random" if random else "right"), ""


def compare(actual: Any, expected: Any, random: bool, layout: bool) -> None:
    """Raise `AssertionError` where two results differ."""
    if not isinstance(expected, torch.Tensor):
        assert actual == expected, f"{actual} instead of {expected}"
        return
    assert isinstance(actual, torch.Tensor), f"{actual} instead of a tensor"
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (actual.shape, expected.shape, actual.dtype)
    assert actual.requires_grad == expected.requires_grad, "requires_grad differs"
    if layout and expected.layout == torch.strided:
        shown = [(s, t) for s, t, n in zip(actual.stride(), expected.stride(), actual.shape, strict=True) if n > 1]
        assert all(s == t for s, t in shown) or not actual.numel(), f"strides {actual.stride()} not {expected.stride()}"
    if not random:
        tolerance = {torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(expected.dtype, 1e-4)
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def sweep(names: list[str] | None, dtypes: list[str], samples: int) -> dict[str, list[tuple[str, str]]]:
    """Verdict to (operator and dtype, reason)."""
    verdicts: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    rank = ["right", "random", "skipped", "refused", "wrong"]
    for op, dtype_name in itertools.product(op_db, dtypes):
        dtype = DTYPES[dtype_name]
        if names and op.name not in names or dtype not in op.supported_dtypes("cpu"):
            continue
        gradient = dtype == torch.float32 and op.supports_autograd
        random = "rand" in op.name or any(torch.Tag.nondeterministic_seeded in o.tags for o in overloads_of(op))
        random = random or any(part in op.name for part in RANDOM)
        worst = ("right", "")
        try:
            torch.manual_seed(0)
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), samples):
                found = judge(op, sample, random or bool(sample.kwargs.get("dropout_p")))
                if rank.index(found[0]) > rank.index(worst[0]):
                    worst = found
        except Exception as failure:
            worst = ("skipped", f"{type(failure).__name__}: {failure}")
        verdicts[worst[0]].append((f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {dtype_name}", worst[1]))
    return verdicts


def overloads_of(op: Any) -> list[Any]:
    """The ATen overloads that an OpInfo entry's name suggests."""
    packet = getattr(torch.ops.aten, op.aten_name or op.name, None)
    return [getattr(packet, name) for name in packet.overloads()] if packet is not None else []


def main() -> int:
    """Run the sweep and print what is not right."""
    options = argparse.ArgumentParser()
    options.add_argument("--names", nargs="*")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--dtypes", nargs="*", default=["fp32"])
    options.add_argument("--samples", type=int, default=4)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    start = time.time()
    verdicts = sweep(QUICK if chosen.quick else chosen.names, chosen.dtypes, chosen.samples)
    for verdict in ("refused", "wrong", "skipped"):
        for name, reason in verdicts[verdict]:
            print(f"{verdict:8} {name}: {' '.join(reason.split())[:230]}")
    print({verdict: len(found) for verdict, found in verdicts.items()}, f"{time.time() - start:.0f} s")
    return 1 if verdicts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
