"""`scaled_dot_product_attention` as one operator of the graph, forward and backward.

The interpreter of the captured graph calls `attention_or_none` in the function's place. What the operator does not cover
keeps PyTorch's own path. This module must not recognise attention written by hand: see `patterns.py`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from minicompile.graph import torch_interface
from minicompile.graph.random_numbers import FLOATS, Seeds

ours = torch.ops.minicompile
LARGEST_HEAD = 256
"""Of our kernels. PyTorch's fused ones take wider heads, or eager makes products of them."""
SDPA = (torch.nn.functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)


class Attention(torch.autograd.Function):
    """`minicompile::attention` with its gradient."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """(query, key, value, mask, seed, dropout, is_causal, scale, window, nan_rows) to the result."""
        out, logsumexp = ours.attention(*args)
        query, key, value, mask, seed = args[:5]
        ctx.nan_rows = args[9]
        ctx.save_for_backward(query, key, value, out, logsumexp, mask, seed)
        ctx.rest = args[5:9]
        ctx.needs_mask = mask is not None and ctx.needs_input_grad[3]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients of query, key, value and mask."""
        found = ours.attention_backward(grad, *ctx.saved_tensors, *ctx.rest, ctx.needs_mask, ctx.nan_rows)
        return (*found[:3], found[3] if ctx.needs_mask else None, *([None] * 6))


CALLS = (ours.attention.default, ours.attention_backward.default)


def calls_alone(module: GraphModule) -> GraphModule:
    """The calls of attention in a graph, each kind once, as a graph whose inputs are what they take and that returns nothing."""
    graph, kinds, copies = Graph(), set[str](), dict[Node, Node]()
    for node in module.graph.nodes:
        if node.target in CALLS and all(isinstance(used.meta["val"], Tensor) for used in node.all_input_nodes):
            kind = repr(map_arg(node.args, lambda used: kind_of(used.meta["val"])))
            if kind not in kinds:
                kinds.add(kind)
                copies |= {used: graph.placeholder(used.name) for used in node.all_input_nodes if used not in copies}
                copies[node] = graph.call_function(node.target, map_arg(node.args, copies.__getitem__), node.kwargs)
    for old, new in copies.items():
        new.meta = dict(old.meta)
    graph.output(())
    return GraphModule({}, graph)


def kind_of(value: Tensor) -> str:
    """What the code for a call depends on of a tensor."""
    return f"{value.dtype} {tuple(value.shape)} {value.stride()}"


def attention_or_none(
    seeds: Seeds | None, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    *, biased: bool = False,
) -> Tensor | None:  # fmt: skip
    """The result as one operator, or `None` for arguments that PyTorch's own path must treat.

    `biased`: a mask may come with `is_causal`, as in `biased_causal_attention`.
    """
    query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    if is_causal and attn_mask is not None and not biased or dropout_p > 0.0 and seeds is None:
        return None
    if not _covered(query, key, value, attn_mask, dropout_p, enable_gqa):
        return None
    if attn_mask is not None:
        attn_mask = _with_adjacent_columns(attn_mask)
    added = query.dim() == 3
    if added:
        query, key, value = (part.unsqueeze(1) for part in (query, key, value))
        attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    seed = _drawn(seeds, dropout_p, query.device)
    out = Attention.apply(query, key, value, attn_mask, seed, dropout_p, is_causal, scale, 0, False)
    return out.squeeze(1) if added else out


def biased_causal_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, dropout_p: float = 0.0, is_causal: bool = True,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`, causal and with a bias: what `attention_masks.py` puts in the place of one whose mask is
    the bias where a causal condition holds. PyTorch's takes one of the two."""
    shown = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    mask = torch.where(shown, attn_mask, -math.inf)
    return SDPA[0](query, key, value, mask, dropout_p, scale=scale, enable_gqa=enable_gqa)


def _drawn(seeds: Seeds | None, dropout: float, device: torch.device) -> Tensor | None:
    """The seed of a dropout."""
    return None if seeds is None or dropout == 0.0 else torch_interface.to_functional(seeds.draw(device))


def _covered(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Any, gqa: bool
) -> bool:
    tensors = [query, key, value]
    if query.dim() not in (3, 4) or any(t.dim() != query.dim() or t.dtype not in FLOATS for t in tensors):
        return False
    if any(isinstance(t.shape[-1], torch.SymInt) or t.shape[-1] > LARGEST_HEAD for t in tensors):
        return False
    if len({(t.dtype, t.device) for t in tensors}) != 1 or any(t.numel() == 0 for t in tensors):
        return False
    if not isinstance(dropout, float) or not 0.0 <= dropout < 1.0:
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    same_heads = query.dim() == 3 or query.shape[1] == key.shape[1] == value.shape[1]
    heads_fit = same_heads or gqa and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    scores = (*query.shape[:-1], key.shape[-2])
    mask_fits = mask is None or mask.dtype in (torch.bool, query.dtype) and broadcasts_to(mask.shape, scores)
    return query.shape[0] == key.shape[0] == value.shape[0] and heads_fit and mask_fits


def _with_adjacent_columns(mask: Tensor) -> Tensor:
    """A mask whose rows lie in one piece, as the kernels read them best: a position bias is often an embedding, heads last."""
    strides = mask.stride()
    if isinstance(strides[-1], torch.SymInt) or strides[-1] in (0, 1):
        return mask
    for dim in [dim for dim, stride in enumerate(strides) if torch_interface.surely_equal(stride, 0)]:
        mask = mask.narrow(dim, 0, 1)
    return mask.contiguous()


def broadcasts_to(shape: Any, target: tuple[int, ...]) -> bool:
    """Whether a mask of at least two dims expands to the scores."""
    if len(shape) > len(target) or len(shape) < 2:
        return False
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return all(torch_interface.surely_equal(size, 1) or size == wanted for size, wanted in pairs)


def _autocast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> list[Any]:
    """The arguments in the dtypes that autocast gives them."""
    tensors, kind = [query, key, value, mask], query.device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


def written_attention(
    seeds: Seeds | None, query: Tensor, key: Tensor, value: Tensor, keep: tuple[Tensor, ...], bias: Tensor | None,
    scale: float, is_causal: bool, dropout: float, uniform: bool = False,
) -> Tensor:
    """What `patterns.py` puts in the place of attention written by hand.

    Rows that see no key give NaN, as there; with `uniform` (hidden scores are a number) they weigh all keys alike, as a
    query of zeros that sees everything does.
    """
    rank, batch = query.dim(), query.shape[:-2]
    if rank == 2:
        query, key, value = (part.unsqueeze(0) for part in (query, key, value))
    query, key, value = (_in_four_dims(part, part.shape[:-2]) for part in (query, key, value))
    keep = tuple(_in_four_dims(mask, batch) for mask in keep)
    bias = None if bias is None else _in_four_dims(bias, batch)
    mask = None
    for part in keep:
        mask = part if mask is None else mask & part
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, -math.inf)
    if uniform and mask is not None:
        alive = mask.any(-1, keepdim=True)
        query, mask = torch.where(alive, query, 0.0), mask | ~alive
    if mask is not None:
        mask = _with_adjacent_columns(mask)
    seed = _drawn(seeds, dropout, query.device)
    out = Attention.apply(query, key, value, mask, seed, dropout, is_causal, scale, 0, True)
    out = out.clone()  # a product may be written in place; the backward reads what was there before. A pass takes it away
    if rank > 4:
        return out.unflatten(0, batch[:-1])
    out = out.squeeze(1) if rank < 4 else out
    return out.squeeze(0) if rank == 2 else out


def _in_four_dims(part: Tensor, batch: Sequence[Any]) -> Tensor:
    """A part of attention as (batch, heads, rows, columns), or something that broadcasts to it.

    A single dim before the rows is the batch. Of more than two, the last is the heads', the others become one, along which
    nothing is repeated in memory that is the same in all of them.
    """
    if len(batch) < 2:
        return part.unsqueeze(1) if part.dim() == 3 else part
    if part.dim() < 4 or len(batch) == 2:
        return part
    if all(type(size) is int and size == 1 for size in part.shape[:-3]):
        return part.reshape(1, *part.shape[-3:])
    return part.expand(*batch[:-1], *part.shape[-3:]).flatten(0, -4)
