"""The graph stage as one list of steps: recognise, trace, simplify, split.

Nothing here knows how a step works.
"""

import dataclasses

from minicompile.config import Config
from minicompile.graph.attention_masks import recognise_masks
from minicompile.graph.linear_cross_entropy import recognise_cross_entropy
from minicompile.graph.partition import partition
from minicompile.graph.passes import simplify
from minicompile.graph.patterns import recognise_attention
from minicompile.graph.torch_interface import no_autocast
from minicompile.graph.trace import trace_joint
from minicompile.ir.graph import CapturedGraph, PartitionedGraph


def build_graph(captured: CapturedGraph, config: Config) -> PartitionedGraph:
    """Functional ATen graphs of a captured graph: a forward, and a backward where gradients are needed.

    Raises `CompileFailed` for what only eager can do (a change of an input's shape or storage).
    """
    captured, patterns = recognise_attention(captured, config)
    captured, masks = recognise_masks(captured, config)
    captured, losses = recognise_cross_entropy(captured, config)
    joint = trace_joint(captured, config)
    with no_autocast():  # the casts that it asks for stand in the graph by now
        return dataclasses.replace(partition(simplify(joint), captured, config), patterns=patterns + masks + losses)
