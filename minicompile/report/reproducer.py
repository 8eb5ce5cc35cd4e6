"""A failing graph, made small and written down so that it fails again by itself.

The minimiser looks for the first operation whose result is wrong, then takes away what comes before it, replaced by its
recorded values. This module must not judge results: it is handed the test.
"""

import dataclasses
import pathlib
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from minicompile.ir.graph import CapturedGraph, GraphInput, GraphModule, ancestors, python_text
from minicompile.report.accuracy import node_values
from minicompile.report.sandbox import copied, plain

MOST_ATTEMPTS = 60
Disagree = Callable[[Sequence[Any], Sequence[Any]], bool]


def minimised(
    captured: CapturedGraph, inputs: list[Any], compile_again: Callable[[CapturedGraph], Any], disagree: Disagree
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The smallest part of a captured graph that was found to fail still, with its inputs; the whole graph if none is."""
    values = node_values(captured.module, inputs, False)
    found = Search(captured, values, compile_again, disagree).run() if values is not None else None
    return found or (captured.module, inputs)


def as_captured(captured: CapturedGraph, backward: torch.fx.GraphModule) -> CapturedGraph:
    """A backward as if it had been captured: its operators run without gradients."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(backward.graph, copies)
    graph.output(torch.fx.node.map_arg(backward.graph.output_node().args[0], copies.__getitem__))
    for node in graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    return dataclasses.replace(captured, module=GraphModule(backward, graph))


class Search:
    """The search for one graph: which nodes it keeps, everything else being recorded values."""

    def __init__(self, captured: CapturedGraph, values: dict[str, Any], compile_again: Any, disagree: Disagree) -> None:
        self.captured, self.values = captured, values
        self.compile_again, self.disagree = compile_again, disagree
        self.nodes = [node for node in captured.module.graph.nodes if node.op.startswith("call_")]
        self.attempts = 0

    def run(self) -> tuple[torch.fx.GraphModule, list[Any]] | None:
        """First wrong node by bisection, then fewer and fewer nodes before it; `None` if none is wrong."""
        candidates = [node for node in self.nodes if isinstance(self.values.get(node.name), torch.Tensor)]
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            last = candidates[middle]
            low, high = (low, middle) if self.fails(self.before(last), last) else (middle + 1, high)
        if low == len(candidates):
            return None
        last, kept = candidates[low], [candidates[low]]
        everything = self.before(last)
        while not self.fails(kept, last) and len(kept) < len(everything):
            kept = [node for node in everything if node in kept or any(user in kept for user in node.users)]
        for node in [node for node in kept if node is not last]:
            fewer = [other for other in kept if other is not node]
            kept = fewer if self.fails(fewer, last) else kept
        graph, values = self.part(kept, last)
        return graph.module, values

    def before(self, last: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes that a node needs, itself last, in order."""
        needed = ancestors([last])
        return [node for node in self.nodes if node in needed]

    def part(self, kept: Iterable[torch.fx.Node], last: torch.fx.Node) -> tuple[CapturedGraph, list[Any]]:
        """The graph of some nodes, everything else they read becoming an input, and its inputs."""
        graph, copies = torch.fx.Graph(), {}
        inputs: list[GraphInput] = []
        values: list[Any] = []
        kept = list(kept)
        read = dict.fromkeys(node for one in kept for node in one.all_input_nodes if node not in kept)
        for node in read:
            if node.op == "get_attr":
                copies[node] = graph.node_copy(node)
                continue
            example = node.meta["example_value"]
            copies[node] = graph.placeholder(node.name)
            copies[node].meta.update(example_value=example, location=None)
            inputs.append(GraphInput(copies[node].name, node.name, "tensor", example))
            values.append(self.values.get(node.name))
        for node in kept:
            copies[node] = graph.node_copy(node, lambda other: copies[other])
        graph.output((copies[last],))
        module = GraphModule(self.captured.module, graph)
        return dataclasses.replace(
            self.captured, module=module, inputs=tuple(inputs), guards=(), grad_enabled=False, name=last.name
        ), values

    def fails(self, kept: Iterable[torch.fx.Node], last: torch.fx.Node) -> bool:
        """Whether the graph of some nodes still gives another value than eager."""
        self.attempts += 1
        if self.attempts > MOST_ATTEMPTS:
            return False
        try:
            graph, values = self.part(kept, last)
            with torch.no_grad():
                expected = graph.module(*copied(values))
                return self.disagree(self.compile_again(graph)(*copied(values)), expected)
        except Exception:  # a part that does not compile by itself is no smaller example
            return False


def write_reproducer(
    directory: pathlib.Path, name: str, module: torch.fx.GraphModule, inputs: list[Any], kernel: str, source: str
) -> pathlib.Path | None:
    """A folder with `repro.py`, its inputs, and the kernel; `None` if it cannot be written."""
    number = 0
    try:
        while (folder := directory / f"{name}_{number}").exists():
            number += 1
        folder.mkdir(parents=True)
        constants = {node.target: getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"}
        torch.save({"inputs": [plain(value) for value in inputs], "constants": constants}, folder / "inputs.pt")
        (folder / "repro.py").write_text(repro_text(name, module, kernel))
        if source:
            (folder / "kernel.py").write_text(f"# {kernel}\nimport triton\nimport triton.language as tl\n\n\n{source}\n")
    except OSError:
        return None
    return folder


def repro_text(name: str, module: torch.fx.GraphModule, kernel: str) -> str:
    """A script that runs the graph both ways and prints the differences."""
    body, used = python_text(module.graph)
    imports = []
    for alias, value in used.items():
        if isinstance(value, types.ModuleType):
            imports.append(f"import {value.__name__}" + (f" as {alias}" if alias != value.__name__ else ""))
        elif alias in ("device", "inf", "nan"):
            imports.append(f"from torch import {alias}")
        elif getattr(value, "__module__", None) and alias != "NoneType":
            imports.append(f"from {value.__module__} import {getattr(value, '__qualname__', alias)} as {alias}")
    return f'''"""{name}: compiled and eager differ; the first deviation was seen in {kernel}."""

import pathlib
import types

import minicompile
import torch
{chr(10).join(sorted({line for line in imports if line not in ("import torch", "import minicompile")}))}

saved = torch.load(pathlib.Path(__file__).with_name("inputs.pt"), weights_only=False)
self = types.SimpleNamespace(**saved["constants"])


{body}


def run(function):
    with torch.no_grad():
        return function(self, *[v.clone() if isinstance(v, torch.Tensor) else v for v in saved["inputs"]])


for number, (eager, found) in enumerate(zip(run(forward), run(minicompile.compile(forward)))):
    print(f"value {{number}}: largest difference {{(eager.double() - found.double()).abs().max().item():.3g}}")
'''
