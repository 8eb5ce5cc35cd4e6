"""One case in a process of its own: `python -m minicompile.bench.worker CASE`.

Prints one line `RESULT {json}` per compiler as soon as it is measured, so that a case that dies keeps what it has.
Everything is imported before it waits for its turn: of the workers that share a `--turn` file one measures at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import importlib
import json
import pathlib
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

import minicompile
from minicompile.bench.cases import CASES, Place, Workload
from minicompile.bench.entry_cost import entry_cost
from minicompile.bench.products import measured
from minicompile.bench.timing import (
    first_call_seconds,
    host_microseconds,
    largest_error,
    launches,
    milliseconds,
    synchronize,
)
from minicompile.bench.varying import varying_sizes
from minicompile.report.roofs import measure_roofs

MARK = "RESULT "


def compiler(name: str) -> Callable[..., Any]:
    """A compile function by name: `eager`, `torch`, `minicompile`, the latter two also as `NAME:MODE`."""
    kind, _, mode = name.partition(":")
    if kind == "eager":
        return lambda function, dynamic=None: function
    if kind == "torch":
        # Slow to import, and only this compiler needs it; backward is timed apart, so it must keep its buffers.
        import torch._functorch.config as functorch_config

        functorch_config.donated_buffer = False
        return lambda function, dynamic=None: torch.compile(function, mode=mode or None, dynamic=dynamic)
    if kind == "minicompile":
        return lambda function, dynamic=None: minicompile.compile(function, mode=mode or None, dynamic=dynamic)
    raise ValueError(f"no compiler {name!r}: eager, torch, minicompile, torch:MODE, minicompile:MODE")


def measure(workload: Workload, name: str, place: Place, first_only: bool) -> dict[str, Any]:
    """Every figure of one workload under one compiler."""
    if workload.kind == "entry":
        with torch.no_grad():
            return entry_cost(name, workload.function, workload.inputs)
    if workload.kind == "products":
        with torch.no_grad():
            return {"shapes_us": measured(list(workload.inputs), compiler(name), place.device, place.quick)}
    if workload.varying:
        return varying(workload, name, place)
    function = compiler(name)(workload.function)
    measures = {
        "forward": forward, "backward": backward, "model": model, "network": network, "host": host, "memory": memory,
    }  # fmt: skip
    figures = measures[workload.kind](workload, function, place, first_only)
    if name.startswith("minicompile"):
        figures["stats"] = vars(minicompile.stats(function))
    return figures


def varying(workload: Workload, name: str, place: Place) -> dict[str, Any]:
    """The workload compiled for its own sizes and for any; with gradients unless it is a `forward`."""

    def step(function: Any) -> None:
        with torch.set_grad_enabled(workload.kind != "forward"):
            output = function(*workload.inputs)
            if workload.loss is not None:
                workload.loss(output).backward()
            elif workload.kind != "forward":
                torch.autograd.grad(output, workload.inputs, torch.ones_like(output))

    return varying_sizes(compiler(name), workload.function, workload.inputs, step, workload.varying, place.device)


def forward(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """One call without gradients."""
    figures: dict[str, Any] = {}
    with torch.no_grad():
        figures["first_s"] = first_call_seconds(lambda: function(*workload.inputs), place.device)
        if first_only:
            return figures
        figures["error"] = error(workload, function)
        figures["ms"] = milliseconds(lambda: function(*workload.inputs), place.device)
        figures["launches"] = launches(lambda: function(*workload.inputs), place.device)
    figures["TB/s"] = workload.num_bytes / figures["ms"] / 1e9
    return figures


def backward(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """A call and its gradients, timed apart."""
    reset_peak(place)

    def both() -> None:
        output = function(*workload.inputs)
        torch.autograd.grad(output, workload.inputs, torch.ones_like(output))

    figures: dict[str, Any] = {"first_s": first_call_seconds(both, place.device)}
    if first_only:
        return figures
    figures["peak_gb"] = peak_gb(place)
    figures["error"] = error(workload, function)
    figures["fwd_ms"] = milliseconds(lambda: function(*workload.inputs), place.device)
    output = function(*workload.inputs)
    ones = torch.ones_like(output)
    figures["bwd_ms"] = milliseconds(
        lambda: torch.autograd.grad(output, workload.inputs, ones, retain_graph=True), place.device
    )
    return figures


def training_step(step: Callable[[], Any], place: Place, first_only: bool) -> dict[str, Any]:
    """The seconds of the first step, then the peak of a later one's memory, its milliseconds and launches."""
    figures: dict[str, Any] = {"first_step_s": first_call_seconds(step, place.device)}
    if not first_only:
        reset_peak(place)
        step()
        figures["peak_gb"] = peak_gb(place)
        figures["train_ms"] = milliseconds(step, place.device)
        figures["train_launches"] = launches(step, place.device)
    return figures


def model(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """Inference and a training step without the optimizer."""
    loss = workload.loss
    assert loss is not None

    def infer() -> Any:
        with torch.no_grad():
            return function(*workload.inputs)

    def step() -> None:
        function.zero_grad(set_to_none=True)
        loss(function(*workload.inputs)).backward()

    figures: dict[str, Any] = {"first_s": first_call_seconds(infer, place.device)}
    if not first_only:
        figures["error"] = error(workload, function)
        figures["infer_ms"] = milliseconds(infer, place.device)
        figures["infer_launches"] = launches(infer, place.device)
    return figures | training_step(step, place, first_only)


def network(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """Inference in eval mode and a training step without the optimizer, both under bf16 autocast."""
    loss = workload.loss
    assert loss is not None

    def run() -> Any:
        with torch.autocast(place.device, torch.bfloat16):
            return function(*workload.inputs, **workload.keywords)

    def infer() -> Any:
        with torch.no_grad():
            return run()

    def step() -> None:
        function.zero_grad(set_to_none=True)
        with torch.autocast(place.device, torch.bfloat16):
            value = loss(function(*workload.inputs, **workload.keywords))
        value.backward()

    function.eval()
    figures: dict[str, Any] = {"first_s": first_call_seconds(infer, place.device)}
    if not first_only:
        with torch.no_grad():
            exact = tensors(workload.function.eval()(*workload.inputs, **workload.keywords))  # type: ignore[attr-defined]  # a module
        figures["error"] = largest_error(tensors(infer()), [value.double() for value in exact])
        del exact
        figures["infer_ms"] = milliseconds(infer, place.device)
        figures["infer_launches"] = launches(infer, place.device)
    function.train()
    return figures | training_step(step, place, first_only)


def memory(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """Memory of a training step beyond what was allocated before it: after the forward, and at its highest."""

    def step() -> float | None:
        function.zero_grad(set_to_none=False)  # gradients are allocated before the step
        before = allocated_gb(place)
        loss = function(*workload.inputs)
        after = allocated_gb(place)
        loss.backward()
        return None if before is None or after is None else after - before

    figures: dict[str, Any] = {"first_step_s": first_call_seconds(step, place.device)}
    if not first_only:
        step()
        reset_peak(place)
        start = allocated_gb(place)
        figures["kept_gb"] = step()
        peak = peak_gb(place)
        figures["step_gb"] = None if peak is None or start is None else peak - start
        figures["train_ms"] = milliseconds(step, place.device)
    return figures


def host(workload: Workload, function: Any, place: Place, first_only: bool) -> dict[str, Any]:
    """Host time of a call."""
    with torch.set_grad_enabled(workload.grad):
        first = first_call_seconds(lambda: function(*workload.inputs), place.device)
        calls = 20 if place.quick else 3000 if not isinstance(workload.function, torch.nn.Module) else 500
        return {
            "first_s": first,
            "host_us": host_microseconds(lambda: function(*workload.inputs), place.device, calls),
        }


def error(workload: Workload, function: Any) -> float | None:
    """Largest error of the outputs against fp64; `None` where fp64 does not fit or the model changes its state."""
    if isinstance(workload.function, torch.nn.Module) and any(
        isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in workload.function.modules()
    ):
        return None
    try:
        with torch.no_grad():
            exact = workload.function
            if isinstance(exact, torch.nn.Module):
                exact = copy.deepcopy(exact).double()
            inputs = [i.double() if tensors(i) else i for i in workload.inputs]
            torch.manual_seed(0)
            value = function(*workload.inputs)
            return largest_error(tensors(value), tensors(exact(*inputs)))
    except torch.OutOfMemoryError:
        return None


def tensors(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors of an output."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, (tuple, list)) else []


def reset_peak(place: Place) -> None:
    """Start counting peak memory anew."""
    if place.device == "cuda":
        synchronize(place.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def allocated_gb(place: Place) -> float | None:
    """Memory in use; `None` where nobody counts it."""
    return torch.cuda.memory_allocated() / 2**30 if place.device == "cuda" else None


def peak_gb(place: Place) -> float | None:
    """Peak memory since the last reset."""
    return torch.cuda.max_memory_allocated() / 2**30 if place.device == "cuda" else None


def main() -> None:
    """Measure the case named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compilers", default="eager,torch,minicompile")
    parser.add_argument("--first-only", action="store_true")
    parser.add_argument("--turn", type=pathlib.Path, help="a file that the workers of one place lock while they measure")
    parser.add_argument("--timeout", type=float, default=0.0, help="seconds of its turn after which it dies; 0: never")
    options = parser.parse_args()
    if "torch" in options.compilers:
        importlib.import_module("torch._dynamo")  # slow, and only this compiler needs it
    with turn(options.turn):
        signal.setitimer(signal.ITIMER_REAL, options.timeout)
        report_all(options)


@contextlib.contextmanager
def turn(path: pathlib.Path | None) -> Iterator[None]:
    """Hold the file at `path` alone."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def report_all(options: argparse.Namespace) -> None:
    """Measure what was asked for and report it."""
    place = Place(options.device, options.quick)
    if options.case == "roofs":
        report("roofs", measure_roofs(options.device, options.quick, milliseconds))
        return
    for name in options.compilers.split(","):
        torch.manual_seed(0)
        try:
            report(name, measure(CASES[options.case](place), name, place, options.first_only))
        except Exception as failure:  # one compiler's failure must not hide the others' figures
            traceback.print_exc()
            report(name, {"failure": f"{type(failure).__name__}: {failure}".splitlines()[0][:300]})


def report(name: str, figures: dict[str, Any]) -> None:
    """Hand one compiler's figures to the parent process."""
    print(MARK + json.dumps({"compiler": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
