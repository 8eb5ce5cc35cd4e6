"""Values of tensors that are known while tracing: those that the graph makes of nothing but constants, in the host's memory.

They are computed as eager computes them, where Python asks for them. Must not know how they were asked for.
"""

from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minicompile.capture.output_graph import OutputGraph, has_plain_formula
from minicompile.capture.side_effects import MISSING
from minicompile.capture.torch_interface import any_autocast
from minicompile.capture.tracer import Tracer
from minicompile.ir.fake_mode import storage_key

ASKING = frozenset({"item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__", "is_nonzero"})
"""The methods of a tensor that give its values to Python."""
LONGEST, LARGEST = 100, 4096
"""From how many operations a value is computed while tracing, and how many elements each may give."""


class NotConstant(Exception):
    """A value depends on more than constants."""


class ConstantsOnly(TorchDispatchMode):
    """Refuses operators whose result no constant decides: random numbers, memory as it is, and those of other libraries."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.__name__:
            raise NotConstant
        return func(*args, **(kwargs or {}))


def known_value(tracer: Tracer, tensor: Any, name: str) -> Any:
    """What a method of a tensor that asks for its values gives, or `MISSING` where only a graph that has run knows it."""
    entry = tracer.graph.traced.get(id(tensor))
    if name not in ASKING or entry is None or entry.node is None or any_autocast() or tracer.graph.inside is not None:
        return MISSING
    try:
        steps = steps_from_constants(tracer.graph, entry.node)
    except NotConstant:
        return MISSING
    try:
        with ConstantsOnly():
            value = getattr(computed(steps), name)()
    except Exception:  # NotConstant, or what eager raises: it raises that behind a graph break
        return MISSING
    return tracer.made(value) if isinstance(value, list) else value


def steps_from_constants(graph: OutputGraph, last: torch.fx.Node) -> list[torch.fx.Node]:
    """The operations that make a value of constants, in order."""
    found, waiting = {last}, [last]
    while waiting:
        node = waiting.pop()
        if not is_step(graph, node) or len(found) > LONGEST:
            raise NotConstant
        waiting.extend(source for source in node.all_input_nodes if source not in found)
        found.update(node.all_input_nodes)
    if any(node.target is torch.set_autocast_enabled for node in graph.graph.nodes):  # which casts inside of operations
        raise NotConstant
    return [node for node in graph.graph.nodes if node in found]


def is_step(graph: OutputGraph, node: torch.fx.Node) -> bool:
    """Whether a node is an operation of PyTorch's on the host whose result, a small one, nothing has written since."""
    if node.op not in ("call_function", "call_method") or node.graph is not graph.graph or not has_plain_formula(node):
        return False
    return all(isinstance(part, torch.Tensor) and is_small(part) and is_unwritten(graph, part) for part in parts_of(node))


def parts_of(node: torch.fx.Node) -> list[Any]:
    """The tensors that an operation gives."""
    value = node.meta.get("example_value")
    return tree_leaves(list(value) if isinstance(value, (tuple, list)) else value)


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in the host's memory and has few elements."""
    return tensor.device.type == "cpu" and type(tensor.numel()) is int and tensor.numel() <= LARGEST


def is_unwritten(graph: OutputGraph, tensor: torch.Tensor) -> bool:
    """Whether a tensor is as the operation that gave it left it."""
    entry = graph.traced.get(id(tensor))
    if tensor.is_inference() or entry is not None and entry.version != tensor._version:
        return False
    return storage_key(tensor) not in graph.fake_mode.written


def computed(steps: list[torch.fx.Node]) -> torch.Tensor:
    """What the last of some operations gives in eager, if each gives what the graph expects of it."""
    values: dict[torch.fx.Node, Any] = {}
    for node in steps:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        target: Any = node.target
        value = getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
        given = tree_leaves(list(value) if isinstance(value, (tuple, list)) else value)
        if [*map(looks_of, given)] != [*map(looks_of, parts_of(node))]:
            raise NotConstant
        values[node] = value
    result: torch.Tensor = values[steps[-1]]
    return result


def looks_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What is known of a tensor without its values."""
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()
