"""What boolean masks select: part of a graph as long as its length does not matter, with eager's values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from minicompile import compile as minicompile_compile
from tests.capture.support import capture, kinds


def copied(x, y, mask, w):
    out = x * 1
    out[mask] = y[mask]
    return out + 1


def number_added(x, y, mask, w):
    out = x * 1
    out[mask] += 1.5
    out[mask] *= w
    return out


def function_of_both(x, y, mask, w):
    out = x * 1
    out[mask] = torch.exp(y[mask]).clamp(max=3) * w - x[mask].sigmoid() / 2
    return out * out


def in_place_by_others(x, y, mask, w):
    out = x * 1
    out[mask] *= y[mask]
    out[mask] -= -y[mask]
    return out


def mask_computed_twice(x, y, mask, w):
    out = x * 1
    out[out > 0] = out[out > 0] * y[out > 0]
    out[x.abs() < 0.5] = F.relu(x[x.abs() < 0.5])
    return out


def through_variables(x, y, mask, w):
    chosen, other = x[mask], y[mask]
    difference = chosen - other
    difference += w
    out = y * 2
    out[mask] = difference
    return out, (difference**2).sum(), difference.abs().mean(), (chosen > other).any(), (chosen > other).float().mean()


def infinite_outside(x, y, mask, w):
    return torch.log(x[mask].abs()).sum() + (torch.sqrt(torch.where(mask, x.abs(), 0.0)[mask]) * w).mean()


def losses(x, y, mask, w):
    p, t = x[mask], y.detach()[mask]
    total = F.mse_loss(p, t) + F.l1_loss(p, t, reduction="sum") + F.smooth_l1_loss(p, t, beta=0.3) + F.huber_loss(p, t)
    total = total + F.binary_cross_entropy_with_logits(p, t.sigmoid()) + F.binary_cross_entropy(p.sigmoid(), t.sigmoid())
    return total + torch.nn.MSELoss()(p, t) + torch.nn.L1Loss(reduction="sum")(p, t * w.detach())


PROGRAMS = [copied, number_added, function_of_both, in_place_by_others, mask_computed_twice, through_variables, losses]


def inputs(shape: tuple[int, ...], seed: int, chosen: float = 0.5) -> list[torch.Tensor]:
    """Two tensors, a mask and a number."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return [x, y, torch.rand(shape, generator=generator) < chosen, torch.tensor(1.5, dtype=torch.float64)]


def check(compiled: Callable[..., Any], function: Callable[..., Any], given: list[torch.Tensor], **tolerance: float) -> None:
    """Compare values and gradients of one call with eager's."""
    mine, reference = ([x.detach().clone().requires_grad_(x.is_floating_point()) for x in given] for _ in range(2))
    results, expected = compiled(*mine), function(*reference)
    torch.testing.assert_close(results, expected, equal_nan=True, **tolerance)
    for found in (results, expected) if any(part.requires_grad for part in torch.utils._pytree.tree_leaves(expected)) else ():
        found = [part for part in (found if isinstance(found, tuple) else (found,)) if part.requires_grad]
        sum((part.sin().sum() for part in found), torch.zeros(())).backward()
    for left, right in zip(mine, reference, strict=True):
        torch.testing.assert_close(left.grad, right.grad, equal_nan=True, **tolerance)


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_stays_inside_is_part_of_the_graph(function: Any, dynamic: bool) -> None:
    compiled = minicompile_compile(function, fullgraph=True, dynamic=dynamic or None)
    for seed, (shape, chosen) in enumerate([((4, 5), 0.5), ((4, 5), 0.0), ((3, 7), 1.1), ((6, 2), 0.4)]):
        check(compiled, function, inputs(shape, seed, chosen))


def test_memory_that_is_not_contiguous() -> None:
    for function in (function_of_both, losses):
        compiled = minicompile_compile(function, fullgraph=True)
        x, y, mask, w = inputs((4, 6), 3)
        reference, mine = ([t.clone().requires_grad_() for t in (x, y)] for _ in range(2))
        expected, result = (f(a.t(), b.t(), mask.t(), w)
                            for f, (a, b) in ((function, reference), (compiled, mine)))
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        for left, right in zip(mine, reference, strict=True):
            torch.testing.assert_close(left.grad, right.grad)


def test_no_gradient_comes_from_what_was_not_selected() -> None:
    compiled = minicompile_compile(infinite_outside, fullgraph=True)
    x, y, mask, w = inputs((4, 5), 1)
    x[~mask] = 0
    x[0, 0], mask[0, 0] = 0.3, True
    check(compiled, infinite_outside, [x, y, mask, w])
    x[~mask] = torch.nan
    check(compiled, infinite_outside, [x, y, mask, w])


def rows(x, y, mask, w):
    out = x * 1
    out[mask] = y[mask] * w[0] + w
    return out, x[mask].mean()


def columns(x, y, mask, w):
    out = x * 1
    out[..., mask] = y[..., mask].tanh()
    out[0, mask[[1, 2, 3, 0]]] -= y[1, mask[[1, 2, 3, 0]]]
    return out


def both_sides(x, y, mask, w):
    out = x * 1
    out[1:3, mask, None] = y[1:3, mask, None]
    return out, y[1:, mask].mean()


@pytest.mark.parametrize("function", [rows, columns, both_sides])
def test_masks_over_some_dimensions(function: Any) -> None:
    compiled = minicompile_compile(function, fullgraph=True)
    for seed in range(3):
        x, y, mask, w = inputs((4, 4), seed)
        check(compiled, function, [x, y, mask[0], y[0]])


def of_tokens(logits, labels, mask, weight):
    loss = F.cross_entropy(logits[mask], labels[mask], label_smoothing=0.1)
    return loss + torch.nn.CrossEntropyLoss(weight, ignore_index=1, reduction="sum")(logits[mask], labels[mask])


def test_cross_entropy_of_selected_tokens() -> None:
    compiled = minicompile_compile(of_tokens, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for shape, chosen in (((3, 4), 0.5), ((5, 2), 0.7), ((5, 2), 0.0)):
        logits = torch.randn(*shape, 6, generator=generator, dtype=torch.float64)
        labels, mask = torch.randint(6, shape, generator=generator), torch.rand(shape, generator=generator) < chosen
        weight = torch.rand(6, generator=generator, dtype=torch.float64)
        mine, reference = (logits.clone().requires_grad_() for _ in range(2))
        result, expected = compiled(mine, labels, mask, weight), of_tokens(reference, labels, mask, weight)
        torch.testing.assert_close(result, expected, equal_nan=True)
        for loss in (result, expected):
            loss.backward()
        torch.testing.assert_close(mine.grad, reference.grad, equal_nan=True)


def written_input(x, y, mask, w):
    x[mask] = y[mask] + 1
    x[0][mask[0]] += 2
    return x.sum()


def test_inputs_and_views_are_written() -> None:
    compiled = minicompile_compile(written_input, fullgraph=True)
    for base in (lambda t: t.clone(), lambda t: t.repeat(2, 1)[::2], lambda t: t.t().contiguous().t()):
        x, y, mask, w = inputs((4, 5), 2)
        mine, reference = base(x), base(x)
        torch.testing.assert_close(compiled(mine, y, mask, w), written_input(reference, y, mask, w))
        assert torch.equal(mine, reference) and mine._version > 0
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        compiled(leaf, y, mask, w)
    assert torch.equal(leaf, reference)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        minicompile_compile(written_input)(leaf, y, mask, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    def function(x, y, mask):
        out = x.clone()
        out[mask] = y[mask]
        return out, y[mask].sum(), y[mask].any()

    compiled = minicompile_compile(function, fullgraph=True)
    x, y, mask, _ = inputs((4, 5), 4)
    given = (x * 3).to(dtype), (y * 3).to(dtype), mask
    torch.testing.assert_close(compiled(*given), function(*given))


def test_autocast() -> None:
    def function(x, y, mask):
        with torch.autocast("cpu", torch.bfloat16):
            z = x @ y.t()
            return F.mse_loss(z[mask], z.sin()[mask]), z[mask].float().mean(), z[mask].exp().sum()

    x, y, _, _ = inputs((5, 5), 5)
    mask = x > 0
    result = minicompile_compile(function, fullgraph=True)(x.float(), y.float(), mask)
    expected = function(x.float(), y.float(), mask)
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)


def returned(x, y, mask, w):
    out = x * 1
    out[mask] = y[mask]
    return out, y[mask]


def size_asked(x, y, mask, w):
    return y[mask].shape[0] * x


def branch(x, y, mask, w):
    return x + 1 if y[mask].numel() else x


def kept_in_a_list(x, y, mask, w):
    parts = [y[mask], x[mask]]
    return len(parts) + torch.cat(parts)


def in_a_closure(x, y, mask, w):
    part = y[mask]
    return (lambda: part * 2)() + 1


def is_a_tensor(x, y, mask, w):
    part = y[mask]
    return x if isinstance(part, torch.Tensor) and torch.is_tensor(part) and type(part) is torch.Tensor else None


def listed(x, y, mask, w):
    part = y[mask]
    part = part + 1
    return sum(value.sum() for value in locals().values() if value is not x)


def by_other_masks(x, y, mask, w):
    out = x * 1
    out[mask] = y[torch.flip(mask, [0])].flip(0)
    return out


def first_ends(ids: torch.Tensor) -> torch.Tensor:
    ends = ids == 3
    places = torch.full((ends.size(0),), ends.size(1), dtype=torch.long)
    places[ends.any(dim=1)] = ends.int().argmax(dim=1)[ends.any(dim=1)]
    return places


def test_a_mask_that_a_reduction_gives_is_computed_again() -> None:
    compiled = minicompile_compile(first_ends, fullgraph=True)
    for rows in (4, 4, 6):
        ids = torch.randint(0, 6, (rows, 5), generator=torch.Generator().manual_seed(rows))
        assert torch.equal(compiled(ids), first_ends(ids))


def drawn_again(x, y, mask, w):
    out = x * 1
    part = y[torch.rand_like(x) > 0.5]
    out[torch.rand_like(x) > 0.5] = part[0]
    return out, part


def written_between(x, y, mask, w):
    above = x > 0
    out = x * 1
    part = y[above]
    above.logical_not_()
    above.logical_not_()
    out[above] = part
    return out


def summed_after_a_write(x, y, mask, w):
    part = y[mask]
    mask.logical_not_()
    return part.sum(), (x[mask] * 2).mean()


def changed_between(x, y, mask, w):
    out = x * 1
    part = out[out > 0] * 2
    out.neg_()
    return out[out > 0] + 1, part


def broken_behind(x, y, mask, w):
    part = y[mask] * 2
    torch.manual_seed(0)
    return part.sum()


def of_whole_numbers(x, y, mask, w):
    return ((y[mask] * 4).long() // (x[mask].abs() * 4 + 1).long()).sum()


@pytest.mark.parametrize("function", [returned, size_asked, branch, kept_in_a_list, in_a_closure, is_a_tensor, by_other_masks,
                                      changed_between, broken_behind, of_whole_numbers])  # fmt: skip
def test_what_does_not_stay_inside_is_a_break(function: Any) -> None:
    compiled = capture(function)
    for seed in range(3):
        check(compiled, function, inputs((4, 5), seed))
    assert "data-dependent shape" in kinds(compiled)


@pytest.mark.filterwarnings("ignore:minicompile runs `listed` in eager")
def test_variables_are_listed() -> None:
    check(capture(listed), listed, inputs((4, 5), 0))


def test_a_mask_that_is_written() -> None:
    x, y, mask, w = inputs((4, 5), 0)
    for function in (written_between, summed_after_a_write):
        compiled = capture(function)
        torch.testing.assert_close(compiled(x, y, mask.clone(), w), function(x, y, mask.clone(), w))
        assert "data-dependent shape" in kinds(compiled)


def other_length(x, y, mask, w):
    out = x * 1
    out[mask] = y[~mask]
    return out


def other_shape(x, y, mask, w):
    return x[mask[:3]].sum()


def other_dtype(x, y, mask, w):
    out = x.float()
    out[mask] = y[mask]
    return out


def integers_divided(x, y, mask, w):
    out = x.long()
    out[mask] += y[mask]
    return out


@pytest.mark.parametrize("function", [other_length, other_shape, other_dtype, integers_divided])
def test_what_eager_refuses(function: Any) -> None:
    given = inputs((4, 5), 7, 0.3)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*given)
    with pytest.raises(type(expected.value)) as found:
        minicompile_compile(function)(*given)
    assert str(found.value) == str(expected.value)
