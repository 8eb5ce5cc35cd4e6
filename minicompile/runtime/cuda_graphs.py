"""`mode="reduce-overhead"`: a program recorded once as a CUDA graph and replayed, with outputs that are safe to keep.

The rule: a replay never changes a tensor that somebody holds. Outputs that the user sees are copied out of the graph's
memory. Outputs kept for the backward, and gradients, are handed out as they are, and a call that comes while any of them
is still alive (its storage has another owner) runs the program without the graph. Parameters and buffers are read where
they are; other inputs are copied to fixed places unless they already lie there.

A call falls back, for good and with a reason, when recording fails. Private interface: `torch._C._storage_Use_Count`
(torch 2.11 to 2.13).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[list[Any]], tuple[Any, ...]]
_WARM_UP_CALLS = 2
_MAX_RECORDINGS = 4


@dataclasses.dataclass
class Recording:
    """One recorded graph: where its inputs are read, and the tensors that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: tuple[Any, ...]
    held_outputs: list[torch.Tensor]

    def is_free(self) -> bool:
        """Whether nobody but this record owns the memory of an output that was handed out."""
        return all(_owners(tensor) == baseline for tensor, baseline in zip(self.held_outputs, self.baseline, strict=True))

    baseline: list[int] = dataclasses.field(default_factory=list)


def _owners(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class GraphedCall:
    """A program's `call` that records itself after a warm-up and replays from then on.

    Arguments:
        call: the program; takes a list of inputs, which it empties.
        static_inputs: positions of inputs that live as long as the model (parameters and buffers).
        copied_outputs: positions of outputs that the user sees; the others are handed out in the graph's memory.
        pool: memory pool shared between the graphs of one compiler.
    """

    def __init__(self, call: Call, static_inputs: Sequence[int], copied_outputs: Sequence[int], pool: Any) -> None:
        self._call = call
        self._static_inputs = frozenset(static_inputs)
        self._copied_outputs = frozenset(copied_outputs)
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
        key = tuple(inputs[position].data_ptr() for position in sorted(self._static_inputs))
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._recordings) >= _MAX_RECORDINGS:
                self.fallback = f"parameters moved to new memory {_MAX_RECORDINGS} times"
                return self._call(inputs)
            recording = self._record(inputs)
            if recording is None:
                return self._call(inputs)
            self._recordings[key] = recording
        elif not recording.is_free():
            return self._call(inputs)
        return self._replay(recording, inputs)

    def _record(self, inputs: list[Any]) -> Recording | None:
        fixed = [
            value if position in self._static_inputs or not isinstance(value, torch.Tensor) else _fixed_copy(value)
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
        held = [
            value
            for position, value in enumerate(outputs)
            if isinstance(value, torch.Tensor) and position not in self._copied_outputs
        ]
        return Recording(graph, fixed, outputs, held, [_owners(tensor) for tensor in held])

    def _replay(self, recording: Recording, inputs: list[Any]) -> tuple[Any, ...]:
        for position, (fixed, given) in enumerate(zip(recording.inputs, inputs, strict=True)):
            if position not in self._static_inputs and isinstance(given, torch.Tensor):
                if fixed.data_ptr() != given.data_ptr():
                    fixed.copy_(given)
        inputs.clear()
        recording.graph.replay()
        return tuple(
            value
            if not isinstance(value, torch.Tensor)
            else value.clone()
            if position in self._copied_outputs
            else value.detach()
            for position, value in enumerate(recording.outputs)
        )


def _fixed_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides in memory that stays."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)
