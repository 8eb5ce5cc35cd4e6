"""One operator of PyTorch's OpInfo database through the whole compiler, compared with eager: the verdict, and why.

Values, dtypes, strides, changed arguments, aliases and fp32 gradients are compared; floats against an fp64 run. This
module must not choose operators or write tables.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo

import minicompile
from minicompile.errors import CompileFailed
from tests import differential
from tests.differential import Run, differences, leaves, run, run_in_double

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64, "bool": torch.bool}
UNINITIALISED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
# From best to worst; an operator has the worst verdict of its samples.
RANKS = ("right", "views", "fused", "fused+extern", "extern", "graph break", "eager", "near", "slow", "crash", "wrong")
CLEAN_REFUSALS = ("Untraceable", "Unsupported", "DynamicOutputShapeException", "DataDependentOutputException",
                  "GuardOnDataDependentSymNode", "UnsupportedOperatorException")  # fmt: skip
BOOKKEEPING = ("no elements", "draws the keys of this run")
NEAR = {torch.float32: (1.3e-6, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float16: (1e-3, 1e-5),
        torch.float64: (1e-7, 1e-7), torch.complex64: (1.3e-6, 1e-5), torch.complex128: (1e-7, 1e-7)}  # fmt: skip
SLACK = 4.0
HALVES_AND_FLOAT = (torch.float16, torch.bfloat16, torch.float32)


def without_seed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the database calls random operators through, without setting a seed of its own."""
    return function(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = without_seed


class TookTooLong(BaseException):
    """One operator used up its time; not an `Exception`, so that no fallback of the compiler takes it for its own."""


@dataclasses.dataclass
class Verdict:
    """What happened to one operator with one dtype.

    Attributes:
        operator, dtype: which; `operator` includes the variant's name.
        kind: one of `RANKS`, or `not run` where eager itself gives no result.
        reasons: extern kernels, fallbacks, graph breaks, differences.
        random: only shapes and layouts are compared, besides a run on eager's own random numbers.
        samples: how many calls were compared.
        ratio: the largest error against fp64 over eager's largest, rounding of the result apart; 0 where there is none.
    """

    operator: str
    dtype: str
    kind: str = "right"
    reasons: list[str] = dataclasses.field(default_factory=list)
    random: bool = False
    samples: int = 0
    ratio: float = 0.0

    def add(self, kind: str, reasons: list[str]) -> None:
        """Take over a sample's verdict where it is worse; reasons add up."""
        if {kind, self.kind} in ({"fused", "extern"}, {"fused+extern", "extern"}):
            self.kind = "fused+extern"
        elif RANKS.index(kind) > RANKS.index(self.kind):
            self.kind = kind
        self.reasons.extend(reason for reason in reasons if reason not in self.reasons)
        self.samples += 1


def full_name(op: OpInfo) -> str:
    """The operator's name with that of its variant."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def judge(op: OpInfo, dtype_name: str, samples: int, seconds: int, by_torch: bool = False, device: str = "cpu") -> Verdict:
    """The verdict on the first few sample inputs of an operator; `by_torch` judges `torch.compile` instead."""
    call_verdict = judge_torch if by_torch else judge_call
    verdict = Verdict(full_name(op), dtype_name)
    dtype = DTYPES[dtype_name]
    gradients = dtype == torch.float32 and op.supports_autograd
    try:
        with time_limit(seconds):
            torch.manual_seed(0)
            for number, sample in enumerate(itertools.islice(chosen_samples(op, dtype, gradients, device), samples)):
                for function in functions(op, sample, gradients, number):
                    arguments = ((sample.input, *sample.args), sample.kwargs)
                    found = call_verdict(function, arguments, gradients, op.name in UNINITIALISED)
                    if found is not None:
                        verdict.random |= found[2]
                        verdict.ratio = max(verdict.ratio, found[3])
                        verdict.add(*as_told(function, number, found[0], found[1]))
    except TookTooLong:
        verdict.add("slow", [f"more than {seconds} s"])
    except Exception as failure:
        verdict.reasons.append(f"no samples: {type(failure).__name__}: {str(failure)[:200]}")
    if not verdict.samples:
        verdict.kind = "not run"
    return verdict


def as_told(function: Callable[..., Any], number: int, kind: str, reasons: list[str]) -> tuple[str, list[str]]:
    """A call's kind and reasons as they count for the operator: refusing to change an input's shape says nothing of it."""
    if kind in ("wrong", "crash"):
        return kind, [f"sample {number}: {reason}" for reason in reasons]
    if function.__name__ == "change_input" and kind in ("eager", "graph break"):
        return "views", [f"in place on an input: {reason}" for reason in reasons]
    return kind, reasons


def chosen_samples(op: OpInfo, dtype: torch.dtype, gradients: bool, device: str) -> Iterator[Any]:
    """Sample inputs that differ: the first, then every few of the rest."""
    given = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=gradients), 40))
    small = [s for s in given if all(t.numel() < 50_000 for t in differential.tensors_in([s.input, s.args, s.kwargs]))]
    step = max(1, len(small) // 4)
    yield from small[::step]
    yield from (s for i, s in enumerate(small) if i % step)


def functions(op: OpInfo, sample: Any, gradients: bool, number: int) -> Iterator[Callable[..., Any]]:
    """The operator as a function, and for the first samples its in-place form on an input and on a computed value."""
    out_of_place, in_place = op.op, op.inplace_variant

    def call(args: Any, kwargs: Any) -> Any:
        return out_of_place(*args, **kwargs)

    def change_input(args: Any, kwargs: Any) -> Any:
        return in_place(*args, **kwargs)

    def change_value(args: Any, kwargs: Any) -> Any:
        value = args[0].clone()
        in_place(value, *args[1:], **kwargs)
        return value

    yield call
    if in_place is not None and number < 2 and not sample.broadcasts_input and isinstance(sample.input, torch.Tensor):
        yield change_value if gradients else change_input


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TookTooLong` in the block after so many seconds."""

    def stop(*_: Any) -> None:
        raise TookTooLong

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def judge_call(
    function: Callable[..., Any], arguments: tuple[Any, ...], gradients: bool, uninitialised: bool
) -> tuple[str, list[str], bool, float] | None:
    """(kind, reasons, random, error ratio) of one call; `None` where eager refuses it."""
    warnings.simplefilter("ignore")
    eager = observe(function, arguments, gradients, 0)
    if eager.exception is not None:
        return None
    other = observe(function, arguments, gradients, 1)
    random = uninitialised or any(differences(eager, other, None, [eager], SLACK))
    options: dict[str, Any] = {"suppress_errors": False, "cache": False, "dynamic": False, "verify": True}
    compiled = minicompile.compile(function, options=options | {"fallback_random": random})
    shown = observe(compiled, arguments, gradients, 0)
    if not random and draws_numbers(compiled):  # numbers that happened to matter for neither seed
        random = True
        compiled = minicompile.compile(function, options=options | {"fallback_random": True})
        shown = observe(compiled, arguments, gradients, 0)
    kind, reasons = description(compiled)
    if isinstance(shown.exception, CompileFailed):
        cause = shown.exception.cause
        clean = any(base.__name__ in CLEAN_REFUSALS for base in type(cause).__mro__)
        kind, reasons = "eager" if clean else "crash", [first_line(shown.exception)]
        compiled = minicompile.compile(function, options=options | {"suppress_errors": True, "fallback_random": random})
        shown = observe(compiled, arguments, gradients, 0)
    exact = exact_run(function, arguments, gradients)
    if uninitialised:
        eager, shown = without_values(eager), without_values(shown)
    found = list(differences(eager, shown, exact, [eager], 2.0))
    ratio = error_ratio(eager, shown, exact)
    if random and not found and kind not in ("eager", "crash"):
        compiled = minicompile.compile(function, options=options)
        shown = observe(compiled, arguments, gradients, 0)
        kind, reasons = description(compiled)
        found = list(differences(without_values(eager), without_values(shown), None, [eager], 2.0))
    if found and all(": error " in text for text in found) and is_near(eager, shown):
        return "near", found, random, ratio
    if found and not random and is_half(arguments):
        rounded = minicompile.compile(function, options=options | {"emulate_precision_casts": True})
        shown = observe(rounded, arguments, gradients, 0)
        if not any(differences(eager, shown, exact, [eager], 2.0)):
            return "near", [f"with eager's rounding of intermediates equal, without: {text}" for text in found], random, ratio
    return ("wrong", found, random, ratio) if found else (kind, reasons, random, ratio)


def error_ratio(eager: Run, shown: Run, exact: Run | None) -> float:
    """The worst, over outputs and gradients, of the largest error beside eager's, a rounding of the largest value added to both."""
    worst = 0.0
    for field in ("outputs", "gradients") if exact is not None else ():
        for one, other, true in zip(getattr(eager, field), getattr(shown, field), getattr(exact, field), strict=False):
            tensors = all(isinstance(value, torch.Tensor) for value in (one, other, true))
            if not tensors or one.dtype not in HALVES_AND_FLOAT or not one.shape == other.shape == true.shape:
                continue
            finite = one.isfinite() & other.isfinite() & true.isfinite()
            if finite.any():
                wide = true[finite].double()
                rounding = torch.finfo(one.dtype).eps / 2 * float(wide.abs().max()) + 1e-300
                errors = [float((value[finite].double() - wide).abs().max()) + rounding for value in (other, one)]
                worst = max(worst, errors[0] / errors[1])
    return worst


def is_half(arguments: Any) -> bool:
    """Whether a tensor among the arguments has 16-bit floats: fused chains do not overflow where eager's do."""
    return any(t.dtype in (torch.float16, torch.bfloat16) for t in differential.tensors_in(arguments))


def is_near(eager: Run, shown: Run) -> bool:
    """Whether floats that break the rule agree as PyTorch's own tests of its compilers ask for."""
    return all(
        torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
        for field in ("outputs", "arguments", "gradients")
        for one, other in zip(getattr(eager, field), getattr(shown, field), strict=True)
        if isinstance(one, torch.Tensor)
        for rtol, atol in [NEAR.get(one.dtype, (0.0, 0.0))]
    )


def observe(function: Callable[..., Any], arguments: tuple[Any, ...], gradients: bool, seed: int) -> Run:
    """A run on copies of the arguments, with what its results share as further outputs."""

    def with_relations(*args: Any) -> Any:
        result = function(*args)
        return (result, relations(leaves(result), leaves(args)))

    shown = run(with_relations, arguments, gradients, seed)
    # Autograd promises no layout of a gradient: a compiled backward takes tangents in the layout of the output.
    shown.gradients = [g.contiguous() if isinstance(g, torch.Tensor) and g.layout == torch.strided else g for g in shown.gradients]
    return shown


def exact_run(function: Callable[..., Any], arguments: tuple[Any, ...], gradients: bool) -> Run | None:
    """A run in fp64, with a place for what `observe` adds."""
    shown = run_in_double(function, arguments, gradients, 0)
    if shown is not None:
        shown.outputs.append(None)
    return shown


def relations(results: list[Any], arguments: list[Any]) -> str:
    """Which results are arguments or each other, or share memory with them, and which require gradients."""
    words = []
    for position, value in enumerate(results):
        if not isinstance(value, torch.Tensor):
            continue
        earlier = [("argument", i, a) for i, a in enumerate(arguments)] + [("result", i, r) for i, r in enumerate(results[:position])]
        tensors = [(k, i, t) for k, i, t in earlier if isinstance(t, torch.Tensor)]
        same = next((f" is {k} {i}" for k, i, t in tensors if t is value), "")
        shared = next((f" shares {k} {i} at {value.storage_offset()}" for k, i, t in tensors if share(t, value)), "")
        words.append(f"result {position}{same or shared}{' requires grad' if value.requires_grad else ''}")
    return "; ".join(words)


def share(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have one storage."""
    if first.layout != torch.strided or second.layout != torch.strided:
        return False
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def without_values(shown: Run) -> Run:
    """The same run with zeros for every float and integer: only shapes and layouts are left."""

    def zeros(values: list[Any]) -> list[Any]:
        return [torch.zeros_like(v) if isinstance(v, torch.Tensor) else v for v in values]

    return Run(zeros(shown.outputs), zeros(shown.arguments), zeros(shown.gradients), shown.exception)


def judge_torch(
    function: Callable[..., Any], arguments: tuple[Any, ...], gradients: bool, uninitialised: bool
) -> tuple[str, list[str], bool, float] | None:
    """The same for `torch.compile` with its `aot_eager` backend: capture and graphs are its own, kernels are eager's."""
    eager = observe(function, arguments, gradients, 0)
    if eager.exception is not None:
        return None
    random = uninitialised or any(differences(eager, observe(function, arguments, gradients, 1), None, [eager], SLACK))
    torch._dynamo.reset()
    shown = observe(torch.compile(function, backend="aot_eager", dynamic=False), arguments, gradients, 0)
    if shown.exception is not None:
        return "crash", [f"{type(shown.exception).__name__}: {first_line(shown.exception)}"], random, 0.0
    exact = exact_run(function, arguments, gradients)
    if random:
        eager, shown = without_values(eager), without_values(shown)
    found = list(differences(eager, shown, exact, [eager], 2.0))
    ratio = error_ratio(eager, shown, exact)
    if found and all(": error " in text for text in found) and is_near(eager, shown):
        return "near", found, random, ratio
    return ("wrong" if found else "right"), found, random, ratio


def draws_numbers(compiled: Any) -> bool:
    """Whether a graph of the compiled function draws random numbers."""
    graphs = [graph.partitioned.forward.graph for graph in compiled.compiler.graphs]
    return any("random_" in str(node.target) for graph in graphs for node in graph.nodes)


def description(compiled: Any) -> tuple[str, list[str]]:
    """How a compiled function ran: the kind, and what was not fused, with reasons."""
    function = compiled
    breaks = [f"{b.kind}: {b.reason}" for b in function.graph_breaks]
    fallbacks = [f.reason for f in function.records.fallbacks]
    parts = [part for graph in function.compiler.graphs for part in graph.parts.values()]
    fallbacks += [part.fallback for part in parts if part.fallback]
    programs = [part.program for part in parts if part.program is not None]
    kernels = sum(len(program.launches) for program in programs)
    calls = collections.OrderedDict(((target.removeprefix("torch.ops."), reason), 0) for p in programs for target, reason in p.extern_calls)
    externs = [f"{target}: {reason}" for target, reason in calls if reason not in BOOKKEEPING]
    if fallbacks:
        return "eager", [*map(first_line, fallbacks), *map(first_line, breaks)]
    if breaks:
        return "graph break", [*map(first_line, breaks), *externs]
    kind = "fused+extern" if kernels and externs else "fused" if kernels else "extern" if externs else "views"
    return kind, externs


def first_line(message: Any) -> str:
    """The beginning of a message."""
    return " ".join(str(message).split())[:300]
