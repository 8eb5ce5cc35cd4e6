"""`mode="reduce-overhead"`: a program recorded once as a CUDA graph and replayed, with outputs that are safe to keep.

The rule: a replay never changes a tensor that somebody holds. Outputs that the user sees are copied out of the graph's
memory. Outputs kept for the backward, and gradients, are handed out as they are, and a call that comes while any of them
is still alive (its storage has another owner) runs the program without the graph. Parameters and buffers are read where
they are, and what the forward kept for the backward where the forward's graph left it; other inputs are copied to fixed
places unless they already lie there. A replay on another stream, or of another graph with the same pool, waits for all
that was started on the stream of the last one.

A program with work on the CPU is not recorded, because a graph would repeat its first result; nor is anything when a
recording fails. `fallback` then says why, and calls run the program itself. Private interface:
`torch._C._storage_Use_Count` (torch 2.11 to 2.15).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from minicompile.ir.graph import Binding, FreshOutput, ViewOutput
from minicompile.ir.program import FlatCall
from minicompile.ir.without_dynamo import DispatchMode
from minicompile.runtime.call_plan import CallPlan

_WARM_UP_CALLS = 2
_MAX_RECORDINGS = 8
_MAX_SIGNATURES = 64


@dataclasses.dataclass(frozen=True)
class Roles:
    """Which inputs and outputs of a program are treated how, by position.

    Attributes:
        static_inputs: parameters and buffers; new addresses make a new recording.
        pinned_inputs: memory of another recording; at other addresses the program runs without the graph.
        copied_outputs: outputs that the user sees; the others are handed out in the graph's memory.
        sizes_vary: every combination of sizes and strides makes a recording.
    """

    static_inputs: frozenset[int]
    pinned_inputs: frozenset[int] = frozenset()
    copied_outputs: frozenset[int] = frozenset()
    sizes_vary: bool = False


@dataclasses.dataclass(frozen=True)
class Recording:
    """One recorded graph: where its inputs are read, and the tensors that it writes.

    Attributes:
        graph: what replays.
        places: where inputs that are copied are read, by position.
        pinned: position and address of inputs in another recording's memory.
        outputs: what the program returned.
        handed_out: the outputs that are given away without a copy.
        owners: how often the memory of each of those is owned while nobody else has it.
    """

    graph: Any
    places: dict[int, torch.Tensor]
    pinned: dict[int, int]
    outputs: tuple[Any, ...]
    handed_out: tuple[torch.Tensor, ...]
    owners: tuple[int, ...]

    def fits(self, inputs: list[Any]) -> bool:
        """Whether the pinned inputs lie where they were, and nobody holds the memory of an earlier result."""
        if any(inputs[position].data_ptr() != address for position, address in self.pinned.items()):
            return False
        return all(_owners(tensor) == count for tensor, count in zip(self.handed_out, self.owners, strict=True))


def _owners(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class GraphPool:
    """The memory that the graphs of one compiler on one device share, and all that they ask of CUDA.

    `lock` is held while one of them is recorded or replayed: no two may run at once, since their memory overlaps.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = threading.Lock()
        self._handle: Any = None
        self._recorder: Any = None
        self._last_stream: Any = None

    def capturing(self) -> bool:
        """Whether somebody else is recording a graph on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def record(self, call: Callable[[], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
        """The graph of what `call` launches, which is not run, and the tensors that it will write."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            if self._handle is None:
                self._handle = torch.cuda.graph_pool_handle()
                self._recorder = torch.cuda.Stream(self.device)  # PyTorch's own stays on the device that recorded first
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, self._handle, self._recorder, capture_error_mode="thread_local"):
                return graph, call()

    def order(self) -> None:
        """Make the current stream wait for the work after the last replay."""
        stream = torch.cuda.current_stream(self.device)
        if self._last_stream is not None and stream != self._last_stream:
            stream.wait_stream(self._last_stream)
        self._last_stream = stream


class WorkElsewhere(DispatchMode):
    """Notes the first operator with a tensor that is not on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.found = ""
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.found and any(tensor.device != self._device for tensor in tensors_in((args, kwargs, result))):
            self.found = str(func)
        return result


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))


class GraphedCall:
    """A program's `call` that records itself after a warm-up and replays from then on.

    Arguments:
        call: the program; takes a list of inputs, which it empties.
        roles: how its inputs and outputs are treated.
        pool: memory and lock of all the graphs of one compiler on one device.
    """

    def __init__(self, call: FlatCall, roles: Roles, pool: GraphPool) -> None:
        self._call = call
        self._roles = roles
        self._pool = pool
        self._static = tuple(sorted(roles.static_inputs))
        self._in_place = roles.static_inputs | roles.pinned_inputs
        self._calls: dict[Any, int] = {}
        self._recordings: dict[Any, Recording] = {}
        self.fallback = ""

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        if self.fallback or self._pool.capturing() or not self._pool.lock.acquire(blocking=False):
            return self._call(inputs)
        try:
            return self._run(inputs)
        finally:
            self._pool.lock.release()

    def _run(self, inputs: list[Any]) -> tuple[Any, ...]:
        key = self._key(inputs)
        recording = self._recordings.get(key)
        if recording is not None:
            return self._replay(recording, inputs) if recording.fits(inputs) else self._call(inputs)
        if len(self._recordings) >= _MAX_RECORDINGS:
            return self._call(inputs)
        if len(self._calls) > _MAX_SIGNATURES:
            self._calls.clear()
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        if calls < _WARM_UP_CALLS:
            return self._call(inputs)
        if calls == _WARM_UP_CALLS:
            return self._watched(inputs)
        recording = self._record(inputs)
        if recording is None:
            return self._call(inputs)
        self._calls.pop(key)
        self._recordings[key] = recording
        return self._replay(recording, inputs)

    def _key(self, inputs: list[Any]) -> Any:
        addresses = tuple([inputs[position].data_ptr() for position in self._static])
        if not self._roles.sizes_vary:
            return addresses
        return addresses, tuple((v.shape, v.stride()) if isinstance(v, torch.Tensor) else repr(v) for v in inputs)

    def _watched(self, inputs: list[Any]) -> tuple[Any, ...]:
        """A call that looks for what a graph could not repeat."""
        watch = WorkElsewhere(self._pool.device)
        if any(value.device != self._pool.device for value in tensors_in(inputs)):
            self.fallback = "an input is on another device"
        elif any(torch._debug_has_internal_overlap(inputs[position]) for position in self._copied(inputs)):
            self.fallback = "elements of an input share memory"
        with watch:
            outputs = self._call(inputs)
        if watch.found:
            self.fallback = f"{watch.found} works on another device"
        return outputs

    def _copied(self, inputs: list[Any]) -> list[int]:
        """The positions of tensors that are copied to fixed places."""
        return [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and i not in self._in_place]

    def _record(self, inputs: list[Any]) -> Recording | None:
        try:
            places = {position: _copy(inputs[position]) for position in self._copied(inputs)}
            fixed = [places.get(position, value) for position, value in enumerate(inputs)]
            graph, outputs = self._pool.record(lambda: self._call(list(fixed)))
        except RuntimeError as failure:
            self.fallback = f"recording failed: {failure}"
            return None
        copied = self._roles.copied_outputs
        handed_out = tuple(v for i, v in enumerate(outputs) if isinstance(v, torch.Tensor) and i not in copied)
        pinned = {position: inputs[position].data_ptr() for position in self._roles.pinned_inputs}
        return Recording(graph, places, pinned, outputs, handed_out, tuple(map(_owners, handed_out)))

    def _replay(self, recording: Recording, inputs: list[Any]) -> tuple[Any, ...]:
        self._pool.order()
        for position, fixed in recording.places.items():
            if fixed.data_ptr() != inputs[position].data_ptr():
                fixed.copy_(inputs[position])
        inputs.clear()
        recording.graph.replay()
        copied = self._roles.copied_outputs
        return tuple([
            value if not isinstance(value, torch.Tensor) else _copy(value) if position in copied else value.detach()
            for position, value in enumerate(recording.outputs)
        ])  # fmt: skip


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides in memory of its own."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def forward_roles(plan: CallPlan) -> Roles | str:
    """How a forward program's inputs and outputs are treated, or why it cannot be a CUDA graph."""
    binding = plan.binding
    static = frozenset(i for i, kind in enumerate(plan.input_kinds) if kind in ("parameter", "buffer"))
    if any(mutated.input_index not in static for mutated in binding.mutated_inputs):
        return "an input that is not a parameter or buffer is changed"
    copied = frozenset(range(len(plan.tensor_results))) - frozenset(binding.saved) | visible(binding)
    return Roles(static, frozenset(), copied, plan.sizes_vary)


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
    seen = visible(binding)
    pinned = frozenset(i for i, index in enumerate(binding.saved) if plan.tensor_results[index] and index not in seen)
    return Roles(static, pinned, sizes_vary=plan.sizes_vary)
