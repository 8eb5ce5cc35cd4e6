"""Masks given to `scaled_dot_product_attention` that are made of positions: a causal one becomes the flag `is_causal`, one
that hides nothing is dropped, and a bias is added as it is where a condition that always holds chooses it.

So no mask is computed or read, and whole blocks of hidden keys are skipped. Models of Hugging Face give such masks: under a
compiler theirs also tell packed sequences apart, by positions that count on without a jump. This module must not trace.
"""

from torch.fx import GraphModule, Node

from minicompile.config import Config
from minicompile.graph.attention import broadcasts_to
from minicompile.graph.patterns import (
    SAFE_FILL,
    Refused,
    argument,
    changes_something,
    check_order,
    holds,
    is_causal,
    name_of,
    recognise,
    value_of,
)
from minicompile.graph.position_masks import PositionReader
from minicompile.ir.graph import CapturedGraph, PatternRecord

NAME = "scaled_dot_product_attention"


def recognise_masks(captured: CapturedGraph, config: Config) -> tuple[CapturedGraph, tuple[PatternRecord, ...]]:
    """The graph with flags in the place of masks that are causal or open, and a record of each."""
    given = (argument(node, 3, "attn_mask", None) for node in captured.module.graph.nodes if name_of(node) == NAME)
    if config.attention == "aten" or not any(isinstance(mask, Node) for mask in given):
        return captured, ()
    return recognise(captured, config, NAME, "mask of positions", replace_mask)


def replace_mask(module: GraphModule, node: Node, config: Config) -> None:
    """Give one call the flag in the place of its mask, or raise `Refused`."""
    mask = argument(node, 3, "attn_mask", None)
    dropout, flag = argument(node, 4, "dropout_p", 0.0), argument(node, 5, "is_causal", False)
    if not isinstance(mask, Node) or flag is not False:
        raise Refused("")
    if config.fallback_random and dropout != 0.0:
        raise Refused("eager's random numbers were asked for")
    query, key = value_of(argument(node, 0, "query", None)), value_of(argument(node, 1, "key", None))
    sizes = query.shape[-2], key.shape[-2]
    reader = PositionReader(module, name_of, changes_something)
    bias = chosen_always(reader, mask, node)
    if not all(broadcasts_to(value_of(each).shape, (*query.shape[:-1], sizes[1])) for each in (mask, bias)):
        raise Refused("")
    band, additive = reader.band(bias), value_of(bias).is_floating_point()
    causal, hides_nothing = False, False
    if band is not None:
        seen, hidden = (0, band.outside) if additive else (True, False)
        causal = is_causal(reader, bias, sizes, seen, hidden) and (not additive or float(hidden) <= SAFE_FILL)
        hides_nothing = holds(band, seen)
    if bias is mask and not causal and not hides_nothing:
        raise Refused("")
    left = None if causal or hides_nothing else bias
    node.args = node.args[:3]
    node.kwargs = {**node.kwargs, "attn_mask": left, "dropout_p": dropout, "is_causal": causal}


def chosen_always(reader: PositionReader, mask: Node, call: Node) -> Node:
    """What `where` or `masked_fill` takes for a mask wherever it looks, if that is one tensor; else the mask."""
    name = name_of(mask)
    if name not in ("where", "masked_fill") or changes_something(mask) or len(mask.args) != 3:
        return mask
    first, second, _ = mask.args
    condition, bias = (first, second) if name == "where" and mask.op == "call_function" else (second, first)
    band = reader.band(condition)
    if band is None or not holds(band, name == "where"):
        return mask
    if not isinstance(bias, Node) or value_of(bias).dtype != value_of(mask).dtype or value_of(bias).dim() < 2:
        return mask
    check_order(mask, call)
    return bias
