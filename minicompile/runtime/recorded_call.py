"""Calling a hand-written kernel's wrapper once, and from then on only what it launched.

The wrappers in `minicompile.kernels` check their arguments, choose a configuration and allocate, which costs more host time
than the launch. In a compiled graph sizes and strides are fixed, so a second call would decide the same. The first call
with given sizes, strides and options is watched: the launches with their arguments, and every torch operator. If the
operators only allocate or make views, a later call allocates, puts in the new addresses and launches. Anything else (a
copy, a fill) is not recorded: that wrapper is called every time. Memory comes back at the same addresses in most calls
of a compiled graph, so the arguments of a launch, encoded descriptors included, are kept by the addresses in them.

Tensors that lie in one memory are told apart by where they begin. Two that begin at one address must do so in later calls
too, and what begins nowhere and may be a part of several is not recorded.

Private interfaces: `CompiledKernel.run` of Triton (3.6 to 3.9: the same arguments), and behind it `CudaLauncher.launch`
(3.6 to 3.8), whose wrapper encodes tensor descriptors anew in Python at every launch; `_empty_strided_cuda`, which allocates
on the current device.
"""

import copy
import dataclasses
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.guards import _empty_strided_cuda as empty_strided  # type: ignore[attr-defined]  # not in the stubs

from minicompile.ir.without_dynamo import DispatchMode
from minicompile.kernels import interpret
from minicompile.runtime.early_kernels import EARLY
from minicompile.runtime.library_kernels import share_with_workers

ALLOCATIONS = frozenset({"empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like"})
VIEWS = frozenset({
    "as_strided", "view", "expand", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice", "alias",
    "detach", "_unsafe_view", "reshape", "unflatten",
})  # fmt: skip
ALIGNMENT = 15
tf32_allowed, deterministic = torch._C._get_cublas_allow_tf32, torch._C._get_deterministic_algorithms
SEVERAL_KERNELS = frozenset({"attention_forward", "attention_backward"})  # which change none of their arguments


@dataclasses.dataclass(frozen=True)
class Address:
    """The memory `offset` bytes after the start of tensor `index` (inputs first, then allocations)."""

    index: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Description:
    """A tensor descriptor over the memory at `address`; the rest of it is as in `template`."""

    address: Address
    template: Any


class Allocation(NamedTuple):
    """A tensor that the wrapper makes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch: Triton's compiled kernel, the grid, and the arguments with addresses in place of tensors."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]


PreparedLaunch = tuple[Callable[..., None], tuple[int, int, int], tuple[Any, ...]]
"""What is called, with the grid before the stream and the rest after it."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """What one call did, for tensors of the same sizes, strides and alignment.

    `same` has for each input the first one at its address.
    """

    allocations: tuple[Allocation, ...]
    launches: tuple[Launch, ...]
    outputs: tuple[int | None, ...]
    aligned: tuple[bool, ...]
    same: tuple[int, ...]
    device: torch.device
    ready: dict[tuple[int, ...], tuple[PreparedLaunch, ...]] = dataclasses.field(default_factory=dict, compare=False)


MOST_RECORDINGS = 1024
MOST_READY = 256


class NotRecordable(Exception):
    """The wrapper did something that a replay would miss."""


class RecordedCall:
    """A wrapper of `minicompile.kernels` with the memory of what it launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._recordings: dict[Any, Recording | None] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        tensors: list[torch.Tensor] = []
        described: list[Any] = [tf32_allowed(), deterministic(), *options.items()]
        for value in arguments:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                value = value.shape, value.stride(), value.dtype
            described.append(value)
        key = tuple(described)
        recording = self._recordings.get(key)
        if recording is None:
            return self._record(key, tensors, arguments, options)
        results = replay(recording, tensors)
        return self._function(*arguments, **options) if results is None else results

    def _record(self, key: Any, tensors: list[torch.Tensor], arguments: Any, options: Any) -> Any:
        if key in self._recordings or torch.cuda.is_current_stream_capturing():
            return self._function(*arguments, **options)
        name = getattr(self._function, "__name__", "")
        EARLY.wait(name)
        with self._lock:
            if tensors and name in SEVERAL_KERNELS:
                interpret.compile_launches(lambda: self._function(*arguments, **options), tensors[0].device, share_with_workers)
            watch = Watch()
            with interpret.launching_by(watch.launched), watch:
                outputs = self._function(*arguments, **options)
            if len(self._recordings) >= MOST_RECORDINGS:
                self._recordings.clear()  # lengths that vary without end
            try:
                self._recordings[key] = watch.recording(tensors, outputs)
            except NotRecordable:
                self._recordings[key] = None
            return outputs


class FixedCall(RecordedCall):
    """A wrapper that is always called with the same options and with tensors of the same sizes and strides in the same places."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        recording = self._recordings.get(key := (tf32_allowed(), deterministic()))
        if recording is None:
            self._places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
            return self._record(key, [arguments[place] for place in self._places], arguments, options)
        results = replay(recording, [arguments[place] for place in self._places])
        return self._function(*arguments, **options) if results is None else results


def replay(recording: Recording, inputs: list[torch.Tensor]) -> tuple[Any, ...] | None:
    """Allocate and launch; `None` if the inputs are not aligned as they were."""
    made = [empty_strided(sizes, strides, dtype) for sizes, strides, dtype in recording.allocations]
    addresses = tuple([tensor.data_ptr() for tensor in inputs + made])
    launches = recording.ready.get(addresses)
    if launches is None:
        if places(addresses[: len(inputs)]) != (recording.aligned, recording.same):
            return None
        if len(recording.ready) >= MOST_READY:
            recording.ready.clear()
        launches = recording.ready[addresses] = tuple(prepared(launch, addresses) for launch in recording.launches)
    stream = torch._C._cuda_getCurrentRawStream(recording.device.index)
    for run, grid, rest in launches:
        run(*grid, stream, *rest)
    return tuple([None if index is None else made[index] for index in recording.outputs])


def places(addresses: Sequence[int]) -> tuple[tuple[bool, ...], tuple[int, ...]]:
    """Which addresses are aligned, and for each the first one equal to it."""
    return tuple((address & ALIGNMENT) == 0 for address in addresses), tuple(map(addresses.index, addresses))


def prepared(launch: Launch, addresses: tuple[int, ...]) -> PreparedLaunch:
    """A launch with the addresses of one call put in."""
    kernel = launch.kernel
    arguments = [placed(value, addresses) for value in launch.arguments]
    start = (kernel.function, kernel.packed_metadata, None, None, None)
    direct = below_the_wrapper(kernel.run, arguments)
    if direct is None:
        return kernel.run, launch.grid, (*start, *arguments)
    function, options, arguments = direct
    return function, launch.grid, (start[0], *options, *start[1:], *arguments)


def below_the_wrapper(run: Any, arguments: list[Any]) -> tuple[Callable[..., None], tuple[Any, ...], list[Any]] | None:
    """The launch that Triton's Python around it ends in, what it adds, and the arguments with descriptors encoded.

    `None` for a Triton that is built otherwise, and for kernels that need scratch memory.
    """
    scratch = [getattr(run, f"{kind}_scratch_size", None) for kind in ("global", "profile")]
    if scratch != [0, 0] or hasattr(run, "kernel_signature"):
        return None
    options = (run.launch_cooperative_grid, run.launch_pdl, None, None)
    if not any(hasattr(value, "block_shape") for value in arguments):
        return run.launch, options, arguments
    variables = inspect.getclosurevars(run.launch)
    encode, metadata = variables.globals.get("make_tensordesc_arg"), variables.nonlocals.get("tensordesc_meta")
    if encode is None or metadata is None or "launcher" not in variables.nonlocals:
        return None
    described = iter(metadata)
    encoded: list[Any] = []
    for value in arguments:
        encoded += encode(value, next(described)) if hasattr(value, "block_shape") else [value]
    return variables.nonlocals["launcher"], options, encoded


def placed(value: Any, pointers: tuple[int, ...]) -> Any:
    """A launch's argument with the addresses of this call."""
    if type(value) is tuple:
        return tuple(placed(part, pointers) for part in value)
    if type(value) is Address:
        return pointers[value.index] + value.offset
    if type(value) is Description:
        descriptor = copy.copy(value.template)
        pointer = pointers[value.address.index] + value.address.offset
        descriptor.base = types.SimpleNamespace(data_ptr=lambda: pointer)  # all that is asked of its tensor
        return descriptor
    return value


class Watch(DispatchMode):
    """Sees every torch operator and every launch of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[Any, Any, tuple[Any, ...]]] = []
        self.made: list[torch.Tensor] = []
        self.refusal = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if name in ALLOCATIONS:
            self.made.append(result)
        elif name not in VIEWS:
            self.refusal = name
        return result

    def launched(self, kernel: Any, grid: Any, args: Any, meta: Any) -> None:
        """Launch `kernel` and keep what Triton launched."""
        compiled = interpret.run_on_gpu(kernel, grid, args, meta)
        signature = inspect.signature(kernel.fn)
        bound = signature.bind(*args, **{n: v for n, v in meta.items() if n in signature.parameters})
        bound.apply_defaults()
        self.launches.append((compiled, grid, tuple(bound.arguments.values())))

    def recording(self, inputs: list[torch.Tensor], outputs: Any) -> Recording:
        """The call as data; raises `NotRecordable`."""
        if self.refusal or not self.launches:
            raise NotRecordable(self.refusal)
        storages = [tensor.untyped_storage().data_ptr() for tensor in (*inputs, *self.made)]
        starts = [tensor.data_ptr() for tensor in (*inputs, *self.made)]

        def address(tensor: torch.Tensor) -> Address:
            start, storage = tensor.data_ptr(), tensor.untyped_storage().data_ptr()
            around = [index for index, found in enumerate(storages) if found == storage]
            index = next((index for index in around if starts[index] == start), around[0] if len(around) == 1 else None)
            if index is None:
                raise NotRecordable("a tensor from elsewhere, or a part of several")
            return Address(index, start - starts[index])

        def fixed(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return address(value)
            if hasattr(value, "block_shape"):
                template = copy.copy(value)
                template.base = None
                return Description(address(value.base), template)
            return tuple(map(fixed, value)) if type(value) is tuple else value

        launches = tuple(
            Launch(compiled, (*grid, 1, 1)[:3], tuple(map(fixed, values))) for compiled, grid, values in self.launches
        )
        allocations = [Allocation(tuple(t.shape), t.stride(), t.dtype) for t in self.made]
        results: list[int | None] = []
        for output in outputs:
            if output is None:
                results.append(None)
                continue
            found = address(output)
            index = found.index - len(inputs)
            if index < 0 or found.offset or output.numel() != self.made[index].numel():
                raise NotRecordable("an output that was not allocated")
            allocations[index] = Allocation(tuple(output.shape), output.stride(), output.dtype)
            results.append(index)
        return Recording(
            tuple(allocations),
            launches,
            tuple(results),
            *places(starts[: len(inputs)]),
            torch.device("cuda", (*inputs, *self.made)[0].device.index),
        )
