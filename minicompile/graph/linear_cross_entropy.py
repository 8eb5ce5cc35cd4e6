"""`cross_entropy` of the logits of a linear head, found in the captured graph and replaced where the logits are large.

Between the head and the loss, rows may be cut out, reshaped and cast; the same is then done to the head's input. It is
replaced only when nobody else reads the logits; a refusal says why. This module must not know how the chunks are made.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from minicompile.config import Config
from minicompile.graph.patterns import Refused, argument, check_order, name_of, recognise, value_of
from minicompile.ir.graph import CapturedGraph, PatternRecord

ours = torch.ops.minicompile
LEAST_BYTES = 2**29
ROW_STEPS = ("view", "reshape", "flatten", "contiguous", "getitem", "float", "to")


class LinearCrossEntropy(torch.autograd.Function):
    """The sum of the losses; its gradients are computed with it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        """`rest` is target, ignored index, smoothing, and whether gradients are wanted."""
        losses, *gradients = ours.linear_cross_entropy(hidden, weight, bias, *rest)
        ctx.save_for_backward(*gradients)
        ctx.has_bias = bias is not None
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The stored gradients, times that of the sum."""
        found = [(part.float() * grad).to(part.dtype) for part in ctx.saved_tensors[: 2 + ctx.has_bias]]
        return (*found, *([None] * (7 - len(found))))


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, smoothing: float,
    mean: bool, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """What takes the place of the head and the loss; `dtype` is the loss's."""
    tensors = [part for part in (hidden, weight, bias) if part is not None]
    gradients = torch.is_grad_enabled() and any(part.requires_grad for part in tensors)
    total = LinearCrossEntropy.apply(hidden, weight, bias, target, ignore_index, smoothing, gradients)
    if mean:  # that of nothing is NaN, its gradients are zero
        count = (target != ignore_index).sum()
        total = (total / count.clamp(min=1)).masked_fill(count == 0, math.nan)
    return total.to(dtype)


def recognise_cross_entropy(captured: CapturedGraph, config: Config) -> tuple[CapturedGraph, tuple[PatternRecord, ...]]:
    """The graph with large heads and their losses replaced, and a record for every loss of a linear head."""
    return recognise(captured, config, "cross_entropy", "linear cross-entropy", replace_loss)


def replace_loss(module: GraphModule, loss: Node, config: Config) -> None:
    """Replace one loss and the head that feeds it, or raise `Refused`."""
    logits, target = argument(loss, 0, "input", None), argument(loss, 1, "target", None)
    steps: list[Node] = []
    head = logits
    while name_of(head) in ROW_STEPS:
        steps.append(head)
        head = head.args[0]
    hidden, weight, bias, turned = head_operands(head)
    columns = value_of(logits).shape[-1]
    if any(len(node.users) != 1 for node in (head, *steps)):
        raise Refused("the logits are used elsewhere")
    reduction, smoothing = argument(loss, 6, "reduction", "mean"), argument(loss, 7, "label_smoothing", 0.0)
    ignored = argument(loss, 4, "ignore_index", -100)
    others = argument(loss, 2, "weight", None), argument(loss, 3, "size_average", None), argument(loss, 5, "reduce", None)
    if others != (None, None, None) or reduction not in ("mean", "sum"):
        raise Refused("the loss weighs classes or is not reduced")
    check_order(head, loss)
    if value_of(logits).dim() != 2 or value_of(target).dim() != 1 or value_of(target).dtype != torch.int64:
        raise Refused("the loss is not one of rows of logits and class numbers")
    sizes = (*value_of(logits).shape, *value_of(hidden).shape)
    if not all(type(size) is int for size in sizes) or config.emulate_precision_casts:
        raise Refused("sizes vary, or eager's rounding was asked for")
    if value_of(head).dtype != value_of(hidden).dtype or value_of(head).dtype == torch.float64:
        raise Refused(f"logits in {value_of(head).dtype} of {value_of(hidden).dtype}")
    if not all(keeps_columns(step, columns) for step in steps):
        raise Refused("more than rows of the logits is changed between the head and the loss")
    large = value_of(logits).numel() * value_of(head).dtype.itemsize
    if large < LEAST_BYTES:
        raise Refused(f"the logits take {large / 2**20:.0f} MB: splitting them pays from {LEAST_BYTES / 2**20:.0f} MB")
    graph = module.graph
    with graph.inserting_before(loss):
        rows = hidden
        for step in reversed(steps):
            rows = the_same_rows(graph, step, rows, value_of(hidden).shape[-1])
        weight = graph.call_method("t", (weight,)) if turned else weight
        arguments = (rows, weight, bias, target, ignored, float(smoothing), reduction == "mean", value_of(loss).dtype)
        made = graph.call_function(linear_cross_entropy, arguments)
        made.meta.update(loss.meta)
    loss.replace_all_uses_with(made)
    for node in (loss, *steps, head):
        node.meta["replaced"] = True


def head_operands(head: Any) -> tuple[Any, Any, Any, bool]:
    """Input, weight and bias of the head, and whether the weight is (width, columns)."""
    if name_of(head) == "linear":
        return argument(head, 0, "input", None), argument(head, 1, "weight", None), argument(head, 2, "bias", None), False
    if name_of(head) == "matmul" and value_of(head.args[1]).dim() == 2:
        return head.args[0], head.args[1], None, True
    raise Refused("")


def keeps_columns(step: Node, columns: int) -> bool:
    """Whether a step leaves every row of logits whole."""
    if value_of(step).shape[-1] != columns or value_of(step.args[0]).shape[-1] != columns:
        return False
    if name_of(step) in ("float", "to"):
        return value_of(step).dtype == torch.float32 and value_of(step).device == value_of(step.args[0]).device
    if name_of(step) != "getitem":
        return True
    index = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
    whole = index[-1] == slice(None) or (len(index) < value_of(step.args[0]).dim() and Ellipsis not in index)
    return whole and all(isinstance(part, (int, slice)) or part is Ellipsis for part in index)


def the_same_rows(graph: torch.fx.Graph, step: Node, rows: Any, width: int) -> Any:
    """The step done to the head's input; casts wait for the loss."""
    if name_of(step) in ("float", "to", "contiguous"):
        return rows
    if name_of(step) == "getitem":
        return graph.node_copy(step, lambda node: rows if node is step.args[0] else node)
    return graph.call_method("reshape", (rows, *value_of(step).shape[:-1], width))
