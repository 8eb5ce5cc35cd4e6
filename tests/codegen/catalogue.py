"""Representative kernels, each as a schedule: their text is held in `tests/golden`, their machine code is checked."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minicompile.config import Config
from minicompile.errors import Location
from minicompile.ir.expr import Constant, Expr, IndexValue, Load, Masked, Random, apply, cast
from minicompile.ir.index import Axis, Index, Indirect, Symbol, as_index
from minicompile.ir.loops import Loop, LoweredGraph, Origin, Reduction, Scan
from minicompile.ir.schedule import Schedule
from minicompile.scheduling.schedule import schedule_graph
from tests.codegen.build import GPU, buffer, group, pointwise_plan, reduction_plan, schedule
from tests.scheduling.hand_made import GraphMaker
from tests.scheduling.hand_made import softmax as softmax_by_hand

F32, BF16, F16, I64, BOOL = torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool

CATALOGUE: dict[str, Callable[[], Schedule]] = {}


def entry(make: Callable[[], Schedule]) -> Callable[[], Schedule]:
    CATALOGUE[make.__name__] = make
    return make


def origin(variable: str, operator: str, line: int, text: str) -> tuple[Origin, ...]:
    return (Origin(variable, operator, variable, Location("model.py", line, "forward", text)),)


def number_of(value: float) -> Constant:
    return Constant(value, F32)


def number(value: float, dtype: torch.dtype = F32) -> Constant:
    return Constant(value, dtype)


def f32(operation: str, *arguments: Expr) -> Expr:
    return apply(operation, *arguments, dtype=F32)


def gelu(value: Expr) -> Expr:
    inner = f32("erf", f32("mul", value, number(0.7071067811865476)))
    return f32("mul", f32("mul", value, number(0.5)), f32("add", inner, number(1.0)))


@entry
def gelu_mul() -> Schedule:
    x = Axis("x", 1 << 20)
    at = as_index(x)
    loops = [
        Loop("hidden", (x,), gelu(Load("up", at, F32)), at,
             origins=origin("hidden", "aten.gelu.default", 12, "hidden = F.gelu(up)")),
        Loop("result", (x,), f32("mul", Load("hidden", at, F32), Load("gate", at, F32)), at,
             origins=origin("result", "aten.mul.Tensor", 13, "result = hidden * gate")),
    ]  # fmt: skip
    buffers = [buffer("up", (1 << 20,), role="input"), buffer("gate", (1 << 20,), role="input"),
               buffer("hidden", (1 << 20,)), buffer("result", (1 << 20,))]  # fmt: skip
    return schedule([group("gelu_mul", loops, pointwise_plan((x, 1024)), ["result"])], buffers, ["result"])


def silu_bias(dtype: torch.dtype, emulate: str = "") -> Schedule:
    rows, width = 1000, 77
    x = Axis("x", rows * width)
    at = as_index(x)
    total = apply("add", Load("a", at, dtype), Load("bias", at % width, dtype), dtype=dtype)
    value = apply("mul", total, apply("sigmoid", total, dtype=dtype), dtype=dtype)
    buffers = [buffer("a", (rows, width), dtype, "input"), buffer("bias", (width,), dtype, "input"),
               buffer("out", (rows, width), dtype)]  # fmt: skip
    loops = [Loop("out", (x,), value, at)]
    return schedule([group("silu", loops, pointwise_plan((x, 512)), ["out"])], buffers, ["out"])


@entry
def silu_bias_bfloat16() -> Schedule:
    return silu_bias(BF16)


@entry
def silu_bias_emulated_casts() -> Schedule:
    return silu_bias(BF16)


@entry
def transpose() -> Schedule:
    y, x = Axis("y", 3000), Axis("x", 500)
    value = f32("add", Load("a", as_index(x) * 3000 + as_index(y), F32), number(1.0))
    buffers = [buffer("a", (500, 3000), role="input"), buffer("out", (3000, 500))]
    loops = [Loop("out", (y, x), value, as_index(y) * 500 + as_index(x))]
    return schedule([group("transpose_add", loops, pointwise_plan((y, 32), (x, 32)), ["out"])], buffers, ["out"])


@entry
def many_tiles_in_one_grid_dimension() -> Schedule:
    y, x = Axis("y", 70000), Axis("x", 100)
    value = f32("neg", Load("a", as_index(x) * 70000 + as_index(y), F32))
    buffers = [buffer("a", (100, 70000), role="input"), buffer("out", (70000, 100))]
    loops = [Loop("out", (y, x), value, as_index(y) * 100 + as_index(x))]
    return schedule([group("neg", loops, pointwise_plan((y, 1), (x, 64)), ["out"])], buffers, ["out"])


def softmax(rows: int, length: int, dtype: torch.dtype, strategy: str, block: int) -> Schedule:
    x, r = Axis("x", rows), Axis("r", length)
    at_x, place = as_index(x), as_index(x) * length + as_index(r)
    value = cast(Load("scores", place, dtype), F32)
    exponential = f32("exp", f32("sub", value, Load("highest", at_x, F32)))
    loops = [
        Loop("highest", (x,), value, at_x, Reduction("max", (r,))),
        Loop("total", (x,), exponential, at_x, Reduction("sum", (r,))),
        Loop("weights", (x, r), cast(f32("truediv", exponential, Load("total", at_x, F32)), dtype), place),
    ]
    buffers = [buffer("scores", (rows, length), dtype, "input"), buffer("highest", (rows,)), buffer("total", (rows,)),
               buffer("weights", (rows, length), dtype)]  # fmt: skip
    plan = reduction_plan(strategy, (x, 1), (r, block))
    return schedule([group("softmax", loops, plan, ["weights"])], buffers, ["weights"])


@entry
def softmax_persistent() -> Schedule:
    return softmax(4096, 1000, BF16, "persistent", 1024)


@entry
def softmax_online() -> Schedule:
    return softmax(512, 50257, F32, "looped", 4096)


def layer_norm(rows: int, length: int, strategy: str, rows_block: int, block: int, dtype: torch.dtype) -> Schedule:
    x, r = Axis("x", rows), Axis("r", length)
    at_x, at_r = as_index(x), as_index(r)
    place = at_x * length + at_r
    value = cast(Load("hidden", place, dtype), F32)
    mean = f32("truediv", Load("total", at_x, F32), number(float(length)))
    centred = f32("sub", value, Load("mean", at_x, F32))
    spread = f32("rsqrt", f32("add", f32("truediv", Load("squares", at_x, F32), number(float(length))), number(1e-5)))
    scaled = f32("mul", f32("mul", centred, Load("inverse", at_x, F32)), cast(Load("weight", at_r, dtype), F32))
    loops = [
        Loop("total", (x,), value, at_x, Reduction("sum", (r,))),
        Loop("mean", (x,), mean, at_x),
        Loop("squares", (x,), f32("mul", centred, centred), at_x, Reduction("sum", (r,))),
        Loop("inverse", (x,), spread, at_x),
        Loop("normal", (x, r), cast(f32("add", scaled, cast(Load("bias", at_r, dtype), F32)), dtype), place),
    ]
    buffers = [buffer("hidden", (rows, length), dtype, "input"), buffer("weight", (length,), dtype, "input"),
               buffer("bias", (length,), dtype, "input"), *(buffer(n, (rows,)) for n in (
                   "total", "mean", "squares", "inverse")), buffer("normal", (rows, length), dtype)]  # fmt: skip
    plan = reduction_plan(strategy, (x, rows_block), (r, block))
    kept = ["normal", "mean", "inverse"]
    return schedule([group("layer_norm", loops, plan, kept)], buffers, kept)


@entry
def layer_norm_persistent() -> Schedule:
    return layer_norm(8192, 768, "persistent", 2, 1024, BF16)


@entry
def layer_norm_of_long_rows() -> Schedule:
    """One row a program: weight and bias are loaded beside it."""
    return layer_norm(16384, 4096, "persistent", 1, 4096, F32)


@entry
def waves() -> Schedule:
    x = Axis("x", 4096)
    value = Load("angle", as_index(x), F32)
    loops = [Loop("wave", (x,), f32("sin", value), as_index(x))]
    buffers = [buffer("angle", (4096,), role="input"), buffer("wave", (4096,))]
    return schedule([group("sin", loops, pointwise_plan((x, 1024)), ["wave"])], buffers, ["wave"])


@entry
def layer_norm_looped() -> Schedule:
    return layer_norm(64, 262144, "looped", 1, 4096, F32)


@entry
def column_sum() -> Schedule:
    x, r = Axis("x", 768), Axis("r", 8192)
    value = Load("gradient", as_index(r) * 768 + as_index(x), F16)
    loops = [Loop("bias_gradient", (x,), value, as_index(x), Reduction("sum", (r,)))]
    buffers = [buffer("gradient", (8192, 768), F16, "input"), buffer("bias_gradient", (768,), F16)]
    plan = reduction_plan("looped", (x, 64), (r, 64))
    return schedule([group("sum", loops, plan, ["bias_gradient"])], buffers, ["bias_gradient"])


def place_of_largest(strategy: str, length: int, block: int) -> Schedule:
    x, r = Axis("x", 100), Axis("r", length)
    loops = [Loop("best", (x,), Load("scores", as_index(x) * length + as_index(r), F32), as_index(x), Reduction("argmax", (r,)))]
    buffers = [buffer("scores", (100, length), role="input"), buffer("best", (100,), I64)]
    plan = reduction_plan(strategy, (x, 4), (r, block))
    return schedule([group("argmax", loops, plan, ["best"])], buffers, ["best"])


@entry
def argmax_persistent() -> Schedule:
    return place_of_largest("persistent", 500, 512)


@entry
def argmax_looped() -> Schedule:
    return place_of_largest("looped", 50000, 1024)


@entry
def any_nan() -> Schedule:
    r = Axis("r", 100000)
    value = apply("isnan", Load("a", as_index(r), F32), dtype=BOOL)
    buffers = [buffer("a", (100000,), role="input"), buffer("found", (), BOOL)]
    loops = [Loop("found", (), value, as_index(0), Reduction("any", (r,)))]
    return schedule([group("any_nan", loops, reduction_plan("looped", (r, 1024)), ["found"])], buffers, ["found"])


def running(kind: str, strategy: str, length: int, block: int) -> Schedule:
    x, r = Axis("x", 200), Axis("r", length)
    place = as_index(x) * length + as_index(r)
    loops = [Loop("running", (x, r), Load("a", place, F32), place, Scan(kind, r))]  # type: ignore[arg-type]
    buffers = [buffer("a", (200, length), role="input"), buffer("running", (200, length))]
    plan = reduction_plan(strategy, (x, 1), (r, block))
    return schedule([group(kind, loops, plan, ["running"])], buffers, ["running"])


@entry
def cumsum_persistent() -> Schedule:
    return running("cumsum", "persistent", 1000, 1024)


@entry
def cumprod_looped() -> Schedule:
    return running("cumprod", "looped", 100000, 2048)


def checked_index(buffer: str, at: Index, size: int) -> Indirect:
    """A whole number from memory that is used as an index."""
    value = Load(buffer, at, I64)
    inside = apply("logical_and", apply("ge", value, number(0, I64), dtype=BOOL), apply("lt", value, number(size, I64), dtype=BOOL),
                   dtype=BOOL)  # fmt: skip
    return Indirect(apply("checked", value, inside, dtype=I64), as_index(size))


@entry
def embedding_gradient() -> Schedule:
    x = Axis("x", 4096 * 512)
    at = as_index(x)
    token = checked_index("tokens", at // 512, 32000)
    loops = [Loop("table_gradient", (x,), Load("gradient", at, F32), as_index(token) * 512 + at % 512, accumulate=True,
                  overwrites="zeros")]  # fmt: skip
    buffers = [buffer("tokens", (4096,), I64, "input"), buffer("gradient", (4096, 512), role="input"),
               buffer("zeros", (32000, 512), role="input"), buffer("table_gradient", (32000, 512))]  # fmt: skip
    plan = pointwise_plan((x, 1024))
    return schedule([group("embedding_backward", loops, plan, ["table_gradient"])], buffers, ["table_gradient"])


@entry
def embedding_and_position() -> Schedule:
    x = Axis("x", 4096 * 512)
    at = as_index(x)
    token = checked_index("tokens", at // 512, 32000)
    word = Load("table", as_index(token) * 512 + at % 512, BF16)
    place = Load("positions", at // 512 % 1024 * 512 + at % 512, BF16)
    buffers = [buffer("tokens", (4096,), I64, "input"), buffer("table", (32000, 512), BF16, "input"),
               buffer("positions", (1024, 512), BF16, "input"), buffer("hidden", (4096, 512), BF16)]  # fmt: skip
    loops = [Loop("hidden", (x,), apply("add", word, place, dtype=BF16), at)]
    return schedule([group("embedding_add", loops, pointwise_plan((x, 1024)), ["hidden"])], buffers, ["hidden"])


@entry
def padding() -> Schedule:
    x = Axis("x", 64 * 104)
    at = as_index(x)
    column = IndexValue(at % 104, I64)
    inside = apply("bitwise_and", apply("ge", column, number(2, I64), dtype=BOOL),
                   apply("lt", column, number(102, I64), dtype=BOOL), dtype=BOOL)  # fmt: skip
    value = Masked(inside, Load("a", at // 104 * 100 + at % 104 - 2, F32), number(0.0), F32)
    buffers = [buffer("a", (64, 100), role="input"), buffer("out", (64, 104))]
    loops = [Loop("out", (x,), value, at)]
    return schedule([group("pad", loops, pointwise_plan((x, 256)), ["out"])], buffers, ["out"])


@entry
def dropout() -> Schedule:
    x = Axis("x", 1 << 16)
    at = as_index(x)
    keep = apply("ge", Random("uniform", Load("seeds", as_index(0), I64), at, F32), number(0.1), dtype=BOOL)
    value = apply("where", keep, apply("mul", Load("a", at, BF16), number(1 / 0.9, BF16), dtype=BF16), number(0.0, BF16),
                  dtype=BF16)  # fmt: skip
    buffers = [buffer("seeds", (1,), I64, "input"), buffer("a", (1 << 16,), BF16, "input"),
               buffer("out", (1 << 16,), BF16), buffer("keep", (1 << 16,), BOOL)]  # fmt: skip
    loops = [Loop("keep", (x,), keep, at), Loop("out", (x,), value, at)]
    return schedule([group("dropout", loops, pointwise_plan((x, 512)), ["keep", "out"])], buffers, ["keep", "out"])


@entry
def dynamic_rows() -> Schedule:
    symbol = as_index(Symbol("s0", 300, 2))
    rows: Index = symbol
    x, r = Axis("x", rows), Axis("r", 100)
    at_x = as_index(x)
    value = f32("abs", Load("a", at_x * 100 + as_index(r), F32))
    loops = [Loop("norm", (x,), value, at_x, Reduction("sum", (r,)))]
    buffers = [buffer("a", (rows, 100), role="input"), buffer("norm", (rows,))]
    plan = reduction_plan("persistent", (x, 8), (r, 128))
    return schedule([group("norm", loops, plan, ["norm"])], buffers, ["norm"], size_inputs={"s0": symbol})


@entry
def more_elements_than_32_bits_count() -> Schedule:
    x = Axis("x", 3 << 30)
    at = as_index(x)
    buffers = [buffer("a", (3 << 30,), torch.int8, "input"), buffer("out", (3 << 30,), torch.int8)]
    loops = [Loop("out", (x,), apply("add", Load("a", at, torch.int8), Constant(1, torch.int8), dtype=torch.int8), at)]
    return schedule([group("add", loops, pointwise_plan((x, 2048)), ["out"])], buffers, ["out"])


@entry
def integer_division() -> Schedule:
    x = Axis("x", 5000)
    at = as_index(x)
    value = Load("a", at, I64)
    loops = [
        Loop("quotient", (x,), apply("floordiv", value, Constant(7, I64), dtype=I64), at),
        Loop("rest", (x,), apply("remainder", value, Constant(7, I64), dtype=I64), at),
    ]
    buffers = [buffer("a", (5000,), I64, "input"), buffer("quotient", (5000,), I64), buffer("rest", (5000,), I64)]
    plan = pointwise_plan((x, 512))
    return schedule([group("divide", loops, plan, ["quotient", "rest"])], buffers, ["quotient", "rest"])


@entry
def double_statistics() -> Schedule:
    x, r = Axis("x", 10), Axis("r", 1000)
    at_x = as_index(x)
    value = Load("a", at_x * 1000 + as_index(r), torch.float64)
    share = apply("mul", value, Constant(0.1, torch.float64), dtype=torch.float64)
    loops = [
        Loop("product", (x,), share, at_x, Reduction("prod", (r,))),
        Loop("lowest", (x,), share, at_x, Reduction("min", (r,))),
    ]
    buffers = [buffer("a", (10, 1000), torch.float64, "input"), buffer("product", (10,), torch.float64),
               buffer("lowest", (10,), torch.float64)]  # fmt: skip
    plan = reduction_plan("looped", (x, 1), (r, 256))
    return schedule([group("statistics", loops, plan, ["product", "lowest"])], buffers, ["product", "lowest"])


def scheduled(graph: LoweredGraph) -> Schedule:
    """What the scheduler makes of a graph on a GPU."""
    return schedule_graph(graph, Config(verify=True), GPU)


@entry
def rms_norm_backward() -> Schedule:
    maker, rows, columns = GraphMaker(), 8192, 768
    for name in ("x", "gradient"):
        maker.input(name, rows, columns, dtype=BF16)
    maker.input("weight", columns, dtype=BF16)
    maker.input("scale", rows)

    def wide(name: str, *point: Index) -> Expr:
        return cast(maker.load(name, *point), F32)

    def scaled(i: Index, j: Index) -> Expr:
        return f32("mul", wide("gradient", i, j), wide("weight", j))

    maker.reduce("projection", "sum", (rows, columns), (1,), lambda i, j: f32("mul", scaled(i, j), wide("x", i, j)))
    maker.pointwise("x_gradient", (rows, columns), lambda i, j: cast(f32("sub", f32("mul", scaled(i, j), maker.load(
        "scale", i)), f32("mul", f32("mul", wide("x", i, j), maker.load("projection", i)), maker.load("scale", i))), BF16),
        "aten.mul.Tensor", BF16)  # fmt: skip
    maker.reduce("weight_gradient", "sum", (rows, columns), (0,), lambda i, j: f32("mul", wide("gradient", i, j), f32(
        "mul", wide("x", i, j), maker.load("scale", i))))  # fmt: skip
    return scheduled(maker.graph("x_gradient", "weight_gradient"))


@entry
def optimizer_step() -> Schedule:
    maker = GraphMaker()
    outputs = []
    for number, size in enumerate((4096, 768, 1 << 20)):
        p, g, m = (maker.input(f"{name}_{number}", size) for name in ("parameter", "gradient", "momentum"))
        faster = maker.pointwise(f"faster_{number}", (size,), lambda i, m=m, g=g: f32(
            "add", f32("mul", maker.load(m, i), number_of(0.9)), maker.load(g, i)), overwrites=m)  # fmt: skip
        outputs += [faster, maker.pointwise(f"moved_{number}", (size,), lambda i, p=p, f=faster: f32(
            "sub", maker.load(p, i), f32("mul", maker.load(f, i), number_of(0.1))), overwrites=p)]  # fmt: skip
    return scheduled(maker.graph(*outputs))


@entry
def softmax_of_few_long_rows() -> Schedule:
    maker = GraphMaker()
    maker.input("x", 4, 1 << 18)
    return scheduled(maker.graph(softmax_by_hand(maker, "x", 4, 1 << 18)))


@entry
def cross_entropy_gradient() -> Schedule:
    """Of logits padded from 50,257 classes: what holds for a row is loaded once, without a mask."""
    maker, rows, classes, padded = GraphMaker(), 8192, 50257, 50264
    maker.input("logits", rows, classes, dtype=BF16)
    maker.input("target", rows, dtype=I64)
    for name in ("highest", "log_total"):
        maker.input(name, rows)
    maker.input("scale", 1)

    def at_target(i: Index, j: Index) -> Expr:
        here = apply("eq", IndexValue(j, I64), maker.load("target", i), dtype=BOOL)
        return f32("where", here, f32("neg", maker.load("scale", 0)), number_of(0.0))

    def difference(i: Index, j: Index) -> Expr:
        below = f32("sub", cast(maker.load("logits", i, j), F32), maker.load("highest", i))
        likely = f32("exp", f32("sub", below, maker.load("log_total", i)))
        return cast(f32("sub", at_target(i, j), f32("mul", likely, maker.load("total", i))), BF16)

    maker.reduce("total", "sum", (rows, classes), (1,), at_target)
    maker.pointwise("gradient", (rows, padded), lambda i, j: Masked(
        apply("lt", IndexValue(j, I64), Constant(classes, I64), dtype=BOOL), difference(i, j), Constant(0.0, BF16), BF16),
        "aten._log_softmax_backward_data.default", BF16)  # fmt: skip
    return scheduled(maker.graph("gradient"))


@entry
def rotary_embedding() -> Schedule:
    maker, heads, time, half = GraphMaker(), 12, 512, 32
    for name in ("cos", "sin"):
        maker.input(name, time, half)
    maker.input("q", heads, time, 2 * half, dtype=BF16)

    def turned(h: Index, t: Index, j: Index, first: str, second: str, sign: str) -> Expr:
        even = f32("mul", cast(maker.load("q", h, t, j * 2), F32), maker.load(first, t, j))
        odd = f32("mul", cast(maker.load("q", h, t, j * 2 + 1), F32), maker.load(second, t, j))
        return f32(sign, even, odd)

    shape = (heads, time, half)
    maker.pointwise("low", shape, lambda h, t, j: turned(h, t, j, "cos", "sin", "sub"), "aten.sub.Tensor")
    maker.pointwise("high", shape, lambda h, t, j: turned(h, t, j, "sin", "cos", "add"))
    maker.pointwise("rotated", (heads, time, 2 * half), lambda h, t, j: cast(Masked(
        apply("lt", IndexValue(j, I64), Constant(half, I64), dtype=BOOL), maker.load("low", h, t, j), Masked(
            apply("ge", IndexValue(j, I64), Constant(half, I64), dtype=BOOL), maker.load("high", h, t, j - half),
            number_of(0.0), F32), F32), BF16), "aten.cat.default", BF16)  # fmt: skip
    return scheduled(maker.graph("rotated"))


CONFIGURATION = {"silu_bias_emulated_casts": {"emulate_precision_casts": True}}
