"""Several threads may call and first-call one compiled function; nothing outlives the compiled object."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minicompile import disable
from minicompile.capture.entry import CompiledCallable
from tests.capture.support import capture, equal

THREADS = 6


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """What `work` returned in each of several threads that start together; what one raised is raised here."""
    results: list[Any] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def broken(x: torch.Tensor, log: list[float]) -> torch.Tensor:
    """A break in a loop, in a handler and in a callee."""
    for index in range(3):
        x = helper(x) * (index + 1)
    try:
        raise KeyError(x.shape[0])
    except KeyError as error:
        log.append(float(x.sum()))
        x = x + len(error.args)
    return x


def helper(x: torch.Tensor) -> torch.Tensor:
    """A break in the middle."""
    y = x + 1
    print(end="")
    return y * 2


def test_threads_that_call_first_at_once_get_their_own_results() -> None:
    compiled = capture(broken)

    def work(number: int) -> list[tuple[torch.Tensor, list[float]]]:
        found = []
        for step in range(6):
            log: list[float] = []
            found.append((compiled(torch.full((1 + (number + step) % 3, 2), float(number)), log), log))
        return found

    for number, found in enumerate(in_threads(work)):
        for step, (result, log) in enumerate(found):
            expected: list[float] = []
            assert equal(result, broken(torch.full((1 + (number + step) % 3, 2), float(number)), expected))
            assert log == expected
    assert not compiled.records.fallbacks


def test_threads_in_different_modes_do_not_share_variants() -> None:
    compiled = capture(lambda x: x * 2)

    def work(number: int) -> bool:
        x = torch.ones(3, requires_grad=True)
        with torch.set_grad_enabled(number % 2 == 0):
            return all(compiled(x).requires_grad == (number % 2 == 0) for _ in range(20))

    assert all(in_threads(work))
    assert len(compiled.records.graphs) == 2


def test_a_thread_that_captures_lets_another_run_what_is_compiled() -> None:
    compiled, inside, go_on = capture(lambda x, wait: wait(x) + 1), threading.Event(), threading.Event()
    ready = compiled(torch.ones(2), torch.neg)

    def wait(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert go_on.wait(20)
        return x * 3

    thread = threading.Thread(target=lambda: compiled(torch.ones(2), wait))
    thread.start()
    assert inside.wait(20)
    again = compiled(torch.ones(2), torch.neg)
    go_on.set()
    thread.join()
    assert equal(ready, again)


class Counting(torch.nn.Module):
    """A module with a buffer, a break and a callee of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor, extra: Any) -> dict[str, Any]:
        """Change the buffer, break, go on with what crosses the break."""
        self.steps += 1
        hidden = helper(self.layer(x))
        generator = (row for row in hidden)
        first = next(generator)
        print(end="")
        return {"first": first, "rest": list(generator), "extra": extra}


class Extra:
    """Something that can be referred to weakly."""


def watched_run() -> tuple[list[weakref.ref[Any]], CompiledCallable]:
    """Weak references to module, arguments and outputs of two calls, and the compiled object."""
    module = Counting()
    compiled = capture(module)
    watched: list[Any] = [module, module.layer.weight, module.steps]
    for size in (2, 4):
        x, extra = torch.ones(size, 3, requires_grad=True), Extra()
        result = compiled(x, extra)
        (result["first"].sum() + sum(part.sum() for part in result["rest"])).backward()
        watched += [x, extra, result["first"], *result["rest"]]
    return [weakref.ref(value) for value in watched], compiled


def test_nothing_outlives_the_compiled_object() -> None:
    references, compiled = watched_run()
    assert len(compiled.records.graph_breaks) > 1 and not compiled.records.fallbacks
    watched = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert watched() is None
    assert [reference() for reference in references] == [None] * len(references)


def test_the_cache_keeps_neither_arguments_nor_outputs() -> None:
    references, compiled = watched_run()
    gc.collect()
    kept = [reference() for reference in references[3:]]
    assert kept == [None] * len(kept)
    assert compiled.function is references[0]()


def test_a_capture_lets_go_of_its_arguments_before_garbage_is_collected() -> None:
    def outer(x: torch.Tensor, extra: Extra) -> torch.Tensor:
        y = x + 1
        print(end="")
        return y * 2 if isinstance(extra, Extra) else y

    compiled = capture(outer)
    gc.collect()
    gc.disable()
    try:
        x, extra = torch.ones(3), Extra()
        watched = weakref.ref(x), weakref.ref(extra)
        compiled(x, extra)
        del x, extra
        assert [reference() for reference in watched] == [None, None]
    finally:
        gc.enable()


def test_a_loop_with_a_break_keeps_nothing_of_its_earlier_turns() -> None:
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    @disable
    def note(x: torch.Tensor) -> None:
        seen.append(weakref.ref(x))
        alive.append(sum(reference() is not None for reference in seen))

    def outer(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x + 1
            note(x)
        return x

    compiled = capture(outer)
    for _ in range(2):
        seen.clear()
        alive.clear()
        assert float(compiled(torch.zeros(1))) == 40
        assert max(alive) <= 4


def test_an_error_that_is_caught_around_a_checkpoint_leaves_no_hooks() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        try:
            return checkpoint(lambda y: y @ y, x * 2, use_reentrant=False)
        except RuntimeError:
            return x

    compiled = capture(outer)
    for size in (2, 3):
        compiled(torch.ones(2, size, requires_grad=True))
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


class AskedInPython:
    """Absent attributes are looked for by a Python function, as in a configuration of Hugging Face."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


asked = AskedInPython()


def finds_nothing(x: torch.Tensor) -> torch.Tensor:
    return x * getattr(asked, "absent", 2)


def raises_in_a_callee(x: torch.Tensor) -> torch.Tensor:
    def down(depth: int) -> None:
        if depth == 0:
            raise IndexError(depth)
        down(depth - 1)

    try:
        down(3)
    except IndexError as error:
        return x * (1 + len(error.args))
    return x


def fails_in_native_code(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * int("q")
    except ValueError:
        return x * 2


def raises_after_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")
    return raises_in_a_callee(y)


@pytest.mark.parametrize("function", [finds_nothing, raises_in_a_callee, fails_in_native_code, raises_after_a_break])
def test_errors_handled_while_capturing_keep_nothing_alive(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Neither the first call's argument, nor its result, nor what its caller holds: a cycle would be found late, by a full collection."""
    compiled = capture(function)

    def caller() -> list[weakref.ref[Any]]:
        x, held = torch.ones(3), Extra()
        return [weakref.ref(x), weakref.ref(compiled(x)), weakref.ref(held)]

    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in caller()] == [None, None, None]
    finally:
        gc.enable()


class Depth(threading.local):
    """How deep each thread is, and what it has seen."""

    def __init__(self, step: float) -> None:
        self.depth, self.step = 0.0, step


def test_what_each_thread_keeps_for_itself_is_part_of_the_graph() -> None:
    kept, noted = Depth(2.0), threading.local()

    def deeper(x: torch.Tensor) -> torch.Tensor:
        if not hasattr(noted, "seen"):
            noted.seen = []
        noted.seen.append(kept.depth)
        kept.depth += kept.step
        return x + kept.depth

    compiled = capture(deeper, fullgraph=True)

    def work(number: int) -> tuple[list[torch.Tensor], list[float]]:
        kept.step = float(number)
        return [compiled(torch.ones(2)) for _ in range(3)], list(noted.seen)

    for number, (results, seen) in enumerate(in_threads(work)):
        assert equal(results, [torch.ones(2) + number * (step + 1) for step in range(3)])
        assert seen == [float(number * step) for step in range(3)]
    assert kept.depth == 0 and not hasattr(noted, "seen")
