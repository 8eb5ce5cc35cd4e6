"""Checkpointed regions: what the backward computes again, and what a policy keeps."""

from __future__ import annotations

import collections
import contextlib
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from minicompile import compile as minicompile_compile
from tests.capture.support import capture, equal, kinds, same_as_eager


def test_a_checkpointed_region_saves_only_its_input() -> None:
    block = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8), nn.GELU())

    def plain(x):
        return block(block(x)).sum()

    def checkpointed(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False).sum()

    def saved(function: Any) -> int:
        compiled = minicompile_compile(function, fullgraph=True)
        compiled(torch.randn(16, 8, requires_grad=True)).backward()
        (graph,) = compiled.compiler.graphs
        return sum(one.num_bytes for one in graph.partitioned.saved_tensors)

    assert saved(checkpointed) <= 16 * 8 * 4 * 2 < saved(plain)


PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def every_second_product() -> Any:
    """As training libraries write the contexts of a checkpoint: a policy that counts."""
    counts: dict[str, int] = collections.defaultdict(int)

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        counts["products"] += operator in PRODUCTS
        kept = operator in PRODUCTS and counts["products"] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.parametrize(("contexts", "kept"), [
    (functools.partial(create_selective_checkpoint_contexts, PRODUCTS), 2), (every_second_product, 1),
    (lambda: create_selective_checkpoint_contexts(lambda context, operator, *args: operator in PRODUCTS), 2),
])  # fmt: skip
def test_a_selective_checkpoint_keeps_what_its_policy_says(contexts: Any, kept: int) -> None:
    block = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    wrapped = checkpoint_wrapper(block, context_fn=contexts)
    compiled = minicompile_compile(lambda x: wrapped(x).sum(), fullgraph=True)
    x = torch.randn(16, 8, requires_grad=True)
    compiled(x).backward()
    saved = compiled.compiler.graphs[0].partitioned.saved_tensors
    assert [one.num_bytes for one in saved] == [16 * 64 * 4] * kept
    assert all(one.name.startswith("addmm") for one in saved)
    torch.testing.assert_close(x.grad, torch.autograd.grad(block(x).sum(), x)[0])


def test_a_selective_checkpoint_keeps_attention_by_the_names_of_eager() -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten._scaled_dot_product_flash_attention.default])

    def attended(q):
        return checkpoint(lambda q: functional.scaled_dot_product_attention(q, q, q).sin(), q, use_reentrant=False, context_fn=contexts)

    compiled = minicompile_compile(attended, fullgraph=True)
    compiled(torch.randn(1, 2, 8, 8, requires_grad=True)).sum().backward()
    assert compiled.compiler.graphs[0].partitioned.saved_tensors


def test_a_checkpoint_with_contexts_of_its_own_is_a_break() -> None:
    def function(x):
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext()))

    assert kinds(same_as_eager(function, torch.randn(3, requires_grad=True))) == ["checkpoint"]


def test_a_checkpoint_that_names_no_kind_warns_and_is_captured() -> None:
    layer = nn.Linear(3, 3)

    def checkpointed(x):
        return checkpoint(lambda inner: layer(inner).sin(), x) + 1

    x = torch.ones(2, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="use_reentrant"):
        expected = checkpointed(x)
    compiled = capture(checkpointed)
    with pytest.warns(UserWarning, match="use_reentrant"):
        assert equal(compiled(x), expected) and not kinds(compiled)
    refused = capture(checkpointed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="use_reentrant"):
            refused(x)
    assert kinds(refused) == ["checkpoint"]
