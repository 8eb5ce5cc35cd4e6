"""Operands in halves: what they hold is exact to 23 bits, what they do not hold is computed without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from minicompile import gpu
from minicompile.kernels.attention_problem import attention_precision
from minicompile.kernels.flash_attention import attention_backward, attention_forward
from minicompile.kernels.halves import halved
from minicompile.kernels.interpret import interpreting
from tests.kernels.attention_cases import attention_reference

IMPLEMENTATION = sys.modules["minicompile.kernels.flash_attention"]


@pytest.fixture(autouse=True)
def patched_once() -> Iterator[None]:
    with interpreting():
        yield


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("magnitude", [1e-8, 1.0, 1e8])
def test_halves_add_up_to_the_operands(magnitude: float) -> None:
    few = _normal(2, 3, 20, 24) * magnitude
    many = (_normal(2, 1, 130, 48) * magnitude)[..., 5:37]
    operands = (few, many[:, :, 1:])
    halves, scales = halved(32, True, *operands)
    for x, pair, scale in zip(operands, halves, scales, strict=True):
        back = pair.double().unflatten(1, (-1, 2)).sum(2) * scale
        width = x.shape[3]
        error = (back[..., :width] - x).abs() / torch.maximum(x.double().abs(), 2.0**-16 * x.double().abs().max())
        assert scale > 0 and error.max() <= 2.0**-23
        assert not back[..., width:].any()


def _put(place: tuple[object, ...], value: float) -> Callable[[torch.Tensor], None]:
    return lambda x: x.__setitem__(place, value)


def _scale(place: tuple[object, ...], factor: float) -> Callable[[torch.Tensor], None]:
    return lambda x: x.__setitem__(place, x[place] * factor)


NOT_HELD = {
    "infinity": _put((0, 0, 66, 3), float("-inf")),
    "NaN": _put((0, 0, 0, 0), float("nan")),
    "row of zeros": _put((0, 0, 5), 0.0),
    "small row": _scale((0, 0, 69), 1e-6),
    "small column": _scale((slice(None), slice(None), slice(None), 7), 1e-6),
    "tiny": _scale((...,), 1e-12),
    "huge": _scale((...,), 1e12),
    "nothing": _put((...,), 0.0),
}


@pytest.mark.parametrize("change", NOT_HELD)
def test_what_halves_do_not_hold_is_computed_without_them(change: str) -> None:
    """Bit for bit, whichever operand it is: nothing is written by the kernels on halves."""
    for which in range(4):
        q, k, v, dout = operands = [_normal(1, 1, 70, 16, seed=seed) for seed in range(4)]
        NOT_HELD[change](operands[which])
        assert halved(16, True, *operands)[1].eq(0.0).tolist() == [index == which for index in range(4)]
        out, lse = attention_forward(q, k, v)
        wanted = attention_backward(dout, q, k, v, out, lse)[:3]
        found = attention_backward(dout, q, k, v, out, lse, precision="halves")[:3]
        if which < 3:
            wanted, found = (out, lse, *wanted), (*attention_forward(q, k, v, precision="halves"), *found)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_one_half_is_what_tf32_keeps() -> None:
    """Each entry to 11 bits, however large or small all of them are."""
    for magnitude in (1e-8, 1.0, 1e8):
        x = _normal(2, 3, 20, 24) * magnitude
        (high,), (scale,) = halved(32, False, x)
        assert high.shape == (2, 3, 20, 32) and not high[..., 24:].any()
        error = (high[..., :24].double() * scale - x).abs() / torch.maximum(x.double().abs(), 2.0**-28 * x.double().abs().max())
        assert error.max() <= 2.0**-11


@pytest.mark.parametrize("change", ["row of zeros", "tiny", "NaN"])
def test_what_one_half_does_not_hold_is_computed_without(change: str) -> None:
    """On a CPU, where nothing has tf32: to the bit as it is without halves."""
    q, k, v, dout = operands = [_normal(1, 1, 70, 16, seed=seed) for seed in range(4)]
    NOT_HELD[change](operands[1])
    out, lse = attention_forward(q, k, v)
    found = attention_forward(q, k, v, precision="high")
    gradients = zip(attention_backward(dout, q, k, v, out, lse, precision="high")[:3],
                    attention_backward(dout, q, k, v, out, lse, precision="tf32")[:3], strict=True)  # fmt: skip
    for ours, theirs in [*zip(found, (out, lse), strict=True), *gradients]:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_column_of_zeros_is_held() -> None:
    x = _normal(1, 1, 70, 16)
    x[..., 3] = 0.0
    assert halved(16, True, x)[1].item() > 0.0


def _error_of_small_columns() -> float:
    """The error of the output where the values are 2**-24 of the largest, over the largest there."""
    q, k, v = (_normal(1, 1, 70, 16, seed=seed) for seed in range(3))
    v[..., 1:] *= 2.0**-24
    out, _ = attention_forward(q, k, v, precision="halves")
    wanted, _ = attention_reference(*(t.double() for t in (q, k, v)))
    return ((out - wanted)[..., 1:].abs().max() / wanted[..., 1:].abs().max()).item()


def test_a_verdict_that_holds_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _error_of_small_columns() < 1e-6

    def careless(width: int, low: bool, *operands: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        halves = tuple(torch.stack((x.half(), (x - x.half().float()).half()), 2).flatten(1, 2) for x in operands)
        return halves, torch.ones(len(operands))

    monkeypatch.setattr(IMPLEMENTATION, "halved", careless)
    assert _error_of_small_columns() > 1e-4


@pytest.mark.parametrize("length, exact, allowed", [(512, "bf16x6", "tf32"), (2048, "halves", "tf32"), (4096, "halves", "high")])
def test_halves_are_taken_from_the_lengths_on_at_which_they_win(
    length: int, exact: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "holds", lambda value: True)
    q = torch.empty(1, 1, length, 64)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for setting, wanted in ((False, exact), (True, allowed)):
            torch.backends.cuda.matmul.allow_tf32 = setting
            assert attention_precision(q, q, q) == wanted
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
