"""Storage is shared only by tenants whose lives do not meet, and nothing outlives its last reader."""

from __future__ import annotations

import dataclasses

import pytest

from minicompile.config import Config
from minicompile.errors import VerificationFailed
from minicompile.ir.expr import Load
from minicompile.ir.index import Symbol, as_index
from minicompile.ir.loops import extent
from minicompile.ir.schedule import Allocation, DeviceProperties, KernelGroup, Schedule
from minicompile.scheduling.schedule import schedule_graph
from minicompile.scheduling.verify import verify_schedule
from tests.scheduling.hand_made import GraphMaker, op, softmax

GPU = DeviceProperties(name="H200", kind="cuda")


def chain(length: int) -> GraphMaker:
    """exp, extern, exp, extern, ..."""
    maker = GraphMaker()
    previous = maker.input("a", 64, 64)
    for number in range(length):
        previous = maker.pointwise(
            f"b{number}", (64, 64), lambda i, j, source=previous: op("exp", maker.load(source, i, j))
        )
        previous = maker.extern(f"c{number}", previous)
    return maker


def schedule(maker: GraphMaker, *outputs: str) -> Schedule:
    """The verified schedule."""
    return schedule_graph(maker.graph(*outputs), Config(verify=True), GPU)


def test_a_dead_buffer_is_used_again() -> None:
    plan = schedule(chain(3), "c2").memory
    assert plan.allocations["b0"].reuses is None
    assert plan.allocations["b1"].reuses == "b0"
    assert plan.allocations["b2"].reuses == "b1"


def test_what_an_extern_kernel_returned_is_never_used_again() -> None:
    plan = schedule(chain(4), "c3").memory
    assert not any((allocation.reuses or "").startswith("c") for allocation in plan.allocations.values())


def test_an_extern_kernel_writes_into_dead_memory_but_never_over_what_it_reads() -> None:
    maker = GraphMaker()
    maker.input("a", 64, 64)
    for name, source in (("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")):
        maker.extern(name, source, out_argument=True)
    maker.pointwise("x", (64, 64), lambda i, j: op("exp", maker.load("e", i, j)))
    plan = schedule(maker, "x").memory
    assert {name: allocation.reuses for name, allocation in plan.allocations.items()} == {
        "b": None, "c": None, "d": "b", "e": "c", "x": "e",
    }  # fmt: skip


def test_memory_of_nothing_is_not_taken_for_memory_of_something() -> None:
    sizes, strides = tuple(map(as_index, (0, 10))), tuple(map(as_index, (1, 5)))
    assert extent(sizes, strides) == 0 and extent(sizes[1:], strides[1:]) == 46
    assert extent((*sizes, as_index(Symbol("s0", 8, 2))), (*strides, as_index(1))) is None


def test_buffers_are_freed_after_their_last_reader_and_outputs_never() -> None:
    plan = schedule(chain(2), "b0", "c1").memory
    freed = {name for names in plan.freed_after.values() for name in names}
    assert "c0" in freed and "a" in freed and not {"b0", "c1"} & freed
    assert plan.freed_after[0] == ("a",)


def test_an_elementwise_kernel_works_in_place_when_its_input_dies() -> None:
    maker = chain(1)
    maker.pointwise("x", (64, 64), lambda i, j: op("add", maker.load("b0", i, j), maker.load("c0", i, j)))
    assert schedule(maker, "x").memory.allocations["x"].reuses == "b0"


def test_an_elementwise_kernel_works_in_place_where_an_older_buffer_was_overwritten() -> None:
    maker = chain(1)
    maker.pointwise("w", (64, 64), lambda i, j: op("exp", maker.load("c0", j, i)), overwrites="b0")
    maker.extern("e", "w")
    maker.pointwise("x", (64, 64), lambda i, j: op("add", maker.load("w", i, j), maker.load("e", i, j)))
    assert schedule(maker, "x").memory.allocations["x"].reuses == "b0"


def test_a_kernel_that_reads_its_input_elsewhere_does_not_work_in_place() -> None:
    maker = chain(1)
    maker.pointwise("x", (64, 64), lambda i, j: op("add", maker.load("b0", j, i), maker.load("c0", i, j)))
    assert schedule(maker, "x").memory.allocations["x"].reuses is None


def test_the_peak_counts_what_lives_at_once() -> None:
    one = 64 * 64 * 4
    assert max(schedule(chain(4), "c3").held_bytes()) <= 3 * one


def softmax_schedule() -> Schedule:
    maker = GraphMaker()
    maker.input("a", 64, 64)
    return schedule(maker, softmax(maker, "a", 64, 64))


def changed(result: Schedule, **changes: object) -> Schedule:
    """The schedule with its only kernel changed."""
    (group,) = result.steps
    assert isinstance(group, KernelGroup)
    return dataclasses.replace(result, steps=(dataclasses.replace(group, **changes),))  # type: ignore[arg-type]


def test_the_verifier_accepts_what_scheduling_makes() -> None:
    verify_schedule(softmax_schedule())


def test_the_verifier_catches_known_wrong_kernels() -> None:
    result = softmax_schedule()
    (group,) = result.steps
    assert isinstance(group, KernelGroup)
    first, *others = group.loops
    last = others[-1]
    elsewhere = dataclasses.replace(last, value=Load("amax", as_index(0), last.value.dtype))
    for wrong in (
        {"loops": (*others, first)},
        {"stored": frozenset({"softmax", "nothing"})},
        {"loops": (*group.loops[:-1], elsewhere)},
        {"stored": frozenset()},
        {"loops": (dataclasses.replace(first, axes=()), *others)},
    ):
        with pytest.raises(VerificationFailed):
            verify_schedule(changed(result, **wrong))


def test_the_verifier_catches_two_tenants_of_one_storage() -> None:
    result = schedule(chain(2), "b0", "c1")
    wrong = dict(result.memory.allocations)
    wrong["b1"] = Allocation("b1", "b0", wrong["b1"].first_step, wrong["b1"].last_step)
    with pytest.raises(VerificationFailed):
        verify_schedule(dataclasses.replace(result, memory=dataclasses.replace(result.memory, allocations=wrong)))


def test_the_verifier_catches_a_wrong_order() -> None:
    result = schedule(chain(2), "c1")
    with pytest.raises(VerificationFailed):
        verify_schedule(dataclasses.replace(result, steps=result.steps[::-1]))
