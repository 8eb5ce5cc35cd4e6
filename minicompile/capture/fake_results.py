"""A mode of fake tensors that remembers what operators give, so that the second of twelve identical layers costs little.

PyTorch's own memory of that asks so much about every argument that it takes as long as running the fake kernel. Here an
operator met again with arguments of the same metadata gets new tensors with the metadata of the first result; a result that
was a view is a view again. Remembered are PyTorch's own operators that write nothing and read no values, on fixed sizes.
Everything else is PyTorch's affair.

Private names used, the same in torch 2.11 to 2.15: `FakeTensorMode.dispatch`, `FakeTensor`'s attributes
`fake_mode`, `fake_device` and `constant`, `torch._C._dispatch_keys`. Must not know what the results are for.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from minicompile.ir.fake_mode import FAKE_DEVICE, FakeMode, storage_key
from minicompile.ir.operator_names import overloads, packets

aten = torch.ops.aten
SCALARS = (bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
MOVES = overloads(
    "view _unsafe_view permute transpose.int t expand unsqueeze squeeze.dim select.int slice.Tensor unbind.int split.Tensor "
    "split_with_sizes clone")
"""Operators that make PyTorch's fake tensors import `torch.distributed.tensor`; some give views that eager refuses."""
RUNNING_STATISTICS = packets("native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm instance_norm")
"""Operators that write, in training, what their schemas do not say; the last two are met under `inference_mode`."""

MOST_RESULTS = 20_000
RESULTS: dict[Any, Any] = {}
"""By operator and arguments: the type of the container of the results, if any, and what each was; of the whole process."""

Tag = torch.Tag
VALUES_MATTER = (Tag.data_dependent_output, Tag.dynamic_output_shape, Tag.inplace_view)


class NotRemembered(Exception):
    """A result depends on more than the metadata of arguments, or has more than metadata."""


class RememberingFakeMode(FakeMode):
    """Fake tensors, with remembered results where nothing is symbolic.

    Attributes:
        written: a tensor of each storage that was written, by the storage's key.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.written: dict[int, Any] = {}

    @functools.cached_property
    def avoid_device_init(self) -> bool:
        """Whether this machine has no accelerator, which PyTorch would find out anew for every operator."""
        return super().avoid_device_init

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is FAKE_DEVICE and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device
        for value in written_by(func, args, kwargs or {}):
            self.written[storage_key(value)] = value
        tensors: list[FakeTensor] = []
        key = self.key_of(func, args, kwargs or {}, tensors)
        known = RESULTS.get(key)
        if known is not None:
            kind, parts = known
            made = [part and self.again(part, tensors) for part in parts]
            return made[0] if kind is None else kind(made)
        if key is not None and func in MOVES and not tensors[0].is_conj() and not tensors[0].is_neg():
            result = self.moved(func, args, kwargs or {}, tensors)
        else:
            if func is aten.select.int and self.shape_env is not None:
                check_place(*args)
            result = self.dispatch(func, types, args, kwargs or {})
        if key is not None:
            kind = type(result) if type(result) in (tuple, list) else None
            values = [result] if kind is None else result
            with contextlib.suppress(NotRemembered):
                parts = [self.remembered(value, tensors, values) for value in values]
                if len(RESULTS) >= MOST_RESULTS:
                    RESULTS.clear()
                RESULTS[key] = kind, parts
        return result

    def key_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]) -> Any:
        """What a result depends on, its tensors by the way; `None` if it cannot be told."""
        if self.shape_env is not None or not is_plain(func):
            return None
        try:
            described = self.described(args, tensors), tuple(kwargs), self.described(kwargs.values(), tensors)
        except NotRemembered:
            return None
        return func, torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled(), described

    def described(self, values: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
        """What a result can depend on of some arguments, which are collected in `tensors`."""
        found: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                found.append(self.traits(value))
                tensors.append(value)
            elif kind is list or kind is tuple:
                found.append((kind, self.described(value, tensors)))
            elif kind is float:
                found.append((kind, repr(value)))
            elif kind in SCALARS and (kind is not torch.device or value.index is not None or value.type == "cpu"):
                found.append((kind, value))  # a device without a number is the current one
            else:
                raise NotRemembered
        return tuple(found)

    def traits(self, value: FakeTensor) -> tuple[Any, ...]:
        """What there is to a fake tensor but for its storage."""
        if value._has_symbolic_sizes_strides or value.constant is not None or value.fake_mode is not self:
            raise NotRemembered
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device, value.requires_grad,
                torch._C._dispatch_keys(value).raw_repr())

    def remembered(self, value: Any, tensors: list[FakeTensor], results: Sequence[Any]) -> Any:
        """How to make one of some results again: its traits, and whether it is a view of the only tensor among the arguments."""
        if value is None:
            return None
        if type(value) is not FakeTensor or value.layout is not torch.strided or any(each is value for each in tensors):
            raise NotRemembered
        storage = storage_key(value)
        is_view = any(storage_key(each) == storage for each in tensors)
        shared = sum(type(each) is FakeTensor and storage_key(each) == storage for each in results) > 1
        part = self.traits(value), is_view
        if (len(tensors) > 1 if is_view else shared) or self.traits(self.again(part, tensors)) != part[0]:
            raise NotRemembered
        return part

    def moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]) -> Any:
        """Views or copies of a fake tensor, by eager's rules: as they are of a tensor without memory."""
        shape, stride, offset, dtype, *rest = self.traits(tensors[0])
        with torch._C._DisableTorchDispatch():
            storage = torch.empty(tensors[0].untyped_storage().nbytes() // dtype.itemsize, dtype=dtype, device="meta")
            found = func(storage.as_strided(shape, stride, offset), *args[1:], **kwargs)
        values = [found] if isinstance(found, torch.Tensor) else found
        is_view = func is not aten.clone.default
        with torch.inference_mode(tensors[0].is_inference() if is_view else torch.is_inference_mode_enabled()):
            made = [self.again(((v.shape, v.stride(), v.storage_offset(), dtype, *rest), is_view), tensors) for v in values]
        return made[0] if isinstance(found, torch.Tensor) else type(found)(made)

    def again(self, part: Any, tensors: list[FakeTensor]) -> FakeTensor:
        """A new fake tensor like a result seen before."""
        (shape, stride, offset, dtype, device, _, _), is_view = part
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if is_view:
                empty.set_(tensors[0].untyped_storage(), offset, shape, stride)
        return self.fake(empty, device)


def check_place(value: torch.Tensor, dim: int, index: int | torch.SymInt) -> None:
    """Guard that an index is within a dimension, as eager demands; the fake kernel of torch 2.11 takes any symbolic one."""
    if value.dim() and not -value.shape[dim] <= index < value.shape[dim]:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(value.shape)} at dimension {dim}")


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operator writes."""
    written: list[Any] = []
    if func.overloadpacket in RUNNING_STATISTICS and args[5]:
        written = [args[3], args[4]]
    elif func._schema.is_mutable:
        parameters = func._schema.arguments
        written = [value for parameter, value in zip(parameters, args, strict=False) if parameter.is_write]
        written += [kwargs.get(parameter.name) for parameter in parameters if parameter.is_write]
    return [value for value in tree_leaves(written) if value is not None]


@functools.cache
def is_plain(func: Any) -> bool:
    """Whether an operator is PyTorch's, writes nothing, and gives tensors that depend on metadata alone."""
    return (isinstance(func, torch._ops.OpOverload) and func.namespace == "aten" and not func._schema.is_mutable
            and not any(tag in func.tags for tag in VALUES_MATTER) and "lift" not in func.__name__)
