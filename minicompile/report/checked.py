"""Checked mode, `options={"check": n}`: eager runs beside the first calls and every so many after, and has the last word.

What runs beside is the captured graph, operation by operation as the user wrote them, on copies of the inputs and from
the same random state; a backward, and a graph that draws random numbers of its own, is checked against the graph's ATen
operators. On a difference the user gets eager's result, a warning that names the first kernel that deviates, and a
folder that reproduces it. This module must not repair anything.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minicompile.errors import warn_user
from minicompile.ir.graph import CapturedGraph
from minicompile.report.accuracy import Values, ulp_errors
from minicompile.report.collect import draws_random_numbers
from minicompile.report.reproducer import as_captured, minimised, write_reproducer
from minicompile.report.sandbox import copied, plain
from minicompile.report.watch import compare_steps

EVERY = 100
EAGER_FACTOR, FEW_ULP = 2.0, 16.0
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LOOSE = 50.0
Call = Callable[..., Any]
Exact = Callable[[], Sequence[Any] | None]
"""Values in fp64, computed when they are asked for; `None` where there are none."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A call whose compiled result was not eager's: which values, the first kernel that deviates, the reproducer."""

    graph: str
    half: str
    call: int
    values: tuple[str, ...]
    kernel: str
    folder: pathlib.Path | None

    def __str__(self) -> str:
        kept = f"; reproducer in {self.folder}" if self.folder else ""
        return (
            f"compiled and eager differ in call {self.call} of {self.graph} ({self.half}): {', '.join(self.values)}; "
            f"first deviation: {self.kernel}; eager's result is used{kept}"
        )


class Checker:
    """Compares the calls of all graphs of one compiler with eager.

    Arguments:
        setting: the first calls to check, or a pair of that and the distance between later checks.
        directory: where reproducers go.
        compile_again: compiles a captured graph by itself, for the minimiser.
    """

    def __init__(
        self, setting: int | tuple[int, int], directory: pathlib.Path, compile_again: Callable[[CapturedGraph], Call]
    ) -> None:
        self.first, self.every = setting if isinstance(setting, tuple) else (setting, EVERY)
        self.directory, self.compile_again = directory, compile_again
        self.differences: list[Difference] = []
        self._inputs: dict[int, list[Any]] | None = None
        self._searching = False

    def is_due(self, number: int) -> bool:
        """Whether this call (the first is 1) is checked."""
        return number <= self.first or number % self.every == 0

    def graph(self, graph: Any, call: Call) -> Call:
        """The call of a whole graph, checked."""
        calls = [0]

        def checked(*inputs: Any) -> Any:
            calls[0] += 1
            return self.beside(graph, call, inputs, calls[0]) if self.is_due(calls[0]) else call(*inputs)

        return checked

    def part(self, graph: Any, half: str, part: Any) -> Call:
        """The call of one half: a forward's inputs are kept for the search of a deviation, a backward is checked."""
        calls = [0]

        @functools.wraps(part.call)
        def checked(inputs: list[Any]) -> Any:
            calls[0] += 1
            if half == "forward":
                if self._inputs is not None:
                    self._inputs[id(graph)] = copied(inputs)
                return part.call(inputs)
            due = self.is_due(calls[0]) and not self._searching
            return self.backward(graph, half, part, inputs, calls[0]) if due else part.call(inputs)

        return checked

    def beside(self, graph: Any, call: Call, inputs: tuple[Any, ...], number: int) -> Any:
        """One checked call of a graph."""
        captured = graph.captured
        state = random_state(inputs)
        before, self._inputs = copied(inputs), {}
        try:
            found = call(*inputs)
        finally:
            given, self._inputs = self._inputs.get(id(graph), list(before)), None
        try:
            expected, ours = self.both(graph, given, before, state, [*found, *inputs])
        except Exception as failure:  # checking must never take away a result that is there
            warn_user(f"{captured.name} could not be checked: {type(failure).__name__}: {failure}")
            return found
        names = [f"output {n}" for n in range(len(found))] + [f"input {entry.source}" for entry in captured.inputs]
        exact = functools.cache(lambda: exact_values(captured.module, before, state, not draws_random_numbers(graph)))
        wrong = differing(ours, expected, exact, names)
        if not wrong:
            return found
        self.report(graph, "forward", number, wrong, given, before)
        with torch.no_grad():
            for value, old in zip(inputs, before):
                if isinstance(value, torch.Tensor) and not torch.equal(value, old):
                    value.copy_(old)
        set_random_state(state)
        return captured.module(*inputs)

    def both(
        self, graph: Any, given: list[Any], before: Sequence[Any], state: Any, found: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Eager's values and ours: outputs and inputs of the captured graph, or all outputs of the forward's operators."""
        shadow = copied([plain(value) for value in before])
        with torch.no_grad(), restored(state):
            if not draws_random_numbers(graph):
                return [*graph.captured.module(*shadow), *shadow], found
            expected = list(graph.partitioned.forward(*copied(given)))
        with torch.no_grad(), restored(state):
            return expected, list(graph.parts["forward"].call(copied(given)))

    def backward(self, graph: Any, half: str, part: Any, inputs: list[Any], number: int) -> Any:
        """One checked backward."""
        given, state = copied(inputs), random_state(inputs)
        found = part.call(inputs)
        try:
            with torch.no_grad(), restored(state):
                expected = graph.module(half)(*copied(given))
        except Exception as failure:  # as above
            warn_user(f"a backward could not be checked: {type(failure).__name__}: {failure}")
            return found
        names = [f"gradient {n}" for n in range(len(found))]
        exact = functools.cache(lambda: exact_values(graph.module(half), given, state, True))
        wrong = differing(found, expected, exact, names)
        if not wrong:
            return found
        self.report(graph, half, number, wrong, given, None)
        return tuple(expected)

    def report(
        self, graph: Any, half: str, number: int, wrong: list[str], given: list[Any], inputs: Sequence[Any] | None
    ) -> None:
        """Find the kernel, write the reproducer, warn."""
        kernel, source = self.first_deviation(graph, half, given)
        captured = graph.captured
        if inputs is None:
            captured = as_captured(captured, graph.module(half))
        module, values = minimised(captured, given if inputs is None else list(inputs), self.compile_again, disagree)
        folder = write_reproducer(self.directory, f"{graph.captured.name}_{half}", module, values, kernel, source)
        difference = Difference(graph.captured.name, half, number, tuple(wrong), kernel, folder)
        self.differences.append(difference)
        warn_user(str(difference))

    def first_deviation(self, graph: Any, half: str, given: list[Any]) -> tuple[str, str]:
        """The first step whose result is not that of the graph's operators: its name and source."""
        part = graph.parts[half]
        found: list[tuple[str, str]] = []

        def judge(label: str, buffer: str, tensor: torch.Tensor, eager: Any, exact: Any) -> None:
            comparable = isinstance(eager, torch.Tensor) and eager.shape == tensor.shape
            if not found and comparable and disagrees(tensor, eager, lambda: [exact]):
                sources = [kernel.text for kernel in part.program.kernels if kernel.name == label]
                found.append((f"{label}, in {buffer}", sources[0] if sources else ""))

        self._searching = True
        try:
            if not compare_steps(part, graph.module(half), given, judge):
                return "not looked for", ""
        finally:
            self._searching = False
        return found[0] if found else ("no kernel: the graph stage, before kernels were made", "")


def disagree(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether any value is not eager's, without fp64 to judge."""
    return any(disagrees(one, other, lambda: None) for one, other in zip(ours, theirs))


def differing(ours: Sequence[Any], theirs: Sequence[Any], exact: Exact, names: Sequence[str]) -> list[str]:
    """The values that are not eager's; fp64 judges what is not simply close."""
    wrong = [place for place, pair in enumerate(zip(ours, theirs)) if disagrees(*pair, exact, place)]
    return [names[place] if place < len(names) else f"value {place}" for place in wrong]


def disagrees(one: Any, other: Any, exact: Exact, place: int = 0) -> bool:
    """Whether a compiled value is farther from fp64, at `place` of `exact`, than twice eager's distance and a few ulp."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and isinstance(one, (int, float, bool)) and one != other
    one, other = one.detach(), other.detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if not one.is_floating_point():
        return not torch.equal(one, other)
    finite = other[torch.isfinite(other)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    close = CLOSE.get(one.dtype, 0.1)
    if torch.allclose(one.double(), other.double(), rtol=close, atol=close * scale, equal_nan=True):
        return False
    reference = next(iter((exact() or ())[place:]), None)
    if not isinstance(reference, torch.Tensor) or reference.shape != one.shape:
        return not torch.allclose(one, other, rtol=close * LOOSE, atol=close * LOOSE * scale, equal_nan=True)
    allowed = EAGER_FACTOR * ulp_errors(other, reference).max() + FEW_ULP
    return bool(ulp_errors(one, reference).max() > allowed)


def exact_values(module: torch.fx.GraphModule, inputs: Sequence[Any], state: Any, usable: bool) -> list[Any] | None:
    """The outputs of a graph in fp64, then its inputs after it; `None` where it does not run that way."""
    if not usable:
        return None
    runner = Values(module, True)
    widened = runner.widened([plain(value) for value in copied(list(inputs))])
    try:
        with torch.no_grad(), restored(state):
            return [*runner.run(*widened), *widened]
    except Exception:  # no fp64 form: eager's own value judges
        return None


def random_state(inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    """The state of the random number generators that a graph may use."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    return [torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None]


def set_random_state(state: Any) -> None:
    """Go back to a state."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


@contextlib.contextmanager
def restored(state: Any) -> Iterator[None]:
    """Run from a state, and leave the present one untouched."""
    with torch.random.fork_rng([] if state[1] is None else [torch.cuda.current_device()]):
        set_random_state(state)
        yield
