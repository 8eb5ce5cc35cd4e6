"""Every private interface of PyTorch that the graph stage stands on, behind public names.

All of it was read in, and runs on, torch 2.11 to 2.15: functional tensors (`torch._to_functional_tensor` and its kin,
the C++ functionalization that every later wrapper in PyTorch also uses), fake tensors (`torch._subclasses`), autograd
sequence numbers, and the decomposition table. No other module of this package may touch a name of torch with a leading
underscore, operators aside.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from minicompile.ir.fake_mode import FAKE_DEVICE, FakeMode, python_dispatcher, storage_key, surely_equal
from minicompile.ir.graph import GraphModule, parts_of

__all__ = ["FAKE_DEVICE", "python_dispatcher", "storage_key", "surely_equal", "FakeTensor", "GraphModule", "FakeMode"]

FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Functional tensors record mutations instead of doing them, views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def is_functional(value: torch.Tensor) -> bool:
    """Whether a tensor is a functional one; the result of an operator on numbers alone is not."""
    return torch._is_functional_tensor(value)


def to_functional(value: torch.Tensor) -> torch.Tensor:
    """A functional tensor around `value`."""
    return torch._to_functional_tensor(value)


@contextlib.contextmanager
def with_autograd() -> Iterator[None]:
    """Autograd records, also inside of an operator's kernel."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


def from_functional(value: torch.Tensor) -> torch.Tensor:
    """The current plain value of a functional tensor, all pending mutations applied."""
    torch._sync(value)
    return torch._from_functional_tensor(value)


@contextlib.contextmanager
def below_functionalization() -> Iterator[None]:
    """Operators on plain values are recorded as they are, without gradients."""
    with torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
        yield


@contextlib.contextmanager
def kernels_of_eager() -> Iterator[None]:
    """Operators on tensors made here are run as eager runs them, whatever is being traced."""
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
        yield


def replace(value: torch.Tensor, inner: torch.Tensor) -> None:
    """Put another plain value of the same elements into a functional tensor, its views included if it is none itself."""
    torch._functionalize_replace(value, inner)
    if value._base is None:
        with torch.no_grad():
            torch._functionalize_commit_update(value)
        torch._sync(value)


def view_of(base: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The view of `base` that `like` is of its own."""
    with torch.set_grad_enabled(like.grad_fn is not None):
        return like._view_func(base)  # type: ignore[attr-defined]  # not in the stubs


def data_was_mutated(value: torch.Tensor) -> bool:
    """Whether the data of a functional tensor, or of any view of it, was written."""
    return torch._functionalize_has_data_mutation(value)  # type: ignore[attr-defined]  # not in the stubs


def storage_was_changed(value: torch.Tensor) -> bool:
    """Whether a functional tensor was pointed at other storage (`.data =`, `set_`) or its storage was resized."""
    return torch._functionalize_has_metadata_mutation(value) or torch._functionalize_was_storage_changed(value)


def is_symbolic(value: torch.Tensor) -> bool:
    """Whether a size, stride or offset of a fake tensor is an expression over symbols."""
    return value._has_symbolic_sizes_strides


def symbolic_numbers(value: Any) -> list[torch.SymInt]:
    """The symbolic ones among the numbers that a graph's value is made of."""
    numbers: list[Any] = []
    for part in parts_of(value):
        numbers += (*part.shape, *part.stride()) if isinstance(part, torch.Tensor) else (part,)
    return [number for number in numbers if isinstance(number, torch.SymInt)]


def has_symbols(value: object) -> bool:
    """Whether a graph input is a symbolic number or has symbolic sizes."""
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and is_symbolic(value))


def overlaps(value: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory, as far as its strides tell, at the sizes seen first."""
    shape, strides = hints(value.shape), hints(value.stride())
    span = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= span and 0 not in shape:
            return True
        span += (size - 1) * stride
    return False


def hints(numbers: Iterable[Any]) -> list[int]:
    """Numbers as they were when they were seen first."""
    return [n if isinstance(n, int) else n.node.hint for n in numbers]


def fake_empty(mode: FakeMode, size: Any, dtype: torch.dtype, device: torch.device) -> FakeTensor:
    """A new contiguous fake tensor, made without any mode seeing it."""
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
        empty = torch.empty(size, dtype=dtype, device="meta")
    return mode.fake(empty, device)


def fake_copy(mode: FakeMode, like: torch.Tensor) -> torch.Tensor:
    """A new fake tensor with the metadata of `like`, symbolic sizes included, with storage of its own."""
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
        empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    return mode.fake(empty, like.device)


def fake_twin(mode: FakeMode, like: torch.Tensor) -> torch.Tensor:
    """A new fake tensor that lies in storage of its own as `like` does in its: forward mode asks that of a tangent's views."""
    storage = like.untyped_storage()
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
        memory = torch.empty(storage.nbytes() // like.itemsize, dtype=like.dtype, device="meta")
        twin = memory.as_strided(like.shape, like.stride(), like.storage_offset())
    return mode.fake(twin, like.device)


def fake_tangent(mode: FakeMode, like: torch.Tensor) -> torch.Tensor:
    """The gradient that a backward takes for an output: in the output's layout if that is dense, else contiguous."""
    shape, strides = hints(like.shape), hints(like.stride())
    place = 1
    for step, size in sorted((step, size) for step, size in zip(strides, shape, strict=True) if size != 1):
        if step != place and 0 not in shape:
            return fake_empty(mode, tuple(like.shape), like.dtype, like.device)
        place *= size
    return fake_copy(mode, like)


def fake_mode_of(values: Iterable[Any]) -> FakeMode:
    """The mode of the first fake tensor among `values`, or a new one."""
    found: Any = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    return found or FakeMode()


def next_sequence_number() -> int:
    """The number that autograd gives to the next node it records in this thread."""
    return torch._C._autograd._get_sequence_nr()


def running_sequence_number() -> int | None:
    """The number of the autograd node whose backward is running, if one is."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def no_autocast() -> contextlib.AbstractContextManager[Any]:
    """Autocast switched off for every device."""
    return torch._C._DisableAutocast()


def torch_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's table of decompositions, all of them."""
    # Importing the table takes a while and is needed only once something is compiled.
    from torch._decomp import decomposition_table

    return decomposition_table


def has_composite_kernel(operator: torch._ops.OpOverload) -> bool:
    """Whether the operator is defined in C++ through other operators alone."""
    return operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions down to the core ATen set."""
    from torch._decomp import _core_aten_decompositions_post_autograd  # heavy: see torch_decompositions

    return dict(_core_aten_decompositions_post_autograd())


def plain_value(value: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a functional one, without applying pending mutations; any other tensor itself."""
    return torch._from_functional_tensor(value) if is_functional(value) else value
