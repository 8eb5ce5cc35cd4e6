"""Runs a program plain and compiled and says what a caller could tell apart.

One run is: fresh state, then every call in order under the same seeds. After each call the result or exception, the
printed text, the warnings, the state of arguments, closures, written globals and watched objects, the global state of
torch and the random generators are recorded; then gradients are computed through outputs that require them and the
state is recorded again.

This module must not know which compiler it runs, nor any program.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import dis
import functools
import inspect
import io
import random
import re
import signal
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.conformance.catalogue import Call, Program
from tests.conformance.compilers import Compile
from tests.conformance.observation import Observer, describe_exception, differences

SECONDS_PER_RUN = 120
NOT_COMPARED = "(?s).*Triggered internally|minicompile runs "  # torch's once a process; that a function is left to eager


class ProgramIsBroken(AssertionError):
    """The program itself is wrong: it raises in eager though it does not say so, or never raises what it says."""


class TookTooLong(BaseException):
    """Nobody handles it on its way: not the program, not the compiler, not the record of what a program raises."""


@dataclasses.dataclass
class Outcome:
    """Everything that one call showed."""

    result: Any = None
    exception: Any = None
    backward_exception: Any = None
    printed: str = ""
    warned: tuple[Any, ...] = ()
    state: Any = None
    torch_state: tuple[Any, ...] = ()
    random_state: tuple[int, ...] = ()


def check(program: Program, compile: Compile, device: str | None = None) -> list[str]:
    """What differs between the plain and the compiled program; an empty list when nothing does.

    `device` is PyTorch's default device while the program is built and called.
    """
    expected = run(program, lambda function: function, device=device)
    check_program(program, expected)
    actual = run(program, compile, device=device)
    found = list(compare(expected, actual))
    if found and any("off by" in sentence for sentence in found):
        found = list(compare(expected, actual, precise_run(program, device)))
    return found


def check_program(program: Program, outcomes: list[Outcome]) -> None:
    """Refuse a program that raises unannounced, or that announces an exception and never raises it."""
    raised = [outcome.exception.kind for outcome in outcomes if outcome.exception]
    expected = {program.raises.__qualname__} if program.raises else set()
    if {kind.rpartition(".")[2] for kind in raised} != expected:
        messages = [outcome.exception for outcome in outcomes if outcome.exception]
        raise ProgramIsBroken(f"{program.name} raises {messages} in eager, it announces {expected or 'nothing'}")
    failed = [outcome.backward_exception for outcome in outcomes if outcome.backward_exception]
    if failed:
        raise ProgramIsBroken(f"{program.name}: the backward pass fails in eager: {failed}")


def compare(expected: list[Outcome], actual: list[Outcome], precise: list[Outcome] | None = None) -> Iterator[str]:
    """Differences of two runs, call by call."""
    for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
        reference = precise[index] if precise else None
        if one.exception != other.exception:
            yield f"call {index}: exception: {one.exception} in eager, {other.exception} compiled"
            continue
        for field in dataclasses.fields(Outcome):
            path = f"call {index}: {field.name}"
            first, second = getattr(one, field.name), getattr(other, field.name)
            if field.name in ("result", "state"):
                if not (one.exception or other.exception) or field.name == "state":
                    yield from differences(first, second, path, getattr(reference, field.name, None))
            elif first != second:
                yield f"{path}: {str(first)[:300]!r} in eager, {str(second)[:300]!r} compiled"


def run(
    program: Program, compile: Compile, prepare: Callable[..., Any] | None = None, device: str | None = None
) -> list[Outcome]:
    """Build the program, compile it, make its calls, and record each."""
    with isolated(), time_limit(SECONDS_PER_RUN):
        torch.set_default_device(device)
        seed(0)
        function, calls, watched = program.build()
        if prepare is not None:
            function, calls, watched = prepare(function, calls, watched)
        compiled = compile(function)
        observer = Observer()
        file = inspect.getsourcefile(inspect.unwrap(program.factory)) or ""
        return [
            observe(observer, compiled, function, made, watched, file, index, program.backward)
            for index, made in enumerate(calls)
        ]


def observe(
    observer: Observer,
    compiled: Callable[..., Any],
    function: Callable[..., Any],
    made: Call,
    watched: Any,
    file: str,
    index: int,
    backward: bool,
) -> Outcome:
    """Make one call and record what it shows."""
    if made.before is not None:
        made.before()
    seed(index + 1)
    outcome, printed = Outcome(), io.StringIO()
    observer.begin()
    observer.describe((made.args, made.kwargs, watched))
    observer.begin(drain=True)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            with made.context():
                result = compiled(*made.args, **made.kwargs)
            outcome.result = observer.describe(result)
        except Exception as error:
            result = None
            outcome.exception = describe_exception(error, file)
    outcome.printed = printed.getvalue()
    outcome.warned = tuple(
        (warning.category.__name__, str(warning.message), warning.lineno)
        for warning in caught
        if warning.filename == file and not re.match(NOT_COMPARED, str(warning.message))
    )
    outcome.torch_state, outcome.random_state = torch_state(), random_state()
    if backward and outcome.exception is None:
        outcome.backward_exception = differentiate(observer.tensors, file)
    observer.begin()
    outcome.state = observer.describe(visible_state(function, made, watched, result))
    return outcome


def differentiate(tensors: list[torch.Tensor], file: str) -> Any:
    """Run the backward pass of a weighted sum of the tensors that require grad; the exception's record, or `None`."""
    outputs = [tensor for tensor in tensors if tensor.requires_grad]
    if not outputs:
        return None
    weights = [
        torch.cos(torch.arange(output.numel(), dtype=torch.float64) + 1).reshape(output.shape).to(output.device, output.dtype)
        for output in outputs
    ]
    try:
        torch.autograd.backward(outputs, weights)
    except Exception as error:
        return describe_exception(error, file)
    return None


def visible_state(function: Any, made: Call, watched: Any, result: Any) -> dict[str, Any]:
    """Objects whose state a caller can look at after the call."""
    state: dict[str, Any] = {"args": made.args, "kwargs": made.kwargs, "watched": watched, "result": result}
    while isinstance(function, functools.partial):
        state.setdefault("partial", []).append((function.args, function.keywords))
        function = function.func
    if isinstance(function, types.MethodType):
        state["self"], function = function.__self__, function.__func__
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, types.FunctionType):
        return state | {"self": function}
    state["nonlocals"] = closure_values(function)
    state["defaults"] = (function.__defaults__, function.__kwdefaults__)
    state["attributes"] = {name: value for name, value in vars(function).items() if not name.startswith("_")}
    state["globals"] = {name: function.__globals__.get(name, "absent") for name in written_globals(function.__code__)}
    return state


def written_globals(code: types.CodeType) -> list[str]:
    """Names of the globals that the code, or a function inside it, stores or deletes."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(written_globals(constant))
    return sorted(names)


def seed(number: int) -> None:
    """Seed every generator that a program may draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def random_state() -> tuple[int, ...]:
    """Digests of the states of torch's, Python's and NumPy's generators."""
    return (
        hash(torch.get_rng_state().numpy().tobytes()),
        *(hash(torch.cuda.get_rng_state().numpy().tobytes()) for _ in range(torch.cuda.is_available())),
        hash(random.getstate()),
        hash(np.random.get_state()[1].tobytes()),  # type: ignore[union-attr, index]
    )


def torch_state() -> tuple[Any, ...]:
    """The global switches of torch that a program may leave changed."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        str(torch.get_default_device()),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Put back the switches of torch, whatever the program leaves behind."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic, autocast = torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu")
    autocast_dtype = torch.get_autocast_dtype("cpu")
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_autocast_enabled("cpu", autocast)
        torch.set_autocast_dtype("cpu", autocast_dtype)


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TookTooLong` in the main thread when the block runs longer."""

    def expired(number: int, frame: Any) -> None:
        raise TookTooLong(f"longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def precise_run(program: Program, device: str | None = None) -> list[Outcome] | None:
    """The plain program with arguments and modules in fp64, or `None` where it does not work in fp64."""
    try:
        return run(program, lambda function: function, prepare=in_double, device=device)
    except Exception:
        return None


def in_double(function: Any, calls: list[Call], watched: Any) -> tuple[Any, list[Call], Any]:
    """The same program with every float tensor among modules and arguments in fp64."""
    for holder in (function, getattr(function, "__self__", None), watched, *closure_values(function).values()):
        if isinstance(holder, torch.nn.Module):
            holder.double()
    memo: dict[int, Any] = {}
    for made in calls:
        made.args = tuple(to_double(value, memo) for value in made.args)
        made.kwargs = {name: to_double(value, memo) for name, value in made.kwargs.items()}
    return function, calls, watched


def closure_values(function: Any) -> dict[str, Any]:
    """What the function closes over, by name; a variable that is not bound is left out."""
    values = {}
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                values[name] = cell.cell_contents
    return values


def to_double(value: Any, memo: dict[int, Any]) -> Any:
    """A copy with plain float tensors, alone or in lists, tuples and dicts, in fp64; one tensor stays one tensor."""
    if type(value) is torch.Tensor and value.is_floating_point() and value.is_leaf:
        if id(value) not in memo:
            memo[id(value)] = value.detach().double().requires_grad_(value.requires_grad)
        return memo[id(value)]
    if type(value) in (list, tuple):
        return type(value)(to_double(item, memo) for item in value)
    if type(value) is dict:
        return {key: to_double(item, memo) for key, item in value.items()}
    return copy.copy(value) if isinstance(value, set) else value
