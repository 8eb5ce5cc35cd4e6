"""The primitive set: which operators are taken apart on the way into the graph, and how.

A composite operator is taken apart when lowering gains by fusing the parts. What lowering has a formula for (activations
and their gradients, comparisons, `where`, `masked_fill`) is kept; so are products, convolutions, attention, sorting,
and whatever no rule names. `KEPT` are operators that PyTorch's core table would take apart and this compiler does not.
This module must not record nodes itself.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from minicompile.graph import short_convolutions, torch_interface
from minicompile.graph.foreach import foreach_decompositions
from minicompile.ir.fake_mode import of_one_dtype, shifts_exponents
from minicompile.ir.operator_names import overloads, packets

aten = torch.ops.aten
Decomposition = Callable[..., Any]

KEPT = (
    "addcdiv addcmul clamp_max clamp_min floor_divide gelu_backward lerp log_sigmoid_forward xlogy special_xlog1py "
    "masked_fill _prelu_kernel sgn sigmoid_backward silu silu_backward special_log_ndtr tanh_backward "
    "threshold threshold_backward logit_backward detach baddbmm select_scatter index_add index_copy split.Tensor unbind "
    "empty_like new_empty sum arange ones zeros ones_like zeros_like new_zeros new_ones new_full roll "
    "embedding_dense_backward _unsafe_index _unsafe_index_put tril triu alias_copy fill zero "
    "_scaled_dot_product_flash_attention_for_cpu squeeze t transpose.int stack multilabel_margin_loss_forward "
    "max_unpool2d max_unpool3d bernoulli.default multi_margin_loss "
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
).split()

RESIZING = (
    "upsample_bicubic2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
).split()


def decomposition_table() -> dict[Any, Decomposition]:
    """Operator overload to the function that takes it apart."""
    table = torch_interface.core_decompositions()
    for name in KEPT:
        for found in all_overloads(name):
            table.pop(found, None)
    table.update(more_from_torch())
    table.update(foreach_decompositions())
    for names, function in OWN.items():
        table.update(dict.fromkeys(overloads(names), function))
    return {key: value for key, value in table.items() if isinstance(key, torch._ops.OpOverload)}


def all_overloads(name: str) -> list[Any]:
    """The overloads of `aten.name`, one if a dot names it."""
    return overloads(name if "." in name else " ".join(f"{name}.{form}" for each in packets(name) for form in each.overloads()))


def more_from_torch() -> dict[Any, Decomposition]:
    """Decompositions of PyTorch's table beyond its core list."""
    available = torch_interface.torch_decompositions()
    wanted = (
        "native_layer_norm native_group_norm native_group_norm_backward native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional _batch_norm_with_update_functional "
        "batch_norm_backward std_mean addmv rrelu_with_noise_backward dist binary_cross_entropy"
    ).split()
    return {found: CHANGED.get(name, lambda function: function)(available[found])
            for name in (*wanted, *RESIZING) for found in all_overloads(name) if found in available}  # fmt: skip


def wider_on_cpu(function: Decomposition, doubled: bool = False) -> Decomposition:
    """`function`, its statistics as wide as those of eager's kernels for the CPU: in fp32 for halves among values of fp32,
    and `doubled` in fp64 for fp32."""

    def run(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        mixed = any(isinstance(value, Tensor) and value.dtype != first.dtype for value in args)
        target = torch.float64 if doubled and first.dtype == torch.float32 else wide(first.dtype) if mixed else first.dtype
        if first.device.type != "cpu" or target == first.dtype:
            return function(first, *args, **kwargs)
        result, *rest = run(*(value.to(target) if isinstance(value, Tensor) else value for value in (first, *args)), **kwargs)
        rest = [value.float() if value is not None and value.dtype == torch.float64 else value for value in rest]
        return (None if result is None else result.to(first.dtype), *rest)

    return run


def of_fractions(function: Decomposition) -> Decomposition:
    """`function`, but not of bytes, which eager's kernels weigh by whole numbers."""
    return lambda value, *args: function(value, *args) if value.is_floating_point() else NotImplemented


def unless_factors_are_unread(function: Decomposition) -> Decomposition:
    """`function`, a sum with `alpha` times a product, but not where that is 0: eager's kernels do not read the factors then."""
    return lambda *args, **scales: NotImplemented if scales.get("alpha") == 0 else function(*args, **scales)


def upsample_linear(value: Tensor, size: list[int], align_corners: bool, *scales: float | None) -> Tensor:
    """`aten.upsample_linear1d` and its kin, weighed as eager does: what is infinite stays so."""
    places: list[Any] = []
    weights: list[Tensor] = []
    dtype = wide(value.dtype)
    for old, new, scale in zip(value.shape[2:], size, (*scales, None, None, None), strict=False):
        place = torch.arange(new, device=value.device).to(dtype)
        if old == new:
            pass  # eager copies, whatever the scale
        elif align_corners:
            place = place * ((old - 1.0) / (new - 1.0) if new > 1 else 0)
        else:
            place = ((place + 0.5) * (1.0 / scale if scale is not None and scale > 0 else old / new) - 0.5).clamp(min=0.0)
        shape = [-1, *[1] * (len(size) - 1 - len(places))]
        low = place.to(torch.int64)
        places.append([index.view(shape) for index in (low, low if old == new else (low + 1).clamp(max=old - 1))])
        weights.append((place - low).clamp(0.0, 1.0).view(shape))
    corners = [aten._unsafe_index(value, [None, None, *corner]).to(dtype) for corner in itertools.product(*places)]
    for weight in reversed(weights):
        corners = [first * (1 - weight) + second * weight for first, second in zip(corners[::2], corners[1::2], strict=True)]
    return corners[0].to(value.dtype)


def unless_a_size_stays(function: Decomposition) -> Decomposition:
    """`function`, but not where a scale leaves a size as it is or doubles it: there eager's kernels copy, whatever the scale."""

    def run(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(first, *args, **kwargs)
        scaled = any(isinstance(n, (float, torch.SymFloat)) and n not in (1, 2) for n in tree_leaves((args, kwargs)))
        sizes = zip(first.shape[2:], result.shape[2:], strict=True)
        return NotImplemented if scaled and any(new in (old, 2 * old) for old, new in sizes) else result

    return run


def of_probabilities(function: Decomposition) -> Decomposition:
    """`function` of a value and a target that eager refuses unless they lie between 0 and 1."""
    return lambda value, target, *rest: function(checked_unit(value), checked_unit(target), *rest)


def checked_unit(value: Tensor) -> Tensor:
    """`value`, with an assertion that all of it lies between 0 and 1."""
    return torch.ops.minicompile.checked(value, (value >= 0) & (value <= 1))


CHANGED: dict[str, Callable[[Decomposition], Decomposition]] = {
    "addmv": unless_factors_are_unread,
    "binary_cross_entropy": of_probabilities,
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_group_norm_backward", "_native_batch_norm_legit"),
                    wider_on_cpu),
    **dict.fromkeys(("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional"),
                    functools.partial(wider_on_cpu, doubled=True)),
    **dict.fromkeys(RESIZING, unless_a_size_stays),
    "upsample_bicubic2d": lambda function: of_fractions(unless_a_size_stays(function)),
}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes statistics of `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """`aten._softmax`; half precisions are computed in fp32."""
    exponentials = torch.exp(_below_largest(value, dim))
    result = exponentials / exponentials.sum(dim, keepdim=True)
    return result.to(torch.float32 if half_to_float else value.dtype).contiguous()


def log_softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """`aten._log_softmax`."""
    shifted = _below_largest(value, dim)
    logarithm = torch.log(torch.exp(shifted).sum(dim, keepdim=True))
    return (shifted - logarithm).to(torch.float32 if half_to_float else value.dtype).contiguous()


def _below_largest(value: Tensor, dim: int) -> Tensor:
    """How far values lie from the largest along `dim`, in a wide dtype; nothing has no largest."""
    value = value.to(wide(value.dtype))
    return value - torch.amax(value, dim, keepdim=True) if value.numel() else value


def rms_norm_backward(
    grad: Tensor, value: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, output_mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """`aten._fused_rms_norm_backward`; what is subtracted is divided once a row, not at every element."""
    first = value.dim() - len(normalized_shape)
    inner, outer, dtype = list(range(first, value.dim())), list(range(first)), wide(value.dtype)
    grad, wide_value = (t.to(dtype, memory_format=torch.contiguous_format) for t in (grad, value))
    normed = wide_value * rstd.reshape(*rstd.shape[:first], *[1] * len(inner))
    weighted = grad if weight is None else grad * weight.to(dtype)
    grad_value = (weighted - normed * (weighted * normed).mean(inner, keepdim=True)) * rstd
    grad_weight = None
    if weight is not None and output_mask[1]:
        grad_weight = (grad * normed).sum(outer) if outer else grad * normed
    return grad_value.to(value.dtype), None if grad_weight is None or weight is None else grad_weight.to(weight.dtype)


def nll_loss_backward(
    grad: Tensor, value: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total: Tensor
) -> Tensor:
    """`aten.nll_loss_backward` and its 2-d form without a scatter: it fuses into the gradient of the softmax."""
    channel = 0 if value.dim() < 2 else 1
    if reduction == 1:
        grad = grad / total
    if grad.dim() > 0 and value.dim() >= 2:
        grad = grad.unsqueeze(channel)
    shape = [1] * value.dim()
    shape[channel] = value.shape[channel]
    classes = torch.arange(value.shape[channel], device=value.device).view(shape)
    target = target.unsqueeze(channel)
    if weight is not None:
        grad = grad * weight.view(shape)
    hit = (classes == target) & (target != ignore_index)
    return torch.where(hit, -grad, 0.0).to(value.dtype)


def soft_margin_loss(value: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """`aten.soft_margin_loss`, rounded where eager rounds."""
    loss = torch.log1p(torch.exp(-(target * value))).to(value.dtype)
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def soft_margin_loss_backward(grad: Tensor, value: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """`aten.soft_margin_loss_backward` in eager's way: PyTorch's decomposition loses the small gradients."""
    scale = 1.0 / value.numel() if reduction == 1 else 1.0
    power = torch.exp(-target * value)
    return -scale * target * power * grad / (power + 1.0)


def smooth_l1_loss_backward(grad: Tensor, value: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """`aten.smooth_l1_loss_backward`, NaN beside NaN as in eager, where PyTorch's decomposition gives zero."""
    distance, scaled = value - target, grad / value.numel() if reduction == 1 else grad
    return torch.where(distance.abs() >= beta, distance.sign() * scaled, distance / beta * scaled)


def ldexp(value: Tensor, power: Tensor) -> Tensor:
    """`aten.ldexp`, where eager multiplies."""
    return NotImplemented if shifts_exponents(value, power) else value * torch.pow(2.0, power)


def block_diag(values: list[Tensor]) -> Tensor:
    """`aten.block_diag` in eager's dtype."""
    return torch_interface.torch_decompositions()[aten.block_diag.default](of_one_dtype(values))


def huber_loss(value: Tensor, target: Tensor, *how: Any, **named: Any) -> Tensor:
    """`aten.huber_loss` in eager's dtype, that of the values, whatever the targets are."""
    made = torch_interface.torch_decompositions()[aten.huber_loss.default](value, target, *how, **named)
    return made.to(value.dtype)


def eye(rows: int, columns: int | None = None, *, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any) -> Tensor:
    """`aten.eye` by ranges of int64: PyTorch's decomposition takes the narrowest dtype that counts so far, uint16 among them."""
    if layout not in (None, torch.strided):
        return NotImplemented
    below, beside = (torch.arange(n, device=device) for n in (rows, rows if columns is None else columns))
    return (below.unsqueeze(-1) == beside).to(dtype or torch.get_default_dtype())


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **options: Any) -> Tensor:
    """`aten.linspace`; whole numbers lie between whole numbers, in tensors too, and are computed in fp64 as by eager."""
    ends: tuple[Any, ...] = (start, end)
    whole = dtype is not None and not dtype.is_floating_point and not dtype.is_complex
    if whole:  # a byte is never below zero
        ends = tuple(n.to(dtype) if isinstance(n, Tensor) else torch.sym_int(n) for n in ends)
        ends = tuple(n % 256 if dtype is torch.uint8 and not isinstance(n, Tensor) else n for n in ends)
    made = torch_interface.torch_decompositions()[aten.linspace.default]
    return made(*ends, steps, dtype=torch.float64 if whole else dtype, **options).to(dtype)


def copied_number(value: Any, **options: Any) -> Any:
    """A copy of a number, which batching rules hand over as a tensor; of a tensor it stays what it is."""
    return NotImplemented if isinstance(value, Tensor) else aten.scalar_tensor(value, **options)


OWN: dict[str, Decomposition] = {
    "_to_copy": copied_number,
    "block_diag": block_diag,
    "convolution": short_convolutions.convolution,
    "convolution_backward": short_convolutions.convolution_backward,
    "eye eye.m": eye,
    "huber_loss": huber_loss,
    "ldexp.Tensor": ldexp,
    "linspace.default linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor": linspace,
    "soft_margin_loss": soft_margin_loss,
    "soft_margin_loss_backward": soft_margin_loss_backward,
    "smooth_l1_loss_backward": smooth_l1_loss_backward,
    "_softmax": softmax,
    "_log_softmax": log_softmax,
    "nll_loss_backward nll_loss2d_backward": nll_loss_backward,
    "_fused_rms_norm_backward": rms_norm_backward,
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d": of_fractions(upsample_linear),
    "take": lambda value, index: aten.index.Tensor(value.reshape(-1), [index]),
}
