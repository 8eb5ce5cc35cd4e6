"""Combinations of operators where compilers go wrong: ties, zeros, NaN, infinities, dtypes, promotion, odd layouts.

Each program is compared with eager: values and gradients against an fp64 run, integers exactly, NaN and infinity in place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import minicompile
from tests.differential import check, leaf

NAN, INF = math.nan, math.inf


def values(*given: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A differentiable vector of chosen values."""
    return torch.tensor(given, dtype=dtype, requires_grad=dtype.is_floating_point or dtype.is_complex)


def integers(*size: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, size).to(dtype)


def classes(count: int, *size: int) -> Tensor:
    return torch.randint(0, count, size)


EDGES = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, 3e38)
TIES = (1.0, 3.0, 3.0, -2.0, 3.0, -2.0, -2.0, 0.0)

# name: (function, () -> arguments)
LOSSES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "cross entropy of images": (lambda x, t: F.cross_entropy(x, t, ignore_index=2, label_smoothing=0.1),
                                lambda: (leaf(2, 5, 3, 4), classes(5, 2, 3, 4))),
    "cross entropy of probabilities": (lambda x, t: F.cross_entropy(x, t.softmax(-1), reduction="sum"),
                                       lambda: (leaf(4, 6), leaf(4, 6))),
    "cross entropy where every target is ignored": (lambda x, t: F.cross_entropy(x, torch.full_like(t, -100)),
                                                    lambda: (leaf(4, 6), classes(6, 4))),
    "nll with weights": (lambda x, t, w: F.nll_loss(x.log_softmax(1), t, w, reduction="mean"),
                         lambda: (leaf(4, 6), classes(6, 4), torch.rand(6))),
    "binary cross entropy": (lambda x, t, w: F.binary_cross_entropy(x.sigmoid(), t, w), lambda: (leaf(7), torch.rand(7), torch.rand(7))),
    "binary cross entropy with logits": (lambda x, t, w: F.binary_cross_entropy_with_logits(x * 40, t, pos_weight=w),
                                         lambda: (leaf(5, 3), torch.rand(5, 3), torch.rand(3))),
    "kl divergence of logs": (lambda x, t: F.kl_div(x.log_softmax(-1), t.log_softmax(-1), reduction="batchmean", log_target=True),
                              lambda: (leaf(3, 5), leaf(3, 5))),
    "kl divergence with zeros": (lambda x, t: F.kl_div(x.log_softmax(-1), t.relu(), reduction="none"), lambda: (leaf(3, 5), leaf(3, 5))),
    "huber, smooth l1, l1": (lambda x, t: F.huber_loss(x, t, delta=0.3) + F.smooth_l1_loss(x, t, beta=0.5) + F.l1_loss(x, t),
                             lambda: (leaf(9), leaf(9))),
    "several labels, none after -1": (lambda x, t: (F.multilabel_margin_loss(x, t), F.multilabel_margin_loss(x, t, reduction="none")),
                                      lambda: (leaf(3, 4), torch.tensor([[2, 0, -1, 1], [-1, 3, 3, 3], [3, 2, 1, 0]]))),
    "l1 at equality": (lambda x: F.l1_loss(x, x.detach()) + F.smooth_l1_loss(x, x.detach()), lambda: (leaf(9),)),
    "triplet and cosine": (lambda a, b, c: F.triplet_margin_loss(a, b, c) + F.cosine_embedding_loss(a, b, torch.ones(4)),
                           lambda: (leaf(4, 6), leaf(4, 6), leaf(4, 6))),
    "margin ranking and hinge": (lambda a, b, y: F.margin_ranking_loss(a, b, y, 0.2) + F.hinge_embedding_loss(a, y),
                                 lambda: (leaf(8), leaf(8), torch.randn(8).sign())),
    "multi margin": (lambda x, t: F.multi_margin_loss(x, t), lambda: (leaf(4, 6), classes(6, 4))),
    "multi margin of one row": (lambda x, t: (F.multi_margin_loss(x, t, reduction="none"), F.multi_margin_loss(x[0], t, reduction="none"),
                                              F.multi_margin_loss(x, t[None], reduction="none")), lambda: (leaf(4), torch.tensor(0))),
    "soft margin to another dtype": (F.soft_margin_loss, lambda: (leaf(5, dtype=torch.float16), torch.ones(5, dtype=torch.float64))),
    "multilabel soft margin": (lambda x, t: F.multilabel_soft_margin_loss(x, t), lambda: (leaf(4, 6), classes(2, 4, 6).float())),
    "poisson and gaussian": (lambda x, t, v: F.poisson_nll_loss(x, t, full=True) + F.gaussian_nll_loss(x, t, v.exp()),
                             lambda: (leaf(7), torch.rand(7) * 4, leaf(7))),
    "ctc": (lambda x, t: F.ctc_loss(x.log_softmax(2), t, torch.full((2,), 9), torch.full((2,), 3)),
            lambda: (leaf(9, 2, 5), torch.randint(1, 5, (2, 3)))),
    "contrastive logits": (lambda a, b: F.cross_entropy(F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07, torch.arange(6)),
                           lambda: (leaf(6, 8), leaf(6, 8))),
    "z loss": (lambda x: (x.logsumexp(-1) ** 2).mean() + F.cross_entropy(x, x.argmax(-1)), lambda: (leaf(5, 7),)),
}

SHAPES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "norms of parts in channels_last": (lambda x, y: (F.batch_norm(x.permute(0, 3, 1, 2)[:, :4], None, None, training=True), F.batch_norm(
                                            y.movedim(-1, 1)[:, ::2], torch.zeros(4), torch.ones(4))), lambda: (leaf(2, 5, 6, 7), leaf(2, 3, 5, 6, 8))),
    "norms of channels_last beside sizes of 1": (
        lambda x, y: (F.batch_norm(x, torch.zeros(2), torch.ones(2)), F.batch_norm(y.as_strided((2, 2, 1, 3), (6, 1, 1, 2)), None, None, training=True)),
        lambda: (torch.randn(1, 3, 2, 1).permute(0, 2, 1, 3), torch.randn(12))),
    "factors of parts of copies": (lambda x: (torch.linalg.det(x.flip(-1)[..., :3, :3]), torch.linalg.slogdet(x.roll(1, 0)[..., 1:, ::2])[1],
                                              torch.linalg.solve(x.flip(0)[:1, ..., :2, :2].expand(2, -1, -1), x[..., 1:3, :3])),
                                   lambda: (leaf(2, 4, 6),)),
    "pooling of every kind": (lambda x: F.max_pool2d(x, 3, 2, 1).sum() + F.avg_pool2d(x, 2, 2, count_include_pad=False).square().sum()
                              + F.adaptive_avg_pool2d(x, (3, 2)).cos().sum() + F.lp_pool2d(x.abs() + 0.1, 2, 2).sum(), lambda: (leaf(2, 3, 9, 8),)),
    "max pooling at ties": (lambda x: F.max_pool2d(x.round(), 2), lambda: (leaf(1, 2, 6, 6),)),
    "max pooling and unpooling": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), lambda: (leaf(1, 2, 6, 6),)),
    "one-dimensional pooling": (lambda x: (F.max_pool1d(x, 3, 2), F.avg_pool1d(x, 3, 2, 1), F.adaptive_max_pool1d(x, 4)), lambda: (leaf(2, 3, 11),)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear") .sum() + F.interpolate(x, size=(3, 9), mode="nearest").cos().sum()
                   + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True).sin().sum(), lambda: (leaf(1, 2, 5, 4),)),
    "upsampling by a scale that leaves a size as it is": (
        lambda x: tuple(F.interpolate(x, scale_factor=(1.1, 2.0), mode=m) for m in ("nearest", "bilinear", "bicubic", "nearest-exact")),
        lambda: (leaf(1, 2, 5, 4),)),
    "upsampling that doubles a size by another scale than two": (
        lambda x: tuple(F.interpolate(x, scale_factor=2.2, mode=m) for m in ("nearest", "bilinear", "bicubic", "nearest-exact")),
        lambda: (leaf(1, 2, 4, 3),)),
    "scatters into an expanded tensor": (
        lambda x, s: (torch.diagonal_scatter(x, s).relu(), torch.select_scatter(x, s, 0, 1).relu(), torch.slice_scatter(x, s[None], 0, 1, 2).relu()),
        lambda: ((-torch.rand(1, 3) - 1).expand(3, 3), torch.ones(1).expand(3).detach().requires_grad_())),
    "a transposed part masked in place": (lambda x, m: (x * 1).view(2, 3, 2, 4).transpose(1, 2).masked_fill_(m[:, None, :, None], 0.0).sin(),
                                          lambda: (leaf(2, 3, 8), torch.tensor([[True, False, False], [False, True, False]]))),
    "taking one element": (lambda x, i: torch.take(x, i) * x.sum(), lambda: (leaf(3, 5), torch.tensor(-2))),
    "filling by an index from the end": (lambda x: (x.index_fill(1, torch.tensor([0, -1]), 2.0), x.sin().index_fill_(0, torch.tensor([-1]), 3.0)),
                                         lambda: (leaf(3, 5),)),
    "unpooling channels_last": (lambda x, i: F.max_unpool2d(x, i, 3),
                                lambda: (leaf(2, 2, 1, 2).as_strided((2, 2, 1, 2), (4, 1, 4, 2)), torch.tensor([[[[0, 3]]]]).expand(2, 2, 1, 2))),
    "trilinear and area": (lambda x: (F.interpolate(x, size=(3, 5, 4), mode="trilinear"), F.interpolate(x, size=(2, 2, 2), mode="area")),
                           lambda: (leaf(1, 2, 4, 4, 4),)),
    "padding modes": (lambda x: sum(F.pad(x, (2, 1, 1, 2), mode=m).sin().sum() for m in ("reflect", "replicate", "circular", "constant")),
                      lambda: (leaf(2, 2, 4, 5),)),
    "negative padding": (lambda x: F.pad(x, (-1, 2, 1, -2), value=3.0) * 2, lambda: (leaf(2, 4, 5),)),
    "pixel shuffle and unfold": (lambda x: F.pixel_shuffle(x, 2).cos() .sum() + F.unfold(x, 2).sin().sum(), lambda: (leaf(1, 4, 5, 4),)),
    "fold": (lambda x: F.fold(F.unfold(x, 3, padding=1), (5, 4), 3, padding=1), lambda: (leaf(2, 3, 5, 4),)),
    "grid sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False, padding_mode="reflection"), lambda: (leaf(1, 2, 5, 4), leaf(1, 3, 3, 2))),
    "affine grid": (lambda t, x: F.grid_sample(x, F.affine_grid(t, [1, 2, 4, 4], align_corners=True), align_corners=True),
                    lambda: (leaf(1, 2, 3), leaf(1, 2, 5, 5))),
    "einsum": (lambda a, b, c: torch.einsum("bij,bjk->bik", a, b).sum() + torch.einsum("bij,bkj->ik", a, c).cos().sum()
               + torch.einsum("bii->b", a[:, :, :3]).sum() + torch.einsum("bij,kj->", a, c[0]), lambda: (leaf(2, 3, 4), leaf(2, 4, 5), leaf(2, 6, 4))),
    "einsum with broadcast": (lambda a, b: torch.einsum("...ij,...j->...i", a, b), lambda: (leaf(2, 1, 3, 4), leaf(5, 4))),
    "tensordot, kron, outer, cross": (lambda a, b: torch.tensordot(a, b, 1).sum() + torch.kron(a[0], b[0]).cos() .sum()
                                      + torch.outer(a[0, 0], b[0, 0]).sum() + torch.linalg.cross(a[0], a[1]).sum(), lambda: (leaf(2, 4, 3), leaf(3, 4, 3))),
    "cdist and pairwise": (lambda a, b: (torch.cdist(a, b), F.pairwise_distance(a[:3], b), F.pdist(a)), lambda: (leaf(5, 4), leaf(3, 4))),
    "rot90, roll, flip, diagonal": (lambda x: torch.rot90(x, 1, (0, 1)).roll(1, 0).flip(1).diagonal(1).cumsum(0), lambda: (leaf(4, 5),)),
    "strided views": (lambda x: x[::2, 1::3].t().unflatten(0, (1, -1)).movedim(0, 2) * x[0, 0], lambda: (leaf(5, 7),)),
    "as_strided that overlaps": (lambda x: x.as_strided((3, 3), (2, 1), 1).square(), lambda: (leaf(9),)),
    "copies of strided views, group norm": (lambda x: (torch.as_strided_copy(x, (2, 2), (1, 2)), x.as_strided_scatter(x[:2, :2] * 2, (2, 2), (1, 2)),
                                                       torch.native_group_norm(x[None], None, None, 1, 4, 4, 2, 1e-5)[0]), lambda: (leaf(4, 4),)),
    "copies of strided views from an offset": (
        lambda x: (torch.as_strided_copy(x.clone(), (2, 2), (1, 2), 1), torch.as_strided_scatter(x.clone(), x[:2, :2], (2, 2), (1, 2), storage_offset=1)),
        lambda: (torch.arange(20.0)[3:15].view(3, 4),)),
    "expanded and reduced": (lambda x: (x.expand(4, 3, 5) * torch.arange(4.0).view(4, 1, 1)).sum((0, 2)), lambda: (leaf(3, 1),)),
    "unfold windows": (lambda x: x.unfold(1, 3, 2).var(-1), lambda: (leaf(2, 9),)),
    "block diagonal of numbers and vectors": (
        lambda a, b, n: (torch.block_diag(a, b), torch.block_diag(n, a), torch.block_diag(n, b, b).dtype, torch.block_diag(a, b, a.double())),
        lambda: (values(1.0, 2.0, dtype=torch.bfloat16), torch.tensor(1.5, requires_grad=True), torch.tensor(3))),
    "norms of one number": (lambda x: [torch.linalg.vector_norm(x[0], p) for p in (2, 3, 0.5, -2, 0)] + [x[1].norm()], lambda: (values(1e30, -1e-30),)),
    "block diagonal and cartesian": (lambda a, b: (torch.block_diag(a, b), torch.cartesian_prod(a[0], b[0]), torch.combinations(a[0])),
                                     lambda: (leaf(2, 3), leaf(3, 2))),
    "tensor_split and hsplit": (lambda x: sum((i + 1) * p.sin().sum() for i, p in enumerate(torch.tensor_split(x, 3, 1))), lambda: (leaf(2, 7),)),
    "empty rows": (lambda x: (x.sum(0), x.prod(1), torch.cat([x, x]), x.mean(1), x.softmax(-1), x.logsumexp(0), x.any(1)), lambda: (leaf(0, 4),)),
    "zero-dimensional": (lambda x: (x.softmax(0), x.cumsum(0), x.sort(0)[0], x.max(), x.expand(3), x.sum(0), x[None].flip(0), x.logsumexp(0)), lambda: (leaf(),)),
}

INDEXING: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "one element at several places, summed": (lambda x, i: (x[:, None].expand(3, 5)[:, i].sum(1), x[0].expand(5)[i].sum(0)),
                                              lambda: (leaf(3), torch.tensor([0, 4, -1, 0]))),
    "scatter of every kind": (lambda x, i, s: x.scatter(1, i, s).sum() + x.scatter_add(1, i, s).cos().sum()
                              + x.scatter_reduce(1, i, s, "amax", include_self=False).sin().sum() + x.scatter(1, i, 2.0).sum(),
                              lambda: (leaf(3, 5), torch.stack([torch.randperm(5)[:4] for _ in range(3)]), leaf(3, 4))),
    "scatter_reduce with repeats": (lambda x, i, s: tuple(x.scatter_reduce(0, i, s, r) for r in ("sum", "mean", "amin")),
                                    lambda: (leaf(4, 3), classes(4, 6, 3), leaf(6, 3))),
    "scatter_reduce prod": (lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), lambda: (leaf(4, 3), classes(4, 6, 3), leaf(6, 3))),
    "index_add, index_copy, index_fill": (lambda x, i, s: x.index_add(0, i, s, alpha=2).sum() + x.index_copy(0, i, s).cos().sum()
                                          + x.index_fill(0, i, 3.0).sin().sum(), lambda: (leaf(5, 3), torch.tensor([4, 0, 2]), leaf(3, 3))),
    "kernels that read no copy but a plain one": (
        lambda x, i, w: (x.repeat(1, 6).median(-1)[0], x.repeat(1, 6).nanmedian(-1)[0], x.repeat(4, 1)[::2].clone().median(0)[0],
                         F.embedding_bag(i[:1].repeat(4), w, torch.tensor([0, 1]), mode="max"),
                         F.embedding_bag(i.repeat(2, 1).t().reshape(-1), w, torch.tensor([0, 3]), mode="sum", per_sample_weights=x[:1, 0].repeat(8))),
        lambda: (leaf(4, 1), torch.tensor([2, 0, 4, 1]), leaf(5, 3))),
    "index_fill with a tensor": (lambda x, i, v: x.index_fill(1, i, v), lambda: (leaf(3, 5), torch.tensor([1, 3]), torch.tensor(2.0, requires_grad=True))),
    "index_reduce": (lambda x, i, s: x.index_reduce(0, i, s, "mean"), lambda: (leaf(5, 3), torch.tensor([4, 0, 0]), leaf(3, 3))),
    "gather with repeats": (lambda x, i: x.gather(1, i).cos(), lambda: (leaf(3, 5), classes(5, 3, 9))),
    "take and put": (lambda x, i, s: x.take(i).sum() + x.put(i, s, accumulate=True).cos().sum(), lambda: (leaf(3, 4), torch.tensor([0, 5, 5]), leaf(3))),
    "advanced indices, negative": (lambda x, i, j: x[i, :, j].sin() + x[-1, 0, -2], lambda: (leaf(3, 4, 5), torch.tensor([0, -1]), torch.tensor([-2, 2]))),
    "index_put accumulates": (lambda x, i, v: x.index_put((i,), v, accumulate=True), lambda: (leaf(5, 2), torch.tensor([1, 1, 4]), leaf(3, 2))),
    "masked assignment of a value": (lambda x, m: assign(x, m, -1.0), lambda: (leaf(4, 3), torch.rand(4, 3) > 0.5)),
    "masked assignment of rows": (lambda x, m: assign(x, m, 0.5), lambda: (leaf(4, 3), torch.rand(4) > 0.5)),
    "masked assignment of differentiable values": (lambda x, m, v: assign(x, m, v[0]) + assign(x, m[:, 0], v) + x.index_put((None, m[0]), v[:1]),
                                                   lambda: (leaf(4, 3), torch.rand(4, 3) > 0.5, leaf(3))),
    "masked assignment of as many values": (lambda x, m, v: assign(x, m, v * 2) + assign(x, m[:, 1], torch.stack([v, v, v], 1)[:3]),
                                            lambda: (leaf(4, 3), torch.arange(12).view(4, 3) % 4 != 0, leaf(9))),
    "masked assignment of no values": (lambda x, m, v: assign(x, m, v) * assign(x, m[:, 0], v.view(0, 3)), lambda: (leaf(4, 3), torch.zeros(4, 3) > 0, leaf(0))),
    "masked assignment of another number of values": (lambda x, m, v: assign(x, m, v * 2), lambda: (leaf(4, 3), torch.ones(4, 3) > 0, leaf(9))),
    "index_fill of a 0-d tensor, in place": (lambda x, i, v: (x * 2).index_fill_(0, i, v), lambda: (leaf(), torch.tensor([0]), leaf())),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), lambda: (leaf(4, 3), torch.rand(4, 3) > 0.5, leaf(12))),
    "masked softmax": (lambda x, m: x.masked_fill(m, -INF).softmax(-1), lambda: (leaf(4, 6), torch.rand(4, 6) > 0.6)),
    "a row masked entirely": (lambda x: x.masked_fill(torch.arange(4)[:, None] == 1, -INF).softmax(-1).nan_to_num(0.0), lambda: (leaf(4, 6),)),
    "select and slice scatter": (lambda x, s: x.select_scatter(s[0], 0, 2).sum() + x.slice_scatter(s, 0, 1, 5, 2).cos().sum()
                                 + x.diagonal_scatter(s[:, 0], 1).sin().sum(), lambda: (leaf(6, 3), leaf(2, 3))),
    "one hot": (lambda i, w: F.one_hot(i, 7).float() @ w, lambda: (classes(7, 2, 4), leaf(7, 3))),
    "embedding with padding": (lambda i, w: F.embedding(i, w, padding_idx=2).cos(), lambda: (classes(5, 3, 6), leaf(5, 4))),
    "embedding bag": (lambda i, w: F.embedding_bag(i, w, mode="mean"), lambda: (classes(5, 3, 6), leaf(5, 4))),
    "sort, then use both": (lambda x: (lambda s: s.values.cumsum(1) * s.indices)(x.sort(1, descending=True, stable=True)), lambda: (leaf(3, 7),)),
    "topk and its consumers": (lambda x: (lambda t: torch.zeros_like(x).scatter(1, t.indices, t.values.softmax(1)))(x.topk(3)), lambda: (leaf(4, 8),)),
    "argsort, searchsorted, bucketize": (lambda x: (x.argsort(1), torch.searchsorted(x.sort(1)[0].detach(), x.detach()),
                                                    torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0]))), lambda: (leaf(3, 6),)),
    "kthvalue, median, mode": (lambda x: (x.kthvalue(2, 1), x.median(1), x.nanmedian(1), x.quantile(0.3, 1)), lambda: (leaf(3, 7),)),
    "unique-free histogram": (lambda i: torch.zeros(6, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)), lambda: (classes(6, 20),)),
    "repeat_interleave and tile": (lambda x: x.repeat_interleave(2, 0).tile(1, 3).cos(), lambda: (leaf(3, 2),)),
    "diag_embed and tril indices": (lambda x: torch.diag_embed(x, 1).sum(-1) + x[..., torch.tril_indices(4, 4)[1][:4]].sum(), lambda: (leaf(2, 4),)),
}


def assign(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Assignment by mask to a computed tensor."""
    y = x * 2
    y[mask] = value
    return y * x


def autocast_grid(theta: Tensor) -> Tensor:
    """Where a picture is sampled, as mixed precision gives it."""
    with torch.autocast("cpu", torch.bfloat16):
        return F.affine_grid(theta, [2, 3, 4, 5], align_corners=False)


EDGE_VALUES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "max and min at ties": (lambda x: x.amax() + x.amin() * 2 + x.max() * 3 + x.min() * 5, lambda: (values(*TIES),)),
    "max with an index at ties": (lambda x: (x.max(0), x.min(0), x.argmax(), x.argmin(), x.cummax(0), x.cummin(0)), lambda: (values(*TIES),)),
    "maximum and minimum at ties": (lambda x, y: torch.maximum(x, y) * 2 + torch.minimum(x, y) + torch.fmax(x, y), lambda: (values(*TIES), values(*reversed(TIES)))),
    "clamp at its bounds": (lambda x: x.clamp(-2.0, 3.0) + x.clamp(min=0.0) + x.clamp_max(1.0) + F.relu6(x) + F.hardtanh(x), lambda: (values(*TIES),)),
    "clamp by tensors": (lambda x, a, b: x.clamp(a, b), lambda: (values(*TIES), values(0.0, 3.0, 4.0, -2.0, 1.0, -3.0, -2.0, 0.0), values(1.0, 3.0, 2.0, 0.0, 3.0, -2.5, -2.0, 0.0))),
    "signs of clamped zeros": (lambda x: [f(y).signbit() for f in (F.relu, F.relu6, lambda y: y.clamp(0, 1), lambda y: y.clamp(max=-0.0))
                                          for y in (x, x.double())], lambda: (torch.tensor(EDGES),)),
    "logit of NaN between bounds": (lambda x: torch.logit(x, 1e-3), lambda: (values(NAN, INF, -1.0, 0.0, 0.5, 1.0),)),
    "clamp of NaN": (lambda x: (x.clamp(-1, 1), x.clamp(min=NAN), torch.nan_to_num(x, 1.0, 2.0, 3.0)), lambda: (values(*EDGES),)),
    "abs, sign, relu at zero": (lambda x: x.abs() + x.sign() * 2 + x.relu() + F.leaky_relu(x, 0.1) + F.elu(x) + F.threshold(x, 0.0, 5.0), lambda: (values(0.0, -0.0, 1.0, -1.0),)),
    "square root and norm at zero": (lambda x: (x.abs().sqrt(), x[:2].norm(), x[:2].norm(p=1), x.norm(p=3), torch.linalg.vector_norm(x[:2], INF)), lambda: (values(0.0, 0.0, 4.0, -1.0),)),
    "rsqrt, reciprocal at zero": (lambda x: (x.rsqrt(), x.reciprocal(), 1 / x, x / 0.0), lambda: (values(0.0, 4.0, 1.0),)),
    "product with zeros": (lambda x: (x.prod(), x[:3].prod(), x.view(2, 3).prod(1), x.cumprod(0)), lambda: (values(2.0, 0.0, 3.0, 0.0, 4.0, -1.0),)),
    "powers": (lambda x: (x.pow(0), x.pow(1), x.pow(2), x.pow(3), x.pow(-1), x.pow(0.5), x.pow(-0.5), 2.0 ** x, 0.0 ** x.abs()), lambda: (values(0.0, 1.0, 2.0, 0.5),)),
    "powers of tensors": (lambda x, y: x.pow(y), lambda: (values(0.0, 0.0, 2.0, -2.0, -2.0), values(0.0, 2.0, -1.0, 3.0, 2.0))),
    "xlogy and friends": (lambda x, y: torch.xlogy(x, y) + torch.special.xlog1py(x, y), lambda: (values(0.0, 0.0, 1.0, 2.0, 0.0), values(0.0, 2.0, 0.5, 3.0, NAN))),
    "where hides a NaN gradient": (lambda x: torch.where(x > 0, x.sqrt(), torch.zeros_like(x)), lambda: (values(4.0, 0.0, -1.0),)),
    "where with scalars": (lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, 1, x), lambda: (values(4.0, 0.0, -1.0),)),
    "atan2 in every quadrant": (lambda y, x: torch.atan2(y, x) + torch.hypot(y, x), lambda: (values(1.0, -1.0, 1.0, -1.0, 0.5, -0.5), values(1.0, 1.0, -1.0, -1.0, 0.2, 3.0))),
    "small arguments": (lambda x: (x.expm1(), x.log1p(), x.sin(), x.tanh(), x.sigmoid(), x.erf(), x.asinh(), x.atanh(), x.sinh()), lambda: (values(1e-8, -1e-6, 1e-20, 1e-4, -1e-3),)),
    "large arguments": (lambda x: (x.tanh(), x.sigmoid(), F.softplus(x), F.logsigmoid(x), F.gelu(x), F.silu(x), F.mish(x), x.erf(), x.erfc(), F.softsign(x)),
                        lambda: (values(100.0, -100.0, 20.0, -20.0, 88.0, -88.0),)),
    "error functions": (lambda x: (torch.erfinv(x), torch.special.ndtri((x + 1) / 2), torch.special.erfcx(x), torch.lgamma(x + 2), torch.digamma(x + 2)), lambda: (values(0.0, 0.3, -0.7, 0.99, -0.999),)),
    "special functions": (lambda x: (torch.i0(x), torch.special.i1(x), torch.sinc(x), torch.special.entr(x.abs()), torch.special.ndtr(x), torch.special.log_ndtr(x), torch.logit(x, 1e-3)), lambda: (values(0.1, 0.9, 0.5, 0.0),)),
    "logsumexp of infinities": (lambda x: (x.logsumexp(0), x[:2].logsumexp(0), torch.logaddexp(x, x.flip(0)), x[2:].logcumsumexp(0)), lambda: (values(-INF, -INF, 1.0, 2.0, -3.0),)),
    "extreme values through orders": (lambda x: (x.sort()[0], x.argmax(), x.amax(), x.argmin(), x.cummax(0)[0], torch.fmin(x, x.flip(0)), x.isnan(), x.isposinf()), lambda: (torch.tensor(EDGES),)),
    "halves to decimals": (lambda x: [torch.round(x.to(kind), decimals=d) for d in (1, -1, 3) for kind in (torch.half, torch.bfloat16)],
                           lambda: (torch.tensor([12344.0, 65000.0, 3.14159, -2.55, 0.05]),)),
    "sums of infinities": (lambda x: (x.sum(), x.nansum(), x.nanmean(), x.mean(), x.var(), x.std()), lambda: (torch.tensor(EDGES),)),
    "edges through activations": (lambda x: tuple(f(x) for f in (torch.relu, torch.sigmoid, torch.tanh, F.silu, F.softplus, F.elu, F.selu, F.hardswish, F.mish, torch.sign, torch.floor,
                                                                 torch.exp, torch.log, torch.sqrt, torch.sin, torch.round, torch.frac, torch.trunc)), lambda: (torch.tensor(EDGES),)),
    "edges compared": (lambda x: (x == x, x != x, x < 0, x >= 0, x.isinf(), x.signbit(), x.bool(), torch.isclose(x, x, equal_nan=True), x.copysign(-x), torch.nextafter(x, -x)), lambda: (torch.tensor(EDGES),)),
    "infinite pixels between others": (
        lambda x: [F.interpolate(x, size=(7, 7), mode="bilinear", align_corners=corners) for corners in (False, True)]
        + [F.interpolate(x[0], scale_factor=1.7, mode="linear"), F.interpolate(x[None], size=(2, 5, 7), mode="trilinear")],
        lambda: (torch.arange(25.0).where(torch.arange(25) != 7, -INF).view(1, 1, 5, 5),)),
    "places beyond a picture with a NaN in its corner": (
        lambda x, g: [F.grid_sample(x, g, mode=mode, align_corners=False) for mode in ("bilinear", "nearest", "bicubic")],
        lambda: (torch.tensor([[NAN, 1.0, 2.0], [3.0, INF, 4.0], [5.0, 6.0, 7.0]])[None, None], torch.tensor([[[[2.0, 2.0], [-1.9, 0.3], [0.9, 0.9], [INF, NAN]]]]))),
    "sums of negative zeros": (lambda x: [f(x).signbit() for f in (torch.sum, lambda x: x.mean(1), lambda x: x.sum(1), lambda x: x.cumsum(0), lambda x: x.nansum(-1))],
                               lambda: (torch.full((3, 1), -0.0),)),
    "shifted exponents": (lambda x, n: (torch.ldexp(x, n), torch.ldexp(n, x[2].detach().half()), torch.ldexp(x, x), torch.ldexp(n, n)),
                          lambda: (values(1e-30, 3e38, -2.5), torch.tensor([200, -250, 3]))),
    "fmod and remainder": (lambda x, y: (x % y, torch.fmod(x, y), x // y, torch.div(x, y, rounding_mode="trunc"), torch.div(x, y, rounding_mode="floor")),
                           lambda: (torch.tensor([5.5, -5.5, 5.5, -5.5, 0.0, 1.0, INF, NAN, -1e-8]), torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, INF, 2.0, 1.0, 3.0]))),
    "rounding": (lambda x: (x.round(), x.round(decimals=1), x.floor(), x.ceil(), x.trunc(), x.frac()), lambda: (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.25, -0.75, 1e9]),)),
    "variance of large values": (lambda x: ((x + 1e4).var(1), (x + 1e4).std(1, unbiased=False), F.layer_norm(x + 1e3, (64,))), lambda: (leaf(6, 64),)),
    "normalisations": (lambda x: F.normalize(x, dim=1).sum() + F.rms_norm(x, (6,)).cos().sum() + F.group_norm(x[..., None], 3).sin().sum() + F.local_response_norm(x[..., None], 3).sum(), lambda: (leaf(4, 6),)),
    "a row of zeros normalised": (lambda x: (F.normalize(x * 0, dim=1), F.layer_norm(x * 0 + 3, (6,)), F.cosine_similarity(x * 0, x, 1)), lambda: (leaf(4, 6),)),
    "renorm and clip by norm": (lambda x: torch.renorm(x, 2, 0, 1.0) + x * (1.0 / (x.norm() + 1e-6)).clamp(max=1.0), lambda: (leaf(4, 6),)),
    "scans": (lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1), x.flip(1).cumsum(1).flip(1), torch.cumulative_trapezoid(x, dim=1), x.diff(dim=1)), lambda: (leaf(4, 7),)),
    "long sums": (lambda x: ((x + 100).sum(), (x + 100).mean(), (x + 100).cumsum(0)[-1], x.square().sum().sqrt()), lambda: (torch.randn(20_000),)),
}

RARE_FORMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "gelu by a tangent": (lambda x: F.gelu(x, approximate="tanh") * x, lambda: (leaf(5, 7),)),
    "root mean squares over several dimensions": (lambda x, w: F.rms_norm(x, (5, 7), w), lambda: (leaf(3, 5, 7), leaf(5, 7))),
    "averages of windows that leave the padding": (
        lambda x: [F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=counted) for counted in (True, False)], lambda: (leaf(1, 2, 6, 8),)),
    "the largest of wide windows": (lambda x: F.max_pool2d(x, 9), lambda: (leaf(1, 2, 18, 18),)),
    "averages of whole numbers": (lambda x: F.avg_pool2d(x, 2), lambda: (integers(1, 2, 6, 8),)),
    "a number gathered and scattered": (lambda x, y, i: (torch.gather(x, 0, i), torch.gather(y, 0, i[:1]), y.scatter_add(0, i[0], x), torch.index_select(x, 0, i[:1])),
                                        lambda: (values(3.0).squeeze(0).detach().requires_grad_(), leaf(3), torch.tensor([0, 0]))),
    "windows over a number": (lambda x: x.unfold(0, 1, 1) * 2, lambda: (values(3.0).squeeze(0).detach().requires_grad_(),)),
    "truth values as bytes": (lambda x, y: (x.view(torch.uint8) + 1, y.view(torch.bool), x.signbit(), x.max(0)), lambda: (torch.tensor([True, False]), torch.tensor([0, 1], dtype=torch.uint8))),
    "triangles of everything and of nothing": (lambda x: x.tril(5) + x.triu(-7) + x.tril(-9) * 2, lambda: (leaf(3, 4),)),
    "dropout of all and of none": (lambda x: (F.dropout(x, 1.0), F.dropout(x, 0.0), *torch.native_dropout(x, 0.0, True), *torch.native_dropout(x, 0.5, False)), lambda: (leaf(6),)),
    "whole numbers to a fraction": (lambda x: (x.abs() ** 2.5, torch.ones_like(x) ** -1), lambda: (integers(6),)),
    "part of what is subtracted": (lambda x, y: ((3.0 - x).view(-1)[1:], torch.rsub(y, x, alpha=3)), lambda: (leaf(3, 4), leaf(3, 4))),
    "gradients by frequency": (lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), lambda: (torch.tensor([1, 1, 2]), leaf(4, 3))),
    "whole numbers between fractions": (lambda x: x + torch.arange(0, 10.5, 1.5, dtype=torch.int64).sum(), lambda: (leaf(4),)),
    "the margin of one row": (lambda x, t: F.multi_margin_loss(x, t), lambda: (leaf(4), torch.tensor(2))),
}

DTYPES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "integer division": (lambda x, y: (x // y, x % y, torch.fmod(x, y), x / y, torch.div(x, y, rounding_mode="trunc"), -x // y),
                         lambda: (integers(40), integers(40, low=1) * torch.randn(40).sign().long())),
    "integers by Python numbers": (lambda x: (x // 3, x // -3, x % 3, x % -3, 7 // (x * 2 + 1), x / 2, x * 2.5, x + True, 3 - x, x ** 2), lambda: (integers(20),)),
    "shifts and bits": (lambda x, y: (x << 2, x >> 1, x & y, x | y, x ^ y, ~x, x.bitwise_left_shift(y.abs())), lambda: (integers(20), integers(20))),
    "overflow of int32": (lambda x: (x + x, x * x, -x, x - 1, x.abs(), x.sum(), x.prod(dtype=torch.int32)), lambda: (torch.tensor([2**31 - 1, -(2**31), 65536, 12345678], dtype=torch.int32),)),
    "overflow of int64": (lambda x: (x + x, x * x, -x, x.sum(), x.cumsum(0)), lambda: (torch.tensor([2**63 - 1, -(2**63), 2**32 + 1]),)),
    "uint8 wraps": (lambda x, y: (x + y, x - y, x * y, -x, ~x, x >> 1, x << 3, x // (y | 1), x % (y | 1), x.sum(), x < y), lambda: (integers(30, low=0, high=256, dtype=torch.uint8), integers(30, low=0, high=256, dtype=torch.uint8))),
    "int8 wraps": (lambda x, y: (x + y, x - y, x * y, -x, x.abs(), x >> 1, x << 3, x // (y | 1), x % (y | 1), x.cumsum(0), x * 2, x / 2),
                   lambda: (integers(30, low=-128, high=128, dtype=torch.int8), integers(30, low=-128, high=128, dtype=torch.int8))),
    "int16 wraps": (lambda x, y: (x * y, x + y, x.float() * y, x.to(torch.int8), x.to(torch.uint8)), lambda: (integers(30, low=-3000, high=3000, dtype=torch.int16), integers(30, low=-3000, high=3000, dtype=torch.int16))),
    "bool arithmetic": (lambda x, y: (x + y, x * y, x & y, x | y, x ^ y, ~x, x.sum(), x.cumsum(0), x.any(), x.all(), x * 2, x + 1.5, x.float().mean(), x > y, torch.logical_xor(x, y)), lambda: (torch.rand(20) > 0.5, torch.rand(20) > 0.5)),
    "promotion of kinds": (lambda i, h, f, b: (i + h, i * f, h * f, b + h, i / i.abs().clamp(min=1), h + 1, h * 2.5, i + 2.5, b * 2, b + 2.0, torch.where(b, i, h)),
                           lambda: (integers(6, dtype=torch.int32), torch.randn(6).half(), torch.randn(6), torch.rand(6) > 0.5)),
    "zero-dimensional promotion": (lambda h, z, i: (h + z, h * z, i + z, z + i, h + i, torch.add(h, z, alpha=2), h - i.max(), torch.maximum(h, z.to(h.dtype))),
                                   lambda: (torch.randn(5).bfloat16(), torch.tensor(1.7), integers(5))),
    "casts with truncation": (lambda x: (x.int(), x.long(), x.to(torch.int8), x.bool(), x.half(), x.bfloat16(), x.double(), x.int().float()), lambda: (torch.tensor([1.7, -1.7, 0.0, 100.9, -0.3, 65503.0 / 600]),)),
    "half overflow": (lambda x: (x * 400, x.sum(), x.square(), x + 65000, x.float() * 400, x.exp()), lambda: (torch.tensor([200.0, -200.0, 1.0, 0.0, 6e-5, 6e-8]).half(),)),
    "half chains": (lambda x, y: ((x * y + 1).tanh(), (x.float() * y.float()).half(), F.layer_norm(x, (8,)), x.softmax(-1), F.gelu(x), x.mean(0), x.var(1)), lambda: (leaf(4, 8, dtype=torch.float16), leaf(4, 8, dtype=torch.float16))),
    "brain floats": (lambda x, y: ((x * y + 1).tanh(), F.layer_norm(x, (8,)), x.log_softmax(-1), F.silu(x) * y, x.cumsum(1), x.sum(), x.norm()), lambda: (leaf(4, 8, dtype=torch.bfloat16), leaf(4, 8, dtype=torch.bfloat16))),
    "doubles": (lambda x, y: (x.softmax(-1) * y, x.erf(), F.layer_norm(x, (8,)), x.logsumexp(1), torch.full_like(x, 0.1), F.pad(x, (1, 1), value=0.1), x.sum(dtype=torch.float32)), lambda: (leaf(4, 8, dtype=torch.float64), leaf(4, 8, dtype=torch.float64))),
    "sums of integers and their dtypes": (lambda x: (x.sum(), x.sum(0, dtype=torch.float32), x.cumsum(0), x.prod(), x.float().mean(), x.max(), x.argmax(0), x.to(torch.int32).sum()), lambda: (integers(4, 5),)),
    "complex numbers": (lambda x, y: (lambda z: (z * z.conj()).real.sum() + z.abs().sum() + z.angle().sum() + torch.view_as_real(z * 2j).sum())(torch.complex(x, y)), lambda: (leaf(3, 4), leaf(3, 4))),
    "complex products": (lambda x: ((x @ x.T).real, x.imag * 2, x.conj().resolve_conj().abs(), x.exp().real), lambda: (leaf(3, 3, dtype=torch.complex64),)),
    "fft": (lambda x: (torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x), n=9), torch.fft.fft2(x).real, torch.fft.fftshift(x)), lambda: (leaf(4, 9),)),
    "complex arguments and results": (lambda z, w: (torch.fft.ifft(z * w), (z.conj() * w).real, z.abs(), z.sum()), lambda: (leaf(2, 3, dtype=torch.complex64), leaf(2, 3, dtype=torch.complex64))),
    "rotary embedding by complex numbers": (lambda x, t: torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 3, 2)) * torch.polar(torch.ones_like(t), t)).flatten(2), lambda: (leaf(2, 5, 6), torch.randn(5, 3))),
    "linear algebra": (lambda a: (lambda s: (torch.linalg.det(s), torch.linalg.inv(s), torch.linalg.cholesky(s), torch.linalg.solve(s, a), torch.logdet(s), torch.linalg.eigvalsh(s), torch.linalg.matrix_norm(a), s.trace(),
                                             torch.linalg.matrix_power(s, 2)))(a @ a.T + 3 * torch.eye(4)), lambda: (leaf(4, 4),)),
    "decompositions": (lambda a: (torch.linalg.svdvals(a), torch.linalg.qr(a)[1].abs(), torch.linalg.pinv(a), torch.matrix_exp(a[:3])), lambda: (leaf(4, 3),)),
    "householder product of nothing": (torch.linalg.householder_product, lambda: (leaf(0, 0), leaf(0))),
    "ranges and grids": (lambda x: (torch.arange(5, device=x.device) * x.sum(), torch.linspace(0, 1, 5) + x[0], torch.meshgrid(x, x, indexing="ij"), torch.tril(x[:, None] * x), torch.eye(4) * x.sum(), torch.logspace(0, 1, 4) * x), lambda: (leaf(4),)),
    "lerp, addcmul, addcdiv, baddbmm": (lambda x, y, z: (torch.lerp(x, y, 0.3), torch.lerp(x, y, z), torch.addcmul(x, y, z, value=0.5), torch.addcdiv(x, y, z.abs() + 1), torch.addmm(x, y, z, beta=0.5, alpha=2)), lambda: (leaf(3, 3), leaf(3, 3), leaf(3, 3))),
    "grids under autocast": (lambda t: autocast_grid(t), lambda: (leaf(2, 2, 3),)),
    "bytes of a picture between others": (lambda x: [F.interpolate(x, scale_factor=s, mode="bilinear", recompute_scale_factor=True) for s in (0.6, 1.7)],
                                          lambda: (integers(2, 3, 4, 4, low=0, high=256, dtype=torch.uint8),)),
    "bytes of a picture by cubes": (lambda x: F.interpolate(x, size=(5, 13), mode="bicubic"), lambda: (integers(2, 3, 8, 9, low=0, high=256, dtype=torch.uint8),)),
    "half products with bias": (lambda x, w, b: F.linear(x, w, b).relu() @ w, lambda: (leaf(4, 8, dtype=torch.bfloat16), leaf(6, 8, dtype=torch.bfloat16), leaf(6, dtype=torch.bfloat16))),
    "convolutions": (lambda x, w, b: (F.conv2d(x, w, b, stride=2, padding=1), F.conv2d(x, w[:, :1], groups=2), F.conv_transpose2d(x, w.transpose(0, 1)), F.conv2d(x, w, padding="same", dilation=2)), lambda: (leaf(2, 2, 6, 6), leaf(4, 2, 3, 3), leaf(4))),
    "channels last": (lambda x, w: F.relu(F.conv2d(x.to(memory_format=torch.channels_last), w)).mean((2, 3)), lambda: (leaf(2, 3, 6, 6), leaf(4, 3, 3, 3))),
    "gated units": (lambda x, w: F.glu(x @ w) + (lambda a, b: F.silu(a) * b)(*(x @ w).chunk(2, -1)), lambda: (leaf(3, 4), leaf(4, 8))),
    "mixture of experts": (lambda x, g, w: (lambda t: sum((t.values.softmax(-1) * (t.indices == e)).sum(-1, keepdim=True) * (x @ w[e]) for e in range(3)))((x @ g).topk(2, -1)), lambda: (leaf(5, 4), leaf(4, 3), leaf(3, 4, 4))),
    "powers of a number, of every width": (lambda *given: [base**x for x in given for base in (2, 0, 1, -2, True)],
                                          lambda: tuple(integers(6, low=0, dtype=d) for d in (torch.int8, torch.int32, torch.int64))),
    "numbers shifted by tensors, of every width": (lambda *given: [shifted for x in given for shifted in (1 << x, -7 >> x)],
                                                   lambda: tuple(torch.tensor([0, 3, 7, 8, 31, 32, 100]).to(d) for d in (torch.int8, torch.int32, torch.int64))),
    "exponents shifted": (lambda x, y: torch.ldexp(x, y) * 2, lambda: (leaf(5), integers(5, dtype=torch.int32))),
    "complex numbers that are none": (lambda x: (x * complex(NAN, 1), x + complex(INF, -INF), torch.full_like(x, complex(-0.0, INF)),
                                                 torch.logaddexp(x, x)), lambda: (values(1.0, -2.0, dtype=torch.complex64),)),
    "a choice that no gradient comes through": (lambda x, w: F.linear(x, w).argmax(-1), lambda: (leaf(3, 4), leaf(5, 4))),
    "a gradient per sample times a number": (lambda x: torch.func.vmap(torch.func.grad(lambda v: (v * v).sum() * 0.01))(x), lambda: (leaf(3, 4),)),
    "a recurrent cell": (lambda x, h, w, u: (lambda f, i, g, o: (f.sigmoid() * h + i.sigmoid() * g.tanh()) * o.sigmoid())(*(x @ w + h @ u).chunk(4, 1)), lambda: (leaf(3, 4), leaf(3, 5), leaf(4, 20), leaf(5, 20))),
}

PROGRAMS = LOSSES | SHAPES | INDEXING | EDGE_VALUES | RARE_FORMS | DTYPES


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    torch.manual_seed(len(name))
    function, arguments = PROGRAMS[name]
    check(function, *arguments(), calls=1, reference=name != "doubles")  # fp64 is its own reference


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_condition_in_bytes_is_captured(dynamic: bool) -> None:
    def function(c: Tensor, x: Tensor, y: Tensor) -> Any:
        return torch.where(c, x, y.sin()), x.where(c > 0, y).where(c, 2.0), torch.where(c, c, 3)

    compiled = minicompile.compile(function, fullgraph=True, dynamic=dynamic, options={"suppress_errors": False})
    condition = torch.tensor([[0, 1, 2], [3, 0, 0]], dtype=torch.uint8)
    check(function, condition, leaf(2, 3), leaf(2, 3), compile=lambda _: compiled)


def test_a_batch_norm_far_from_zero_is_as_exact_as_eagers() -> None:
    """The largest error of one draw is chance, for eager as for us: the errors of many are compared."""

    def norm(x: Tensor) -> Tensor:
        return F.batch_norm(x + 1e3, None, None, training=True)

    def result(function: Callable[..., Tensor], x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        output = function(leaf)
        gradient = torch.autograd.grad(output, leaf, torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x))
        return torch.stack([output.detach().double(), gradient[0].double()])

    draws = torch.randn(16, 6, 64)
    exact = [result(norm, x.double()) for x in draws]
    eager, compiled = (
        sum((result(function, x) - reference).square().mean((1, 2)) for x, reference in zip(draws, exact, strict=True))
        for function in (norm, minicompile.compile(norm))
    )
    assert bool((compiled <= 1.5**2 * eager).all()), (compiled / eager).sqrt()


@pytest.mark.parametrize("loss", [
    lambda x, y, labels: F.multi_margin_loss(x, y, p=2, margin=0.5) + F.multi_margin_loss(x.t().contiguous().t(), y, reduction="sum"),
    lambda x, y, labels: torch.nn.MultiMarginLoss(weight=torch.arange(4.0), reduction="none")(x, y),
    lambda x, y, labels: F.multilabel_margin_loss(x, labels) + F.multilabel_margin_loss(x[0], labels[0], reduction="sum"),
])  # fmt: skip
def test_margin_losses_of_fixed_sizes_are_part_of_the_graph(loss: Callable[..., Tensor]) -> None:
    given = leaf(3, 4), classes(4, 3), torch.tensor([[2, 0, -1, 1], [-1, 3, 3, 3], [3, 2, 1, 0]])
    check(loss, *given, compile=lambda function: minicompile.compile(function, fullgraph=True))
    with pytest.raises((RuntimeError, IndexError)) as expected:
        loss(given[0], given[1] + 9, given[2] + 9)
    with pytest.raises(type(expected.value)) as found:
        minicompile.compile(loss)(given[0], given[1] + 9, given[2] + 9)
    assert str(found.value) == str(expected.value)


def test_labels_after_minus_one_are_none_at_any_size() -> None:
    compiled = minicompile.compile(F.multilabel_margin_loss)
    for rows in (3, 4, 5):
        x, labels = torch.randn(rows, 4), torch.tensor([[2, 0, -1, 1]]).repeat(rows, 1)
        torch.testing.assert_close(compiled(x, labels), F.multilabel_margin_loss(x, labels))


@pytest.mark.parametrize("function", [lambda x: F.multi_margin_loss(x, torch.tensor([1, 2])), F.hardshrink, F.relu6])
def test_derivatives_at_kinks_are_eagers_at_any_size(function: Callable[[Tensor], Tensor]) -> None:
    compiled = minicompile.compile(lambda x: function(x).sum(), dynamic=True)
    for columns in (6, 5, 4):
        x = torch.tensor([6.0, 0.5, -0.5, 1.0, 0.0, -1.0])[-columns:].repeat(2, 1)
        one, other = (x.clone().requires_grad_() for _ in range(2))
        function(one).sum().backward()
        compiled(other).backward()
        torch.testing.assert_close(other.grad, one.grad, equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_bytes_are_weighed_by_whole_numbers_at_any_size(mode: str) -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(5, 13), mode=mode) + 1

    compiled = minicompile.compile(resized, dynamic=True)
    for rows in (8, 9):
        x = integers(2, 3, rows, 9, low=0, high=256, dtype=torch.uint8)
        assert torch.equal(compiled(x), resized(x))


@pytest.mark.filterwarnings("ignore:minicompile runs", "ignore:the lowering stage failed")
@pytest.mark.parametrize("mode", ["nearest", "linear", "nearest-exact"])
@pytest.mark.parametrize("scale", [1.3, 2.3])
def test_a_size_that_a_scale_leaves_as_it_is_is_copied_at_any_size(mode: str, scale: float) -> None:
    def resized(x: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        return F.interpolate(x, scale_factor=scale, mode=mode), F.interpolate(fixed, scale_factor=scale, mode=mode)

    compiled = minicompile.compile(resized)
    for length in (5, 6, 3, 7, 4):
        check(resized, leaf(2, 1, length), leaf(1, 2, 3), compile=lambda _: compiled)


def test_a_batch_without_elements_leaves_running_averages_as_they_are() -> None:
    norm = torch.nn.BatchNorm1d(3, momentum=None)
    eager = copy.deepcopy(norm)
    compiled = minicompile.compile(norm)
    for rows in (3, 0, 4, 0, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(norm.state_dict(), eager.state_dict())


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_picture_of_no_size_is_refused_as_in_eager() -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, size=3, mode="linear")

    compiled = minicompile.compile(resized)
    for shape in ((1, 1, 4), (0, 1, 5), (1, 0, 6), (1, 0, 7)):
        check(resized, torch.randn(shape), compile=lambda _: compiled)


@pytest.mark.filterwarnings("ignore:minicompile runs")
def test_a_scalar_is_filled_along_no_dim_but_the_first() -> None:
    def filled(x: Tensor, dim: int) -> Tensor:
        return x.index_fill(dim, torch.tensor([0]), torch.tensor(2.0))

    compiled = minicompile.compile(filled)
    for dim in (0, 1, 2, -1, -2):
        check(filled, torch.tensor(1.0), dim, compile=lambda _: compiled)


def test_a_tensor_resized_by_the_function_keeps_its_strides() -> None:
    check(lambda x: torch.resize_as_(x.t() * 1, x.t()), torch.randn(2, 3), compile=minicompile.compile, backward=False)


def test_attention_of_scores_by_a_function_is_one_break() -> None:
    compiled = minicompile.compile(lambda q: flex_attention(q.sin(), q, q, score_mod=lambda score, b, h, i, j: score + i - j).cos())
    compiled(torch.randn(1, 2, 8, 4))
    assert [broken.kind for broken in compiled.graph_breaks] == ["higher-order operator"]


@pytest.mark.parametrize("kind", ["layer", "encoder", "attention", "attention with weights"])
def test_attention_without_gradients_is_one_graph_at_every_length(kind: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    encoder, attention = torch.nn.TransformerEncoder(layer, 2), torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()

    @torch.no_grad()
    def forward(x: Tensor) -> Any:
        if "attention" in kind:
            return attention(x, x, x, need_weights="weights" in kind)
        return (layer if kind == "layer" else encoder)(x)

    compiled = minicompile.compile(forward, fullgraph=True, options={"suppress_errors": False})
    for length in (3, 5, 2, 8):
        check(forward, torch.randn(2, length, 4), compile=lambda _: compiled, backward=False)
    assert len(compiled.recompiles) <= 1


def test_the_layer_of_an_encoder_under_autocast_gives_halves_as_in_eager() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        check(layer, torch.randn(2, 3, 4), backward=False)


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:minicompile runs")
def test_an_encoder_without_gradients_leaves_out_padding_as_eager_does(outer: bool) -> None:
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()

    def forward(x: Tensor, padding: Tensor) -> Tensor:
        return encoder(x, src_key_padding_mask=padding) + 1

    compiled = minicompile.compile(forward if outer else encoder)
    for rows in ([[0, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]], [[0, 1, 1], [0, 0, 1]]):
        x, padding = torch.randn(2, 3, 4), torch.tensor(rows).bool()
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                expected, found = (f(x, padding) if outer else f(x, src_key_padding_mask=padding)
                                   for f in ((forward if outer else encoder), compiled))  # fmt: skip
            torch.testing.assert_close(found, expected)


def test_a_piece_of_a_concatenation_that_is_one_of_its_parts_reads_no_other() -> None:
    compiled = minicompile.compile(lambda first, second: torch.cat([first, second * 3], 1)[:, :6] + 1, options={"cache": False})
    first, second = torch.randn(4, 6), torch.randn(4, 9)
    torch.testing.assert_close(compiled(first, second), first + 1)
    assert "second_ptr" not in str(minicompile.sources(compiled))


def test_each_addition_to_windows_that_overlap_is_one_load_and_one_choice() -> None:
    def overlapped(windows: torch.Tensor) -> torch.Tensor:
        whole = windows.new_zeros(3 * len(windows) + 1)
        for number, window in enumerate(windows):
            whole[3 * number : 3 * number + 4] += window
        return whole

    compiled, windows = minicompile.compile(overlapped), torch.randn(9, 4)
    torch.testing.assert_close(compiled(windows), overlapped(windows))
    (text,) = minicompile.sources(compiled).values()
    assert text.count("tl.load(") == text.count("tl.where(") == 9


@pytest.mark.parametrize("function", [
    lambda x: x.view(torch.div(x.size(0), 2, rounding_mode="trunc"), -1) * torch.div(x.size(1), 2, rounding_mode="trunc"),
    lambda x: x.view(torch.div(6, 3, rounding_mode="floor"), -1).t() @ x.view(torch.div(6, 3, rounding_mode="floor"), -1),
    lambda x: (x * torch.div(x.size(0), 4), torch.add(3, x.size(0)), torch.mul(3, 2.5), torch.sub(x.size(0), 2)),
    lambda x: x.half() * torch.floor_divide(x.size(0), 4) + torch.remainder(7, torch.pow(2, 2)), lambda x: x + torch.true_divide(1, 3),
    lambda x: (t := torch.div(8, 4, rounding_mode="trunc"), y := x.view(t, -1) * 2, t.add_(1), x.view(t, -1) * y.sum()),
    lambda x: (t := torch.sub(4, 2), t.mul_(3), x.reshape(t, -1) * 2, x.new_zeros(torch.sub(4, 2) + 1, t - 2)),
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_computed_of_numbers_alone(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = minicompile.compile(function, dynamic=dynamic, options={"suppress_errors": False})
    for rows in (6, 12):
        check(function, leaf(rows, 4), compile=lambda _: compiled)
