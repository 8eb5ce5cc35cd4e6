"""From one attempt at tracing to one generated function: guards, graph, side effects, result.

`capture_call` traces a call, cutting the frame where it must; `Variant` is the function that results. Must not keep
entries or decide when to recompile; `frame_cache` does.
"""

import contextlib
import dataclasses
import functools
import linecache
import operator
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minicompile.capture import copying, custom_function, kernel_launch, opcodes_calls, torch_interface, transforms
from minicompile.capture.attributes import get_attribute
from minicompile.capture.begun_generators import check_begun
from minicompile.capture.break_kinds import KINDS, Break, CutHere, LooksAtItsFrame, RaisedInUserCode, RunEager, Stop
from minicompile.capture.builtin_rules import call_class
from minicompile.capture.calls import COMPILED_MARK, DISABLED_MARK, call, called_by_module, is_called_plainly
from minicompile.capture.cpython_interface import IMMUTABLE
from minicompile.capture.dynamic import DynamicPlan, check_marks, shape_guards, symbol_node
from minicompile.capture.expectations import Rewind, check_expectations
from minicompile.capture.graph_break import Cutter
from minicompile.capture.guards import ALL_APART, GUARD_SCOPE, Guard, NoOverlap, TensorGuard, Writer, write_guards
from minicompile.capture.input_views import take_views_as_inputs
from minicompile.capture.kinds import isinstance
from minicompile.capture.made_classes import forget_classes
from minicompile.capture.made_leaves import check_made_leaves, check_switched
from minicompile.capture.module_trees import find_trees
from minicompile.capture.opcodes import HANDLERS, watch_selections
from minicompile.capture.output_graph import Traced, is_of_leaf
from minicompile.capture.overrides import call_overridden
from minicompile.capture.picks import check_picks
from minicompile.capture.reconstruct import Emitter, write_side_effects
from minicompile.capture.side_effects import Lazy
from minicompile.capture.source import Argument, Attribute, Baked, Source, identifier, is_trusted, is_trusted_module
from minicompile.capture.tracer import COROUTINE_FLAGS, GENERATOR_FLAG, Args, Frame, Keywords, Rules, TraceAgain, Tracer
from minicompile.capture.user_line import name_of, seen_from_user_lines
from minicompile.capture.values import IDENTITY_TYPES, is_structural, wrap
from minicompile.config import Config
from minicompile.errors import Location, Unsupported, warn_user
from minicompile.ir import autocast
from minicompile.ir.graph import CapturedGraph, GraphBreak, GuardRecord

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()
MAXIMUM_ATTEMPTS = 8
PARTS_WAYS = frozenset({"branch on a tensor", "operation failed"})
"""Breaks after which what a program makes for compilers alone (a mask where eager needs none) may not fit what follows."""
RULES = Rules(HANDLERS, wrap, call, call_class, call_overridden, watch_selections)
assert copying and custom_function and kernel_launch and opcodes_calls and transforms  # imported for the rules that they register


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    """One compiled variant of a call.

    Attributes:
        function: the generated function of (callable, args, kwargs); returns `MISS` when a guard fails.
        guards: what it depends on; state: torch's global state at capture; source: the function's text.
        eager: why the variant runs the original, or `None`; expected: that is no news to the user; location: the line.
    """

    function: Callable[..., Any]
    guards: list[Guard | TensorGuard]
    state: tuple[Any, ...]
    source: str
    eager: str | None
    expected: bool = False
    location: Location | None = None


@dataclasses.dataclass(frozen=True)
class Context:
    """What capturing one call needs from the cache that asked for it."""

    config: Config
    plan: DynamicPlan
    resume_point: Callable[..., Any]
    call_compiled: Callable[..., Any]
    compile_graph: Callable[[CapturedGraph, bool], Callable[..., Sequence[Any]]]
    record_break: Callable[[GraphBreak], None]
    run_original: Callable[..., Any]
    raise_originally: Callable[..., Any]
    expects: bool
    inference: bool = True
    compiling: bool = True
    picks: bool = True
    begins: bool = True
    selects: int = sys.maxsize


class Attempt:
    """One run of the tracer over one call."""

    def __init__(self, context: Context, function: Any, args: Args, kwargs: Keywords) -> None:
        self.context = context
        self.tracer = Tracer(context.config, RULES, context.plan)
        self.tracer.expects, self.tracer.graph.inference.allowed = context.expects, context.inference
        self.tracer.picks, self.tracer.begins, self.tracer.selects = context.picks, context.begins, context.selects
        self.tracer.graph.symbol_node = lambda value: symbol_node(self.tracer, value)
        self.function, self.args, self.kwargs = function, args, kwargs
        self.frame: Frame | None = None

    def trace(self, stop: int) -> Any:
        """Interpret the call; returns its value."""
        tracer = self.tracer
        reason = torch_interface.unusable_state(tracer.state)
        if reason is not None:
            raise RunEager(reason, expected=True)
        target, args, kwargs = self.root_call()
        if target.__code__.co_flags & (GENERATOR_FLAG | COROUTINE_FLAGS):
            raise RunEager(f"`{target.__qualname__}` is a generator or a coroutine")
        frame = tracer.enter(target, args, kwargs)
        frame.stop = stop
        self.frame = frame
        return tracer.run(frame).value

    def close(self) -> None:
        """Put torch's state back."""
        self.tracer.graph.inference.leave()
        torch_interface.restore_state(self.tracer.state, *self.tracer.autocast)
        self.tracer.forget_places()

    def forget(self) -> None:
        """Let go of what the call was about, which would else live until the next garbage collection."""
        forget_classes(self.tracer)
        vars(self.tracer).clear()
        vars(self).clear()

    def root_call(self) -> tuple[types.FunctionType, tuple[Any, ...], dict[str, Any]]:
        """The Python function behind the callable, with its symbolic arguments."""
        tracer = self.tracer
        root, positional, keyword = Source(None, "F", "the function"), Source(None, "A", "args"), Source(None, "K", "kwargs")
        count, names = len(self.args), list(self.kwargs)
        words = f"the call has {count} positional argument{'' if count == 1 else 's'}"
        tracer.guards.test(positional, "len({0}) == {1}", (count,), words, "structure", count)
        if names:
            words = f"the keyword arguments are {', '.join(names)}"
            tracer.guards.test(keyword, "list({0}) == {1}", (names,), words, "structure", names)
        else:
            tracer.guards.test(keyword, "not {0}", (), "the call has no keyword arguments", "structure", names)
        labels = parameter_names(self.function)
        args: Args = tuple(
            Lazy(Argument(positional, place, labels[place] if place < len(labels) else f"args[{place}]"), value)
            for place, value in enumerate(self.args))
        kwargs: Keywords = {key: Lazy(Argument(keyword, key, key), value) for key, value in self.kwargs.items()}
        target = tracer.wrap(self.function, root)
        while not isinstance(target, types.FunctionType):
            target, args, kwargs = self.unwrap(target, args, kwargs)
        if DISABLED_MARK in target.__dict__ or "_torchdynamo_disable" in target.__dict__:
            raise RunEager(f"`{target.__qualname__}` is disabled", expected=True)
        untraced = torch_interface.why_untraced(target)
        if untraced is not None:
            raise RunEager(f"`{target.__module__}.{target.__qualname__}` is called as it is", untraced)
        return target, args, kwargs

    def unwrap(self, target: Any, args: Args, kwargs: Keywords) -> tuple[Any, Any, Any]:
        """One step from a callable towards the Python function that it calls."""
        tracer = self.tracer
        if isinstance(target, types.MethodType):
            return target.__func__, (target.__self__, *args), kwargs
        if isinstance(target, functools.partial):
            return target.func, (*target.args, *args), {**target.keywords, **kwargs}
        if hasattr(type(target), COMPILED_MARK):
            return get_attribute(tracer, target, getattr(type(target), COMPILED_MARK)), args, kwargs
        if isinstance(target, torch.nn.Module) and is_called_plainly(tracer, type(target)):
            return *called_by_module(tracer, target, args), kwargs
        caller = type(target).__call__ if not isinstance(target, type) else None
        if isinstance(caller, types.FunctionType) or hasattr(type(caller), COMPILED_MARK):
            return get_attribute(tracer, target, "__call__"), args, kwargs
        raise RunEager(f"`{name_of(target)}` is not written in Python")


def guard_aliases(tracer: Tracer) -> None:
    """Guard that what the captured code changed is nothing that it knows by another name."""
    effects = tracer.effects
    changed = {*effects.generators} | {id(shadow.real) for shadow in effects.changed_shadows()} | {
        id(tracer.reals.get(id(owner))) for owner, _ in effects.attributes.values()}
    groups: dict[Any, dict[int, Source]] = {}
    for key, source in tracer.sources.items() if changed else ():
        real = tracer.reals[key]
        if not isinstance(real, IDENTITY_TYPES) and not is_trusted(source):
            place = getattr(source, "key", "") if is_structural(source) else None
            groups.setdefault((type(real), place), {})[id(real)] = source
    for group in groups.values():
        written = [source for key, source in group.items() if key in changed]
        if written and len(group) > 1:
            sources = (*written, *(source for key, source in group.items() if key not in changed))
            tracer.guards.test(sources[0], ALL_APART, (len(written),),
                               "`{0}` is changed and is none of the others", "overlap", others=sources)


def parameter_names(function: Any) -> list[str]:
    """The names by which the user knows the positional arguments."""
    target, skip = function, 0
    if isinstance(target, functools.partial):
        return []
    if isinstance(target, torch.nn.Module):
        target, skip = type(target).forward, 1
    elif isinstance(target, types.MethodType):
        target, skip = target.__func__, 1
    code = target.__code__ if isinstance(target, types.FunctionType) else None
    return list(code.co_varnames[skip : code.co_argcount]) if code is not None else []


def capture_call(context: Context, function: Any, args: Args, kwargs: Keywords) -> Variant:
    """Trace a call and write the function that replaces it."""
    stop: Break | None = None
    step = -1
    for _ in range(MAXIMUM_ATTEMPTS):
        attempt = Attempt(context, function, args, kwargs)
        try:
            with torch_interface.compiling(context.compiling):
                try:
                    value = attempt.trace(step)
                    return Assembly(attempt).returning(value)
                except CutHere:
                    assert stop is not None and attempt.frame is not None
                    return Assembly(attempt).cut(attempt.frame, stop)
                except Stop as error:
                    if attempt.tracer.inference_scopes and not context.config.fullgraph:
                        raise TraceAgain(inference=False) from None  # a graph that ends in one has to begin in it
                    if attempt.tracer.told_compiling and error.kind in PARTS_WAYS and not context.config.fullgraph:
                        raise TraceAgain(compiling=False) from None
                    raise
                finally:
                    attempt.close()
        except Break as error:
            if context.config.fullgraph:
                raise unsupported(error, attempt) from None
            if attempt.frame is None or stop is not None or torch_interface.is_of_optimizers(attempt.frame.code):
                return Assembly(attempt).eager(f"{error.reason}", error.stack[-1] if error.stack else None)
            stop, step = error.with_traceback(None), attempt.frame.step - 1
        except TraceAgain as error:
            stop, step, context = None, -1, dataclasses.replace(context, **error.changes)
        except RaisedInUserCode as error:
            if not context.compiling:
                return Assembly(attempt).eager(f"the call raises {type(error.value).__name__}", None, expected=True)
            stop, step, context = None, -1, dataclasses.replace(context, compiling=False)  # only its way for compilers may raise
        except RunEager as error:
            if context.config.fullgraph and not error.expected:
                raise unsupported(error, attempt) from None
            stack = error.stack or (stop.stack if stop is not None else ())
            place = stack[-1] if stack else None
            reason = error.reason if stop is None else f"{error.reason} (the graph broke because: {stop.reason})"
            return Assembly(attempt).eager(reason, place, error.expected, isinstance(error, LooksAtItsFrame))
        finally:
            attempt.forget()
    raise AssertionError("unreachable: every attempt returns or sets the place of the cut")


def unsupported(stop: Stop, attempt: Attempt) -> Unsupported:
    """The error of `fullgraph=True`."""
    start = start_of(attempt.frame)
    stack = stop.stack or ((start,) if start is not None else ())
    return Unsupported(stop.kind, stop.reason, stop.hint, stack, KINDS[stop.kind].explanation)


def start_of(frame: Frame | None) -> Location | None:
    """Where the captured code begins."""
    if frame is None:
        return None
    return Location(frame.code.co_filename, frame.code.co_firstlineno, frame.code.co_name)


class Assembly:
    """Writes the generated function of one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.tracer, self.context = attempt, attempt.tracer, attempt.context
        self.writer = Writer()
        self.emitter = Emitter(self.tracer, self.writer, functools.partial(self.context.resume_point, self.context.compiling))
        self.state_after = torch_interface.torch_state(), autocast.settings()
        self.opened = autocast.open_blocks() - self.tracer.autocast[1]
        # Guards and compiled graphs belong to the state at the start.
        torch_interface.restore_state(self.tracer.state, *self.tracer.autocast)
        self.name = self.writer.unique(self.name_of_function())
        self.asks_for_gradients: Stop | None = None

    def name_of_function(self) -> str:
        """The user's function as an identifier."""
        function = self.attempt.function
        if isinstance(function, types.MethodType) and isinstance(function.__self__, torch.nn.Module):
            return identifier(type(function.__self__).__name__)
        return identifier(name_of(function), "function")

    def returning(self, value: Any) -> Variant:
        """The function for a frame that was captured whole."""
        if self.tracer.inference_scopes:
            raise RunEager("an `inference_mode` stays open", "autograd call")
        check_begun(self.tracer)
        check_expectations(self.tracer)
        result = self.emitter.value(value)
        write_side_effects(self.emitter)
        return self.finish([f"return {result}"], None)

    def cut(self, frame: Frame, stop: Break) -> Variant:
        """The function for a frame that ends in a graph break."""
        check_begun(self.tracer)
        check_expectations(self.tracer)
        call_compiled = functools.partial(self.context.call_compiled, self.context.compiling)
        cutter = Cutter(self.tracer, frame, stop, self.emitter, call_compiled)
        lines = cutter.write()
        names = frame.code.co_names
        asked = stop.of_intermediates or not GRADIENT_NAMES.isdisjoint(names) or {"autograd", "grad"} <= set(names)
        self.asks_for_gradients = stop if asked else None
        write_side_effects(self.emitter)
        record = GraphBreak(stop.kind, stop.reason, stop.hint, stop.stack)
        if not cutter.goes_elsewhere:  # where the break is found again
            self.context.record_break(record)
        return self.finish(lines, record)

    def check_intermediates(self, stop: Stop, views: Mapping[Any, str]) -> None:
        """Refuse to cut where gradients of an intermediate result are asked for, if it is not connected with another output: one
        that was written, or a view of another result."""
        graph = self.tracer.graph
        for value in self.emitter.outputs:
            if isinstance(value, torch.Tensor) and value.requires_grad and graph.is_used(value):
                if (value._is_view() or value._version) and graph.traced[id(value)] not in views:
                    raise RunEager("the gradient of an intermediate result is asked for", stop.kind)

    def finish(self, lines: list[str], graph_break: GraphBreak | None) -> Variant:
        """Compile the graph and put the parts together."""
        tracer, graph = self.tracer, self.tracer.graph
        dropped = (generator for generator in tracer.generators if generator.waits_in_a_block() and not generator.handed_over)
        if any(generator.frame.code is not Sequence.__iter__.__code__ for generator in dropped):
            raise RunEager("a generator is dropped inside a `try` or `with`")  # where Python runs code that is in them
        check_picks(tracer, self.emitter.outputs)
        check_made_leaves(tracer, self.emitter.outputs)
        check_switched(tracer)
        self.check_mutation()
        guard_aliases(tracer)
        for complaint in check_marks(tracer):
            if self.context.config.fullgraph:
                raise Unsupported("dynamic size", complaint)
            warn_user(complaint)
        call_lines: list[str] = []
        failed = "" if tracer.failed is None else self.emitter.value(tracer.failed)
        if graph.operations or self.emitter.outputs:
            inferring = graph.inference.used
            recording = tracer.state[0] and not (inferring or tracer.state[3])
            ahead, views = self.views_ahead() if recording else ([], {})
            if self.asks_for_gradients is not None:
                self.check_intermediates(self.asks_for_gradients, views)
            module = graph.finish(self.emitter.outputs)
            inputs = graph.graph_inputs()
            captured = CapturedGraph(module, inputs, self.guard_records(), graph_break, self.name,
                                     recording, start_of(self.attempt.frame))
            with torch.inference_mode() if inferring else contextlib.nullcontext():
                compiled = self.context.compile_graph(captured, bool(graph.mutated_inputs()))
            arguments = ", ".join(self.writer.fetch(entry.source) if entry.source else views[entry] for entry in graph.inputs)
            outputs = "".join(f"output_{place}, " for place in range(len(self.emitter.outputs)))
            function = torch.inference_mode()(compiled) if inferring else compiled
            call = f"{self.emitter.constant(function, 'graph')}({arguments})"
            call_lines = [f"{outputs}= {call}" if outputs else call]
            if not graph.mutated_inputs() or getattr(compiled, "writes_last", False):
                again = self.emitter.constant(self.context.run_original, "run_original")
                save, rewind = self.rewinding()
                call_lines = [*save, "failure = None", "try:", f"    {call_lines[0]}", "except Exception as error:",
                              "    failure = error", "if failure is not None:",  # no longer handled: no context of others
                              *rewind, f"    return {again}(failure, F, A, K)"]
            if failed:
                again = self.emitter.constant(self.context.raise_originally, "raise_originally")
                call_lines += [f"if {failed}:", *rewind, f"    return {again}(F, A, K)"]
            call_lines = [*ahead, *call_lines]
        if (tracer.state, tracer.autocast[0]) != self.state_after or self.opened:  # torch's state, as the traced code left it
            restore = self.emitter.constant(functools.partial(torch_interface.restore_state, *self.state_after), "set_state")
            count = self.emitter.constant(autocast.open_blocks, "open_blocks")
            # Counted ahead of the call: a graph that is left to eager opens them itself.
            call_lines = [f"blocks = {count}()", *call_lines, f"{restore}(blocks + {self.opened})"]
        return self.assemble([*call_lines, *self.emitter.body, *lines], None)

    def views_ahead(self) -> tuple[list[str], dict[Any, str]]:
        """Statements that make the views of inputs which the graph takes beside them, and the variables that hold them."""
        lines: list[str] = []
        names: dict[Any, str] = {}
        for made, sources, make in take_views_as_inputs(self.tracer.graph, self.emitter.outputs):
            given = ", ".join(names[source] if source in names else self.writer.fetch(source.source) for source in sources)
            names[made] = self.writer.unique("view")
            lines.append(f"{names[made]} = {self.emitter.constant(make, 'make_view')}({given})")
        return lines, names

    def rewinding(self) -> tuple[list[str], list[str]]:
        """Statements that remember what a graph with tests in it may change, and that undo it."""
        if self.tracer.failed is None:
            return [], []
        name = self.emitter.constant(Rewind(self.tracer), "rewind")
        return [f"before = {name}.random_state()"], [f"    {name}(before)"]

    def check_mutation(self) -> None:
        """Refuse inputs that are changed in place while another input shares their memory."""
        mutated = self.tracer.graph.mutated_inputs()
        if not mutated:
            return
        inputs = [entry for entry in self.tracer.graph.inputs if isinstance(entry.real, torch.Tensor)]
        layouts = [guard for guard in self.tracer.guards.items if isinstance(guard, TensorGuard)]
        fixed = not any(None in guard.sizes or None in guard.strides for guard in layouts)
        results = (*self.emitter.outputs, *(entry.value for entry in mutated))
        apart = NoOverlap(fixed, any(isinstance(value, torch.Tensor) and value.grad_fn is not None for value in results))
        alone = apart([entry.real for entry in mutated], [entry.real for entry in inputs])
        places = {id(entry): f"{{others[{place}]}}" for place, entry in enumerate(inputs)}
        text = f"{{1}}(({', '.join(places[id(entry)] for entry in mutated)},), ({', '.join(places.values())},))"
        words = "shares no memory with another input" if alone else "shares memory with another input"
        self.tracer.guards.test(mutated[0].source, text if alone else f"not {text}", (apart,), f"`{{0}}` is changed and {words}",
                                "overlap", others=tuple(entry.source for entry in inputs if entry.source))
        if not alone:
            raise RunEager("an input that is changed in place shares memory with another input", "shared memory")
        self.guard_no_leaves(mutated)

    def guard_no_leaves(self, mutated: Sequence[Traced]) -> None:
        """Guard that what is changed and requires a gradient stays no leaf, nor a view of one: eager refuses to change these."""
        for entry in mutated:
            if entry.real.requires_grad and not is_of_leaf(entry.real):
                words = "`{0}` is changed, and neither a leaf nor a view of one"
                self.tracer.guards.test(entry.source, "not {1}({0})", (is_of_leaf,), words, "overlap")

    def guard_records(self) -> tuple[GuardRecord, ...]:
        """The guards for people."""
        guards = (*self.tracer.guards.all(), *shape_guards(self.tracer))
        return tuple(GuardRecord(guard.text(), guard.words(), guard.location) for guard in guards)

    def eager(self, reason: str, place: Location | None, expected: bool = False, looks: bool = False) -> Variant:
        """A variant that runs the original; `looks` says whether that looks at its callers."""
        self.tracer.effects.shadows.clear()
        start = f"{self.emitter.constant(seen_from_user_lines, 'seen_from_user_lines')}(F, " if looks else "F("
        return dataclasses.replace(self.assemble([f"return {start}*A, **K)"], reason), expected=expected, location=place)

    def add_absence_guards(self) -> None:
        """Guards on names that were looked up and not found."""
        for namespace, names in self.tracer.absent_globals.values():
            self.guard_absence(self.tracer.globals_source(namespace), names, "no global is named")
        for kind, names in self.tracer.absent_in_classes.items():
            self.guard_absence(Attribute(Baked(kind, kind.__name__), "__dict__"), names, f"the class {kind.__name__} has no")
        self.add_library_guards()
        for shadow in self.tracer.effects.shadows.values():
            if shadow.absent and not shadow.structure_guarded:
                self.guard_absence(shadow.source, shadow.absent, "`{0}` has no")

    def guard_absence(self, source: Source, absent: set[Any], words: str) -> None:
        """Guard that a table has none of the names, in the form that is cheapest to test, the same in every process."""
        names = sorted(absent, key=str)
        shown = f"{words} {', '.join(map(str, names))}"
        if len(names) <= 5:
            text, constants = " and ".join(f"{{{place}}} not in {{0}}" for place in range(1, len(names) + 1)), tuple(names)
        else:
            text, constants = "(not {0} or {0}.keys().isdisjoint({1}))", (frozenset(absent),)
        self.tracer.guards.test(source, text, constants, shown, "absent")

    def add_library_guards(self) -> None:
        """Guards that what was read from the standard library and torch is not replaced, and that no class has new bases."""
        guards = self.tracer.guards
        for owner, reads in self.tracer.library_reads.values():
            source: Source = Attribute(Baked(owner, owner.__name__), "__dict__") if isinstance(owner, type) else (
                self.tracer.globals_source(owner))
            names, values = tuple(reads), tuple(reads.values())
            fetch = operator.itemgetter(*names, names[0])
            guards.test(source, "{1}({0}) == {2}", (fetch, (*values, values[0])),
                        f"{', '.join(names[:5])}{', ...' if names[5:] else ''} of {source.words()} are not replaced", "identity")
        for kind in self.tracer.class_orders:
            if not kind.__flags__ & IMMUTABLE and not is_trusted_module(kind.__module__) and id(kind) not in self.tracer.fresh:
                guards.test(Attribute(Baked(kind, kind.__name__), "__mro__"), "{0} == {1}", (kind.__mro__,),
                            f"the class {kind.__name__} has the same bases", "identity")

    def assemble(self, body: list[str], eager: str | None) -> Variant:
        """The text of the whole function, compiled."""
        tracer, writer = self.tracer, self.writer
        if eager is None:
            self.add_absence_guards()
        guards = [*tracer.guards.all(), *(shape_guards(tracer) if eager is None else ())]
        guard_writer = Writer()
        guard_writer.namespace, guard_writer.used = writer.namespace, writer.used
        guard_writer.named, guard_writer.keep, guard_writer.by_text = writer.named, writer.keep, writer.by_text
        lasting = None
        if eager is None:
            changing = {id(shadow.real) for shadow in tracer.effects.changed_shadows()}
            attempt = self.attempt
            lasting = find_trees(guards, {"F": attempt.function, "A": attempt.args, "K": attempt.kwargs}, changing)
        later = [*writer.lines, *body]
        fetch_lines = write_guards(guard_writer, guards, tracer.state, lambda text: f"if not ({text}): return MISS",
                                   lasting, later)
        name, written = self.name, {line.strip() for line in fetch_lines}
        text = "\n".join([
            f"def {name}(F, A, K):", "    try:", *(f"        {line}" for line in fetch_lines),
            *(f"        {line}" for line in later[: len(writer.lines)] if line not in written),
            "    except GUARD_ERRORS:", "        return MISS",
            *(f"    {line}" for line in later[len(writer.lines) :]), ""])
        namespace = {**writer.namespace, **GUARD_SCOPE, "MISS": MISS, "torch": torch, "GUARD_ERRORS": (Exception,)}
        function = compile_source(text, name, namespace)
        for guard in guards:
            if isinstance(guard, TensorGuard):
                guard.let_go()
        return Variant(function, guards, tracer.state, text, eager)


GRADIENT_NAMES = frozenset({"retain_grad", "register_hook"})


counter = iter(range(1 << 60))


def compile_source(text: str, name: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """Compile generated source so that debuggers and tracebacks show it."""
    filename = f"<minicompile {name} {next(counter)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)  # the text is ours
    function: Callable[..., Any] = namespace[name]
    weakref.finalize(function, linecache.cache.pop, filename, None).atexit = False
    return function


