"""Masks given to `scaled_dot_product_attention` that are made of positions: a causal one becomes the flag `is_causal`, one
that hides nothing is dropped, and a bias is added as it is where a condition that always holds chooses it.

So no mask is computed or read, and whole blocks of hidden keys are skipped. Models of Hugging Face give such masks: under a
compiler theirs also tell packed sequences apart, by positions that count on without a jump. This module must not trace.
"""

import math
from typing import Any

from torch.fx import GraphModule, Node

from minicompile.config import Config
from minicompile.graph.attention import biased_causal_attention, broadcasts_to
from minicompile.graph.patterns import (
    CASTS,
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
from minicompile.graph.position_masks import VIEWS, PositionReader
from minicompile.ir.graph import CapturedGraph, PatternRecord

NAME = "scaled_dot_product_attention"


def recognise_masks(captured: CapturedGraph, config: Config) -> tuple[CapturedGraph, tuple[PatternRecord, ...]]:
    """The graph with flags in the place of masks that are causal or open, and a record of each."""
    given = (argument(node, 3, "attn_mask", None) for node in captured.module.graph.nodes if name_of(node) == NAME)
    if config.attention == "aten" or not any(isinstance(mask, Node) for mask in given):
        return captured, ()
    return recognise(captured, config, NAME, "mask of positions", replace_mask)


def replace_mask(module: GraphModule, node: Node, config: Config) -> None:
    """Give one call the flag, the bias alone or both in the place of its mask, or raise `Refused`."""
    mask = argument(node, 3, "attn_mask", None)
    dropout, flag = argument(node, 4, "dropout_p", 0.0), argument(node, 5, "is_causal", False)
    if not isinstance(mask, Node) or flag is not False:
        raise Refused("")
    if config.fallback_random and dropout != 0.0:
        raise Refused("eager's random numbers were asked for")
    query, key = value_of(argument(node, 0, "query", None)), value_of(argument(node, 1, "key", None))
    sizes = query.shape[-2], key.shape[-2]
    reader = PositionReader(module, name_of, changes_something)
    bias, causal = chosen_bias(reader, mask, node, sizes)
    if not all(broadcasts_to(value_of(each).shape, (*query.shape[:-1], sizes[1])) for each in (mask, bias)):
        raise Refused("")
    band, hides_nothing = reader.band(bias), False
    if band is not None:
        additive = value_of(bias).is_floating_point()
        seen, hidden = (0, band.outside) if additive else (True, False)
        hides_nothing = holds(band, seen)
        if is_causal(reader, bias, sizes, seen, hidden) and (not additive or float(hidden) <= SAFE_FILL):
            causal, hides_nothing = True, True
    if bias is mask and not hides_nothing:
        raise Refused("")
    if causal and not hides_nothing:
        node.target = biased_causal_attention
    left = None if hides_nothing else bias
    node.args = node.args[:3]
    node.kwargs = {**node.kwargs, "attn_mask": left, "dropout_p": dropout, "is_causal": causal}


def chosen_bias(reader: PositionReader, mask: Node, call: Node, sizes: tuple[Any, Any]) -> tuple[Node, bool]:
    """The tensor that `where` or `masked_fill` takes for a mask, everywhere or up to each query's own position, and whether
    the latter; else the mask."""
    name = name_of(mask)
    if name not in ("where", "masked_fill") or changes_something(mask) or len(mask.args) != 3:
        return mask, False
    first, second, hidden = mask.args
    condition, bias = (first, second) if name == "where" and mask.op == "call_function" else (second, first)
    band, shown = reader.band(condition), name == "where"
    if band is None or not isinstance(bias, Node):
        return mask, False
    always = holds(band, shown)
    if not always and not (is_causal(reader, condition, sizes, shown, not shown) and hides(reader, hidden, bias)):
        return mask, False
    if value_of(bias).dtype != value_of(mask).dtype or value_of(bias).dim() < 2:
        return mask, False
    check_order(mask, call)
    return bias, not always


def hides(reader: PositionReader, fill: Any, bias: Node) -> bool:
    """Whether a number, or a tensor of one, hides a score where the bias, in the others' place, leaves some: a number that is
    finite does so beside a table of learned values, but not beside a bias that may hide as much itself."""
    if isinstance(fill, Node):
        band = reader.band(fill)
        fill = None if band is None or band.edge is not None else band.inside.item()
    if type(fill) not in (int, float):
        return False
    return fill == -math.inf or fill <= SAFE_FILL and is_looked_up(bias)


def is_looked_up(node: Node) -> bool:
    """Whether the values are those of an embedding's table, arranged anew."""
    while name_of(node) in (*VIEWS, *CASTS, "permute", "transpose") and isinstance(node.args[0], Node):
        node = node.args[0]
    return name_of(node) == "embedding"
