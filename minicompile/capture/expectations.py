"""Tests of tensors that decide only whether to raise (`assert`, `if not valid.all(): raise ...`) stay in the graph.

The graph goes on as where nothing is raised, and says at its end whether something had to be. If so, the call is made
again in plain Python, before any side effect. Must not be used by graphs that change their inputs, which would change twice,
nor on a GPU by those that it may stop for good at what had to be refused (an index out of range, chances that are NaN).
"""

import operator
import re
from typing import Any

import torch

from minicompile.capture.break_kinds import Break
from minicompile.capture.calls import call, run_native, special
from minicompile.capture.constant_tensors import known_value
from minicompile.capture.instruction import Instruction
from minicompile.capture.operators import truth
from minicompile.capture.side_effects import MISSING
from minicompile.capture.torch_interface import FakeTensor, named, restore_state
from minicompile.capture.tracer import Args, Keywords, TraceAgain, Tracer
from minicompile.ir.autocast import open_blocks

LONGEST = 200
MAY_STOP = re.compile("index|gather|scatter|take|put|embedding|nll|entropy|multinomial|bernoulli|binomial|poisson|normal|one_hot|"
                      "ctc|unpool|interleave|assert")  # fmt: skip
"""Names of operators that look at values where they run: a failed assertion ends all work of the process on a GPU."""


def truth_for_jump(tracer: Tracer, at: Instruction, value: Any) -> bool:
    """The truth of what a jump, or what comes just before it, asks for: of a tensor, that with which nothing is raised."""
    known = not isinstance(value, FakeTensor) or known_value(tracer, value, "__bool__") is not MISSING
    expected = expected_truth(tracer, at) if not known and may_be_tested(tracer, value) else None
    if expected is None:
        return truth(tracer, value)
    expect(tracer, value, expected)
    return expected


@special(torch._check_with)
def rule_check(tracer: Tracer, args: Args, kwargs: Keywords) -> None:
    """Raises what `torch._check` and its kin do, where a condition is not true."""
    if args[1] is not True:
        text = args[2] and call(tracer, str, (call(tracer, args[2], (), {}),), {})
        run_native(tracer, torch._check_with, (*args[:2], args[2] and (lambda: text)), {})


@special(torch._check_tensor_all_with)
def rule_check_tensor_all(tracer: Tracer, args: Args, kwargs: Keywords) -> None:
    """Raises where a tensor is not true throughout."""
    known = isinstance(args[1], FakeTensor) and args[1].dtype is torch.bool
    right = tracer.operation("call_method", "all", args[1:2]) if known else None
    if right is None or not may_be_tested(tracer, right):
        raise Break("tensor value", "`_check_tensor_all` looks at a tensor")
    expect(tracer, right, True)


@special(*named("distributions.distribution._all_true_or_runtime_assert"))  # torch 2.15
def rule_all_true(tracer: Tracer, args: Args, kwargs: Keywords) -> torch.Tensor:
    """Whether a tensor is true throughout, which the caller tests by a jump: still a tensor."""
    return tracer.operation("call_function", torch._is_all_true, args[:1])


def expect(tracer: Tracer, value: torch.Tensor, expected: bool) -> None:
    """Let the graph say if a tensor is not as true as expected."""
    failed = tracer.operation("call_function", torch.eq if expected else torch.ne, (value, 0))
    if value.dim():
        failed = tracer.operation("call_method", "reshape", (failed, ()))
    if tracer.failed is not None:
        failed = tracer.operation("call_function", torch.logical_or, (tracer.failed, failed))
    tracer.failed = failed


def may_be_tested(tracer: Tracer, value: torch.Tensor) -> bool:
    """Whether the graph may say at its end how a tensor of one element came out."""
    return (tracer.expects and tracer.graph.inside is None and tracer.graph.region is None
            and all(type(size) is int and size == 1 for size in value.shape)
            and (tracer.failed is None or tracer.failed.device == value.device))


def expected_truth(tracer: Tracer, at: Instruction) -> bool | None:
    """With which truth the next jump avoids a `raise` that is on its other way."""
    frame = tracer.frames[-1]
    instructions = frame.program.instructions
    place = frame.index - at.name.startswith("POP_JUMP")
    jump = instructions[place]
    if not jump.name.startswith("POP_JUMP"):
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
    """Refuse tests in a graph that changes inputs: a call that is made again would change them twice; or that may stop a GPU."""
    if tracer.failed is not None:
        if tracer.failed.device.type == "cuda" and any(map(may_stop_device, tracer.graph.graph.nodes)):
            raise TraceAgain(expects=False)
        if tracer.graph.mutated_inputs():
            raise TraceAgain(expects=False)


def may_stop_device(node: torch.fx.Node) -> bool:
    """Whether an operation asserts on the device what its values are."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.target in (operator.getitem, operator.setitem):
        index = node.args[1] if isinstance(node.args[1], tuple) else node.args[1:2]
        return any(isinstance(part, torch.fx.Node) and isinstance(part.meta["example_value"], torch.Tensor) for part in index)
    return node.op.startswith("call_") and MAY_STOP.search(name) is not None


class Rewind:
    """Makes undone what a graph may have done that has to run again in plain Python: random numbers, torch's global state."""

    def __init__(self, tracer: Tracer) -> None:
        self.state, self.settings = tracer.state, tracer.autocast[0]
        self.device = tracer.failed.device if tracer.failed.device.type == "cuda" else None

    def random_state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The state of the generators from which the graph may draw."""
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if self.device else None

    def __call__(self, random: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        """Go back to where `random_state` was asked for."""
        restore_state(self.state, self.settings, open_blocks())
        torch.set_rng_state(random[0])
        if random[1] is not None:
            torch.cuda.set_rng_state(random[1], self.device)
