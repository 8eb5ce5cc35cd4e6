"""Masks given to `scaled_dot_product_attention` that are made of positions: a causal one becomes the flag `is_causal`, one
that hides nothing is dropped.

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
    if not broadcasts_to(value_of(mask).shape, (*query.shape[:-1], sizes[1])):
        raise Refused("")
    reader = PositionReader(module, name_of, changes_something)
    band, additive = reader.band(mask), value_of(mask).is_floating_point()
    if band is None:
        raise Refused("")
    seen, hidden = (0, band.outside) if additive else (True, False)
    causal = is_causal(reader, mask, sizes, seen, hidden) and (not additive or float(hidden) <= SAFE_FILL)
    if not causal and not holds(band, seen):
        raise Refused("")
    node.args = node.args[:3]
    node.kwargs = {**node.kwargs, "attn_mask": None, "dropout_p": dropout, "is_causal": causal}
