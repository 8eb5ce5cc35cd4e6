"""Errors that eager's kernels raise and PyTorch's fake ones do not: such a graph is left to eager, which raises them.

Looks at operators as the program calls them, not at what they are made of. This module must not raise anything itself.
"""

import math
from typing import Any

import torch

from minicompile.graph import torch_interface
from minicompile.ir.fake_mode import BATCH_NORMS
from minicompile.ir.operator_names import packets

aten = torch.ops.aten

CONVERT_NUMBERS = packets(
    "fill full full_like new_full masked_fill clamp clamp_min clamp_max hardtanh threshold index_fill scatter constant_pad_nd "
    "add sub rsub addcmul addcdiv linspace logspace")
"""Operators whose kernels take numbers in the dtype of the result, and refuse those that it does not hold."""
SUMS = packets("add sub rsub")
STEPS = packets("linspace logspace")
FLOATS_ONLY = packets(
    "celu elu gelu leaky_relu silu mish hardswish hardsigmoid softplus logcumsumexp log_sigmoid_forward hardshrink "
    "softshrink glu frac std var std_mean var_mean _softmax _log_softmax _softmax_backward_data logaddexp logaddexp2 im2col "
    "grid_sampler_2d max_unpool2d max_unpool3d nextafter lerp hypot bernoulli mse_loss smooth_l1_loss huber_loss "
    "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _prelu_kernel "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d")
"""Operators without a kernel for results that are whole numbers; pictures of bytes can be resized."""
NO_TRUTHS = FLOATS_ONLY | packets(
    "abs ceil floor round trunc relu clamp clamp_min clamp_max fmod remainder div addcmul threshold reflection_pad1d "
    "reflection_pad2d reflection_pad3d randint_like arange linspace logspace mv addmv dot vdot cumsum cumprod")
"""Operators without a kernel for results that are truth values."""
VIEW_OF_WRITTEN = {aten.slice_scatter: aten.slice.Tensor, aten.select_scatter: aten.select.int,
                   aten.diagonal_scatter: aten.diagonal.default}  # fmt: skip
"""What each operator's second argument is written into."""
NOT_OF_WHOLE = (aten.binary_cross_entropy, aten.binary_cross_entropy_with_logits, aten.soft_margin_loss, aten.huber_loss,
                aten.multi_margin_loss, aten.multilabel_margin_loss_forward)  # fmt: skip
INDEXED = frozenset(getattr(aten, name) for name in (
    "index_copy index_add index_put index_reduce index_select embedding nll_loss_forward nll_loss2d_forward").split())
MIXED = frozenset(getattr(aten, name) for name in (
    "mm bmm addmm baddbmm dot mv heaviside linalg_cross grid_sampler_2d grid_sampler_3d mse_loss_backward huber_loss_backward "
    "binary_cross_entropy binary_cross_entropy_with_logits").split())
"""Operators that do not take every dtype beside every other; which ones differs between PyTorch's versions."""
CHANCES = (aten.bernoulli, aten.native_dropout)
HALVES = (torch.float16, torch.bfloat16)
WRITTEN = {aten.binary_cross_entropy_with_logits: 1, aten.soft_margin_loss: 0}
"""Losses that write into a copy of one of their inputs, to whose shape the others have to be broadcast."""
DIFFERENCES = (aten.sub, aten.rsub, aten.dist, aten.binary_cross_entropy_with_logits)
NORMS = BATCH_NORMS | {aten.native_layer_norm, aten.native_group_norm}
NOT_OF_COMPLEX = (FLOATS_ONLY | NORMS | {aten.nansum, aten.hardshrink}) - {
    aten.std, aten.var, aten.std_mean, aten.var_mean, aten.logaddexp, aten.lerp, aten.silu, aten.mish}
ORDERINGS = packets("lt le gt ge")
FALLS_IN_PLACE: dict[Any, Any] = {
    aten.leaky_relu_backward: lambda gradient, result, slope, in_place: in_place and slope < 0,
    aten.elu_backward: lambda gradient, slope, scale, inner, in_place, result: in_place and slope < 0,
    aten.rrelu_with_noise_backward: lambda gradient, result, noise, lower, upper, training, in_place: (
        in_place and not training and lower + upper < 0),
}
"""Whether a gradient that is computed from the result does not tell which side of zero the operand was on."""
NOT_OF_TRUTHS = (aten.argmax, aten.argmin, aten.trace, aten.mvlgamma, aten.pow)


def problem_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> str:
    """What eager would complain about; nothing if it would not."""
    packet = getattr(func, "overloadpacket", None)
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    if packet is None or not isinstance(first, torch.Tensor):
        return ""
    if problem := problem_of_dtype(func, packet, args, kwargs, first):
        return problem
    if packet in BATCH_NORMS and args[0].dim() < 2:
        return "a tensor without channels"
    chances = (*args[1:], *kwargs.values()) if packet in CHANCES and args[-1] is not False else ()
    if any(isinstance(p, (float, torch.SymFloat)) and not 0 <= p <= 1 for p in chances):
        return "a probability outside of 0 and 1"
    if not isinstance(result, torch.Tensor):
        return ""
    if problem := problem_of_part(packet, args, kwargs):
        return problem
    converts = packet in CONVERT_NUMBERS or packet is aten.scalar_tensor and not result.dtype.is_floating_point
    # The other operand of a sum is a tensor to its kernel: it wraps around, and only `alpha` is converted.
    numbers = args[2:] if packet in SUMS and not result.dtype.is_floating_point else args[:2] if packet in STEPS else args
    if converts and any(overflows(value, result.dtype, packet is not aten.clamp) for value in (*numbers, *kwargs.values())):
        return f"a number that {result.dtype} does not hold"
    if type(kwargs.get("alpha")) is float and result.dtype == torch.bool:
        return "a float and truth values"
    if packet is aten.addmv and args[0].dim() > 1:
        return "more than a vector"
    if packet is aten.celu and any(type(alpha) in (int, float) and alpha == 0 for alpha in args[1:]):
        return "a division by zero"
    if packet in FALLS_IN_PLACE and FALLS_IN_PLACE[packet](*args):
        return "a negative slope in place"
    if packet is aten.logsumexp and args[0].dim() and not args[1]:
        return "no dimensions"
    if packet in DIFFERENCES and any(map(is_truth, args)) or kwargs.get("alpha") is True and result.dtype != torch.bool:
        return "truth values"
    if packet in (aten.floor_divide, aten.remainder, aten.fmod, aten.div) and any(type(n) is int and n == 0 for n in args[1:]):
        return "" if result.dtype.is_floating_point or result.device.type != "cpu" else "integers by zero"
    limits = (*args[1:], *(0.0, 1.0)[len(args) - 1 :]) if packet is aten.uniform else ()
    if limits and limits[0] > limits[1] or any(overflows(limit, result.dtype) for limit in limits):
        return "limits that are none"
    drawn = packet in (aten.randint, aten.randint_like)
    *lowest, beyond = [n for n in args if type(n) in (int, torch.SymInt)] if drawn else [1]
    if any(overflows(n, result.dtype, wraps=False) for n in (*lowest, beyond - 1)):
        return f"a number that {result.dtype} does not hold"
    if packet is aten.smooth_l1_loss and any(type(beta) in (int, float) and beta < 0 for beta in args[3:]):
        return "a negative width"
    cut = [torch.sym_min(n, 0) for n in args[1]] if packet is aten.constant_pad_nd else []
    if cut and any(sum(ends, size) < 0 for size, ends in zip(reversed(args[0].shape), zip(cut[::2], cut[1::2]))):
        return "fewer elements than are cut off"
    if packet is aten.select_scatter and not -(size := args[0].shape[args[2]]) <= args[3] < size:
        return "a place outside of the tensor"
    shape = args[WRITTEN[packet]].shape if packet in WRITTEN else ()
    others = [value.shape for value in args if isinstance(value, torch.Tensor)] if packet in WRITTEN else []
    if any(torch.broadcast_shapes(other, shape) != shape for other in others):
        return "inputs or weights of another shape"
    return ""


def problem_of_part(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What does not fit where it is to be written; comparing sizes that vary makes guards."""
    if packet in VIEW_OF_WRITTEN:
        part = VIEW_OF_WRITTEN[packet](args[0], *args[2:], **{name: value for name, value in kwargs.items() if name != "src"})
        return "" if len(args) < 2 or tuple(part.shape) == tuple(args[1].shape) else "a part of another shape"
    if packet in (aten.index_add, aten.index_copy) and len(args) == 4 and args[0].dim() == args[3].dim() > 0:
        sizes, written, dim = list(args[0].shape), list(args[3].shape), args[1]
        sizes[dim] = args[2].numel()
        return "" if sizes == written else "a source of another shape"
    return problem_of_assignment(*args[:3]) if packet is aten.index_put else ""


def problem_of_assignment(value: torch.Tensor, indices: Any, new: torch.Tensor) -> str:
    """What does not fit of indices and values; the number of values for masks is left to the operator."""
    masks = [index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices]
    sizes = value.shape
    for index, is_mask in zip(indices, masks, strict=True):
        covered = index.dim() if is_mask else 1
        if is_mask and index.shape != sizes[:covered]:
            return "a mask of another shape"
        sizes = sizes[covered:]
    if any(masks):
        return ""
    places = aten.index.Tensor(value, indices).shape
    pairs = zip(reversed(new.shape), reversed(places), strict=False)
    fits = new.dim() <= len(places) and all(size == 1 or size == place for size, place in pairs)
    return "" if fits else "values of another shape"


def problem_of_dtype(func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> str:
    """The kind of number that an operator has no kernel for."""
    dtype = result.dtype
    if packet is aten.avg_pool3d and dtype in HALVES and result.device.type == "cpu":
        return "halves, on a CPU"
    of_truth = packet in NOT_OF_TRUTHS and is_truth(args[0]) and (packet is not aten.pow or is_truth(args[1]))
    if of_truth or packet in NO_TRUTHS and dtype == torch.bool:
        return "truth values"
    if packet in NOT_OF_COMPLEX and any(isinstance(value, torch.Tensor) and value.is_complex() for value in args):
        return "complex numbers"
    if packet in ORDERINGS and any(isinstance(n, complex) or isinstance(n, torch.Tensor) and n.is_complex() for n in args):
        return "complex numbers"
    mixed = len({value.dtype for value in args if isinstance(value, torch.Tensor)}) > 1
    if (packet in INDEXED or mixed and packet in MIXED) and is_mixture_refused(func, args, kwargs, dtype):
        return "two dtypes"
    parameters = [value.dtype for value in args[1:] if isinstance(value, torch.Tensor)] if packet in NORMS else []
    if any(kind != args[0].dtype for kind in parameters):
        narrow = args[0].dtype in HALVES and (args[0].device.type == "cpu" or packet in BATCH_NORMS)
        return "" if narrow and {*parameters} == {torch.float32} else "parameters of another dtype"
    if packet is aten.addcdiv and not any(value.dtype.is_floating_point or value.dtype.is_complex for value in args[1:3]):
        return "whole numbers"
    whole = not dtype.is_floating_point and not dtype.is_complex and not (dtype == torch.uint8 and "upsample" in str(packet))
    refused = whole and (packet in FLOATS_ONLY or func is aten.round.decimals)
    return "whole numbers" if refused or packet in NOT_OF_WHOLE and not args[0].dtype.is_floating_point else ""


def is_mixture_refused(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> bool:
    """Whether the kernel, asked with one element of each dtype, refuses them or gives another one."""
    def one_like(value: Any) -> Any:
        return torch.zeros([1] * value.dim(), dtype=value.dtype) if isinstance(value, torch.Tensor) else 1

    varying = (torch.Tensor, torch.SymInt, torch.SymFloat)
    try:
        with torch_interface.kernels_of_eager():
            one_args, one_kwargs = torch.utils._pytree.tree_map_only(varying, one_like, (args, kwargs))
            found = func(*one_args, **one_kwargs)
    except (RuntimeError, IndexError):
        return True
    return (found if isinstance(found, torch.Tensor) else found[0]).dtype != dtype


def overflows(value: Any, dtype: torch.dtype, wraps: bool = True) -> bool:
    """Whether a number is beyond what a dtype holds, a guard if it varies; if it `wraps`, negative ones fit unsigned dtypes."""
    if type(value) not in (int, float, torch.SymInt) or dtype.is_complex or dtype == torch.bool:
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return not dtype.is_floating_point
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if isinstance(value, torch.SymInt) and limits.max >= torch.iinfo(torch.int64).max:
        return False
    lowest = limits.min if isinstance(value, float) or not wraps else min(limits.min, -limits.max)
    return not int(lowest) <= value <= int(limits.max)


def is_truth(value: Any) -> bool:
    """Whether an operand is boolean."""
    return type(value) is bool or isinstance(value, torch.Tensor) and value.dtype == torch.bool

