"""Programs whose sizes vary from call to call, as a table: each is called at several sizes and has a bound on its compiles.

A table only: `test_dynamic_programs.py` runs it. Values are small, so that sums are equal to a few ulp in any order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS: dict[str, DynamicProgram] = {}


@dataclasses.dataclass(frozen=True)
class DynamicProgram:
    """A function, its sizes, how arguments are made from a size, and how often any frame of it may be compiled."""

    function: Callable[..., Any]
    sizes: tuple[Any, ...]
    arguments: Callable[..., tuple[Any, ...]]
    compiles: int = 2
    breaks: bool = False


def floats(*shape: int) -> torch.Tensor:
    """A tensor of small numbers."""
    return torch.randn(*shape)


def tokens(*shape: int) -> torch.Tensor:
    """A tensor of token ids below 50."""
    return torch.randint(0, 50, shape)


def program(sizes: Iterable[Any], arguments: Callable[..., tuple[Any, ...]], compiles: int = 2, breaks: bool = False) -> Any:
    """Register the decorated function; a tuple among the sizes is several arguments of `arguments`."""

    def register(function: Any) -> Any:
        name = getattr(function, "__name__", type(function).__name__)
        PROGRAMS[name] = DynamicProgram(function, tuple(sizes), arguments, compiles, breaks)
        return function

    return register


LENGTHS = (5, 8, 13, 3, 16)


@program((8, 12, 16, 13, 14, 20, 31), lambda t: (floats(2, t),), compiles=3)  # whole quarters and others
def quarters_that_are_whole(x):
    quarter = x.shape[-1] / 4
    if not quarter.is_integer():
        x = x[..., : int(quarter) * 4]
    return x.view(2, -1, 4).sum(-1)


@program(LENGTHS, lambda t: (floats(t, 6),))
def sizes_beside_truths_infinity_and_nan(x):
    n = x.shape[0]
    bounds = sorted([n, True, math.inf, False, -math.inf])
    return x + bounds[2], bounds, max(n, math.nan), min([True, n]), [n] == [math.nan], (n, 1) < (math.inf, 0), [False, n].index(n)


@program(LENGTHS, lambda t: (floats(2, t, 6),), compiles=4)  # odd and even lengths; a half of 1
def halves_as_pairs(x):
    b, t, c = x.shape
    return x[:, : t // 2 * 2].view(b, t // 2, 2 * c).relu()


@program(((2, 6), (3, 8), (5, 4), (4, 10)), lambda b, t: (floats(b, t, 6),))
def view_with_halved_size(x):
    b, t, _ = x.shape
    return x.view(b, t // 2, -1) * 2


@program(LENGTHS, lambda t: (floats(2, t, 6),))
def positions(x):
    t = x.size(1)
    pos = torch.arange(t, device=x.device)
    return x + pos[None, :, None] / t


@program(((2, 5), (3, 8), (4, 13)), lambda b, t: (torch.randint(1, t + 1, (b,)), floats(b, t, 4)))
def mask_from_lengths(lengths, x):
    mask = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    total = (x * mask[..., None]).sum(1)
    return total / lengths[:, None]


@program(((3, 5), (4, 7), (9, 2)), lambda a, b: (floats(2, a), floats(2, b)))
def cat_of_two_lengths(x, y):
    return torch.cat([x * 2, y + 1], dim=1).cumsum(1)


@program(LENGTHS, lambda t: (floats(2, t),))
def pad_to_multiple(x):
    missing = -x.shape[1] % 4
    return F.pad(x, (0, missing)).view(x.shape[0], -1, 4).sum(-1)


@program(((2, 5), (3, 8), (7, 4), (4, 6)), lambda b, t: (floats(b, t, 8), floats(8, 8), floats(8, 8), floats(8, 8)))
def attention_block(x, wq, wk, wv):
    b, t, c = x.shape
    q, k, v = ((x @ w).view(b, t, 2, c // 2).transpose(1, 2) for w in (wq, wk, wv))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(b, t, c)


@program(LENGTHS, lambda t: (floats(2, 2, t, 4), floats(2, 2, t, 4), floats(2, 2, t, 4)))
def written_attention(q, k, v):
    t = q.size(-2)
    mask = torch.tril(torch.ones(t, t, dtype=torch.bool))
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@program(((3, 5), (2, 9), (4, 12), (3, 3)), lambda q, k: (floats(2, 2, q, 4), floats(2, 2, k, 4), floats(2, 2, k, 4)))
def causal_with_offset(q, k, v):
    tq, tk = q.size(-2), k.size(-2)
    rows = torch.arange(tq)[:, None] + (tk - tq)
    mask = rows >= torch.arange(tk)[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


ROTARY = torch.randn(32, 4)


@program(LENGTHS, lambda t: (floats(2, t, 8),))
def rotary_sliced(x):
    table = ROTARY[: x.shape[1]]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * table.cos() - b * table.sin(), a * table.sin() + b * table.cos()], -1)


EMBEDDING = nn.Embedding(50, 8)
POSITION = nn.Embedding(32, 8)


@program(((2, 5), (3, 9), (4, 12)), lambda b, t: (tokens(b, t),))
def embed_with_positions(ids):
    position_ids = torch.arange(ids.shape[1]).expand(ids.shape[0], -1)
    return EMBEDDING(ids) + POSITION(position_ids)


@program(((5, 0), (7, 3), (4, 9), (6, 1)), lambda t, start: (tokens(2, t), start))
def positions_from_a_start(ids, start):
    return POSITION(torch.arange(start, start + ids.shape[1])) + EMBEDDING(ids)


CONV = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, stride=2)).eval()


@program(((8, 12), (10, 10), (17, 9)), lambda h, w: (floats(2, 3, h, w),), compiles=3)
def convolutions(x):
    return CONV(x).mean((2, 3))


@program(((2, 8), (3, 8), (5, 8), (7, 8)), lambda b, s: (floats(b, 3, s, s),))
def convolutions_by_batch(x):
    return CONV(x).flatten(1)


NORM = nn.BatchNorm1d(6)


@program((4, 7, 3, 9), lambda b: (floats(b, 6),))
def batch_norm_training(x):
    return NORM(x).relu()


@program(((6, 8), (9, 5), (12, 7)), lambda h, w: (floats(1, 2, h, w), floats(1, 2, w, h)))
def interpolate_to_other(x, other):
    return F.interpolate(x, size=other.shape[-2:], mode="nearest")


POSITIONS = nn.Parameter(torch.arange(18.0).reshape(1, 2, 3, 3) / 18)


@program(((6, 8), (9, 5), (12, 7)), lambda h, w: (floats(1, 2, h, w),))
def positions_stretched_to_a_picture(x):
    kinds = ("nearest", "bilinear", "bicubic", "area")
    return x + sum(F.interpolate(POSITIONS, size=x.shape[-2:], mode=kind) for kind in kinds)


@program(((6, 8), (9, 5), (12, 7)), lambda h, w: (floats(1, 2, h, w),))
def interpolate_twice(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


@program(((8, 4), (12, 8), (16, 16), (8, 20)), lambda h, w: (floats(2, 3, h, w),))
def patchify(x):
    b, c, h, w = x.shape
    p = 4
    return x.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // p) * (w // p), p * p * c)


@program(((8, 4), (12, 8), (4, 16)), lambda h, w: (floats(2, 3, h, w),))
def unfold_patches(x):
    return F.unfold(x, 2, stride=2).transpose(1, 2)


@program((9, 12, 15), lambda t: (floats(2, t),))
def sliding_windows(x):
    return x.unfold(1, 4, 1).mean(-1)


@program((8, 12, 4), lambda t: (floats(2, t, 3),), compiles=3)  # chunks of 1
def chunk_in_four(x):
    a, b, c, d = x.chunk(4, dim=1)
    return a * b + c * d


@program((8, 12, 4), lambda t: (floats(2, t),))
def split_in_halves(x):
    left, right = x.split(x.shape[1] // 2, dim=1)
    return left.sigmoid() * right


@program(((6, 9), (8, 8), (11, 7)), lambda h, w: (floats(2, 3, h, w),))
def adaptive_pool_to_one(x):
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@program((8, 12, 9), lambda t: (floats(2, 3, t),), compiles=3)
def adaptive_pool_to_four(x):
    return F.adaptive_avg_pool1d(x, 4)


@program((8, 12, 6), lambda t: (floats(3, t),))
def top_quarter(x):
    values, places = x.topk(x.shape[-1] // 2, dim=-1)
    return values, places


@program((5, 9, 12), lambda t: (floats(2, t, 4),))
def shift_right(x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


@program((5, 9, 12), lambda t: (floats(2, t),))
def rolled(x):
    return x.roll(1, dims=1) - x


@program((5, 9, 12), lambda t: (floats(2, t),))
def flipped(x):
    return x.flip(1) * torch.arange(x.shape[1])


@program(((2, 3), (4, 5), (3, 7)), lambda b, n: (floats(b, 4), n))
def repeat_by_number(x, n):
    return x[:, None].expand(-1, n, -1).reshape(-1, x.shape[1]) + 1


@program(((2, 3), (4, 5), (3, 7)), lambda b, n: (floats(b, 4), n))
def interleave_by_number(x, n):
    return x.repeat_interleave(n, dim=0) * 2


@program((3, 5, 4), lambda n: ([floats(4, 3) for _ in range(n)],), compiles=3)
def stack_of_a_list(items):
    return torch.stack(items).mean(0)


@program(((2, 5), (3, 8), (4, 11)), lambda b, t: (floats(b, t, 7), torch.randint(0, 7, (b, t)), torch.rand(b, t) > 0.3))
def masked_loss(logits, labels, mask):
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    mask = mask.float()
    return (losses * mask).sum() / mask.sum().clamp(min=1)


@program(((2, 5), (3, 8), (4, 11)), lambda b, t: (floats(b, t, 7), torch.randint(0, 7, (b, t))))
def ignored_labels(logits, labels):
    labels = labels.masked_fill(labels == 3, -100)
    return F.cross_entropy(logits.transpose(1, 2), labels)


@program(((2, 3), (4, 5), (3, 7)), lambda b, beams: (floats(b * beams, 20), floats(b, beams)))
def beam_step(logits, scores):
    b, beams = scores.shape
    vocabulary = logits.shape[-1]
    totals = scores[..., None] + logits.log_softmax(-1).view(b, beams, vocabulary)
    best, flat = totals.view(b, -1).topk(beams, dim=-1)
    return best, flat // vocabulary, flat % vocabulary


@program(((2, 5), (3, 8), (4, 11)), lambda b, t: (floats(b, t, 8), nn.LayerNorm(8)))
def layer_norm(x, norm):
    return norm(x) + x


@program((5, 9, 33), lambda t: (floats(3, t),))
def softmax_over_length(x):
    return x.softmax(-1)


@program((5, 9, 33), lambda t: (floats(3, t),))
def standardised(x):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


@program((5, 9, 33), lambda t: (floats(3, t),))
def extremes(x):
    return x.amax(-1), x.argmax(-1), x.min(0).values, x.logsumexp(1)


@program((5, 9, 7), lambda t: (floats(t, t),))
def square_matrix(x):
    return x @ x.t() + torch.eye(x.shape[0])


@program(((5, 6), (9, 3), (7, 8)), lambda a, b: (floats(a, 4), floats(b, 4)))
def distances(x, y):
    return (x[:, None] - y[None]).pow(2).sum(-1).sqrt()


@program(((5, 6), (9, 3), (7, 8)), lambda a, b: (floats(2, a, 4), floats(2, b, 4)))
def einsum_of_two_lengths(x, y):
    return torch.einsum("bic,bjc->bij", x, y).relu()


@program(((2, 6), (3, 8), (4, 4)), lambda b, t: (floats(b, t, 6),))
def rearranged(x):
    b, t, c = x.shape
    return x.view(b, t // 2, 2, 3, c // 3).permute(0, 3, 1, 2, 4).reshape(b * 3, t, c // 3)


@program((4, 9, 6), lambda t: (floats(2, t, 4), floats(2, t, 4)))
def stacked_pair(x, y):
    return torch.stack([x, y], dim=2).flatten(1, 2)


@program((6, 9, 12), lambda t: (floats(2, t), t // 3))
def window_mask(x, width):
    i = torch.arange(x.shape[1])
    near = (i[:, None] - i[None, :]).abs() <= width
    return (near * x[:, None, :]).sum(-1)


@program((6, 9, 12), lambda t: (floats(2, t, 4), torch.randint(0, t, (2,))))
def gather_last(x, last):
    index = last.view(-1, 1, 1).expand(-1, 1, x.size(-1))
    return x.gather(1, index).squeeze(1)


@program((6, 9, 12), lambda t: (floats(t, 4), torch.randint(0, 3, (t,))))
def scatter_to_groups(x, group):
    return torch.zeros(3, 4).index_add(0, group, x)


@program((6, 9, 12), lambda t: (floats(t),))
def random_places(x):
    size = x.shape[0]
    return torch.randint(size, (4,)) < size, torch.randint(0, size, (4,), dtype=torch.uint8) < size


@program((5, 7, 6), lambda t: (torch.randint(0, 6, (t,)),))
def one_hot_of_size(ids):
    return F.one_hot(ids, 6).float().mean(0)


@program(((5, 2), (7, 4), (6, 5)), lambda t, n: (floats(t, 3), n))
def slice_to_a_number(x, n):
    return x[:n] * n, x[n:].sum(0), x[-n:]


@program((5, 7, 6, 2), lambda t: (floats(t, 3),))
def branch_on_size(x):
    if x.shape[0] > 100:
        return x.sum()
    return x * x.shape[0]


@program((5, 7, 6), lambda t: (floats(2, t),))
def shape_as_value(x):
    scale = x.shape[0] * x.shape[1]
    return x.sum() / scale, x.numel(), x.shape, [x.shape[1] - 1]


@program((5, 7, 9), lambda t: (floats(2, t),))
def created_by_size(x):
    z = torch.zeros(x.shape[1], x.shape[0])
    return z.copy_(x.t()) + torch.full((x.shape[1], 1), 2.0) + x.new_ones(x.shape[1], 2)


@program((5, 7, 9), lambda t: (floats(2, t),))
def triangle(x):
    t = x.shape[1]
    return x[:, :, None] * torch.triu(torch.ones(t, t), diagonal=1), torch.full((t, t), -1.0).tril(-1)


@program((6, 10, 14), lambda t: (floats(2, t),))
def every_second(x):
    return x[:, ::2] + x[:, 1::2]


@program((6, 10, 14), lambda t: (floats(2, t),))
def in_place_on_slice(x):
    y = x.clone()
    y[:, : x.shape[1] // 2] = 0
    y[:, -1] += 1
    return y


@program((6, 10, 14), lambda t: (floats(2, t),))
def input_changed(x):
    x.mul_(2)
    return x + 1


@program((6, 10, 14), lambda t: (floats(20, 4)[:t],))
def view_of_longer(x):
    return x * 2 + x.sum(0)


@program(((6, 3), (10, 4), (14, 5)), lambda t, b: (floats(b, 20, 4)[:, 2:t],))
def slice_of_longer(x):
    return x.softmax(1)


@program((6, 10, 14), lambda t: (floats(4, t).t(),))
def transposed_argument(x):
    return x @ torch.ones(4, 3) + x[:, :1]


@program(((3, 6), (4, 10), (5, 2)), lambda b, t: (floats(b, t, 4).transpose(1, 2),))
def channels_last_sequence(x):
    return x.relu().contiguous().view(x.shape[0], -1)


@program(((3, 6), (4, 10), (5, 7)), lambda b, t: (floats(b, t, 4), floats(1, t, 4)))
def broadcast_over_batch(x, bias):
    return x + bias


@program((1, 3, 7, 1, 5), lambda b: (floats(b, 4), floats(4, 4)), compiles=3)
def batch_of_one(x, w):
    return torch.tanh(x @ w).sum(-1, keepdim=True)


@program((4, 3, 7, 0, 5), lambda b: (floats(b, 4), floats(4, 4)), compiles=3)
def empty_batch(x, w):
    return torch.tanh(x @ w) * 2


@program((4, 6, 9), lambda t: (floats(t, 3),))
def loop_over_columns(x):
    total = x.new_zeros(x.shape[0])
    for column in range(x.shape[1]):
        total = total + x[:, column] * column
    return total


@program((5, 9, 12), lambda t: (floats(t), floats(t)))
def dot_product(x, y):
    return torch.dot(x, y) / len(x)


@program((5, 9, 12), lambda t: (floats(2, t, 4), floats(8, 4), floats(8)))
def gelu_linear(x, w, bias):
    return F.gelu(F.linear(x, w, bias))


@program((5, 9, 12), lambda t: ((torch.rand(t) > 0.5), floats(t)), breaks=True)
def boolean_index(mask, x):
    chosen = x[mask]
    return chosen * 2, chosen.shape[0]


@program((5, 9, 12), lambda t: (torch.randint(0, 3, (t,)),), breaks=True)
def places_of_nonzero(x):
    places = (x + 1 - 1).nonzero()
    return places.squeeze(-1) * 2


@program((5, 9, 12), lambda t: (floats(20), torch.tensor(t)), breaks=True)
def item_as_size(x, n):
    length = (n + 0).item()
    return x[:length] * 2, torch.zeros(length)


@program((5, 9, 12), lambda t: (torch.randint(0, 4, (t,)),), breaks=True)
def unique_values(x):
    values, counts = (x * 2).unique(return_counts=True)
    return values + 1, counts


@program(((6, 7), (3, 9), (7, 6), (11, 3), (13, 5)), lambda n, m: (torch.ones(n), m))
def floats_made_of_sizes(x, m):
    n = x.shape[0]
    numbers = [n * 0.1 * 3, 1e16 + n * 1.0 - 1e16, n * 0.0, n * -0.0, (n - n) * 0.5, n * 0.5 - n * 0.5, n * 0.1 * m * 0.1, n % 0.7,
               n * 0.3 // 0.1, sum([n * 0.1, m * 0.1, 0.3]), sum((n * each for each in (0.1, 0.2)), 0.3), n / 3 * 3, -(n * 0.1)]
    return numbers, [math.copysign(1.0, each) for each in numbers], [x * each for each in numbers]


@program(((10, 3), (20, 5), (13, 4), (30, 2)), lambda t, n: (floats(2, t), n))
def sizes_made_of_floats(x, n):
    t = x.shape[1]
    return x[:, : int(t * 0.7)] * 2, x[:, : math.floor(t * 0.3)] + 1, x[:, math.ceil(t / 3) :], torch.zeros(round(n * 1.3)), int(-n * 0.9)


@program((5, 6, 9, 4), lambda n: (floats(3), n), compiles=3)  # a negative number and one that is not
def powers_of_negative_numbers(x, n):
    return (-1) ** n, x * (-1) ** n, x * (-2.0) ** n, (-2) ** torch.arange(n), (-n) ** 2 * x


@program(((5, 6), (6, 8), (4, 9), (7, 2)), lambda t, n: (floats(t), n), compiles=4)  # each comparison is a guard
def comparisons_as_numbers(x, n):
    return x * (n > 2), x + (n == 6), torch.full((n,), x.shape[0] > 5), x * bool(n % 2)


@program(((7, 2), (9, 3), (8, 5), (7, 4)), lambda n, at: (floats(n, 3), at))
def a_piece_of_joined_parts(x, at):
    return torch.cat([x, x * 2, x + 1])[at : at + 2] * 2


@program(LENGTHS, lambda t: (floats(t, 6),))
def noise_from_no_generator(x):
    noise = torch.rand(x.shape, generator=None, device=x.device) + torch.randn(*x.shape, generator=None)
    return (x + noise * 0).normal_(generator=None).shape, x * (noise.numel() > 0)


@program(((8, 8), (9, 9), (6, 6), (7, 0)), lambda t, n: (floats(t, 3), floats(t, 3), n), compiles=3)
def cache_filled_to_its_end(cache, new, n):
    cache[:n] = new[:n]
    cache[n:].zero_()
    return cache.sum(0)


@program(LENGTHS, lambda t: (floats(t, 6),))
def quantized(x):
    whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
    return whole * x.shape[0], torch.fake_quantize_per_tensor_affine(x.t(), torch.tensor(0.2), torch.tensor(1), -8, 7)


@program(((8, 3), (9, 3), (12, 5), (16, 7)), lambda t, n: (floats(2, 4, t), n), compiles=4)  # each width is a constant
def windows_by_number(x, n):
    return F.max_pool1d(x, n, stride=1, padding=n // 2) + x


@program(((2, 3, 1), (3, 3, 7), (1, 5, 6), (4, 5, 6)), lambda a, b, c: (floats(a, c, b).mT, floats(a, b, c)), compiles=4)
def transposed_and_written(x, y):
    x[y > 0.5] = 0.25
    return x.mul_(2).sum(1)


@program(((13,), (17,), (6,), (22,)), lambda t: (floats(t),))
def divided_by_a_number_of_windows(x):
    n = x.shape[0] - 1
    return x[: n // (n // 4)] * 2
