"""Kernels of every strategy give eager's values under the interpreter, with the tiles of the CPU and of a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import minicompile
from minicompile.ir.expr import Constant, Expr, IndexValue, Load, Masked, Random, apply, cast
from minicompile.ir.index import Axis, Index, Indirect, Symbol, as_index
from minicompile.ir.loops import Loop, Reduction, Scan
from tests.codegen.build import buffer, group, load, pointwise_plan, programs, reduction_plan, run_both, schedule
from tests.codegen.catalogue import scheduled
from tests.differential import check
from tests.scheduling.hand_made import GraphMaker, softmax

F32 = torch.float32
STRATEGIES = ("persistent", "looped")


def rows_and_row(rows: int, length: int) -> tuple[Axis, Axis, Index, Index]:
    x, r = Axis("x", rows), Axis("r", length)
    return x, r, as_index(x), as_index(r)


def reduction(kind: str, dtype: torch.dtype, rows: int, length: int, strategy: str, block: int = 64):
    """One reduction of every row."""
    x, r, at_x, at_r = rows_and_row(rows, length)
    result = torch.int64 if kind.startswith("arg") else dtype
    loops = [Loop("out", (x,), Load("a", at_x * length + at_r, dtype), at_x, Reduction(kind, (r,)))]
    rblock = 1 << (length - 1).bit_length() if strategy == "persistent" else block
    plan = reduction_plan(strategy, (x, 4), (r, rblock))
    buffers = [buffer("a", (rows, length), dtype, "input"), buffer("out", (rows,), result)]
    return schedule([group(kind, loops, plan, ["out"])], buffers, ["out"])


EAGER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda a: a.sum(-1, dtype=a.dtype), "prod": lambda a: a.prod(-1, dtype=a.dtype),
    "max": lambda a: a.amax(-1), "min": lambda a: a.amin(-1), "argmax": lambda a: a.argmax(-1),
    "argmin": lambda a: a.argmin(-1), "any": lambda a: a.any(-1),
}  # fmt: skip


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape) < 0.02
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape, dtype=dtype)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
                                   torch.int8, torch.uint8])  # fmt: skip
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reductions(kind: str, dtype: torch.dtype, strategy: str) -> None:
    a = numbers(dtype, (7, 300))
    if kind == "prod":
        a = a[:, :20].contiguous()
    wanted = EAGER[kind](a)
    for (found,) in run_both(reduction(kind, dtype, *a.shape, strategy), [a]):
        assert found.dtype == wanted.dtype
        if dtype.is_floating_point and kind in ("sum", "prod"):
            torch.testing.assert_close(found, wanted, rtol=8 * torch.finfo(dtype).eps, atol=40 * torch.finfo(dtype).eps)
        else:
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_of_booleans(strategy: str) -> None:
    a = numbers(torch.bool, (9, 130))
    for (found,) in run_both(reduction("any", torch.bool, 9, 130, strategy), [a]):
        assert torch.equal(found, a.any(-1))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum"])
def test_nan_and_infinity_land_where_eager_puts_them(kind: str, strategy: str) -> None:
    a = torch.randn(8, 200)
    a[0, 150], a[1, 3], a[1, 180] = torch.nan, torch.nan, torch.nan
    a[2] = -torch.inf
    a[3] = torch.inf
    a[4, 77], a[5, 10], a[5, 190] = torch.inf, torch.inf, -torch.inf
    a[6] = 1.5
    a[7] = torch.nan
    for (found,) in run_both(reduction(kind, F32, 8, 200, strategy), [a]):
        torch.testing.assert_close(found, EAGER[kind](a), equal_nan=True)


def softmax_schedule(rows: int, length: int, dtype: torch.dtype, strategy: str):
    x, r, at_x, at_r = rows_and_row(rows, length)
    place = at_x * length + at_r
    value = cast(Load("a", place, dtype), F32)
    exponential = apply("exp", apply("sub", value, Load("m", at_x, F32), dtype=F32), dtype=F32)
    loops = [
        Loop("m", (x,), value, at_x, Reduction("max", (r,))),
        Loop("s", (x,), exponential, at_x, Reduction("sum", (r,))),
        Loop("out", (x, r), cast(apply("truediv", exponential, Load("s", at_x, F32), dtype=F32), dtype), place),
    ]
    rblock = 1 << (length - 1).bit_length() if strategy == "persistent" else 64
    plan = reduction_plan(strategy, (x, 1), (r, rblock))
    buffers = [buffer("a", (rows, length), dtype, "input"), buffer("m", (rows,)), buffer("s", (rows,)),
               buffer("out", (rows, length), dtype)]  # fmt: skip
    return schedule([group("softmax", loops, plan, ["out"])], buffers, ["out"])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16])
def test_softmax(dtype: torch.dtype, strategy: str) -> None:
    a = (numbers(F32, (9, 333)) * 5).to(dtype)
    a[1, 5:300] = -torch.inf
    a[2] = -torch.inf
    a[3, 7] = torch.inf
    a[4, 330] = torch.nan
    a[5, :70] = -torch.inf
    a[6] = torch.finfo(dtype).min
    a[7, 100] = torch.finfo(dtype).max
    wanted = torch.softmax(a.double(), -1).to(dtype)
    for (found,) in run_both(softmax_schedule(9, 333, dtype, strategy), [a]):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=4 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("rows", [64, as_index(Symbol("s0", 64, 2))])
def test_a_scheduled_softmax_of_long_rows_finds_maximum_and_sum_in_one_walk(rows: int | Index) -> None:
    maker = GraphMaker()
    maker.input("a", rows, 50257)
    _, on_gpu = programs(scheduled(maker.graph(softmax(maker, "a", rows, 50257))))
    (kernel,) = on_gpu.kernels
    assert kernel.text.count("tl.load") == kernel.text.count("for r_start") == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_normalisation_with_two_dependent_statistics(strategy: str) -> None:
    rows, length = 5, 200
    x, r, at_x, at_r = rows_and_row(rows, length)
    place = at_x * length + at_r
    value, scale = Load("a", place, F32), Constant(1.0 / length, F32)
    mean = apply("mul", Load("total", at_x, F32), scale, dtype=F32)
    centred = apply("sub", value, mean, dtype=F32)
    spread = apply("add", apply("mul", Load("squares", at_x, F32), scale, dtype=F32), Constant(1e-5, F32), dtype=F32)
    normal = apply("mul", centred, apply("rsqrt", spread, dtype=F32), dtype=F32)
    result = apply("mul", normal, Load("weight", at_r, F32), dtype=F32)
    loops = [
        Loop("total", (x,), value, at_x, Reduction("sum", (r,))),
        Loop("squares", (x,), apply("mul", centred, centred, dtype=F32), at_x, Reduction("sum", (r,))),
        Loop("mean", (x,), mean, at_x),
        Loop("out", (x, r), result, place),
    ]
    plan = reduction_plan(strategy, (x, 2), (r, 256 if strategy == "persistent" else 32))
    buffers = [buffer("a", (rows, length), role="input"), buffer("weight", (length,), role="input"),
               buffer("total", (rows,)), buffer("squares", (rows,)), buffer("mean", (rows,)),
               buffer("out", (rows, length))]  # fmt: skip
    built = schedule([group("norm", loops, plan, ["out", "mean"])], buffers, ["out", "mean"])
    a, weight = torch.randn(rows, length), torch.randn(length)
    for out, mean_found in run_both(built, [a, weight]):
        torch.testing.assert_close(out, torch.nn.functional.layer_norm(a, (length,), weight), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mean_found, a.mean(-1), rtol=1e-4, atol=1e-6)


SCANS = {"cumsum": lambda a: a.cumsum(-1), "cumprod": lambda a: a.cumprod(-1)}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", SCANS)
def test_scans(kind: str, strategy: str) -> None:
    rows, length = 3, 150
    x, r, at_x, at_r = rows_and_row(rows, length)
    place = at_x * length + at_r
    loops = [
        Loop("running", (x, r), Load("a", place, F32), place, Scan(kind, r)),
        Loop("out", (x, r), apply("mul", Load("running", place, F32), Constant(2.0, F32), dtype=F32), place),
    ]
    plan = reduction_plan(strategy, (x, 2), (r, 256 if strategy == "persistent" else 32))
    buffers = [buffer("a", (rows, length), role="input"), buffer("running", (rows, length)), buffer("out", (rows, length))]
    built = schedule([group(kind, loops, plan, ["out", "running"])], buffers, ["running", "out"])
    a = torch.randn(rows, length)
    a[2, 80] = torch.nan
    wanted = SCANS[kind](a)
    for running, out in run_both(built, [a]):
        torch.testing.assert_close(running, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out, wanted * 2, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_store_waits_for_the_last_pass_that_reads_its_memory(strategy: str) -> None:
    rows, length = 4, 100
    x, r, at_x, at_r = rows_and_row(rows, length)
    place = at_x * length + at_r
    value = Load("a", place, F32)
    loops = [
        Loop("total", (x,), value, at_x, Reduction("sum", (r,))),
        Loop("doubled", (x, r), apply("mul", value, Constant(2.0, F32), dtype=F32), place, overwrites="a"),
        Loop("out", (x, r), apply("add", value, Load("total", at_x, F32), dtype=F32), place),
    ]
    plan = reduction_plan(strategy, (x, 2), (r, 128 if strategy == "persistent" else 32))
    buffers = [buffer("a", (rows, length), role="input"), buffer("total", (rows,)), buffer("doubled", (rows, length)),
               buffer("out", (rows, length))]  # fmt: skip
    built = schedule([group("in_place", loops, plan, ["doubled", "out"])], buffers, ["doubled", "out"])
    for program in programs(built):
        a = torch.randn(rows, length)
        before = a.clone()
        doubled, out = load(program).call([a])
        torch.testing.assert_close(out, before + before.sum(-1, keepdim=True))
        assert torch.equal(doubled, before * 2) and doubled.data_ptr() == a.data_ptr()


def pointwise(value: Expr, position: Axis, block: int, dtype: torch.dtype, inputs):
    loops = [Loop("out", (position,), value, as_index(position))]
    buffers = [buffer(name, t.shape, t.dtype, "input") for name, t in inputs.items()]
    buffers.append(buffer("out", (position.size,), dtype))
    return schedule([group("kernel", loops, pointwise_plan((position, block)), ["out"])], buffers, ["out"])


@pytest.mark.parametrize(("size", "block"), [(1, 1), (1, 128), (1000, 128), (1024, 256), (77, 1)])
def test_odd_sizes(size: int, block: int) -> None:
    x = Axis("x", size)
    a, b = torch.randn(size), torch.randn(size)
    value = apply("add", Load("a", as_index(x), F32), Load("b", as_index(x), F32), dtype=F32)
    for (found,) in run_both(pointwise(value, x, block, F32, {"a": a, "b": b}), [a, b]):
        assert torch.equal(found, a + b)


def test_a_gather_reads_through_loaded_indices() -> None:
    table, chosen = torch.randn(50, 8), torch.randint(0, 50, (33,))
    x = Axis("x", 33 * 8)
    row = Indirect(Load("chosen", as_index(x) // 8, torch.int64), as_index(50))
    value = Load("table", as_index(row) * 8 + as_index(x) % 8, F32)
    built = pointwise(value, x, 128, F32, {"table": table, "chosen": chosen})
    for (found,) in run_both(built, [table, chosen]):
        assert torch.equal(found.view(33, 8), table[chosen])


def test_masked_loads_stay_inside() -> None:
    a = torch.randn(10)
    x = Axis("x", 14)
    position = IndexValue(as_index(x), torch.int64)
    inside = apply("bitwise_and", apply("ge", position, Constant(2, torch.int64), dtype=torch.bool),
                   apply("lt", position, Constant(12, torch.int64), dtype=torch.bool), dtype=torch.bool)  # fmt: skip
    padded = Masked(inside, Load("a", as_index(x) - 2, F32), Constant(7.0, F32), F32)
    computed = Masked(inside, apply("exp", Load("a", as_index(x) - 2, F32), dtype=F32), padded, F32)
    for value, wanted in ((padded, a), (computed, a.exp())):
        for (found,) in run_both(pointwise(value, x, 8, F32, {"a": a}), [a]):
            torch.testing.assert_close(found, torch.nn.functional.pad(wanted, (2, 2), value=7.0))


def test_a_checked_index_under_a_condition_that_varies_more() -> None:
    a = torch.randn(3)
    x, r, at_x, at_r = rows_and_row(4, 5)
    inside = apply("lt", IndexValue(at_r, torch.int64), Constant(2, torch.int64), dtype=torch.bool)
    for start in (Constant(4, torch.int64), IndexValue(at_x, torch.int64)):
        place = apply("remainder", start, Constant(3, torch.int64), dtype=torch.int64)
        fits = apply("lt", place, Constant(3, torch.int64), dtype=torch.bool)
        index = as_index(Indirect(apply("checked", place, fits, dtype=torch.int64), as_index(3)))
        value = Masked(inside, Load("a", index, F32), Constant(1.0, F32), F32)
        loops = [Loop("out", (x,), value, at_x, Reduction("sum", (r,)))]
        buffers = [buffer("a", (3,), role="input"), buffer("out", (4,))]
        built = schedule([group("rows", loops, reduction_plan("persistent", (x, 2), (r, 8)), ["out"])], buffers, ["out"])
        places = torch.arange(4) % 3 if start != Constant(4, torch.int64) else torch.ones(4, dtype=torch.int64)
        for (found,) in run_both(built, [a]):
            torch.testing.assert_close(found, 2 * a[places] + 3)


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int32, torch.int64])
def test_scatters_add_every_value(dtype: torch.dtype) -> None:
    target, chosen, source = numbers(dtype, (6,)), torch.randint(0, 6, (500,)), numbers(dtype, (500,))
    x = Axis("x", 500)
    place = as_index(Indirect(Load("chosen", as_index(x), torch.int64), as_index(6)))
    loops = [Loop("out", (x,), Load("source", as_index(x), dtype), place, accumulate=True, overwrites="target")]
    buffers = [buffer("target", (6,), dtype, "input"), buffer("chosen", (500,), torch.int64, "input"),
               buffer("source", (500,), dtype, "input"), buffer("out", (6,), dtype)]  # fmt: skip
    built = schedule([group("scatter", loops, pointwise_plan((x, 128)), ["out"])], buffers, ["out"])
    wanted = target.clone().index_add_(0, chosen, source)
    for program in programs(built):
        (found,) = load(program).call([target.clone(), chosen, source])
        torch.testing.assert_close(found, wanted)


def test_a_transpose_over_two_axes_and_a_conditional_store() -> None:
    a = torch.randn(70, 45)
    y, x = Axis("y", 70), Axis("x", 45)
    place = as_index(y) * 45 + as_index(x)
    value = Load("a", place, F32)
    loops = [
        Loop("turned", (y, x), value, as_index(x) * 70 + as_index(y)),
        Loop("kept", (y, x), value, place, condition=apply("gt", value, Constant(0.0, F32), dtype=torch.bool),
             overwrites="base"),
    ]  # fmt: skip
    buffers = [buffer("a", (70, 45), role="input"), buffer("base", (70, 45), role="input"), buffer("turned", (45, 70)),
               buffer("kept", (70, 45))]  # fmt: skip
    built = schedule([group("turn", loops, pointwise_plan((y, 16), (x, 32)), ["turned", "kept"])], buffers, ["turned", "kept"])
    for program in programs(built):
        turned, kept = load(program).call([a, torch.zeros(70, 45)])
        assert torch.equal(turned, a.t()) and torch.equal(kept, a.relu())


def test_dropout_follows_the_documented_generator() -> None:
    from minicompile.ir import operators  # registers the reference operators

    assert operators.__doc__
    seeds = torch.tensor([123456789012345], dtype=torch.int64)
    x = Axis("x", 600)
    kinds = [("uniform", d) for d in (F32, torch.float64, torch.bfloat16, torch.float16)]
    for kind, dtype in itertools.chain(kinds, [("normal", F32), ("normal", torch.float64)]):
        value = Random(kind, Load("seeds", as_index(0), torch.int64), as_index(x), dtype)
        reference = getattr(torch.ops.minicompile, f"random_{kind}")(seeds, [600], dtype)
        for (found,) in run_both(pointwise(value, x, 128, dtype, {"seeds": seeds}), [seeds]):
            torch.testing.assert_close(found, reference, rtol=2e-6, atol=2e-6)


def test_16_bit_chains_jump_where_eager_jumps() -> None:
    a = torch.randn(4000).to(torch.bfloat16)
    x = Axis("x", 4000)
    scaled = apply("mul", Load("a", as_index(x), a.dtype), Constant(8.1, a.dtype), dtype=a.dtype)
    value = apply("floor", scaled, dtype=a.dtype)
    for config in ({}, {"emulate_precision_casts": True}):
        for (found,) in run_both(pointwise(value, x, 512, a.dtype, {"a": a}), [a], **config):
            assert (found != (a * 8.1).floor()).sum() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_running_sum_of_integers(strategy: str) -> None:
    x, r, at_x, at_r = rows_and_row(3, 100)
    place = at_x * 100 + at_r
    loops = [Loop("out", (x, r), Load("a", place, torch.int64), place, Scan("cumsum", r))]
    plan = reduction_plan(strategy, (x, 1), (r, 128 if strategy == "persistent" else 32))
    buffers = [buffer("a", (3, 100), torch.int64, "input"), buffer("out", (3, 100), torch.int64)]
    a = torch.randint(-50, 50, (3, 100))
    for (found,) in run_both(schedule([group("cumsum", loops, plan, ["out"])], buffers, ["out"]), [a]):
        assert torch.equal(found, a.cumsum(-1))


def rotated_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out


def of_columns(p: torch.Tensor) -> torch.Tensor:
    d = (p[:, 0] - p[:, 3]) * (p[:, 1] - p[:, 4]) + p[:, 2] * p[:, 5]
    return (p[:, 0] / d).tanh() * (p[:, 2] / d).sigmoid() + d.exp()


def written_from(x: torch.Tensor, start: int, step: int) -> torch.Tensor:
    y = x * 3
    y[:, start : start + 3 * step : step] = x[:, :3] * 2
    return y


def test_what_several_masks_want_at_one_place_is_loaded_once() -> None:
    rotate, columns = (minicompile.compile(function, options={"cache": False}) for function in (rotated_pairs, of_columns))
    check(rotated_pairs, torch.randn(3, 5, 8), torch.randn(5, 4), torch.randn(5, 4), compile=lambda _: rotate, backward=False)
    assert str(minicompile.sources(rotate)).count("tl.load(") == 4
    check(of_columns, torch.rand(7, 6, requires_grad=True), compile=lambda _: columns, tolerance=8.0)
    assert str(minicompile.sources(columns)).count("tl.load(") <= 6 + 7, "six columns in each direction, and the gradient"


@pytest.mark.parametrize(("start", "step"), [(0, 1), (2, 1), (0, 2), (1, 2), (2, 2), (3, 2), (5, 3), (1, 4)])
def test_slices_are_written_from_any_place(start: int, step: int) -> None:
    check(written_from, torch.randn(4, 16, requires_grad=True), start, step)
