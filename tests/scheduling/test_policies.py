"""The policies, as pure functions of facts: what is inlined, what is fused, what is split, what a kernel is called."""

from __future__ import annotations

import dataclasses

import torch

from minicompile.config import Config
from minicompile.errors import Location
from minicompile.ir.expr import Load, apply
from minicompile.ir.index import Axis, as_index
from minicompile.ir.loops import Buffer, Loop, Origin, Reduction
from minicompile.ir.schedule import DeviceProperties
from minicompile.scheduling.inline import InlineFacts, should_inline
from minicompile.scheduling.naming import MAXIMUM_LENGTH, kernel_name, operator_word
from minicompile.scheduling.profit import PairFacts, refusal
from minicompile.scheduling.schedule import schedule_graph
from minicompile.scheduling.split import choose_splits, split_reductions
from tests.scheduling.hand_made import GraphMaker, softmax

GPU = DeviceProperties(name="H200", kind="cuda")
MEGA = 1 << 20
CAST = InlineFacts(consumers=3, result_bytes=64 * MEGA, input_bytes=32 * MEGA, arithmetic=1, reloads=0,
                   computed_points=16 * MEGA, inlined_points=48 * MEGA, nodes=2, loads=1, fusible=True, shared_bytes=0, kept=False, epilogue=False,
                   measured=None)
PAIR = PairFacts(bytes_apart=100 * MEGA, bytes_fused=60 * MEGA, vertical=True, distance=3, buffers=4, loops=2,
                 scan_length=0, rows=4096, row_length=4096, second_pass=False)


def test_rows_and_columns_are_folded_in_one_walk_if_enough_programs_walk() -> None:
    crossed = dataclasses.replace(PAIR, crossed=True, rows=100_352, row_length=96)
    assert refusal(dataclasses.replace(crossed, programs=392)) is None
    assert refusal(dataclasses.replace(crossed, programs=8)) == "only 8 programs would walk over 100352 rows"
    small = dataclasses.replace(crossed, bytes_apart=2 * MEGA, bytes_fused=MEGA, programs=4, row_length=768)
    assert refusal(dataclasses.replace(small, rows=4 * 32)) is None, "another kernel costs more"
    assert refusal(dataclasses.replace(small, rows=4 * 77)) == "only 4 programs would walk over 308 rows"


def test_a_cast_with_three_readers_is_repeated_and_a_sum_of_two_inputs_is_not() -> None:
    assert should_inline(CAST)
    assert not should_inline(dataclasses.replace(CAST, input_bytes=128 * MEGA))
    assert should_inline(dataclasses.replace(CAST, input_bytes=128 * MEGA, measured=torch.float32)), "memory would round it"
    assert not should_inline(dataclasses.replace(CAST, measured=torch.bfloat16)), "memory rounds the largest, too"


def test_what_no_consumer_can_take_into_its_kernel_costs_a_round_trip_more() -> None:
    pair = dataclasses.replace(CAST, consumers=2, input_bytes=160 * MEGA, inlined_points=32 * MEGA)
    assert not should_inline(pair)
    assert should_inline(dataclasses.replace(pair, fusible=False))


def test_costly_values_are_repeated_only_where_nothing_is_computed_twice() -> None:
    costly = dataclasses.replace(CAST, arithmetic=400)
    assert not should_inline(costly)
    assert should_inline(dataclasses.replace(costly, consumers=1, inlined_points=16 * MEGA))


def test_what_keeps_a_consumer_from_the_walk_of_its_reduction_is_repeated() -> None:
    scale = dataclasses.replace(CAST, consumers=1, result_bytes=MEGA, computed_points=MEGA // 4, inlined_points=32 * MEGA)
    assert not should_inline(scale)
    assert should_inline(dataclasses.replace(scale, shared_bytes=64 * MEGA))
    assert not should_inline(dataclasses.replace(scale, kept=True))
    assert should_inline(dataclasses.replace(scale, shared_bytes=64 * MEGA, kept=True))


def test_bodies_never_grow_without_bound() -> None:
    assert not should_inline(dataclasses.replace(CAST, consumers=1, nodes=5000))
    assert not should_inline(dataclasses.replace(CAST, consumers=1, loads=100))


def test_fusion_needs_bytes_saved_unless_it_saves_a_launch_of_a_small_kernel() -> None:
    assert refusal(PAIR) is None
    nothing = dataclasses.replace(PAIR, bytes_fused=100 * MEGA, vertical=False)
    assert refusal(nothing) is not None
    assert refusal(dataclasses.replace(nothing, bytes_apart=1 << 16, bytes_fused=1 << 16)) is None


def test_few_long_rows_are_not_walked_twice_by_few_programs() -> None:
    reason = refusal(dataclasses.replace(PAIR, rows=1, row_length=16 * MEGA, second_pass=True))
    assert reason is not None and "1 rows" in reason


def test_distant_siblings_stay_apart_and_distant_producers_do_not() -> None:
    assert refusal(dataclasses.replace(PAIR, distance=500, vertical=False)) is not None
    assert refusal(dataclasses.replace(PAIR, distance=500)) is None


def test_reductions_are_split_only_where_programs_are_few_and_rows_long() -> None:
    assert choose_splits(1, 1 << 27, 4, False, GPU) >= GPU.multiprocessors
    assert choose_splits(4096, 1 << 15, 4, False, GPU) == 1
    assert choose_splits(8, 1024, 4, False, GPU) == 1
    assert choose_splits(64, 40960, 2, False, GPU) == 1 < choose_splits(64, 40960, 2, False, GPU, scattered=True)
    assert choose_splits(64, 4096, 2, False, GPU, scattered=True) == 1
    assert choose_splits(256, 1 << 18, 4, True, GPU) > 1
    assert choose_splits(7203, 4096, 4, True, GPU) == 4, "a program for every multiprocessor is too little to hide latency"
    assert choose_splits(1, 1 << 27, 4, False, DeviceProperties()) == 1


def test_sums_over_what_lies_both_ways_are_split() -> None:
    column, batch, token = Axis("column", 768), Axis("batch", 64), Axis("token", 196)
    rows = as_index(batch) * 196 + as_index(token)
    places = {
        "across": as_index(batch) * 150528 + as_index(column) * 196 + as_index(token),
        "along": rows * 768 + as_index(column),
        "mean": rows,
        "sum": as_index(column),
    }
    buffers = {name: Buffer(name, torch.float32, torch.device("cuda"), (), ()) for name in places}
    across, along, mean = (Load(name, places[name], torch.float32) for name in ("across", "along", "mean"))
    value = apply("mul", across, apply("sub", along, mean, dtype=torch.float32), dtype=torch.float32)
    loop = Loop("sum", (column,), value, places["sum"], Reduction("sum", (batch, token)))
    (first, second), _ = split_reductions([loop], buffers, GPU)
    assert isinstance(first, Loop) and isinstance(second, Loop) and first.axes[0].size.constant == 32


def test_operators_are_named_plainly() -> None:
    assert operator_word("aten._softmax.default") == "softmax"
    assert operator_word("torch.nn.functional.layer_norm") == "layer_norm"
    assert operator_word("sum.dim_IntList") == "sum"
    assert operator_word("Tensor.gelu") == "gelu"


def test_kernel_names_leave_out_what_tells_nothing_and_stay_short() -> None:
    def origins(*operators: str) -> list[Origin]:
        return [Origin(f"n{i}", operator, location=Location("f.py", i)) for i, operator in enumerate(operators)]

    assert kernel_name(origins("add", "aten.view.default", "rms_norm")) == "add_rms_norm"
    assert kernel_name(origins("clone")) == "clone"
    assert kernel_name([]) == "copy"
    long = kernel_name(origins(*(f"operator_with_a_long_name_{i}" for i in range(9))))
    assert len(long) <= MAXIMUM_LENGTH and long.isidentifier()


def test_few_very_long_rows_take_three_kernels() -> None:
    maker = GraphMaker()
    maker.input("x", 4, 1 << 18)
    softmax(maker, "x", 4, 1 << 18)
    schedule = schedule_graph(maker.graph("softmax"), Config(verify=True), DeviceProperties(kind="cuda"))
    assert len(schedule.steps) == 3
