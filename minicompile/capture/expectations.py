"""Tests of tensors that decide only whether to raise (`assert`, `if not valid.all(): raise ...`) stay in the graph.

The graph goes on as where nothing is raised, and says at its end whether something had to be. If so, the call is made
again in plain Python, before any side effect. Must not be used by graphs that change their inputs, which would change twice.
"""

from __future__ import annotations

from typing import Any

import torch

from minicompile.capture.instruction import Instruction
from minicompile.capture.operators import truth
from minicompile.capture.torch_interface import FakeTensor, restore_state
from minicompile.capture.tracer import Tracer

LONGEST = 200


class InputsChange(Exception):
    """The graph changes its inputs, so that the tests in it have to end it after all."""


def truth_for_jump(tracer: Tracer, at: Instruction, value: Any) -> bool:
    """The truth of what a jump, or what comes just before it, asks for: of a tensor, that with which nothing is raised."""
    expected = expected_truth(tracer, at, value) if isinstance(value, FakeTensor) else None
    if expected is None:
        return truth(tracer, value)
    failed = tracer.operation("call_function", torch.eq if expected else torch.ne, (value, 0))
    if value.dim():
        failed = tracer.operation("call_method", "reshape", (failed, ()))
    if tracer.failed is not None:
        failed = tracer.operation("call_function", torch.logical_or, (tracer.failed, failed))
    tracer.failed = failed
    return expected


def expected_truth(tracer: Tracer, at: Instruction, value: torch.Tensor) -> bool | None:
    """With which truth of a tensor the next jump avoids a `raise` that is on its other way."""
    frame, graph = tracer.frames[-1], tracer.graph
    instructions = frame.program.instructions
    place = frame.index - at.name.startswith("POP_JUMP")
    jump = instructions[place]
    if not (tracer.expects and jump.name.startswith("POP_JUMP") and graph.inside is None and graph.region is None):
        return None
    if not all(type(size) is int and size == 1 for size in value.shape):
        return None
    if tracer.failed is not None and tracer.failed.device != value.device:
        return None
    ways = raises(instructions, jump.target, LONGEST), raises(instructions, place + 1, LONGEST)
    return ways[1] is jump.name.endswith("TRUE") if ways[0] is not ways[1] else None


def raises(instructions: tuple[Instruction, ...], place: int, most: int) -> bool:
    """Whether every way from a place ends in a `raise`, within so many instructions."""
    while most > 0 and place < len(instructions):
        at = instructions[place]
        if at.name == "RAISE_VARARGS":
            return True
        if at.name.startswith("POP_JUMP") and not raises(instructions, at.target, most // 2):
            return False
        if at.name.startswith(("RETURN", "YIELD", "JUMP_BACKWARD", "FOR_ITER", "RERAISE", "SEND", "JUMP_IF")):
            return False
        place = at.target if at.name.startswith("JUMP") and at.target > place else place + 1
        most -= 1
    return False


def check_expectations(tracer: Tracer) -> None:
    """Refuse tests in a graph that changes inputs: a call that is made again would change them twice."""
    if tracer.failed is not None:
        tensors = [entry.value for entry in tracer.graph.inputs if isinstance(entry.value, torch.Tensor)]
        if tracer.graph.mutated_inputs() or any(tensor.is_inference() for tensor in tensors):  # these count no changes
            raise InputsChange


class Rewind:
    """Makes undone what a graph may have done that has to run again in plain Python: random numbers, torch's global state."""

    def __init__(self, tracer: Tracer) -> None:
        self.state = tracer.state
        self.device = tracer.failed.device if tracer.failed.device.type == "cuda" else None

    def random_state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The state of the generators from which the graph may draw."""
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if self.device else None

    def __call__(self, random: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        """Go back to where `random_state` was asked for."""
        restore_state(self.state)
        torch.set_rng_state(random[0])
        if random[1] is not None:
            torch.cuda.set_rng_state(random[1], self.device)
