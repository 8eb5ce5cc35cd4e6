"""Attention as people write it: each form through the whole compiler, recognised or not, with eager's values and gradients.

`CAUSAL`, `MASK` and `PLAIN` say what the operator was given; a string is the reason of a refusal (empty: not even considered).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minicompile
from minicompile.api import compiled_function
from tests.differential import check, leaf

T, D = 6, 8
PLAIN, CAUSAL, MASK = "plain", "causal", "mask"
INF, LEAST = float("-inf"), torch.finfo(torch.float32).min
TRIL = torch.ones(16, 16, dtype=torch.bool).tril().view(1, 1, 16, 16)


def four(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [leaf(2, 4, T, D, dtype=dtype) for _ in range(3)]


def three() -> list[torch.Tensor]:
    return [leaf(3, T, D) for _ in range(3)]


def grouped() -> list[torch.Tensor]:
    return [leaf(2, 4, T, D), leaf(2, 2, T, D), leaf(2, 2, T, D)]


def attend(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1) @ v


def tril(x: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """The mask of causal attention over the length of `x`."""
    return torch.ones(x.size(-2), x.size(-2), dtype=torch.bool).tril(offset)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(D)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None, :, :].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def shown(queries: torch.Tensor, keys: int) -> torch.Tensor:
    """A mask by queries alone, as bidirectional ones of Hugging Face are."""
    return queries[None, None, :, None].expand(1, 1, -1, keys)


def of_sequences(q, k, v, positions, before=1):
    """Causal attention inside of sequences that lie behind each other: a new one begins where positions do not count on."""
    number = (torch.diff(positions, prepend=positions[:, :1] - before, dim=-1) != 1).cumsum(-1)
    rows, columns = torch.arange(q.size(2)), torch.arange(k.size(2))
    each = torch.arange(number.size(0))[:, None, None, None]
    together = number[each, rows[None, None, :, None]] == number[each, columns[None, None, None, :]]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(columns <= rows[:, None])[None, None] & together)


def llama(q, k, v):
    k, v = repeated(k, 2), repeated(v, 2)
    weights = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
    weights = weights + torch.full((q.size(2), k.size(2)), LEAST).triu(1)[None, None]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def gpt2(q, k, v):
    weights = torch.matmul(q, k.transpose(-1, -2))
    weights = weights / torch.full([], v.size(-1) ** 0.5, dtype=weights.dtype, device=weights.device)
    seen = TRIL[:, :, k.size(-2) - q.size(-2) : k.size(-2), : k.size(-2)]
    weights = torch.where(seen, weights.to(weights.dtype), torch.full([], LEAST, dtype=weights.dtype))
    return torch.matmul(F.softmax(weights, dim=-1).type(v.dtype), v)


def bert(q, k, v):
    hidden = (1.0 - torch.ones(q.size(0), q.size(2))[:, None, None, :]) * LEAST
    weights = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D) + hidden
    return torch.matmul(nn.functional.softmax(weights, dim=-1), v).permute(0, 2, 1, 3).contiguous()


def t5(q, k, v):
    weights = torch.matmul(q, k.transpose(3, 2))
    t = q.size(2)
    weights += (torch.arange(t)[None, :] - torch.arange(t)[:, None]).abs().neg().float().view(1, 1, t, t)
    weights = F.softmax(weights.float(), dim=-1).type_as(weights)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def bloom(q, k, v):
    q, k, v = (x.reshape(-1, q.size(2), D) for x in (q, k, v))
    weights = torch.baddbmm(torch.empty(q.size(0), q.size(1), q.size(1)), q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
    return torch.bmm(F.softmax(weights, -1), v)


def alibi(q, k, v):
    q, k, v = (x.reshape(8, T, D) for x in (q, k, v))
    return torch.bmm(F.softmax(torch.baddbmm(torch.ones(8, 1, T), q, k.transpose(1, 2), beta=1, alpha=0.3), -1), v)


def in_place(q, k, v):
    weights = q @ k.transpose(-2, -1)
    weights *= D**-0.5
    weights.masked_fill_(~tril(q), INF)
    return attend(weights, v)


def heads_last(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3, -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def ellipsis(q, k, v):
    weights = torch.softmax(torch.einsum("...qd,...kd->...qk", q, k), -1)
    return torch.einsum("...qk,...kd->...qd", weights, v)


def in_five_dims(q, k, v, change=lambda raw: raw):
    q, k, v = (x.view(2, 2, 2, T, D) for x in (q, k, v))
    return attend(change(q @ k.mT), v)


def windows(q, k, v):
    """Windows and heads of a picture, in six dims, whose batch dims do not lie together."""
    q, k, v = (x.view(2, 2, 2, 2, T // 2, D).permute(2, 1, 3, 0, 4, 5) for x in (q, k, v))
    bias = q[:1, :, :1, :, :, :1] * torch.arange(T // 2)
    return torch.einsum("a b c h i j, a b c h j d -> a b c h i d", torch.softmax(q @ k.mT * 0.3 + bias, -1), v)


def both_results(q, k, v):
    weights = torch.softmax(scores(q, k), -1)
    return weights @ v, weights


def looked_at_and_dropped(q, k, v):
    raw = scores(q, k)
    looked_at = [raw.clone(), raw[..., 0], raw.sum(-1)]
    weights = torch.softmax(raw, -1)
    looked_at += [weights.detach().mean(1), weights.transpose(1, 2).reshape(-1), weights * 2]
    return weights @ v


def changed_through_a_view(q, k, v):
    raw = scores(q, k)
    raw[..., 0].mul_(2)
    return attend(raw, v)


def dropped_and_returned(q, k, v):
    weights = F.dropout(torch.softmax(scores(q, k), -1), 0.0, True)
    return weights @ v, weights


def changed_before(q, k, v):
    keys = k.repeat_interleave(2, 1)
    changed = q * 1.0
    weights = changed @ keys.mT
    return attend(weights, v.repeat_interleave(2, 1))


def by_hand(q, k, v):
    exponentials = torch.exp(scores(q, k) - scores(q, k).amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True) @ v


class Buffered(nn.Module):
    """A causal mask in a buffer, sliced to the length of the call."""

    def __init__(self, mask: torch.Tensor, fill: float) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.fill = fill

    def forward(self, q, k, v):
        weights = scores(q, k)
        return attend(weights.masked_fill(self.mask[:, :, : q.size(2), : q.size(2)] == 0, self.fill), v)


def distances(q):
    at = torch.arange(q.size(2), device=q.device)
    return torch.where((at.view(-1, 1) - at) < 0, LEAST, 0.0).unsqueeze(0)


def square_subsequent(length):
    """As a tutorial of PyTorch writes it."""
    mask = (torch.triu(torch.ones(length, length)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, INF).masked_fill(mask == 1, 0.0)


def written_mask(q, k, v):
    mask = tril(q)
    first = mask[0]
    first.fill_(True)
    return attend(scores(q, k).masked_fill(~mask, INF), v)


LEFT_PADDED = torch.zeros(2, 1, 1, T)
LEFT_PADDED[0, ..., :2] = INF
PADDING = torch.ones(2, 1, 1, T, dtype=torch.bool)
PADDING[0, ..., :2] = False
DEAD = torch.ones(2, 1, T, T, dtype=torch.bool)
DEAD[0, 0, 2] = False

Form = tuple[Callable[..., Any], list[torch.Tensor], str]
FORMS: dict[str, Form] = {
    "matmul": (lambda q, k, v: attend(torch.matmul(q, k.transpose(-2, -1)), v), four(), PLAIN),
    "operator and mT": (lambda q, k, v: attend(q @ k.mT * 0.3, v), four(), PLAIN),
    "three dims, bmm": (lambda q, k, v: torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), 2), v), three(), PLAIN),
    "two dims": (lambda q, k, v: attend(q[0, 0] @ k[0, 0].transpose(0, 1) * 0.3, v[0, 0]), four(), PLAIN),
    "a vector": (lambda q, k, v: attend(k[0, 0] @ q[0, 0, 0], v[0, 0]), four(), "a product with a vector"),
    "einsum, three dims": (
        lambda q, k, v: torch.einsum("bqk,bkd->bqd", torch.softmax(torch.einsum("bqd,bkd->bqk", q, k), -1), v), three(), PLAIN),
    "einsum, heads last": (heads_last, four(), PLAIN),
    "einsum with an ellipsis": (ellipsis, four(), PLAIN),
    "scale before": (lambda q, k, v: attend((q * D**-0.5) @ k.mT, v), four(), PLAIN),
    "scale of the keys": (lambda q, k, v: attend(q @ (k / 2.8).transpose(-2, -1), v), four(), PLAIN),
    "scale in a tensor": (lambda q, k, v: attend(q @ k.mT / torch.sqrt(torch.tensor(8.0)), v), four(), PLAIN),
    "scale on the left": (lambda q, k, v: attend(0.3 * (q @ k.mT), v), four(), PLAIN),
    "functions of torch": (
        lambda q, k, v: F.softmax(torch.div(torch.matmul(q, k.transpose(-2, -1)), math.sqrt(D)), dim=-1).matmul(v), four(), PLAIN),
    "module": (lambda q, k, v: nn.Softmax(dim=-1)(scores(q, k)) @ v, four(), PLAIN),
    "fp32 softmax of bf16": (
        lambda q, k, v: torch.softmax(scores(q, k).float(), -1).to(v.dtype) @ v, four(torch.bfloat16), PLAIN),
    "softmax with a dtype": (
        lambda q, k, v: F.softmax(scores(q, k), -1, dtype=torch.float32).type_as(v) @ v, four(torch.bfloat16), PLAIN),
    "dropout of nothing": (lambda q, k, v: F.dropout(torch.softmax(scores(q, k), -1), 0.0, True) @ v, four(), PLAIN),
    "dropout that is off": (lambda q, k, v: F.dropout(torch.softmax(scores(q, k), -1), 0.5, False) @ v, four(), PLAIN),
    "baddbmm (Bloom)": (bloom, four(), PLAIN),
    "repeat_interleave": (
        lambda q, k, v: attend(scores(q, k.repeat_interleave(2, 1)), v.repeat_interleave(2, dim=1)), grouped(), PLAIN),
    "repeat_interleave after a change": (changed_before, grouped(), PLAIN),
    "repeated values only": (lambda q, k, v: attend(scores(q, k), v.repeat_interleave(2, 1)), [*four()[:2], leaf(2, 2, T, D)], PLAIN),
    "Llama": (llama, grouped(), CAUSAL),
    "GPT-2": (gpt2, four(), MASK),
    "BERT": (bert, four(), PLAIN),
    "T5": (t5, four(), MASK),
    "masked_fill, -inf": (lambda q, k, v: attend(scores(q, k).masked_fill(~tril(q), INF), v), four(), CAUSAL),
    "masked_fill, == 0": (
        lambda q, k, v: attend(scores(q, k).masked_fill(torch.tril(torch.ones(q.size(2), k.size(2))) == 0, INF), v), four(), CAUSAL),
    "masked_fill, least number": (lambda q, k, v: attend(scores(q, k).masked_fill(~tril(q), LEAST), v), four(), CAUSAL),
    "where": (lambda q, k, v: attend(torch.where(tril(q), scores(q, k), INF), v), four(), CAUSAL),
    "where, other way around": (
        lambda q, k, v: attend(torch.where(tril(q).logical_not(), -1e9, scores(q, k)), v), four(), CAUSAL),
    "positions": (
        lambda q, k, v: attend(scores(q, k).masked_fill((lambda at: at[None, :] > at[:, None])(torch.arange(q.size(2))), INF), v),
        four(), CAUSAL),
    "ones like the scores": (
        lambda q, k, v: (lambda s: attend(s.masked_fill(torch.ones_like(s).tril() == 0, INF), v))(scores(q, k)), four(), CAUSAL),
    "distances": (lambda q, k, v: attend(scores(q, k) + distances(q), v), four(), CAUSAL),
    "transposed": (lambda q, k, v: attend(scores(q, k) + square_subsequent(q.size(2)), v), four(), CAUSAL),
    "one row of a triangle": (
        lambda q, k, v: attend(scores(q, k).masked_fill(~torch.ones(1, q.size(2), dtype=torch.bool).tril(), INF), v), four(), MASK),
    "a mask that is written": (written_mask, four(), MASK),
    "causal and an added mask": (
        lambda q, k, v: attend((scores(q, k) + LEFT_PADDED).masked_fill(~tril(q), LEAST), v), four(), "several ways"),
    "causal added to a mask": (
        lambda q, k, v: attend(scores(q, k).masked_fill(~PADDING, INF) + torch.full((T, T), LEAST).triu(1), v), four(), MASK),
    "added, -inf": (lambda q, k, v: attend(scores(q, k) + torch.full((q.size(2), q.size(2)), INF).triu(1), v), four(), CAUSAL),
    "added, masked zeros": (
        lambda q, k, v: attend(scores(q, k) + torch.zeros(q.size(2), q.size(2)).masked_fill(~tril(q), LEAST), v), four(), CAUSAL),
    "in place": (in_place, four(), CAUSAL),
    "boolean buffer": (Buffered(TRIL, INF), four(), MASK),
    "floating buffer": (Buffered(TRIL.float(), LEAST), four(), MASK),
    "padding": (lambda q, k, v: attend(scores(q, k).masked_fill(~PADDING, INF), v), four(), MASK),
    "padding and causal": (lambda q, k, v: attend(scores(q, k).masked_fill(~(tril(q) & PADDING), -1e9), v), four(), MASK),
    "two masks": (
        lambda q, k, v: attend(scores(q, k).masked_fill(~tril(q), INF).masked_fill(~PADDING, INF).nan_to_num(0.0, neginf=INF), v),
        four(), "nan_to_num"),
    "two masks, least numbers": (
        lambda q, k, v: attend(scores(q, k).masked_fill(~tril(q), LEAST).masked_fill(~PADDING, LEAST), v), four(), MASK),
    "a row that sees nothing, -1e9": (lambda q, k, v: attend(scores(q, k).masked_fill(~DEAD, -1e9), v), four(), MASK),
    "a row that sees nothing, least number": (
        lambda q, k, v: attend(torch.where(DEAD, scores(q, k), torch.tensor(LEAST)), v), four(), MASK),
    "a row that sees nothing, -inf": (lambda q, k, v: attend(scores(q, k).masked_fill(~DEAD, INF), v), four(), MASK),
    "not causal by one, before": (
        lambda q, k, v: attend(scores(q, k).masked_fill(~(tril(q, -1) | torch.eye(T, dtype=torch.bool)[0]), INF), v), four(), MASK),
    "not causal by one, after": (lambda q, k, v: attend(scores(q, k).masked_fill(~tril(q, 1), INF), v), four(), MASK),
    "causal at the other end": (
        lambda q, k, v: attend(scores(q[:, :, :3], k).masked_fill(~torch.ones(3, T).tril(3).bool(), INF), v), four(), MASK),
    "causal added, too weak": (
        lambda q, k, v: attend(scores(q, k) + torch.full((T, T), -50.0).triu(1), v), four(), MASK),
    "scaled_dot_product_attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), four(), CAUSAL),
    "sdpa, a causal mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q)), four(), CAUSAL),
    "sdpa, a causal mask by name, grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=tril(q)[None, None], enable_gqa=True), grouped(), CAUSAL),
    "sdpa, later keys at -inf": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, square_subsequent(q.size(2)), scale=0.3), four(), CAUSAL),
    "sdpa, an open mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(q.size(2), k.size(2), dtype=torch.bool)), four(), PLAIN),
    "sdpa, zeros": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q.new_zeros(1, 1, T, T)), four(), PLAIN),
    "sdpa, one sequence": (lambda q, k, v: of_sequences(q, k, v, torch.arange(q.size(2))[None]), four(), CAUSAL),
    "sdpa, one sequence from the third on": (
        lambda q, k, v: of_sequences(q, k, v, torch.arange(9).expand(q.size(0), -1)[:, 3:]), four(), CAUSAL),
    "sdpa, two sequences": (
        lambda q, k, v: of_sequences(q, k, v, torch.cat([torch.arange(T // 2)] * 2)[None]), four(), MASK),
    "sdpa, sequences of one": (lambda q, k, v: of_sequences(q, k, v, torch.zeros(1, T, dtype=torch.int64)), four(), MASK),
    "sdpa, a jump before the first": (lambda q, k, v: of_sequences(q, k, v, torch.arange(T)[None], before=5), four(), MASK),
    "sdpa, not causal by one": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q, 1)), four(), MASK),
    "sdpa, hidden too weakly": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.full((T, T), -50.0).triu(1)), four(), MASK),
    "sdpa, a mask that is written": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q).logical_or_(torch.eye(T, dtype=torch.bool)[0])), four(), MASK),
    "sdpa, fewer queries than keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :3], k, v, torch.ones(3, T, dtype=torch.bool).tril()), four(), CAUSAL),
    "sdpa, fewer queries, at the end": (
        lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :3], k, v, torch.ones(3, T, dtype=torch.bool).tril(3)), four(), MASK),
    "sdpa, queries from the first on": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown(torch.arange(q.size(2)) >= 0, k.size(2))), four(), PLAIN),
    "sdpa, queries not before the first": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ~shown(torch.arange(q.size(2)) < 0, k.size(2))), four(), PLAIN),
    "sdpa, queries from the second on": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown(torch.arange(q.size(2)) >= 1, k.size(2))), four(), MASK),
    "sdpa, queries behind the first": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown(torch.arange(q.size(2)) > 0, k.size(2))), four(), MASK),
    "sdpa, queries up to the first": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, shown(torch.arange(q.size(2)) <= 0, k.size(2))), four(), MASK),
    "sdpa, a window wider than the keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q) & ~tril(q, -T)), four(), CAUSAL),
    "sdpa, a window as wide as the keys less one": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q) & ~tril(q, 1 - T)), four(), MASK),
    "sdpa, keys up to the last": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q, T - 1)), four(), PLAIN),
    "sdpa, keys up to the last but one": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q, T - 2)), four(), MASK),
    "sdpa, one sequence, repeated": (
        lambda q, k, v: of_sequences(q, k, v, torch.arange(T)[None].repeat(q.size(0), 1)), four(), CAUSAL),
    "sdpa, a sequence repeated": (
        lambda q, k, v: of_sequences(q, k, v, torch.arange(T // 2)[None].repeat(1, 2)), four(), MASK),
    "sdpa, grouped": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), grouped(), PLAIN),
    "weights returned": (both_results, four(), "used elsewhere"),
    "results that nobody reads": (looked_at_and_dropped, four(), PLAIN),
    "scores changed through a view": (changed_through_a_view, four(), "used elsewhere"),
    "weights dropped and returned": (dropped_and_returned, four(), "used elsewhere"),
    "scores used": (lambda q, k, v: (lambda s: attend(s, v) + s.sum())(scores(q, k)), four(), "used elsewhere"),
    "softmax over queries": (lambda q, k, v: torch.softmax(scores(q, k), -2) @ v, four(), ""),
    "hidden by -1e4": (lambda q, k, v: attend(scores(q, k).masked_fill(~DEAD, -1e4), v), four(), "-10000.0"),
    "soft cap": (lambda q, k, v: attend(torch.tanh(scores(q, k)), v), four(), "tanh"),
    "scaled by a tensor": (lambda q, k, v: attend(q @ k.mT * q[..., :1], v), four(), "no constant"),
    "mask before the scale": (
        lambda q, k, v: attend((q @ k.mT + torch.arange(6.0)[:, None].expand(T, T)) * 2.0, v), four(), "before the scale"),
    "added inside the product": (alibi, four(), "inside the product"),
    "softmax by hand": (by_hand, four(), ""),
    "five dims": (in_five_dims, four(), PLAIN),
    "five dims, causal": (lambda q, k, v: in_five_dims(q, k, v, lambda raw: raw.masked_fill(~tril(q), INF)), four(), CAUSAL),
    "five dims, padding": (
        lambda q, k, v: in_five_dims(q, k, v, lambda raw: raw.masked_fill(~PADDING[:, :, None], INF)), four(), MASK),
    "five dims, biases of the heads": (
        lambda q, k, v: in_five_dims(q, k, v, lambda raw: raw + q[0, :2, :, :1]), four(), MASK),
    "six dims, biases": (windows, four(), MASK),
    "batch dims that broadcast": (lambda q, k, v: attend(q[None] @ k.mT, v), four(), "ranks"),
    "rounded scores": (
        lambda q, k, v: attend((q @ k.mT).half().float(), v), four(), "narrower"),
    "weights that are whole": (
        lambda q, k, v: torch.softmax(scores(q, k), -1).to(torch.bool).float() @ v + (q + k) * 0, four(), "whole numbers"),
    "hidden by a scale": (lambda q, k, v: attend((q @ k.mT).masked_fill(~DEAD, -1e9) * 1e-9, v), four(), "-1000000000.0"),
    "hidden by NaN": (lambda q, k, v: attend(scores(q, k).masked_fill(~DEAD, math.nan), v), four(), "nan"),
    "keys transposed in place": (
        lambda q, k, v: attend(q[..., :T] @ (k[..., :T] * 2).transpose_(-2, -1), v), four(), PLAIN),
    "positions twice as far": (
        lambda q, k, v: (lambda i: attend(scores(q, k).masked_fill(torch.sub(i[None], i[:, None], alpha=2) > 0, INF), v))(
            torch.arange(q.size(2))), four(), MASK),
    "operands by name": (
        lambda q, k, v: torch.matmul(F.softmax(input=torch.matmul(input=q, other=k.mT), dim=-1), other=v), four(), ""),
    "products by name": (lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q, mat2=k.mT), -1), mat2=v), three(), ""),
    "a condition by name": (
        lambda q, k, v: attend(torch.where(condition=DEAD, input=scores(q, k), other=INF), v), four(), "the scores pass through"),
    "a mask by name": (
        lambda q, k, v: attend(scores(q, k) + torch.full(size=(T, T), fill_value=INF).triu(diagonal=1), v), four(), CAUSAL),
}  # fmt: skip


def run(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    given = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((output.float() * torch.arange(output.numel()).view(output.shape).cos()).nan_to_num(0.0).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(total, given)]


def how_found(graph: Any, inputs: list[torch.Tensor]) -> str:
    """What the operator of a graph was given, or why there is none."""
    nodes = [node for node in graph.partitioned.forward.graph.nodes if "minicompile.attention" in str(node.target)]
    if not nodes:
        return "".join(record.reason for record in graph.partitioned.patterns if not record.accepted)
    (node,) = nodes
    assert node.args[1].meta["val"].shape[1] <= inputs[1].shape[1], "heads were repeated in memory"
    return CAUSAL if node.args[6] else MASK if node.args[3] is not None else PLAIN


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    function, inputs, expected = FORMS[name]
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    tolerance = 3e-2 if inputs[0].dtype == torch.bfloat16 else 2e-3 if expected == "narrower" else 2e-5
    for got, want in zip(run(compiled, inputs), run(function, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    (graph,) = compiled_function(compiled).compiler.graphs
    found = how_found(graph, inputs)
    assert found == expected or expected not in ("", PLAIN, CAUSAL, MASK) and expected in found


def test_wider_heads_than_our_kernels_take_are_pytorchs() -> None:
    given = [torch.randn(1, 2, 5, 320, requires_grad=True) for _ in range(3)]
    compiled = minicompile.compile(F.scaled_dot_product_attention, options={"suppress_errors": False, "cache": False})
    check(F.scaled_dot_product_attention, *given, compile=lambda _: compiled, tolerance=8.0)
    (graph,) = compiled_function(compiled).compiler.graphs
    assert not [node for node in graph.partitioned.forward.graph.nodes if "minicompile.attention" in str(node.target)]


def looked_up(bias: torch.Tensor) -> torch.Tensor:
    """A bias of the same shape by distances, from a table of learned values."""
    distances = (torch.arange(bias.size(-2))[:, None] - torch.arange(bias.size(-1))[None, :]).clamp(-2, 2) + 2
    table = bias[0, :, :, :1].flatten()[: 5 * bias.size(1)].view(5, bias.size(1))
    return F.embedding(distances, table).permute(2, 0, 1).unsqueeze(0)


def biased(q, k, v, choose):
    """Attention with a bias of one batch, as positions make it, that `choose` takes where a mask of the whole batch shows keys."""
    column = v.sum(0, keepdim=True)[..., :1]
    everything = shown(torch.arange(q.size(2)) >= 0, k.size(2)).expand(q.size(0), -1, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, choose(everything, column * column.mT))


@pytest.mark.parametrize(
    "choose, batch",
    [
        (lambda everything, bias: torch.where(everything, bias, INF), 1),
        (lambda everything, bias: torch.where(everything, bias, bias.new_tensor(INF)), 1),
        (lambda everything, bias: bias.where(everything, bias.new_zeros(())), 1),
        (lambda everything, bias: bias.expand(2, -1, -1, -1).masked_fill(~everything, INF), 2),
        (lambda everything, bias: torch.where(~everything, INF, bias), 2),
        (lambda everything, bias: torch.where(tril(bias).expand(2, 1, -1, -1), bias, INF), -1),
        (lambda everything, bias: torch.where(tril(bias) & everything, bias.masked_fill(~tril(bias), math.nan), INF), -1),
        (lambda everything, bias: torch.where(tril(bias).expand(2, 1, -1, -1), looked_up(bias), LEAST), -1),
        (lambda everything, bias: torch.where(tril(bias).expand(2, 1, -1, -1), bias, LEAST), 2),
        (lambda everything, bias: bias.expand(2, -1, -1, -1).masked_fill(~tril(bias), INF), -2),
        (lambda everything, bias: torch.where(tril(bias).expand(2, 1, -1, -1), bias, -1e4), 2),
        (lambda everything, bias: torch.where(tril(bias, 1).expand(2, 1, -1, -1), bias, INF), 2),
        (lambda everything, bias: torch.where(tril(bias).expand(2, 1, -1, -1), bias > 0, False) | everything.new_tensor(False), 2),
        (lambda everything, bias: torch.where(everything & (bias > 0), bias, 0.0), 2),
        (lambda everything, bias: (torch.where(everything, bias, 0.0), bias.mul_(2.0))[0], 2),
    ],
    ids=["where", "of tensors", "method", "masked", "the other way round", "causal", "causal beside NaN", "causal, of a table",
         "least beside anything", "causal, masked", "too weak", "not causal by one", "truth values", "not everywhere", "written behind the choice"],
)  # fmt: skip
def test_a_bias_that_is_always_chosen_is_given_as_it_is(choose: Callable[..., torch.Tensor], batch: int) -> None:
    """`batch` is the batch of the mask that the operator is given; negative where it is told that it is causal, too."""
    inputs, function = four(), lambda q, k, v: biased(q, k, v, choose)
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for got, want in zip(run(compiled, inputs), run(function, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    (graph,) = compiled_function(compiled).compiler.graphs
    assert how_found(graph, inputs) == (CAUSAL if batch < 0 else MASK)
    (mask,) = [node.args[3] for node in graph.partitioned.forward.graph.nodes if "minicompile.attention" in str(node.target)]
    assert mask.meta["val"].shape[0] == abs(batch)


@pytest.mark.parametrize("write", [
    lambda mask: operator.ior(mask, torch.arange(T) < 3), lambda mask: operator.ixor(mask[2:, :1], True),
    lambda mask: mask.__ior__(torch.arange(T) < 3), lambda mask: mask.__setitem__(0, True),
])  # fmt: skip
def test_a_causal_mask_that_is_written_by_an_operator_is_causal_no_more(write: Callable[[torch.Tensor], Any]) -> None:
    """As a prefix is let in: `mask |= prefix`."""

    def function(q: torch.Tensor) -> Any:
        mask = tril(q)
        write(mask)
        return F.scaled_dot_product_attention(q, q, q, mask), attend(scores(q, q).masked_fill(~mask, INF), q)

    q = torch.randn(2, 3, T, D)
    torch.testing.assert_close(minicompile.compile(function, options={"suppress_errors": False})(q), function(q))


def test_a_bias_chosen_before_it_is_written_is_used_as_it_was() -> None:
    """The second attention comes behind the write: it may not be given the bias itself."""

    def function(q: torch.Tensor, bias: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        mask = torch.where(tril(q), bias, INF)
        seen.append(F.scaled_dot_product_attention(q, q, q, mask))
        bias.mul_(0.5)
        return F.scaled_dot_product_attention(q, q, q, mask) * seen[0].sum()

    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    states = [], []
    for length in (5, 5, 8):
        q, bias = torch.randn(2, 3, length, D), torch.randn(1, 3, length, length)
        biases = bias.clone(), bias.clone()
        results = [call(q, b, seen) for call, b, seen in zip((function, compiled), biases, states, strict=True)]
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
        assert torch.equal(*biases)


OF_ANY_LENGTH = (
    "matmul", "three dims, bmm", "two dims", "einsum, heads last", "baddbmm (Bloom)", "repeat_interleave", "Llama", "GPT-2",
    "T5", "masked_fill, == 0", "positions", "distances", "transposed", "ones like the scores", "in place", "not causal by one, after",
    "sdpa, a causal mask", "sdpa, one sequence", "sdpa, an open mask",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_ANY_LENGTH)
def test_form_of_any_length_compiles_once_more(name: str) -> None:
    function, inputs, expected = FORMS[name]
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    tolerance = 3e-2 if inputs[0].dtype == torch.bfloat16 else 2e-3 if expected == "narrower" else 2e-5
    for batch, length in ((2, 6), (3, 9), (2, 2)):
        others = [leaf(batch, *x.shape[1:-2], length, D, dtype=x.dtype) for x in inputs]
        for got, want in zip(run(compiled, others), run(function, others), strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    graphs = compiled_function(compiled).compiler.graphs
    assert len(graphs) == 2 and [how_found(graph, inputs) for graph in graphs] == [expected] * 2


@pytest.mark.parametrize("queries, expected", [(1, PLAIN), (3, MASK)])
def test_queries_behind_a_cache(queries: int, expected: str) -> None:
    """The last query sees all keys, whatever their number; of several the first ones do not."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.arange(q.size(2)) + (k.size(2) - q.size(2)), torch.arange(k.size(2))
        return F.scaled_dot_product_attention(q, k, v, (columns <= rows[:, None])[None, None].expand(q.size(0), -1, -1, -1))

    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for length in (5, 9, 6):
        inputs = [leaf(2, 3, queries, D), leaf(2, 3, length, D), leaf(2, 3, length, D)]
        for got, want in zip(run(compiled, inputs), run(function, inputs), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    graphs = compiled_function(compiled).compiler.graphs
    assert [how_found(graph, inputs) for graph in graphs] == [expected] * 2


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(need_weights: bool) -> None:
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, T, 16)
    call = lambda x: module(x, x, x, need_weights=need_weights)[0]
    compiled = minicompile.compile(call, options={"suppress_errors": False, "cache": False})
    for got, want in zip(run(compiled, [x]), run(call, [x]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


MIXED = {
    "all wide": lambda q, k, v: attend(q @ k.mT * 0.3, v),
    "values already narrow": lambda q, k, v: torch.softmax((q @ k.mT * 0.3).float(), -1).to(torch.bfloat16) @ v.bfloat16(),
    "queries and keys wide after a rotation": lambda q, k, v: attend((q.bfloat16() * 1.5) @ (k.bfloat16() * v[..., :1, :]).mT, v),
    "a mask and an einsum": lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.softmax(torch.einsum(
        "bhid,bhjd->bhij", q, k).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf), -1), v),
    "the library's with a wide bias": lambda q, k, v: F.scaled_dot_product_attention(
        *(x.bfloat16() for x in (q, k, v)), attn_mask=q[..., :1] * k[..., :1].mT),
    "one call over several dtypes": lambda q, k, v: F.scaled_dot_product_attention(q, k, v.bfloat16()),
    "one call with a wide mask": lambda q, k, v: F.scaled_dot_product_attention(
        q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask=torch.ones(T, T).cumsum(1) / T),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_autocast(name: str) -> None:
    """Autocast rounds what is multiplied; the gradients come back in the dtype of the tensors."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return MIXED[name](q, k, v)

    inputs = four()
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for got, want in zip(run(compiled, inputs), run(function, inputs), strict=True):
        assert got.dtype == want.dtype
        bar = 5e-2 * max(1.0, want.abs().max().item())  # sums of rounded products: as large as the largest
        torch.testing.assert_close(got, want, rtol=5e-2, atol=bar)
    (graph,) = compiled_function(compiled).compiler.graphs
    assert [record.reason for record in graph.partitioned.patterns if not record.accepted] == []
    (node,) = [node for node in graph.partitioned.forward.graph.nodes if "minicompile.attention" in str(node.target)]
    assert {argument.meta["val"].dtype for argument in node.args[:3]} == {torch.bfloat16}


@pytest.mark.parametrize("lengths", [(T,), (T, T + 3, T + 5)])
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_position_bias_with_heads_last_is_read_row_by_row(written: bool, expanded: bool, lengths: tuple[int, ...]) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.shape[-2])
        bias = F.embedding((places - places[:, None]).clamp(-4, 4) + 4, table).permute(2, 0, 1)[None]
        bias = bias.expand(2, -1, -1, -1) if expanded else bias
        if written:
            return torch.softmax(q @ k.transpose(-1, -2) + bias, -1) @ v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for length in lengths:
        inputs = [*(leaf(2, 4, length, D) for _ in range(3)), leaf(9, 4)]
        for got, want in zip(run(compiled, inputs), run(function, inputs), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    graph = compiled_function(compiled).compiler.graphs[-1]
    (node,) = [node for node in graph.partitioned.forward.graph.nodes if "minicompile.attention" in str(node.target)]
    assert node.args[3].meta["val"].shape[0] == 1 and node.args[3].meta["val"].stride(-1) == 1
