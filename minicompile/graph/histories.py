"""What autograd keeps for eager's backward: which outputs free each other's histories, and whose changes it notices.

A compiled backward keeps other values than eager's, so it has to be told both. This module must not run a backward.
"""

import collections
import contextlib
import functools
from collections.abc import Container
from typing import Any

import torch

from minicompile.graph import torch_interface
from minicompile.graph.recorder import tensors_of


def saved_in_histories(outputs: list[torch.Tensor]) -> tuple[list[int], dict[int, int]]:
    """For each output the bits of those that share a node with it which saved a tensor; for each storage of a saved tensor
    the bits of the outputs that need it."""
    reached: dict[Any, int] = collections.defaultdict(int)
    for number, output in enumerate(outputs):
        for node in history_of(output):
            reached[node] |= 1 << number
    shared, storages = [0] * len(outputs), dict[int, int]()
    for node, bits in reached.items():
        saved = saved_tensors(node)
        shared = [others | bits if saved and bits >> number & 1 else others for number, others in enumerate(shared)]
        for key in map(torch_interface.storage_key, saved):
            storages[key] = storages.get(key, 0) | bits
    return shared, storages


def history_of(output: torch.Tensor, ends: Container[Any] = ()) -> set[Any]:
    """The nodes of autograd behind an output, without those behind the `ends`."""
    found: set[Any] = set()
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack += [further for further, _ in node.next_functions if node not in ends]
    return found


def saved_tensors(node: Any) -> list[torch.Tensor]:
    """The tensors that a node of autograd saved, but for those that have been changed since."""
    found: list[torch.Tensor] = []
    for name in names_of_saved(node.__class__):
        with contextlib.suppress(RuntimeError):  # the trace's own backward refuses it
            found += tensors_of(getattr(node, name))
    return found


@functools.cache
def names_of_saved(kind: Any) -> tuple[str, ...]:
    """The attributes of a kind of node that hold what it saved."""
    if hasattr(kind, "saved_tensors"):  # a function written in Python
        return ("saved_tensors",)
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))
