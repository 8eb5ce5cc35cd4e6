"""Kernels of one body become one launch, which computes what they compute."""

from __future__ import annotations

import pytest
import torch

from minicompile.codegen.generate import generate_program
from minicompile.config import Config
from minicompile.ir.loops import LoweredGraph
from minicompile.ir.schedule import DeviceProperties, KernelGroup, Schedule
from minicompile.scheduling import batch
from minicompile.scheduling.schedule import schedule_graph
from tests.codegen.build import INTERPRETER, load
from tests.scheduling.hand_made import GraphMaker, op

GPU = DeviceProperties(name="NVIDIA H200", kind="cuda")


def momentum(sizes: list[int], in_place: bool = True) -> LoweredGraph:
    """A step of an optimizer over parameters of these sizes: momentum, then the parameter."""
    maker = GraphMaker()
    scale = maker.input("scale")
    outputs = []
    for number, size in enumerate(sizes):
        p, g, m = (maker.input(f"{name}_{number}", size) for name in ("parameter", "gradient", "momentum"))
        faster = maker.pointwise(
            f"faster_{number}", (size,),
            lambda i, m=m, g=g: op("add", op("mul", maker.load(m, i), 0.9), op("mul", maker.load(g, i), maker.load(scale))),
            overwrites=m if in_place else None,
        )  # fmt: skip
        outputs += [faster, maker.pointwise(
            f"moved_{number}", (size,),
            lambda i, p=p, f=faster: op("sub", maker.load(p, i), op("mul", maker.load(f, i), 0.1)),
            overwrites=p if in_place else None,
        )]  # fmt: skip
    return maker.graph(*outputs)


def kernels(schedule: Schedule) -> list[KernelGroup]:
    return [step for step in schedule.steps if isinstance(step, KernelGroup)]


@pytest.mark.parametrize("in_place", [True, False])
def test_an_optimizer_step_is_one_launch_and_computes_the_same(in_place: bool) -> None:
    sizes = [4096, 48, 1000, 77, 4096, 16, 1]
    graph = momentum(sizes, in_place)
    schedule = schedule_graph(graph, Config(verify=True), GPU)
    assert len(kernels(schedule)) <= 3
    assert sum(len(group.batch) for group in kernels(schedule)) >= len(sizes) - 1
    inputs = [torch.randn([int(n) for n in graph.buffers[name].sizes]) for name in graph.inputs]
    for device in (GPU, INTERPRETER):
        found = load(generate_program(schedule, Config(), device)).call([i.clone() for i in inputs])
        scale = inputs[0]
        for number in range(len(sizes)):
            p, g, m = inputs[1 + 3 * number : 4 + 3 * number]
            faster = m * 0.9 + g * scale
            torch.testing.assert_close(found[2 * number], faster)
            torch.testing.assert_close(found[2 * number + 1], p - faster * 0.1)


def test_a_batch_takes_no_more_pointers_than_a_launch_can_pass() -> None:
    schedule = schedule_graph(momentum([64] * 100), Config(verify=True), GPU)
    assert len(kernels(schedule)) == 3
    for kernel in generate_program(schedule, Config(), GPU).kernels:
        assert len(kernel.arguments) <= batch.MAXIMUM_POINTERS


def test_kernels_that_depend_on_each_other_are_not_batched() -> None:
    maker = GraphMaker()
    first = maker.input("x", 4096)
    names = []
    for number in range(4):
        source = names[-1] if names else first
        maker.extern(f"negated_{number}", source)
        names.append(maker.pointwise(f"y_{number}", (4096,),
                                     lambda i, n=number: op("mul", maker.load(f"negated_{n}", i), 2.0)))  # fmt: skip
    schedule = schedule_graph(maker.graph(names[-1]), Config(verify=True), GPU)
    assert not any(group.batch for group in kernels(schedule))


def test_two_pairs_of_alike_kernels_that_cross_do_not_make_a_cycle() -> None:
    maker = GraphMaker()
    x, y = maker.input("x", 4096), maker.input("y", 2048)
    double = lambda source: lambda i: op("mul", maker.load(source, i), 2.0)
    halve = lambda source: lambda i: op("sub", maker.load(source, i), 3.0)
    maker.pointwise("a1", (4096,), double(x))
    maker.extern("between_1", "a1")
    maker.pointwise("b1", (4096,), halve("between_1"))
    maker.pointwise("b2", (2048,), halve(y))
    maker.extern("between_2", "b2")
    maker.pointwise("a2", (2048,), double("between_2"))
    schedule = schedule_graph(maker.graph("b1", "a2"), Config(verify=True), GPU)
    assert sum(bool(group.batch) for group in kernels(schedule)) == 1
