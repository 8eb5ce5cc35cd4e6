"""From a Python function to compiled-like execution without capture: symbolic trace, build the graphs, run them eagerly.

Parameters and buffers of modules become inputs. Only what the graph stage promises is under test here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Tracer

import minicompile.ir.operators  # noqa: F401  registers torch.ops.minicompile
from minicompile.config import Config
from minicompile.graph.build import build_graph
from minicompile.graph.missing_gradients import backward_without
from minicompile.ir.fake_mode import FakeMode
from minicompile.ir.graph import CapturedGraph, GraphInput, PartitionedGraph
from minicompile.runtime.autograd_function import bind
from minicompile.runtime.call_plan import call_plan
from minicompile.runtime.compiled_graph import CompiledGraph


def operators(module: GraphModule) -> list[str]:
    """The names of the operators that a graph calls, in order."""
    return [node.target._opname for node in module.graph.nodes if hasattr(node.target, "_opname")]


class _Inliner(Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return False


class Captured:
    """A traced function, its lifted module state, and what capture would hand over."""

    def __init__(self, function: Callable[..., Any], example: tuple[Any, ...], fake_mode: Any = None) -> None:
        tracer = _Inliner(autowrap_functions=())
        graph = tracer.trace(function)
        root = tracer.root
        self.state: list[torch.Tensor] = []
        self.inputs: list[GraphInput] = []
        mode = fake_mode or FakeMode()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        assert len(placeholders) == len(example), "every argument must be given"
        for node, value in zip(placeholders, example, strict=True):
            self.inputs.append(GraphInput(node.name, node.name, "tensor", self._fake(mode, value)))
        self._lift(graph, root, mode)
        self._flatten(graph)
        annotate(root, graph, mode, [entry.example for entry in self.inputs])
        self.graph = CapturedGraph(
            GraphModule(root, graph), tuple(self.inputs), name=getattr(function, "__name__", type(function).__name__),
            grad_enabled=torch.is_grad_enabled(),
        )

    def _fake(self, mode: FakeMode, value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=mode.shape_env is None) if isinstance(value, torch.Tensor) else value

    def _lift(self, graph: Graph, root: torch.nn.Module, mode: FakeMode) -> None:
        last = [node for node in graph.nodes if node.op == "placeholder"]
        made: dict[str, Any] = {}
        for node in list(graph.nodes):
            if node.op != "get_attr":
                continue
            value: Any = root
            for part in node.target.split("."):
                value = getattr(value, part)
            if node.target.startswith("_tensor_constant"):
                continue
            if node.target not in made:
                with graph.inserting_after(last[-1]) if last else graph.inserting_before(next(iter(graph.nodes))):
                    lifted = graph.placeholder(node.target.replace(".", "_"))
                last.append(lifted)
                made[node.target] = lifted
                kind = "parameter" if isinstance(value, torch.nn.Parameter) else "buffer"
                self.state.append(value)
                self.inputs.append(GraphInput(lifted.name, node.target, kind, self._fake(mode, value)))
            node.replace_all_uses_with(made[node.target])
            graph.erase_node(node)

    def _flatten(self, graph: Graph) -> None:
        closing = next(iter(reversed(graph.nodes)))
        leaves, self.tree = torch.utils._pytree.tree_flatten(closing.args[0])
        closing.args = (tuple(leaves),)


class _Annotator(torch.fx.Interpreter):
    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["example_value"] = result
        return result


def annotate(root: torch.nn.Module, graph: Graph, mode: FakeMode, examples: list[Any]) -> None:
    """Give each node its fake value, as capture does."""
    copies = []
    for example in examples:
        if isinstance(example, torch.Tensor):
            with mode, torch.no_grad():
                twin = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
            copies.append(twin.requires_grad_(example.requires_grad and example.is_leaf))
        else:
            copies.append(example)
    mode.allow_non_fake_inputs = True
    with mode, torch.no_grad():
        _Annotator(GraphModule(root, graph)).run(*copies)


def run_partitioned_eagerly(partitioned: PartitionedGraph, captured: GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The reference executor: both graphs run operator by operator in PyTorch."""

    def interpreted(module: torch.fx.GraphModule) -> Callable[[list[Any]], tuple[Any, ...]]:
        return lambda arguments: tuple(module(*arguments))

    graph: Any = CompiledGraph(None, call_plan(partitioned), lambda: partitioned, backward_without, {})  # type: ignore[arg-type]  # never bound
    return bind(graph.plan, captured, interpreted(partitioned.forward), lambda half: interpreted(graph.module(half)))


def compile_eagerly(function: Callable[..., Any], *example: Any, config: Config | None = None, **options: Any) -> Any:
    """A callable that runs `function` through the graph stage; its `partitioned` is the stage's product."""
    captured = Captured(function, example, **options)
    partitioned: PartitionedGraph = build_graph(captured.graph, config or Config(verify=True))
    run = run_partitioned_eagerly(partitioned, captured.graph.module)

    def call(*args: Any) -> Any:
        return torch.utils._pytree.tree_unflatten(list(run(*args, *captured.state)), captured.tree)

    call.partitioned = partitioned
    return call


def clone_inputs(inputs: tuple[Any, ...], dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """Independent leaves with the same values, floating ones cast if asked."""
    cloned = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            cloned.append(value)
            continue
        new = value.detach().clone(memory_format=torch.preserve_format)
        if dtype is not None and value.is_floating_point():
            new = new.to(dtype)
        cloned.append(new.requires_grad_(value.requires_grad))
    return tuple(cloned)


def run_and_differentiate(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Outputs, and gradients of a fixed weighting of all differentiable outputs with respect to the inputs."""
    outputs = function(*inputs)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    differentiable = [leaf for leaf in leaves if leaf.requires_grad]
    if not differentiable or not wanted:
        return leaves, []
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype) for leaf in differentiable]
    gradients = torch.autograd.grad(differentiable, wanted, weights, allow_unused=True)
    return leaves, list(gradients)


def check(function: Callable[..., Any], *inputs: Any, config: Config | None = None, tolerance: float = 1e-5) -> Any:
    """Compiled and eager agree on outputs, gradients and what happened to the inputs."""
    expected_inputs, actual_inputs = clone_inputs(inputs), clone_inputs(inputs)
    if isinstance(function, torch.nn.Module):
        eager, compiled_source = copy.deepcopy(function), function
    else:
        eager = compiled_source = function
    compiled = compile_eagerly(compiled_source, *clone_inputs(inputs), config=config)
    expected, expected_gradients = run_and_differentiate(eager, expected_inputs)
    actual, actual_gradients = run_and_differentiate(compiled, actual_inputs)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.requires_grad == e.requires_grad
        assert a.stride() == e.stride()
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)
    for a, e in zip(actual_gradients, expected_gradients, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)
    for a, e in zip(actual_inputs, expected_inputs, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a.detach(), e.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return compiled
