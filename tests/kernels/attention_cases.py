"""Random attention problems, and how near the kernels must come to an fp64 reference on each.

Used small under the interpreter (tests) and large on a GPU (`gpu_kernels.py`). The reference is `attention_reference`
in float64 with gradients by autograd.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import torch
import triton
import triton.language as tl

from minicompile.kernels.flash_attention import attention_backward, attention_forward
from minicompile.kernels.interpret import launch

# Largest error of the output and of a gradient, over the largest value of the reference.
TOLERANCE = {
    torch.bfloat16: (8e-3, 2e-2), torch.float16: (1e-3, 3e-3), torch.float32: (1e-5, 3e-5),
}  # fmt: skip
TF32_TOLERANCE = (2e-3, 5e-3)
OF_TF32 = ("tf32", "high")  # ways of forming products that keep what tf32 keeps
# With tf32 the error grows with the scores, so the measure is what truncating the operands of the products to tf32, as
# the matrix units do, does to a result that is exact otherwise.
TF32_OVER_EAGER = 4.0
LAYOUTS = ("BHSD", "BSHD", "sliced", "expanded keys", "transposed columns")


@triton.jit
def dropout_mask_kernel(seed_ptr, out_ptr, queries, keys, threshold, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The dropout mask that the attention kernels apply, in memory: each element by itself."""
    head = tl.program_id(0)
    rows = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    cols = (tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    query = (rows // 16 * 16 + rows % 8 + cols * 0).to(tl.uint32)
    key = (cols // 16 * 16 + cols % 8 + rows * 0).to(tl.uint32)
    offset = key * 0 + tl.load(seed_ptr + 1).to(tl.uint32)
    words = tl.philox(tl.load(seed_ptr), key, query, key * 0 + head.to(tl.uint32), offset)
    upper = tl.where(cols // 8 % 2 == 1, words[3], words[2])
    word = tl.where(rows // 8 % 2 == 1, upper, tl.where(cols // 8 % 2 == 1, words[1], words[0]))
    keeps = (word >> 1).to(tl.int32) >= threshold
    offsets = head.to(tl.int64) * queries * keys + rows.to(tl.int64) * keys + cols
    tl.store(out_ptr + offsets, keeps.to(tl.uint8), mask=(rows < queries) & (cols < keys))


def dropout_mask(seed: torch.Tensor, dropout: float, batch: int, heads: int, queries: int, keys: int) -> torch.Tensor:
    """The dropout mask that the kernels apply for this seed: True is kept."""
    out = torch.empty((batch, heads, queries, keys), dtype=torch.uint8, device=seed.device)
    block_m, block_n = (queries, keys) if seed.device.type == "cpu" else (64, 64)
    grid = (batch * heads, triton.cdiv(queries, block_m), triton.cdiv(keys, block_n))
    threshold = min(int(dropout * 2**31), 2**31 - 1)
    launch(dropout_mask_kernel, grid, seed, out, queries, keys, threshold, BLOCK_M=block_m, BLOCK_N=block_n)
    return out.bool()


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem; `mask` is "none", "bool", "row", "bias", "head bias" or "key bias"."""

    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    mask: str = "none"
    lower: int | None = None
    upper: int | None = None
    scale: float | None = None
    dropout: float = 0.0
    layout: str = "BHSD"
    gradient: str = "dense"
    seed: int = 0
    precision: str | None = None


def random_cases(count: int, seed: int, most_length: int, device: str) -> list[Case]:
    """Problems drawn from everything that the kernels promise to take."""
    draw = random.Random(seed)
    return [_random_case(draw, most_length, index, device) for index in range(count)]


def _random_case(draw: random.Random, most: int, index: int, device: str) -> Case:
    kv_heads = draw.choice((1, 2, 3))
    length = lambda: draw.choice((1, 15, 16, 17, 33, 64, 100, 128, 129, most, draw.randint(1, most)))
    queries = min(length(), most)
    keys = queries if draw.random() < 0.5 else min(length(), most)
    band = draw.choice(("full", "full", "causal", "causal", "window", "offset", "left"))
    lower, upper = {
        "full": (None, None), "causal": (None, 0), "window": (draw.randint(0, most), draw.choice((0, 0, 3, 40))),
        "offset": (None, keys - queries), "left": (draw.randint(0, 50), None),
    }[band]  # fmt: skip
    d = draw.choice((16, 24, 32, 40, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256))
    dv = d if draw.random() < 0.8 else draw.choice((16, 48, 64, 128))
    dtype = draw.choice((torch.bfloat16, torch.float16, torch.float32))
    fits = max(d, dv) <= 128
    exact, coarse = ("halves" if fits and draw.random() < 0.6 else None), ("high" if fits else None)
    return Case(
        dtype, draw.choice((1, 2, 3)), kv_heads * draw.choice((1, 1, 2, 4)), kv_heads, queries, keys, d, dv,
        draw.choice(("none", "none", "none", "bool", "row", "bias", "head bias", "key bias")), lower, upper,
        draw.choice((None, None, 0.05, 1.0, -0.2)), draw.choice((0.0, 0.0, 0.0, 0.25)), draw.choice(LAYOUTS),
        draw.choice(("dense", "dense", "stride 0", "transposed")), index,
        draw.choice((exact, exact, coarse, "tf32" if device == "cuda" else exact)) if dtype == torch.float32 else None,
    )  # fmt: skip


def operands(case: Case, device: str) -> dict[str, Any]:
    """Tensors of a case: q, k, v, mask, dout, seed."""
    generator = torch.Generator(device).manual_seed(case.seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(case.dtype)

    def laid_out(heads: int, length: int, width: int) -> torch.Tensor:
        if case.layout == "BSHD":
            return normal(case.batch, length, heads, width).transpose(1, 2)
        if case.layout == "sliced":
            return normal(case.batch, heads, length + 3, width + 1)[:, :, 2:-1, 1:]
        if case.layout == "transposed columns":
            return normal(case.batch, heads, width, length).transpose(2, 3)
        if case.layout == "stride 0":  # as views of what has no batch give it
            return (x := normal(1, length, heads, width).transpose(1, 2)).as_strided(x.shape, (0, *x.stride()[1:]))
        return normal(case.batch, heads, length, width)

    q, k, v = (
        laid_out(case.heads, case.queries, case.d),
        laid_out(case.kv_heads, case.keys, case.d),
        laid_out(case.kv_heads, case.keys, case.dv),
    )
    if case.layout == "expanded keys":
        k, v = k[:1].expand(case.batch, -1, -1, -1), v[:1].expand(case.batch, -1, -1, -1)
    dout = normal(case.batch, case.heads, case.queries, case.dv)
    if case.gradient == "stride 0":
        dout = normal(1, 1, 1, 1).expand(dout.shape)
    elif case.gradient == "transposed":
        dout = normal(case.batch, case.dv, case.queries, case.heads).permute(0, 3, 2, 1)
    return {"q": q, "k": k, "v": v, "dout": dout, "mask": _mask(case, normal), "seed": _seed(case, device)}


def _mask(case: Case, normal: Any) -> torch.Tensor | None:
    if case.mask == "none":
        return None
    if case.mask == "bool":
        mask = normal(case.batch, 1, case.queries, case.keys) > 0.3
        mask[:, :, case.queries // 2] = False
        return mask
    if case.mask == "row":
        return normal(case.batch, 1, 1, case.keys) > -0.5
    shape = {
        "bias": (case.batch, case.heads, case.queries, case.keys),
        "head bias": (case.heads, case.queries, case.keys),
    }
    return normal(*shape.get(case.mask, (case.batch, 1, 1, case.keys)))


def _seed(case: Case, device: str) -> torch.Tensor:
    return torch.tensor([case.seed * 7919 + 11, 5], dtype=torch.int64, device=device)


def errors(case: Case, device: str, configs: tuple[Any, Any, Any] = (None, None, None)) -> dict[str, float]:
    """Largest error of each result over the largest value of its reference; infinite if a NaN or inf is misplaced."""
    given = operands(case, device)
    q, k, v, mask, seed = given["q"], given["k"], given["v"], given["mask"], given["seed"]
    bias = mask is not None and mask.dtype != torch.bool
    shared = (mask, case.lower, case.upper, case.scale, case.dropout, seed, False, case.precision)
    out, lse = attention_forward(q, k, v, *shared, config=configs[0])
    gradients = attention_backward(given["dout"], q, k, v, out, lse, *shared, mask_gradient=bias, configs=configs[1:])
    keep = None
    if case.dropout:
        keep = dropout_mask(seed, case.dropout, case.batch, case.heads, case.queries, case.keys)
    leaves = [t.double().requires_grad_() for t in (q, k, v)] + ([mask.double().requires_grad_()] if bias else [])
    wide_mask = leaves[3] if bias else mask
    wanted, wanted_lse = attention_reference(
        *leaves[:3], wide_mask, case.lower, case.upper, case.scale, keep, case.dropout
    )
    wanted_gradients = torch.autograd.grad(wanted, leaves, given["dout"].double())
    results = {"out": (out, wanted), "lse": (lse, wanted_lse)}
    results |= {f"d{name}": pair for name, pair in zip("qkvm", zip(gradients, wanted_gradients))}
    scale = _cancelled(case)
    found = {name: _error(got, want.detach(), scale if name in ("dq", "dk", "dm") else 2.0)
             for name, (got, want) in results.items()}  # fmt: skip
    if case.precision in OF_TF32:
        found |= _eager_tf32_errors(case, given, keep, results)
    return found


def _cancelled(case: Case) -> float:
    """What gradients that are zero but for rounding are the difference of.

    A query with one key to see has the weight 1 whatever the score: dS is then dP - delta of two equal numbers that
    were rounded differently, and dK adds it over all queries.
    """
    if case.keys > 1:
        return 2.0
    return 2.0 * math.sqrt(case.queries * case.heads // case.kv_heads * case.dv)


def _eager_tf32_errors(case: Case, given: dict[str, Any], keep: Any, results: dict[str, Any]) -> dict[str, float]:
    """The errors that come of giving the products operands of tf32 alone, under names of their own."""
    cut = lambda t: (t.detach().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32).double()
    leaves = [cut(given[name]).requires_grad_() for name in "qkv"]
    mask = given["mask"]
    bias = mask is not None and mask.dtype != torch.bool
    if bias:
        leaves.append(mask.detach().double().requires_grad_())
    out, lse = attention_reference(
        *leaves[:3], leaves[3] if bias else mask, case.lower, case.upper, case.scale, keep, case.dropout
    )
    gradients = torch.autograd.grad(out, leaves, cut(given["dout"]))
    eager = {"out": out, "lse": lse} | {f"d{name}": gradient for name, gradient in zip("qkvm", gradients)}
    return {f"eager {name}": _error(got.detach(), results[name][1].detach(), 2.0) for name, got in eager.items()}


def _error(got: torch.Tensor, want: torch.Tensor, least: float) -> float:
    if got.shape != want.shape:
        return float("inf")
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite) or not torch.equal(got[~finite].double(), want[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = max(want[finite].abs().max().item(), least)
    return (got.double() - want)[finite].abs().max().item() / largest


def failures(case: Case, found: dict[str, float]) -> list[str]:
    """Which results are further from the reference than the dtype allows."""
    coarse = case.precision in OF_TF32
    out, gradient = TF32_TOLERANCE if coarse else TOLERANCE[case.dtype]
    allowed = {"out": out, "lse": 1e-2 if coarse else 2e-5}
    wrong = []
    for name, error in found.items():
        eager = found.get(f"eager {name}", 0.0)
        if not name.startswith("eager") and not error <= max(allowed.get(name, gradient), TF32_OVER_EAGER * eager):
            wrong.append(f"{name} {error:.1e}" + f" (eager {eager:.1e})" * (eager > 0.0))
    return wrong


def large_score_failures(device: str, d: int, magnitude: float, configs: tuple[Any, Any, Any], **how: Any) -> list[str]:
    """Results in fp32 for scores of about `magnitude` whose error is more than twice eager's and a few ulp."""
    generator = torch.Generator(device).manual_seed(7)
    q, k, v, dout = (torch.randn(2, 2, 96, d, generator=generator, device=device) for _ in range(4))
    scale = magnitude / (4.0 * math.sqrt(d))
    out, lse = attention_forward(q, k, v, scale=scale, config=configs[0], **how)
    ours = (out, *attention_backward(dout, q, k, v, out, lse, scale=scale, configs=configs[1:], **how)[:3])
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        written = torch.softmax(leaves[0] @ leaves[1].transpose(-1, -2) * scale, -1) @ leaves[2]
        results.append((written.detach(), *torch.autograd.grad(written, leaves, dout.to(dtype))))
    wrong = []
    for name, got, eager, want in zip(("out", "dq", "dk", "dv"), ours, *results):
        error, rival = ((x.double() - want).abs().max().item() for x in (got, eager))
        if not error <= 2.0 * rival + 4 * 2.0**-23 * want.abs().max().item():
            wrong.append(f"{name} {error:.1e} (eager {rival:.1e})")
    return wrong


def attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, lower: int | None = None,
    upper: int | None = None, scale: float | None = None, keep: torch.Tensor | None = None, dropout: float = 0.0,
    nan_rows: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same values written out with the scores in memory, in the dtype of the arguments: output, log-sum-exp."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    distance = torch.arange(k.shape[2], device=q.device) - torch.arange(q.shape[2], device=q.device)[:, None]
    visible = torch.ones_like(scores, dtype=torch.bool)
    visible &= distance <= upper if upper is not None else True
    visible &= distance >= -lower if lower is not None else True
    if mask is not None and mask.dtype == torch.bool:
        visible &= mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    empty = (lse == float("-inf")).unsqueeze(-1)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, float("nan") if nan_rows else 0.0)
    if keep is not None:
        weights = weights * keep / (1.0 - dropout)
    return weights @ v, lse.masked_fill(empty.squeeze(-1), float("nan")) if nan_rows else lse
