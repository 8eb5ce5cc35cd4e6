"""The walk itself: sizes, devices, constants, random numbers, attention, extern calls, provenance."""

from __future__ import annotations

import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from minicompile.config import Config
from minicompile.ir import operators, verify
from minicompile.ir.loops import BufferView, ExternKernel, Loop
from minicompile.lowering.lower import lower_graph
from tests.evaluate import evaluate_graph
from tests.lowering.oracle import TABLE, check, compare, externs

assert operators  # defines torch.ops.minicompile


def symbolic(function, *args):
    module = make_fx(function, decomposition_table=TABLE, tracing_mode="symbolic")(*args)
    graph = lower_graph(module, Config(), "test")
    verify.verify_lowered(graph)
    return graph


def test_one_symbolic_graph_serves_every_size():
    def function(x, w):
        y = x.transpose(0, 1).reshape(-1, x.shape[0] * 4) if False else x.reshape(x.shape[0] * x.shape[1], 4)
        return y.softmax(0), x.sum((0, 1)) / x.shape[0], torch.cat([x, x], 1).mean(1), F.pad(x, (1, 1)) * 2, x @ w, x[:, 1:].sin()

    graph = symbolic(function, torch.randn(3, 5, 4), torch.randn(4, 2))
    for sizes in ((3, 5, 4), (7, 2, 4), (2, 9, 4)):
        x, w = torch.randn(sizes), torch.randn(4, 2)
        for ours, eager in zip(evaluate_graph(graph, [x, w]), function(x, w), strict=True):
            compare(ours, eager)


def test_scalars_on_the_cpu_and_numbers():
    check(lambda x, s: (x * s, x + s.long(), torch.where(x > s, x, s)), torch.randn(3, 4), torch.tensor(2.5, dtype=torch.float64))
    check(lambda x: torch.arange(x.shape[0]) * 2 + x.sum(1).long(), torch.randn(3, 4))


def test_tensor_constants_of_the_module_become_buffers():
    table = torch.tensor([1.0, 2.0, 4.0])
    module = make_fx(lambda x: x * torch.ops.aten.lift_fresh_copy(torch.tensor([1.0, 2.0, 4.0])), tracing_mode="fake")(torch.randn(3))
    graph = lower_graph(module, Config(), "test")
    verify.verify_lowered(graph)
    x = torch.randn(3)
    torch.testing.assert_close(evaluate_graph(graph, [x])[0], x * table)


def test_provenance_and_names():
    module = make_fx(lambda x: x.sin().sum(0), tracing_mode="fake")(torch.randn(3, 4))
    for node in module.graph.nodes:
        node.meta["variable"], node.meta["operator"] = "h", "my_sin"
    graph = lower_graph(module, Config(), "test")
    assert [o.origins[0].variable for o in graph.operations] == ["h", "h"]
    assert graph.operations[0].origins[0].operator == "my_sin"


def test_outputs_keep_eagers_identity():
    graph = check(lambda x: (x.t(), x * 2, x.flip(0), x.repeat(1, 1), x.sum(0).expand(3, 4)), torch.randn(3, 4))
    views = [o for o in graph.outputs if isinstance(o, BufferView)]
    assert views[0].buffer == graph.inputs[0] and views[2].buffer != graph.inputs[0] and views[3].buffer != graph.inputs[0]


def test_extern_calls():
    x = torch.randn(4, 6)
    graph = check(lambda a: (a @ a.t(), a.sort(1), a.topk(2), torch.linalg.svd(a), a.t().flip(0) @ a), x)
    products = [o for o in graph.operations if isinstance(o, ExternKernel) and o.target.endswith("mm.out")]
    assert len(products) == 2 and all(o.out_argument for o in products)
    assert all(o.reason for o in graph.operations if isinstance(o, ExternKernel))
    check(lambda a: F.conv2d(a, torch.ones(5, 3, 3, 3)), torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert "aten.bernoulli" not in externs(graph)


def test_random_numbers_are_functions_of_the_drawn_seeds():
    def function(x):
        seeds = torch.ops.minicompile.seeds(2, device=torch.device("cpu"))
        uniform = torch.ops.minicompile.random_uniform(seeds[0], [3, 5], torch.float32)
        integers = torch.ops.minicompile.random_randint(seeds[1], -4, 9, [3, 5], torch.int32)
        return *seeds, uniform, torch.ops.minicompile.random_normal(seeds[1], [3, 5], torch.bfloat16), integers

    module = make_fx(function, tracing_mode="fake")(torch.zeros(1))
    graph = lower_graph(module, Config(), "test")
    verify.verify_lowered(graph)
    draw, apart, *loops = graph.operations
    assert isinstance(draw, ExternKernel) and not draw.pure
    assert isinstance(apart, ExternKernel) and apart.target == "torch.ops.aten.unbind.int"
    assert all(isinstance(o, Loop) for o in loops)
    first, second, *found = evaluate_graph(graph, [torch.zeros(1)])
    ours = torch.ops.minicompile
    torch.testing.assert_close(found[0], ours.random_uniform(first, [3, 5], torch.float32))
    torch.testing.assert_close(found[1], ours.random_normal(second, [3, 5], torch.bfloat16))
    torch.testing.assert_close(found[2], ours.random_randint(second, -4, 9, [3, 5], torch.int32))


def test_attention_on_the_cpu_is_the_reference_operator():
    def function(q, k, v):
        return torch.ops.minicompile.attention(q, k, v, None, None, 0.0, True, 0.5, 0)

    tensors = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    graph = check(function, *tensors, decompose=False, mutates=False)
    assert [o.target for o in graph.operations] == ["torch.ops.minicompile.attention.default"]


def test_every_operator_of_ours_has_a_rule_whatever_is_imported_first():
    script = (
        "import minicompile.lowering.lower as lower; "
        "print(sorted(str(rule) for rule in lower.RULES if 'minicompile' in str(rule)))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for name in ("attention", "attention_backward", "seeds", "random_uniform", "random_normal", "random_randint"):
        assert f"'minicompile.{name}.default'" in printed
