"""Attention of few queries over many keys, under Triton's interpreter, against fp64: grouped heads, masks, bands, parts."""

from __future__ import annotations

import pytest
import torch

from minicompile.kernels.flash_decode import flash_decode

HEADS = ((2, 2), (4, 2), (4, 1))


def exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, lower: int | None, upper: int | None
) -> torch.Tensor:
    """The same attention with the scores in memory, in fp64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if upper is not None:
        scores = scores.masked_fill(columns > rows + upper, -torch.inf)
    if lower is not None:
        scores = scores.masked_fill(columns < rows - lower, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("heads, kv_heads", HEADS)
@pytest.mark.parametrize("queries", [1, 3, 5])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("kind", ["none", "bool", "bias", "causal", "window", "one mask for all"])
def test_few_queries(heads: int, kv_heads: int, queries: int, splits: int, kind: str) -> None:
    torch.manual_seed(heads + queries)
    keys, lower, upper, mask = 70, None, None, None
    q = torch.randn(2, heads, queries, 12)
    k, v = (torch.randn(2, kv_heads, keys, 12) for _ in range(2))
    if kind == "bool":
        mask = torch.rand(2, heads, queries, keys) > 0.4
    elif kind == "bias":
        mask = torch.randn(2, heads, queries, keys)
    elif kind == "one mask for all":
        mask = (torch.arange(keys) < keys - 9).expand(queries, keys)
    elif kind == "causal":
        upper = 0
    elif kind == "window":
        lower, upper = 20, keys // 2
    out, lse = flash_decode(q, k, v, mask, lower, upper, precision="ieee", splits=splits)
    torch.testing.assert_close(out.double(), exact(q, k, v, mask, lower, upper), rtol=1e-5, atol=1e-5)
    assert lse.shape == (2, heads, queries) and lse.isfinite().all()
