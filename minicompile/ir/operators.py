"""The compiler's own operators in `torch.ops.minicompile`: attention and functional random numbers.

They are the vocabulary in which the graph stage speaks to lowering, so they live with the types. Each has a reference
implementation in plain torch that any device can run, and a fake one. This module must not choose kernels.

Randomness. `seeds` draws pairs of 64 bits from the device's generator: the only impure operator here. The others are pure
functions of a pair's first number, the key, and of the linear (row-major) index of the element, by Philox-4x32-10 (Salmon
et al., 2011) with counter `(index mod 2**32, index div 2**32, 0, 0)` and key `(seed mod 2**32, seed div 2**32)`, the seed
read as unsigned. With `w0..w3` the four 32-bit words of the block:

- uniform, fp32: `(w0 >> 8) * 2**-24`; fp16 `(w0 >> 21) * 2**-11`; bf16 `(w0 >> 24) * 2**-8`;
  fp64 `((w0 >> 5) * 2**26 + (w1 >> 6)) * 2**-53`. Never 1.
- normal, computed in fp32 and rounded for half types: `sqrt(-2 ln(u)) * cos(2 pi v)` with
  `u = ((w0 >> 8) + 1) * 2**-24`, `v = (w1 >> 8) * 2**-24`; fp64 the same with
  `u = ((w0 >> 5) * 2**26 + (w1 >> 6) + 1) * 2**-53`, `v = ((w2 >> 5) * 2**26 + (w3 >> 6)) * 2**-53`.
- randint: `low + w0 mod (high - low)`, for spans of at most 2**32.

Checks. `checked` gives its first argument; where the second does not hold an assertion fails, as eager refuses such values.

Attention. A query that sees no key gets zeros, or NaN (and NaN gradients) with `nan_rows`, as a softmax written out gives.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minicompile.ir.fake_mode import surely

_LIBRARY = torch.library.Library("minicompile", "DEF")
_MASK = 0xFFFFFFFF


def _define(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"minicompile::{name}", fake, lib=_LIBRARY)


def _multiply_high_low(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low words of the product of 32-bit words held in int64."""
    low_part, high_part = (a & 0xFFFF) * b, (a >> 16) * b
    middle = (low_part >> 16) + (high_part & _MASK)
    low = ((middle & 0xFFFF) << 16) | (low_part & 0xFFFF)
    high = ((high_part >> 32) << 16) + (middle >> 16)
    return high & _MASK, low


def philox_words(seed: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of the Philox-4x32-10 block of each element of `index`, as int64 tensors below 2**32."""
    c0, c1 = index & _MASK, (index >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _multiply_high_low(c0, 0xD2511F53)
        high1, low1 = _multiply_high_low(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def _words(seed: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    elements = torch.arange(math.prod(size), device=seed.device).reshape(tuple(size))
    return philox_words(seed[0], elements)


def _unit_double(high: Tensor, low: Tensor) -> Tensor:
    return (high >> 5) * 2**26 + (low >> 6)


def _seeds(count: int, *, device: torch.device) -> list[Tensor]:
    bounds = torch.iinfo(torch.int64)
    return list(torch.randint(bounds.min, bounds.max, (count, 2), dtype=torch.int64, device=device).unbind())


def _uniform_from(words: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    w0, w1, _, _ = words
    if dtype == torch.float64:
        return _unit_double(w0, w1).to(torch.float64) * 2.0**-53
    bits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    return ((w0 >> (32 - bits)).to(torch.float32) * 2.0**-bits).to(dtype)


def _normal_from(words: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    w0, w1, w2, w3 = words
    if dtype == torch.float64:
        u = (_unit_double(w0, w1) + 1).to(torch.float64) * 2.0**-53
        v = _unit_double(w2, w3).to(torch.float64) * 2.0**-53
    else:
        u = ((w0 >> 8) + 1).to(torch.float32) * 2.0**-24
        v = (w1 >> 8).to(torch.float32) * 2.0**-24
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * math.pi * v)).to(dtype)


def _random_fake(seed: Tensor, *rest: Any) -> Tensor:
    return seed.new_empty(rest[-2], dtype=rest[-1])


_define("seeds(int count, *, Device device) -> Tensor[]", _seeds, _seeds)
_define("random_uniform(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor",
        lambda seed, size, dtype: _uniform_from(_words(seed, size), dtype), _random_fake)
_define("random_normal(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor",
        lambda seed, size, dtype: _normal_from(_words(seed, size), dtype), _random_fake)
_define("random_randint(Tensor seed, int low, int high, SymInt[] size, ScalarType dtype) -> Tensor",
        lambda seed, low, high, size, dtype: (_words(seed, size)[0] % (high - low) + low).to(dtype), _random_fake)


def _checked(value: Tensor, valid: Tensor) -> Tensor:
    torch._assert_async(valid.all(), "a value out of range")
    return value.clone()


_define("checked(Tensor value, Tensor valid) -> Tensor", _checked, lambda value, valid: torch.empty_like(value))


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float, window: int,
    logsumexp: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax weights before dropout, and the log-sum-exp of the scores, in fp32 (fp64 for fp64)."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(wide)
    visible = visible_keys(query.shape[-2], key.shape[-2], is_causal, window, query.device)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    if logsumexp is None:
        logsumexp = torch.logsumexp(scores, -1)
    # Not exp(scores - logsumexp): the rounding of a log-sum-exp near 100 would be that of every weight of its row.
    return torch.softmax(scores, -1).masked_fill((logsumexp == -math.inf).unsqueeze(-1), 0.0), logsumexp


def visible_keys(queries: int, keys: int, is_causal: bool, window: int, device: torch.device) -> Tensor | None:
    """The boolean mask of a causal or windowed pattern, aligned to the top left as in PyTorch; `None` if all is seen.

    With a window of `w` keys, query `i` sees keys `i - w + 1` to `i` (and beyond `i` only if it is not causal).
    """
    if not is_causal and window <= 0:
        return None
    distance = torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    visible = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    return visible & (distance < window) if window > 0 else visible


def _repeat_heads(value: Tensor, heads: int) -> Tensor:
    return value if value.shape[-3] == heads else value.repeat_interleave(heads // value.shape[-3], -3)


def _sum_heads(value: Tensor, like: Tensor) -> Tensor:
    if value.shape[-3] == like.shape[-3]:
        return value
    groups = value.shape[-3] // like.shape[-3]
    return value.unflatten(-3, (like.shape[-3], groups)).sum(-3)


def _keep_mask(seed: Tensor | None, dropout: float, query: Tensor, key: Tensor) -> Tensor | None:
    if seed is None or dropout == 0.0:
        return None
    size = (*query.shape[:-1], key.shape[-2])
    return _uniform_from(_words(seed, size), torch.float32) >= dropout


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None,
    dropout: float, is_causal: bool, scale: float, window: int,
    nan_rows: bool = False, tokens_first: bool = False,
) -> tuple[Tensor, Tensor]:
    heads, given = query.shape[-3], value
    key, value = _repeat_heads(key, heads), _repeat_heads(value, heads)
    weights, logsumexp = attention_weights(query, key, mask, is_causal, scale, window)
    keep = _keep_mask(seed, dropout, query, key)
    if keep is not None:
        weights = torch.where(keep, weights / (1.0 - dropout), 0.0)
    out = (weights @ value.to(weights.dtype)).to(query.dtype)
    if nan_rows:
        out = out.masked_fill((logsumexp == -math.inf).unsqueeze(-1), math.nan)
    return attention_output_like(query, given, nan_rows, tokens_first).copy_(out), logsumexp.contiguous()


def attention_output_like(query: Tensor, value: Tensor, written: bool, tokens_first: bool) -> Tensor:
    """An empty dense result: in the order of its dims where attention is written by hand (a product), else as eager lays it
    out; or with the heads of a token together."""
    size = (*query.shape[:-1], value.shape[-1])
    dims = range(query.dim() - 1)
    order: Sequence[int] = memory_order(query) if not written and _fused_in_eager(query, value) else dims
    if tokens_first:
        order = [0, 2, 1]
    strides, step = [0] * query.dim(), 1
    for dim in reversed([*order, query.dim() - 1]):
        strides[dim] = step
        step = step * size[dim]
    return query.new_empty_strided(size, strides)


def memory_order(tensor: Tensor) -> Sequence[int]:
    """The dims but the last from the outermost to the innermost in memory; in their own order where that is not known for all
    values of the sizes that vary."""
    dims, strides = range(tensor.dim() - 1), tensor.stride()
    if _has_an_order(tensor):
        return sorted(dims, key=strides.__getitem__, reverse=True)
    for order in itertools.permutations(dims):
        pairs = itertools.pairwise([*(strides[dim] for dim in order), 1])
        if all(surely(outer >= inner) for outer, inner in pairs):
            return order
    return dims


def _has_an_order(tensor: Tensor) -> bool:
    """Whether the strides are known and say how the dims lie in memory."""
    return all(isinstance(stride, int) and stride > 0 for stride in tensor.stride())


def _fused_in_eager(query: Tensor, value: Tensor) -> bool:
    """Whether eager's kernel takes the operands as they are; on a CPU others go through products, which are contiguous."""
    same_width = query.shape[-1] == value.shape[-1] and query.stride(-1) == 1 and value.stride(-1) == 1
    return same_width or query.device.type != "cpu"


def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor | None,
    dropout: float, is_causal: bool, scale: float, window: int, nan_rows: bool = False,
    tokens_first: bool = False,
) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return attention_output_like(query, value, nan_rows, tokens_first), query.new_empty(query.shape[:-1], dtype=wide)


def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None,
    seed: Tensor | None, dropout: float, is_causal: bool, scale: float, window: int,
    mask_gradient: bool, nan_rows: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads = query.shape[-3]
    wide_key, wide_value = _repeat_heads(key, heads), _repeat_heads(value, heads)
    weights, _ = attention_weights(query, wide_key, mask, is_causal, scale, window, logsumexp)
    wide = weights.dtype
    if nan_rows:
        weights = weights.masked_fill((logsumexp == -math.inf).unsqueeze(-1), math.nan)
    grad = grad.to(wide)
    grad_weights = grad @ wide_value.to(wide).transpose(-1, -2)
    dropped = weights
    keep = _keep_mask(seed, dropout, query, wide_key)
    if keep is not None:
        dropped = torch.where(keep, weights / (1.0 - dropout), 0.0)
        grad_weights = torch.where(keep, grad_weights / (1.0 - dropout), 0.0)
    grad_value = dropped.transpose(-1, -2) @ grad
    delta = (grad * out.to(wide)).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - delta)
    if nan_rows and mask is not None and mask.dtype == torch.bool:
        grad_scores = grad_scores.masked_fill(~mask, 0.0)
    grad_query = grad_scores @ wide_key.to(wide) * scale
    grad_key = grad_scores.transpose(-1, -2) @ query.to(wide) * scale
    grad_mask = query.new_empty(0)
    if mask_gradient and mask is not None:
        grad_mask = grad_scores.sum_to_size(mask.shape).to(mask.dtype).contiguous()
    return (
        _gradient_like(query).copy_(grad_query),
        _gradient_like(key).copy_(_sum_heads(grad_key, key)),
        _gradient_like(value).copy_(_sum_heads(grad_value, value)),
        grad_mask,
    )


def _gradient_like(tensor: Tensor) -> Tensor:
    """Room for a gradient: dense, with the dims in memory in the tensor's order."""
    return torch.empty_like(tensor) if _has_an_order(tensor) else tensor.new_empty(tensor.shape)


def _attention_backward_fake(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor | None,
    seed: Tensor | None, dropout: float, is_causal: bool, scale: float, window: int,
    mask_gradient: bool, nan_rows: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_mask = mask.new_empty(mask.shape) if mask_gradient and mask is not None else query.new_empty(0)
    return _gradient_like(query), _gradient_like(key), _gradient_like(value), grad_mask


_define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? seed, float dropout, "
    "bool is_causal, float scale, int window, bool nan_rows=False, bool tokens_first=False) -> "
    "(Tensor out, Tensor logsumexp)",
    _attention, _attention_fake,
)
_define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "Tensor? mask, Tensor? seed, float dropout, bool is_causal, float scale, int window, "
    "bool mask_gradient, bool nan_rows=False) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_mask)",
    _attention_backward, _attention_backward_fake,
)


def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, smoothing: float,
    gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    losses = torch.nn.functional.cross_entropy(
        logits, target, ignore_index=ignore_index, label_smoothing=smoothing, reduction="none"
    )
    if not gradients:
        return losses, hidden.new_empty(0), hidden.new_empty(0), hidden.new_empty(0)
    kept, columns = target != ignore_index, logits.shape[1]
    wanted = torch.full_like(logits, smoothing / columns)
    wanted.scatter_add_(1, target.where(kept, 0)[:, None], torch.full_like(logits[:, :1], 1.0 - smoothing))
    slopes = (torch.softmax(logits, 1) - wanted).masked_fill(~kept[:, None], 0.0).to(hidden.dtype)
    of_bias = hidden.new_empty(0) if bias is None else slopes.sum(0)
    return losses, slopes @ weight, slopes.t() @ hidden, of_bias


def _linear_cross_entropy_fake(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int, smoothing: float,
    gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sizes = (hidden.shape, weight.shape, () if bias is None else bias.shape)
    of = [hidden.new_empty(size if gradients and size else 0) for size in sizes]
    return (hidden.new_empty(hidden.shape[0], dtype=torch.float32), *of)  # type: ignore[return-value]  # four in all


_define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, int ignore_index, float smoothing, "
    "bool gradients) -> (Tensor losses, Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)",
    _linear_cross_entropy, _linear_cross_entropy_fake,
)
