"""Compiled variants of a call: tried most recently used first, captured when none fits, limited in number.

One lock serialises capture in the whole process. A cache belongs to one compiled callable and dies with it.
"""

import dataclasses
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minicompile.capture import torch_interface
from minicompile.capture.break_kinds import CLASS_MADE, RunEager
from minicompile.capture.collector import collection_postponed
from minicompile.capture.dynamic import DynamicPlan
from minicompile.capture.graph_break import code_called_by
from minicompile.capture.guards import GUARD_SCOPE, TensorGuard, TensorKind, Writer, write_guards
from minicompile.capture.instruction import SUPPORTED_VERSIONS, VERSION, Program
from minicompile.capture.records import Fallback, Recompile, Records
from minicompile.capture.resume import GeneratorPoint, ResumePoint, ResumeShape, build_resume_code, finished
from minicompile.capture.user_line import NAMED, name_of
from minicompile.capture.variant import MISS, Context, Variant, capture_call, compile_source
from minicompile.config import Config
from minicompile.errors import CompileFailed, Location, Unsupported, warn_user
from minicompile.ir.float_input import is_float_input
from minicompile.ir.graph import CapturedGraph

BEGINNING_VARIANTS = 4
"""How many variants may depend on where generators from outside are; the next ones take them step by step."""
CAPTURE_LOCK = threading.RLock()
Backend = Callable[[CapturedGraph], Callable[..., Sequence[Any]]]


class DynamicGraphFailed(Exception):
    """The backend cannot compile a graph with symbolic numbers; the call is captured again with fixed ones.

    Attributes:
        takes_floats: whether floats are among them; they are fixed first.
    """

    def __init__(self, takes_floats: bool) -> None:
        super().__init__()
        self.takes_floats = takes_floats


class Session:
    """What all caches of one compiled callable share: backend, settings, records, resume points and cut-out callees."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self.backend, self.config = backend, config
        self.records = Records()
        self.resume_points: dict[Any, Any] = {}
        self.origins: dict[types.CodeType, tuple[Program, ResumeShape]] = {}
        self.callees: dict[Any, CallCache] = {}
        self.warned: set[str] = set()
        self.keep: list[Any] = []

    def resume_point(self, compiling: bool, program: Program, namespace: dict[str, Any],
                     shape: ResumeShape) -> Callable[..., Any]:
        """The resume function of a shape, made once; it is told what the frame was, that it is being compiled or not."""
        program, shape = self.in_original(program, shape)
        key = (program.code, id(namespace), shape, compiling)
        point = self.resume_points.get(key)
        if point is None:
            code = build_resume_code(program, shape)
            if shape.generator:
                point = GeneratorPoint(code, namespace, shape.generator, bool(shape.stack))
            else:
                point = ResumePoint(code, namespace, CallCache(self, f"resume_in_{code.co_name}", compiling))
                self.origins[code] = (program, shape)
                if shape.eager:
                    point.cache.overflowed = True
                    self.fall_back(point.cache.name, CLASS_MADE, None)
            self.resume_points[key] = point
        return point

    def inner_caches(self) -> list["CallCache"]:
        """The caches of resume functions and of cut-out callees."""
        points = [point.cache for point in self.resume_points.values() if isinstance(point, ResumePoint)]
        return [*points, *self.callees.values()]

    def in_original(self, program: Program, shape: ResumeShape) -> tuple[Program, ResumeShape]:
        """The same place in the user's own code, if the frame that was cut is a resume function itself.

        So a loop with a break in its body needs one resume function, not one per iteration.
        """
        origin = self.origins.get(program.code)
        if origin is None:
            return program, shape
        original, former = origin
        index = shape.index - former.prologue
        if former.raises and index > former.index:
            index -= 4
        return original, dataclasses.replace(shape, index=index)

    def call_compiled(self, compiling: bool, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that was cut out of its caller through a cache of its own; it is told what its caller was."""
        code = code_called_by(function)
        if code is None:  # another one than when the call was captured
            return function(*args, **kwargs)
        cache = self.callees.get((code, compiling))
        if cache is None:
            cache = self.callees[code, compiling] = CallCache(self, name_of(function), compiling)
        return finished(cache.call(function, args, kwargs))

    def compile_graph(self, captured: CapturedGraph, writes: bool) -> Callable[..., Sequence[Any]]:
        """Hand a graph to the backend; if that fails, run the captured graph as it is.

        A graph that `writes` its inputs is left to the user's own code: it cannot run again if an operator raises.
        """
        self.records.graphs.append(captured)
        try:
            return self.backend(captured)
        except Exception as error:  # a defect of the compiler must not stop the program
            takes_floats = any(is_float_input(entry.example) for entry in captured.inputs)
            if not self.config.suppress_errors and not takes_floats:
                raise
            refused = isinstance(error, CompileFailed) and getattr(error.cause, "kind", "") == "refused by eager"
            if not refused and any(entry.kind == "size" for entry in captured.inputs):
                self.records.graphs.pop()
                raise DynamicGraphFailed(takes_floats) from error
            reason = f"the compiler failed on a graph: {type(error).__name__}: {str(error)[:200]}"
            self.fall_back(captured.name, reason, captured.location)
            if writes:
                self.records.graphs.pop()
                raise RunEager(reason, expected=True) from error
            return undrawn_on_failure(captured.module.forward)

    def run_original(self, error: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A graph without side effects failed at run time: the user's own code raises, at its line, what it has to."""
        result = function(*args, **kwargs)
        if not self.config.suppress_errors and not isinstance(error, torch.linalg.LinAlgError):  # which Python has caught
            raise error
        self.fall_back(function.__qualname__, f"its graph failed: {type(error).__name__}: {str(error)[:200]}", None)
        return result

    def fall_back(self, function: str, reason: str, location: Location | None) -> None:
        """Record a fallback, and warn about it once."""
        self.records.fallbacks.append(Fallback(function, reason, location))
        text = f"minicompile runs `{function}` in eager: {reason}" + (f" (at {location})" if location else "")
        if text not in self.warned:
            self.warned.add(text)
            warn_user(text)


def undrawn_on_failure(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, after a failure of which no random numbers are drawn: the user's own code draws them then."""

    def undrawn(*args: Any) -> Any:
        random = torch.get_rng_state()
        try:
            return run(*args)
        except Exception:
            torch.set_rng_state(random)
            raise

    return undrawn


class CallCache:
    """The variants of one code object's calls; `compiling` is what the code is told where it asks."""

    def __init__(self, session: Session, name: str, compiling: bool = True) -> None:
        self.session, self.name, self.compiling = session, name, compiling
        self.entries: list[Variant] = []
        self.plan = DynamicPlan(session.config.dynamic)
        self.overflowed = False
        self.expects = True

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the first variant whose guards hold; capture one if there is none. Gives a `Resumption` where the graph broke."""
        entries = self.entries
        for entry in entries:
            result = entry.function(function, args, kwargs)
            if result is not MISS:
                if entry is not entries[0] and entries is self.entries:  # it is tried first next time
                    self.entries = [entry, *(other for other in entries if other is not entry)]
                return result
        return self.miss(function, args, kwargs)

    def miss(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No variant fits: capture one, or run eager past the limit."""
        config = self.session.config
        if config.disable or VERSION not in SUPPORTED_VERSIONS or self.overflowed:
            return function(*args, **kwargs)
        known = self.entries
        with CAPTURE_LOCK, collection_postponed():
            entry = None
            if self.entries is known:
                state = torch_interface.torch_state()
                if sum(each.state == state for each in self.entries) >= config.recompile_limit:
                    self.overflow(function, args, kwargs)
                else:
                    entry = self.add(function, args, kwargs)
        if entry is None:
            if self.overflowed:
                return function(*args, **kwargs)
            return self.call(function, args, kwargs)
        result = entry.function(function, args, kwargs)
        if result is MISS:
            failed = self.failed_guard(entry, function, args, kwargs)[0]
            if not config.suppress_errors:
                raise AssertionError(f"a guard fails right after capture: {failed}\n{entry.source}")
            return function(*args, **kwargs)
        return result

    def add(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """Capture a new variant and put it first."""
        start = time.perf_counter()
        failed = self.failed_guard(self.entries[0], function, args, kwargs) if self.entries else None
        context = Context(self.session.config, self.plan, self.session.resume_point, self.session.call_compiled,
                          self.session.compile_graph, self.session.records.graph_breaks.append,
                          self.session.run_original, self.raise_originally, self.expects, compiling=self.compiling,
                          begins=len(self.entries) < BEGINNING_VARIANTS)
        try:
            entry: Variant | None = capture_call(context, function, args, kwargs)
        except DynamicGraphFailed as failure:
            if self.plan.give_up(failure.takes_floats) == "size":
                reason = f"{type(failure.__cause__).__name__}: {str(failure.__cause__)[:200]}"
                self.session.fall_back(self.name, f"it is compiled for each size: {reason}", None)
            entry = None
        except Unsupported:
            raise
        except Exception as error:  # a defect of the compiler must not stop the program
            if not self.session.config.suppress_errors:
                raise
            entry = self.internal_failure(error)
        if entry is None:  # tried again where nothing is being handled that the user's code could see
            return self.add(function, args, kwargs)
        self.session.records.sources.append(entry.source)
        if entry.eager is not None and not entry.expected:
            self.session.fall_back(self.name, entry.eager, entry.location)
        if failed is not None:
            sentence, old, new, place = failed
            self.session.records.recompiles.append(
                Recompile(self.name, sentence, old, new, place, time.perf_counter() - start))
        self.entries = [entry, *self.entries]
        return entry

    def raise_originally(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A graph has found that something has to be raised: plain Python does it. Where it does not after all (somebody
        catches it, or rounding decided), such tests end the graph from now on."""
        result = function(*args, **kwargs)
        self.entries, self.expects = [], False
        return result

    def internal_failure(self, error: Exception) -> Variant:
        """The variant for a frame on which the tracer itself failed."""
        reason = f"the tracer failed: {type(error).__name__}: {str(error)[:200]}"
        text = "def run(F, A, K):\n    return F(*A, **K)\n"
        return Variant(compile_source(text, "run", {}), [], torch_interface.torch_state(), text, reason)

    def overflow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Too many variants: say which guards failed, and run eager from now on."""
        self.overflowed = True
        sentences = []
        for entry in self.entries:
            failed = self.failed_guard(entry, function, args, kwargs)
            if failed is not None and failed[0] not in sentences:
                sentences.append(f"{failed[0]}" + (f" (needed at {failed[3]})" if failed[3] else ""))
        reason = f"more than {len(self.entries)} variants were compiled; guards that fail: " + "; ".join(sentences)
        self.session.fall_back(self.name, reason, None)

    def failed_guard(self, entry: Variant, function: Any, args: tuple[Any, ...],
                     kwargs: dict[str, Any]) -> tuple[str, Any, Any, Location | None]:
        """The sentence of the first guard that fails, with the old and the new value where known."""
        if torch_interface.torch_state() != entry.state:
            for name, old, new in zip(torch_interface.STATE_NAMES, entry.state, torch_interface.torch_state(), strict=False):
                if old != new:
                    return f"{name} is {old}", old, new, None
        for guard in entry.guards:
            holds, value = evaluate(guard, function, args, kwargs)
            if not holds:
                return guard.words(), *change(guard, value), guard.location
        return "a guard failed", None, None, None


def change(guard: Any, value: Any) -> tuple[Any, Any]:
    """What a guard that fails was made for, and what came instead; `None` where there is no saying."""
    if isinstance(guard, TensorGuard):
        old, new = describe(guard.tensor), describe(value)
        return old, f"{new}, strides {tuple(value.stride())}" if old == new else new
    if guard.kind == "structure" and type(value) in (list, tuple, dict, set):  # of other types that is user code
        return guard.expected, len(value) if isinstance(guard.expected, int) else list(value)
    return describe(guard.expected), describe(value)


def describe(value: Any) -> Any:
    """A plain value as it is; a plain tensor's metadata, a function's name or the type of anything else as text."""
    if value is None or isinstance(value, (int, float, str)) or isinstance(value, list) and all(type(v) is str for v in value):
        return value
    if type(value) not in (torch.Tensor, torch.nn.Parameter, TensorKind):  # a subclass may refuse to be asked
        return value.__qualname__ if isinstance(value, NAMED) else f"of type {type(value).__name__}"
    return f"{value.dtype} {tuple(value.shape)} on {value.device}" + ", requires grad" * value.requires_grad


def guard_test(guards: Sequence[Any]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[bool, Any]]:
    """A function of a call that tells whether guards hold, with the value that the first of them is about."""
    writer = Writer()
    lines = write_guards(writer, list(guards), (), lambda text: f"if not ({text}): return False, {{value}}")[1:]
    name = writer.fetch(guards[0].source)
    body = "\n".join(f"    {line.replace('{value}', name)}" for line in lines)
    text = f"def test(F, A, K):\n{body}\n    return True, {name}\n"
    return compile_source(text, "test", writer.namespace | GUARD_SCOPE)


def evaluate(guard: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    """Whether one guard holds, and the value that it tested."""
    try:
        return guard_test([guard])(function, args, kwargs)
    except Exception:  # guards read what user code may have changed in any way; one that cannot be read does not hold
        return False, None
