"""What a forward kept for its backward, and what eager's would have kept: what may be read how often, and what was changed.

Bits are those of tangents, in the order of `Binding.differentiable_outputs`. This module must not know what the values mean.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minicompile.ir.graph import Binding

Noticed = tuple["weakref.ref[torch.Tensor]", int, int]
"""A tensor, how often it had been written, and the tangents whose backward reads it in eager."""


class Kept:
    """What the forward kept, after a backward from some outputs: eager frees only what that one went through.

    Attributes:
        closed: the bits of the tangents from which eager has freed something.
    """

    def __init__(self, values: list[Any], closed: int) -> None:
        # Detached: an output held by its own node would never be freed.
        self._values = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
        self._versions = [version_of(value) for value in values]
        self.closed = closed

    def unchanged(self, needed: int) -> list[Any]:
        """The values, if nobody has written into those of the bits in `needed`."""
        for number, (value, version) in enumerate(zip(self._values, self._versions, strict=True)):
            if needed >> number & 1:
                refuse_changed(value, version)
        return list(self._values)


def still_kept(before: Kept | None, values: list[Any], shared: Sequence[int], outputs: int) -> Kept | None:
    """What is left for other tangents, by `History.shared`, after a backward from `outputs`; nothing if that frees all."""
    closed = sum(1 << number for number, others in enumerate(shared) if others & outputs) | (before.closed if before else 0)
    return None if closed == (1 << len(shared)) - 1 else Kept(values, closed)


def noticing(binding: Binding) -> Callable[[Sequence[Any], Sequence[Any]], list[Noticed]]:
    """What takes down, of a call's inputs and results, those that only eager would save."""
    left_out = {*binding.saved_inputs, *(entry.input_index for entry in binding.mutated_inputs if not entry.in_graph)}
    inputs_noticed = [(i, needing) for i, needing in binding.history.inputs if i not in left_out]
    results_noticed = [(i, needing) for i, needing in binding.history.outputs if i not in binding.saved]

    def take(inputs: Sequence[Any], results: Sequence[Any]) -> list[Noticed]:
        noticed = [(inputs[i], n) for i, n in inputs_noticed] + [(results[i], n) for i, n in results_noticed]
        return [(weakref.ref(value), version_of(value), needing) for value, needing in noticed]

    return take


def noticed_as(noticed: list[Noticed], results: Sequence[Any], outputs: Sequence[Any]) -> list[Noticed]:
    """The same with what the caller has, `outputs`, in place of the `results` whose memory and counts of writes they share."""
    given = {id(result): output for result, output in zip(results, outputs, strict=True)}
    seen = [(reference(), version, needing) for reference, version, needing in noticed]
    return [(weakref.ref(given.get(id(value), value)), version, needing) for value, version, needing in seen if value is not None]


def refuse_changes(noticed: list[Noticed], outputs: int) -> None:
    """Raise if a tensor that a backward from `outputs` reads in eager has been written since it was noticed."""
    for reference, version, needing in noticed:
        if needing & outputs and (value := reference()) is not None:
            refuse_changed(value, version)


def version_of(value: Any) -> int:
    """How often a tensor was written, where that is counted."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def refuse_changed(value: Any, version: int) -> None:
    """Raise what eager raises for a saved tensor that was written since it had `version`."""
    if version_of(value) != version:
        found = f"{value.type()} {list(value.shape)} is at version {value._version}; expected version {version} instead"
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: {found}")
