"""CUDA graphs: the same results as without, never a tensor changed that somebody holds."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import minicompile
from minicompile.ir.graph import Binding, FreshOutput, MutatedInput, ViewOutput
from minicompile.runtime.call_plan import CallPlan
from minicompile.runtime.cuda_graphs import (
    GraphedCall,
    GraphPool,
    Roles,
    backward_roles,
    forward_roles,
    visible,
)


class FakeGraph:
    """Runs what was recorded again, over the same memory."""

    def __init__(self, call: Callable[[], tuple[Any, ...]], outputs: tuple[Any, ...]) -> None:
        self.call, self.outputs, self.replays = call, outputs, 0

    def replay(self) -> None:
        self.replays += 1
        for memory, value in zip(self.outputs, self.call(), strict=True):
            if isinstance(memory, torch.Tensor):
                memory.copy_(value)


class FakePool(GraphPool):
    """CUDA graphs on CPU tensors: what is recorded is not computed before the first replay."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.graphs: list[FakeGraph] = []
        self.refuses = False

    def capturing(self) -> bool:
        return False

    def record(self, call: Callable[[], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        outputs = call()
        for value in outputs:
            if isinstance(value, torch.Tensor):
                value.fill_(-77)
        self.graphs.append(FakeGraph(call, outputs))
        return self.graphs[-1], outputs

    def order(self) -> None:
        pass

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)


def double(inputs: list[Any]) -> tuple[Any, ...]:
    weight, x = inputs
    inputs.clear()
    return x * weight, x + weight


SHOWN, GIVEN_AWAY = frozenset({0, 1}), frozenset({0})


def test_every_call_has_its_own_result_although_one_graph_makes_them_all() -> None:
    pool, weight = FakePool(), torch.tensor(2.0)
    call = GraphedCall(double, Roles(frozenset({0}), copied_outputs=SHOWN), pool)
    kept = [(float(n), call([weight, torch.full((3,), float(n))])) for n in range(8)]
    for number, (product, total) in kept:
        assert product.tolist() == [2 * number] * 3 and total.tolist() == [2 + number] * 3
    assert len(pool.graphs) == 1 and pool.replays == 6


def test_a_changed_parameter_is_read_where_it_is_and_a_replaced_one_is_recorded_anew() -> None:
    pool, weight = FakePool(), torch.tensor(2.0)
    call = GraphedCall(double, Roles(frozenset({0}), copied_outputs=SHOWN), pool)
    for step in range(5):
        weight.fill_(step)
        assert call([weight, torch.ones(3)])[0].tolist() == [step] * 3
    replaced = torch.tensor(9.0)
    for _ in range(5):
        assert call([replaced, torch.ones(3)])[0].tolist() == [9.0] * 3
    assert call([weight, torch.ones(3)])[0].tolist() == [4.0] * 3
    assert len(pool.graphs) == 2


def test_a_recording_keeps_no_parameter_alive() -> None:
    pool, weight = FakePool(), torch.ones(3)
    call = GraphedCall(double, Roles(frozenset({0}), copied_outputs=SHOWN), pool)
    for _ in range(4):
        call([weight, torch.ones(3)])
    assert list(next(iter(call._recordings.values())).places) == [1]


def test_memory_that_is_given_away_is_not_written_while_somebody_holds_it() -> None:
    pool, weight = FakePool(), torch.tensor(1.0)
    call = GraphedCall(double, Roles(frozenset({0}), copied_outputs=GIVEN_AWAY), pool)
    held = [call([weight, torch.full((2,), float(n))])[1] for n in range(6)]
    assert [value.tolist() for value in held] == [[n + 1.0] * 2 for n in range(6)]
    assert pool.replays == 1
    view = held[2][:1]
    held.clear()
    assert call([weight, torch.zeros(2)])[1].tolist() == [1.0] * 2 and pool.replays == 1
    assert view.tolist() == [3.0]
    del view
    call([weight, torch.zeros(2)])
    call([weight, torch.zeros(2)])
    assert pool.replays == 3


def test_an_input_in_another_graphs_memory_must_lie_where_it_lay() -> None:
    pool, saved = FakePool(), torch.ones(2)
    call = GraphedCall(double, Roles(frozenset(), frozenset({0}), SHOWN), pool)
    for _ in range(4):
        call([saved, torch.ones(2)])
    assert pool.replays == 2
    assert call([torch.full((2,), 5.0), torch.ones(2)])[0].tolist() == [5.0] * 2 and pool.replays == 2
    saved.fill_(3)
    assert call([saved, torch.ones(2)])[0].tolist() == [3.0] * 2 and pool.replays == 3


def test_outputs_with_gaps_keep_their_strides() -> None:
    def spread(inputs: list[Any]) -> tuple[Any, ...]:
        return (torch.empty_strided((2, 3), (8, 2)).copy_(inputs[0]),)

    call = GraphedCall(spread, Roles(frozenset(), copied_outputs=frozenset({0})), FakePool())
    for number in range(5):
        (result,) = call([torch.full((2, 3), float(number))])
        assert result.stride() == (8, 2) and result.tolist() == [[number] * 3] * 2


def test_every_combination_of_sizes_has_a_graph_up_to_a_limit() -> None:
    pool = FakePool()
    call = GraphedCall(lambda given: (given[0] * given[1],), Roles(frozenset(), frozenset(), SHOWN, True), pool)
    for _ in range(4):
        for size in range(1, 12):
            assert call([torch.full((size,), 2.0), size])[0].tolist() == [2.0 * size] * size
    assert len(pool.graphs) == 8
    for size in range(12, 200):
        call([torch.ones(size), size])
    assert len(pool.graphs) == 8


def test_what_a_graph_cannot_repeat_is_never_recorded() -> None:
    pool = FakePool()
    expanded = GraphedCall(lambda given: (given[0] * 2,), Roles(frozenset(), copied_outputs=SHOWN), pool)
    for number in range(5):
        assert expanded([torch.tensor(float(number)).expand(3)])[0].tolist() == [2.0 * number] * 3
    assert "share memory" in expanded.fallback

    def elsewhere(inputs: list[Any]) -> tuple[Any, ...]:
        return (inputs[0] + torch.empty(3, device="meta").numel(),)

    other = GraphedCall(elsewhere, Roles(frozenset(), copied_outputs=SHOWN), pool)
    for _ in range(4):
        assert other([torch.ones(2)])[0].tolist() == [4.0, 4.0]
    assert "works on another device" in other.fallback and not pool.graphs
    far = GraphedCall(lambda given: (given[0] * 1,), Roles(frozenset(), copied_outputs=SHOWN), pool)
    for _ in range(4):
        far([torch.ones(2), torch.empty(2, device="meta")])
    assert far.fallback == "an input is on another device" and not pool.graphs


def test_a_failed_recording_costs_only_the_graph() -> None:
    pool = FakePool()
    pool.refuses = True
    call = GraphedCall(double, Roles(frozenset({0}), copied_outputs=SHOWN), pool)
    weight = torch.tensor(2.0)
    for number in range(6):
        assert call([weight, torch.full((2,), float(number))])[0].tolist() == [2.0 * number] * 2
    assert call.fallback.startswith("recording failed")


def test_graphs_of_one_pool_never_run_at_once() -> None:
    pool, weight, wrong = FakePool(), torch.tensor(3.0), []
    calls = [GraphedCall(double, Roles(frozenset({0}), copied_outputs=SHOWN), pool) for _ in range(2)]

    def work(number: int) -> None:
        for turn in range(200):
            value = float(number * 1000 + turn)
            if calls[turn % 2]([weight, torch.full((4,), value)])[0].tolist() != [3 * value] * 4:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and pool.replays > 0


def test_the_roles_follow_the_plan() -> None:
    binding = Binding((FreshOutput(0),), saved=(0, 1, 2), saved_inputs=(0, 2))
    plan = CallPlan("graph", binding, ("parameter", "tensor", "tensor"), True, (True, True, False), ())
    assert forward_roles(plan) == Roles(frozenset({0}), frozenset(), frozenset({0}), False)
    assert backward_roles(plan) == Roles(frozenset({3}), frozenset({1}), frozenset(), False)
    changed = Binding((FreshOutput(0),), mutated_inputs=(MutatedInput(1, 1),))
    reason = forward_roles(CallPlan("graph", changed, ("parameter", "tensor"), False, (True, True), None))
    assert reason == "an input that is not a parameter or buffer is changed"


def test_outputs_that_the_user_sees_through_views_are_visible() -> None:
    view = ViewOutput("hidden", 3, (2,), (1,), 0, torch.float32)
    assert visible(Binding((FreshOutput(1), view), saved=(1, 2))) == {1, 3}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8)]
    return torch.nn.Sequential(*layers).cuda()


@pytest.mark.gpu
def test_inference_outputs_may_be_kept() -> None:
    module = network()
    compiled = minicompile.compile(module, mode="reduce-overhead")
    inputs = [torch.randn(16, 32, device="cuda") for _ in range(8)]
    with torch.no_grad():
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            torch.testing.assert_close(y, module(x))


@pytest.mark.gpu
def test_training_with_kept_losses_and_accumulated_gradients() -> None:
    module = network()
    twin = copy.deepcopy(module)
    compiled = minicompile.compile(module, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, twin)]
    for step in range(8):
        batches = [torch.randn(16, 32, device="cuda") for _ in range(1 + step % 3)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        pending = [compiled(x).square().mean() for x in batches]
        for loss in pending:
            loss.backward()
        for x in batches:
            twin(x).square().mean().backward()
        for ours, eager in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.gpu
def test_dropout_differs_from_replay_to_replay() -> None:
    compiled = minicompile.compile(lambda x: torch.nn.functional.dropout(x, 0.5), mode="reduce-overhead")
    x = torch.ones(4096, device="cuda")
    draws = [compiled(x) for _ in range(8)]
    for one, other in zip(draws, draws[1:], strict=False):
        assert not torch.equal(one, other)
        assert 0.4 < (one == 0).float().mean().item() < 0.6


@pytest.mark.gpu
def test_gradients_that_are_held_are_not_overwritten() -> None:
    module = network()
    compiled = minicompile.compile(module, mode="reduce-overhead")
    parameters = list(module.parameters())
    x = torch.randn(16, 32, device="cuda")
    held = []
    for number in range(6):
        weight = float(number + 1)
        held.append((weight, torch.autograd.grad((compiled(x) * weight).sum(), parameters)))
    base = torch.autograd.grad(module(x).sum(), parameters)
    for weight, gradients in held:
        for ours, eager in zip(gradients, base, strict=True):
            torch.testing.assert_close(ours, eager * weight, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_inputs_of_every_kind_are_read_anew_on_the_gpu() -> None:
    def program(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale).cumsum(0)

    compiled = minicompile.compile(program, mode="reduce-overhead")
    for number in range(6):
        x = torch.full((1, 8), float(number), device="cuda").expand(4, 8)
        for scale in (torch.tensor(2.0), torch.tensor(number + 0.5)):
            torch.testing.assert_close(compiled(x, scale), program(x, scale))


@pytest.mark.gpu
def test_random_numbers_of_the_cpu_are_drawn_at_every_call() -> None:
    compiled = minicompile.compile(lambda x: x + torch.rand(512).to(x.device), mode="reduce-overhead")
    draws = [compiled(torch.zeros(512, device="cuda")) for _ in range(6)]
    assert all(not torch.equal(one, other) for one, other in zip(draws, draws[1:], strict=False))


@pytest.mark.gpu
def test_streams_and_threads_wait_for_one_another() -> None:
    module = network()
    compiled = minicompile.compile(module, mode="reduce-overhead")
    inputs = [torch.randn(4096, 32, device="cuda") for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad(), torch.cuda.stream(streams[number]):
            expected = module(inputs[number])
            for _ in range(50):
                if not torch.allclose(compiled(inputs[number]), expected, atol=1e-5, rtol=1e-4):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
def test_buffers_that_the_forward_changes_advance_with_every_replay() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.ReLU()).cuda()
    twin = copy.deepcopy(module)
    compiled = minicompile.compile(module, mode="reduce-overhead")
    for _ in range(8):
        x = torch.randn(64, 16, device="cuda")
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module[0].running_var, twin[0].running_var, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_sizes_that_vary_have_a_recording_each() -> None:
    compiled = minicompile.compile(lambda x: x.softmax(-1) * 2, mode="reduce-overhead", dynamic=True)
    for _ in range(5):
        for rows in (3, 17, 64):
            x = torch.randn(rows, 32, device="cuda")
            torch.testing.assert_close(compiled(x), x.softmax(-1) * 2)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inside_a_graph_of_the_users_own(mode: str) -> None:
    module = network()
    compiled = minicompile.compile(module, mode=mode)
    x = torch.randn(16, 32, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, module(x))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices_in_turn_are_each_recorded_where_they_are() -> None:
    modules = [network().to(f"cuda:{number}") for number in (0, 1)]
    compiled = [minicompile.compile(module, mode="reduce-overhead") for module in modules]
    with torch.no_grad():
        for _ in range(5):
            for number in (1, 0):
                x = torch.randn(16, 32, device=f"cuda:{number}")
                torch.testing.assert_close(compiled[number](x), modules[number](x))


def test_a_pool_records_on_a_stream_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []

    @contextlib.contextmanager
    def record(graph: Any, pool: Any, stream: Any, **_: Any) -> Iterator[None]:
        streams.append(stream)
        yield

    for name, stand_in in {
        "CUDAGraph": object, "device": contextlib.nullcontext, "graph_pool_handle": object, "synchronize": int,
        "Stream": str, "graph": record,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for number in (1, 0):
        GraphPool(torch.device("cuda", number)).record(tuple)
    assert streams == ["cuda:1", "cuda:0"]
