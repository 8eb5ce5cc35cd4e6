"""The kernels that well-known graphs become: as few as dependence allows, and a reason for each pair that stays apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.expr import walk
from minicompile.ir.index import Symbol, as_index, floor_divide, remainder, substitute
from minicompile.ir.loops import ExternKernel, LoweredGraph
from minicompile.ir.schedule import DeviceProperties, KernelGroup, Schedule
from minicompile.scheduling.reindexing import step_of
from minicompile.scheduling.schedule import schedule_graph
from tests.differential import check, leaf
from tests.lowering.oracle import lower
from tests.planned_for_gpu import planned_for_gpu, thresholds_lowered
from tests.scheduling.hand_made import BF16, F32, GraphMaker, op, softmax, to

GPU = DeviceProperties(name="H200", kind="cuda")
CPU = DeviceProperties()


def schedule(graph: LoweredGraph, device: DeviceProperties = GPU) -> Schedule:
    """The verified schedule."""
    return schedule_graph(graph, Config(verify=True), device)


def kernels(result: Schedule) -> list[KernelGroup]:
    """The generated kernels."""
    return [step for step in result.steps if isinstance(step, KernelGroup)]


@pytest.mark.parametrize(("columns", "strategy"), [(8192, "persistent"), (50257, "looped")])
def test_softmax_is_one_kernel_that_reads_and_writes_once(columns: int, strategy: str) -> None:
    maker = GraphMaker()
    maker.input("a", 4096, columns)
    (kernel,) = kernels(schedule(maker.graph(softmax(maker, "a", 4096, columns))))
    assert kernel.tile.strategy == strategy
    assert kernel.bytes_read == kernel.bytes_written == 4096 * columns * 4
    assert kernel.stored == {"softmax"}


def test_softmax_over_a_symbolic_number_of_rows_is_one_kernel() -> None:
    rows = as_index(Symbol("s0", 512, 2))
    maker = GraphMaker()
    maker.input("a", rows, 1024)
    (kernel,) = kernels(schedule(maker.graph(softmax(maker, "a", rows, 1024))))
    assert kernel.tile.parallel[0].axis.size is rows and kernel.tile.strategy == "persistent"


def test_softmax_over_a_symbolic_row_is_persistent_up_to_a_length_and_looped_for_any() -> None:
    columns = as_index(Symbol("s0", 512, 2))
    maker = GraphMaker()
    maker.input("a", 4096, columns)
    graph = maker.graph(softmax(maker, "a", 4096, columns))
    (kernel,) = kernels(schedule(graph))
    assert kernel.tile.strategy == "persistent" and kernel.tile.longest >= 4096
    (kernel,) = kernels(schedule_graph(graph, Config(verify=True), GPU, any_size=True))
    assert kernel.tile.strategy == "looped"


def test_residual_and_norm_are_one_kernel_with_both_results() -> None:
    maker = GraphMaker()
    maker.input("x", 4096, 1024, dtype=BF16)
    maker.input("y", 4096, 1024, dtype=BF16)
    load, space = maker.load, (4096, 1024)
    maker.pointwise("h", space, lambda i, j: op("add", load("x", i, j), load("y", i, j), dtype=BF16), dtype=BF16)
    maker.pointwise("wide", space, lambda i, j: to(load("h", i, j), F32), "aten._to_copy.default")
    maker.reduce("square", "sum", space, (1,), lambda i, j: op("mul", load("wide", i, j), load("wide", i, j)))
    maker.pointwise("scale", (4096,), lambda i: op("rsqrt", load("square", i)), "aten.rsqrt.default")
    maker.pointwise("n", space, lambda i, j: op("mul", load("wide", i, j), load("scale", i)), "aten.mul.Tensor")
    (kernel,) = kernels(schedule(maker.graph("h", "n")))
    assert kernel.stored == {"h", "n"}
    assert kernel.bytes_read == 2 * 4096 * 1024 * 2


def test_a_transposed_operand_gets_a_tile_with_two_axes() -> None:
    maker = GraphMaker()
    maker.input("a", 2048, 2048)
    maker.input("b", 2048, 2048)
    maker.pointwise("sum", (2048, 2048), lambda i, j: op("add", maker.load("a", j, i), maker.load("b", i, j)))
    (kernel,) = kernels(schedule(maker.graph("sum")))
    assert [tile.axis.name for tile in kernel.tile.axes] == ["y", "x"]
    assert all(tile.block >= 32 for tile in kernel.tile.axes)


def test_a_permutation_that_keeps_long_runs_needs_no_second_axis() -> None:
    maker = GraphMaker()
    maker.input("a", 8, 12, 512, 64)
    maker.pointwise("out", (8, 512, 12, 64), lambda b, t, h, d: op("neg", maker.load("a", b, h, t, d)))
    (kernel,) = kernels(schedule(maker.graph("out")))
    assert len(kernel.tile.axes) == 1


def test_the_loop_order_follows_a_permuted_result() -> None:
    maker = GraphMaker()
    maker.input("a", 512, 384)
    maker.pointwise("out", (384, 512), lambda i, j: op("neg", maker.load("a", j, i)))
    loop = maker.operations[0]
    buffer = maker.buffers["out"]
    maker.buffers["out"] = type(buffer)("out", F32, buffer.device, buffer.sizes, (as_index(1), as_index(384)))
    i, j = loop.axes  # type: ignore[union-attr]
    maker.operations[0] = type(loop)("out", (i, j), loop.value, as_index(i) + as_index(j) * 384)  # type: ignore
    (kernel,) = kernels(schedule(maker.graph("out")))
    (only,) = kernel.loops
    assert len(kernel.tile.axes) == 1 and str(only.store) == "x" and str(only.value) == "neg(a[x])"


def test_a_full_reduction_is_split_in_two_on_a_gpu_and_left_whole_for_the_interpreter() -> None:
    maker = GraphMaker()
    maker.input("a", 16384, 8192)
    maker.reduce("all", "sum", (16384, 8192), (0, 1), lambda i, j: maker.load("a", i, j))
    graph = maker.graph("all")
    first, second = kernels(schedule(graph))
    assert first.tile.parallel[0].axis.size.constant >= 132  # type: ignore[operator]
    assert first.bytes_written == second.bytes_read and second.writes == ("all",)
    assert len(kernels(schedule(graph, CPU))) == 1


def test_a_column_reduction_keeps_neighbouring_columns_in_one_program() -> None:
    maker = GraphMaker()
    maker.input("a", 16384, 8192)
    maker.reduce("columns", "sum", (16384, 8192), (0,), lambda i, j: maker.load("a", i, j))
    for kernel in kernels(schedule(maker.graph("columns"))):
        assert kernel.tile.parallel[0].block >= 16


@pytest.mark.parametrize("dim", [0, 1])
def test_a_variance_of_what_fits_no_cache_reads_its_values_once(dim: int) -> None:
    sizes = (16384, 8192) if dim == 0 else (256, 1 << 20)
    kept = sizes[1 - dim]
    maker = GraphMaker()
    maker.input("a", *sizes)
    load = maker.load
    maker.reduce("total", "sum", sizes, (dim,), lambda i, j: load("a", i, j))
    maker.pointwise("mean", (kept,), lambda i: op("truediv", load("total", i), float(sizes[dim])))
    maker.pointwise("gap", sizes, lambda i, j: op("sub", load("a", i, j), load("mean", j if dim == 0 else i)))
    maker.reduce("squares", "sum", sizes, (dim,), lambda i, j: op("mul", load("gap", i, j), load("gap", i, j)))
    first, second = kernels(schedule(maker.graph("squares")))
    assert first.tile.strategy == "persistent"
    assert first.bytes_read == sizes[0] * sizes[1] * 4 and second.bytes_read < 0.05 * first.bytes_read


def normalised(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Groups of channels, as `group_norm` takes them."""
    variance, mean = torch.var_mean(x.unflatten(1, (groups, -1)), (2, 3, 4), keepdim=True, unbiased=False)
    return ((x.unflatten(1, (groups, -1)) - mean) * torch.rsqrt(variance + 1e-5)).flatten(1, 2)


def test_what_a_norm_writes_in_another_order_is_written_by_a_kernel_with_two_axes() -> None:
    """Along a row of it, each element would be in a sector of its own."""
    x = torch.empty(64, 256, 56, 56)
    function = lambda x: normalised(x, 32).bfloat16().contiguous(memory_format=torch.channels_last)
    statistics, values = kernels(result := schedule(lower(function, (x,))))
    assert statistics.tile.strategy == "looped" and values.tile.strategy == "pointwise"
    assert [axis.block for axis in values.tile.axes] == [64, 64]
    assert any("in vain" in refusal.reason for refusal in result.refusals)
    assert len(kernels(schedule(lower(lambda x: normalised(x, 32).bfloat16(), (x,))))) == 1


def test_channels_of_a_group_that_lie_together_are_folded_last() -> None:
    """Where they are few: neighbouring elements belong to neighbouring groups, and a program takes those of all."""
    x = torch.empty(64, 64, 56, 56, dtype=BF16, memory_format=torch.channels_last)
    first, second, values = kernels(schedule(lower(lambda x: normalised(x.float(), 32), (x,))))
    assert first.tile.parallel[-1].block >= 64 and first.bytes_read == x.nbytes and second.bytes_read < x.nbytes // 20
    assert values.tile.strategy == "pointwise"
    assert len(kernels(schedule(lower(lambda x: normalised(x.float(), 4), (x,))))) < 3
    with planned_for_gpu(), thresholds_lowered():
        small = torch.randn(2, 8, 6, 5).contiguous(memory_format=torch.channels_last)
        check(lambda x: normalised(x, 4), small)
        check(lambda x: (normalised(x, 4), x.unflatten(1, (4, 2)).amax((2, 3, 4))), small)


@pytest.mark.parametrize("channels", [256, 512])
def test_a_chunk_of_a_group_reads_whole_sectors(channels: int) -> None:
    """A chunk of one channel would use one element of each sector that it moves; of eight channels they are half of one."""
    x = torch.empty(2, channels, 256, 256, dtype=BF16, memory_format=torch.channels_last)
    first, second, *_ = kernels(schedule(lower(lambda x: normalised(x.float(), 32), (x,))))
    along = first.tile.reduction if channels == 512 else first.tile.parallel[-1]
    assert along is not None and {step_of(load.index, along.axis) for load in first.loops[0].loads} == {1} and along.block >= 16
    assert second.tile.strategy == "persistent" or second.tile.parallel[-1].block == 8, "few programs walk along few columns each"


def test_groups_of_few_programs_are_split_where_their_elements_lie_in_pieces() -> None:
    for layout, number in ((torch.channels_last, 3), (torch.contiguous_format, 1)):
        x = torch.empty(2, 320, 64, 64, dtype=BF16, memory_format=layout)
        assert len(kernels(schedule(lower(lambda x: normalised(x.float(), 32), (x,))))) == number


@pytest.mark.parametrize(("of_frequency", "number"), [(lambda at: 10000.0 ** (-at / 64), 2), (lambda at: at / 64 + 1, 1)])
def test_functions_in_fp64_are_not_computed_again_for_every_element(of_frequency: Callable[..., torch.Tensor], number: int) -> None:
    """As rotary embeddings make their tables: one power for each frequency."""

    def table(places: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(places, of_frequency(at))
        return torch.cat([angles.cos(), angles.sin()], -1).float()

    given = torch.arange(4096, dtype=torch.float64), torch.arange(64, dtype=torch.float64)
    assert len(kernels(schedule(lower(table, given)))) == number


def test_views_between_operations_do_not_stop_fusion() -> None:
    maker = GraphMaker()
    maker.input("a", 64, 96)
    maker.pointwise("first", (64, 96), lambda i, j: op("exp", maker.load("a", i, j)))

    def reshaped(i: object, j: object) -> object:
        flat = i * 64 + j  # type: ignore[operator]
        return op("sin", maker.load("first", floor_divide(flat, as_index(96)), remainder(flat, as_index(96))))

    maker.pointwise("second", (96, 64), reshaped)  # type: ignore[arg-type]
    (kernel,) = kernels(schedule(maker.graph("first", "second")))
    assert kernel.stored == {"first", "second"}
    assert [str(loop.store) for loop in kernel.loops] == ["x", "x"]


def test_siblings_read_their_input_once() -> None:
    maker = GraphMaker()
    maker.input("a", 4096, 4096)
    for name, function in (("sine", "sin"), ("cosine", "cos")):
        maker.pointwise(name, (4096, 4096), lambda i, j, f=function: op(f, maker.load("a", i, j)))
    (kernel,) = kernels(schedule(maker.graph("sine", "cosine")))
    assert kernel.bytes_read == 4096 * 4096 * 4


def test_a_cycle_through_an_extern_kernel_is_refused_by_name() -> None:
    maker = GraphMaker()
    maker.input("a", 256, 256)
    maker.pointwise("before", (256, 256), lambda i, j: op("exp", maker.load("a", i, j)))
    maker.extern("outside", "before")
    maker.pointwise(
        "after", (256, 256), lambda i, j: op("add", maker.load("before", i, j), maker.load("outside", i, j))
    )
    result = schedule(maker.graph("after"))
    assert [type(step) for step in result.steps] == [KernelGroup, ExternKernel, KernelGroup]
    (refusal,) = result.refusals
    assert (refusal.producer, refusal.consumer, refusal.verdict) == ("before", "after", "illegal")
    assert "outside" in refusal.reason


def test_readers_of_an_overwritten_buffer_come_first() -> None:
    maker = GraphMaker()
    maker.input("a", 128)
    maker.pointwise("reversed", (128,), lambda i: op("neg", maker.load("a", as_index(127) - i)))
    maker.pointwise("a2", (128,), lambda i: op("mul", maker.load("a", i), 2.0), overwrites="a")
    result = schedule(maker.graph("reversed", "a2"))
    assert [kernel.writes for kernel in kernels(result)] == [("reversed",), ("a2",)]
    assert any(refusal.verdict == "illegal" and "a2" in refusal.reason for refusal in result.refusals)


def test_a_cheap_cast_is_repeated_rather_than_stored() -> None:
    maker = GraphMaker()
    maker.input("a", 4096, 4096, dtype=BF16)
    space = (4096, 4096)
    maker.pointwise("wide", space, lambda i, j: to(maker.load("a", i, j), F32))
    maker.reduce("rows", "sum", space, (1,), lambda i, j: maker.load("wide", i, j))
    maker.reduce("columns", "sum", space, (0,), lambda i, j: maker.load("wide", i, j))
    result = schedule(maker.graph("rows", "columns"))
    assert "wide" not in result.memory.allocations


def test_costly_arithmetic_is_not_repeated_for_every_column() -> None:
    maker = GraphMaker()
    maker.input("scale", 64)
    maker.input("a", 64, 65536)
    maker.pointwise("gamma", (64,), lambda i: op("lgamma", op("exp", maker.load("scale", i))))
    maker.pointwise("out", (64, 65536), lambda i, j: op("mul", maker.load("a", i, j), maker.load("gamma", i)))
    assert len(kernels(schedule(maker.graph("out")))) == 2


def test_names_come_from_the_operators_and_are_unique_in_the_program() -> None:
    maker = GraphMaker()
    maker.input("a", 64, 64)
    maker.pointwise("b", (64, 64), lambda i, j: op("exp", maker.load("a", i, j)), "aten.gelu.default")
    maker.extern("c", "b")
    maker.pointwise("d", (64, 64), lambda i, j: op("exp", maker.load("c", i, j)), "aten.gelu.default")
    maker.pointwise("e", (32, 32), lambda i, j: op("neg", maker.load("d", i, j)), "aten.gelu.default")
    made = schedule(maker.graph("d", "e"))
    assert [kernel.name for kernel in kernels(made)] == ["gelu"] * 3
    assert generate_program(made, Config(), GPU).launches == ("gelu_kernel", "gelu_kernel", "gelu_kernel_1")


@torch.library.custom_op("scheduling_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x / 2, x / 2


halves.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))


def test_a_call_whose_results_nobody_uses_may_stand_between_two_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        halves(x * 2)
        return x * torch.rand(4)

    check(function, leaf(4), reference=False)


def test_windows_written_in_another_order_have_a_tile_with_two_axes() -> None:
    """However many elements of a window are read: they are in the cache from the second on."""
    x = torch.empty(8, 64, 56, 56)
    function = lambda x: F.avg_pool2d(x, 3, 1, 1).bfloat16().contiguous(memory_format=torch.channels_last)
    (kernel,) = kernels(schedule(lower(function, (x,))))
    assert [axis.block for axis in kernel.tile.axes] == [64, 64]


def test_parts_of_one_tensor_that_are_copied_in_two_orders_are_two_kernels() -> None:
    """As one, which has one axis, each element of one of them would be in a sector of its own."""
    x = torch.empty(8, 144, 128, 128, memory_format=torch.channels_last)

    def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        queries, keys, _ = x.reshape(8, 3, 144 // 3, -1).unbind(1)
        return queries.exp().contiguous(), keys.transpose(1, 2).exp().contiguous()

    turned, straight = sorted(kernels(result := schedule(lower(parts, (x,)))), key=lambda kernel: -len(kernel.tile.axes))
    assert len(turned.tile.axes) == 2 and len(straight.tile.axes) == 1
    assert any("in vain" in refusal.reason for refusal in result.refusals)


def test_rows_that_lie_together_are_neighbours_in_a_tile() -> None:
    """An image is written as pixels, and summed by channels in parts: the rows of a program are channels that lie together."""
    x, y = torch.empty(32, 96, 56, 56), torch.empty(32, 96, 56, 56)

    def doubled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = (x * 2).bfloat16().contiguous(memory_format=torch.channels_last)
        return pixels, (pixels.float() * y).sum((0, 2, 3))

    kernel = kernels(schedule(lower(doubled, (x, y))))[0]
    (rows,), step = kernel.tile.parallel, kernel.tile.reduction
    places = [substitute(kernel.loops[0].store, {rows.axis: as_index(row), step.axis: as_index(0)}).constant for row in range(16)]
    assert rows.block == 16 and places == list(range(16)), "as many halves as a sector holds"


def test_a_reduction_does_not_leave_its_rows_for_a_few_columns() -> None:
    """Folded along neighbouring columns beside what is written so, 256 rows would be the work of four programs."""
    x, y = torch.empty(32, 256, 56, 56, dtype=BF16), torch.empty(32, 256, 56, 56, dtype=BF16, memory_format=torch.channels_last)

    def centred(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - x.float().mean((0, 2, 3), keepdim=True) * y).bfloat16().contiguous(memory_format=torch.channels_last)

    result = schedule(lower(centred, (x, y)))
    walks = [kernel for kernel in kernels(result) if kernel.tile.reduction is not None]
    assert all(int(kernel.tile.parallel[-1].axis.size) // kernel.tile.parallel[-1].block >= 100 for kernel in walks[:1])
    assert any("programs would walk" in refusal.reason for refusal in result.refusals)


def test_large_powers_of_a_number_are_not_computed_in_fp64() -> None:
    """Which takes ten times as long; of few elements, such as counts of steps and angles, they are, and are rounded once."""
    with planned_for_gpu():
        bodies = [kernels(schedule(lower(lambda x: 0.9**x, (torch.empty(size),))))[0].loops[0].value for size in (1 << 12, 1 << 20)]
    assert [any(part.dtype == torch.float64 for part in walk(body)) for body in bodies] == [True, False]
