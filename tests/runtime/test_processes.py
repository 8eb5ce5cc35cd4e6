"""Compiled functions in forked and spawned processes, data loaders, threads, and under the profiler."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import minicompile

pytestmark = pytest.mark.usefixtures("one_thread")


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.std() + 1.0)


compiled_normalised = minicompile.compile(normalised)


class Rows(Dataset[torch.Tensor]):
    """Rows that a compiled function prepares in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.set_num_threads(1)
        return compiled_normalised(torch.arange(6.0) * (index + 1))


def right(results: Any) -> bool:
    rows = torch.cat(list(results))
    expected = torch.stack([normalised(torch.arange(6.0) * (index + 1)) for index in range(8)])
    return torch.allclose(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("warm", [False, True])
def test_data_loader_workers_that_are_forked(warm: bool) -> None:
    minicompile.reset()
    if warm:
        compiled_normalised(torch.arange(6.0))
    assert right(DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork"))


def test_data_loader_workers_that_are_spawned() -> None:
    assert right(DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))


def _child(queue: Any, x: torch.Tensor) -> None:
    queue.put([compiled_normalised(x).tolist(), minicompile.compile(lambda x: x * 3)(x).tolist()])


def test_a_fork_while_another_thread_compiles() -> None:
    minicompile.reset()
    context, x = multiprocessing.get_context("fork"), torch.arange(6.0)
    stop = threading.Event()

    def keep_compiling() -> None:
        while not stop.is_set():
            minicompile.compile(lambda x: x.sin() + 1)(x)

    thread = threading.Thread(target=keep_compiling)
    thread.start()
    try:
        for _ in range(6):
            queue = context.SimpleQueue()
            child = context.Process(target=_child, args=(queue, x))
            child.start()
            child.join(30)
            assert child.exitcode == 0
            ours, tripled = queue.get()
            torch.testing.assert_close(torch.tensor(ours), normalised(x))
            assert tripled == (x * 3).tolist()
    finally:
        stop.set()
        thread.join()


def test_threads_that_call_and_compile_at_once() -> None:
    minicompile.reset()
    wrong: list[int] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(10):
            x = torch.arange(float(2 + (number + turn) % 4)).requires_grad_()
            compiled_normalised(x).square().sum().backward()
            y = x.detach().clone().requires_grad_()
            normalised(y).square().sum().backward()
            if not torch.allclose(x.grad, y.grad, rtol=1e-3, atol=1e-5):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_profiler_shows_each_graph_by_name() -> None:
    x = torch.arange(6.0).requires_grad_()
    compiled_normalised(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled_normalised(x).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"normalised_forward", "normalised_backward"} <= names


@pytest.mark.gpu
def test_tensors_of_another_gpu_run_there() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    for mode in ("default", "reduce-overhead"):
        compiled = minicompile.compile(lambda x: x.softmax(-1) * 2, mode=mode)
        for number in range(5):
            for device in ("cuda:0", "cuda:1"):
                x = torch.randn(64, 64 + number % 2, device=device)
                result = compiled(x)
                assert result.device == x.device
                torch.testing.assert_close(result, x.softmax(-1) * 2)
