"""`mode="reduce-overhead"`: a program recorded once as a CUDA graph and replayed, with outputs that are safe to keep.

The rule: a replay never changes a tensor that somebody holds. Outputs that the user sees are copied out of the graph's
memory. Outputs kept for the backward, and gradients, are handed out as they are, and a call that comes while any of them
is still alive (its storage has another owner) runs the program without the graph. Parameters and buffers are read where
they are, and what the forward kept for the backward where the forward's graph left it; other inputs are copied to fixed
places unless they already lie there.

A call falls back, for good and with a reason, when recording fails. Private interface: `torch._C._storage_Use_Count`
(torch 2.11 to 2.13).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch

from minicompile.ir.graph import Binding, FreshOutput, ViewOutput
from minicompile.runtime.call_plan import CallPlan

Call = Callable[[list[Any]], tuple[Any, ...]]
_WARM_UP_CALLS = 2
_MAX_RECORDINGS = 4


@dataclasses.dataclass(frozen=True)
class Roles:
    """Which inputs and outputs of a program are treated how, by position.

    Attributes:
        static_inputs: parameters and buffers; new addresses make a new recording.
        pinned_inputs: memory of another recording; at other addresses the program runs without the graph.
        copied_outputs: outputs that the user sees; the others are handed out in the graph's memory.
    """

    static_inputs: frozenset[int]
    pinned_inputs: frozenset[int] = frozenset()
    copied_outputs: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Recording:
    """One recorded graph: where its inputs are read, and the tensors that it writes.

    `owners` is how often the memory of each handed-out output is owned while nobody else has it.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    pinned: dict[int, int]
    outputs: tuple[Any, ...]
    handed_out: list[torch.Tensor]
    owners: list[int]

    def fits(self, inputs: list[Any]) -> bool:
        """Whether the pinned inputs lie where they were, and nobody holds the memory of an earlier result."""
        if any(inputs[position].data_ptr() != address for position, address in self.pinned.items()):
            return False
        return all(_owners(tensor) == count for tensor, count in zip(self.handed_out, self.owners, strict=True))


def _owners(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class GraphedCall:
    """A program's `call` that records itself after a warm-up and replays from then on.

    Arguments:
        call: the program; takes a list of inputs, which it empties.
        roles: how its inputs and outputs are treated.
        pool: memory pool shared between the graphs of one compiler.
    """

    def __init__(self, call: Call, roles: Roles, pool: Any) -> None:
        self._call = call
        self._roles = roles
        self._pool = pool
        self._calls = 0
        self._recordings: dict[tuple[int, ...], Recording] = {}
        self._lock = threading.Lock()
        self.fallback = ""

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self.fallback or torch.cuda.is_current_stream_capturing() or not self._lock.acquire(blocking=False):
            return self._call(inputs)
        try:
            return self._run(inputs)
        finally:
            self._lock.release()

    def _run(self, inputs: list[Any]) -> tuple[Any, ...]:
        self._calls += 1
        if self._calls <= _WARM_UP_CALLS:
            return self._call(inputs)
        key = tuple(inputs[position].data_ptr() for position in sorted(self._roles.static_inputs))
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._recordings) >= _MAX_RECORDINGS:
                self.fallback = f"parameters moved to new memory {_MAX_RECORDINGS} times"
                return self._call(inputs)
            recording = self._record(inputs)
            if recording is None:
                return self._call(inputs)
            self._recordings[key] = recording
        elif not recording.fits(inputs):
            return self._call(inputs)
        return self._replay(recording, inputs)

    def _record(self, inputs: list[Any]) -> Recording | None:
        in_place = self._roles.static_inputs | self._roles.pinned_inputs
        fixed = [
            value if position in in_place or not isinstance(value, torch.Tensor) else _fixed_copy(value)
            for position, value in enumerate(inputs)
        ]
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = self._call(list(fixed))
        except RuntimeError as failure:
            self.fallback = f"recording failed: {failure}"
            return None
        handed_out = [
            value
            for position, value in enumerate(outputs)
            if isinstance(value, torch.Tensor) and position not in self._roles.copied_outputs
        ]
        pinned = {position: inputs[position].data_ptr() for position in self._roles.pinned_inputs}
        for position in pinned:
            fixed[position] = None
        owners = [_owners(tensor) for tensor in handed_out]
        return Recording(graph, fixed, pinned, outputs, handed_out, owners)

    def _replay(self, recording: Recording, inputs: list[Any]) -> tuple[Any, ...]:
        for fixed, given in zip(recording.inputs, inputs, strict=True):
            if isinstance(fixed, torch.Tensor) and fixed.data_ptr() != given.data_ptr():
                fixed.copy_(given)
        inputs.clear()
        recording.graph.replay()
        return tuple(
            value
            if not isinstance(value, torch.Tensor)
            else value.clone()
            if position in self._roles.copied_outputs
            else value.detach()
            for position, value in enumerate(recording.outputs)
        )


def _fixed_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides in memory that stays."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def forward_roles(plan: CallPlan) -> Roles | str:
    """How a forward program's inputs and outputs are treated, or why it cannot be a CUDA graph."""
    binding = plan.binding
    static = frozenset(i for i, kind in enumerate(plan.input_kinds) if kind in ("parameter", "buffer"))
    if any(mutated.input_index not in static for mutated in binding.mutated_inputs):
        return "an input that is not a parameter or buffer is changed"
    if "size" in plan.input_kinds:
        return "a size varies"
    kept = frozenset(binding.saved)
    return Roles(static, frozenset(), frozenset(range(len(plan.tensor_results))) - kept | visible(binding))


def visible(binding: Binding) -> frozenset[int]:
    """Forward outputs whose memory the user gets, as they are or through views."""
    fresh = {output.index for output in binding.outputs if isinstance(output, FreshOutput)}
    hidden = {o.base_index for o in binding.outputs if isinstance(o, ViewOutput) and o.base == "hidden"}
    return frozenset(fresh | hidden)


def backward_roles(plan: CallPlan) -> Roles:
    """How a backward program's inputs are treated; gradients are handed out."""
    binding = plan.binding
    saved = len(binding.saved)
    kinds = [plan.input_kinds[index] for index in binding.saved_inputs]
    static = frozenset(saved + i for i, kind in enumerate(kinds) if kind in ("parameter", "buffer"))
    pinned = frozenset(i for i, index in enumerate(binding.saved) if index not in visible(binding))
    return Roles(static, pinned)
