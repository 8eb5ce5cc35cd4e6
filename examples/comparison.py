"""Checks a compiled model against eager and against fp64: outputs, every gradient, buffers, one optimizer step.

An error may be at most twice eager's own plus a few units in the last place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import minicompile

Loss = Callable[[Any], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The largest errors against fp64, as a share of the largest value, and the compiled model."""

    eager_error: float
    compiled_error: float
    compiled: Any

    def __str__(self) -> str:
        return (
            f"largest error against fp64: eager {self.eager_error:.1e}, compiled {self.compiled_error:.1e}\n"
            f"{minicompile.stats(self.compiled)}"
        )


def check_inference(model: torch.nn.Module, inputs: tuple[Any, ...], **settings: Any) -> Comparison:
    """Compile `model`, run it without gradients, and compare what it returns."""
    compiled = minicompile.compile(model, **settings)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        outputs = {
            "fp64": {"output": exact(*as_double(inputs))},
            "eager": {"output": copy.deepcopy(model)(*inputs)},
            "compiled": {"output": compiled(*inputs)},
        }
    eager_error, compiled_error = compare(outputs)
    return Comparison(eager_error, compiled_error, compiled)


def check_training(model: torch.nn.Module, inputs: tuple[Any, ...], loss: Loss, **settings: Any) -> Comparison:
    """Compile a copy of `model`, run one training step of everything, and compare all that it leaves behind."""
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = minicompile.compile(copy.deepcopy(model), **settings)
    outputs = {
        "fp64": training_step(exact, as_double(inputs), loss),
        "eager": training_step(eager, inputs, loss),
        "compiled": training_step(compiled, inputs, loss),
    }
    eager_error, compiled_error = compare(outputs)
    return Comparison(eager_error, compiled_error, compiled)


def training_step(model: Any, inputs: tuple[Any, ...], loss: Loss) -> dict[str, Any]:
    """Everything that one step of training computes or changes, by name."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(*inputs)
    value = loss(output)
    value.backward()
    seen = {"output": output, "loss": value}
    seen |= {f"gradient of {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    seen |= {f"{name} after the step": p for name, p in model.named_parameters()}
    return seen | {f"buffer {name}": b for name, b in model.named_buffers()}


def compare(outputs: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """The largest errors of eager and compiled; raises `AssertionError` for what is less exact than it should be."""
    flat = {name: dict(tensors(values)) for name, values in outputs.items()}
    exact = flat["fp64"]
    assert exact.keys() == flat["eager"].keys() == flat["compiled"].keys(), "not the same outputs"
    gradients = [t.abs().max().item() for name, t in exact.items() if name.startswith("gradient")]
    worst = {"eager": 0.0, "compiled": 0.0}
    for name, reference in exact.items():
        got = {kind: flat[kind][name] for kind in worst}
        assert got["compiled"].shape == got["eager"].shape and got["compiled"].dtype == got["eager"].dtype, name
        if not reference.is_floating_point():
            assert torch.equal(got["compiled"], got["eager"]), name
            continue
        # A gradient that is zero in exact arithmetic is rounding noise: judge it on the scale of the others.
        floor = 1e-3 * max(gradients) if name.startswith("gradient") else 1e-12
        scale = max(reference.abs().max().item(), floor)
        errors = {kind: (value.double() - reference).abs().max().item() / scale for kind, value in got.items()}
        allowed = 2 * errors["eager"] + 8 * torch.finfo(got["eager"].dtype).eps
        assert errors["compiled"] <= allowed, f"{name}: error {errors['compiled']:.2e}, eager {errors['eager']:.2e}"
        worst = {kind: max(worst[kind], errors[kind]) for kind in worst}
    return worst["eager"], worst["compiled"]


def tensors(value: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The tensors inside a value, each with the path to it."""
    if isinstance(value, torch.Tensor):
        return [(name, value.detach())]
    if isinstance(value, (tuple, list)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in tensors(item, f"{name} {key}".strip())]
    return []


def as_double(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with floating-point tensors in fp64."""
    return tuple(i.double() if isinstance(i, torch.Tensor) and i.is_floating_point() else i for i in inputs)
