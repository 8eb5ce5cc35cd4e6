"""The public interface: `compile`, `sources`, `disable`, `reset`, marks, and the records of what was compiled.

Thin on purpose: capture decides when to compile, `compiler.py` compiles. This module must not know any stage.
"""

import collections
import contextlib
import dataclasses
import functools
import operator
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

import minicompile.config as configuration
from minicompile.capture.collector import collection_postponed

with collection_postponed():  # amid all that is loaded here a collection takes a third of the time
    from minicompile.capture.begun_generators import keep_out
    from minicompile.capture.entry import CompiledCallable
    from minicompile.capture.frame_cache import CallCache, guard_test
    from minicompile.compiled_module import CompiledModule, compile_module
    from minicompile.compiler import Compiler
    from minicompile.config import Config
    from minicompile.ir.schedule import FusionRefusal
    from minicompile.report import compare as comparing
    from minicompile.report import explain as explaining
    from minicompile.report import logs, watch
    from minicompile.report.compare import Comparison
    from minicompile.report.explanation import Explanation
    from minicompile.report.sandbox import copied
    from minicompile.report.stages import Listing, numbered, stages_of
    from minicompile.runtime.code_cache import CodeCache
    from minicompile.runtime.kernel_binary import machine_code

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Stats:
    """What has been compiled so far.

    Attributes:
        graphs: captured and compiled graphs.
        graph_breaks: places where capture cut a function.
        kernels: generated kernels that one call of every graph launches.
        extern_calls: calls of kernels that are not generated (a vendor's matrix product, an ATen operator).
        fallbacks: parts or whole frames left to eager.
        bytes_moved: bytes that the generated kernels read and write in one call of every graph.
    """

    graphs: int = 0
    graph_breaks: int = 0
    kernels: int = 0
    extern_calls: int = 0
    fallbacks: int = 0
    bytes_moved: int = 0


class CompiledFunction(CompiledCallable):
    """A compiled function: call it like the original, ask it for its records."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], config: Config) -> None:
        self.config = config
        functools.update_wrapper(self, function, updated=())
        self.restart()
        _living.add(self)

    def restart(self) -> None:
        """Forget every compiled variant."""
        topics = logs.enabled_topics()
        self.compiler = Compiler(self.config, functools.partial(logs.emit_part, topics) if topics else None)
        super().__init__(python_function(self.__wrapped__), self.compiler.backend, self.config)
        if "help" in topics:
            logs.emit("help", logs.help_text())
        for topic in topics & {"graph_breaks", "recompiles"}:
            setattr(self.records, topic, logs.LoggedRecords(topic))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        """What the original has besides: its code, what it is bound to, what the user has stored there."""
        if name in ("__wrapped__", "__deepcopy__"):  # a copy of the original is not compiled
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By its name if that is what it goes by, as plain functions are."""
        name = getattr(self, "__qualname__", "")
        with contextlib.suppress(AttributeError, KeyError):
            if operator.attrgetter(name)(sys.modules[self.__module__]) is self:
                return name
        return CompiledFunction, (self.__wrapped__, self.config)

    @property
    def stats(self) -> Stats:
        """Counts of what has been compiled so far."""
        graphs = self.compiler.graphs
        programs = [program for graph in graphs for program in graph.programs]
        return Stats(
            graphs=len(graphs),
            graph_breaks=len(self.records.graph_breaks),
            kernels=sum(len(program.launches) for program in programs),
            extern_calls=sum(len(program.extern_calls) for program in programs),
            fallbacks=len(self.records.fallbacks) + sum(len(graph.fallbacks) for graph in graphs),
            bytes_moved=sum(program.bytes_moved for program in programs),
        )

    @property
    def recompiles(self) -> list[Any]:
        """One record per recompile: what changed, why that mattered, seconds."""
        return list(self.records.recompiles)

    @property
    def graph_breaks(self) -> list[Any]:
        """One record per graph break: the reason, the line, a rewrite where one is known."""
        return list(self.records.graph_breaks)

    @property
    def differences(self) -> list[Any]:
        """One record per call whose result was not eager's, where calls are checked."""
        checker = self.compiler.checker
        return list(checker.differences) if checker is not None else []

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of compile time by stage, over all graphs."""
        return dict(sum((graph.timings for graph in self.compiler.graphs), collections.Counter()))


_living: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def compile(
    fn_or_module: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, a bound method, a lambda or an `nn.Module`; nothing is compiled before the first call.

    Arguments:
        fn_or_module: what to compile; without it, a decorator with these settings is returned.
        fullgraph: raise on a graph break instead of running the part in eager.
        dynamic: `None` makes a dimension symbolic at its second size, `True` at once, `False` never.
        mode: `default`, `reduce-overhead`, `max-autotune` or `max-autotune-no-cudagraphs`; excludes `options`.
        options: settings of `minicompile.config.Config` by name.
        disable: run everything eager.
    """
    if mode is not None and options:
        raise RuntimeError("either mode or options can be given to minicompile.compile, not both")
    asked = {"fullgraph": fullgraph or None, "disable": disable or None, "dynamic": dynamic, "mode": mode}
    given = {name: value for name, value in asked.items() if value is not None}
    config = configuration.current().replace(**(options or {}) | given)
    return compiled(fn_or_module, config) if fn_or_module is not None else functools.partial(compiled, config=config)


def compiled(target: Any, config: Config) -> Any:
    """The compiled form of a function or module under `config`."""
    target = original(target)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(compiled(target.__func__, config))
    if isinstance(target, type):
        raise TypeError(f"minicompile.compile takes a function or an nn.Module object, not the class {target.__name__}")
    if isinstance(target, torch.jit.ScriptModule):
        warnings.warn("a scripted module has no Python to compile; it runs as it is", stacklevel=3)
        return target
    if isinstance(target, torch.nn.Module):
        return compile_module(target, functools.partial(CompiledFunction, config=config))
    if not callable(target):
        raise TypeError(f"minicompile.compile takes a function or an nn.Module object, not {type(target).__name__}")
    return CompiledFunction(target, config)


def original(target: Any) -> Any:
    """What a compiled function or module was made of, also where it is that of a bound method or of a partial."""
    if isinstance(target, (CompiledFunction, CompiledModule)):
        return target.__wrapped__
    if type(target) is types.MethodType and (inner := original(target.__func__)) is not target.__func__:
        return types.MethodType(inner, target.__self__)
    if type(target) is functools.partial and (inner := original(target.func)) is not target.func:
        return functools.partial(inner, *target.args, **target.keywords)
    return target


def python_function(target: Callable[..., Any]) -> Callable[..., Any]:
    """`target`, or a Python function that calls it: a builtin, a partial of one, an operator or a transform of PyTorch's."""
    inner = target.func if isinstance(target, functools.partial) else target
    is_builtin = isinstance(inner, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType))
    is_python = isinstance(inner, types.FunctionType)
    is_operator = is_python and (inner.__module__ or "").startswith("torch.")
    is_transform = is_python and inner.__globals__.get("__name__", "").startswith("torch._functorch.")  # named as what it wraps
    if not (is_builtin or is_operator or is_transform):
        return target

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return call


def sources(compiled: Any) -> Listing:
    """The generated Triton and host source of everything that `compiled` has compiled so far, by file name."""
    graphs = compiled_function(compiled).compiler.graphs
    return numbered((f"{program.name}.py", program.text) for graph in graphs for program in graph.programs)


def source_paths(compiled: Any) -> list[str]:
    """Where the generated files of `compiled` lie on disk."""
    parts = (part for graph in compiled_function(compiled).compiler.graphs for part in graph.parts.values())
    return [str(part.path) for part in parts if part.path is not None]


def stats(compiled: Any) -> Stats:
    """The counts of what `compiled` has compiled so far, also where a module has a `stats` of its own."""
    return compiled_function(compiled).stats


def compiled_function(compiled: Any) -> CompiledFunction:
    """The compiled function behind a compiled function, method or module; anything else raises `TypeError`."""
    if isinstance(compiled, CompiledModule):
        return compiled._minicompile_forward
    if isinstance(compiled, types.MethodType) and isinstance(compiled.__func__, CompiledFunction):
        return compiled.__func__
    if isinstance(compiled, CompiledFunction):
        return compiled
    raise TypeError(f"not something that minicompile.compile returned: {compiled!r}")


def explain(function: Any, *, sweep: bool | None = None, **compile_options: Any) -> Callable[..., Explanation]:
    """`explain(f)(*args)` runs `f` compiled and eagerly on copies of the arguments and says what was done, and why it
    is fast or not. `sweep` tries other batch sizes too (by default on a GPU only); other options are those of `compile`.
    """
    return lambda *args, **kwargs: explaining.explain(function, args, kwargs, report_tools(compile_options), sweep)


def report_tools(compile_options: dict[str, Any]) -> explaining.Tools:
    """The compiler as reports use it: every stage runs, so that its product can be looked at."""

    def compile_kept(target: Any) -> Any:
        made = compile(target, **compile_options)
        compiled_function(made).compiler.keep_products = True
        return made

    def guard_tests(cache: CallCache) -> tuple[list[Any], Any]:
        guards = cache.entries[-1].guards if cache.entries else []
        tests = [((guard.words(), guard.text()), guard_test([guard])) for guard in guards]
        return tests, guard_test(guards) if guards else None

    active = configuration.current()
    cache = CodeCache(active.cache_directory, active.cache_megabytes) if active.cache else None
    binary = functools.partial(machine_code, cache=cache)
    return explaining.Tools(compile_kept, compiled_function, guard_tests, binary, active.cache_directory)


def compare(function: Any, **compile_options: Any) -> Callable[..., Comparison]:
    """`compare(f)(*args)` runs `f` under eager, `torch.compile` and minicompile, side by side."""
    compilers: dict[str, Callable[[Any], Any]] = {
        "eager": lambda target: target,
        "torch.compile": torch.compile,
        "minicompile": report_tools(compile_options).compile,
    }

    def graphs(made: Any) -> list[Any] | None:
        ours = isinstance(made, (CompiledFunction, CompiledModule))
        return list(compiled_function(made).compiler.graphs) if ours else None

    return lambda *args, **kwargs: comparing.compare(function, args, kwargs, compilers, graphs)


@contextlib.contextmanager
def first_calls() -> Iterator[dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """Collect (original, arguments, keywords) of the first call of every compiled function in a block, by its identity."""
    found: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def call(self: CompiledFunction, /, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in found:
            found[id(self)] = (self.__wrapped__, *copied((args, kwargs)))
        return CompiledCallable.__call__(self, *args, **kwargs)

    CompiledFunction.__call__ = call  # type: ignore[method-assign, assignment]  # for the block
    try:
        yield found
    finally:
        del CompiledFunction.__call__


def stages(compiled: Any) -> Listing:
    """The program of every stage, in order, of everything that `compiled` has compiled so far."""
    compiler = compiled_function(compiled).compiler
    return stages_of(compiler.graphs, compiler.products, compiler.joint_text)


def why_not_fused(compiled: Any, first: str, second: str) -> list[FusionRefusal]:
    """Why two operations of what `compiled` has compiled so far are in different kernels.

    Operations are named by an operator (`softmax`), a variable, or a line (`model.py:12`). Each record prints as a sentence and
    says `illegal` with the dependence, `unprofitable` with the bytes either way, or `fused`. What is unprofitable can be
    forced: `minicompile.compile(f, options={"fuse": (("softmax", "mul"),)})`.
    """
    return compiled_function(compiled).compiler.why_not_fused(first, second)


def profile(path: str | None = None) -> contextlib.AbstractContextManager[torch.profiler.profile]:
    """A `torch.profiler` profile of a block in which every kernel of what was compiled before has a range (on a GPU an
    NVTX range too) named after the user's module; with `path`, written there as a Chrome trace.
    """
    compilers = [function.compiler for function in _living]
    pairs = [(graph, compiler.products) for compiler in compilers for graph in compiler.graphs]
    return watch.profile(pairs, path)


def reset() -> None:
    """Forget every compiled variant of every function in this process; files on disk stay."""
    for function in list(_living):
        function.restart()


def disable(function: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Keep a function or module out of every graph; usable bare, as a decorator, and with a reason for the records.

    `recursive` is accepted as in `torch.compiler.disable`; what a disabled function calls is never captured either way,
    unless it was compiled on its own.
    """
    if function is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(function, torch.nn.Module):
        function.forward = disable(function.forward, reason=reason)
        return function
    if isinstance(function, (CompiledFunction, CompiledModule)):
        function = function.__wrapped__

    keep_out(function)

    @functools.wraps(function)
    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # The marks of torch.compiler.disable, so that each compiler honours the other's.
    uncompiled._torchdynamo_disable = True  # type: ignore[attr-defined]  # an attribute of ours by torch's name
    uncompiled._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]  # an attribute of ours by torch's name
    return uncompiled


def is_compiling() -> bool:
    """Whether the calling code is being captured."""
    return torch.compiler.is_compiling()


def mark_dynamic(
    tensor: torch.Tensor, index: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Make dimensions of an argument symbolic from its first call on; calls with sizes outside of `min` and `max` get
    another variant. A program that fixes such a size is told about with a warning, an error under `fullgraph`."""
    if min is not None and max is not None and min > max:
        raise ValueError(f"the smallest size {min} is above the largest {max}")
    marked = _mark(tensor, "_dynamo_dynamic_indices", index)
    others = {each for each in getattr(tensor, "_dynamo_dynamic_range", set()) if each.dim not in marked}
    tensor._dynamo_dynamic_range = others | {DimRange(each, min, max) for each in marked}  # type: ignore[attr-defined]  # torch sets it too


class DimRange(NamedTuple):
    """Bounds of a marked dimension, in the form in which torch's own marks keep them."""

    dim: int
    min: int | None
    max: int | None


def mark_static(tensor: torch.Tensor, index: int | Sequence[int] | None = None) -> None:
    """Never make dimensions of an argument symbolic; without `index`, none of them."""
    _mark(tensor, "_dynamo_static_indices", range(tensor.ndim) if index is None else index)


def _mark(tensor: torch.Tensor, attribute: str, index: int | Sequence[int]) -> set[int]:
    """Add dimensions to the set that torch's own marks keep on a tensor, so that both are honoured; returns the new ones."""
    marked = set()
    for dimension in [index] if isinstance(index, int) else index:
        if not -tensor.ndim <= dimension < tensor.ndim:
            raise IndexError(f"dimension {dimension} of a tensor with {tensor.ndim} dimensions")
        marked.add(dimension % tensor.ndim)
    setattr(tensor, attribute, {*getattr(tensor, attribute, ()), *marked})
    return marked
