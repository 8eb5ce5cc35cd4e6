"""The random generator of compiled programs, on the CPU: Philox-4x32-10 as Triton's `tl.rand` and `tl.randn` have it.

The 64-bit seed is the key; the counter's low and high words are the first two words of the block. This module must not
know where seeds come from.
"""

from __future__ import annotations

import math
from typing import Any

import torch

WORD = 0xFFFFFFFF


def _multiply(a: int, b: Any) -> tuple[Any, Any]:
    """High and low words of the 64-bit product of two words, without overflowing int64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b
    middle = (low >> 16) + (high & 0xFFFF)
    return (high >> 16) + (middle >> 16), ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(seed: Any, counter: Any) -> tuple[Any, Any, Any, Any]:
    """Four random words for each counter."""
    c0, c1 = counter & WORD, (counter >> 32) & WORD
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high2, low2 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def _uniform(word: Any) -> Any:
    """A word as fp32 in `[0, 1)`, as Triton's `uint_to_uniform_float` makes it."""
    signed = torch.where(word >= 1 << 31, word - (1 << 32), word)
    positive = torch.where(signed < 0, -signed - 1, signed)
    return positive.to(torch.float32) * 4.6566127342e-10


def draw(kind: str, seed: Any, counter: Any) -> Any:
    """`uniform`, `normal` (fp32) or `bits` (int64 below 2**32) for each counter."""
    first, second, _, _ = philox(torch.as_tensor(seed), counter)
    if kind == "bits":
        return first
    if kind == "uniform":
        return _uniform(first)
    radius = (-2.0 * _uniform(first).clamp_min(1.0e-7).log()).sqrt()
    return radius * (_uniform(second) * (2.0 * math.pi)).cos()
