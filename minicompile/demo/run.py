"""The demo: compile a small GPT for inference and training, train it, sample from it, and print it all beside eager."""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

import minicompile
from minicompile.bench.timing import first_call_seconds, largest_error, milliseconds
from minicompile.demo.eager_work import eager_work
from minicompile.demo.model import GPT, GPTConfig
from minicompile.demo.progress import ProgressBar
from minicompile.demo.text import batches, decode, encode, standard_library_text

SIZES = {
    "tiny": (GPTConfig(context=32, width=32, layers=1, heads=2), 4),
    "small": (GPTConfig(context=64, width=64, layers=2, heads=2), 8),
    "large": (GPTConfig(context=512, width=768, layers=12, heads=12), 16),
}
"""Name to model sizes and batch size; `small` is the default on the CPU, `large` on a GPU."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One column of the final table.

    Attributes:
        inference_ms, training_ms: time of a forward pass without gradients, and of forward and backward.
        inference_first_s, training_first_s: seconds until the first result, compilation included.
        inference_error, training_error: largest error of the logits and of any gradient against fp64, as a share of
            the largest value.
        inference_kernels, training_kernels: kernels launched by one call.
        inference_bytes, training_bytes: bytes that those kernels read and write.
    """

    inference_ms: float
    training_ms: float
    inference_first_s: float
    training_first_s: float
    inference_error: float
    training_error: float
    inference_kernels: str
    training_kernels: str
    inference_bytes: str
    training_bytes: str


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, its compiled forms, one batch, and where they live."""

    model: GPT
    inference: Any
    training: Any
    ids: torch.Tensor
    targets: torch.Tensor
    device: str


def run_demo(size: str | None = None, device: str | None = None, seconds: float = 15.0, characters: int = 200) -> int:
    """Run the demo and return the exit status: non-zero when a compiled result is less exact than it should be."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    size = size or ("large" if device == "cuda" else "small")
    started = time.perf_counter()
    config, batch = SIZES[size]
    data = encode(standard_library_text())
    generator = torch.Generator().manual_seed(0)
    work = prepare(config, batch, data, generator, device)
    parameters = sum(p.numel() for p in work.model.parameters())
    print(f"minicompile {minicompile.__version__}, torch {torch.__version__}, {device_name(device)}")
    sizes = f"{config.layers} layers, width {config.width}, context {config.context}"
    print(f"GPT: {sizes}, {parameters / 1e6:.2f} M parameters")
    print(f"text: {len(data):,} characters of Python's standard library\n")

    print("compiling the forward pass and the training step ...", flush=True)
    columns = {"eager": measure_eager(work), "minicompile": measure_compiled(work)}
    train(work, data, generator, batch, seconds)
    print("\nsampled:\n" + indented(sample(work, data, characters, generator)) + "\n")
    print_table(columns, device)
    print_files(work)
    print(f"total: {time.perf_counter() - started:.1f} s")
    return verdict(columns)


def prepare(config: GPTConfig, batch: int, data: torch.Tensor, generator: torch.Generator, device: str) -> Workload:
    """Build the model on the device, bf16 on a GPU and fp32 on the CPU, and wrap its two compiled forms."""
    torch.manual_seed(0)
    model = GPT(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    ids, targets = (t.to(device) for t in batches(data, batch, config.context, generator))
    return Workload(model, minicompile.compile(model), minicompile.compile(model), ids, targets, device)


def measure_eager(work: Workload) -> Measurement:
    """The eager column."""
    kernels, moved = eager_work(lambda: infer(work.model, work))
    step_kernels, step_moved = eager_work(lambda: gradients(work.model, work))
    return Measurement(
        **timings(work, work.model, work.model),
        **errors(work, work.model, work.model),
        inference_kernels=str(kernels),
        training_kernels=str(step_kernels),
        inference_bytes=f"{moved / 1e6:.1f} MB",
        training_bytes=f"{step_moved / 1e6:.1f} MB",
    )


def measure_compiled(work: Workload) -> Measurement:
    """The compiled column; bytes are exact for generated kernels and leave out the others."""
    timed = timings(work, work.inference, work.training)
    inference, training = work.inference.stats, work.training.stats
    return Measurement(
        **timed,
        **errors(work, work.inference, work.training),
        inference_kernels=f"{inference.kernels} + {inference.extern_calls}",
        training_kernels=f"{training.kernels} + {training.extern_calls}",
        inference_bytes=f"{inference.bytes_moved / 1e6:.1f} MB *",
        training_bytes=f"{training.bytes_moved / 1e6:.1f} MB *",
    )


def infer(model: Callable[..., torch.Tensor], work: Workload) -> torch.Tensor:
    """Logits of the batch, without gradients."""
    with torch.no_grad():
        return model(work.ids)


def gradients(model: Any, work: Workload) -> list[torch.Tensor]:
    """One forward and backward pass; the gradients of every parameter."""
    model.zero_grad(set_to_none=True)
    model(work.ids, work.targets).backward()
    return [p.grad for p in model.parameters()]


def timings(work: Workload, inference: Any, training: Any) -> dict[str, float]:
    """First-call seconds and steady-state milliseconds of both passes."""
    return {
        "inference_first_s": first_call_seconds(lambda: infer(inference, work), work.device),
        "training_first_s": first_call_seconds(lambda: gradients(training, work), work.device),
        "inference_ms": milliseconds(lambda: infer(inference, work), work.device),
        "training_ms": milliseconds(lambda: gradients(training, work), work.device),
    }


def errors(work: Workload, inference: Any, training: Any) -> dict[str, float]:
    """Largest errors of logits and gradients against the same model in fp64."""
    exact = copy.deepcopy(work.model).double()
    logits = largest_error([infer(inference, work)], [infer(exact, work)])
    grads = largest_error(gradients(training, work), gradients(exact, work))
    return {"inference_error": logits, "training_error": grads}


def train(work: Workload, data: torch.Tensor, generator: torch.Generator, batch: int, seconds: float) -> None:
    """Train the compiled model for about `seconds`, with a progress bar."""
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=3e-3 if work.device == "cpu" else 3e-4)
    context = work.model.config.context
    steps, done, start = 1000, 0, time.perf_counter()
    bar: ProgressBar | None = None
    while done < steps:
        ids, targets = (t.to(work.device) for t in batches(data, batch, context, generator))
        optimizer.zero_grad(set_to_none=True)
        loss = work.training(ids, targets)
        loss.backward()
        optimizer.step()
        done += 1
        if done == 5:  # the pace is known: decide how many steps fit
            pace = (time.perf_counter() - start) / done
            steps = min(steps, max(int(seconds / pace), 10))
            bar = ProgressBar(steps, "training")
        if bar is not None and (done % max(steps // 50, 1) == 0 or done == steps):
            bar.update(done, f"loss {loss.item():.3f}")


def sample(work: Workload, data: torch.Tensor, characters: int, generator: torch.Generator) -> str:
    """Continue a piece of the text; the window has a fixed size, so one compiled variant serves every step."""
    context = work.model.config.context
    prompt = "def "
    window = torch.zeros(1, context, dtype=torch.long)
    tokens = encode(prompt)
    limit = time.perf_counter() + 10.0
    for _ in range(characters):
        recent = tokens[-context:]
        window[0, : len(recent)] = recent
        with torch.no_grad():
            logits = work.inference(window.to(work.device))
        chances = torch.softmax(logits[0, len(recent) - 1].float().cpu() / 0.8, dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)])
        if time.perf_counter() > limit:
            break
    return decode(tokens)


def print_table(columns: dict[str, Measurement], device: str) -> None:
    """Both columns, one line per figure."""
    rows: list[tuple[str, Callable[[Measurement], str]]] = [
        ("inference, ms", lambda m: f"{m.inference_ms:.2f}"),
        ("training step, ms", lambda m: f"{m.training_ms:.2f}"),
        ("first inference, s", lambda m: f"{m.inference_first_s:.2f}"),
        ("first training step, s", lambda m: f"{m.training_first_s:.2f}"),
        ("logits, error against fp64", lambda m: f"{m.inference_error:.1e}"),
        ("gradients, error against fp64", lambda m: f"{m.training_error:.1e}"),
        ("inference, kernels", lambda m: m.inference_kernels),
        ("training step, kernels", lambda m: m.training_kernels),
        ("inference, bytes moved", lambda m: m.inference_bytes),
        ("training step, bytes moved", lambda m: m.training_bytes),
    ]
    print(f"{'':<32}" + "".join(f"{name:>16}" for name in columns))
    for label, show in rows:
        print(f"{label:<32}" + "".join(f"{show(column):>16}" for column in columns.values()))
    eager, ours = columns.values()
    if device == "cuda":
        print(f"speed-up: inference {eager.inference_ms / ours.inference_ms:.2f}x, ", end="")
        print(f"training step {eager.training_ms / ours.training_ms:.2f}x")
    else:
        print("on the CPU, Triton's interpreter runs the kernels: these times show that it works, not how fast it is")
    print("kernels: generated + calls of others' kernels (matrix products ...)   * generated kernels only")


def print_files(work: Workload) -> None:
    """Where the generated files are."""
    print("\ngenerated files:")
    for path in [*minicompile.source_paths(work.inference), *minicompile.source_paths(work.training)]:
        print(f"  {path}")


def verdict(columns: dict[str, Measurement]) -> int:
    """Non-zero when the compiled errors exceed twice eager's by more than rounding."""
    eager, ours = columns["eager"], columns["minicompile"]
    exact = ours.inference_error <= 2 * eager.inference_error + 1e-6
    exact &= ours.training_error <= 2 * eager.training_error + 1e-6
    print("results: " + ("as exact as eager" if exact else "LESS EXACT than eager; please report this"))
    return 0 if exact else 1


def indented(text: str) -> str:
    """The text as a quotation."""
    return "\n".join("    | " + line for line in text.splitlines())


def device_name(device: str) -> str:
    """The device in words."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU with {os.cpu_count()} cores ({platform.machine()}), kernels run by Triton's interpreter"
