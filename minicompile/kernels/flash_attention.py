"""FlashAttention for users and for compiled graphs: argument checks, choice of tiles, launches, autograd.

`flash_attention` is the differentiable function. `attention_forward` and `attention_backward` do the same work without
autograd: they are what a compiled graph calls. All take tensors of any strides, shaped (batch, heads, length, head
dim).

A row that sees no key gives zeros (as `F.scaled_dot_product_attention` gives on every backend of PyTorch 2.5 and
later: checked on CPU for the math and the flash backend, boolean and -inf masks), log-sum-exp -inf, and no gradient.
`nan_rows=True` gives NaN instead, as `torch.softmax` of a row of -inf does.

On CPU tensors the same kernels run under Triton's interpreter. This module must not contain kernels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError
from triton.tools.tensor_descriptor import TensorDescriptor

import minicompile.gpu as gpu
from minicompile.kernels.attention_problem import (
    AttentionProblem,
    adjacent_columns,
    describe,
    descriptor_strides,
    dot_precision,
    empty_output,
    expand_mask,
    padded_head_dim,
)
from minicompile.kernels.configs import (
    HOPPER_BACKWARD_TABLE,
    HOPPER_TABLE,
    HOPPER_VERSIONS,
    AttentionConfig,
    HopperBackwardRow,
    HopperRow,
    attention_row,
    easier,
    hopper_row,
    interpreted_attention_config,
    numerics_class,
)
from minicompile.kernels.flash_attention_backward import (
    flash_attention_delta_kernel,
    flash_attention_key_gradient_kernel,
    flash_attention_query_gradient_kernel,
)
from minicompile.kernels.flash_attention_forward import flash_attention_forward_kernel
from minicompile.kernels.flash_decode import flash_decode, suits_decode
from minicompile.kernels.halves import halved
from minicompile.kernels.interpret import launch
from minicompile.kernels.mask_bounds import mask_bounds

# The bound of shared memory keeps the first from happening; ptxas 12.8 was seen to crash on a kernel for one key.
REFUSALS = (OutOfResources, PTXASError)
LOG2E = 1.4426950408889634
DELTA_ROWS = 64
Walk = tuple[torch.Tensor | None, tuple[int, int]]


class Way(NamedTuple):
    """How a pass is computed: of what problem, from operands laid out how, and when: for which scales of halves.

    The operands are queries, keys, values and, backward, the output's gradient; each as it is, or in halves.
    """

    problem: AttentionProblem
    operands: tuple[torch.Tensor, ...]
    scales: torch.Tensor
    when: str


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, *, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None, dropout: float = 0.0,
    seed: torch.Tensor | None = None, return_lse: bool = False, nan_rows: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v, differentiable in q, k, v, a floating mask, and through the log-sum-exp.

    Args:
        q: (batch, heads, queries, d); also (batch, queries, d) and (queries, d).
        k, v: (batch, key heads, keys, d or dv); key heads divide heads.
        mask: boolean (True is visible) or added to the scaled scores; broadcasts to (batch, heads, queries, keys).
        causal: query i sees keys up to i (PyTorch's top-left alignment).
        window: (left, right): query i sees keys i - left .. i + right; None or a negative number is no limit.
        scale: 1 / sqrt(d) if not given.
        dropout: probability of dropping a weight.
        seed: int64 tensor of two, (seed, offset), of the dropout; drawn from torch's generator if not given.
        return_lse: also return the log-sum-exp of the scores, fp32, (batch, heads, queries).
        nan_rows: NaN rather than zeros for a query that sees no key.
    """
    lower, upper = band_of(causal, window)
    rows = q.shape[:-1]
    if q.dim() == 2:
        q, k, v = (t[None] for t in (q, k, v))
    if q.dim() == 3:
        q, k, v = (t.unsqueeze(1) for t in (q, k, v))
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
    if dropout > 0.0 and seed is None:
        seed = torch.randint(0, 2**31 - 1, (2,), device=q.device, dtype=torch.int64)  # without waiting for the device
    out, lse = _FlashAttention.apply(q, k, v, mask, seed, lower, upper, scale, dropout, nan_rows)
    out, lse = out.view(*rows, out.shape[-1]), lse.view(rows)
    return (out, lse) if return_lse else out


def band_of(causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """The band (lower, upper): query i sees keys i - lower .. i + upper; None is no limit."""
    left, right = (None if edge is None or edge < 0 else edge for edge in (window or (None, None)))
    return left, 0 if causal else right


def attention_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, lower: int | None = None,
    upper: int | None = None, scale: float | None = None, dropout: float = 0.0, seed: torch.Tensor | None = None,
    nan_rows: bool = False, precision: str | None = None, bounds: torch.Tensor | None = None,
    tokens_first: bool | None = None, config: AttentionConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Output and natural log-sum-exp (fp32); no autograd. The band is `lower`, `upper`: causal is `upper=0`.

    `bounds` are the mask's, by queries, where a caller has them already. `tokens_first`: whether the heads of a token lie
    together in the output, for a caller that merges them; `None`: if they do in the queries.
    """
    problem = describe(q, k, v, mask, lower, upper, scale, dropout, nan_rows, precision)
    if config is None and gpu.holds(q) and not problem.in_halves and suits_decode(problem):
        return flash_decode(q, k, v, mask, lower, upper, scale, nan_rows, precision, tokens_first)
    q, k, v = map(adjacent_columns, (q, k, v))
    out = empty_output(q, v, tokens_first)
    lse = q.new_empty((problem.batch, problem.heads, problem.queries), dtype=torch.float32)
    if out.numel() == 0 or problem.keys == 0:
        empty = float("nan") if nan_rows else 0.0
        return out.fill_(empty), lse.fill_(float("nan") if nan_rows else float("-inf"))
    if config is None and (row := _hopper(problem, q, k, v)):
        # Imported here because not every Triton has Gluon.
        from minicompile.kernels.flash_attention_gluon import hopper_launch

        kernel, grid, arguments, constants = hopper_launch(problem, row, q, k, v, out, lse)
        with contextlib.suppress(*REFUSALS):
            launch(kernel, grid, *arguments, **constants)
            return out, lse
    entries, mask_strides = expand_mask(mask, problem)
    masking = (_or(entries, q), mask_strides, _or(seed, q))
    _attend(
        flash_attention_forward_kernel, "forward", _ways(problem, q, k, v), (out, lse), (out,), masking,
        _bounds(problem, mask, bounds, False), config, FUSED_SCALE=problem.scale > 0.0 and problem.mask_kind != "bias",
    )  # fmt: skip
    return out, lse


def attention_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    mask: torch.Tensor | None = None, lower: int | None = None, upper: int | None = None, scale: float | None = None,
    dropout: float = 0.0, seed: torch.Tensor | None = None, nan_rows: bool = False, precision: str | None = None,
    bounds: torch.Tensor | None = None, key_bounds: torch.Tensor | None = None, dlse: torch.Tensor | None = None,
    mask_gradient: bool = False, configs: tuple[AttentionConfig | None, AttentionConfig | None] = (None, None),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """dQ, dK, dV and, if asked, the gradient of an additive mask; no autograd.

    The same bits on every run, but for dQ where the warp-specialised backward is chosen, which it is not under
    `torch.use_deterministic_algorithms`. `bounds` and `key_bounds` are the mask's, by queries and by keys, where a caller
    has them already.
    """
    problem = describe(q, k, v, mask, lower, upper, scale, dropout, nan_rows, precision)
    q, k, v, out, dout = map(adjacent_columns, (q, k, v, out, dout))
    if q.numel() == 0 or k.numel() == 0:
        dmask = torch.zeros_like(mask) if mask is not None and mask_gradient else None
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), dmask
    if configs == (None, None) and (row := _hopper_backward(problem, q, k, v, dout)):
        # Imported here because not every Triton has Gluon.
        from minicompile.kernels.flash_attention_gluon_backward import hopper_backward_launches

        gradients, launches = hopper_backward_launches(problem, row, q, k, v, out, lse, dout, dlse)
        with contextlib.suppress(*REFUSALS):
            for kernel, grid, arguments, constants in launches:
                launch(kernel, grid, *arguments, **constants)
            return *gradients, None
    delta = _delta(problem, out, dout, dlse)
    entries, mask_strides = expand_mask(mask, problem)
    rows, masking = (lse, delta, torch.empty_like(delta)), (_or(entries, q), mask_strides, _or(seed, q))
    walk, key_walk = _bounds(problem, mask, bounds, False), _bounds(problem, mask, key_bounds, True)
    ways = _ways(problem, q, k, v, dout)
    dq, dmask = _query_gradient(ways, q, rows, masking, walk, mask if mask_gradient else None, configs[0])
    dk, dv = _key_gradient(ways, k, v, rows, masking, key_walk, configs[1])
    return dq, dk, dv, dmask


def _delta(problem: AttentionProblem, out: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None) -> torch.Tensor:
    delta = out.new_empty((problem.batch, problem.heads, problem.queries), dtype=torch.float32)
    rows = DELTA_ROWS if gpu.holds(out) else problem.queries
    launch(
        flash_attention_delta_kernel, (triton.cdiv(problem.queries, rows) * problem.batch * problem.heads,), out, dout,
        delta if dlse is None else dlse.float().contiguous(), delta, out.stride()[:3], dout.stride()[:3],
        problem.heads, problem.queries, DV=problem.dv, BLOCK_D=padded_head_dim(problem.dv), BLOCK_M=rows,
        HAS_DLSE=dlse is not None, num_warps=4,
    )  # fmt: skip
    return delta


def _query_gradient(
    ways: list[Way], query: torch.Tensor, rows: tuple[torch.Tensor, ...], masking: tuple[Any, ...], walk: Walk,
    bias: torch.Tensor | None, config: AttentionConfig | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    problem = ways[0].problem
    dq = torch.empty_like(query)
    dbias = None
    if bias is not None:
        full = (problem.batch, problem.heads, problem.queries, problem.keys)
        some_are_skipped = problem.lower is not None or problem.upper is not None
        make = torch.zeros if some_are_skipped else torch.empty
        dbias = make(full, dtype=bias.dtype, device=query.device)

    _attend(
        flash_attention_query_gradient_kernel, "query gradient", ways, (*rows, dq, _or(dbias, query)), (dq,), masking, walk,
        config, HAS_DBIAS=bias is not None, RENORMALISE=problem.renormalise,
    )  # fmt: skip
    if bias is None or dbias is None:
        return dq, None
    if problem.renormalise:
        dbias.mul_(rows[2].unsqueeze(-1))
    return dq, dbias.sum_to_size(bias.shape).to(bias.dtype)


def _key_gradient(
    ways: list[Way], key: torch.Tensor, value: torch.Tensor, rows: tuple[torch.Tensor, ...], masking: tuple[Any, ...],
    walk: Walk, config: AttentionConfig | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    problem = ways[0].problem
    config = config or _choose("key gradient", ways[0], masking[0])
    programs = triton.cdiv(problem.keys, config.block_n) * problem.batch * problem.kv_heads
    heads_each = problem.group if problem.group == 1 or programs >= gpu.processors(key) else 1
    if heads_each == problem.group:
        dk, dv = torch.empty_like(key), torch.empty_like(value)
    else:
        parts = (problem.batch, problem.heads, problem.keys)
        dk, dv = (key.new_empty((*parts, width), dtype=torch.float32) for width in (problem.d, problem.dv))

    _attend(
        flash_attention_key_gradient_kernel, "key gradient", ways, (*rows, dk, dv), (dk, dv), masking, walk, config,
        HEADS_EACH=heads_each, RENORMALISE=problem.renormalise,
    )  # fmt: skip
    if heads_each == problem.group:
        return dk, dv
    dk, dv = (part.unflatten(1, (problem.kv_heads, problem.group)).sum(2) for part in (dk, dv))
    return dk.to(key.dtype), dv.to(value.dtype)


def _ways(problem: AttentionProblem, *operands: torch.Tensor) -> list[Way]:
    """One way; or two, of which the GPU takes one: by halves if they hold the operands, and without."""
    if not problem.in_halves:
        return [Way(problem, operands, operands[0], "always")]
    halves, scales = halved(problem.width, problem.precision == "halves", *operands)
    without = dataclasses.replace(problem, precision=dot_precision(operands[0]))
    return [Way(problem, halves, scales, "held"), Way(without, operands, scales, "not held")]


def _attend(
    kernel: Any, phase: str, ways: list[Way], tensors: tuple[torch.Tensor, ...], written: tuple[torch.Tensor, ...],
    masking: tuple[Any, ...], walk: Walk, config: AttentionConfig | None, **constants: Any,
) -> None:  # fmt: skip
    """Launch the kernel of a pass each way; a configuration given is the first way's.

    `tensors` are what the kernel takes beside operands and mask, `written` those of them of which it takes strides.
    """
    (entries, mask_strides, seed), (bounds, bounds_strides) = masking, walk
    by_keys = phase == "key gradient"
    walked = (0, 3) if by_keys else (1, 2)

    def attempt(way: Way, config: AttentionConfig) -> None:
        problem, operands, scales, when = way
        sides = ((problem.queries, config.block_m), (problem.keys, config.block_n))
        (length, block), (steps, step) = sides[::-1] if by_keys else sides
        programs = triton.cdiv(length, block) * problem.batch * problem.heads // constants.get("HEADS_EACH", 1)
        ragged = steps % step != 0
        checked = {"CHECK_ROWS": ragged} if by_keys else {}
        described = walked if config.tma else ()
        factors = (problem.scale * LOG2E, problem.scale)[: len(operands) - 2]  # forward only the first
        launch(
            kernel, (programs,),
            *(_described(x, step, problem.width) if i in described else x for i, x in enumerate(operands)),
            scales, *tensors, entries, _or(bounds, operands[0]), seed, *(x.stride()[:3] for x in (*operands, *written)),
            mask_strides, bounds_strides, problem.heads, problem.queries, problem.keys, problem.lower or 0,
            problem.upper or 0, *factors, problem.keep_scale, problem.threshold, **problem.constants(config),
            **_loops(problem, ragged and not by_keys, config, bounds), **checked, **constants, WHEN=when,
        )  # fmt: skip

    for way in ways:
        chosen, config = config or _choose(phase, way, entries), None
        chosen = _usable(chosen, *(way.operands[index] for index in walked))
        _until_accepted(functools.partial(attempt, way), chosen)


def _until_accepted(attempt: Callable[[AttentionConfig], None], config: AttentionConfig) -> None:
    """The attempt with this configuration, or with the first easier one that ptxas and the GPU take."""
    while True:
        try:
            return attempt(config)
        except REFUSALS:
            if (instead := easier(config)) is None:
                raise
            config = instead


def _choose(phase: str, way: Way, entries: torch.Tensor) -> AttentionConfig:
    problem, q = way.problem, way.operands[0]
    if not gpu.holds(q):
        return interpreted_attention_config(problem.queries, problem.keys)
    itemsize = q.element_size() * (2 if problem.precision == "halves" else 1)
    numerics = numerics_class(itemsize, problem.precision)
    masked = problem.mask_kind != "none"
    length = problem.queries if phase == "key gradient" else problem.keys
    row = attention_row(phase, numerics, problem.width, masked, problem.upper is not None, length)
    return problem.fitted(phase, row.config, itemsize, entries.element_size() if masked else 0)


def _hopper(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> HopperRow | None:
    """The tile of the warp-specialised forward, where that can compute this and was seen right and faster."""
    row = hopper_row(HOPPER_TABLE, problem.width, problem.upper == 0, problem.keys)
    if row is None or problem.scale <= 0.0 or not _suits_hopper(problem, q, k, v):
        return None
    programs = triton.cdiv(problem.queries, 64 * row.groups) * problem.batch * problem.heads
    return row if programs >= gpu.processors(q) else None


def _hopper_backward(
    problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor
) -> HopperBackwardRow | None:
    """The same of the warp-specialised backward, whose sums of dQ are in no fixed order."""
    row = hopper_row(HOPPER_BACKWARD_TABLE, problem.d, problem.upper == 0, min(problem.queries, problem.keys))
    if row is None or dout.dtype != q.dtype or torch.are_deterministic_algorithms_enabled():
        return None
    programs = triton.cdiv(problem.keys, 128) * problem.batch * problem.kv_heads
    return row if _suits_hopper(problem, q, k, v, dout) and programs >= gpu.processors(q) else None


def _suits_hopper(problem: AttentionProblem, q: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether the warp-specialised kernels take this problem and these tensors, and were seen right on this chip."""
    plain = problem.mask_kind == "none" and problem.lower is None and problem.upper in (None, 0) and not problem.dropout
    if not plain or problem.d != problem.dv or problem.d % 8 or q.element_size() != 2 or not _aligned(q, *others):
        return False
    return _is_hopper(q) and triton.__version__.startswith(HOPPER_VERSIONS)


def _is_hopper(q: torch.Tensor) -> bool:
    return q.device.type == "cuda" and torch.cuda.get_device_capability(q.device) == (9, 0)


def _aligned(*tensors: torch.Tensor) -> bool:
    """Whether TMA descriptors can describe them."""
    return all(
        t.data_ptr() % 16 == 0 and all(step * t.element_size() % 16 == 0 and step > 0 for step in descriptor_strides(t)[:-1])
        for t in tensors
    )


def _usable(config: AttentionConfig, *walked: torch.Tensor) -> AttentionConfig:
    """The configuration, without TMA if a tensor that it would read is not aligned for descriptors."""
    return config if not config.tma or _aligned(*walked) else dataclasses.replace(config, tma=False)


def _described(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """The TMA descriptor by which a kernel's loop reads a tensor, a block of rows at a time."""
    return TensorDescriptor(tensor, list(tensor.shape), descriptor_strides(tensor), [1, 1, rows, width])


def _bounds(problem: AttentionProblem, mask: torch.Tensor | None, bounds: torch.Tensor | None, by_keys: bool) -> Walk:
    """What a mask shows, if it pays to know, and its strides over batch and heads."""
    if mask is None or bounds is None and not problem.is_bounded(mask):
        return None, (0, 0)
    if bounds is None:
        (bounds,) = mask_bounds(mask, problem.queries, problem.keys, by_keys)
    return bounds, (bounds.stride(0) * (bounds.shape[0] > 1), bounds.stride(1) * (bounds.shape[1] > 1))


def _loops(
    problem: AttentionProblem, ragged: bool, config: AttentionConfig, bounds: torch.Tensor | None
) -> dict[str, bool]:
    """Which loops a kernel needs: over blocks free of masking, and over masked ones; and whether a mask bounds them."""
    bounded, causal = bounds is not None, problem.upper is not None
    everywhere = problem.lower is not None if bounded else problem.masked_everywhere
    everywhere = everywhere or (config.one_loop and (ragged or causal or bounded))
    masked = everywhere or causal or ragged or bounded
    return {"HAS_BOUNDS": bounded, "FULL_LOOP": not everywhere, "MASKED_LOOP": masked}


def _or(tensor: torch.Tensor | None, instead: torch.Tensor) -> torch.Tensor:
    return instead if tensor is None else tensor


class _FlashAttention(torch.autograd.Function):
    """Ties the two functions above to autograd."""

    @staticmethod
    def forward(ctx: Any, q, k, v, mask, seed, lower, upper, scale, dropout, nan_rows):
        out, lse = attention_forward(q, k, v, mask, lower, upper, scale, dropout, seed, nan_rows)
        ctx.save_for_backward(q, k, v, out, lse, mask, seed)
        ctx.options = (lower, upper, scale, dropout)
        ctx.nan_rows = nan_rows
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout, dlse):
        q, k, v, out, lse, mask, seed = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        lower, upper, scale, dropout = ctx.options
        dq, dk, dv, dmask = attention_backward(
            dout, q, k, v, out, lse, mask, lower, upper, scale, dropout, seed, ctx.nan_rows,
            dlse=dlse, mask_gradient=ctx.needs_input_grad[3],
        )  # fmt: skip
        return dq, dk, dv, dmask, None, None, None, None, None, None
