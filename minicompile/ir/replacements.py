"""Functions of torch that are traced as others, which say the same without what a graph cannot hold.

Some share memory where functionalization would see copies, some look at the values of tensors, for a check or for a
gradient, and some would make constants of sizes that vary. This module must not know of graphs.
"""

import contextlib
import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minicompile.ir import operators  # noqa: F401  (it registers `checked`)
from minicompile.ir.fake_mode import no_python_dispatcher, surely_equal
from minicompile.ir.running_products import RunningProduct

aten = torch.ops.aten


def polygamma_(value: Tensor, order: int) -> Tensor:
    """`Tensor.polygamma_`."""
    return value.copy_(torch.polygamma(order, value.clone()))


def one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """`one_hot` without eager's look at the values before anything is computed."""
    if index.dtype != torch.int64 or num_classes <= 0 and surely_equal(index.numel(), 0):
        raise IndexError("an index that one_hot does not take")
    if num_classes <= 0:
        return F.one_hot(index, num_classes)
    index = torch.ops.minicompile.checked(index, (index >= 0) & (index < num_classes))
    classes = torch.arange(num_classes, device=index.device)
    return (index.unsqueeze(-1) == classes).to(torch.int64, memory_format=torch.contiguous_format)


def index_fill(value: Tensor, dim: int, index: Tensor, fill: Any) -> Tensor:
    """`index_fill`; the gradient of a tensor `fill` would need the unique values of the index, and what PyTorch makes of
    the operator takes no negative ones."""
    if index.dtype != torch.int64 or isinstance(fill, Tensor) and fill.dim():
        raise IndexError("an index or a value that index_fill does not take")
    length = value.shape[dim] if value.dim() else 1
    index = torch.where(index < 0, index + length, index)
    if not isinstance(fill, Tensor) or not value.dim() and dim not in (-1, 0):
        return aten.index_fill(value, dim, index, fill)
    hit = torch.zeros(length, dtype=torch.bool, device=value.device).index_fill(0, index, True)
    hit = hit.view([-1 if d == dim % value.dim() else 1 for d in range(value.dim())])
    return torch.where(hit, fill.to(value), value)


def index_fill_(value: Tensor, dim: int, index: Tensor, fill: Any) -> Tensor:
    """`Tensor.index_fill_`."""
    return value.copy_(index_fill(value, dim, index, fill))


def index_put(
    function: Any, value: Tensor, indices: Sequence[Tensor | None], new: Tensor, accumulate: bool = False
) -> Tensor:
    """`index_put`, or `index_put_`; of differentiable values by one mask it is a `where`: no gradient counts the mask."""
    chosen = masked_place(value, indices, new) if not accumulate else None
    if chosen is None:
        return function(value, indices, new, accumulate)
    result = torch.where(*chosen, value)
    return value.copy_(result) if function is aten.index_put_ else result


def get_item(value: Any, key: Any) -> Any:
    """`value[key]`."""
    part, key = selected(value, key)
    return operator.getitem(part, key) if key != () or part is value else part


def set_item(value: Any, key: Any, new: Any) -> None:
    """`value[key] = new`."""
    value, key = selected(value, key)
    place = place_of_mask(value, key) if isinstance(new, Tensor) and new.requires_grad else None
    if place is not None and (new.dtype == value.dtype or all(size == 1 for size in new.shape)):
        while new.dim() and surely_equal(new.shape[0], 1):
            new = new.squeeze(0)
        index_put(aten.index_put_, *place, new.to(value))
    else:
        operator.setitem(value, key, new)


def place_of_mask(value: Any, key: Any) -> tuple[Tensor, list[Tensor | None]] | None:
    """The view and the indices into it that a key of one mask, slices and integers stands for; `None` for other keys."""
    found = split_at_mask(value, key)
    return found and (value[found[0]], [*[None] * found[2], found[1]])


def split_at_mask(value: Any, key: Any) -> tuple[tuple[Any, ...], Tensor, int] | None:
    """The key that slices and integers beside one mask are, the mask, and at which dimension of the view by that key it begins;
    `None` for other keys."""
    parts = key if type(key) is tuple else (key,)
    masks = [place for place, part in enumerate(parts) if isinstance(part, Tensor) and part.dtype == torch.bool and part.dim()]
    if not isinstance(value, Tensor) or len(masks) != 1:
        return None
    before, mask, after = parts[: masks[0]], parts[masks[0]], parts[masks[0] + 1 :]
    if not all(type(part) in (int, slice, type(None), type(...)) for part in (*before, *after)):
        return None
    rest = (*before, *[slice(None)] * mask.dim(), *after)
    dims = value.dim() + rest.count(None) - sum(type(part) is int for part in rest)
    kept = [part for part in (after if ... in before else before) if type(part) is not int]
    return rest, mask, dims - mask.dim() - len(kept) if ... in before else len(kept)


def selected(value: Any, key: Any) -> tuple[Any, Any]:
    """A tensor and an index into it, of which the integers that vary are selected by: indexing makes constants of them."""
    parts = key if type(key) is tuple else (key,)
    if not isinstance(value, Tensor) or all(type(part) is not torch.SymInt for part in parts):
        return value, key
    taken = [taken_dims(part) for part in parts]
    if None in taken:
        return value, key
    dim, rest = 0, []
    for place, part in enumerate(parts):
        if part is Ellipsis:
            dim = value.dim() - sum(taken[place + 1 :])  # type: ignore[arg-type]  # none is None
        if type(part) is torch.SymInt:
            value = value.select(dim, part)
        else:
            dim += taken[place] or 0
            rest.append(part)
    return value, tuple(rest)


def taken_dims(part: Any) -> int | None:
    """How many dimensions a part of an index stands for; `None` where it is not looked into."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, Tensor):
        return part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
    return 1 if type(part) in (int, slice, torch.SymInt) else None


def varies(value: Tensor) -> bool:
    """Whether a size of a tensor is symbolic."""
    return any(type(size) is torch.SymInt for size in value.shape)


def where(function: Any, place: int, *given: Any, **named: Any) -> Any:
    """`where`, also by a condition in bytes (the argument at `place`), which fake kernels refuse."""
    condition = given[place] if len(given) > place else None
    if isinstance(condition, Tensor) and condition.dtype == torch.uint8:
        given = (*given[:place], condition.bool(), *given[place + 1 :])
    return function(*given, **named)


def linspace(start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """`torch.linspace` of a number of steps that varies, from both ends as eager's."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    real = {type(start), type(end)} <= {int, float, torch.SymInt} and dtype in (torch.float32, torch.float64)
    if type(steps) is not torch.SymInt or not real or not options.keys() <= {"dtype", "device"}:
        return torch.linspace(start, end, steps, **options)
    count: Any = steps
    place, step = torch.arange(count, **{**options, "dtype": dtype}), (end - start) / (count - 1)
    return torch.where(place < count // 2, start + step * place, end - step * (count - 1 - place))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """`torch.kron`, whose own rule makes constants of sizes."""
    if not varies(input) and not varies(other):
        return torch.kron(input, other)
    rank = max(input.dim(), other.dim())
    first, second = (value.reshape([1] * (rank - value.dim()) + list(value.shape)) for value in (input, other))
    for dim in range(rank):
        first, second = first.unsqueeze(2 * dim + 1), second.unsqueeze(2 * dim)
    return (first * second).view([one * two for one, two in zip(first.shape[::2], second.shape[1::2], strict=True)])


def logsumexp(function: Any, value: Tensor, *how: Any, **named: Any) -> Tensor:
    """`logsumexp`, of 16 bits in fp32: its gradient measures from the result, and nothing is rounded in between."""
    half = value.dtype in (torch.float16, torch.bfloat16) and not torch.is_autocast_enabled(value.device.type)
    return function(value.float(), *how, **named).to(value.dtype) if half else function(value, *how, **named)


def cumprod(function: Any, input: Tensor, dim: Any, *, dtype: torch.dtype | None = None, **named: Any) -> Tensor:
    """`cumprod` with a gradient that does not look for zeros."""
    value = input if dtype is None else input.to(dtype)
    differentiable = value.requires_grad and torch.is_grad_enabled() and not value.is_complex()
    if not differentiable or named or type(dim) is not int or value.dim() == 0:
        return function(input, dim, dtype=dtype, **named)
    return RunningProduct.apply(value, dim)


def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *how: bool, **named: Any
) -> Any:
    """`max_pool1d`, whose own rule makes constants of sizes; eager has none of whole numbers, and one for CPUs, without
    gradients, whose result is contiguous."""
    if not input.is_floating_point():
        raise NotImplementedError("max_pool1d of whole numbers")
    if not varies(input) or how or named.get("return_indices"):
        result = F.max_pool1d(input, kernel_size, stride, padding, dilation, *how, **named)
    else:
        given = zip((1, 1, 0, 1), (kernel_size, stride or kernel_size, padding, dilation), strict=True)
        windows: list[Any] = [[first, *(n if isinstance(n, (list, tuple)) else [n])] for first, n in given]
        pool: Any = F.max_pool2d
        result = pool(input.unsqueeze(-2), *windows, **named).squeeze(-2)
    differentiated = input.requires_grad and torch.is_grad_enabled()
    return result if isinstance(result, tuple) or differentiated or input.device.type != "cpu" else result.contiguous()


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """`affine_grid` of which the gradient takes sizes that vary, as that of PyTorch's operator does not.

    In eager it multiplies matrices inside, in autocast's dtype.
    """
    from torch._decomp import decomposition_table  # importing the table takes a while

    if any(surely_equal(length, 0) for length in size):
        raise ValueError("a grid of nothing")
    made = decomposition_table[aten.affine_grid_generator.default]
    kind, dtype = theta.device.type, theta.dtype
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
    return made(theta, list(size), bool(align_corners)).to(dtype)


def dropout(function: Any, input: Tensor, p: float = 0.5, *training: bool, **named: Any) -> Tensor:
    """Dropout, which in eager is its argument where nothing is dropped; PyTorch's rule for symbolic sizes copies."""
    active = training[0] if training else named.get("train", named.get("training", True))
    if p == 0 or not active or surely_equal(input.numel(), 0):
        return input
    return function(input, p, *training, **named)


def margin_loss(function: Any, input: Tensor, target: Tensor, *how: Any, **named: Any) -> Tensor:
    """`multi_margin_loss` and `multilabel_margin_loss`, of which PyTorch's rules for symbolic sizes differ from eager's kernels,
    in the gradient at the margin, and by counting what follows -1."""
    if varies(input) or varies(target):
        raise NotImplementedError("a margin loss of a size that varies")
    with no_python_dispatcher():
        return function(input, target, *how, **named)


def unsafe_parts(function: Any, value: Tensor, *how: Any, **named: Any) -> Any:
    """`unsafe_chunk` and its kin, whose results may be written; those of `function` may not where a size is symbolic."""
    if value.requires_grad and varies(value):
        raise NotImplementedError("parts of a varying size that autograd takes for no views")
    return function(value, *how, **named)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear`, of which eager writes the bias into the product, and refuses one that is larger."""
    if bias is not None and bias.dim() > 1:
        shape = (*input.shape[:-1], weight.shape[0])
        if torch.broadcast_shapes(bias.shape, shape) != shape:
            raise RuntimeError("a bias larger than the product")
    return F.linear(input, weight, bias)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *how: Any, **named: Any
) -> Tensor:
    """`interpolate`; eager writes the nearest of a sequence in order, weighs bytes by whole numbers and copies, whatever the
    scale, where a size stays; PyTorch's rules for symbolic sizes do not."""
    asked = size if isinstance(size, (tuple, list)) else (size,)
    varying = varies(input) or any(type(length) is torch.SymInt for length in asked)
    with contextlib.nullcontext() if varying else no_python_dispatcher():
        result = F.interpolate(input, size, scale_factor, mode, *how, **named)
    repeated_bytes = input.dtype == torch.uint8 and "nearest" in mode
    if not input.dtype.is_floating_point and not repeated_bytes and (varies(input) or varies(result)):
        raise NotImplementedError("a picture of whole numbers whose size varies")
    if any(surely_equal(size, 0) for size in (*input.shape[1:], *result.shape[1:])):
        raise NotImplementedError("a picture of no size")
    if varies(input) and scale_factor is not None and (mode == "nearest" or mode.endswith("linear")):
        scales = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * len(input.shape[2:])
        for old, new, scale in zip(input.shape[2:], result.shape[2:], scales, strict=True):
            if scale not in (1, 2) and (new == old or new == 2 * old):
                raise NotImplementedError("a size that stays at a scale other than one")
    return result.contiguous() if input.dim() == 3 and mode.startswith("nearest") else result


def power(function: Any, base: Any, exponent: Any, **options: Any) -> Any:
    """`pow`; its gradient asks for the value of a number, which may vary, and not for that of a tensor."""
    number: Any = next((item for item in (base, exponent) if isinstance(item, (torch.SymInt, torch.SymFloat))), None)
    tensor = exponent if number is base else base
    if number is None or not isinstance(tensor, Tensor) or not tensor.requires_grad:
        return function(base, exponent, **options)
    dtype = torch.int64 if isinstance(number, torch.SymInt) else torch.float64
    known = torch.ones((), dtype=dtype, device=tensor.device) * number
    if number is base:
        return torch.pow(known, tensor).to(tensor.dtype).contiguous()  # as eager lays out the powers of a number
    return torch.pow(tensor, known).to(tensor.dtype)


def trace(original: Any, value: Tensor) -> Tensor:
    """`trace`, whose gradient counts the elements."""
    plain = value.dim() == 2 and value.dtype in (torch.float32, torch.float64)
    return value.diagonal().sum() if plain else original(value)


def istft(
    value: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """`istft` without eager's look, ahead of a division, at what overlapping windows add up to."""
    from torch._refs import istft as reference  # importing it takes a while

    step, size = hop_length or n_fft // 4, win_length or n_fft
    first, whole = n_fft // 2 if center else 0, n_fft + step * (value.shape[-1] - 1)
    end = whole - first if length is None else first + length
    if not first < end <= whole or window is not None and window.requires_grad:
        raise NotImplementedError("a length that the signal does not have, or a window with a gradient")
    if window is not None:
        left = (n_fft - size) // 2
        weights = F.pad(window, (left, n_fft - size - left)).square().expand(1, value.shape[-1], n_fft)
        covered = aten.unfold_backward(weights, [1, whole], 1, n_fft, step)[0, first:end].abs()
        window = torch.ops.minicompile.checked(window, ~(covered.min() < 1e-11).expand(window.shape))
    return reference(value, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)


def masked_place(value: Tensor, indices: Sequence[Tensor | None], new: Tensor) -> tuple[Tensor, Tensor] | None:
    """A mask over `value` and what goes there, broadcastable; `None` where that has no gradient, or there is no one mask."""
    masks = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(masks) != 1 or masks[0][1].dtype != torch.bool or not new.requires_grad:
        return None
    first, mask = masks[0][0], masks[0][1].to(value.device)
    if mask.shape != value.shape[first : first + mask.dim()]:  # refused
        return None
    after = value.dim() - first - mask.dim()
    if new.dim() > after:
        rows = new.dim() - after - 1
        lead, spread = new.shape[:rows], [1] * mask.dim()
        if new.shape[rows] != 1:  # each place takes the next of them
            fits = (mask.sum() == new.shape[rows]).expand(mask.numel())
            place = torch.ops.minicompile.checked(mask.flatten().cumsum(0), fits)
            if new.shape[rows] == 0:  # one that no place takes
                new = F.pad(new, (0, 0) * (new.dim() - rows - 1) + (0, 1))
            new, spread = new.index_select(rows, (place - 1).clamp(min=0)), list(mask.shape)
        new = new.reshape(*lead, *spread, *new.shape[rows + 1 :])
    return mask.reshape(*mask.shape, *[1] * after), new


# Results of the unsafe ones share memory with the input in eager, where functionalization would see copies; and it knows
# no in-place polygamma. Some others look at the values of tensors, for a check or for a gradient. `bernoulli` draws by rows,
# whatever the layout; in the graph, the operator with a `p` stands for `bernoulli_`.
REPLACED: dict[Any, Any] = {
    **dict.fromkeys((torch.unsafe_chunk, torch.Tensor.unsafe_chunk, aten.unsafe_chunk, aten.unsafe_chunk.default),
                    functools.partial(unsafe_parts, torch.chunk)),
    **dict.fromkeys((torch.unsafe_split, torch.Tensor.unsafe_split, aten.unsafe_split, aten.unsafe_split.Tensor),
                    functools.partial(unsafe_parts, torch.split)),
    **dict.fromkeys((torch.unsafe_split_with_sizes, torch.Tensor.unsafe_split_with_sizes, aten.unsafe_split_with_sizes,
                     aten.unsafe_split_with_sizes.default), functools.partial(unsafe_parts, torch.split_with_sizes)),
    torch.Tensor.polygamma_: polygamma_,
    **dict.fromkeys((torch.bernoulli, torch.Tensor.bernoulli, aten.bernoulli.default),
                    lambda value, *p, **options: torch.bernoulli(value.contiguous(), *p, **options)),
    **{function: functools.partial(dropout, function)
       for function in (torch.dropout, F.dropout, aten.dropout, aten.dropout.default)},
    **{function: functools.partial(margin_loss, function) for function in (F.multi_margin_loss, F.multilabel_margin_loss)},
    F.linear: linear, F.interpolate: interpolate, F.one_hot: one_hot, F.affine_grid: affine_grid,
    torch.index_fill: index_fill, torch.Tensor.index_fill: index_fill, torch.Tensor.index_fill_: index_fill_,
    **dict.fromkeys((torch.index_put, torch.Tensor.index_put), functools.partial(index_put, aten.index_put)),
    **dict.fromkeys((torch.index_put_, torch.Tensor.index_put_), functools.partial(index_put, aten.index_put_)),
    operator.setitem: set_item, operator.getitem: get_item,
    **{function: functools.partial(power, function) for function in (operator.pow, torch.pow, torch.Tensor.pow)},
    **{function: functools.partial(trace, function) for function in (torch.trace, torch.Tensor.trace)},
    **{function: functools.partial(logsumexp, function)
       for function in (torch.logsumexp, torch.Tensor.logsumexp, torch.special.logsumexp)},
    torch.where: functools.partial(where, torch.where, 0), torch.Tensor.where: functools.partial(where, torch.Tensor.where, 1),
    torch.istft: istft, torch.Tensor.istft: istft,
    **{function: functools.partial(cumprod, function)
       for function in (torch.cumprod, torch.Tensor.cumprod, aten.cumprod.default)},
    torch.linspace: linspace, torch.kron: kron, F.max_pool1d: max_pool1d, torch.max_pool1d: max_pool1d,
}  # fmt: skip


def called(target: Any, args: Any, kwargs: Any) -> Any:
    """What a function, or the method of that name of its first argument, gives as it is traced."""
    if isinstance(target, str):
        method = getattr(type(args[0]), target, None)
        if method not in REPLACED:
            return getattr(args[0], target)(*args[1:], **kwargs)
        target = method
    return REPLACED.get(target, target)(*args, **kwargs)
