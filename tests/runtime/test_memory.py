"""Nothing stays behind: not after many calls, not after many compiles, not when a compiled function dies."""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import minicompile
from minicompile.capture.collector import collection_postponed


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(value, torch.Tensor) for value in gc.get_objects())


def grown(work: Any, rounds: int, settle: int) -> int:
    """Bytes of Python memory that `rounds` calls of `work` leave behind, after `settle` calls: the least of four times.

    What is left behind grows every time. PyTorch also keeps a few hundred objects for each `autograd.Function` (eager's as
    well) and replaces one now and then, which counts as growth where the old one was made before tracing began.
    """
    tracemalloc.start()
    try:
        for _ in range(settle):
            work()
        held = [traced()]
        for _ in range(4):
            for _ in range(rounds):
                work()
            held.append(traced())
        return min(after - before for before, after in itertools.pairwise(held))
    finally:
        tracemalloc.stop()


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("gradient", [False, True])
def test_ten_thousand_calls_leave_nothing_behind(gradient: bool) -> None:
    compiled = minicompile.compile(lambda x, y: torch.mm(x, y))  # no kernel of ours: the interpreter is slow
    x, y, out = torch.ones(2, 2, requires_grad=gradient), torch.ones(2, 2), torch.ones(2, 2)

    def call() -> None:
        result = compiled(x, y)
        if gradient:
            result.backward(out)
            x.grad = None

    for _ in range(50):
        call()
    tensors = live_tensors()
    assert grown(call, 3_000, settle=6_000) < 15_000, "an object a call is 72,000 or more"
    assert live_tensors() <= tensors


def test_two_hundred_compiles_leave_nothing_behind() -> None:
    def work() -> None:
        minicompile.compile(lambda x: x.relu() * 2)(x)

    x = torch.ones(3)
    assert grown(work, 50, settle=50) < 50 * 1_500


@pytest.mark.parametrize("retain", [False, True])
def test_the_backward_alone_holds_what_was_kept_unless_the_graph_is_retained(retain: bool) -> None:
    freed: list[bool] = []

    def watched(graph: Any, half: str, part: Any) -> Any:
        def call(inputs: list[Any]) -> Any:
            kept = [StorageWeakRef(value.untyped_storage()) for value in inputs[: len(graph.plan.binding.saved)]]
            copies = [value.clone() for value in inputs]
            inputs.clear()
            freed.extend(value.expired() for value in kept)
            return part.call(copies)

        return call if half == "backward" else part.call

    compiled = minicompile.compile(lambda x, y: torch.mm(x, y).tanh().mm(y).sum())
    compiled.compiler.around = watched
    x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    compiled(x, y).backward(retain_graph=retain)
    assert freed and set(freed) == {not retain}


def scaled_by(weight: torch.nn.Parameter) -> Any:
    return minicompile.compile(lambda x: (x * weight).sum())


def test_a_compiled_function_is_freed_with_all_it_made() -> None:
    minicompile.reset()
    weight = torch.nn.Parameter(torch.ones(3))
    compiled = scaled_by(weight)
    compiled(torch.ones(3)).backward()
    (graph,) = compiled.compiler.graphs
    traces = [weakref.ref(compiled.compiler), weakref.ref(graph), weakref.ref(weight)]
    del compiled, graph, weight
    gc.collect()
    assert [trace() for trace in traces] == [None] * 3


def test_the_garbage_collector_is_on_again_after_a_compile_in_any_number_of_threads() -> None:
    def work() -> None:
        for _ in range(200):
            with collection_postponed(), collection_postponed():
                assert not gc.isenabled()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_postponed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_compile_made_is_walked_by_no_young_collection() -> None:
    gc.collect()
    with collection_postponed():
        made = [[number] for number in range(20_000)]
    young = [object for generation in (0, 1) for object in gc.get_objects(generation=generation)]
    assert len(made) == 20_000 and len(young) < 5_000
