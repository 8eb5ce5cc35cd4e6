"""What lowering computes with: a tensor as a buffer and an access into it.

A `TensorValue` is `sizes` and a flat element offset over placeholder axes, so a view is a value of the same buffer with
another offset. Where the offset is linear, `strides` and `offset` say so, which is what a call of an operator needs.
This module must not emit loops or know operators.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minicompile.ir.expr import Apply, Expr, Load
from minicompile.ir.index import ZERO, Axis, Index, as_index, atoms, coefficient_of, hint, substitute, substituted
from minicompile.lowering.sizes import is_empty, is_one

HALVES = (torch.float16, torch.bfloat16)
LOOP_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
})  # fmt: skip
FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""What loops load, store and convert, but compute nothing with."""


@dataclasses.dataclass(frozen=True)
class FloatInput:
    """A Python float that the graph takes: host code names it by `symbol`, loops read it from memory."""

    symbol: Index


@functools.lru_cache(maxsize=1 << 14)
def loop_axes(sizes: tuple[Index, ...], prefix: str = "i") -> tuple[Index, ...]:
    """One axis per size as an index; sizes of one need none and are 0."""
    return tuple(ZERO if is_one(s) else as_index(Axis(f"{prefix}{d}", s)) for d, s in enumerate(sizes))


def axes_of(indices: Sequence[Index]) -> tuple[Axis, ...]:
    """The axes among indices made by `loop_axes`."""
    return tuple(index.terms[0][0][0] for index in indices if index.terms)  # type: ignore[misc]  # each is one axis


@functools.lru_cache(maxsize=1 << 15)
def _linear(strides: tuple[Index, ...], offset: Index, indices: tuple[Index, ...]) -> Index:
    result = offset
    for stride, index in zip(strides, indices, strict=True):
        if index.terms:
            result = result + stride * index
    return result


@functools.lru_cache(maxsize=1 << 14)
def _substituted(flat: Index, placeholders: tuple[Index, ...], indices: tuple[Index, ...]) -> Index:
    pairs = zip(placeholders, indices, strict=True)
    return substitute(flat, {p.terms[0][0][0]: index for p, index in pairs if p.terms})


@functools.lru_cache(maxsize=1 << 14)
def _linear_form(flat: Index, placeholders: tuple[Index, ...]) -> tuple[tuple[Index, ...], Index] | None:
    """`(strides, offset)` if `flat` is linear in the placeholders with non-negative strides; only flips make negative ones."""
    axes = axes_of(placeholders)
    steps = {axis: step for axis in axes if (step := coefficient_of(flat, axis)) is not None}
    flipped = any(step.terms and hint(step) <= 0 or not atoms(step).isdisjoint(axes) for step in steps.values())
    if flipped or len(steps) < len(axes):
        return None
    strides = tuple(steps[axes_of((place,))[0]] if place.terms else ZERO for place in placeholders)
    return strides, substituted(flat, tuple((axis, ZERO) for axis in axes))


@dataclasses.dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor in the middle of lowering.

    Attributes:
        buffer: where its elements lie.
        dtype, stored: as the graph sees it, and as the buffer has it (they differ after `view(dtype)`).
        device, sizes: as in torch.
        strides: in elements, where the access is linear; `None` where it is not. Sizes of one may have any.
        offset: of the first element, where the access is linear.
        flat: the flat offset over `loop_axes(sizes, "v")`, where the access is not linear.
        copied: eager would have made a copy here; it must be made if the value leaves the graph.
    """

    buffer: str
    dtype: torch.dtype
    stored: torch.dtype
    device: torch.device
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...] | None
    offset: Index = ZERO
    flat: Index | None = None
    copied: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    def at(self, indices: Sequence[Index]) -> Index:
        """Flat element offset of the element at `indices`."""
        if self.strides is not None:
            return _linear(self.strides, self.offset, tuple(indices))
        assert self.flat is not None
        return _substituted(self.flat, loop_axes(self.sizes, "v"), tuple(indices))

    def load(self, indices: Sequence[Index]) -> Expr:
        """The element at `indices`, in the value's dtype."""
        element = Load(self.buffer, self.at(indices), self.stored)
        return element if self.stored == self.dtype else Apply("bitcast", (element,), self.dtype)

    def own_indices(self, indices: Sequence[Index]) -> list[Index]:
        """Where the element is that broadcasting puts at `indices` of a result of at least this rank."""
        own = indices[len(indices) - len(self.sizes) :] if self.sizes else ()
        return [ZERO if is_one(size) else index for size, index in zip(self.sizes, own, strict=True)]

    def load_broadcast(self, indices: Sequence[Index]) -> Expr:
        """The element that broadcasting puts there."""
        return self.load(self.own_indices(indices))

    def reindexed(
        self, sizes: tuple[Index, ...], source: Callable[[tuple[Index, ...]], Sequence[Index]], copied: bool = False
    ) -> TensorValue:
        """The view of `sizes` whose element at `i` is this value's element at `source(i)`."""
        flat = ZERO if is_empty(sizes) else self.at(source(loop_axes(sizes, "v")))
        return self.with_flat(sizes, flat, copied)

    def with_flat(self, sizes: tuple[Index, ...], flat: Index, copied: bool = False) -> TensorValue:
        """The view of `sizes` with a flat offset over `loop_axes(sizes, "v")`."""
        linear = _linear_form(flat, loop_axes(sizes, "v"))
        strides, offset = (None, ZERO) if linear is None else linear
        own = flat if linear is None else None
        return dataclasses.replace(
            self, sizes=sizes, strides=strides, offset=offset, flat=own, copied=self.copied or copied
        )


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested lists and tuples with `change` applied to what is in them."""
    return type(value)(mapped(item, change) for item in value) if isinstance(value, (tuple, list)) else change(value)


def changed_tensors(value: Any, change: Callable[[TensorValue], TensorValue]) -> Any:
    """`mapped`, for tensors only."""
    return mapped(value, lambda part: change(part) if isinstance(part, TensorValue) else part)
