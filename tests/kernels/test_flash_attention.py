"""The attention kernels, under Triton's interpreter, against fp64; and that these checks see a wrong kernel."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from triton.runtime.errors import OutOfResources

from minicompile.kernels import flash_attention
from minicompile.kernels.configs import attention_tile
from minicompile.kernels.flash_attention import attention_backward, attention_forward
from minicompile.kernels.interpret import interpreting
from minicompile.kernels.mask_bounds import mask_bounds
from tests.kernels.attention_cases import (
    Case,
    attention_reference,
    dropout_mask,
    errors,
    failures,
    large_score_failures,
    random_cases,
)
from tests.kernels.mutants import mutant_of

SMALL = attention_tile("64x32 w1 s1")
IMPLEMENTATION = sys.modules["minicompile.kernels.flash_attention"]


@pytest.fixture(autouse=True)
def patched_once() -> Iterator[None]:
    with interpreting():
        yield


def _quick(count: int) -> list[Case]:
    """Random problems that take about a second each under the interpreter."""
    cases = random_cases(8 * count, seed=5, most_length=130, device="cpu")
    cheap = [c for c in cases if c.batch * c.heads * math.ceil(c.queries / 64) * math.ceil(c.keys / 64) <= 12]
    return cheap[:count]


@pytest.mark.parametrize("case", _quick(16), ids=lambda case: str(case.seed))
def test_random_problems_match_fp64(case: Case) -> None:
    found = errors(case, "cpu", (SMALL, SMALL, SMALL))
    assert not failures(case, found), case


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", random_cases(80, seed=6, most_length=150, device="cpu"), ids=lambda case: str(case.seed)
)
def test_more_random_problems_match_fp64(case: Case) -> None:
    found = errors(case, "cpu", (SMALL, SMALL, SMALL) if case.seed % 2 else (None, None, None))
    assert not failures(case, found), case


@pytest.mark.parametrize("tma", [False, True])
def test_descriptor_loads_give_the_same(tma: bool) -> None:
    tile = attention_tile("32x32 w1 s1" + " tma" * tma)
    case = Case(torch.bfloat16, 2, 4, 2, 70, 90, 64, 64, upper=3)
    assert not failures(case, errors(case, "cpu", (tile, tile, tile)))


@pytest.mark.parametrize("magnitude", [100, 400])
@pytest.mark.parametrize("d", [16, 64])
def test_large_scores_are_as_near_to_fp64_as_eager(d: int, magnitude: int) -> None:
    assert not large_score_failures("cpu", d, magnitude, (SMALL, SMALL, SMALL))


def test_large_scores_need_renormalised_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = IMPLEMENTATION.describe
    monkeypatch.setattr(IMPLEMENTATION, "describe", lambda *a: dataclasses.replace(plain(*a), renormalise=False))
    assert large_score_failures("cpu", 16, 400, (SMALL, SMALL, SMALL))


# Each twin changes one line of the kernels, in every place where it stands; the check must notice.
TWINS = {
    "missing mask": ("forward", 'scores = tl.where(visible, scores, float("-inf"))', "scores = scores"),
    "wrong scale": ("forward", "- finite[:, None])", "- 0.5 * finite[:, None])"),
    "lost rescale of the values": ("forward", "acc * rescale[:, None]", "acc"),
    "lost rescale of the sum": ("forward", "total * rescale +", "total +"),
    "band off by one": ("forward", "cols <= rows + upper", "cols < rows + upper"),
    "forgotten keep scale": ("forward", "keep_scale / total", "1.0 / total"),
    "key gradient without mask": ("backward", "tl.where(visible, tl.exp2(scores - lse[None, :]), 0.0)", "tl.exp2(scores - lse[None, :])"),
    "forgotten delta": ("backward", "(dweights - delta[:, None])", "dweights"),
    "unscaled dK": ("backward", "(dk * scale)", "dk"),
    "lost low halves": ("forward", "tl.dot(a[0], b[1], result)", "result"),
    "forgotten powers of two": ("forward", "* scale[:, None]", "* 2.0**-14"),
    "first head of a group only": ("backward", "for member in tl.range(0, HEADS_EACH)", "for member in tl.range(0, 1)"),
}  # fmt: skip
TWIN_CASES = (
    Case(torch.float32, 1, 2, 1, 70, 70, 16, 16, upper=0, dropout=0.2),
    Case(torch.float32, 1, 1, 1, 40, 50, 16, 16, mask="bool"),
    Case(torch.float32, 1, 1, 1, 40, 50, 16, 16, precision="halves"),
    Case(torch.float32, 1, 1, 1, 40, 50, 16, 16, precision="high"),
)


@pytest.mark.parametrize("twin", TWINS)
def test_a_wrong_kernel_is_noticed(twin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which, line, wrong = TWINS[twin]
    module = mutant_of(sys.modules[f"minicompile.kernels.flash_attention_{which}"], line, wrong, tmp_path)
    for name in vars(IMPLEMENTATION):
        if name.endswith("_kernel") and hasattr(module, name):
            monkeypatch.setattr(IMPLEMENTATION, name, getattr(module, name))
    noticed = [failures(case, errors(case, "cpu", (SMALL, SMALL, SMALL))) for case in TWIN_CASES]
    assert any(noticed), f"the checks do not notice: {twin}"


def _qkv(*shape: int, requires_grad: bool = False) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(shape, generator=generator).requires_grad_(requires_grad) for _ in range(3))


def test_gives_what_pytorch_gives() -> None:
    q, k, v = _qkv(2, 3, 20, 16)
    k, v = k[:, :, :13], v[:, :, :13]
    mask = torch.rand(20, 13) > 0.5
    mask[4] = False
    for ours, theirs in (({}, {}), ({"causal": True}, {"is_causal": True}), ({"mask": mask}, {"attn_mask": mask})):
        wanted = functional.scaled_dot_product_attention(q, k, v, **theirs)
        torch.testing.assert_close(flash_attention(q, k, v, **ours), wanted)


def test_a_query_that_sees_nothing_gives_zeros_or_nan() -> None:
    q, k, v = _qkv(1, 2, 8, 16, requires_grad=True)
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[3] = False
    out, lse = flash_attention(q, k, v, mask, return_lse=True)
    assert (out[:, :, 3] == 0).all() and (lse[:, :, 3] == float("-inf")).all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(torch.isfinite(gradient).all() for gradient in gradients) and (gradients[0][:, :, 3] == 0).all()

    out = flash_attention(q, k, v, mask, nan_rows=True)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~mask, float("-inf"))
    wanted = torch.softmax(scores, -1) @ v
    torch.testing.assert_close(out, wanted, equal_nan=True)
    ours, theirs = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, wanted))
    for got, want in zip(ours, theirs):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 2, 8, 16), (2, 2, 0, 16)])
def test_empty_batch_and_no_queries(shape: tuple[int, ...]) -> None:
    q, _, _ = _qkv(*shape, requires_grad=True)
    k = torch.randn(shape[0], 2, 5, 16, requires_grad=True)
    out = flash_attention(q, k, k)
    assert out.shape == q.shape
    out.sum().backward()
    assert k.grad is not None and (k.grad == 0).all()


def test_no_keys_gives_zeros() -> None:
    q, k, v = _qkv(1, 2, 4, 16)
    out, lse = attention_forward(q, k[:, :, :0], v[:, :, :0])
    assert (out == 0).all() and (lse == float("-inf")).all()


def test_two_and_three_dimensions_and_a_long_mask() -> None:
    q, k, v = _qkv(3, 10, 16)
    mask = torch.rand(3, 10, 10) > 0.2
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(flash_attention(q, k, v, mask), wanted)
    torch.testing.assert_close(flash_attention(q[0], k[0], v[0], mask[0]), wanted[0])


def test_log_sum_exp_is_differentiable() -> None:
    q, k, v = _qkv(1, 2, 9, 16, requires_grad=True)
    out, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    wanted, wanted_lse = attention_reference(q, k, v, upper=0)
    ours = torch.autograd.grad(out.sum() + (lse * lse).sum(), (q, k, v))
    theirs = torch.autograd.grad(wanted.sum() + (wanted_lse * wanted_lse).sum(), (q, k, v))
    for got, want in zip(ours, theirs):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_dropout_repeats_with_its_seed_and_drops_its_share() -> None:
    q, k, v = _qkv(1, 2, 64, 16)
    seed, other = torch.tensor([9, 0]), torch.tensor([9, 1])
    first, second, third = (flash_attention(q, k, v, dropout=0.3, seed=s) for s in (seed, seed, other))
    assert torch.equal(first, second) and not torch.equal(first, third)
    kept = dropout_mask(seed, 0.3, 2, 3, 200, 100).float()
    assert abs(kept.mean().item() - 0.7) < 0.01
    assert (kept.mean((2, 3)) - 0.7).abs().max() < 0.02
    assert torch.equal(dropout_mask(seed, 0.3, 2, 3, 50, 40), kept[:, :, :50, :40].bool())
    assert (flash_attention(q, k, v, dropout=1.0, seed=seed) == 0).all()
    torch.manual_seed(1)
    drawn = flash_attention(q, k, v, dropout=0.5)
    torch.manual_seed(1)
    assert torch.equal(drawn, flash_attention(q, k, v, dropout=0.5))


def test_backward_gives_the_same_bits_twice() -> None:
    q, k, v = _qkv(1, 4, 50, 32)
    out, lse = attention_forward(q, k, v, upper=0)
    first, second = (attention_backward(v, q, k, v, out, lse, upper=0)[:3] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_parts_per_query_head_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(torch.bfloat16, 1, 6, 2, 40, 40, 32, 32, upper=0)
    monkeypatch.setattr(IMPLEMENTATION.gpu, "processors", lambda tensor: 1_000_000)
    assert not failures(case, errors(case, "cpu"))


def test_output_is_laid_out_like_the_queries() -> None:
    q = torch.randn(2, 10, 3, 16).transpose(1, 2)
    assert attention_forward(q, q, q)[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "change", [{"q": torch.randn(1, 3, 4, 16)}, {"k": torch.randn(1, 2, 4, 8)}, {"v": torch.randn(1, 2, 5, 16)},
               {"q": torch.randn(1, 2, 4, 16).double()}, {"mask": torch.ones(3, 5, dtype=torch.bool)}],
)  # fmt: skip
def test_bad_arguments_are_named(change: dict[str, torch.Tensor]) -> None:
    arguments = {name: torch.randn(1, 2, 4, 16) for name in "qkv"} | change
    with pytest.raises(ValueError, match="flash attention: "):
        attention_forward(**arguments)


def test_a_refused_configuration_is_replaced_by_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little shared memory, or a crash of ptxas, costs speed and not the call."""
    module = sys.modules["minicompile.kernels.flash_attention"]
    launch, tried = module.launch, []

    def refuse(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        if "BLOCK_N" in meta:
            tried.append((meta["TMA"], meta["num_stages"], meta["BLOCK_M"]))
            if meta["num_stages"] > 1:
                raise OutOfResources(300_000, 232_448, "shared memory")
        launch(kernel, grid, *args, **meta)

    monkeypatch.setattr(module, "launch", refuse)
    q = torch.randn(1, 1, 40, 16)
    out, _ = module.attention_forward(q, q, q, config=attention_tile("64x16 w4 s2 tma"))
    assert tried == [(True, 2, 64), (False, 2, 64), (False, 1, 64)]
    torch.testing.assert_close(out, attention_reference(q, q, q)[0])


BANDS = {
    "causal": lambda i, j: j <= i, "window": lambda i, j: (j <= i) & (j > i - 20), "documents": lambda i, j: i // 20 == j // 20,
    "padding": lambda i, j: (j < 50) & (i >= 0), "late": lambda i, j: (j > 40) & (i >= 0), "nothing": lambda i, j: j < i * 0,
    "everything": lambda i, j: j >= i * 0, "scattered": lambda i, j: (i * 7 + j * 13) % 5 < 2,
}  # fmt: skip


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("queries", "keys", "upper"), [(70, 70, None), (33, 96, 0)])
def test_blocks_that_a_boolean_mask_hides_or_shows_whole(band: str, queries: int, keys: int, upper: int | None) -> None:
    tile = attention_tile("16x32 w1 s1")
    mask = BANDS[band](torch.arange(queries)[:, None], torch.arange(keys)[None, :])
    mask = torch.stack([mask, mask.roll(5, 1)])[:, None]
    q, k, v, dout = (torch.randn(2, 2, length, 16) for length in (queries, keys, keys, queries))
    out, lse = attention_forward(q, k, v, mask, upper=upper, config=tile)
    gradients = attention_backward(dout, q, k, v, out, lse, mask, upper=upper, configs=(tile, tile))[:3]
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    wanted, _ = attention_reference(*leaves, mask, upper=upper)
    for got, want in zip((out, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, dout.double()))):
        assert (got.double() - want).abs().max() < 1e-5


@pytest.mark.parametrize("band", BANDS)
def test_blocks_that_one_row_hides_or_shows_to_all_queries(band: str) -> None:
    tile = attention_tile("16x32 w1 s1")
    row = BANDS[band](torch.zeros(1, 1, dtype=torch.int64), torch.arange(96)[None, :])
    mask = torch.stack([row, row.roll(5, 1)])[:, None]
    q, k, v, dout = (torch.randn(2, 2, length, 16) for length in (33, 96, 96, 33))
    out, lse = attention_forward(q, k, v, mask, config=tile)
    gradients = attention_backward(dout, q, k, v, out, lse, mask, configs=(tile, tile))[:3]
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    wanted, _ = attention_reference(*leaves, mask)
    for got, want in zip((out, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, dout.double()))):
        assert (got.double() - want).abs().max() < 1e-5


def bounds_of(mask: torch.Tensor) -> list[list[int]]:
    """By groups of rows of one head's mask: begin, prefix, suffix, stop, as the kernel's module defines them."""
    found = []
    for rows in mask.split(64):
        some, whole = rows.any(0).tolist(), rows.all(0).tolist()
        if not any(some):
            found.append([mask.shape[1], mask.shape[1], 0, 0])
            continue
        begin, stop = some.index(True), len(some) - some[::-1].index(True)
        prefix = next((n for n in range(begin, len(whole)) if not whole[n]), len(whole))
        suffix = next((n + 1 for n in range(stop - 1, -1, -1) if not whole[n]), 0)
        found.append([begin, prefix, suffix, stop])
    return found


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("queries", "keys"), [(70, 200), (192, 33), (64, 64)])
def test_the_bounds_of_a_mask(band: str, queries: int, keys: int) -> None:
    mask = BANDS[band](torch.arange(queries)[:, None], torch.arange(keys)[None, :])
    masks = torch.stack([mask, mask.roll(5, 1), torch.rand(queries, keys) < 0.5, torch.zeros_like(mask)])[:, None]
    for by_keys, seen in ((False, masks), (True, masks.transpose(2, 3))):
        (found,) = mask_bounds(masks, queries, keys, by_keys)
        assert found[:, 0].tolist() == [bounds_of(one) for one in seen[:, 0]]


def test_a_causal_mask_in_memory_skips_as_many_blocks_as_causal() -> None:
    causal = torch.ones(192, 192, dtype=torch.bool).tril()
    assert mask_bounds(causal, 192, 192, False)[0][0, 0].tolist() == [[0, 1, 64, 64], [0, 65, 128, 128], [0, 129, 192, 192]]


@pytest.mark.parametrize("tile", ["128x16 w1 s1", "32x64 w1 s1", "64x32 w1 s1", "64x64 w1 s1"])
@pytest.mark.parametrize("band", BANDS)
def test_tiles_larger_and_smaller_than_the_groups_of_bounds(tile: str, band: str) -> None:
    mask = BANDS[band](torch.arange(150)[:, None], torch.arange(130)[None, :])
    q, k, v, dout = (torch.randn(1, 2, length, 16) for length in (150, 130, 130, 150))
    config = attention_tile(tile)
    bounds, key_bounds = (mask_bounds(mask, 150, 130, by_keys)[0] for by_keys in (False, True))
    out, lse = attention_forward(q, k, v, mask, bounds=bounds, config=config)
    gradients = attention_backward(
        dout, q, k, v, out, lse, mask, bounds=bounds, key_bounds=key_bounds, configs=(config, config)
    )[:3]
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    wanted, _ = attention_reference(*leaves, mask)
    for got, want in zip((out, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, dout.double()))):
        assert (got.double() - want).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_whose_keys_are_all_hidden_by_a_least_number_weighs_them_alike(dtype: torch.dtype) -> None:
    """What Hugging Face's additive masks do to a padded query: the score is rounded away."""
    q, k, v, dout = (torch.randn(1, 2, 40, 16).to(dtype) for _ in range(4))
    mask = torch.zeros(40, 40, dtype=dtype).masked_fill(torch.ones(40, 40).triu(1) > 0, torch.finfo(dtype).min)
    mask[:7] = torch.finfo(dtype).min
    out, lse = attention_forward(q, k, v, mask, config=SMALL)
    gradients = attention_backward(dout, q, k, v, out, lse, mask, configs=(SMALL, SMALL))[:3]
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    scores = (leaves[0].float() @ leaves[1].float().mT) / 4 + mask.float()
    wanted = torch.softmax(scores, -1) @ leaves[2].float()
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for got, want in zip((out, *gradients), (wanted, *torch.autograd.grad(wanted, leaves, dout.float()))):
        torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance)
