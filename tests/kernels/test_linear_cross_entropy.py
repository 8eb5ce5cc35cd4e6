"""Cross-entropy over a linear head: the kernel in chunks, and its recognition in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import minicompile
from minicompile.api import compiled_function
from minicompile.graph import linear_cross_entropy as recognition
from minicompile.kernels import linear_cross_entropy
from minicompile.kernels.interpret import interpreting

ROWS, WIDTH, COLUMNS = 24, 16, 50


def operands(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(*size, generator=generator) for size in ((ROWS, WIDTH), (COLUMNS, WIDTH), (COLUMNS,)))
    target = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
    target[3] = target[10] = -100
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), target


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("chunk", "smoothing"), [(ROWS, 0.0), (7, 0.0), (7, 0.2)])
def test_losses_and_gradients(dtype: torch.dtype, tolerance: float, chunk: int, smoothing: float, with_bias: bool) -> None:
    hidden, weight, bias, target = operands(dtype)
    with interpreting():
        found = linear_cross_entropy(hidden, weight, bias if with_bias else None, target, -100, smoothing, True, chunk)
    leaves = [part.double().requires_grad_() for part in (hidden, weight, bias)]
    logits = F.linear(leaves[0], leaves[1], leaves[2] if with_bias else None)
    losses = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    wanted = torch.autograd.grad(losses.sum(), leaves[: 2 + with_bias])
    for got, want in zip(found, (losses, *wanted)):
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    with interpreting():
        alone = linear_cross_entropy(hidden, weight, bias if with_bias else None, target, -100, smoothing, False, chunk)
    assert torch.equal(alone[0], found[0]) and alone[1].numel() == 0


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "LEAST_BYTES", 0)


def shifted(x: Any, w: Any, b: Any, t: Any) -> Any:
    logits = F.linear(x.view(2, 12, WIDTH), w).float()
    cut = logits[..., :-1, :].contiguous()
    return F.cross_entropy(cut.view(-1, COLUMNS), t.view(2, 12)[..., 1:].reshape(-1))


def without_gradients(x: Any, w: Any) -> Any:
    with torch.no_grad():
        return F.linear(x, w)


FORMS: dict[str, tuple[Callable[..., Any], str]] = {
    "plain": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t), ""),
    "bias, sum": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b), t, reduction="sum"), ""),
    "matmul": (lambda x, w, b, t: F.cross_entropy(x @ w.t(), t, ignore_index=3), ""),
    "smoothing, scaled": (lambda x, w, b, t: 0.5 * F.cross_entropy(F.linear(x, w), t, label_smoothing=0.1), ""),
    "module": (lambda x, w, b, t: torch.nn.CrossEntropyLoss()(F.linear(x.view(2, 12, WIDTH), w).view(-1, COLUMNS), t), ""),
    "shifted by one (Hugging Face)": (shifted, ""),
    "logits returned": (lambda x, w, b, t: (lambda s: (F.cross_entropy(s, t), s))(F.linear(x, w)), "used elsewhere"),
    "not reduced": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t, reduction="none"), "not reduced"),
    "soft cap": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w).tanh(), t), None),
    "nothing counts": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b), torch.full_like(t, -100)), ""),
    "a sum, as it once was asked for": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w), t, size_average=False), "not reduced"),
    "logits without gradients": (lambda x, w, b, t: F.cross_entropy(without_gradients(x, w), t) * x.sum(), "set_grad_enabled"),
    "columns cut": (lambda x, w, b, t: F.cross_entropy(F.linear(x, w)[:, :COLUMNS], t), "more than rows"),
}  # type: ignore[dict-item]


def run(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    leaves = [part.detach().clone().requires_grad_() for part in given[:3]]
    out = function(*leaves, given[3])
    first = out[0] if isinstance(out, tuple) else out
    return [first, *(g for g in torch.autograd.grad(first.sum() * 1.5, leaves, allow_unused=True) if g is not None)]


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, any_size: None) -> None:
    function, reason = FORMS[name]
    given = operands()
    given[3].clamp_(min=0)
    compiled = minicompile.compile(function, options={"suppress_errors": False, "cache": False})
    for got, want in zip(run(compiled, given), run(function, given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    (graph,) = compiled_function(compiled).compiler.graphs
    found = any("linear_cross_entropy" in str(node.target) for node in graph.partitioned.forward.graph.nodes)
    assert found == (reason == "")
    if reason:
        assert reason in graph.partitioned.patterns[0].reason


def test_small_logits_stay() -> None:
    compiled = minicompile.compile(FORMS["plain"][0], options={"suppress_errors": False, "cache": False})
    compiled(*operands())
    (record,) = compiled_function(compiled).compiler.graphs[0].partitioned.patterns
    assert not record.accepted and "MB" in record.reason
