"""How time is measured: CUDA events after warm-up on a GPU, the wall clock on a CPU.

A `Clock` is handed to whatever needs times, so that tests can hand in recorded ones. This module must not know what it
times.
"""

import contextlib
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

Around = Callable[[Any, Callable[[], Any]], Any]
SLEEP_SECONDS, CYCLES_PER_SECOND = 0.005, 1.8e9


def milliseconds(function: Callable[[], Any], device: str) -> float:
    """Median time of one call: CUDA events with a cold L2 on a GPU, wall clock on the CPU."""
    if device == "cuda":
        from triton.testing import do_bench  # only needed, and only sure to be there, with a GPU

        return float(do_bench(function, warmup=25, rep=100, return_mode="median"))
    function()
    return statistics.median(timeit.repeat(function, number=1, repeat=5)) * 1e3


def host_microseconds(function: Callable[[], Any], device: str, calls: int = 3000) -> float:
    """Host time of one call in a loop that never waits for the device."""
    for _ in range(max(calls // 15, 2)):
        function()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    elapsed = time.perf_counter() - start
    synchronize(device)
    return elapsed / calls * 1e6


def launches(function: Callable[[], Any], device: str) -> int | None:
    """How many kernels one call starts on a GPU, copies and fills counted too; `None` on a CPU."""
    if device != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile  # slow to import

    function()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        function()
        synchronize(device)
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


class Clock:
    """Times of calls and of the steps inside them, on one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    @property
    def is_gpu(self) -> bool:
        """Whether times say something about a GPU."""
        return self.device == "cuda"

    def call_us(self, function: Callable[[], Any]) -> float:
        """One call from start to end, calls back to back as in a training loop (host gaps included)."""
        calls, repeats = (20, 3) if self.is_gpu else (1, 1)

        def run() -> None:
            for _ in range(calls):
                function()
            synchronize(self.device)

        function()
        times = timeit.repeat(run, lambda: synchronize(self.device), number=1, repeat=repeats)
        return statistics.median(times) / calls * 1e6

    def peak_bytes(self, function: Callable[[], Any]) -> int | None:
        """What the allocator of a GPU held at most during one call."""
        if not self.is_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        function()
        return int(torch.cuda.max_memory_allocated())

    def host_us(self, function: Callable[[], Any]) -> float:
        """Host time of one call."""
        return host_microseconds(function, self.device, 30) if self.is_gpu else self.call_us(function)

    def nanoseconds(self, function: Callable[[], Any], calls: int = 2000) -> float:
        """A host function that takes well under a microsecond; the loop's own cost is taken off."""
        empty, taken = (min(timeit.repeat(body, number=calls, repeat=3)) for body in (int, function))
        return max(0.0, taken - empty) / calls * 1e9

    def steps_us(
        self, run: Callable[[], Any], watching: Callable[[Around], contextlib.AbstractContextManager[Any]]
    ) -> dict[Any, float]:
        """The median time of every step of `run`; `watching(around)` has `around(key, step)` called for each of them.

        On a GPU a long sleep goes ahead of the run, so that the host is never late and events enclose device work only.
        What an empty step takes is taken off.
        """
        samples: dict[Any, list[float]] = {}
        host_seconds = 0.0
        for number in range(8 if self.is_gpu else 1):
            events: list[tuple[Any, Any, Any]] = []

            def around(key: Any, step: Callable[[], Any]) -> Any:
                start = self.mark()
                result = step()
                events.append((key, start, self.mark()))
                return result

            synchronize(self.device)
            if self.is_gpu:
                torch.cuda._sleep(int((SLEEP_SECONDS + 2 * host_seconds) * CYCLES_PER_SECOND))
            start = time.perf_counter()
            with watching(around):
                around(None, int)
                run()
            host_seconds = time.perf_counter() - start
            synchronize(self.device)
            for key, first, last in events if number or not self.is_gpu else ():
                elapsed = first.elapsed_time(last) * 1e3 if self.is_gpu else (last - first) * 1e6
                samples.setdefault(key, []).append(elapsed)
        found = {key: statistics.median(values) for key, values in samples.items()}
        empty = found.pop(None)
        return {key: max(value - empty, 0.0) for key, value in found.items()}

    def mark(self) -> Any:
        """The present moment: a CUDA event, or the time."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
